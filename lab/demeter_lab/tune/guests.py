# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Runs guests for the search, and remembers every one of them.

``runs.jsonl`` has a JSON object a line and run; what is in it is never run again, so
that a search that was stopped goes on where it was. ``plan.json`` says what it belongs
to: results of another plan or of other programs are not mixed with it.
"""

import hashlib
import json
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from demeter_lab.evaluation.store import write_text
from demeter_lab.inputs import MODULE, inputs_of
from demeter_lab.tune.space import Row, Setting, TuneError
from demeter_lab.workloads import Workload

#: The host's limit on top of a guest's own, in seconds.
GRACE_S = 180
INTERRUPTED = 130
#: What the command says of runs that failed by the host, not by what ran in the guest.
HOST_REASONS = (
    "guest did not end within",
    "MiB free where the run needs",
    "the testbed is not set up",
    "is missing at",
)


@dataclass(frozen=True)
class Run:
    """One guest."""

    phase: str
    setting: tuple[tuple[str, str], ...]
    workload: Workload
    seed: int

    @staticmethod
    def of(phase: str, setting: Setting, workload: Workload, seed: int) -> "Run":
        """Make one; settings are equal whatever the order of their knobs."""
        return Run(phase, tuple(sorted(setting.items())), workload, seed)


class Guests:
    """Guests of one row, and their journal."""

    def __init__(
        self,
        row: Row,
        out: Path,
        *,
        demeter: Path,
        jobs: int = 2,
        timeout_s: int = 1800,
        options: Sequence[str] = (),
        modules: Sequence[str] = (),
        plan: dict[str, object],
    ) -> None:
        """Open the journal in ``out``.

        Args:
            row: what is tuned.
            out: a directory of this row's search.
            demeter: the command.
            jobs: guests at a time; results do not depend on it.
            timeout_s: the limit of a guest, in seconds of the host. A run that meets
                it ends the search: how fast the host was must not steer it.
            options: more options of ``demeter vm run``.
            modules: of the kernel, without which the row is another; demeter's always is.
            plan: what the search is; it must be the same as before in ``out``.

        Raises:
            TuneError: ``out`` belongs to another search, or the command is missing.

        """
        if not demeter.is_file():
            raise TuneError(f"{demeter} is missing; run `make build`, or name it with --demeter")
        self.row = row
        self.out = out
        self.demeter = demeter
        self.jobs = jobs
        self.timeout_s = timeout_s
        self.options = list(options)
        self._lock = Lock()
        self._journal = out / "runs.jsonl"
        out.mkdir(parents=True, exist_ok=True)
        self._claim(
            plan
            | {"inputs_sha256": inputs_of(demeter, (MODULE, *modules)), "options": self.options}
        )
        self._known = self._read()

    def _claim(self, plan: dict[str, object]) -> None:
        path = self.out / "plan.json"
        text = json.dumps(plan, indent=2, sort_keys=True) + "\n"
        if path.exists() and path.read_text() != text:
            raise TuneError(
                f"{path} is another search's, or of another build or testbed; choose another --out"
            )
        if not path.exists() and self._journal.exists():
            raise TuneError(f"{self._journal} has no plan.json beside it; choose another --out")
        write_text(path, text)

    def _read(self) -> dict[str, dict]:
        if not self._journal.exists():
            return {}
        known = {}
        lines = self._journal.read_text().split("\n")
        # A line without its end was being written when the search was stopped.
        whole, torn = lines[:-1], lines[-1]
        for number, line in enumerate(whole, 1):
            try:
                record = json.loads(line)
                known[record["key"]] = record
            except (json.JSONDecodeError, KeyError, TypeError):
                raise TuneError(
                    f"{self._journal}, line {number} is damaged; remove it and go on"
                ) from None
        if torn:
            self._journal.write_text("".join(f"{line}\n" for line in whole))
        return known

    def key_of(self, run: Run) -> str:
        """Return what makes two runs the same: everything but where results go."""
        return json.dumps(self._line(run))

    def _line(self, run: Run) -> list[str]:
        return [
            *self.row.options_of(dict(run.setting)),
            *self.options,
            "--roi",
            run.workload.roi,
            "--",
            *run.workload.command_of(run.seed),
        ]

    def known(self, run: Run) -> bool:
        """Whether it was run before."""
        return self.key_of(run) in self._known

    def run_all(self, runs: Sequence[Run]) -> list[dict]:
        """Return the records of ``runs`` in order, running what is not known."""
        wanted = {self.key_of(run): run for run in runs}
        missing = [run for key, run in wanted.items() if key not in self._known]
        with ThreadPoolExecutor(max_workers=max(1, self.jobs)) as pool:
            for future in [pool.submit(self._run, run) for run in missing]:
                try:
                    future.result()
                except BaseException:
                    # Whoever interrupts does not wait for guests that have not begun.
                    pool.shutdown(wait=False, cancel_futures=True)
                    raise
        return [self._known[self.key_of(run)] for run in runs]

    def _run(self, run: Run) -> None:
        key = self.key_of(run)
        name = hashlib.sha256(key.encode()).hexdigest()[:16]
        out = self.out / "runs" / name
        out.parent.mkdir(exist_ok=True)
        line = [str(self.demeter), "vm", "run", "--json", "--out", str(out)]
        line += ["--timeout", str(self.timeout_s), *self._line(run)]
        record = {
            "key": key,
            "row": self.row.name,
            "phase": run.phase,
            "setting": dict(run.setting),
            "workload": run.workload.name,
            "seed": run.seed,
            "results": name,
        }
        try:
            done = subprocess.run(
                line, capture_output=True, text=True, timeout=self.timeout_s + GRACE_S, check=False
            )
        except subprocess.TimeoutExpired:
            raise TuneError(f"a guest did not end in {self.timeout_s} s; give --timeout") from None
        except OSError as error:
            raise TuneError(f"cannot run {self.demeter}: {error}") from None
        if done.returncode in (INTERRUPTED, -2, -15):
            raise TuneError("interrupted; the same command goes on from here")
        figures = figures_of(done)
        if any(reason in (figures["error"] or "") for reason in HOST_REASONS):
            raise TuneError(f"{figures['error']}; the same command goes on from here")
        self._remember(record | figures)

    def _remember(self, record: dict) -> None:
        with self._lock:
            with self._journal.open("a") as journal:
                journal.write(json.dumps(record) + "\n")
            self._known[record["key"]] = record


def figures_of(done: subprocess.CompletedProcess[str]) -> dict:
    """Return what counts of a run's summary; ``time_s`` is None for one that failed."""
    words = done.stderr.strip().splitlines()
    said = [line for line in words if "error:" in line] or words
    failed = {"time_s": None, "error": said[-1] if said else f"status {done.returncode}"}
    if done.returncode != 0:
        return failed
    try:
        summary = json.loads(done.stdout)
        quarter = summary["last_quarter"] or {}
        return {
            "time_s": float(summary["whole"]["time_s"]),
            "work_per_s": summary["whole"]["work_per_s"],
            "last_quarter_per_s": quarter.get("work_per_s"),
            "fmem_share": summary["whole"]["fmem_share"],
            "promoted_pages": summary["promoted_pages"],
            "demoted_pages": summary["demoted_pages"],
            "digest": summary["digest"],
            "error": None,
        }
    except (json.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        return {"time_s": None, "error": f"the summary is not understood: {error}"}
