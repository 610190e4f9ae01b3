"""The columns of a table, as they are stored and as they are announced to clients, and their statistics.

Clients match columns by name, case-insensitively, and have a hidden column `rowid`. Tables match columns by field id.
So announced names may differ: of two names that are equal to clients, the second gets a number as a suffix.

The client that created a table knows its columns in the types it asked for, some of which Iceberg does not have: its
SMALLINT is stored as an integer. Its rows are converted on the way in and out. Others, and the same client after the
next ATTACH, know the stored types.

DuckDB's optimizer relies on statistics: bounds may be wider than the data, never narrower. They come from the profile of the
snapshot or, for columns that were not profiled, are merged from the statistics of the table's files. DuckDB asks for one column
after the other, so those of all columns of a snapshot are computed at once, and cached.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa

from skiway.airport import ColumnStatistics
from skiway.airport.conversion import to_column
from skiway.airport.server.tickets import table_changed
from skiway.airport.wire.duckdb_sql import castable_type, duckdb_type
from skiway.errors import InvalidArgument, Unsupported
from skiway.formats import Snapshot, TableHandle, data_files
from skiway.formats.extension_types import EXTENSION
from skiway.formats.readers.conform import converter
from skiway.formats.schemas import field_id, with_id
from skiway.formats.statistics import bound_type, merged_units
from skiway.foundation.cache import Cache
from skiway.metastore import Realm, statistics
from skiway.metastore.statistics.bounds import bound, logical_type
from skiway.model import v1

if TYPE_CHECKING:
    from pyiceberg.schema import Schema

ROWID: Final = "rowid"
_ROWID_FIELD: Final = pa.field(ROWID, pa.int64(), metadata={"is_rowid": "1"})
_NO_COLUMNS: Final = pa.schema([])


@dataclass(frozen=True)
class Columns:
    """The columns of a table in one of its schemas. `stored` has field ids; its names are those that clients know.

    `wanted` has the columns, by id, whose types the client that created the table knows instead of the stored ones.
    """

    id: str
    stored: pa.Schema
    wanted: pa.Schema = _NO_COLUMNS

    @cached_property
    def announced(self) -> pa.Schema:
        """The columns as they are announced to clients: comments instead of ids, geometries marked, the row id last."""
        types = {field_id(field): field for field in self.wanted}
        fields = [_announced(field, types.get(field_id(field))) for field in self.stored]
        return pa.schema([*fields, _ROWID_FIELD])

    def created_as(self, given: pa.Schema) -> Columns:
        """The columns for a client that created the table with the columns `given`."""
        pairs = zip(self.stored, given, strict=True)
        wanted = [with_id(asked, field_id(stored)) for stored, asked in pairs if _is_another_type(asked, stored)]
        return replace(self, wanted=pa.schema(wanted))

    def shown(self, rows: pa.RecordBatch, *, table: str) -> pa.RecordBatch:
        """Rows of stored columns in the types that the client knows. Raise if these cannot represent a value."""
        if not self._converted or not rows.num_columns:
            return rows
        places = {name: place for place, name in enumerate(rows.schema.names)}
        fields, columns = list(rows.schema), rows.columns
        for field in self._converted:
            place = places.get(field.name)
            if place is None:
                continue
            try:
                fields[place], columns[place] = field, to_column(columns[place], field)
            except InvalidArgument:
                raise table_changed(table, f"column {field.name!r} has values that its type cannot represent") from None
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))

    @cached_property
    def _converted(self) -> list[pa.Field]:
        """The announced columns that have another type than the stored ones."""
        numbers = {field_id(field) for field in self.wanted}
        return [
            shown for stored, shown in zip(self.stored, self.announced, strict=False) if field_id(stored) in numbers
        ]

    def readable(self, now: pa.Schema, *, table: str) -> pa.Schema:
        """The columns that the table, whose columns are `now`, still has. The others are NULL for this client.

        Raise if the client would misinterpret a column, and if no column is left.
        """
        known = self._readable.get(id(now))
        if known is None or known[0] is not now:
            if len(self._readable) >= _KEPT:
                self._readable.clear()
            known = self._readable[id(now)] = now, self._compared(now, table)
        return known[1]

    @cached_property
    def _readable(self) -> dict[int, tuple[pa.Schema, pa.Schema]]:
        """What is left of the columns in some schemas of the table, by the identity of these."""
        return {}

    def _compared(self, now: pa.Schema, table: str) -> pa.Schema:
        present = {field_id(field): field for field in now}
        kept = []
        for field in self.stored:
            found = present.get(field_id(field))
            if found is not None:
                _check_same(field, found, table)
                kept.append(field)
            elif not field.nullable:
                raise table_changed(table, f"column {field.name!r} was dropped")
        if not kept:
            raise table_changed(table, "it was replaced and has other columns")
        return pa.schema(kept)


_KEPT: Final = 4


def _check_same(known: pa.Field, now: pa.Field, table: str) -> None:
    try:
        converter(now, known, file=table)
    except Unsupported:
        raise table_changed(table, f"column {known.name!r} is {now.type} now") from None
    if now.nullable and not known.nullable:
        raise table_changed(table, f"column {known.name!r} may be NULL now")


@lru_cache(maxsize=10_000)
def columns_of(schema_json: str) -> Columns:
    """The columns of a schema in Iceberg's JSON format. Raise `ValueError` if it is invalid."""
    from skiway.formats.iceberg.metadata_files import parsed_schema

    parsed = json.loads(schema_json)
    return _columns(parsed_schema(parsed), parsed)


def columns_in(schema: Schema) -> Columns:
    """The columns of a schema, like those of its JSON, which takes longer to parse."""
    from skiway.formats.iceberg.types import schema_json

    return _columns(schema, json.loads(schema_json(schema)))


def _columns(schema: Schema, parsed: dict[str, object]) -> Columns:
    from skiway.formats.iceberg.types import arrow_columns, write_defaults

    if not schema.fields:
        raise ValueError("it has no columns")
    defaults = write_defaults(schema)
    fields = [_with_default(field, defaults.get(field.name)) for field in arrow_columns(schema)]
    return Columns(_schema_id(parsed), _with_distinct_names(pa.schema(fields)))


def _with_default(field: pa.Field, default: pa.Scalar | None) -> pa.Field:
    """The field with its default as SQL, which DuckDB's client evaluates when INSERT omits the column."""
    if default is None:
        return field
    try:
        text = default.cast(pa.string()).as_py().replace("'", "''")
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):  # such as bytes that are no text
        return field
    sql = f"CAST('{text}' AS {castable_type(field)})"
    return field.with_metadata({**(field.metadata or {}), b"default": sql.encode()})


def _schema_id(parsed: dict[str, object]) -> str:
    """The id of the schema in the table's format with a digest, or only the digest if it has no id."""
    number = parsed.get("schema-id")
    content = json.dumps({**parsed, "schema-id": None}, sort_keys=True)
    digest = blake2b(content.encode(), digest_size=6).hexdigest()
    return digest if number is None else f"{number}-{digest}"


def _with_distinct_names(schema: pa.Schema) -> pa.Schema:
    taken = {ROWID}
    fields = []
    for field in schema:
        name, number = field.name, 1
        while name.casefold() in taken:
            name, number = f"{field.name}_{number}", number + 1
        taken.add(name.casefold())
        fields.append(field if name == field.name else field.with_name(name))
    return pa.schema(fields)


def _announced(field: pa.Field, wanted: pa.Field | None = None) -> pa.Field:
    shown = field if wanted is None else wanted
    metadata = shown.metadata or {}
    announced = {key: metadata[key] for key in EXTENSION if key in metadata}
    if b"doc" in (field.metadata or {}):
        announced[b"comment"] = field.metadata[b"doc"]
    if b"default" in (field.metadata or {}):
        announced[b"default"] = field.metadata[b"default"]
    return pa.field(field.name, _without_ids(shown.type), field.nullable, metadata=announced or None)


def _is_another_type(asked: pa.Field, stored: pa.Field) -> bool:
    """Is the type that a client asked for another one in DuckDB than the stored one?"""
    if asked.type == stored.type and not asked.metadata and not isinstance(asked.type, pa.BaseExtensionType):
        return False  # naming types takes long if there are thousands of columns
    try:
        return duckdb_type(asked) != duckdb_type(stored)
    except InvalidArgument:  # not a type of DuckDB, so a Python client asked for it
        return False


def _without_ids(of: pa.DataType) -> pa.DataType:
    """The type without the metadata of its parts, which would only make listings longer."""
    if pa.types.is_struct(of):
        return pa.struct([pa.field(child.name, _without_ids(child.type), child.nullable) for child in of])
    if pa.types.is_map(of):
        return pa.map_(_without_ids(of.key_type), _plain(of.item_field))
    if pa.types.is_list(of):
        return pa.list_(_plain(of.value_field))
    if pa.types.is_fixed_size_list(of):
        return pa.list_(_plain(of.value_field), of.list_size)
    return of


def _plain(field: pa.Field) -> pa.Field:
    return pa.field(field.name, _without_ids(field.type), field.nullable)


def with_nulls(batches: Iterator[pa.RecordBatch], gone: Sequence[pa.Field]) -> Iterator[pa.RecordBatch]:
    """The batches with the columns that the client knows and the table no longer has."""
    for batch in batches:
        nulls = [pa.nulls(batch.num_rows, field.type) for field in gone]
        names = [*batch.schema.names, *(field.name for field in gone)]
        yield pa.RecordBatch.from_arrays([*batch.columns, *nulls], names=names)


_MAX_BYTES: Final = 64 << 20
_COLUMN_BYTES: Final = 500  # of a column's statistics in memory, without the values of strings

_ByName: TypeAlias = Mapping[str, ColumnStatistics]


class StatisticsCache:
    """The statistics of the snapshots that were asked for most recently, up to `max_bytes` in total."""

    def __init__(self, max_bytes: int = _MAX_BYTES) -> None:
        self._cache = Cache[tuple[str, ...], _ByName](max_bytes, weigh=_weight)

    def of(
        self, realm: Realm, table_id: str, snapshot: Snapshot, columns: Columns, *, handle: Callable[[], TableHandle]
    ) -> _ByName:
        """The statistics of all columns in a snapshot, by name. `handle` reads the snapshot."""
        profile = statistics.column_statistics_address(realm, table_id, snapshot.id)
        key = (realm.account_id, table_id, str(snapshot.id), snapshot.digest, columns.id, profile)
        return self._cache.get(key, lambda: _all_columns(realm, table_id, snapshot, columns.stored, handle()))

    def __len__(self) -> int:
        return len(self._cache)


def _weight(found: _ByName) -> int:
    bounds = (bound for each in found.values() for bound in (each.min, each.max))
    texts = sum(len(bound.as_buffer()) for bound in bounds if isinstance(bound, pa.BinaryScalar) and bound.is_valid)
    return _COLUMN_BYTES * (len(found) + 1) + texts


def _all_columns(
    realm: Realm, table_id: str, snapshot: Snapshot, columns: pa.Schema, handle: TableHandle
) -> dict[str, ColumnStatistics]:
    known = statistics.column_statistics(realm, table_id, snapshot.id)
    profiled = {each.column_id: each for each in statistics.without_outdated(known, handle.defaults)}
    flat = (field for field in columns if not (field.type.num_fields or pa.types.is_dictionary(field.type)))
    numbers = {field.name: field_id(field) for field in flat}
    merged = None
    if not profiled.keys() >= set(numbers.values()):
        merged = merged_units(data_files(handle.files(snapshot))["stats"].combine_chunks())
    found = {}
    for field in columns:
        number = numbers.get(field.name)
        column = None if number is None else profiled.get(number)
        if column is not None:
            found[field.name] = _of_profile(column, field.type)
        elif number is None or merged is None:
            found[field.name] = ColumnStatistics()
        else:
            found[field.name] = _of_files(merged, number, field.type)
    return found


def _of_profile(column: v1.ColumnStats, of: pa.DataType) -> ColumnStatistics:
    nulls, distinct = statistics.counted_nulls(column), statistics.distinct_count(column)
    low, high = None, None
    nans = column.nan_count if column.HasField("nan_count") else None
    if column.HasField("min") and column.HasField("max") and _has_no_nan(of, nans):
        low, high = (_value(column.logical_type, text, of) for text in (column.min, column.max))
    return ColumnStatistics(
        min=low,
        max=high,
        has_null=None if nulls is None else nulls > 0,
        has_not_null=None if nulls is None else column.value_count > nulls,
        distinct_count=None if distinct is None else round(distinct),
    )


def _of_files(merged: pa.StructArray, number: int, of: pa.DataType) -> ColumnStatistics:
    place = merged.type.get_field_index(str(number))
    if place < 0:
        return ColumnStatistics()
    known = merged.field(place)[0]
    values, nulls = known["value_count"].as_py(), known["null_count"].as_py()
    bounded = _has_no_nan(of, known["nan_count"].as_py()) and known["min"].type == bound_type(of)
    return ColumnStatistics(
        min=known["min"] if bounded and known["min"].is_valid else None,
        max=known["max"] if bounded and known["max"].is_valid else None,
        has_null=None if nulls is None else nulls > 0,
        has_not_null=None if None in (values, nulls) else values > nulls,
    )


def _has_no_nan(of: pa.DataType, nans: int | None) -> bool:
    """Whether the column has no NaN, which DuckDB treats as greater than all numbers but bounds do not cover."""
    return not pa.types.is_floating(of) or nans == 0


def _value(kind: str, text: str, of: pa.DataType) -> pa.Scalar | None:
    """A bound as a value of the column's type; None if it is invalid, for example after a change of the type."""
    try:
        value: Any = bound(logical_type(kind), text).value
        return None if value is None else pa.scalar(value, bound_type(of))
    except (ValueError, TypeError, OverflowError, pa.ArrowException):
        return None


def in_type(found: ColumnStatistics, stored: pa.Field, announced: pa.Field) -> ColumnStatistics:
    """The statistics with bounds in the announced type; without bounds if it cannot represent them."""
    if stored.type == announced.type or None in (found.min, found.max):
        return found
    try:
        low, high = (to_column(pa.repeat(bound, 1), announced)[0] for bound in (found.min, found.max))
    except InvalidArgument:
        return replace(found, min=None, max=None)
    return replace(found, min=low, max=high)
