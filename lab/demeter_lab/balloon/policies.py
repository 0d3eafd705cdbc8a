# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What a policy is worth to two guests whose load alternates.

Two real guests under one daemon, each with demeter.ko: while one works (GUPS with
a hot set that is larger than its share of FMEM), the other does next to nothing,
and then they change places. Their modelled clocks are kept in step, and the policy
decides by them. An hour is scaled down by :data:`SCALE`: phases of seven and a half
minutes become three seconds. Everything below is in modelled time, as the guests
saw it.
"""

import json
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from demeter_lab.balloon.daemon import program
from demeter_lab.balloon.guest import MIB, GuestError

#: The first one is what others are compared with.
POLICIES = ("static", "guaranteed")
GUESTS = 2
HOUR_S = 3600
SCALE = 150
PHASES = 8
PHASE_MS = HOUR_S * 1000 // SCALE // PHASES
#: Of each guest; the pool is the sum, the floor a quarter.
FMEM_MIB = 64
SMEM_MIB = 384
FOOTPRINT_MIB = 352
HOT_MIB = 104
#: Of what is above both floors: a guest that has so much has most of it.
MOST = 2 / 3


def run_policy(out: Path, policy: str, phases: int) -> dict[str, object]:
    """Run both guests under a policy; return its row."""
    # What a run left that was ended is no results directory.
    shutil.rmtree(out, ignore_errors=True)
    line = [str(program("demeter")), "vm", "run", "--vms", str(GUESTS), "--policy", policy]
    line += ["--tmm", "demeter", "--roi", "self", "--timeout", "3600", "--json"]
    line += ["--fmem", f"{FMEM_MIB}M", "--smem", f"{SMEM_MIB}M", "--out", str(out), "--"]
    line += ["/demeter/workloads", "alternate", "--phases", str(phases)]
    line += ["--phase-ms", str(PHASE_MS), "--footprint", f"{FOOTPRINT_MIB}M"]
    line += ["--hot", f"{HOT_MIB}M"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=7200, check=False)
    if done.returncode != 0:
        raise GuestError(f"{' '.join(line)}: {done.stderr.strip()}")
    return row_of(out, json.loads(done.stdout), phases)


def outcome_of(directory: Path) -> dict:
    """Return what the workload of a guest printed."""
    for line in (directory / "command.log").read_text().splitlines():
        if line.startswith("{"):
            return json.loads(line)
    raise GuestError(f"{directory}/command.log has no result")


def begun_bytes(directory: Path) -> int:
    """Return what a guest's kernel managed of node 0 when the guest had just --fmem."""
    for line in (directory / "records.jsonl").read_text().splitlines():
        record = json.loads(line)
        if record["kind"] == "resized":
            return record["node_bytes"][0]
    raise GuestError(f"{directory}/records.jsonl does not tell of a resize")


def asked_sizes(directory: Path) -> list[int]:
    """Return the sizes of FMEM that the policy asked for, without repetitions."""
    ledger = json.loads((directory / "balloon.json").read_text())["ledger"]
    sizes: list[int] = []
    for entry in ledger:
        by_policy = str(entry.get("why", "")).startswith("policy ")
        fmem = entry.get("tier") == "fmem"
        if (
            entry["what"] == "asked"
            and by_policy
            and fmem
            and entry["size_bytes"] not in sizes[-1:]
        ):
            sizes.append(entry["size_bytes"])
    return sizes


def fairness(values: list[float]) -> float:
    """Return Jain's index: 1 if all have the same, 1/n if one has everything."""
    return sum(values) ** 2 / (len(values) * sum(value**2 for value in values))


def row_of(out: Path, summary: dict, phases: int) -> dict[str, object]:
    """Return the figures of a run."""
    outcomes = [outcome_of(out / guest["name"]) for guest in summary["guests"]]
    floor = summary["fmem_floor_bytes"]
    spare = summary["fmem_pool_bytes"] - len(outcomes) * floor
    # By guest: above its floor at each sample, and whether it worked then.
    above = [
        (sample["node0_bytes"] - begun + FMEM_MIB * MIB - floor, sample["works"])
        for guest, outcome in zip(summary["guests"], outcomes, strict=True)
        for begun in [begun_bytes(out / guest["name"])]
        for sample in outcome["samples"]
    ]
    working = [bytes_above for bytes_above, works in above if works]
    rates = [
        sum(phase["updates"] for phase in outcome["phases"] if phase["works"])
        / sum(phase["seconds"] for phase in outcome["phases"] if phase["works"])
        for outcome in outcomes
    ]
    changes = sum(len(asked_sizes(out / guest["name"])) for guest in summary["guests"])
    return {
        "guest_seconds": [round(outcome["seconds"], 3) for outcome in outcomes],
        "least_above_floor_mib": round(min(above)[0] / MIB, 1),
        "size_changes": changes,
        "size_changes_per_alternation": round(changes / phases, 2),
        "share_of_spare_while_working": round(sum(working) / len(working) / spare, 3),
        "share_of_time_with_most_of_spare": round(
            sum(bytes_above >= MOST * spare for bytes_above in working) / len(working), 3
        ),
        "updates_per_s_while_working": [round(rate) for rate in rates],
        "fairness": round(fairness(rates), 4),
    }


def measure(out: Path, phases: int = PHASES) -> dict[str, object]:
    """Run every policy; return what belongs into ``summary.json``."""
    # Guests in step use one processor at a time: two policies disturb each other little,
    # and modelled times not at all.
    with ThreadPoolExecutor(len(POLICIES)) as pool:
        futures = {
            policy: pool.submit(run_policy, out / f"policy-{policy}", policy, phases)
            for policy in POLICIES
        }
        rows = {policy: future.result() for policy, future in futures.items()}
    first = rows[POLICIES[0]]["updates_per_s_while_working"]
    for row in rows.values():
        mine = row["updates_per_s_while_working"]
        row["of_static"] = [
            round(now / then, 3)
            for now, then in zip(mine, first, strict=True)  # type: ignore[call-overload]
        ]
    return {
        "scale": SCALE,
        "phases": phases,
        "phase_ms": PHASE_MS,
        "fmem_pool_mib": GUESTS * FMEM_MIB,
        "fmem_floor_mib": FMEM_MIB // 4,
        "hot_mib": HOT_MIB,
        "rows": rows,
    }


def table(policies: dict) -> str:
    """Return the table that people read."""
    lines = [
        f"{'policy':<12} {'least above floor':>18} {'changes/alternation':>20}"
        f" {'of spare':>9} {'had most':>9} {'M/s of each guest':>18}"
        f" {'x static':>14} {'fairness':>9}"
    ]
    for name, row in policies["rows"].items():
        rates = ", ".join(f"{rate / 1e6:.2f}" for rate in row["updates_per_s_while_working"])
        ratios = ", ".join(f"{ratio:.3f}" for ratio in row["of_static"])
        lines.append(
            f"{name:<12} {row['least_above_floor_mib']:>14.1f} MiB"
            f" {row['size_changes_per_alternation']:>20.2f}"
            f" {row['share_of_spare_while_working']:>9.1%}"
            f" {row['share_of_time_with_most_of_spare']:>9.1%} {rates:>18} {ratios:>14}"
            f" {row['fairness']:>9.4f}"
        )
    return "\n".join(lines)
