# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What the paper says beside what came of it here, and whether the check is met."""

import math
import operator
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, replace

from demeter_lab.evaluation.measure import Measured
from demeter_lab.evaluation.measure import measured as measure
from demeter_lab.evaluation.records import Labels, Record, RecordError, Run
from demeter_lab.evaluation.store import Store
from demeter_lab.results import ResultError


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
#: Labels of what a manager may choose: of all kinds of pages and tunings the best run counts.
_CHOICES = frozenset({"pages", "tuning"})
#: Rows in which nothing is meant to move.
_STILL = ("none", "fast", "ideal", "ideal-2m", "oracle")
#: What is compared; where it moves nothing it may well lose by that.
_OURS = "demeter"
#: What a move costs is not known of one who moved nothing; any other number would be there.
_OF_A_MOVE = "migrate_us_per_page"
#: Who has moved fewer pages than this part of FMEM's has moved none.
_NOTHING = 0.01
#: States of a value; a record of which some values are not known is met in part.
MET, MISSED, TOLD, NOT_RUN = "met", "missed", "no check", "not run"
IN_PART = "in part"
#: ``of_least``: the mean is taken for each value of this axis, and the least of them counts, as
#: for the next best of several managers. ``by_least``: what each point is divided by is the least
#: over this axis. ``from``: another record's value, and ``over``: by that one. ``missed``: why, in
#: that case, or a table of that by which of several it is; ``note``: a remark in any case, which
#: explains nothing.
_FIELDS = {
    "name", "metric", "of", "of_least", "by", "by_mean", "by_least", "mean", "scale", "unit",
    "from", "over", "paper", "paper_says", "draft", "above", "below", "at_least", "at_most", "note",
    "missed",
}  # fmt: skip


@dataclass(frozen=True)
class Point:
    """One of the numbers that a value is made of; infinite where a rival did none of it."""

    number: float
    #: Which one it is, in the report.
    name: str
    #: How many runs it is made of or was chosen from.
    runs: int = 1
    #: How many of these say nothing more than that somebody did none of it, and who.
    idle_runs: int = 0
    idle: frozenset[str] = frozenset()


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
    #: The paper's in its own words, where it gives a bound and no number.
    paper_says: str | None = None
    #: Why it is not to be held against anything, though there is a number.
    unchecked: str = ""
    #: Which of several managers or points it is.
    chosen: str = ""
    #: What its record says of it whatever came of it, also where another value is made of it.
    told: str = ""
    #: Why it would say nothing that what is asked for holds; that it does not hold says enough.
    hollow: str = ""
    #: Why there is no number though all was run: what it is divided by is nothing.
    endless: str = ""

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
        """Whether managers had a choice of pages or tunings."""
        return any(_CHOICES & set(run.labels) for run in self.record.runs)

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
                # One that cannot be understood is told, and the rest is shown.
                try:
                    found.append(measure(run, files))
                except ResultError as error:
                    failures[label_of(run.labels)] = f"{error}: {store.place(key)}"
            elif reason := store.failure(key) or _failure_of_record(run, store, keys):
                failures[label_of(run.labels)] = reason
            else:
                missing += 1
        done[record.id] = (better_of(found, record.chosen_by), failures, missing)
    results: list[Result] = []
    known: dict[tuple[str, str], Value] = {}
    for record in records:
        found, failures, missing = done[record.id]
        values = []
        for spec in record.values:
            with understood(record, spec):
                value = value_of(record, spec, found, failures, missing, known)
            values.append(value)
            known[record.id, value.name] = value
        results.append(Result(record, found, values, failures, missing))
    return results


@contextmanager
def understood(record: Record, spec: Mapping) -> Iterator[None]:
    """Name the value or figure of a record that is not of its form.

    Raises:
        RecordError: in place of what its fields led to.

    """
    try:
        yield
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        name = spec.get("name") or spec.get("title") or "one without a name"
        what = f"lacks {error}" if isinstance(error, KeyError) else str(error)
        raise RecordError(
            f"{record.id}: '{name}' {what}; see Records in docs/evaluation-records.md"
        ) from None


def _failure_of_record(run: Run, store: Store, keys: Mapping[str, str]) -> str | None:
    """Return why what a replay needs was not recorded."""
    key = None if run.needs is None else keys.get(run.needs.digest)
    reason = None if key is None else store.failure(key)
    return None if reason is None else f"its record: {reason}"


def better_of(found: Sequence[Measured], chosen_by: str = "time_s") -> list[Measured]:
    """Return the points, of those that differ in what a manager may choose the best.

    Args:
        found: all points.
        chosen_by: the number of which the least is the best.

    """
    choices: dict[tuple[tuple[str, str], ...], list[Measured]] = {}
    for one in found:
        choices.setdefault(_rest(one.labels, _CHOICES), []).append(one)
    best = []
    for point, choice in choices.items():
        one = min(choice, key=lambda one: one.numbers.get(chosen_by, 0))
        way = " ".join(one.labels[key] for key in sorted(_CHOICES & set(one.labels)))
        best.append(replace(one, labels=dict(point), chosen_from=len(choice), way=way))
    return best


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
    record, found = _without_added(record, spec, found)
    told, unchecked, hollow, chosen = str(spec.get("note", "")), "", "", ""
    endless, handed = "", None
    ours, spread, count = None, None, 0
    if "from" in spec:
        source = _known(record, spec["from"], known)
        ours, spread, count = source.ours, source.spread, source.points
        told = told or source.told
        unchecked, hollow, chosen = source.unchecked, source.hollow, source.chosen
        endless, handed = source.endless, source
        if "over" in spec:
            other = _known(record, spec["over"], known)
            ours = ours / other.ours if ours is not None and other.ours else None
            spread, count = None, count + other.points
            unchecked = "; ".join(filter(None, (unchecked, other.unchecked)))
            hollow = "; ".join(filter(None, (hollow, other.hollow)))
            endless = _endless_over(source, other)
            if other.endless:
                handed, unchecked = None, "not to be divided by: not checked"
    elif every := _groups(record, spec, found):
        groups = _telling(spec, every)
        least, mean = _least(spec, groups)
        if math.isinf(mean):
            endless = _endless(record, spec, every)
            # What was not run could be what the value is of.
            groups = groups if endless else _finite(every)
            least, mean = _least(spec, groups) if groups else ("", mean)
        if groups:
            chosen = ", ".join(filter(None, (least, _extreme(spec, groups[least]))))
        if endless:
            unchecked = _neither(spec, found)
        elif groups:
            scale = float(spec.get("scale", 1))
            numbers = [scale * point.number for point in groups[least]]
            ours, count = scale * mean, len(numbers)
            spread = (min(numbers), max(numbers)) if count > 1 else None
            unchecked = _unchecked(record, spec, every)
            hollow = _hollow(record, spec, found)
    bounds = [
        (word, spec[word.replace(" ", "_")]) for word in _BOUNDS if word.replace(" ", "_") in spec
    ]
    holds = ours is not None and all(_BOUNDS[word](ours, bound) for word, bound in bounds)
    wanted = " and ".join(f"{word} {bound:g}" for word, bound in bounds)
    said = [chosen, unchecked, hollow, told]
    if hollow and wanted and holds:
        said[2] = f"{hollow}: not checked"
    if endless:
        state, said = _of_endless(
            spec, [word for word, _ in bounds], handed, [endless, chosen, unchecked, told]
        )
    elif ours is None:
        state, said = NOT_RUN, [_why(record, spec, failures, missing)]
    elif unchecked or not wanted or (hollow and holds):
        state = TOLD
    elif holds:
        state = MET
        said.append(_less_than_published(spec, ours, [word for word, _ in bounds]))
    else:
        # What is said of a number in any case does not explain that it is missed.
        state = MISSED
        said.append(_explained(spec, chosen) or "not explained yet")
    note = "; ".join(filter(None, said))
    return Value(
        record.id, spec["name"], spec.get("unit", ""), spec.get("paper"), spec.get("draft"),
        ours, spread, count, state, wanted, note, _about(spec), spec.get("paper_says"), unchecked,
        chosen, told, hollow, endless,
    )  # fmt: skip


def _known(record: Record, other: Mapping, known: Mapping[tuple[str, str], Value]) -> Value:
    """Return another record's value."""
    if (source := known.get((other["record"], other["name"]))) is None:
        raise RecordError(
            f"{record.id}: {other['record']} has no value '{other['name']}' before it"
        )
    return source


def _explained(spec: Mapping, chosen: str) -> str:
    """Return why a value is missed: what explains one manager's number explains no other's."""
    why = spec.get("missed", "")
    return str(why.get(chosen, "")) if isinstance(why, Mapping) else str(why)


def _less_than_published(spec: Mapping, ours: float, words: Sequence[str]) -> str:
    """Return a remark where what is asked for is the order, and the paper has more than that."""
    paper = spec.get("paper")
    # Bounds on both sides are about the number itself.
    if not isinstance(paper, int | float) or len(words) > 1:
        return ""
    more = {"at least", "above"} & set(words) and ours < paper
    less = {"at most", "below"} & set(words) and ours > paper
    return "the order holds, the paper's number is not reached" if more or less else ""


def _without_added(
    record: Record, spec: Mapping, found: Sequence[Measured]
) -> tuple[Record, Sequence[Measured]]:
    """Return the record and its points less the rows that it was not made for, if unnamed."""
    hidden = set(record.added) - {name for names in _rows(spec) for name in names}
    if not hidden:
        return record, found
    runs = tuple(run for run in record.runs if run.system not in hidden)
    return replace(record, runs=runs), [
        one for one in found if one.labels.get("system") not in hidden
    ]


def _hollow(record: Record, spec: Mapping, found: Sequence[Measured]) -> str:
    """Return why to be ahead says nothing, or nothing."""
    # To beat one who did nothing is no more than to beat `none`. Of several the best counts, so
    # that those who did nothing make it only harder, unless all are of that kind.
    sides = [
        (names, [one for one in found if is_point(one.labels, of)])
        for names, of in _sides(spec, found)
    ]
    idle = {
        name
        for names, points in sides
        if names and all(_moved_nothing(points, name) for name in names)
        for name in names
    }
    if idle:
        return f"{', '.join(sorted(idle))} moved next to no page here"
    if odd := {
        name for names, _ in sides if names and set(names) <= record.unlike for name in names
    }:
        named = ", ".join(sorted(odd))
        return f"{named} does not behave as published (docs/results/peers.md)"
    return ""


def _unchecked(record: Record, spec: Mapping, groups: Mapping[str, Sequence[Point]]) -> str:
    """Return why a number is not to be checked, or nothing."""
    if absent := _absent(record, spec):
        return f"without {', '.join(absent)}, not implemented: not checked"
    # A mean over some workloads is not the mean over all of them.
    planned, done = _runs(_groups(record, spec, _planned(record, spec))), _runs(groups)
    if 0 < done < planned:
        return f"only {done} of {planned} runs were made: not checked"
    if idle := sum(point.idle_runs for group in groups.values() for point in group):
        named = ", ".join(sorted(_idle(groups)))
        return f"of {done - idle} of {done} runs, as {named} did none of it in others: not checked"
    return ""


def _finite(groups: Mapping[str, Sequence[Point]]) -> dict[str, list[Point]]:
    """Return the groups less those ratios that are infinite."""
    finite = {
        name: [point for point in points if math.isfinite(point.number)]
        for name, points in groups.items()
    }
    return {name: points for name, points in finite.items() if points}


def _telling(spec: Mapping, groups: Mapping[str, Sequence[Point]]) -> dict[str, Sequence[Point]]:
    """Return of each group what its mean is told of: the finite ones, if there are."""
    if spec.get("mean") == "most":
        # Where one is infinite, so is the most of them.
        return dict(groups)
    return {**groups, **_finite(groups)}


def _least(spec: Mapping, groups: Mapping[str, Sequence[Point]]) -> tuple[str, float]:
    """Return which group has the least mean, and that."""
    mean = _MEANS[spec.get("mean", "geometric" if "by" in spec else "mean")]
    means = {
        name: mean(numbers) if all(map(math.isfinite, numbers)) else math.inf
        for name, points in groups.items()
        for numbers in [[point.number for point in points]]
    }
    least = min(means, key=lambda name: (means[name], name))
    return least, means[least]


def _endless(record: Record, spec: Mapping, groups: Mapping[str, Sequence[Point]]) -> str:
    """Return why a value is infinite, or nothing where not all was run that it is of."""
    if _absent(record, spec):
        return ""
    if _runs(groups) < _runs(_groups(record, spec, _planned(record, spec))):
        return ""
    return f"{', '.join(sorted(_idle(groups, whole=True)))} did none of it here"


def _neither(spec: Mapping, found: Sequence[Measured]) -> str:
    """Return why an infinite value is not to be checked: who is divided did none of it either."""
    metric, of = spec["metric"], spec.get("of", {})
    did = any(one.numbers.get(metric) for one in found if is_point(one.labels, of))
    return "" if did else "nor did who is divided: not checked"


def _idle(groups: Mapping[str, Sequence[Point]], whole: bool = False) -> set[str]:
    """Return who did none of what others are divided by; ``whole``: in all runs of a point."""
    return {
        name
        for points in groups.values()
        for point in points
        if not whole or math.isinf(point.number)
        for name in point.idle
    }


def _endless_over(source: Value, other: Value) -> str:
    """Return why there is no ratio of two values though both are known, or nothing."""
    if any(value.ours is None and not value.endless for value in (source, other)):
        return ""
    return "; ".join(dict.fromkeys(filter(None, (source.endless, other.endless))))


def _of_endless(
    spec: Mapping, words: Sequence[str], handed: Value | None, said: list[str]
) -> tuple[str, list[str]]:
    """Return the state of a value that is infinite, and what is said of it.

    Args:
        spec: the value's.
        words: of its bounds.
        handed: the value that it is made from, if it is infinite as that one is.
        said: who did none of it, which one it is, why it is not checked, and its note.

    """
    if handed is not None and not words:
        return handed.state, [handed.note]
    _, chosen, unchecked, _ = said
    if unchecked or not {"at most", "below"} & set(words):
        return TOLD, said
    if why := _explained(spec, chosen):
        return MISSED, [*said, why]
    if handed is not None and handed.state == MISSED:
        # It is missed as that one is, whatever the bound.
        return MISSED, [handed.note]
    return MISSED, [*said, "not explained yet"]


def _did_none(metric: str, one: Measured) -> bool:
    """Whether a rival did none of it; of a row of ours, or a still one, that is no finding."""
    if one.labels.get("system", _OURS) in (*_STILL, _OURS):
        return False
    if metric in one.numbers:
        return not one.numbers[metric]
    return metric == _OF_A_MOVE and one.numbers.get("moved_pages") == 0


def _runs(groups: Mapping[str, Sequence[Point]]) -> int:
    return sum(point.runs for group in groups.values() for point in group)


def _extreme(spec: Mapping, points: Sequence[Point]) -> str:
    """Return which of the points a least or a most is."""
    how = {"least": min, "most": max}.get(str(spec.get("mean", "")))
    return "" if how is None or len(points) < 2 else how(points, key=lambda one: one.number).name


def _planned(record: Record, spec: Mapping) -> list[Measured]:
    """Return the record's points as if each had been run."""
    one = {spec["metric"]: 1.0}
    return better_of([Measured(run.labels, one) for run in record.runs])


def _moved_nothing(found: Sequence[Measured], system: str) -> bool:
    """Whether a manager that is there to move pages moved next to none in any of these runs."""
    moved = [
        one.numbers["moved_pages"] >= max(1, _NOTHING * one.numbers.get("fmem_pages", 0))
        for one in found
        if one.labels.get("system") == system and "moved_pages" in one.numbers
    ]
    return system not in (*_STILL, _OURS) and bool(moved) and not any(moved)


def _sides(spec: Mapping, found: Sequence[Measured]) -> list[tuple[list[str], Mapping]]:
    """Return of either side of a ratio the managers, and which points it is made of."""
    sides = []
    for of in (spec.get("of", {}), spec.get("by", {})):
        names = of.get("system", [])
        if "metric" in spec and of and not names:
            points = (one.labels.get("system") for one in found if is_point(one.labels, of))
            names = sorted({name for name in points if name is not None})
        sides.append(([names] if isinstance(names, str) else names, of))
    return sides


def _about(spec: Mapping) -> frozenset[str]:
    """Return the names that it takes its runs by."""
    sides = (spec.get("of", {}), spec.get("by", {}))
    found = (side[key] for side in sides for key in ("system", "workload") if key in side)
    return frozenset(name for one in found for name in ([one] if isinstance(one, str) else one))


def _groups(record: Record, spec: Mapping, found: Sequence[Measured]) -> dict[str, list[Point]]:
    """Return what means are taken of, by the value of ``of_least``; one group without it."""
    axis = spec.get("of_least")
    if axis is None:
        points = _points(spec, spec.get("of", {}), found)
        if spec.get("mean") in ("least", "most"):
            # One lucky seed is no workload.
            named: dict[str, list[Point]] = {}
            for point in points:
                named.setdefault(point.name, []).append(point)
            points = [_of_seeds(group) for group in named.values()]
        return {"": points} if points else {}
    names = spec.get("of", {}).get(axis)
    if not isinstance(names, list):
        raise RecordError(f"{record.id}: of_least asks for a list of {axis} in `of`")
    groups = {name: _points(spec, {**spec["of"], axis: name}, found) for name in names}
    return {name: points for name, points in groups.items() if points}


def _points(spec: Mapping, of: Mapping, found: Sequence[Measured]) -> list[Point]:
    """Return numbers, or ratios of those that differ in nothing else."""
    metric = spec["metric"]
    above = [run for run in found if is_point(run.labels, of) and metric in run.numbers]
    if "by" not in spec:
        return [
            Point(run.numbers[metric], _point_name(run.labels, of), run.chosen_from)
            for run in above
        ]
    by, axis = spec["by"], spec.get("by_least")
    below = [
        run
        for run in found
        if is_point(run.labels, by) and (metric in run.numbers or _did_none(metric, run))
    ]
    if how := spec.get("by_mean"):
        return _by_mean(metric, of, above, below, _MEANS[how])
    fixed = {*of, *by}
    bases: dict[tuple[tuple[str, str], ...], list[Measured]] = {}
    for run in below:
        bases.setdefault(_rest(run.labels, fixed), []).append(run)
    # By what is measured, and by what against.
    points: dict[tuple[str, str], list[Point]] = {}
    for run in above:
        others = bases.get(_rest(run.labels, fixed), [])
        for base in others if axis is not None else others[-1:]:
            other = "" if axis is None else base.labels[axis]
            measured = _point_name(run.labels, of)
            name = " by ".join(filter(None, (measured, other)))
            runs = run.chosen_from + base.chosen_from
            if _did_none(metric, base):
                point = _infinite(name, runs, [base])
            elif base.numbers[metric]:
                point = Point(run.numbers[metric] / base.numbers[metric], name, runs)
            else:
                continue
            points.setdefault((measured, other), []).append(point)
    if axis is None:
        return [point for of_name in points.values() for point in of_name]
    return _against_least(points)


def _infinite(name: str, runs: int, bases: Sequence[Measured]) -> Point:
    """Return the ratio by those who did none of it."""
    return Point(math.inf, name, runs, runs, frozenset(one.labels["system"] for one in bases))


def _by_mean(
    metric: str,
    of: Mapping,
    above: Sequence[Measured],
    below: Sequence[Measured],
    mean: Callable[[Sequence[float]], float],
) -> list[Point]:
    """Return numbers by the mean of all those of the same workload and seed."""
    alike: dict[tuple[str | None, ...], list[Measured]] = {}
    for run in below:
        alike.setdefault(_alike(run.labels), []).append(run)
    points = []
    for run in above:
        others = alike.get(_alike(run.labels), [])
        known = [other.numbers[metric] for other in others if metric in other.numbers]
        base = mean(known) if known else 0.0
        runs = run.chosen_from + sum(other.chosen_from for other in others)
        name = _point_name(run.labels, of)
        if base:
            points.append(Point(run.numbers[metric] / base, name, runs))
        elif others and all(_did_none(metric, other) for other in others):
            points.append(_infinite(name, runs, others))
    return points


def _alike(labels: Labels) -> tuple[str | None, ...]:
    return tuple(labels.get(axis) for axis in ("workload", "seed"))


def _of_seeds(points: Sequence[Point]) -> Point:
    """Return the mean of points that differ in the seed alone, of the finite ones if there are."""
    finite = [point.number for point in points if math.isfinite(point.number)]
    return Point(
        _geometric(finite) if finite else math.inf,
        points[0].name,
        sum(point.runs for point in points),
        sum(point.idle_runs for point in points),
        frozenset(name for point in points for name in point.idle),
    )


def _against_least(points: Mapping[tuple[str, str], Sequence[Point]]) -> list[Point]:
    """Return of each workload the ratio to what was least there, over all seeds."""
    largest: dict[str, Point] = {}
    for (workload, _), group in points.items():
        one = _of_seeds(group)
        other = largest.get(workload)
        if other is None:
            largest[workload] = one
            continue
        best = one if one.number > other.number else other
        # Of several who did none of it each is the least.
        named = [
            each
            for each in (one, other)
            if math.isfinite(best.number) or each.number == best.number
        ]
        largest[workload] = replace(
            best,
            runs=one.runs + other.runs,
            idle_runs=one.idle_runs + other.idle_runs,
            idle=frozenset(name for each in named for name in each.idle),
        )
    # Nothing is known of the others where one is infinite.
    return [
        point if math.isfinite(point.number) else replace(point, idle_runs=point.runs)
        for point in largest.values()
    ]


def _point_name(labels: Labels, of: Mapping) -> str:
    """Return what a point is called among the others of a value."""
    fixed = {key for key, value in of.items() if not isinstance(value, list)}
    return label_of({key: value for key, value in labels.items() if key not in {*fixed, "seed"}})


def is_point(labels: Labels, wanted: Mapping[str, object]) -> bool:
    """Whether a point is one of those; a list allows each of its values."""
    return all(
        labels.get(key)
        in ([str(one) for one in value] if isinstance(value, list) else [str(value)])
        for key, value in wanted.items()
    )


def _rest(labels: Labels, without: Set[str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((key, value) for key, value in labels.items() if key not in without))


def _absent(record: Record, spec: Mapping) -> list[str]:
    """Return the managers that it asks for and that are not implemented."""
    wanted = {name for names in _rows(spec) for name in names}
    return sorted(wanted & set(record.absent))


def _rows(spec: Mapping) -> list[list[str]]:
    """Return the managers of either side of a ratio."""
    sides = (spec.get(side, {}).get("system", []) for side in ("of", "by"))
    return [[names] if isinstance(names, str) else names for names in sides]


def _why(record: Record, spec: Mapping, failures: Mapping[str, str], missing: int) -> str:
    """Return why there is no number."""
    if "from" in spec:
        return f"{spec['from']['record']} has none"
    if absent := _absent(record, spec):
        return f"not implemented: {', '.join(absent)}"
    if failures:
        return "failed: " + "; ".join(sorted(failures))
    if missing:
        return "the runs were not made"
    if not any(is_point(run.labels, spec.get("of", {})) for run in record.runs):
        return f"no run has {label_of(spec.get('of', {}))}"
    return f"its runs do not tell {spec['metric']}"
