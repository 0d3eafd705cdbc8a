# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The table of the seven workloads, from comparisons of a made command."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from demeter_lab.cli import app
from demeter_lab.results import ResultError
from demeter_lab.seven import MANAGERS, read_times, share, table

FAKE = """#!{python}
import json, sys, pathlib
words = sys.argv[1:]
with open(pathlib.Path(__file__).with_name("calls"), "a") as calls:
    calls.write(" ".join(words) + "\\n")
if words[-1] == "fails":
    sys.exit("demeter: error: it fails; next: nothing")
out = pathlib.Path(words[words.index("--out") + 1])
out.mkdir(parents=True)
names = words[words.index("--tmm") + 1].split(",")
rows = {{name: {{"time_s": 10 - at}} for at, name in enumerate(names)}}
(out / "compare.json").write_text(json.dumps({{"rows": rows}}))
"""


def seven(fake: Path, *words: str) -> tuple[int, str]:
    out = fake.with_name("out")
    done = CliRunner().invoke(
        app, ["seven", "--demeter", str(fake), "--out", str(out), *words], catch_exceptions=False
    )
    return done.exit_code, done.output


def test_all_seven_are_compared_once(fake: Path) -> None:
    status, output = seven(fake, "--seed", "5")
    assert status == 0, output
    assert output == fake.with_name("out").joinpath("table.txt").read_text()
    calls = fake.with_name("calls").read_text().splitlines()
    assert len(calls) == 7
    assert all(f"--tmm {','.join(MANAGERS)} " in call and "--seed 5" in call for call in calls)
    guest = " --kernel 7.x --fmem 64M --smem 288M -- "
    assert all("--roi self" in call and guest in call for call in calls)
    # none 10, nbt 9, damon 8, damon-auto 7, demeter 6, ideal 5, fast 4.
    line = next(line for line in output.splitlines() if line.startswith("silo"))
    numbers = "10.000 5.000 9.000 20 8.000 40 7.000 60 6.000 80 4.000 120"
    assert line.split() == ["silo", *numbers.split()]
    assert "mean of none's" in output.splitlines()[-1]
    assert seven(fake, "--seed", "5")[1] == output
    assert len(fake.with_name("calls").read_text().splitlines()) == 7
    # Another seed's results, or another build's, are not mixed with these.
    assert seven(fake, "--seed", "6")[0] == 1
    fake.write_text(fake.read_text() + "# rebuilt\n")
    status, output = seven(fake, "--seed", "5")
    assert status == 1 and "another --out" in output


def test_another_guest_is_other_results(fake: Path) -> None:
    words = ("--workload", "one=well", "--guest", "--slow cxl")
    assert seven(fake, *words)[0] == 0
    assert " --smem 288M --slow cxl -- well" in fake.with_name("calls").read_text()
    status, output = seven(fake, "--workload", "one=well")
    assert status == 1 and "another --out" in output


def test_what_failed_is_told_and_goes_on(fake: Path) -> None:
    status, output = seven(fake, "--workload", "one=well", "--workload", "two=fails")
    assert status == 1 and "two failed" in output
    status, output = seven(fake, "--workload", "one=well", "--workload", "two=now")
    assert status == 0
    assert len(fake.with_name("calls").read_text().splitlines()) == 3
    status, output = seven(fake, "--workload", "nonsense")
    assert status == 1 and "choose from" in output


def test_damaged_comparisons_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "compare.json"
    with pytest.raises(ResultError, match="missing"):
        read_times(path)
    no_time = json.dumps({"rows": {name: {"time_s": 0} for name in MANAGERS}})
    for text in ("{", "{}", '{"rows": {"none": {"time_s": 1}}}', "[]", no_time):
        path.write_text(text)
        with pytest.raises(ResultError, match="damaged"):
            read_times(path)


def test_nothing_to_gain_has_no_share() -> None:
    times = dict.fromkeys(MANAGERS, 10.0) | {"ideal": 9.95, "demeter": 9.9}
    assert share(times, "demeter") is None
    assert " - " in table({"flat": times})
    # Slower than none is less than nothing.
    assert share(times | {"ideal": 5.0, "nbt": 11.0}, "nbt") == pytest.approx(-0.2)


def test_other_rows_are_compared_without_the_ends_of_the_way(fake: Path) -> None:
    status, output = seven(fake, "--managers", "demeter", "--guest", "--pmu none")
    assert status == 0, output
    line = next(line for line in output.splitlines() if line.startswith("silo"))
    assert line.split() == ["silo", "10.000", "-"]
    assert "mean of" not in output
    assert seven(fake)[0] == 1  # these are other rows
