"""Where the code can be mutated, and how: the operators of Cosmic Ray, limited to plausible mistakes.

Sites are ranked by a hash of their code, so that a change elsewhere in the code base does not change the sample.
"""

from __future__ import annotations

import ast
import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Final

from cosmic_ray.ast import Visitor, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.operator import Operator
from cosmic_ray.plugins import get_operator, operator_names

__all__ = ["PACKAGES", "Module", "Mutant", "Site", "sampled", "sites_of"]

PACKAGES: Final[Mapping[str, Sequence[str]]] = {
    "formats": ["formats"],
    "lake": ["lake"],
    "planning": ["metastore/planning"],
    "commits": ["metastore/managed", "formats/iceberg/commits.py", "formats/iceberg/snapshots.py", "lake/commits.py"],
    "gc": ["metastore/gc"],
}
"""What is mutated. A file belongs to the last package that contains it."""

# Cosmic Ray can replace any operator by any other. Most of these mutants fail at once with a TypeError and show nothing.
_BINARY: Final = {
    "Add": "Sub",
    "Sub": "Add",
    "Mul": "FloorDiv",
    "Div": "Mul",
    "FloorDiv": "Mul",
    "Mod": "Add",
    "LShift": "RShift",
    "RShift": "LShift",
    "BitAnd": "BitOr",
    "BitOr": "BitAnd",
}
_COMPARISON: Final = {
    "Eq": "NotEq",
    "NotEq": "Eq",
    "Lt": "LtE",
    "LtE": "Lt",
    "Gt": "GtE",
    "GtE": "Gt",
    "Is": "IsNot",
    "IsNot": "Is",
    "In": "NotIn",
    "NotIn": "In",
}
_OTHERS: Final = {
    "AddNot",
    "ExceptionReplacer",
    "NumberReplacer",
    "RemoveDecorator",
    "ReplaceAndWithOr",
    "ReplaceBreakWithContinue",
    "ReplaceContinueWithBreak",
    "ReplaceFalseWithTrue",
    "ReplaceOrWithAnd",
    "ReplaceTrueWithFalse",
    "ReplaceUnaryOperator_Delete_Invert",
    "ReplaceUnaryOperator_Delete_Not",
    "ReplaceUnaryOperator_Delete_USub",
    "ZeroIterationForLoop",
}


class DeleteCall(Operator):  # type: ignore[misc]
    """Replace a statement that is only a call by `pass`. Cosmic Ray has no such operator."""

    def mutation_positions(self, node: Any) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
        is_statement = node.parent is not None and node.parent.type == "simple_stmt"
        if is_statement and node.type in ("power", "atom_expr") and node.children[-1].get_code().startswith("("):
            yield node.start_pos, node.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        from parso.python.tree import Name

        assert index == 0
        return Name("pass", node.start_pos, node.get_first_leaf().prefix)

    @classmethod
    def examples(cls) -> Sequence[Any]:
        return ()


def _operators() -> Iterator[tuple[str, Operator]]:
    yield "DeleteCall", DeleteCall()
    for name in operator_names():
        short = name.rpartition("/")[2]
        kind, _, pair = short.partition("_")
        before, _, after = pair.partition("_")
        swaps = {"ReplaceBinaryOperator": _BINARY, "ReplaceComparisonOperator": _COMPARISON}.get(kind, {})
        if swaps.get(before) == after or short in _OTHERS:
            yield short, get_operator(name)()


OPERATORS: Final = dict(_operators())


class Module:
    """A module: its text, and the statements of which it consists."""

    def __init__(self, path: str, text: str) -> None:
        self.path, self.text = path, text
        self.lines = text.splitlines()

    @cached_property
    def _tree(self) -> ast.Module:
        return ast.parse(self.text)

    def is_ignored(self, start: tuple[int, int], end: tuple[int, int]) -> bool:
        """Is the code between two positions part of an annotation, a block for type checkers, or a list of exports?"""
        return any(each[0] <= start and end <= each[1] for each in self._ignored_ranges)

    @cached_property
    def _ignored_ranges(self) -> list[tuple[tuple[int, int], tuple[int, int]]]:
        parts = [part for node in ast.walk(self._tree) for part in _without_effect(node)]
        return [
            ((part.lineno, part.col_offset), (part.end_lineno or part.lineno, part.end_col_offset or 0))
            for part in parts
        ]

    def statement(self, line: int) -> tuple[range, range]:
        """The lines of the innermost statement at `line`, and those that run only if it has had an effect.

        A compound statement consists of its head. A definition has an effect if its body runs.
        """
        here = [
            each
            for each in ast.walk(self._tree)
            if isinstance(each, ast.stmt) and _first_line(each) <= line <= (each.end_lineno or 0)
        ]
        found = max(here, key=lambda each: (_first_line(each), -(each.end_lineno or 0)))
        body = getattr(found, "body", None)
        last = body[0].lineno - 1 if body else found.end_lineno or line
        own = range(_first_line(found), max(last, found.lineno) + 1)
        is_definition = isinstance(found, ast.FunctionDef | ast.ClassDef)
        return own, range(found.body[0].lineno, (found.end_lineno or 0) + 1) if is_definition else own


def _first_line(node: ast.stmt) -> int:
    decorators = getattr(node, "decorator_list", [])
    return min([node.lineno, *(each.lineno for each in decorators)])


def _without_effect(node: ast.AST) -> Iterator[Any]:
    match node:
        case ast.arg(annotation=ast.expr() as annotation):
            yield annotation
        case ast.FunctionDef(returns=ast.expr() as returns):
            yield returns
        case ast.AnnAssign():
            yield node.annotation
            if isinstance(node.annotation, ast.Name) and node.annotation.id == "TypeAlias":
                yield node
        case ast.Assign(targets=[ast.Name("__all__")]):
            yield node
        case ast.If(test=ast.Name("TYPE_CHECKING")):
            yield node
        case ast.keyword(arg="frozen" | "repr" | "slots" | "strict"):  # they only guard against mistakes in the code
            yield node


@dataclass(frozen=True, slots=True)
class Mutant:
    """A module with one change. `path` is relative to the repository."""

    path: str
    line: int
    operator: str
    was: str
    now: str
    text: str

    @property
    def name(self) -> str:
        return f"{self.path}:{self.line} {self.operator}"


@dataclass(frozen=True, slots=True)
class Site:
    """A place in a module, and what can be changed there."""

    module: Module
    line: int
    operator: str
    occurrence: int
    rank: str

    def mutant(self) -> Mutant | None:
        """The module with the change; None if it is no valid Python, because Cosmic Ray's parser does not know `match`."""
        try:
            text = mutate_code(self.module.text, OPERATORS[self.operator], self.occurrence)
            compile(text or "", self.module.path, "exec", dont_inherit=True)
        except (SyntaxError, AttributeError):  # the latter for exceptions with a dotted name
            return None
        if text is None or ast.dump(ast.parse(text)) == ast.dump(ast.parse(self.module.text)):
            return None
        was, now = _difference(self.module.text, text)
        return Mutant(self.module.path, self.line, self.operator, was, now, text)


class _Positions(Visitor):  # type: ignore[misc]
    def __init__(self, operator: Operator) -> None:
        self._operator = operator
        self.found: list[tuple[tuple[int, int], tuple[int, int]]] = []

    def visit(self, node: Any) -> Any:
        self.found += self._operator.mutation_positions(node)
        return node


def sites_of(module: Module, *, seed: str) -> list[Site]:
    """The sites of a module, one per position and kind of operator."""
    found: dict[tuple[Any, str], list[tuple[str, int]]] = defaultdict(list)
    tree = get_ast(module.text)
    for name, operator in OPERATORS.items():
        positions = _Positions(operator)
        positions.walk(tree)
        for occurrence, (start, end) in enumerate(positions.found):
            if not module.is_ignored(start, end):
                found[start, name.partition("_")[0]].append((name, occurrence))
    sites, seen = [], Counter[tuple[str, str]]()
    for ((line, column), kind), variants in sorted(found.items()):
        text = module.lines[line - 1].strip()
        seen[text, kind] += 1
        rank = _digest(seed, module.path, text, kind, column, seen[text, kind])
        name, occurrence = variants[int(rank, 16) % len(variants)]
        sites.append(Site(module, line, name, occurrence, rank))
    return sites


def _digest(*parts: object) -> str:
    return hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()


def _difference(before: str, after: str) -> tuple[str, str]:
    """The lines that differ, without indentation."""
    old, new = before.splitlines(), after.splitlines()
    first = next(number for number, (one, two) in enumerate(zip(old, new, strict=False)) if one != two)
    last = next(number for number, (one, two) in enumerate(zip(old[::-1], new[::-1], strict=False)) if one != two)
    return tuple("\n".join(each.strip() for each in lines[first : len(lines) - last]) for lines in (old, new))  # type: ignore[return-value]


def sampled(root: Path, count: int, *, seed: str, only: str = "") -> dict[str, list[Mutant]]:
    """`count` mutants of the files whose path contains `only`: more of a larger package, but a few of each."""
    sites = {
        package: _ranked(root, [path for path in paths if only in path], seed)
        for package, paths in _files(root).items()
    }
    weights = {package: len(found) ** 0.5 for package, found in sites.items()}
    total = sum(weights.values()) or 1
    return {
        package: list(islice(_mutants(found), round(count * weights[package] / total)))
        for package, found in sites.items()
    }


def _mutants(sites: Iterable[Site]) -> Iterator[Mutant]:
    return (mutant for site in sites if (mutant := site.mutant()) is not None)


def _ranked(root: Path, paths: Iterable[str], seed: str) -> list[Site]:
    found = [site for path in paths for site in sites_of(Module(path, (root / path).read_text()), seed=seed)]
    return sorted(found, key=lambda each: each.rank)


def _files(root: Path) -> dict[str, list[str]]:
    owner: dict[str, str] = {}
    for package, places in PACKAGES.items():
        for place in places:
            here = root / "src" / "skiway" / place
            for path in sorted(here.rglob("*.py")) if here.is_dir() else [here]:
                owner[path.relative_to(root).as_posix()] = package
    return {package: [path for path, of in owner.items() if of == package] for package in PACKAGES}
