"""The managed tables that copies write to. Each has the connector and the table of the source in its properties."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from skiway.errors import AlreadyExists
from skiway.formats.iceberg.partitions import partition_spec, sort_order
from skiway.formats.iceberg.types import format_version, iceberg_schema
from skiway.formats.iceberg.warehouse import Warehouse
from skiway.metastore.ingest.settings import CopyRules
from skiway.metastore.managed.states import ManagedTable, load
from skiway.metastore.managed.tables import create
from skiway.metastore.records.realm import Realm
from skiway.metastore.resources import tables
from skiway.model import v1

__all__ = ["CONNECTOR", "SOURCE", "CopyPlace", "create_target", "find_target"]

CONNECTOR: Final = "skiway.ingest.connector"
SOURCE: Final = "skiway.ingest.source"


@dataclass(frozen=True, slots=True)
class CopyPlace:
    """The source of a copy, by connector and name, and the namespace and name that its table gets here."""

    connector_id: str
    source: str
    namespace_id: v1.ResourceId
    name: str


def find_target(realm: Realm, warehouse: Warehouse, place: CopyPlace) -> ManagedTable | None:
    """The table that a copy writes to, whatever its name is now; None if it does not exist yet.

    Raise `AlreadyExists` if a table that is not this copy has its name.
    """
    for table in tables.scan(realm, place.namespace_id.id):
        if (table.properties.get(CONNECTOR), table.properties.get(SOURCE)) == (place.connector_id, place.source):
            return load(realm, warehouse, table.resource_id)
    if tables.find(realm, place.namespace_id.id, place.name) is not None:
        raise AlreadyExists(
            f"table {place.name} exists and is not the copy of {place.source}: rename it, or copy to another name or namespace",
            key="ingest.target.exists",
            name=place.name,
        )
    return None


def create_target(
    realm: Realm, warehouse: Warehouse, place: CopyPlace, columns: pa.Schema, rules: CopyRules
) -> ManagedTable:
    """Create the table of a copy, without rows."""
    version = format_version(columns)
    schema = iceberg_schema(columns, format_version=version)
    return create(
        realm,
        warehouse,
        namespace_id=place.namespace_id,
        name=place.name,
        schema=schema,
        spec=partition_spec(schema, rules.partition_by) if rules.partition_by else None,
        order=sort_order(schema, rules.sort_by) if rules.sort_by else None,
        properties={CONNECTOR: place.connector_id, SOURCE: place.source, "format-version": str(version)},
    )
