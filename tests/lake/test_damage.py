"""Lost records in Airport listings and system tables: one marked row, and everything else as before."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lake.lakes import Lake
from skiway.client import AirportClient
from skiway.errors import PreconditionFailed
from skiway.metastore import catalogs, jobs, namespaces, tables
from skiway.metastore.records import keys
from skiway.model import v1
from skiway.storage import open_stores

LOST = "its record is missing in the blob store"
ONE = pa.schema({"id": pa.int64()})


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    """A lake without a cache of blobs, in which schema `s` has the tables `good` and `lost`, with rows."""
    with open_stores("memory://") as stores:
        lake = Lake(tmp_path, stores)
        with lake.served() as location:
            lake.location = location
            with lake.client() as db:
                db.create_schema("s")
                for name in ("good", "lost"):
                    db.create_table(f"s.{name}", ONE)
                    db.insert(f"s.{name}", pa.table({"id": [1, 2]}))
            yield lake


def catalog(lake: Lake) -> v1.Catalog:
    found = catalogs.find(lake.realm, "managed")
    assert found is not None
    return found.value


def namespace(lake: Lake) -> v1.Namespace:
    found = namespaces.lookup(lake.realm, catalog(lake).resource_id, ["s"])
    assert found is not None
    return found


def table_id(lake: Lake, name: str) -> str:
    found = tables.find(lake.realm, namespace(lake).resource_id.id, name)
    assert found is not None
    return found.resource_id.id


def lose(lake: Lake, key: str) -> None:
    pointer = lake.stores.pointers.get(key)
    assert pointer is not None
    lake.stores.blobs.delete(pointer.blob_uri)


def rows(db: AirportClient, table: str) -> list[dict[str, Any]]:
    return db.scan(("skiway", table)).read_all().to_pylist()


def test_lost_table_is_marked_and_the_others_work(lake: Lake) -> None:
    lose(lake, keys.table("a1", table_id(lake, "lost")))
    with lake.client() as db:
        [schema] = [each for each in db.schemas() if each.name == "s"]
        comments = {table.name: table.comment for table in schema.tables}
        assert comments == {"good": "", "lost": f"damaged: {LOST}"}
        assert db.scan("s.good").read_all().to_pydict() == {"id": [1, 2]}
        with pytest.raises(PreconditionFailed, match=rf"table s\.lost is damaged: {LOST}; ask an operator to restore"):
            db.scan("s.lost").read_all()
        shown = {row["table_name"]: row for row in rows(db, "tables")}
        assert (shown["good"]["row_count"], shown["good"]["damage"]) == (2, None)
        assert (shown["lost"]["kind"], shown["lost"]["row_count"], shown["lost"]["damage"]) == (None, None, LOST)
        assert shown["lost"]["table_id"]
        columns = [(row["table_name"], row["column_name"], row["damage"]) for row in rows(db, "columns")]
        assert columns == [("good", "id", None), ("lost", None, LOST)]


@pytest.mark.parametrize("name", ["lost", "LOST"])
def test_lost_table_can_be_dropped_and_created_again(lake: Lake, name: str) -> None:
    lose(lake, keys.table("a1", table_id(lake, "lost")))
    with lake.client() as db:
        with pytest.raises(PreconditionFailed, match=rf"table s\.lost is damaged: {LOST}"):
            db.rename_table("s.lost", "other")
        db.drop_table(("s", name))
        db.create_table("s.lost", ONE)
        assert db.scan("s.lost").read_all().num_rows == 0
        assert db.scan("s.good").read_all().num_rows == 2


@pytest.mark.parametrize(("of", "table", "kept"), [("files", "files", {"row_count": 2}), ("table", "tables", {})])
def test_lost_statistics_are_marked(lake: Lake, of: str, table: str, kept: dict[str, int]) -> None:
    lost = table_id(lake, "lost")
    current = lake.stores.pointers.get(keys.current_snapshot("a1", lost))
    assert current is not None
    lose(lake, keys.statistics("a1", lost, int(current.blob_uri), of=of))
    with lake.client() as db:
        found = {row["table_name"]: row for row in rows(db, table)}
        assert found["good"]["damage"] is None
        assert found["good"].items() >= kept.items()
        assert found["lost"]["damage"].endswith(LOST)
        assert found["lost"]["row_count"] is None


def test_lost_snapshot_is_marked(lake: Lake) -> None:
    lost = table_id(lake, "lost")
    with lake.client() as db:
        db.insert("s.lost", pa.table({"id": [3]}))
        [old] = [row for row in rows(db, "snapshots") if row["table_name"] == "lost" and not row["is_current"]]
        lose(lake, keys.snapshot("a1", lost, old["snapshot_id"]))
        found = [row for row in rows(db, "snapshots") if row["table_name"] == "lost"]
        assert {(row["snapshot_id"] == old["snapshot_id"], row["damage"]) for row in found} == {
            (True, LOST),
            (False, None),
        }
        assert len(rows(db, "snapshots")) == 3


def test_tables_of_a_lost_namespace_are_readable(lake: Lake) -> None:
    lose(lake, keys.namespace("a1", namespace(lake).resource_id.id))
    with lake.client() as db:
        schemas = {each.name: each for each in db.schemas()}
        assert schemas["s"].comment == f"damaged: {LOST}"
        assert db.scan("s.good").read_all().num_rows == 2
        assert {row["table_name"] for row in rows(db, "tables")} == {"good", "lost"}


def test_lost_catalog_does_not_hide_the_others(lake: Lake) -> None:
    other = lake.catalog("other")
    lose(lake, keys.catalog("a1", other.resource_id.id))
    with lake.client() as db, lake.client("other") as lost:
        assert db.scan("s.good").read_all().num_rows == 2
        with pytest.raises(PreconditionFailed, match=f"catalog other is damaged: {LOST}"):
            lost.schemas()


def test_lost_job_and_connector_are_marked(lake: Lake) -> None:
    made = [lake.connector(lake.catalog(name), "parquet", "/data", {}) for name in ("one", "two")]
    first, second = [jobs.enqueue(lake.realm, v1.Job(connector_id=each.resource_id)) for each in made]
    lose(lake, keys.job("a1", first.job_id))
    lose(lake, keys.connector("a1", made[1].resource_id.id))
    with lake.client() as db:
        found = {row["job_id"]: row for row in rows(db, "jobs")}
    assert (found[first.job_id]["damage"], found[first.job_id]["connector"]) == (LOST, None)
    assert (found[second.job_id]["damage"], found[second.job_id]["state"]) == (None, "queued")
