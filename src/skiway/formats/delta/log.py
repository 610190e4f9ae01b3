"""The log of a Delta table: its versions, its schema with column mapping, and the files to which it refers.

Versions are read from the names and the first actions of commits. delta-rs can list them too, but holds the GIL while it
waits for storage.

Columns are identified by name or, with column mapping, by id and by their physical names in files.

A log may refer to files anywhere, and files of the log may be symbolic links. So all of them are checked before delta-rs
sees the table. Data files are read by the Parquet reader, which checks them as well.
"""

from __future__ import annotations

import base64
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
from urllib.parse import unquote
from uuid import UUID

import pyarrow as pa

from skiway.airport.conversion import is_list
from skiway.errors import PermissionDenied, SkiwayError, Unsupported
from skiway.formats.files import Files, Found, decoding
from skiway.formats.readers.parquet import open_file
from skiway.formats.schemas import Path, TableSchema, field_id, leaves, path_id, with_ids
from skiway.formats.source import PartitionField, PartitionSpec, Snapshot
from skiway.security.source_access import Location, location

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
    matched = [(form.fullmatch(file.location.name), file) for file in listed]
    return {int(match[1]): file for match, file in matched if match}


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
    # If the log has no time, or none that exists, it is that of the file, in milliseconds like all times of Delta.
    created_at = datetime.fromtimestamp(file.modified_us // 1000 / 1000, UTC)
    millis = info.get("inCommitTimestamp", info.get("timestamp"))
    if isinstance(millis, int):
        with suppress(OverflowError, ValueError, OSError):
            created_at = datetime.fromtimestamp(millis / 1000, UTC)
    return Snapshot(
        id=version,
        created_at=created_at,
        parent_id=version - 1 if version > first else None,
        sequence_number=version,
        summary={"operation": str(info.get("operation", ""))},
        digest=hashlib.blake2b(commit, digest_size=16).hexdigest() if commit else "",
    )


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
            numbers = {field.logical: path_id(field.logical) for field in fields}
        else:
            numbers, element_ids = _mapped_ids(fields, _nested_ids(json_text))
        table = TableSchema.of(with_ids(arrow, numbers.get))
        places = {field.logical: field.physical for field in fields}
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
            field.logical: field.anchor[0] if field.is_anchor else self.element_ids.get(field.anchor)
            for field in fields
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
    for field in fields:
        if field.is_anchor:
            continue
        number = nested.get(field.anchor)
        if number is None:
            attempts = (path_id((str(field.anchor[0]), *field.anchor[1], *["+"] * attempt)) for attempt in count())
            number = next(attempt for attempt in attempts if attempt not in taken)
            taken.add(number)
        numbers[field.logical] = element_ids[field.anchor] = number
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


_CHECKPOINT_FILE: Final = re.compile(r"\d{20}\.checkpoint\..*(parquet|json)")
_COMMIT_FILE: Final = re.compile(r"\d{20}\.json")
_ABSOLUTE: Final = re.compile(r"/|[A-Za-z][A-Za-z0-9+.-]*:")
_UUID_CHARACTERS: Final = 20
_Z85: Final = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_B85: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"


def check_log(files: Files, table: Location) -> None:
    """Raise PermissionDenied if the log of a table leads to files that its source may not read."""
    folder = table / "_delta_log"
    if folder.scheme == "file":
        for link in files.links(folder):
            files.reach.check(link)
    for checkpoint in _matching(files, folder, _CHECKPOINT_FILE):
        for action in _actions(files, checkpoint, "sidecar"):
            _check(files, folder / "_sidecars", str(action.get("path", "")))


def check_vectors(files: Files, table: Location) -> None:
    """Raise PermissionDenied if a deletion vector is in a file that the source may not read."""
    folder = table / "_delta_log"
    logged = [*_matching(files, folder, _COMMIT_FILE), *_matching(files, folder, _CHECKPOINT_FILE)]
    if (folder / "_sidecars") in files.children(folder)[0]:
        logged += files.children(folder / "_sidecars")[1]
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        for actions in threads.map(lambda file: list(_actions(files, file, "add")), logged):
            for action in actions:
                vector = action.get("deletionVector")
                if isinstance(vector, dict) and vector.get("storageType") in ("u", "p"):
                    _check_vector(files, table, vector["storageType"], str(vector.get("pathOrInlineDv", "")))


def _check_vector(files: Files, table: Location, kind: str, path: str) -> None:
    if kind == "p":
        _check(files, table, path)
        return
    prefix, encoded = path[:-_UUID_CHARACTERS], path[-_UUID_CHARACTERS:]
    name = f"deletion_vector_{_uuid(encoded)}.bin"
    _check(files, table, f"{prefix}/{name}" if prefix else name)


def _uuid(encoded: str) -> str:
    try:
        return str(UUID(bytes=base64.b85decode(encoded.translate(str.maketrans(_Z85, _B85)))))
    except ValueError:
        return "invalid"  # delta-rs rejects it too


def _check(files: Files, base: Location, path: str) -> None:
    """Check the file at `path`, which is a URL or relative to `base`."""
    plain = unquote(path)
    try:
        place = location(plain) if _ABSOLUTE.match(plain) else location(f"{base}/{plain}")
    except SkiwayError:
        place = None
    # delta-rs opens a URL of another bucket in the bucket of the table.
    if place is None or (place.scheme, place.bucket) != (base.scheme, base.bucket):
        raise PermissionDenied(
            f"the log of the table at {str(base)!r} refers to a file outside of its storage, which is not opened",
            key="location.outside",
            location=str(base),
        )
    files.reach.check(place)


def _matching(files: Files, folder: Location, form: re.Pattern[str]) -> list[Found]:
    return [file for file in files.children(folder)[1] if form.fullmatch(file.location.name)]


def _actions(files: Files, file: Found, kind: str) -> Iterator[dict[str, Any]]:
    """The actions of one kind in a file of the log."""
    uri = str(file.location)
    if not file.location.name.endswith(".json"):
        with decoding(files, uri), open_file(files, uri) as parquet:
            wanted = {"sidecar": ["sidecar"], "add": ["add.deletionVector"]}[kind]
            if kind not in parquet.schema_arrow.names:
                return
            for batch in parquet.iter_batches(columns=wanted):
                if kind in batch.schema.names:
                    yield from filter(None, batch[kind].to_pylist())
        return
    for line in files.read(uri).splitlines():
        if kind.encode() in line:
            try:
                action = json.loads(line)
            except ValueError:
                continue  # delta-rs reports it
            if isinstance(action, dict) and isinstance(action.get(kind), dict):
                yield action[kind]
