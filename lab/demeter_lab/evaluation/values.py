# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What the paper says beside what came of it here, and whether the check is met."""

import operator
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from demeter_lab.evaluation.measure import Measured
from demeter_lab.evaluation.measure import measured as measure
from demeter_lab.evaluation.records import Labels, Record, RecordError
from demeter_lab.evaluation.store import Store


def _geometric(numbers: Sequence[float]) -> float:
    """Return the geometric mean, which is 0 where one of them is."""
    return statistics.geometric_mean(numbers) if all(numbers) else 0.0


_MEANS: dict[str, Callable[[Sequence[float]], float]] = {
    "mean": statistics.fmean,
    "geometric": _geometric,
    "least": min,
    "most": max,
}
_BOUNDS: dict[str, Callable[[float, float], bool]] = {
    "above": operator.gt,
    "below": operator.lt,
    "at least": operator.ge,
    "at most": operator.le,
}
#: Label of what a manager may choose: of the kinds of pages the better one counts.
_VARIANT = "pages"
#: Rows in which nothing is meant to move.
_STILL = ("none", "fast", "ideal", "ideal-2m", "oracle")
#: States of a value; a record of which some values are not known is met in part.
MET, MISSED, TOLD, NOT_RUN = "met", "missed", "no check", "not run"
IN_PART = "in part"
_FIELDS = {
    "name", "metric", "of", "by", "by_mean", "mean", "scale", "unit", "from",
    "paper", "draft", "above", "below", "at_least", "at_most", "note",
}  # fmt: skip


@dataclass(frozen=True)
class Value:
    """One number of the paper, and ours."""

    record: str
    name: str
    unit: str
    paper: float | str | None
    draft: float | str | None
    ours: float | None
    #: Least and most of the pairs or runs that it is the mean of, and how many there were.
    spread: tuple[float, float] | None
    points: int
    state: str
    #: What is asked for, as text.
    wanted: str
    note: str
    #: Managers and workloads that it is about.
    about: frozenset[str] = frozenset()

    @property
    def ratio(self) -> float | None:
        """Ours by the paper's, where that is a number."""
        if self.ours is None or not isinstance(self.paper, int | float) or not self.paper:
            return None
        return self.ours / self.paper


@dataclass(frozen=True)
class Result:
    """A record with all that is known of it."""

    record: Record
    measured: list[Measured]
    values: list[Value]
    #: Reasons by what was to run.
    failures: dict[str, str]
    missing: int

    @property
    def better(self) -> bool:
        """Whether managers had a choice of pages."""
        return any(_VARIANT in run.labels for run in self.record.runs)

    @property
    def state(self) -> str:
        """What became of its checks."""
        states = {value.state for value in self.values}
        if MISSED in states or states == {NOT_RUN}:
            return MISSED if MISSED in states else NOT_RUN
        if NOT_RUN in states:
            return IN_PART
        return MET if MET in states else TOLD


def label_of(labels: Labels) -> str:
    """Return a point's name."""
    return " ".join(labels[key] for key in sorted(labels)) or "the run"


def results_of(records: Sequence[Record], store: Store, keys: Mapping[str, str]) -> list[Result]:
    """Return the results of all records.

    Args:
        records: as ``records.load`` returns them.
        store: of what was done.
        keys: of each run, by its digest.

    """
    done: dict[str, tuple[list[Measured], dict[str, str], int]] = {}
    for record in records:
        found, failures, missing = [], {}, 0
        for run in record.runs:
            key = keys.get(run.digest, "not planned")
            if (files := store.files(key)) is not None:
                found.append(measure(run, files))
            elif reason := store.failure(key):
                failures[label_of(run.labels)] = reason
            else:
                missing += 1
        done[record.id] = (better_of(found), failures, missing)
    results, known = [], {}
    for record in records:
        found, failures, missing = done[record.id]
        values = [value_of(record, spec, found, failures, missing, known) for spec in record.values]
        known |= {(record.id, value.name): value for value in values}
        results.append(Result(record, found, values, failures, missing))
    return results


def better_of(found: Sequence[Measured]) -> list[Measured]:
    """Return the points, of those that differ in the kind of pages alone the fastest."""
    best: dict[tuple[tuple[str, str], ...], Measured] = {}
    for one in found:
        point = _rest(one.labels, {_VARIANT})
        other = best.get(point)
        slower = other is not None and one.numbers.get("time_s", 0) >= other.numbers.get(
            "time_s", 0
        )
        if not slower:
            best[point] = replace(one, labels=dict(point))
    return list(best.values())


def value_of(
    record: Record,
    spec: Mapping,
    found: Sequence[Measured],
    failures: Mapping[str, str],
    missing: int,
    known: Mapping[tuple[str, str], Value],
) -> Value:
    """Return a value of a record from its runs, and from other records' values that are known.

    Raises:
        RecordError: it asks for what there is not.

    """
    if odd := set(spec) - _FIELDS:
        raise RecordError(
            f"{record.id}: a value has no {', '.join(sorted(odd))}; "
            f"it has {', '.join(sorted(_FIELDS))}"
        )
    other = spec.get("from")
    if other is not None:
        source = known.get((other["record"], other["name"]))
        if source is None:
            raise RecordError(
                f"{record.id}: {other['record']} has no value '{other['name']}' before it"
            )
        points = [] if source.ours is None else [source.ours]
        spec = {**spec, "note": spec.get("note", source.note)}
    else:
        points = _points(record, spec, found)
    planned = 0 if other is not None else len(_points(record, spec, _planned(record, spec)))
    ours = spread = None
    if points:
        scale = float(spec.get("scale", 1))
        mean = _MEANS[spec.get("mean", "geometric" if "by" in spec else "mean")]
        ours = scale * mean(points)
        spread = (scale * min(points), scale * max(points)) if len(points) > 1 else None
    bounds = [
        (word, spec[word.replace(" ", "_")]) for word in _BOUNDS if word.replace(" ", "_") in spec
    ]
    wanted = " and ".join(f"{word} {bound:g}" for word, bound in bounds)
    note = str(spec.get("note", ""))
    idle = sorted(name for name in _about(spec) if _moved_nothing(found, name))
    if ours is None:
        state, note = NOT_RUN, _why(record, spec, failures, missing)
    elif idle:
        # To beat one who did nothing is no more than to beat `none`.
        state, note = (
            TOLD,
            f"{', '.join(idle)} moved no page here: not checked; {note}".rstrip("; "),
        )
    elif 0 < len(points) < planned:
        # A mean over some workloads is not the mean over all of them.
        state, note = TOLD, f"only {len(points)} of {planned} points were run: not checked"
    elif not wanted:
        state = TOLD
    else:
        within = all(_BOUNDS[word](ours, bound) for word, bound in bounds)
        state = MET if within else MISSED
        if state == MISSED and not note:
            note = "not explained yet"
    return Value(
        record.id, spec["name"], spec.get("unit", ""), spec.get("paper"), spec.get("draft"),
        ours, spread, len(points), state, wanted, note, _about(spec),
    )  # fmt: skip


def _planned(record: Record, spec: Mapping) -> list[Measured]:
    """Return the record's points as if each had been run."""
    one = {spec["metric"]: 1.0}
    return better_of([Measured(run.labels, one) for run in record.runs])


def _moved_nothing(found: Sequence[Measured], system: str) -> bool:
    """Whether a manager that is there to move pages moved none in any run."""
    moved = [
        one.numbers["promoted_pages"] + one.numbers["demoted_pages"]
        for one in found
        if one.labels.get("system") == system and "promoted_pages" in one.numbers
    ]
    return system not in _STILL and bool(moved) and not any(moved)


def _about(spec: Mapping) -> frozenset[str]:
    """Return the names that it takes its runs by."""
    sides = (spec.get("of", {}), spec.get("by", {}))
    found = (side[key] for side in sides for key in ("system", "workload") if key in side)
    return frozenset(name for one in found for name in ([one] if isinstance(one, str) else one))


def _points(record: Record, spec: Mapping, found: Sequence[Measured]) -> list[float]:
    """Return what the mean is taken of: numbers, or ratios of those that differ in nothing else."""
    metric, of = spec["metric"], spec.get("of", {})
    above = [run for run in found if is_point(run.labels, of) and metric in run.numbers]
    if "by" not in spec:
        return [run.numbers[metric] for run in above]
    by = spec["by"]
    below = [run for run in found if is_point(run.labels, by) and metric in run.numbers]
    if how := spec.get("by_mean"):
        if not below or not above:
            return []
        base = _MEANS[how]([run.numbers[metric] for run in below])
        return [run.numbers[metric] / base for run in above if base]
    fixed = {*of, *by}
    bases = {_rest(run.labels, fixed): run.numbers[metric] for run in below}
    pairs = ((run.numbers[metric], bases.get(_rest(run.labels, fixed))) for run in above)
    return [value / base for value, base in pairs if base]


def is_point(labels: Labels, wanted: Mapping[str, object]) -> bool:
    """Whether a point is one of those; a list allows each of its values."""
    return all(
        labels.get(key)
        in ([str(one) for one in value] if isinstance(value, list) else [str(value)])
        for key, value in wanted.items()
    )


def _rest(labels: Labels, without: set[str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((key, value) for key, value in labels.items() if key not in without))


def _why(record: Record, spec: Mapping, failures: Mapping[str, str], missing: int) -> str:
    """Return why there is no number."""
    if "from" in spec:
        return f"{spec['from']['record']} has none"
    wanted = {spec.get(side, {}).get("system") for side in ("of", "by")}
    if absent := sorted(name for name in record.absent if name in wanted):
        return f"not implemented: {', '.join(absent)}"
    if failures:
        return "failed: " + "; ".join(sorted(failures))
    if missing:
        return "the runs were not made"
    return f"its runs do not tell {spec['metric']}"
