# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Sweeps of parameters on records, of a made command."""

from pathlib import Path

from typer.testing import CliRunner

from demeter_lab.cli import app
from demeter_lab.sensitivity import GRID

FAKE = """#!{python}
import json, sys, pathlib
words = sys.argv[1:]
with open(pathlib.Path(__file__).with_name("calls"), "a") as calls:
    calls.write(" ".join(words) + "\\n")
if words[-1] == "fails":
    sys.exit("demeter: error: it fails; next: nothing")
if words[:2] == ["vm", "record"]:
    out = pathlib.Path(words[2])
    out.mkdir(parents=True)
    (out / "accesses.bin").write_text("")
elif words[:2] == ["vm", "run"]:
    out = pathlib.Path(words[words.index("--out") + 1])
    out.mkdir(parents=True)
    (out / "summary.json").write_text(json.dumps({{"whole": {{"time_s": 4.0}}}}))
else:
    rows = [{{"name": "demeter", "time_s": 6.0, "none_s": 10.0, "ideal_s": 5.0}}]
    if "--sweep" in words:
        name, values = words[words.index("--sweep") + 1].split("=")
        rows = [dict(rows[0], name=f"{{name}}={{value}}") for value in values.split(",")]
        if name == "epoch_ms":
            rows[0]["time_s"], rows[-1]["time_s"] = 8.0, 5.0
    print(json.dumps({{"rows": rows}}))
"""


def swept(fake: Path, *words: str) -> tuple[int, str]:
    line = ["sensitivity", "--demeter", str(fake), "--out", str(fake.with_name("out")), *words]
    done = CliRunner().invoke(app, line, catch_exceptions=False)
    return done.exit_code, done.output


def test_each_workload_is_recorded_once_and_swept(fake: Path) -> None:
    status, output = swept(fake, "--workload", "silo")
    assert status == 0, output
    numbers = "10.000 5.000 6.000 4.000 0.667 epoch_ms=500 5.000 1.200 epoch_ms=10 8.000"
    assert output.splitlines()[-1].split() == ["silo", *numbers.split()]
    calls = fake.with_name("calls").read_text().splitlines()
    assert [call.split()[:2] for call in calls[:2]] == [["vm", "record"], ["vm", "run"]]
    assert len(calls) == 3 + len(GRID)
    swept(fake, "--workload", "silo")
    again = fake.with_name("calls").read_text().splitlines()[len(calls) :]
    assert all(call.startswith("sim ") for call in again)


def test_without_guests_nothing_is_held_against_them(fake: Path) -> None:
    status, output = swept(fake, "--workload", "silo", "--no-live")
    assert status == 0, output
    assert output.splitlines()[-1].split()[4:6] == ["-", "-"]
    assert "vm run" not in fake.with_name("calls").read_text()


def test_a_guest_that_fails_is_told(fake: Path) -> None:
    status, output = swept(fake, "--workload", "mine=fails")
    assert status == 1
    assert "failed, as said above; the same command goes on" in output


def test_another_guest_is_other_results(fake: Path) -> None:
    words = ("--workload", "silo", "--guest", "--slow cxl")
    assert swept(fake, *words)[0] == 0
    calls = fake.with_name("calls").read_text().splitlines()
    guests = [call for call in calls if call.startswith("vm ")]
    assert len(guests) == 2 and all(" --smem 288M --slow cxl -- " in call for call in guests)
    status, output = swept(fake, "--workload", "silo")
    assert status == 1 and "another --out" in output


def test_other_latencies_are_played_on_the_same_records(fake: Path) -> None:
    assert swept(fake, "--workload", "silo")[0] == 0
    before = len(fake.with_name("calls").read_text().splitlines())
    words = ("--workload", "silo", "--replay", "--slow cxl")
    status, output = swept(fake, *words)
    assert status == 1 and "--no-live" in output
    assert swept(fake, *words, "--no-live", "--table", "cxl.txt")[0] == 0
    calls = fake.with_name("calls").read_text().splitlines()[before:]
    assert len(calls) == 1 + len(GRID)
    assert all(call.startswith("sim ") and " --slow cxl" in call for call in calls)
    assert fake.with_name("out").joinpath("cxl.txt").read_text() != ""
