# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What tests of experiments share."""

import sys
from pathlib import Path

import pytest


@pytest.fixture
def fake(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand the test file's `FAKE` where the command `demeter` would be, with no cache."""
    monkeypatch.setenv("DEMETER_CACHE", str(tmp_path / "no cache"))
    path = tmp_path / "demeter"
    path.write_text(request.module.FAKE.format(python=sys.executable))
    path.chmod(0o755)
    return path
