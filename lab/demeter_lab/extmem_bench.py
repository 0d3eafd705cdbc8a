# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Runs programs under ``demeter extmem`` and under Linux swap, slice by slice in turn.

All programs of a comparison live at the same time and wait on their standard input;
one of them works at a time, for about a second, so that whatever the machine does
besides meets all of them alike. A ratio is of two neighbouring slices.
"""

import contextlib
import csv
import json
import os
import shutil
import signal
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from demeter_lab import extmem_linux as linux
from demeter_lab.extmem_matrix import MARKS, Family, Plan

# Patterns of threads that walk through shares of the memory.
WALK = "sequential-"
# How long a program may take for one line; far beyond any slice.
SLICE_LIMIT_S = 300
# A setting is tried again if its first slice was so near to the best.
NEAR = 0.8
IO_STRESS = "while :; do dd if=/dev/zero of={file} bs=1M count=64 oflag=direct status=none; done"


class BenchError(Exception):
    """A program failed; the message says which and how."""


class KilledError(BenchError):
    """The kernel killed a program for want of memory, time and again."""


@dataclass(frozen=True)
class Tools:
    """Where the programs are; ``policy`` is that of PageRank."""

    workloads: Path
    demeter: Path
    swap_folder: Path
    policy: str


class Program:
    """A program that does one piece of work for each line on its standard input."""

    # The kernel may kill a group's program while swap is still free, when every page
    # was used just now. That is counted, and the program started once more; what it does
    # first is done with all of its memory cold, and does not count.
    MOST_RESTARTS = 5
    COLD_SLICES = 2

    def __init__(self, name: str, command: list[str], greets: bool, restarts: bool) -> None:
        """Start it; ``greets``: it prints a row before the first line it is given."""
        self.name, self.command, self.greets = name, command, greets
        self.may_restart, self.restarts = restarts, 0
        # How often it was killed under settings that are left out since.
        self.forgiven = 0
        self.last_line = ""
        self.greeting = self.start()

    def start(self) -> dict[str, float]:
        """Start the process; return its first row, if it prints one."""
        self.process = subprocess.Popen(
            self.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        return self.read() if self.greets else {}

    def read(self) -> dict[str, float]:
        """Read one row."""
        assert self.process.stdout is not None
        signal.alarm(SLICE_LIMIT_S)
        line = self.process.stdout.readline()
        signal.alarm(0)
        try:
            return json.loads(line)
        except json.JSONDecodeError:
            code = self.process.wait()
            raise BenchError(
                f"{self.name} ended with status {code}, its last line: {line.strip()!r}; "
                "next: run it by hand, its own message is above"
            ) from None

    def ask(self, line: str) -> dict[str, float]:
        """Have it do one piece of work."""
        while True:
            try:
                return self._ask(line)
            except BenchError:
                if self.process.poll() != -signal.SIGKILL or not self.may_restart:
                    raise
                if self.restarts == self.MOST_RESTARTS:
                    raise KilledError(
                        f"the kernel killed {self.name} {self.restarts} times; "
                        "next: give it more DRAM, or leave this setting out"
                    ) from None
                self.restarts += 1
                self.start()
                self.warm(line)

    def revive(self) -> None:
        """Start it anew for another setting, under which it may be killed as often."""
        self.forgiven += self.restarts
        self.restarts = 0
        self.start()
        self.warm(self.last_line)

    def warm(self, line: str) -> None:
        """Do some work that does not count; that it is killed once more is for who asks next."""
        for _ in range(self.COLD_SLICES):
            try:
                self._ask(line)
            except BenchError:
                if self.process.poll() != -signal.SIGKILL:
                    raise
                return

    def _ask(self, line: str) -> dict[str, float]:
        assert self.process.stdin is not None
        self.last_line = line
        try:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise BenchError(
                f"{self.name} has ended with status {self.process.wait()}; "
                "next: run it by hand, its own message is above"
            ) from None
        return self.read()

    def finish(self) -> None:
        """End it in order: it checks its memory once more."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        status = self.process.wait(SLICE_LIMIT_S)
        if status == -signal.SIGKILL and self.may_restart:
            # All cells are measured: nothing to start it for again.
            self.restarts += 1
        elif status != 0:
            raise BenchError(f"{self.name} failed its last check; its own message is above")

    def kill(self) -> None:
        """End it and what it started, whatever it does."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@dataclass
class Cell:
    """A comparison at one number of threads."""

    pattern: str
    threads: int
    setting: str
    mark: float | None
    extmem: list[float]
    linux: list[float]
    # What the programs said of each slice.
    extmem_rows: list[dict[str, float]] = field(default_factory=list)
    linux_rows: list[dict[str, float]] = field(default_factory=list)
    # Of each slice of Linux: whether zswap had more DRAM than the group was charged for.
    over: list[bool] = field(default_factory=list)

    def profile(self) -> dict[str, float]:
        """Return why a cell is as it is, medians over its slices; empty for applications.

        Per touch: pages read from disk, faults of Linux that had to wait for a page (from
        swap or zswap), CPU time of the program in microseconds.
        """

        def per_touch(rows: list[dict[str, float]], key: str, unit: float) -> float:
            return round(statistics.median(row[key] * unit / row["touches"] for row in rows), 4)

        rows = (*self.extmem_rows, *self.linux_rows)
        if not rows or not all(row.get("touches") for row in rows):
            return {}
        return {
            "extmem_pages_read_per_touch": per_touch(self.extmem_rows, "read_bytes", 1 / 4096),
            "linux_pages_read_per_touch": per_touch(self.linux_rows, "read_bytes", 1 / 4096),
            "linux_major_faults_per_touch": per_touch(self.linux_rows, "major_faults", 1),
            "extmem_cpu_us_per_touch": per_touch(self.extmem_rows, "cpu_seconds", 1e6),
            "linux_cpu_us_per_touch": per_touch(self.linux_rows, "cpu_seconds", 1e6),
        }

    def pairs(self) -> list[tuple[float, float]]:
        """Return neighbouring slices, of them those in which Linux had its share, if any."""
        pairs = list(zip(self.extmem, self.linux, strict=True))
        over = self.over or [False] * len(pairs)
        return [pair for pair, more in zip(pairs, over, strict=True) if not more] or pairs

    def summary(self) -> dict[str, object]:
        """Return medians and spread; ratios are of neighbouring slices."""
        ratios = [a / b for a, b in self.pairs() if b > 0]
        if not ratios:
            raise BenchError(f"{self.pattern}: Linux did nothing in any slice")
        median = statistics.median(ratios)
        row: dict[str, object] = {
            "ratio_median": round(median, 3),
            "ratio_min": round(min(ratios), 3),
            "ratio_max": round(max(ratios), 3),
            "extmem_per_s": round(statistics.median(self.extmem), 3),
            "linux_per_s": round(statistics.median(self.linux), 3),
            "linux_setting": self.setting,
            "rounds": len(ratios),
        }
        if any(self.over):
            row["linux_slices_over_dram"] = sum(self.over)
        if self.mark is not None:
            row |= {"mark": self.mark, "met": median >= self.mark}
        return row | self.all_touches() | self.profile()

    def all_touches(self) -> dict[str, float]:
        """Return the ratio of all touches of threads that walk, where the slowest counts."""
        if not self.pattern.startswith(WALK) or self.threads == 1:
            return {}
        ratios = [
            (own["touches"] / own["seconds"]) / (other["touches"] / other["seconds"])
            for own, other in zip(self.extmem_rows, self.linux_rows, strict=True)
            if own.get("touches") and other.get("touches")
        ]
        return {"all_touches_ratio": round(statistics.median(ratios), 4)} if ratios else {}


class Bench:
    """The machine, prepared; makes programs and measures them against each other."""

    def __init__(
        self, tools: Tools, plan: Plan, out: Path, groups: tuple[str, Path], swap_bytes: int
    ) -> None:
        """Open the series; everything measured is in it."""
        self.tools, self.plan, self.out = tools, plan, out
        self.version, self.root = groups
        self.swap_bytes = swap_bytes
        self.cells: list[Cell] = []
        self.killed = 0
        self.rejected: list[str] = []
        # Settings under which a program of the family that is measured cannot live.
        self.left_out: set[linux.Setting] = set()
        self.bill: linux.ZswapBill | None = None
        self.peaks: dict[str, dict[str, int]] = {}
        self.file = (out / "series.csv").open("w", newline="")
        self.series = csv.writer(self.file)
        self.series.writerow(
            ("time_s", "pattern", "threads", "system", "setting", "phase", "per_s", "row")
        )
        self.began = time.monotonic()

    def note(
        self, pattern: str, threads: int, system: str, setting: str, phase: str, row: dict
    ) -> float:
        """Add a slice to the series and return its rate."""
        rate = next(row[key] for key in ("per_s", "touches_per_s", "lookups_per_s") if key in row)
        self.series.writerow(
            (
                round(time.monotonic() - self.began, 2),
                pattern,
                threads,
                system,
                setting,
                phase,
                rate,
                json.dumps(row),
            )
        )
        self.file.flush()
        return rate

    def group(self, name: str, limit_bytes: int | None) -> linux.Group:
        """Make a control group of this run."""
        return linux.Group(
            self.version, self.root, f"demeter-extmem-{os.getpid()}-{name}", limit_bytes
        )

    @contextlib.contextmanager
    def programs(
        self,
        name: str,
        arguments: list[str],
        dram: int,
        policy: str | None = None,
        zswap: bool = True,
    ) -> Iterator[tuple[Program, dict[bool, Program]]]:
        """Yield the program under extmem, and under Linux without and (if asked) with zswap.

        Each of them has ``dram`` bytes of DRAM; ``name`` is for their peaks of it.
        """
        command = [str(self.tools.workloads), *arguments]
        managed = [str(self.tools.demeter), "extmem", "run", "--dram", str(dram)]
        managed += ["--quiet", "--swap", str(self.tools.swap_folder)]
        managed += ["--swap-size", str(self.swap_bytes)]
        if policy:
            managed += ["--policy", policy]
        groups = {"extmem": self.group("extmem", None), "off": self.group("off", dram)}
        self.left_out.clear()
        self.bill = None
        if zswap and linux.ZSWAP.exists():
            groups["on"] = self.group("on", dram)
        for group in groups.values():
            group.reset_peak()
        # Programs start while their own way of swapping is switched on.
        started: dict[str, Program] = {}
        with contextlib.ExitStack() as stack:
            for group in groups.values():
                stack.callback(group.remove)
            if "on" in groups:
                self.bill = stack.enter_context(linux.ZswapBill(groups["on"], dram))
            for key, group in groups.items():
                linux.Knobs.apply(linux.Setting(3, key == "on"))
                line = [*managed, "--", *command] if key == "extmem" else command
                greets = arguments[0] == "mmapbench"
                said = "extmem" if key == "extmem" else f"Linux with zswap {key}"
                program = Program(said, group.command(line), greets, key != "extmem")
                stack.callback(program.kill)
                started[key] = program
                if greets:
                    self.note("fill", 1, key, "", "start", program.greeting)
            others = {key == "on": started[key] for key in groups if key != "extmem"}
            yield started["extmem"], others
            for program in (started["extmem"], *others.values()):
                program.finish()
            self.peaks[name] = {key: group.peak_bytes() for key, group in groups.items()}
            self.peaks[name]["dram"] = dram
            self.killed += sum(one.restarts + one.forgiven for one in started.values())

    def best_setting(
        self,
        pattern: str,
        line: str,
        threads: int,
        programs: tuple[Program, dict[bool, Program]],
        repetitions: int = 2,
    ) -> linux.Setting:
        """Try every setting, those that are near the best again, and return the best.

        Each repetition begins with another setting. The program under extmem works as long
        meanwhile as each of the others, so that all have seen equally much of a pattern when
        it is measured.
        """
        managed, others = programs
        rates: dict[linux.Setting, list[float]] = {
            linux.Setting(cluster, zswap): []
            for cluster in self.plan.page_clusters
            for zswap in others
            if linux.Setting(cluster, zswap) not in self.left_out
        }
        for repetition in range(repetitions):
            best = max((statistics.mean(known) for known in rates.values() if known), default=0.0)
            tried = [
                setting
                for setting, known in rates.items()
                if setting not in self.left_out
                and (not known or statistics.mean(known) >= best * NEAR)
            ]
            for setting in tried[::-1] if repetition % 2 else tried:
                linux.Knobs.apply(setting)
                try:
                    row = rated(others[setting.zswap].ask(line), line)
                except KilledError as error:
                    self.reject(pattern, setting, others, error)
                    continue
                # With more DRAM than its share it is no alternative.
                paid = self.is_paid(setting)
                phase = "tune" if paid else "over-dram"
                rate = self.note(pattern, threads, "linux", str(setting), phase, row)
                rates[setting] += [rate] if paid else []
            for _ in range(max(sum(one.zswap is zswap for one in tried) for zswap in others)):
                row = rated(managed.ask(line), line)
                self.note(pattern, threads, "extmem", "", "warm", row)
        known = {
            setting: statistics.mean(rates[setting])
            for setting in rates
            if rates[setting] and setting not in self.left_out
        }
        if not known:
            # All that is left has more DRAM than it should: to Linux's advantage.
            return next(setting for setting in rates if setting not in self.left_out)
        return max(known, key=lambda setting: known[setting])

    def is_paid(self, setting: linux.Setting) -> bool:
        """Say whether a setting has no more DRAM than its share just now."""
        return not setting.zswap or self.bill is None or self.bill.is_paid()

    def reject(
        self,
        pattern: str,
        setting: linux.Setting,
        others: dict[bool, Program],
        error: KilledError,
    ) -> None:
        """Go on without a setting under which the program cannot live."""
        self.rejected.append(f"{pattern}: {setting}: {error}")
        print(f"{pattern}: {setting} is left out: {error}", flush=True)
        self.left_out.add(setting)
        settings = (
            linux.Setting(cluster, zswap)
            for zswap in (setting.zswap, not setting.zswap)
            for cluster in self.plan.page_clusters
            if zswap in others
        )
        other = next((one for one in settings if one not in self.left_out), None)
        if other is None:
            raise BenchError(f"{pattern}: no setting of Linux keeps the program alive") from error
        if other.zswap is setting.zswap:
            linux.Knobs.apply(other)
            others[other.zswap].revive()
        else:
            # Dead, and nothing is left to start it for.
            del others[setting.zswap]

    def compare(
        self,
        name: str,
        threads: int,
        line: str,
        mark: float | None,
        programs: tuple[Program, dict[bool, Program]],
        rounds: int,
        repetitions: int = 2,
    ) -> None:
        """Measure one cell: slices in turn, the order changing every round.

        Linux has the setting that is best, after so many repetitions of each.
        """
        managed, others = programs
        setting = self.best_setting(name, line, threads, programs, repetitions)
        other = others[setting.zswap]
        cell = Cell(name, threads, str(setting), mark, [], [])

        def slice_of(program: Program, system: str, into: list[float]) -> None:
            linux.Knobs.apply(setting)
            row = rated(program.ask(line), line)
            if row.get("wrong_words", 0) != 0:
                raise BenchError(f"{name}: {system} returned wrong data; next: report it")
            if system == "linux":
                cell.over.append(not self.is_paid(setting))
            into.append(self.note(name, threads, system, str(setting), "measure", row))
            (cell.extmem_rows if system == "extmem" else cell.linux_rows).append(row)

        for index in range(rounds):
            order: list[tuple[Program, str, list[float]]] = [
                (managed, "extmem", cell.extmem),
                (other, "linux", cell.linux),
            ]
            try:
                for program, system, into in order if index % 2 == 0 else order[::-1]:
                    slice_of(program, system, into)
            except KilledError as error:
                self.reject(name, setting, others, error)
                self.compare(name, threads, line, mark, programs, rounds, repetitions)
                return
        self.cells.append(cell)
        self.write_summary()
        print(f"{name} T={threads}: {json.dumps(cell.summary())}", flush=True)

    def write_summary(self) -> dict[str, dict[str, object]]:
        """Write and return what was measured so far."""
        summary: dict[str, dict[str, object]] = {}
        for cell in self.cells:
            summary.setdefault(cell.pattern, {})[str(cell.threads)] = cell.summary()
        (self.out / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
        return summary

    def family(self, family: Family) -> None:
        """Measure all cells of a family with one set of processes."""
        arguments = ["mmapbench", "--steps", "--size", str(self.plan.size_bytes)]
        arguments += ["--entropy", str(family.entropy_percent)]
        if family.huge:
            arguments.append("--huge")
        work = 2 if family.stress == "cpu" else 0
        family_name = family.suffix.strip("/") or "plain"
        with (
            self.programs(
                family_name, arguments, self.plan.dram_bytes, zswap=family.compresses
            ) as programs,
            self.stressed(family.stress),
        ):
            for pattern in family.patterns:

                def line(threads: int, pattern: str = pattern) -> str:
                    return f"{pattern} {threads} {self.plan.slice_s} {work}"

                name = pattern + family.suffix
                # A first touch takes as long as the memory is large, and needs no warming.
                once = pattern == "first-touch"
                for threads in family.threads:
                    self.compare(
                        name,
                        threads,
                        line(threads),
                        family.mark(pattern),
                        programs,
                        min(3, self.plan.rounds) if once else self.plan.rounds,
                        1 if once else 2,
                    )

    @contextlib.contextmanager
    def stressed(self, kind: str) -> Iterator[None]:
        """Keep the swap device busy with writes of somebody else, if asked to."""
        if kind != "io":
            yield
            return
        file = self.tools.swap_folder / f"demeter-extmem-stress-{os.getpid()}"
        command = ["sh", "-c", IO_STRESS.format(file=file)]
        writer = subprocess.Popen(command, start_new_session=True)
        try:
            yield
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(writer.pid, signal.SIGKILL)
            writer.wait()
            file.unlink(missing_ok=True)

    def pagerank(self) -> None:
        """Compare iterations of PageRank on one graph, extmem with its policy."""
        if not Path(self.tools.policy).exists():
            raise BenchError(f"{self.tools.policy} is missing; next: make build")
        graph = self.tools.swap_folder / f"demeter-extmem-graph-{os.getpid()}.sg"
        make = [str(self.tools.workloads), "pagerank", "--threads", "2"]
        make += ["--scale", str(self.plan.pagerank_scale), "--save", str(graph)]
        try:
            subprocess.run(make, check=True)
            arguments = ["pagerank", "--load", str(graph), "--steps"]
            # Edges and offsets are as large as the file; two more words for each node.
            footprint_bytes = graph.stat().st_size + (8 << self.plan.pagerank_scale)
            self.application("pagerank", arguments, str, footprint_bytes, self.tools.policy)
        finally:
            graph.unlink(missing_ok=True)

    def xsbench(self) -> None:
        """Compare look-ups of XSBench, event mode, unionised grid."""
        arguments = ["xsbench", "--steps", "--gridpoints", str(self.plan.xsbench_gridpoints)]
        seconds = 2 * self.plan.slice_s
        # 68 nuclides: a table row and an energy for each, 68 positions for each energy.
        footprint_bytes = 68 * self.plan.xsbench_gridpoints * (48 + 8 + 68 * 4)
        self.application(
            "xsbench", arguments, lambda threads: f"{threads} {seconds}", footprint_bytes, None
        )

    def application(
        self,
        name: str,
        arguments: list[str],
        line: Callable[[int], str],
        footprint_bytes: int,
        policy: str | None,
    ) -> None:
        """Compare an application with half its memory; the first slices warm it up."""
        with self.programs(name, arguments, footprint_bytes // 2, policy) as programs:
            threads = self.plan.application_threads
            managed, others = programs
            managed.ask(line(threads[-1]))
            for zswap, program in list(others.items()):
                setting = linux.Setting(self.plan.page_clusters[0], zswap)
                linux.Knobs.apply(setting)
                try:
                    program.ask(line(threads[-1]))
                except KilledError as error:
                    self.reject(name, setting, others, error)
            for count in threads:
                self.compare(
                    name,
                    count,
                    line(count),
                    MARKS[name],
                    programs,
                    self.plan.application_rounds,
                )


def rated(row: dict[str, float], line: str) -> dict[str, float]:
    """Give a row of what ``line`` asked for a rate of its own, where it needs one.

    Of an iteration that is iterations a second. Threads that walk through shares of the
    memory are as fast as the slowest of them: the sum would reward a system that keeps the
    share of one in DRAM, which then goes round at the speed of memory, and starves the rest.
    """
    if "iteration" in row:
        row["per_s"] = 1.0 / max(row["seconds"], 1e-9)
    elif line.startswith(WALK):
        row["per_s"] = row["threads"] * row["least_touches"] / max(row["seconds"], 1e-9)
    return row


def _interrupted(number: int, _: object) -> None:
    if number == signal.SIGALRM:
        raise BenchError(
            f"a slice took more than {SLICE_LIMIT_S} s; next: look at the machine's load"
        )
    raise SystemExit(128 + number)


def run(tools: Tools, plan: Plan, out: Path, only: set[str]) -> dict[str, dict[str, object]]:
    """Measure the plan; return and write the summary, cells in the order measured.

    Args:
        tools: programs and the folder for swap.
        plan: what to measure.
        out: result directory; overwritten.
        only: names of families' suffixes or applications, all if empty.

    """
    if os.geteuid() != 0:
        raise BenchError("control groups and swap need root; next: run it as root")
    for tool in (tools.workloads, tools.demeter):
        if not tool.exists():
            raise BenchError(f"{tool} is missing; next: make build")
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM):
        signal.signal(number, _interrupted)
    families = {(family.suffix or "plain").strip("/"): family for family in plan.families}
    if unknown := only - {*families, "pagerank", "xsbench"}:
        raise BenchError(
            f"there is no {', '.join(sorted(unknown))} to measure; "
            f"next: choose of {', '.join(families)}, pagerank and xsbench"
        )
    out.mkdir(parents=True, exist_ok=True)
    tools.swap_folder.mkdir(parents=True, exist_ok=True)
    swap_bytes = 4 * plan.size_bytes
    need, free = 4 * swap_bytes, shutil.disk_usage(tools.swap_folder).free
    if free < need:
        raise BenchError(
            f"{tools.swap_folder} has {free >> 20} MiB free, {need >> 20} are needed; "
            "next: give another --swap"
        )
    with contextlib.ExitStack() as stack:
        groups = stack.enter_context(linux.memory_hierarchy())
        machine = linux.Machine(tools.swap_folder)
        stack.callback(machine.restore)
        settings = machine.prepare()
        # A killed run may have left the machine changed; the file goes first. Whether the disk
        # rotates counts when it is switched on.
        stack.enter_context(linux.swap_file(tools.swap_folder, 2 * swap_bytes))
        knobs = linux.Knobs()
        stack.callback(knobs.restore)
        bench = Bench(tools, plan, out, groups, swap_bytes)
        stack.callback(bench.file.close)
        manifest: dict[str, object] = {
            "commit": commit(),
            "machine": linux.available(),
            "machine_settings": settings,
            "cpus": os.cpu_count(),
            "load_at_start": os.getloadavg(),
            "zswap_compressor": knobs.compressor(),
            "size_bytes": plan.size_bytes,
            "dram_bytes": plan.dram_bytes,
            "slice_s": plan.slice_s,
            "rounds": plan.rounds,
            "page_clusters": plan.page_clusters,
            "pagerank_scale": plan.pagerank_scale,
            "xsbench_gridpoints": plan.xsbench_gridpoints,
        }
        (out / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
        for name, family in families.items():
            if not only or name in only:
                bench.family(family)
        for program, application in (("pagerank", bench.pagerank), ("xsbench", bench.xsbench)):
            if not only or program in only:
                application()
        manifest |= {"load_at_end": os.getloadavg(), "group_peak_bytes": bench.peaks}
        manifest["linux_programs_killed_by_the_kernel"] = bench.killed
        manifest["linux_settings_left_out"] = bench.rejected
        (out / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
        return bench.write_summary()


def commit() -> str:
    """Return what was measured: the commit, with a mark if the tree differs from it."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"
