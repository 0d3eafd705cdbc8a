# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What is started and stopped by ``with``, and the directory that it does that in."""

import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self


class Started(ABC):
    """Use as a context manager."""

    @abstractmethod
    def start(self) -> None:
        """Start it."""

    @abstractmethod
    def stop(self) -> None:
        """End it, however far it came."""

    @abstractmethod
    def last_words(self) -> str:
        """Return what to show where something failed."""

    def __enter__(self) -> Self:
        """Start it; nothing is left behind where that fails."""
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop it; say what it said last where something failed."""
        if error is not None and (words := self.last_words()):
            print(f"---- {words}", flush=True)
        self.stop()


@contextmanager
def own_directory(place: Path) -> Iterator[Path]:
    """Make a directory in ``place`` that goes away again.

    What else is in there is somebody's: a user may have named any directory.
    """
    place.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(dir=place))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)
