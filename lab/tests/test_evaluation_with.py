# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A row of one's own beside those of the records, in runs, values, figures and pages."""

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from demeter_lab.evaluation import __main__ as command
from demeter_lab.evaluation import charts, execute, pages, plan, records
from demeter_lab.evaluation.execute import Outcome, Task
from demeter_lab.evaluation.measure import Measured
from demeter_lab.evaluation.records import Manager, Run
from demeter_lab.evaluation.store import Plan, Store
from demeter_lab.evaluation.values import TOLD, results_of, value_of

HERE = Path(__file__).parent / "evaluation"
SYSTEMS = [
    *("none", "tpp", "nomad", "memtis", "hemem", "nimble", "demeter", "fast"),
    *("tpp-h", "tpp-h-noflush", "tpp-h-2m", "example", "raminate"),
]
COMPARING = {"T1", "F2", "F6", "F7", "F8", "F10", "F11", "F12"}


@pytest.mark.parametrize("quick", [False, True], ids=["whole", "quick"])
def test_it_joins_where_managers_are_compared(quick: bool) -> None:
    before = {one.id: one for one in records.load(SYSTEMS, quick)}
    after = {one.id: one for one in records.load(SYSTEMS, quick, added={"example": False})}
    for name, record in after.items():
        own = [run for run in record.runs if run.system == "example"]
        assert bool(own) == (name in COMPARING), name
        # Wherever Demeter is, once; all else stays as it was.
        points = [
            {key: value for key, value in run.labels.items() if key != "system"}
            for run in before[name].runs
            if run.system == "demeter"
        ]
        assert name not in COMPARING or len(own) == len(points)
        others = [run for run in record.runs if run.system != "example"]
        assert others == list(before[name].runs)
        assert list(record.values[: len(before[name].values)]) == list(before[name].values)
        assert ("example" in record.beyond) == (name in COMPARING)
    for run in (run for record in after.values() for run in record.runs):
        assert run.system != "example" or run.argv[run.argv.index("--tmm") + 1] == "example"
    added = [value for record in after.values() for value in record.values if "note" in value]
    assert [one["metric"] for one in added if one["note"] == "added by --with"] == [
        *("time_s", "track_cores", "work_per_s", "track_s"),
        *("time_s", "time_s", "time_s", "latency_p99_ns"),
    ]


def test_one_of_the_records_own_joins_the_others_only() -> None:
    every = {one.id: one for one in records.load(SYSTEMS, True, added={"hemem": False})}
    assert "hemem" in {run.system for run in every["F8"].runs}
    plain = next(one for one in records.load(SYSTEMS, True) if one.id == "F10")
    assert every["F10"] == plain


def test_one_below_the_guest_has_no_balloon() -> None:
    every = {one.id: one for one in records.load(SYSTEMS, True, added={"raminate": True})}
    assert "raminate" not in {run.system for run in every["F6"].runs}
    assert "raminate" in {run.system for run in every["F7"].runs}


def recorded_with(out: Path) -> Plan:
    """Copy what was recorded, with what `memtis` would have left: Demeter's."""
    shutil.copytree(HERE, out)
    store = Store(out)
    last = store.plan()
    every = records.load([*last.systems, "mine"], last.quick, HERE / "records", {"mine": False})
    keys = dict(last.keys)
    runs = {run.system: run for run in every[0].runs}
    files = store.files(keys[runs["demeter"].digest])
    assert files
    run = runs["mine"]
    keys[run.digest] = "mine"
    store.put(Task("mine", run, {}), Outcome("mine", files))
    kept = Plan(last.quick, [*last.systems, "mine"], keys, "of-a-test", {"mine": False})
    store.keep(kept)
    return kept


def test_its_figures_and_page_are_made_of_its_runs(tmp_path: Path) -> None:
    last = recorded_with(tmp_path / "out")
    store = Store(tmp_path / "out")
    assert store.plan() == last
    every = records.load(last.systems, last.quick, HERE / "records", last.added)
    results = results_of(every, store, last.keys)
    value = results[0].values[-1]
    assert (value.name, value.state, value.ours) == (
        "Run time, mine / Demeter, geometric mean",
        TOLD,
        1.0,
    )
    # With a colour of its own, in a page's legend as in its lines.
    for _, spec in charts.figures_of(results[0])[:2]:
        domain = json.dumps(spec).count('"mine"')
        assert domain
    pages.write(results, tmp_path / "out", last)
    assert "beyond the paper" in (tmp_path / "out/manager-mine.html").read_text()
    done = CliRunner().invoke(
        command.app,
        ["report", "--out", str(tmp_path / "out"), "--records", str(HERE / "records")],
    )
    assert done.exit_code == 0, done.output
    assert "mine / Demeter" in (tmp_path / "out/evaluation.md").read_text()


def test_no_value_of_the_records_is_made_of_its_runs() -> None:
    """F6 asks for the worst of all managers, by whatever name."""
    every = records.load(SYSTEMS, True, added={"example": False})
    record = next(one for one in every if one.id == "F6")
    times = {"example": {"demeter": 1.0, "none": 2.0}}
    found = [
        Measured(
            {"workload": "gups", "seed": "1", "system": system, "balloon": balloon},
            {"work_per_s": times.get(system, {}).get(balloon, 1.0)},
        )
        for system in ("tpp", "nomad", "memtis", "demeter", "example")
        for balloon in ("none", "virtio", "demeter")
    ]
    spec = next(one for one in record.values if "worst" in str(one["name"]))
    assert value_of(record, spec, found, {}, 0, {}).ours == 1.0
    (own,) = (one for one in record.values if one.get("of") == {"system": "example"})
    # No balloon: 2 by 1; each kind of balloon: 1 by 1.
    assert value_of(record, own, found, {}, 0, {}).ours == pytest.approx(2 ** (1 / 3))


def test_the_command_takes_a_row_that_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    managers = {row: Manager(row) for row in (*SYSTEMS, "mine")}
    monkeypatch.setattr(records, "managers_of", lambda demeter: managers)

    def task_of(run: Run, limit_s: float) -> execute.Task:
        return execute.Task(run.digest, run, {}, limit_s)

    monkeypatch.setattr(plan, "task_of", task_of)
    words = ["run", "--quick", "--plan", "--out", str(tmp_path / "out"), "--only", "F8"]
    done = CliRunner().invoke(command.app, [*words, "--with", "mine", "--system", "mine"])
    assert done.exit_code == 0, done.output
    assert done.output.splitlines()[0] == "F8 1 mine gups"
    done = CliRunner().invoke(command.app, [*words, "--with", "nobody's"])
    assert done.exit_code == 1 and "no manager nobody's; choose from" in done.output
