"""Which files of a snapshot a scan must read.

A file is left out only if its statistics prove that no row of it fulfils all predicates: what is unknown, what has no
order and what cannot be understood proves nothing. All files are looked at together, column by column.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from cachetools import LRUCache

from skiway.metastore.planning.files import ColumnFacts, FileFacts
from skiway.metastore.queries.pins import PinnedSnapshot
from skiway.model import v1
from skiway.telemetry.metrics import CacheStatistics

__all__ = ["Plan", "Planner", "Pruned", "plan"]

TASK_BYTES: Final = 128 * 1024 * 1024
MOST_TASKS: Final = 10_000
MOST_VALUES: Final = 64
CACHE_BYTES: Final = 256 * 1024 * 1024

Mask: TypeAlias = np.ndarray[Any, np.dtype[np.bool_]]
Numbers: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class Pruned:
    """What a predicate did: how many data files it removed of those left by the ones before, or why it could not."""

    predicate: v1.Predicate
    removed: int
    unused_because: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """The files to read, as places in `facts.files`, each with the task that reads it; and the deletes to apply."""

    facts: FileFacts
    data: Numbers
    deletes: Numbers
    tasks: Numbers
    pruned: tuple[Pruned, ...]

    @property
    def bytes(self) -> int:
        """How many bytes of data files there are to read."""
        return int(self.facts.sizes[self.data].sum())


def plan(facts: FileFacts, predicates: Sequence[v1.Predicate] = (), *, tasks: int = 0) -> Plan:
    """The files that may hold rows which fulfil all predicates, divided into tasks of about equal size."""
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
    """Plans for pinned snapshots. What was made ready for one is kept, up to `max_bytes`: its files never change."""

    def __init__(self, max_bytes: int = CACHE_BYTES) -> None:
        self._kept: LRUCache[str, FileFacts] = LRUCache(max_bytes, getsizeof=lambda facts: facts.nbytes)
        self._lock = Lock()
        self._hits = self._misses = 0

    def statistics(self) -> CacheStatistics:
        """The current size of the cache of file lists, its limit, and how often it had what was planned."""
        with self._lock:
            return CacheStatistics(
                entries=len(self._kept),
                size_bytes=int(self._kept.currsize),
                hits=self._hits,
                misses=self._misses,
                max_bytes=int(self._kept.maxsize),
            )

    def plan(self, pinned: PinnedSnapshot, predicates: Sequence[v1.Predicate] = (), *, tasks: int = 0) -> Plan:
        """The plan for a table as a query reads it."""
        return plan(self.facts(pinned), predicates, tasks=tasks)

    def facts(self, pinned: PinnedSnapshot) -> FileFacts:
        """The files of a pinned snapshot."""
        key = f"{pinned.of.file_stats_uri} {pinned.of.snapshot_uri}"
        with self._lock:
            kept: FileFacts | None = self._kept.get(key)
            if kept is None:
                self._misses += 1
            else:
                self._hits += 1
        if kept is None:
            kept = FileFacts(pinned.files(), pinned.snapshot().partition_spec)
            with self._lock:
                if kept.nbytes <= self._kept.maxsize:
                    self._kept[key] = kept
        return kept


# --- what predicates prove --------------------------------------------------------------------------------------------


def _possible(facts: FileFacts, predicate: v1.Predicate) -> tuple[Mask, str] | tuple[None, str]:
    """In which files a row may fulfil the predicate; or why nobody can tell."""
    column = facts.column(predicate.column)
    if column is None:
        return None, "no statistics of a column of this name"
    match predicate.op:
        case v1.PO_IS_NULL:
            return _mask(pc.not_equal(column.null_count, 0)), ""
        case v1.PO_IS_NOT_NULL:
            return _has_values(facts, column), ""
    if column.type is None or column.min is None or column.max is None:
        return None, "the column's type has no order"
    if predicate.op not in _TESTS:
        return None, "unknown operator"
    literals = column.type.literals(predicate.values)
    if not literals or len(literals) not in _ARITY.get(predicate.op, (len(literals),)):
        return None, "its values cannot be compared with the column"
    return _TESTS[predicate.op](column, literals) & _has_values(facts, column), ""


def _has_values(facts: FileFacts, column: ColumnFacts) -> Mask:
    """Files that may hold something else than NULL in the column."""
    only_nulls = pc.and_(pc.greater(facts.row_counts, 0), pc.greater_equal(column.null_count, facts.row_counts))
    return ~np.asarray(pc.fill_null(only_nulls, False))


def _mask(said: pa.Array) -> Mask:
    """What is said; true where it is not known."""
    return np.asarray(pc.fill_null(said, True))


def _equal(column: ColumnFacts, literals: Sequence[pa.Scalar]) -> Mask:
    """Where one of the values lies between the bounds; of very many, only the least and the greatest are looked at."""
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
    """Where the test holds for one of the values, or for what an engine may take it for."""
    assert column.type is not None
    tested = [test(each) for value in literals for each in column.type.around(value)]
    possible: Mask = np.logical_or.reduce(tested)
    return possible


def _has_nan(column: ColumnFacts) -> Mask:
    """Files that may hold NaN, which engines take for greater than all numbers and no bound tells of."""
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


# --- who reads what ---------------------------------------------------------------------------------------------------


def _tasks(sizes: Numbers, wanted: int) -> Numbers:
    """The task of each file: neighbours stay together, and no task is larger than an equal share and one file."""
    total = int(sizes.sum())
    count = wanted if wanted > 0 else -(-total // TASK_BYTES)
    count = max(1, min(count, len(sizes), MOST_TASKS))
    if total == 0:
        return np.arange(len(sizes), dtype=np.int64) * count // max(1, len(sizes))
    middles = np.cumsum(sizes) - sizes / 2
    return np.minimum((middles * count / total).astype(np.int64), count - 1)
