"""Scan planning: which files of a snapshot a scan must read.

A file is left out only if its statistics prove that none of its rows satisfies all predicates. Unknown statistics,
types without an order and invalid values prove nothing. All files are processed together, column by column.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from skiway.cache import Cache
from skiway.metastore.planning.files import ColumnFacts, FileFacts
from skiway.metastore.queries.pins import PinnedSnapshot
from skiway.model import v1

__all__ = ["Plan", "Planner", "Pruned", "plan"]

TASK_BYTES: Final = 128 * 1024 * 1024
MOST_TASKS: Final = 10_000
MOST_VALUES: Final = 64
CACHE_BYTES: Final = 256 * 1024 * 1024

Mask: TypeAlias = np.ndarray[Any, np.dtype[np.bool_]]
Numbers: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class Pruned:
    """The effect of a predicate: the data files that it removed of those that were left, or why it could not be used."""

    predicate: v1.Predicate
    removed: int
    unused_because: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """The data files to read, as indexes in `facts.files`, each with its task; and the delete files to apply."""

    facts: FileFacts
    data: Numbers
    deletes: Numbers
    tasks: Numbers
    pruned: tuple[Pruned, ...]

    @property
    def bytes(self) -> int:
        """The total size of the data files to read."""
        return int(self.facts.sizes[self.data].sum())


def plan(facts: FileFacts, predicates: Sequence[v1.Predicate] = (), *, tasks: int = 0) -> Plan:
    """The files that may contain rows that satisfy all predicates, divided into tasks of about equal size."""
    kept = np.ones(facts.files.num_rows, dtype=bool)
    report = []
    for predicate in predicates:
        possible, why = _possible(facts, predicate)
        removed = int((kept & ~possible & facts.is_data).sum()) if possible is not None else 0
        report.append(Pruned(predicate, removed, why))
        kept = kept if possible is None else kept & possible
    data, deletes = np.flatnonzero(kept & facts.is_data), np.flatnonzero(kept & ~facts.is_data)
    return Plan(facts, data, deletes, _tasks(facts.sizes[data], tasks), tuple(report))


class Planner:
    """Plans scans of pinned snapshots.

    Prepared snapshots are cached up to `max_bytes`, because their files never change.
    """

    def __init__(self, max_bytes: int = CACHE_BYTES) -> None:
        self._cache = Cache[str, FileFacts](max_bytes, weigh=lambda facts: facts.nbytes)
        self.cache_stats = self._cache.stats

    def plan(self, pinned: PinnedSnapshot, predicates: Sequence[v1.Predicate] = (), *, tasks: int = 0) -> Plan:
        """The plan for a table as a query reads it."""
        return plan(self.facts(pinned), predicates, tasks=tasks)

    def facts(self, pinned: PinnedSnapshot) -> FileFacts:
        """The files of a pinned snapshot."""
        of = pinned.of
        key = f"{of.file_stats_uri} {of.snapshot_uri} {of.table_uri if of.is_current else ''}"
        return self._cache.get(
            key, lambda: FileFacts(pinned.files(), pinned.snapshot().partition_spec, pinned.column_names())
        )


# --- predicates -------------------------------------------------------------------------------------------------------


def _possible(facts: FileFacts, predicate: v1.Predicate) -> tuple[Mask, str] | tuple[None, str]:
    """The files in which a row may satisfy the predicate; or None and the reason why that is unknown."""
    column = facts.column(predicate.column)
    if column is None:
        return None, "no statistics for a column with this name"
    match predicate.op:
        case v1.PO_IS_NULL:
            return _mask(pc.not_equal(column.null_count, 0)), ""
        case v1.PO_IS_NOT_NULL:
            return _has_values(facts, column), ""
    if column.type is None:
        return None, "the column's type has no order"
    if predicate.op not in _TESTS:
        return None, "unknown operator"
    literals = column.type.literals(predicate.values)
    if not literals or len(literals) not in _ARITY.get(predicate.op, (len(literals),)):
        return None, "its values cannot be compared with the column"
    return _TESTS[predicate.op](column, literals) & _has_values(facts, column), ""


def _has_values(facts: FileFacts, column: ColumnFacts) -> Mask:
    """Files that may contain values other than NULL in the column."""
    only_nulls = pc.and_(pc.greater(facts.row_counts, 0), pc.greater_equal(column.null_count, facts.row_counts))
    return ~np.asarray(pc.fill_null(only_nulls, False))


def _mask(results: pa.Array) -> Mask:
    """The results as a mask, true where unknown."""
    return np.asarray(pc.fill_null(results, True))


def _equal(column: ColumnFacts, literals: Sequence[pa.Scalar]) -> Mask:
    """Files in which one of the values is within the bounds.

    Of very many values only the minimum and maximum are compared.
    """
    if len(literals) > MOST_VALUES:
        return _between(column, literals)
    return _any(column, literals, lambda value: _at_least(column, value) & _at_most(column, value))


def _at_least(column: ColumnFacts, value: pa.Scalar) -> Mask:
    return _mask(pc.greater_equal(column.max, value))


def _at_most(column: ColumnFacts, value: pa.Scalar) -> Mask:
    return _mask(pc.less_equal(column.min, value))


def _less(column: ColumnFacts, literals: Sequence[pa.Scalar]) -> Mask:
    return _any(column, literals, lambda value: _mask(pc.less(column.min, value)))


def _less_equal(column: ColumnFacts, literals: Sequence[pa.Scalar]) -> Mask:
    return _any(column, literals, lambda value: _at_most(column, value))


def _greater(column: ColumnFacts, literals: Sequence[pa.Scalar]) -> Mask:
    return _any(column, literals, lambda value: _mask(pc.greater(column.max, value))) | _has_nan(column)


def _greater_equal(column: ColumnFacts, literals: Sequence[pa.Scalar]) -> Mask:
    return _any(column, literals, lambda value: _at_least(column, value)) | _has_nan(column)


def _between(column: ColumnFacts, literals: Sequence[pa.Scalar]) -> Mask:
    ends = pc.min_max(pa.array(literals, literals[0].type))  # whichever comes first
    above = _any(column, [ends["min"]], lambda value: _at_least(column, value))
    return above & _any(column, [ends["max"]], lambda value: _at_most(column, value))


def _not_equal(column: ColumnFacts, literals: Sequence[pa.Scalar]) -> Mask:
    def differs(value: pa.Scalar) -> Mask:
        return _mask(pc.or_(pc.not_equal(column.min, value), pc.not_equal(column.max, value)))

    return _any(column, literals, differs) | _has_nan(column)


def _any(column: ColumnFacts, literals: Sequence[pa.Scalar], test: Callable[[pa.Scalar], Mask]) -> Mask:
    """Files for which the test holds for one of the values, or for one that an engine may compare instead."""
    assert column.type is not None
    tested = [test(each) for value in literals for each in column.type.around(value)]
    possible: Mask = np.logical_or.reduce(tested)
    return possible


def _has_nan(column: ColumnFacts) -> Mask:
    """Files that may contain NaN, which engines treat as greater than all numbers and which bounds do not cover."""
    assert column.type is not None
    if not column.type.has_nan:
        return np.zeros(len(column.null_count), dtype=bool)
    return _mask(pc.not_equal(column.nan_count, 0))


_TESTS: Final[dict[int, Callable[[ColumnFacts, Sequence[pa.Scalar]], Mask]]] = {
    v1.PO_EQ: _equal,
    v1.PO_IN: _equal,
    v1.PO_NEQ: _not_equal,
    v1.PO_LT: _less,
    v1.PO_LTE: _less_equal,
    v1.PO_GT: _greater,
    v1.PO_GTE: _greater_equal,
    v1.PO_BETWEEN: _between,
}
_ONE: Final = (1,)
_ARITY: Final[dict[int, tuple[int, ...]]] = {
    **dict.fromkeys((v1.PO_EQ, v1.PO_NEQ, v1.PO_LT, v1.PO_LTE, v1.PO_GT, v1.PO_GTE), _ONE),
    v1.PO_BETWEEN: (2,),
}


# --- tasks ------------------------------------------------------------------------------------------------------------


def _tasks(sizes: Numbers, wanted: int) -> Numbers:
    """The task of each file.

    Neighbouring files stay together, and no task exceeds an equal share by more than one file.
    """
    total = int(sizes.sum())
    count = wanted if wanted > 0 else -(-total // TASK_BYTES)
    count = max(1, min(count, len(sizes), MOST_TASKS))
    if total == 0:
        return np.arange(len(sizes), dtype=np.int64) * count // max(1, len(sizes))
    middles = np.cumsum(sizes) - sizes / 2
    return np.minimum((middles * count / total).astype(np.int64), count - 1)
