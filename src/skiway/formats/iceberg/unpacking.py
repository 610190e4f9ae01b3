"""Reads metadata files and the blocks of manifests, compressed or not, with a limit on what they take in memory.

Importing this module lets PyIceberg read and write default values of nanoseconds, which remain text.
"""

from __future__ import annotations

from typing import Final

from pyiceberg.conversions import from_json, to_json
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil
from pyiceberg.types import TimestampNanoType, TimestamptzNanoType

from skiway.errors import LimitExceeded
from skiway.formats.compression import decompressed
from skiway.formats.files import Files

__all__ = ["MAX_UNPACKED_BYTES", "check_unpacked", "metadata_text", "parsed_schema", "table_metadata", "unpacked"]

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
    """Read a metadata file."""
    return TableMetadataUtil.parse_raw(metadata_text(files, location))


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
