"""The README and the documentation pages, and the programs on them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
README = PROJECT / "README.md"
GUIDE = PROJECT / "docs" / "airport.md"
SERVER = PROJECT / "docs" / "airport-server.md"
WRITING = PROJECT / "docs" / "writing.md"
INDEX = PROJECT / "docs" / "README.md"
CONTRIBUTING = PROJECT / "CONTRIBUTING.md"
PAGES = [README, CONTRIBUTING, PROJECT / "CHANGELOG.md", *sorted((PROJECT / "docs").rglob("*.md"))]

_PROGRAM = re.compile(r"^```python\n(.*?)^```$(?:\n\n^```text\n(.*?)^```$)?", re.DOTALL | re.MULTILINE)


def programs(page: Path) -> Iterator[tuple[int, str, str | None]]:
    """Each program on a page: its preceding line, its text, and the output shown below it."""
    text = page.read_text()
    for found in _PROGRAM.finditer(text):
        yield text[: found.start(1)].count("\n"), found[1], found[2]
