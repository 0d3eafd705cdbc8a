# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Results by key. What is here is whole: it is written beside its place and then renamed."""

import hashlib
import itertools
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from demeter_lab.evaluation.execute import Outcome, Task, alive
from demeter_lab.results import ResultError

_ABOUT = "run.json"
_PLAN = "plan.json"


@dataclass(frozen=True)
class Plan:
    """What was to be run last, with which keys: a report needs nothing else but results."""

    quick: bool
    #: Managers that the command had.
    systems: list[str]
    #: Of each run, by its digest.
    keys: dict[str, str]
    #: Of the tree that asked for them, as `git describe` names it.
    commit: str = "unknown"
    #: Rows beside those of the records, and whether each is below the guest.
    added: dict[str, bool] = field(default_factory=dict)


def write_text(path: Path, text: str) -> None:
    """Write a file that is never seen half-written."""
    with _gone_if_it_fails(path.with_name(f".{path.name}.{os.getpid()}")) as temporary:
        temporary.write_text(text)
        temporary.replace(path)


@contextmanager
def _gone_if_it_fails(path: Path) -> Iterator[Path]:
    """Leave nothing at a path whose writer fails: a disk that is full would stay so."""
    try:
        yield path
    except BaseException:
        _remove(path)
        raise


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


class Store:
    """``runs/KEY/`` for what was done, ``failed/KEY.json`` for what failed."""

    def __init__(self, directory: Path) -> None:
        """Open it, and remove what interrupted writers left."""
        self.directory = directory
        for name in ("runs", "failed", "tmp"):
            (directory / name).mkdir(parents=True, exist_ok=True)
        # Of `write_text`: of the plan, the document and the pages, and of what those use.
        texts = itertools.chain(directory.glob(".*.*"), directory.glob("*/.*.*"))
        for left in itertools.chain((directory / "tmp").iterdir(), texts):
            pid = left.name.rpartition(".")[2]
            if pid.isdigit() and not alive(pid):
                _remove(left)

    def keep(self, plan: Plan) -> None:
        """Say what is to be run."""
        write_text(self.directory / _PLAN, _json(asdict(plan)))

    def plan(self) -> Plan:
        """Return what was to be run last.

        Raises:
            ResultError: nothing was, or the file is damaged.

        """
        path = self.directory / _PLAN
        try:
            plan = Plan(**json.loads(path.read_text()))
            if not (isinstance(plan.keys, dict) and isinstance(plan.added, dict)):
                raise TypeError("keys and added are tables")
            return plan
        except FileNotFoundError:
            raise ResultError(f"{path} is missing; run `make evaluate-quick` first") from None
        except (ValueError, TypeError) as error:
            raise ResultError(f"{path} is damaged ({error}); run the evaluation again") from None

    def files(self, key: str) -> dict[str, bytes] | None:
        """Return what a run left; None if it was not done, or if its files are damaged."""
        place = self.directory / "runs" / key
        try:
            digests = json.loads((place / _ABOUT).read_text())["sha256"]
            files = {name: (place / name).read_bytes() for name in digests}
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return files if digests == _digests(files) else None

    def place(self, key: str) -> Path:
        """Return the folder of a run that was done."""
        return self.directory / "runs" / key

    def about(self, key: str) -> dict[str, object]:
        """Return the command of a run that was done, where and how long it took."""
        return json.loads((self.directory / "runs" / key / _ABOUT).read_text())

    def failure(self, key: str) -> str | None:
        """Return why a run failed when it was last tried."""
        try:
            return str(
                json.loads((self.directory / "failed" / f"{key}.json").read_text())["reason"]
            )
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def put(self, task: Task, outcome: Outcome) -> None:
        """Keep what came of a task."""
        about = {
            "record": task.run.record,
            "argv": task.run.argv,
            "labels": task.run.labels,
            "inputs_sha256": task.inputs,
            "host": outcome.host,
            "host_s": round(outcome.host_s, 3),
        }
        if outcome.failure:
            with _gone_if_it_fails(self._temporary(task.key)) as path:
                path.write_text(_json({**about, "reason": outcome.failure}))
                path.replace(self.directory / "failed" / f"{task.key}.json")
            return
        with _gone_if_it_fails(self._temporary(task.key)) as place:
            place.mkdir()
            for name, content in outcome.files.items():
                (place / name).write_bytes(content)
            (place / _ABOUT).write_text(_json({**about, "sha256": _digests(outcome.files)}))
            final = self.directory / "runs" / task.key
            if final.exists():
                # Damaged, or it would not have been done again.
                damaged = self._temporary(f"{task.key}-damaged")
                final.rename(damaged)
                shutil.rmtree(damaged)
            place.rename(final)
        (self.directory / "failed" / f"{task.key}.json").unlink(missing_ok=True)

    def put_or_note(self, task: Task, outcome: Outcome) -> Outcome:
        """Keep what came of a task, or note why it cannot be kept; return what came of it then."""
        try:
            self.put(task, outcome)
        except OSError as error:
            outcome = Outcome(task.key, failure=f"its result could not be kept: {error}")
            # If there is still room for that.
            with suppress(OSError):
                self.put(task, outcome)
        return outcome

    def _temporary(self, name: str) -> Path:
        path = self.directory / "tmp" / f"{name}.{os.getpid()}"
        if path.is_dir():
            shutil.rmtree(path)
        return path


def _digests(files: dict[str, bytes]) -> dict[str, str]:
    return {name: hashlib.sha256(files[name]).hexdigest() for name in sorted(files)}


def _json(value: object) -> str:
    return json.dumps(value, indent=1, sort_keys=True) + "\n"
