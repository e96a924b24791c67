"""The diagram in docs/architecture.md shows the arrows that the suite enforces."""

from __future__ import annotations

import re

from tests.docs.blocks import ROOT, blocks_of
from tests.docs.house import GROUPS, arrows, picture
from tests.test_arrows import SANS_IO

DOCUMENT = ROOT / "docs" / "architecture.md"


def test_the_diagram_shows_the_arrows() -> None:
    first = next(block for block in blocks_of(DOCUMENT) if block.language == "mermaid")
    assert first.text == picture(), "python -m tests.docs.house prints what docs/architecture.md should have"


def test_rooms_drawn_as_deciding_import_no_io() -> None:
    drawn = set(re.findall(r'\["([\w-]+)"\]:::decides', picture()))
    assert {room for group in drawn for room in GROUPS.get(group, (group,))} <= SANS_IO


def test_no_diagram_has_a_semicolon() -> None:
    """It ends a statement: Mermaid once drew nothing of a sequence with one in a message."""
    blocks = [block for page in sorted(DOCUMENT.parent.glob("*.md")) for block in blocks_of(page)]
    diagrams = [block for block in blocks if block.language == "mermaid"]
    assert len(diagrams) > 1
    assert not [block for block in diagrams if ";" in block.text]


def test_every_room_of_the_diagram_is_explained() -> None:
    rows = [line.split("|")[1] for line in DOCUMENT.read_text().splitlines() if line.startswith("| ")]
    named = {name.strip("` ") for row in rows for name in row.split(",")}
    assert arrows().keys() <= named
