"""Metadata files: opened for PyIceberg, unpacked with a limit on what they take in memory, and parsed.

`ReadingIO` and `WritingIO` let PyIceberg open files through `Files`, which checks every location.

Importing this module lets PyIceberg read and write default values of nanoseconds, which remain text.

Columns of type variant are read as strings with JSON. Iceberg's Java library writes the parameters of geometries and
geographies without quotes, which PyIceberg requires.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NoReturn

from pydantic import ValidationError as Malformed
from pyiceberg.conversions import from_json, to_json
from pyiceberg.exceptions import ValidationError
from pyiceberg.io import FileIO, InputFile, InputStream, OutputFile, OutputStream
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil
from pyiceberg.types import NestedField, TimestampNanoType, TimestamptzNanoType

from skiway.errors import LimitExceeded, Unsupported
from skiway.formats.files import Files
from skiway.formats.iceberg.warehouse import TableFiles
from skiway.formats.readers.encodings import decompressed

if TYPE_CHECKING:
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
        return Schema.model_validate(document)
    except (ValidationError, TypeError, LookupError, AttributeError) as error:
        raise ValueError(str(error)) from error


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
            parameters = ", ".join(repr(group) for group in shape.groups()[1:] if group)
            of[part] = f"{shape[1]}({parameters})"
        else:
            yield from _translate(found)
    for field in of.get("fields", ()):
        yield from _translate(field)
