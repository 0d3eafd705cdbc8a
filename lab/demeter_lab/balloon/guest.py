# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A small real guest: two memory nodes in two files, no disk, a serial shell."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from demeter_lab.balloon.started import Started

MIB = 1 << 20
PAGE = 4096
#: Factor for all limits of time: what a kernel that watches itself does takes longer.
PATIENCE = float(os.environ.get("DEMETER_TEST_PATIENCE", "1"))
TREE = Path(__file__).resolve().parents[3]
KERNEL_LINE = (
    "console=ttyS0 panic=-1 rdinit=/balloon/init nokaslr no5lvl mitigations=off "
    "tsc=reliable no_timer_check 8250.nr_uarts=4 numa_balancing=disable "
    # A virtual CPU may stand still for twenty seconds on a starved host.
    "watchdog_thresh=60"
)


class GuestError(Exception):
    """The guest, or what it stands on, does not do what it must."""


def cache() -> Path:
    """Return the directory of the testbed."""
    if named := os.environ.get("DEMETER_CACHE"):
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "demeter"


def release(kernel: str) -> str:
    """Return ``uname -r`` of the kernel ``6.1``, ``6.12`` or ``7.x``."""
    return (cache() / "kernels" / kernel).read_text().strip()


def modules(kernel: str) -> Path:
    """Return the directory with the modules that were built for ``kernel``."""
    built = os.environ.get("DEMETER_MODULES")
    return (Path(built) if built else TREE / "build/modules") / release(kernel)


def stock_modules(kernel: str) -> Path:
    """Return the directory with the kernel's own modules."""
    return cache() / "kernels" / release(kernel) / "modules"


@dataclass
class Settings:
    """What a guest is made of."""

    kernel: str = "6.12"
    node_mib: tuple[int, int] = (512, 512)
    #: So much more of node 1.
    more_kib: int = 0
    vcpus: int = 2
    append: str = ""
    #: Files of the guest below /balloon, by name.
    files: dict[str, Path] = field(default_factory=dict)
    #: More arguments of QEMU.
    arguments: list[str] = field(default_factory=list)
    #: The daemon's socket; None: no Demeter balloon.
    balloon_socket: Path | None = None
    #: Maximum memory; larger than the nodes leaves room for memory devices.
    max_mib: int = 0
    prealloc: bool = True
    #: Where its state comes from, with which it goes on instead of booting.
    incoming: str = ""
    accel: str = field(default_factory=lambda: os.environ.get("DEMETER_TEST_ACCEL", "tcg"))


class Qmp:
    """QEMU's machine protocol."""

    def __init__(self, path: Path) -> None:
        """Connect and leave the greeting behind."""
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(60)
        self._socket.connect(str(path))
        self._lines = self._socket.makefile("r")
        self._lines.readline()
        self.events: list[str] = []
        self("qmp_capabilities")

    def close(self) -> None:
        """Let somebody else connect."""
        self._lines.close()
        self._socket.close()

    def _message(self) -> dict:
        line = self._lines.readline()
        if not line:
            raise GuestError("QEMU is gone")
        return json.loads(line)

    def __call__(self, command: str, **arguments: object) -> object:
        """Execute ``command`` and return what it returns."""
        text = json.dumps({"execute": command, "arguments": arguments})
        self._socket.sendall(text.encode() + b"\n")
        while True:
            message = self._message()
            if "event" in message:
                self.events.append(message["event"])
            elif "error" in message:
                raise GuestError(f"{command}: {message['error']['desc']}")
            else:
                return message.get("return")

    def number(self, path: str, name: str) -> int:
        """Return a property of an object of the machine."""
        value = self("qom-get", path=f"/machine/peripheral/{path}", property=name)
        assert isinstance(value, int)
        return value

    def balloon_actual(self) -> int:
        """Return what virtio-balloon leaves to the guest."""
        answer = self("query-balloon")
        assert isinstance(answer, dict)
        return int(answer["actual"])

    def wait_event(self, name: str) -> None:
        """Wait for an event that may have come already."""
        while name not in self.events:
            message = self._message()
            if "event" in message:
                self.events.append(message["event"])
        self.events.remove(name)


def end_on_sigterm() -> None:
    """Make SIGTERM unwind, so that no guest is left behind."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


class Guest(Started):
    """A running guest. Use as a context manager; its files go with it."""

    def __init__(self, name: str, directory: Path, settings: Settings) -> None:
        """Prepare the files of ``name`` in ``directory``."""
        self.settings = settings
        self.directory = directory / name
        self.name = name
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.mkdir(parents=True)
        self.nodes = [self.directory / f"node{node}" for node in range(2)]
        self._process: subprocess.Popen[bytes] | None = None
        self._shell: socket.socket | None = None
        self._received = b""
        self.qmp: Qmp

    def last_words(self) -> str:
        """Return the end of the console."""
        return f"the end of {self.name}'s console\n{self.console()[-4000:]}"

    def make_initrd(self) -> Path:
        """Put together what it boots from."""
        tree = self.directory / "tree"
        (tree / "balloon").mkdir(parents=True)
        shutil.copy(TREE / "tests/guest/balloon/init", tree / "balloon/init")
        (tree / "balloon/init").chmod(0o755)
        for name, source in self.settings.files.items():
            shutil.copy(source, tree / "balloon" / name)
            if source.suffix == ".ko":
                # Files of the first archive are the guest's memory: not for debuggers.
                subprocess.run(["strip", "--strip-debug", tree / "balloon" / name], check=True)
        for source in stock_modules(self.settings.kernel).glob("virtio*.ko"):
            shutil.copy(source, tree / "balloon" / source.name)
        names = subprocess.run(["find", "."], cwd=tree, capture_output=True, check=True).stdout
        archive = subprocess.run(
            ["cpio", "--quiet", "-o", "-H", "newc", "-R", "0:0"],
            cwd=tree,
            input=names,
            capture_output=True,
            check=True,
        ).stdout
        base = cache() / f"initrd-base-{release(self.settings.kernel)}.cpio"
        initrd = self.directory / "initrd"
        initrd.write_bytes(base.read_bytes() + archive)
        shutil.rmtree(tree)
        return initrd

    def _arguments(self) -> list[str]:
        settings = self.settings
        total = sum(self.node_bytes(node) for node in range(2))
        most = f",slots=4,maxmem={settings.max_mib}M" if settings.max_mib else ""
        words = [
            *("-machine", "q35,usb=off", "-m", f"{total // 1024}K{most}"),
            *("-accel", "kvm" if settings.accel == "kvm" else "tcg,thread=multi"),
            # TCG executes string instructions element by element: without these
            # flags the kernel clears and copies pages with plain moves.
            *("-cpu", "host" if settings.accel == "kvm" else "max,la57=off,-erms,-fsrm"),
            *("-smp", str(settings.vcpus), "-nodefaults", "-no-user-config"),
            *("-display", "none"),
        ]
        for node, path in enumerate(self.nodes):
            backend = f"memory-backend-file,id=m{node},share=on,mem-path={path}"
            prealloc = "on" if settings.prealloc else "off"
            words += ["-object", f"{backend},size={self.node_bytes(node)},prealloc={prealloc}"]
            cpus = f",cpus=0-{settings.vcpus - 1}" if node == 0 else ""
            words += ["-numa", f"node,nodeid={node},memdev=m{node}{cpus}"]
        words += ["-numa", "dist,src=0,dst=1,val=20"]
        for port, chardev in enumerate(
            [
                f"file,id=console,path={self.directory}/console",
                f"socket,id=shell,path={self.directory}/shell,server=on,wait=off",
            ]
        ):
            words += ["-chardev", chardev, "-serial", f"chardev:{['console', 'shell'][port]}"]
        words += ["-qmp", f"unix:{self.directory}/qmp,server=on,wait=off"]
        words += ["-device", "pcie-root-port,id=port0,chassis=1"]
        if settings.balloon_socket:
            words += ["-chardev", f"socket,id=balloon-socket,path={settings.balloon_socket}"]
            words += ["-device", ",".join(f"{k}={v}" for k, v in device_properties().items())]
        kernel = cache() / "kernels" / release(settings.kernel) / "vmlinuz"
        words += ["-kernel", str(kernel), "-initrd", str(self.make_initrd())]
        words += ["-append", f"{KERNEL_LINE} {settings.append}".strip()]
        words += ["-incoming", settings.incoming] if settings.incoming else []
        return words + settings.arguments

    def start(self) -> None:
        """Start QEMU and wait for the shell."""
        for name in ("qmp", "shell"):
            (self.directory / name).unlink(missing_ok=True)
        self._received = b""
        about = json.loads((cache() / "qemu.json").read_text())
        log = (self.directory / "qemu.log").open("wb")
        self._process = subprocess.Popen(
            about["argv"] + self._arguments(),
            env=os.environ | about["env"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        self._connect()

    def _connect(self) -> None:
        limit = time.monotonic() + 60 * PATIENCE
        while not ((self.directory / "qmp").exists() and (self.directory / "shell").exists()):
            self.check_alive()
            if time.monotonic() > limit:
                raise GuestError("QEMU made no sockets")
            time.sleep(0.05)
        self._shell = socket.socket(socket.AF_UNIX)
        self._shell.connect(str(self.directory / "shell"))
        self.qmp = Qmp(self.directory / "qmp")
        if not self.settings.incoming:
            self.wait_ready()

    def wait_ready(self, limit_s: float = 240) -> None:
        """Wait for the shell of a guest that boots."""
        self._until(b"@@ ready\n", limit_s)

    def pid(self) -> int:
        """Return QEMU's process."""
        assert self._process is not None
        return self._process.pid

    def check_alive(self) -> None:
        """Raise if QEMU has ended."""
        if self._process is None or self._process.poll() is not None:
            log = (self.directory / "qemu.log").read_text(errors="replace")[-2000:]
            raise GuestError(f"QEMU of {self.name} ended: {log}")

    def _until(self, mark: bytes, limit_s: float) -> bytes:
        assert self._shell is not None
        limit = time.monotonic() + limit_s * PATIENCE
        while mark not in self._received:
            self.check_alive()
            left = limit - time.monotonic()
            if left <= 0:
                raise GuestError(f"{self.name} says nothing in {limit_s * PATIENCE:.0f} s")
            self._shell.settimeout(min(left, 5))
            try:
                self._received += self._shell.recv(65536)
            except TimeoutError:
                continue
        before, _, self._received = self._received.partition(mark)
        return before

    def run(self, line: str, limit_s: float = 120) -> tuple[int, str]:
        """Execute a shell line; return its status and output."""
        self.begin(line)
        output = self._until(b"@@ ", limit_s)
        status = self._until(b"\n", 30)
        return int(status), output.decode(errors="replace")

    def begin(self, line: str) -> None:
        """Have a shell line executed that this kernel does not end."""
        assert self._shell is not None
        self._shell.sendall(line.encode() + b"\n")

    def must(self, line: str, limit_s: float = 120) -> str:
        """Execute a shell line that must succeed; return its output."""
        status, output = self.run(line, limit_s)
        if status != 0:
            raise GuestError(f"{self.name}: '{line}' ended with {status}: {output.strip()}")
        return output.strip()

    def console(self) -> str:
        """Return all that the kernel said."""
        path = self.directory / "console"
        return path.read_text(errors="replace") if path.exists() else ""

    def backing_bytes(self, node: int) -> int:
        """Return what the host has allocated for the memory of ``node``."""
        return self.nodes[node].stat().st_blocks * 512

    def node_bytes(self, node: int) -> int:
        """Return the size of ``node``."""
        return self.settings.node_mib[node] * MIB + node * self.settings.more_kib * 1024

    def reconnect_qmp(self) -> None:
        """Connect anew after somebody else used the socket."""
        self.qmp = Qmp(self.directory / "qmp")

    def replug(self, socket_path: Path) -> None:
        """Replace the balloon's device, as ``demeter balloon replug`` does."""
        unplug(self.qmp)
        plug(self.qmp, socket_path)

    def stop(self) -> None:
        """End QEMU, remove the memory files."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        for path in self.nodes:
            path.unlink(missing_ok=True)


def device_properties() -> dict[str, object]:
    """Return the properties of the balloon's generic vhost-user device."""
    return {
        "driver": "vhost-user-test-device-pci",
        "id": "balloon0",
        "bus": "port0",
        "chardev": "balloon-socket",
        "virtio-id": 13,
        "num_vqs": 4,
        "vq_size": 256,
        "config_size": 64,
    }


def unplug(qmp: Qmp) -> None:
    """Take the device out, and the chardev of the dead daemon."""
    # What the daemon took out by a socket of its own was told here, too.
    qmp("query-status")
    qmp.events.clear()
    qmp("device_del", id="balloon0")
    qmp.wait_event("DEVICE_DELETED")
    # One event is for the virtio device, one for its PCI proxy.
    for _ in range(100):
        try:
            qmp("chardev-remove", id="balloon-socket")
            return
        except GuestError:
            time.sleep(0.1)
    raise GuestError("the chardev stays busy after device_del")


def plug(qmp: Qmp, socket_path: Path) -> None:
    """Connect to the daemon and put the device in."""
    address = {"type": "unix", "data": {"path": str(socket_path)}}
    backend = {"type": "socket", "data": {"addr": address, "server": False}}
    qmp("chardev-add", id="balloon-socket", backend=backend)
    qmp("device_add", **device_properties())
