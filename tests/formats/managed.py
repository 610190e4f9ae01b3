"""A table without a catalog, for tests of writers: its metadata is an attribute, swapped by assignment."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.table import StaticTable

from skiway.formats.iceberg.changes.commits import Producer, append
from skiway.formats.iceberg.changes.evolution import partition_spec
from skiway.formats.iceberg.metadata import new_metadata, updated, version_of, write_metadata
from skiway.formats.iceberg.table import IcebergTable
from skiway.formats.iceberg.types import iceberg_schema
from skiway.formats.iceberg.warehouse import Warehouse
from skiway.formats.iceberg.writing.data_files import DataFileWriter
from skiway.formats.source import TableName


class LooseTable:
    """A table with a single committer; commits go through the same functions as commits of a catalog."""

    def __init__(
        self, folder: Path, schema: pa.Schema, *partition_by: str, order: Any = None, format_version: str = "2"
    ) -> None:
        warehouse = Warehouse.at(str(folder))
        location = warehouse.folder("account", "table")
        made = iceberg_schema(schema, format_version=int(format_version))
        self.files = warehouse.files(location)
        self.metadata = new_metadata(
            made,
            location=location,
            spec=partition_spec(made, partition_by) if partition_by else None,
            order=order,
            properties={"format-version": format_version},
        )
        self.location = write_metadata(self.files, self.metadata, version=0)

    def change(self, producer: Producer) -> None:
        made = producer(self.metadata, self.files, lambda: datetime.now(UTC))
        self.metadata = updated(self.metadata, made.requirements, made.updates, location=self.location)
        self.location = write_metadata(self.files, self.metadata, version=version_of(self.location) + 1)

    def write(self, *batches: pa.RecordBatch | pa.Table, **limits: Any) -> list[Any]:
        """Write data files with these rows without committing them."""
        with DataFileWriter(self.files, self.metadata, **limits) as writer:
            for batch in batches:
                for part in batch.to_batches() if isinstance(batch, pa.Table) else [batch]:
                    writer.write(part)
            return writer.close()

    def append(self, *batches: pa.RecordBatch | pa.Table, **limits: Any) -> list[Any]:
        written = self.write(*batches, **limits)
        self.change(append(written))
        return written

    @property
    def peer(self) -> StaticTable:
        """The table as read by PyIceberg."""
        return StaticTable.from_metadata(self.location)

    @property
    def handle(self) -> IcebergTable:
        """The table as read by our own reader."""
        return IcebergTable(TableName((), "t"), self.metadata, metadata_location=self.location, files=self.files)

    def rows(self) -> pa.Table:
        """The rows that PyIceberg reads."""
        return self.peer.scan().to_arrow()
