"""Geometry columns: converts between shapely geometries and the GeoArrow type `geoarrow.wkb`.

DuckDB 1.5 shows such a column as GEOMETRY. Older versions need the spatial extension and
`register_geoarrow_extensions()`. Importing this module registers the extension type with pyarrow. It requires the extra
`skiway[geometry]`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeAlias

import pyarrow as pa

from skiway.airport.wire.duckdb_sql import extension_of
from skiway.errors import InvalidArgument
from skiway.foundation import extras

with extras.needed("geometry", "skiway.airport.geometry"):
    import geoarrow.pyarrow as ga
    import numpy as np
    import shapely
    from shapely.errors import GEOSException, ShapelyError
    from shapely.geometry.base import BaseGeometry

__all__ = [
    "GEOMETRY_TYPES",
    "check_geometries",
    "crs_of",
    "decode",
    "encode",
    "geometries",
    "geometry_array",
    "geometry_field",
    "geometry_type",
    "type_name",
    "validate",
]

GEOMETRY_TYPES: Final = (
    "Point", "LineString", "Polygon", "MultiPoint", "MultiLineString", "MultiPolygon", "GeometryCollection",
)  # fmt: skip
ANY: Final = ("", "GEOMETRY")
_CONSTRAINT: Final = b"geometry_type"

Geometry: TypeAlias = BaseGeometry | bytes | str  # shapely, WKB or WKT


def geometry_type(srid: int | None = None) -> pa.ExtensionType:
    """The extension type `geoarrow.wkb`, with the coordinate system of the EPSG code `srid`."""
    kind = ga.wkb()
    return kind if srid is None else kind.with_crs(f"EPSG:{srid}")


def geometry_field(name: str, *, srid: int | None = 4326, kind: str = "", nullable: bool = True) -> pa.Field:
    """A field for geometries of one type ("Point", "Polygon", …), or of any type ("" or "GEOMETRY")."""
    if kind not in GEOMETRY_TYPES and kind not in ANY:
        raise InvalidArgument(f"unknown geometry type {kind!r}; use {', '.join(GEOMETRY_TYPES)}, or '' for any type")
    metadata = {} if kind in ANY else {_CONSTRAINT: kind.encode()}
    return pa.field(name, geometry_type(srid), nullable=nullable, metadata=metadata or None)


def geometry_array(
    values: Iterable[Geometry | None] | pa.Array, *, valid: Sequence[bool] | None = None, srid: int | None = None
) -> pa.ExtensionArray:
    """An array of shapely geometries, WKB or WKT. None, and values whose `valid` is False, become NULL."""
    items = values.to_pylist() if isinstance(values, pa.Array | pa.ChunkedArray) else list(values)
    if valid is not None and len(valid) != len(items):
        raise InvalidArgument(f"{len(items)} geometries, but a validity mask of length {len(valid)}")
    shapes = np.array(
        [None if valid is not None and not valid[i] else _shape(value) for i, value in enumerate(items)], dtype=object
    )
    storage = pa.array(shapely.to_wkb(shapes), pa.binary())
    return pa.ExtensionArray.from_storage(geometry_type(srid), storage)


def geometries(array: pa.Array | pa.ChunkedArray) -> np.ndarray[Any, Any]:
    """The shapely geometries of a WKB column. NULL becomes None."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    storage = array.storage if isinstance(array, pa.ExtensionArray) else array
    try:
        return np.asarray(
            shapely.from_wkb(np.asarray(storage.to_numpy(zero_copy_only=False), dtype=object)), dtype=object
        )
    except ShapelyError as error:
        raise InvalidArgument(f"the column does not contain WKB: {_readable(error)}") from error


def encode(geometry: Geometry) -> bytes:
    """Encode a geometry as WKB."""
    data: bytes = shapely.to_wkb(_shape(geometry))
    return data


def decode(wkb: bytes) -> BaseGeometry:
    """Decode a geometry from WKB."""
    return _shape(bytes(wkb))


def type_name(geometry: Geometry) -> str:
    """The type of a geometry: Point, Polygon, and so on."""
    return str(_shape(geometry).geom_type)


def validate(geometry: Geometry, kind: str = "") -> None:
    """Raise `InvalidArgument` if a geometry is invalid or not of type `kind`."""
    shape = _shape(geometry)
    if kind not in ANY and shape.geom_type != kind:
        raise InvalidArgument(f"expected a {kind}, found a {shape.geom_type}")
    if not bool(np.all(np.isfinite(shapely.get_coordinates(shape)))):
        raise InvalidArgument(f"{shape.geom_type} has a coordinate that is not a finite number")
    if not shape.is_valid:
        raise InvalidArgument(f"{shape.geom_type} is not valid: {shapely.is_valid_reason(shape)}")


def check_geometries(array: pa.Array | pa.ChunkedArray, field: pa.Field) -> None:
    """Raise `InvalidArgument` if a geometry of the column is not of the field's type. The error names the row."""
    expected = (field.metadata or {}).get(_CONSTRAINT, b"").decode()
    if not expected:
        return
    type_ids = shapely.get_type_id(geometries(array))
    numbers = {name: number for number, name in enumerate(["Point", "LineString", "LinearRing", *GEOMETRY_TYPES[2:]])}
    wrong = np.flatnonzero((type_ids >= 0) & (type_ids != numbers[expected]))
    if len(wrong):
        name = {number: name for name, number in numbers.items()}[int(type_ids[wrong[0]])]
        raise InvalidArgument(
            f"column {field.name!r} only accepts {expected} geometries; row {int(wrong[0])} is a {name}"
        )


def crs_of(field: pa.Field) -> str | None:
    """The coordinate system of a geometry field, or None."""
    _, metadata = extension_of(field)
    crs = json.loads(metadata or "{}").get("crs")
    return None if crs is None else crs if isinstance(crs, str) else json.dumps(crs)


def _shape(value: object) -> Any:
    if value is None or isinstance(value, BaseGeometry):
        return value
    try:
        if isinstance(value, bytes):
            return shapely.from_wkb(value)
        if isinstance(value, str):
            return shapely.from_wkt(value)
    except ShapelyError as error:
        raise InvalidArgument(_readable(error) or "not a geometry") from error
    raise InvalidArgument(
        f"{type(value).__name__} is not a geometry: pass a shapely geometry, WKB bytes or a WKT string"
    )


def _readable(error: Exception) -> str:
    """A readable message for an error of shapely or GEOS."""
    text = str(error)
    if "do not form a closed linestring" in text:
        return "polygon ring is not closed: its first and last points must be the same"
    if "number of points in LinearRing" in text:
        return "polygon ring has too few points: it needs at least four"
    return text.partition("Exception: ")[2] or text if isinstance(error, GEOSException) else text
