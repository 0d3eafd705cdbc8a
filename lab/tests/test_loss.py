# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The table of losses, from a made comparison."""

import json
from pathlib import Path

import pytest

from demeter_lab.loss import PROGRAMS, chosen, read_rows, table
from demeter_lab.results import ResultError


def row(time_s: float) -> dict[str, float]:
    return {
        "time_s": time_s,
        "tmm_cpu_share": 0.002,
        "tmm_cpu_share_last_quarter": 0.001,
        "promoted_pages": 7,
    }


def test_the_worst_loss_is_told(tmp_path: Path) -> None:
    path = tmp_path / "compare.json"
    path.write_text(json.dumps({"rows": {"none": row(10), "demeter": row(10.05)}}))
    rows = {"scan": read_rows(path), "flip": {"none": row(10), "demeter": row(9)}}
    lines = table(rows).splitlines()
    assert lines[2].split() == ["scan", "10.000", "10.050", "0.50", "0.20", "0.10", "7"]
    assert lines[3].split()[3] == "-10.00"
    assert lines[-1].split() == ["worst", "0.50"]


def test_a_row_that_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "compare.json"
    path.write_text(json.dumps({"rows": {"none": row(10)}}))
    with pytest.raises(ResultError, match="remove its folder"):
        read_rows(path)


def test_every_program_has_its_own_place() -> None:
    assert len({program.name for program in PROGRAMS}) == len(PROGRAMS) == 9


def test_programs_are_chosen_by_name() -> None:
    assert chosen([]) == list(PROGRAMS)
    assert [program.name for program in chosen(["scan", "uniform"])] == ["scan", "uniform"]
    with pytest.raises(ResultError, match="no program scam; choose from uniform, scan"):
        chosen(["scam"])
