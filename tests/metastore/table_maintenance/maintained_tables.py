"""Managed tables with many small files, deletes and snapshots, for tests of their maintenance."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.table import StaticTable

from metastore.managed_table_factory import ManagedTableFactory
from skiway.formats import data_files
from skiway.formats.iceberg.changes.commits import Producer, append
from skiway.formats.iceberg.writing.data_files import DataFileWriter
from skiway.metastore import managed
from skiway.metastore.managed.states import ManagedTable
from skiway.model import v1

SCHEMA = pa.schema({"id": pa.int64(), "part": pa.string(), "v": pa.string()})


@dataclass
class MaintainedTable:
    """A managed table, by its id. Helpers that delete rows of a `LooseTable` work with it, too."""

    home: ManagedTableFactory
    id: v1.ResourceId

    @classmethod
    def create(cls, home: ManagedTableFactory, schema: pa.Schema = SCHEMA, **options: Any) -> MaintainedTable:
        return cls(home, home.create("people", schema, **options).table.resource_id)

    @property
    def now(self) -> ManagedTable:
        return managed.load(self.home.home, self.home.warehouse, self.id)

    @property
    def metadata(self) -> Any:
        return self.now.metadata

    @property
    def files(self) -> Any:
        return self.now.files

    @property
    def snapshot_id(self) -> int:
        return self.metadata.current_snapshot_id

    @property
    def folder(self) -> Path:
        return Path(self.metadata.location.removeprefix("file://"))

    def change(self, producer: Producer) -> ManagedTable:
        return managed.change(self.home.home, self.home.warehouse, self.id, producer)

    def append(self, *ids: int, part: str = "a") -> list[Any]:
        """Append a data file with these rows."""
        rows = {"id": pa.array(ids, pa.int64()), "part": [part] * len(ids), "v": [f"v{each}" for each in ids]}
        table = self.now
        with DataFileWriter(table.files, table.metadata) as writer:
            writer.write(pa.record_batch(rows))
            files = writer.close()
        managed.change(self.home.home, self.home.warehouse, self.id, append(files))
        return files

    def fill(self, files: int, *, rows: int = 10, part: str = "a", start: int = 0) -> None:
        """Append small files with consecutive ids."""
        for number in range(files):
            first = start + number * rows
            self.append(*range(first, first + rows), part=part)

    def rows(self) -> list[dict[str, Any]]:
        """The current rows as PyIceberg reads them."""
        found = StaticTable.from_metadata(self.now.metadata_location).scan().to_arrow().to_pylist()
        return sorted(found, key=lambda row: row["id"])

    def ids(self) -> list[int]:
        return [row["id"] for row in self.rows()]

    def own_rows(self, snapshot_id: int | None = None) -> list[int]:
        """The ids of rows as our own reader reads them."""
        handle = self.now.handle
        wanted = self.snapshot_id if snapshot_id is None else snapshot_id
        snapshot = next(each for each in handle.snapshots() if each.id == wanted)
        return sorted(handle.read(snapshot).read_all()["id"].to_pylist())

    def paths(self) -> list[str]:
        """The paths of the current data files."""
        handle = self.now.handle
        return data_files(handle.files(handle.current()))["path"].to_pylist()

    def delete_files(self) -> int:
        handle = self.now.handle
        return handle.files(handle.current()).num_rows - len(self.paths())

    def on_disk(self) -> set[str]:
        """All files of the table, as locations."""
        return {f"file://{path}" for path in self.folder.rglob("*") if path.is_file()}
