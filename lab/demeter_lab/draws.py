# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The same workload in guests of slightly more or less FMEM: what first touch draws.

Which of a program's pages find room in FMEM as it starts can hang on the last MiB. A single
comparison with ``none`` shows that draw; several sizes show what a manager makes of it.
"""

import math
import statistics
from collections.abc import Sequence
from pathlib import Path

from demeter_lab import seven
from demeter_lab.table import aligned
from demeter_lab.workloads import Workload

#: What is compared.
MANAGERS = ("none", "demeter")
#: MiB of FMEM: those of the seven, four less to three more.
SIZES_MIB = (60, 61, 62, 63, 64, 65, 66, 67)

#: Modelled seconds by workload, by MiB of FMEM, by row.
Draws = dict[str, dict[int, seven.Times]]


def run(
    demeter: Path,
    workloads: Sequence[Workload],
    sizes_mib: Sequence[int],
    jobs: int,
    out: Path,
    guest: Sequence[str] = (),
) -> Draws:
    """Run each workload at each size under both managers; what is complete in ``out`` is kept.

    Args:
        demeter: the command.
        workloads: in the order of the table.
        sizes_mib: MiB of FMEM.
        jobs: guests at a time.
        out: results, one folder a size.
        guest: more options of the guests, as ``--slow cxl``.

    Raises:
        ResultError: a comparison failed, or ``out`` is of another guest or build.

    """
    draws: Draws = {workload.name: {} for workload in workloads}
    for size in sizes_mib:
        options = ("--fmem", f"{size}M", *guest)
        place = out / f"{size}M"
        for name, times in seven.run(demeter, workloads, 1, jobs, place, options, MANAGERS).items():
            draws[name][size] = times
    return draws


def table(draws: Draws) -> str:
    """Return a line a size: both times, and Demeter's loss by the same size's ``none``.

    The last line of a workload has the geometric means of times, and Demeter's by that of
    ``none``: what both draw is in them.
    """
    lines = [["workload", "FMEM MiB", "none s", "demeter s", "loss %"]]
    for name, sizes in draws.items():
        for size, of in sizes.items():
            lines.append([name, str(size), *_line(of["none"], of["demeter"])])
        means = (_mean([of[row] for of in sizes.values()]) for row in MANAGERS)
        lines.append([name, "mean", *_line(*means)])
    return aligned(lines)


def _line(none_s: float, demeter_s: float) -> list[str]:
    return [f"{none_s:.3f}", f"{demeter_s:.3f}", f"{100 * (demeter_s / none_s - 1):.2f}"]


def _mean(times: Sequence[float]) -> float:
    """Return the geometric mean of times."""
    return math.exp(statistics.fmean(math.log(time) for time in times))
