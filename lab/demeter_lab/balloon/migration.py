# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A machine that goes on in another QEMU: what that takes, and how it is waited for."""

from demeter_lab.balloon import keeper
from demeter_lab.balloon.guest import Guest, GuestError

#: QEMU 11.1.3 under TCG forgets to watch what a guest writes while it is sent, of every piece
#: of memory but the first whose size is a multiple of 256 KiB, and ends at an assertion where
#: such a piece is larger than the first (``physical_memory_sync_dirty_bitmap`` takes an offset
#: in the piece for an address). So node 1 gets this much more.
MORE_KIB = 128


def wait_migrated(guest: Guest, limit_s: float = 120) -> None:
    """Wait until all of a machine is elsewhere."""
    status: dict = {}

    def ended() -> bool:
        nonlocal status
        answer = guest.qmp("query-migrate")
        assert isinstance(answer, dict)
        status = answer
        return status.get("status") in ("completed", "failed")

    keeper.wait_for("the migration", ended, limit_s)
    if status["status"] != "completed":
        raise GuestError(f"the migration of {guest.name} failed: {status}")
    print(
        f"       {status['total-time']} ms, {status['ram']['dirty-sync-count']} rounds", flush=True
    )


def wait_status(guest: Guest, status: str) -> None:
    """Wait until a machine that came from elsewhere is there, ``running`` or ``paused``."""

    def there() -> bool:
        guest.check_alive()
        answer = guest.qmp("query-status")
        return isinstance(answer, dict) and answer["status"] == status

    keeper.wait_for(f"{guest.name} is {status}", there, 60)


def send(source: Guest, destination: Guest) -> None:
    """Send a machine that runs, without its balloon's device, to a QEMU that waits for it."""
    source.qmp("migrate", uri=destination.settings.incoming)
    wait_migrated(source)
    wait_status(destination, "running")
