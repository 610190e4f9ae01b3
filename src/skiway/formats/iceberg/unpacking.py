"""Reads metadata files and the blocks of manifests, compressed or not, with a limit on what they take in memory.

Importing this module lets PyIceberg read and write default values of nanoseconds, which remain text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from pydantic import ValidationError as Malformed
from pyiceberg.conversions import from_json, to_json
from pyiceberg.exceptions import ValidationError
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil
from pyiceberg.types import NestedField, TimestampNanoType, TimestamptzNanoType

from skiway.errors import LimitExceeded, Unsupported
from skiway.formats.compression import decompressed
from skiway.formats.files import Files

__all__ = [
    "MAX_UNPACKED_BYTES",
    "check_unpacked",
    "metadata_text",
    "naming_types",
    "parsed_schema",
    "table_metadata",
    "unpacked",
]

MAX_UNPACKED_BYTES: Final = 256 * 1024 * 1024
"""For a metadata file, and for a manifest."""


@from_json.register(TimestampNanoType)
@from_json.register(TimestamptzNanoType)
@to_json.register(TimestampNanoType)
@to_json.register(TimestamptzNanoType)
def _nanoseconds(of: TimestampNanoType | TimestamptzNanoType, value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not a value of type {of}: write it as ISO 8601 text")
    return value


def parsed_schema(document: object) -> Schema:
    """Parse a schema in Iceberg's JSON format."""
    return Schema.model_validate(document)


def table_metadata(files: Files, location: str) -> TableMetadata:
    """Read a metadata file of a managed table."""
    text = metadata_text(files, location)
    with naming_types(
        text, "managed tables do not support; a connector of kind iceberg mirrors the table, and reads variants as JSON"
    ):
        return TableMetadataUtil.parse_raw(text)


@contextmanager
def naming_types(text: str, consequence: str) -> Iterator[None]:
    """Run a block that parses metadata; raise `Unsupported` with the column if PyIceberg does not have the type of one."""
    try:
        yield
    except (Malformed, ValidationError) as error:
        unknown = next(_unknown_types(json.loads(text)), None)
        if unknown is None:
            raise
        column, name = unknown
        raise Unsupported(
            f"column {column!r} has type {name}, which {consequence}", key="table.feature", feature=name, column=column
        ) from error


def _unknown_types(document: Any) -> Iterator[tuple[str, str]]:
    """The columns of all schemas that have a type that PyIceberg does not have, with the type."""
    schemas = document.get("schemas") or [document.get("schema")] if isinstance(document, dict) else []
    for schema in schemas if isinstance(schemas, list) else ():
        for field in schema.get("fields", ()) if isinstance(schema, dict) else ():
            if isinstance(field, dict):
                yield from (
                    (str(field.get("name")), name) for name in _type_names(field.get("type")) if _is_unknown(name)
                )


def _type_names(of: Any) -> Iterator[str]:
    if isinstance(of, str):
        yield of
    elif isinstance(of, dict):
        parts = [
            *(of.get(part) for part in ("element", "key", "value")),
            *(each.get("type") for each in of.get("fields", ())),
        ]
        for part in parts:
            yield from _type_names(part)


def _is_unknown(name: str) -> bool:
    try:
        NestedField(field_id=1, name="_", type=name, required=False)
    except (Malformed, ValidationError):
        return True
    return False


def metadata_text(files: Files, location: str) -> str:
    """Read a metadata file as JSON text."""
    with files.open(location) as file:
        check_unpacked(file.size(), location)
        data: bytes = file.read()
    if location.endswith(".gz.metadata.json"):
        data = unpacked("gzip", data, location)
    return data.decode()


def unpacked(codec: str, data: bytes, location: str) -> bytes:
    """Decompress what is part of a file; `LimitExceeded` as soon as it exceeds the limit."""
    found = decompressed(codec, data, limit=MAX_UNPACKED_BYTES + 1)
    check_unpacked(len(found), location)
    return found


def check_unpacked(size: int, location: str) -> None:
    """Raise `LimitExceeded` if a file takes too many bytes when it is decompressed."""
    if size > MAX_UNPACKED_BYTES:
        raise LimitExceeded(
            f"file {location!r} takes more than {MAX_UNPACKED_BYTES} bytes when it is decompressed, which is the limit for "
            "metadata: expire snapshots, or rewrite the manifests of the table",
            key="metadata.decoded_size",
            file=location,
            limit=str(MAX_UNPACKED_BYTES),
        )
