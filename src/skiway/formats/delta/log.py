"""The log of a Delta table: its versions, and its schema with column mapping.

Versions are read from the names and the first actions of commits. delta-rs can list them too, but holds the GIL while it
waits for storage.

Columns are identified by name or, with column mapping, by id and by their physical names in files.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from typing import Any, Final, NamedTuple, TypeAlias

import pyarrow as pa

from skiway.airport.layouts import is_list
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
_NESTED_IDS: Final = "delta.columnMapping.nested.ids"
_Anchor: TypeAlias = tuple[int | None, Path]
"""The id of a column or a field of a struct, and the path from there to an element, a key or a value."""


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
    element_ids: Mapping[_Anchor, int]  # of elements, keys and values, if columns are mapped

    @classmethod
    def of(
        cls, arrow: pa.Schema, partitioned_by: Sequence[str], mode: str, *, first_id: int, json_text: str = ""
    ) -> DeltaSchema:
        """Make the schema from the one that delta-rs returns, with column mapping in the metadata of its fields.

        `json_text` is the same schema as JSON, which also has the ids of elements, keys and values, if writers assign them.
        """
        fields = list(_walk(list(arrow), (), (), _mapped_id))
        element_ids: dict[_Anchor, int] = {}
        if mode == "none":
            numbers = {each.logical: path_id(each.logical) for each in fields}
        else:
            numbers, element_ids = _mapped_ids(fields, _nested_ids(json_text))
        table = TableSchema.of(with_ids(arrow, numbers.get))
        places = {each.logical: each.physical for each in fields}
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
            element_ids,
        )

    def with_ids(self, schema: pa.Schema, file: str) -> pa.Schema:
        """Add the ids of the table's columns to the schema of a file; partition columns are not read from files."""
        if self.mode != "id":
            return with_ids(schema, self.ids.get)
        if all(field_id(field) is None for field in schema):
            raise Unsupported(
                f"file {file!r} has no field ids, but the table maps columns by id; rewrite the file",
                key="table.feature",
                feature="files without field ids",
                file=file,
            )
        # Most writers give ids to the fields of structs only.
        fields = _walk(list(schema), (), (), field_id)
        numbers = {
            each.logical: each.anchor[0] if each.is_anchor else self.element_ids.get(each.anchor) for each in fields
        }
        return with_ids(schema, numbers.get)


class _Walked(NamedTuple):
    """A field with its paths. Elements, keys and values have the anchor of the struct field or column that contains them."""

    logical: Path
    physical: Path
    field: pa.Field
    anchor: _Anchor

    @property
    def is_anchor(self) -> bool:
        return not self.anchor[1]


def _mapped_id(field: pa.Field) -> int | None:
    found = (field.metadata or {}).get(_ID)
    return None if found is None else int(found)


def _mapped_ids(fields: Sequence[_Walked], nested: Mapping[_Anchor, int]) -> tuple[dict[Path, int], dict[_Anchor, int]]:
    """The ids of all fields by logical path, and those of elements, keys and values by anchor.

    Column mapping gives ids to columns and the fields of structs. If a writer has not given ids to elements, keys and values, they
    are derived from the id of the column, so that they stay when it is renamed.
    """
    missing = next((each for each in fields if each.anchor[0] is None), None)
    if missing is not None:
        name = ".".join(missing.logical)
        raise Unsupported(
            f"column {name!r} has no id, but the table maps columns by id or name; let its engine set delta.columnMapping.mode again",
            key="table.feature",
            feature="columns without ids",
            column=name,
        )
    numbers = {each.logical: each.anchor[0] or 0 for each in fields if each.is_anchor}
    taken = {*numbers.values(), *nested.values()}
    element_ids: dict[_Anchor, int] = {}
    for each in fields:
        if each.is_anchor:
            continue
        number = nested.get(each.anchor)
        if number is None:
            attempts = (path_id((str(each.anchor[0]), *each.anchor[1], *["+"] * attempt)) for attempt in count())
            number = next(attempt for attempt in attempts if attempt not in taken)
            taken.add(number)
        numbers[each.logical] = element_ids[each.anchor] = number
    return numbers, element_ids


def _nested_ids(json_text: str) -> dict[_Anchor, int]:
    """The ids that writers have given to elements, keys and values: Delta keeps them with the column or field above."""
    found: dict[_Anchor, int] = {}

    def visit(part: Any) -> None:
        if isinstance(part, list):
            for inner in part:
                visit(inner)
        elif isinstance(part, dict):
            metadata = part.get("metadata")
            if isinstance(metadata, dict) and isinstance(metadata.get(_NESTED_IDS), dict):
                prefix = f"{metadata.get(_NAME.decode(), part.get('name'))}."
                for path, number in metadata[_NESTED_IDS].items():
                    inside = tuple(path.removeprefix(prefix).split("."))
                    found[metadata.get(_ID.decode()), inside] = int(number)
            for inner in part.values():
                visit(inner)

    if _NESTED_IDS in json_text:
        visit(json.loads(json_text))
    return found


def _walk(
    fields: Sequence[pa.Field], logical: Path, physical: Path, id_of: Callable[[pa.Field], int | None]
) -> Iterator[_Walked]:
    """All fields with their logical and physical paths."""
    for field in fields:
        own = (field.metadata or {}).get(_NAME, field.name.encode()).decode()
        yield from _inside(field, (*logical, field.name), (*physical, own), (id_of(field), ()), id_of)


def _inside(
    field: pa.Field, logical: Path, physical: Path, anchor: _Anchor, id_of: Callable[[pa.Field], int | None]
) -> Iterator[_Walked]:
    yield _Walked(logical, physical, field, anchor)
    of = field.type
    parts: dict[str, pa.Field] = {}
    if pa.types.is_struct(of):
        yield from _walk(list(of), logical, physical, id_of)
    elif pa.types.is_map(of):
        parts = {"key": of.key_field, "value": of.item_field}
    elif is_list(of):
        parts = {"element": of.value_field}
    for name, part in parts.items():
        yield from _inside(part, (*logical, name), (*physical, name), (anchor[0], (*anchor[1], name)), id_of)
