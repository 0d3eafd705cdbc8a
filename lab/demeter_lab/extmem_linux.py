# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Linux swap as the alternative that ``demeter extmem`` is measured against.

A memory control group holds the program to its share of DRAM, a swap file of its
own takes the rest. Everything that is changed on the machine (swap file, control
group, ``vm.page-cluster``, zswap) is put back when the context ends.
"""

import contextlib
import os
import re
import select
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

MIB = 1 << 20
SWAP_PREFIX = "demeter-extmem-swap-"
SWAPOFF_TRIES = 5
ZSWAP = Path("/sys/module/zswap/parameters")
PAGE_CLUSTER = Path("/proc/sys/vm/page-cluster")


class LinuxError(Exception):
    """Something this kernel does not offer or refuses; the message says what to do."""


@dataclass(frozen=True)
class Setting:
    """One way to run Linux swap.

    ``page_cluster``: a fault reads 2**page_cluster pages, its neighbours by address
    (:class:`Machine` sees to it); ``zswap``: whether evicted pages are kept compressed in
    memory first.
    """

    page_cluster: int
    zswap: bool

    def __str__(self) -> str:
        """Return the setting as it is named in tables."""
        return f"page-cluster={self.page_cluster},zswap={'on' if self.zswap else 'off'}"


def available() -> dict[str, bool | str]:
    """Say what of the baseline this machine offers."""
    return {
        "kernel": os.uname().release,
        "root": os.geteuid() == 0,
        "memory_cgroup": _memory_hierarchy() or "not mounted",
        "zswap": (ZSWAP / "enabled").exists(),
        "other_swap": len(_swaps()) > 0,
        "multi_gen_lru": Path("/sys/kernel/mm/lru_gen/enabled").exists(),
    }


def _swaps() -> list[str]:
    return [line.split()[0] for line in Path("/proc/swaps").read_text().splitlines()[1:]]


def _memory_hierarchy() -> str | None:
    """Return ``v1:PATH`` or ``v2:PATH`` of a hierarchy with the memory controller."""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, path, kind, options, *_ = line.split()
        if kind == "cgroup" and "memory" in options.split(","):
            return f"v1:{path}"
        if kind == "cgroup2":
            controllers = Path(path, "cgroup.controllers")
            if controllers.exists() and "memory" in controllers.read_text().split():
                return f"v2:{path}"
    return None


@contextlib.contextmanager
def memory_hierarchy() -> Iterator[tuple[str, Path]]:
    """Yield version and path of the memory controller; mounted for now if it is not."""
    found = _memory_hierarchy()
    if found:
        version, _, path = found.partition(":")
        yield version, Path(path)
        return
    with tempfile.TemporaryDirectory(prefix="demeter-cgroup-") as folder:
        command = ["mount", "-t", "cgroup", "-o", "memory", "memory", folder]
        if subprocess.run(command, capture_output=True, check=False).returncode != 0:
            raise LinuxError(
                "this kernel offers no memory control group; next: boot one with CONFIG_MEMCG"
            )
        try:
            yield "v1", Path(folder)
        finally:
            subprocess.run(["umount", folder], check=False)


class Group:
    """A memory control group; ``limit_bytes`` of None leaves it unlimited."""

    def __init__(self, version: str, root: Path, name: str, limit_bytes: int | None) -> None:
        """Create it; an old, empty one of that name is taken over."""
        self.version = version
        self.path = root / name
        if version == "v2":
            (root / "cgroup.subtree_control").write_text("+memory")
        self.path.mkdir(exist_ok=True)
        if limit_bytes is not None:
            self.limit(limit_bytes)

    def limit(self, limit_bytes: int) -> bool:
        """Set the limit; whether it is set.

        Lowering it makes the kernel evict; EBUSY means not all at once.
        """
        name = "memory.max" if self.version == "v2" else "memory.limit_in_bytes"
        try:
            (self.path / name).write_text(str(limit_bytes))
        except OSError:
            return False
        return True

    def command(self, command: list[str]) -> list[str]:
        """Return a command that enters the group and becomes ``command``."""
        return ["sh", "-c", 'echo $$ >"$0" && exec "$@"', str(self.path / "cgroup.procs"), *command]

    def peak_bytes(self) -> int:
        """Return the most memory the group has held, 0 if the kernel does not say."""
        return self._bytes("memory.peak" if self.version == "v2" else "memory.max_usage_in_bytes")

    def used_bytes(self) -> int:
        """Return the memory the group holds now, 0 if the kernel does not say."""
        return self._bytes("memory.current" if self.version == "v2" else "memory.usage_in_bytes")

    def _bytes(self, name: str) -> int:
        try:
            return int((self.path / name).read_text())
        except OSError:
            return 0

    def reset_peak(self) -> None:
        """Count the peak from now on, where the kernel can."""
        name = "memory.peak" if self.version == "v2" else "memory.max_usage_in_bytes"
        with contextlib.suppress(OSError):
            (self.path / name).write_text("0")

    def was_short(self) -> bool:
        """Say whether it ever wanted more than its limit; only version 1 tells."""
        try:
            return int((self.path / "memory.failcnt").read_text()) > 0
        except OSError:
            return False

    def remove(self) -> None:
        """Remove it, as soon as its processes have ended."""
        for _ in range(100):
            try:
                self.path.rmdir()
            except OSError:
                time.sleep(0.05)
            else:
                return


def remove_groups(root: Path, prefix: str) -> None:
    """End what an earlier run left in its groups when it was killed.

    With the kernel's killing off it would sleep for ever, and keep swap in use.
    """
    for path in root.glob(f"{prefix}*"):
        with contextlib.suppress(OSError):
            (path / "memory.oom_control").write_text("0")
        with contextlib.suppress(OSError, ProcessLookupError):
            for process in (path / "cgroup.procs").read_text().split():
                os.kill(int(process), signal.SIGKILL)
        with contextlib.suppress(OSError):
            time.sleep(0.2)
            path.rmdir()


def remove_leftovers(folder: Path) -> None:
    """Switch off and delete swap files of an earlier run that was killed."""
    active = _swaps()
    for file in folder.glob(f"{SWAP_PREFIX}*"):
        if str(file) in active:
            switch_off(file)
        file.unlink(missing_ok=True)


def switch_off(file: Path) -> None:
    """Take a file out of use as swap; it may take several tries beside programs that end.

    Raises LinuxError when it stays in use.
    """
    said = ""
    for _ in range(SWAPOFF_TRIES):
        done = subprocess.run(["swapoff", str(file)], capture_output=True, text=True, check=False)
        if str(file) not in _swaps():
            return
        said = done.stderr.strip() or f"swapoff ended with status {done.returncode}"
        time.sleep(1)
    raise LinuxError(f"{said}; next: `swapoff {file}`, then delete the file")


@contextlib.contextmanager
def swap_file(folder: Path, size_bytes: int) -> Iterator[Path]:
    """Yield a swap file that is in use, ahead of any other swap of the machine."""
    remove_leftovers(folder)
    file = folder / f"{SWAP_PREFIX}{os.getpid()}"
    try:
        with file.open("wb") as out:
            os.fchmod(out.fileno(), 0o600)
            os.posix_fallocate(out.fileno(), 0, size_bytes)
        for command in (["mkswap", "-q", str(file)], ["swapon", "-p", "32767", str(file)]):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise LinuxError(
                    f"{' '.join(command)}: {done.stderr.strip()}; next: "
                    "give --swap a folder on a file system that can hold swap, such as ext4"
                )
        yield file
    except OSError as error:
        raise LinuxError(f"{file}: {error}; next: free space or give another --swap") from None
    finally:
        if str(file) in _swaps():
            switch_off(file)
        file.unlink(missing_ok=True)


class Knobs:
    """``vm.page-cluster`` and zswap: set before a slice, put back at the end."""

    def __init__(self) -> None:
        """Note the present values and choose zswap's fastest compressor."""
        self.files = [PAGE_CLUSTER]
        if ZSWAP.exists():
            names = ("enabled", "compressor", "shrinker_enabled")
            self.files += [ZSWAP / name for name in names if (ZSWAP / name).exists()]
        self.before = [(file, file.read_text().strip()) for file in self.files]
        # The kernel takes any name and falls back silently when it lacks it.
        known = re.findall(r"^name\s*: (\S+)$", Path("/proc/crypto").read_text(), re.MULTILINE)
        fastest = next((name for name in ("lz4", "lzo-rle") if name in known), None)
        if ZSWAP.exists() and fastest:
            with contextlib.suppress(OSError):
                (ZSWAP / "compressor").write_text(fastest)

    @staticmethod
    def compressor() -> str:
        """Return zswap's compressor."""
        try:
            return (ZSWAP / "compressor").read_text().strip()
        except OSError:
            return "none"

    @staticmethod
    def apply(setting: Setting) -> None:
        """Make the kernel follow a setting from now on."""
        PAGE_CLUSTER.write_text(str(setting.page_cluster))
        if ZSWAP.exists():
            (ZSWAP / "enabled").write_text("Y" if setting.zswap else "N")

    def restore(self) -> None:
        """Put everything back, the switch last."""
        for file, value in reversed(self.before):
            with contextlib.suppress(OSError):
                file.write_text(value)


def queue_of(folder: Path) -> Path | None:
    """Return the queue's directory in sysfs of the disk that a folder lies on, if it has one."""
    device = os.stat(folder).st_dev
    node = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").resolve()
    # A partition has its disk's queue.
    found = [place / "queue" for place in (node, node.parent) if (place / "queue").is_dir()]
    return found[0] if found else None


class Machine:
    """What a machine does by default that holds swap back: otherwise while it is measured.

    A virtual disk may say that it rotates: then the kernel reads ahead by swap slot in place
    of by address, and hands slots out as it would on a spinning disk. Writes of swap are
    throttled (direct ones are not), requests pass through a scheduler that sorts for a seek
    time, an idle processor goes back to the hypervisor at once, which makes each wait for a
    page dear, and DAMON may page out whatever looks cold.
    """

    HALT_POLL = Path("/sys/module/haltpoll/parameters/guest_halt_poll_ns")
    VMA_READAHEAD = Path("/sys/kernel/mm/swap/vma_ra_enabled")
    DAMON = Path("/sys/kernel/mm/damon/admin/kdamonds")
    #: How long an idle processor looks for work, in nanoseconds; the kernel's own default.
    HALT_POLL_NS = 200_000

    def __init__(self, folder: Path) -> None:
        """Find what there is to set for swap in ``folder``; nothing is set yet."""
        wanted = [(self.HALT_POLL, str(self.HALT_POLL_NS)), (self.VMA_READAHEAD, "true")]
        if queue := queue_of(folder):
            wanted += [(queue / "rotational", "0"), (queue / "wbt_lat_usec", "0")]
            wanted += [(queue / "scheduler", "none")]
        wanted += [(state, "off") for state in self.DAMON.glob("*/state") if value(state) == "on"]
        # Some are there and cannot be read (`wbt_lat_usec` of a disk that throttles nothing).
        self.wanted = [(file, text) for file, text in wanted if value(file)]
        self.before: list[tuple[Path, str]] = []

    def prepare(self) -> dict[str, str]:
        """Set all that can be set; return what is in force, by the files' names."""
        for file, text in self.wanted:
            before = value(file)
            with contextlib.suppress(OSError):
                file.write_text(text)
                self.before.append((file, before))
        return {str(file): value(file) for file, _ in self.wanted}

    def restore(self) -> None:
        """Put everything back."""
        while self.before:
            file, before = self.before.pop()
            with contextlib.suppress(OSError):
                file.write_text(before)


def value(file: Path) -> str:
    """Return what is set, of a choice the word in brackets; empty if that cannot be read."""
    try:
        text = file.read_text().strip()
    except OSError:
        return ""
    chosen = re.search(r"\[(.*?)\]", text)
    return chosen[1] if chosen else text


def zswap_bytes() -> int:
    """Return how much memory zswap holds now, on the whole machine."""
    found = re.search(r"^Zswap:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


class Attendant(contextlib.AbstractContextManager["Attendant"]):
    """A thread beside a program of a version 1 group, that changes the group's limit."""

    def __init__(self, group: Group, limit_bytes: int) -> None:
        """Note whose limit."""
        self.group, self.limit_bytes = group, limit_bytes
        self.end = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        """Begin, if the group is one of version 1."""
        if self.group.version == "v1":
            self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End; the limit stays as it is."""
        self.end.set()
        if self.thread.is_alive():
            self.thread.join()


class Patience(Attendant):
    """Keeps the kernel from killing what finds no memory in a version 1 group.

    Where every page was used just now the kernel gives up, though swap is free. With its
    killing off, who touches a page sleeps until there is room. A thread has the kernel look
    for it once more, now that nobody uses pages, and if that is in vain lends a little, which
    is asked back bit by bit: for all of it at once the kernel refuses for long. All of that is
    part of the program's time. Who slept for `MOST_S` in all is left to be killed. Version 2
    groups have no such switch.
    """

    #: How often it looks, also where the kernel does not tell when somebody sleeps; and while
    #: memory is lent.
    LOOK_S = 0.005
    BACK_S = 0.002
    #: Who was woken up must run before the kernel says so.
    WAKE_S = 0.001
    #: What the kernel is asked to find, and what is lent, or asked back, at a time.
    FOUND_BYTES = MIB // 4
    LENT_BYTES = MIB // 16
    #: Of the limit, one part in so many is lent at most.
    MOST_SHARE = 64
    MOST_S = 20.0

    def __init__(self, group: Group, limit_bytes: int) -> None:
        """Note whom to help."""
        super().__init__(group, limit_bytes)
        self.control = group.path / "memory.oom_control"
        self.whole_bytes = limit_bytes
        self.lent_bytes = 0
        self.notice: int | None = None
        #: How often the program was helped, how often memory was lent, and for how long in all.
        self.helped = 0
        self.lent = 0
        self.lent_s = 0.0
        #: For how long the program slept where it would have been killed.
        self.waited_s = 0.0

    def has_given_up(self) -> bool:
        """Say whether it was left to be killed."""
        return self.waited_s > self.MOST_S

    def peak_bytes(self) -> int:
        """Return the most memory that the program had."""
        return self.group.peak_bytes()

    def _run(self) -> None:
        began = 0.0
        while not self.end.is_set():
            self._wait()
            before_bytes = self.lent_bytes
            if self._is_short() and self.has_given_up():
                self.control.write_text("0")
            elif self._is_short():
                self._help()
            elif self.lent_bytes and self._lend(self.lent_bytes - self.LENT_BYTES):
                self.lent_bytes -= self.LENT_BYTES
            if self.lent_bytes and not before_bytes:
                self.lent += 1
                began = time.monotonic()
            elif before_bytes and not self.lent_bytes:
                self.lent_s += time.monotonic() - began
            self.charge()
        if self.lent_bytes:
            self.lent_s += time.monotonic() - began
        # Who is tried again begins with what it should have.
        self.group.limit(self.whole_bytes)

    def _wait(self) -> None:
        """Sleep until somebody finds no memory, or for a moment."""
        most_s = self.BACK_S if self.lent_bytes else self.LOOK_S
        if self.notice is None:
            self.end.wait(most_s)
        elif select.select([self.notice], [], [], most_s)[0]:
            os.eventfd_read(self.notice)

    def _is_short(self) -> bool:
        return "under_oom 1" in self.control.read_text()

    def _lend(self, lent_bytes: int) -> bool:
        return self.group.limit(self.limit_bytes + lent_bytes)

    def _help(self) -> None:
        """Find memory for who sleeps."""
        began = time.monotonic()
        self.helped += 1
        most_bytes = max(self.whole_bytes // self.MOST_SHARE, self.LENT_BYTES)
        while self._is_short() and not self.end.is_set():
            if self.waited_s + time.monotonic() - began > self.MOST_S:
                break
            # A lower limit has the kernel evict; only a wider one wakes up who waits.
            if self._lend(self.lent_bytes - self.FOUND_BYTES):
                self._lend(self.lent_bytes)
            elif self.lent_bytes + self.LENT_BYTES <= most_bytes:
                self.lent_bytes += self.LENT_BYTES
                self._lend(self.lent_bytes)
            time.sleep(self.WAKE_S)
        self.waited_s += time.monotonic() - began

    def charge(self) -> None:
        """Have the group pay for what else is memory of the program's; here for nothing."""

    def __enter__(self) -> Self:
        """Begin helping, where the kernel lets us."""
        if self.group.version == "v1":
            with contextlib.suppress(OSError):
                self.control.write_text("1")
                self._be_told()
                return super().__enter__()
        return self

    def _be_told(self) -> None:
        """Have the kernel tell when somebody finds no memory, where it can."""
        with contextlib.suppress(OSError), self.control.open() as control:
            notice = os.eventfd(0, os.EFD_CLOEXEC)
            try:
                registration = self.group.path / "cgroup.event_control"
                registration.write_text(f"{notice} {control.fileno()}")
                self.notice = notice
            finally:
                if self.notice is None:
                    os.close(notice)

    def __exit__(self, *_: object) -> None:
        """End; the limit is the whole again."""
        super().__exit__()
        if self.notice is not None:
            os.close(self.notice)
            self.notice = None


class ZswapBill(Attendant):
    """Charges zswap's memory to a version 1 group, where the kernel does not.

    A thread lowers the group's limit by what zswap holds, 20 times a second, so that
    compressed pages count as DRAM. Version 2 groups are charged by the kernel.
    """

    LOOK_S = 0.05
    #: What the limit is lowered by.
    charged_bytes = 0

    def most_bytes(self) -> int:
        """Return what can be charged: the program needs some of its limit itself."""
        return self.limit_bytes * 3 // 4

    def is_paid(self) -> bool:
        """Say whether the group is charged for all that zswap holds now, but a fiftieth.

        Recent kernels keep pages that do not compress in zswap as they are, without a
        bound but a share of the machine. And a program that was killed and started once more
        has all of its limit, until what is in zswap by then could be taken off it.
        """
        slack_bytes = self.limit_bytes // 50
        return self.group.version != "v1" or zswap_bytes() <= self.charged_bytes + slack_bytes

    def charge(self) -> int:
        """Lower the limit by what zswap holds, as far as can be; return what it holds."""
        held_bytes = zswap_bytes()
        wanted_bytes = min(held_bytes, self.most_bytes())
        changed_bytes = abs(wanted_bytes - self.charged_bytes)
        # Refused while the kernel finds nothing to evict: tried again.
        if changed_bytes >= MIB and self.group.limit(self.limit_bytes - wanted_bytes):
            self.charged_bytes = wanted_bytes
        return held_bytes

    def _run(self) -> None:
        while not self.end.wait(self.LOOK_S):
            self.charge()


class PatientBill(Patience):
    """Both in one: the group is charged for zswap's memory, and nothing is killed."""

    def __init__(self, group: Group, limit_bytes: int) -> None:
        """Note whom to help, and to charge."""
        super().__init__(group, limit_bytes)
        self.bill = ZswapBill(group, limit_bytes)
        self.charged_at = 0.0
        self.most_bytes = 0
        #: Looks, and those at which the group could not be charged for all.
        self.looks = 0
        self.unpaid = 0

    def charge(self) -> None:
        """Lower the limit by what zswap holds, as often as :class:`ZswapBill` does."""
        now = time.monotonic()
        if now - self.charged_at < ZswapBill.LOOK_S:
            return
        self.charged_at = now
        self.looks += 1
        self.bill.limit_bytes = self.whole_bytes + self.lent_bytes
        held_bytes = self.bill.charge()
        self.most_bytes = max(self.most_bytes, self.group.used_bytes() + held_bytes)
        self.limit_bytes = self.whole_bytes - self.bill.charged_bytes
        self.unpaid += held_bytes - self.bill.charged_bytes >= MIB

    def peak_bytes(self) -> int:
        """Return the most memory that was seen, zswap's with it."""
        return self.most_bytes
