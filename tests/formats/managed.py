"""A table without a catalog, for tests of what is written: its metadata is kept here, and swapped by assignment."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.table import StaticTable

from skiway.formats.iceberg.commits import Producer, append
from skiway.formats.iceberg.data_files import DataFileWriter
from skiway.formats.iceberg.metadata import new_metadata, updated, version_of, write_metadata
from skiway.formats.iceberg.partitions import partition_spec
from skiway.formats.iceberg.table import IcebergTable
from skiway.formats.iceberg.types import iceberg_schema
from skiway.formats.iceberg.warehouse import Warehouse
from skiway.formats.source import TableName


class LooseTable:
    """Commits go through the same functions as those of a catalog do; nobody else commits."""

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
        """New data files with these rows, not committed."""
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
        """The table as PyIceberg reads it."""
        return StaticTable.from_metadata(self.location)

    @property
    def handle(self) -> IcebergTable:
        """The table as our own reader sees it."""
        return IcebergTable(TableName((), "t"), self.metadata, metadata_location=self.location, files=self.files)

    def rows(self) -> pa.Table:
        """What PyIceberg reads."""
        return self.peer.scan().to_arrow()
