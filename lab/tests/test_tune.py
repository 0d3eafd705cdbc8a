# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The search against a made command, whose times are a known function of the knobs."""

import hashlib
import json
import math
import tomllib
from pathlib import Path
from random import Random

import pytest
from typer.testing import CliRunner

from demeter_lab.evaluation.records import COMMON, DIRECTORY
from demeter_lab.inputs import inputs_of
from demeter_lab.results import ResultError
from demeter_lab.tune.__main__ import app
from demeter_lab.tune.rivals import RIVALS, rival
from demeter_lab.tune.search import cost_of, hypercube
from demeter_lab.tune.space import MOST_KNOBS, ROWS, Knob, TuneError
from demeter_lab.workloads import SEVEN, WORKLOADS, WorkloadError, workload_of

# Best at 32 ms and much headroom; huge pages are worth a tenth; 4 ms does not end well.
FAKE = """#!{python}
import json, math, sys, pathlib
words = sys.argv[1:]
if words[:2] == ["vm", "managers"]:
    print(json.dumps([{{"row": "memtis", "module": "demeter_memtis.ko"}}]))
    sys.exit()
with open(pathlib.Path(__file__).with_name("calls"), "a") as calls:
    calls.write(" ".join(words) + "\\n")
knobs = dict(word.split("=") for word in words[: words.index("--")] if "=" in word)
if knobs.get("hot_threshold_ms") == "4":
    sys.exit("demeter: error: it fails; next: nothing")
threshold = float(knobs.get("hot_threshold_ms", 400))
time_s = 10 + abs(math.log2(threshold / 32)) + (knobs.get("watermark_scale_factor") != "1000")
time_s *= 1.1 if knobs.get("thp") == "never" else 1
seed = int(words[words.index("--seed") + 1]) if "--seed" in words else 0
print(json.dumps({{"whole": {{"time_s": time_s + seed / 100, "work_per_s": None,
    "fmem_share": 0.5}}, "last_quarter": None, "promoted_pages": 1, "demoted_pages": 1,
    "digest": "d"}}))
"""


def tune(fake: Path, out: Path, *words: str) -> tuple[int, str]:
    common = ["--row", "nbt", "--demeter", str(fake), "--out", str(out)]
    common += ["--workload", "one=x --seed {seed}", "--workload", "two@command=y"]
    done = CliRunner().invoke(app, [*common, *words])
    return done.exit_code, done.output


def calls(fake: Path) -> list[str]:
    path = fake.with_name("calls")
    return path.read_text().splitlines() if path.exists() else []


def test_the_budget_is_kept_and_the_best_is_found(fake: Path, tmp_path: Path) -> None:
    status, output = tune(fake, tmp_path / "out", "--budget", "48")
    assert status == 0, output
    assert len(calls(fake)) == 48
    best = json.loads((tmp_path / "out/best.json").read_text())
    times = [
        record["time_s"]
        for record in map(json.loads, (tmp_path / "out/runs.jsonl").read_text().splitlines())
        if record["time_s"] is not None
    ]
    assert best["candidates"] == 24
    found = best["best"]
    assert found["watermark_scale_factor"] == "1000" and found["thp"] == "always"
    assert found["hot_threshold_ms"] in ("16", "50", "100")
    # As it stands: 10 + log2(400 / 32) + 1.
    assert best["cost"] == pytest.approx(min(times) / (11 + math.log2(12.5)), rel=0.01)
    # The row as it is comes first; its guests start together.
    first = next(call for call in calls(fake)[:2] if "--roi self" in call)
    assert "hot_threshold" not in first
    assert any("--roi command" in call for call in calls(fake))


def test_a_stopped_search_goes_on(fake: Path, tmp_path: Path) -> None:
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    assert tune(fake, whole, "--budget", "16", "--jobs", "1")[0] == 0
    assert tune(fake, stopped, "--budget", "16", "--jobs", "3")[0] == 0
    # However many guests at a time, the same candidates.
    assert (whole / "best.json").read_text() == (stopped / "best.json").read_text()
    journal = stopped / "runs.jsonl"
    lines = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join(lines[:5]) + lines[5][:20])
    before = len(calls(fake))
    assert tune(fake, stopped, "--budget", "16", "--jobs", "3")[0] == 0
    assert len(calls(fake)) == before + 11
    assert (whole / "best.json").read_text() == (stopped / "best.json").read_text()


def test_failures_cost_and_are_told(fake: Path, tmp_path: Path) -> None:
    status, output = tune(fake, tmp_path / "out", "--budget", "24")
    assert status == 0
    assert "inf" in output and "failed" in output
    fake.write_text("#!/bin/sh\nexit 1\n")
    status, output = tune(fake, tmp_path / "other", "--budget", "24")
    assert status == 1 and "as it stands fails" in output


def test_the_hosts_limits_do_not_steer(fake: Path, tmp_path: Path) -> None:
    well = fake.read_text()
    # All but the row as it stands meet the limit on a host that is slow today.
    slow = "demeter: error: guest did not end within 9 s (last console line: ''); next: more"
    stop = f'if "--nbt-set" in words: sys.exit("{slow}")\nknobs ='
    fake.write_text(well.replace("knobs =", stop, 1))
    status, output = tune(fake, tmp_path / "out", "--budget", "8", "--jobs", "1", "--timeout", "9")
    assert status == 1 and "did not end within 9 s" in output
    assert len((tmp_path / "out/runs.jsonl").read_text().splitlines()) == 2
    assert not (tmp_path / "out/best.json").exists()
    # With another limit the runs that ended still count.
    fake.write_text(well)
    assert tune(fake, tmp_path / "other", "--budget", "4", "--timeout", "9")[0] == 0
    before = len(calls(fake))
    assert tune(fake, tmp_path / "other", "--budget", "4", "--timeout", "90")[0] == 0
    assert len(calls(fake)) == before


def test_everything_a_guest_is_made_of_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def put(name: str, text: str = "1") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    monkeypatch.setenv("DEMETER_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("DEMETER_MODULES", raising=False)
    monkeypatch.delenv("DEMETER_LIBEXEC", raising=False)
    demeter = put("target/release/demeter")
    named = {name: put(f"cache/{name}") for name in ("vmlinuz", "initrd_base", "qemu", "root")}
    module = put("build/modules/6.12.1/demeter.ko")
    kernel = {"name": "6.12", "release": "6.12.1"}
    kernel |= {name: str(named[name]) for name in ("vmlinuz", "initrd_base")}
    contract = {
        "qemu": {"argv": [str(named["qemu"]), "-L", "share"]},
        "kernels": [kernel],
        "guest_root": str(named["root"]),
    }
    parts = [demeter, module, put("target/release/libdemeter_tcg_plugin.so"), *named.values()]
    testbed = put("cache/testbed.json", json.dumps(contract))
    first = inputs_of(demeter)
    assert first["6.12.1 demeter.ko"] == hashlib.sha256(b"1").hexdigest()
    for path in parts:
        path.write_text("2")
        changed = inputs_of(demeter)
        assert changed != first and changed.keys() == first.keys(), path
        path.write_text("1")
    put("cache/testbed.json", json.dumps(contract | {"format": 1}))
    assert inputs_of(demeter)["testbed.json"] != first["testbed.json"]
    testbed.write_text("{")
    with pytest.raises(ResultError, match="damaged"):
        inputs_of(demeter)


def test_results_of_other_programs_are_not_mixed(fake: Path, tmp_path: Path) -> None:
    assert tune(fake, tmp_path / "out", "--budget", "4")[0] == 0
    fake.write_text(fake.read_text() + "# rebuilt\n")
    status, output = tune(fake, tmp_path / "out", "--budget", "4")
    assert status == 1 and "choose another --out" in output
    status, output = tune(fake, tmp_path / "small", "--budget", "3")
    assert status == 1 and "at least 4" in output


def test_results_of_another_module_are_not_mixed(
    fake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = {"name": "6.12", "release": "6.12.1"}
    contract = {"qemu": {"argv": []}, "kernels": [kernel], "guest_root": "none"}
    (tmp_path / "testbed.json").write_text(json.dumps(contract))
    module = tmp_path / "modules/6.12.1/demeter_memtis.ko"
    module.parent.mkdir(parents=True)
    module.write_text("as it was")
    monkeypatch.setenv("DEMETER_CACHE", str(tmp_path))
    monkeypatch.setenv("DEMETER_MODULES", str(tmp_path / "modules"))
    words = ("--row", "memtis", "--budget", "4")
    assert tune(fake, tmp_path / "out", *words)[0] == 0
    assert tune(fake, tmp_path / "out", *words)[0] == 0
    module.write_text("built anew")
    status, output = tune(fake, tmp_path / "out", *words)
    assert status == 1 and "choose another --out" in output


def test_the_best_is_judged_by_what_it_has_not_seen(fake: Path, tmp_path: Path) -> None:
    words = ("--budget", "24", "--judge", "--judge-seeds", "3", "--unseen", "three=z --seed {seed}")
    status, output = tune(fake, tmp_path / "out", *words)
    assert status == 0, output
    judged = json.loads((tmp_path / "out/best.json").read_text())["judged"]
    assert [len(judged[name]["ratios"]) for name in ("one", "two", "three")] == [3, 1, 3]
    assert judged["three"]["median"] < 1
    # Two settings; seeds 2 to 4 of two workloads; the one without a seed is known.
    assert len(calls(fake)) == 24 + 2 * 2 * 3


def damon_makes_sense(knobs: tuple[Knob, ...]) -> bool:
    """Whether every check fits every aggregation, and thresholds are no counts."""
    values = {knob.name: [int(value) for value in knob.values if value.isdigit()] for knob in knobs}
    return 2 * max(values["sample_us"]) <= min(values["aggr_us"]) and "hot_permille" in values


def test_a_hypercube_covers_each_knob() -> None:
    for row in ROWS.values():
        assert 0 < len(row.knobs) <= MOST_KNOBS
        assert {"thp"} <= {knob.name for knob in row.knobs}
        assert row.name != "damon" or damon_makes_sense(row.knobs)
        settings = hypercube(row, 12, Random(1))
        for knob in row.knobs:
            assert {setting[knob.name] for setting in settings} == set(knob.values)
            assert len(knob.options_of("1")) == 2 * len(knob.options)


def test_rivals_are_searched_where_they_are_compared() -> None:
    text = (DIRECTORY / COMMON).read_text()
    tunings = tomllib.loads(text)["tunings"]
    # Whoever is given a second setting was searched for; `-noflush` has what `tpp-h` has.
    assert set(tunings["eager"]) - {"tpp-h-noflush"} == set(RIVALS)
    of_tpp_h = tunings["searched"]["tpp-h"].replace("tpp-h.", "tpp-h-noflush.")
    assert tunings["searched"]["tpp-h-noflush"] == of_tpp_h
    for name in RIVALS:
        found = rival(name)
        assert 0 < len(found.row.knobs) <= MOST_KNOBS
        assert "--roi" not in found.guest and "32M" in found.guest
        assert [item.name for item in found.workloads] == ["gups", "silo"]
        assert all("--seed {seed}" in item.command for item in found.workloads)
        for knob in found.row.knobs:
            for words in knob.options_of("7"):
                assert words == "--peer-set" or words.startswith(f"{name}.")
        line = found.row.options_of({knob.name: knob.values[0] for knob in found.row.knobs})
        assert line[:2] == ["--tmm", name]
    with pytest.raises(TuneError):
        rival("nbt")


def test_cost() -> None:
    assert cost_of([2.0, 8.0], [4.0, 4.0]) == pytest.approx(1.0)
    assert cost_of([2.0, None], [4.0, 4.0]) == math.inf


def test_workloads_are_the_evaluations() -> None:
    with pytest.raises(WorkloadError):
        workload_of("nonsense")
    assert workload_of("a@command=b c").roi == "command"
    text = (Path(__file__).parents[2] / "docs/workloads.md").read_text()
    table = [line.split("`")[1] for line in text.splitlines() if line.startswith("| `")]
    assert [workload.name for workload in SEVEN] == table
    for workload in WORKLOADS.values():
        assert workload.roi == "self" and workload.has_seed
        assert "--pages huge" in workload.command and "--footprint 280M" in workload.command
