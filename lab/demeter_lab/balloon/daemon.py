# SPDX-License-Identifier: Apache-2.0 OR MIT
"""``demeterd`` as a process, and its control interface."""

import http.client
import json
import os
import signal
import socket
import subprocess
import time
from pathlib import Path

from demeter_lab.balloon.guest import PATIENCE, TREE, Guest, GuestError
from demeter_lab.balloon.started import Started

TIERS = ("fmem", "smem")


def program(name: str) -> Path:
    """Return a program that was built, or the one that e.g. ``DEMETERD`` names."""
    named = os.environ.get(name.upper())
    path = Path(named) if named else TREE / "target/release" / name
    if not path.exists():
        raise GuestError(f"{path} is missing; run `make build`")
    return path


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout_s: float) -> None:
        super().__init__("demeterd", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


class Daemon(Started):
    """A daemon for some guests. Use as a context manager."""

    def __init__(self, directory: Path, names: list[str], *options: str, keys: str = "") -> None:
        """Serve the guests ``names`` whose files lie in ``directory``.

        ``keys`` are more keys of every guest; ``{files}`` is where its files lie.
        """
        self.directory = directory
        self.control = directory / "control"
        self.log = directory / "demeterd.log"
        self._words = ["--control", str(self.control), "--state-dir", str(directory / "state")]
        for name in names:
            files = directory / name
            self._words += [
                "--vm",
                f"{name},socket={self.socket(name)},fmem={files}/node0,smem={files}/node1"
                + keys.format(files=files),
            ]
        self._words += options
        #: Where it is started from.
        self.program = program("demeterd")
        self._process: subprocess.Popen[bytes] | None = None

    def socket(self, name: str) -> Path:
        """Return the vhost-user socket of a guest."""
        return self.directory / f"{name}.vhost"

    def last_words(self) -> str:
        """Return the end of its log."""
        if not self.log.exists():
            return ""
        return f"the end of the daemon's log\n{self.log.read_text()[-6000:]}"

    def start(self) -> None:
        """Start it and wait for the control interface."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [str(self.program), *self._words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        limit = time.monotonic() + 30 * PATIENCE
        while True:
            try:
                self.vms()
                return
            except (OSError, http.client.HTTPException):
                if self._process.poll() is not None or time.monotonic() > limit:
                    raise GuestError(f"the daemon does not start: {self.log}") from None
                time.sleep(0.02)

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        self.end(signal.SIGKILL)

    def stop(self) -> None:
        """End it without further ado."""
        self.kill()

    def end(self, how: signal.Signals) -> None:
        """End it with that signal."""
        if self._process is not None:
            self._process.send_signal(how)
            try:
                self._process.wait(60 * PATIENCE)
            except subprocess.TimeoutExpired:
                raise GuestError(f"the daemon outlives {how.name}: {self.log}") from None
            self._process = None

    def pid(self) -> int:
        """Return its process."""
        assert self._process is not None
        return self._process.pid

    def kill_worker(self, name: str) -> None:
        """Kill what serves a guest's device with SIGKILL, and wait for the next one."""
        old = self.view(name)["worker"]["pid"]
        os.kill(old, signal.SIGKILL)
        limit = time.monotonic() + 30 * PATIENCE
        while self.view(name)["worker"].get("pid") in (None, old):
            if time.monotonic() > limit:
                raise GuestError(f"no other worker for {name}: {self.log}")
            time.sleep(0.01)

    def alive(self) -> bool:
        """Tell whether it still runs."""
        return self._process is not None and self._process.poll() is None

    def rss_kib(self) -> int:
        """Return its resident memory."""
        assert self._process is not None
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return next(int(line.split()[1]) for line in status.splitlines() if "RssAnon" in line)

    def call(self, method: str, path: str, body: object = None) -> tuple[int, object]:
        """Return status and JSON of a call."""
        connection = _Connection(self.control, 300)
        text = None if body is None else json.dumps(body)
        headers = {"Content-Type": "application/json"} if text else {}
        connection.request(method, path, text, headers)
        response = connection.getresponse()
        content = response.read()
        connection.close()
        is_json = "json" in (response.getheader("Content-Type") or "")
        return response.status, json.loads(content) if is_json and content else content.decode()

    def vms(self) -> list[dict]:
        """Return the view of every guest."""
        _, answer = self.call("GET", "/v1/vms")
        assert isinstance(answer, list)
        return answer

    def view(self, name: str) -> dict:
        """Return the view of a guest."""
        status, answer = self.call("GET", f"/v1/vms/{name}")
        if status != 200 or not isinstance(answer, dict):
            raise GuestError(f"view of {name}: {answer}")
        return answer

    def resize(self, name: str, node: int, size_bytes: int, wait_ms: int = 120_000) -> dict:
        """Ask for a size; return the tier's view once that has ended."""
        wish = {"size_bytes": size_bytes, "wait_ms": wait_ms}
        status, answer = self.call("PUT", f"/v1/vms/{name}/tiers/{TIERS[node]}", wish)
        if status != 200 or not isinstance(answer, dict):
            raise GuestError(f"resize of {name}: {answer}")
        return answer["tiers"][node]

    def wait_stage(self, name: str, stage: str, limit_s: float = 60) -> dict:
        """Wait until a guest stands there."""
        limit = time.monotonic() + limit_s * PATIENCE
        while (view := self.view(name))["stage"] != stage:
            if time.monotonic() > limit:
                raise GuestError(
                    f"{name} is {view['stage']}, not {stage}, after {limit_s * PATIENCE:.0f} s"
                )
            time.sleep(0.1)
        return view

    def wait_still(self, name: str, limit_s: float = 120) -> dict:
        """Wait until no request of a guest is on its way."""
        limit = time.monotonic() + limit_s * PATIENCE
        while True:
            view = self.view(name)
            if view["stage"] == "driven" and not any(tier["busy"] for tier in view["tiers"]):
                return view
            if time.monotonic() > limit:
                raise GuestError(f"{name} is still busy after {limit_s * PATIENCE:.0f} s: {view}")
            time.sleep(0.1)

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run ``demeter balloon`` with these words."""
        line = [str(program("demeter")), "balloon", *words]
        if words[0] not in ("replug", "unplug"):
            line += ["--control", str(self.control)]
        return subprocess.run(line, capture_output=True, text=True, timeout=300, check=False)

    def replug(self, guest: Guest) -> None:
        """Plug the balloon of ``guest`` in anew."""
        guest.replug(self.socket(guest.name))
