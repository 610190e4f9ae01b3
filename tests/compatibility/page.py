"""The page about compatibility, which is generated from the results of the last runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from compatibility.parts import HERE, PROJECT, Part

PAGE: Final = PROJECT / "docs" / "reference" / "compatibility.md"
RESULTS: Final = HERE / "results.json"

_HEAD: Final = """# Compatibility

Skiway runs the tests below with each of these versions every night. `make compatibility` repeats them and writes this page.

<!-- page: generated, do not edit -->
"""


def read_results(file: Path = RESULTS) -> dict[str, dict[str, Any]]:
    """What the last run of each version found, by part and version."""
    found: dict[str, dict[str, Any]] = json.loads(file.read_text()) if file.exists() else {}
    return found


def record(key: str, result: dict[str, Any], file: Path = RESULTS) -> None:
    """Keep the result of a version."""
    file.write_text(json.dumps(dict(sorted({**read_results(file), key: result}.items())), indent=1) + "\n")


def rendered(parts: Mapping[str, Part], results: Mapping[str, Mapping[str, Any]]) -> str:
    """The text of the page."""
    lines = [_HEAD]
    for part in parts.values():
        lines += [f"## {part.title}\n", "| version | tests passed | not supported | checked |", "|---|---|---|---|"]
        for version in part.versions:
            result = results.get(f"{part.name} {version}")
            if result is None:
                lines.append(f"| {version} | not run yet | | |")
                continue
            missing = "; ".join(sorted(set(result["known"].values())))
            lines.append(f"| {version} | {result['passed']} of {result['tests']} | {missing} | {result['date']} |")
        lines.append("")
    return "\n".join([*lines, "<!-- end of page -->\n"])
