"""Metadata files: opened for PyIceberg, unpacked with a limit on what they take in memory, and parsed.

`ReadingIO` and `WritingIO` let PyIceberg open files through `Files`, which checks every location.

Importing this module lets PyIceberg read and write default values of nanoseconds, which remain text.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, NoReturn

from pydantic import ValidationError as Malformed
from pyiceberg.conversions import from_json, to_json
from pyiceberg.exceptions import ValidationError
from pyiceberg.io import FileIO, InputFile, InputStream, OutputFile, OutputStream
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil
from pyiceberg.types import NestedField, TimestampNanoType, TimestamptzNanoType

from skiway.errors import LimitExceeded, Unsupported
from skiway.formats.extension_types import may_name_types
from skiway.formats.files import Files
from skiway.formats.iceberg.added_types import known_type, with_types
from skiway.formats.iceberg.warehouse import TableFiles
from skiway.formats.readers.encodings import decompressed

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from requests import Response


class ReadingIO(FileIO):
    """Lets PyIceberg read the files that a source may read."""

    def __init__(self, files: Files) -> None:
        super().__init__()
        self.files = files

    def new_input(self, location: str) -> InputFile:
        return _Input(location, self.files)

    def new_output(self, location: str) -> NoReturn:
        raise Unsupported(f"file {location!r} cannot be written: external tables are read-only")

    def delete(self, location: Any) -> NoReturn:
        raise Unsupported(f"file {location!r} cannot be deleted: external tables are read-only")


class _Input(InputFile):
    def __init__(self, location: str, files: Files) -> None:
        super().__init__(location)
        self._files = files

    def __len__(self) -> int:
        with self._files.open(self.location) as file:
            return int(file.size())

    def exists(self) -> bool:
        return len(self) >= 0

    def open(self, seekable: bool = True) -> InputStream:  # noqa: ARG002
        opened: InputStream = self._files.open(self.location)
        return opened


class WritingIO(ReadingIO):
    """Lets PyIceberg also write manifests and metadata files into the folder of a table."""

    files: TableFiles

    def new_output(self, location: str) -> OutputFile:  # type: ignore[override]
        return _Output(location, self.files)


class _Output(OutputFile):
    def __init__(self, location: str, files: TableFiles) -> None:
        super().__init__(location)
        self._files = files

    def __len__(self) -> int:
        return len(self.to_input_file())

    def exists(self) -> bool:
        return self._files.find(self.location) is not None

    def to_input_file(self) -> InputFile:
        return ReadingIO(self._files).new_input(self.location)

    def create(self, overwrite: bool = False) -> OutputStream:  # noqa: ARG002 - names are unique
        return _Buffered(self._files, self.location)


class _Buffered(io.BytesIO):
    """A small file that is written when it is closed."""

    def __init__(self, files: TableFiles, uri: str) -> None:
        super().__init__()
        self._files, self._uri = files, uri

    def close(self) -> None:
        if not self.closed:
            self._files.write(self._uri, self.getvalue())
        super().close()

    def __exit__(self, *failure: Any) -> None:
        if failure[0] is None:
            self.close()
        else:
            super().close()


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
    """Parse a schema in Iceberg's JSON format. Raise `ValueError` if it is invalid."""
    try:
        return Schema.model_validate(with_types(document))
    except (ValidationError, TypeError, LookupError, AttributeError) as error:
        raise ValueError(str(error)) from error


def table_metadata(files: Files, location: str) -> TableMetadata:
    """Read the metadata file of a table."""
    return parsed_metadata(metadata_text(files, location))


def parsed_metadata(text: str) -> TableMetadata:
    """Parse the metadata of a table. Raise `Unsupported` with the column if the type of one is unknown."""
    try:
        if may_name_types(text):
            return TableMetadataUtil.parse_obj(with_types(json.loads(text)))
        return TableMetadataUtil.parse_raw(text)
    except (Malformed, ValidationError) as error:
        unknown = next(_unknown_types(json.loads(text)), None)
        if unknown is None:
            raise
        column, name = unknown
        raise Unsupported(
            f"column {column!r} has type {name}, which is not supported; drop the column, or copy the table with an engine that "
            "supports it",
            key="table.feature",
            feature=name,
            column=column,
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
    if known_type(name) is not None:
        return False
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


_METADATA: Final = "skiway.metadata"


def keep_metadata(response: Response, *_: object, **__: object) -> None:
    """Let PyIceberg parse the response of a REST catalog with types that it does not know; `kept_metadata` has these.

    In the metadata that PyIceberg gets, all of them are strings. The config of the table has the metadata itself.
    """
    text = response.content.decode(errors="replace")
    if not response.ok or not may_name_types(text):
        return
    document = json.loads(text)
    metadata = document.get("metadata") if isinstance(document, dict) else None
    if isinstance(metadata, dict):
        config = document.get("config")
        document["config"] = {**(config if isinstance(config, dict) else {}), _METADATA: json.dumps(metadata)}
        document["metadata"] = with_types(metadata)
        response._content = json.dumps(document, default=lambda _: "string").encode()


def kept_metadata(table: Table) -> TableMetadata:
    """The metadata of a table that a REST catalog has sent, or any other catalog has read."""
    text = table.config.get(_METADATA)
    return table.metadata if text is None else parsed_metadata(text)
