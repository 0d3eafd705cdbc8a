# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The report as static pages that need no network: one a record, one a manager, one a workload."""

import json
import re
from collections.abc import Sequence
from pathlib import Path

import jinja2
import vl_convert
from markupsafe import Markup, escape

from demeter_lab.evaluation import charts, document
from demeter_lab.evaluation.charts import Spec
from demeter_lab.evaluation.store import Plan, write_text
from demeter_lab.evaluation.values import NOT_RUN, Result

_TEMPLATES = Path(__file__).with_name("templates")
#: Numbers of a run that pages of managers and workloads show, with what they are called.
_COLUMNS = {
    "time_s": "modelled s",
    "fmem_share": "share of fills from FMEM",
    "manager_share": "share of time for management",
    "tlb_full": "whole TLB flushes",
}


def write(results: Sequence[Result], out: Path, plan: Plan) -> list[Path]:
    """Write all pages into ``out``; return them."""
    assets = out / "assets"
    assets.mkdir(parents=True, exist_ok=True)
    # Its names would be global ones otherwise.
    write_text(assets / "vega.js", f"(() => {{\n{vl_convert.javascript_bundle()}\n}})();\n")
    for name in ("draw.js", "style.css"):
        write_text(assets / name, (_TEMPLATES / name).read_text())
    pages = _environment()
    managers, workloads = managers_of(results), workloads_of(results)
    shared = {
        "quick": plan.quick,
        "quick_words": _plain(document.QUICK),
        "commit": plan.commit,
        "results": results,
        "managers": managers,
        "workloads": workloads,
        "not_run": NOT_RUN,
    }
    written = [out / "index.html"]
    write_text(written[0], pages.get_template("index.html").render(**shared))
    for result in results:
        written.append(out / f"{result.record.id}.html")
        shown = [(title, _embedded(spec)) for title, spec in charts.figures_of(result)]
        text = pages.get_template("record.html").render(
            **shared, result=result, record=result.record, figures=shown, commands=_commands(result)
        )
        write_text(written[-1], text)
    for name in managers:
        written.append(out / f"manager-{name}.html")
        write_text(
            written[-1],
            _page_of(pages, "manager", name, charts.speed_by_none(results, name), results, shared),
        )
    for name in workloads:
        written.append(out / f"workload-{name}.html")
        write_text(
            written[-1],
            _page_of(
                pages, "workload", name, charts.times_of_workload(results, name), results, shared
            ),
        )
    return written


def managers_of(results: Sequence[Result]) -> dict[str, bool]:
    """Return every manager that a record asks for, and whether it is implemented."""
    found: dict[str, bool] = {}
    for result in results:
        for run in result.record.runs:
            if run.system is not None:
                found[run.system] = True
        for name in result.record.absent:
            found.setdefault(name, False)
    return found


def workloads_of(results: Sequence[Result]) -> list[str]:
    """Return every workload of a record."""
    return list(dict.fromkeys(name for result in results for name in result.record.workloads))


def _page_of(
    pages: jinja2.Environment,
    axis: str,
    name: str,
    spec: Spec | None,
    results: Sequence[Result],
    shared: dict,
) -> str:
    """Return the page of a manager or a workload."""
    label = "system" if axis == "manager" else "workload"
    lines = []
    for result in results:
        for one in result.measured:
            # A grid of settings is for its own record's page.
            if one.labels.get(label) == name and "time_s" in one.numbers and not one.replayed:
                left = " ".join(
                    f"{key}={value}" for key, value in one.labels.items() if key != label
                )
                if one.way:
                    left = f"{left} (the best of {one.chosen_from}: {one.way})".strip()
                if one.labels.get("system") in result.record.beyond:
                    left = f"{left} (beyond the paper)".strip()
                cells = [document.figure(one.numbers.get(column)) for column in _COLUMNS]
                lines.append((result.record.id, left, cells))
    values = [
        value
        for result in results
        for value in result.values
        if name in value.about or (label == "workload" and result.record.workloads == [name])
    ]
    commands = [
        (result.record.id, "\n".join(document.commands_of(run)))
        for result in results
        for run in [
            next((one for one in result.record.runs if one.labels.get(label) == name), None)
        ]
        if run is not None
    ]
    return pages.get_template("axis.html").render(
        **shared,
        axis=axis,
        name=name,
        lines=lines,
        columns=list(_COLUMNS.values()),
        values=values,
        commands=commands,
        implemented=axis == "workload" or shared["managers"][name],
        figure=None if spec is None else _embedded(spec),
    )


def _commands(result: Result) -> list[str]:
    """Return one command of each kind of run: the first of each program and axes."""
    first = {}
    for run in result.record.runs:
        first.setdefault((run.kind, tuple(run.labels)), "\n".join(document.commands_of(run)))
    return list(first.values())


def _environment() -> jinja2.Environment:
    pages = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    pages.filters |= {"figure": document.figure, "ours": document.ours, "prose": prose}
    return pages


def prose(text: str) -> Markup:
    """Return a record's text with what stands between backquotes as code."""
    parts = [escape(part) for part in text.split("`")]
    marked = (Markup("<code>{}</code>").format(part) if at % 2 else part
              for at, part in enumerate(parts))  # fmt: skip
    return Markup("").join(marked) if len(parts) % 2 else escape(text)


def _plain(text: str) -> str:
    """Return a document's paragraph without its links and emphasis."""
    return re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text).replace("**", "")


def _embedded(spec: Spec) -> Markup:
    """Return a specification that may stand in a script element: nothing in it can end that."""
    text = json.dumps(spec, sort_keys=True).replace("<", "\\u003c").replace("&", "\\u0026")
    return Markup(text)
