# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The evaluation: its records, what is kept of runs, and the report of recorded ones."""

import hashlib
import json
import re
import shutil
import tempfile
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from demeter_lab.evaluation import __main__ as command
from demeter_lab.evaluation import document, fleet, pages, records
from demeter_lab.evaluation.execute import Outcome, Task, execute, task_of
from demeter_lab.evaluation.measure import Measured
from demeter_lab.evaluation.records import RecordError, Run
from demeter_lab.evaluation.store import Plan, Store
from demeter_lab.evaluation.values import (
    IN_PART,
    MET,
    MISSED,
    NOT_RUN,
    TOLD,
    Result,
    Value,
    better_of,
    results_of,
    understood,
    value_of,
)
from demeter_lab.results import ResultError

HERE = Path(__file__).parent / "evaluation"
SYSTEMS = ["none", "tpp", "demeter", "fast"]
PEERS = ["nomad", "memtis", "hemem", "nimble"]
HYPERVISORS = ["tpp-h", "tpp-h-noflush", "tpp-h-2m"]
PLAN = Plan(True, SYSTEMS, {}, "of-a-test")
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
    every = records.load([*SYSTEMS, *PEERS, *HYPERVISORS], quick)
    assert [record.id for record in every] == PAPER
    for record in every:
        assert record.paper and record.check and record.scaled and record.values
        assert record.runs or record.id == "C1"
        assert not record.absent
        for run in record.runs:
            assert not re.search(r"\{(?!demeter|out|record)[a-z_]+\}", " ".join(run.argv)), run.argv
    # Nothing of it was run: each value says so, and every field of the records is understood.
    results = results_of(every, Store(tmp_path), {})
    assert {value.state for result in results for value in result.values} == {NOT_RUN}


def test_the_quick_runs_are_fewer_and_smaller() -> None:
    whole, quick = (
        {
            one.digest: one
            for record in records.load(SYSTEMS, quick)
            for run in record.runs
            for one in (run.needs, run)
            if one is not None and one.is_guest
        }
        for quick in (False, True)
    )
    assert 0 < len(quick) < 120 < len(whole)
    assert all("560M" not in " ".join(run.argv) for run in quick.values())


def test_what_is_interrupted_leaves_whole_comparisons() -> None:
    record = next(one for one in records.load([*SYSTEMS, *PEERS], False) if one.id == "F10")
    turns = [(run.labels["seed"], run.labels["workload"]) for run in record.in_turn]
    assert sorted(turns) == turns and len(set(turns)) == 5 * 7
    assert sorted(run.digest for run in record.in_turn) == sorted(run.digest for run in record.runs)


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
        (good.replace("check =", "chek ="), "it has no chek"),
        (re.sub(r"(?m)^check =.*$", "", good), "lacks 'check'"),
        # Cut between two blocks, which by itself is a record of fewer values.
        (good.replace("check =", "values = 9\ncheck ="), "the file is cut short"),
        (good.replace("[[value]]", "[[vale]]"), "it has no vale"),
        (good.replace("[run.patterns]", "[run.patern]"), "its [[run]] 1 has no patern"),
        (good + "\n[[figure]]\nmetic = 1\n", "its [[figure]] 1 has no metic"),
        (good.replace("check =", 'beyond = ["tpp"]\ncheck ='), "what no run has: tpp"),
        (good.replace("[run.patterns]", '[run.labels]\ntuning = "wild"\n[run.patterns]'), "'wild'"),
        (good + "[", "TEXT.toml"),
    ):
        text.write_text(bad)
        with pytest.raises(RecordError, match=re.escape(said)):
            records.load(SYSTEMS, True, tmp_path / "records")
    text.write_text(good)
    common = tmp_path / "records/common.toml"
    shared = common.read_text()
    for bad, said in (
        ('unlike = ["nomat"]\n' + shared, "unlike has no nomat"),
        ('unlke = ["nomad"]\n' + shared, "common.toml has no unlke"),
        (shared + '\n[quick.options]\nmentis = ""\n', "has no mentis"),
    ):
        common.write_text(bad)
        with pytest.raises(RecordError, match=re.escape(said)):
            records.load(SYSTEMS, True, tmp_path / "records")
    common.write_text(shared)
    curve = tmp_path / "records/CURVE.toml"
    lines = curve.read_text()
    curve.write_text(lines.replace('workload = ["gups"]', 'workload = ["gusp"]', 1))
    with pytest.raises(RecordError, match="workload has no gusp"):
        records.load(SYSTEMS, True, tmp_path / "records")
    curve.write_text(lines)
    text.unlink()
    with pytest.raises(RecordError, match="do not agree on: TEXT"):
        records.load(SYSTEMS, True, tmp_path / "records")


def test_what_cannot_be_asked_is_told_in_a_line(tmp_path: Path) -> None:
    store = Store(tmp_path)
    (tmp_path / "plan.json").write_text('{"quick": true, "systems": [], "keys": []}')
    with pytest.raises(ResultError, match="is damaged"):
        store.plan()
    with (
        pytest.raises(ResultError, match="no address of a scheduler"),
        fleet.client_of("localhost", 1),
    ):
        pass


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
    where = replace(text_run(""), argv=("sh", "-c", "echo see {out}/console.log >&2; exit 1"))
    assert execute(task_of(where)).failure == "exit status 1: see OUT/console.log"
    # What the guest said last is kept, as its folder is not.
    script = "mkdir -p {out}/tpp.failed; echo panic > {out}/tpp.failed/console.log; exit 1"
    crashed = execute(task_of(replace(text_run(""), argv=("sh", "-c", script)))).failure
    assert crashed == "the end of OUT/tpp.failed/console.log:\npanic\nexit status 1: "
    assert "did not say" in execute(task_of(text_run("echo nothing"))).failure
    assert "after 0 s" in execute(task_of(text_run("sleep 9"), limit_s=0.2)).failure
    other = Task("key", text_run("echo n=1"), {"demeter.ko": "of another build"})
    assert "another demeter.ko" in execute(other).failure


def test_what_a_killed_run_left_goes_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for pid in ("999999999", "1"):
        (tmp_path / f"demeter-evaluation-{pid}-abc").mkdir()
    assert not execute(task_of(text_run("echo n=1"))).failure
    assert [path.name for path in tmp_path.iterdir()] == ["demeter-evaluation-1-abc"]


def test_a_guest_may_take_nearly_as_long_as_its_run(tmp_path: Path) -> None:
    demeter = tmp_path / "target/release/demeter"
    demeter.parent.mkdir(parents=True)
    demeter.write_text('#!/bin/sh\necho "$@"\n')
    demeter.chmod(0o755)
    argv = ("{demeter}", "vm", "run", "--tmm", "none")
    run = Run("X", "text", argv, {}, {"limit": r"vm run --timeout (\d+) --tmm"})
    task = task_of(run, tmp_path, limit_s=2000)
    done = execute(task, tmp_path)
    assert done.files == {"lines.txt": b"vm run --timeout 1900 --tmm none\n"}, done.failure
    # The same run, however long it may take.
    assert task_of(run, tmp_path, limit_s=1000).key == task.key


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
    assert "tpp moved next to no page" in curve.values[0].note
    assert curve.values[1].note == "not implemented: memtis"
    assert curve.values[2].note == "not explained yet"
    times = {one.labels["system"]: one.numbers["time_s"] for one in curve.measured}
    assert curve.values[0].ours == pytest.approx(times["tpp"] / times["demeter"])
    assert curve.values[0].ratio == pytest.approx(curve.values[0].ours / 1.28)
    assert times["fast"] < times["demeter"] < times["none"]
    demeter = next(one for one in curve.measured if one.labels["system"] == "demeter")
    assert demeter.numbers["track_s"] > 0 and len(demeter.curve) == 60
    assert max(rate for _, rate in demeter.curve) == demeter.numbers["peak_per_s"]
    moved = demeter.numbers["promoted_pages"] + demeter.numbers["demoted_pages"]
    assert demeter.numbers["moved_pages"] == moved
    by_page = demeter.numbers["migrate_us_per_page"] * moved
    assert by_page == pytest.approx(demeter.numbers["migrate_s"] * 1e6)
    assert [value.state for value in heat.values] == [TOLD] and heat.values[0].ours > 0
    assert (text.state, sums.state) == (MET, TOLD)
    assert sums.values[0].ours == curve.values[0].ours


def points(**runs: tuple[float, float]) -> list[Measured]:
    """Return one run a name (``tpp``, ``tpp_small``): modelled time and promoted pages."""
    ways = {"small": {"pages": "small"}, "eager": {"tuning": "eager"}}
    return [
        Measured(
            {"system": name.split("_")[0]} | ways.get(name.partition("_")[2], {}),
            {"time_s": time_s, "moved_pages": pages},
        )
        for name, (time_s, pages) in runs.items()
    ]


def test_of_two_kinds_of_pages_the_better_counts() -> None:
    both = points(tpp=(3.0, 0.0), tpp_small=(2.0, 7.0), demeter=(1.0, 9.0))
    assert [one.numbers["time_s"] for one in better_of(both)] == [2.0, 1.0]
    assert better_of(both) == better_of(both[::-1])[::-1]
    assert all("pages" not in one.labels for one in better_of(both))


def test_of_all_ways_of_a_rival_the_fastest_counts_and_is_named() -> None:
    ways = points(tpp=(3.0, 0.0), tpp_small=(2.0, 7.0), tpp_eager=(1.5, 9.0), demeter=(1.0, 9.0))
    tpp, demeter = better_of(ways)
    assert (tpp.numbers["time_s"], tpp.chosen_from, tpp.way) == (1.5, 3, "eager")
    assert tpp.labels == {"system": "tpp"}
    assert (demeter.chosen_from, demeter.way) == (1, "")
    # Without one of them it is not beaten.
    spec = {"of": {"system": "tpp"}, "by": {"system": "demeter"}, "at_least": 1}
    assert asked(better_of(ways), spec, ways).state == MET
    part = asked(better_of([*ways[:2], ways[3]]), spec, ways)
    assert part.state == TOLD and "only 3 of 4 runs" in part.note


def test_where_latency_is_asked_for_the_run_with_the_least_counts() -> None:
    fast, steady = points(tpp=(2.0, 7.0), tpp_small=(3.0, 7.0))
    fast.numbers["latency_p99_ns"], steady.numbers["latency_p99_ns"] = 900.0, 700.0
    assert better_of([fast, steady])[0].way == ""
    assert better_of([fast, steady], "latency_p99_ns")[0].way == "small"
    silo = next(record for record in records.load([], quick=False) if record.id == "F12")
    assert silo.chosen_by == "latency_p99_ns"


def test_nothing_is_won_against_a_manager_that_moved_nothing() -> None:
    spec = {"of": {"system": "tpp"}, "by": {"system": "demeter"}, "at_least": 1}
    moved = asked(points(tpp=(2.0, 7.0), demeter=(1.0, 9.0)), spec)
    assert (moved.state, moved.ours, moved.note) == (MET, 2.0, "")
    idle = asked(points(tpp=(2.0, 0.0), demeter=(1.0, 9.0)), spec)
    assert (idle.state, idle.ours) == (TOLD, 2.0) and "tpp moved next to no page" in idle.note
    # To be behind it says enough, and so does it where Demeter is the one that did nothing.
    assert asked(points(tpp=(0.9, 0.0), demeter=(1.0, 9.0)), spec).state == MISSED
    assert asked(points(tpp=(0.9, 7.0), demeter=(1.0, 0.0)), spec).state == MISSED


#: By a rival's, which may be none.
MOVED = {"metric": "moved_pages", "of": {"system": "demeter"}, "by": {"system": "tpp"}}


def test_a_ratio_by_who_did_none_of_it_is_infinite() -> None:
    found = points(tpp=(2.0, 0.0), demeter=(1.0, 9.0))
    for bound in ("at_most", "below"):
        value = asked(found, {**MOVED, bound: 1, "missed": "all of it"})
        assert (value.state, value.ours) == (MISSED, None)
        assert value.note == "tpp did none of it here; all of it"
    assert asked(found, {**MOVED, "at_most": 1}).note.endswith("not explained yet")
    for bounds in ({}, {"at_least": 1}, {"above": 1}):
        value = asked(found, {**MOVED, **bounds})
        assert (value.state, value.ours, value.note) == (TOLD, None, "tpp did none of it here")
    # No other one is the least, where one did none of it.
    both = on("silo", tpp=(2.0, 0.0), nomad=(2.0, 3.0), demeter=(1.0, 9.0))
    least = {**MOVED, "by": RIVALS, "by_least": "system"}
    value = asked(both, {**least, "at_most": 1, "missed": "-"})
    assert (value.state, value.ours, value.note) == (MISSED, None, "tpp did none of it here; -")
    assert asked(both, {**least, "at_least": 1}).state == TOLD
    # Nor is any the most of several workloads, and that one is named.
    other = on("btree", tpp=(2.0, 3.0), nomad=(2.0, 3.0), demeter=(1.0, 9.0))
    most = {**least, "mean": "most", "at_most": 9, "missed": {"silo by tpp": "it starts late"}}
    value = asked(both + other, most)
    assert (value.state, value.ours) == (MISSED, None)
    assert value.note == "tpp did none of it here; silo by tpp; it starts late"
    # None by none is no more than told.
    nobody = asked(points(tpp=(2.0, 0.0), demeter=(1.0, 0.0)), {**MOVED, "at_most": 1})
    assert nobody.state == TOLD and "nor did who is divided" in nobody.note


def test_none_of_it_is_what_a_rival_is_known_to_have_done_in_all_runs() -> None:
    found = points(tpp=(2.0, 0.0), demeter=(1.0, 9.0))
    # What a move costs is not known of one who moved nothing; any other number would be there.
    of_a_page = {**MOVED, "metric": "migrate_us_per_page"}
    assert asked(found, of_a_page).note == "its runs do not tell migrate_us_per_page"
    found[1].numbers["migrate_us_per_page"] = found[1].numbers["classify_s"] = 2.0
    assert asked(found, of_a_page).state == TOLD
    assert asked(found, {**MOVED, "metric": "classify_s"}).state == NOT_RUN
    moved = points(tpp=(2.0, 7.0), demeter=(1.0, 9.0))
    moved[1].numbers["migrate_us_per_page"] = 2.0
    assert asked(moved, of_a_page).state == NOT_RUN
    # A run that is not there could have done some; nor is it of ours, or of who never does any.
    planned = points(tpp=(2.0, 0.0), tpp_small=(2.0, 0.0), demeter=(1.0, 9.0))
    assert asked(found, {**MOVED, "at_most": 1}, planned).state == NOT_RUN
    runs = tuple(text_run("true", **one.labels) for one in planned)
    record = replace(recorded()[0].record, runs=runs)
    spec = {"name": "x", **MOVED}
    failed = value_of(record, spec, found, {"small tpp": "it died"}, 0, {})
    assert (failed.state, failed.note) == (NOT_RUN, "failed: small tpp")
    missing = value_of(record, spec, found, {}, 1, {})
    assert (missing.state, missing.note) == (NOT_RUN, "the runs were not made")
    for name in ("demeter", "none"):
        still = points(tpp=(1.0, 9.0), **{name: (2.0, 0.0)})
        value = asked(still, {**MOVED, "of": {"system": "tpp"}, "by": {"system": name}})
        assert (value.state, value.note) == (NOT_RUN, "its runs do not tell moved_pages")


def test_a_mean_is_told_of_the_runs_in_which_some_of_it_was_done() -> None:
    def seeds(**pages: tuple[float, float]) -> list[Measured]:
        return [
            replace(one, labels=one.labels | {"seed": str(seed)})
            for seed in (0, 1)
            for one in points(**{name: (2.0, moved[seed]) for name, moved in pages.items()})
        ]

    found = seeds(tpp=(0.0, 3.0), demeter=(9.0, 9.0))
    value = asked(found, {**MOVED, "at_most": 1})
    assert (value.state, value.ours) == (TOLD, pytest.approx(3))
    assert value.note == "of 2 of 4 runs, as tpp did none of it in others: not checked"
    every = seeds(tpp=(0.0, 3.0), nomad=(1.0, 1.0), demeter=(9.0, 9.0))
    value = asked(every, {**MOVED, "by": RIVALS, "by_least": "system", "at_most": 1})
    assert (value.state, value.ours) == (TOLD, pytest.approx(9))
    assert value.note == "of 6 of 8 runs, as tpp did none of it in others: not checked"
    part = asked(found, MOVED, [*found, *points(tpp=(2.0, 9.0), demeter=(1.0, 9.0))])
    assert part.state == TOLD and "only 4 of 6 runs were made" in part.note


def test_a_headline_is_infinite_as_its_source_is() -> None:
    record = recorded()[0].record
    found = points(tpp=(2.0, 0.0), demeter=(1.0, 9.0))
    bounds = {"at_most": 1, "missed": "it starts late"}
    known = {
        ("X", "missed"): asked(found, {**MOVED, **bounds}),
        ("X", "told"): asked(found, MOVED),
        ("X", "one"): asked(found, {"of": {"system": "demeter"}}),
    }

    def headline(source: str, **more: object) -> Value:
        spec = {"name": "y", "from": {"record": "X", "name": source}, **more}
        return value_of(record, spec, [], {}, 0, known)

    late = "tpp did none of it here; it starts late"
    one = {"record": "X", "name": "one"}
    for value in (headline("missed"), headline("missed", at_most=0.3)):
        assert (value.state, value.ours, value.note) == (MISSED, None, late)
    assert headline("missed", over=one).state == MISSED
    own = headline("missed", at_most=0.3, missed="as above")
    assert (own.state, own.note) == (MISSED, "tpp did none of it here; as above")
    assert headline("told", at_most=0.3, missed="as above").note == own.note
    for value in (headline("told"), headline("told", at_least=1), headline("missed", above=1)):
        assert (value.state, value.ours, value.note) == (TOLD, None, "tpp did none of it here")
    by_it = headline("one", over={"record": "X", "name": "missed"}, at_most=1)
    assert by_it.state == TOLD and "not to be divided by" in by_it.note
    known["X", "absent"] = asked([], MOVED, found)
    assert headline("missed", over={"record": "X", "name": "absent"}).state == NOT_RUN


def test_a_few_pages_are_none_of_a_large_fmem() -> None:
    spec = {"of": {"system": "tpp"}, "by": {"system": "demeter"}, "at_least": 1}
    few = points(tpp=(2.0, 99.0), demeter=(1.0, 900.0))
    few[0].numbers["fmem_pages"] = 10_000.0
    assert asked(few, spec).state == TOLD
    few[0].numbers["fmem_pages"] = 9_000.0
    assert asked(few, spec).state == MET


def test_what_a_manager_moved_elsewhere_does_not_count() -> None:
    found = on("silo", tpp=(2.0, 0), demeter=(1.0, 9)) + on("btree", tpp=(2.0, 7), demeter=(1.0, 9))
    spec = {
        "of": {"system": "tpp", "workload": "silo"},
        "by": {"system": "demeter", "workload": "silo"},
        "at_least": 1,
    }
    value = asked(found, spec)
    assert value.state == TOLD and "tpp moved next to no page" in value.note


def test_of_managers_without_a_name_some_must_have_moved() -> None:
    def provisioned(pages: float) -> list[Measured]:
        return [
            Measured({"system": name, "balloon": balloon}, {"time_s": 1.0, "moved_pages": pages})
            for name in ("tpp", "memtis")
            for balloon in ("none", "demeter")
        ]

    spec = {"of": {"balloon": "demeter"}, "by": {"balloon": "none"}, "mean": "least"}
    idle = asked(provisioned(0.0), spec | {"at_least": 0.95})
    assert idle.state == TOLD and "memtis, tpp moved next to no page" in idle.note
    assert asked(provisioned(7.0), spec | {"at_least": 0.95}).state == MET


def test_nothing_is_won_against_a_manager_unlike_its_paper() -> None:
    found = on("silo", tpp=(2.0, 7), nomad=(3.0, 7), demeter=(1.0, 9))
    spec = {"of": {"system": "nomad"}, "by": {"system": "demeter"}, "at_least": 1}
    alone = asked(found, spec, unlike={"nomad"})
    assert alone.state == TOLD and "nomad does not behave as published" in alone.note
    assert asked(found, spec | {"at_least": 4}, unlike={"nomad"}).state == MISSED
    among = spec | {"of": RIVALS, "of_least": "system"}
    assert asked(found, among, unlike={"nomad"}).state == MET
    assert "nomad" in next(one for one in records.load([], quick=True)).unlike


def test_an_order_that_holds_is_not_the_papers_number() -> None:
    spec = {"of": {"system": "tpp"}, "by": {"system": "demeter"}, "paper": 2.5}
    found = points(tpp=(2.0, 7.0), demeter=(1.0, 9.0))
    held = asked(found, spec | {"at_least": 1})
    assert held.state == MET and "the paper's number is not reached" in held.note
    assert asked(found, spec | {"at_least": 1, "paper": 1.5}).note == ""
    less = asked(found, spec | {"at_most": 3, "paper": 1.5})
    assert less.state == MET and "the paper's number is not reached" in less.note


def test_what_explains_one_loss_explains_no_other() -> None:
    spec = {
        "of": RIVALS,
        "of_least": "system",
        "by": {"system": "demeter"},
        "at_least": 5,
        "missed": {"tpp": "it was lucky"},
    }
    lost = asked(on("silo", tpp=(2.0, 7), nomad=(4.0, 7), demeter=(1.0, 9)), spec)
    assert lost.note == "tpp; it was lucky"
    other = asked(on("silo", tpp=(4.0, 7), nomad=(2.0, 7), demeter=(1.0, 9)), spec)
    assert other.note == "nomad; not explained yet"


def test_a_value_may_be_one_by_another() -> None:
    record = recorded()[0].record
    gain = {"of": {"system": "tpp"}, "by": {"system": "demeter"}}
    known = {
        ("A", "gain"): asked(points(tpp=(3.0, 7.0), demeter=(1.0, 9.0)), gain),
        ("B", "gain"): asked(points(tpp=(2.0, 7.0), demeter=(1.0, 9.0)), gain),
    }
    spec = {
        "name": "ratio",
        "from": {"record": "A", "name": "gain"},
        "over": {"record": "B", "name": "gain"},
        "below": 1,
    }
    value = value_of(record, spec, [], {}, 0, known)
    assert (value.ours, value.state) == (pytest.approx(1.5), MISSED)
    spec["over"] = {"record": "C", "name": "gain"}
    with pytest.raises(RecordError, match="C has no value 'gain'"):
        value_of(record, spec, [], {}, 0, known)


def test_a_value_that_is_not_of_its_form_is_named() -> None:
    record = recorded()[0].record
    for spec, words in (
        ({"metric": "time_s"}, "'one without a name' lacks 'name'"),
        ({"name": "x", "metric": "time_s", "mean": "median"}, "'x' lacks 'median'"),
        ({"name": "x", "metric": "time_s", "of": "y"}, "'x' .*no attribute"),
    ):
        with pytest.raises(RecordError, match=words), understood(record, spec):
            value_of(record, spec, points(tpp=(2.0, 7.0)), {}, 0, {})


def test_a_result_that_is_not_understood_is_a_row_that_failed(tmp_path: Path) -> None:
    shutil.copytree(HERE, tmp_path / "out")
    store = Store(tmp_path / "out")
    plan = store.plan()
    every = records.load(plan.systems, plan.quick, HERE / "records")
    key = plan.keys[every[0].runs[0].digest]
    # Whole as far as digests go: a program of somebody's that ends with what is no JSON.
    (store.place(key) / "command.log").write_text("{not json\n")
    about = store.about(key)
    digest = hashlib.sha256(b"{not json\n").hexdigest()
    about["sha256"] |= {"command.log": digest}  # type: ignore[operator]
    (store.place(key) / "run.json").write_text(json.dumps(about))
    first, *others = results_of(every, store, plan.keys)
    (reason,) = first.failures.values()
    assert "a result is damaged" in reason and str(store.place(key)) in reason
    assert first.measured and not any(other.failures for other in others)


def test_a_rival_without_its_better_kind_of_pages_is_not_beaten() -> None:
    both = points(tpp=(2.0, 7.0), tpp_small=(0.5, 7.0), demeter=(1.0, 9.0))
    spec = {"of": {"system": "tpp"}, "by": {"system": "demeter"}, "at_least": 1}
    assert asked(better_of(both), spec, both).state == MISSED
    lost = asked(better_of([both[0], both[2]]), spec, both)
    assert (lost.state, lost.ours) == (TOLD, 2.0) and "only 2 of 3 runs" in lost.note


def test_one_lucky_seed_is_no_workload() -> None:
    runs = [(1, 1.0), (2, 1.0), (3, 0.5)]
    found = [
        replace(one, labels=one.labels | {"workload": "silo", "seed": str(seed)})
        for seed, tpp in runs
        for one in points(tpp=(tpp, 7), demeter=(1.0, 9))
    ]
    worst = {"mean": "most", "of": {"system": "demeter"}, "by": {"system": ["tpp"]}}
    value = asked(found, worst | {"by_least": "system"})
    assert value.ours == pytest.approx(2 ** (1 / 3)) and value.points == 1
    most = {"mean": "most", "of": {"system": "demeter"}, "by": {"system": "tpp"}}
    assert asked(found, most).ours == pytest.approx(2 ** (1 / 3))


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
    assert (whole.state, part.state) == (MET, TOLD) and "1 of 2 runs" in part.note


RIVALS = {"system": ["tpp", "nomad"]}


def on(workload: str, **runs: tuple[float, float]) -> list[Measured]:
    """Return `points` of a workload."""
    return [
        replace(one, labels=one.labels | {"workload": workload, "seed": "1"})
        for one in points(**runs)
    ]


def asked(
    found: list[Measured],
    spec: dict,
    planned: list[Measured] | None = None,
    unlike: Collection[str] = (),
) -> Value:
    """Return a value of made-up runs; ``planned`` are those that there should have been."""
    runs = [text_run("true", **one.labels) for one in planned or found]
    record = replace(recorded()[0].record, runs=tuple(runs), unlike=frozenset(unlike))
    return value_of(record, {"name": "x", "metric": "time_s", **spec}, found, {}, 0, {})


def test_the_next_best_is_one_manager_over_all_workloads() -> None:
    found = [
        *on("silo", tpp=(2.0, 7), nomad=(8.0, 7), demeter=(1.0, 9)),
        *on("btree", tpp=(4.5, 7), nomad=(1.0, 7), demeter=(1.0, 9)),
    ]
    spec = {"of": RIVALS, "of_least": "system", "by": {"system": "demeter"}, "at_least": 1.28}
    # TPP's mean is 3, Nomad's 2.83, though TPP's worst is the better one.
    value = asked(found, spec)
    assert (value.state, value.ours, value.points) == (MET, pytest.approx(8**0.5), 2)
    assert value.spread == (1.0, 8.0) and value.note == "nomad"
    assert value.about == {"tpp", "nomad", "demeter"}
    part = asked(found[:4] + found[5:], spec, found)
    assert part.state == TOLD and "only 6 of 8 runs" in part.note
    curve = recorded()[0].record
    without = value_of(
        curve,
        {"name": "x", "metric": "time_s", **spec, "of": {"system": ["tpp", "memtis"]}},
        on("silo", tpp=(2.0, 7), demeter=(1.0, 9)),
        {},
        0,
        {},
    )
    assert without.state == TOLD and "without memtis, not implemented" in without.note
    with pytest.raises(RecordError, match="of_least asks for a list of system"):
        asked(found, spec | {"of": {"system": "tpp"}})


def test_the_worst_workload_is_told_with_the_rival_that_is_best_there() -> None:
    found = [
        *on("silo", tpp=(2.0, 7), nomad=(4.0, 7), demeter=(1.0, 9)),
        *on("pagerank", tpp=(1.5, 7), nomad=(1.0, 7), demeter=(1.25, 9)),
    ]
    spec = {"mean": "most", "of": {"system": "demeter"}, "by": RIVALS, "by_least": "system"}
    value = asked(found, spec | {"at_most": 1.03, "missed": "it is found late"})
    assert (value.state, value.ours, value.points) == (MISSED, 1.25, 2)
    assert value.note == "pagerank by nomad; it is found late"
    assert asked(found, spec | {"at_most": 1.25, "missed": "-"}).note == "pagerank by nomad"
    # A rival that was not run there could have been better.
    part = asked(found[:1] + found[2:], spec | {"at_most": 1.25}, found)
    assert part.state == TOLD and "only 6 of 8 runs" in part.note


def test_of_several_rivals_one_that_moved_nothing_spoils_no_check() -> None:
    spec = {"of": RIVALS, "of_least": "system", "by": {"system": "demeter"}, "at_least": 1.28}
    one = asked(on("silo", tpp=(2.0, 0), nomad=(4.0, 7), demeter=(1.0, 9)), spec)
    assert (one.state, one.ours) == (MET, 2.0)
    both = asked(on("silo", tpp=(2.0, 0), nomad=(4.0, 0), demeter=(1.0, 9)), spec)
    assert both.state == TOLD and "nomad, tpp moved next to no page" in both.note


def test_a_headline_is_checked_as_far_as_its_source_can_be() -> None:
    record = recorded()[0].record
    source = asked(
        on("silo", tpp=(2.0, 7), demeter=(1.0, 9)),
        {"of": {"system": "tpp"}, "by": {"system": "demeter"}, "at_least": 1, "note": "why"},
    )
    spec = {"name": "y", "from": {"record": "X", "name": "x"}, "at_least": 3}
    missed = value_of(record, spec, [], {}, 0, {("X", "x"): source})
    assert (missed.state, missed.ours, missed.note) == (MISSED, 2.0, "why; not explained yet")
    # What is said of the source's miss is not said of another bound's.
    worst = replace(source, chosen="tpp", note="tpp; why; it is slow")
    other = value_of(record, spec | {"missed": "late"}, [], {}, 0, {("X", "x"): worst})
    assert (other.note, other.chosen) == ("tpp; why; late", "tpp")
    unsure = replace(source, unchecked="only 1 of 2", note="only 1 of 2; why")
    told = value_of(record, spec, [], {}, 0, {("X", "x"): unsure})
    assert (told.state, told.note, told.unchecked) == (TOLD, "only 1 of 2; why", "only 1 of 2")


def test_a_note_explains_no_miss() -> None:
    found = points(tpp=(2.0, 7.0), demeter=(1.0, 9.0))
    spec = {"of": {"system": "tpp"}, "by": {"system": "demeter"}, "note": "not the paper's"}
    assert asked(found, spec | {"at_least": 2}).note == "not the paper's"
    missed = asked(found, spec | {"at_least": 3})
    assert (missed.state, missed.note) == (MISSED, "not the paper's; not explained yet")
    explained = asked(found, spec | {"at_least": 3, "missed": "it is found late"})
    assert explained.note == "not the paper's; it is found late"


def test_a_remark_on_the_quick_runs_is_not_one_on_the_whole_ones(tmp_path: Path) -> None:
    shutil.copytree(HERE / "records", tmp_path / "records")
    path = tmp_path / "records/TEXT.toml"
    path.write_text(path.read_text().replace("at_most =", 'missed_quick = "short"\nat_most ='))
    for quick, said in ((True, "short"), (False, "not explained yet")):
        record = next(
            one for one in records.load(SYSTEMS, quick, tmp_path / "records") if one.id == "TEXT"
        )
        found = [Measured({}, {"ranges": 50.0})]
        value = value_of(record, record.values[0], found, {}, 0, {})
        assert (value.state, value.note) == (MISSED, said)


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
    text = document.text(results, PLAN)
    assert text == document.text(recorded(), PLAN)
    for result in results:
        assert f"## {result.record.id}: " in text
    assert "Not implemented: `memtis`." in text and "| missed |" in text
    assert "Made at commit of-a-test." in text
    assert "Rows beyond the paper's: `none`, `fast`." in text
    assert "--tmm none" in text and "{out}" not in text
    links = re.findall(r"\]\(#([^)]*)\)", text)
    heads = re.findall(r"^## (.*)$", text, re.M)
    anchors = {re.sub(r"[^a-z0-9 _-]", "", head.lower()).replace(" ", "-") for head in heads}
    assert set(links) == anchors
    assert all(
        line.count("|") == 9 for line in text.splitlines() if re.match(r"\| (Run|Ranges)", line)
    )


def test_pages_need_no_network_and_name_what_is_not_there(tmp_path: Path) -> None:
    written = pages.write(recorded(), tmp_path, PLAN)
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
    # Under each what made it; beside each value the paper's, and why it is not met.
    assert curve.count('<details class="under">') == 5
    assert curve.count("--tmm none") >= 5
    manager = (tmp_path / "manager-tpp.html").read_text()
    assert '<details class="under">' in manager and "--tmm tpp" in manager
    for result in recorded():
        text = (tmp_path / f"{result.record.id}.html").read_text()
        for value in result.values:
            said = re.escape(str(pages.prose(value.note)))
            shown = re.escape(value.paper_says or document.figure(value.paper))
            row = rf"{re.escape(value.name)}.*<td>{shown}</td>.*<td class=\"remark\">{said}</td>"
            assert re.search(row, text), value.name
    assert "first &lt; second &amp; third" in curve
    assert "not implemented" in (tmp_path / "manager-memtis.html").read_text()
    # The headline stands on the first page; names of programs are set as code.
    index = (tmp_path / "index.html").read_text()
    assert "Faster than TPP" in index and "`" not in curve
    # What the paper does not have is said to be so, by record and by run.
    assert "Rows beyond the paper" in curve
    assert "beyond the paper" in (tmp_path / "manager-fast.html").read_text()
    assert "beyond the paper" not in (tmp_path / "manager-tpp.html").read_text()
    before = {path: path.read_bytes() for path in written}
    assert before == {path: path.read_bytes() for path in pages.write(recorded(), tmp_path, PLAN)}


def test_figures_are_data_with_the_values_shown(tmp_path: Path) -> None:
    pages.write(recorded(), tmp_path, PLAN)
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


def test_quick_guests_have_rivals_scaled_to_them() -> None:
    def words(quick: bool) -> str:
        record = next(one for one in records.load(["hemem"], quick) if one.id == "F10")
        return " ".join(record.runs[0].argv)

    assert "hemem.least_mapping_bytes=10485760" in words(quick=True)
    assert "hemem." not in words(quick=False)
