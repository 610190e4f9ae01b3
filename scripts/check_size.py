"""Check that the code and the documentation stay within the limits of `size.toml`; `make lint` runs it.

A change that must raise a limit raises it in that file and says why. `--update` lowers limits to what is there, and
`--pages` lists the words of each page.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIMITS = Path(__file__).with_name("size.toml")
SOURCE = ROOT / "src" / "skiway"
LARGE_FOLDER = 12
PAGES = (".html", ".css", ".js")
GENERATED = re.compile(r"<!-- (\w+): generated, do not edit -->.*?<!-- end of \1 -->", re.DOTALL)


def measured() -> dict[str, int]:
    """The sizes that have a limit."""
    python = [path for path in SOURCE.rglob("*.py") if not is_generated(path)]
    modules = [path for path in python if path.name != "__init__.py"]
    pages = [path for path in SOURCE.rglob("*") if path.suffix in PAGES and ".min." not in path.name]
    generators = list((ROOT / "scripts").glob("generate_*.py"))
    folders = Counter(path.parent for path in modules)
    return {
        "lines": sum(map(lines, [*python, *pages, *generators])),
        "generated_lines": sum(map(lines, filter(is_generated, SOURCE.rglob("*.py*")))),
        "modules": len(modules),
        "large_folders": sum(1 for count in folders.values() if count > LARGE_FOLDER),
        "longest_module": max(map(lines, modules)),
        "documentation_words": sum(page_words().values()),
        "longest_page": max(page_words().values()),
    }


def page_words() -> dict[str, int]:
    """The words of each page in docs/, without what is generated: everything between two markers of the same name."""
    docs = ROOT / "docs"
    return {
        str(path.relative_to(docs)): len(GENERATED.sub("", path.read_text()).split())
        for path in sorted(docs.rglob("*.md"))
    }


def is_generated(path: Path) -> bool:
    """Whether a file was made from `proto/`."""
    return path.suffix in (".py", ".pyi") and path.is_relative_to(SOURCE / "model")


def lines(path: Path) -> int:
    """The number of lines of a file."""
    return len(path.read_text(encoding="utf-8").splitlines())


def findings(limits: Mapping[str, int], found: Mapping[str, int]) -> Iterator[str]:
    """What exceeds its limit, and limits that are missing or unknown, as lines for people."""
    for name in sorted({*limits, *found}):
        if name not in found:
            yield f"{name} is not measured: remove it from {LIMITS.name}"
        elif name not in limits:
            yield f"{name} is {found[name]:,} and has no limit: add it to {LIMITS.name}"
        elif found[name] > limits[name]:
            yield (
                f"{name} is {found[name]:,}, {found[name] - limits[name]:,} above its limit: say it with less, "
                f"or raise the limit in {LIMITS.name} and write there why"
            )


def lowered(text: str, found: Mapping[str, int]) -> str:
    """The text of the file with limits that are no higher than what was found."""

    def lower(line: re.Match[str]) -> str:
        return f"{line[1]} = {min(int(line[2]), found.get(line[1], int(line[2])))}"

    return re.sub(r"^(\w+) = (\d+)", lower, text, flags=re.MULTILINE)


def main() -> int:
    """Print what exceeds its limit; with `--update`, lower the limits first."""
    if "--pages" in sys.argv[1:]:
        print(*(f"{words:>6,} {page}" for page, words in page_words().items()), sep="\n")
        return 0
    found = measured()
    if "--update" in sys.argv[1:]:
        LIMITS.write_text(lowered(LIMITS.read_text(), found))
    limits = tomllib.loads(LIMITS.read_text())
    del limits["files_per_statement"]  # call_paths.py checks them
    problems = list(findings(limits, found))
    for problem in problems:
        print(problem)
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
