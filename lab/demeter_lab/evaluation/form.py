# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What a record's file may hold: a word that is not known is a mistake, not nothing."""

from collections.abc import Mapping, Sequence

#: Tables of the evaluation's own file, and those that quick runs replace parts of.
_COMMON = {"records", "unlike", "parameters", "workloads", "tunings", "quick"}
_QUICK = {"parameters", "workloads", "options", "tunings"}
_TOLD = {"id", "kind", "where", "title", "scaled", "needs", "check"}
_RECORD = _TOLD | {
    *("paper", "draft", "beyond", "chosen_by", "parameters", "workloads", "quick"),
    *("values", "run", "value", "figure"),
}
_RUN = {
    *("kind", "argv", "axes", "quick", "labels", "given", "options", "parameters"),
    *("record", "patterns", "sources"),
}
_FIGURE = {
    *("kind", "title", "unit", "scale", "metric", "metrics", "of", "facet", "colour", "x", "y"),
}
#: An axis of names, which have to be known.
_WORKLOAD = "workload"


class FormError(ValueError):
    """A file that is not of its form; the message says where and what is known."""


def check_common(common: Mapping, systems: Sequence[str]) -> None:
    """Raise if the file that records share has what nothing reads.

    Args:
        common: its content.
        systems: managers that the command has.

    Raises:
        FormError: it has.

    """
    _known("common.toml", common, _COMMON)
    quick = common.get("quick", {})
    _known("common.toml, [quick]", quick, _QUICK)
    tunings = common.get("tunings", {})
    _known("common.toml, [quick.tunings]", quick.get("tunings", {}), set(tunings))
    known = {*systems, *(name for words in tunings.values() for name in words)}
    _known("common.toml, unlike", dict.fromkeys(common.get("unlike", [])), known)
    _known("common.toml, [quick.options]", quick.get("options", {}), known)
    for name, words in quick.get("tunings", {}).items():
        _known(f"common.toml, [quick.tunings.{name}]", words, set(tunings[name]))


def check_record(data: Mapping, commands: Mapping) -> None:
    """Raise if a record has what nothing reads, or less than it says.

    Args:
        data: of its file.
        commands: of workloads, by name.

    Raises:
        FormError: it has.

    """
    _known("it", data, _RECORD)
    values = len(data.get("value", []))
    if data.get("values", values) != values:
        raise FormError(
            f"it says values = {data['values']}, and has {values} [[value]]: the file is cut "
            "short, or a value was put in or left out; mend one of them"
        )
    own = {*commands, *data.get("workloads", {}), *data.get("parameters", {})}
    for number, block in enumerate(data.get("run", []), 1):
        name = f"its [[run]] {number}"
        _known(name, block, _RUN)
        axes = block.get("axes", {})
        words = [*block.get("argv", []), *block.get("record", [])]
        named = own if "{command}" in words else None
        for where, table in (("axes", axes), ("quick", block.get("quick", {}))):
            _known_axes(f"{name}, {where}", table, named)
        _known(f"{name}, quick", block.get("quick", {}), set(axes))
        _known(f"{name}, given", block.get("given", {}), set(axes))
    for number, figure in enumerate(data.get("figure", []), 1):
        _known(f"its [[figure]] {number}", figure, _FIGURE)


def _known_axes(where: str, axes: Mapping, workloads: set[str] | None) -> None:
    for axis, values in axes.items():
        if not isinstance(values, list):
            raise FormError(f"{where}: {axis} is no list")
        if axis == _WORKLOAD and workloads is not None:
            _known(f"{where}, workload", dict.fromkeys(map(str, values)), workloads)


def _known(where: str, table: Mapping, names: set[str]) -> None:
    if odd := set(table) - names:
        raise FormError(
            f"{where} has no {', '.join(sorted(odd))}; choose from {', '.join(sorted(names))}"
        )
