"""The versions in the log of a Delta table, from the names and the first facts of its commits.

delta-rs can tell the history too, but lets no other thread of Python run while it waits for storage.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa

from skiway.errors import Unsupported
from skiway.formats.files import Files, Found
from skiway.formats.locations import Location
from skiway.formats.schemas import Path, TableSchema, field_id, identified, leaves, path_id
from skiway.formats.source import PartitionField, PartitionSpec, Snapshot

__all__ = ["DeltaSchema", "snapshots"]

_COMMIT: Final = re.compile(r"(\d{20})\.json")
_CHECKPOINT: Final = re.compile(r"(\d{20})\.checkpoint\..*")
_AT_ONCE: Final = 8


def snapshots(
    files: Files, table: Location, *, upto: int, since: int = 0, without: Set[int] = frozenset()
) -> list[Snapshot]:
    """The versions from `since` to `upto` that the log can still tell of, but for those in `without`."""
    listed = files.children(table / "_delta_log")[1]
    commits = _by_version(listed, _COMMIT)
    checkpoints = _by_version(listed, _CHECKPOINT)
    first = 0 if 0 in commits else min(checkpoints, default=upto)
    known = {**checkpoints, **commits}  # of an old version there may be a checkpoint only
    wanted = [version for version in sorted(known) if max(first, since) <= version <= upto and version not in without]
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        infos = list(threads.map(lambda version: _info(files, commits.get(version)), wanted))
    return [_snapshot(version, info, known[version], first) for version, info in zip(wanted, infos, strict=True)]


def _by_version(listed: list[Found], form: re.Pattern[str]) -> dict[int, Found]:
    matched = [(form.fullmatch(each.location.name), each) for each in listed]
    return {int(found[1]): each for found, each in matched if found}


def _info(files: Files, commit: Found | None) -> dict[str, Any]:
    """What the writer noted about a commit; nothing for one that cannot be read, since rows do not depend on it."""
    if commit is None:
        return {}
    for line in files.read(str(commit.location)).splitlines():
        try:
            action = json.loads(line)
        except ValueError:
            return {}
        if isinstance(action, dict) and isinstance(action.get("commitInfo"), dict):
            return dict(action["commitInfo"])
    return {}


def _snapshot(version: int, info: dict[str, Any], file: Found, first: int) -> Snapshot:
    noted = info.get("inCommitTimestamp", info.get("timestamp"))
    millis = noted if isinstance(noted, int) else file.modified_us // 1000
    return Snapshot(
        id=version,
        created_at=datetime.fromtimestamp(millis / 1000, UTC),
        parent_id=version - 1 if version > first else None,
        sequence_number=version,
        summary={"operation": str(info.get("operation", ""))},
    )


# --------------------
# Delta's schemas: by name, or, with column mapping, by ids and by the names that columns have in files.


_ID: Final = b"delta.columnMapping.id"
_NAME: Final = b"delta.columnMapping.physicalName"


@dataclass(frozen=True)
class DeltaSchema:
    """A table's schema, and how its columns are found in files."""

    table: TableSchema
    spec: PartitionSpec
    physical: Mapping[int, Path]  # where a leaf is in files and in the log, by its id
    mode: str
    ids: Mapping[Path, int]  # of all fields, by where they are in files

    @classmethod
    def of(cls, arrow: pa.Schema, partitioned_by: Sequence[str], mode: str, *, first_id: int) -> DeltaSchema:
        """`arrow` is the schema as delta-rs gives it, with column mapping in the metadata of its fields."""
        fields = list(_walk(list(arrow), (), ()))
        if mode == "none":
            numbers = {logical: path_id(logical) for logical, _, _ in fields}
        else:
            numbers = {logical: int((field.metadata or {})[_ID]) for logical, _, field in fields if _has_id(field)}
        table = TableSchema.of(identified(arrow, numbers.get))
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

    def identified(self, schema: pa.Schema, file: str) -> pa.Schema:
        """A file's schema with the ids of the table's columns; those it is partitioned by are not taken from files."""
        if self.mode == "id":
            if all(field_id(field) is None for field in schema):
                raise Unsupported(
                    f"file {file!r} has no field ids, but its table maps columns by id; rewrite the file",
                    key="table.feature",
                    feature="files without field ids",
                    file=file,
                )
            return schema
        return identified(schema, self.ids.get)


def _has_id(field: pa.Field) -> bool:
    return _ID in (field.metadata or {})


def _walk(fields: Sequence[pa.Field], logical: Path, physical: Path) -> Iterator[tuple[Path, Path, pa.Field]]:
    """Every field with its path as users see it and as files have it."""
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
