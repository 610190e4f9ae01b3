"""The log of a Delta table: its versions, and its schema with column mapping.

Versions are read from the names and the first actions of commits. delta-rs can list them too, but holds the GIL while it
waits for storage.

Columns are identified by name or, with column mapping, by id and by their physical names in files.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa

from skiway.errors import Unsupported
from skiway.formats.files import Files, Found
from skiway.formats.schemas import Path, TableSchema, field_id, leaves, path_id, with_ids
from skiway.formats.source import PartitionField, PartitionSpec, Snapshot
from skiway.security.source_access import Location

__all__ = ["DeltaSchema", "snapshots"]

_COMMIT: Final = re.compile(r"(\d{20})\.json")
_CHECKPOINT: Final = re.compile(r"(\d{20})\.checkpoint\..*")
_AT_ONCE: Final = 8  # commits to read
_ID: Final = b"delta.columnMapping.id"
_NAME: Final = b"delta.columnMapping.physicalName"


def snapshots(
    files: Files, table: Location, *, upto: int, since: int = 0, without: Set[int] = frozenset()
) -> list[Snapshot]:
    """The versions from `since` to `upto` that the log still has, except those in `without`."""
    listed = files.children(table / "_delta_log")[1]
    commits = _by_version(listed, _COMMIT)
    checkpoints = _by_version(listed, _CHECKPOINT)
    first = 0 if 0 in commits else min(checkpoints, default=upto)
    known = {**checkpoints, **commits}  # an old version may have a checkpoint only
    wanted = [version for version in sorted(known) if max(first, since) <= version <= upto and version not in without]
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        contents = list(threads.map(lambda version: _content(files, commits.get(version)), wanted))
    return [_snapshot(version, data, known[version], first) for version, data in zip(wanted, contents, strict=True)]


def _by_version(listed: list[Found], form: re.Pattern[str]) -> dict[int, Found]:
    matched = [(form.fullmatch(each.location.name), each) for each in listed]
    return {int(found[1]): each for found, each in matched if found}


def _content(files: Files, commit: Found | None) -> bytes:
    return b"" if commit is None else files.read(str(commit.location))


def _info(commit: bytes) -> dict[str, Any]:
    """The `commitInfo` of a commit; empty if it cannot be parsed, as rows do not depend on it."""
    for line in commit.splitlines():
        try:
            action = json.loads(line)
        except ValueError:
            return {}
        if isinstance(action, dict) and isinstance(action.get("commitInfo"), dict):
            return dict(action["commitInfo"])
    return {}


def _snapshot(version: int, commit: bytes, file: Found, first: int) -> Snapshot:
    info = _info(commit)
    return Snapshot(
        id=version,
        created_at=_moment(info.get("inCommitTimestamp", info.get("timestamp")), file),
        parent_id=version - 1 if version > first else None,
        sequence_number=version,
        summary={"operation": str(info.get("operation", ""))},
        digest=hashlib.blake2b(commit, digest_size=16).hexdigest() if commit else "",
    )


def _moment(millis: object, file: Found) -> datetime:
    """The time of a commit; if its log has none, or none that exists, the time of its file."""
    if isinstance(millis, int):
        with suppress(OverflowError, ValueError, OSError):
            return datetime.fromtimestamp(millis / 1000, UTC)
    return datetime.fromtimestamp(file.modified_us // 1000 / 1000, UTC)  # in milliseconds, like all times of Delta


@dataclass(frozen=True)
class DeltaSchema:
    """The schema of a table, and how to find its columns in files."""

    table: TableSchema
    spec: PartitionSpec
    physical: Mapping[int, Path]  # path of a leaf in files and in the log, by id
    mode: str
    ids: Mapping[Path, int]  # of all fields, by their paths in files

    @classmethod
    def of(cls, arrow: pa.Schema, partitioned_by: Sequence[str], mode: str, *, first_id: int) -> DeltaSchema:
        """Make the schema from the one that delta-rs returns, with column mapping in the metadata of its fields."""
        fields = list(_walk(list(arrow), (), ()))
        if mode == "none":
            numbers = {logical: path_id(logical) for logical, _, _ in fields}
        else:
            numbers = {logical: int((field.metadata or {})[_ID]) for logical, _, field in fields if _has_id(field)}
        table = TableSchema.of(with_ids(arrow, numbers.get))
        places = {logical: physical for logical, physical, _ in fields}
        columns = [table.arrow.field(name) for name in partitioned_by]
        spec = [
            PartitionField(first_id + place, column.name, field_id(column) or 0) for place, column in enumerate(columns)
        ]
        return cls(
            table,
            PartitionSpec(0, tuple(spec)),
            {leaf.id: places[leaf.path] for leaf in leaves(table.arrow)},
            mode,
            {places[logical]: number for logical, number in numbers.items()},
        )

    def with_ids(self, schema: pa.Schema, file: str) -> pa.Schema:
        """Add the ids of the table's columns to the schema of a file; partition columns are not read from files."""
        if self.mode == "id":
            if all(field_id(field) is None for field in schema):
                raise Unsupported(
                    f"file {file!r} has no field ids, but the table maps columns by id; rewrite the file",
                    key="table.feature",
                    feature="files without field ids",
                    file=file,
                )
            return schema
        return with_ids(schema, self.ids.get)


def _has_id(field: pa.Field) -> bool:
    return _ID in (field.metadata or {})


def _walk(fields: Sequence[pa.Field], logical: Path, physical: Path) -> Iterator[tuple[Path, Path, pa.Field]]:
    """All fields with their logical and physical paths."""
    for field in fields:
        own = (field.metadata or {}).get(_NAME, field.name.encode()).decode()
        yield from _inside(field, (*logical, field.name), (*physical, own))


def _inside(field: pa.Field, logical: Path, physical: Path) -> Iterator[tuple[Path, Path, pa.Field]]:
    yield logical, physical, field
    of = field.type
    if pa.types.is_struct(of):
        yield from _walk(list(of), logical, physical)
    elif pa.types.is_map(of):
        yield from _inside(of.key_field, (*logical, "key"), (*physical, "key"))
        yield from _inside(of.item_field, (*logical, "value"), (*physical, "value"))
    elif pa.types.is_list(of) or pa.types.is_large_list(of):
        yield from _inside(of.value_field, (*logical, "element"), (*physical, "element"))
