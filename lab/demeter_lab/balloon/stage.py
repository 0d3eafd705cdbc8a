# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A real daemon with modelled guests, for tests that look at it from outside.

``STAGE`` names the program (``crates/demeterd/tests/stage.rs``), as the suites set it.
Needs nothing but Python itself, so that each environment of the tests can use it.
"""

import contextlib
import http.client
import json
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

#: What the stage writes into the daemon's token file.
TOKEN = "0123456789abcdef0123456789abcdef+/=="


def free_port() -> int:
    """Return a port of loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class _OnSocket(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("demeterd", timeout=60)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


class Stage:
    """The daemon, its directory and its ports."""

    def __init__(self, directory: Path, web_port: int, metrics_port: int) -> None:
        """Know where it is."""
        self.directory = directory
        self.web_port = web_port
        self.metrics_port = metrics_port

    @property
    def page(self) -> str:
        """Return the page's address."""
        return f"http://127.0.0.1:{self.web_port}/"

    def ask(
        self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        """Return status, headers and body of a call on the control socket."""
        return self.ask_socket(self.directory / "control", method, path, body, headers)

    def ask_socket(
        self,
        at: Path,
        method: str,
        path: str,
        body: object = None,
        headers: dict[str, str] | None = None,
    ) -> tuple[int, dict[str, str], bytes]:
        """Return the same of a call on another socket."""
        return self._ask(_OnSocket(at), method, path, body, headers)

    def ask_page(
        self, method: str, path: str, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        """Return the same of a call on the page's address."""
        connection = http.client.HTTPConnection("127.0.0.1", self.web_port, timeout=60)
        return self._ask(connection, method, path, None, headers)

    @staticmethod
    def _ask(
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        body: object,
        headers: dict[str, str] | None,
    ) -> tuple[int, dict[str, str], bytes]:
        headers = dict(headers or {})
        if body is not None:
            headers.setdefault("Content-Type", "application/json")
        text = None if body is None else json.dumps(body)
        with contextlib.closing(connection):
            # Who says too much is answered before he has ended.
            with contextlib.suppress(BrokenPipeError):
                connection.request(method, path, text, headers)
            answer = connection.getresponse()
            named = {key.lower(): value for key, value in answer.getheaders()}
            return answer.status, named, answer.read()


@contextlib.contextmanager
def nobodys_copies() -> Iterator[tuple[Path, dict[str, object]]]:
    """Return a folder with the programs, and what starts them there without privileges."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        place = Path(name)
        deps = Path(os.environ["STAGE"]).parent
        for program in (os.environ["STAGE"], deps.parent / "demeterd"):
            shutil.copy(program, place)
        place.chmod(0o755)
        empty = place / "empty"
        empty.mkdir()
        empty.chmod(0o777)
        nobody = {"user": 65534, "group": 65534, "extra_groups": []}
        yield place, {"cwd": empty} | (nobody if os.getuid() == 0 else {})


@contextlib.contextmanager
def stage(
    guests: list[str], *options: str, listen: str | None = None, unprivileged: bool = False
) -> Iterator[Stage]:
    """Serve modelled guests of these names, with more ``options`` of the daemon.

    ``unprivileged``: as nobody, who can do no harm, in an empty folder.
    """
    web_port, metrics_port = free_port(), free_port()
    words = [
        f"--web-listen={listen or f'127.0.0.1:{web_port}'}",
        "--web-token-file=@/token",
        "--history-ms=200",
        f"--metrics-listen=127.0.0.1:{metrics_port}",
        *options,
    ]
    environment = os.environ | {
        "STAGE_GUESTS": "\n".join(guests),
        "STAGE_OPTIONS": "\n".join(words),
    }
    program = Path(os.environ["STAGE"])
    with contextlib.ExitStack() as stack:
        more: dict[str, object] = {}
        if unprivileged:
            place, more = stack.enter_context(nobodys_copies())
            program = place / program.name
            environment |= {"DEMETERD": str(place / "demeterd")}
        process = subprocess.Popen(
            [str(program), "--ignored", "--exact", "stage", "--nocapture"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
            **more,
        )
        assert process.stdin and process.stdout
        stack.callback(_ended, process)
        lines = iter(process.stdout.readline, "")
        found = next((line.split()[1] for line in lines if line.startswith("stage ")), None)
        if found is None:
            raise RuntimeError("the stage ended before it was there")
        yield Stage(Path(found), web_port, metrics_port)


def _ended(process: subprocess.Popen[str]) -> None:
    """End a stage, which must not have failed."""
    assert process.stdin and process.stdout
    process.stdin.close()
    rest = process.stdout.read()
    if process.wait(timeout=60) != 0:
        raise RuntimeError(f"the stage failed: {rest[-2000:]}")
