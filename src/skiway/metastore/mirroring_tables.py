"""What a table of others looks like in the metastore."""

from __future__ import annotations

from skiway.errors import InvalidArgument
from skiway.formats import Format, TableHandle
from skiway.metastore.properties import refuse_secrets
from skiway.metastore.snapshot_files import partition_spec
from skiway.model import v1

__all__ = ["table_spec"]

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


def _is_public(name: str) -> bool:
    try:
        refuse_secrets([name], field="properties")
    except InvalidArgument:
        return False
    return True
