# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What a guest's memory is worth by how it was composed.

GUPS in guests that were started with their sizes, or with twice as much of both
tiers and brought to the same sizes by balloon; each with Linux's tuned balancing
and with Demeter as the guest's manager. Times are modelled.
"""

import json
import shutil
import statistics
import subprocess
from pathlib import Path

from demeter_lab.balloon.daemon import program
from demeter_lab.balloon.guest import GuestError

#: As ``demeter vm demo --balloon`` knows them; the first one is what others are compared with.
METHODS = ("none", "demeter", "virtio", "virtio-mem")
#: Row of the results, and the option that makes it.
MANAGERS = {"nbt": "nbt", "demeter": "demeter"}
FIGURES = ("updates_per_s", "updates_per_s_last_quarter")
TITLES = {
    "none": "static",
    "demeter": "double balloon",
    "virtio": "virtio-balloon",
    "virtio-mem": "virtio-mem",
}
#: Memory of the guest's kernel. Whether a huge page finds room in FMEM is decided by
#: how free memory lies, which is the same in every guest of one size: so each seed
#: gets another size.
RESERVE_MIB = 216
RESERVE_STEP_MIB = 4


def run_method(
    out: Path, method: str, managers: list[str], updates: int, seed: int
) -> dict[str, dict]:
    """Run the guests of one method; return their rows."""
    # What a run left that was ended is no results directory.
    shutil.rmtree(out, ignore_errors=True)
    line = [str(program("demeter")), "vm", "demo", "--balloon", method]
    line += ["--tmm", ",".join(MANAGERS[name] for name in managers)]
    line += ["--kernel-reserve", f"{RESERVE_MIB + (seed - 1) * RESERVE_STEP_MIB}M"]
    line += ["--updates", str(updates), "--seed", str(seed), "--out", str(out), "--json"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=7200, check=False)
    if done.returncode != 0:
        raise GuestError(f"{' '.join(line)}: {done.stderr.strip()}")
    rows = json.loads(done.stdout)["rows"]
    for name, row in rows.items():
        free = json.loads((out / name / "summary.json").read_text())["free_bytes"]
        row["free_mib"] = [int(free[node]) >> 20 for node in ("0", "1")]
    return rows


def summary_of(runs: dict[str, list[dict[str, dict]]], managers: list[str]) -> dict[str, object]:
    """Return medians and spreads, and ratios to the static guest, seed by seed."""
    summary: dict[str, object] = {}
    for method, by_seed in runs.items():
        for manager in managers:
            row: dict[str, object] = {"free_mib": by_seed[0][manager]["free_mib"]}
            for figure in FIGURES:
                values = [rows[manager][figure] for rows in by_seed]
                static = [rows[manager][figure] for rows in runs[METHODS[0]]]
                ratios = [mine / theirs for mine, theirs in zip(values, static, strict=True)]
                row[figure] = {
                    "median": statistics.median(values),
                    "min": min(values),
                    "max": max(values),
                    "of_static": {
                        "median": round(statistics.median(ratios), 4),
                        "min": round(min(ratios), 4),
                        "max": round(max(ratios), 4),
                    },
                }
            summary[f"{method} / {manager}"] = row
    return summary


def measure(
    out: Path, methods: list[str], managers: list[str], updates: int, seeds: int
) -> dict[str, object]:
    """Run everything; return what belongs into ``summary.json``."""
    runs: dict[str, list[dict[str, dict]]] = {}
    # Always the first one, which the others are compared with.
    for method in [METHODS[0], *(method for method in methods if method != METHODS[0])]:
        runs[method] = []
        for seed in range(1, seeds + 1):
            rows = run_method(out / f"gups-{method}", method, managers, updates, seed)
            told = {name: round(row["updates_per_s_last_quarter"]) for name, row in rows.items()}
            print(f"       {method}, seed {seed}: {told} updates/s, last quarter", flush=True)
            runs[method].append(rows)
    return {"updates": updates, "seeds": seeds, "rows": summary_of(runs, managers)}


def table(composition: dict) -> str:
    """Return the table that people read."""
    lines = [
        f"{'composed by, manager':<28} {'free MiB':>10} {'M/s':>7} {'x static':>22}"
        f" {'M/s last¼':>10} {'x static':>22}"
    ]
    for name, row in composition["rows"].items():
        method, manager = name.split(" / ")
        cells = [f"{TITLES[method] + ', ' + manager:<28}"]
        cells.append(f"{row['free_mib'][0]:>4} +{row['free_mib'][1]:>4}")
        for figure, width in zip(FIGURES, (7, 10), strict=True):
            ratio = row[figure]["of_static"]
            spread = f"({ratio['min']:.3f}-{ratio['max']:.3f})"
            cells.append(f"{row[figure]['median'] / 1e6:>{width}.3f}")
            cells.append(f"{ratio['median']:>8.3f} {spread}")
        lines.append(" ".join(cells))
    return "\n".join(lines)
