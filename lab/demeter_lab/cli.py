# SPDX-License-Identifier: Apache-2.0 OR MIT
"""``python -m demeter_lab.cli``: one verb a figure."""

from pathlib import Path
from typing import Annotated

import typer

from demeter_lab import extmem_cli, figures, libsvm_data
from demeter_lab.results import ResultError

app = typer.Typer(add_completion=False, no_args_is_help=True)
app.add_typer(extmem_cli.app, name="extmem")


@app.callback()
def lab() -> None:
    """Figures of Demeter, drawn from recorded results."""


@app.command()
def demo(
    directory: Annotated[Path, typer.Argument(help="the demo's result directory")],
    out: Annotated[Path, typer.Option(help="SVG file to write")],
) -> None:
    """Draw throughput over time of `make demo`."""
    try:
        figures.demo_throughput(directory).save(out)
    except ResultError as error:
        typer.echo(f"demeter-lab: error: {error}", err=True)
        raise typer.Exit(1) from None
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


if __name__ == "__main__":
    app()
