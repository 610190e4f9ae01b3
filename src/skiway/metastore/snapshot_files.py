"""A snapshot and its files, as a format tells of them, in the form that the metastore keeps and planners prune."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from skiway.formats import Content, Snapshot, TableHandle
from skiway.formats.canonical import canonical_columns, partition_json
from skiway.metastore import file_table
from skiway.metastore.realm import Realm, timestamp
from skiway.model import v1

__all__ = ["DELETED_ROWS", "DIGEST", "partition_spec", "snapshot_record", "stored_files"]

DIGEST = "digest"
"""What tells listings apart, where snapshots have no ids upstream."""

DELETED_ROWS = "deleted_rows"
"""How many rows are gone that no delete file tells of: whoever reads the files as they are would see them."""

CONTENTS = {
    Content.DATA: v1.FC_DATA,
    Content.POSITION_DELETES: v1.FC_POSITION_DELETES,
    Content.EQUALITY_DELETES: v1.FC_EQUALITY_DELETES,
}


def snapshot_record(
    realm: Realm, table_id: v1.ResourceId, handle: TableHandle, snapshot: Snapshot, *, files: pa.Table
) -> v1.Snapshot:
    """A snapshot as it is kept."""
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
    fields = [v1.PartitionField(field_id=each.id, name=each.name, transform=each.transform) for each in spec.fields]
    return v1.PartitionSpecInfo(spec_id=spec.id, spec_name=f"spec-{spec.id}", fields=fields)


def stored_files(handle: TableHandle, snapshot: Snapshot, files: pa.Table) -> pa.Table:
    """The files of a snapshot in the form that the metastore keeps, as `file_table.SCHEMA` says."""
    contents = {each.value: number for each, number in CONTENTS.items()}
    columns: Mapping[str, Any] = {
        "file_path": files["path"],
        "file_format": pc.utf8_upper(files["format"]),
        "row_count": files["row_count"],
        "size_bytes": files["size_bytes"],
        "file_content": pa.array([contents[each] for each in files["content"].to_pylist()], pa.int32()),
        "partition_data_json": _partitions(handle, files),
        "partition_spec_id": pc.fill_null(files["spec_id"], 0),
        "equality_field_ids": files["equality_ids"],
        "sequence_number": files["sequence_number"],
        "etag": files["etag"],
        "columns": _columns(canonical_columns(files, handle.schema_at(snapshot).arrow)),
    }
    unknown = {name: pa.nulls(files.num_rows, file_table.SCHEMA.field(name).type) for name in file_table.SCHEMA.names}
    return pa.table({**unknown, **columns}, schema=file_table.SCHEMA).sort_by("file_path").combine_chunks()


def _partitions(handle: TableHandle, files: pa.Table) -> pa.Array:
    if not any(spec.fields for spec in handle.partition_specs):
        return pa.repeat("{}", files.num_rows)
    return partition_json(files, handle.partition_specs, handle.schema.arrow)


def _columns(found: pa.ListArray) -> pa.ListArray:
    """With the column for what pruning does not look at, which is empty here."""
    of = file_table.SCHEMA.field("columns").type
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
