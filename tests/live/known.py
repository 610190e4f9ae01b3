"""The differences from plain DuckDB that are known, from `known.toml`.

Each entry belongs to one of three kinds. `client`: a limitation of DuckDB's extension, whatever the server does.
`design`: the target stores or accepts less than DuckDB on purpose, and its documentation says so. `bug`: a defect that is
not fixed yet; its cases are expected failures.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from live.comparing import Difference

__all__ = ["FILE", "KINDS", "Known", "read_known"]

FILE = Path(__file__).with_name("known.toml")
KINDS = ("client", "design", "bug")
ENDS = re.compile("fatal|crash|hang")


@dataclass(frozen=True, slots=True)
class Known:
    """A known difference: the cases and targets it concerns, what it looks like, and why it is there."""

    kind: str
    reason: str
    cases: tuple[str, ...]
    targets: tuple[str, ...]
    found: str
    seen: set[tuple[str, str]] = field(default_factory=set, compare=False)

    def explains(self, difference: Difference) -> bool:
        """Whether the difference is this one; remembers that it was seen."""
        if difference.target not in self.targets or not re.search(self.found, difference.found):
            return False
        if (end := ENDS.match(difference.found)) and end[0] not in self.found:
            return False  # the end of the client has to be expected
        patterns = [pattern for pattern in self.cases if fnmatchcase(difference.case, pattern)]
        self.seen.update((pattern, difference.target) for pattern in patterns)
        return bool(patterns)

    def unseen(self) -> list[str]:
        """The patterns that explained no difference, with their target."""
        pairs = [(pattern, target) for pattern in self.cases for target in self.targets]
        return [f"{pattern} on {target}" for pattern, target in pairs if (pattern, target) not in self.seen]


def read_known(path: Path = FILE) -> list[Known]:
    """All entries of the file, in its order; an entry with an unknown or missing key is an error."""
    content = tomllib.loads(path.read_text())
    assert set(content) <= set(KINDS), f"unknown kinds: {set(content) - set(KINDS)}"
    return [_known(kind, entry) for kind in KINDS for entry in content.get(kind, [])]


def _known(kind: str, entry: dict[str, Any]) -> Known:
    return Known(
        kind,
        reason=entry.pop("reason"),
        cases=tuple(_braced(entry.pop("cases"))),
        targets=tuple(entry.pop("targets", ("memory", "file", "lake"))),
        found=entry.pop("found"),
        **entry,
    )


def _braced(patterns: list[str]) -> list[str]:
    """Patterns in which `{a;b}` stands for each alternative; brackets are literal, because types contain them."""
    expanded = []
    for pattern in patterns:
        if found := re.search(r"\{([^{}]*)\}", pattern):
            expanded += _braced(
                [pattern[: found.start()] + part + pattern[found.end() :] for part in found[1].split(";")]
            )
        else:
            expanded.append(pattern.replace("[", "[[]"))
    return expanded
