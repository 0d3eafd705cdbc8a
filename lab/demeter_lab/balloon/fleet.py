# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Several small real guests under one daemon, each with a program that checks its memory.

The daemon has a configuration file, a state directory, and a command socket of each
machine, so that it plugs devices in anew by itself.
"""

import os
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from demeter_lab.balloon import keeper
from demeter_lab.balloon.checks import DRIVER
from demeter_lab.balloon.daemon import Daemon, program
from demeter_lab.balloon.guest import Guest, Settings, modules, plug, unplug
from demeter_lab.balloon.migration import MORE_KIB, send
from demeter_lab.balloon.started import Started

NODE_MIB = (144, 144)
#: Guests that boot at the same time.
BOOTING = 2
#: Where machines have their files: each goes from one to the other.
HOSTS = ("here", "there")
#: The daemon's command socket of a machine.
QMP = "qmp-daemon"


class Fleet(Started):
    """The guests and their daemon. Use as a context manager."""

    def __init__(
        self,
        directory: Path,
        kernel: str,
        count: int,
        *options: str,
        keys: str = "",
        node_mib: tuple[int, int] = NODE_MIB,
    ) -> None:
        """Prepare ``count`` guests, ``vm0`` and on; ``keys`` are more lines of each in the file."""
        self.directory = directory
        self.configuration = directory / "demeterd.toml"
        self.program = directory / "demeterd"
        self.keys = keys
        self.daemon = Daemon(directory, [], "--config", str(self.configuration), *options)
        self.daemon.program = self.program
        self.names = [f"vm{index}" for index in range(count)]
        #: In the configuration file.
        self.configured = list(self.names)
        self._kernel, self._node_mib = kernel, node_mib
        self._keeper = keeper.compiled(directory)
        self.guests = {name: self._guest(name, HOSTS[0]) for name in self.names}

    def _guest(self, name: str, host: str, incoming: str = "") -> Guest:
        """Prepare a machine with files of its own there, or one that another goes on in."""
        directory = self.directory / host
        made = Settings(kernel=self._kernel, node_mib=self._node_mib, vcpus=1, prealloc=False)
        made.more_kib = MORE_KIB
        # On a starved host a virtual CPU may stand still for longer than RCU likes.
        made.append = "rcupdate.rcu_cpu_stall_suppress=1"
        made.files = {DRIVER: modules(self._kernel) / DRIVER, keeper.NAME: self._keeper}
        made.incoming = incoming
        made.balloon_socket = None if incoming else self.daemon.socket(name)
        made.arguments = ["-qmp", f"unix:{directory / name / QMP},server=on,wait=off"]
        return Guest(name, directory, made)

    def qmp(self, name: str) -> Path:
        """Return the command socket of a machine that is the daemon's."""
        return self.guests[name].directory / QMP

    def description(self, name: str) -> dict[str, str]:
        """Return what the daemon is told of a guest."""
        files = self.guests[name].directory
        return {
            "name": name,
            "socket": str(self.daemon.socket(name)),
            "fmem": f"{files}/node0",
            "smem": f"{files}/node1",
            "qmp": str(self.qmp(name)),
        }

    def write_configuration(self) -> None:
        """Put all that are configured into the file, in one piece."""
        lines = []
        for name in self.configured:
            lines += ["[[vm]]"]
            lines += [f'{key} = "{value}"' for key, value in self.description(name).items()]
            lines += [self.keys]
        fresh = self.configuration.with_suffix(".new")
        fresh.write_text("\n".join(lines) + "\n")
        fresh.rename(self.configuration)

    def install(self) -> None:
        """Put the daemon's program where it runs from, as an upgrade of its package does."""
        fresh = self.program.with_suffix(".new")
        shutil.copy(program("demeterd"), fresh)
        fresh.rename(self.program)

    def start(self) -> None:
        """Start all."""
        self.install()
        self.write_configuration()
        self.daemon.start()
        with ThreadPoolExecutor(BOOTING) as pool:
            for future in [pool.submit(self._boot, name) for name in self.names]:
                future.result()
        for name in self.names:
            self.daemon.wait_stage(name, "driven")

    def last_words(self) -> str:
        """Return the daemon's."""
        return self.daemon.last_words()

    def stop(self) -> None:
        """End all, remove the guests' memory."""
        for guest in self.guests.values():
            guest.stop()
        self.daemon.stop()

    def _boot(self, name: str) -> None:
        self.guests[name].start()
        self.prepare(name)

    def prepare(self, name: str) -> None:
        """Load the driver, and start the program, in a guest that has just booted."""
        guest = self.guests[name]
        guest.must(f"insmod /balloon/{DRIVER}")
        keeper.keep(guest, keeper.KEPT_MIB)

    def wait_checked(self, name: str) -> None:
        """Wait until a guest has checked all of its memory once more, from now on."""
        keeper.wait_checked(self.guests[name])

    def reboot(self, name: str) -> None:
        """Reset a guest, and prepare it again; what it knew of its past is looked at before."""
        guest = self.guests[name]
        keeper.must_be_well(guest)
        guest.qmp("system_reset")
        guest.wait_ready()
        self.prepare(name)

    def migrate(self, name: str) -> None:
        """Let a guest go on in another QEMU, with other files, its balloon's device out."""
        source = self.guests[name]
        unplug(source.qmp)
        host = next(host for host in HOSTS if host != source.directory.parent.name)
        destination = self._guest(name, host, f"unix:{self.directory / name}.channel")
        try:
            destination.start()
            send(source, destination)
        except BaseException:
            destination.stop()
            raise
        source.stop()
        self.guests[name] = destination

    def plug(self, name: str) -> None:
        """Put the device of a guest that has migrated in."""
        plug(self.guests[name].qmp, self.daemon.socket(name))

    def restart(self, how: signal.Signals) -> None:
        """End the daemon so, and start what is installed now."""
        self.daemon.end(how)
        self.daemon.start()

    def keep_logs(self, place: Path) -> None:
        """Copy what daemon, kernels and QEMU said."""
        if self.daemon.log.exists():
            shutil.copy(self.daemon.log, place)
        for guest in self.guests.values():
            (place / f"{guest.name}.console").write_text(guest.console())
            if (said := guest.directory / "qemu.log").exists():
                shutil.copy(said, place / f"{guest.name}.qemu")

    def descriptors(self) -> int:
        """Return how many descriptors the daemon has open."""
        return len(os.listdir(f"/proc/{self.daemon.pid()}/fd"))


def node_bytes(fleet: Fleet, name: str) -> list[int]:
    """Return the sizes of a guest's nodes."""
    return [fleet.guests[name].node_bytes(node) for node in range(2)]
