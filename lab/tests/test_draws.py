# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The table of several sizes of FMEM, from comparisons of a made command."""

from pathlib import Path

from typer.testing import CliRunner

from demeter_lab.cli import app
from demeter_lab.draws import table

FAKE = """#!{python}
import json, sys, pathlib
words = sys.argv[1:]
with open(pathlib.Path(__file__).with_name("calls"), "a") as calls:
    calls.write(" ".join(words) + "\\n")
out = pathlib.Path(words[words.index("--out") + 1])
out.mkdir(parents=True)
size = int(words[words.index("--fmem") + 1].removesuffix("M"))
rows = {{"none": {{"time_s": 8 if size < 64 else 4}}, "demeter": {{"time_s": 5}}}}
(out / "compare.json").write_text(json.dumps({{"rows": rows}}))
"""


def draws(fake: Path, *words: str) -> tuple[int, str]:
    out = fake.with_name("out")
    line = ["draws", "--demeter", str(fake), "--out", str(out), *words]
    done = CliRunner().invoke(app, line, catch_exceptions=False)
    return done.exit_code, done.output


def test_each_size_is_compared_once(fake: Path) -> None:
    words = ("--size", "63", "--size", "64", "--guest", "--slow cxl")
    status, output = draws(fake, *words)
    assert status == 0, output
    assert output == fake.with_name("out").joinpath("table.txt").read_text()
    calls = fake.with_name("calls").read_text().splitlines()
    assert len(calls) == 2
    for size, call in zip((63, 64), calls, strict=True):
        assert f" --kernel 7.x --smem 288M --fmem {size}M --slow cxl -- " in call
        assert "--tmm none,demeter " in call and " pagerank " in call
    lines = [line.split() for line in output.splitlines()]
    assert ["pagerank", "63", "8.000", "5.000", "-37.50"] in lines
    assert ["pagerank", "64", "4.000", "5.000", "25.00"] in lines
    # Means are geometric: what one size gains and another loses as often is nothing.
    assert lines[-1] == ["pagerank", "mean", "5.657", "5.000", "-11.61"]
    assert draws(fake, *words) == (0, output)
    assert len(fake.with_name("calls").read_text().splitlines()) == 2
    # Those of another guest are not mixed with these.
    status, output = draws(fake, "--size", "63")
    assert status == 1 and "another --out" in output


def test_workloads_have_means_of_their_own() -> None:
    one = {60: {"none": 4.0, "demeter": 2.0}, 61: {"none": 1.0, "demeter": 2.0}}
    text = table({"pagerank": one, "xsbench": {60: {"none": 4.0, "demeter": 4.0}}})
    means = [line.split() for line in text.splitlines() if " mean " in line]
    assert means == [
        ["pagerank", "mean", "2.000", "2.000", "0.00"],
        ["xsbench", "mean", "4.000", "4.000", "0.00"],
    ]
