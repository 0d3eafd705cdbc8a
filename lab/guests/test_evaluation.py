# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The evaluation with real guests: two workers, a guest that crashes, an interruption."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from demeter_lab.evaluation.records import ROOT
from demeter_lab.evaluation.store import Store

RECORDS = Path(__file__).parent / "records"
#: Runs of the records, two of them replays of a third, and how many of them crash their guest.
RUNS, REPLAYS, CRASHES = 7, 2, 1
#: Generous: the host may be busy.
LIMIT_S = 300


class Evaluation:
    """One results directory, and what is run into it."""

    def __init__(self, place: Path) -> None:
        self.out = place / "out"
        self.temporary = place / "tmp"
        self.temporary.mkdir(parents=True)
        self.environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT / "lab"),
            "TMPDIR": str(self.temporary),
        }

    def start(self, *options: str) -> subprocess.Popen[str]:
        """Begin `run` in a session of its own, as a terminal has it."""
        words = [sys.executable, "-m", "demeter_lab.evaluation", "run"]
        words += ["--records", str(RECORDS), "--out", str(self.out), *options]
        return subprocess.Popen(
            words,
            cwd=ROOT,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, *options: str) -> tuple[int, str]:
        """Return the exit status, and what was said."""
        process = self.start(*options)
        try:
            said, _ = process.communicate(timeout=LIMIT_S)
        finally:
            kill(process)
        return process.returncode, said

    def results(self) -> dict[str, dict[str, bytes]]:
        """Return all runs; each has to be whole."""
        store = Store(self.out)
        found = {}
        for place in (self.out / "runs").iterdir():
            files = store.files(place.name)
            assert files, f"{place} is half-written"
            found[place.name] = files
        return found

    def failures(self) -> list[dict]:
        return [json.loads(path.read_text()) for path in (self.out / "failed").iterdir()]


def kill(process: subprocess.Popen[str]) -> None:
    """End all of a session that is left."""
    for pid in of_session(process.pid):
        os.kill(pid, signal.SIGKILL)
    process.wait()


def of_session(session: int) -> list[int]:
    """Return its processes that are not dead."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, of = stat.read_text().rpartition(")")[2].split()[:4]
        except OSError:
            continue
        if int(of) == session and state != "Z":
            found.append(int(stat.parent.name))
    return found


def wait_until(what: str, holds: Callable[[], bool], limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline, f"not within {limit_s:.0f} s: {what}"
        time.sleep(0.1)


@pytest.fixture(scope="module")
def one_worker(tmp_path_factory: pytest.TempPathFactory) -> Evaluation:
    evaluation = Evaluation(tmp_path_factory.mktemp("one"))
    status, said = evaluation.run("--workers", "1")
    assert status == 1, said
    assert f"{RUNS} runs, 0 of them done before" in said, said
    assert f"{CRASHES} runs failed" in said, said
    # They are told together: of a whole grid they are hundreds.
    assert f"{REPLAYS} replays of what was recorded" in said, said
    return evaluation


def test_a_guest_that_crashes_is_a_row_that_failed(one_worker: Evaluation) -> None:
    (failure,) = one_worker.failures()
    assert failure["labels"]["system"] == "tpp"
    console, error = failure["reason"].rsplit("\n", 1)
    assert "sysrq: Trigger a crash" in console, console
    assert "guest kernel panicked" in error
    # The rest went on, and the report has both.
    assert len(one_worker.results()) == RUNS - CRASHES
    document = (one_worker.out / "evaluation.md").read_text()
    assert re.search(r"\| Run time, none \| \d.* \| met \|", document), document
    assert re.search(r"\| Run time, TPP .*\| not run \| failed: 1 tpp crash \|", document), document
    assert "panicked" in (one_worker.out / "CRASH.html").read_text()


def test_what_was_recorded_is_played_as_the_guest_ran(one_worker: Evaluation) -> None:
    kept = [set(files) for files in one_worker.results().values()]
    assert kept.count({"accesses.bin"}) == 1 and kept.count({"sim.json"}) == REPLAYS
    document = (one_worker.out / "evaluation.md").read_text()
    assert re.search(r"\| Run time, replayed / live \| \d.* \| met \|", document), document


def test_the_example_of_a_peer_joins_what_was_run(one_worker: Evaluation, tmp_path: Path) -> None:
    """docs/peers.md: its row's one guest, beside what is there."""
    evaluation = Evaluation(tmp_path)
    shutil.copytree(one_worker.out, evaluation.out)
    before = set(evaluation.results())
    options = ("--only", "GUESTS", "--with", "example", "--system", "example")
    status, said = evaluation.run(*options, "--plan")
    assert status == 0 and "GUESTS 1 example gups\n" in said, said
    assert set(evaluation.results()) == before
    status, said = evaluation.run(*options)
    assert status == 0 and "1 runs, 0 of them done before" in said, said
    assert len(evaluation.results()) == len(before) + 1
    document = (evaluation.out / "evaluation.md").read_text()
    value = r"\| Run time, example / Demeter, geometric mean \| \d"
    assert re.search(value, document), document


def test_two_workers_interrupted_give_the_same_bits(one_worker: Evaluation, tmp_path: Path) -> None:
    evaluation = Evaluation(tmp_path)
    runs = evaluation.out / "runs"
    process = evaluation.start("--workers", "2")
    try:
        wait_until("a run is done", lambda: runs.is_dir() and any(runs.iterdir()), LIMIT_S)
        os.killpg(process.pid, signal.SIGINT)
        said, _ = process.communicate(timeout=60)
        assert process.returncode == 130, said
        assert said.endswith("interrupted; the same command goes on\n"), said
        # No guest and no worker is left behind.
        wait_until("its processes end", lambda: not of_session(process.pid), 20)
    finally:
        kill(process)
    done = len(evaluation.results())
    assert 0 < done < RUNS - CRASHES, "the interruption came too late to show anything"

    status, said = evaluation.run("--workers", "2")
    assert status == 1, said
    assert f"{RUNS} runs, {done} of them done before" in said, said
    assert evaluation.results() == one_worker.results()
    assert list((evaluation.out / "tmp").iterdir()) == []
    assert list(evaluation.temporary.glob("demeter-evaluation-*")) == []

    # Nothing is left to do, and nothing is done.
    before = {path: path.stat().st_mtime_ns for path in runs.rglob("*")}
    status, said = evaluation.run("--only", "GUESTS")
    assert status == 0, said
    assert "evaluation: 2 runs, 2 of them done before" in said, said
    assert {path: path.stat().st_mtime_ns for path in runs.rglob("*")} == before
