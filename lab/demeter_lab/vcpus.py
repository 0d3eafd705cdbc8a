# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The same program on 1, 4 and 8 vCPUs: its time, and what it does once placement is learned.

Where only the time differs, learning takes longer; where the last quarter does, the placement
is another one.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from demeter_lab.results import ResultError, positive
from demeter_lab.table import aligned

ROWS = ("none", "demeter", "ideal")
COUNTS = (1, 4, 8)


@dataclass(frozen=True)
class Row:
    """A manager's modelled seconds, and updates a second in the last quarter of the work."""

    time_s: float
    last_quarter_per_s: float


#: By number of vCPUs and by manager.
Runs = Mapping[int, Mapping[str, Row]]


def read(directory: Path, counts: Sequence[int] = COUNTS) -> Runs:
    """Return the comparisons in the folders named by numbers of vCPUs.

    Raises:
        ResultError: one is missing or damaged, or has a time or a rate that is none.

    """
    return {count: _comparison(directory / str(count) / "compare.json") for count in counts}


def _comparison(path: Path) -> dict[str, Row]:
    try:
        rows = json.loads(path.read_text())["rows"]
        return {
            name: Row(
                positive(rows[name]["time_s"]), positive(rows[name]["updates_per_s_last_quarter"])
            )
            for name in ROWS
        }
    except FileNotFoundError:
        raise ResultError(f"{path} is missing; run `lab/experiments/run.sh vcpus`") from None
    except (json.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        raise ResultError(f"{path} is damaged ({error}); remove its folder and go on") from None


def table(runs: Runs) -> str:
    """Return a line a number of vCPUs; Demeter's are also told as shares of the first line's."""
    header = ["vCPUs", *(f"{name} s" for name in ROWS)]
    header += [f"{name} M/s last\u00bc" for name in ROWS]
    header += ["demeter: time", "last\u00bc, by the first"]
    first = next(iter(runs.values()))["demeter"]
    lines = [header]
    for count, rows in runs.items():
        own = rows["demeter"]
        lines.append(
            [
                str(count),
                *(f"{rows[name].time_s:.3f}" for name in ROWS),
                *(f"{rows[name].last_quarter_per_s / 1e6:.3f}" for name in ROWS),
                f"{own.time_s / first.time_s:.3f}",
                f"{own.last_quarter_per_s / first.last_quarter_per_s:.3f}",
            ]
        )
    return aligned(lines)
