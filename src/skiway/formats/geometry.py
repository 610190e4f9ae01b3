"""Columns of geometries: WKB in bytes, which Arrow knows as `geoarrow.wkb`, with the name of their coordinate system.

A Parquet file says so in one of three ways: GeoParquet's `geo` in its footer, the Arrow schema that its writer left
there, or Parquet's own logical type. In an Arrow schema of ours such a column is bytes, and metadata of its field says
that they are geometries.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

if TYPE_CHECKING:
    from pyarrow.parquet import FileMetaData

__all__ = [
    "EXTENSION",
    "UNKNOWN_CRS",
    "as_geometry",
    "coordinate_system",
    "geometry_columns",
    "geometry_type_name",
    "is_geometry_type",
    "stored",
]

DEFAULT_CRS: Final = "OGC:CRS84"  # meant by GeoParquet, Parquet and Iceberg where none is named
UNKNOWN_CRS: Final = "srid:0"  # so called by Parquet and Iceberg

NAME: Final = b"ARROW:extension:name"
METADATA: Final = b"ARROW:extension:metadata"
EXTENSION: Final = (NAME, METADATA)

_WKB: Final = ("geoarrow.wkb", "ogc.wkb")


def as_geometry(field: pa.Field, crs: str) -> pa.Field:
    """`field`, a column of WKB, marked as geometries in the coordinate system `crs`."""
    told = {} if crs == UNKNOWN_CRS else {"crs": crs}
    marks = {NAME: _WKB[0].encode(), METADATA: json.dumps(told).encode()}
    return field.with_metadata({**(field.metadata or {}), **marks})


def coordinate_system(field: pa.Field) -> str | None:
    """That of a column of geometries; None for any other column."""
    name, told = _extension(field)
    if name not in _WKB:
        return None
    facts = _parsed(told)
    return None if _is_spherical(facts) else _crs_name(facts.get("crs"))


def geometry_type_name(crs: str) -> str:
    """What Iceberg calls the type of geometries in a coordinate system."""
    return "geometry" if crs == DEFAULT_CRS else f"geometry('{crs}')"


def is_geometry_type(of: pa.DataType) -> bool:
    """Whether this is pyarrow's type for geometries, which it uses once some library has told it of that."""
    return isinstance(of, pa.BaseExtensionType) and str(of.extension_name) in _WKB


def stored(field: pa.Field) -> pa.Field:
    """`field` with plain bytes, if pyarrow has a type of its own for its geometries."""
    return field.with_type(field.type.storage_type) if is_geometry_type(field.type) else field


def geometry_columns(footer: FileMetaData, schema: pa.Schema) -> dict[str, str]:
    """The columns of a Parquet file that hold WKB, by what it says itself, with their coordinate systems."""
    said = {field.name: crs for field in schema if (crs := coordinate_system(field)) is not None}
    # Arrow's word counts least: what pyarrow makes of it differs by the libraries that were loaded.
    said |= _logical_types(footer) | _geoparquet((schema.metadata or {}).get(b"geo", b""))
    return {name: crs for name, crs in said.items() if name in schema.names and _holds_bytes(schema.field(name))}


def _geoparquet(document: bytes) -> dict[str, str]:
    """What GeoParquet's metadata says; columns that are kept in another way than as WKB are no bytes."""
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
    """Name and metadata of an extension type, also of one that pyarrow was not told of."""
    if is_geometry_type(field.type):
        return field.type.extension_name, field.type.__arrow_ext_serialize__()
    metadata = field.metadata or {}
    return metadata.get(NAME, b"").decode("utf-8", "replace"), metadata.get(METADATA, b"")


def _crs_name(crs: Any) -> str:
    """A coordinate system as `authority:code`, which is the form that all clients understand; else it is unknown."""
    if isinstance(crs, str):
        described = _parsed(crs.encode())
        plain = ":" in crs and not crs.startswith("projjson:") and not set(crs) & set("'\"{}")
        return _crs_name(described) if described else crs if plain else UNKNOWN_CRS
    known = crs.get("id") if isinstance(crs, dict) else None
    if isinstance(known, dict) and known.get("authority") and known.get("code"):
        return _crs_name(f"{known['authority']}:{known['code']}")
    return UNKNOWN_CRS


def _is_spherical(facts: Mapping[str, Any]) -> bool:
    """Whether edges are arcs: such shapes are no geometries but geographies, which are shown as the bytes they are."""
    return bool(facts.get("edges", "planar") != "planar")


def _holds_bytes(field: pa.Field) -> bool:
    return bool(stored(field).type in (pa.binary(), pa.large_binary(), pa.binary_view()))


def _parsed(document: bytes) -> dict[str, Any]:
    try:
        found = json.loads(document or b"{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
