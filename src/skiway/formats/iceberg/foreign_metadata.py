"""Read the metadata of tables that other engines write, with types that PyIceberg cannot parse.

Columns of type variant are read as strings with JSON. Iceberg's Java library writes the parameters of geometries and
geographies without quotes, which PyIceberg requires.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil

from skiway.formats.files import Files
from skiway.formats.iceberg.unpacking import metadata_text

__all__ = ["ForeignMetadata", "read_foreign_metadata"]

_SHAPE: Final = re.compile(r"(geometry|geography)\s*\(\s*([^'\",)]+?)\s*(?:,\s*(\w+)\s*)?\)")
_PARTS: Final = (("type", "id"), ("element", "element-id"), ("key", "key-id"), ("value", "value-id"))


@dataclass(frozen=True, slots=True)
class ForeignMetadata:
    """The metadata of a table for reading. The columns with the ids `variants` are strings in it; never write it back."""

    metadata: TableMetadata
    variants: frozenset[int] = frozenset()


def read_foreign_metadata(files: Files, location: str) -> ForeignMetadata:
    """Read a metadata file of a table that is not written to."""
    text = metadata_text(files, location)
    if '"variant"' not in text and not _SHAPE.search(text):
        return ForeignMetadata(TableMetadataUtil.parse_raw(text))
    document = json.loads(text)
    schemas = [*document.get("schemas", ()), *([document["schema"]] if "schema" in document else ())]
    found = frozenset(number for schema in schemas for number in _translate(schema))
    return ForeignMetadata(TableMetadataUtil.parse_obj(document), found)


def _translate(of: Any) -> Iterator[int]:
    """Replace the types in a schema, a field or a type, and yield the ids of the fields that are variants."""
    if not isinstance(of, dict):
        return
    for part, number in _PARTS:
        found = of.get(part)
        if found == "variant":
            of[part] = "string"
            yield of[number]
        elif isinstance(found, str) and (shape := _SHAPE.fullmatch(found)):
            parameters = ", ".join(repr(each) for each in shape.groups()[1:] if each)
            of[part] = f"{shape[1]}({parameters})"
        else:
            yield from _translate(found)
    for field in of.get("fields", ()):
        yield from _translate(field)
