# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The evaluation: its records, what is kept of runs, and the report of recorded ones."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from demeter_lab.evaluation import __main__ as command
from demeter_lab.evaluation import document, pages, records
from demeter_lab.evaluation.execute import Outcome, Task, execute, task_of
from demeter_lab.evaluation.measure import Measured
from demeter_lab.evaluation.records import RecordError, Run
from demeter_lab.evaluation.store import Store
from demeter_lab.evaluation.values import (
    IN_PART,
    MET,
    MISSED,
    NOT_RUN,
    TOLD,
    Result,
    better_of,
    results_of,
    value_of,
)
from demeter_lab.results import ResultError

HERE = Path(__file__).parent / "evaluation"
SYSTEMS = ["none", "tpp", "demeter", "fast"]
#: All tables, figures and numbers of the paper that are to be made again.
PAPER = ["S0", "T1", "F2", "F4", "N1", "T2", "F6", "F7", "F8", "F9", "F10", "F11", "F12", "C1"]


def text_run(script: str, **labels: str) -> Run:
    return Run("X", "text", ("sh", "-c", script), labels, {"n": r"n=(\d+)"})


def recorded() -> list[Result]:
    """Return the results that lie beside this file: of real guests."""
    store = Store(HERE)
    plan = store.plan()
    return results_of(records.load(plan.systems, plan.quick, HERE / "records"), store, plan.keys)


@pytest.mark.parametrize("quick", [False, True])
def test_every_record_of_the_paper_is_there(quick: bool, tmp_path: Path) -> None:
    every = records.load([*SYSTEMS, "nomad", "memtis", "tpp-h"], quick)
    assert [record.id for record in every] == PAPER
    for record in every:
        assert record.paper and record.check and record.scaled and record.values
        assert record.runs or record.id == "C1"
        assert not record.absent
        for run in record.runs:
            assert not re.search(r"\{(?!demeter|out)[a-z_]+\}", " ".join(run.argv)), run.argv
    # Nothing of it was run: each value says so, and every field of the records is understood.
    results = results_of(every, Store(tmp_path), {})
    assert {value.state for result in results for value in result.values} == {NOT_RUN}


def test_the_quick_runs_are_fewer_and_smaller() -> None:
    whole, quick = (
        {run.digest: run for record in records.load(SYSTEMS, quick) for run in record.runs}
        for quick in (False, True)
    )
    assert len(quick) < 120 < len(whole)
    guests = [run for run in quick.values() if "{demeter}" in run.argv]
    assert guests and all("560M" not in " ".join(run.argv) for run in guests)


def test_a_manager_that_is_not_there_is_told_not_dropped() -> None:
    record = next(one for one in records.load(SYSTEMS, True) if one.id == "F8")
    assert record.absent == ("nomad", "memtis")
    assert {run.system for run in record.runs} == set(SYSTEMS)


def test_records_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    shutil.copytree(HERE / "records", tmp_path / "records")
    text = tmp_path / "records/TEXT.toml"
    good = text.read_text()
    for bad, said in (
        (good.replace('id = "TEXT"', 'id = "T"'), "name it TEXT"),
        (good.replace('kind = "text"', 'kind = "guess"'), "choose from compare"),
        (good.replace("check =", "chek ="), "lacks 'check'"),
        (good + "[", "TEXT.toml"),
    ):
        text.write_text(bad)
        with pytest.raises(RecordError, match=re.escape(said)):
            records.load(SYSTEMS, True, tmp_path / "records")
    text.unlink()
    with pytest.raises(RecordError, match="do not agree on: TEXT"):
        records.load(SYSTEMS, True, tmp_path / "records")


def test_a_key_is_of_the_command_and_of_what_it_is_made_of(tmp_path: Path) -> None:
    (tmp_path / "a.c").write_text("1")
    run = Run("X", "text", ("true",), {}, {}, ("*.c",))
    first = task_of(run, tmp_path).key
    assert task_of(Run("Y", "text", ("true",), {"seed": "1"}, {}, ("*.c",)), tmp_path).key == first
    assert task_of(Run("X", "text", ("false",), {}, {}, ("*.c",)), tmp_path).key != first
    (tmp_path / "a.c").write_text("12")
    assert task_of(run, tmp_path).key != first


def test_a_run_that_fails_says_why() -> None:
    failed = execute(task_of(text_run("echo guest has died >&2; exit 3")))
    assert "exit status 3: guest has died" in failed.failure and not failed.files
    assert "did not say" in execute(task_of(text_run("echo nothing"))).failure
    assert "after 0 s" in execute(task_of(text_run("sleep 9"), limit_s=0.2)).failure
    other = Task("key", text_run("echo n=1"), {"demeter.ko": "of another build"})
    assert "another demeter.ko" in execute(other).failure


def test_what_is_kept_is_whole_or_not_there(tmp_path: Path) -> None:
    store = Store(tmp_path)
    task = task_of(text_run("echo n=1"))
    store.put(task, Outcome(task.key, failure="guest has died"))
    assert (store.files(task.key), store.failure(task.key)) == (None, "guest has died")
    store.put(task, execute(task))
    assert (store.files(task.key), store.failure(task.key)) == ({"lines.txt": b"n=1\n"}, None)
    # A file that was changed is not a result any more, and is made anew.
    (tmp_path / "runs" / task.key / "lines.txt").write_text("n=2\n")
    assert store.files(task.key) is None
    store.put(task, execute(task))
    assert store.files(task.key) == {"lines.txt": b"n=1\n"}
    # What an interrupted writer left goes away; what a living one is writing stays.
    for pid in ("999999999", "1"):
        (tmp_path / "tmp" / f"x.{pid}").mkdir()
    Store(tmp_path)
    assert [path.name for path in (tmp_path / "tmp").iterdir()] == ["x.1"]


def test_values_of_recorded_runs() -> None:
    curve, heat, text, sums = recorded()
    states = [value.state for value in curve.values]
    # In so short a run TPP moved no huge page, and was slower with small ones, of which it did.
    assert states == [TOLD, NOT_RUN, MISSED] and curve.state == MISSED
    assert "tpp moved no page" in curve.values[0].note
    assert curve.values[1].note == "not implemented: memtis"
    assert curve.values[2].note == "not explained yet"
    times = {one.labels["system"]: one.numbers["time_s"] for one in curve.measured}
    assert curve.values[0].ours == pytest.approx(times["tpp"] / times["demeter"])
    assert curve.values[0].ratio == pytest.approx(curve.values[0].ours / 1.28)
    assert times["fast"] < times["demeter"] < times["none"]
    demeter = next(one for one in curve.measured if one.labels["system"] == "demeter")
    assert demeter.numbers["track_s"] > 0 and len(demeter.curve) == 60
    assert max(rate for _, rate in demeter.curve) == demeter.numbers["peak_per_s"]
    assert [value.state for value in heat.values] == [TOLD] and heat.values[0].ours > 0
    assert (text.state, sums.state) == (MET, TOLD)
    assert sums.values[0].ours == curve.values[0].ours


def points(**runs: tuple[float, float]) -> list[Measured]:
    """Return one run a name, ``tpp`` or ``tpp_small``: modelled time and promoted pages."""
    return [
        Measured(
            {"system": name.split("_")[0]} | ({"pages": "small"} if "_" in name else {}),
            {"time_s": time_s, "promoted_pages": pages, "demoted_pages": 0.0},
        )
        for name, (time_s, pages) in runs.items()
    ]


def test_of_two_kinds_of_pages_the_better_counts() -> None:
    both = points(tpp=(3.0, 0.0), tpp_small=(2.0, 7.0), demeter=(1.0, 9.0))
    assert [one.numbers["time_s"] for one in better_of(both)] == [2.0, 1.0]
    assert better_of(both) == better_of(both[::-1])[::-1]
    assert all("pages" not in one.labels for one in better_of(both))


def test_nothing_is_won_against_a_manager_that_moved_nothing() -> None:
    record = recorded()[0].record
    spec = {"name": "x", "metric": "time_s", "of": {"system": "tpp"}, "at_least": 1}
    spec["by"] = {"system": "demeter"}
    moved = value_of(record, spec, points(tpp=(2.0, 7.0), demeter=(1.0, 9.0)), {}, 0, {})
    assert (moved.state, moved.ours, moved.note) == (MET, 2.0, "")
    idle = value_of(record, spec, points(tpp=(2.0, 0.0), demeter=(1.0, 9.0)), {}, 0, {})
    assert (idle.state, idle.ours) == (TOLD, 2.0) and "tpp moved no page" in idle.note


def test_a_mean_over_some_of_the_runs_is_not_checked() -> None:
    record = recorded()[0].record
    assert {run.labels["seed"] for run in record.runs} == {"1"}
    runs = [*record.runs, *(replace(run, labels=run.labels | {"seed": "2"}) for run in record.runs)]
    found = [
        replace(one, labels=one.labels | {"workload": "gups", "seed": "1"})
        for one in points(demeter=(1, 9))
    ]
    spec = {"name": "x", "metric": "time_s", "of": {"system": "demeter"}, "at_least": 0}
    whole = value_of(record, spec, found, {}, 0, {})
    part = value_of(replace(record, runs=tuple(runs)), spec, found, {}, 5, {})
    assert (whole.state, part.state) == (MET, TOLD) and "1 of 2 points" in part.note


def test_a_part_of_the_values_is_said_to_be_a_part() -> None:
    curve = recorded()[0]
    met = replace(curve.values[0], state=MET)
    some = Result(curve.record, curve.measured, [met, curve.values[1]], {}, 0)
    assert some.state == IN_PART


def test_damaged_results_are_refused_or_run_again(tmp_path: Path) -> None:
    shutil.copytree(HERE, tmp_path / "out")
    store = Store(tmp_path / "out")
    (tmp_path / "out/plan.json").write_text("{")
    with pytest.raises(ResultError, match="damaged"):
        store.plan()
    (tmp_path / "out/plan.json").unlink()
    with pytest.raises(ResultError, match="evaluate-quick"):
        store.plan()


def test_the_document_has_every_record(tmp_path: Path) -> None:
    results = recorded()
    text = document.text(results, True)
    assert text == document.text(recorded(), True)
    for result in results:
        assert f"## {result.record.id}: " in text
    assert "Not implemented: `memtis`." in text and "| missed |" in text
    assert "--tmm none" in text and "{out}" not in text
    links = re.findall(r"\]\(#([^)]*)\)", text)
    heads = re.findall(r"^## (.*)$", text, re.M)
    anchors = {re.sub(r"[^a-z0-9 _-]", "", head.lower()).replace(" ", "-") for head in heads}
    assert set(links) == anchors
    assert all(
        line.count("|") == 9 for line in text.splitlines() if re.match(r"\| (Run|Ranges)", line)
    )


def test_pages_need_no_network_and_name_what_is_not_there(tmp_path: Path) -> None:
    written = pages.write(recorded(), tmp_path, True)
    names = {path.name for path in written}
    assert {"index.html", "CURVE.html", "manager-memtis.html", "workload-gups.html"} <= names
    for path in written:
        text = path.read_text()
        assert not re.search(r"""(src|href)=["']?(https?:)?//""", text)
        for link in re.findall(r"""(?:src|href)="([^"#]+)\"""", text):
            assert link.startswith("data:") or (tmp_path / link).is_file(), (path.name, link)
    curve = (tmp_path / "CURVE.html").read_text()
    # Figures: throughput, times, stages, cores, and ours beside the paper's.
    assert curve.count("<figure>") == 5
    assert "first &lt; second &amp; third" in curve
    assert "not implemented" in (tmp_path / "manager-memtis.html").read_text()
    before = {path: path.read_bytes() for path in written}
    assert before == {path: path.read_bytes() for path in pages.write(recorded(), tmp_path, True)}


def test_figures_are_data_with_the_values_shown(tmp_path: Path) -> None:
    pages.write(recorded(), tmp_path, True)
    text = (tmp_path / "CURVE.html").read_text()
    specs = re.findall(r'<script type="application/json">(.*?)</script>', text)
    rows = [row for spec in specs for rows in json.loads(spec)["datasets"].values() for row in rows]
    assert {"ours", "paper", "draft"} <= {row.get("whose") for row in rows}
    assert len([row for row in rows if "millions" in row]) == 4 * 60


def test_the_command_draws_without_running(tmp_path: Path) -> None:
    shutil.copytree(HERE, tmp_path / "out")
    shown = tmp_path / "shown.md"
    words = ["report", "--out", str(tmp_path / "out"), "--records", str(HERE / "records")]
    done = CliRunner().invoke(command.app, [*words, "--document", str(shown)])
    assert done.exit_code == 0, done.output
    assert shown.read_text() == (tmp_path / "out/evaluation.md").read_text()
    done = CliRunner().invoke(command.app, ["report", "--out", str(tmp_path / "none")])
    assert done.exit_code == 1 and "evaluate-quick" in done.output
