# SPDX-License-Identifier: Apache-2.0 OR MIT
"""``python -m demeter_lab.tune --row ROW --budget 14``: the best knobs for a row."""

import json
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from demeter_lab.evaluation.records import RecordError, managers_of
from demeter_lab.evaluation.store import write_text
from demeter_lab.results import ResultError
from demeter_lab.tune.guests import Guests
from demeter_lab.tune.rivals import RIVALS, Search, rival
from demeter_lab.tune.search import best_of, judge, search
from demeter_lab.tune.space import TuneError, row_of
from demeter_lab.workloads import GUEST, TUNED_WITH, WorkloadError, workload_of

#: Linux' own managers and ours are judged by these, too.
UNSEEN = ("btree", "graph500", "xsbench")

app = typer.Typer(add_completion=False)


def search_of(row: str) -> Search:
    """Return what is searched of a row, in which guest, with which workloads."""
    if row in RIVALS:
        return rival(row)
    return Search(row_of(row), GUEST, TUNED_WITH, tuple(workload_of(name) for name in UNSEEN))


def modules_of(row: str, demeter: Path) -> list[str]:
    """Return the module that carries a published manager out, of those that have one."""
    module = managers_of(demeter)[row].module if row in RIVALS else None
    return [] if module is None else [module]


@app.command()
def tune(
    row: Annotated[
        str, typer.Option(help="nbt, damon, damon-auto, demeter or a rival of the evaluation")
    ],
    budget: Annotated[int, typer.Option(help="guests of the search in all", min=1)] = 14,
    workload: Annotated[
        list[str] | None, typer.Option(help="NAME or NAME=COMMAND [default: gups and a short silo]")
    ] = None,
    unseen: Annotated[
        list[str] | None,
        typer.Option(help="judged by as well [default: three more]"),
    ] = None,
    seed: Annotated[int, typer.Option(help="of the choice of candidates")] = 1,
    judged: Annotated[
        bool, typer.Option("--judge", help="then judge the best with other seeds and workloads")
    ] = False,
    judge_seeds: Annotated[int, typer.Option(help="how many other seeds", min=1)] = 5,
    jobs: Annotated[int, typer.Option(help="guests at a time", min=1)] = 2,
    timeout: Annotated[int, typer.Option(help="of a guest, in seconds of the host")] = 1800,
    guest: Annotated[str, typer.Option(help="more options of `demeter vm run`")] = "",
    demeter: Annotated[Path, typer.Option(help="the command")] = Path("target/release/demeter"),
    out: Annotated[Path | None, typer.Option(help="[default: out/tune/ROW]")] = None,
) -> None:
    """Search for the best knobs of a row; the same command goes on where it was stopped."""
    try:
        found = search_of(row)
        tuned = found.row
        workloads = [workload_of(text) for text in workload or []] or list(found.workloads)
        others = [workload_of(text) for text in unseen or []] or list(found.unseen)
        directory = out or Path("out/tune") / row
        options = [*found.guest, *shlex.split(guest)]
        plan = {
            "row": asdict(tuned),
            "budget": budget,
            "seed": seed,
            "workloads": [asdict(item) for item in workloads],
        }
        guests = Guests(
            tuned,
            directory,
            demeter=demeter.absolute(),
            jobs=jobs,
            timeout_s=timeout,
            options=options,
            modules=modules_of(row, demeter.absolute()),
            plan=plan,
        )
        tried = search(guests, workloads, budget, seed, say=lambda line: print(line, flush=True))
        best = best_of(tried)
        result: dict[str, object] = {
            "row": row,
            "best": best.setting,
            "cost": best.cost,
            "options": tuned.options_of(best.setting),
            "candidates": len(tried),
        }
        if judged:
            seeds = range(2, 2 + judge_seeds)
            result["judged"] = judge(guests, best.setting, [*workloads, *others], seeds)
        path = directory / "best.json"
        write_text(path, json.dumps(result, indent=2) + "\n")
    except (TuneError, ResultError, RecordError, WorkloadError, OSError) as error:
        typer.echo(f"demeter-lab: error: {error}", err=True)
        raise typer.Exit(1) from None
    print(f"\n{row}: {best.cost:.4f} of its time as it stands, by {len(tried)} candidates")
    print(shlex.join(tuned.options_of(best.setting)))
    for name, outcome in result.get("judged", {}).items():  # type: ignore[union-attr]
        ratios = outcome["ratios"]
        spread = f"({min(ratios):.3f} to {max(ratios):.3f})" if ratios else ""
        failed = f", {outcome['failed']} failed" if outcome["failed"] else ""
        print(f"  {name:<10} {outcome['median']} {spread}{failed}")
    print(path)


if __name__ == "__main__":
    app()
