# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A guest that libvirt starts, by the description in ``docs/balloon-vmms.md``.

libvirt and its QEMU live in a root directory of their own (``testbed/libvirt-root.sh``), which
``tests/suites/libvirt`` mounts: what is below ``/run`` has the same path inside and outside.
"""

import re
import shutil
import subprocess
import time
from pathlib import Path
from xml.etree import ElementTree

from demeter_lab.balloon.guest import (
    KERNEL_LINE,
    PATIENCE,
    TREE,
    Guest,
    GuestError,
    Settings,
    cache,
    release,
)
from demeter_lab.balloon.started import Started

#: As which QEMU runs.
USER, GROUP = "libvirt-qemu", "kvm"
#: What that machine has not: systemd, AppArmor, extended attributes.
CONFIGURATION = f"""\
user = "{USER}"
group = "{GROUP}"
security_driver = "none"
cgroup_controllers = []
namespaces = []
remember_owner = 0
stdio_handler = "file"
memory_backing_dir = "{{ram}}"
"""
#: What the document leaves to the reader, for a guest that boots from memory, without KVM.
DEVICES = """
<os>
  <type arch='x86_64' machine='q35'>hvm</type>
  <kernel>{files}/vmlinuz</kernel><initrd>{files}/initrd</initrd>
  <cmdline>{line}</cmdline>
</os>
<features><acpi/></features>
<vcpu>1</vcpu>
<devices>
  <emulator>/usr/bin/qemu-system-x86_64</emulator>
  <controller type='usb' model='none'/>
  <memballoon model='none'/>
  <serial type='file'><source path='{files}/console'/><target port='0'/></serial>
  <serial type='unix'><source mode='bind' path='{files}/shell'/><target port='1'/></serial>
</devices>
"""
#: String instructions are slow in TCG.
WITHOUT = ("la57", "erms", "fsrm")


class Libvirt(Started):
    """The service. Use as a context manager."""

    def __init__(self, root: Path, directory: Path) -> None:
        """Prepare it in its root, with its log and guests' memory in ``directory``."""
        self.root, self.directory = root, directory
        self.ram = directory / "ram"
        self._process: subprocess.Popen[bytes] | None = None

    def last_words(self) -> str:
        """Return the end of its log."""
        return f"the end of libvirt's log\n{(self.directory / 'libvirtd.log').read_text()[-4000:]}"

    def identity(self) -> tuple[int, int]:
        """Return user and group that QEMU runs as."""
        line = ["chroot", str(self.root), "sh", "-c"]
        said = subprocess.run(
            [*line, f"id -u {USER} && getent group {GROUP} | cut -d: -f3"],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        user, group = said.stdout.split()
        return int(user), int(group)

    def start(self) -> None:
        """Start it and wait until it answers."""
        self.ram.mkdir(mode=0o755)
        text = CONFIGURATION.format(ram=self.ram)
        (self.root / "etc/libvirt/qemu.conf").write_text(text)
        with (self.directory / "libvirtd.log").open("wb") as log:
            self._process = subprocess.Popen(
                ["chroot", str(self.root), "libvirtd"], stdin=subprocess.DEVNULL,
                stdout=log, stderr=log,
            )  # fmt: skip
        limit = time.monotonic() + 60 * PATIENCE
        while self.virsh("version").returncode != 0:
            if self._process.poll() is not None or time.monotonic() > limit:
                raise GuestError("libvirtd does not answer")
            time.sleep(0.2)

    def stop(self) -> None:
        """End it."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()

    def virsh(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run its command."""
        line = ["chroot", str(self.root), "virsh", "--connect", "qemu:///system", *words]
        return subprocess.run(line, capture_output=True, text=True, timeout=600, check=False)

    def must(self, *words: str) -> str:
        """Run its command, which must succeed; return what it says."""
        done = self.virsh(*words)
        if done.returncode != 0:
            raise GuestError(f"virsh {' '.join(words)}: {done.stderr.strip()}")
        return done.stdout.strip()


def description(settings: Settings, name: str, files: Path) -> str:
    """Return the document's, for a guest of that size."""
    text = (TREE / "docs/balloon-vmms.md").read_text()
    found = re.search(r"```xml\n(<domain.*?</domain>)\n```", text, re.DOTALL)
    if found is None:
        raise GuestError("docs/balloon-vmms.md describes no guest of libvirt")
    domain = ElementTree.fromstring(found[1].replace("…", ""))
    domain.set("type", "qemu")
    fields = {"name": name, "memory": str(sum(settings.node_mib))}
    for tag, value in fields.items():
        element = domain.find(tag)
        assert element is not None
        element.text = value
        if tag == "memory":
            element.set("unit", "MiB")
    cpu = domain.find("cpu")
    assert cpu is not None
    cpu.set("mode", "maximum")
    for feature in WITHOUT:
        ElementTree.SubElement(cpu, "feature", policy="disable", name=feature)
    for cell, mib in zip(cpu.iter("cell"), settings.node_mib, strict=True):
        cell.set("memory", str(mib))
        cell.set("unit", "MiB")
        if "cpus" in cell.attrib:
            cell.set("cpus", "0")
    devices = DEVICES.format(files=files, line=f"{KERNEL_LINE} {settings.append}".strip())
    for element in ElementTree.fromstring(f"<all>{devices}</all>"):
        domain.append(element)
    ElementTree.register_namespace("qemu", "http://libvirt.org/schemas/domain/qemu/1.0")
    return ElementTree.tostring(domain, encoding="unicode")


class Domain(Guest):
    """A guest of libvirt. Use as a context manager."""

    def __init__(self, libvirt: Libvirt, name: str, settings: Settings, qmp: Path) -> None:
        """Prepare its files; ``qmp`` is the command socket beside libvirt's own."""
        super().__init__(name, libvirt.directory, settings)
        self.libvirt = libvirt
        user, group = libvirt.identity()
        for directory in (self.directory, qmp.parent):
            directory.mkdir(exist_ok=True)
            shutil.chown(directory, user, group)
        (self.directory / "qmp").symlink_to(qmp)
        kernel = cache() / "kernels" / release(settings.kernel) / "vmlinuz"
        shutil.copy(kernel, self.directory / "vmlinuz")
        self.make_initrd()
        file = self.directory / "domain.xml"
        file.write_text(description(settings, name, self.directory))
        libvirt.must("define", str(file))

    def start(self) -> None:
        """Start it as a user does, and wait for its shell."""
        (self.directory / "shell").unlink(missing_ok=True)
        self._received = b""
        self.libvirt.must("start", self.name)
        self._connect()

    def state(self) -> str:
        """Return what libvirt says of it."""
        return self.libvirt.must("domstate", self.name)

    def pid(self) -> int:
        """Return QEMU's process."""
        return int((Path("/run/libvirt/qemu") / f"{self.name}.pid").read_text())

    def check_alive(self) -> None:
        """Raise if it does not run."""
        if (state := self.state()) not in ("running", "paused"):
            log = self.libvirt.root / f"var/log/libvirt/qemu/{self.name}.log"
            raise GuestError(f"{self.name} is {state}: {log.read_text()[-2000:]}")

    def backing_bytes(self, node: int) -> int:
        """Return what the host has allocated for the memory of ``node``."""
        file = next(self.libvirt.ram.glob(f"libvirt/qemu/*-{self.name}/ram-node{node}"))
        return file.stat().st_blocks * 512

    def stop(self) -> None:
        """End it."""
        self.libvirt.virsh("destroy", self.name)
