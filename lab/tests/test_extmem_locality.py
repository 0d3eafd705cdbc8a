# SPDX-License-Identifier: Apache-2.0 OR MIT
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from demeter_lab import extmem_linux, extmem_locality
from demeter_lab.extmem_locality import Locality, LocalityError, Program, Row, Run

OUTPUT = Program("loop", (sys.executable, "-c", "print(sum(range(9)))"), 64)


def test_a_row_says_rates_of_pairs_and_medians() -> None:
    row = Row(Program("sort", (), 64), "page-cluster=5,zswap=off")
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
    table = next(one for one in extmem_locality.PROGRAMS if one.name == "hash table, small")
    first = extmem_locality._run(list(table.command), tmp_path)
    again = extmem_locality._run(list(table.command), tmp_path)
    assert first[0] == 0
    assert first[1].digest == again[1].digest
    assert first[1].cpu_seconds > 0


#: What the group was limited to.
limits: list[int] = []


@pytest.fixture
def locality(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Locality:
    limits.clear()

    class Ungrouped:
        version = "none"
        path = Path("none")

        def __init__(self, *_: object) -> None:
            pass

        def command(self, command: list[str]) -> list[str]:
            return command

        def was_short(self) -> bool:
            return False

        def limit(self, limit_bytes: int) -> bool:
            limits.append(limit_bytes)
            return True

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
    # And has a little more DRAM the third time.
    assert limits == [64 << 20, 64 << 20, 65 << 20]
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
    """A group of 64 MiB, and what its kernel does with limits: only a wider one wakes up who
    waits, if by then there is room."""

    whole = 64 << 20

    def __init__(self, tmp_path: Path, missing_bytes: int, evictable_bytes: int = 0) -> None:
        self.group = extmem_linux.Group("v1", tmp_path, "group", None)
        self.group.limit = self.limit  # type: ignore[method-assign]
        self.control = self.group.path / "memory.oom_control"
        self.now, self.evictable_bytes = self.whole, evictable_bytes
        self.missing_bytes = missing_bytes
        self.seen: list[int] = []

    def limit(self, limit_bytes: int) -> bool:
        self.seen.append(limit_bytes)
        if limit_bytes < self.now - self.evictable_bytes:
            return False
        wider, self.now = limit_bytes > self.now, limit_bytes
        if wider and limit_bytes + self.evictable_bytes >= self.whole + self.missing_bytes:
            self.short(False)
            self.evictable_bytes = self.whole
        return True

    def short(self, is_short: bool) -> None:
        self.control.write_text(f"oom_kill_disable 1\nunder_oom {int(is_short)}\n")

    def is_short(self) -> bool:
        return "under_oom 1" in self.control.read_text()


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.001)


def test_memory_is_lent_a_little_and_asked_back(tmp_path: Path) -> None:
    step = extmem_linux.Patience.LENT_BYTES
    kernel = Kernel(tmp_path, 3 * step)
    with extmem_linux.Patience(kernel.group, kernel.whole) as patience:
        assert kernel.control.read_text() == "1"
        kernel.short(True)
        until(lambda: kernel.whole in kernel.seen)
    assert max(kernel.seen) == kernel.whole + 3 * step
    assert kernel.seen[-4:-1] == [kernel.whole + step * at for at in (2, 1, 0)]
    assert (patience.helped, patience.lent, patience.lent_bytes) == (1, 1, 0)
    assert patience.lent_s > 0 and patience.waited_s > 0


def test_what_the_kernel_finds_is_not_lent(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path, 0, extmem_linux.Patience.FOUND_BYTES)
    with extmem_linux.Patience(kernel.group, kernel.whole) as patience:
        kernel.short(True)
        until(lambda: not kernel.is_short())
    assert max(kernel.seen) == kernel.whole
    assert (patience.helped, patience.lent) == (1, 0)


def test_who_is_short_for_long_is_not_lent_ever_more(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path, 64 << 20)
    with extmem_linux.Patience(kernel.group, kernel.whole) as patience:
        kernel.short(True)
        until(lambda: len(kernel.seen) > 100)
    assert max(kernel.seen) == kernel.whole * 65 // 64
    assert patience.limit_bytes == kernel.whole == kernel.seen[-1]


def test_what_is_lent_stays_so_while_zswap_is_paid_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = [0]
    monkeypatch.setattr(extmem_linux.ZswapBill, "LOOK_S", 0.0)
    monkeypatch.setattr(extmem_linux, "zswap_bytes", lambda: held[0])
    kernel = Kernel(tmp_path, 0)
    bill = extmem_linux.PatientBill(kernel.group, kernel.whole)
    bill.lent_bytes, held[0], kernel.evictable_bytes = 1 << 18, 8 << 20, 64 << 20
    (kernel.group.path / "memory.usage_in_bytes").write_text(str(50 << 20))
    bill.charge()
    assert kernel.now == kernel.whole - (8 << 20) + (1 << 18)
    assert bill.limit_bytes == kernel.whole - (8 << 20)
    assert bill.peak_bytes() == 58 << 20


def test_who_sleeps_for_too_long_is_left_to_the_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extmem_linux.Patience, "MOST_S", 0.05)
    kernel = Kernel(tmp_path, 64 << 20)
    with extmem_linux.Patience(kernel.group, kernel.whole) as patience:
        kernel.short(True)
        until(lambda: kernel.control.read_text() == "0")
    assert patience.has_given_up()


def test_a_setting_that_finds_no_memory_is_refused(
    locality: Locality, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extmem_linux.Patience, "has_given_up", lambda _: True)
    killed = Program("killed", (sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"), 64)
    with pytest.raises(LocalityError, match="no memory for 20 s with page-cluster=0"):
        locality.linux(killed, extmem_locality.SETTINGS[0])


def test_what_a_killed_run_left_in_its_groups_is_ended(tmp_path: Path) -> None:
    group = tmp_path / "demeter-locality-1"
    group.mkdir()
    sleeper = subprocess.Popen(["sleep", "1000"])
    (group / "memory.oom_control").write_text("1")
    (group / "cgroup.procs").write_text(f"{sleeper.pid}\n")
    extmem_linux.remove_groups(tmp_path, "demeter-locality-")
    assert sleeper.wait(timeout=20) == -9
    assert (group / "memory.oom_control").read_text() == "0"


def test_a_program_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(LocalityError, match="no program sart"):
        extmem_locality.measure(tmp_path, tmp_path, 1, {"sort", "sart"})


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
