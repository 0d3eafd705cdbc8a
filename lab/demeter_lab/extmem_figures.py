# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Tables and figures of ``bench-extmem``, from its summary alone."""

import json
from pathlib import Path

import altair as alt
import polars as pl

from demeter_lab.results import ResultError

# What runs have in common whose cells may be compared.
SAME = (
    "commit",
    "machine",
    "machine_settings",
    "cpus",
    "size_bytes",
    "dram_bytes",
    "slice_s",
    "rounds",
    "page_clusters",
    "pagerank_scale",
    "xsbench_gridpoints",
)


# Nothing was measured, or nothing is asked for.
NONE = "\u2013"


def rows(directory: Path) -> pl.DataFrame:
    """Return one row a cell: pattern, variant, threads, the ratio and its spread.

    Raises:
        ResultError: there is no summary, or it is not one.

    """
    path = directory / "summary.json"
    try:
        summary = json.loads(path.read_text())
        cells = [
            {
                "pattern": name.partition("/")[0],
                "variant": name.partition("/")[2] or "plain",
                "threads": int(threads),
                **{key: float(cell[key]) for key in ("ratio_median", "ratio_min", "ratio_max")},
                "mark": cell.get("mark"),
                # By the ratio before it was rounded.
                "met": bool(cell.get("met", True)),
                "linux_setting": cell.get("linux_setting", ""),
                "all_touches": cell.get("all_touches_ratio"),
                "profile": profile(cell),
            }
            for name, by_threads in summary.items()
            for threads, cell in by_threads.items()
        ]
    except FileNotFoundError:
        raise ResultError(f"{path} is missing; run `make bench-extmem` first") from None
    except (json.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise ResultError(f"{path} is not a summary ({error}); run it again") from None
    if not cells:
        raise ResultError(f"{path} has no cells; run `make bench-extmem` again")
    return pl.DataFrame(cells, schema_overrides={"mark": pl.Float64, "all_touches": pl.Float64})


def median_run(directories: list[Path], out: Path) -> None:
    """Write the summary of several runs: of each cell the run in the middle, whole.

    Its spread is that of the runs' medians, not of the slices of one of them; ``runs`` has
    all of them. With an even number of runs the lower of the two in the middle counts.

    Args:
        directories: results of at least one run of the same matrix.
        out: result directory.

    Raises:
        ResultError: a summary is missing, has other cells than the first, or is of another
            machine, plan or commit.

    """
    runs, manifests = [], []
    for directory in directories:
        rows(directory)
        runs.append(json.loads((directory / "summary.json").read_text()))
        manifests.append(manifest_of(directory))
        other = sorted(key for key in SAME if manifests[0].get(key) != manifests[-1].get(key))
        if other:
            raise ResultError(
                f"{directory} differs from {directories[0]} in {', '.join(other)}; "
                "next: give runs of the same machine, plan and commit"
            )
    cells_of = [{(name, count) for name in run for count in run[name]} for run in runs]
    for directory, cells in zip(directories, cells_of, strict=True):
        if cells != cells_of[0]:
            raise ResultError(
                f"{directory} has other cells than {directories[0]}; "
                "next: give runs of the same matrix"
            )
    summary: dict[str, dict[str, object]] = {}
    for name in runs[0]:
        for threads in runs[0][name]:
            cells = sorted((run[name][threads] for run in runs), key=lambda c: c["ratio_median"])
            ratios = [cell["ratio_median"] for cell in cells]
            summary.setdefault(name, {})[threads] = cells[(len(cells) - 1) // 2] | {
                "ratio_min": ratios[0],
                "ratio_max": ratios[-1],
                "runs": [run[name][threads]["ratio_median"] for run in runs],
            }
    out.mkdir(parents=True, exist_ok=True)
    (out / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    (out / "manifest.json").write_text(json.dumps({"runs": manifests}, indent=1) + "\n")
    # Of a single run that was here before.
    (out / "series.csv").unlink(missing_ok=True)


def manifest_of(directory: Path) -> dict[str, object]:
    """Return what a run says of its machine and plan.

    Raises:
        ResultError: there is none, or it is not one.

    """
    try:
        manifest = json.loads((directory / "manifest.json").read_text())
    except (OSError, json.JSONDecodeError) as error:
        raise ResultError(
            f"{directory} has no manifest ({error}); next: `make bench-extmem`"
        ) from None
    if not isinstance(manifest, dict):
        raise ResultError(f"{directory} has no manifest; next: `make bench-extmem`")
    return manifest


def met(directory: Path) -> str:
    """Return how many of a summary's cells with a mark reach it, as a line."""
    marked = rows(directory).filter(pl.col("mark").is_not_null())
    reached = marked.filter(pl.col("met")).height
    return f"{reached} of {marked.height} cells reach their mark"


def profile(cell: dict[str, float]) -> str:
    """Return what a cell's programs did per touch, extmem's number first."""
    if "extmem_cpu_us_per_touch" not in cell:
        return ""
    return (
        f"{cell['extmem_pages_read_per_touch']:.3g}, "
        f"{cell.get('linux_pages_read_per_touch', cell['linux_major_faults_per_touch']):.3g}; "
        f"{cell['extmem_cpu_us_per_touch']:.2g}, {cell['linux_cpu_us_per_touch']:.2g} µs"
    )


def matrix(cells: pl.DataFrame) -> str:
    """Return a line for each pattern, a column for each number of threads; missed in bold."""
    counts = cells["threads"].unique().sort().to_list()
    lines = [
        "| pattern | " + " | ".join(f"T={count}" for count in counts) + " | mark |",
        "|---" * (len(counts) + 2) + "|",
    ]
    for (pattern, variant), group in cells.group_by("pattern", "variant", maintain_order=True):
        by_threads = {row["threads"]: row for row in group.iter_rows(named=True)}
        mark = group["mark"][0]
        name = pattern if variant == "plain" else f"{pattern}, {variant}"
        said = [ratio(by_threads[count]) if count in by_threads else NONE for count in counts]
        said.append(NONE if mark is None else f"{mark:.1f}")
        lines.append(f"| {name} | {' | '.join(said)} |")
    return "\n".join(lines) + "\n"


def ratio(row: dict[str, float | None]) -> str:
    """Return a cell's ratio and its spread, in bold if it misses its mark."""
    median = f"{row['ratio_median']:.2f}"
    if row["mark"] is not None and not row["met"]:
        median = f"**{median}**"
    return f"{median} ({row['ratio_min']:.2f}\u2013{row['ratio_max']:.2f})"


def table(cells: pl.DataFrame) -> str:
    """Return the cells as tables in Markdown: the ratios, and what is behind each.

    In the second extmem's number comes before Linux's. Of threads that walk the slowest
    counts; what all of them did together is in a column of its own.
    """
    lines = [
        "| pattern | variant | threads | extmem / best Linux | of all touches | mark "
        "| Linux setting | reads per touch; CPU per touch |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in cells.iter_rows(named=True):
        mark = "" if row["mark"] is None else f"{row['mark']:.1f}"
        together = "" if row["all_touches"] is None else f"{row['all_touches']:.3g}"
        lines.append(
            f"| {row['pattern']} | {row['variant']} | {row['threads']} | {ratio(row)} "
            f"| {together} | {mark} | {row['linux_setting']} | {row['profile']} |"
        )
    return matrix(cells) + "\n" + "\n".join(lines) + "\n"


def figure(cells: pl.DataFrame, pattern: str) -> alt.LayerChart:
    """Draw a pattern: median ratio with its spread, by threads and variant."""
    data = cells.filter(pl.col("pattern") == pattern)
    base = alt.Chart(data, title=f"{pattern}: extmem relative to the best Linux swap")
    x = alt.X("threads:O", title="threads")
    bars = base.mark_bar().encode(
        x=x,
        xOffset="variant:N",
        y=alt.Y("ratio_median:Q", title="throughput ratio"),
        color=alt.Color("variant:N", title=None),
    )
    spread = base.mark_rule().encode(
        x=x, xOffset="variant:N", y="ratio_min:Q", y2=alt.Y2("ratio_max:Q")
    )
    equal = alt.Chart(pl.DataFrame({"one": [1.0]})).mark_rule(strokeDash=[4, 3]).encode(y="one:Q")
    return alt.layer(bars, spread, equal).properties(width=320, height=240)


def write(directory: Path) -> str:
    """Write ``table.md`` and one SVG a pattern beside the summary; return the table."""
    cells = rows(directory)
    text = table(cells)
    (directory / "table.md").write_text(text)
    for pattern in cells["pattern"].unique(maintain_order=True):
        figure(cells, pattern).save(directory / f"{pattern}.svg")
    return text
