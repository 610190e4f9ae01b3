"""Types that Arrow does not have: geometries, and variants as JSON text.

A Parquet file declares geometries in one of three ways: with GeoParquet's `geo` metadata in the footer, in the Arrow schema that
the writer stored there, or with Parquet's logical type. In our Arrow schemas such a column is binary, and the metadata of
its field marks it as geometry.

Writers may also store parts of variants in typed columns ("shredded"), from which the value is put together again.
Keys are in alphabetical order. Dates, times, bytes and UUIDs, which JSON does not have, become strings; so do NaN and infinite numbers.
"""

from __future__ import annotations

import json
import math
import struct
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from itertools import pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import pyarrow as pa

from skiway.airport.conversion import is_list

if TYPE_CHECKING:
    from pyarrow.parquet import FileMetaData


def reinterpreted(array: pa.Array, of: pa.DataType) -> pa.Array:
    """The same bytes as values of the type `of`, which has the same structure and leaves of the same size."""
    if array.type == of:
        return array
    nulls = array.is_null() if array.null_count else None
    if pa.types.is_struct(of):
        parts = [reinterpreted(array.field(place), each.type) for place, each in enumerate(of)]
        return pa.StructArray.from_arrays(parts, fields=list(of), mask=nulls)
    if pa.types.is_map(of):
        parts = [reinterpreted(array.keys, of.key_type), reinterpreted(array.items, of.item_type)]
        return pa.MapArray.from_arrays(array.offsets, *parts, type=of, mask=nulls)
    if is_list(of):
        return pa.ListArray.from_arrays(array.offsets, reinterpreted(array.values, of.value_type), type=of, mask=nulls)
    return array.view(of)


DEFAULT_CRS: Final = "OGC:CRS84"  # the default of GeoParquet, Parquet and Iceberg
UNKNOWN_CRS: Final = "srid:0"  # as Parquet and Iceberg write it

NAME: Final = b"ARROW:extension:name"
METADATA: Final = b"ARROW:extension:metadata"
EXTENSION: Final = (NAME, METADATA)

_WKB: Final = ("geoarrow.wkb", "ogc.wkb")


def as_geometry(field: pa.Field, crs: str) -> pa.Field:
    """Mark `field`, a column of WKB, as geometries in the coordinate system `crs`."""
    document = {} if crs == UNKNOWN_CRS else {"crs": crs}
    extension = {NAME: _WKB[0].encode(), METADATA: json.dumps(document).encode()}
    return field.with_metadata({**(field.metadata or {}), **extension})


class WkbType(pa.ExtensionType):  # type: ignore[misc]
    """The type with which geometries are written to Parquet files. It is not registered, so columns are read as binary."""

    def __init__(self, metadata: bytes) -> None:
        self._metadata = metadata
        super().__init__(pa.binary(), _WKB[0])

    @classmethod
    def of(cls, field: pa.Field) -> WkbType:
        """The type of a geometry column."""
        return cls(_extension(field)[1] or b"{}")

    def __arrow_ext_serialize__(self) -> bytes:
        return self._metadata

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: pa.DataType, serialized: bytes) -> WkbType:
        return cls(serialized)


def coordinate_system(field: pa.Field) -> str | None:
    """The coordinate system of a geometry column; None for any other column."""
    name, metadata = _extension(field)
    if name not in _WKB:
        return None
    document = _parsed(metadata)
    return None if _is_spherical(document) else _crs_name(document.get("crs"))


def geometry_type_name(crs: str) -> str:
    """Iceberg's name for the type of geometries in the coordinate system `crs`."""
    return "geometry" if crs == DEFAULT_CRS else f"geometry({crs})"


def may_name_types(document: str) -> bool:
    """Whether a JSON document may name a type of Iceberg that is a variant, a geometry or a geography."""
    return any(name in document for name in ('"variant"', '"geometry', '"geography'))


def is_geometry_type(of: pa.DataType) -> bool:
    """Is this the extension type for geometries, which pyarrow uses once a library has registered it?"""
    return isinstance(of, pa.BaseExtensionType) and str(of.extension_name) in _WKB


def storage_field(field: pa.Field) -> pa.Field:
    """`field` with its storage type instead of the extension type for geometries, if it has that."""
    return field.with_type(field.type.storage_type) if is_geometry_type(field.type) else field


def geometry_columns(footer: FileMetaData, schema: pa.Schema) -> dict[str, str]:
    """The columns that a Parquet file declares as WKB geometries, with their coordinate systems."""
    declared = {field.name: crs for field in schema if (crs := coordinate_system(field)) is not None}
    # The Arrow schema has the lowest priority: what pyarrow makes of it depends on the loaded libraries.
    declared |= _logical_types(footer) | _geoparquet((schema.metadata or {}).get(b"geo", b""))
    return {name: crs for name, crs in declared.items() if name in schema.names and _is_binary(schema.field(name))}


def _geoparquet(document: bytes) -> dict[str, str]:
    """The WKB columns that GeoParquet's metadata declares; other encodings are ignored."""
    columns = _parsed(document).get("columns")
    found = {}
    for name, facts in columns.items() if isinstance(columns, dict) else ():
        if isinstance(facts, dict) and facts.get("encoding") == "WKB" and not _is_spherical(facts):
            found[str(name)] = _crs_name(facts["crs"]) if "crs" in facts else DEFAULT_CRS
    return found


def _logical_types(footer: FileMetaData) -> dict[str, str]:
    found = {}
    for place in range(len(footer.schema)):
        column = footer.schema.column(place)
        if column.logical_type.type == "GEOMETRY" and column.path == column.name:
            facts = _parsed(column.logical_type.to_json().encode())
            found[column.name] = _crs_name(facts["crs"]) if facts.get("crs") else DEFAULT_CRS
    return found


def _extension(field: pa.Field) -> tuple[str, bytes]:
    """Name and metadata of a field's extension type, whether or not it is registered with pyarrow."""
    if is_geometry_type(field.type):
        return field.type.extension_name, field.type.__arrow_ext_serialize__()
    metadata = field.metadata or {}
    return metadata.get(NAME, b"").decode("utf-8", "replace"), metadata.get(METADATA, b"")


def _crs_name(crs: Any) -> str:
    """A coordinate system as `authority:code`, the form that all clients understand, or `UNKNOWN_CRS`."""
    if isinstance(crs, str):
        described = _parsed(crs.encode())
        plain = ":" in crs and not crs.startswith("projjson:") and not set(crs) & set("'\"{}")
        return _crs_name(described) if described else crs if plain else UNKNOWN_CRS
    known = crs.get("id") if isinstance(crs, dict) else None
    if isinstance(known, dict) and known.get("authority") and known.get("code"):
        return _crs_name(f"{known['authority']}:{known['code']}")
    return UNKNOWN_CRS


def _is_spherical(facts: Mapping[str, Any]) -> bool:
    """Are edges arcs? Such shapes are geographies, which are read as plain bytes."""
    return bool(facts.get("edges", "planar") != "planar")


def _is_binary(field: pa.Field) -> bool:
    return bool(storage_field(field).type in (pa.binary(), pa.large_binary(), pa.binary_view()))


def _parsed(document: bytes) -> dict[str, Any]:
    try:
        found = json.loads(document or b"{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


_MAX_DEPTH: Final = 200
_PARTS: Final = {"metadata", "value", "typed_value"}
_MISSING: Final = object()
_EPOCH: Final = datetime(1970, 1, 1)


def is_variant(of: pa.DataType) -> bool:
    """Is this how a variant is stored?"""
    names = {field.name for field in of} if pa.types.is_struct(of) else set()
    return "metadata" in names and names <= _PARTS


def variant_json(array: pa.StructArray) -> pa.StringArray:
    """The values as JSON; raises ValueError, IndexError or struct.error if one is damaged."""
    names = [field.name for field in array.type]
    typed = array.type.field("typed_value") if "typed_value" in names else None
    found: list[str | None] = []
    for row in reinterpreted(array, _as_numbers(array.type)).to_pylist():
        if row is None:
            found.append(None)
            continue
        value = _merged(row, typed, _keys(row["metadata"]), 0)
        found.append(None if value is _MISSING else _text(value))
    return pa.array(found, pa.string())


def _text(value: Any) -> str:
    """A value as JSON. Decimals are numbers with all their digits, which Python's encoder cannot write."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{_text(key)}:{_text(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_text, value)) + "]"
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, float) and not math.isfinite(value):
        return json.dumps("NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity")
    return json.dumps(_plain(value), ensure_ascii=False)


def _plain(value: Any) -> Any:
    """A value of a type that JSON has."""
    if isinstance(value, bytes):
        return b64encode(value).decode()
    if isinstance(value, datetime | time):
        return _without_zeros(value.isoformat(" ") if isinstance(value, datetime) else value.isoformat())
    if isinstance(value, date):
        return value.isoformat()
    return str(value) if isinstance(value, UUID) else value


def _without_zeros(text: str) -> str:
    """A time without the zeros at the end of its fraction."""
    main, point, rest = text.partition(".")
    fraction, zone = rest[:6], rest[6:]
    return f"{main}{point}{fraction.rstrip('0')}{zone}"


def _keys(metadata: bytes) -> Sequence[str]:
    """The names of keys, by number."""
    if metadata[0] & 15 != 1:
        raise ValueError(f"a variant has version {metadata[0] & 15}")
    width = (metadata[0] >> 6) + 1
    count = _number(metadata, 1, width)
    ends = [_number(metadata, 1 + width * (place + 1), width) for place in range(count + 1)]
    start = 1 + width * (count + 2)
    return [_part(metadata, start + one, start + two).decode() for one, two in pairwise(ends)]


def _number(data: bytes, at: int, width: int) -> int:
    return int.from_bytes(_part(data, at, at + width), "little")


def _part(data: bytes, start: int, end: int) -> bytes:
    if not start <= end <= len(data):
        raise ValueError("a variant is truncated")
    return data[start:end]


def _decoded(data: bytes, at: int, keys: Sequence[str], depth: int) -> Any:
    """Decode the value at a place of `data`."""
    if depth > _MAX_DEPTH:
        raise ValueError(f"a variant has more than {_MAX_DEPTH} levels")
    kind, header = data[at] & 3, data[at] >> 2
    at += 1
    if kind == 1:
        return _part(data, at, at + header).decode()
    if kind == 0:
        if header not in _PRIMITIVES:
            raise ValueError(f"a variant has a value of type {header}")
        return _PRIMITIVES[header](data, at)
    wide, large = (header & 3) + 1, bool(header & (16 if kind == 2 else 4))
    count = _number(data, at, 4 if large else 1)
    at += 4 if large else 1
    names: Sequence[int] = ()
    if kind == 2:
        width = (header >> 2 & 3) + 1
        names = [_number(data, at + place * width, width) for place in range(count)]
        at += count * width
    places = [_number(data, at + place * wide, wide) for place in range(count)]
    start = at + (count + 1) * wide
    values = [_decoded(data, start + place, keys, depth + 1) for place in places]
    return (
        values
        if kind == 3
        else dict(sorted(zip((keys[name] for name in names), values, strict=True), key=itemgetter(0)))
    )


def _packed(form: str) -> Callable[[bytes, int], Any]:
    return lambda data, at: struct.unpack_from(form, data, at)[0]


def _decimal(width: int) -> Callable[[bytes, int], Decimal]:
    def read(data: bytes, at: int) -> Decimal:
        unscaled = int.from_bytes(_part(data, at + 1, at + 1 + width), "little", signed=True)
        digits = tuple(map(int, str(abs(unscaled))))
        return Decimal((int(unscaled < 0), digits, -data[at]))

    return read


def _sized(data: bytes, at: int) -> bytes:
    return _part(data, at + 4, at + 4 + _number(data, at, 4))


def _moment(data: bytes, at: int) -> datetime:
    return _EPOCH + timedelta(microseconds=struct.unpack_from("<q", data, at)[0])


def _nanoseconds(data: bytes, at: int, suffix: str) -> str:
    seconds, rest = divmod(struct.unpack_from("<q", data, at)[0], 1_000_000_000)
    return f"{(_EPOCH + timedelta(seconds=seconds)).isoformat(' ')}.{rest:09d}{suffix}"


_PRIMITIVES: Final[Mapping[int, Callable[[bytes, int], Any]]] = {
    0: lambda *_: None,
    1: lambda *_: True,
    2: lambda *_: False,
    3: _packed("<b"),
    4: _packed("<h"),
    5: _packed("<i"),
    6: _packed("<q"),
    7: _packed("<d"),
    8: _decimal(4),
    9: _decimal(8),
    10: _decimal(16),
    11: lambda data, at: date(1970, 1, 1) + timedelta(days=struct.unpack_from("<i", data, at)[0]),
    12: lambda data, at: _moment(data, at).replace(tzinfo=UTC),
    13: _moment,
    14: _packed("<f"),
    15: _sized,
    16: lambda data, at: _sized(data, at).decode(),
    17: lambda data, at: _moment(data, at).time(),
    18: lambda data, at: _nanoseconds(data, at, "+00:00"),
    19: lambda data, at: _nanoseconds(data, at, ""),
    20: lambda data, at: UUID(bytes=_part(data, at, at + 16)),
}


def _merged(row: Mapping[str, Any], typed: pa.Field | None, keys: Sequence[str], depth: int) -> Any:
    """The value in the columns `value` and `typed_value`, of which one or both are used; `_MISSING` if none is."""
    value, own = row.get("value"), row.get("typed_value")
    if own is None or typed is None:
        return _MISSING if value is None else _decoded(value, 0, keys, depth)
    if pa.types.is_struct(typed.type):
        rest = {} if value is None else _decoded(value, 0, keys, depth)
        parts = {each.name: _merged(own[each.name], _typed(each), keys, depth + 1) for each in typed.type}
        found = rest | {name: part for name, part in parts.items() if part is not _MISSING}
        return dict(sorted(found.items(), key=itemgetter(0)))
    if pa.types.is_list(typed.type):
        return [_merged(each, _typed(typed.type.value_field), keys, depth + 1) for each in own]
    if pa.types.is_timestamp(typed.type) and typed.type.unit == "ns":
        return _nanoseconds(own.to_bytes(8, "little", signed=True), 0, "+00:00" if typed.type.tz else "")
    return own


def _as_numbers(of: pa.DataType) -> pa.DataType:
    """The type with numbers instead of timestamps in nanoseconds, which Python does not have."""
    if pa.types.is_struct(of):
        return pa.struct([each.with_type(_as_numbers(each.type)) for each in of])
    if pa.types.is_list(of):
        return pa.list_(of.value_field.with_type(_as_numbers(of.value_type)))
    return pa.int64() if pa.types.is_timestamp(of) and of.unit == "ns" else of


def _typed(field: pa.Field) -> pa.Field | None:
    place = field.type.get_field_index("typed_value")
    return None if place < 0 else field.type.field(place)
