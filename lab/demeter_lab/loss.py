# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What Demeter costs where there is nothing, or next to nothing, to gain."""

import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from demeter_lab.inputs import inputs_of
from demeter_lab.results import ResultError
from demeter_lab.seven import claim
from demeter_lab.table import aligned

#: What is compared, and the columns of each row.
MANAGERS = ("none", "demeter")
_GUPS = "/demeter/workloads gups --footprint 560M --hot 40M --pages huge"
_FLIPS = f"{_GUPS} --phase-updates 6000000 --phase-places 7"


@dataclass(frozen=True)
class Program:
    """A program of the guest, and options of the comparison before it."""

    name: str
    command: str
    options: tuple[str, ...] = ()


#: About a modelled second for each phase. Those named `slow` have the paper's epoch.
PROGRAMS = (
    Program("uniform", f"{_GUPS} --hot-permille 71 --updates 20000000"),
    Program("scan", f"{_GUPS} --scan --updates 150000000"),
    Program("placed", f"{_GUPS} --place begin --updates 30000000"),
    Program("scattered", f"{_GUPS} --place scattered --updates 15000000"),
    # Placing base pages costs at once, and pays later: this one ends just after a look was paid.
    Program("scattered-long", f"{_GUPS} --place scattered --updates 103000000"),
    # A look begins later, then, and learns more slowly.
    Program(
        "scattered-slow",
        f"{_GUPS} --place scattered --updates 60000000",
        ("--set", "epoch_ms=500"),
    ),
    Program("flip", f"{_FLIPS} --updates 36000000"),
    Program("flip-slow", f"{_FLIPS} --updates 48000000", ("--set", "epoch_ms=500")),
    # Four times as long: is what is lost bounded?
    Program("flip-long", f"{_FLIPS} --updates 192000000", ("--set", "epoch_ms=500")),
)

#: Fields of a row of `compare.json`, by manager.
Rows = dict[str, dict[str, float]]


def chosen(names: Sequence[str]) -> list[Program]:
    """Return the programs of these names, or all.

    Raises:
        ResultError: there is none of such a name.

    """
    known = {program.name: program for program in PROGRAMS}
    if odd := [name for name in names if name not in known]:
        raise ResultError(f"no program {', '.join(odd)}; choose from {', '.join(known)}")
    return [known[name] for name in names] or list(PROGRAMS)


def run(
    demeter: Path,
    programs: Sequence[Program],
    jobs: int,
    out: Path,
    guest: Sequence[str] = (),
) -> dict[str, Rows]:
    """Run programs under both managers; what is complete in ``out`` is kept.

    Args:
        demeter: the command.
        programs: in the order of the table.
        jobs: guests at a time.
        out: results, one folder a program.
        guest: more options of the guests, as ``--pmu none``.

    Raises:
        ResultError: a comparison failed, left no usable result, or ``out`` is of another guest
            or build.

    """
    plan = {"managers": MANAGERS, "guest": list(guest), "inputs_sha256": inputs_of(demeter)}
    claim(out, plan)
    rows = {}
    for program in programs:
        place = out / program.name
        if not (place / "compare.json").is_file():
            line = [str(demeter), "vm", "compare", "--tmm", ",".join(MANAGERS), "--roi", "self"]
            line += ["--jobs", str(jobs), "--out", str(place), *guest, *program.options, "--"]
            done = subprocess.run(
                [*line, *program.command.split()], stdout=subprocess.DEVNULL, check=False
            )
            if done.returncode != 0:
                raise ResultError(f"{program.name} failed, as said above; the same command goes on")
        rows[program.name] = read_rows(place / "compare.json")
    return rows


def read_rows(path: Path) -> Rows:
    """Return the rows of a comparison.

    Raises:
        ResultError: the file is damaged, or lacks a row.

    """
    fields = ("time_s", "tmm_cpu_share", "tmm_cpu_share_last_quarter", "promoted_pages")
    try:
        rows = json.loads(path.read_text())["rows"]
        return {name: {key: float(rows[name][key]) for key in fields} for name in MANAGERS}
    except (OSError, json.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        raise ResultError(f"{path} is damaged ({error}); remove its folder and go on") from None


def table(rows: dict[str, Rows]) -> str:
    """Return the table: by how much longer each program takes, the worst last."""
    header = ["program", "none s", "demeter s", "loss %", "mgmt %", "last quarter %", "promoted"]
    lines = [header]
    losses = []
    for name, row in rows.items():
        none, own = row["none"], row["demeter"]
        losses.append(100 * (own["time_s"] / none["time_s"] - 1))
        lines.append(
            [
                name,
                f"{none['time_s']:.3f}",
                f"{own['time_s']:.3f}",
                f"{losses[-1]:.2f}",
                f"{100 * own['tmm_cpu_share']:.2f}",
                f"{100 * own['tmm_cpu_share_last_quarter']:.2f}",
                f"{own['promoted_pages']:.0f}",
            ]
        )
    lines.append(["worst", "", "", f"{max(losses):.2f}", "", "", ""])
    return aligned(lines)
