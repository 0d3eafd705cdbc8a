# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What would be run is told by record, and telling it runs nothing."""

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from demeter_lab.evaluation import __main__ as command
from demeter_lab.evaluation import plan, records
from demeter_lab.evaluation.execute import Outcome, Task
from demeter_lab.evaluation.records import Manager, Run
from demeter_lab.evaluation.store import Store

HERE = Path(__file__).parent / "evaluation"
SYSTEMS = ["none", "tpp", "nomad", "memtis", "demeter", "fast"]


def task_of(run: Run, limit_s: float) -> Task:
    return Task(run.digest, run, {}, limit_s)


@pytest.fixture(autouse=True)
def no_build(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have keys that need no built programs."""
    monkeypatch.setattr(plan, "task_of", task_of)


def choice_of(*only: str, systems: set[str] | None = None) -> plan.Choice:
    every = records.load(SYSTEMS, True)
    return plan.chosen(every, set(only), systems, 60.0)


def test_a_guest_of_several_records_is_one() -> None:
    choice = choice_of("F2", "F7", "N1")
    assert list(choice.records) == ["F2", "N1", "F7"]
    lines = {line.split()[0]: line.split()[1:] for line in plan.table(choice, set()).splitlines()}
    guests, shared, kept, to_run, others = map(int, lines["F7"])
    # Each manager of F2 is measured by stages there, too.
    assert shared == int(lines["F2"][0]) and to_run == guests - shared
    assert (kept, others) == (0, 0) and lines["N1"] == ["0", "0", "0", "0", "1"]
    assert int(lines["all"][3]) == int(lines["F2"][0]) + to_run


def test_replays_are_counted_and_take_no_guest() -> None:
    choice = choice_of("F9")
    told = plan.text(choice, set(), [], 2)
    replays = sum(task.run.needs is not None for task in choice.tasks.values())
    assert f"F9: {replays} replays\n" in told and "F9 recorded 1 512 gups\n" in told
    assert told.splitlines()[-2].split() == ["F9", "18", "0", "0", "18", str(replays)]


def test_what_is_kept_is_not_run_again(tmp_path: Path) -> None:
    choice = choice_of("F2", systems={"memtis"})
    assert len(choice.tasks) == 1
    assert plan.kept_of(choice, tmp_path / "none") == (set(), [])
    assert not (tmp_path / "none").exists()
    assert "F2 1 memtis gups" in plan.text(choice, set(), [], 2)
    (task,) = choice.tasks.values()
    Store(tmp_path).put(task, Outcome(task.key, {"a": b"1"}, host_s=50.0))
    kept, seconds = plan.kept_of(choice, tmp_path)
    assert (kept, seconds) == ({task.key}, [50.0])
    assert "F2 1 memtis" not in plan.text(choice, kept, seconds, 2)
    # How long the rest takes is told by what was done.
    more = choice_of("F2")
    guests = len(more.tasks) - 1
    told = plan.text(more, kept, [3600.0], 2)
    assert told.endswith(
        f"{guests} guests to run, 2 at a time: some {guests / 2:.1f} hours, "
        "by the 3600 s that 1 took before"
    )


def test_to_ask_for_the_plan_runs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    managers = {row: Manager(row) for row in SYSTEMS}
    monkeypatch.setattr(records, "managers_of", lambda demeter: managers)
    monkeypatch.setattr(command, "_execute", None)
    words = ["run", "--plan", "--records", str(HERE / "records"), "--out"]
    done = CliRunner().invoke(command.app, [*words, str(tmp_path / "none"), "--only", "CURVE"])
    assert done.exit_code == 0, done.output
    assert not (tmp_path / "none").exists()
    assert "CURVE" in done.output and "HEAT" not in done.output
    # What is there stays as it is: the plan of the last run as well.
    shutil.copytree(HERE, tmp_path / "out")
    before = (tmp_path / "out/plan.json").read_bytes()
    done = CliRunner().invoke(command.app, [*words, str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "out/plan.json").read_bytes() == before
