# mypy: disable-error-code="no-any-return"
"""Convert between the types of Iceberg and Arrow: schemas, partition types, bounds and defaults.

Iceberg types become the Arrow types that Parquet files are read as. Arrow types that Iceberg does not have are widened if
that loses nothing, and rejected otherwise:

    int8, int16, uint8, uint16          int
    uint32                              long
    uint64                              decimal(20, 0)
    float16                             float
    decimal of up to 38 digits          decimal
    arrow.bool8                         boolean
    HUGEINT, UHUGEINT                   decimal(38, 0); values with more digits are rejected when rows are written
    date64                              date
    time of any unit                    time; values with nanoseconds are rejected when rows are written
    timestamp                           timestamp; in nanoseconds timestamp_ns, which requires version 3
    timestamp with any time zone        timestamptz: the instant is stored, the name of the zone is not
    dictionary, run-end encoded         the type of its values
    lists of any kind                   list
    JSON                                string
    geoarrow.wkb                        geometry, which requires version 3; only as the type of a column
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import count
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from skiway.airport.conversion import is_list, plain_type
from skiway.errors import InvalidArgument, Unsupported
from skiway.formats.extension_types import as_geometry, coordinate_system
from skiway.formats.iceberg import lib
from skiway.formats.schemas import TableSchema, type_name, with_id

if TYPE_CHECKING:
    from pyiceberg.partitioning import PartitionField
    from pyiceberg.schema import Schema
    from pyiceberg.types import IcebergType, NestedField


# PyIceberg is partly untyped.

_EXTENSION: Final = b"ARROW:extension:name"
_STORABLE: Final = ("arrow.uuid", "arrow.json")
_HUGE: Final = ("hugeint", "uhugeint")


def arrow_schema(schema: Schema) -> TableSchema:
    """Convert a schema to Arrow, and to JSON."""
    return TableSchema(schema.schema_id, arrow_columns(schema), schema_json(schema))


def arrow_columns(schema: Schema) -> pa.Schema:
    """Convert a schema to Arrow, with strings and lists rather than their large variants, as Parquet is read.

    Columns of geometries, which are WKB, are marked as such.
    """
    return pa.schema(
        as_geometry(_field(field), field.field_type.crs)
        if isinstance(field.field_type, lib.types.GeometryType)
        else _field(field)
        for field in schema.fields
    )


def variant_columns(schema: Schema) -> frozenset[str]:
    """The columns that are variants or contain some; they are read as JSON."""
    return frozenset(
        field.name
        for field in schema.fields
        if "variant" in str(field.field_type)  # names of fields count, too, which are rare
        and any(isinstance(each.field_type, lib.added_types.VariantType) for each in (field, *_nested([field])))
    )


def schema_json(schema: Schema) -> str:
    """The schema as JSON, as in the records of tables and snapshots."""
    return schema.model_dump_json(exclude_none=True)


def _field(field: NestedField) -> pa.Field:
    of: Any = field.field_type
    if isinstance(of, lib.types.StructType):
        type_ = pa.struct([_field(child) for child in of.fields])
    elif isinstance(of, lib.types.ListType):
        type_ = pa.list_(_field(of.element_field))
    elif isinstance(of, lib.types.MapType):
        type_ = pa.map_(_field(of.key_field), _field(of.value_field))
    else:
        type_ = _arrow_type(of)
    doc = {b"doc": field.doc.encode()} if field.doc else None
    return with_id(pa.field(field.name, type_, nullable=not field.required, metadata=doc), field.field_id)


@lru_cache(maxsize=1000)
def _arrow_type(of: Any) -> pa.DataType:
    """The Arrow type of a primitive type. Common types spare the first listing the half second that importing this takes."""
    if (common := _COMMON_TYPES.get(str(of))) is not None:
        return common
    if isinstance(of, (lib.types.GeometryType, lib.types.GeographyType)):
        return pa.binary()  # PyIceberg would register its own type with pyarrow, which changes what all others read
    if isinstance(of, lib.added_types.VariantType):
        return pa.string()
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    return _plain_type(schema_to_pyarrow(of))


_COMMON_TYPES: Final = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "time": pa.time64("us"),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
    "string": pa.string(),
    "binary": pa.binary(),
    "uuid": pa.uuid(),
}


def _plain_type(of: pa.DataType) -> pa.DataType:
    return {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}.get(of, of)


def defaults(schema: Schema) -> dict[int, pa.Scalar]:
    """The default values of columns and of fields of structs, by id, in files that were written before the column was added."""
    fields = [*schema.fields, *_nested(schema.fields)]
    with_default = [field for field in fields if field.initial_default is not None]
    return {field.field_id: _scalar(field.initial_default, _field(field).type) for field in with_default}


def write_defaults(schema: Schema) -> dict[str, pa.Scalar]:
    """The values of columns, by name, in rows that are written without them."""
    with_default = [field for field in schema.fields if field.write_default is not None]
    return {field.name: _scalar(field.write_default, _field(field).type) for field in with_default}


def check_defaults(schema: Schema, *, format_version: int) -> None:
    """Raise if default values of columns, or of fields in structs, do not have the type of their column, or need version 3."""
    for number, field in schema._lazy_id_to_field.items():
        for kind, value in (("initial-default", field.initial_default), ("write-default", field.write_default)):
            if value is None:
                continue
            name = schema.find_column_name(number) or field.name
            if format_version < 3:
                raise InvalidArgument(
                    f"column {name!r} has the {kind} {str(value)[:80]!r}, but default values require format version 3, and the table "
                    f"has version {format_version}: set the property format-version to 3, or remove the default value",
                    key="column.default",
                    column=name,
                )
            expected = _JSON_TYPES.get(str(field.field_type), object)
            try:
                is_valid = isinstance(value, expected) and isinstance(value, bool) == (expected is bool)
                if is_valid:
                    _scalar(value, _field(field).type)
            except (pa.ArrowException, TypeError, ValueError, OverflowError):
                is_valid = False
            if not is_valid:
                raise InvalidArgument(
                    f"column {name!r} has the {kind} {str(value)[:80]!r}, which is not a value of type {field.field_type}: change it",
                    key="column.default",
                    column=name,
                )


_JSON_TYPES: Final[Mapping[str, Any]] = {
    "boolean": bool,
    "int": int,
    "long": int,
    "float": int | float,
    "double": int | float,
    "string": str,
}


def with_fresh_ids(schema: Schema, next_id: Callable[[], int] | None = None) -> Schema:
    """The schema with new column ids. Unlike PyIceberg's function, this keeps the default values of columns."""

    class FreshIds(lib.schema._SetFreshIDs):
        def struct(
            self, struct: lib.types.StructType, field_results: list[Callable[[], IcebergType]]
        ) -> lib.types.StructType:
            fields = zip(super().struct(struct, field_results).fields, struct.fields, strict=True)
            return lib.types.StructType(
                *(
                    new.model_copy(update={"initial_default": old.initial_default, "write_default": old.write_default})
                    for new, old in fields
                )
            )

    made: Any = lib.schema.pre_order_visit(schema, FreshIds(next_id_func=next_id))
    return made


def _scalar(value: Any, of: pa.DataType) -> pa.Scalar:
    """Parse a default value; types that JSON does not have are strings there."""
    return pa.scalar(value).cast(of) if isinstance(value, str) else pa.scalar(value, of)


def _nested(fields: Sequence[NestedField]) -> Iterator[NestedField]:
    for field in fields:
        of: Any = field.field_type
        inner: Sequence[NestedField] = ()
        if isinstance(of, lib.types.StructType):
            inner = of.fields
        elif isinstance(of, lib.types.ListType):
            inner = (of.element_field,)
        elif isinstance(of, lib.types.MapType):
            inner = (of.key_field, of.value_field)
        yield from inner
        yield from _nested(inner)


def partition_type(field: PartitionField, schemas: Sequence[Schema]) -> pa.DataType:
    """The type of the values of a partition field, from the newest of `schemas` that has its source column."""
    for schema in reversed(schemas):
        if field.source_id in schema._lazy_id_to_field:
            source: IcebergType = schema.find_field(field.source_id).field_type
            found = _arrow_type(field.transform.result_type(source))
            return pa.binary(16) if found == pa.uuid() else found
    return pa.null()


def bounds(values: Sequence[bytes | None], of: pa.DataType) -> pa.Array:
    """Decode the bounds of a column from Iceberg's single-value serialization to the bound type `of`.

    Bounds written before a column was widened have fewer bytes. Bounds that cannot be decoded are NULL.
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
        # If a date column became a timestamp, old bounds are four bytes with days.
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


def iceberg_schema(arrow: pa.Schema, *, format_version: int = 2) -> Schema:
    """Convert an Arrow schema to the schema of a new table; field ids are assigned in order."""
    if not len(arrow):
        raise InvalidArgument("a table needs at least one column", key="columns.none")
    _check_names(arrow.names, "")
    numbers = count(1)
    fields = [_iceberg_field(each, format_version, numbers) for each in arrow]
    try:
        # Columns are numbered already, in the same order unless some are nested. To number them again takes long.
        is_flat = all(field.field_type.is_primitive for field in fields)
        return lib.schema.Schema(*fields) if is_flat else with_fresh_ids(lib.schema.Schema(*fields))
    except ValueError as error:  # such as a column `a.b` and a field `b` in a struct `a`
        raise InvalidArgument(f"the column names are ambiguous: {error}", key="column.duplicate") from error


def format_version(arrow: pa.Schema) -> int:
    """The lowest format version of Iceberg that has all types of `arrow`, and that we write: 2 or 3."""
    return 3 if any(map(_needs_version_3, arrow)) else 2


def _needs_version_3(field: pa.Field) -> bool:
    if coordinate_system(field) is not None:
        return True
    of = plain_type(field.type)
    if pa.types.is_timestamp(of):
        return bool(of.unit == "ns")
    return any(_needs_version_3(of.field(place)) for place in range(of.num_fields))


def iceberg_type(field: pa.Field, *, format_version: int = 2) -> IcebergType:
    """Convert the type of a column; the ids of nested fields are provisional."""
    return _column_type(field, format_version, count(1))


def _iceberg_field(field: pa.Field, version: int, numbers: Iterator[int], within: str = "") -> Any:
    """A column, or a field `within` a struct, whose path errors name."""
    doc = (field.metadata or {}).get(b"doc") or (field.metadata or {}).get(b"comment")
    return lib.types.NestedField(
        field_id=next(numbers),
        name=field.name,
        field_type=_type(field, f"{within}.{field.name}", version, numbers)
        if within
        else _column_type(field, version, numbers),
        required=not field.nullable,
        doc=doc.decode() if doc else None,
    )


def _column_type(field: pa.Field, version: int, numbers: Iterator[int]) -> IcebergType:
    crs = coordinate_system(field)
    if crs is None:
        return _type(field, field.name, version, numbers)
    if version < 3:
        raise _needs_newer(field.name, "GEOMETRY", version)
    return lib.added_types.GeometryType(crs)


def _type(field: pa.Field, column: str, version: int, numbers: Iterator[int]) -> IcebergType:
    of = _storage(field, column)
    if pa.types.is_struct(of):
        if not of.num_fields:
            raise _unsupported(column, "struct without fields")
        _check_names([child.name for child in of], column)
        return lib.types.StructType(*(_iceberg_field(child, version, numbers, column) for child in of))
    if pa.types.is_map(of):
        return lib.types.MapType(
            key_id=next(numbers),
            key_type=_type(of.key_field, column, version, numbers),
            value_id=next(numbers),
            value_type=_type(of.item_field, column, version, numbers),
            value_required=not of.item_field.nullable,
        )
    if is_list(of):
        return lib.types.ListType(
            element_id=next(numbers),
            element_type=_type(of.value_field, column, version, numbers),
            element_required=not of.value_field.nullable,
        )
    return _primitive(of, column, version)


def _storage(field: pa.Field, column: str) -> pa.DataType:
    """The storage type of values, without extension types and dictionaries that Iceberg does not have."""
    of = field.type
    name = (field.metadata or {}).get(_EXTENSION, b"").decode(errors="replace")
    if isinstance(of, pa.Bool8Type):
        return pa.bool_()
    if isinstance(of, pa.OpaqueType) and of.vendor_name == "DuckDB" and of.type_name in _HUGE:
        return pa.decimal128(38, 0)
    if isinstance(of, pa.BaseExtensionType):
        name = of.extension_name
    if name and name not in _STORABLE:
        raise _unsupported(column, _extension_title(of, name))
    if name == "arrow.uuid":
        return pa.uuid()
    if isinstance(of, pa.BaseExtensionType):
        of = of.storage_type
    encoded = pa.types.is_dictionary(of) or pa.types.is_run_end_encoded(of)
    return _storage(pa.field(column, of.value_type), column) if encoded else of


def _primitive(of: pa.DataType, column: str, version: int) -> IcebergType:
    if pa.types.is_null(of) and version < 3:
        raise _unsupported(column, "null")
    if pa.types.is_decimal(of) and (of.precision > 38 or of.scale < 0):
        raise _unsupported(column, str(of))
    if version < 3 and pa.types.is_timestamp(of) and of.unit == "ns":
        raise _needs_newer(column, str(of), version)
    try:
        name = type_name(of, column)
    except Unsupported:
        raise _unsupported(column, str(of)) from None
    return iceberg_primitive(name)


@lru_cache(maxsize=1000)
def iceberg_primitive(name: str) -> Any:
    """The primitive type with this name."""
    return lib.types.NestedField(field_id=1, name="_", type=name, required=False).field_type


def _check_names(names: list[str], inside: str) -> None:
    seen: dict[str, str] = {}
    for name in names:
        if not name:
            raise InvalidArgument(f"a column{_within(inside)} has no name", key="column.unnamed")
        if name.casefold() in seen:
            raise InvalidArgument(
                f"columns {seen[name.casefold()]!r} and {name!r}{_within(inside)} have the same name (names are "
                "case-insensitive); rename one",
                key="column.duplicate",
                column=name,
            )
        seen[name.casefold()] = name


def _extension_title(of: pa.DataType, name: str) -> str:
    """An extension type as an error message names it: `time_tz of DuckDB`, or the name of the extension."""
    if isinstance(of, pa.OpaqueType):
        return f"{of.type_name} of {of.vendor_name}"
    return str(of) if isinstance(of, pa.BaseExtensionType) else name


def _within(column: str) -> str:
    return f" within {column!r}" if column else ""


def _needs_newer(column: str, of: str, version: int) -> Unsupported:
    return Unsupported(
        f"column {column!r} has type {of}, which Iceberg stores from format version 3 on, and this table has version "
        f"{version}; use another type, or create the table again with this column",
        key="column.type",
        column=column,
        type=of,
    )


def _unsupported(column: str, of: str) -> Unsupported:
    return Unsupported(
        f"column {column!r} has type {of}, which Iceberg tables cannot store; cast it to another type, such as VARCHAR, or "
        "leave it out",
        key="column.type",
        column=column,
        type=of,
    )
