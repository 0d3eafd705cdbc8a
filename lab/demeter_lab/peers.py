# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Does TPP as a module do what is published of TPP? From the runs of ``experiments/peers.sh``."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from demeter_lab.results import ResultError, read_series, throughput
from demeter_lab.table import aligned

#: Parts of equal modelled time that a run is looked at in.
PARTS = 20


@dataclass(frozen=True)
class Run:
    """What one guest came to; times modelled."""

    rates: list[float]
    promoted_pages: int
    hint_faults: int
    repeated_faults: int
    stage_ns: dict[str, int]
    time_s: float

    @property
    def whole(self) -> float:
        """Work per second, over all of it."""
        return sum(self.rates) / len(self.rates)

    @property
    def last(self) -> float:
        """Work per second in the last quarter of the time."""
        quarter = self.rates[-len(self.rates) // 4 :]
        return sum(quarter) / len(quarter)

    @property
    def tracking_ns(self) -> float:
        """What a hint fault took, scans shared out among them; too much by what measuring costs."""
        return self.stage_ns.get("track", 0) / max(self.hint_faults, 1)

    @property
    def worst(self) -> float:
        """Work per second of the slowest part."""
        return min(self.rates)


#: Runs by experiment and row.
Runs = dict[str, dict[str, Run]]


@dataclass(frozen=True)
class Claim:
    """Something published, and what it is here."""

    text: str
    published: str
    of: Callable[[Runs], float]
    holds: Callable[[float], bool]


def _migration_share(run: Run) -> float:
    moved = run.stage_ns.get("migrate", 0)
    return moved / max(sum(run.stage_ns.values()), 1)


CLAIMS = (
    Claim(
        "hot set fits: while pages move, slower than none (slowest part / none)",
        "below 1",
        lambda runs: runs["fits"]["tpp"].worst / runs["fits"]["none"].whole,
        lambda ratio: ratio < 1,
    ),
    Claim(
        "hot set fits: faster than none when it is stable (last quarter / none)",
        "above 1",
        lambda runs: runs["fits"]["tpp"].last / runs["fits"]["none"].last,
        lambda ratio: ratio > 1,
    ),
    Claim(
        "hot set exceeds FMEM: slower than none to the end (last quarter / none)",
        "below 1",
        lambda runs: runs["exceeds"]["tpp"].last / runs["exceeds"]["none"].last,
        lambda ratio: ratio < 1,
    ),
    Claim(
        "hot set exceeds FMEM: every page moves again and again (promotions / pages)",
        "above 1",
        lambda runs: runs["exceeds"]["tpp"].promoted_pages / HOT_PAGES["exceeds"],
        lambda ratio: ratio > 1,
    ),
    Claim(
        "faults and tracking, of the manager's own time",
        "about half",
        lambda runs: 1 - _migration_share(runs["fits"]["tpp-stages"]),
        lambda share: 0.25 < share < 0.75,
    ),
)

#: 4 KiB pages of the hot set, by experiment: as in ``experiments/peers.sh``.
HOT_PAGES = {"fits": (16 << 20) // 4096, "exceeds": (60 << 20) // 4096}


def read_run(directory: Path) -> Run:
    """Return the figures of one results directory.

    Raises:
        ResultError: something is missing or is not of its form.

    """
    path = directory / "summary.json"
    try:
        summary = json.loads(path.read_text())
        files = summary["manager_files"]
        return Run(
            rates=throughput(read_series(directory / "series.jsonl"), PARTS)[
                "per_second"
            ].to_list(),
            promoted_pages=summary["promoted_pages"],
            hint_faults=int(files.get("stats/hint_faults", 0)),
            repeated_faults=int(files.get("stats/repeat_faults", 0)),
            stage_ns=summary["stage_ns"],
            time_s=summary["whole"]["time_s"],
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ResultError(f"{path}: {error}; run lab/experiments/peers.sh again") from None


def read_runs(out: Path) -> Runs:
    """Return all runs below ``out``, by experiment and row.

    Raises:
        ResultError: there are none, or one cannot be used.

    """
    runs: Runs = {}
    for path in sorted(out.glob("*/*/summary.json")):
        run = path.parent
        runs.setdefault(run.parent.name, {})[run.name] = read_run(run)
    if not runs:
        raise ResultError(f"{out} has no runs; run lab/experiments/peers.sh first")
    return runs


def table(runs: Runs) -> str:
    """Return the runs, then each claim with what became of it.

    Raises:
        ResultError: a row that a claim is about is missing.

    """
    lines = [
        [
            "run",
            "time s",
            "M/s",
            "last¼",
            "slowest",
            "promoted",
            "hint faults",
            "repeated",
            "ns a fault",
        ],
        *(
            [
                f"{experiment}/{row}",
                f"{run.time_s:.3f}",
                f"{run.whole * 1e-6:.3f}",
                f"{run.last * 1e-6:.3f}",
                f"{run.worst * 1e-6:.3f}",
                str(run.promoted_pages),
                str(run.hint_faults),
                str(run.repeated_faults),
                f"{run.tracking_ns:.0f}" if run.stage_ns.get("track") else "-",
            ]
            for experiment, rows in runs.items()
            for row, run in rows.items()
        ),
    ]
    claims = [["claim", "published", "here", "holds"]]
    try:
        for claim in CLAIMS:
            value = claim.of(runs)
            claims.append(
                [claim.text, claim.published, f"{value:.2f}", "yes" if claim.holds(value) else "NO"]
            )
    except KeyError as error:
        raise ResultError(f"no run of {error}; run lab/experiments/peers.sh again") from None
    return aligned(lines) + "\n" + aligned(claims)
