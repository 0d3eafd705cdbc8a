# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Real programs as they are and under ``demeter extmem`` with little DRAM, as a table.

Each runs once by itself and once with half of the memory that it took, and at least what
the pager asks for. Both must end alike and write the same bytes.
"""

import contextlib
import hashlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from demeter_lab.extmem_program_rows import DATA, PREPARE, PROGRAMS, SCRIPTS, Program

MIB = 1 << 20
LEAST_DRAM_MIB = 16
LIMIT_S = 300
# What a run ends with whose program the pager does not start.
REFUSED = 2
# What the runner says where the program was refused memory and failed.
WANT_OF_SWAP = "refused, for swap"
# Where servers and their like are is not in everybody's path.
PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
# What starts a command takes so much: less is not seen.
WITNESS_MIB = 10
# Runs a command and writes how much of memory its largest process took, in KiB, to a file. A small
# program of its own, for a child counts what its parent was when it was forked.
WITNESS = """
import os, resource, subprocess, sys
status = subprocess.call(sys.argv[2:])
with open(sys.argv[1], "w") as out:
    out.write(str(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss))
if status < 0:
    os.kill(os.getpid(), -status)
sys.exit(status)
"""


class ProgramsError(Exception):
    """The table cannot be made."""


@dataclass(frozen=True)
class Run:
    """How a command ended."""

    status: int
    digest: str
    out_bytes: int
    peak_mib: int
    seconds: float
    errors: str


@dataclass(frozen=True)
class Row:
    """A program in the table."""

    program: Program
    plain: Run
    dram_mib: int
    paged: Run
    pages_back: int

    def said(self) -> str:
        """Return what the pager or its runner said of the program."""
        lines = [line.partition(" extmem: ")[2] or line for line in self._lines()]
        return "; ".join(dict.fromkeys(line.removeprefix("demeter: ") for line in lines))

    def _lines(self) -> list[str]:
        lines = [line for line in self.paged.errors.splitlines() if line.startswith("demeter")]
        told = ("error:", "without the pager", "refused")
        return [line for line in lines if any(word in line for word in told)]

    def is_unmanaged(self) -> bool:
        """Say whether some of it ran without the pager."""
        return any("without the pager" in line for line in self._lines())

    def is_same(self) -> bool:
        """Say whether both runs ended well and wrote the same, and something."""
        alike = (self.paged.status, self.paged.digest) == (0, self.plain.digest)
        return alike and self.plain.status == 0 and self.plain.out_bytes > 0

    def is_refused(self) -> bool:
        """Say whether the pager refused it, or memory that it needs, with a line that says why."""
        said = self.said()
        by_pager = self.paged.status == REFUSED or WANT_OF_SWAP in said
        return self.plain.status == 0 and self.paged.status > 0 and by_pager and bool(said)

    def verdict(self) -> str:
        """Say how it went, with the pager's own lines where that said something."""
        said = self.said()
        if self.plain.status != 0:
            return f"not compared: by itself it ended with status {self.plain.status}"
        if self.plain.out_bytes == 0 and not self.program.direct:
            return "not compared: it wrote nothing"
        if self.is_same():
            return f"same; {said}" if said else "same"
        if self.is_refused():
            return f"refused: {said}"
        if self.paged.status == -signal.SIGKILL:
            return f"not done after {LIMIT_S} s"
        if self.paged.status != 0:
            last = (self.paged.errors.strip().splitlines() or ["no message"])[-1]
            return f"status {self.paged.status}: {said or last[:120]}"
        return "**other output**" + (f"; {said}" if said else "")


def run(command: list[str], folder: Path) -> Run:
    """Run a command to its end, or kill it; nothing of it is left."""
    began = time.monotonic()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        peak = folder / "peak-kib"
        peak.unlink(missing_ok=True)
        process = subprocess.Popen(
            ["python3", "-I", "-S", "-c", WITNESS, str(peak), *command],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=errors,
            start_new_session=True,
            env={
                "RUSTUP_HOME": str(Path.home() / ".rustup"),
                **os.environ,
                "PATH": PATH,
                "LC_ALL": "C",
                "HOME": str(folder),
                "SCRIPTS": str(SCRIPTS),
            },
        )
        signal.signal(signal.SIGALRM, lambda *_: os.killpg(process.pid, signal.SIGKILL))
        signal.alarm(LIMIT_S)
        status = process.wait()
        signal.alarm(0)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        out.seek(0)
        digest, out_bytes = hashlib.sha256(), 0
        while chunk := out.read(MIB):
            digest.update(chunk)
            out_bytes += len(chunk)
        errors.seek(0)
        return Run(
            status,
            digest.hexdigest(),
            out_bytes,
            int(peak.read_text() or 0) // 1024 if peak.exists() else 0,
            time.monotonic() - began,
            errors.read().decode(errors="replace"),
        )


def clear(folder: Path, kept: set[Path]) -> None:
    """Remove what a run left: the next is not to find it."""
    for path in set(folder.iterdir()) - kept:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def measure(program: Program, demeter: Path, swap: Path, folder: Path) -> Row:
    """Run one program both ways."""
    kept = set(folder.iterdir())
    command = ["bash", "-e", "-o", "pipefail", "-c", program.command]
    if program.direct:
        command = shlex.split(program.command)
    plain = run(command, folder)
    clear(folder, kept)
    dram_mib = max(LEAST_DRAM_MIB, plain.peak_mib // 2)
    summary = folder / "summary.json"
    managed = [str(demeter), "extmem", "run", "--dram", f"{dram_mib}M", "--swap", str(swap)]
    if program.swap_size is not None:
        managed += ["--swap-size", program.swap_size]
    paged = run([*managed, "--json", str(summary), "--", *command], folder)
    pages_back = 0
    if summary.exists():
        for process in json.loads(summary.read_text())["processes"]:
            counters = process["counters"]
            pages_back += counters["faults_swap"] + counters["faults_compressed"]
            pages_back += counters["prefetch_issued_pages"]
    clear(folder, kept)
    return Row(program, plain, dram_mib, paged, pages_back)


def is_there(needs: str) -> bool:
    """Say whether the machine has all that a row needs."""
    return all(
        any(Path("/").glob(need.lstrip("/"))) if "/" in need else shutil.which(need, path=PATH)
        for need in needs.split()
    )


def table(rows: list[Row], missing: list[str]) -> str:
    """Return the table in Markdown."""
    left = len(PROGRAMS) - len(rows) - len(missing)
    same = [row for row in rows if row.is_same()]
    managed = [row for row in same if not row.is_unmanaged()]
    back = sum(row.pages_back > 0 for row in managed)
    lines = [
        f"{len(rows)} commands (of the list {left} are left out): {len(same)} ended well and "
        f"wrote the same bytes as by themselves, {len(managed)} of them all under the pager, "
        f"to {back} of which pages came back while they ran, the other "
        f"{len(same) - len(managed)} without it, wholly or in part; "
        f"{sum(row.is_refused() for row in rows)} were refused with a line.",
        "",
        "| program | took, MiB | `--dram`, MiB | pages brought back | s, plain | s | result |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row.program.name} | {max(row.plain.peak_mib, WITNESS_MIB)} | {row.dram_mib} | "
        f"{row.pages_back} | {row.plain.seconds:.1f} | {row.paged.seconds:.1f} | "
        f"{row.verdict().replace('|', '/')} |"
        for row in rows
    ]
    if missing:
        lines += ["", f"Not on the machine: {', '.join(missing)}."]
    return "\n".join(lines)


def measure_all(demeter: Path, swap: Path, only: set[str], out: Path) -> tuple[str, bool]:
    """Run all programs that the machine has; the table is written as it grows.

    Returns the table, and whether each row is as it should be.
    """
    unknown = only - {program.name for program in PROGRAMS}
    if unknown:
        raise ProgramsError(f"no row is called {', '.join(sorted(unknown))}; next: see the table")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        swap.mkdir(parents=True, exist_ok=True)
        parent = tempfile.TemporaryDirectory(dir=swap, prefix="programs-")
    except OSError as error:
        raise ProgramsError(f"{error}; next: name other places by --swap and --out") from error
    with parent as name:
        folder = Path(name)
        folder.chmod(0o711)  # for programs that run as somebody else
        subprocess.run(["python3", "-c", DATA], cwd=folder, check=True)
        subprocess.run(["bash", "-c", PREPARE], cwd=folder, stdout=subprocess.DEVNULL, check=False)
        rows: list[Row] = []
        missing: list[str] = []
        for program in PROGRAMS:
            if only and program.name not in only:
                continue
            if not is_there(program.needs):
                missing.append(program.name)
                continue
            row = measure(program, demeter.absolute(), swap.absolute(), folder)
            rows.append(row)
            out.write_text(table(rows, missing) + "\n")
            print(f"{program.name}: {row.verdict()} ({row.paged.seconds:.1f} s)", flush=True)
        return table(rows, missing), all(row.is_same() or row.is_refused() for row in rows)
