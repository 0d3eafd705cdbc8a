# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Figures as pure functions of recorded results."""

import itertools
from collections.abc import Iterable
from pathlib import Path

import altair as alt
import polars as pl

from demeter_lab.results import read_series, read_summary, throughput

# Rows keep one colour in every figure; the manager under study stands out.
COLOURS = {
    "fast": "#9a9a9a",
    "oracle": "#4c78a8",
    "ideal": "#72b7b2",
    "ideal-2m": "#9ecae9",
    "demeter": "#d62728",
    "nbt": "#f58518",
    "nbt-default": "#e9b872",
    "damon": "#54a24b",
    "damon-auto": "#9fce8f",
    "tpp": "#b279a2",
    "tpp-charged": "#d6a5c9",
    "tpp-h": "#6b4c9a",
    "tpp-h-noflush": "#9a86bf",
    "tpp-h-2m": "#c5b9de",
    "raminate": "#a05d56",
    "heteroos": "#d3978f",
    "vtmm": "#637939",
    "memtis": "#1f9e89",
    "memtis-unscaled": "#7fcdbb",
    "nomad": "#8c6d31",
    "nimble": "#e377c2",
    "hemem": "#17becf",
    "none": "#333333",
}
#: For rows that are not among them: somebody's own.
_OTHERS = ("#ff9da6", "#bcbd22", "#1f77b4", "#ff7f0e", "#2ca02c")


def colours_of(rows: Iterable[str]) -> dict[str, str]:
    """Return the colour of each row, in the order in which figures have them."""
    present = set(rows)
    known = {row: colour for row, colour in COLOURS.items() if row in present}
    others = zip(sorted(present - set(known)), itertools.cycle(_OTHERS), strict=False)
    return known | dict(others)


def demo_throughput(directory: Path) -> alt.Chart:
    """Throughput over modelled time, a line a manager.

    Args:
        directory: of a demo: ``summary.json`` and one folder a row, each with its
            ``series.jsonl``.

    """
    frames = [
        throughput(read_series(directory / row / "series.jsonl")).with_columns(
            pl.lit(row).alias("manager"),
            (pl.col("per_second") / 1e6).alias("millions"),
        )
        for row in read_summary(directory)
    ]
    data = pl.concat(frames)
    colours = colours_of(data["manager"])
    return (
        alt.Chart(data, title="GUPS, hot set placed last: throughput over modelled time")
        .mark_line(strokeWidth=1.8)
        .encode(
            x=alt.X("seconds:Q", title="modelled time (s)"),
            y=alt.Y("millions:Q", title="updates per modelled second (millions)"),
            color=alt.Color(
                "manager:N",
                scale=alt.Scale(domain=list(colours), range=list(colours.values())),
                sort=list(colours),
                title=None,
            ),
        )
        .properties(width=640, height=320)
    )
