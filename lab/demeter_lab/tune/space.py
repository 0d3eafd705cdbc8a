# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What may be tuned of each row.

Every row has at most four knobs, and those of one comparison the same budget of guests: a
manager that was searched for longer than another would win by that. Page size is a knob of all
rows here; of the evaluation's rivals (``rivals.py``) it is an axis there.
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


def _set(option: str, *names: str) -> tuple[str, ...]:
    return tuple(f"--{option} {name}={{}}" for name in names)


def _pages(option: str) -> Knob:
    return Knob("thp", ("always", "never"), _set(option, "thp"))


ROWS = {
    row.name: row
    for row in (
        Row(
            "nbt",
            (
                # The kernel scans no faster than every 100 ms; below that, only the
                # threshold follows the rate of promotion more often.
                Knob(
                    "scan_period_ms",
                    ("25", "100", "400", "1000"),
                    _set("nbt-set", "scan_period_min_ms", "scan_period_max_ms"),
                ),
                Knob(
                    "hot_threshold_ms",
                    ("4", "8", "16", "50", "100", "400"),
                    _set("nbt-set", "hot_threshold_ms"),
                ),
                Knob(
                    "watermark_scale_factor",
                    ("250", "550", "1000"),
                    _set("nbt-set", "watermark_scale_factor"),
                ),
                _pages("nbt-set"),
            ),
        ),
        Row(
            "damon",
            (
                # Any of these checks fit into any of these aggregations.
                Knob(
                    "sample_us",
                    ("1000", "2500", "5000", "10000", "20000"),
                    _set("damon-set", "sample_us"),
                ),
                Knob(
                    "aggr_us",
                    ("50000", "100000", "200000", "400000", "800000"),
                    _set("damon-set", "aggr_us"),
                ),
                # Above cold_max_permille: hot memory is not cold.
                Knob(
                    "hot_permille",
                    ("100", "200", "300", "500", "700"),
                    _set("damon-set", "hot_min_permille"),
                ),
                _pages("damon-set"),
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
                Knob(
                    "access_bp",
                    ("100", "400", "1600", "4000"),
                    _set("damon-auto-set", "access_bp"),
                ),
                _pages("damon-auto-set"),
            ),
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


def row_of(name: str) -> Row:
    """Return a row that can be tuned."""
    if name not in ROWS:
        raise TuneError(f"no row '{name}' can be tuned; choose from {', '.join(ROWS)}")
    return ROWS[name]
