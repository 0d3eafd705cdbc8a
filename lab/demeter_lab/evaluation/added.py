# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A row of one's own beside those of the records: ``run --with ROW``.

It joins each record in which Demeter is compared with others, in the runs in which Demeter is,
and each such record has one value more: this row by Demeter, of what its first value is about.
Bounds and the best of all rivals stay those of the records.
"""

from collections.abc import Mapping, Sequence

#: What numbers are called in the value; others by their own names.
_CALLED = {
    "time_s": "Run time",
    "work_per_s": "Work by time",
    "track_s": "Tracking",
    "track_cores": "Tracking",
    "latency_p99_ns": "99th percentile",
}
_ROW = "system"
_COMPARED_WITH = "demeter"


def joined(data: Mapping, added: Mapping[str, bool]) -> tuple[dict, list[str]]:
    """Return the record with the rows in it, and which of them are not the record's own.

    Args:
        data: of the record's file.
        added: rows, and whether each is below the guest: a balloon has no place there.

    """
    blocks = data.get("run", [])
    own = {name for block in blocks for name in block.get("axes", {}).get(_ROW, [])}
    all_joined: list[str] = []
    runs = []
    for block in blocks:
        axes = block.get("axes", {})
        names = [
            name
            for name, below in added.items()
            if name not in own and not (below and "balloon" in axes)
        ]
        if not names or not _compares(axes.get(_ROW, [])):
            runs.append(block)
            continue
        quick = block.get("quick", {})
        runs.append({**block, "axes": _with(axes, names), "quick": _with(quick, names)})
        all_joined += names
    joined = list(dict.fromkeys(all_joined))
    values = [*data.get("value", []), *(_value(data, name) for name in joined)]
    return {**data, "run": runs, "value": values}, joined


def _compares(rows: Sequence[str]) -> bool:
    return _COMPARED_WITH in rows and len(rows) > 1


def _with(axes: Mapping, names: Sequence[str]) -> dict:
    return {**axes, _ROW: [*axes[_ROW], *names]} if _ROW in axes else dict(axes)


def _value(data: Mapping, name: str) -> dict[str, object]:
    metric = next((str(spec["metric"]) for spec in data["value"] if "metric" in spec), "time_s")
    return {
        "name": f"{_CALLED.get(metric, metric)}, {name} / Demeter, geometric mean",
        "metric": metric,
        "of": {_ROW: name},
        "by": {_ROW: _COMPARED_WITH},
        "note": "added by --with",
    }
