# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What `make bench-sizing` asks of the policy, of rows that are made up."""

from demeter_lab.balloon.checks import Checks
from demeter_lab.balloon.sizing import judge

GOOD = {"back": [0.95, 0.94, 0.96], "slower": [0.0, 0.01], "killed": 0, "longest_ms": 12.0}


def failed(**other: object) -> int:
    """Return how many checks fail of the good row with something else in it."""
    checks = Checks()
    judge(checks, GOOD | other)
    return checks.failed


def test_every_phase_counts() -> None:
    """Memory that is not back in a later phase fails, as in the first one."""
    assert failed() == 0
    assert failed(back=[0.95, 0.5, 0.95]) == 1
    assert failed(back=[0.5, 0.95, 0.95]) == 1
    assert failed(slower=[0.0, 0.02]) == 1
    assert failed(killed=1) == 1
