# mypy: disable-error-code="no-any-return"
"""Data files and columns of exported tables: whether all clients read them correctly, and their entries for manifests.

Clients find columns in files without field ids by a name mapping.

All columns are optional, because clients differ in what they do if a file contradicts NOT NULL.

Clients use bounds to skip files, and Spark also to answer MIN and MAX. So bounds of numbers and times must be values of the
column. Those of strings may be truncated; Spark does not use them as values.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from skiway.airport.conversion import is_list, plain_type
from skiway.errors import Unsupported
from skiway.formats.extension_types import coordinate_system
from skiway.formats.iceberg import lib
from skiway.formats.iceberg.types import iceberg_primitive
from skiway.formats.iceberg.warehouse import uri_of
from skiway.formats.readers.parquet import FileShape
from skiway.formats.schemas import Leaf, field_id, leaves, schema_json, type_name
from skiway.formats.source import TableHandle, file_values
from skiway.security.source_access import location

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.schema import Schema

# PyIceberg is partly untyped.


NAME_MAPPING: Final = "schema.name-mapping.default"
_FIRST_RESERVED_ID: Final = 2**31 - 1 - 200
_TYPES: Final = frozenset(
    {
        *(pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64()),
        *(pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view()),
        *(pa.date32(), pa.time64("us")),
        *(pa.timestamp("us"), pa.timestamp("us", tz="UTC")),  # Spark reads milliseconds as microseconds
    }
)


def refused(reason: str, **params: str) -> Unsupported:
    """The error for a table that Iceberg clients would not read correctly."""
    return Unsupported(reason, key="table.not_exportable", **params)


def check_types(fields: Iterable[pa.Field], *, inside: str = "") -> None:
    """Raise unless all clients read columns of these types with the same values as we do."""
    for field in fields:
        name = f"{inside}{field.name}"
        of = field.type
        if coordinate_system(field) is not None:
            raise _type_refused(name, "GEOMETRY")
        if pa.types.is_struct(of) and of.num_fields:
            check_types(of, inside=f"{name}.")
        elif pa.types.is_map(of):
            check_types([of.key_field, of.item_field], inside=f"{name}.")
        elif is_list(of):
            check_types([of.value_field], inside=f"{name}.")
        elif not _is_readable(of):
            raise _type_refused(name, str(of))


def _is_readable(of: pa.DataType) -> bool:
    if pa.types.is_dictionary(of):
        of = of.value_type
    if pa.types.is_decimal(of):
        return bool(of.precision <= 38 and 0 <= of.scale <= of.precision)
    return of in _TYPES


def _type_refused(column: str, of: str) -> Unsupported:
    return refused(f"column {column!r} has type {of}, which not all Iceberg clients read alike", column=column)


def iceberg_schema(arrow: pa.Schema) -> Schema:
    """The schema in which clients read the table, with the field ids of `arrow`."""
    check_types(arrow)
    optional = pa.schema([_optional(field) for field in arrow])
    try:
        made = lib.metadata_files.parsed_schema(json.loads(schema_json(optional)))
        ids = list(made.field_ids)  # raises if names are ambiguous
    except ValueError as error:
        raise refused(f"its column names are ambiguous for Iceberg clients: {error}") from error
    if len(set(ids)) < _count(optional) or max(ids, default=0) >= _FIRST_RESERVED_ID:
        raise refused("two of its columns have the same field id, or a reserved one; rename a column")
    return made


def _optional(field: pa.Field) -> pa.Field:
    of = field.type
    if pa.types.is_struct(of):
        of = pa.struct([_optional(child) for child in of])
    elif pa.types.is_map(of):
        of = pa.map_(_optional(of.key_field).with_nullable(False), _optional(of.item_field))
    elif is_list(of):
        of = pa.list_(_optional(of.value_field))
    return field.with_type(of).with_nullable(True)


def _count(fields: Iterable[pa.Field]) -> int:
    return sum(1 + _count(_children(field.type)) for field in fields)


def _children(of: pa.DataType) -> Sequence[pa.Field]:
    if pa.types.is_map(of):
        return [of.key_field.with_name("key"), of.item_field.with_name("value")]
    if is_list(of):
        return [of.value_field.with_name("element")]
    return list(of) if pa.types.is_struct(of) else []


def name_mapping(schemas: Iterable[pa.Schema]) -> str:
    """The name mapping of all columns that any of the schemas has."""
    fields = [field for schema in schemas for field in schema]
    return json.dumps(_mapped(fields), ensure_ascii=False, sort_keys=True)


def _mapped(fields: Sequence[pa.Field]) -> list[dict[str, Any]]:
    alike: dict[str, list[pa.Field]] = {}
    for field in fields:
        alike.setdefault(field.name, []).append(field)
    found = []
    for name, same in sorted(alike.items()):
        nested = _mapped([child for field in same for child in _children(field.type)])
        found.append({"field-id": field_id(same[0]), "names": [name], **({"fields": nested} if nested else {})})
    return found


_AT_ONCE: Final = 8  # footers
_UNSAFE: Final = re.compile(r"[?#\\]|[^\S ]")
_MAX_TEXT: Final = 64  # characters or bytes of a bound
_ELEMENT: Final = re.compile(r"list\.(element|item)")


def path_of(file: str) -> str:
    """The path of a data file as manifests contain it; raises if clients interpret it differently."""
    place = location(file)
    if found := _UNSAFE.search(place.path):
        raise refused(
            f"the path of file {file!r} contains {found[0]!r}, which clients interpret differently", file=file
        )
    return uri_of(place)


def check_deletes(files: pa.Table) -> None:
    """Raise if rows of the files are deleted: deletion vectors of other formats mean nothing to Iceberg clients."""
    deleted = files.filter(pc.not_equal(pc.fill_null(files["deleted_rows"], 1), 0))
    if deleted.num_rows:
        raise refused(
            f"it has deleted rows that are still in the files, such as in {deleted['path'][0].as_py()!r} (deletion vectors)"
        )


def check_shape(shape: FileShape, schema: pa.Schema, constant: Sequence[str], file: str) -> None:
    """Raise unless all clients read the columns of a file as those of `schema`.

    The columns `constant` have their values in the metadata of the table.
    """
    if "INT96" in shape.physical_types:
        raise refused(
            f"file {file!r} has timestamps in the old type INT96, which clients read as different times", file=file
        )
    expected = [path for field in shape.columns for path in _leaf_paths(field, field.name)]
    for path, form in zip(shape.paths, expected, strict=False):
        if not re.fullmatch(form, path):
            raise refused(f"column {path!r} of file {file!r} is a list or a map in an old layout", file=file)
    columns = {field.name: field for field in schema}
    for field in shape.columns:
        if field.name in constant or field.name not in columns:
            why = "also has the partition column" if field.name in constant else "has a column that the table lacks,"
            raise refused(f"file {file!r} {why} {field.name!r}", file=file)
        _check_field(field, columns[field.name], field.name, file)


def _leaf_paths(field: pa.Field, path: str) -> Iterator[str]:
    """The paths of the leaves in a Parquet file, as regular expressions. `path` is that of the field."""
    of, plain = field.type, re.escape(path) if path == field.name else path
    if pa.types.is_struct(of):
        for child in of:
            yield from _leaf_paths(child, f"{plain}\\.{re.escape(child.name)}")
    elif pa.types.is_map(of):
        yield from _leaf_paths(of.key_field, f"{plain}\\.key_value\\.key")
        yield from _leaf_paths(of.item_field, f"{plain}\\.key_value\\.value")
    elif is_list(of):
        yield from _leaf_paths(of.value_field, f"{plain}\\.{_ELEMENT.pattern}")
    else:
        yield plain


def _check_field(own: pa.Field, wanted: pa.Field, name: str, file: str) -> None:
    if field_id(own) is not None:
        raise refused(
            f"column {name!r} of file {file!r} has a field id, by which clients would look for another column",
            file=file,
        )
    of, into = own.type, wanted.type
    if pa.types.is_struct(of) and pa.types.is_struct(into):
        children = {child.name: child for child in into}
        for child in of:
            if child.name not in children:
                raise refused(f"file {file!r} has a field that the table lacks, {name}.{child.name}", file=file)
            _check_field(child, children[child.name], f"{name}.{child.name}", file)
    elif pa.types.is_map(of) and pa.types.is_map(into):
        _check_field(of.key_field, into.key_field, f"{name}.key", file)
        _check_field(of.item_field, into.item_field, f"{name}.value", file)
    elif is_list(of) and is_list(into):
        _check_field(of.value_field, into.value_field, f"{name}.element", file)
    else:
        check_types([own])
        if not _promotes(of, into):
            raise refused(f"column {name!r} is {into} in the table, but {of} in file {file!r}", file=file, column=name)


def _promotes(of: pa.DataType, into: pa.DataType) -> bool:
    """Whether Iceberg allows this change of a column's type."""
    if pa.types.is_integer(of) and pa.types.is_integer(into):
        return bool(of.bit_width <= into.bit_width)
    if pa.types.is_floating(of) and pa.types.is_floating(into):
        return bool(of.bit_width <= into.bit_width)
    if pa.types.is_decimal(of) and pa.types.is_decimal(into):
        return bool(of.scale == into.scale and of.precision <= into.precision)
    if pa.types.is_timestamp(of) and pa.types.is_timestamp(into):
        return of.tz == into.tz
    return plain_type(of) == into


def entries_of(
    handle: TableHandle, files: pa.Table, schema: pa.Schema, *, spec_id: int, sources: Mapping[str, int]
) -> list[DataFile]:
    """The entries of data files for a manifest; raises if a client would read one of them incorrectly.

    `files` are rows of the file table, and `sources` has the ids of their partition columns by the field of `partition`.
    """
    constant = [field.name for field in schema if field_id(field) in sources.values()]
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        read = threads.map(lambda file: handle.file_shape(file[0], etag=file[1]), file_values(files, "path", "etag"))
        shapes = list(read)
    partition = files["partition"].combine_chunks()
    values = [_manifest_values(partition.field(name)) for name in sources]
    facts = _statistics(files, shapes, [leaf for leaf in leaves(schema) if leaf.id not in sources.values()])
    made = []
    for place, (path, size) in enumerate(file_values(files, "path", "size_bytes")):
        shape = shapes[place]
        check_shape(shape, schema, constant, path)
        entry = lib.manifest.DataFile.from_args(
            _table_format_version=3,
            content=lib.manifest.DataFileContent.DATA,
            file_path=path_of(path),
            file_format=lib.manifest.FileFormat.PARQUET,
            partition=lib.typedef.Record(*(column[place] for column in values)),
            record_count=shape.rows,
            file_size_in_bytes=size,
            column_sizes=None,
            nan_value_counts=None,
            split_offsets=None,
            sort_order_id=None,
            equality_ids=None,
            key_metadata=None,
            **facts[place],
        )
        entry.spec_id = spec_id
        made.append(entry)
    return made


def _manifest_values(column: pa.Array) -> list[Any]:
    """Partition values as manifests contain them: dates and times as numbers."""
    if pa.types.is_temporal(column.type):  # timestamps have microseconds, see `check_types`
        column = column.cast(pa.int32() if column.type.bit_width == 32 else pa.int64())
    return column.to_pylist()


def _statistics(files: pa.Table, shapes: Sequence[FileShape], columns: Sequence[Leaf]) -> list[dict[str, Any]]:
    """Counts and bounds of the columns in each file, by field id."""
    from pyiceberg.conversions import to_bytes

    names = ("value_counts", "null_value_counts", "lower_bounds", "upper_bounds")
    found: list[dict[str, Any]] = [{name: {} for name in names} for _ in shapes]
    stats = files["stats"].combine_chunks()
    for leaf in columns:
        part = stats.field(str(leaf.id))
        encode = partial(to_bytes, iceberg_primitive(type_name(leaf.type, leaf.path[-1])))
        nulls = part.field("null_count").to_pylist()
        usable = _usable_bounds(part, leaf.type)
        low, high = (_encoded(part.field(name), encode, usable) for name in ("min", "max"))
        for place, facts in enumerate(found):
            facts["value_counts"][leaf.id] = shapes[place].rows
            if nulls[place] is not None:
                facts["null_value_counts"][leaf.id] = nulls[place]
            if low[place] is not None and high[place] is not None:
                facts["lower_bounds"][leaf.id], facts["upper_bounds"][leaf.id] = low[place], high[place]
    return found


def _usable_bounds(part: pa.StructArray, of: pa.DataType) -> list[bool]:
    if of in (pa.string(), pa.binary()):
        return [True] * len(part)
    if pa.types.is_floating(of):  # NaN is greater than all bounds, and neither footers nor logs count it
        return [False] * len(part)
    return pc.fill_null(part.field("exact"), False).to_pylist()


def _encoded(bounds: pa.Array, encode: Callable[[Any], bytes], usable: Sequence[bool]) -> list[bytes | None]:
    """The bounds in Iceberg's single-value serialization; None for those that are not usable, or too long."""
    values = _manifest_values(bounds)
    return [
        None
        if not use or value is None or (isinstance(value, str | bytes) and len(value) > _MAX_TEXT)
        else encode(value)
        for value, use in zip(values, usable, strict=True)
    ]
