# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What is to be made again, as data: ``lab/evaluation/ID.toml``, and the runs it stands for.

A record's ``[[run]]`` blocks each have a command and axes; a run is one combination of them.
In a word of the command ``{name}`` is an axis' or a parameter's value; a word that is nothing
but ``{name}`` becomes as many words as the value has. ``{demeter}``, ``{out}`` and ``{record}``
stay, for whoever executes the run. ``{options}`` is what the block gives an axis' value
(``given``), and what the guest's size (``quick.options``), the block (``options``) and the tuning
give the manager. A block of kind ``replay`` has a second command, ``record``: the guest whose
accesses are recorded, once for all runs that differ in nothing of it, and played by the first.
"""

import hashlib
import itertools
import json
import re
import shlex
import subprocess
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from demeter_lab.evaluation.added import joined as joined_by
from demeter_lab.evaluation.form import FormError, check_common, check_record

ROOT = Path(__file__).resolve().parents[3]
DIRECTORY = ROOT / "lab/evaluation"
COMMON = "common.toml"
#: How commands are understood; what each leaves is in measure.py.
KINDS = ("compare", "heat", "text", "replay")
#: Of the guest that a replay needs: what is recorded is no point by itself.
RECORD = "record"
#: Of the label ``tuning``: what is published, scaled to the guest. Others are in ``common.toml``.
PUBLISHED = "published"
#: How deep values of parameters may name others.
_DEPTH = 5
#: Left as they are: only where a run is executed is it known what they stand for.
_LATER = {"demeter": "{demeter}", "out": "{out}", "record": "{record}"}

Labels = dict[str, str]


class RecordError(Exception):
    """A record that cannot be used; the message says what to change."""


@dataclass(frozen=True)
class Run:
    """One command, and what it is a point of."""

    record: str
    kind: str
    argv: tuple[str, ...]
    labels: Labels
    #: ``text``: name of a number, and the expression whose group it is.
    patterns: dict[str, str] = field(default_factory=dict)
    #: ``text``: files that decide its outcome, as globs from the root; guests have inputs.py.
    sources: tuple[str, ...] = ()
    #: ``replay``: the run whose recorded accesses are played.
    needs: "Run | None" = None

    @property
    def digest(self) -> str:
        """What it is, whatever it is made of."""
        what = {"argv": self.argv, "kind": self.kind, "patterns": self.patterns}
        if self.needs is not None:
            what["needs"] = self.needs.digest
        return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:32]

    @property
    def is_guest(self) -> bool:
        """Whether it boots a guest, which is what takes its time."""
        return "{demeter}" in self.argv and self.kind != "replay"

    @property
    def system(self) -> str | None:
        """The memory manager, if it is one of the axes."""
        return self.labels.get("system")


@dataclass(frozen=True)
class Record:
    """One table, figure or number, its runs, and what is held against the paper's."""

    id: str
    title: str
    where: str
    kind: str
    scaled: str
    needs: str
    check: str
    paper: dict[str, object]
    draft: dict[str, object]
    parameters: dict[str, str]
    runs: tuple[Run, ...]
    #: Of runs that a manager may choose from, that with the least of this counts.
    chosen_by: str
    #: Managers that it asks for and the command does not have.
    absent: tuple[str, ...]
    #: Managers that the paper does not have there.
    beyond: tuple[str, ...]
    values: tuple[dict[str, object], ...]
    figures: tuple[dict[str, object], ...]
    #: Managers that are no part of it: only values that name them are made of their runs.
    added: tuple[str, ...] = ()
    #: Managers that do not behave as published: to be ahead of them alone is not checked.
    unlike: frozenset[str] = frozenset()

    @property
    def in_turn(self) -> list[Run]:
        """Its runs, one seed of one workload under every manager before the next.

        What is interrupted leaves whole comparisons then.
        """
        return sorted(
            self.runs,
            key=lambda run: tuple(run.labels.get(key, "") for key in ("seed", "workload")),
        )

    @property
    def workloads(self) -> list[str]:
        """Names of the workloads of its runs."""
        return list(
            dict.fromkeys(run.labels["workload"] for run in self.runs if "workload" in run.labels)
        )


@dataclass(frozen=True)
class Manager:
    """A row of the command's."""

    row: str
    #: File name of the guest's module that it is, if it is one.
    module: str | None = None
    #: Whether it places pages below the guest, which can have no balloon then.
    below: bool = False


def load(
    systems: Sequence[str],
    quick: bool,
    directory: Path = DIRECTORY,
    added: Mapping[str, bool] | None = None,
) -> list[Record]:
    """Return all records, in the paper's order.

    Args:
        systems: rows that the command has; runs of others are left out and told.
        quick: with the smaller axes and parameters of ``quick``.
        directory: of the records.
        added: rows to compare beside those of the records, and whether each is below the guest.

    Raises:
        RecordError: one of them is not of this form.

    """
    common = _read(directory / COMMON)
    try:
        check_common(common, systems)
    except FormError as error:
        raise RecordError(f"{directory / COMMON}: {error}") from None
    names = common.get("records", [])
    found = {path.stem for path in directory.glob("*.toml")} - {Path(COMMON).stem}
    if set(names) != found:
        odd = ", ".join(sorted(set(names) ^ found))
        raise RecordError(f"{directory / COMMON} and the files beside it do not agree on: {odd}")
    return [
        _record(directory / f"{name}.toml", common, systems, quick, added or {}) for name in names
    ]


def systems_of(demeter: Path) -> list[str]:
    """Return the rows that ``demeter`` knows, as it tells them itself.

    Raises:
        RecordError: the command cannot be asked.

    """
    return list(managers_of(demeter))


def managers_of(demeter: Path) -> dict[str, Manager]:
    """Return the managers that ``demeter`` knows, as it tells them itself, by row.

    Raises:
        RecordError: the command cannot be asked.

    """
    try:
        done = subprocess.run(
            [str(demeter), "vm", "managers", "--json"], capture_output=True, text=True, check=True
        )
        rows = {str(one["row"]): _manager(one) for one in json.loads(done.stdout)}
    except (OSError, subprocess.CalledProcessError) as error:
        raise RecordError(f"{demeter} cannot be asked ({error}); run make build") from None
    except (ValueError, KeyError, TypeError) as error:
        raise RecordError(
            f"`{demeter} vm managers --json` is not understood ({error!r}); run make build"
        ) from None
    if not rows:
        raise RecordError(f"`{demeter} vm managers --json` has no managers; run make build")
    return rows


def _manager(told: Mapping) -> Manager:
    module = told.get("module")
    # Of somebody else's, those that are no module of the guest are the modelled machine's.
    return Manager(str(told["row"]), module, module is None and told.get("published") is True)


def commit_of(root: Path) -> str:
    """Return what git calls the tree, or `unknown`."""
    try:
        done = subprocess.run(
            ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12"],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()


def _read(path: Path) -> dict[str, object]:
    try:
        return tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise RecordError(f"{path}: {error}") from None


def _record(
    path: Path, common: Mapping, systems: Sequence[str], quick: bool, added: Mapping[str, bool]
) -> Record:
    data = _read(path)
    try:
        check_record(data, {**common.get("parameters", {}), **common.get("workloads", {})})
        data, joined = joined_by(data, added)
        if data["id"] != path.stem:
            raise RecordError(f"{path}: its id is {data['id']}; name it {path.stem}")
        parameters = _parameters(common, quick) | _parameters(data, quick)
        runs, absent = [], []
        for block in data.get("run", []):
            points, missing = _points(data["id"], block, parameters, systems, common, quick)
            runs += points
            absent += missing
        return Record(
            id=data["id"],
            title=data["title"],
            where=data["where"],
            kind=data["kind"],
            scaled=data["scaled"],
            needs=data.get("needs", ""),
            check=data["check"],
            paper=data["paper"],
            draft=data.get("draft", {}),
            parameters={key: parameters[key] for key in data.get("parameters", {})},
            runs=tuple(runs),
            chosen_by=data.get("chosen_by", "time_s"),
            absent=tuple(dict.fromkeys(absent)),
            beyond=(*_beyond(path, data), *joined),
            values=tuple(_value(spec, quick) for spec in data.get("value", [])),
            figures=tuple(data.get("figure", [])),
            added=tuple(joined),
            unlike=frozenset(common.get("unlike", [])),
        )
    except KeyError as error:
        raise RecordError(f"{path} lacks {error}, or something in it asks for it") from None
    except (TypeError, ValueError, AttributeError) as error:
        raise RecordError(f"{path}: {error}") from None


def _beyond(path: Path, data: Mapping) -> tuple[str, ...]:
    names = data.get("beyond", [])
    asked = {
        name for block in data.get("run", []) for name in block.get("axes", {}).get("system", [])
    }
    if odd := set(names) - asked:
        raise RecordError(f"{path}: beyond names what no run has: {', '.join(sorted(odd))}")
    return tuple(names)


def _value(spec: Mapping, quick: bool) -> dict[str, object]:
    """Return a value without what is said of the quick runs alone, which others have as theirs."""
    value = {key: part for key, part in spec.items() if key != "missed_quick"}
    if quick and "missed_quick" in spec:
        value["missed"] = spec["missed_quick"]
    return value


def _parameters(data: Mapping, quick: bool) -> dict[str, str]:
    merged = {}
    for table in ("parameters", "workloads"):
        merged |= data.get(table, {})
        merged |= data.get("quick", {}).get(table, {}) if quick else {}
    return {key: str(value) for key, value in merged.items()}


def _tunings(common: Mapping, quick: bool) -> dict[str, dict[str, str]]:
    """Return what each tuning gives a manager; what counts by the guest's size is quick's own."""
    smaller = common.get("quick", {}).get("tunings", {}) if quick else {}
    return {
        name: dict(words) | smaller.get(name, {})
        for name, words in common.get("tunings", {}).items()
    }


def _points(
    record: str,
    block: Mapping,
    parameters: Mapping[str, str],
    systems: Sequence[str],
    common: Mapping,
    quick: bool,
) -> tuple[list[Run], list[str]]:
    if block["kind"] not in KINDS:
        raise RecordError(f"{record}: no kind '{block['kind']}'; choose from {', '.join(KINDS)}")
    axes = block.get("axes", {}) | (block.get("quick", {}) if quick else {})
    fixed = {key: str(value) for key, value in block.get("labels", {}).items()}
    options, by_axis = block.get("options", {}), block.get("given", {})
    quick_options = common.get("quick", {}).get("options", {}) if quick else {}
    tunings = _tunings(common, quick)
    runs, absent = [], []
    for point in itertools.product(*axes.values()):
        labels = fixed | {key: str(value) for key, value in zip(axes, point, strict=True)}
        system = labels.get("system")
        if system is not None and system not in systems:
            absent.append(system)
            continue
        tuning = labels.get("tuning", PUBLISHED)
        tuned = "" if tuning == PUBLISHED else _tuned(tunings, tuning, system)
        if tuning != PUBLISHED and not tuned:
            # Nothing to try beside what is published.
            continue
        of_axes = (words.get(labels.get(axis, ""), "") for axis, words in by_axis.items())
        given = (*of_axes, quick_options.get(system, ""), options.get(system, ""), tuned)
        values = {
            **parameters,
            **block.get("parameters", {}),
            **labels,
            **_LATER,
            "options": " ".join(given),
        }
        if "workload" in labels and labels["workload"] in parameters:
            values["command"] = parameters[labels["workload"]]
        patterns, sources = block.get("patterns", {}), tuple(block.get("sources", []))
        argv = _argv(block["argv"], values)
        needs = _recorded(record, block, labels, values) if block["kind"] == "replay" else None
        runs.append(Run(record, block["kind"], argv, labels, patterns, sources, needs))
    return runs, absent


def _tuned(tunings: Mapping[str, Mapping[str, str]], tuning: str, system: str | None) -> str:
    """Return what a tuning gives a manager; nothing where it says that there is none."""
    if tuning not in tunings:
        raise ValueError(f"no tuning '{tuning}'; choose from {', '.join((PUBLISHED, *tunings))}")
    words = tunings[tuning].get(system or "")
    if words is None:
        raise ValueError(f'[tunings.{tuning}] of {COMMON} has no {system}; "" is for nothing')
    return words


def _recorded(record: str, block: Mapping, labels: Labels, values: Mapping[str, str]) -> Run:
    """Return the guest that is recorded for a replay; of its labels, those that it depends on."""
    words = [*block["record"], values.get("command", "")]
    own = {
        key: value
        for key, value in labels.items()
        if key == "workload" or any(f"{{{key}}}" in word for word in words)
    }
    return Run(record, RECORD, _argv(block["record"], values), {"run": "recorded", **own})


def _argv(words: Sequence[str], values: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(itertools.chain.from_iterable(_words(word, values) for word in words))


def _words(word: str, values: Mapping[str, str]) -> list[str]:
    """Return what a word of a command becomes."""
    alone = re.fullmatch(r"\{[a-z_]+\}", word) is not None and word[1:-1] not in _LATER
    if not re.search(r"\{[a-z_]+\}", word):
        return [word]
    text = word
    # A parameter's value may name another one: {guest} has {machine}, that {fmem} in it.
    for _ in range(_DEPTH):
        text = text.format_map(values)
    return shlex.split(text) if alone else [text]
