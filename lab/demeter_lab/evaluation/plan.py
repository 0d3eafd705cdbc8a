# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What would be run: how many guests each record asks for, shares with others, and has kept."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path

from demeter_lab.evaluation.execute import Task, task_of
from demeter_lab.evaluation.records import Record
from demeter_lab.evaluation.store import Store
from demeter_lab.evaluation.values import label_of
from demeter_lab.table import aligned


@dataclass(frozen=True)
class Choice:
    """Which of all runs are asked for."""

    #: Of the records that are asked for, in their order, the keys of their runs.
    records: dict[str, list[str]] = field(default_factory=dict)
    #: By key: two records may ask for one.
    tasks: dict[str, Task] = field(default_factory=dict)
    #: Of every run, asked for or not, by its digest.
    keys: dict[str, str] = field(default_factory=dict)


def chosen(
    every: Sequence[Record],
    only: Set[str],
    systems: Set[str] | None,
    limit_s: float,
) -> Choice:
    """Return the runs that are asked for.

    Args:
        every: all records.
        only: names of those that are asked for.
        systems: managers that are asked for; None for all. Runs of no manager always are.
        limit_s: what each run may take, in seconds of the host.

    """
    choice = Choice()
    for record in every:
        for run in record.in_turn:
            of_rows = systems is None or run.system is None or run.system in systems
            for one in filter(None, (run.needs, run)):
                task = task_of(one, limit_s=limit_s)
                choice.keys[one.digest] = task.key
                if record.id in only and of_rows:
                    choice.tasks.setdefault(task.key, task)
                    choice.records.setdefault(record.id, []).append(task.key)
    return choice


def text(choice: Choice, kept: Set[str], seconds: Sequence[float], workers: int) -> str:
    """Return what is not done yet, a line each but for replays, and how many guests that are.

    Args:
        choice: what is asked for.
        kept: keys of what was done.
        seconds: of the host, that guests took which were done.
        workers: how many guests run at a time.

    """
    todo = [task for key, task in choice.tasks.items() if key not in kept]
    lines = [
        f"{task.run.record} {label_of(task.run.labels)}" for task in todo if not task.run.needs
    ]
    replays = Counter(task.run.record for task in todo if task.run.needs)
    lines += [f"{record}: {count} replays" for record, count in replays.items()]
    lines += ["", table(choice, kept)]
    guests = sum(task.run.is_guest for task in todo)
    if guests and seconds:
        mean_s = sum(seconds) / len(seconds)
        hours = guests * mean_s / workers / 3600
        lines.append(
            f"{guests} guests to run, {workers} at a time: some {hours:.1f} hours, "
            f"by the {mean_s:.0f} s that {len(seconds)} took before"
        )
    return "\n".join(lines)


def table(choice: Choice, kept: Set[str]) -> str:
    """Return a line a record: its guests, those of an earlier record, those kept, those to run."""
    lines = [["record", "guests", "shared", "kept", "to run", "without a guest"]]
    seen: set[str] = set()
    for name, keys in choice.records.items():
        own = set(keys)
        guests = {key for key in own if choice.tasks[key].run.is_guest}
        lines.append(_line(name, guests, seen, kept, own - guests))
        seen |= own
    guests = {key for key in seen if choice.tasks[key].run.is_guest}
    lines.append(_line("all", guests, set(), kept, seen - guests))
    return aligned(lines)


def _line(
    name: str, guests: Set[str], seen: Set[str], kept: Set[str], others: Set[str]
) -> list[str]:
    counts = (guests, guests & seen, guests & kept, guests - kept - seen, others)
    return [name, *(str(len(count)) for count in counts)]


def kept_of(choice: Choice, out: Path) -> tuple[set[str], list[float]]:
    """Return keys of what was done, and the host's seconds of its guests; makes no folder."""
    if not out.is_dir():
        return set(), []
    store = Store(out)
    kept = {key for key in choice.tasks if store.files(key) is not None}
    return kept, list(_seconds(choice.tasks, kept, store))


def _seconds(tasks: Mapping[str, Task], kept: Set[str], store: Store) -> Iterable[float]:
    for key in kept:
        took = store.about(key).get("host_s")
        if tasks[key].run.is_guest and isinstance(took, int | float):
            yield float(took)
