# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The managers of the evaluation are those that the command tells."""

import json
from pathlib import Path

import pytest

from demeter_lab.evaluation import execute, records
from demeter_lab.evaluation.records import RecordError, Run


@pytest.mark.parametrize(
    ("tells", "what"),
    [
        ("[]", "has no managers"),
        ("rows: none", "is not understood"),
        ('[{"name": "none"}]', "is not understood"),
    ],
)
def test_managers_are_those_that_the_command_tells(tells: str, what: str, tmp_path: Path) -> None:
    demeter = tmp_path / "demeter"
    demeter.write_text(f"#!/bin/sh\n[ \"$*\" = 'vm managers --json' ] && echo '{tells}'\n")
    demeter.chmod(0o755)
    with pytest.raises(RecordError, match=what):
        records.systems_of(demeter)
    demeter.write_text('#!/bin/sh\necho \'[{"row": "none"}, {"row": "tpp-h"}]\'\n')
    assert records.systems_of(demeter) == ["none", "tpp-h"]
    with pytest.raises(RecordError, match="cannot be asked"):
        records.systems_of(tmp_path / "nothing")


def told(tmp_path: Path, *managers: dict) -> Path:
    """Stand a command that tells these managers, and its modules, where a build has them."""
    demeter = tmp_path / execute.DEMETER
    demeter.parent.mkdir(parents=True, exist_ok=True)
    demeter.write_text(f"#!/bin/sh\necho '{json.dumps(managers)}'\n")
    demeter.chmod(0o755)
    return demeter


def test_those_below_the_guest_are_told_apart(tmp_path: Path) -> None:
    demeter = told(
        tmp_path,
        {"row": "none", "module": None, "published": False},
        {"row": "mine", "module": "demeter_mine.ko", "published": True},
        {"row": "tpp-h", "module": None, "published": True},
    )
    below = {row: manager.below for row, manager in records.managers_of(demeter).items()}
    assert below == {"none": False, "mine": False, "tpp-h": True}


def module_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> Path:
    """Return a module where a guest of the command in `tmp_path` would have it from."""
    testbed = {"guest_root": "/none", "qemu": {"argv": []}, "kernels": [{"release": "6.12"}]}
    (tmp_path / "testbed.json").write_text(json.dumps(testbed))
    monkeypatch.setenv("DEMETER_CACHE", str(tmp_path))
    module = tmp_path / "build/modules/6.12" / name
    module.parent.mkdir(parents=True)
    return module


def test_a_module_is_part_of_the_key_whatever_the_row_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row `mine-fast` of `demeter_own.ko`: what it did is void with another of that."""
    told(tmp_path, {"row": "mine-fast", "module": "demeter_own.ko", "published": True})
    module = module_of(tmp_path, monkeypatch, "demeter_own.ko")
    run = Run("X", "compare", ("{demeter}", "vm"), {"system": "mine-fast"})
    keys = []
    for text in ("1", "12"):
        module.write_text(text)
        keys.append(execute.task_of(run, tmp_path).key)
    assert keys[0] != keys[1]
    gone = Run("X", "compare", ("{demeter}", "vm"), {"system": "gone"})
    with pytest.raises(execute.RunError, match="no manager gone"):
        execute.task_of(gone, tmp_path)


def test_a_build_during_the_evaluation_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What ran under another build than its key says is not kept, nor what began under one."""
    told(tmp_path)
    module = module_of(tmp_path, monkeypatch, "demeter.ko")
    module.write_text("1")

    def task(script: str) -> execute.Task:
        words = ("sh", "-c", f"{script} echo n=1", "{demeter}")
        return execute.task_of(Run("X", "text", words, {}, {"n": "n=1"}), tmp_path)

    before, during, after = task(""), task(f"echo 2 >>{module};"), task(":;")
    assert not execute.execute(before, tmp_path).failure
    for one in (during, after):
        assert "has another 6.12 demeter.ko" in execute.execute(one, tmp_path).failure
    assert not execute.execute(task(":;"), tmp_path).failure
