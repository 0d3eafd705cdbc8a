# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What `make bench-sizing` asks of the policy, of rows that are made up."""

from demeter_lab.balloon.checks import Checks
from demeter_lab.balloon.sizing import judge, slower

GOOD = {
    "back": [0.95, 0.94, 0.96],
    "killed": 0,
    "taken_back_pages": 0,
    "longest_ms": 12.0,
}


def failed(by: float = 0.01, error: float = 0.0, **other: object) -> int:
    """Return how many checks fail where one run of two has something else in it."""
    checks = Checks()
    judge(checks, [GOOD, GOOD | other], [{"by": 0.0, "error": 0.0}, {"by": by, "error": error}])
    return checks.failed


def test_every_phase_of_every_run_counts() -> None:
    """Memory that is not back in a later phase fails, as in the first one."""
    assert failed() == 0
    assert failed(back=[0.95, 0.5, 0.95]) == 1
    assert failed(back=[0.5, 0.95, 0.95]) == 1
    assert failed(by=0.02) == 1
    assert failed(by=0.02, error=0.1) == 1
    assert failed(killed=1) == 1
    assert failed(taken_back_pages=1024) == 1
    assert failed(longest_ms=120.0) == 1


def test_speed_is_compared_in_the_mean() -> None:
    """What one run lost by chance another may have gained; by how much they differ is told."""
    alone = [{"updates_per_s": [100, 90]}, {"updates_per_s": [100, 110]}]
    sized = [{"updates_per_s": [80, 100]}, {"updates_per_s": [80, 100]}]
    first, second = slower(alone, sized)
    assert first == {"by": 0.25, "error": 0.0}
    assert second == {"by": 0.0, "error": 0.1}
    assert slower(alone[:1], sized[:1])[0] == {"by": 0.25, "error": 0.0}
