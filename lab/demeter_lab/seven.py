# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The seven workloads under every manager: times, and how far each went to the ideal."""

import json
import math
import statistics
import subprocess
from collections.abc import Sequence
from pathlib import Path

from demeter_lab.inputs import inputs_of
from demeter_lab.results import ResultError, positive
from demeter_lab.table import aligned
from demeter_lab.workloads import GUEST, Workload

#: What is compared; `none` and `ideal` are the ends of the way.
MANAGERS = ("none", "nbt", "damon", "damon-auto", "demeter", "ideal", "fast")
#: With less to gain than this share of `none`'s time, shares of it say nothing: rows differ by
#: two percent from one build to the next.
LEAST_WAY = 0.05

#: A workload's times in modelled seconds, by row.
Times = dict[str, float]


def run(
    demeter: Path,
    workloads: Sequence[Workload],
    seed: int,
    jobs: int,
    out: Path,
    guest: Sequence[str] = (),
    managers: Sequence[str] = MANAGERS,
) -> dict[str, Times]:
    """Run every workload under every manager; what is complete in ``out`` is kept.

    Args:
        demeter: the command.
        workloads: in the order of the table.
        seed: of each workload.
        jobs: guests at a time.
        out: results, one folder a workload.
        guest: more options of ``demeter vm compare``, as ``--slow cxl``, in place of the guest's
            own of the same name.
        managers: the rows.

    Raises:
        ResultError: a comparison failed, or ``out`` is of another seed, guest, build or testbed,
            or of other rows.

    """
    options = guest_of(guest)
    plan = {"seed": seed, "managers": list(managers), "guest": options}
    claim(out, {**plan, "inputs_sha256": inputs_of(demeter)})
    times = {}
    for workload in workloads:
        place = out / workload.name
        if not (place / "compare.json").is_file():
            line = [str(demeter), "vm", "compare", "--tmm", ",".join(managers)]
            line += ["--jobs", str(jobs), "--roi", workload.roi, "--out", str(place), *options]
            done = subprocess.run(
                [*line, "--", *workload.command_of(seed)], stdout=subprocess.DEVNULL, check=False
            )
            if done.returncode != 0:
                raise ResultError(
                    f"{workload.name} failed, as said above; the same command goes on"
                )
        times[workload.name] = read_times(place / "compare.json", managers)
    return times


def guest_of(more: Sequence[str]) -> list[str]:
    """Return the options of the guest, with others in place of those of the same name."""
    own = zip(GUEST[::2], GUEST[1::2], strict=True)
    return [word for name, value in own if name not in more for word in (name, value)] + [*more]


def claim(out: Path, plan: dict[str, object]) -> None:
    """Say what the results in ``out`` belong to, or check it."""
    path = out / "plan.json"
    text = json.dumps(plan, indent=2, sort_keys=True) + "\n"
    if path.exists() and path.read_text() != text:
        raise ResultError(
            f"{path} is of another seed, guest, build, testbed or rows; choose another --out"
        )
    out.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def read_times(path: Path, managers: Sequence[str] = MANAGERS) -> Times:
    """Return the time of each row of a comparison.

    Raises:
        ResultError: the file is damaged, lacks a row, or has a time that is none.

    """
    try:
        rows = json.loads(path.read_text())["rows"]
        return {name: positive(rows[name]["time_s"]) for name in managers}
    except FileNotFoundError:
        raise ResultError(f"{path} is missing; run `lab/experiments/run.sh seven`") from None
    except (json.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        raise ResultError(f"{path} is damaged ({error}); remove its folder and go on") from None


def share(times: Times, row: str) -> float | None:
    """Return how much of the way from `none` to `ideal` a row went; None where there is none."""
    if not {"none", "ideal"} <= times.keys():
        return None
    way_s = times["none"] - times["ideal"]
    if way_s < LEAST_WAY * times["none"]:
        return None
    return (times["none"] - times[row]) / way_s


def table(times: dict[str, Times]) -> str:
    """Return the table: each row's time in seconds and its share of the way in percent."""
    rows = list(next(iter(times.values()), {}))
    ends = [name for name in ("none", "ideal") if name in rows]
    between = [name for name in rows if name not in ends]
    header = ["workload", *(f"{name} s" for name in ends)]
    for name in between:
        header += [f"{name} s", "ideal %"]
    lines = [header]
    for workload, of in times.items():
        cells = [workload, *(f"{of[name]:.3f}" for name in ends)]
        for name in between:
            went = share(of, name)
            cells += [f"{of[name]:.3f}", "-" if went is None else f"{100 * went:.0f}"]
        lines.append(cells)
    if "none" in rows:
        cells = ["mean of none's", *(_mean(times, name) for name in ends)]
        for name in between:
            cells += [_mean(times, name), ""]
        lines.append(cells)
    return aligned(lines)


def _mean(times: dict[str, Times], row: str) -> str:
    """Return the geometric mean over the workloads of a row's time by that of `none`."""
    logs = [math.log(of[row] / of["none"]) for of in times.values()]
    return f"{math.exp(statistics.fmean(logs)):.3f}"
