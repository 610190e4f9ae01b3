"""Turn the section `Unreleased` of CHANGELOG.md into that of a version, sorted by topic.

    python scripts/release_changelog.py 0.1.0 2026-12-01

With `--first`, changes and fixes of what nobody has installed yet are left out. Look at the result: topics are found by words.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Final

CHANGELOG: Final = Path(__file__).resolve().parent.parent / "CHANGELOG.md"
TOPICS: Final = {
    "Security": r"(?i)polic|grant|token|login|audit|secret|credential|\broles?\b|openid|oidc|\btls\b|mask|sandbox|attack|confin|permission",
    "Explorer": r"(?i)explorer|browser|chromium",
    "Pipelines, quality and Spark": r"(?i)pipeline|quality|spark|\brules\b|profile|statistic",
    "Sources, copies and formats": r"(?i)connector|source|\bcop(?:y|ies)\b|delta|parquet|glue|hive|unity|\bsync|avro|variant|geometr",
    "Iceberg REST and Trino": r"REST|Trino|PyIceberg",
    "Command line, setup and demo": r"(?i)`skiway |\bdemo\b|command|completion|prompt",
    "Airport library": r"(?i)skiway\.airport|memorycatalog|skiway\.testing|\blibrary|airportservice|`server\(",
    "DuckDB and clients": r"(?i)duckdb|client|airport|attach|sql|jdbc|adbc",
    "Servers and stores": r"",
}
"""The topics of a section, with the words of their entries. The first topic that fits has the entry."""

EMPTY: Final = "## [Unreleased]\n\n### Added\n\n### Changed\n\n### Fixed\n"


def released(text: str, version: str, date: str, *, first: bool) -> str:
    """The changelog with a section for the version, and an empty one for what comes next."""
    before, _, rest = text.partition("## [Unreleased]\n")
    section, older = re.match(r"(.*?)(?=^## |\Z)(.*)", rest, re.DOTALL | re.MULTILINE).groups()  # type: ignore[union-attr]
    kinds = dict(re.findall(r"^### (\w+)\n(.*?)(?=^### |\Z)", section, re.DOTALL | re.MULTILINE))
    found: dict[str, list[str]] = {topic: [] for topic in TOPICS}
    for kind in ("Added",) if first else kinds:
        for entry in re.findall(r"^- .*?(?=^- |\Z)", kinds[kind], re.DOTALL | re.MULTILINE):
            topic = next(topic for topic, words in TOPICS.items() if re.search(words, entry))
            found[topic].append(entry.rstrip() + "\n")
    parts = [f"### {topic}\n\n{''.join(sorted(entries, key=_letters))}" for topic, entries in found.items() if entries]
    notes = f"Its [notes](releases/{version}.md) say what you get; this is the whole list, by topic."
    return "\n".join([f"{before}{EMPTY}", f"## [{version}] - {date}\n\n{notes}\n", *parts, *filter(None, [older])])


def _letters(entry: str) -> str:
    return re.sub(r"\W+", " ", entry).lower()


if __name__ == "__main__":
    version_and_date = [each for each in sys.argv[1:] if not each.startswith("-")]
    CHANGELOG.write_text(released(CHANGELOG.read_text(), *version_and_date, first="--first" in sys.argv))
