"""Read the metadata of tables that other engines write, with types that PyIceberg cannot parse.

Columns of type variant are read as strings with JSON. Iceberg's Java library writes the parameters of geometries and
geographies without quotes, which PyIceberg requires.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil

from skiway.formats.files import Files
from skiway.formats.iceberg.unpacking import metadata_text, naming_types

if TYPE_CHECKING:
    from requests import Response

__all__ = ["ForeignMetadata", "read_foreign_metadata", "translate_response", "variants_in"]

_SHAPE: Final = re.compile(r"(geometry|geography)\s*\(\s*([^'\",)]+?)\s*(?:,\s*(\w+)\s*)?\)")
_VARIANTS: Final = "skiway.variants"
_PARTS: Final = (("type", "id"), ("element", "element-id"), ("key", "key-id"), ("value", "value-id"))


@dataclass(frozen=True, slots=True)
class ForeignMetadata:
    """The metadata of a table for reading. The columns with the ids `variants` are strings in it; never write it back."""

    metadata: TableMetadata
    variants: frozenset[int] = frozenset()


_CONSEQUENCE: Final = "is not supported; drop the column, or copy the table with an engine that supports it"


def read_foreign_metadata(files: Files, location: str) -> ForeignMetadata:
    """Read a metadata file of a table that is not written to."""
    text = metadata_text(files, location)
    with naming_types(text, _CONSEQUENCE):
        if not _has_foreign_types(text):
            return ForeignMetadata(TableMetadataUtil.parse_raw(text))
        document = json.loads(text)
        found = _translate_schemas(document)
        return ForeignMetadata(TableMetadataUtil.parse_obj(document), found)


def translate_response(response: Response, *_: object, **__: object) -> None:
    """Replace the types in the response of a REST catalog that PyIceberg cannot parse; the config then names the variants."""
    text = response.content.decode(errors="replace")
    if not response.ok or not _has_foreign_types(text):
        return
    document = json.loads(text)
    metadata = document.get("metadata") if isinstance(document, dict) else None
    if isinstance(metadata, dict):
        variants = ",".join(map(str, sorted(_translate_schemas(metadata))))
        config = document.get("config")
        document["config"] = {**(config if isinstance(config, dict) else {}), _VARIANTS: variants}
        response._content = json.dumps(document).encode()


def variants_in(config: Mapping[str, str]) -> frozenset[int]:
    """The ids of the variants that `translate_response` has found."""
    return frozenset(int(number) for number in config.get(_VARIANTS, "").split(",") if number.isdecimal())


def _has_foreign_types(text: str) -> bool:
    return '"variant"' in text or _SHAPE.search(text) is not None


def _translate_schemas(metadata: dict[str, Any]) -> frozenset[int]:
    schemas = [*metadata.get("schemas", ()), *([metadata["schema"]] if "schema" in metadata else ())]
    return frozenset(number for schema in schemas for number in _translate(schema))


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
