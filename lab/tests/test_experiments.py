# SPDX-License-Identifier: Apache-2.0 OR MIT
"""`make experiments` runs everything that `lab/experiments/run.sh` has, and it names all."""

import re
import subprocess
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


def test_one_that_fails_fails_them_all(tmp_path: Path) -> None:
    (line,) = re.findall(
        r"^\t(for experiment in .*)$", (ROOT / "Makefile").read_text(), re.MULTILINE
    )
    script = tmp_path / "lab/experiments/run.sh"
    script.parent.mkdir(parents=True)

    def status(of_redis: int) -> int:
        script.write_text(f'#!/bin/sh\n[ "$1" != redis ] || exit {of_redis}\n')
        script.chmod(0o755)
        return subprocess.run(
            ["sh", "-c", line.replace("$$", "$")], cwd=tmp_path, check=False
        ).returncode

    assert status(of_redis=0) == 0
    assert status(of_redis=3) != 0
