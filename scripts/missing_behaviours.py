"""List the behaviours of the reference, section 10, that no test claims yet.

A test claims behaviours by `@behaviour(24, 30)`, or by `pytest.mark.behaviour`. The reference is read from the folder
beside the project; where it is absent, there is nothing to compare with.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = ROOT.parent / "shared" / "reference" / "catalog-service.md"


def behaviours(page: str) -> dict[int, str]:
    """The numbered lines of section 10."""
    section = page.partition("\n## 10.")[2].partition("\n## ")[0]
    return {int(number): text for number, text in re.findall(r"^(\d+)\. (.+)$", section, re.MULTILINE)}


def claims(tests: Path) -> Iterator[int]:
    """The numbers that tests claim."""
    for file in sorted(tests.rglob("test_*.py")):
        for node in ast.walk(ast.parse(file.read_text(), filename=str(file))):
            if isinstance(node, ast.FunctionDef):
                for mark in node.decorator_list:
                    yield from _numbers(mark)


def _numbers(mark: ast.expr) -> Iterator[int]:
    if isinstance(mark, ast.Call) and ast.unparse(mark.func) in ("behaviour", "pytest.mark.behaviour"):
        yield from (ast.literal_eval(argument) for argument in mark.args)


def main() -> None:
    if not REFERENCE.is_file():
        sys.exit(f"there is no reference at {REFERENCE}: nothing to compare with")
    known = behaviours(REFERENCE.read_text())
    claimed = set(claims(ROOT / "tests"))
    if unknown := sorted(claimed - known.keys()):
        sys.exit(f"tests claim behaviours that the reference does not have: {unknown}")
    missing = {number: text for number, text in known.items() if number not in claimed}
    for number, text in missing.items():
        print(f"{number:3d}. {text[:110]}")
    print(f"{len(known) - len(missing)} of {len(known)} behaviours have a test")


if __name__ == "__main__":
    main()
