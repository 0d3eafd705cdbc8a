# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Nothing of a run goes on after it, nor after the evaluation: not what its command started."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from demeter_lab.evaluation.execute import DEMETER, Outcome, Task, execute, task_of
from demeter_lab.evaluation.fleet import client_of, run_all
from demeter_lab.evaluation.records import ROOT, Run
from demeter_lab.evaluation.replay import play_all, record_of
from demeter_lab.evaluation.store import Store

#: Generous: the host may be busy.
LIMIT_S = 300.0


def with_a_grandchild(place: Path) -> Task:
    """Return a run as `make` is one: what keeps a processor busy is a child of its command."""
    script = f"sh -c 'echo $$ >{place}/new; mv {place}/new {place}/pid; sleep 300; :'; echo n=1"
    return task_of(Run("X", "text", ("sh", "-c", script), {}, {"n": r"n=(\d+)"}))


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def has_ended(place: Path) -> bool:
    try:
        stat = Path(f"/proc/{(place / 'pid').read_text().strip()}/stat").read_text()
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[0] == "Z"


def silent(done: Task, outcome: Outcome) -> None:
    """Nobody is told."""


def run_guests(place: Path) -> None:
    with client_of(None, 1) as client:
        run_all(client, [with_a_grandchild(place)], Store(place / "out"), silent)


def run_replays(place: Path) -> None:
    (place / DEMETER).parent.mkdir(parents=True)
    (place / DEMETER).touch()
    store, record = Store(place / "out"), Run("X", "record", ("{demeter}",), {})
    task = task_of(replace(with_a_grandchild(place).run, kind="replay", needs=record), place)
    store.put(task_of(record, place), Outcome(record_of(task), {"accesses.bin": b""}))
    play_all([task], store, 1, silent, place)


@pytest.mark.parametrize(
    ("what", "by"),
    [
        (run_guests, signal.SIGINT),
        (run_guests, signal.SIGKILL),
        (run_replays, signal.SIGINT),
        (run_replays, signal.SIGTERM),
    ],
)
def test_an_evaluation_that_ends_ends_all(
    what: Callable[[Path], None], by: signal.Signals, tmp_path: Path
) -> None:
    script = f"""
import sys
from pathlib import Path
sys.path[:0] = [{str(ROOT / "lab")!r}, {str(ROOT / "lab/tests")!r}]
import test_evaluation_ends as of
of.{what.__name__}(Path({str(tmp_path)!r}))
"""
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        env={**os.environ, "DEMETER_CACHE": str(tmp_path)},
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        wait_until(lambda: (tmp_path / "pid").exists() or process.poll() is not None)
        assert not has_ended(tmp_path)
        if by == signal.SIGINT:
            # As a terminal does it.
            os.killpg(process.pid, by)
        else:
            process.send_signal(by)
        assert process.wait(LIMIT_S) != 0
        wait_until(lambda: has_ended(tmp_path))
    finally:
        process.kill()
        process.wait()


def test_what_takes_too_long_ends_with_all_that_it_started(tmp_path: Path) -> None:
    slow = replace(with_a_grandchild(tmp_path), limit_s=2)
    assert execute(slow).failure == "was not done after 2 s"
    assert (tmp_path / "pid").exists()
    wait_until(lambda: has_ended(tmp_path))
