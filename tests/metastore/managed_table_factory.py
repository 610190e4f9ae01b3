"""Create, write and read managed tables in tests, with a warehouse beside the stores."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.table import StaticTable

from metastore.resource_factory import ResourceFactory
from skiway.formats.iceberg.changes.commits import append
from skiway.formats.iceberg.warehouse import Warehouse
from skiway.formats.iceberg.writing.data_files import DataFileWriter
from skiway.metastore import Realm, managed
from skiway.metastore.managed.states import ManagedTable
from skiway.model import v1

NUMBERS = pa.schema({"x": pa.int64()})


@dataclass
class ManagedTableFactory:
    """A resource factory with a warehouse and a managed catalog."""

    factory: ResourceFactory
    warehouse: Warehouse

    @classmethod
    def at(cls, factory: ResourceFactory, folder: Path) -> ManagedTableFactory:
        return cls(factory, Warehouse.at(str(folder / "warehouse")))

    @property
    def home(self) -> Realm:
        return self.factory.home

    def create(self, name: str = "people", schema: Any = NUMBERS, **options: Any) -> ManagedTable:
        namespace_id = options.pop("namespace_id", None) or self.factory.first_namespace().resource_id
        return managed.create(self.home, self.warehouse, namespace_id=namespace_id, name=name, schema=schema, **options)

    def load(self, table: ManagedTable | v1.Table) -> ManagedTable:
        return managed.load(self.home, self.warehouse, id_of(table))

    def write(self, table: ManagedTable, *values: int) -> list[Any]:
        """Write data files with these numbers without committing them."""
        with DataFileWriter(table.files, table.metadata) as writer:
            writer.write(pa.record_batch({"x": pa.array(values, pa.int64())}))
            return writer.close()

    def append(self, table: ManagedTable, *values: int, realm: Realm | None = None) -> ManagedTable:
        files = self.write(table, *values)
        return managed.change(realm or self.home, self.warehouse, id_of(table), append(files))

    def rows(self, table: ManagedTable) -> list[int]:
        """The current rows of the table, as PyIceberg reads them."""
        found = StaticTable.from_metadata(self.load(table).metadata_location)
        return sorted(found.scan().to_arrow()["x"].to_pylist())


def id_of(table: ManagedTable | v1.Table) -> v1.ResourceId:
    return table.resource_id if isinstance(table, v1.Table) else table.table.resource_id
