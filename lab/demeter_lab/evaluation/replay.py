# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Recorded accesses, played under other parameters: here, as that takes less than sending them."""

import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from demeter_lab.evaluation.execute import ACCESSES, Outcome, Task, execute, stop
from demeter_lab.evaluation.records import ROOT
from demeter_lab.evaluation.store import Store


def record_of(task: Task) -> str:
    """Return the key of the guest whose accesses a replay needs."""
    return task.inputs[ACCESSES]


def play_all(
    tasks: Sequence[Task],
    store: Store,
    workers: int,
    told: Callable[[Task, Outcome], None],
    root: Path = ROOT,
) -> tuple[int, int]:
    """Play what has not been played; return how many failed, and how many have no record.

    What was recorded is looked at once, as it may be large: one that is damaged is no record.
    """
    there = {key for key in map(record_of, tasks) if store.files(key) is not None}
    todo = [task for task in tasks if record_of(task) in there]
    failed = 0
    # Polars has a handler of its own, after which a thread that waits would wait on.
    signal.siginterrupt(signal.SIGINT, True)
    pool = ThreadPoolExecutor(workers)
    try:
        futures = {
            pool.submit(execute, task, root, store.place(record_of(task))): task for task in todo
        }
        for future in as_completed(futures):
            task = futures[future]
            outcome = store.put_or_note(task, future.result())
            failed += bool(outcome.failure)
            told(task, outcome)
    finally:
        # Interrupted, it ends what is being played.
        pool.shutdown(wait=False, cancel_futures=True)
        stop()
        pool.shutdown()
    return failed, len(tasks) - len(todo)
