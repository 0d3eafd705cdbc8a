# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A disk that is full is a failure of the run it hits; nothing half-written keeps it full."""

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from demeter_lab.evaluation.execute import Outcome, Task, execute
from demeter_lab.evaluation.records import Run
from demeter_lab.evaluation.store import Store, write_text

TASK = Task("key", Run("X", "text", ("echo", "n=1"), {}, {"n": r"n=(\d+)"}), {})


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of 64 KiB."""
    if os.geteuid() != 0:
        pytest.skip("needs root, as it mounts a file system")
    place = tmp_path / "small"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", place], check=True)
    yield place
    subprocess.run(["umount", place], check=True)


def files_of(place: Path) -> list[str]:
    return sorted(str(path.relative_to(place)) for path in place.rglob("*") if path.is_file())


def test_a_text_that_finds_no_room_leaves_the_one_before(small: Path) -> None:
    write_text(small / "page.html", "before")
    with pytest.raises(OSError, match="No space left"):
        write_text(small / "page.html", "x" * 100_000)
    assert files_of(small) == ["page.html"] and (small / "page.html").read_text() == "before"


def test_a_result_that_finds_no_room_is_noted_in_what_it_had_taken(small: Path) -> None:
    store = Store(small)
    large = Outcome("key", {"lines.txt": b"x" * 100_000})
    assert "No space left" in store.put_or_note(TASK, large).failure
    assert files_of(small) == ["failed/key.json"]
    assert "No space left" in str(store.failure("key"))
    # Where there is no room for the note either, the rest still goes on.
    (small / "of others").write_bytes(b"x" * (os.statvfs(small).f_bavail * 4096))
    Path(small / "failed/key.json").unlink()
    (small / "of others as well").write_bytes(b"x" * 4096)
    assert store.put_or_note(TASK, large).failure
    assert files_of(small) == ["of others", "of others as well"]


def test_no_room_for_a_run_is_its_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    assert "No such file" in execute(TASK).failure


def test_what_a_killed_writer_of_texts_left_goes_away(tmp_path: Path) -> None:
    (tmp_path / "assets").mkdir()
    left = [".plan.json.999999999", "assets/.vega.js.999999999"]
    kept = [".plan.json.1", ".git.ignore", "plan.json.999999999"]
    for name in (*left, *kept):
        (tmp_path / name).touch()
    Store(tmp_path)
    assert files_of(tmp_path) == sorted(kept)
