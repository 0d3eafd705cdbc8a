# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What may be tuned of the published managers, in the guests of the evaluation.

They are searched where they are compared: in the guest of ``make evaluate-quick``, with its GUPS
and its silo and what its size already gives a manager (``lab/evaluation/common.toml``). Huge
pages or small ones are an axis of its own there. A manager keeps what it promises: Memtis its
3 % of a CPU for samples.
"""

import shlex
import tomllib
from dataclasses import dataclass, replace

from demeter_lab.evaluation.records import COMMON, DIRECTORY
from demeter_lab.tune.space import Knob, Row, TuneError
from demeter_lab.workloads import Workload


def _knob(row: str, name: str, *values: str) -> Knob:
    return Knob(name, values, (f"--peer-set {row}.{name}={{}}",))


def _hint_faults(row: str) -> Row:
    return Row(
        row,
        (
            _knob(row, "watermark_scale_factor", "67", "150", "333", "600"),
            _knob(row, "scan_size_mb", "5", "10", "20", "40", "80"),
            _knob(row, "scan_period_min_ms", "25", "50", "100", "200"),
            _knob(row, "wake_ms", "2", "5", "10", "20"),
        ),
    )


def _below(row: str) -> Row:
    return Row(
        row,
        (
            _knob(row, "demote_basis_points", "200", "500", "1000", "2000"),
            _knob(row, "scan_size_mb", "5", "10", "20", "40"),
            _knob(row, "scan_period_min_ms", "50", "100", "200", "400"),
            _knob(row, "repeat_faults", "0", "15"),
        ),
    )


RIVALS = {
    row.name: row
    for row in (
        _hint_faults("tpp"),
        _hint_faults("nomad"),
        Row(
            "memtis",
            (
                _knob("memtis", "adaptation_samples", "61", "122", "244", "488", "977", "1954"),
                _knob("memtis", "cooling_samples", "4883", "9766", "19531", "39062", "78125"),
                _knob("memtis", "kmigrated_ms", "10", "20", "50", "100"),
                _knob("memtis", "direct_pages", "31", "62", "125", "250", "500"),
            ),
        ),
        Row(
            "hemem",
            (
                Knob(
                    "period",
                    ("2503", "4999", "9973", "19997"),
                    (
                        "--peer-set hemem.period={0}",
                        "--peer-set hemem.store_period={0}",
                    ),
                ),
                _knob("hemem", "hot_reads", "2", "4", "8"),
                _knob("hemem", "cooling_samples", "5", "10", "18", "36"),
                _knob("hemem", "policy_ms", "5", "10", "20", "50"),
            ),
        ),
        Row(
            "nimble",
            (
                _knob("nimble", "period_ms", "50", "100", "200", "500"),
                _knob("nimble", "scan_permille", "250", "500", "1000"),
                _knob("nimble", "batch", "8", "32"),
                _knob("nimble", "exchange", "0", "1"),
            ),
        ),
        _below("tpp-h"),
        _below("tpp-h-2m"),
    )
}


@dataclass(frozen=True)
class Search:
    """A row, and the guest and the workloads that it is searched with."""

    row: Row
    #: Options of ``demeter vm run``.
    guest: tuple[str, ...]
    workloads: tuple[Workload, ...]
    unseen: tuple[Workload, ...]


def rival(name: str) -> Search:
    """Return what is searched of a published manager.

    Raises:
        TuneError: it cannot be tuned.

    """
    if name not in RIVALS:
        raise TuneError(f"no row '{name}' can be tuned; choose from {', '.join(RIVALS)}")
    common = tomllib.loads((DIRECTORY / COMMON).read_text())
    quick = common["quick"]
    parameters = common["parameters"] | quick["parameters"]
    machine = shlex.split(parameters["machine"].format(**parameters))
    # The search says itself where the region of interest is.
    at = machine.index("--roi")
    guest = (*machine[:at], *machine[at + 2 :])
    commands = common["workloads"] | quick["workloads"]

    def workload(of: str) -> Workload:
        return Workload(of, commands[of].format(**(parameters | {"seed": "{seed}"})))

    row = RIVALS[name]
    given = tuple(shlex.split(quick["options"].get(name, "")))
    return Search(
        replace(row, options=given),
        guest,
        tuple(workload(of) for of in ("gups", "silo")),
        tuple(workload(of) for of in ("btree", "graph500", "liblinear")),
    )
