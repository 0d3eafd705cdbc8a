# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The control interface is as ``/v1/openapi.json`` describes it.

Every field of what a real daemon answers must be described; schemathesis then tries what
nobody would send.
"""

import copy
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from demeter_lab.balloon.stage import TOKEN, Stage, stage

TREE = Path(__file__).resolve().parents[2]
SOURCE = (TREE / "crates/demeterd/src/control.rs").read_text()
METHODS = ("get", "put", "post", "delete", "patch")
#: How long schemathesis tries new things, each run.
BUDGET_S = int(os.environ.get("API_BUDGET_S", "20"))
#: Where it begins: the same in each run, so that a change is what makes it fail.
SEED = int(os.environ.get("API_SEED", "1"))
POLICY = {"name": "working-set", "fmem_pool_bytes": 8 << 20, "interval_ms": 100}


@pytest.fixture(scope="module")
def daemon() -> Iterator[Stage]:
    with stage(["a", "b"], unprivileged=True) as daemon:
        yield daemon


@pytest.fixture(scope="module")
def description(daemon: Stage) -> dict:
    status, headers, body = daemon.ask("GET", "/v1/openapi.json")
    assert status == 200 and headers["content-type"] == "application/json"
    return json.loads(body)


def routes() -> set[tuple[str, str]]:
    """Return method and path of every call, as the daemon's source has them."""
    found = set()
    for path, rest in re.findall(r'\.route\(\s*"([^"]+)",([^\n]*)', SOURCE):
        methods = re.findall(r"\b(get|put|post|delete|patch)\(", rest)
        assert methods, f"{path}: no method in the line of its route"
        found |= {(method, path) for method in methods}
    return found


def described(description: dict) -> set[tuple[str, str]]:
    """Return the same as the description has them."""
    return {
        (method, path)
        for path, calls in description["paths"].items()
        for method in calls
        if method in METHODS
    }


class Checker:
    """Holds answers against the description."""

    def __init__(self, description: dict) -> None:
        self.description = description
        self.seen: set[tuple[str, str, str]] = set()

    def answer(self, method: str, path: str, said: tuple[int, dict[str, str], bytes]) -> object:
        """Return an answer's JSON, which must be as described."""
        status, headers, body = said
        answers = self.description["paths"][path][method]["responses"]
        assert str(status) in answers, f"{method} {path}: {status} is not described: {body[:300]}"
        self.seen.add((method, path, str(status)))
        content = answers[str(status)].get("content")
        if content is None:
            assert body == b""
            return None
        kind = headers["content-type"].split(";")[0]
        assert kind in content, f"{method} {path}: {kind}"
        if kind != "application/json":
            return body.decode()
        value = json.loads(body)
        schema = content[kind]["schema"] | {"components": self.description["components"]}
        errors = jsonschema_rs.Draft202012Validator(schema).iter_errors(value)
        wrong = [f"{method} {path}: {list(e.instance_path)}: {e.message}" for e in errors]
        assert not wrong, wrong[:3]
        return value


@pytest.fixture(scope="module")
def checker(description: dict) -> Checker:
    return Checker(description)


def test_every_call_is_described_and_every_described_call_is_there(
    daemon: Stage, description: dict
) -> None:
    assert routes() == described(description)
    for path, calls in description["paths"].items():
        concrete = path.replace("{vm}", "nobody").replace("{tier}", "fmem")
        for method in METHODS:
            if path == "/v1/watch" and method == "get":
                continue
            if method in calls and path != "/v1/reload":
                status, _, body = daemon.ask(method.upper(), concrete)
                assert status != 405 and b"no such call" not in body, (method, path)
            elif method not in calls:
                status, headers, body = daemon.ask(method.upper(), concrete)
                assert status == 405 and set(json.loads(body)) == {"error", "next"}
                allowed = {name.strip().lower() for name in headers["allow"].split(",")}
                assert allowed - {"head"} == set(calls) & set(METHODS)


def until(daemon: Stage, path: str, holds: Callable[[Any], object]) -> None:
    """Wait until an answer is as wanted."""
    limit = time.monotonic() + 60
    while not holds(said := json.loads(daemon.ask("GET", path)[2])):
        assert time.monotonic() < limit, said
        time.sleep(0.1)


def test_every_field_of_real_answers_is_described(daemon: Stage, checker: Checker) -> None:
    def call(method: str, path: str, body: object = None, vm: str = "a") -> Any:  # noqa: ANN401
        said = daemon.ask(method, path.replace("{vm}", vm).replace("{tier}", "fmem"), body)
        return checker.answer(method.lower(), path.split("?")[0], said)

    def has_sized(history: dict) -> bool:
        points = history["points"]
        return any(point["why"] and point["stalled_permille"] is not None for point in points)

    def has_decided(decisions: list[dict]) -> bool:
        return any(one["why"].startswith("policy working-set, ") for one in decisions)

    until(daemon, "/v1/vms/a", lambda vm: vm["statistics"] and vm["statistics"]["sequence"] > 3)
    call("PUT", "/v1/vms/{vm}/tiers/{tier}", {"size_bytes": 2 << 20, "wait_ms": 5000, "why": "t"})
    call("PUT", "/v1/policy", POLICY)
    until(daemon, "/v1/vms/a", lambda vm: "sizing" in vm and vm["tiers"][0]["last"])
    until(daemon, "/v1/vms/a", lambda vm: "share_bytes" in vm.get("account", {}))
    until(daemon, "/v1/vms/a/history", has_sized)
    until(daemon, "/v1/decisions", has_decided)
    vms = call("GET", "/v1/vms")
    assert [vm["name"] for vm in vms] == ["a", "b"]
    call("GET", "/v1/vms/{vm}")
    assert call("GET", "/v1/policy")["name"] == "working-set"
    entries = call("GET", "/v1/vms/{vm}/ledger")
    assert {"asked", "ended", "driver", "connected"} <= {entry["what"] for entry in entries}
    points = call("GET", "/v1/vms/{vm}/history")["points"]
    behind = f"/v1/vms/{{vm}}/history?after={points[-1]['number']}"
    assert len(call("GET", behind)["points"]) < len(points)
    assert has_decided(call("GET", "/v1/decisions"))
    call("POST", "/v1/vms/{vm}/statistics")
    call("POST", "/v1/reload")
    call("GET", "/v1/openapi.json")
    metrics = call("GET", "/metrics")
    assert "demeter_balloon_size_bytes" in metrics
    assert 'demeter_balloon_credit_seconds{vm="a"}' in metrics
    # All that a number can say, which once cost the metrics of all guests.
    call("PUT", "/v1/policy", POLICY | {"fmem_pool_bytes": (1 << 64) - 1})
    call("GET", "/metrics")
    call("PUT", "/v1/policy", POLICY)
    more = {
        "name": "c",
        "socket": f"{daemon.directory}/c.sock",
        "fmem": [f"{daemon.directory}/c.0", f"{daemon.directory}/c.1"],
        "smem": "gpa:0x40000000-0x40001000",
        "weight": 300,
        "fmem-floor": "1M",
        "fmem-ceiling": 1 << 21,
        "memory": "1.5G",
        "vcpus": "4",
        "qmp": f"{daemon.directory}/qmp",
    }
    call("POST", "/v1/vms", more)
    call("POST", "/v1/vms", more)
    call("POST", "/v1/vms", more | {"name": "../c"})
    call("POST", "/v1/vms", {"colour": "red"})
    call("DELETE", "/v1/vms/{vm}", vm="c")
    call("DELETE", "/v1/vms/{vm}", vm="c")
    call("PUT", "/v1/vms/{vm}/tiers/{tier}", {"size_bytes": 1})
    call("PUT", "/v1/vms/{vm}/tiers/{tier}", {"size_bytes": -1})
    for wait in (-1, 1.5, "long", 1 << 64):
        said = daemon.ask("PUT", "/v1/vms/a/tiers/fmem", {"size_bytes": 2 << 20, "wait_ms": wait})
        assert said[0] == 422, wait
    call("PUT", "/v1/vms/{vm}/tiers/{tier}", {"size_bytes": 1}, vm="%ff")
    call("PUT", "/v1/policy", POLICY | {"name": "generous"})
    call("PUT", "/v1/policy", POLICY | {"name": "x" * (65 << 10)})
    call("GET", "/v1/vms/{vm}/history?after=-1")
    for path in ("", "/history", "/ledger"):
        call("GET", f"/v1/vms/{{vm}}{path}", vm="nobody")
        call("GET", f"/v1/vms/{{vm}}{path}", vm="%ff")
    said = daemon.ask("PUT", "/v1/policy", POLICY, {"Content-Type": "text/plain"})
    checker.answer("put", "/v1/policy", said)
    for status in ("400", "413", "415", "422"):
        assert any(seen[2] == status for seen in checker.seen), status
    successes = {(method, path) for method, path, status in checker.seen if status < "300"}
    assert successes == described(checker.description) - {("get", "/v1/watch")}


def test_watch_sends_lines_as_described(daemon: Stage, checker: Checker) -> None:
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(str(daemon.directory / "control"))
        peer.settimeout(30)
        peer.sendall(b"GET /v1/watch HTTP/1.1\r\nHost: d\r\n\r\n")
        text = b""
        while (found := re.findall(rb"^\{.*\}\r?$", text, re.MULTILINE)) == []:
            text += peer.recv(1 << 16)
    schema = {"$ref": "#/components/schemas/Vm"}
    schema |= {"components": checker.description["components"]}
    jsonschema_rs.Draft202012Validator(schema).validate(json.loads(found[0]))


def test_the_page_answers_as_described(daemon: Stage, checker: Checker) -> None:
    for path, calls in checker.description["paths"].items():
        if "security" not in calls.get("get", {}):
            continue
        concrete = path.replace("{vm}", "a")
        said = daemon.ask_page("GET", concrete)
        assert said[0] == 401
        checker.answer("get", path, said)
        said = daemon.ask_page("GET", concrete, {"Authorization": f"Bearer {TOKEN}"})
        assert said[0] == 200
        checker.answer("get", path, said)


@contextmanager
def on_tcp(path: Path) -> Iterator[int]:
    """Let TCP reach a Unix socket, for a client that knows no other."""
    server = socket.create_server(("127.0.0.1", 0))

    def pump(source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(1 << 16):
                sink.sendall(data)
        except OSError:
            pass
        # A reset (the daemon went with a body unread) ends it for the other side, too, who
        # would wait for an answer otherwise.
        with suppress(OSError):
            sink.shutdown(socket.SHUT_WR)

    def serve() -> None:
        while True:
            try:
                peer, _ = server.accept()
            except OSError:
                return
            own = socket.socket(socket.AF_UNIX)
            try:
                own.connect(str(path))
            except OSError:
                peer.close()
                continue
            for pair in ((peer, own), (own, peer)):
                threading.Thread(target=pump, args=pair, daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield server.getsockname()[1]
    finally:
        server.close()


def tried(description: dict, where: str, folder: Path, *options: str) -> None:
    """Let schemathesis try what is described at that address."""
    written = folder / "openapi.json"
    written.write_text(json.dumps(description))
    line = [
        str(Path(sys.executable).parent / "st"),
        "run",
        str(written),
        f"--url={where}",
        f"--max-time={BUDGET_S}",
        f"--seed={SEED}",
        "--max-examples=100",
        "--request-timeout=20",
        # Who is refused before all was read loses the connection, maybe with the next call in it.
        "--header=Connection: close",
        "--generation-database=none",
        "--continue-on-failure",
        "--no-color",
        *options,
    ]
    done = subprocess.run(
        line, capture_output=True, text=True, timeout=300, check=False, cwd=folder
    )
    print(done.stdout[-12_000:])
    assert done.returncode == 0, done.stderr[-2000:]


def with_names(description: dict, place: Path) -> dict:
    """Return the description with some values that exist, so that more than 404 is met."""
    changed = copy.deepcopy(description)
    for calls in changed["paths"].values():
        for parameter in calls.get("parameters", []):
            if parameter["name"] == "vm":
                any_name = parameter["schema"]
                parameter["schema"] = {"anyOf": [{"enum": ["a", "b", "x", "y"]}, any_name]}
    schemas = changed["components"]["schemas"]
    machine = schemas["Description"]["properties"]
    sockets = [f"{place}/{name}.sock" for name in "xyz"]
    machine["socket"] = {"anyOf": [{"enum": sockets}, machine["socket"]]}
    machine["name"] = {"anyOf": [{"enum": ["x", "y"]}, machine["name"]]}
    # A wait that is tried takes its time; one that is no number has a test of its own.
    del schemas["SizeWish"]["properties"]["wait_ms"]
    return changed


def test_schemathesis_finds_nothing_on_the_control_socket(
    description: dict, tmp_path: Path
) -> None:
    wanted = with_names(description, tmp_path)
    # It never ends, and has a test of its own.
    del wanted["paths"]["/v1/watch"]
    tmp_path.chmod(0o777)
    with (
        stage(["a", "b"], unprivileged=True) as daemon,
        on_tcp(daemon.directory / "control") as port,
    ):
        # That words fit together, as floor and ceiling, no schema says.
        unsaid = "--exclude-checks=ignored_auth,positive_data_acceptance"
        tried(wanted, f"http://127.0.0.1:{port}", tmp_path, unsaid)
        # Those who were there are served as before.
        vms = {vm["name"]: vm for vm in json.loads(daemon.ask("GET", "/v1/vms")[2])}
        assert {"a", "b"} <= set(vms)
        assert all(vms[name]["stage"] == "driven" for name in "ab")
        assert not any(vms[name]["violations"] for name in "ab")


def test_schemathesis_finds_nothing_on_the_pages_address(
    description: dict, tmp_path: Path, daemon: Stage
) -> None:
    wanted = with_names(description, tmp_path)
    wanted["paths"] = {
        path: {key: calls[key] for key in ("get", "parameters") if key in calls}
        for path, calls in wanted["paths"].items()
        if "security" in calls.get("get", {})
    }
    admitted = f"--header=Authorization: Bearer {TOKEN}"
    tried(wanted, daemon.page.rstrip("/"), tmp_path, admitted, "--exclude-checks=ignored_auth")
