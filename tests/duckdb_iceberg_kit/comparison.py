"""Compares results with those of a test file, as DuckDB's own runner does."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from itertools import chain
from typing import Final

__all__ = ["is_message", "mismatch", "shown"]

_INTEGERS: Final = frozenset(
    f"{sign}{size}" for sign in ("", "U") for size in ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT")
)
_PATTERN: Final = re.compile(r"<(!?)REGEX>:(.*)", re.DOTALL)


def shown(value: str | None, type_: str) -> str:
    """A value, of which DuckDB's cast to VARCHAR is given, as test files write it."""
    if value is None:
        return "NULL"
    if type_ == "BOOLEAN":
        return {"true": "1", "false": "0"}[value]
    return value.replace("\0", "\\0") or "(empty)"


def is_message(message: str, expected: str) -> bool:
    """Whether an error message matches a text or a pattern."""
    if pattern := _PATTERN.fullmatch(expected):
        return bool(re.fullmatch(pattern[2], message, re.DOTALL)) is not bool(pattern[1])
    return expected in message


def mismatch(rows: list[list[str]], types: Sequence[str], expected: Sequence[str], sort: str) -> str:
    """How the rows differ from the expected lines; an empty text if they do not."""
    width = len(types)
    by_row = width > 1 and (len(expected) == len(rows) or any("\t" in line for line in expected))
    wanted = [line.split("\t") for line in expected] if by_row else _in_rows(expected, width)
    if any(len(row) != width for row in wanted):
        return f"the file expects {expected}, which are not rows of {width} columns; the result is {rows}"
    if sort == "valuesort":
        rows, wanted = [sorted(chain.from_iterable(rows))], [sorted(chain.from_iterable(wanted))]
        types = ["VARCHAR"] * len(rows[0])
    elif sort == "rowsort":
        rows, wanted = sorted(rows), sorted(wanted)
    if len(rows) != len(wanted):
        return f"the file expects {len(wanted)} rows, the result has {len(rows)}: {rows[:20]}"
    for number, (row, values) in enumerate(zip(rows, wanted, strict=True), 1):
        for value, expected_value, type_ in zip(row, values, types, strict=True):
            if not _is_same(value, expected_value, type_):
                return f"row {number}: the file expects {expected_value!r}, the result has {value!r} ({type_})"
    return ""


def _in_rows(values: Sequence[str], width: int) -> list[list[str]]:
    return [list(values[at : at + width]) for at in range(0, len(values), width)]


def _is_same(value: str, expected: str, type_: str) -> bool:
    if value == expected or (_PATTERN.fullmatch(expected) and is_message(value, expected)):
        return True
    if type_ == "BOOLEAN":
        return value == {"true": "1", "false": "0"}.get(expected.lower(), expected)
    try:
        if type_ in _INTEGERS or type_.startswith("DECIMAL"):
            return Decimal(value) == Decimal(expected)
        if type_ in ("FLOAT", "DOUBLE"):
            return _is_close(float(value), float(expected))
    except (ValueError, InvalidOperation):
        return False
    return False


def _is_close(number: float, expected: float) -> bool:
    """Whether numbers differ by at most one percent."""
    return (math.isnan(number) and math.isnan(expected)) or math.isclose(number, expected, rel_tol=0.01, abs_tol=1e-8)
