# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Figures of the report: Altair's specifications, drawn by the page that shows them.

Lines and text take the colour of the page (``currentColor``), so that one figure serves the light
and the dark page; widths are the page's.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import altair as alt
import polars as pl

from demeter_lab.evaluation.measure import Measured
from demeter_lab.evaluation.records import RecordError
from demeter_lab.evaluation.values import Result, Value, is_point, label_of, understood
from demeter_lab.figures import colours_of

_PAGE = "currentColor"
#: Rows and columns of a heat map at most.
_MAP_ROWS, _MAP_COLUMNS = 96, 64
#: Of maps that stand below each other: no wider than a narrow window.
_MAP_WIDTH = 280
#: vCPUs of a VM of the paper, and its VMs.
_VCPUS, _VMS = 4, range(1, 10)
_ROW_HEIGHT = 14
#: Room for names beside a figure: less where the window is narrow.
_NAMES = alt.ExprRef("windowSize()[0] > 700 ? 380 : 150")

Spec = dict[str, object]
#: Labels that are axes of their own, not part of a point's name.
_OWN_AXES = ("system", "seed")


def figures_of(result: Result) -> list[tuple[str, Spec]]:
    """Return a record's figures with their titles; those that nothing was run for are left out."""
    drawn = []
    for spec in result.record.figures:
        with understood(result.record, spec):
            if spec["kind"] not in _KINDS:
                raise RecordError(
                    f"{result.record.id}: no figure '{spec['kind']}'; "
                    f"choose from {', '.join(_KINDS)}"
                )
            points = [one for one in result.measured if is_point(one.labels, spec.get("of", {}))]
            chart = _KINDS[spec["kind"]](points, spec)
            if chart is not None:
                drawn.append((str(spec["title"]), _finished(chart)))
    chart = beside_the_paper(result.values)
    if chart is not None:
        drawn.append(("Ours by the paper's: 1 is what the paper has", _finished(chart)))
    return drawn


def beside_the_paper(values: Iterable[Value]) -> alt.LayerChart | None:
    """Draw each value by the paper's, and the draft's by the paper's."""
    rows = []
    for value in values:
        if not value.ratio or value.ratio <= 0:
            continue
        shared = {"value": value.name, "unit": value.unit, "state": value.state}
        rows.append(
            {
                **shared,
                "whose": "ours",
                "by paper": value.ratio,
                "figure": value.ours,
                "paper": value.paper,
            }
        )
        rows.append(
            {
                **shared,
                "whose": "paper",
                "by paper": 1.0,
                "figure": value.paper,
                "paper": value.paper,
            }
        )
        if isinstance(value.draft, int | float):
            ratio = value.draft / value.paper
            rows.append(
                {
                    **shared,
                    "whose": "draft",
                    "by paper": ratio,
                    "figure": value.draft,
                    "paper": value.paper,
                }
            )
    if not rows:
        return None
    data = pl.DataFrame(
        rows, schema_overrides={"figure": pl.Float64, "paper": pl.Float64, "by paper": pl.Float64}
    )
    x = alt.X(
        "by paper:Q",
        scale=alt.Scale(type="log"),
        title="ours by the paper's, log",
        axis=alt.Axis(labelOverlap="greedy", labelSeparation=6),
    )
    y = alt.Y("value:N", sort=None, title=None, axis=alt.Axis(labelLimit=_NAMES))
    points = (
        alt.Chart(data)
        .mark_point(filled=True, size=110, opacity=0.9)
        .encode(
            x=x,
            y=y,
            shape=alt.Shape(
                "whose:N",
                title=None,
                scale=alt.Scale(
                    domain=["ours", "paper", "draft"], range=["circle", "square", "diamond"]
                ),
            ),
            color=alt.Color(
                "whose:N",
                title=None,
                scale=alt.Scale(
                    domain=["ours", "paper", "draft"], range=["#d62728", _PAGE, "#4c78a8"]
                ),
            ),
            tooltip=[
                "value",
                "whose",
                alt.Tooltip("figure:Q", format=".4~g"),
                "unit",
                alt.Tooltip("by paper:Q", format=".3~g"),
                "state",
            ],
        )
    )
    rule = (
        alt.Chart(pl.DataFrame({"at": [1.0]}))
        .mark_rule(strokeDash=[4, 3], color=_PAGE, opacity=0.6)
        .encode(x="at:Q")
    )
    return alt.layer(rule, points).properties(height=26 * data["value"].n_unique())


def speed_by_none(results: Sequence[Result], system: str) -> Spec | None:
    """Draw how much faster than `none` a manager was, by record and workload."""
    rows = []
    for result in results:
        bases = {_name(one): one.numbers["time_s"] for one in _of(result.measured, "none")}
        for one in _of(result.measured, system):
            if base := bases.get(_name(one)):
                rows.append(
                    {
                        "point": f"{result.record.id} {_name(one)}",
                        "faster": base / one.numbers["time_s"],
                    }
                )
    if not rows:
        return None
    chart = (
        alt.Chart(pl.DataFrame(rows))
        .mark_bar(color=colours_of([system])[system])
        .encode(
            x=alt.X("mean(faster):Q", title="time of none by this one's"),
            y=alt.Y("point:N", sort=None, title=None, axis=alt.Axis(labelLimit=_NAMES)),
            tooltip=["point", alt.Tooltip("mean(faster):Q", format=".3f"), "count()"],
        )
        .properties(height=22 * len({row["point"] for row in rows}))
    )
    return _finished(chart)


def times_of_workload(results: Sequence[Result], workload: str) -> Spec | None:
    """Draw the times of a workload under every manager, by record."""
    rows = [
        {
            "record": f"{result.record.id} {_name(one)}",
            "system": one.labels["system"],
            "time_s": one.numbers["time_s"],
        }
        for result in results
        for one in result.measured
        if one.labels.get("workload") == workload
        and not one.replayed
        and "system" in one.labels
        and "time_s" in one.numbers
    ]
    if not rows:
        return None
    return _finished(_grouped(pl.DataFrame(rows), "record", "system", "time_s", "modelled s"))


def _of(measured: Iterable[Measured], system: str) -> list[Measured]:
    return [
        one for one in measured if one.labels.get("system") == system and "time_s" in one.numbers
    ]


def _name(one: Measured, without: Iterable[str] = ()) -> str:
    """Return a point's name, less what has an axis of its own."""
    left = {key: value for key, value in one.labels.items() if key not in (*_OWN_AXES, *without)}
    return label_of(left) if left else "all"


def _bars(points: Sequence[Measured], spec: Mapping) -> alt.Chart | None:
    metric, facet = str(spec["metric"]), str(spec.get("facet", "workload"))
    colour = str(spec.get("colour", "system"))
    group = facet if colour == "system" else "system"
    rows = [
        {group: one.labels.get(group, ""), colour: one.labels[colour], metric: one.numbers[metric]}
        for one in points
        if metric in one.numbers and one.labels.get("fmem_share") is None
    ]
    if not rows:
        return None
    return _grouped(pl.DataFrame(rows), group, colour, metric, str(spec.get("unit", "")))


def _grouped(data: pl.DataFrame, group: str, colour: str, metric: str, unit: str) -> alt.LayerChart:
    """Draw bars of means, in groups, with the spread over seeds; the legend picks one."""
    picked = alt.selection_point(fields=[colour], bind="legend")
    order = list(colours_of(data[colour])) if colour == "system" else None
    base = alt.Chart(data).encode(
        y=alt.Y(f"{group}:N", sort=None, title=None, axis=alt.Axis(labelLimit=120)),
        yOffset=alt.YOffset(f"{colour}:N", sort=order),
    )
    bars = base.mark_bar().encode(
        x=alt.X(f"mean({metric}):Q", title=unit),
        color=_colour(colour, set(data[colour])),
        opacity=alt.condition(picked, alt.value(1), alt.value(0.2)),
        tooltip=[
            group,
            colour,
            alt.Tooltip(f"mean({metric}):Q", format=".4~g", title=unit),
            alt.Tooltip("count()", title="runs"),
        ],
    )
    spread = base.mark_rule(color=_PAGE).encode(x=f"min({metric}):Q", x2=f"max({metric}):Q")
    return alt.layer(bars.add_params(picked), spread).properties(
        height=_ROW_HEIGHT * data[group].n_unique() * data[colour].n_unique()
    )


def _stages(points: Sequence[Measured], spec: Mapping) -> alt.LayerChart | None:
    return _many(points, spec, lambda name: name.removesuffix("_s"))


def _percentiles(points: Sequence[Measured], spec: Mapping) -> alt.LayerChart | None:
    return _many(points, spec, lambda name: name.removeprefix("latency_").removesuffix("_ns"))


def _many(
    points: Sequence[Measured], spec: Mapping, named: Callable[[str], str]
) -> alt.LayerChart | None:
    """Draw several numbers of each manager."""
    scale = float(spec.get("scale", 1))
    rows = [
        {
            "number": named(metric),
            "system": one.labels["system"],
            "value": one.numbers[metric] * scale,
        }
        for metric in spec["metrics"]
        for one in points
        if metric in one.numbers
    ]
    if not rows:
        return None
    return _grouped(pl.DataFrame(rows), "number", "system", "value", str(spec.get("unit", "")))


def _fleet(points: Sequence[Measured], spec: Mapping) -> alt.Chart | None:
    metric = str(spec["metric"])
    rows = [
        {"VMs": vms, "system": one.labels["system"], "cores": one.numbers[metric] * _VCPUS * vms}
        for one in points
        for vms in _VMS
        if metric in one.numbers
    ]
    if not rows:
        return None
    data = pl.DataFrame(rows).group_by("VMs", "system").mean().sort("system", "VMs")
    return _lines(data, "VMs", "cores", str(spec["unit"]), "VMs of four vCPUs").mark_line(
        point=True
    )


def _curve(points: Sequence[Measured], spec: Mapping) -> alt.Chart | None:
    # One seed, the first: a mean of curves whose steps differ in time shows none of them.
    first = min((one.labels.get("seed", "") for one in points), default="")
    rows = [
        {"s": seconds, "system": one.labels["system"], "millions": rate * 1e-6}
        for one in points
        if one.labels.get("seed", "") == first
        for seconds, rate in one.curve
    ]
    if not rows:
        return None
    return _lines(pl.DataFrame(rows), "s", "millions", str(spec["unit"]), "modelled s")


def _lines(data: pl.DataFrame, x: str, y: str, unit: str, along: str) -> alt.Chart:
    picked = alt.selection_point(fields=["system"], bind="legend")
    return (
        alt.Chart(data)
        .mark_line(strokeWidth=1.8)
        .encode(
            x=alt.X(f"{x}:Q", title=along),
            y=alt.Y(f"{y}:Q", title=unit),
            color=_colour("system", set(data["system"])),
            opacity=alt.condition(picked, alt.value(1), alt.value(0.15)),
            tooltip=[
                "system",
                alt.Tooltip(f"{x}:Q", format=".3~g"),
                alt.Tooltip(f"{y}:Q", format=".4~g"),
            ],
        )
        .add_params(picked, alt.selection_interval(bind="scales", encodings=["x"]))
        .properties(height=280)
    )


def _grid(points: Sequence[Measured], spec: Mapping) -> alt.TopLevelMixin | None:
    """Draw a map of each workload, in colours of its own: one takes longer than another."""
    x, y, metric = str(spec["x"]), str(spec["y"]), str(spec["metric"])
    of_workload: dict[str, list[dict]] = {}
    for one in points:
        if metric in one.numbers and x in one.labels and y in one.labels:
            row = {x: int(one.labels[x]), y: int(one.labels[y]), metric: one.numbers[metric]}
            of_workload.setdefault(one.labels.get("workload", ""), []).append(row)
    maps = [_map(rows, spec).properties(title=workload) for workload, rows in of_workload.items()]
    if len(maps) < 2:
        return maps[0] if maps else None
    drawn = [one.properties(width=_MAP_WIDTH) for one in maps]
    return alt.vconcat(*drawn).resolve_scale(color="independent")


def _map(rows: Sequence[Mapping], spec: Mapping) -> alt.LayerChart:
    x, y, metric = str(spec["x"]), str(spec["y"]), str(spec["metric"])
    data = pl.DataFrame(rows).group_by(x, y).mean().sort(x, y)
    base = alt.Chart(data).encode(x=alt.X(f"{x}:O"), y=alt.Y(f"{y}:O"))
    cells = base.mark_rect().encode(
        color=alt.Color(
            f"{metric}:Q", title=str(spec["unit"]), scale=alt.Scale(scheme="viridis", reverse=True)
        ),
        tooltip=[f"{x}:O", f"{y}:O", alt.Tooltip(f"{metric}:Q", format=".4f")],
    )
    return alt.layer(cells).properties(height=34 * data[y].n_unique())


def _heat(points: Sequence[Measured], spec: Mapping) -> alt.FacetChart | None:
    rows = [
        {"by": name, "address": row, "time": column, "fills": fills, "log": math.log10(1 + fills)}
        for one in points
        for name, lines in one.maps.items()
        for row, column, fills in _folded(lines)
        if fills
    ]
    if not rows:
        return None
    return alt.vconcat(
        *(
            alt.Chart(
                pl.DataFrame([row for row in rows if row["by"] == name]), title=f"by {name} address"
            )
            .mark_rect()
            .encode(
                x=alt.X("time:O", title="time", axis=alt.Axis(labels=False, ticks=False)),
                y=alt.Y(
                    "address:O",
                    sort="descending",
                    title="touched memory, gaps folded",
                    axis=alt.Axis(labels=False, ticks=False),
                ),
                color=alt.Color("log:Q", title="log10 fills", scale=alt.Scale(scheme="inferno")),
                tooltip=["by", "time", "address", "fills"],
            )
            .properties(height=220, width=280)
            for name in ("virtual", "physical")
            if any(row["by"] == name for row in rows)
        )
    )


def _folded(lines: Sequence[Sequence[int]]) -> list[tuple[int, int, int]]:
    """Return a map as cells of a smaller one: row, column, fills."""
    cells: dict[tuple[int, int], int] = {}
    rows = max(1, math.ceil(len(lines) / _MAP_ROWS))
    columns = max(1, math.ceil(max(map(len, lines), default=1) / _MAP_COLUMNS))
    for at, line in enumerate(lines):
        for when, fills in enumerate(line):
            place = (at // rows, when // columns)
            cells[place] = cells.get(place, 0) + fills
    return [(row, column, fills) for (row, column), fills in sorted(cells.items())]


def _colour(field: str, present: set[str]) -> alt.Color:
    if field != "system":
        return alt.Color(f"{field}:N", title=None)
    colours = colours_of(present)
    shown = [_PAGE if name == "none" else colour for name, colour in colours.items()]
    return alt.Color(
        f"{field}:N",
        title=None,
        sort=list(colours),
        scale=alt.Scale(domain=list(colours), range=shown),
    )


def _finished(chart: alt.TopLevelMixin) -> Spec:
    """Return the specification, in the page's colours and as wide as it."""
    if not isinstance(chart, alt.VConcatChart):
        chart = chart.properties(width="container")
    axis = alt.AxisConfig(
        labelColor=_PAGE, titleColor=_PAGE, domainColor="#888", tickColor="#888", gridColor="#8883"
    )
    return chart.configure(
        background="transparent",
        axis=axis,
        legend=alt.LegendConfig(labelColor=_PAGE, titleColor=_PAGE, orient="top", columns=3),
        title=alt.TitleConfig(color=_PAGE),
        view=alt.ViewConfig(stroke=None),
    ).to_dict()


_KINDS: dict[str, Callable[[Sequence[Measured], Mapping], alt.TopLevelMixin | None]] = {
    "bars": _bars,
    "stages": _stages,
    "percentiles": _percentiles,
    "fleet": _fleet,
    "curve": _curve,
    "grid": _grid,
    "heat": _heat,
}
