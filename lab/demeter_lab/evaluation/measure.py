# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Numbers of what a run left: pure functions of its files."""

import io
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import polars as pl

from demeter_lab.evaluation.records import Labels, Run
from demeter_lab.results import ResultError, throughput

#: Points of a throughput curve.
POINTS = 60
#: Stages of every manager, and what of Demeter's own belongs to each: `scan` walks page tables
#: for the pages of a plan, so it is part of moving them.
STAGES = {
    "track": ("track", "drain"),
    "classify": ("classify", "rank", "plan"),
    "migrate": ("migrate", "scan", "relocate"),
}
#: Fields of ``whole`` in ``summary.json`` that are taken as they are.
_WHOLE = (
    "time_s",
    "spare_time_s",
    "work_per_s",
    "fmem_share",
    "manager_share",
    "tlb_full",
    "tlb_single",
    "walks",
    "samples",
)
#: Fields of a simulated row that are taken as they are.
_REPLAYED = (
    "time_s",
    "none_s",
    "ideal_s",
    "ideal_share",
    "fmem_share",
    "samples",
    "ranges",
    "promoted_pages",
    "demoted_pages",
)


@dataclass(frozen=True)
class Measured:
    """A run that was done: where it lies on the axes, and its numbers."""

    labels: Labels
    numbers: dict[str, float]
    #: Modelled seconds and work per second.
    curve: list[tuple[float, float]] = field(default_factory=list)
    #: Line fills: by ``virtual`` and ``physical`` address, rows of windows.
    maps: dict[str, list[list[int]]] = field(default_factory=dict)
    #: Of how many runs it is the best, where a manager had a choice.
    chosen_from: int = 1
    #: Which of them it is: the kind of pages and the tuning.
    way: str = ""
    #: Whether no guest ran with these settings: recorded accesses were played.
    replayed: bool = False


def measured(run: Run, files: Mapping[str, bytes]) -> Measured:
    """Return the numbers of a run.

    Raises:
        ResultError: a file is not what the command writes.

    """
    try:
        if run.kind == "text":
            return Measured(run.labels, _text(run, files["lines.txt"].decode()))
        if run.kind == "heat":
            return _heat(run, json.loads(files["heat.json"]))
        if run.kind == "replay":
            return Measured(run.labels, _replayed(json.loads(files["sim.json"])), replayed=True)
        return _compare(run, files)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ResultError(
            f"{run.record}: a result is damaged ({error}); remove it and run again"
        ) from None


def _text(run: Run, text: str) -> dict[str, float]:
    found = {name: re.search(pattern, text, re.M) for name, pattern in run.patterns.items()}
    return {name: float(match[1]) for name, match in found.items() if match}


def _compare(run: Run, files: Mapping[str, bytes]) -> Measured:
    summary = json.loads(files["summary.json"])
    whole = summary["whole"]
    numbers = {name: float(whole[name]) for name in _WHOLE if whole.get(name) is not None}
    time_s = numbers["time_s"]
    if last := summary.get("last_quarter"):
        numbers["last_work_per_s"] = float(last["work_per_s"])
    for name in ("promoted_pages", "demoted_pages", "refused_pages"):
        numbers[name] = float(summary[name])
    numbers["moved_pages"] = numbers["promoted_pages"] + numbers["demoted_pages"]
    if free_bytes := (summary.get("free_bytes") or {}).get("0"):
        numbers["fmem_pages"] = free_bytes / 4096
    # The vCPUs of a guest take turns: its time is the sum over them.
    # Of a hypervisor that places pages; the guest's own are told apart.
    host = float((whole.get("hypervisor") or {}).get("flushes_done", 0))
    numbers["host_flushes_per_vcpu_s"] = host / time_s
    guest = numbers["tlb_full"] + numbers["tlb_single"]
    numbers["flushes_per_vcpu_s"] = (guest + host) / time_s
    numbers["full_flushes_per_vcpu_s"] = numbers["tlb_full"] / time_s
    stages = summary.get("stage_ns") or {}
    if any(stages.values()):
        for name, parts in STAGES.items():
            numbers[f"{name}_s"] = sum(stages.get(part, 0) for part in parts) * 1e-9
        # PEBS stores records without the kernel's help: the model charges the core for it.
        numbers["track_s"] += float(whole.get("record_share") or 0) * time_s
        if moved := numbers["moved_pages"]:
            numbers["migrate_us_per_page"] = numbers["migrate_s"] * 1e6 / moved
        numbers["track_cores"] = numbers["track_s"] / time_s
        numbers["look_s"] = numbers["track_s"] + numbers["classify_s"]
    numbers |= _said(files["command.log"].decode(errors="replace"))
    curve = _curve(files["series.jsonl"].decode())
    if curve:
        numbers["peak_per_s"] = max(rate for _, rate in curve)
        numbers["to_90_percent_s"] = next(
            s for s, rate in curve if rate >= 0.9 * numbers["peak_per_s"]
        )
    return Measured(run.labels, numbers, curve)


def _replayed(row: Mapping[str, object]) -> dict[str, float]:
    numbers = {name: float(str(row[name])) for name in _REPLAYED if row.get(name) is not None}
    numbers["moved_pages"] = numbers["promoted_pages"] + numbers["demoted_pages"]
    return numbers


def _said(text: str) -> dict[str, float]:
    """Return numbers of the JSON object that a workload ends with: ``latency_ns.p99`` and such."""
    for line in reversed(text.splitlines()):
        if line.startswith("{"):
            said = json.loads(line)
            latency = said.get("latency_ns")
            return (
                {f"latency_{key}_ns": float(value) for key, value in latency.items()}
                if latency
                else {}
            )
    return {}


def _curve(text: str) -> list[tuple[float, float]]:
    if text.count('"progress"') < 2:
        return []
    schema = {"t_ns": pl.Int64, "kind": pl.String, "value": pl.Int64}
    frame = throughput(pl.read_ndjson(io.StringIO(text), schema=schema), POINTS)
    return list(zip(frame["seconds"], frame["per_second"], strict=True))


def _heat(run: Run, heat: dict) -> Measured:
    numbers, maps = {}, {}
    for name in ("virtual", "physical"):
        rows = heat[f"{name}_rows"]
        numbers |= {
            f"{name}_{key}": value
            for key, value in _runs_of_heat(rows, heat["granule_bytes"]).items()
        }
        maps[name] = [row["fills"] for row in rows]
    for one, other in (("virtual", "physical"), ("physical", "virtual")):
        for key in ("runs", "mean_run"):
            unit = "_bytes" if key == "mean_run" else ""
            numbers[f"{one}_{key}_by_{other}"] = (
                numbers[f"{one}_{key}{unit}"] / numbers[f"{other}_{key}{unit}"]
            )
    return Measured(run.labels, numbers, maps=maps)


def _runs_of_heat(rows: list[dict], granule_bytes: int) -> dict[str, float]:
    """Return what is known of the hottest tenth of the touched granules: their runs.

    A run is neighbours in the address space, all of them of the hottest tenth.
    """
    heat = {(row["space"], row["address"]): sum(row["fills"]) for row in rows}
    hottest = sorted(heat, key=lambda place: (-heat[place], place))[: max(1, len(heat) // 10)]
    runs: list[list[tuple[int, int]]] = []
    for space, address in sorted(hottest):
        if runs and runs[-1][-1] == (space, address - granule_bytes):
            runs[-1].append((space, address))
        else:
            runs.append([(space, address)])
    fills = sum(heat[place] for place in hottest)
    longest = max(runs, key=lambda run: (len(run), -run[0][1]))
    return {
        "runs": float(len(runs)),
        "longest_run_bytes": float(len(longest) * granule_bytes),
        "mean_run_bytes": len(hottest) * granule_bytes / len(runs),
        "longest_run_share": sum(heat[place] for place in longest) / fills if fills else 0.0,
        "hottest_share": fills / max(1, sum(heat.values())),
    }
