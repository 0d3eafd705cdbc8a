# SPDX-License-Identifier: Apache-2.0 OR MIT
import json
import subprocess
from pathlib import Path

import pytest

from demeter_lab import extmem_figures, extmem_linux, extmem_matrix, extmem_programs
from demeter_lab.extmem_bench import Bench, BenchError, Cell, KilledError, Program, rated
from demeter_lab.results import ResultError


def test_ratios_are_of_neighbouring_slices() -> None:
    cell = Cell("hot-read", 1, "page-cluster=0,zswap=off", 1.0, [2.0, 9.0, 4.0], [1.0, 3.0, 4.0])
    row = cell.summary()
    assert (row["ratio_min"], row["ratio_median"], row["ratio_max"]) == (1.0, 2.0, 3.0)
    assert row["met"] is True


def test_slices_in_which_linux_had_more_dram_do_not_count() -> None:
    cell = Cell("hot-read", 1, "page-cluster=0,zswap=on", 1.0, [2.0, 9.0, 4.0], [10.0, 3.0, 4.0])
    cell.over = [True, False, False]
    row = cell.summary()
    assert (row["ratio_min"], row["ratio_max"], row["rounds"]) == (1.0, 3.0, 2)
    assert row["linux_slices_over_dram"] == 1
    # Where it had in all of them they are what there is.
    cell.over = [True] * 3
    assert cell.summary()["rounds"] == 3


class Living:
    """A program that is killed with all settings but some; ``now`` has the one in force."""

    def __init__(self, rates: dict[extmem_linux.Setting, float], now: list) -> None:
        self.rates, self.now = rates, now
        self.revived: list[extmem_linux.Setting] = []

    def ask(self, _: str) -> dict[str, float]:
        if self.now[-1] not in self.rates:
            raise KilledError("killed")
        return {"per_s": self.rates[self.now[-1]]}

    def revive(self) -> None:
        self.revived.append(self.now[-1])


def test_only_the_setting_that_kills_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    now: list[extmem_linux.Setting] = []
    monkeypatch.setattr(extmem_linux.Knobs, "apply", now.append)
    monkeypatch.setattr(Bench, "is_paid", lambda *_: True)
    monkeypatch.setattr(Bench, "note", lambda *given: given[-1]["per_s"])
    bench = object.__new__(Bench)
    bench.plan = extmem_matrix.quick(1 << 30)
    bench.rejected, bench.left_out = [], set()
    off, on = (
        [extmem_linux.Setting(cluster, zswap) for cluster in bench.plan.page_clusters]
        for zswap in (False, True)
    )
    plain = Living(dict.fromkeys(off, 1.0), now)
    packed = Living({on[0]: 5.0}, now)
    others = {False: plain, True: packed}
    programs = (Living(dict.fromkeys(off + on, 1.0), now), others)
    assert bench.best_setting("xsbench", "2", 2, programs) == on[0]  # type: ignore[arg-type]
    assert bench.left_out == {on[1]}
    assert packed.revived == [on[0]]
    assert not plain.revived
    # The other one, too: nobody starts the program again, nor asks it to end in order.
    packed.rates.clear()
    assert bench.best_setting("xsbench", "2", 2, programs) in off  # type: ignore[arg-type]
    assert others == {False: plain}
    # Nothing is left at last.
    plain.rates.clear()
    with pytest.raises(BenchError, match="keeps the program alive"):
        bench.best_setting("xsbench", "2", 2, programs)  # type: ignore[arg-type]


def test_a_program_that_is_revived_is_warm() -> None:
    script = 'while read -r line; do n=$((n + 1)); echo "{\\"per_s\\": $n}"; done'
    program = Program("counter", ["sh", "-c", script], greets=False, restarts=True)
    try:
        assert program.ask("2 0.5") == {"per_s": 1}
        program.kill()
        program.restarts = 5
        program.revive()
        assert (program.restarts, program.forgiven) == (0, 5)
        # Slices that do not count are behind it.
        assert program.ask("2 0.5") == {"per_s": 1 + Program.COLD_SLICES}
    finally:
        program.kill()


def test_what_zswap_holds_is_paid_for_once_it_is_charged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "group").mkdir()
    group = extmem_linux.Group("v1", tmp_path, "group", None)
    bill = extmem_linux.ZswapBill(group, 100 * extmem_linux.MIB)
    monkeypatch.setattr(extmem_linux, "zswap_bytes", lambda: 30 * extmem_linux.MIB)
    assert not bill.is_paid()
    bill.charged_bytes = 28 * extmem_linux.MIB
    assert bill.is_paid()


def test_a_missed_mark_is_said(tmp_path: Path) -> None:
    cell = Cell("sequential-read", 2, "page-cluster=5,zswap=off", 2.0, [1.5], [1.0])
    assert cell.summary()["met"] is False
    summary = {"sequential-read/huge": {"2": cell.summary()}}
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    table = extmem_figures.write(tmp_path)
    assert "**1.50**" in table
    assert "| huge |" in table
    assert (tmp_path / "sequential-read.svg").stat().st_size > 1000


def test_a_cell_has_its_profile(tmp_path: Path) -> None:
    cell = Cell("random-read", 1, "page-cluster=0,zswap=off", 1.0, [1.0], [2.0])
    cell.extmem_rows.append({"touches": 10, "read_bytes": 5 * 4096, "cpu_seconds": 1e-3})
    linux_row = {"touches": 20, "read_bytes": 5 * 4096, "major_faults": 5, "cpu_seconds": 1e-3}
    cell.linux_rows.append(linux_row)
    summary = {"random-read": {"1": cell.summary()}}
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    assert "| 0.5, 0.25; 1e+02, 50 µs |" in extmem_figures.write(tmp_path)


def test_of_threads_that_walk_all_touches_are_told_too(tmp_path: Path) -> None:
    cell = Cell("sequential-read", 2, "page-cluster=5,zswap=off", 2.0, [2.0], [1.0])
    zeros = {"read_bytes": 0, "cpu_seconds": 1e-3, "major_faults": 0, "seconds": 1}
    # The slowest thread is twice as fast; all of them do a fourth.
    cell.extmem_rows.append({"touches": 200, **zeros})
    cell.linux_rows.append({"touches": 800, **zeros})
    assert cell.summary()["all_touches_ratio"] == 0.25
    (tmp_path / "summary.json").write_text(json.dumps({cell.pattern: {"2": cell.summary()}}))
    assert "| 2.00 (2.00\u20132.00) | 0.25 |" in extmem_figures.write(tmp_path)
    cell.threads = 1
    assert "all_touches_ratio" not in cell.summary()


def _run(folder: Path, ratio: float, name: str = "hot-read") -> Path:
    folder.mkdir()
    cell = Cell(name, 1, "page-cluster=0,zswap=off", 1.0, [ratio], [1.0])
    (folder / "summary.json").write_text(json.dumps({name: {"1": cell.summary()}}))
    (folder / "manifest.json").write_text('{"cpus": 2}')
    return folder


def test_of_several_runs_the_middle_one_counts(tmp_path: Path) -> None:
    runs = [_run(tmp_path / str(at), ratio) for at, ratio in enumerate((1.4, 0.9, 0.7))]
    extmem_figures.median_run(runs, tmp_path)
    cell = json.loads((tmp_path / "summary.json").read_text())["hot-read"]["1"]
    assert (cell["ratio_min"], cell["ratio_median"], cell["ratio_max"]) == (0.7, 0.9, 1.4)
    assert cell["runs"] == [1.4, 0.9, 0.7]
    assert cell["met"] is False
    assert extmem_figures.met(tmp_path) == "0 of 1 cells reach their mark"
    # Of two the lower one: a mark is not met by half of the runs.
    extmem_figures.median_run(runs[:2], tmp_path)
    assert "**0.90**" in extmem_figures.write(tmp_path)
    extmem_figures.median_run(runs[:1], tmp_path)
    assert extmem_figures.met(tmp_path) == "1 of 1 cells reach their mark"


def test_runs_of_another_matrix_are_refused(tmp_path: Path) -> None:
    runs = [_run(tmp_path / "a", 1.0), _run(tmp_path / "b", 1.0, "hot-write")]
    with pytest.raises(ResultError, match="has other cells than"):
        extmem_figures.median_run(runs, tmp_path)
    (runs[1] / "manifest.json").write_text('{"cpus": 64}')
    with pytest.raises(ResultError, match=r"differs from .* in cpus"):
        extmem_figures.median_run(runs, tmp_path)
    (runs[1] / "manifest.json").unlink()
    with pytest.raises(ResultError, match="has no manifest"):
        extmem_figures.median_run(runs, tmp_path)


def test_threads_that_walk_are_as_fast_as_the_slowest() -> None:
    row = {"threads": 2, "touches": 1010, "least_touches": 10, "seconds": 2.0}
    assert rated(dict(row), "sequential-read 2 1.0 0")["per_s"] == 10.0
    assert "per_s" not in rated(dict(row), "random-read 2 1.0 0")


def test_what_a_machine_holds_back_is_set_and_put_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = tmp_path / "queue"
    queue.mkdir()
    kdamond = tmp_path / "kdamonds" / "0"
    kdamond.mkdir(parents=True)
    files = {
        queue / "rotational": ("1", "0"),
        queue / "scheduler": ("none [mq-deadline] bfq", "none"),
        tmp_path / "poll": ("0", "200000"),
        kdamond / "state": ("on", "off"),
    }
    for file, (before, _) in files.items():
        file.write_text(before + "\n")
    monkeypatch.setattr(extmem_linux, "queue_of", lambda _: queue)
    monkeypatch.setattr(extmem_linux.Machine, "HALT_POLL", tmp_path / "poll")
    monkeypatch.setattr(extmem_linux.Machine, "VMA_READAHEAD", tmp_path / "missing")
    monkeypatch.setattr(extmem_linux.Machine, "DAMON", tmp_path / "kdamonds")
    machine = extmem_linux.Machine(tmp_path)
    assert machine.prepare() == {str(file): after for file, (_, after) in files.items()}
    machine.restore()
    assert (queue / "scheduler").read_text() == "mq-deadline"
    assert (kdamond / "state").read_text() == "on"
    assert not (tmp_path / "missing").exists()


def test_bad_summaries_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ResultError, match="missing"):
        extmem_figures.rows(tmp_path)
    for text in ("", "[]", "{}", '{"a": {"x": {}}}', '{"a": {"1": {"ratio_median": "x"}}}'):
        (tmp_path / "summary.json").write_text(text)
        with pytest.raises(ResultError):
            extmem_figures.rows(tmp_path)


def test_every_pattern_has_a_mark_and_a_name_of_its_own() -> None:
    for plan in (extmem_matrix.full(1 << 30), extmem_matrix.quick(1 << 30)):
        names = [
            (pattern + family.suffix, threads)
            for family in plan.families
            for pattern in family.patterns
            for threads in family.threads
        ]
        assert len(names) == len(set(names))
        for family in plan.families:
            for pattern in family.patterns:
                assert (family.mark(pattern) is None) == bool(family.stress)


@pytest.mark.parametrize("refusals", [0, 2, 9])
def test_swap_is_switched_off_or_said_to_be_left(
    refusals: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    active, tries = {str(tmp_path)}, []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        tries.append(command)
        if len(tries) > refusals:
            active.clear()
            return subprocess.CompletedProcess(command, 0, "", "")
        return subprocess.CompletedProcess(command, 255, "", "swapoff: failed")

    monkeypatch.setattr(extmem_linux, "_swaps", lambda: active)
    monkeypatch.setattr(extmem_linux.subprocess, "run", run)
    monkeypatch.setattr(extmem_linux.time, "sleep", lambda _: None)
    if refusals < extmem_linux.SWAPOFF_TRIES:
        extmem_linux.switch_off(tmp_path)
        assert len(tries) == refusals + 1
    else:
        with pytest.raises(extmem_linux.LinuxError, match="failed; next: `swapoff"):
            extmem_linux.switch_off(tmp_path)


def row_of(status: int, digest: str, errors: str, plain_bytes: int = 9) -> extmem_programs.Row:
    """Return a row whose plain run ended well."""
    program = extmem_programs.Program("p", "true", "true")
    plain = extmem_programs.Run(0, "same", plain_bytes, 20, 1.0, "")
    paged = extmem_programs.Run(status, digest, 9, 20, 1.0, errors)
    return extmem_programs.Row(program, plain, 16, paged, 0)


@pytest.mark.parametrize(
    ("status", "digest", "errors", "verdict"),
    [
        (0, "same", "", "same"),
        (0, "other", "", "**other output**"),
        (0, "other", "demeter extmem: 1 program ran without the pager", "**other output**; 1 pro"),
        (70, "other", "demeter extmem: error: swap is full", "status 70: error: swap is full"),
        (2, "other", "demeter: error: a is static; next: b", "refused: error: a is static"),
        (2, "other", "sort: no such file", "status 2: sort: no such file"),
        (1, "other", "demeter extmem: 1 requests were refused, for swap is", "refused: 1 requests"),
        (-9, "other", "", "not done after"),
    ],
)
def test_what_went_wrong_is_not_called_refused(
    status: int, digest: str, errors: str, verdict: str
) -> None:
    """A program that wrote something else, or was ended, was not refused."""
    row = row_of(status, digest, errors)
    assert row.verdict().startswith(verdict)
    assert row.is_same() == (verdict == "same")
    assert row.is_refused() == verdict.startswith("refused")


def test_a_program_that_writes_nothing_shows_nothing() -> None:
    """Two runs that fail alike must not look alike."""
    row = row_of(0, "same", "", plain_bytes=0)
    assert not row.is_same() and "wrote nothing" in row.verdict()


def test_a_row_needs_the_program_it_is_about(tmp_path: Path) -> None:
    """A row about vim whose first word is cp must not run without vim."""
    assert extmem_programs.is_there("sh cat")
    assert not extmem_programs.is_there("sh no-such-program")
    (tmp_path / "15").mkdir()
    assert extmem_programs.is_there(f"sh {tmp_path}/*")
    assert not extmem_programs.is_there(f"sh {tmp_path}/*/bin/postgres")


def test_a_run_does_not_find_what_the_one_before_left(tmp_path: Path) -> None:
    """What a run was given stays."""
    (tmp_path / "given").write_text("")
    kept = set(tmp_path.iterdir())
    (tmp_path / "left").write_text("")
    (tmp_path / "tree" / "below").mkdir(parents=True)
    extmem_programs.clear(tmp_path, kept)
    assert set(tmp_path.iterdir()) == kept
