"""A table in a call, its state, and the tables that clients read and write are the same from their construction on."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from skiway.lake import reading, writing

MODULES = {
    reading: ("state", "table", "opened_tables", "columns", "scans"),
    writing: ("writable", "inserting"),
}
STATEMENTS = {"InsertRows", "MergeRows", "MergeIntoEmpty"}
"""They collect and count rows while they take them."""


def assignments(code: str) -> Iterator[str]:
    """The attributes that methods assign outside of `__init__`, by class."""
    for kind in ast.walk(ast.parse(code)):
        if not isinstance(kind, ast.ClassDef) or kind.name in STATEMENTS:
            continue
        for method in kind.body:
            if isinstance(method, ast.FunctionDef) and method.name != "__init__":
                for node in ast.walk(method):
                    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
                        yield f"{kind.name}.{method.name} assigns {ast.unparse(node)}"
                    if isinstance(node, ast.Name) and node.id in ("setattr", "delattr"):
                        yield f"{kind.name}.{method.name} uses {node.id}"


def test_no_method_assigns_an_attribute() -> None:
    found = [
        (name, *assignments((Path(package.__path__[0]) / f"{name}.py").read_text()))
        for package, names in MODULES.items()
        for name in names
    ]
    assert [each for each in found if len(each) > 1] == []


@pytest.mark.parametrize(
    ("line", "violation"),
    [
        ("self.x = 1", "T.f assigns self.x"),
        ("other.x = 1", "T.f assigns other.x"),
        ("self.x += 1", "T.f assigns self.x"),
        ("self.x, y = 1, 2", "T.f assigns self.x"),
        ("del self.x", "T.f assigns self.x"),
        ("setattr(self, 'x', 1)", "T.f uses setattr"),
    ],
)
def test_planted_assignment_is_detected(line: str, violation: str) -> None:
    assert list(assignments(f"class T:\n    def f(self, other):\n        {line}")) == [violation]
