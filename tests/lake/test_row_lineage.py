"""Row lineage of version 3: UPDATE and DELETE preserve the id of each row, and the commit that last changed it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import UpgradeFormatVersionUpdate

from lake.lakes import Lake
from lake.lineage_reader import Lineage, read_lineage
from skiway.client import AirportClient, col
from skiway.formats.iceberg.changes.commits import plain
from skiway.metastore import catalogs, managed, namespaces, tables
from skiway.model import v1


@pytest.fixture
def db(lake: Lake) -> Iterator[AirportClient]:
    with lake.client() as db:
        db.create_schema("s")
        yield db


def _namespace(lake: Lake) -> v1.Namespace:
    catalog = next(each for each in catalogs.scan(lake.realm) if each.display_name == "managed")
    return next(iter(namespaces.scan(lake.realm, catalog.resource_id.id)))


def _create(lake: Lake, *, version: int = 3, **more: Any) -> v1.ResourceId:
    made = managed.create(
        lake.realm,
        lake.warehouse,
        namespace_id=_namespace(lake).resource_id,
        name="t",
        schema=pa.schema({"id": pa.int64(), "v": pa.string()}),
        properties={"format-version": str(version), **more.pop("properties", {})},
        **more,
    )
    return made.table.resource_id


def _metadata(lake: Lake) -> TableMetadata:
    found = tables.find(lake.realm, _namespace(lake).resource_id.id, "t")
    assert found is not None
    return managed.load(lake.realm, lake.warehouse, found.resource_id).metadata


def _lineage(lake: Lake) -> Lineage:
    return read_lineage(_metadata(lake))


def _insert(db: AirportClient, *ids: int) -> None:
    db.insert("s.t", pa.table({"id": ids, "v": [f"v{number}" for number in ids]}))


def test_deleted_rows_leave_the_lineage_of_the_others_unchanged(lake: Lake, db: AirportClient) -> None:
    _create(lake)
    _insert(db, 1, 2, 3)
    _insert(db, 4, 5, 6)
    before = _lineage(lake)
    assert before == {1: (0, 1), 2: (1, 1), 3: (2, 1), 4: (3, 2), 5: (4, 2), 6: (5, 2)}

    db.delete("s.t", where=col("id") == 2)
    db.delete("s.t", where=col("id") >= 5)

    assert _lineage(lake) == {number: before[number] for number in (1, 3, 4)}


def test_updated_rows_keep_their_ids_and_get_the_number_of_the_commit(lake: Lake, db: AirportClient) -> None:
    _create(lake)
    _insert(db, 1, 2, 3)
    db.update("s.t", {"v": "new"}, where=col("id") == 2)
    assert _lineage(lake) == {1: (0, 1), 2: (1, 2), 3: (2, 1)}

    db.update("s.t", {"v": "newer"}, where=col("id") == 3)
    assert _lineage(lake) == {1: (0, 1), 2: (1, 2), 3: (2, 3)}

    db.delete("s.t", where=col("id") == 1)
    assert _lineage(lake) == {2: (1, 2), 3: (2, 3)}

    _insert(db, 7)
    after = _lineage(lake)
    assert {number: after[number] for number in (2, 3)} == {2: (1, 2), 3: (2, 3)}
    row_id, number = after[7]
    assert number == 5
    assert row_id is not None
    assert row_id > 2  # ids are never assigned twice
    assert db.scan("s.t").read_all().sort_by("id").to_pydict() == {"id": [2, 3, 7], "v": ["new", "newer", "v7"]}


def test_lineage_survives_partitions_and_many_row_groups(lake: Lake, db: AirportClient) -> None:
    _create(lake, partition_by=["bucket[3](id)"], properties={"write.parquet.row-group-size-bytes": "2000"})
    _insert(db, *range(300))
    _insert(db, *range(300, 600))
    before = _lineage(lake)
    assert sorted(row_id for row_id, _ in before.values() if row_id is not None) == list(range(600))

    db.update("s.t", {"v": "new"}, where=col("id") < 50)
    db.delete("s.t", where=col("id").isin(range(0, 600, 7)))

    after = _lineage(lake)
    assert sorted(after) == [number for number in range(600) if number % 7]
    assert after == {number: (before[number][0], 3 if number < 50 else before[number][1]) for number in after}


def test_rows_of_an_upgraded_table_get_ids_at_the_next_commit(lake: Lake, db: AirportClient) -> None:
    table_id = _create(lake, version=2)
    _insert(db, 1, 2)
    _insert(db, 3)
    managed.change(lake.realm, lake.warehouse, table_id, plain((), (UpgradeFormatVersionUpdate(format_version=3),)))
    assert {row_id for row_id, _ in _lineage(lake).values()} == {None}

    db.update("s.t", {"v": "new"}, where=col("id") == 1)  # reads the file when its rows have no ids
    after = _lineage(lake)
    ids = [row_id for row_id, _ in after.values()]
    assert None not in ids
    assert len(set(ids)) == 3
    assert {number: each[1] for number, each in after.items()} == {1: 3, 2: 1, 3: 2}

    db.delete("s.t", where=col("id") == 1)
    assert _lineage(lake) == {number: after[number] for number in (2, 3)}


def test_columns_may_have_the_names_of_the_lineage(lake: Lake, db: AirportClient) -> None:
    _create(lake)
    db.add_column("s.t", pa.field("_row_id", pa.string()))
    db.insert("s.t", pa.table({"id": [1, 2], "v": ["a", "b"], "_row_id": ["x", "y"]}))
    db.update("s.t", {"v": "new"}, where=col("id") == 2)
    assert _lineage(lake) == {1: (0, 1), 2: (1, 2)}
    assert db.scan("s.t").read_all().sort_by("id")["_row_id"].to_pylist() == ["x", "y"]


def test_files_of_version_2_have_no_lineage(lake: Lake, db: AirportClient) -> None:
    _create(lake, version=2)
    _insert(db, 1, 2)
    db.update("s.t", {"v": "new"}, where=col("id") == 2)
    (file,) = [
        path for path in (lake.folder / "warehouse").rglob("*.parquet") if "new" in str(pq.read_table(path)["v"])
    ]
    assert pq.read_schema(file).names == ["id", "v"]


def test_other_readers_see_the_table_without_its_lineage(lake: Lake, db: AirportClient) -> None:
    _create(lake)
    _insert(db, 1, 2)
    db.update("s.t", {"v": "new"}, where=col("id") == 2)
    with lake.rest() as catalog:
        rows = catalog.load_table("s.t").scan().to_arrow().sort_by("id")
    assert rows.to_pydict() == {"id": [1, 2], "v": ["v1", "new"]}
