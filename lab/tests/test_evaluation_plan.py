# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The plan as it stands: every record has runs, and every value a number once they are made."""

import json
import re
import shlex
import tomllib
from dataclasses import replace
from functools import cache

import pytest

from demeter_lab.evaluation import records
from demeter_lab.evaluation.measure import Measured, measured
from demeter_lab.evaluation.records import COMMON, DIRECTORY, ROOT, Run
from demeter_lab.evaluation.values import NOT_RUN, Value, better_of, value_of

#: Every row that some record asks for.
SYSTEMS = [
    *("none", "tpp", "nomad", "memtis", "hemem", "nimble", "demeter", "fast"),
    *("tpp-h", "tpp-h-noflush", "tpp-h-2m"),
]
#: All that is to be made again; a headline is made of others and has no runs of its own.
PAPER = ["S0", "T1", "F2", "F4", "N1", "T2", "F6", "F7", "F8", "F9", "F10", "F11", "F12", "C1"]
#: Records whose text is kept in the tree, and where: a test of each holds the program to it.
SAID = {
    "T2": "docs/model.md",
    "N1": "core/tests/ranges_test.c",
}
PLANS = pytest.mark.parametrize("quick", [False, True], ids=["whole", "quick"])


def compared() -> dict[str, bytes]:
    """Return what a guest leaves, of a manager with stages under a program with latencies."""
    whole = dict.fromkeys(
        ("spare_time_s", "work_per_s", "fmem_share", "manager_share", "record_share"), 0.5
    )
    whole |= {"time_s": 2.0, "tlb_full": 3, "tlb_single": 4, "samples": 6, "walks": 8}
    whole |= {"hypervisor": {"flushes_done": 5}}
    stages = ("track", "drain", "classify", "rank", "plan", "migrate", "scan", "relocate")
    moved = ("promoted_pages", "demoted_pages", "refused_pages")
    summary = {"whole": whole, "stage_ns": dict.fromkeys(stages, 10**8)} | dict.fromkeys(moved, 7)
    rows = [{"t_ns": t * 10**9, "kind": "progress", "value": t * 1000} for t in range(3)]
    latency = dict.fromkeys(("mean", "p50", "p95", "p99"), 900)
    return {
        "summary.json": json.dumps(summary).encode(),
        "command.log": json.dumps({"latency_ns": latency}).encode(),
        "series.jsonl": "".join(json.dumps(row) + "\n" for row in rows).encode(),
    }


def heated() -> dict[str, bytes]:
    """Return what `vm heat` leaves."""
    rows = [{"space": 0, "address": at << 18, "fills": [at, at]} for at in range(40)]
    heat = {"granule_bytes": 1 << 18, "virtual_rows": rows, "physical_rows": rows[::2]}
    return {"heat.json": json.dumps(heat).encode()}


def said(run: Run) -> dict[str, bytes]:
    """Return lines as the programs print them."""
    if run.record == "N1":
        source = (ROOT / SAID["N1"]).read_text()
        line = re.search(r'test_print\("# (64 TiB: at most .*?)\\n"', source)
        assert line, "N1: the test says nothing of 64 TiB any more"
        return {"lines.txt": line[1].replace("%u", "7").encode()}
    if run.record == "T2":
        return {"lines.txt": (ROOT / SAID["T2"]).read_bytes()}
    names = [re.escape(name) for name in run.patterns]
    return {"lines.txt": "".join(f"param {name} 7\n" for name in names).encode()}


def played() -> dict[str, bytes]:
    """Return what is kept of a replay."""
    times = dict.fromkeys(("time_s", "none_s", "ideal_s"), 2.0)
    counts = dict.fromkeys(("samples", "ranges", "promoted_pages", "demoted_pages"), 7)
    row = times | counts | {"ideal_share": None, "fmem_share": 0.5}
    return {"sim.json": json.dumps(row).encode()}


def made_up(run: Run) -> Measured:
    """Return the run as if it had been made."""
    if run.kind == "text":
        return measured(run, said(run))
    return replace(left(run.kind), labels=run.labels)


@cache
def left(kind: str) -> Measured:
    """Return the numbers of a guest, which are those of every one."""
    files = {"compare": compared, "heat": heated, "replay": played}[kind]()
    return measured(Run("of-a-test", kind, (), {}), files)


@cache
def values_of(quick: bool) -> list[Value]:
    """Return the values of all records, each run of which has been made."""
    every = records.load(SYSTEMS, quick)
    known: dict[tuple[str, str], Value] = {}
    for record in every:
        found = better_of([made_up(run) for run in record.runs])
        for spec in record.values:
            known[record.id, str(spec["name"])] = value_of(record, spec, found, {}, 0, known)
    return list(known.values())


@PLANS
@pytest.mark.parametrize("name", PAPER)
def test_every_record_has_runs_and_numbers(name: str, quick: bool) -> None:
    every = records.load(SYSTEMS, quick)
    record = next((one for one in every if one.id == name), None)
    assert record is not None, f"{name}: no such record in lab/evaluation"
    assert not record.absent, f"{name}: {', '.join(record.absent)} of no row"
    own = [spec for spec in record.values if "from" not in spec]
    assert record.runs or not own, f"{name}: no run for any of its values"
    numbers = [value for value in values_of(quick) if value.record == name]
    assert numbers, f"{name}: no value"
    for value in numbers:
        assert value.state != NOT_RUN, f"{name}: '{value.name}': {value.note}"
        assert not value.unchecked, f"{name}: '{value.name}': {value.unchecked}"


def test_a_record_without_runs_or_numbers_is_told() -> None:
    """What the test above can find: a value whose runs the plan lacks, or do not tell it."""
    record = next(one for one in records.load(SYSTEMS, True) if one.id == "F6")
    found = better_of([made_up(run) for run in record.runs])
    for spec in ({"metric": "no_such"}, {"metric": "time_s", "of": {"balloon": "other"}}):
        value = value_of(record, {"name": "x", **spec}, found, {}, 0, {})
        assert value.state == NOT_RUN, spec


def test_quick_guests_have_every_rival_scaled_to_them() -> None:
    every = [run for record in records.load(SYSTEMS, True) for run in record.runs]
    scaled = {"memtis": "memtis.cooling_samples=", "hemem": "hemem.least_mapping_bytes="}
    for name, knob in scaled.items():
        of_it = [run for run in every if run.system == name]
        assert of_it
        without = {run.record for run in of_it if knob not in " ".join(run.argv)}
        assert not without, f"{name} is not scaled to the quick guest in {', '.join(without)}"
    whole = [run for record in records.load(SYSTEMS, False) for run in record.runs]
    published = [run for run in whole if run.labels.get("tuning", "published") == "published"]
    assert not [run for run in published if scaled["memtis"] in " ".join(run.argv)]


#: What is beyond published values, of each rival.
TUNINGS = tomllib.loads((DIRECTORY / COMMON).read_text())["tunings"]
TUNED = {"tpp", "nomad", "nimble", "memtis", "hemem", "tpp-h", "tpp-h-noflush", "tpp-h-2m"}


@PLANS
@pytest.mark.parametrize("name", ["T1", "F6", "F7", "F8", "F10", "F11", "F12"])
def test_rivals_have_a_tuning_for_short_runs(name: str, quick: bool) -> None:
    """At each point at which one runs as published, in one of its ways at least."""
    record = next(one for one in records.load(SYSTEMS, quick) if one.id == name)
    points: dict[bool, set[tuple]] = {True: set(), False: set()}
    for run in record.runs:
        if run.system in TUNED:
            rest = {key: part for key, part in run.labels.items() if key not in ("tuning", "pages")}
            points[tuned(run)].add(tuple(sorted(rest.items())))
    missing = points[False] - points[True]
    if quick and name == "F6":
        missing = {one for one in missing if ("system", "nomad") not in one}
    assert points[True] and not missing


@PLANS
def test_a_tuning_is_what_it_is_said_to_be(quick: bool) -> None:
    every = [run for record in records.load(SYSTEMS, quick) for run in record.runs]
    smaller = tomllib.loads((DIRECTORY / COMMON).read_text())["quick"]["tunings"]
    seen = set()
    for run in every:
        tuning = run.labels.get("tuning", "published")
        if tuning == "published":
            continue
        assert run.system is not None
        words = TUNINGS[tuning][run.system]
        if quick:
            words = smaller.get(tuning, {}).get(run.system, words)
        # The last one given is in force.
        given = dict(word.split("=") for word in run.argv if word.startswith(f"{run.system}."))
        knobs = dict(word.split("=") for word in shlex.split(words) if word != "--peer-set")
        assert knobs and given | knobs == given
        seen.add((tuning, run.system))
    # A row is left out by "" alone, and only where a search found nothing better.
    assert set(TUNINGS["eager"]) == set(TUNINGS["searched"]) == TUNED
    assert {("eager", name) for name in TUNED} <= seen
    assert {("searched", name) for name in TUNED - {"tpp", "hemem"}} <= seen


def test_what_a_search_found_is_in_force_for_guests_of_either_size() -> None:
    """Whole runs' guests have four times as much memory to count and to scan."""
    common = tomllib.loads((DIRECTORY / COMMON).read_text())
    by_size = {"adaptation_samples", "cooling_samples", "direct_pages", "scan_size_mb"}
    for name, words in common["tunings"]["searched"].items():
        whole = dict(word.split("=") for word in shlex.split(words) if word != "--peer-set")
        words = common["quick"]["tunings"]["searched"].get(name, words)
        quick = dict(word.split("=") for word in shlex.split(words) if word != "--peer-set")
        assert list(whole) == list(quick)
        for knob, value in quick.items():
            times = 4 if knob.split(".")[1] in by_size else 1
            assert int(whole[knob]) == times * int(value)


def test_a_record_says_how_many_values_it_has() -> None:
    """What is cut between two blocks is a record all the same, of less."""
    for name in tomllib.loads((DIRECTORY / COMMON).read_text())["records"]:
        assert "values" in tomllib.loads((DIRECTORY / f"{name}.toml").read_text()), name


def test_a_guest_of_huge_pages_can_have_them() -> None:
    """Linux gives none in guests as small as the quick runs' without the reserve."""
    every = [run for record in records.load(SYSTEMS, True) for run in record.runs]
    guests = [one for run in every for one in (run.needs, run) if one is not None and one.is_guest]
    without = {one.record for one in guests if "--kernel-reserve" not in one.argv}
    assert without == {"S0"}


def test_a_guest_without_a_balloon_is_that_of_other_records() -> None:
    every = {record.id: record for record in records.load(SYSTEMS, True)}
    others = {run.digest for run in every["F8"].runs}
    still = {run.digest for run in every["F6"].runs if run.labels["balloon"] == "none"}
    assert still <= others
    moving = [run for run in every["F6"].runs if run.labels["balloon"] != "none"]
    assert all(f"--balloon {run.labels['balloon']}" in " ".join(run.argv) for run in moving)


def tuned(run: Run) -> bool:
    return run.labels.get("tuning") in ("eager", "searched")


def test_sources_of_a_test_are_there_and_all_of_it() -> None:
    """A glob without files decides nothing; of a crate those that it depends on decide as well."""
    every = [run for record in records.load(SYSTEMS, True) for run in record.runs]
    tests = {run.record: run for run in every if run.sources}
    assert set(tests) == {"N1", "T2"}
    for run in tests.values():
        for glob in run.sources:
            assert any(path.is_file() for path in ROOT.glob(glob)), f"{run.record}: {glob}"
    needed, todo = {"Cargo.toml", "Cargo.lock"}, ["crates/machine"]
    while todo:
        crate = todo.pop()
        needed |= {f"{crate}/Cargo.toml", f"{crate}/**/*.rs"}
        manifest = tomllib.loads((ROOT / crate / "Cargo.toml").read_text())
        for table in ("dependencies", "dev-dependencies", "build-dependencies"):
            for of in manifest.get(table, {}).values():
                if isinstance(of, dict) and "path" in of:
                    todo.append(f"crates/{of['path'].removeprefix('../')}")
    assert needed <= set(tests["T2"].sources)


def test_quick_runs_stay_two_hours() -> None:
    """Fifty seconds each at most on an idle processor, two at a time; half of that in the mean."""
    runs = [run for record in records.load(SYSTEMS, True) for run in record.runs]
    guests = {one.digest for run in runs for one in (run.needs, run) if one and one.is_guest}
    assert len(guests) <= 300
