# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The sampler `touch`, without a PMU, beside PEBS: times of the same programs in one build."""

import json
import math
import statistics
from collections.abc import Mapping
from pathlib import Path

from demeter_lab.inputs import inputs_of
from demeter_lab.results import ResultError
from demeter_lab.seven import read_times
from demeter_lab.table import aligned
from demeter_lab.workloads import SEVEN

#: Folders of the results, by what the guest's CPU samples with.
PEBS, TOUCH = "pebs", "touch"
#: Beside the seven, whose plan says what they are made of: the comparison's file in its own
#: folder. What it is made of is in a file beside that folder, by its name.
OTHERS = {"demo": "summary.json", "redis": "compare.json"}

#: Seconds of each workload.
Seconds = dict[str, float]


def read(directory: Path) -> tuple[Seconds, Seconds]:
    """Return what was recorded with PEBS and by `touch`, workload by workload.

    Raises:
        ResultError: something is missing or damaged, or the two are of different builds.

    """
    inputs = {path: _inputs(path) for of in (PEBS, TOUCH) for path in _plans(directory / of)}
    first, *others = inputs
    for path in others:
        if inputs[path] != inputs[first]:
            raise ResultError(
                f"{path} and {first} are of two builds; choose another directory,"
                " or remove what is of the old one"
            )
    return _seconds(directory / PEBS), _seconds(directory / TOUCH)


def claim(path: Path, demeter: Path) -> None:
    """Say in a file what the results will be made of that are about to be made beside it.

    Raises:
        ResultError: the testbed is damaged.

    """
    path.parent.mkdir(parents=True, exist_ok=True)
    plan = {"inputs_sha256": inputs_of(demeter)}
    path.write_text(json.dumps(plan, indent=2, sort_keys=True) + "\n")


def _plans(of: Path) -> list[Path]:
    return [of / "seven" / "plan.json", *(of / f"{name}.json" for name in OTHERS)]


def _inputs(path: Path) -> object:
    try:
        return json.loads(path.read_text())["inputs_sha256"]
    except FileNotFoundError:
        raise ResultError(
            f"{path} is missing, which says what build is beside it; remove that"
            " and run `lab/experiments/run.sh touch`"
        ) from None
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise ResultError(f"{path} is damaged ({error}); remove its folder and go on") from None


def _seconds(of: Path) -> Seconds:
    places = {name: of / name / file for name, file in OTHERS.items()}
    places |= {workload.name: of / "seven" / workload.name / "compare.json" for workload in SEVEN}
    return {name: read_times(path, ["demeter"])["demeter"] for name, path in places.items()}


def table(pebs: Mapping[str, float], touch: Mapping[str, float]) -> str:
    """Return the table: speeds of `touch` as shares of PEBS', their geometric mean, the least.

    Raises:
        ResultError: the two are of different workloads, or of none.

    """
    if not pebs or pebs.keys() != touch.keys():
        raise ResultError("PEBS and touch were measured with different workloads, or with none")
    speeds = {name: pebs[name] / touch[name] for name in pebs}
    least = min(speeds, key=speeds.__getitem__)
    mean = math.exp(statistics.fmean(map(math.log, speeds.values())))
    lines = [["workload", "pebs s", "touch s", "touch / pebs"]]
    lines += [
        [name, f"{pebs[name]:.3f}", f"{touch[name]:.3f}", f"{speed:.3f}"]
        for name, speed in speeds.items()
    ]
    lines.append(["geometric mean", "", "", f"{mean:.3f}"])
    lines.append([f"least: {least}", "", "", f"{speeds[least]:.3f}"])
    return aligned(lines)
