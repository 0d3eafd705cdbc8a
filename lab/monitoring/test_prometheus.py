# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Debian's Prometheus scrapes a real daemon; rules and dashboard ask for what it finds.

PROMETHEUS names the folder of prometheus and promtool.
"""

import json
import os
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from demeter_lab.balloon.stage import Stage, free_port, stage

TREE = Path(__file__).resolve().parents[2]
MONITORING = TREE / "packaging/monitoring"
PROGRAMS = Path(os.environ["PROMETHEUS"])
GUESTS = ["web-front.example", "database"]
POLICY = {"name": "working-set", "fmem_pool_bytes": 6 << 20, "interval_ms": 250}
CONFIGURATION = """
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: ["{rules}"]
scrape_configs:
  - job_name: demeterd
    static_configs: [{{targets: ["127.0.0.1:{port}"]}}]
"""
#: Prometheus looks at rates over minutes; here there are seconds of them.
SHORTER = {"[5m]": "[1m]", "[10m]": "[1m]"}


class Prometheus:
    """The server that runs."""

    def __init__(self, port: int) -> None:
        self._where = f"http://127.0.0.1:{port}/api/v1"

    def ask(self, path: str, **words: str) -> dict | list:
        query = f"?{urllib.parse.urlencode(words)}" if words else ""
        with urllib.request.urlopen(f"{self._where}/{path}{query}", timeout=30) as answer:
            said = json.load(answer)
        assert said["status"] == "success", said
        return said["data"]

    def series(self, expression: str) -> list[dict]:
        return self.ask("query", query=expression)["result"]

    def until(self, expression: str, least: int = 1) -> list[dict]:
        limit = time.monotonic() + 60
        while len(found := self.series(expression)) < least:
            assert time.monotonic() < limit, f"{expression} finds {found}"
            time.sleep(0.5)
        return found


@pytest.fixture(scope="module")
def daemon() -> Iterator[Stage]:
    with stage(GUESTS) as daemon:
        assert daemon.ask("PUT", "/v1/policy", POLICY)[0] == 200
        yield daemon


@pytest.fixture(scope="module")
def prometheus(daemon: Stage, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    place = tmp_path_factory.mktemp("prometheus")
    configuration = place / "prometheus.yml"
    configuration.write_text(
        CONFIGURATION.format(rules=MONITORING / "alerts.yml", port=daemon.metrics_port)
    )
    port = free_port()
    line = [
        str(PROGRAMS / "prometheus"),
        f"--config.file={configuration}",
        f"--storage.tsdb.path={place / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        f"--web.console.templates={place}",
        f"--web.console.libraries={place}",
    ]
    log = place / "log"
    with log.open("wb") as words:
        process = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=words, stderr=words)
    try:
        server = Prometheus(port)
        limit = time.monotonic() + 60
        while True:
            try:
                server.ask("status/runtimeinfo")
                break
            except OSError:
                assert process.poll() is None and time.monotonic() < limit, log.read_text()[-3000:]
                time.sleep(0.2)
        server.until("demeter_balloon_build_info")
        yield server
    finally:
        process.terminate()
        process.wait(timeout=60)


def promtool(*words: str) -> None:
    done = subprocess.run(
        [str(PROGRAMS / "promtool"), *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_rules_are_right_and_fire_when_they_should() -> None:
    promtool("check", "rules", str(MONITORING / "alerts.yml"))
    promtool("test", "rules", str(MONITORING / "alerts-test.yml"))


def test_every_rule_is_tried_silent_and_firing() -> None:
    lines = (MONITORING / "alerts.yml").read_text().splitlines()
    names = [line.split("alert:")[1].strip() for line in lines if "- alert:" in line]
    tried = (MONITORING / "alerts-test.yml").read_text()
    assert len(names) > 7
    for name in names:
        assert f"alertname: {name}, exp_alerts: []" in tried, name
        assert f"alertname: {name}\n        exp_alerts:\n" in tried, name


def test_it_scrapes_without_complaint(daemon: Stage, prometheus: Prometheus) -> None:
    targets = prometheus.ask("targets")["activeTargets"]
    assert [(target["health"], target["lastError"]) for target in targets] == [("up", "")]
    sizes = prometheus.until('demeter_balloon_size_bytes{tier="smem"}', len(GUESTS))
    assert {one["metric"]["vm"] for one in sizes} == set(GUESTS)
    views = {view["name"]: view for view in json.loads(daemon.ask("GET", "/v1/vms")[2])}
    for one in sizes:
        said = views[one["metric"]["vm"]]["tiers"][1]["size_bytes"]
        assert int(one["value"][1]) == said
    # Counters, with their types and units as OpenMetrics has them.
    metadata = prometheus.ask("metadata", metric="demeter_balloon_stalled_some_seconds")
    kinds = metadata or prometheus.ask("metadata")
    assert any(
        entry["type"] == "counter"
        for name, entries in kinds.items()
        if name.startswith("demeter_balloon_stalled_some_seconds")
        for entry in entries
    )
    rates = prometheus.until("rate(demeter_balloon_stalled_some_seconds_total[1m]) > 0")
    # It cannot wait more than all of the time.
    assert all(0 < float(one["value"][1]) <= 1 for one in rates)


def test_rules_are_loaded_and_nothing_is_wrong(prometheus: Prometheus) -> None:
    limit = time.monotonic() + 30
    while True:
        groups = prometheus.ask("rules")["groups"]
        rules = [rule for group in groups for rule in group["rules"]]
        if all(rule["health"] == "ok" for rule in rules):
            break
        assert time.monotonic() < limit, rules
        time.sleep(0.5)
    assert len(rules) > 7
    firing = {rule["name"] for rule in rules if rule["state"] == "firing"}
    assert not firing


def expressions() -> list[str]:
    dashboard = json.loads((MONITORING / "grafana-dashboard.json").read_text())
    return [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]


def test_the_dashboard_has_figures() -> None:
    assert len(expressions()) > 10


@pytest.mark.parametrize("expression", expressions())
def test_the_dashboard_asks_for_what_there_is(prometheus: Prometheus, expression: str) -> None:
    concrete = expression.replace("$vm", ".*")
    for long, short in SHORTER.items():
        concrete = concrete.replace(long, short)
    assert "$" not in concrete
    found = prometheus.until(concrete)
    assert all(one["value"][1] != "NaN" for one in found)
