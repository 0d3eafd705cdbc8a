# SPDX-License-Identifier: Apache-2.0 OR MIT
import json
from pathlib import Path

import polars as pl
import pytest
from typer.testing import CliRunner

from demeter_lab.cli import app
from demeter_lab.results import ResultError, read_series, read_summary, throughput


def write_series(path: Path, rows: list[tuple[int, str, int]]) -> None:
    lines = [json.dumps({"t_ns": t, "kind": k, "value": v, "insn": 1}) for t, k, v in rows]
    path.write_text("\n".join(lines) + "\n")


def demo_directory(root: Path) -> Path:
    (root / "summary.json").write_text(
        json.dumps({"digest": "x", "rows": {"none": {}, "fast": {}}})
    )
    for row, rate in (("none", 100), ("fast", 300)):
        (root / row).mkdir()
        rows = [(1_000, "on", 0)]
        rows += [(1_000 + s * 10**9, "progress", s * rate) for s in range(1, 11)]
        write_series(root / row / "series.jsonl", rows)
    return root


def test_throughput_of_steady_work_is_flat_and_exact(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    write_series(
        path, [(500, "on", 0), *((500 + s * 10**9, "progress", s * 7) for s in range(1, 9))]
    )
    frame = throughput(read_series(path), points=16)
    assert frame.height == 16
    assert frame["per_second"].to_list() == pytest.approx([7.0] * 16)
    assert frame["seconds"][-1] == pytest.approx(7.75)


def test_throughput_shows_a_change_of_speed(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    half = [(s * 10**9, "progress", s * 10) for s in range(1, 5)]
    rest = [((4 + s) * 10**9, "progress", 40 + s * 20) for s in range(1, 5)]
    write_series(path, [(0, "on", 0), *half, *rest])
    rates = throughput(read_series(path), points=8)["per_second"].to_list()
    assert rates == pytest.approx([10.0] * 4 + [20.0] * 4)


def test_series_without_progress_is_refused() -> None:
    schema = {"t_ns": pl.Int64, "kind": pl.String, "value": pl.Int64}
    with pytest.raises(ResultError, match="no progress"):
        throughput(pl.DataFrame(schema=schema))


@pytest.mark.parametrize("text", ['{"t_ns": 1', '{"t_ns": 1}', "[]"])
def test_damaged_series_names_the_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "s.jsonl"
    path.write_text('{"t_ns": 1, "kind": "on", "value": 0}\n' + text + "\n")
    with pytest.raises(ResultError, match="line 2"):
        read_series(path)


def test_missing_summary_says_what_to_run(tmp_path: Path) -> None:
    with pytest.raises(ResultError, match="make demo"):
        read_summary(tmp_path)


def test_figure_is_svg_and_the_same_every_time(tmp_path: Path) -> None:
    directory = demo_directory(tmp_path)
    pictures = []
    for name in ("a.svg", "b.svg"):
        result = CliRunner().invoke(app, ["demo", str(directory), "--out", str(tmp_path / name)])
        assert result.exit_code == 0, result.output
        pictures.append((tmp_path / name).read_text())
    assert pictures[0].startswith("<svg")
    assert pictures[0] == pictures[1]
    assert "fast" in pictures[0]


def test_figure_of_nothing_is_one_clear_error(tmp_path: Path) -> None:
    out = tmp_path / "x.svg"
    result = CliRunner().invoke(app, ["demo", str(tmp_path), "--out", str(out)])
    assert result.exit_code == 1
    assert "summary.json is missing" in result.output
    assert not out.exists()
