"""The files of a snapshot, as a format tells of them, in the form that the metastore keeps and planners prune."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from skiway.formats import Content, Snapshot, TableHandle
from skiway.formats.canonical import canonical_columns, partition_json
from skiway.metastore import file_table
from skiway.model import v1

__all__ = ["stored_files"]

CONTENTS = {
    Content.DATA: v1.FC_DATA,
    Content.POSITION_DELETES: v1.FC_POSITION_DELETES,
    Content.EQUALITY_DELETES: v1.FC_EQUALITY_DELETES,
}


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
