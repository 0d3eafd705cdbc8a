# SPDX-License-Identifier: Apache-2.0 OR MIT
"""How much each workload depends on Demeter's parameters, by the simulator.

Each workload is recorded once in a guest (``demeter vm record``); ``demeter sim`` then plays
the record under other parameters. Beside it Demeter runs live, so that the simulator can be
held against the guest. Another latency of slow memory needs no other record.
"""

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from demeter_lab.inputs import inputs_of
from demeter_lab.results import ResultError
from demeter_lab.seven import claim
from demeter_lab.table import aligned
from demeter_lab.workloads import GUEST, Workload

#: Values of one parameter at a time, the others as they stand; its default is among them.
GRID: Mapping[str, tuple[int, ...]] = {
    "sample_period": (1021, 2039, 4093, 8191, 16381),
    "epoch_ms": (10, 20, 50, 100, 200, 500),
    "split_samples": (5, 10, 15, 25, 50),
    "significance": (0, 1, 2, 3, 4),
    "merge_epochs": (2, 4, 8, 16, 32),
    "granule_bytes": (1 << 20, 2 << 20, 4 << 20, 8 << 20),
    "horizon_ms": (1000, 3000, 10_000, 30_000),
    "hysteresis_permille": (0, 100, 250, 500, 1000),
    "rate_pages_per_s": (65_536, 131_072, 262_144, 524_288),
}


@dataclass(frozen=True)
class Swept:
    """Modelled seconds of one workload."""

    none_s: float
    ideal_s: float
    default_s: float
    #: By ``NAME=VALUE``.
    swept_s: Mapping[str, float]
    #: Demeter's in a guest; None where it was not run.
    live_s: float | None

    @property
    def best(self) -> str:
        """The quickest setting."""
        return min(self.swept_s, key=self.swept_s.__getitem__)

    @property
    def worst(self) -> str:
        """The slowest setting."""
        return max(self.swept_s, key=self.swept_s.__getitem__)


def run(
    demeter: Path,
    workloads: Sequence[Workload],
    seed: int,
    live: bool,
    out: Path,
    guest: Sequence[str] = (),
    replay: Sequence[str] = (),
) -> dict[str, Swept]:
    """Record what is not recorded, and sweep; records and live runs in ``out`` are kept.

    Args:
        demeter: the command.
        workloads: in the order of the table.
        seed: of each workload.
        live: whether Demeter runs in guests, too.
        out: records and live runs, one folder a workload.
        guest: more options of the guests, as ``--slow cxl``.
        replay: more options of ``demeter sim``, as ``--slow cxl``.

    Raises:
        ResultError: a guest or a replay failed, or ``out`` is of another seed, guest or build,
            or live guests were asked for beside a replay of another machine.

    """
    if live and replay:
        raise ResultError("live guests are not what is replayed with other options; add --no-live")
    options = " ".join([*GUEST, *guest])
    plan = {"seed": seed, "guest": options, "inputs_sha256": inputs_of(demeter)}
    claim(out, plan)
    swept = {}
    for workload in workloads:
        place = out / workload.name
        line = ["--roi", workload.roi, *GUEST, *guest, "--", *workload.command_of(seed)]
        record, managed = place / "record", place / "demeter"
        if not (record / "accesses.bin").is_file():
            _call([str(demeter), "vm", "record", str(record), *line])
        if live and not (managed / "summary.json").is_file():
            _call([str(demeter), "vm", "run", "--tmm", "demeter", "--out", str(managed), *line])
        swept[workload.name] = sweep(demeter, record, managed if live else None, replay)
    return swept


def sweep(demeter: Path, record: Path, managed: Path | None, replay: Sequence[str] = ()) -> Swept:
    """Return what the simulator makes of a record, beside the guest's result.

    Raises:
        ResultError: the replay failed, or says something else than expected.

    """
    rows = _rows(demeter, record, replay)
    swept: dict[str, float] = {}
    for name, values in GRID.items():
        grid = f"{name}={','.join(map(str, values))}"
        swept.update(
            (str(row["name"]), float(str(row["time_s"])))
            for row in _rows(demeter, record, [*replay, "--sweep", grid])
        )
    try:
        default = rows[0]
        live_s = None
        if managed is not None:
            summary = json.loads((managed / "summary.json").read_text())
            live_s = float(summary["whole"]["time_s"])
        return Swept(
            none_s=float(str(default["none_s"])),
            ideal_s=float(str(default["ideal_s"])),
            default_s=float(str(default["time_s"])),
            swept_s=swept,
            live_s=live_s,
        )
    except (OSError, IndexError, KeyError, TypeError, ValueError) as error:
        raise ResultError(f"{record.parent} is damaged ({error}); remove it and go on") from None


def _rows(demeter: Path, record: Path, more: Sequence[str]) -> list[dict[str, object]]:
    text = _call([str(demeter), "sim", str(record), "--json", *more])
    try:
        rows: list[dict[str, object]] = json.loads(text)["rows"]
    except (ValueError, KeyError, TypeError) as error:
        raise ResultError(f"{demeter} sim gave no rows: {error}") from None
    return rows


def _call(line: Sequence[str]) -> str:
    done = subprocess.run(line, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise ResultError(f"`{' '.join(line[:3])}` failed, as said above; the same command goes on")
    return done.stdout


def table(of: Mapping[str, Swept]) -> str:
    """Return a line a workload: simulated times, the best and the worst, and the guest's."""
    header = ["workload", "none s", "ideal s", "demeter s", "live s", "gain / live's"]
    header += ["best", "best s", "demeter / best", "worst", "worst s"]
    lines = [header]
    for name, swept in of.items():
        live = ["-", "-"]
        if swept.live_s is not None:
            gain = swept.none_s - swept.live_s
            share = (swept.none_s - swept.default_s) / gain if gain > 0 else None
            live = [f"{swept.live_s:.3f}", "-" if share is None else f"{share:.3f}"]
        best_s, worst_s = swept.swept_s[swept.best], swept.swept_s[swept.worst]
        lines.append(
            [
                name,
                f"{swept.none_s:.3f}",
                f"{swept.ideal_s:.3f}",
                f"{swept.default_s:.3f}",
                *live,
                swept.best,
                f"{best_s:.3f}",
                f"{swept.default_s / best_s:.3f}",
                swept.worst,
                f"{worst_s:.3f}",
            ]
        )
    return aligned(lines)
