# SPDX-License-Identifier: Apache-2.0 OR MIT
"""`make experiments` runs everything that `lab/experiments/run.sh` has, and it names all."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
SCRIPT = (ROOT / "lab/experiments/run.sh").read_text()


def test_every_experiment_is_run_and_named() -> None:
    cases = re.findall(r"^([a-z][a-z-]*)\)$", SCRIPT, re.MULTILINE)
    assert len(cases) > 5
    (run,) = re.findall(r"for experiment in ([a-z -]+); do", (ROOT / "Makefile").read_text())
    assert sorted(run.split()) == sorted(cases)
    usages = re.findall(r"run\.sh ([a-z|-]+) \[OUT\]", SCRIPT)
    assert len(usages) == 2 and all(usage.split("|") == cases for usage in usages)
    (last,) = re.findall(r"; next: ([a-z ,-]+)\"", SCRIPT)
    assert re.split(r", | or ", last) == cases
