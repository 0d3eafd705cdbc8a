# SPDX-License-Identifier: Apache-2.0 OR MIT
import sys
import time
from pathlib import Path

import pytest

from demeter_lab import extmem_linux, extmem_locality
from demeter_lab.extmem_locality import Locality, LocalityError, Program, Row, Run

OUTPUT = Program("loop", (sys.executable, "-c", "print(sum(range(9)))"), 64)


def test_a_row_says_rates_of_pairs_and_medians() -> None:
    row = Row(extmem_locality.SMALL[0], "page-cluster=5,zswap=off")
    row.extmem = [Run(2.0, 1.0, 10, "x"), Run(1.0, 3.0, 30, "x"), Run(4.0, 2.0, 20, "x")]
    row.linux = [
        Run(1.0, 1.0, 5, "x", 2),
        Run(2.0, 1.0, 6, "x", 0, 4, 0.5),
        Run(4.0, 1.0, 7, "x", 1),
    ]
    line = extmem_locality.table([row]).splitlines()[-1]
    assert line == (
        "| sort | 64, 0, 0 | 1.00 (0.50\u20132.00) | 2.0, 1.0 | 20, 6 "
        "| page-cluster=5,zswap=off, killed 3 times, lent memory 4 times (0.5 s), "
        "waited 0.0 s |"
    )


def test_the_hash_table_is_the_same_however_it_is_run(tmp_path: Path) -> None:
    table = next(one for one in extmem_locality.SMALL if one.name == "hash table")
    first = extmem_locality._run(list(table.command), tmp_path)
    again = extmem_locality._run(list(table.command), tmp_path)
    assert first[0] == 0
    assert first[1].digest == again[1].digest
    assert first[1].cpu_seconds > 0


@pytest.fixture
def locality(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Locality:
    class Ungrouped:
        version = "none"
        path = Path("none")

        def __init__(self, *_: object) -> None:
            pass

        def command(self, command: list[str]) -> list[str]:
            return command

        def was_short(self) -> bool:
            return False

        def reset_peak(self) -> None:
            pass

        def peak_bytes(self) -> int:
            return 0

        def remove(self) -> None:
            pass

    monkeypatch.setattr(extmem_linux, "Group", Ungrouped)
    monkeypatch.setattr(extmem_linux.Knobs, "apply", lambda _: None)
    return Locality(tmp_path / "none", tmp_path, tmp_path, ("v1", tmp_path))


def test_other_output_is_an_error(locality: Locality, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Locality, "extmem", lambda *_: Run(1.0, 1.0, 0, "other"))
    with pytest.raises(LocalityError, match="loop wrote something else"):
        locality.compare(OUTPUT, 1)


def test_kills_are_counted_and_bounded(locality: Locality) -> None:
    script = "import os, sys; n = len(open('runs', 'a+').read()); "
    script += "f = open('runs', 'a'); f.write('.'); f.close(); os.path.getsize('runs') < 3 and "
    script += "os.kill(os.getpid(), 9)"
    program = Program("killed", (sys.executable, "-c", script), 64)
    assert locality.linux(program, extmem_locality.SETTINGS[0]).kills == 2
    always = Program("killed", (sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"), 64)
    with pytest.raises(LocalityError, match="killed killed 13 times"):
        locality.linux(always, extmem_locality.SETTINGS[0])


def test_a_program_that_takes_too_long_is_not_taken_for_killed(
    locality: Locality, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extmem_locality, "LIMIT_S", 1)
    slow = Program("slow", (sys.executable, "-c", "import time; time.sleep(60)"), 64)
    with pytest.raises(LocalityError, match="not done after 1 s"):
        locality.linux(slow, extmem_locality.SETTINGS[0])


class Kernel:
    """A group whose kernel finds nothing to evict until so many bytes were lent."""

    def __init__(self, tmp_path: Path, enough_bytes: int) -> None:
        self.group = extmem_linux.Group("v1", tmp_path, "group", 0)
        self.group.limit = self.limit  # type: ignore[method-assign]
        self.control = self.group.path / "memory.oom_control"
        self.enough_bytes = enough_bytes
        self.seen: list[int] = []

    def limit(self, limit_bytes: int) -> bool:
        self.seen.append(limit_bytes)
        if limit_bytes >= self.enough_bytes:
            self.short(False)
        # Not at the first try.
        return len(self.seen) > 1

    def short(self, is_short: bool) -> None:
        self.control.write_text(f"oom_kill_disable 1\nunder_oom {int(is_short)}\n")


def test_memory_is_lent_a_little_and_asked_back(tmp_path: Path) -> None:
    whole, step = 64 << 20, extmem_linux.Patience.LENT_BYTES
    kernel = Kernel(tmp_path, whole + 2 * step)
    with extmem_linux.Patience(kernel.group, whole) as patience:
        assert kernel.control.read_text() == "1"
        kernel.short(True)
        while whole not in kernel.seen[5:]:
            time.sleep(0.001)
    # Asked to evict first; then lent twice, and asked back in small steps.
    back = extmem_linux.Patience.BACK_BYTES
    lent = [whole - step, whole, whole + step, whole, whole + step, whole + 2 * step]
    assert kernel.seen[:6] == lent
    assert kernel.seen[6:14] == [whole + 2 * step - back * at for at in range(1, 9)]
    assert (patience.lent, patience.lent_s > 0, patience.waited_s > 0) == (1, True, True)


def test_who_is_short_for_long_is_not_lent_ever_more(tmp_path: Path) -> None:
    whole = 64 << 20
    kernel = Kernel(tmp_path, 2 * whole)
    with extmem_linux.Patience(kernel.group, whole):
        kernel.short(True)
        while len(kernel.seen) < 200:
            time.sleep(0.001)
    assert max(kernel.seen) == whole + whole // extmem_linux.Patience.MOST_SHARE
    assert kernel.seen[-1] == whole


def test_who_sleeps_for_too_long_is_left_to_the_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extmem_linux.Patience, "MOST_S", 0.05)
    kernel = Kernel(tmp_path, 128 << 20)
    with extmem_linux.Patience(kernel.group, 64 << 20) as patience:
        kernel.short(True)
        while kernel.control.read_text() != "0":
            time.sleep(0.001)
    assert patience.has_given_up()


def test_a_setting_that_finds_no_memory_is_refused(
    locality: Locality, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extmem_linux.Patience, "has_given_up", lambda _: True)
    killed = Program("killed", (sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"), 64)
    with pytest.raises(LocalityError, match="no memory for 20 s with page-cluster=0"):
        locality.linux(killed, extmem_locality.SETTINGS[0])


def test_sleep_in_place_of_a_kill_does_not_count(
    locality: Locality, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = locality.linux(OUTPUT, extmem_locality.SETTINGS[0])
    assert plain.waited_seconds == 0
    enter = extmem_linux.Patience.__enter__

    def waited(patience: extmem_linux.Patience) -> extmem_linux.Patience:
        patience.waited_s = 1000.0
        return enter(patience)

    monkeypatch.setattr(extmem_linux.Patience, "__enter__", waited)
    run = locality.linux(OUTPUT, extmem_locality.SETTINGS[0])
    assert run.waited_seconds == 1000.0
    assert run.seconds < 0


def test_zswap_is_paid_for_and_what_cannot_be_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mib = extmem_linux.MIB
    held = iter([4 * mib, 4 * mib, 900 * mib])
    monkeypatch.setattr(extmem_linux.ZswapBill, "LOOK_S", 0.0)
    monkeypatch.setattr(extmem_linux, "zswap_bytes", lambda: next(held))
    (tmp_path / "group").mkdir()
    group = extmem_linux.Group("v1", tmp_path, "group", None)
    seen = []
    monkeypatch.setattr(group, "limit", lambda limit_bytes: not seen.append(limit_bytes))
    bill = extmem_linux.PatientBill(group, 64 * mib)
    for _ in range(3):
        bill.charge()
    # Charged once for what it holds; the third time for as much as can be, which is not all.
    assert seen == [60 * mib, 16 * mib]
    assert (bill.looks, bill.unpaid) == (3, 1)
