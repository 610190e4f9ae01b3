"""Print the behaviors in `tests/behaviors.md` that no test claims yet.

A test claims behaviors by `@behavior(24, 30)`, or by `pytest.mark.behavior`.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIST = ROOT / "tests" / "behaviors.md"


def behaviors(page: str) -> dict[int, str]:
    """The numbered lines of the list."""
    return {int(number): text for number, text in re.findall(r"^(\d+)\. (.+)$", page, re.MULTILINE)}


def claims(tests: Path) -> Iterator[int]:
    """The numbers that the tests in a folder claim."""
    for file in sorted(tests.rglob("test_*.py")):
        text = file.read_text()
        if "behavior(" not in text:
            continue
        for node in ast.walk(ast.parse(text, filename=str(file))):
            if isinstance(node, ast.FunctionDef):
                for mark in node.decorator_list:
                    yield from _numbers(mark)


def _numbers(mark: ast.expr) -> Iterator[int]:
    if isinstance(mark, ast.Call) and ast.unparse(mark.func) in ("behavior", "pytest.mark.behavior"):
        yield from (ast.literal_eval(argument) for argument in mark.args)


def main() -> None:
    known = behaviors(LIST.read_text())
    claimed = set(claims(ROOT / "tests"))
    if unknown := sorted(claimed - known.keys()):
        sys.exit(f"tests claim behaviors that are not in the list: {unknown}")
    missing = {number: text for number, text in known.items() if number not in claimed}
    for number, text in missing.items():
        print(f"{number:3d}. {text[:110]}")
    print(f"{len(known) - len(missing)} of {len(known)} behaviors have a test")


if __name__ == "__main__":
    main()
