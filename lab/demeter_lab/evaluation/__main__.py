# SPDX-License-Identifier: Apache-2.0 OR MIT
"""``python -m demeter_lab.evaluation``: run the records, and make the report of what was run."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from demeter_lab.evaluation import document, fleet, pages, plan, records, replay
from demeter_lab.evaluation.execute import DEMETER, Outcome, Task
from demeter_lab.evaluation.records import DIRECTORY, ROOT, Record, RecordError
from demeter_lab.evaluation.store import Plan, Store, write_text
from demeter_lab.evaluation.values import label_of, results_of
from demeter_lab.results import ResultError

app = typer.Typer(add_completion=False, no_args_is_help=True)
Out = Annotated[Path, typer.Option(help="results directory, kept between runs")]
Quick = Annotated[bool, typer.Option("--quick", help="smaller memory, fewer seeds and points")]
Records = Annotated[Path, typer.Option("--records", help="folder of the records")]
Only = Annotated[list[str] | None, typer.Option("--only", help="only this record, as F8")]
OUT = Path("out/evaluation")


@app.command()
def run(
    quick: Quick = False,
    only: Only = None,
    systems: Annotated[list[str] | None, typer.Option("--system", help="only this row")] = None,
    with_rows: Annotated[
        list[str] | None, typer.Option("--with", help="compare this row, too: one of your own")
    ] = None,
    scheduler: Annotated[str | None, typer.Option(help="address of a Dask scheduler")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="guests at a time here")] = None,
    limit_s: Annotated[float, typer.Option(help="for each run, in seconds of the host")] = 3600.0,
    only_plan: Annotated[
        bool, typer.Option("--plan", help="say what would be run, no more")
    ] = False,
    directory: Records = DIRECTORY,
    out: Out = OUT,
) -> None:
    """Do the runs that have not been done, then make the report."""
    with _errors():
        managers = records.managers_of(ROOT / DEMETER)
        known = list(managers)
        _all_known([*(systems or []), *(with_rows or [])], known)
        added = {row: managers[row].below for row in with_rows or []}
        every = records.load(known, quick, directory, added)
        wanted = {record.id for record in _chosen(every, only)}
        choice = plan.chosen(every, wanted, None if systems is None else set(systems), limit_s)
        at_a_time = workers or fleet.default_workers()
        if only_plan:
            typer.echo(plan.text(choice, *plan.kept_of(choice, out), at_a_time))
            return
        store = Store(out)
        store.keep(Plan(quick, known, choice.keys, records.commit_of(ROOT), added))
        tasks = choice.tasks
        todo = [task for task in tasks.values() if store.files(task.key) is None]
        typer.echo(f"evaluation: {len(tasks)} runs, {len(tasks) - len(todo)} of them done before")
        failed = _execute(todo, store, scheduler, at_a_time) if todo else 0
        _report(out, directory, None)
    if failed:
        typer.echo(f"evaluation: {failed} runs failed; the same command tries them again", err=True)
        raise typer.Exit(1)


@app.command()
def report(
    to: Annotated[Path | None, typer.Option("--document", help="the document to write")] = None,
    directory: Records = DIRECTORY,
    out: Out = OUT,
) -> None:
    """Make the pages and the document from what the last `run` had planned; runs nothing."""
    with _errors():
        _report(out, directory, to)


class _errors:
    """Say what is wrong in one line, and end with status 1."""

    def __enter__(self) -> None:
        """Nothing to do."""

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """Turn known errors and an interruption into a message."""
        if isinstance(error, KeyboardInterrupt):
            typer.echo("evaluation: interrupted; the same command goes on", err=True)
            raise typer.Exit(130) from None
        if isinstance(error, RecordError | ResultError | OSError):
            typer.echo(f"demeter-lab: error: {error}", err=True)
            raise typer.Exit(1) from None


def _all_known(rows: Sequence[str], known: Sequence[str]) -> None:
    if odd := set(rows) - set(known):
        raise RecordError(
            f"no manager {', '.join(sorted(odd))}; choose from {', '.join(known)}, "
            "or make one (docs/peers.md)"
        )


def _chosen(every: Sequence[Record], only: Sequence[str] | None) -> list[Record]:
    if odd := set(only or []) - {record.id for record in every}:
        known = ", ".join(record.id for record in every)
        raise RecordError(f"no record {', '.join(sorted(odd))}; choose from {known}")
    return [record for record in every if not only or record.id in only]


def _execute(tasks: Sequence[Task], store: Store, scheduler: str | None, workers: int) -> int:
    """Run guests and tests, then play what they recorded; return how many failed."""
    replays = [task for task in tasks if task.run.needs is not None]
    others = [task for task in tasks if task.run.needs is None]
    done = 0

    def told(task: Task, outcome: Outcome) -> None:
        nonlocal done
        done += 1
        typer.echo(f"evaluation: {done}/{len(others)} {_how(task, outcome)}")

    failed = 0
    if others:
        with fleet.client_of(scheduler, workers) as client:
            failed = fleet.run_all(client, others, store, told, warned=_warned)
    if replays:
        more, waiting = replay.play_all(replays, store, workers, _told_if_failed)
        failed += more
        typer.echo(f"evaluation: {len(replays) - more - waiting} replays of what was recorded")
        if waiting:
            typer.echo(f"evaluation: {waiting} replays wait for what was not recorded", err=True)
    return failed


def _warned(text: str) -> None:
    typer.echo(f"evaluation: {text}", err=True)


def _told_if_failed(task: Task, outcome: Outcome) -> None:
    # Hundreds that each take no time: what is said of one is that it failed.
    if outcome.failure:
        typer.echo(f"evaluation: {_how(task, outcome)}")


def _how(task: Task, outcome: Outcome) -> str:
    name = f"{task.run.record} {label_of(task.run.labels)}"
    failed = f"FAILED: {outcome.failure.splitlines()[-1]}" if outcome.failure else ""
    return f"{name}: {failed or f'{outcome.host_s:.0f} s'}"


def _report(out: Path, directory: Path, to: Path | None) -> None:
    store = Store(out)
    last = store.plan()
    every = records.load(last.systems, last.quick, directory, last.added)
    results = results_of(every, store, last.keys)
    pages.write(results, out, last)
    typer.echo(f"evaluation: {out / 'index.html'}")
    text = document.text(results, last)
    for path in (out / "evaluation.md", to):
        if path is not None:
            write_text(path, text)
            typer.echo(f"evaluation: {path}")


if __name__ == "__main__":
    app()
