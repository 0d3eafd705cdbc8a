# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Circles among modules: ``python -m demeter_lab.circles [--known FILE] CRATE...``.

A module is a file. It depends on another whose names it imports or spells out with ``crate::``,
``super::`` or ``self::``, or uses by an import of all names (``super::*``). A name that is
re-exported counts for the module that defines it, and a re-export is a dependency only of a file
that uses the name itself. What is compiled for tests alone does not count: tests may look at
anything.

Circles are looked for among the modules of one folder, each with all that is below it. What
these have from the file of the folder itself (``mod.rs``, ``lib.rs``), and it from them, does not
count: a trait and those that implement it are one thing to all others.

Circles that are known, module by module, are in a file of TOML: these pass as they are. One with
a module more or fewer does not.
"""

import argparse
import re
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

Module = tuple[str, ...]
"""Where a module is: ``("vm", "tmm")``; the crate itself is ``()``."""

Graph = dict[Module, dict[Module, str]]
"""For each module those it depends on, and a path that makes it so."""

NOT_CODE = re.compile(
    r"""
      //[^\n]*                                 # comment to the end of the line
    | (?P<block>/\*)
    | b?r(?P<hashes>\#*)".*?"(?P=hashes)       # raw string
    | b?"(?:\\.|[^"\\])*"                      # string
    | b?'(?:\\[^\n']+|\\'|[^\\'\n])'           # character, and no lifetime
    """,
    re.X | re.S,
)
TOKEN = re.compile(r"r#\w+|\w+|::|[^\s\w]")
NAME = re.compile(r"(?:r#)?[A-Za-z_]\w*\Z")
CALL = "("
"""After the last name of a path that is called: a function may be named like a module."""
CFG = re.compile(r"#\[cfg\(")
ITEM = re.compile(
    r"""(?:\s|\#\[[^\]]*\])*(?:pub\b(?:\s*\([^)]*\))?\s*)?
    (?:(?P<statement>(?:use|let|static|type|extern\s+crate|const(?!\s+(?:fn|unsafe|async|extern)\b))\b)
    |(?P<block>(?:fn|impl|mod|struct|enum|union\s+\w|trait|unsafe|async|extern|const|macro_rules)\b))""",
    re.X,
)
"""What begins an item, after attributes and its visibility: other things end with a comma."""
NESTING = {"{": 1, "(": 1, "[": 1, "}": -1, ")": -1, "]": -1}
DEFINES = {"fn", "struct", "enum", "trait", "type", "const", "static", "mod", "union"}
WAYS = {"crate", "$crate", "self", "super"}
"""How a path begins that says where."""
BINDS = {"let", "mut", "ref", "fn", "|"}
"""What stands before a name that is a variable, or a function of a block."""


def code_of(text: str) -> str:
    """Return the text without comments, strings and characters."""
    parts, at = [], 0
    while found := NOT_CODE.search(text, at):
        parts.append(text[at : found.start()])
        at = found.end()
        if found["block"]:
            depth = 1
            while depth and (edge := re.compile(r"/\*|\*/").search(text, at)):
                depth += 1 if edge[0] == "/*" else -1
                at = edge.end()
        # What is around it must not grow together, and a value stays one.
        is_comment = found["block"] or found[0].startswith("//")
        parts.append(" " if is_comment else " 0 ")
    return "".join([*parts, text[at:]])


def closing(code: str, at: int) -> int:
    """Return where the bracket at `at` is closed; the end where it is not."""
    depth = 0
    for end in range(at, len(code)):
        depth += NESTING.get(code[end], 0)
        if depth == 0:
            return end
    return len(code)


def for_tests(condition: str) -> bool:
    """Tell whether a condition of ``cfg`` never holds without ``test``."""
    condition = condition.strip()
    listed = re.fullmatch(r"(all|any)\s*\((.*)\)", condition, re.S)
    if not listed:
        return condition == "test"
    parts, begin, depth = [], 0, 0
    for at, letter in enumerate(listed[2]):
        depth += NESTING.get(letter, 0)
        if letter == "," and depth == 0:
            parts.append(listed[2][begin:at])
            begin = at + 1
    parts.append(listed[2][begin:])
    need = [for_tests(part) for part in parts if part.strip()]
    return any(need) if listed[1] == "all" else bool(need) and all(need)


def end_of_item(code: str, begin: int) -> int:
    """Return where what begins there ends: an item, a field, a variant, an arm, a statement.

    An item ends with its block or with a semicolon; of `use` and values, braces are inside.
    Anything else ends with a comma, too, and never after what it stands in.
    """
    item = ITEM.match(code, begin)
    depth, angles = 0, 0
    for at in range(begin, len(code)):
        letter, before = code[at], code[at - 1]
        depth += NESTING.get(letter, 0)
        if depth < 0:
            return at
        if depth:
            continue
        if letter == ";":
            return at + 1
        if letter == "}" and not (item and item["statement"]):
            if item or not re.compile(r"\s*(?:=>|[.?])").match(code, at + 1):
                return at + 1
        elif letter == "<" and not before.isspace() and before != "<":
            # A comparison has spaces around it.
            angles += 1
        elif letter == ">" and before not in "-=":
            angles = max(0, angles - 1)
        elif letter == "," and not item and not angles:
            return at + 1
    return len(code)


def without_tests(code: str) -> tuple[str, set[str]]:
    """Return the code without items for tests alone, and the modules in files among these."""
    parts, files, at = [], set(), 0
    while found := CFG.search(code, at):
        closed = closing(code, found.end() - 1)
        if not for_tests(code[found.end() : closed]):
            parts.append(code[at : found.end()])
            at = found.end()
            continue
        parts.append(code[at : found.start()])
        item = closing(code, found.start() + 1) + 1
        at = end_of_item(code, item)
        if declared := re.search(r"\bmod\s+(\w+)\s*;\Z", code[item:at]):
            files.add(declared[1])
    return "".join([*parts, code[at:]]), files


def tree_paths(tokens: list[str], at: int) -> tuple[list[tuple[list[str], str]], int]:
    """Read a `use` tree; return its paths, each with the name it goes by, and where it ends."""
    path: list[str] = []
    while at < len(tokens):
        token = tokens[at]
        if token == "{":
            found: list[tuple[list[str], str]] = []
            at += 1
            while tokens[at] != "}":
                below, at = tree_paths(tokens, at)
                for rest, name in below:
                    if rest == ["self"]:
                        found.append((path, path[-1] if name == "self" else name))
                    else:
                        found.append((path + rest, name))
                at += tokens[at] == ","
            return found, at + 1
        if token == "as":
            return [(path, tokens[at + 1])], at + 2
        if token == "*" or NAME.match(token):
            path.append(token)
        elif token != "::":
            break
        at += 1
    return [(path, path[-1] if path else "")], at


class File:
    """What one file imports and spells out."""

    def __init__(self, module: Module, code: str) -> None:
        """Read it."""
        self.module = module
        self.imports: dict[str, tuple[Module, list[str]]] = {}
        self.exports: set[str] = set()
        self.globs: list[tuple[Module, list[str], bool]] = []
        """Modules all names of which are imported, and whether they are handed on."""
        self.defines: set[str] = set()
        self.uses: list[tuple[Module, list[str]]] = []
        self.names: list[str] = []
        """First names of paths that do not say where they begin."""
        self._bound: set[str] = set()
        self._values: set[str] = set()
        self._read(TOKEN.findall(code))
        # A variable is no use of a function that is called like it.
        self.names += sorted(self._values - self._bound)

    def _read(self, tokens: list[str]) -> None:
        at, depth = 0, 0
        inside: list[tuple[str, int]] = []
        while at < len(tokens):
            token = tokens[at]
            here = self.module + tuple(name for name, _ in inside)
            if token == "use" and tokens[at + 1] != "<":
                is_export = at > 0 and tokens[at - 1] in ("pub", ")")
                at += 1 + (tokens[at + 1] == "::")
                paths, at = tree_paths(tokens, at)
                for path, name in paths:
                    if not inside and name == "*":
                        self.globs.append((here, path[:-1], is_export))
                    elif not inside:
                        self.imports[name] = (here, path)
                        if is_export:
                            self.exports.add(name)
                    if not is_export:
                        self.uses.append((here, path))
                continue
            if depth == 0 and (token in DEFINES or tokens[at - 2 : at] == ["macro_rules", "!"]):
                self.defines.add(tokens[at + 1] if token in DEFINES else token)
            if token == "mod" and tokens[at + 2 : at + 3] == ["{"]:
                inside.append((tokens[at + 1], depth))
                at += 2
                continue
            if token == "{":
                depth += 1
            elif token == "}":
                depth -= 1
                if inside and inside[-1][1] == depth:
                    inside.pop()
            elif NAME.match(token) and tokens[at - 1 : at] != ["::"]:
                path, before = [token], tokens[at - 1 : at]
                while tokens[at + 1 : at + 2] == ["::"] and NAME.match(tokens[at + 2]):
                    path.append(tokens[at + 2])
                    at += 2
                if len(path) > 1:
                    if tokens[at + 1 : at + 2] == ["("]:
                        path[-1] += CALL
                    self.uses.append((here, path))
                after = tokens[at + 1 : at + 2]
                if before == ["."] or (len(path) > 1 and path[0] in WAYS):
                    pass
                elif len(path) > 1 or (after in (["("], ["!"]) and before != ["fn"]):
                    self.names.append(path[0])
                elif after == [":"] or (before and before[0] in BINDS):
                    self._bound.add(token)
                else:
                    self._values.add(token)
            at += 1


class Crate:
    """The modules of a crate."""

    def __init__(self, source: Path) -> None:
        """Read them below the folder `source`."""
        codes: dict[Module, str] = {}
        tests: set[Module] = set()
        for path in sorted(source.rglob("*.rs")):
            parts = path.relative_to(source).with_suffix("").parts
            if parts in (("lib",), ("main",)) or parts[-1] == "mod":
                parts = parts[:-1]
            code, for_tests = without_tests(code_of(path.read_text()))
            tests |= {(*parts, name) for name in for_tests}
            codes[parts] = codes.get(parts, "") + "\n" + code
        self.files = {
            module: File(module, code)
            for module, code in codes.items()
            if not any(module[: len(test)] == test for test in tests)
        }

    def _defined(self, here: Module, path: list[str], seen: frozenset[str]) -> Module | None:
        """Return the file that defines what `path` names for one who is in module `here`."""
        at, rest = here, list(path)
        if rest[0] in ("crate", "$crate"):
            at, rest = (), rest[1:]
        elif rest[0] in ("self", "super"):
            while rest and rest[0] in ("self", "super"):
                at = at[:-1] if rest[0] == "super" else at
                rest = rest[1:]
        elif (*at, rest[0]) not in self.files:
            # Another crate, or a name that was imported and counted there.
            return None
        while rest and (*at, rest[0]) in self.files:
            at, rest = (*at, rest[0]), rest[1:]
        while at not in self.files:
            # A module inside a file.
            if not at:
                return None
            at = at[:-1]
        if not rest:
            return at
        return self._named(here, at, rest, seen) or at

    def _named(
        self, here: Module, at: Module, rest: list[str], seen: frozenset[str]
    ) -> Module | None:
        """Return the file that defines a name that `at` has for `here`; None where it has none."""
        name, file = rest[0].removesuffix(CALL), self.files[at]
        key = f"{at} {name}"
        if key in seen:
            return None
        seen |= {key}
        # A module sees what those that it is in import for themselves.
        is_inside = here[: len(at)] == at
        if name in file.imports and (is_inside or name in file.exports):
            there, further = file.imports[name]
            if further != rest:
                return self._defined(there, further + rest[1:], seen) or at
        if name in file.defines:
            return at
        for there, further, is_export in file.globs:
            if not (is_inside or is_export):
                continue
            source = self._defined(there, further, seen) if further else None
            if source is None:
                continue
            if (*source, name) in self.files:
                return self._defined((*source, name), ["self", *rest[1:]], seen)
            if found := self._named(at, source, rest, seen):
                return found
        return None

    def _used(self, module: Module) -> Iterator[tuple[Module, str]]:
        """Return what a file uses by names that it hands on, or has by an import of all names."""
        file = self.files[module]
        for name in dict.fromkeys(file.names):
            is_own = name in file.defines or (*module, name) in self.files
            if name not in file.exports and (is_own or name in file.imports):
                continue
            if other := self._named(module, module, [name], frozenset()):
                yield other, name

    def graph(self) -> Graph:
        """Return which module depends on which."""
        graph: Graph = {module: {} for module in self.files}
        for module, file in self.files.items():
            for here, path in file.uses:
                other = self._defined(here, path, frozenset()) if path else None
                if other is not None and other != module:
                    graph[module].setdefault(other, "::".join(path).removesuffix(CALL))
            for other, name in self._used(module):
                if other != module:
                    graph[module].setdefault(other, name)
        return graph


def components(graph: Graph) -> list[list[Module]]:
    """Return the strongly connected components of more than one module, by Tarjan."""
    index: dict[Module, int] = {}
    low: dict[Module, int] = {}
    stack: list[Module] = []
    found: list[list[Module]] = []

    def visit(module: Module) -> None:
        index[module] = low[module] = len(index)
        stack.append(module)
        for other in graph[module]:
            if other not in index:
                visit(other)
                low[module] = min(low[module], low[other])
            elif other in stack:
                low[module] = min(low[module], index[other])
        if low[module] == index[module]:
            at = stack.index(module)
            if len(stack) - at > 1:
                found.append(sorted(stack[at:]))
            del stack[at:]

    for module in graph:
        if module not in index:
            visit(module)
    return sorted(found)


def shortest(graph: Graph, among: list[Module]) -> list[Module]:
    """Return the shortest circle within a component."""

    def from_(start: Module) -> list[Module]:
        ways: list[list[Module]] = [[start]]
        seen: set[Module] = set()
        for way in ways:
            for other in sorted(graph[way[-1]]):
                if other == start:
                    return way
                if other in among and other not in seen:
                    seen.add(other)
                    ways.append([*way, other])
        return among

    return min((from_(module) for module in among), key=len)


def levels(graph: Graph) -> Iterator[tuple[Module, Graph]]:
    """Return each folder, and which of its modules depends on which."""
    for folder in sorted({module[:-1] for module in graph if module}):
        depth = len(folder)
        level: Graph = {}
        for module, others in graph.items():
            if module[:depth] != folder or len(module) == depth:
                continue
            part = module[: depth + 1]
            of_part = level.setdefault(part, {})
            for other, path in others.items():
                if other[:depth] == folder and len(other) > depth and other[: depth + 1] != part:
                    of_part.setdefault(other[: depth + 1], path)
        yield folder, level


class BaselineError(Exception):
    """A file of known circles that cannot be used."""


Circle = tuple[str, frozenset[str]]
"""The folder of the modules, and their names in it."""


def named(module: Module) -> str:
    """Return how Rust calls it."""
    return "::".join(("crate", *module))


def known_of(path: Path) -> dict[str, set[Circle]]:
    """Return the known circles of each crate.

    Raises:
        BaselineError: the file cannot be read, or is not as it must be.

    """
    known: dict[str, set[Circle]] = {}
    try:
        for circle in tomllib.loads(path.read_text())["circle"]:
            modules = frozenset(circle["modules"])
            known.setdefault(circle["crate"], set()).add((circle["folder"], modules))
    except (OSError, tomllib.TOMLDecodeError, KeyError, TypeError) as error:
        raise BaselineError(f"{path} does not tell known circles ({error!r})") from None
    return known


def told(graph: Graph, known: frozenset[Circle] | set[Circle] = frozenset()) -> Iterator[str]:
    """Say each component that is not known, with the paths that close its shortest circle.

    What is known and is not there, as it was or at all, is said as well.
    """
    found: set[Circle] = set()
    for folder, level in levels(graph):
        for among in components(level):
            circle = (named(folder), frozenset(module[-1] for module in among))
            found.add(circle)
            if circle in known:
                continue
            parts = ", ".join(module[-1] for module in among)
            yield f"{len(among)} modules of {named(folder)} in a circle: {parts}"
            way = shortest(level, among)
            for module, other in zip(way, [*way[1:], way[0]], strict=True):
                yield f"  {named(module)} needs {named(other)} for {level[module][other]}"
    for folder, names in sorted(known - found, key=lambda circle: (circle[0], sorted(circle[1]))):
        yield f"known, but not so any more, of {folder}: {', '.join(sorted(names))}"


def main(words: Sequence[str]) -> int:
    """Say the circles of these crates; 1 if there is one that is not known, 2 if none is named."""
    parser = argparse.ArgumentParser(prog="circles", description="Circles among modules.")
    parser.add_argument("--known", type=Path, help="file of circles that pass as they are")
    parser.add_argument("crates", nargs="+", metavar="CRATE")
    arguments = parser.parse_args(words)
    try:
        known = known_of(arguments.known) if arguments.known else {}
    except BaselineError as error:
        print(error)
        return 1
    failed = False
    for crate in arguments.crates:
        source = Path(crate) / "src"
        if not any((source / root).is_file() for root in ("lib.rs", "main.rs")):
            print(f"{crate}: has neither src/lib.rs nor src/main.rs")
            failed = True
            continue
        for line in told(Crate(source).graph(), known.get(str(Path(crate)), frozenset())):
            print(f"{crate}: {line}")
            failed = True
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
