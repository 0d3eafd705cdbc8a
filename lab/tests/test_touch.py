# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The table of `touch` beside PEBS, from made results."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from demeter_lab.cli import app
from demeter_lab.results import ResultError
from demeter_lab.touch import OTHERS, PEBS, TOUCH, read, table
from demeter_lab.workloads import SEVEN

#: As JSON has them: of none can a ratio or a logarithm be told.
NO_TIMES = ("0", "-1", "NaN", "Infinity")
FAKE = """#!{python}
import json, sys, pathlib
words = sys.argv[1:]
out = pathlib.Path(words[words.index("--out") + 1])
out.mkdir(parents=True)
(out / "compare.json").write_text(json.dumps({{"rows": {{"demeter": {{"time_s": 1}}}}}}))
"""
PLANS = ("seven/plan.json", *(f"{name}.json" for name in OTHERS))


def made(of: Path, seconds: float, build: str = "one") -> None:
    """Write what the experiment leaves for one sampler."""
    files = [of / name / file for name, file in OTHERS.items()]
    files += [of / "seven" / workload.name / "compare.json" for workload in SEVEN]
    for path in files:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"rows": {"demeter": {"time_s": seconds}}}))
    for plan in PLANS:
        (of / plan).write_text(json.dumps({"inputs_sha256": {"demeter": build}}))


def test_ratios_their_mean_and_the_least() -> None:
    lines = table({"a": 4.0, "b": 1.0}, {"a": 4.0, "b": 4.0}).splitlines()
    assert lines[2].split() == ["a", "4.000", "4.000", "1.000"]
    assert lines[3].split() == ["b", "1.000", "4.000", "0.250"]
    # Geometric: of 1 and a quarter it is a half, not five eighths.
    assert lines[4].split() == ["geometric", "mean", "0.500"]
    assert lines[5].split() == ["least:", "b", "0.250"]


@pytest.mark.parametrize("touch", [{}, {"a": 1.0}, {"a": 1.0, "c": 1.0}])
def test_different_workloads_are_refused(touch: dict[str, float]) -> None:
    with pytest.raises(ResultError, match="different workloads"):
        table({"a": 1.0, "b": 1.0}, touch)
    with pytest.raises(ResultError, match="with none"):
        table({}, {})


def test_nine_programs_are_read(tmp_path: Path) -> None:
    made(tmp_path / "pebs", 4.5)
    made(tmp_path / "touch", 5.0)
    done = CliRunner().invoke(app, ["touch", str(tmp_path)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert done.output == (tmp_path / "table.txt").read_text()
    assert [line.split()[0] for line in done.output.splitlines()[2:-2]] == [
        *OTHERS,
        *(workload.name for workload in SEVEN),
    ]
    assert "geometric mean" in done.output and "0.900" in done.output


def test_two_builds_and_what_is_missing(tmp_path: Path) -> None:
    made(tmp_path / "pebs", 4.5)
    with pytest.raises(ResultError, match=r"run\.sh touch"):
        read(tmp_path)
    made(tmp_path / "touch", 5.0, build="two")
    with pytest.raises(ResultError, match="two builds"):
        read(tmp_path)
    made(tmp_path / "touch", 5.0)
    (tmp_path / "touch/redis/compare.json").unlink()
    with pytest.raises(ResultError, match="missing"):
        read(tmp_path)
    for text in ("{}", *(f'{{"rows": {{"demeter": {{"time_s": {time}}}}}}}' for time in NO_TIMES)):
        (tmp_path / "touch/redis/compare.json").write_text(text)
        done = CliRunner().invoke(app, ["touch", str(tmp_path)])
        assert done.exit_code == 1 and "damaged" in done.output
        assert isinstance(done.exception, SystemExit)


@pytest.mark.parametrize("of", [PEBS, TOUCH])
@pytest.mark.parametrize("plan", PLANS)
def test_each_part_is_of_the_one_build(tmp_path: Path, of: str, plan: str) -> None:
    for each in (PEBS, TOUCH):
        made(tmp_path / each, 4.5)
    read(tmp_path)
    (tmp_path / of / plan).write_text(json.dumps({"inputs_sha256": {"demeter": "old"}}))
    with pytest.raises(ResultError, match="two builds"):
        read(tmp_path)
    (tmp_path / of / plan).unlink()
    with pytest.raises(ResultError, match="what build"):
        read(tmp_path)
    (tmp_path / of / plan).write_text("{")
    with pytest.raises(ResultError, match="damaged"):
        read(tmp_path)


def test_inputs_are_those_of_the_sevens_plan(fake: Path) -> None:
    """Written alike, or nothing would ever be of one build."""
    place = fake.with_name("out")
    words = ["--demeter", str(fake)]
    seven = ["seven", *words, "--workload", "one=well", "--managers", "demeter"]
    done = CliRunner().invoke(app, [*seven, "--out", str(place / "seven")], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    file = place / "demo.json"
    done = CliRunner().invoke(app, ["inputs", *words, str(file)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    plan = json.loads((place / "seven/plan.json").read_text())
    wanted = plan["inputs_sha256"]
    assert wanted and json.loads(file.read_text())["inputs_sha256"] == wanted
    fake.write_text(fake.read_text() + "# rebuilt\n")
    CliRunner().invoke(app, ["inputs", *words, str(file)], catch_exceptions=False)
    assert json.loads(file.read_text())["inputs_sha256"] != wanted
