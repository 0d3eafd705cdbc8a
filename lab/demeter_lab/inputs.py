# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What decides a guest's figures beside its options: results of one are not another's."""

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from demeter_lab.results import ResultError

#: Beside the command, or in $DEMETER_LIBEXEC.
PROGRAMS = (
    "demeter",
    "demeterd",
    "libdemeter_tcg_plugin.so",
    "demeter-agent",
    "demeter-workloads",
)
MODULE = "demeter.ko"
#: What ``testbed.json`` names for each kernel.
OF_KERNEL = ("vmlinuz", "vmlinux", "initrd_base")


def inputs_of(demeter: Path, modules: Sequence[str] = (MODULE,)) -> dict[str, str]:
    """Return the SHA-256 of everything that a guest of ``demeter`` is made of, by name.

    The command and the programs beside it, ``testbed.json``, QEMU, and each kernel that
    it names with these ``modules``; what is not there has no part in a run.

    Raises:
        ResultError: ``testbed.json`` is damaged.

    """
    return {name: sha256_of(path) for name, path in _files(demeter, modules) if path.is_file()}


def _files(demeter: Path, modules: Sequence[str]) -> Iterator[tuple[str, Path]]:
    demeter = demeter.resolve()
    yield "demeter", demeter
    libexec = Path(os.environ.get("DEMETER_LIBEXEC") or demeter.parent)
    for name in PROGRAMS[1:]:
        yield name, libexec / name
    contract = _cache() / "testbed.json"
    if not contract.is_file():
        return
    yield contract.name, contract
    try:
        testbed = json.loads(contract.read_text())
        yield "guest_root", Path(testbed["guest_root"])
        # QEMU is not started by its own path, but by that of its loader.
        for at, word in enumerate(testbed["qemu"]["argv"]):
            yield f"qemu argv {at}", Path(word)
        for kernel in testbed["kernels"]:
            release = kernel["release"]
            for name in OF_KERNEL:
                if name in kernel:
                    yield f"{release} {name}", Path(kernel[name])
            for name in modules:
                yield f"{release} {name}", _module(demeter, release, name)
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise ResultError(f"{contract} is damaged ({error}); run testbed/setup.sh") from None


def _cache() -> Path:
    """Return where the command looks for its testbed."""
    if cache := os.environ.get("DEMETER_CACHE"):
        return Path(cache)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "demeter"


def _module(demeter: Path, release: str, name: str) -> Path:
    """Return the module that the command takes: the first that exists of where it looks."""
    places = [above / "build/modules" for above in demeter.parents]
    if chosen := os.environ.get("DEMETER_MODULES"):
        places.insert(0, Path(chosen))
    places.append(Path("build/modules"))
    paths = [place / release / name for place in places]
    return next((path for path in paths if path.is_file()), paths[0])


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file, which is read again only once it is another one."""
    about = path.stat()
    return _sha256(path, about.st_mtime_ns, about.st_size)


@cache
def _sha256(path: Path, mtime_ns: int, size: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
