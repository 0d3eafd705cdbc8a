# SPDX-License-Identifier: Apache-2.0 OR MIT
"""One run, wherever it is executed: a command in a folder of its own, and what is kept of it.

What is kept is decided by the command alone, not by the machine: times of the host are not in it.
"""

import hashlib
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from demeter_lab.evaluation.records import (
    RECORD,
    ROOT,
    Manager,
    RecordError,
    Run,
    managers_of,
)
from demeter_lab.inputs import MODULE, inputs_of, sha256_of

#: Part of every key: another one makes all that was kept void.
FORMAT = 1
DEMETER = "target/release/demeter"
#: Modules of a guest beside that of its manager.
_MODULES = (MODULE, "demeter_balloon.ko")
#: Folders of runs, by the number of their process.
_PLACE = "demeter-evaluation-"
#: What a recorded guest leaves; as an input of a replay, the key of that guest's run.
ACCESSES = "accesses.bin"
#: What is kept of a series: the work done over time.
_SERIES_KINDS = ("on", "progress")
_TAIL_CHARACTERS = 2000
#: A panic with its registers and stack.
_CONSOLE_CHARACTERS = 6000
#: The guest ends first: it says where it was.
_GUEST_SHARE_OF_LIMIT = 0.95
#: Of the commands that this process runs now.
_GROUPS: set[int] = set()


@dataclass(frozen=True)
class Task:
    """A run with all that its outcome depends on."""

    key: str
    run: Run
    inputs: dict[str, str]
    limit_s: float = 3600.0


@dataclass(frozen=True)
class Outcome:
    """What came of a task: files by name, or why there are none."""

    key: str
    files: dict[str, bytes] = field(default_factory=dict)
    failure: str = ""
    host_s: float = 0.0
    host: str = ""


class RunError(Exception):
    """A run that left no result; the message says why."""


def task_of(run: Run, root: Path = ROOT, limit_s: float = 3600.0) -> Task:
    """Return the run with its key: the digest of its command and of all that it is made of."""
    inputs = _inputs(run, root)
    text = json.dumps({"format": FORMAT, "run": run.digest, "inputs": inputs}, sort_keys=True)
    return Task(hashlib.sha256(text.encode()).hexdigest()[:32], run, inputs, limit_s)


def execute(task: Task, root: Path = ROOT, record: Path | None = None) -> Outcome:
    """Run it, and return what is kept; a failure is an outcome too.

    Args:
        task: what is to be run.
        root: of the tree that is built.
        record: the folder of the recorded accesses, where they are to be played.

    """
    began = time.monotonic()
    files: dict[str, bytes] = {}
    failure = ""
    try:
        # Asked where it runs: another machine may have another build.
        _same(task.inputs, _inputs(task.run, root))
        with _place() as place:
            out = Path(place) / "out"
            files = _kept(task.run, _command(task, root, out, record), out)
        # And again: of two builds its outcome is that of neither.
        _same(task.inputs, _inputs(task.run, root))
    except (RunError, RecordError, OSError, ValueError, KeyError, TypeError) as error:
        files, failure = {}, str(error) or repr(error)
    return Outcome(task.key, files, failure, time.monotonic() - began, platform.node())


def _place() -> tempfile.TemporaryDirectory:
    """Return a new folder of this process, after clearing away those of killed ones."""
    base = Path(tempfile.gettempdir())
    for left in base.glob(f"{_PLACE}*-*"):
        if not alive(left.name.removeprefix(_PLACE).partition("-")[0]):
            shutil.rmtree(left, ignore_errors=True)
    prefix = f"{_PLACE}{os.getpid()}-"
    return tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True)


def alive(pid: str) -> bool:
    """Whether a process of that number is there."""
    return pid.isdigit() and Path(f"/proc/{pid}").exists()


def _command(task: Task, root: Path, out: Path, record: Path | None) -> str:
    words = {"{demeter}": str(root / DEMETER), "{out}": str(out), "{record}": str(record)}
    argv = list(_limited(task))
    for name, value in words.items():
        argv = [word.replace(name, value) for word in argv]
    try:
        with _group() as group:
            done = subprocess.run(
                argv,
                cwd=root,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=task.limit_s,
                check=False,
                process_group=group,
            )
    except subprocess.TimeoutExpired:
        raise RunError(f"was not done after {task.limit_s:.0f} s") from None
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip())[-_TAIL_CHARACTERS:]
        # Its folder is gone by the time that anybody reads this.
        reason = f"exit status {done.returncode}: {said.replace(str(out), 'OUT')}"
        raise RunError(f"{_last_words(out)}{reason}")
    return done.stdout


@contextmanager
def _group() -> Iterator[int]:
    """Have a group of processes that all end with it, and with this process, killed or not.

    The first of them waits for the end of its input, which only this process could write to.
    """
    words = ["sh", "-c", "read -r _; kill 0"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, process_group=0) as first:
        _GROUPS.add(first.pid)
        try:
            yield first.pid
        finally:
            _GROUPS.discard(first.pid)
            os.killpg(first.pid, signal.SIGKILL)


def stop() -> None:
    """End the commands of this process: they are not in its group, which a terminal interrupts."""
    for group in tuple(_GROUPS):
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)


def _last_words(out: Path) -> str:
    """Return the end of the consoles of guests that failed."""
    return "".join(
        f"the end of {str(path).replace(str(out), 'OUT')}:\n"
        f"{path.read_text(errors='replace').rstrip()[-_CONSOLE_CHARACTERS:]}\n"
        for path in sorted(out.parent.glob(f"{out.name}*/**/console.log"))
        if path.parent.name.startswith(f"{out.name}.failed") or path.parent.suffix == ".failed"
    )


def _limited(task: Task) -> tuple[str, ...]:
    """Return the words of the command; a guest may take nearly as long as the run.

    How long it may take is not part of what it is: a guest's own limit is meant for an idle host.
    """
    words = task.run.argv
    if words[:2] != ("{demeter}", "vm"):
        return words
    limit_s = max(1, int(task.limit_s * _GUEST_SHARE_OF_LIMIT))
    return (*words[:3], "--timeout", str(limit_s), *words[3:])


def _kept(run: Run, said: str, out: Path) -> dict[str, bytes]:
    if run.kind == "text":
        lines = [
            line
            for line in said.splitlines()
            if any(re.search(pattern, line) for pattern in run.patterns.values())
        ]
        if not lines:
            raise RunError(f"it did not say what was looked for: {', '.join(run.patterns)}")
        return {"lines.txt": ("\n".join(lines) + "\n").encode()}
    if run.kind == RECORD:
        return {ACCESSES: (out / ACCESSES).read_bytes()}
    if run.kind == "replay":
        return {"sim.json": _replayed(said)}
    if run.kind == "heat":
        return {name: (out / name).read_bytes() for name in ("heat.json", "command.log")}
    row = out / str(run.system)
    files = {name: (row / name).read_bytes() for name in ("summary.json", "command.log")}
    files["series.jsonl"] = _series((row / "series.jsonl").read_text())
    return files


def _replayed(text: str) -> bytes:
    """Return the one row of a replay, without where each page is in the end."""
    (row,) = json.loads(text)["rows"]
    kept = {name: value for name, value in row.items() if name != "placed"}
    return (json.dumps(kept, sort_keys=True) + "\n").encode()


def _series(text: str) -> bytes:
    rows = (json.loads(line) for line in text.splitlines())
    kept = (
        {key: row[key] for key in ("t_ns", "kind", "value")}
        for row in rows
        if row["kind"] in _SERIES_KINDS
    )
    return "".join(json.dumps(row) + "\n" for row in kept).encode()


def _same(wanted: dict[str, str], here: dict[str, str]) -> None:
    odd = sorted(name for name in wanted.keys() | here.keys() if wanted.get(name) != here.get(name))
    if odd:
        raise RunError(
            f"{platform.node()} has another {', '.join(odd)} than the one that asked; if it was "
            "built anew start again, else copy target/, build/ and the cache there from one place"
        )


def _inputs(run: Run, root: Path) -> dict[str, str]:
    if run.kind == "text" and "{demeter}" not in run.argv:
        paths = sorted(path for glob in run.sources for path in root.glob(glob) if path.is_file())
        return {str(path.relative_to(root)): sha256_of(path) for path in paths}
    demeter = root / DEMETER
    if run.needs is not None:
        of_record = task_of(run.needs, root).key
        return {"demeter": sha256_of(demeter), ACCESSES: of_record}
    module = None if run.system is None else _module_of(demeter, run.system)
    return inputs_of(demeter, _MODULES if module is None else (*_MODULES, module))


def _module_of(demeter: Path, row: str) -> str | None:
    """Return the module that carries a row out: the row's name does not tell."""
    manager = _managers(demeter, demeter.stat().st_mtime_ns).get(row)
    if manager is None:
        raise RunError(f"{demeter} has no manager {row}; run make build")
    return manager.module


@cache
def _managers(demeter: Path, mtime_ns: int) -> dict[str, Manager]:
    return managers_of(demeter)
