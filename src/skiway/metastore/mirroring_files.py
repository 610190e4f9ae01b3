"""What a table of others looks like in the metastore: its record, and those of its snapshots."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from skiway.errors import InvalidArgument
from skiway.formats import Format, Snapshot, TableHandle
from skiway.metastore.properties import refuse_secrets
from skiway.metastore.realm import Realm, timestamp
from skiway.model import v1

__all__ = ["DELETED_ROWS", "DIGEST", "partition_spec", "snapshot_record", "table_spec"]

DIGEST = "digest"
"""What tells listings apart, where snapshots have no ids upstream."""

DELETED_ROWS = "deleted_rows"
"""How many rows are gone that no delete file tells of: whoever reads the files as they are would see them."""

FORMATS = {Format.ICEBERG: v1.TF_ICEBERG, Format.DELTA: v1.TF_DELTA, Format.PARQUET: v1.TF_PARQUET}


def table_spec(handle: TableHandle, connector_id: v1.ResourceId) -> v1.TableSpec:
    """The table as it is upstream now; what looks like a secret among its properties stays there."""
    ids = v1.CID_FIELD_ID if handle.format == Format.ICEBERG else v1.CID_PATH_ORDINAL
    spec = partition_spec(handle)
    return v1.TableSpec(
        schema_json=handle.schema.json,
        properties={name: value for name, value in handle.properties.items() if _is_public(name)},
        upstream=v1.UpstreamRef(
            connector_id=connector_id,
            uri=handle.location,
            namespace_path=handle.name.namespace,
            table_display_name=handle.name.name,
            format=FORMATS[handle.format],
            partition_keys=[field.name for field in spec.fields],
            column_id_algorithm=ids,
        ),
    )


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
    """The newest way in which the table is partitioned."""
    if not handle.partition_specs:
        return v1.PartitionSpecInfo()
    spec = max(handle.partition_specs, key=lambda each: each.id)
    fields = [v1.PartitionField(field_id=each.id, name=each.name, transform=each.transform) for each in spec.fields]
    return v1.PartitionSpecInfo(spec_id=spec.id, spec_name=f"spec-{spec.id}", fields=fields)


def _silently_deleted(files: pa.Table) -> bytes:
    unlisted = files.filter(pc.equal(pc.fill_null(pc.list_value_length(files["deletes"]), 0), 0))
    gone = pc.sum(unlisted["deleted_rows"], min_count=0).as_py()
    return str(gone).encode() if gone else b""


def _is_public(name: str) -> bool:
    try:
        refuse_secrets([name], field="properties")
    except InvalidArgument:
        return False
    return True
