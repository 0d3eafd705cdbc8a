# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The search itself: the same seed and results give the same settings to try.

The row as it stands is the first candidate. Half of the others are a Latin hypercube
over the knobs (McKay, Beckman and Conover, 1979); the rest come in small generations
beside the best found so far. A candidate's cost is the geometric mean over the
workloads of its time by that of the row as it stands.
"""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random

from demeter_lab.tune.guests import Guests, Run
from demeter_lab.tune.space import Row, Setting, TuneError
from demeter_lab.workloads import Workload

#: Candidates of a generation beside the best: enough for two guests at a time.
GENERATION = 2
SEARCH_SEED = 1


@dataclass(frozen=True)
class Candidate:
    """A setting that was tried."""

    setting: Setting
    cost: float
    times_s: tuple[float | None, ...]


def hypercube(row: Row, count: int, random: Random) -> list[Setting]:
    """Return ``count`` settings that each cover every knob's range evenly."""
    columns = {}
    for knob in row.knobs:
        bounds = [at * len(knob.values) // count for at in range(count + 1)]
        column = [
            knob.values[random.randrange(low, max(low + 1, high))] for low, high in pairwise(bounds)
        ]
        random.shuffle(column)
        columns[knob.name] = column
    return [{name: column[at] for name, column in columns.items()} for at in range(count)]


def neighbour(row: Row, setting: Setting, random: Random) -> Setting:
    """Return a setting that differs by a step in one knob or two."""
    changed = dict(setting)
    for knob in random.sample(row.knobs, k=random.choice((1, 1, 2))):
        if knob.name not in changed:
            # As the row has it: where that lies among the values is not known here.
            changed[knob.name] = random.choice(knob.values)
            continue
        at = knob.values.index(changed[knob.name])
        steps = [step for step in (at - 1, at + 1) if 0 <= step < len(knob.values)]
        changed[knob.name] = knob.values[random.choice(steps)]
    return changed


def unseen(propose: Callable[[], Setting], seen: Sequence[Setting]) -> Setting | None:
    """Return the first proposal that is new; None when there seem to be no more."""
    for _ in range(200):
        setting = propose()
        if setting not in seen:
            return setting
    return None


def generation(
    row: Row, best: Setting, size: int, seen: Sequence[Setting], random: Random
) -> list[Setting]:
    """Return up to ``size`` new settings beside the best."""
    settings: list[Setting] = []
    for _ in range(size):
        new = unseen(lambda: neighbour(row, best, random), [*seen, *settings])
        if new is not None:
            settings.append(new)
    return settings


def cost_of(times_s: Sequence[float | None], reference_s: Sequence[float]) -> float:
    """Return the geometric mean of ratios; infinite where a run failed."""
    if any(time is None for time in times_s):
        return math.inf
    logs = [
        math.log(time / reference)
        for time, reference in zip(times_s, reference_s, strict=True)
        if time is not None
    ]
    return math.exp(statistics.fmean(logs))


def search(
    guests: Guests,
    workloads: Sequence[Workload],
    budget: int,
    seed: int,
    say: Callable[[str], None],
) -> list[Candidate]:
    """Return all candidates in the order they were tried.

    Args:
        guests: of the row that is tuned.
        workloads: each candidate runs all of them.
        budget: guests in all.
        seed: of the choice of candidates.
        say: told each candidate's outcome.

    Raises:
        TuneError: the budget is too small, or the row as it stands fails.

    """
    row = guests.row
    count = budget // len(workloads)
    if count < 2:
        least = 2 * len(workloads)
        raise TuneError(f"a budget of {budget} is no search; give at least {least}")
    tried: list[Candidate] = []

    def judge(settings: Sequence[Setting]) -> None:
        runs = [
            Run.of("search", setting, workload, SEARCH_SEED)
            for setting in settings
            for workload in workloads
        ]
        records = guests.run_all(runs)
        for at, setting in enumerate(settings):
            mine = records[at * len(workloads) : (at + 1) * len(workloads)]
            times = tuple(record["time_s"] for record in mine)
            if not tried and None in times:
                words = next(record["error"] for record in mine if record["error"])
                raise TuneError(f"{row.name} as it stands fails: {words}")
            reference = tried[0].times_s if tried else times
            cost = cost_of(times, [time for time in reference if time is not None])
            tried.append(Candidate(setting, cost, times))
            say(line_of(tried[-1]))

    judge([{}])
    seen: list[Setting] = [{}]
    random = Random(f"{seed} {row.name} hypercube")
    settings = []
    for setting in hypercube(row, count // 2, random):
        # Two of the points may be the same where knobs have few values.
        new = unseen(lambda point=setting: point, seen) or unseen(
            lambda point=setting: neighbour(row, point, random), seen
        )
        if new is not None:
            settings.append(new)
            seen.append(new)
    judge(settings)
    while len(tried) < count:
        random = Random(f"{seed} {row.name} {len(tried)}")
        size = min(GENERATION, count - len(tried))
        settings = generation(row, best_of(tried).setting, size, seen, random)
        seen += settings
        if not settings:
            say("all neighbours of the best were tried")
            break
        judge(settings)
    return tried


def line_of(candidate: Candidate) -> str:
    """Return a line that people read."""
    times = ", ".join("failed" if time is None else f"{time:.3f} s" for time in candidate.times_s)
    knobs = " ".join(f"{name}={value}" for name, value in candidate.setting.items())
    return f"{candidate.cost:8.4f}  {times}  {knobs or '(as it stands)'}"


def best_of(tried: Sequence[Candidate]) -> Candidate:
    """Return the cheapest; the earlier one of equals."""
    return min(tried, key=lambda candidate: candidate.cost)


def judge(
    guests: Guests, best: Setting, workloads: Sequence[Workload], seeds: Sequence[int]
) -> dict[str, dict[str, object]]:
    """Run the best setting and the row as it stands with seeds it was not tuned with.

    Returns:
        By workload: ratios of the times (best by as it stands), seed by seed, with
        their median and the number of pairs that failed.

    """
    pairs = [
        (workload, seed)
        for workload in workloads
        for seed in (seeds if workload.has_seed else seeds[:1])
    ]
    runs = [
        Run.of("judge", setting, workload, seed)
        for workload, seed in pairs
        for setting in ({}, best)
    ]
    records = guests.run_all(runs)
    outcome: dict[str, dict[str, object]] = {}
    for workload in workloads:
        ratios, failed = [], 0
        for at, (of, _) in enumerate(pairs):
            before, after = (record["time_s"] for record in records[2 * at : 2 * at + 2])
            if of is not workload:
                continue
            if before is None or after is None:
                failed += 1
            else:
                ratios.append(after / before)
        outcome[workload.name] = {
            "ratios": [round(ratio, 4) for ratio in ratios],
            "median": round(statistics.median(ratios), 4) if ratios else None,
            "failed": failed,
        }
    return outcome
