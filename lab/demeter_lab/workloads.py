# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The workloads that managers are compared by, and tuned with.

All ask for huge pages: without asking, Linux gives them on the local node only, and page
sizes would be compared, not placement (docs/workloads.md).
"""

from dataclasses import dataclass


class WorkloadError(Exception):
    """No such workload; the message says what there is."""


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


#: The guest that they run in: half of what `demeter vm` has by default, as a comparison of
#: all of them is a hundred guests, and 32 MiB of SMEM more, as silo grows by 20 MiB at its
#: end and was killed where a row's watermarks keep memory free. Footprints are four fifths
#: of it. The newest kernel, as DAMON sees huge pages and tunes itself in it only.
GUEST = ("--kernel", "7.x", "--fmem", "64M", "--smem", "288M")


def _verb(verb: str, work: str = "", name: str = "") -> Workload:
    words = f"/demeter/workloads {verb} --footprint 280M {work} --pages huge --seed {{seed}}"
    return Workload(name or verb, " ".join(words.split()))


#: The evaluation's, in the order of docs/workloads.md, with work for some seconds.
SEVEN = (
    _verb("silo", "--transactions 4000000"),
    _verb("btree", "--lookups 5000000"),
    _verb("graph500"),
    _verb("pagerank"),
    _verb("liblinear"),
    _verb("bwaves"),
    _verb("xsbench", "--lookups 900000"),
)

#: What knobs are searched with: a short GUPS with the demo's proportions, a short silo.
TUNED_WITH = (
    _verb("gups", "--hot 20M --hot-permille 900 --updates 12000000"),
    _verb("silo", "--transactions 1000000", "silo-short"),
)

WORKLOADS = {workload.name: workload for workload in (*TUNED_WITH, *SEVEN)}


def workload_of(text: str) -> Workload:
    """Return a workload: a known name, or ``NAME=COMMAND``.

    Such a program marks its region of interest itself; ``NAME@command=COMMAND``
    measures all of it.

    Raises:
        WorkloadError: it is neither.

    """
    name, equals, command = text.partition("=")
    if not equals:
        if name not in WORKLOADS:
            known = ", ".join(WORKLOADS)
            raise WorkloadError(f"no workload '{name}'; choose from {known}, or give NAME=COMMAND")
        return WORKLOADS[name]
    name, _, roi = name.partition("@")
    if not name or not command.strip() or roi not in ("", "self", "command"):
        raise WorkloadError(f"'{text}' is not NAME=COMMAND, nor NAME@command=COMMAND")
    return Workload(name, command, roi or "self")
