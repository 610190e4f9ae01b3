"""The files of a snapshot as one Arrow table, sorted by path, and the stored profiles of data files."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from skiway.formats import Content, Snapshot, TableHandle, canonical_columns, partition_json
from skiway.metastore.records import keys
from skiway.metastore.records.kinds import Kind
from skiway.metastore.records.realm import Realm, timestamp
from skiway.metastore.records.repository import Repository, Stored
from skiway.metastore.records.updates import inside
from skiway.metastore.resources import hierarchy
from skiway.model import v1

PLAIN = (
    "file_path",
    "file_format",
    "row_count",
    "size_bytes",
    "file_content",
    "partition_data_json",
    "partition_spec_id",
)
IN_COLUMN = ("column_id", "column_name", "logical_type", "value_count", "null_count", "nan_count", "min", "max")
OPTIONAL = ("null_count", "nan_count", "min", "max")

COLUMN = pa.struct(
    {
        "column_id": pa.int64(),
        "column_name": pa.string(),
        "logical_type": pa.string(),
        "value_count": pa.int64(),
        "null_count": pa.int64(),
        "nan_count": pa.int64(),
        "min": pa.string(),
        "max": pa.string(),
        "rest": pa.binary(),
    }
)
SCHEMA = pa.schema(
    {
        "file_path": pa.string(),
        "file_format": pa.string(),
        "row_count": pa.int64(),
        "size_bytes": pa.int64(),
        "file_content": pa.int32(),
        "partition_data_json": pa.string(),
        "partition_spec_id": pa.int32(),
        "equality_field_ids": pa.list_(pa.int32()),
        "sequence_number": pa.int64(),
        "etag": pa.string(),  # of the content, for formats that do not guarantee immutable files
        "columns": pa.list_(COLUMN),
        "put_key": pa.string(),
        "put_fingerprint": pa.string(),
        "put_expires_at": pa.timestamp("us", tz="UTC"),
    }
)


def opened(data: bytes) -> pa.Table:
    """The table in an Arrow file, without a copy; an empty table for no bytes."""
    return pa.ipc.open_file(pa.py_buffer(data)).read_all() if data else SCHEMA.empty_table()


def written(table: pa.Table) -> bytes:
    """The table as an Arrow file."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def rows(files: Iterable[v1.FileColumnStats], puts: Mapping[str, v1.ItemPut]) -> pa.Table:
    """Messages as rows. `puts` has the idempotency keys by path."""
    return pa.Table.from_pylist([_row(file, puts.get(file.file_path)) for file in files], schema=SCHEMA)


def merged(table: pa.Table, newer: pa.Table) -> pa.Table:
    """Both tables. A row of `newer` replaces the row of `table` with the same path."""
    kept = table.filter(pc.invert(pc.is_in(table["file_path"], value_set=newer["file_path"].combine_chunks())))
    return pa.concat_tables([kept, newer]).sort_by("file_path").combine_chunks()


def files_after(
    table: pa.Table, path: str, *, limit: int, table_id: v1.ResourceId, snapshot_id: int
) -> list[v1.FileColumnStats]:
    """Up to `limit` files whose paths sort after `path`, in the order of paths."""
    page = table.filter(pc.greater(table["file_path"], path)).slice(0, limit) if path else table.slice(0, limit)
    return [_file(row, table_id, snapshot_id) for row in page.to_pylist()]


def last_puts(table: pa.Table, paths: Iterable[str], *, now: datetime) -> dict[str, v1.ItemPut]:
    """The idempotency keys that these files were last stored with, unless they have expired."""
    wanted = pc.is_in(table["file_path"], value_set=pa.array(list(paths), pa.string()))
    live = pc.fill_null(pc.greater(table["put_expires_at"], pa.scalar(now, pa.timestamp("us", tz="UTC"))), False)
    found = table.filter(pc.and_(wanted, live)).select(["file_path", "put_key", "put_fingerprint"])
    return {
        row["file_path"]: v1.ItemPut(key=row["put_key"], fingerprint=row["put_fingerprint"])
        for row in found.to_pylist()
    }


def _row(file: v1.FileColumnStats, put: v1.ItemPut | None) -> dict[str, Any]:
    return {
        **{field: getattr(file, field) for field in PLAIN},
        "equality_field_ids": list(file.equality_field_ids),
        "sequence_number": file.sequence_number if file.HasField("sequence_number") else None,
        "columns": [_column_row(column) for column in file.columns],
        "put_key": put.key if put else None,
        "put_fingerprint": put.fingerprint if put else None,
        "put_expires_at": put.expires_at.ToMicroseconds() if put else None,
    }


def _column_row(column: v1.ColumnStats) -> dict[str, Any]:
    absent = {field for field in OPTIONAL if not column.HasField(field)}  # type: ignore[arg-type]
    rest = v1.ColumnStats()
    rest.CopyFrom(column)
    for field in ("table_id", "snapshot_id", *IN_COLUMN):
        rest.ClearField(field)  # type: ignore[arg-type]
    shown = {field: None if field in absent else getattr(column, field) for field in IN_COLUMN}
    return {**shown, "rest": rest.SerializeToString(deterministic=True)}


def _file(row: Mapping[str, Any], table_id: v1.ResourceId, snapshot_id: int) -> v1.FileColumnStats:
    return v1.FileColumnStats(
        table_id=table_id,
        snapshot_id=snapshot_id,
        **{field: row[field] for field in PLAIN},
        equality_field_ids=row["equality_field_ids"],
        sequence_number=row["sequence_number"],
        columns=[_column(column, table_id, snapshot_id) for column in row["columns"]],
    )


def _column(row: Mapping[str, Any], table_id: v1.ResourceId, snapshot_id: int) -> v1.ColumnStats:
    column = v1.ColumnStats.FromString(row["rest"])
    column.MergeFrom(
        v1.ColumnStats(table_id=table_id, snapshot_id=snapshot_id, **{field: row[field] for field in IN_COLUMN})
    )
    return column


# --- records from a table handle --------------------------------------------------------------------------------------
DIGEST = "digest"
"""The digest of the commit that created a snapshot, for formats whose snapshot ids are not unique."""

DELETED_ROWS = "deleted_rows"
"""The number of deleted rows that no delete file covers: reading the files as they are would return them."""

CONTENTS = {
    Content.DATA: v1.FC_DATA,
    Content.POSITION_DELETES: v1.FC_POSITION_DELETES,
    Content.EQUALITY_DELETES: v1.FC_EQUALITY_DELETES,
}


def snapshot_record(
    realm: Realm, table_id: v1.ResourceId, handle: TableHandle, snapshot: Snapshot, *, files: pa.Table
) -> v1.Snapshot:
    """The record of a snapshot."""
    schema, now = handle.schema_at(snapshot), realm.now()
    facts = {DIGEST: snapshot.digest.encode(), DELETED_ROWS: _silently_deleted(files)}
    return v1.Snapshot(
        table_id=table_id,
        snapshot_id=snapshot.id,
        parent_snapshot_id=snapshot.parent_id,
        upstream_created_at=timestamp(snapshot.created_at),
        ingested_at=now,
        updated_at=now,
        schema_json=schema.json,
        schema_id=schema.id,
        partition_spec=partition_spec(handle),
        sequence_number=snapshot.sequence_number,
        manifest_list=snapshot.manifest_list,
        metadata_location=handle.metadata_location or None,
        summary=dict(snapshot.summary),
        format_metadata={name: value for name, value in facts.items() if value},
    )


def partition_spec(handle: TableHandle) -> v1.PartitionSpecInfo:
    """How new files of the table are partitioned."""
    spec = handle.partition_spec
    if spec is None:
        return v1.PartitionSpecInfo()
    fields = [v1.PartitionField(field_id=field.id, name=field.name, transform=field.transform) for field in spec.fields]
    return v1.PartitionSpecInfo(spec_id=spec.id, spec_name=f"spec-{spec.id}", fields=fields)


def stored_files(handle: TableHandle, snapshot: Snapshot, files: pa.Table) -> pa.Table:
    """The files of a snapshot in `SCHEMA`."""
    contents = {each.value: number for each, number in CONTENTS.items()}
    columns: Mapping[str, Any] = {
        "file_path": files["path"],
        "file_format": pc.utf8_upper(files["format"]),
        "row_count": files["row_count"],
        "size_bytes": files["size_bytes"],
        "file_content": pa.array([contents[each] for each in files["content"].to_pylist()], pa.int32()),
        "partition_data_json": _partitions(handle, snapshot, files),
        "partition_spec_id": pc.fill_null(files["spec_id"], 0),
        "equality_field_ids": files["equality_ids"],
        "sequence_number": files["sequence_number"],
        "etag": files["etag"],
        "columns": _columns(canonical_columns(files, handle.schema_at(snapshot).arrow)),
    }
    unknown = {name: pa.nulls(files.num_rows, SCHEMA.field(name).type) for name in SCHEMA.names}
    found = pa.table({**unknown, **columns}, schema=SCHEMA)
    paths = found["file_path"].to_pylist()
    in_order = all(map(operator.le, paths, paths[1:]))  # as those of Iceberg are: to sort nested columns takes long
    return (found if in_order else found.sort_by("file_path")).combine_chunks()


def _partitions(handle: TableHandle, snapshot: Snapshot, files: pa.Table) -> pa.Array:
    specs = handle.partition_specs_at(snapshot)
    if not any(spec.fields for spec in specs):
        return pa.repeat("{}", files.num_rows)
    return partition_json(files, specs, handle.schema_at(snapshot).arrow)


def _columns(found: pa.ListArray) -> pa.ListArray:
    """The statistics with the column `rest`, which is empty here."""
    of = SCHEMA.field("columns").type
    values = found.values
    if not values.type.num_fields:
        return pa.array([[]] * len(found), of)
    named = {name: values.field(name) for name in values.type.names}
    named["rest"] = pa.repeat(pa.scalar(b"", pa.binary()), len(values))
    ordered = [named[field.name] for field in of.value_type]
    whole = pa.StructArray.from_arrays(ordered, names=[field.name for field in of.value_type])
    return pa.ListArray.from_arrays(found.offsets, whole).cast(of)


def _silently_deleted(files: pa.Table) -> bytes:
    unlisted = files.filter(pc.equal(pc.fill_null(pc.list_value_length(files["deletes"]), 0), 0))
    gone = pc.sum(unlisted["deleted_rows"], min_count=0).as_py()
    return str(gone).encode() if gone else b""


@dataclass(frozen=True, slots=True)
class ProfileIndex:
    """The index as it was read: `content` is an Arrow file, empty if there is no index yet."""

    content: bytes
    stored: Stored[v1.FileStatsSet] | None


@dataclass(frozen=True, slots=True)
class ProfileRecords:
    """The records of a table's profiles. Parts are addressed by the digest of their content."""

    realm: Realm
    table_id: v1.ResourceId

    def index(self) -> ProfileIndex:
        """The index in its current state."""
        found = self._indexes.find(self._index_key)
        return ProfileIndex(found.value.arrow_file if found else b"", found)

    def part(self, digest: str) -> bytes:
        """The content of a part. Raise `NotFound` if it was deleted."""
        return self._parts.require(self._part_key(digest), name=digest).value.arrow_file

    def publish(self, before: ProfileIndex, *, part: bytes, index: bytes) -> None:
        """Store a part together with the index that names it.

        Raise `Contention` if the index changed since it was read, and `NotFound` if the table was deleted.
        """
        table = hierarchy.table(self.realm, self.table_id)
        also = [*self._parts.reservation(self._message(part))[1], *inside(table.pointer)]
        what = f"the profiles of table {self.table_id.id}"
        self._indexes.save(before.stored, self._message(index), what=what, also=lambda _: also)

    def delete_parts(self, *, except_those: Callable[[], Collection[str]]) -> None:
        """Delete all parts except those that the function returns. It is called after the parts are listed."""
        found = list(self.realm.stores.pointers.scan(self._part_key()))
        remaining = set(map(self._part_key, except_those()))
        for pointer in found:
            if pointer.key not in remaining:
                self._parts.delete(pointer, v1.FileStatsSet())

    @staticmethod
    def digest(part: bytes) -> str:
        """The digest that a part with this content has."""
        return sha256(part).hexdigest()

    def _message(self, arrow_file: bytes) -> v1.FileStatsSet:
        identity = v1.ResourceId(account_id=self.realm.account_id, id=self.table_id.id, kind=v1.RK_TABLE)
        return v1.FileStatsSet(table_id=identity, arrow_file=arrow_file, updated_at=self.realm.now())

    @property
    def _index_key(self) -> str:
        return keys.profile_index(self.realm.account_id, self.table_id.id)

    def _part_key(self, digest: str = "") -> str:
        return keys.profile_part(self.realm.account_id, self.table_id.id, digest)

    @property
    def _indexes(self) -> Repository[v1.FileStatsSet]:
        return self.realm.all(Kind("profile_index", v1.FileStatsSet, title=_title, key=lambda _: self._index_key))

    @property
    def _parts(self) -> Repository[v1.FileStatsSet]:
        return self.realm.all(
            Kind(
                "profiles",
                v1.FileStatsSet,
                title=_title,
                key=lambda part: self._part_key(self.digest(part.arrow_file)),
            )
        )


def _title(of: v1.FileStatsSet) -> str:
    return of.table_id.id
