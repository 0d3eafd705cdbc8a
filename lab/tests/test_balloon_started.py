# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What is started is stopped, and directories that users name stay theirs."""

from pathlib import Path

import pytest

from demeter_lab.balloon.started import Started, own_directory


class Engine(Started):
    """Notes what is done to it."""

    def __init__(self, *, fails: bool = False) -> None:
        self.fails = fails
        self.done: list[str] = []

    def start(self) -> None:
        self.done.append("start")
        if self.fails:
            raise OSError("no")

    def stop(self) -> None:
        self.done.append("stop")

    def last_words(self) -> str:
        return "it said this"


def test_whatever_happens_it_is_stopped(capsys: pytest.CaptureFixture[str]) -> None:
    engine = Engine()
    with engine:
        pass
    assert engine.done == ["start", "stop"]
    assert capsys.readouterr().out == ""
    with pytest.raises(OSError, match="no"), Engine(fails=True) as engine:
        pass
    engine = Engine(fails=True)
    with pytest.raises(OSError, match="no"):
        engine.__enter__()
    assert engine.done == ["start", "stop"]
    with pytest.raises(ValueError, match="later"), Engine():
        raise ValueError("later")
    assert "it said this" in capsys.readouterr().out


def test_what_else_a_named_directory_has_stays(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.write_text("dear")
    with own_directory(tmp_path) as made:
        (made / "ours").write_text("x")
        assert made.parent == tmp_path
    assert [theirs] == list(tmp_path.iterdir())
    with pytest.raises(ValueError, match="stop"), own_directory(tmp_path):
        raise ValueError("stop")
    assert theirs.read_text() == "dear"
    assert [theirs] == list(tmp_path.iterdir())
