# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The table of vCPUs, from made comparisons."""

import json
from pathlib import Path

from typer.testing import CliRunner

from demeter_lab.cli import app
from demeter_lab.vcpus import COUNTS, ROWS


def made(directory: Path, demeter: dict[int, tuple[float, float]]) -> None:
    for count, (time_s, rate) in demeter.items():
        rows = {name: {"time_s": 9, "updates_per_s_last_quarter": 3e6} for name in ROWS}
        rows["demeter"] = {"time_s": time_s, "updates_per_s_last_quarter": rate}
        place = directory / str(count)
        place.mkdir(exist_ok=True)
        (place / "compare.json").write_text(json.dumps({"rows": rows}))


def test_time_and_last_quarter_are_told_apart(tmp_path: Path) -> None:
    # Four take longer and end as quick as one; eight end slower, too.
    made(tmp_path, {1: (4, 12e6), 4: (5, 12e6), 8: (5, 9e6)})
    done = CliRunner().invoke(app, ["vcpus", str(tmp_path)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert done.output == (tmp_path / "table.txt").read_text()
    lines = [line.split() for line in done.output.splitlines()[2:]]
    assert [line[0] for line in lines] == [str(count) for count in COUNTS]
    assert [line[-2:] for line in lines] == [
        ["1.000", "1.000"],
        ["1.250", "1.000"],
        ["1.250", "0.750"],
    ]
    assert lines[2][1:7] == ["9.000", "5.000", "9.000", "3.000", "9.000", "3.000"]


def test_what_is_missing_or_tells_no_rate(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["vcpus", str(tmp_path)])
    assert done.exit_code == 1 and "run.sh vcpus" in done.output
    made(tmp_path, dict.fromkeys(COUNTS, (4, 12e6)))
    for time_s, rate in ((9, None), (9, 0), (0, 3e6), (9, float("nan")), (-1, 3e6)):
        rows = {name: {"time_s": time_s, "updates_per_s_last_quarter": rate} for name in ROWS}
        (tmp_path / "8" / "compare.json").write_text(json.dumps({"rows": rows}))
        done = CliRunner().invoke(app, ["vcpus", str(tmp_path)])
        assert done.exit_code == 1 and "damaged" in done.output
        assert isinstance(done.exception, SystemExit)
