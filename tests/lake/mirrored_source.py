"""A mirrored table of which tests change the source."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.table import Table

from lake.lakes import Lake, opened_lake
from skiway.formats import open_source
from skiway.metastore import tables
from skiway.metastore.gc.warehouse import sweep_warehouse
from skiway.metastore.reconcile.mirroring import Mirror
from skiway.model import v1


class Source:
    """A table `t` of a source, which a catalog `c` mirrors."""

    def __init__(self, lake: Lake, kind: str, folder: Path) -> None:
        self.lake, self.kind, self.folder = lake, kind, folder
        self.catalog = lake.catalog("c", connector_ref="files")
        self.connector = lake.connector(self.catalog, kind, str(folder), {})
        self.namespace = lake.namespace(self.catalog, ("s",))
        self.policy = v1.ConnectorPolicy()
        self.id = v1.ResourceId()

    def write(self, *values: int) -> None:
        """Write rows upstream, as one more file."""
        rows = pa.table({"x": pa.array(values, pa.int64())})
        if self.kind == "delta":
            deltalake.write_deltalake(str(self.folder / "t"), rows, mode="append")
        else:
            (self.folder / "t").mkdir(parents=True, exist_ok=True)
            pq.write_table(rows, self.folder / "t" / f"{min(values)}.parquet")

    def sync(self, *, again: bool = False) -> None:
        """Mirror the table as reconciliation does, as a full one does if `again`."""
        with open_source(self.kind, str(self.folder)) as source:
            mirror = Mirror(self.lake.realm, self.connector.resource_id, source.load((), "t"))
            known = tables.find(self.lake.realm, self.namespace.resource_id.id, "t")
            self.id, _ = mirror.ensured(self.namespace.resource_id, "t", known)
            mirror.record(self.id, self.policy, again=again)

    @property
    def generated(self) -> set[Path]:
        """The files of the table in the warehouse."""
        return {each for each in (self.lake.folder / "warehouse").rglob("*") if each.is_file()}

    def sweep(self, *, days: float = 10) -> tuple[str, ...]:
        """Let all generated files be older, and collect garbage."""
        for path in self.generated:
            os.utime(path, (time.time() - days * 86400,) * 2)
        done = sweep_warehouse(
            self.lake.stores, self.lake.warehouse, clock=lambda: datetime.now(UTC), size=100, dry_run=False
        )
        assert done.damaged == ()
        return done.removed


@contextmanager
def source_of(tmp_path: Path, kind: str) -> Iterator[Source]:
    with opened_lake(tmp_path / "lake") as lake:
        yield Source(lake, kind, tmp_path / "source")


def values(table: Table, **at: Any) -> list[int]:
    return sorted(table.scan(**at).to_arrow()["x"].to_pylist())
