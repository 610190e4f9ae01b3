# mypy: disable-error-code="no-any-return,call-arg"
# PyIceberg's models accept the names of fields, but are typed with their JSON aliases.
"""Make the Iceberg metadata of a table in another format: a snapshot for each of its versions.

A version has the same manifests as the one before it, except for the files that it adds and removes. Metadata that was made
before is extended by the versions that are new.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import pyarrow as pa

from skiway.errors import NotFound, Unsupported
from skiway.formats.iceberg import lib
from skiway.formats.iceberg.export.data_files import (
    NAME_MAPPING,
    check_deletes,
    check_shape,
    entries_of,
    iceberg_schema,
    name_mapping,
    path_of,
    refused,
)
from skiway.formats.iceberg.metadata import MAIN, updated
from skiway.formats.iceberg.types import arrow_schema
from skiway.formats.iceberg.warehouse import TableFiles
from skiway.formats.opening import OpenedTable
from skiway.formats.schemas import field_id
from skiway.formats.source import PartitionSpec, Snapshot, TableHandle, data_files, file_values

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata


FORMAT: Final = 1
"""Increased when the same versions lead to other metadata."""

ZERO_ID: Final = 10**15
"""The snapshot id of version 0: some clients take the id 0 for none."""

_EXAMINED: Final = "skiway.versions"
_FIRST_PARTITION_ID: Final = 1000
_PLAIN_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def snapshot_id(version: int) -> int:
    """The id of the snapshot for a version of the table: its number, except for version 0."""
    return version or ZERO_ID


def identity_of(version: Snapshot) -> str:
    """What tells a version from another one with the same number, of a table that was created again."""
    return version.digest or version.created_at.isoformat()


@dataclass(frozen=True, slots=True)
class _State:
    """The content of a version: its columns, its partitioning and its files."""

    handle: TableHandle
    schema: pa.Schema
    spec: PartitionSpec
    files: pa.Table

    @classmethod
    def of(cls, table: OpenedTable, version: Snapshot) -> _State:
        """Load the content; raises Unsupported if clients would read it incorrectly."""
        handle = table.at(version)
        if handle.has_mapped_columns(version):
            raise refused(
                "it uses column mapping: columns have other names in the files, and may have had other names before"
            )
        files = data_files(handle.files(version))
        check_deletes(files)
        return cls(handle, handle.schema_at(version).arrow, handle.partition_spec_at(version), files)

    @property
    def keys(self) -> list[tuple[str, str | None]]:
        """The files, with what changes if their content does."""
        return [(path, etag) for path, etag in file_values(self.files, "path", "etag")]

    @property
    def partitioned_by(self) -> list[int]:
        return [field.source_id for field in self.spec.fields]


def exported_metadata(
    table: OpenedTable,
    versions: Sequence[Snapshot],
    files: TableFiles,
    *,
    location: str,
    table_uuid: UUID,
    previous: TableMetadata | None = None,
) -> TableMetadata:
    """Write manifests for the versions, from old to new, and return metadata with the last one as the current snapshot.

    `previous` is metadata that was made before. Older versions that clients would read incorrectly, or that cannot be read
    any more, are left out. Raises Unsupported if the last one is among them.
    """
    known, made = _continued(versions, previous)
    before: _State | None = None
    if known:
        with suppress(Unsupported, NotFound):
            before = _State.of(table, versions[known - 1])
    if before is None:
        known, made = 0, None
    for version in versions[known:]:
        try:
            state = _State.of(table, version)
            made = _followed(made, before, state, version, files, location=location, table_uuid=table_uuid)
            before = state
        except (Unsupported, NotFound):
            if version is versions[-1]:
                raise
    assert made is not None
    return _finished(made, table.handle, versions)


def replacing(made: TableMetadata, previous: TableMetadata, location: str) -> TableMetadata:
    """The metadata with that at `location`, which it replaces, in its log: those who still read it need its files."""
    if previous.last_updated_ms > made.last_updated_ms:  # the table was created again
        return made.model_copy(update={"metadata_log": []})
    entry = lib.snapshots.MetadataLogEntry(metadata_file=location, timestamp_ms=previous.last_updated_ms)
    return made.model_copy(update={"metadata_log": [entry]})


def _continued(versions: Sequence[Snapshot], previous: TableMetadata | None) -> tuple[int, TableMetadata | None]:
    """How many of the versions `previous` has already, if it can be extended by the others."""
    if previous is None:
        return 0, None
    examined = json.loads(previous.properties.get(_EXAMINED, "[]"))
    wanted = [[version.id, identity_of(version)] for version in versions]
    known = len([each for each in wanted if each in examined])
    # Both are sorted by version, so this also excludes wanted versions between those that were examined.
    if not known or examined[-1] != wanted[known - 1]:
        return 0, None
    return known, previous


def _followed(
    made: TableMetadata | None,
    before: _State | None,
    state: _State,
    version: Snapshot,
    files: TableFiles,
    *,
    location: str,
    table_uuid: UUID,
) -> TableMetadata:
    """The metadata with a snapshot of one more version."""
    from skiway.formats.iceberg.changes.snapshots import NewSnapshot

    same_columns = before is not None and before.schema.equals(state.schema, check_metadata=True)
    same_layout = before is not None and before.partitioned_by == state.partitioned_by
    if made is None:
        made = _new_metadata(state, version, location=location, table_uuid=table_uuid)
    elif not (same_columns and same_layout):
        made = _with_columns(made, state)
    old = set() if before is None else set(before.keys)
    remaining = old & set(state.keys) if same_layout else set()
    if not same_columns:
        _check_remaining(state, remaining)
    new = [place for place, key in enumerate(state.keys) if key not in remaining]
    gone = old - remaining
    added = entries_of(
        state.handle,
        state.files.take(pa.array(new, pa.int64())),
        state.schema,
        spec_id=made.default_spec_id,
        sources={str(field.id): field.source_id for field in state.spec.fields},
    )
    snapshot = NewSnapshot(made, files, clock=lambda: version.created_at, snapshot_id=snapshot_id(version.id))
    if gone:
        snapshot.remove([path_of(path) for path, _ in gone])
    if added:
        snapshot.add(added, is_foreign=True)
    snapshot.merge()
    properties = {"skiway.version": str(version.id), "skiway.operation": version.summary.get("operation", "")}
    updates = snapshot.finish(_operation(version, added=bool(added), removed=bool(gone)), properties)
    return updated(made, (), updates)


def _operation(version: Snapshot, *, added: bool, removed: bool) -> str:
    if version.summary.get("operation") == "OPTIMIZE":
        return "replace"  # the same rows in other files
    if removed:
        return "overwrite" if added else "delete"
    return "append"


def _check_remaining(state: _State, remaining: set[tuple[str, str | None]]) -> None:
    """Check files of older versions against the columns that the table has now."""
    constant = [field.name for field in state.schema if field_id(field) in state.partitioned_by]
    for path, etag in sorted(remaining, key=lambda key: key[0]):
        check_shape(state.handle.file_shape(path, etag=etag), state.schema, constant, path)


def _new_metadata(state: _State, version: Snapshot, *, location: str, table_uuid: UUID) -> TableMetadata:
    schema = iceberg_schema(state.schema)
    spec = _spec(state, {})
    document = {
        "format-version": 2,
        "table-uuid": str(table_uuid),
        "location": location,
        "last-sequence-number": 0,
        "last-updated-ms": int(version.created_at.timestamp() * 1000) - 1,
        "last-column-id": schema.highest_field_id,
        "schemas": [{**schema.model_dump(), "schema-id": 0}],
        "current-schema-id": 0,
        "partition-specs": [{"spec-id": 0, "fields": spec}],
        "default-spec-id": 0,
        "last-partition-id": _FIRST_PARTITION_ID - 1 + len(spec),
        "sort-orders": [{"order-id": 0, "fields": []}],
        "default-sort-order-id": 0,
        "properties": {},
        "snapshots": [],
    }
    return lib.metadata.TableMetadataUtil.parse_obj(document)


def _spec(state: _State, known: Mapping[int, Any]) -> list[dict[str, Any]]:
    """The partition fields. A column has the same field in all specs; `known` are those so far, by column."""
    unused = max((field.field_id for field in known.values()), default=_FIRST_PARTITION_ID - 1) + 1
    fields = []
    for field in state.spec.fields:
        old = known.get(field.source_id)
        # Names of partition fields are names of Avro fields, where not all characters are valid.
        name = field.name if _PLAIN_NAME.fullmatch(field.name) else f"partition_{field.source_id}"
        number = unused if old is None else old.field_id
        unused += old is None
        fields.append({"source-id": field.source_id, "field-id": number, "transform": "identity", "name": name})
    return fields


def _with_columns(made: TableMetadata, state: _State) -> TableMetadata:
    """The metadata with the columns and the partitioning of another version."""
    known = {field.source_id: field for spec in made.partition_specs for field in spec.fields}
    spec = lib.partitioning.PartitionSpec.model_validate({"spec-id": 0, "fields": _spec(state, known)})
    updates = (
        lib.update.AddSchemaUpdate(schema_=iceberg_schema(state.schema)),
        lib.update.SetCurrentSchemaUpdate(schema_id=-1),
        lib.update.AddPartitionSpecUpdate(spec=spec),
        lib.update.SetDefaultSpecUpdate(spec_id=-1),
    )
    # The time of metadata is that of its last snapshot, and not that of this change.
    return updated(made, (), updates).model_copy(update={"last_updated_ms": made.last_updated_ms})


def _finished(made: TableMetadata, handle: TableHandle, versions: Sequence[Snapshot]) -> TableMetadata:
    """The metadata with the properties of the table, and without snapshots of other versions."""
    kept = {snapshot_id(version.id) for version in versions}
    properties = {
        NAME_MAPPING: name_mapping(arrow_schema(schema).arrow for schema in made.schemas),
        "gc.enabled": "false",  # the files belong to the source: no client may delete them
        "skiway.source-format": str(handle.format),
        _EXAMINED: json.dumps([[version.id, identity_of(version)] for version in versions]),
    }
    assert MAIN in made.refs
    return made.model_copy(
        update={
            "properties": properties,
            "snapshots": [snapshot for snapshot in made.snapshots if snapshot.snapshot_id in kept],
            "snapshot_log": [entry for entry in made.snapshot_log if entry.snapshot_id in kept],
        }
    )
