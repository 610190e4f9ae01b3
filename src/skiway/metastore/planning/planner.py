"""Scan planning: which files of a snapshot a scan must read."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from skiway.formats import ColumnUnits
from skiway.foundation.cache import Cache
from skiway.foundation.memory_budget import arrow_bytes
from skiway.metastore.queries.pins import PinnedSnapshot
from skiway.metastore.statistics.bounds import LogicalType, bound, logical_type
from skiway.model import v1

_DIGITS: Final = pa.decimal256(76, 38)


class Ordered:
    """An ordered type, and how its texts become values."""

    def __init__(self, kind: LogicalType) -> None:
        self._kind = kind

    def values(self, texts: pa.Array) -> pa.Array:
        """The values of canonical texts."""
        return _READERS[self._kind.name](texts)

    def literals(self, texts: Sequence[str]) -> list[pa.Scalar] | None:
        """The values of a predicate's texts; None if one is not a valid value of this type, or NaN."""
        try:
            # Without the column's precision: a finer literal must not be moved to where the column has a value.
            found = [bound(LogicalType(self._kind.name), text) for text in texts]
        except (ValueError, OverflowError):
            return None
        if any(each.value is None for each in found):
            return None
        values = self.values(pa.array([each.text for each in found], pa.string()))
        return None if values.null_count else list(values)

    def variants(self, values: list[pa.Scalar]) -> list[list[pa.Scalar]]:
        """All values that an engine may compare the column with for these literals.

        Some engines compare a FLOAT column with the nearest floats, others with the numbers as they are written.
        """
        if self._kind.name != "FLOAT":
            return [values]
        return [values, [value.cast(pa.float32(), safe=False).cast(pa.float64()) for value in values]]


def ordered(text: str) -> Ordered | None:
    """The type with this name; None if its values have no order."""
    try:
        kind = logical_type(text)
    except ValueError:
        return None
    return Ordered(kind) if kind.ordered else None


def _cast(of: pa.DataType) -> Callable[[pa.Array], pa.Array]:
    """Convert all texts at once or, if one is invalid, one by one."""

    def read(texts: pa.Array) -> pa.Array:
        try:
            return texts.cast(of)
        except pa.ArrowInvalid:
            return pa.concat_arrays([_one(texts[place : place + 1], of) for place in range(len(texts))])

    return read


def _one(text: pa.Array, of: pa.DataType) -> pa.Array:
    try:
        return text.cast(of)
    except pa.ArrowInvalid:
        return pa.nulls(1, of)


def _floats(texts: pa.Array) -> pa.Array:
    values = _cast(pa.float64())(pc.replace_substring(texts, "Infinity", "inf"))
    return pc.if_else(pc.fill_null(pc.is_nan(values), False), pa.scalar(None, pa.float64()), values)


def _bytes(texts: pa.Array) -> pa.Array:
    found = texts.to_pylist()
    for place, text in enumerate(found):
        try:
            found[place] = None if text is None else base64.b64decode(text, validate=True)
        except binascii.Error:
            found[place] = None
    return pa.array(found, pa.binary())


_READERS: Final[dict[str, Callable[[pa.Array], pa.Array]]] = {
    "BOOLEAN": lambda texts: _cast(pa.bool_())(texts).cast(pa.int8()),  # which have an order
    "INT": _cast(pa.decimal128(38, 0)),
    "FLOAT": _floats,
    "DOUBLE": _floats,
    "DECIMAL": _cast(_DIGITS),
    "DATE": _cast(pa.date32()),
    "TIME": lambda texts: _cast(pa.timestamp("us"))(pc.binary_join_element_wise("1970-01-01T", texts, "")),
    "TIMESTAMP": _cast(pa.timestamp("us")),
    "TIMESTAMPTZ": _cast(pa.timestamp("us", tz="UTC")),
    "STRING": lambda texts: texts,
    "UUID": lambda texts: texts,  # lower-case hexadecimal sorts as the bytes do
    "BINARY": _bytes,
}


@dataclass(frozen=True, slots=True)
class ColumnFacts:
    """The statistics of one column in every file. Without a type, there are no bounds."""

    type: Ordered | None
    units: ColumnUnits


class FileFacts:
    """All files of a snapshot with their statistics by column. A column is prepared when it is first used."""

    def __init__(
        self,
        files: pa.Table,
        spec: v1.PartitionSpecInfo | None = None,
        names: Mapping[int, str | None] | None = None,
    ) -> None:
        """`names` has the present names of columns by id, and None for dropped ones; other columns have those of the statistics."""
        self.files = files.combine_chunks()
        self._names = names or {}
        self._spec = spec or v1.PartitionSpecInfo()
        self._columns: dict[int, ColumnFacts] = {}

    @property
    def nbytes(self) -> int:
        """An estimate of the memory it takes."""
        return 2 * arrow_bytes(self.files)

    @cached_property
    def is_data(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Which files contain rows rather than deletes."""
        return np.asarray(pc.equal(self.files["file_content"], v1.FC_DATA))

    @cached_property
    def sizes(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The size of each file."""
        return np.asarray(pc.fill_null(self.files["size_bytes"], 0))

    @cached_property
    def value_counts(self) -> pa.Array:
        """The number of rows of each file; NULL if it is unknown, which may be recorded as 0."""
        rows = self.files["row_count"].combine_chunks()
        return pc.if_else(pc.greater(rows, 0), rows, pa.scalar(None, rows.type))

    def column(self, name: str) -> ColumnFacts | None:
        """The statistics of a column; None if there are none, or if the name is ambiguous."""
        ids = self._ids.get(name) or self._folded.get(name.casefold(), set())
        if len(ids) != 1:
            return None
        (number,) = ids
        if number not in self._columns:
            self._columns[number] = self._facts(number)
        return self._columns[number]

    # --- preparation --------------------------------------------------------------------------------------------------

    @cached_property
    def _flat(self) -> tuple[pa.StructArray, np.ndarray[Any, np.dtype[np.int64]]]:
        """The statistics of all columns in all files, and the index of the file of each."""
        lists = self.files["columns"].combine_chunks() if self.files.num_rows else self.files["columns"].chunk(0)
        return lists.flatten(), np.asarray(pc.list_parent_indices(lists))

    @cached_property
    def _ids(self) -> dict[str, set[int]]:
        values, _ = self._flat
        pairs = pa.table({"name": values.field("column_name"), "id": values.field("column_id")})
        found: dict[str, set[int]] = {}
        for row in pairs.group_by(["name", "id"]).aggregate([]).to_pylist():
            name = self._names.get(row["id"], row["name"])
            if name is not None:
                found.setdefault(name, set()).add(row["id"])
        return found

    @cached_property
    def _folded(self) -> dict[str, set[int]]:
        found: dict[str, set[int]] = {}
        for name, ids in self._ids.items():
            found.setdefault(name.casefold(), set()).update(ids)
        return found

    def _facts(self, number: int) -> ColumnFacts:
        values, parents = self._flat
        places = np.flatnonzero(np.asarray(pc.equal(values.field("column_id"), number)))
        index = np.full(self.files.num_rows, -1, dtype=np.int64)
        index[parents[places]] = places
        own = values.take(pa.array(index, mask=index < 0))
        types = [each for each in pc.unique(own.field("logical_type")).to_pylist() if each is not None]
        of = ordered(types[0]) if len(types) == 1 else None
        low = high = pa.nulls(len(own))
        if of is not None:
            low, high = (of.values(own.field(name)) for name in ("min", "max"))
            stored = [name for name in pc.unique(own.field("column_name")).to_pylist() if name is not None]
            texts = self._partition(stored[0])
            if texts is not None:  # the column has one value in each file, which replaces missing bounds
                low, high = (pc.coalesce(bounds, of.values(texts)) for bounds in (low, high))
        parts = {
            "value_count": self.value_counts,
            "null_count": own.field("null_count"),
            "nan_count": own.field("nan_count"),
            "min": low,
            "max": high,
        }
        stats = pa.StructArray.from_arrays(list(parts.values()), names=list(parts))
        return ColumnFacts(of, ColumnUnits(stats))

    def _partition(self, name: str) -> pa.Array | None:
        """The values of a column with an identity partition, whose field has the column's name."""
        fields = {field.name for field in self._spec.fields if field.transform == "identity"}
        if name not in fields:
            return None
        specs = self.files["partition_spec_id"].to_pylist()
        texts = [
            _value(text, name) if spec == self._spec.spec_id else None
            for text, spec in zip(self.files["partition_data_json"].to_pylist(), specs, strict=True)
        ]
        return pa.array(texts, pa.string())


def _value(text: str | None, name: str) -> str | None:
    try:
        found = json.loads(text or "{}").get(name)
    except (ValueError, AttributeError):
        return None
    return found if isinstance(found, str) else None


TASK_BYTES: Final = 128 * 1024 * 1024
MOST_TASKS: Final = 10_000
CACHE_BYTES: Final = 256 * 1024 * 1024

Mask: TypeAlias = np.ndarray[Any, np.dtype[np.bool_]]
Numbers: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class Pruned:
    """The effect of a predicate: how many more data files it removed, or why it could not be used."""

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
            return np.asarray(column.units.has_nulls), ""
        case v1.PO_IS_NOT_NULL:
            return np.asarray(column.units.has_values), ""
    if column.type is None:
        return None, "the column's type has no order"
    if predicate.op not in _TESTS:
        return None, "unknown operator"
    literals = column.type.literals(predicate.values)
    if not literals or len(literals) != _ARITY.get(predicate.op, len(literals)):
        return None, "its values cannot be compared with the column"
    variants = [pa.array(values, values[0].type) for values in column.type.variants(literals)]
    tested = [_TESTS[predicate.op](column.units, values) for values in variants]
    return np.logical_or.reduce([np.asarray(mask) for mask in tested]), ""


def _comparison(op: str) -> Callable[[ColumnUnits, pa.Array], pa.Array]:
    return lambda units, values: units.compared(op, values[0])


_COMPARISONS: Final = {v1.PO_NEQ: "<>", v1.PO_LT: "<", v1.PO_LTE: "<=", v1.PO_GT: ">", v1.PO_GTE: ">="}
_TESTS: Final[dict[int, Callable[[ColumnUnits, pa.Array], pa.Array]]] = {
    v1.PO_EQ: ColumnUnits.among,
    v1.PO_IN: ColumnUnits.among,
    v1.PO_BETWEEN: ColumnUnits.spanned,
    **{op: _comparison(sql) for op, sql in _COMPARISONS.items()},
}
_ARITY: Final[dict[int, int]] = {v1.PO_EQ: 1, v1.PO_BETWEEN: 2, **dict.fromkeys(_COMPARISONS, 1)}


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
