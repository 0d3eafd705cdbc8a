# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The table of published claims, from made runs."""

import json
from pathlib import Path

import pytest

from demeter_lab.peers import CLAIMS, Run, read_run, read_runs, table
from demeter_lab.results import ResultError


def run(first: float, last: float, promoted: int = 0, track: int = 1) -> Run:
    return Run([first] * 10 + [last] * 10, promoted, 9, 135, {"track": track, "migrate": 1}, 1.0)


def runs(stable: float) -> dict[str, dict[str, Run]]:
    return {
        "fits": {"none": run(5e6, 5e6), "tpp": run(3e6, stable), "tpp-stages": run(3e6, 9e6)},
        "exceeds": {"none": run(5e6, 5e6), "tpp": run(3e6, 4e6, promoted=100_000)},
    }


def test_claims_hold_or_do_not() -> None:
    good = [line.split()[-1] for line in table(runs(9e6)).splitlines()[-len(CLAIMS) :]]
    assert good == ["yes"] * len(CLAIMS)
    bad = [line.split()[-1] for line in table(runs(4e6)).splitlines()[-len(CLAIMS) :]]
    assert bad == ["yes", "NO", "yes", "yes", "yes"]


def test_a_row_that_is_missing_is_told() -> None:
    some = runs(9e6)
    del some["fits"]["tpp-stages"]
    with pytest.raises(ResultError, match="tpp-stages"):
        table(some)


def test_reads_what_a_guest_left(tmp_path: Path) -> None:
    with pytest.raises(ResultError, match="no runs"):
        read_runs(tmp_path)
    place = tmp_path / "fits" / "tpp"
    place.mkdir(parents=True)
    series = [("on", 0, 0), ("progress", 10**9, 100), ("progress", 2 * 10**9, 400)]
    (place / "series.jsonl").write_text(
        "".join(json.dumps({"kind": k, "t_ns": t, "value": v}) + "\n" for k, t, v in series)
    )
    summary = {
        "promoted_pages": 7,
        "manager_files": {"stats/hint_faults": "3\n"},
        "stage_ns": {},
        "whole": {"time_s": 2.0},
    }
    (place / "summary.json").write_text(json.dumps(summary))
    found = read_runs(tmp_path)["fits"]["tpp"]
    assert (found.hint_faults, found.repeated_faults, found.promoted_pages) == (3, 0, 7)
    assert found.worst == pytest.approx(100)
    assert found.last == pytest.approx(300)
    (place / "summary.json").write_text("{}")
    with pytest.raises(ResultError, match="again"):
        read_run(place)
