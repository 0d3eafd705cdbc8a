# SPDX-License-Identifier: Apache-2.0 OR MIT
"""``docs/evaluation.md``: every record, ours beside the paper's, with what did not run and why."""

import shlex
from collections.abc import Sequence

from demeter_lab.evaluation.records import Run
from demeter_lab.evaluation.store import Plan
from demeter_lab.evaluation.values import NOT_RUN, Result, Value

_HEAD = """<!-- SPDX-License-Identifier: Apache-2.0 OR MIT -->
# The paper's evaluation, made again

The paper: J. Hu, Z. Hu, C.-F. Wu and M.-C. Yang, "Demeter: A Scalable and Elastic Tiered Memory
Solution for Virtualized Cloud via Guest Delegation", SOSP 2025; `draft` is what earlier texts of it
say where they differ. "H-TPP" is TPP in the hypervisor, "G-TPP" in the guest.

Made by `make {target}` from its runs: [lab/evaluation](../lab/evaluation) has each record as data.
Made at commit {commit}.
{scale}
Times of guests are modelled ([model.md](model.md)). What is missing is told as "not run", with the
reason; what was run in part is told but not checked, and so is a lead on a manager that moved no
page, or that does not behave as its paper says ([which](results/peers.md)). A bound asks for the
order; where that holds and the paper's number is not reached, the remark says so. Rivals have
their published values, scaled, and others, chosen and searched
([peers.md](peers.md#published-scaled-tuned)); Demeter has its defaults, some of which were chosen
on pagerank and liblinear ([how](results/guests.md#how-the-rows-were-tuned)). Guests with a balloon,
or with several vCPUs, are alike from run to run, not equal to the last bit; all others are.
What a record may say: [evaluation-records.md](evaluation-records.md).

`make evaluate` does what has not been done: each run is kept under the digest of its command and
of all programs, modules and kernels that it is made of, so it can be interrupted at any point. A
run that failed is recorded, the rest goes on, and the next call tries it again. `make figures`
draws `out/evaluation/index.html` and this page's text from what was run, without running.
`PYTHONPATH=lab python -m demeter_lab.evaluation run --scheduler ADDRESS` has the runs done by the
workers of a Dask scheduler: checkouts of one commit with the same built programs and cache.
Quick and whole runs may share a results directory: both are kept, and the report is of what was
asked for last. `run --plan` says what would be run, and how many guests of each record are kept,
and runs nothing.
"""
QUICK = """**These are the quick runs**: guests of a quarter of the memory, one seed, one guest in
place of nine, fewer points. They show that the path works, not how far things go: a run is one to
eight modelled seconds, short for managers that need seconds of hint faults to know anything. In
guests this small the kernel refuses most huge pages that TPP and HeMem would have in FMEM, and
Nomad promotes hardly any, for want of a whole free one; with base pages TPP pays for a
fault at each look ([no better in one of four times the memory](results/peers.md)). Counts of rivals
that follow the guest's size are scaled to these guests. In T1, F6 to F8, F10 and F11 the fastest of
a rival's ways counts, in F12 that of the least 99th percentile: kinds of pages, and tunings for
short runs (`eager`, chosen, and `searched`, by GUPS and silo in these guests:
[common.toml](../lab/evaluation/common.toml)). In F10 and F11
TPP, and throughout Nomad, Nimble and HeMem, have small pages in whole runs only. At 8f5a0b6 each of
ten quick runs of TPP took 1.2 to 1.6 times as long with small ones, at db0006e Nomad's 1.2 to
2.3 times as long with small ones (before it woke kswapd where it finds no room, which takes some
10 % off in two of three guests of [peers.md](results/peers.md)), and HeMem's (`eager`) 1.1 to 1.6
times as long as its published huge ones; of Nimble none was made there. F6's quick runs have Nomad
as published only.
"""
_WHOLE = (
    "Guests of 640 MiB in place of the paper's 16 GiB, several seeds, one guest in place of nine.\n"
)


def text(results: Sequence[Result], plan: Plan) -> str:
    """Return the document."""
    head = _HEAD.format(
        target="evaluate-quick" if plan.quick else "evaluate",
        scale=QUICK if plan.quick else _WHOLE,
        commit=plan.commit,
    )
    parts = [head, _summary(results)]
    parts += [_section(result) for result in results]
    return "\n".join(parts)


def figure(number: float | str | None) -> str:
    """Return a number with what digits it is worth, or a dash."""
    if number is None:
        return "-"
    if isinstance(number, str):
        return number
    return f"{number:,.0f}" if abs(number) >= 10_000 else f"{number:.4g}"


def ours(value: Value) -> str:
    """Return our figure with its spread."""
    if value.ours is None:
        return "-"
    text = figure(value.ours)
    if value.spread is not None:
        text += f" ({figure(value.spread[0])} to {figure(value.spread[1])}, of {value.points})"
    return text


def commands_of(run: Run) -> list[str]:
    """Return what makes a run, as one would type it: what is recorded comes before its replay."""
    argvs = [run.argv] if run.needs is None else [run.needs.argv, run.argv]
    return [_typed(argv) for argv in argvs]


def _typed(argv: Sequence[str]) -> str:
    text = shlex.join(argv).replace("'{demeter}'", "demeter")
    return text.replace("'{out}'", "OUT").replace("'{record}'", "OUT")


def _summary(results: Sequence[Result]) -> str:
    lines = [
        "| record | what | state | met | missed | no check | not run |",
        "|---|---|---|---|---|---|---|",
    ]
    for result in results:
        states = [value.state for value in result.values]
        counts = " | ".join(
            str(states.count(state)) for state in ("met", "missed", "no check", NOT_RUN)
        )
        record = result.record
        lines.append(
            f"| [{record.id}](#{_anchor(result)}) | {record.title} | {result.state} | {counts} |"
        )
    return "\n".join(lines) + "\n"


def _anchor(result: Result) -> str:
    kept = "".join(
        letter for letter in _title(result).lower() if letter.isalnum() or letter in " -_"
    )
    return kept.replace(" ", "-")


def _title(result: Result) -> str:
    return f"{result.record.id}: {result.record.title}"


def _section(result: Result) -> str:
    record = result.record
    lines = [
        f"## {_title(result)}",
        "",
        f"{record.where}. {record.scaled} Check: {record.check}.",
        "",
    ]
    lines += [
        "| value | ours | paper | draft | ours / paper | wanted | check | remark |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for value in result.values:
        ratio = "-" if value.ratio is None else f"{value.ratio:.2f}"
        name = f"{value.name}, {value.unit}" if value.unit else value.name
        cells = (
            name,
            ours(value),
            value.paper_says or figure(value.paper),
            figure(value.draft),
            ratio,
            value.wanted or "-",
            value.state,
            value.note,
        )
        lines.append(
            "| " + " | ".join(cell.replace("|", "/").replace("\n", " ") for cell in cells) + " |"
        )
    lines.append("")
    if record.beyond:
        lines += [
            f"Rows beyond the paper's: {', '.join(f'`{name}`' for name in record.beyond)}.",
            "",
        ]
    if record.absent:
        lines += [f"Not implemented: {', '.join(f'`{name}`' for name in record.absent)}.", ""]
    for name, reason in sorted(result.failures.items()):
        lines += [f"Failed: {name}: {reason.splitlines()[-1][:300]}", ""]
    if result.missing:
        lines += [f"{result.missing} of {len(record.runs)} runs were not made.", ""]
    if record.runs:
        commands = "\n".join(commands_of(record.runs[0]))
        lines += ["The first of its runs:", "", "```", commands, "```", ""]
    return "\n".join(lines)
