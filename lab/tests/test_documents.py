# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What the documents show is there to be seen."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("guest/**/*.md")])
BLOCK = re.compile(r"^```[^\n]*\n(.*?)^```$", re.S | re.M)


def name(path: Path) -> str:
    """Return a document's place in the tree."""
    return str(path.relative_to(ROOT))


def anchors(document: Path) -> set[str]:
    """Return what a link into a document can name: its headings, as GitHub writes them."""
    headings = re.findall(r"^#+ (.*)$", BLOCK.sub("", document.read_text()), re.M)
    plain = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower() for heading in headings)
    return {re.sub(r"[^\w -]", "", heading).replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_no_block_is_empty(document: Path) -> None:
    """A table that was to be pasted in and was not."""
    blocks = BLOCK.findall(document.read_text())
    assert all(block.strip() for block in blocks)


def test_every_miss_of_the_evaluation_is_explained() -> None:
    shown = (ROOT / "docs/evaluation.md").read_text()
    assert "| missed |" in shown and "not explained yet" not in shown


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_links_lead_somewhere(document: Path) -> None:
    """A page that was moved, or a part that has another heading by now."""
    text = re.sub(r"`[^`\n]*`", "", BLOCK.sub("", document.read_text()))
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if link.startswith(("http://", "https://")):
            continue
        path, _, anchor = link.partition("#")
        target = document.parent / path if path else document
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target), link
