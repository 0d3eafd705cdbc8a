# SPDX-License-Identifier: Apache-2.0 OR MIT
"""``python -m demeter_lab.cli extmem``: measure the user-space pager, draw the results."""

from pathlib import Path
from typing import Annotated

import typer

from demeter_lab import (
    extmem_bench,
    extmem_figures,
    extmem_locality,
    extmem_matrix,
    extmem_programs,
)
from demeter_lab.extmem_linux import LinuxError
from demeter_lab.results import ResultError

app = typer.Typer(no_args_is_help=True, help="The user-space pager against Linux swap.")


@app.command()
def bench(
    out: Annotated[Path, typer.Option(help="result directory")] = Path("out/extmem"),
    binaries: Annotated[Path, typer.Option(help="where the built programs are")] = Path(
        "target/release"
    ),
    swap: Annotated[Path, typer.Option(help="folder for swap, on a disk")] = Path(
        "/var/tmp/demeter-extmem"
    ),
    size_mib: Annotated[int, typer.Option(min=64, help="memory a program uses")] = 1024,
    quick: Annotated[bool, typer.Option(help="a reduced matrix")] = False,
    runs: Annotated[
        int, typer.Option(min=1, help="whole runs, one after another; of each cell the middle one")
    ] = 1,
    only: Annotated[
        list[str] | None,
        typer.Option(
            help="plain, entropy30, huge, entropy30/huge, stress-cpu, stress-io, pagerank, xsbench"
        ),
    ] = None,
) -> None:
    """Measure extmem against the best Linux swap, in turn, and write the results."""
    policy = binaries / "libdemeter_policy_pagerank.so"
    tools = extmem_bench.Tools(
        workloads=binaries / "demeter-workloads",
        demeter=binaries / "demeter",
        swap_folder=swap,
        policy=str(policy),
    )
    size_bytes = size_mib << 20
    plan = extmem_matrix.quick(size_bytes) if quick else extmem_matrix.full(size_bytes)
    parts = [out] if runs == 1 else [out / f"run-{number}" for number in range(1, runs + 1)]
    try:
        for part in parts:
            extmem_bench.run(tools, plan, part, set(only or []))
            typer.echo(extmem_figures.write(part))
            typer.echo(extmem_figures.met(part))
        if runs > 1:
            median(parts, out)
    except (extmem_bench.BenchError, LinuxError, ResultError) as error:
        typer.echo(f"demeter-lab: error: {error}", err=True)
        raise typer.Exit(1) from None


@app.command()
def median(
    directories: Annotated[list[Path], typer.Argument(help="result directories of whole runs")],
    out: Annotated[Path, typer.Option(help="result directory")] = Path("out/extmem"),
) -> None:
    """Of each cell of several runs take the one in the middle, and draw that."""
    try:
        extmem_figures.median_run(directories, out)
        typer.echo(extmem_figures.write(out))
        typer.echo(f"{extmem_figures.met(out)}, in the median of {len(directories)} runs")
    except ResultError as error:
        typer.echo(f"demeter-lab: error: {error}", err=True)
        raise typer.Exit(1) from None


@app.command()
def figures(
    directory: Annotated[Path, typer.Argument(help="result directory")] = Path("out/extmem"),
) -> None:
    """Redraw the table and the figures from the recorded summary."""
    try:
        typer.echo(extmem_figures.write(directory))
    except ResultError as error:
        typer.echo(f"demeter-lab: error: {error}", err=True)
        raise typer.Exit(1) from None


@app.command()
def programs(
    out: Annotated[Path, typer.Option(help="file of the table")] = Path("out/extmem/programs.md"),
    binaries: Annotated[Path, typer.Option(help="where the built programs are")] = Path(
        "target/release"
    ),
    swap: Annotated[Path, typer.Option(help="folder for swap, on a disk")] = Path(
        "/var/tmp/demeter-extmem"
    ),
    only: Annotated[list[str] | None, typer.Option(help="a program of the table")] = None,
) -> None:
    """Run real programs with and without the pager and compare what they write."""
    try:
        table, is_well = extmem_programs.measure_all(
            binaries / "demeter", swap, set(only or []), out
        )
    except extmem_programs.ProgramsError as error:
        typer.echo(f"demeter-lab: error: {error}", err=True)
        raise typer.Exit(2) from None
    typer.echo(table)
    if not is_well:
        typer.echo("demeter-lab: error: not each row is the same or refused", err=True)
        raise typer.Exit(1)


@app.command()
def locality(
    binaries: Annotated[Path, typer.Option(help="where the built programs are")] = Path(
        "target/release"
    ),
    swap: Annotated[Path, typer.Option(help="folder for swap, on a disk")] = Path(
        "/var/tmp/demeter-extmem"
    ),
    rounds: Annotated[int, typer.Option(min=1, help="pairs of runs")] = 3,
    only: Annotated[list[str] | None, typer.Option(help="sort, xz, 'sort, small'")] = None,
) -> None:
    """Compare programs whose accesses are no stream with Linux swap at its best."""
    try:
        table = extmem_locality.measure(binaries / "demeter", swap, rounds, set(only or []))
        typer.echo(table)
    except (extmem_locality.LocalityError, LinuxError) as error:
        typer.echo(f"demeter-lab: error: {error}", err=True)
        raise typer.Exit(1) from None
