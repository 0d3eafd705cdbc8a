# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Accesses that are recorded once, and played under every setting of a grid."""

import itertools
import json
from dataclasses import replace
from pathlib import Path

import pytest

from demeter_lab.evaluation import charts, document, execute, pages, records
from demeter_lab.evaluation.execute import Outcome, Task, task_of
from demeter_lab.evaluation.measure import Measured
from demeter_lab.evaluation.records import Record, Run
from demeter_lab.evaluation.replay import play_all, record_of
from demeter_lab.evaluation.store import Plan, Store
from demeter_lab.evaluation.values import MET, NOT_RUN, Result, results_of, value_of

SYSTEMS = ["none", "demeter"]
COMMON = """
records = ["GRID"]
[parameters]
guest = "--fmem 1M"
[workloads]
gups = "/demeter/workloads gups --seed {seed}"
"""
GRID = """
id = "GRID"
kind = "figure"
where = "§0"
title = "A grid"
scaled = "For the tests."
check = "None"
[paper]
text = "flat"
[[run]]
kind = "replay"
record = ["{demeter}", "vm", "record", "{out}", "--set", "latency={threshold}", "--", "{command}"]
argv = ["{demeter}", "sim", "{record}", "--json", "--set", "period={period}"]
[run.axes]
system = ["demeter"]
workload = ["gups"]
threshold = [64, 512]
period = [2, 4, 8]
seed = [1]
[[value]]
name = "chosen / best"
metric = "time_s"
of = { threshold = 64, period = 4 }
by = { threshold = 64 }
by_mean = "least"
at_most = 2
[[figure]]
kind = "grid"
metric = "time_s"
x = "period"
y = "threshold"
title = "Times"
unit = "modelled s"
"""
#: A run takes as long as its period says; what fails is recorded with the threshold in `fails`.
DEMETER = """#!/bin/sh
echo "$@" >>{log}
if [ "$1 $2" = "vm record" ]; then
	case "$*" in *latency=$(cat {fails})*) echo the guest has died >&2; exit 1;; esac
	mkdir -p "$5" && echo "of $7" >"$5/accesses.bin"
	exit
elif [ "$1" = sim ]; then
	grep -q of "$2/accesses.bin" || exit 1
	shift 4
	echo '{{"rows": [{{"name": "demeter", "time_s": '"${{1#period=}}"', "none_s": 9,'
	echo '"ideal_s": null, "samples": 1, "promoted_pages": 2, "demoted_pages": 3,'
	echo '"placed": [1, 2]}}]}}'
else
	echo '[{{"row": "demeter", "module": "demeter.ko", "published": false}}]'
fi
"""


class Grid:
    """A tree with a command, and results of a record of a grid."""

    def __init__(self, root: Path) -> None:
        self.root, self.log, self.fails = root, root / "log", root / "fails"
        self.fails.write_text("none")
        (root / "records").mkdir()
        (root / "records/common.toml").write_text(COMMON)
        (root / "records/GRID.toml").write_text(GRID)
        demeter = root / execute.DEMETER
        demeter.parent.mkdir(parents=True)
        demeter.write_text(DEMETER.format(log=self.log, fails=self.fails))
        demeter.chmod(0o755)
        (self.record,) = records.load(SYSTEMS, True, root / "records")
        self.store = Store(root / "out")
        self.tasks = [task_of(run, root) for run in self.record.runs]
        self.guests = {
            guest.key: guest
            for guest in (task_of(run.needs, root) for run in self.record.runs if run.needs)
        }

    def make(self) -> tuple[int, int]:
        """Record and play what is not there."""
        for guest in self.guests.values():
            if self.store.files(guest.key) is None:
                self.store.put(guest, execute.execute(guest, self.root))
        todo = [task for task in self.tasks if self.store.files(task.key) is None]
        return play_all(todo, self.store, 2, silent, self.root)

    def called(self) -> tuple[int, int]:
        """Return how many were recorded and played since this was last asked."""
        lines = self.log.read_text().splitlines()
        self.log.write_text("")
        counts = [sum(line.startswith(word) for line in lines) for word in ("vm record", "sim")]
        return counts[0], counts[1]

    def result(self) -> Result:
        every = [*self.tasks, *self.guests.values()]
        keys = {task.run.digest: task.key for task in every}
        (result,) = results_of([self.record], self.store, keys)
        return result


def silent(task: Task, outcome: Outcome) -> None:
    """Nobody is told."""


@pytest.fixture
def grid(tmp_path: Path) -> Grid:
    return Grid(tmp_path)


def test_what_is_recorded_once_is_played_under_every_setting(grid: Grid) -> None:
    assert len(grid.guests) == 2 and {record_of(task) for task in grid.tasks} == set(grid.guests)
    assert grid.make() == (0, 0) and grid.called() == (2, 6)
    result = grid.result()
    times = {(one.labels["threshold"], one.numbers["time_s"]) for one in result.measured}
    assert times == {(of, period) for of in ("64", "512") for period in (2.0, 4.0, 8.0)}
    assert all(one.replayed and one.numbers["moved_pages"] == 5 for one in result.measured)
    assert (result.values[0].state, result.values[0].ours) == (MET, 2.0)
    # Where each page is in the end is not kept, what it came to is.
    assert set(json.loads(grid.store.files(grid.tasks[0].key)["sim.json"])) >= {"time_s", "none_s"}
    assert b"placed" not in grid.store.files(grid.tasks[0].key)["sim.json"]


def test_what_was_played_or_recorded_is_not_again(grid: Grid) -> None:
    grid.make()
    grid.called()
    assert grid.make() == (0, 0) and grid.called() == (0, 0)
    (grid.store.place(grid.tasks[0].key) / "sim.json").write_text("{}")
    assert grid.make() == (0, 0) and grid.called() == (0, 1)
    # Another record is another replay; a record that is damaged is no record.
    guest = next(iter(grid.guests.values()))
    other = replace(guest.run, argv=(*guest.run.argv, "--more"))
    assert task_of(replace(grid.tasks[0].run, needs=other), grid.root).key != grid.tasks[0].key
    (grid.store.place(record_of(grid.tasks[0])) / "accesses.bin").write_text("of less")
    assert play_all(grid.tasks[:1], grid.store, 1, silent, grid.root) == (0, 1)


def test_a_guest_that_dies_is_why_its_replays_are_not_there(grid: Grid) -> None:
    grid.fails.write_text("512")
    assert grid.make() == (0, 3) and grid.called() == (2, 3)
    result = grid.result()
    assert (len(result.measured), len(result.failures), result.missing) == (3, 3, 0)
    assert all("its record: exit status 1" in why for why in result.failures.values())
    assert result.values[0].state == MET
    grid.fails.write_text("none")
    assert grid.make() == (0, 0) and grid.called() == (1, 3)
    assert not grid.result().failures


def test_a_replay_that_cannot_be_kept_is_a_failure_and_the_rest_goes_on(grid: Grid) -> None:
    class Full(Store):
        def put(self, of: Task, outcome: Outcome) -> None:
            if outcome.files and of.key == grid.tasks[0].key:
                raise OSError(28, "No space left on device")
            super().put(of, outcome)

    grid.store = Full(grid.root / "out")
    assert grid.make() == (1, 0)
    assert "No space left" in str(grid.store.failure(grid.tasks[0].key))
    assert sum(grid.store.files(task.key) is not None for task in grid.tasks) == 5


def test_a_replay_that_fails_says_why(grid: Grid) -> None:
    grid.make()
    odd = replace(grid.tasks[0].run, argv=("sh", "-c", "echo no record at all >&2; exit 2"))
    failed = execute.execute(task_of(odd, grid.root), grid.root, grid.root)
    assert failed.failure == "exit status 2: no record at all"
    odd = replace(odd, argv=("echo", '{"rows": []}'))
    assert execute.execute(task_of(odd, grid.root), grid.root, grid.root).failure


def test_the_report_has_both_commands_and_a_map(grid: Grid) -> None:
    grid.make()
    result = grid.result()
    plan = Plan(True, SYSTEMS, {})
    text = document.text([result], plan)
    assert "demeter vm record OUT --set latency=64 -- /demeter/workloads gups --seed 1\n" in text
    assert "demeter sim OUT --json --set period=2\n" in text
    assert next(title for title, _ in charts.figures_of(result)) == "Times"
    pages.write([result], grid.root / "out", plan)
    # A page of a manager is no place for each point of a grid.
    assert "threshold=512" not in (grid.root / "out/manager-demeter.html").read_text()


def test_maps_of_several_workloads_stand_below_each_other(grid: Grid) -> None:
    grid.make()
    result = grid.result()
    more = [
        replace(one, labels=one.labels | {"workload": name})
        for one in result.measured
        for name in ("gups", "silo")
    ]
    spec = charts.figures_of(replace(result, measured=more))[0][1]
    assert [one["title"] for one in spec["vconcat"]] == ["gups", "silo"]


def test_the_best_of_a_grid_is_that_of_the_same_workload_and_seed() -> None:
    found = [
        Measured({"workload": name, "seed": seed, "period": period}, {"time_s": time_s})
        for name, seed, period, time_s in [
            *(("gups", "1", "2", 4.0), ("gups", "1", "4", 2.0)),
            *(("silo", "1", "2", 30.0), ("silo", "1", "4", 40.0)),
            *(("silo", "2", "2", 60.0), ("silo", "2", "4", 40.0)),
        ]
    ]
    record = replace(of_runs(found), values=())
    spec = {"name": "x", "metric": "time_s", "of": {"period": 2}, "by": {}, "by_mean": "least"}
    value = value_of(record, spec, found, {}, 0, {})
    assert value.ours == pytest.approx((2.0 * 1.0 * 1.5) ** (1 / 3)) and value.points == 3
    worst = value_of(record, spec | {"mean": "most"}, found, {}, 0, {})
    assert (worst.ours, worst.note, worst.points) == (2.0, "gups", 2)
    assert value_of(record, spec, [], {}, 6, {}).state == NOT_RUN


def of_runs(found: list[Measured]) -> Record:
    """Return a record whose runs are these."""
    runs = tuple(Run("X", "text", ("true",), one.labels) for one in found)
    (record,) = (one for one in records.load(SYSTEMS, True) if one.id == "N1")
    return replace(record, runs=runs)


def test_each_workload_is_recorded_once_for_all_settings() -> None:
    """Of the paper's own: GUPS once more for each threshold, which decides what is sampled."""
    for quick, thresholds, seeds in ((True, 2, 1), (False, 4, 3)):
        record = next(one for one in records.load(SYSTEMS, quick) if one.id == "F9")
        guests = {run.needs.digest: run.needs for run in record.runs if run.needs}
        assert len(guests) == (thresholds + 7) * seeds
        live = [run for run in record.runs if run.needs is None]
        assert len(live) == 9 * seeds
        # Those as chosen are guests of other records.
        others = {
            run.digest
            for one in records.load(SYSTEMS, quick)
            for run in one.runs
            if one.id in ("F8", "F10")
        }
        assert sum(run.digest not in others for run in live) == seeds
        # What is recorded is what runs live: the same machine and the same command.
        assert {machine_and_command(one) for one in guests.values()} == {
            machine_and_command(run) for run in live
        }


def machine_and_command(run: Run) -> tuple[str, ...]:
    """Return what a guest is, less what is done to it."""
    machine, end = run.argv.index("--kernel"), run.argv.index("--")
    sizes = {"--kernel", "--fmem", "--smem", "--roi", "--kernel-reserve"}
    words = run.argv[machine:end]
    pairs = [pair for pair in itertools.pairwise(words) if pair[0] in sizes]
    return (*itertools.chain.from_iterable(pairs), *run.argv[end:])
