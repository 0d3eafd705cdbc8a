# SPDX-License-Identifier: Apache-2.0 OR MIT
"""``python -m demeter_lab.cli``: one verb a figure, a table, an experiment or an input.

What a verb draws or prints is a pure function of recorded results; ``seven``, ``draws``,
``loss``, ``sensitivity`` and parts of ``extmem`` run what they record first.
"""

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from demeter_lab import draws as first_touch
from demeter_lab import extmem_cli, figures, libsvm_data
from demeter_lab import loss as losses
from demeter_lab import peers as published
from demeter_lab import sensitivity as sweeps
from demeter_lab import seven as seven_workloads
from demeter_lab import touch as touches
from demeter_lab import vcpus as vcpu_counts
from demeter_lab.results import ResultError
from demeter_lab.workloads import SEVEN, WorkloadError, workload_of

app = typer.Typer(add_completion=False, no_args_is_help=True)
app.add_typer(extmem_cli.app, name="extmem")


@contextmanager
def refusals() -> Iterator[None]:
    """Say what cannot be done, in a line, and end with status 1."""
    try:
        yield
    except (ResultError, WorkloadError) as error:
        typer.echo(f"demeter-lab: error: {error}", err=True)
        raise typer.Exit(1) from None


def tell(table: str, file: Path | None = None) -> None:
    """Print a table, and keep it in a file."""
    if file:
        file.write_text(table)
    typer.echo(table, nl=False)


@app.callback()
def lab() -> None:
    """Run experiments on Demeter; figures and tables of what they recorded."""


@app.command()
def demo(
    directory: Annotated[Path, typer.Argument(help="the demo's result directory")],
    out: Annotated[Path, typer.Option(help="SVG file to write")],
) -> None:
    """Draw throughput over time of `make demo`."""
    with refusals():
        figures.demo_throughput(directory).save(out)
    typer.echo(out)


@app.command()
def libsvm(
    out: Annotated[Path, typer.Option(help="file to write")],
    instances: Annotated[int, typer.Option(min=1)] = 60_000,
    features: Annotated[int, typer.Option(min=1)] = 1_000_000,
    per_instance: Annotated[int, typer.Option(min=1)] = 110,
) -> None:
    """Write a made classification problem for liblinear."""
    libsvm_data.write(out, instances, features, per_instance)
    typer.echo(out)


@app.command()
def peers(
    directory: Annotated[Path, typer.Argument(help="results of experiments/peers.sh")],
) -> None:
    """Hold published managers against what is published of them."""
    with refusals():
        tell(published.table(published.read_runs(directory)))


@app.command()
def seven(
    out: Annotated[Path, typer.Option(help="results directory")] = Path("out/seven"),
    workload: Annotated[
        list[str] | None, typer.Option(help="only these: NAME or NAME=COMMAND")
    ] = None,
    seed: Annotated[int, typer.Option(help="of each workload")] = 1,
    jobs: Annotated[int, typer.Option(help="guests at a time", min=1)] = 2,
    guest: Annotated[str, typer.Option(help="more options of `demeter vm compare`")] = "",
    managers: Annotated[str, typer.Option(help="the rows")] = ",".join(seven_workloads.MANAGERS),
    demeter: Annotated[Path, typer.Option(help="the command")] = Path("target/release/demeter"),
) -> None:
    """Compare managers on the seven workloads; a comparison that is complete is kept."""
    with refusals():
        workloads = [workload_of(text) for text in workload] if workload else SEVEN
        times = seven_workloads.run(
            demeter.absolute(),
            workloads,
            seed,
            jobs,
            out,
            shlex.split(guest),
            managers.split(","),
        )
        tell(seven_workloads.table(times), out / "table.txt")


@app.command()
def draws(
    out: Annotated[Path, typer.Option(help="results directory")] = Path("out/draws"),
    workload: Annotated[list[str] | None, typer.Option(help="NAME or NAME=COMMAND")] = None,
    size: Annotated[list[int] | None, typer.Option(help="MiB of FMEM", min=1)] = None,
    jobs: Annotated[int, typer.Option(help="guests at a time", min=1)] = 2,
    guest: Annotated[str, typer.Option(help="more options of `demeter vm compare`")] = "",
    demeter: Annotated[Path, typer.Option(help="the command")] = Path("target/release/demeter"),
) -> None:
    """Compare with `none` at several sizes of FMEM; a comparison that is complete is kept."""
    with refusals():
        workloads = [workload_of(text) for text in workload or ["pagerank"]]
        sizes = size or first_touch.SIZES_MIB
        drawn = first_touch.run(demeter.absolute(), workloads, sizes, jobs, out, shlex.split(guest))
        tell(first_touch.table(drawn), out / "table.txt")


@app.command()
def touch(
    directory: Annotated[Path, typer.Argument(help="results of `experiments/run.sh touch`")],
) -> None:
    """Hold the sampler `touch` against PEBS: a ratio a program, their mean, the least."""
    with refusals():
        tell(touches.table(*touches.read(directory)), directory / "table.txt")


@app.command()
def inputs(
    file: Annotated[Path, typer.Argument(help="file to write")],
    demeter: Annotated[Path, typer.Option(help="the command")] = Path("target/release/demeter"),
) -> None:
    """Write digests of all that a guest is made of now, for `touch` to hold against others."""
    with refusals():
        touches.claim(file, demeter.absolute())


@app.command()
def vcpus(
    directory: Annotated[Path, typer.Argument(help="results of `experiments/run.sh vcpus`")],
) -> None:
    """Tell what more vCPUs change: the time, or the rate in the last quarter, too."""
    with refusals():
        tell(vcpu_counts.table(vcpu_counts.read(directory)), directory / "table.txt")


@app.command()
def loss(
    out: Annotated[Path, typer.Option(help="results directory")] = Path("out/loss"),
    program: Annotated[list[str] | None, typer.Option(help="only this one")] = None,
    jobs: Annotated[int, typer.Option(help="guests at a time", min=1)] = 2,
    guest: Annotated[str, typer.Option(help="more options of `demeter vm compare`")] = "",
    demeter: Annotated[Path, typer.Option(help="the command")] = Path("target/release/demeter"),
) -> None:
    """Compare with `none` where there is little to gain; a comparison that is complete is kept."""
    with refusals():
        programs = losses.chosen(program or [])
        rows = losses.run(demeter.absolute(), programs, jobs, out, shlex.split(guest))
        tell(losses.table(rows), out / "table.txt")


@app.command()
def sensitivity(
    out: Annotated[Path, typer.Option(help="results directory")] = Path("out/sensitivity"),
    workload: Annotated[
        list[str] | None, typer.Option(help="only these: NAME or NAME=COMMAND")
    ] = None,
    seed: Annotated[int, typer.Option(help="of each workload")] = 1,
    live: Annotated[bool, typer.Option(help="run Demeter in guests, too")] = True,
    guest: Annotated[str, typer.Option(help="more options of the guests")] = "",
    replay: Annotated[str, typer.Option(help="more options of `demeter sim`")] = "",
    table: Annotated[str, typer.Option(help="file of OUT for the table")] = "table.txt",
    demeter: Annotated[Path, typer.Option(help="the command")] = Path("target/release/demeter"),
) -> None:
    """Sweep Demeter's parameters on records of the seven workloads; what is done is kept."""
    with refusals():
        workloads = [workload_of(text) for text in workload] if workload else SEVEN
        swept = sweeps.run(
            demeter.absolute(),
            workloads,
            seed,
            live,
            out,
            shlex.split(guest),
            shlex.split(replay),
        )
        tell(sweeps.table(swept), out / table)


if __name__ == "__main__":
    app()
