"""Exact facts for rules, from rows that this process reads: for merges of branches, which cannot wait for a job on Spark."""

from __future__ import annotations

import base64
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from skiway.formats import Snapshot, TableHandle
from skiway.metastore.quality.facts import column_types, type_of
from skiway.metastore.quality.verdicts import ColumnFacts, Interval, KeyFacts, TableFacts
from skiway.metastore.records.realm import columns_of
from skiway.metastore.statistics.bounds import Bound, LogicalType, bound
from skiway.model import v1

MOST_ROWS: Final = 20_000_000
"""How many rows a table may have for rules that compare its values with each other, which are all in memory."""
TOO_MANY: Final = (
    f"the rule compares the values of all rows, and merges do that only for tables of up to {MOST_ROWS} rows"
)
_COMPARING: Final = ("distinct_count", "quantile", "allowed_values", "unique")


@dataclass(slots=True)
class _Column:
    """What is known about the values of a column after the rows that were read. `kept` has the values, if they are compared."""

    kind: LogicalType
    nulls: int = 0
    least: Any = None
    most: Any = None
    kept: list[pa.Array] | None = None
    figures: dict[str, Any] = field(default_factory=dict)

    def add(self, values: pa.Array) -> None:
        values = _plain(values)
        self.nulls += values.null_count
        if self.kept is not None:
            self.kept.append(values)
        ends = pc.min_max(_ordered(values))
        if ends["min"].is_valid:
            low, high = (self.bound(ends[name].as_py()).value for name in ("min", "max"))
            self.least = low if self.least is None else min(self.least, low)
            self.most = high if self.most is None else max(self.most, high)

    def bound(self, value: Any) -> Bound:
        """A value in the form in which rules compare it."""
        match value:
            case bytes() if self.kind.name == "UUID":
                text = str(uuid.UUID(bytes=value))
            case bytes():
                text = base64.b64encode(value).decode()
            case bool():
                text = str(value).lower()
            case _:
                text = value.isoformat() if hasattr(value, "isoformat") else str(value)
        return bound(self.kind, text)

    def facts(self, rows: int) -> ColumnFacts:
        share = self.nulls / rows if rows else 0.0
        known: dict[str, Any] = {"null_share": Interval(share, share), **self.figures}
        if self.least is not None:
            known |= {"least": Interval(self.least, self.least), "most": Interval(self.most, self.most)}
        elif self.nulls == rows:
            known["distinct"] = Interval(0, 0)
        return ColumnFacts(self.kind, **known)


def measured(handle: TableHandle, snapshot: Snapshot, table: v1.Table, checks: Sequence[v1.RuleCheck]) -> TableFacts:
    """Exact facts for these rules, from the rows of the current snapshot. Only the columns of the rules are read."""
    types = column_types(table.schema_json)
    kinds = {name: type_of(types[name]) for check in checks for name in columns_of(check) if name in types}
    columns = {name: _Column(kind) for name, kind in kinds.items() if kind is not None}
    for check in checks:
        if check.WhichOneof("check") in _COMPARING:
            for name in columns_of(check):
                if name in columns:
                    columns[name].kept = []
    whole, rows = handle.schema.arrow, 0
    for batch in handle.read(snapshot, columns=list(columns) or whole.names[:1], schema=whole):
        rows += batch.num_rows
        for name, column in columns.items():
            if rows > MOST_ROWS:
                column.kept = None
            column.add(batch.column(name))
    keys: dict[tuple[str, ...], KeyFacts] = {}
    for check in checks:
        names = columns_of(check)
        if names and all(name in columns and columns[name].kept is not None for name in names):
            _compare(check, [columns[name] for name in names], keys)
    found = {name: column.facts(rows) for name, column in columns.items()}
    unmeasured = TOO_MANY if rows > MOST_ROWS else ""
    return TableFacts(
        types, rows=Interval(rows, rows), columns=found, keys=keys, method=v1.RMT_EXACT, unmeasured=unmeasured
    )


def _compare(check: v1.RuleCheck, columns: Sequence[_Column], keys: dict[tuple[str, ...], KeyFacts]) -> None:
    """Add the figures for which all values are compared."""
    arrays = [pa.chunked_array(column.kept or [pa.nulls(0)]) for column in columns]
    values, figures = arrays[0].drop_null(), columns[0].figures
    match check.WhichOneof("check"):
        case "distinct_count":
            number = len(pc.unique(values))
            figures["distinct"] = Interval(number, number)
        case "quantile":
            numbers = _ordered(values.combine_chunks())
            if len(numbers):
                rank = check.quantile.quantile
                place = max(ceil(rank * len(numbers)), 1) - 1
                at = pc.partition_nth_indices(numbers, pivot=place)[place].as_py()
                value = columns[0].bound(numbers[at].as_py()).value
                figures["quantiles"] = {**figures.get("quantiles", {}), rank: value}
        case "allowed_values":
            most = len(check.allowed_values.values) + 1
            some = pc.unique(values).slice(0, most).to_pylist()
            figures |= {"values": [columns[0].bound(each).text for each in some], "is_complete": len(some) < most}
        case "unique":
            names = [str(number) for number in range(len(arrays))]
            whole = pa.table(arrays, names=names)
            complete = whole.drop_null()
            counts = complete.group_by(names).aggregate([([], "count_all")])["count_all"]
            repeated = pc.sum(pc.greater(counts, 1), min_count=0).as_py()
            keys[columns_of(check)] = KeyFacts(repeated, whole.num_rows - complete.num_rows)


def _plain(values: pa.Array) -> pa.Array:
    """The values in a type that can be compared, with times in microseconds."""
    if isinstance(values, pa.ExtensionArray):
        values = values.storage
    if isinstance(values, pa.DictionaryArray):
        values = values.dictionary_decode()
    if pa.types.is_timestamp(values.type) and values.type.unit == "ns":
        return values.cast(pa.timestamp("us", values.type.tz), safe=False)
    return values


def _ordered(values: pa.Array) -> pa.Array:
    """The values that have an order: all but NULL and NaN."""
    values = values.drop_null()
    return values.filter(pc.invert(pc.is_nan(values))) if pa.types.is_floating(values.type) else values
