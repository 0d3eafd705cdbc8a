# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Circles among the modules of a Rust crate: ``python -m demeter_lab.circles CRATE...``.

A module is a file. It depends on another whose names it imports or spells out with ``crate::``,
``super::`` or ``self::``. A name that is re-exported counts for the module that defines it, and
a re-export is no dependency of its own. What is compiled for tests alone does not count: tests
may look at anything.

Circles are looked for among the modules of one folder, each with all that is below it. What
these have from the file of the folder itself (``mod.rs``, ``lib.rs``), and it from them, does not
count: a trait and those that implement it are one thing to all others.
"""

import re
import sys
from collections.abc import Iterator
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
TESTS = re.compile(r"#\[cfg\((?:all\()?test\b")


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


def without_tests(code: str) -> tuple[str, set[str]]:
    """Return the code without items for tests alone, and the modules in files among these."""
    parts, files, at = [], set(), 0
    while found := TESTS.search(code, at):
        parts.append(code[at : found.start()])
        item = code.index("]", found.end()) + 1
        # An item ends with its block or with a semicolon; of `use` and calls, braces are inside.
        end, depth = item, 0
        for end in range(item, len(code)):
            depth += {"{": 1, "(": 1, "[": 1, "}": -1, ")": -1, "]": -1}.get(code[end], 0)
            if depth == 0 and code[end] in "};":
                break
        if declared := re.search(r"\bmod\s+(\w+)\s*;\Z", code[item : end + 1]):
            files.add(declared[1])
        at = end + 1
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
        self.uses: list[tuple[Module, list[str]]] = []
        self._read(TOKEN.findall(code))

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
                    if not inside:
                        self.imports[name] = (here, path)
                    if not is_export:
                        self.uses.append((here, path))
                continue
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
                path = [token]
                while tokens[at + 1 : at + 2] == ["::"] and NAME.match(tokens[at + 2]):
                    path.append(tokens[at + 2])
                    at += 2
                if len(path) > 1:
                    if tokens[at + 1 : at + 2] == ["("]:
                        path[-1] += CALL
                    self.uses.append((here, path))
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
        name = rest[0].removesuffix(CALL) if rest else ""
        if name in self.files[at].imports:
            there, further = self.files[at].imports[name]
            key = f"{at} {name}"
            if key not in seen and further != rest:
                defined = self._defined(there, further + rest[1:], seen | {key})
                return at if defined is None else defined
        return at

    def graph(self) -> Graph:
        """Return which module depends on which."""
        graph: Graph = {module: {} for module in self.files}
        for module, file in self.files.items():
            for here, path in file.uses:
                other = self._defined(here, path, frozenset()) if path else None
                if other is not None and other != module:
                    graph[module].setdefault(other, "::".join(path).removesuffix(CALL))
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


def told(graph: Graph) -> Iterator[str]:
    """Say each component, and its shortest circle with the paths that close it."""

    def name(module: Module) -> str:
        return "::".join(("crate", *module))

    for folder, level in levels(graph):
        for among in components(level):
            parts = ", ".join(module[-1] for module in among)
            yield f"{len(among)} modules of {name(folder)} in a circle: {parts}"
            way = shortest(level, among)
            for module, other in zip(way, [*way[1:], way[0]], strict=True):
                yield f"  {name(module)} needs {name(other)} for {level[module][other]}"


def main(crates: list[str]) -> int:
    """Say the circles of these crates; 1 if there is one."""
    failed = False
    for crate in crates:
        source = Path(crate) / "src"
        if not any((source / root).is_file() for root in ("lib.rs", "main.rs")):
            print(f"{crate}: has neither src/lib.rs nor src/main.rs")
            failed = True
            continue
        for line in told(Crate(source).graph()):
            print(f"{crate}: {line}")
            failed = True
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
