# mypy: disable-error-code=no-any-return
"""Iceberg's schemas, partition types and bounds in Arrow."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from skiway.errors import Unsupported
from skiway.formats.schemas import TableSchema, with_id

if TYPE_CHECKING:
    from pyiceberg.partitioning import PartitionField
    from pyiceberg.schema import Schema
    from pyiceberg.types import IcebergType, NestedField

__all__ = ["arrow_schema", "bounds", "defaults", "partition_type"]


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
