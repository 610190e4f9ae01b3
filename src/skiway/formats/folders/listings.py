"""A folder of files as a table: snapshots that are listings, the union of the files' schemas, and partition columns.

Such a table has no log. A snapshot is a listing of the files; listings are numbered by the caller, and a listing with the
same files is the same snapshot.

Columns are matched by name, in the order in which the files, sorted by path, first have them. If their types differ, the
column has the narrowest type that can represent all of them, whatever the order of the files. The fields of structs are
merged like columns. Any other difference raises an error that names the file.

Partition values are in paths as Hive writes them: `year=2026/country=NL/part.parquet`. The type of a key depends on all of
its values: whole numbers of up to 18 digits are BIGINT, dates such as `2026-11-15` are DATE, everything else is VARCHAR.
`__HIVE_DEFAULT_PARTITION__` is NULL.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, date, datetime
from functools import cached_property
from hashlib import sha256
from typing import Final
from urllib.parse import unquote

import pyarrow as pa

from skiway.airport.conversion import is_list, plain_type
from skiway.errors import Unsupported
from skiway.formats.files import Files, Found
from skiway.formats.readers.conform import common_type
from skiway.formats.schemas import TableSchema
from skiway.formats.source import Snapshot, TableHandle
from skiway.security.source_access import Location

_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
_WHOLE: Final = re.compile(r"-?[0-9]{1,18}")
_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


def listing(
    files: Files, place: Location, suffixes: tuple[str, ...], is_data: Callable[[Found], bool]
) -> Sequence[Found]:
    """The file at `place` if it is one with such a suffix, else the files below it that are data."""
    alone = files.find(str(place)) if place.name.endswith(suffixes) else None
    return [file for file in files.walk(place) if is_data(file)] if alone is None else [alone]


class ListedTable(TableHandle):
    """The files of one listing, made when the table is loaded."""

    _listing: Sequence[Found]

    def current(self, known: Sequence[Snapshot] = ()) -> Snapshot | None:
        same = [snapshot for snapshot in known if snapshot.digest == self._digest]
        return same[-1] if same else self._snapshot(known)

    def snapshots(self, known: Sequence[Snapshot] = ()) -> list[Snapshot]:
        return [] if any(snapshot.digest == self._digest for snapshot in known) else [self._snapshot(known)]

    def schema_at(self, snapshot: Snapshot) -> TableSchema:
        self._check(snapshot)
        return self.schema

    def files(self, snapshot: Snapshot) -> pa.Table:
        self._check(snapshot)
        return self._file_table

    @property
    @abstractmethod
    def _file_table(self) -> pa.Table:
        """The file table of the listing."""

    def _snapshot(self, known: Sequence[Snapshot]) -> Snapshot:
        """The listing, numbered after those that are known."""
        newest_us = max(file.modified_us for file in self._listing)
        number = max((snapshot.id for snapshot in known), default=0) + 1
        return Snapshot(number, datetime.fromtimestamp(newest_us / 1_000_000, UTC), digest=self._digest)

    def _check(self, snapshot: Snapshot) -> None:
        if snapshot.digest != self._digest:
            raise self._no_snapshot(snapshot)

    @cached_property
    def _digest(self) -> str:
        return listing_digest(self._listing)


def listing_digest(files: Sequence[Found]) -> str:
    """A digest of the files of a listing and their content."""
    listed = "\n".join(f"{file.location}\t{file.size}\t{file.etag}" for file in files)
    return sha256(listed.encode()).hexdigest()


def merged_schema(schemas: Iterable[tuple[str, pa.Schema]]) -> pa.Schema:
    """Merge `schemas`, each given with the path of its file."""
    fields: list[pa.Field] | None = None
    for file, schema in schemas:
        own = [_plain(field) for field in schema]
        fields = own if fields is None else _merged_fields(fields, own, file, ())
        _check_names(fields, file)
    return pa.schema(fields or [])


def _merged_fields(
    known: Sequence[pa.Field], own: Sequence[pa.Field], file: str, above: tuple[str, ...]
) -> list[pa.Field]:
    others = {field.name: field for field in own}
    both = [
        _merged_field(field, others[field.name], file, above) if field.name in others else field.with_nullable(True)
        for field in known
    ]
    new = [field.with_nullable(True) for field in own if field.name not in {old.name for old in known}]
    return [*both, *new]


def _merged_field(known: pa.Field, own: pa.Field, file: str, above: tuple[str, ...]) -> pa.Field:
    path = (*above, known.name)
    of = _merged_type(known.type, own.type, file, path)
    return pa.field(known.name, of, nullable=known.nullable or own.nullable)


def _merged_type(known: pa.DataType, own: pa.DataType, file: str, path: tuple[str, ...]) -> pa.DataType:
    if pa.types.is_struct(known) and pa.types.is_struct(own):
        return pa.struct(_merged_fields(list(known), list(own), file, path))
    if pa.types.is_list(known) and pa.types.is_list(own):
        return pa.list_(_merged_field(known.value_field, own.value_field.with_name(known.value_field.name), file, path))
    if pa.types.is_map(known) and pa.types.is_map(own):
        key = _merged_type(known.key_type, own.key_type, file, path)
        return pa.map_(
            key, _merged_field(known.item_field, own.item_field.with_name(known.item_field.name), file, path)
        )
    common = common_type(known, own)
    if common is not None:
        return common
    raise Unsupported(
        f"column {'.'.join(path)!r} is {own} in file {file!r}, but {known} in the files before it; use the same type, or "
        "move the file out of the table",
        key="file.disagrees",
        file=file,
        column=".".join(path),
    )


def _check_names(fields: Sequence[pa.Field], file: str) -> None:
    seen: dict[str, str] = {}
    for field in fields:
        other = seen.get(field.name.lower())
        seen[field.name.lower()] = field.name
        if other is not None:
            raise Unsupported(
                f"file {file!r} adds column {field.name!r} to {other!r}, but column names are case-insensitive; rename one",
                key="file.disagrees",
                file=file,
                column=field.name,
            )


def _plain(field: pa.Field) -> pa.Field:
    """The field without properties of a single file: ids, dictionary encoding, large types, the JSON annotation."""
    return pa.field(field.name, _plain_type(field.type), nullable=field.nullable)


def _plain_type(of: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(of):
        return _plain_type(of.value_type)
    if pa.types.is_struct(of):
        return pa.struct([_plain(child) for child in of])
    if pa.types.is_map(of):
        return pa.map_(_plain_type(of.key_type), _plain(of.item_field))
    if is_list(of):
        return pa.list_(_plain(of.value_field.with_name("element")))
    return pa.string() if isinstance(of, pa.JsonType) else plain_type(of)


def _partition_values(path: str) -> dict[str, str | None]:
    """Parse the keys and values in the folders of `path`, which is relative to the table."""
    pairs = [segment.split("=", 1) for segment in path.split("/")[:-1] if "=" in segment]
    return {unquote(key): None if value == _NULL else unquote(value) for key, value in pairs}


def partition_columns(paths: Sequence[str]) -> dict[str, pa.Array]:
    """A column per partition key, with a value per path; raises Unsupported if paths have different keys."""
    values = [_partition_values(path) for path in paths]
    keys = list(values[0]) if values else []
    for path, found in zip(paths, values, strict=True):
        if list(found) != keys:
            raise Unsupported(
                f"file {path!r} is partitioned by {', '.join(found) or 'nothing'}, but {paths[0]!r} by "
                f"{', '.join(keys) or 'nothing'}; all files of a table must have the same partition keys, move it",
                key="file.disagrees",
                file=path,
            )
    return {key: _typed([found[key] for found in values]) for key in keys}


def _typed(values: list[str | None]) -> pa.Array:
    present = [value for value in values if value is not None]
    if present and all(_WHOLE.fullmatch(value) for value in present):
        return pa.array([None if value is None else int(value) for value in values], pa.int64())
    if present and all(map(_is_date, present)):
        return pa.array([None if value is None else date.fromisoformat(value) for value in values], pa.date32())
    return pa.array(values, pa.string())


def _is_date(text: str) -> bool:
    try:
        return bool(_DATE.fullmatch(text) and date.fromisoformat(text))
    except ValueError:
        return False
