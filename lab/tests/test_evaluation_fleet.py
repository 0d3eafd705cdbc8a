# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Runs on two workers of Dask: the same bits, a worker that vanishes, an interruption."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from distributed import Client, LocalCluster

from demeter_lab.evaluation.execute import Outcome, Task, execute, task_of
from demeter_lab.evaluation.fleet import client_of, run_all
from demeter_lab.evaluation.records import ROOT, Run
from demeter_lab.evaluation.store import Store

#: A core test that is really built and run: what it says is the same wherever that is.
CORE = Run(
    "X",
    "text",
    ("sh", "-c", "cc -O2 -o {out} -x c - -lm <<'E' && {out}\n"
     "#include <math.h>\n#include <stdio.h>\n"
     "int main(void) { double s = 0; for (int i = 1; i < 3000000; i++) s += sin(i) / i; "
     'printf("sum=%.17g\\n", s); }\nE'),
    {},
    {"sum": r"sum=([\d.]+)"},
)  # fmt: skip


def task(script: str) -> Task:
    return task_of(Run("X", "text", ("sh", "-c", script), {}, {"n": r"n=(\d+)"}))


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with client_of(None, 2) as client:
        client.wait_for_workers(2)
        yield client


def silent(done: Task, outcome: Outcome) -> None:
    """Nobody is told."""


def test_a_run_is_the_same_bits_wherever_it_ran(client: Client) -> None:
    made = task_of(CORE)
    workers = list(client.scheduler_info()["workers"])
    assert len(workers) == 2
    futures = [client.submit(execute, made, workers=[one], pure=False) for one in workers]
    first, second = client.gather(futures)
    assert not first.failure and not second.failure
    assert first.files == second.files == execute(made).files


def test_what_is_done_is_not_done_again_and_a_failure_is(client: Client, tmp_path: Path) -> None:
    store, log = Store(tmp_path / "out"), tmp_path / "log"
    tasks = [task(f"echo {n} >> {log}; test -e {tmp_path}/ok-{n} && echo n={n}") for n in range(3)]
    (tmp_path / "ok-0").touch()
    (tmp_path / "ok-2").touch()
    assert run_all(client, tasks, store, silent) == 1
    assert store.failure(tasks[1].key) and store.files(tasks[2].key)
    (tmp_path / "ok-1").touch()
    assert run_all(client, tasks, store, silent) == 0
    assert run_all(client, tasks, store, silent) == 0
    assert sorted(log.read_text().split()) == ["0", "1", "1", "2"]
    assert store.failure(tasks[1].key) is None


def test_a_scheduler_of_somebody_else_is_used(client: Client, tmp_path: Path) -> None:
    store, made = Store(tmp_path), task("echo n=7")
    with client_of(client.scheduler.address, 1) as other:
        assert other.scheduler_info()["id"] == client.scheduler_info()["id"]
        assert run_all(other, [made], store, silent) == 0
    assert store.files(made.key) == {"lines.txt": b"n=7\n"}


def test_a_full_disk_is_a_failure_and_the_rest_goes_on(client: Client, tmp_path: Path) -> None:
    class Full(Store):
        def put(self, of: Task, outcome: Outcome) -> None:
            if outcome.files and of.key == tasks[0].key:
                raise OSError(28, "No space left on device")
            super().put(of, outcome)

    tasks = [task("echo n=1"), task("echo n=2")]
    store = Full(tmp_path)
    assert run_all(client, tasks, store, silent) == 1
    assert "No space left" in str(store.failure(tasks[0].key))
    assert store.files(tasks[1].key) == {"lines.txt": b"n=2\n"}


def test_a_scheduler_without_a_worker_is_told_and_waited_for(tmp_path: Path) -> None:
    with (
        LocalCluster(n_workers=0, threads_per_worker=1, dashboard_address="127.0.0.1:0") as cluster,
        client_of(cluster.scheduler_address, 1) as client,
    ):
        said: list[str] = []

        def warned(text: str) -> None:
            said.append(text)
            if len(said) == 2:
                cluster.scale(1)

        made = task("echo n=1")
        done = run_all(client, [made], Store(tmp_path), silent, warned=warned, patience_s=0.1)
        assert done == 0 and len(said) >= 2
        assert f"no worker is connected to {cluster.scheduler_address}; start one" in said[0]


def test_a_worker_that_vanishes_is_survived(client: Client, tmp_path: Path) -> None:
    store = Store(tmp_path / "out")
    # The first to try it kills its worker.
    deadly = task(f"mkdir {tmp_path}/tried && kill -9 $PPID; echo n=1")
    others = [task(f"sleep 0.{n}; echo n={n}") for n in range(1, 4)]
    assert run_all(client, [deadly, *others], store, silent) == 0
    assert (tmp_path / "tried").is_dir()
    assert all(store.files(one.key) for one in (deadly, *others))


def test_an_interruption_leaves_nothing_half_written(tmp_path: Path) -> None:
    script = f"""
from pathlib import Path
import sys
sys.path.insert(0, {str(ROOT / "lab/tests")!r})
from test_evaluation_fleet import client_of, run_all, silent, Store, task
if __name__ == "__main__":
    tasks = [task(f"echo x >> {tmp_path}/log; sleep 0.3; echo n={{n}}") for n in range(6)]
    with client_of(None, 1) as client:
        print(run_all(client, tasks, Store(Path({str(tmp_path / "out")!r})), silent), flush=True)
"""
    path = tmp_path / "evaluate.py"
    path.write_text(script)
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "lab")}
    words = [sys.executable, str(path)]
    first = subprocess.Popen(words, env=environment, start_new_session=True)
    runs = tmp_path / "out/runs"
    # Generous: the host may be busy.
    deadline = time.monotonic() + 300
    while not (runs.is_dir() and any(runs.iterdir())) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    done = len(list(runs.iterdir()))
    assert 0 < done < 6
    before = (tmp_path / "log").read_text().count("x")
    second = subprocess.run(
        words, env=environment, capture_output=True, text=True, timeout=300, check=True
    )
    assert second.stdout.strip() == "0"
    assert len(list(runs.iterdir())) == 6
    assert list((tmp_path / "out/tmp").iterdir()) == []
    # Only what had not been done was done.
    assert (tmp_path / "log").read_text().count("x") - before == 6 - done
