"""Iceberg's schemas, partition types and bounds in Arrow."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from skiway.errors import InvalidArgument, Unsupported
from skiway.formats.schemas import TableSchema, type_name, with_id

if TYPE_CHECKING:
    from pyiceberg.partitioning import PartitionField
    from pyiceberg.schema import Schema
    from pyiceberg.types import IcebergType, NestedField

__all__ = ["arrow_schema", "bounds", "defaults", "iceberg_schema", "iceberg_type", "partition_type"]

# mypy: disable-error-code=no-any-return


def arrow_schema(schema: Schema) -> TableSchema:
    """The schema in Arrow, as Parquet files are read: plain strings and lists, not large ones."""
    fields = [_field(field) for field in schema.fields]
    return TableSchema(schema.schema_id, pa.schema(fields), schema.model_dump_json(exclude_none=True))


def _field(field: NestedField) -> pa.Field:
    from pyiceberg.io.pyarrow import schema_to_pyarrow
    from pyiceberg.types import ListType, MapType, StructType

    of: Any = field.field_type
    if isinstance(of, StructType):
        type_ = pa.struct([_field(child) for child in of.fields])
    elif isinstance(of, ListType):
        type_ = pa.list_(_field(of.element_field))
    elif isinstance(of, MapType):
        type_ = pa.map_(_field(of.key_field), _field(of.value_field))
    else:
        type_ = _small(schema_to_pyarrow(of))
    doc = {b"doc": field.doc.encode()} if field.doc else None
    return with_id(pa.field(field.name, type_, nullable=not field.required, metadata=doc), field.field_id)


def _small(of: pa.DataType) -> pa.DataType:
    if isinstance(of, pa.BaseExtensionType) and of != pa.uuid():
        of = of.storage_type  # geometry is WKB
    return {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}.get(of, of)


def defaults(schema: Schema, *, table: str) -> dict[int, pa.Scalar]:
    """What columns hold, by id, in files that are older than they are."""
    for field in _nested(schema.fields):
        if field.initial_default is not None:
            raise Unsupported(
                f"table {table!r}: field {field.name!r} within a column has a default for older files, which is not "
                "read; rewrite the older files",
                key="table.feature",
                table=table,
                feature="default in a nested field",
            )
    with_default = [field for field in schema.fields if field.initial_default is not None]
    return {field.field_id: _scalar(field.initial_default, _field(field).type) for field in with_default}


def _scalar(value: Any, of: pa.DataType) -> pa.Scalar:
    """A default; values of types that JSON has not are written there as text."""
    return pa.scalar(value).cast(of) if isinstance(value, str) else pa.scalar(value, of)


def _nested(fields: Sequence[NestedField]) -> Iterator[NestedField]:
    from pyiceberg.types import ListType, MapType, StructType

    for field in fields:
        of: Any = field.field_type
        inner: Sequence[NestedField] = ()
        if isinstance(of, StructType):
            inner = of.fields
        elif isinstance(of, ListType):
            inner = (of.element_field,)
        elif isinstance(of, MapType):
            inner = (of.key_field, of.value_field)
        yield from inner
        yield from _nested(inner)


def partition_type(field: PartitionField, schemas: Sequence[Schema]) -> pa.DataType:
    """The type of a partition field's values, by the newest of `schemas` that has its column."""
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    for schema in reversed(schemas):
        if field.source_id in schema._lazy_id_to_field:
            source: IcebergType = schema.find_field(field.source_id).field_type
            found = _small(schema_to_pyarrow(field.transform.result_type(source)))
            return pa.binary(16) if found == pa.uuid() else found
    return pa.null()


def bounds(values: Sequence[bytes | None], of: pa.DataType) -> pa.Array:
    """Bounds of a column, in Iceberg's single-value bytes, as values of its bound type `of`.

    Bounds that were written before a column was widened are shorter than its values are now. What is no value of the
    type is left unknown.
    """
    read = _reader(of)
    if read is None:
        return pa.nulls(len(values), of)
    return pa.array([None if value is None else read(value) for value in values], of)


def _reader(of: pa.DataType) -> Callable[[bytes], Any] | None:
    if pa.types.is_string(of):
        return _text
    if pa.types.is_binary(of):
        return lambda value: value
    if pa.types.is_fixed_size_binary(of):
        return lambda value: value if len(value) == of.byte_width else None
    if pa.types.is_decimal(of):
        return lambda value: _decimal(value, of.scale)
    if pa.types.is_boolean(of):
        return lambda value: value != b"\0"
    if pa.types.is_floating(of):
        return _float
    if pa.types.is_timestamp(of):
        # A date that became a timestamp has bounds in days, of four bytes.
        return lambda value: int.from_bytes(value, "little", signed=True) if len(value) == 8 else None
    if pa.types.is_integer(of) or pa.types.is_temporal(of):
        return lambda value: int.from_bytes(value, "little", signed=True)
    return None


def _text(value: bytes) -> str | None:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


def _float(value: bytes) -> float | None:
    form = {4: "<f", 8: "<d"}.get(len(value))
    return struct.unpack(form, value)[0] if form else None


def _decimal(value: bytes, scale: int) -> Any:
    from decimal import Decimal

    unscaled = int.from_bytes(value, "big", signed=True)
    return Decimal((int(unscaled < 0), tuple(map(int, str(abs(unscaled)))), -scale))


# --------------------
# Columns of Arrow and DuckDB as columns of Iceberg.
#
# What Iceberg has no type for is widened where that loses nothing, and refused otherwise, by the column's name:
#
# int8, int16, uint8, uint16          int
# uint32                              long
# uint64                              decimal(20, 0)
# float16                             float
# decimal of up to 38 digits          decimal
# date64                              date
# time of any unit                    time; times finer than microseconds are refused when rows are written
# timestamp of any unit               timestamp; in version 3 nanoseconds are kept, in version 2 refused by row
# timestamp with any time zone        timestamptz: the moment is kept, the name of the zone is not
# dictionary                          its values' type
# lists of any kind                   list
# JSON, geometry (as WKB)             string, binary


# mypy: disable-error-code=no-any-return


_EXTENSION: Final = b"ARROW:extension:name"
_STORABLE: Final = ("arrow.uuid", "arrow.json", "geoarrow.wkb")
_LISTS: Final[tuple[Callable[[pa.DataType], bool], ...]] = (
    pa.types.is_list,
    pa.types.is_large_list,
    pa.types.is_fixed_size_list,
    pa.types.is_list_view,
    pa.types.is_large_list_view,
)


def iceberg_schema(arrow: pa.Schema, *, format_version: int = 2) -> Schema:
    """The schema of a new table for rows like `arrow`; its fields are numbered in the order in which they come."""
    from pyiceberg.schema import Schema, assign_fresh_schema_ids

    if not len(arrow):
        raise InvalidArgument("a table needs at least one column, none was given", key="columns.none")
    _refuse_twins(arrow.names, "")
    numbers = count(1)
    fields = [_iceberg_field(each, format_version, numbers) for each in arrow]
    try:
        return assign_fresh_schema_ids(Schema(*fields))
    except ValueError as error:  # such as a column `a.b` beside a field `b` in `a`
        raise InvalidArgument(f"the columns contradict each other: {error}", key="column.duplicate") from error


def iceberg_type(field: pa.Field, *, format_version: int = 2) -> IcebergType:
    """The type of a column; the ids of what is inside it are not final."""
    return _type(field, field.name, format_version, count(1))


def _iceberg_field(field: pa.Field, version: int, numbers: Iterator[int]) -> Any:
    from pyiceberg.types import NestedField

    doc = (field.metadata or {}).get(b"doc") or (field.metadata or {}).get(b"comment")
    return NestedField(
        field_id=next(numbers),
        name=field.name,
        field_type=_type(field, field.name, version, numbers),
        required=not field.nullable,
        doc=doc.decode() if doc else None,
    )


def _type(field: pa.Field, column: str, version: int, numbers: Iterator[int]) -> IcebergType:
    from pyiceberg.types import ListType, MapType, StructType

    of = _storage(field, column)
    if pa.types.is_struct(of):
        if not of.num_fields:
            raise _refused(column, "struct without fields")
        _refuse_twins([child.name for child in of], column)
        return StructType(*(_iceberg_field(child, version, numbers) for child in of))
    if pa.types.is_map(of):
        return MapType(
            key_id=next(numbers),
            key_type=_type(of.key_field, column, version, numbers),
            value_id=next(numbers),
            value_type=_type(of.item_field, column, version, numbers),
            value_required=not of.item_field.nullable,
        )
    if any(is_list(of) for is_list in _LISTS):
        return ListType(
            element_id=next(numbers),
            element_type=_type(of.value_field, column, version, numbers),
            element_required=not of.value_field.nullable,
        )
    return _single(of, column, version)


def _storage(field: pa.Field, column: str) -> pa.DataType:
    """The type that values are kept in, without the wrappings that Iceberg does not know."""
    of = field.type
    name = (field.metadata or {}).get(_EXTENSION, b"").decode(errors="replace")
    if isinstance(of, pa.BaseExtensionType):
        name = of.extension_name
    if name and name not in _STORABLE:
        raise _refused(column, name if not isinstance(of, pa.BaseExtensionType) else str(of))
    if name == "arrow.uuid":
        return pa.uuid()
    if isinstance(of, pa.BaseExtensionType):
        of = of.storage_type
    return _storage(pa.field(column, of.value_type), column) if pa.types.is_dictionary(of) else of


def _single(of: pa.DataType, column: str, version: int) -> IcebergType:
    from pyiceberg.types import NestedField

    if pa.types.is_null(of) and version < 3:
        raise _refused(column, "null")
    if pa.types.is_decimal(of) and (of.precision > 38 or of.scale < 0):
        raise _refused(column, str(of))
    if version < 3 and pa.types.is_timestamp(of) and of.unit == "ns":
        of = pa.timestamp("us", tz=of.tz)
    try:
        name = type_name(of, column)
    except Unsupported:
        raise _refused(column, str(of)) from None
    return NestedField(field_id=1, name=column, type=name, required=False).field_type


def _refuse_twins(names: list[str], inside: str) -> None:
    seen: dict[str, str] = {}
    for name in names:
        if not name:
            raise InvalidArgument(f"a column{_within(inside)} has no name; give it one", key="column.unnamed")
        if name.casefold() in seen:
            raise InvalidArgument(
                f"columns {seen[name.casefold()]!r} and {name!r}{_within(inside)} differ in case only or not at all, which engines do "
                "not tell apart; rename one",
                key="column.duplicate",
                column=name,
            )
        seen[name.casefold()] = name


def _within(column: str) -> str:
    return f" within {column!r}" if column else ""


def _refused(column: str, of: str) -> Unsupported:
    return Unsupported(
        f"column {column!r} has type {of}, which Iceberg tables cannot hold; cast it to another type, such as text, or "
        "leave it out",
        key="column.type",
        column=column,
        type=of,
    )
