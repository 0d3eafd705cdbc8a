# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What ``bench-extmem`` measures: a list of cells, and the mark each has to reach."""

from dataclasses import dataclass, field

STEADY = (
    "sequential-read",
    "sequential-write",
    "random-read",
    "random-write",
    "hot-read",
    "hot-write",
)
PATTERNS = ("first-touch", *STEADY)
THREADS = (1, 2, 4)

# Marks: ratio of extmem to the best Linux setting, by pattern.
MARKS = {
    "first-touch": 1.5,
    "sequential-read": 2.0,
    "sequential-write": 1.7,
    "random-read": 1.0,
    "random-write": 1.0,
    "hot-read": 1.0,
    "hot-write": 1.0,
    "pagerank": 1.5,
    "xsbench": 1.0,
}
MARKS_COMPRESSIBLE = {"random-read": 1.5, "random-write": 1.5}


@dataclass(frozen=True)
class Family:
    """Cells that one set of processes can do: same contents, same page size."""

    entropy_percent: int
    huge: bool
    patterns: tuple[str, ...] = PATTERNS
    threads: tuple[int, ...] = THREADS
    stress: str = ""

    @property
    def compresses(self) -> bool:
        """Say whether zswap is an alternative: it keeps what does not compress as it is."""
        return self.entropy_percent < 100

    @property
    def suffix(self) -> str:
        """Return what is appended to a pattern's name; empty for the plain family."""
        parts = []
        if self.entropy_percent != 100:
            parts.append(f"entropy{self.entropy_percent}")
        if self.huge:
            parts.append("huge")
        if self.stress:
            parts.append(f"stress-{self.stress}")
        return "".join(f"/{part}" for part in parts)

    def mark(self, pattern: str) -> float | None:
        """Return the ratio that must be reached; none under stress."""
        if self.stress:
            return None
        if self.entropy_percent <= 30 and pattern in MARKS_COMPRESSIBLE:
            return MARKS_COMPRESSIBLE[pattern]
        return MARKS[pattern]


@dataclass(frozen=True)
class Plan:
    """How much is measured.

    Sizes are in bytes. ``slice_s``: length of a slice; ``rounds``: pairs of slices for
    a cell; ``page_clusters``: values that are tried for the best Linux setting.
    """

    size_bytes: int
    dram_bytes: int
    slice_s: float
    rounds: int
    page_clusters: tuple[int, ...]
    families: tuple[Family, ...]
    pagerank_scale: int
    xsbench_gridpoints: int
    application_rounds: int
    application_threads: tuple[int, ...] = field(default=(1, 2))


def full(size_bytes: int) -> Plan:
    """Return the whole matrix, about half an hour."""
    return Plan(
        size_bytes=size_bytes,
        dram_bytes=size_bytes // 2,
        slice_s=1.0,
        rounds=5,
        page_clusters=(0, 3, 5),
        families=(
            Family(100, False),
            Family(30, False),
            Family(100, True),
            Family(30, True, ("random-read", "random-write"), (2,)),
            Family(100, False, ("random-read", "hot-write", "sequential-read"), (2,), "cpu"),
            Family(100, False, ("random-read", "hot-write", "sequential-read"), (2,), "io"),
        ),
        pagerank_scale=22,
        xsbench_gridpoints=22_606,
        application_rounds=4,
    )


def quick(size_bytes: int) -> Plan:
    """Return a reduced matrix, a few minutes: every pattern, one thread count."""
    return Plan(
        size_bytes=size_bytes,
        dram_bytes=size_bytes // 2,
        slice_s=0.7,
        rounds=3,
        page_clusters=(0, 3),
        families=(
            Family(100, False, threads=(1, 2)),
            Family(30, False, ("random-read", "random-write"), (2,)),
        ),
        pagerank_scale=20,
        xsbench_gridpoints=11_303,
        application_rounds=3,
        application_threads=(1,),
    )
