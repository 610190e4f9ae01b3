"""Copies of folders, in tests without Spark: the work is done in this process, one part after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from pyiceberg.table import StaticTable

from metastore.managed_table_factory import ManagedTableFactory
from metastore.pipelines.pipeline_lake import DuckQueries
from skiway.formats import open_source
from skiway.metastore.connectors.specs import CopyMode, CopyRules
from skiway.metastore.ingest.copying import Copy, CopyPlace, find_target
from skiway.metastore.ingest.file_tables import FileTable
from skiway.metastore.ingest.keys import EachPlace, KeyRows, joined_columns
from skiway.metastore.managed import ManagedTable
from skiway.metastore.pipelines.models.loads import LoadExpectations
from skiway.metastore.resources import tables
from skiway.security.source_access import SourceAccess

T = TypeVar("T")
R = TypeVar("R")


class Here:
    """Does the work in this process."""

    def __call__(self, function: Callable[[T], R], items: Sequence[T]) -> list[R]:
        return [function(item) for item in items]

    def last_rows(self, rows: Sequence[KeyRows], keys: pa.Schema, parts: Sequence[int], each: EachPlace[R]) -> list[R]:
        seen: set[tuple[Any, ...]] = set()
        places: dict[int, list[int]] = {number: [] for number in range(len(parts))}
        for *_, file, position, key in sorted(_places(rows, keys), key=lambda place: place[:3], reverse=True):
            if key in seen:
                places[file].append(position)
            seen.add(key)
        return _called(places, parts, each)

    def matches(
        self, rows: Sequence[KeyRows], of: Sequence[KeyRows], keys: pa.Schema, each: EachPlace[R], *, are_few: bool
    ) -> list[R]:
        wanted = {key for *_, key in _places(of, keys)}
        places: dict[int, list[int]] = {}
        for _, file, position, key in _places(rows, keys):
            if key in wanted:
                places.setdefault(file, []).append(position)
        return _called(places, [0] * (max(places, default=0) + 1), each)


def _places(rows: Sequence[KeyRows], keys: pa.Schema) -> Iterator[tuple[int, int, int, tuple[Any, ...]]]:
    """A part, a file, a position and a key."""
    for one in rows:
        for batch in one.batches():
            assert batch.schema.equals(joined_columns(keys))
            for *key, part, file, position in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                yield part, file, position, tuple(key)


def _called(places: dict[int, list[int]], parts: Sequence[int], each: EachPlace[R]) -> list[R]:
    found = []
    for part in range(max(parts, default=-1) + 1):
        own = sorted((file, sorted(positions)) for file, positions in places.items() if parts[file] == part)
        found.append(each((file, np.array(positions, np.int64)) for file, positions in own))
    return found


here = Here()


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
    more: dict[str, Any] = field(default_factory=dict)
    engine: DuckQueries = field(default_factory=DuckQueries)
    """It judges rows, if there are expectations."""

    @property
    def folder(self) -> Path:
        made = self.root / self.name
        made.mkdir(parents=True, exist_ok=True)
        return made

    @property
    def copy(self) -> Copy:
        namespace_id = self.lake.factory.first_namespace().resource_id
        place = CopyPlace("c1", self.name, namespace_id, self.name)
        rules, home, warehouse = self.rules, self.lake.home, self.lake.warehouse
        expectations = LoadExpectations.of(self.engine, home, warehouse, f"shop.{self.name}", rules.expect)
        return Copy(home, warehouse, place, rules, self.distribute, self.check, expectations, **self.more)

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

    def quarantine(self) -> list[tuple[Any, ...]]:
        """The rows in quarantine, sorted."""
        namespace_id = self.lake.factory.first_namespace().resource_id
        found = tables.find(self.lake.home, namespace_id.id, f"{self.name}_quarantine")
        assert found is not None
        rows = StaticTable.from_metadata(found.metadata_location).scan().to_arrow()
        return sorted((tuple(each.values()) for each in rows.to_pylist()), key=repr)

    def rows(self) -> list[tuple[Any, ...]]:
        """The rows of the copy, sorted."""
        return sorted((tuple(each.values()) for each in self.arrow().to_pylist()), key=repr)

    def in_mode(self, mode: CopyMode, *keys: str, **more: Any) -> FolderCopy:
        self.rules = CopyRules(mode, tuple(keys), **more)
        return self
