# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Reads result directories as the ``demeter`` command writes them.

A run's ``series.jsonl`` has one JSON object a line, cumulative counters since
modelling was first switched on; times are the guest's modelled clock in ns.
"""

import json
import math
from pathlib import Path

import polars as pl


class ResultError(Exception):
    """A result directory that cannot be used; the message says what to do."""


def positive(value: float) -> float:
    """Return a time or a rate as a number: ratios and logarithms are taken of it.

    Raises:
        ValueError: it is not above zero, is not finite, or is no number.

    """
    number = float(value)
    if not (math.isfinite(number) and number > 0):
        raise ValueError(f"{number} where a time or a rate must be")
    return number


def read_summary(directory: Path) -> dict[str, dict[str, float]]:
    """Return the rows of ``summary.json`` in ``directory``, by row name.

    Raises:
        ResultError: the file is missing or is not a summary.

    """
    path = directory / "summary.json"
    try:
        rows = json.loads(path.read_text())["rows"]
    except FileNotFoundError:
        raise ResultError(f"{path} is missing; run `make demo` first") from None
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise ResultError(f"{path} is not a summary ({error}); run `make demo` again") from None
    if not isinstance(rows, dict) or not rows:
        raise ResultError(f"{path} has no rows; run `make demo` again")
    return rows


def read_series(path: Path) -> pl.DataFrame:
    """Return ``series.jsonl`` as a frame with columns ``t_ns``, ``kind``, ``value``.

    Raises:
        ResultError: the file is missing, cut short, or lacks these fields.

    """
    try:
        lines = path.read_text().splitlines()
    except FileNotFoundError:
        raise ResultError(f"{path} is missing; run the experiment again") from None
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            rows.append((row["t_ns"], row["kind"], row["value"]))
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise ResultError(f"{path}, line {number}: {error}; run it again") from None
    schema = {"t_ns": pl.Int64, "kind": pl.String, "value": pl.Int64}
    return pl.DataFrame(rows, schema=schema, orient="row")


def throughput(series: pl.DataFrame, points: int = 80) -> pl.DataFrame:
    """Work per modelled second over time.

    Args:
        series: as returned by ``read_series``; uses its ``progress`` rows and the
            last ``on`` row before them as time zero.
        points: how many intervals of equal time to average over.

    Returns:
        Columns ``seconds`` (middle of the interval) and ``per_second``.

    Raises:
        ResultError: there are fewer than two progress rows.

    """
    progress = series.filter(pl.col("kind") == "progress")
    if progress.height < 2:
        raise ResultError("no progress in the series; the workload must report its progress")
    start_ns = series.filter((pl.col("kind") == "on") & (pl.col("t_ns") <= progress["t_ns"][0]))[
        "t_ns"
    ]
    zero_ns = start_ns[-1] if len(start_ns) else progress["t_ns"][0]
    times = [zero_ns, *progress["t_ns"].to_list()]
    values = [0, *progress["value"].to_list()]
    width = max((times[-1] - zero_ns) / points, 1.0)
    seconds, rates = [], []
    for index in range(points):
        low, high = zero_ns + index * width, zero_ns + (index + 1) * width
        done = _at(times, values, high) - _at(times, values, low)
        seconds.append((index + 0.5) * width * 1e-9)
        rates.append(done / (width * 1e-9))
    return pl.DataFrame({"seconds": seconds, "per_second": rates})


def _at(times: list[int], values: list[int], when: float) -> float:
    """Linear interpolation of ``values`` over increasing ``times``."""
    if when <= times[0]:
        return float(values[0])
    for index in range(1, len(times)):
        if when <= times[index]:
            span = times[index] - times[index - 1]
            share = (when - times[index - 1]) / span if span else 1.0
            return values[index - 1] + share * (values[index] - values[index - 1])
    return float(values[-1])
