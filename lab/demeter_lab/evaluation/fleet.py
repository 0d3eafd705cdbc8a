# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Runs scaled out by Dask: over this machine's processors, or over those of a scheduler.

A worker of another machine is started in a checkout of the same commit that is built, with the
same cache: ``PYTHONPATH=lab dask worker ADDRESS --nthreads 1``. It sends back what is kept of
a run; nothing is shared but the network.
"""

import os
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import dask
from distributed import Client, LocalCluster, as_completed

from demeter_lab.evaluation.execute import Outcome, Task, execute
from demeter_lab.evaluation.store import Store
from demeter_lab.results import ResultError

#: What Dask looks at all the time, of tasks that wait for a guest: a tenth of a processor.
_UNWATCHED = {
    "distributed.worker.profile.enabled": False,
    "distributed.admin.system-monitor.gil.enabled": False,
    "distributed.admin.tick.interval": "500ms",
}


def default_workers() -> int:
    """Return how many guests this machine runs at a time: one a processor that we may use.

    An emulated guest keeps one processor busy, and its results do not depend on how busy.
    """
    return len(os.sched_getaffinity(0))


@contextmanager
def client_of(scheduler: str | None, workers: int) -> Iterator[Client]:
    """Connect to a scheduler, or start workers here."""
    if scheduler:
        try:
            connected = Client(scheduler)
        except ValueError as error:
            raise ResultError(
                f"'{scheduler}' is no address of a scheduler ({error}); give HOST:PORT"
            ) from None
        with connected as client:
            yield client
        return
    with (
        dask.config.set(_UNWATCHED),
        LocalCluster(
            n_workers=workers, threads_per_worker=1, memory_limit=0, dashboard_address="127.0.0.1:0"
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


def run_all(
    client: Client,
    tasks: Sequence[Task],
    store: Store,
    told: Callable[[Task, Outcome], None],
    work: Callable[[Task], Outcome] = execute,
    *,
    warned: Callable[[str], None] = print,
    patience_s: float = 30.0,
) -> int:
    """Do what has not been done; return how many failed.

    A task whose worker vanishes is given to another one; after Dask's number of attempts
    (``distributed.scheduler.allowed-failures``) it has failed. While no worker is there it waits
    for one, and says so after ``patience_s`` and then ever more rarely.
    """
    todo = {task.key: task for task in tasks if store.files(task.key) is None}
    # A key of its own for each call: a scheduler that still has the failure of an earlier one
    # would answer with that.
    call = uuid.uuid4().hex
    futures = {
        client.submit(work, task, key=f"run-{key}-{call}", pure=False): task
        for key, task in todo.items()
    }
    failed = 0
    with _minded(client, warned, patience_s):
        for future in as_completed(list(futures)):
            task = futures.pop(future)
            try:
                outcome = future.result()
            except Exception as error:
                # Whatever became of it, the rest goes on.
                outcome = Outcome(task.key, failure=f"{type(error).__name__}: {error}")
            future.release()
            outcome = store.put_or_note(task, outcome)
            failed += bool(outcome.failure)
            told(task, outcome)
    return failed


@contextmanager
def _minded(client: Client, warned: Callable[[str], None], patience_s: float) -> Iterator[None]:
    """Say meanwhile that there is no worker: a scheduler alone would be waited for in silence."""
    done = threading.Event()

    def mind() -> None:
        wait_s = patience_s
        while not done.wait(wait_s):
            # A scheduler that does not answer is no news of its workers.
            with suppress(OSError):
                if client.scheduler_info()["workers"]:
                    wait_s = patience_s
                    continue
                address = client.scheduler.address
                warned(
                    f"no worker is connected to {address}; start one where this commit is built: "
                    f"PYTHONPATH=lab dask worker {address} --nthreads 1"
                )
            wait_s *= 2

    thread = threading.Thread(target=mind, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        # One that asks a scheduler which does not answer may be left behind.
        thread.join(5)
