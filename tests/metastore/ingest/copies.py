"""Copies of folders, in tests without Spark: the work is done in this process, one part after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
from pyiceberg.table import StaticTable

from metastore.managed_table_factory import ManagedTableFactory
from skiway.formats import open_source
from skiway.metastore.connectors.specs import CopyMode, CopyRules
from skiway.metastore.ingest.copying import Copy, CopyPlace, FileTable, find_target
from skiway.metastore.managed import ManagedTable
from skiway.security.source_access import SourceAccess

T = TypeVar("T")
R = TypeVar("R")


def here(function: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """Do the work in this process."""
    return [function(item) for item in items]


@dataclass
class FolderCopy:
    """A folder of tables, and the copy of one of them."""

    lake: ManagedTableFactory
    root: Path
    kind: str = "parquet"
    name: str = "orders"
    options: dict[str, str] = field(default_factory=dict)
    rules: CopyRules = field(default_factory=CopyRules)
    distribute: Any = here
    check: Callable[[], None] = lambda: None
    access: SourceAccess | None = None

    @property
    def folder(self) -> Path:
        made = self.root / self.name
        made.mkdir(parents=True, exist_ok=True)
        return made

    @property
    def copy(self) -> Copy:
        namespace_id = self.lake.factory.first_namespace().resource_id
        place = CopyPlace("c1", self.name, namespace_id, self.name)
        return Copy(self.lake.home, self.lake.warehouse, place, self.rules, self.distribute, self.check)

    def source(self) -> FileTable:
        uri = self.options.get("uri", str(self.root))
        namespace = tuple(filter(None, self.options.get("namespace", "").split(".")))
        opened = open_source(self.kind, uri, options=self.options, access=self.access)
        return FileTable(opened.load(namespace, self.name), self.distribute)

    def load(self, **how: Any) -> bool:
        return self.copy.load(self.source(), **how)

    def table(self) -> ManagedTable:
        found = find_target(self.lake.home, self.lake.warehouse, self.copy.place)
        assert found is not None
        return found

    def arrow(self) -> pa.Table:
        """The rows of the copy, as PyIceberg reads them."""
        rows: pa.Table = StaticTable.from_metadata(self.table().metadata_location).scan().to_arrow()
        return rows

    def rows(self) -> list[tuple[Any, ...]]:
        """The rows of the copy, sorted."""
        return sorted((tuple(each.values()) for each in self.arrow().to_pylist()), key=repr)

    def in_mode(self, mode: CopyMode, *keys: str, **more: Any) -> FolderCopy:
        self.rules = CopyRules(mode, tuple(keys), **more)
        return self
