# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Programs whose accesses are no stream: a sort, compressors, hash tables, redis.

Each runs under ``demeter extmem`` and under Linux swap at its best (page-cluster, zswap; the
machine as for the other cells, :class:`demeter_lab.extmem_linux.Machine`), in turns, with the
same DRAM; their output is compared with that of a plain run. CPU time and pages read can be
compared on a loaded machine, too; seconds only on a quiet one.
"""

import contextlib
import hashlib
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from demeter_lab import extmem_linux as linux
from demeter_lab.extmem_bench import commit

MIB = 1 << 20
SWAP_MIB = 4096
GROUP_PREFIX = "demeter-locality-"
# The kernel kills a group's program where every page was used just now: once more then.
MOST_KILLS = 12
# After so many kills Linux has one part in so many more.
KILLS_FOR_MORE = 2
MORE_SHARE = 64
LIMIT_S = 300
DATA = """
import base64, random
chance = random.Random(7)
for name, pieces in (("text", 3), ("moretext", 12)):
    with open(name, "wb") as out:
        for _ in range(pieces):
            out.write(base64.encodebytes(chance.randbytes(16 << 20)))
words = [base64.b32encode(chance.randbytes(5)).decode().lower() for _ in range(6000)]
for name, lines in (("words", 48000), ("morewords", 192000)):
    with open(name, "w") as out:
        for _ in range(lines):
            out.write(" ".join(chance.choices(words, k=9)) + chr(10))
for name, pieces in (("lines", 1), ("morelines", 4)):
    with open(name, "wb") as out:
        for _ in range(pieces):
            out.write(base64.encodebytes(chance.randbytes(20 << 20)))
with open("random", "wb") as out:
    out.write(chance.randbytes(96 << 20))
with open("rows", "w") as out:
    for number in range(120000):
        out.write(f"{number},{chance.choice(words)},{chance.random()}" + chr(10))
"""
# A key for each word of each line.
PERL = 'for(split){$n{"$_$."}++} END{$s+=$n{$_}*unpack("%32C*",$_) for keys %n; print $s}'
# Keys in the order in which they were put in: the table is gone through at random, twice.
HASH = """
import sys
table, total = {}, 0
for turn in range(2):
    key = 12345
    for number in range(int(sys.argv[1])):
        key = (key * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        if turn == 0:
            table[key >> 20] = number
        else:
            total += table[key >> 20]
print(total)
"""


# A server, and a client that is no part of either's memory ($OUTSIDE: where processes without a
# limit are named): as many reads at random as there are keys, twice, by the server itself.
REDIS = """
redis-server --port 0 --unixsocket "$0" --save '' --enable-debug-command yes \\
    --activedefrag no >/dev/null &
server=$!
client() {
    sh -c 'echo $$ >"$OUTSIDE"; exec env -u LD_PRELOAD redis-cli "$@"' sh -s "$0" "$@"
}
until client ping 2>/dev/null | grep -q PONG; do kill -0 $server || exit 1; sleep 0.05; done
client eval "for key = 0, ARGV[1] - 1 do
        redis.call('SET', 'key:' .. key, redis.sha1hex(key) .. ('value of ' .. key):rep(7))
    end" 0 "$1" >/dev/null
client eval "local sum, at = 0, 1
    for turn = 1, 2 * ARGV[1] do
        at = (at * 69069 + 1) % 4294967296
        local value = redis.call('GET', 'key:' .. math.floor(at / 16) % ARGV[1])
        sum = sum + tonumber(value:sub(1, 6), 16) + #value
    end
    return sum" 0 "$1"
client shutdown nosave >/dev/null 2>&1
wait $server
"""
# What each of them must reach.
MARK = 1.0


class LocalityError(Exception):
    """A program failed or wrote something else; the message says which and what to do."""


@dataclass(frozen=True)
class Program:
    """A program and the DRAM it gets: about three fifths of what it takes, zstd four fifths."""

    name: str
    command: tuple[str, ...]
    dram_mib: int


PROGRAMS = (
    Program("hash table", ("python3", "-I", "-S", "-c", HASH, "2400000"), 160),
    Program("perl", ("perl", "-ne", PERL, "morewords"), 240),
    Program("redis", ("sh", "-c", REDIS, "socket", "1000000"), 192),
    Program("sort", ("sort", "--parallel=1", "-S", "1600M", "moretext"), 256),
    Program("zstd", ("zstd", "-q", "-15", "--single-thread", "-c", "rows"), 56),
    Program("xz", ("xz", "-T1", "-9e", "-k", "-c", "words"), 48),
    Program("shuf", ("shuf", "--random-source=random", "morelines"), 88),
    # With a quarter of the data and of the DRAM: what the pager takes for itself, with the
    # runner, is a larger part then.
    Program("hash table, small", ("python3", "-I", "-S", "-c", HASH, "600000"), 40),
    Program("perl, small", ("perl", "-ne", PERL, "words"), 60),
    Program("redis, small", ("sh", "-c", REDIS, "socket", "250000"), 48),
    Program("sort, small", ("sort", "--parallel=1", "-S", "400M", "text"), 64),
    Program("shuf, small", ("shuf", "--random-source=random", "lines"), 22),
)
# Linux with each of them once; then the best in turns with extmem.
SETTINGS = tuple(linux.Setting(cluster, zswap) for zswap in (False, True) for cluster in (0, 3, 5))
# A setting is tried again if it was so near to the best.
NEAR = 0.8
# With more looks at which zswap was not paid for, one in so many, a setting is no alternative.
UNPAID_SHARE = 20


@dataclass(frozen=True)
class Run:
    """What one run of a program took."""

    seconds: float
    cpu_seconds: float
    pages_read: int
    digest: str
    #: How often the kernel killed it before, and how often it was lent memory instead.
    kills: int = 0
    lent: int = 0
    lent_seconds: float = 0.0
    #: How long it slept where it would have been killed; a part of ``seconds``.
    waited_seconds: float = 0.0
    #: It had more DRAM than its share: zswap could not be charged for.
    is_over: bool = False
    #: The most memory that was charged for it, in bytes; 0 is not known.
    peak_bytes: int = 0


@dataclass
class Row:
    """A program in the table; ``setting`` is the fastest of Linux."""

    program: Program
    setting: str
    extmem: list[Run] = field(default_factory=list)
    linux: list[Run] = field(default_factory=list)

    def rate(self) -> float:
        """Return the median of Linux's seconds to extmem's, of neighbouring runs."""
        return statistics.median(self.rates())

    def rates(self) -> list[float]:
        """Return Linux's seconds to extmem's."""
        return [other.seconds / own.seconds for own, other in zip(*self.systems(), strict=True)]

    def line(self) -> str:
        """Return it as a row of the table in Markdown."""

        def medians(key: str) -> tuple[float, float]:
            of = [statistics.median(getattr(run, key) for run in runs) for runs in self.systems()]
            return of[0], of[1]

        rates, rate = self.rates(), self.rate()
        said = f"{rate:.2f}" if rate >= MARK else f"**{rate:.2f}**"
        peaks = "{:.0f}, {:.0f}".format(*(peak / MIB for peak in medians("peak_bytes")))
        cpu, read = medians("cpu_seconds"), medians("pages_read")
        return (
            f"| {self.program.name} | {self.program.dram_mib}, {peaks} | {said} "
            f"({min(rates):.2f}\u2013{max(rates):.2f}) | {cpu[0]:.1f}, {cpu[1]:.1f} | "
            f"{read[0]:.0f}, {read[1]:.0f} | {self.setting}, killed "
            f"{sum(run.kills for run in self.linux)} times, lent memory "
            f"{sum(run.lent for run in self.linux)} times "
            f"({sum(run.lent_seconds for run in self.linux):.1f} s), waited "
            f"{sum(run.waited_seconds for run in self.linux):.1f} s"
            f"{', over its DRAM' if any(run.is_over for run in self.linux) else ''} |"
        )

    def systems(self) -> tuple[list[Run], list[Run]]:
        """Return the runs of both, extmem first."""
        return self.extmem, self.linux


def table(rows: list[Row]) -> str:
    """Return the table in Markdown."""
    head = [
        "| program | DRAM, MiB: given, charged, Linux's most | rate | CPU s: extmem, Linux "
        "| pages read: extmem, Linux | Linux setting |",
        "|---|---|---|---|---|---|",
    ]
    return "\n".join(head + [row.line() for row in rows])


def _pages_swapped_in() -> int:
    lines = Path("/proc/vmstat").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("pswpin "))


def _run(command: list[str], folder: Path, outside: str = "/dev/null") -> tuple[int, Run, str]:
    """Run a command to its end; its status, what it took, what it said on standard error.

    ``outside`` is the file that takes a process of its out of its control group.
    """
    with tempfile.TemporaryFile() as errors:
        began = time.monotonic()
        process = subprocess.Popen(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
            env={**os.environ, "LC_ALL": "C", "PYTHONHASHSEED": "0", "OUTSIDE": outside},
        )
        late = []

        def stop(*_: object) -> None:
            late.append(True)
            os.killpg(process.pid, signal.SIGKILL)

        signal.signal(signal.SIGALRM, stop)
        signal.alarm(LIMIT_S)
        digest = hashlib.sha256()
        assert process.stdout is not None
        try:
            while chunk := process.stdout.read(MIB):
                digest.update(chunk)
            process.stdout.close()
            _, status, usage = os.wait4(process.pid, 0)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        signal.alarm(0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if late:
            raise LocalityError(
                f"{command[0]} was not done after {LIMIT_S} s; next: look at the machine's load"
            )
        errors.seek(0)
        run = Run(time.monotonic() - began, usage.ru_utime + usage.ru_stime, 0, digest.hexdigest())
        return process.returncode, run, errors.read().decode(errors="replace")


class Locality:
    """The machine, prepared."""

    def __init__(self, demeter: Path, swap: Path, folder: Path, groups: tuple[str, Path]) -> None:
        """Note where things are; the data lies in ``folder``."""
        self.demeter, self.swap, self.folder, self.groups = demeter, swap, folder, groups
        self.outside = str(groups[1] / "cgroup.procs")

    def extmem(self, program: Program) -> Run:
        """Run a program under the pager."""
        summary = self.folder / "summary.json"
        summary.unlink(missing_ok=True)
        command = [str(self.demeter), "extmem", "run", "--dram", f"{program.dram_mib}M"]
        command += ["--swap", str(self.swap), "--swap-size", f"{SWAP_MIB}M", "--quiet"]
        command += ["--json", str(summary), "--", *program.command]
        group = linux.Group(*self.groups, f"{GROUP_PREFIX}{os.getpid()}-extmem", None)
        try:
            group.reset_peak()
            status, run, errors = _run(group.command(command), self.folder, self.outside)
            peak_bytes = group.peak_bytes()
        finally:
            group.remove()
        if status != 0:
            raise LocalityError(
                f"{program.name} ended with status {status} under extmem: {errors.strip()}; "
                "next: run it by hand"
            )
        processes = json.loads(summary.read_text())["processes"]
        read_bytes = sum(process["counters"]["read_bytes"] for process in processes)
        return replace(run, pages_read=read_bytes // 4096, peak_bytes=peak_bytes)

    def best_setting(self, program: Program, digest: str, limit_bytes: int) -> linux.Setting:
        """Try every setting, those that are near the best once more, and return the best."""
        tried: dict[linux.Setting, list[float]] = {}
        refused = None
        settings = [one for one in SETTINGS if not one.zswap or linux.ZSWAP.exists()]
        for repetition in range(2):
            fastest = min((min(known) for known in tried.values()), default=0.0)
            for setting in settings:
                if repetition and fastest / min(tried.get(setting, [math.inf])) < NEAR:
                    continue
                try:
                    run = self.linux(program, setting, limit_bytes)
                except LocalityError as error:
                    print(f"left out: {error}", flush=True)
                    refused = error
                    continue
                if run.digest != digest:
                    raise LocalityError(
                        f"{program.name} wrote something else with {setting}; next: report it"
                    )
                if run.is_over:
                    refused = LocalityError(f"{program.name}: {setting} had more than its DRAM")
                    print(f"left out: {refused}", flush=True)
                else:
                    tried.setdefault(setting, []).append(run.seconds)
        if not tried:
            raise refused or LocalityError(f"{program.name}: nothing to compare with")
        return min(tried, key=lambda setting: statistics.mean(tried[setting]))

    def linux(self, program: Program, setting: linux.Setting, limit_bytes: int = 0) -> Run:
        """Run a program in a control group, once more where the kernel kills it.

        With at least ``limit_bytes`` of DRAM. Inside a system call nobody can wait for memory:
        there the call fails, and the program with it. Who is killed twice has a little more.
        """
        linux.Knobs.apply(setting)
        name = f"{GROUP_PREFIX}{os.getpid()}"
        limit_bytes = max(limit_bytes, program.dram_mib * MIB)
        group = linux.Group(*self.groups, name, limit_bytes)
        try:
            for kills in range(MOST_KILLS + 1):
                before = _pages_swapped_in()
                more_bytes = kills // KILLS_FOR_MORE * limit_bytes // MORE_SHARE
                group.limit(limit_bytes + more_bytes)
                group.reset_peak()
                help_of = linux.PatientBill if setting.zswap else linux.Patience
                with help_of(group, limit_bytes + more_bytes) as patience:
                    command = group.command(list(program.command))
                    status, run, errors = _run(command, self.folder, self.outside)
                if patience.has_given_up():
                    raise LocalityError(
                        f"{program.name} found no memory for {patience.MOST_S:.0f} s with "
                        f"{setting}; next: give the program more DRAM"
                    )
                if status == 0:
                    read = _pages_swapped_in() - before
                    is_over = (
                        isinstance(patience, linux.PatientBill)
                        and patience.unpaid * UNPAID_SHARE > patience.looks
                    )
                    return replace(
                        run,
                        pages_read=read,
                        kills=kills,
                        lent=patience.lent,
                        lent_seconds=patience.lent_s,
                        waited_seconds=patience.waited_s,
                        peak_bytes=patience.peak_bytes(),
                        is_over=is_over,
                    )
                # Inside a system call nobody waits for memory: the call fails.
                if status != -signal.SIGKILL and not (patience.lent or group.was_short()):
                    raise LocalityError(
                        f"{program.name} ended with status {status} in its group: "
                        f"{errors.strip()}; next: run it by hand"
                    )
        finally:
            group.remove()
        raise LocalityError(
            f"the kernel killed {program.name} {MOST_KILLS + 1} times with {setting}; "
            "next: give the program more DRAM"
        )

    def compare(self, program: Program, rounds: int) -> Row:
        """Find the best Linux setting, then run in turns.

        Linux has the DRAM that was charged for extmem with all that the program is, where that
        is more: what extmem does not bound counts for both.
        """
        status, plain, errors = _run(list(program.command), self.folder)
        if status != 0:
            raise LocalityError(f"{program.name}: {errors.strip()}; next: install it")
        limit_bytes = self.extmem(program).peak_bytes
        print(f"{program.name}: Linux is given {limit_bytes / MIB:.1f} MiB", flush=True)
        best = self.best_setting(program, plain.digest, limit_bytes)
        row = Row(program, str(best))
        for turn in range(rounds):
            if turn % 2 == 0:
                row.extmem.append(self.extmem(program))
            row.linux.append(self.linux(program, best, limit_bytes))
            if turn % 2 == 1:
                row.extmem.append(self.extmem(program))
        for run in (*row.extmem, *row.linux):
            if run.digest != plain.digest:
                raise LocalityError(f"{program.name} wrote something else; next: report it")
        return row


def measure(demeter: Path, swap: Path, rounds: int, only: set[str]) -> str:
    """Compare the programs and return the table. Everything changed is put back."""
    unknown = only - {program.name for program in PROGRAMS}
    if unknown:
        raise LocalityError(f"no program {', '.join(sorted(unknown))}; next: see --help")
    if os.geteuid() != 0:
        raise LocalityError("control groups and swap need root; next: run it as root")
    # To be told to end ends it in order: a program in its group would sleep for ever.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    swap.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=swap, prefix="data-")))
        subprocess.run(["python3", "-c", DATA], cwd=folder, check=True)
        os.sync()
        groups = stack.enter_context(linux.memory_hierarchy())
        linux.remove_groups(groups[1], GROUP_PREFIX)
        machine = linux.Machine(swap)
        stack.callback(machine.restore)
        settings = machine.prepare()
        # Whether the disk rotates counts when swap is switched on.
        stack.enter_context(linux.swap_file(swap, SWAP_MIB * MIB))
        stack.callback(linux.Knobs().restore)
        if linux.zswap_bytes() > MIB:
            raise LocalityError("zswap holds pages of others; next: `swapoff -a`, and try again")
        locality = Locality(demeter.absolute(), swap.absolute(), folder, groups)
        print(f"{commit()}, {json.dumps(settings)}", flush=True)
        rows, failed = [], []
        for program in PROGRAMS:
            if only and program.name not in only:
                continue
            try:
                rows.append(locality.compare(program, rounds))
            except LocalityError as error:
                failed.append(str(error))
                continue
            print(rows[-1].line(), flush=True)
        reached = sum(row.rate() >= MARK for row in rows)
        said = f"{reached} of {len(rows) + len(failed)} programs reach {MARK}"
        return "\n".join([table(rows), "", *(f"No row: {error}" for error in failed), said])
