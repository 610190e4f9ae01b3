"""Copies of Iceberg tables, written by PyIceberg, and of Delta tables, written by delta-rs, by the files that change."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from metastore.ingest.copies import FolderCopy
from metastore.managed_table_factory import ManagedTableFactory
from metastore.resource_factory import expect_error
from metastore.upstreams import iceberg
from skiway.errors import PreconditionFailed
from skiway.formats.iceberg.changes.commits import overwrite
from skiway.formats.iceberg.writing.delete_files import DeleteFileWriter
from skiway.metastore import managed
from skiway.metastore.connectors.specs import CopyMode

SCHEMA = pa.schema({"id": pa.int64(), "v": pa.string()})


@dataclass
class Upstream:
    """A table of another engine."""

    copy: FolderCopy
    append: Callable[[pa.Table], object]
    delete: Callable[[list[int]], object]
    read: Callable[[], pa.Table]
    rewrite: Callable[[], object]
    forget: Callable[[], object]

    def rows(self) -> list[tuple[Any, ...]]:
        return sorted((tuple(row.values()) for row in self.read().to_pylist()), key=repr)

    def update(self, ids: list[int], value: str) -> None:
        self.delete(ids)
        self.append(rows(ids, value))


def rows(ids: list[int], value: str) -> pa.Table:
    return pa.table({"id": ids, "v": [value] * len(ids)}, schema=SCHEMA)


def iceberg_upstream(lake: ManagedTableFactory, folder: Path) -> Upstream:
    table = iceberg(folder).create_table("sales.orders", schema=SCHEMA)
    options = {
        "uri": f"sqlite:///{folder}/catalog.db",
        "warehouse": f"file://{folder}/warehouse",
        "namespace": "sales",
    }

    def expire_all() -> None:
        current = table.current_snapshot().snapshot_id
        old = [each.snapshot_id for each in table.snapshots() if each.snapshot_id != current]
        table.maintenance.expire_snapshots().by_ids(old).commit()

    return Upstream(
        FolderCopy(lake, folder, "iceberg", options=options),
        table.append,
        lambda ids: table.delete(f"id in ({', '.join(map(str, ids))})"),
        lambda: table.scan().to_arrow(),
        lambda: table.overwrite(table.scan().to_arrow()),
        expire_all,
    )


def delta_upstream(lake: ManagedTableFactory, folder: Path) -> Upstream:
    from deltalake import DeltaTable, write_deltalake

    place = folder / "orders"
    write_deltalake(place, SCHEMA.empty_table())

    def recreate() -> None:
        import shutil

        kept = DeltaTable(place).to_pyarrow_table()
        shutil.rmtree(place)
        write_deltalake(place, kept)

    return Upstream(
        FolderCopy(lake, folder, "delta", options={"delta.source": "filesystem"}),
        lambda added: write_deltalake(place, added, mode="append"),
        lambda ids: DeltaTable(place).delete(f"id in ({', '.join(map(str, ids))})"),
        lambda: DeltaTable(place).to_pyarrow_table(),
        lambda: DeltaTable(place).optimize.compact(),
        recreate,
    )


@pytest.fixture(params=[iceberg_upstream, delta_upstream], ids=["iceberg", "delta"])
def upstream(request, lake, tmp_path) -> Upstream:
    made: Upstream = request.param(lake, tmp_path / "upstream")
    return made


def test_append_loads_the_rows_that_were_appended(upstream):
    upstream.append(rows([1, 2], "a"))
    assert upstream.copy.load()
    upstream.append(rows([3], "b"))
    upstream.append(rows([4], "c"))
    assert upstream.copy.load()
    assert not upstream.copy.load()
    assert upstream.copy.rows() == upstream.rows()


def test_append_refuses_changed_rows(upstream):
    upstream.append(rows([1, 2], "a"))
    upstream.copy.load()
    upstream.delete([1])
    with expect_error(PreconditionFailed, "ingest.source.changed"):
        upstream.copy.load()
    assert upstream.copy.rows() == [(1, "a"), (2, "a")]


@pytest.mark.parametrize("seed", range(3))
def test_upsert_equals_the_source_after_random_changes(upstream, seed):
    """Rows are added, changed and deleted, and files are rewritten, several times between two loads."""
    rng = random.Random(seed)
    upstream.copy.in_mode(CopyMode.UPSERT, "id")
    known: set[int] = set()
    for load in range(4):
        for change in range(rng.randrange(1, 4)):
            some = rng.sample(sorted(known), min(len(known), rng.randrange(1, 6))) if known else []
            kind = rng.choice(["add", "update", "delete", "rewrite"]) if some else "add"
            if kind == "add":
                new = [each for each in rng.sample(range(60), 8) if each not in known]
                upstream.append(rows(new, f"{load}.{change}"))
                known |= set(new)
            elif kind == "update":
                upstream.update(some, f"{load}.{change}")
            elif kind == "delete":
                upstream.delete(some)
                known -= set(some)
            else:
                upstream.rewrite()
        upstream.copy.load()
        assert upstream.copy.rows() == upstream.rows()
    assert not upstream.copy.load()


def test_replace_equals_the_source_after_any_change(upstream):
    upstream.copy.in_mode(CopyMode.REPLACE)
    upstream.append(rows([1, 2, 3], "a"))
    assert upstream.copy.load()
    upstream.delete([2])
    assert upstream.copy.load()
    assert not upstream.copy.load()
    assert upstream.copy.rows() == upstream.rows() == [(1, "a"), (3, "a")]


def test_recreated_delta_table_with_the_same_versions_is_noticed(lake, tmp_path):
    """The versions of a new table begin at 0 again, so a version alone does not say which rows were loaded."""
    upstream = delta_upstream(lake, tmp_path / "upstream")
    upstream.append(rows([1], "a"))
    upstream.copy.load()
    upstream.forget()
    upstream.append(rows([2], "b"))
    upstream.append(rows([3], "c"))
    with expect_error(PreconditionFailed, "ingest.source.expired"):
        upstream.copy.load()


def test_rows_deleted_by_merge_on_read_are_deleted_in_the_copy(lake, tmp_path):
    """A copy of a copy: rows are deleted by position, and the data files stay as they are."""
    first = FolderCopy(lake, tmp_path / "source").in_mode(CopyMode.UPSERT, "id")
    second = FolderCopy(lake, tmp_path, "iceberg", name="again", options={"external.table-name": "again"})
    second.in_mode(CopyMode.UPSERT, "id")
    for value in ("a", "b", "c"):
        pq.write_table(rows([1, 2, ord(value)], value), first.folder / f"{value}.parquet")
        first.load()
        second.options["uri"] = first.table().metadata_location
        assert second.load()
        assert second.rows() == first.rows()
    delete_first_row(first)
    second.options["uri"] = first.table().metadata_location
    assert second.load()
    assert second.rows() == first.rows()
    assert len(second.rows()) == 4


def delete_first_row(copy: FolderCopy) -> None:
    """Delete a row of the last file by its position."""
    table = copy.table()
    current = table.handle.current()
    files = table.handle.files(current)
    path = next(each for each in reversed(files["path"].to_pylist()) if "deletes" not in each)
    writer = DeleteFileWriter(table.files, table.metadata)
    place = files["path"].to_pylist().index(path)
    before = table.handle.deleted_positions(current, files.slice(place, 1))
    left = np.setdiff1d(np.arange(files["row_count"][place].as_py()), before)
    writer.add(path, left[:1], before=before)
    producer = overwrite([], [], deletes=writer.close(), based_on=current.id, operation="delete")
    managed.change(copy.lake.home, copy.lake.warehouse, table.table.resource_id, producer)


def test_source_without_the_snapshot_of_the_position_needs_a_full_load(upstream):
    upstream.append(rows([1], "a"))
    upstream.copy.load()
    upstream.append(rows([2], "b"))
    upstream.forget()
    with expect_error(PreconditionFailed, "ingest.source.expired"):
        upstream.copy.load()
    assert upstream.copy.load(again=True)
    assert upstream.copy.rows() == upstream.rows()
