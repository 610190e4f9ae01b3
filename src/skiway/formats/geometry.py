"""Geometry columns: WKB bytes, known to Arrow as `geoarrow.wkb`, with the name of their coordinate system.

A Parquet file declares them in one of three ways: with GeoParquet's `geo` metadata in the footer, in the Arrow schema that
the writer stored there, or with Parquet's logical type. In our Arrow schemas such a column is binary, and the metadata of
its field marks it as geometry.
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
    "WkbType",
    "as_geometry",
    "coordinate_system",
    "geometry_columns",
    "geometry_type_name",
    "is_geometry_type",
    "storage_field",
]

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
    return "geometry" if crs == DEFAULT_CRS else f"geometry('{crs}')"


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
