# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What may be tuned of each row, and which workloads it is tuned with.

Every row has at most four knobs, and the same budget of guests: a manager that was
searched for longer than another would win by that. Page size is a knob of all; so is
the kind of page lists where a row uses them (Demeter ranks by samples).
"""

from dataclasses import dataclass

#: A value for some knobs; those that are left out are as the row has them.
Setting = dict[str, str]

MOST_KNOBS = 4


class TuneError(Exception):
    """The search cannot go on; the message says why and what to do."""


@dataclass(frozen=True)
class Knob:
    """Values in their order (neighbours differ least), and the options that set one."""

    name: str
    values: tuple[str, ...]
    options: tuple[str, ...]

    def options_of(self, value: str) -> list[str]:
        """Return arguments of ``demeter vm run``."""
        return [word.format(value) for option in self.options for word in option.split()]


@dataclass(frozen=True)
class Row:
    """A manager as ``--tmm`` knows it."""

    name: str
    knobs: tuple[Knob, ...]
    #: For every guest of this row.
    options: tuple[str, ...] = ()

    def options_of(self, setting: Setting) -> list[str]:
        """Return arguments of ``demeter vm run`` for a setting, in the knobs' order."""
        words = ["--tmm", self.name, *self.options]
        for knob in self.knobs:
            if knob.name in setting:
                words += knob.options_of(setting[knob.name])
        return words


@dataclass(frozen=True)
class Workload:
    """A program of the guest; ``{seed}`` in it becomes the seed."""

    name: str
    command: str
    #: ``self`` where the program marks what is measured, else ``command``.
    roi: str = "self"

    @property
    def has_seed(self) -> bool:
        """Whether another seed is another run."""
        return "{seed}" in self.command

    def command_of(self, seed: int) -> list[str]:
        """Return program and arguments."""
        return self.command.format(seed=seed).split()


def _set(option: str, *names: str) -> tuple[str, ...]:
    return tuple(f"--{option} {name}={{}}" for name in names)


def _lists_and_pages(option: str) -> tuple[Knob, Knob]:
    return (
        Knob("lru", ("mglru", "lists"), _set(option, "lru")),
        Knob("thp", ("always", "never"), _set(option, "thp")),
    )


ROWS = {
    row.name: row
    for row in (
        Row(
            "nbt",
            (
                Knob(
                    "scan_period_ms",
                    ("25", "50", "100", "200", "400", "1000"),
                    _set("nbt-set", "scan_period_min_ms", "scan_period_max_ms"),
                ),
                Knob(
                    "hot_threshold_ms",
                    ("25", "50", "100", "200", "400", "1000"),
                    _set("nbt-set", "hot_threshold_ms"),
                ),
                *_lists_and_pages("nbt-set"),
            ),
        ),
        Row(
            "damon",
            (
                Knob(
                    "sample_us",
                    ("1000", "2500", "5000", "10000", "20000", "40000"),
                    _set("damon-set", "sample_us"),
                ),
                Knob(
                    "hot_min_accesses",
                    ("1", "2", "4", "6", "8", "12"),
                    _set("damon-set", "hot_min_accesses"),
                ),
                *_lists_and_pages("damon-set"),
            ),
        ),
        Row(
            "damon-auto",
            (
                Knob(
                    "fmem_free_bp",
                    ("200", "400", "600", "900", "1200"),
                    _set("damon-auto-set", "fmem_free_bp"),
                ),
                Knob(
                    "max_sample_us",
                    ("5000", "20000", "100000", "1000000"),
                    _set("damon-auto-set", "max_sample_us"),
                ),
                *_lists_and_pages("damon-auto-set"),
            ),
            ("--kernel", "7.x"),
        ),
        Row(
            "demeter",
            (
                Knob("epoch_ms", ("12", "25", "50", "100", "200"), _set("set", "epoch_ms")),
                Knob(
                    "sample_period", ("1021", "2039", "4093", "8191"), _set("set", "sample_period")
                ),
                Knob("horizon_ms", ("2500", "5000", "10000", "20000"), _set("set", "horizon_ms")),
                Knob("thp", ("always", "never"), ("--thp {}",)),
            ),
        ),
    )
}

WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload(
            "gups",
            "/demeter/workloads gups --footprint 560M --hot 40M --hot-permille 900"
            " --updates 30000000 --pages huge --seed {seed}",
        ),
        Workload("silo", "/demeter/workloads silo --seed {seed}"),
        Workload("btree", "/demeter/workloads btree --seed {seed}"),
        Workload("graph500", "/demeter/workloads graph500 --seed {seed}"),
        Workload(
            "xsbench", "/demeter/workloads xsbench --gridpoints 1100 --lookups 2000000", "command"
        ),
    )
}


def row_of(name: str) -> Row:
    """Return a row that can be tuned."""
    if name not in ROWS:
        raise TuneError(f"no row '{name}' can be tuned; choose from {', '.join(ROWS)}")
    return ROWS[name]


def workload_of(text: str) -> Workload:
    """Return a workload: a known name, or ``NAME=COMMAND``.

    Such a program marks its region of interest itself; ``NAME@command=COMMAND``
    measures all of it.
    """
    name, equals, command = text.partition("=")
    if not equals:
        if name not in WORKLOADS:
            known = ", ".join(WORKLOADS)
            raise TuneError(f"no workload '{name}'; choose from {known}, or give NAME=COMMAND")
        return WORKLOADS[name]
    name, _, roi = name.partition("@")
    if not name or not command.strip() or roi not in ("", "self", "command"):
        raise TuneError(f"'{text}' is not NAME=COMMAND, nor NAME@command=COMMAND")
    return Workload(name, command, roi or "self")
