# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What a machine goes through beside running: migration, snapshots, hibernation, a crash.

And before that: wrong words in a guest's memory are seen by what the suites use to look.
"""

import mmap
import re
import struct
from dataclasses import replace
from pathlib import Path

from demeter_lab.balloon import keeper
from demeter_lab.balloon.checks import (
    DRIVER,
    Checks,
    counts_agree,
    intact,
    log_is_clean,
    put_data,
    settings,
    size_at,
)
from demeter_lab.balloon.daemon import Daemon
from demeter_lab.balloon.guest import (
    KERNEL_LINE,
    MIB,
    PAGE,
    Guest,
    GuestError,
    Settings,
    cache,
    plug,
    release,
    stock_modules,
    unplug,
)
from demeter_lab.balloon.migration import MORE_KIB, send, wait_migrated, wait_status

#: A disk for swap, of which the testbed has a driver, and those modules.
DISK_MODULES = (
    "libnvdimm.ko",
    "nd_btt.ko",
    "nd_pmem.ko",
    "nd_virtio.ko",
    "virtio_pmem.ko",
)
DISK_BYTES = 256 * MIB
#: Prepares a crash kernel.
LOADER = "load_crash_kernel"
#: Bytes a second at which a machine is sent.
BANDWIDTH = 20 * MIB
WORD = 8
#: A part in 16 of the program's pages is renewed in a round, by a lot of two.
LOTS, RENEWED = 16, 2
U64 = (1 << 64) - 1


def mixed(number: int) -> int:
    """Return what ``keep_pages`` draws its lots with."""
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & U64
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & U64
    return number ^ (number >> 31)


def kept_page(guest: Guest, node: int) -> int:
    """Return a page of the program's that it will not write to in its next rounds."""
    now = keeper.rounds(guest)
    for page in range(17, keeper.KEPT_MIB[node] * MIB // PAGE):
        lots = (mixed(number << 32 | page) % LOTS for number in range(now, now + 12))
        if min(lots) >= RENEWED:
            return page
    raise GuestError("all pages of the program are renewed soon")


def place_of(guest: Guest, node: int, page: int) -> tuple[int, int]:
    """Return the file, by node, and the offset there of a page that the program keeps."""
    maps = guest.must(f"cat /proc/$(pidof {keeper.NAME})/maps")
    spans = [[int(end, 16) for end in line.split()[0].split("-")] for line in maps.splitlines()]
    # One below the other, as they were made.
    areas = [begin for begin, end in spans if end - begin == keeper.KEPT_MIB[node] * MIB]
    if len(areas) != len(keeper.KEPT_MIB):
        raise GuestError(f"the program has {len(areas)} areas: {maps}")
    number = sorted(areas, reverse=True)[node] // PAGE + page
    entry = guest.must(
        f"dd if=/proc/$(pidof {keeper.NAME})/pagemap bs={WORD} skip={number} count=1 2>/dev/null"
        " | hexdump -v -e '1/1 \"%02x\"'"
    )
    address = (int.from_bytes(bytes.fromhex(entry), "little") & ((1 << 55) - 1)) * PAGE
    # These guests have no memory above 2 GiB, so none behind a hole.
    first = guest.node_bytes(0)
    return (0, address) if address < first else (1, address - first)


def check_kept(checks: Checks, guest: Guest, node: int) -> None:
    """Change one bit of a word that a guest's program keeps; it must say so."""
    keeper.keep(guest, keeper.KEPT_MIB)
    keeper.wait_checked(guest)
    page, word = kept_page(guest, node), 100
    file, offset = place_of(guest, node, page)
    with guest.nodes[file].open("r+b") as memory:
        memory.seek(offset)
        words = struct.unpack(f"{PAGE // WORD}Q", memory.read(PAGE))
        counted = all(words[at] == words[0] + at & U64 for at in range(len(words)))
        checks.that(f"node {node}: this is a page that the program keeps", counted, words[:2])
        memory.seek(offset + word * WORD)
        memory.write(struct.pack("Q", words[word] ^ 1 << 40))
    said = ""
    try:
        keeper.wait_checked(guest)
    except GuestError as error:
        said = str(error)
    told = f"node {node} page {page} word {word} " in said
    checks.that(f"node {node}: a changed bit of it ends the look at this guest", told, said)


def flip(guest: Guest, content: bytes, at: int) -> int:
    """Change a byte of each page of a guest that begins so; return how many there are."""
    found = 0
    for path in guest.nodes:
        with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
            where = memory.find(content)
            while where >= 0:
                if where % PAGE == 0:
                    memory[where + at] ^= 0x10
                    found += 1
                where = memory.find(content, where + 1)
    return found


def check_file(checks: Checks, guest: Guest, node: int) -> None:
    """Change one bit of a file that a guest has written; its sum must be wrong then."""
    page = f"dd if=/data{node}/x bs={PAGE} skip=1000 count=1 2>/dev/null | head -c 32"
    begins = bytes.fromhex(guest.must(page + " | hexdump -v -e '1/1 \"%02x\"'"))
    checks.that(f"data of node {node} is right", intact(guest))
    found = flip(guest, begins, 2000)
    checks.that(f"and is found wrong, a bit of it changed ({found} copies)", not intact(guest))
    flip(guest, begins, 2000)
    checks.that("and right, with the bit changed back", intact(guest))


def corrupted_guest(checks: Checks, directory: Path, kernel: str) -> None:
    """Write into a guest's memory from outside: what looks at it must find it."""
    made = Settings(kernel=kernel, node_mib=(144, 144), vcpus=1)
    made.files[keeper.NAME] = keeper.compiled(directory)
    with Guest("corrupted", directory, made) as guest:
        put_data(guest)
        for node in range(2):
            check_kept(checks, guest, node)
            check_file(checks, guest, node)


def check_arrived(checks: Checks, what: str, daemon: Daemon, guest: Guest, wanted: int) -> None:
    """Put the device in at the destination; sizes, counts and contents must be as before."""
    held = [
        int(guest.must(f"cat /sys/module/demeter_balloon/node{n}/balloon_pages")) for n in (0, 1)
    ]
    gone = guest.node_bytes(1) - wanted
    checks.that(f"{what}: the driver keeps its pages", held == [0, gone // PAGE], held)
    before = guest.backing_bytes(1)
    plug(guest.qmp, daemon.socket(guest.name))
    daemon.wait_stage(guest.name, "driven")
    daemon.resize(guest.name, 1, wanted)
    tier = daemon.wait_still(guest.name)["tiers"][1]
    checks.that(f"{what}: replug, and it has its size", tier["size_bytes"] == wanted, tier)
    words = counts_agree(daemon, guest.name)
    checks.that(f"{what}: counts agree", not words, words)
    after = guest.backing_bytes(1)
    fits = after <= wanted * 1.01
    detail = f"({before >> 20} MiB before replug, {after >> 20} after)"
    checks.that(f"{what}: the new host has its memory back", fits, detail)
    keeper.wait_checked(guest)
    checks.that(f"{what}: every word and file is right", intact(guest))
    back = daemon.resize(guest.name, 1, guest.node_bytes(1))
    checks.that(f"{what}: it grows", back["size_bytes"] == guest.node_bytes(1), back["last"])
    keeper.wait_checked(guest)
    complaint = log_is_clean(guest)
    checks.that(f"{what}: the kernel log is clean", not complaint, complaint)


def store(guest: Guest, image: Path) -> None:
    """Take a snapshot of a machine, without its balloon's device."""
    unplug(guest.qmp)
    guest.qmp("stop")
    guest.qmp("migrate", uri=f"file:{image}")
    wait_migrated(guest)


def migrating_guest(checks: Checks, directory: Path, kernel: str) -> None:
    """Send a machine that runs to another QEMU and daemon; then store it, and restore it."""
    here = Daemon(directory / "here", ["moves"])
    there = Daemon(directory / "there", ["moves"])
    for daemon in (here, there):
        daemon.directory.mkdir()
    made = settings(kernel, here, "moves", (160, 160))
    made.more_kib = MORE_KIB
    made.prealloc = False
    made.files[keeper.NAME] = keeper.compiled(directory)
    source = Guest("moves", here.directory, made)
    channel, image = f"unix:{directory}/channel", directory / "image"
    arriving = replace(made, balloon_socket=None, incoming=channel)
    destination = Guest("moves", there.directory, arriving)
    with here, there, source:
        source.must(f"insmod /balloon/{DRIVER}")
        here.wait_stage("moves", "driven")
        put_data(source)
        keeper.keep(source, keeper.KEPT_MIB)
        wanted = size_at(source, 1, 0.6)
        here.resize("moves", 1, wanted)
        try:
            source.qmp("migrate", uri=channel)
            refused = ""
        except GuestError as error:
            refused = str(error)
        stays = "non-migratable" in refused and "vhost-user-test-device" in refused
        checks.that("with its balloon in, a machine stays", stays, refused)
        said = str(source.qmp("human-monitor-command", **{"command-line": "savevm x"})).strip()
        checks.that("and is not stored", "non-migratable" in said, said)
        keeper.wait_checked(source)
        unplug(source.qmp)
        before = source.backing_bytes(1)
        with destination:
            # Slowly, so that the guest changes much of what was sent already.
            source.qmp("migrate-set-parameters", **{"max-bandwidth": BANDWIDTH})
            send(source, destination)
            grown = source.backing_bytes(1) - before
            print(f"       the old host has {grown >> 20} MiB more of node 1", flush=True)
            source.stop()
            check_arrived(checks, "migrated", there, destination, wanted)
            there.resize("moves", 1, wanted)
            store(destination, image)
        restored = Guest("moves", there.directory, replace(arriving, incoming=f"file:{image}"))
        with restored:
            wait_status(restored, "paused")
            restored.qmp("cont")
            check_arrived(checks, "restored", there, restored, wanted)


def crashing_guest(checks: Checks, directory: Path, kernel: str) -> None:
    """Let a guest crash with a full balloon, take a dump, and boot again."""
    daemon = Daemon(directory, ["crashes"])
    made = settings(kernel, daemon, "crashes", (288, 96))
    made.vcpus = 1
    made.append = "crashkernel=128M"
    second = Settings(kernel=kernel, files=dict(made.files))
    initrd = Guest("second", directory, second).make_initrd()
    made.files |= {
        "crash-kernel": cache() / "kernels" / release(kernel) / "vmlinuz",
        "crash-initrd": initrd,
        LOADER: keeper.compiled(directory, LOADER),
    }
    guest = Guest("crashes", directory, made)
    with daemon, guest:
        guest.must(f"insmod /balloon/{DRIVER}")
        daemon.wait_stage("crashes", "driven")
        wanted = size_at(guest, 1, 0.5)
        daemon.resize("crashes", 1, wanted)
        guest.must(
            f"chmod +x /balloon/{LOADER}; cd /balloon;"
            f" ./{LOADER} crash-kernel crash-initrd '{KERNEL_LINE} nr_cpus=1 reset_devices'"
        )
        guest.begin("echo c > /proc/sysrq-trigger")
        guest.wait_ready()
        held = daemon.view("crashes")["tiers"][1]["balloon_bytes"]
        checks.that("after a crash the balloon stays", held == guest.node_bytes(1) - wanted, held)
        refused = guest.run(f"insmod /balloon/{DRIVER}")[0] != 0
        said = guest.run("dmesg | grep 'takes a crash dump'")[1].strip()
        checks.that("the crash kernel has no balloon", refused and bool(said), said)
        knows = guest.run("grep -q -a 'PAGE_OFFLINE_MAPCOUNT_VALUE' /proc/vmcore")[0] == 0
        checks.that("its dump says how to leave balloons out", knows)
        before = guest.backing_bytes(1)
        size = guest.must("dd if=/proc/vmcore of=/dev/null bs=1M 2>&1 | tail -n 1", 240)
        grown = guest.backing_bytes(1) - before
        print(f"       a dump of all: {size}; the host has {grown >> 20} MiB more", flush=True)
        guest.qmp("system_reset")
        guest.wait_ready()
        guest.must(f"insmod /balloon/{DRIVER}")
        daemon.wait_stage("crashes", "driven")
        daemon.resize("crashes", 1, wanted)
        words = counts_agree(daemon, "crashes")
        checks.that("booted again it has its size, and counts agree", not words, words)
        fits = guest.backing_bytes(1) <= wanted * 1.01
        checks.that("and the host its memory", fits, f"({guest.backing_bytes(1) >> 20} MiB)")
        checks.that("no violations in all that", daemon.view("crashes")["violations"] == {})


def load_disk(guest: Guest) -> str:
    """Load what the disk needs; return its number."""
    lines = [f"insmod /balloon/{name} || true" for name in DISK_MODULES]
    guest.must("; ".join(lines))
    keeper.wait_for("a disk", lambda: guest.run("[ -e /dev/pmem0 ]")[0] == 0, 60)
    return guest.must("cat /sys/class/block/pmem0/dev")


def hibernating_guest(checks: Checks, directory: Path, kernel: str) -> None:
    """Store a guest in its swap space, cut its power, and let it go on in another QEMU."""
    daemon = Daemon(directory, ["sleeps"])
    made = settings(kernel, daemon, "sleeps", (256, 256))
    made.vcpus = 1
    made.prealloc = False
    made.max_mib = 1024
    made.files |= {name: stock_modules(kernel) / name for name in DISK_MODULES}
    made.files[keeper.NAME] = keeper.compiled(directory)
    disk = directory / "disk"
    with disk.open("wb") as file:
        file.truncate(DISK_BYTES)
    memory = f"memory-backend-file,id=disk,mem-path={disk},size={DISK_BYTES},share=on"
    made.arguments = ["-object", memory, "-device", "virtio-pmem-pci,memdev=disk,id=pmem"]
    guest = Guest("sleeps", directory, made)
    with daemon, guest:
        load_disk(guest)
        guest.must("mkswap /dev/pmem0 && swapon /dev/pmem0")
        guest.must(f"insmod /balloon/{DRIVER}")
        daemon.wait_stage("sleeps", "driven")
        put_data(guest)
        keeper.keep(guest, keeper.KEPT_MIB)
        wanted = size_at(guest, 1, 0.4)
        daemon.resize("sleeps", 1, wanted)
        guest.must("echo shutdown > /sys/power/disk")
        guest.begin("echo disk > /sys/power/state")
        # Without our driver, too, this guest does not get from here to switching itself off.
        keeper.wait_for("an image", lambda: "PM: S|" in guest.console(), 240)
        copied = re.findall(r"Need to copy (\d+) pages", guest.console())
        print(f"       an image of {copied[-1]} pages", flush=True)
        fits = guest.backing_bytes(1) <= wanted * 1.01
        detail = f"({guest.backing_bytes(1) >> 20} MiB)"
        checks.that("nobody read what is in the balloon for the image", fits, detail)
        guest.stop()
        guest.start()
        number = load_disk(guest)
        checks.that("nothing is driven before", daemon.view("sleeps")["stage"] == "connected")
        # What answers is the shell that was stored.
        guest.must(f"echo {number} > /sys/power/resume", 240)
        daemon.wait_stage("sleeps", "driven")
        tier = daemon.wait_still("sleeps")["tiers"][1]
        checks.that("the guest goes on with its size", tier["size_bytes"] == wanted, tier)
        words = counts_agree(daemon, "sleeps")
        checks.that("counts agree after hibernation", not words, words)
        fits = guest.backing_bytes(1) <= wanted * 1.01
        checks.that("and the host has its memory", fits, f"({guest.backing_bytes(1) >> 20} MiB)")
        keeper.wait_checked(guest)
        checks.that("every word and file is right after hibernation", intact(guest))
        back = daemon.resize("sleeps", 1, guest.node_bytes(1))
        checks.that("and it grows", back["size_bytes"] == guest.node_bytes(1), back["last"])
        complaint = log_is_clean(guest)
        checks.that("the kernel log is clean after hibernation", not complaint, complaint)
