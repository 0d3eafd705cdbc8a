# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What the documents show is there to be seen."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([ROOT / "README.md", *ROOT.glob("docs/**/*.md")])


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_no_block_is_empty(document: Path) -> None:
    """A table that was to be pasted in and was not."""
    blocks = re.findall(r"^```[^\n]*\n(.*?)^```$", document.read_text(), re.S | re.M)
    assert all(block.strip() for block in blocks)
