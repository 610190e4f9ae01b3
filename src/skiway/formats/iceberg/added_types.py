"""Types that PyIceberg lacks, or spells in its own way: variants, geometries and geographies.

PyIceberg does not know `variant`. It puts quotes around the parameters of geometries and geographies, which the specification
and all other implementations write without, and reads only its own spelling. `with_types` replaces the names of such types in
a document by values of the classes below, which PyIceberg accepts instead of names. They are written as the specification says.
"""

from __future__ import annotations

import re
from typing import Any, Final, Literal

from pydantic import Field, model_serializer
from pyiceberg import types
from pyiceberg.conversions import from_json
from pyiceberg.types import DEFAULT_GEOGRAPHY_ALGORITHM, DEFAULT_GEOGRAPHY_CRS, DEFAULT_GEOMETRY_CRS


class VariantType(types.PrimitiveType):
    """A value of any type, which engines store as binary and this project reads as JSON."""

    root: Literal["variant"] = Field(default="variant")

    def minimum_format_version(self) -> Literal[3]:
        return 3


class GeometryType(types.GeometryType):
    """A geometry with its coordinate system. PyIceberg depends on the name of this class, and on that of the next."""

    @model_serializer
    def ser_model(self) -> str:
        return str(self)

    def __str__(self) -> str:
        return "geometry" if self.crs == DEFAULT_GEOMETRY_CRS else f"geometry({self.crs})"


class GeographyType(types.GeographyType):
    """A geography with its coordinate system and the way in which edges are interpolated."""

    def __init__(self, crs: str, algorithm: str) -> None:
        super().__init__(crs, algorithm)

    @model_serializer
    def ser_model(self) -> str:
        return str(self)

    def __str__(self) -> str:
        if self.algorithm != DEFAULT_GEOGRAPHY_ALGORITHM:
            return f"geography({self.crs}, {self.algorithm})"
        return "geography" if self.crs == DEFAULT_GEOGRAPHY_CRS else f"geography({self.crs})"


@from_json.register(VariantType)
@from_json.register(GeometryType)
@from_json.register(GeographyType)
def _no_default(of: types.PrimitiveType, value: object) -> None:
    raise ValueError(f"columns of type {of} have no default value: remove {value!r}")


_QUOTED: Final = r"\s*['\"]?([^'\",()]+?)['\"]?\s*"
_GEOMETRY: Final = re.compile(rf"geometry(?:\s*\({_QUOTED}\))?")
_ALGORITHM: Final = r"\s*['\"]?(spherical|vincenty|thomas|andoyer|karney)['\"]?\s*"
_GEOGRAPHY: Final = re.compile(rf"geography(?:\s*\({_QUOTED}(?:,{_ALGORITHM})?\))?")
_PARTS: Final = ("type", "element", "key", "value")


def known_type(name: str) -> types.IcebergType | None:
    """The type with this name, if it is one of this module."""
    if name == "variant":
        return VariantType()
    if shape := _GEOMETRY.fullmatch(name):
        return GeometryType(shape[1] or DEFAULT_GEOMETRY_CRS)
    if shape := _GEOGRAPHY.fullmatch(name):
        return GeographyType(shape[1] or DEFAULT_GEOGRAPHY_CRS, shape[2] or DEFAULT_GEOGRAPHY_ALGORITHM)
    return None


def with_types(document: Any) -> Any:
    """A parsed JSON document, or a dump of a model, with values of these types, instead of their names, in all its schemas."""
    if isinstance(document, list | tuple):
        return [with_types(item) for item in document]
    if not isinstance(document, dict):
        return document
    if document.get("type") == "struct" and isinstance(document.get("fields"), list | tuple):
        return _replaced(document)
    return {name: with_types(item) for name, item in document.items()}


def _replaced(part: Any) -> Any:
    """A field or a nested type with values of these types. Other names and values, such as those of defaults, stay."""
    if not isinstance(part, dict):
        return part
    replaced = dict(part)
    for name in _PARTS:
        of = part.get(name)
        if of is not None:
            replaced[name] = (known_type(of) or of) if isinstance(of, str) else _replaced(of)
    if isinstance(part.get("fields"), list | tuple):
        replaced["fields"] = [_replaced(field) for field in part["fields"]]
    return replaced
