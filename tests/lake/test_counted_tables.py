"""`count(*)` of `skiway.tables` reads no records, and other queries of it read only what their columns need."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from lake.lakes import Lake
from skiway.client import AirportClient, col
from skiway.metastore.resources import catalogs, grants, namespaces, tables
from skiway.model import v1
from skiway.storage import CallCounter, open_stores

FEW, MORE = 3, 40


@pytest.fixture
def calls() -> CallCounter:
    return CallCounter()


@pytest.fixture
def lake(tmp_path: Path, calls: CallCounter) -> Iterator[Lake]:
    """A lake without caches of stores, whose calls are counted, with a namespace of three tables and an empty one."""
    with open_stores("memory://", on_call=calls) as stores:
        lake = Lake(tmp_path, stores)
        with lake.served() as location:
            lake.location = location
            with lake.client() as db:
                db.create_schema("s")
                db.create_schema("empty")
                add(db, range(FEW))
            yield lake


def add(db: AirportClient, numbers: range) -> None:
    for number in numbers:
        db.create_table(f"s.t{number}", pa.schema({"id": pa.int64()}))


def mirror(lake: Lake, connector: v1.Connector, numbers: range) -> None:
    """Records of tables of a connector in the namespace `s`."""
    schema = schema_of(lake)
    for number in numbers:
        upstream = v1.UpstreamRef(uri="/files", format=v1.TF_PARQUET, connector_id=connector.resource_id)
        spec = v1.TableSpec(
            display_name=f"m{number}",
            catalog_id=schema.catalog_id,
            namespace_id=schema.resource_id,
            schema_json='{"type": "struct", "fields": []}',
            upstream=upstream,
        )
        tables.create(lake.realm, v1.CreateTableRequest(spec=spec))


def schema_of(lake: Lake) -> v1.Namespace:
    managed = catalogs.find(lake.realm, "managed")
    assert managed is not None
    found = namespaces.scan(lake.realm, managed.value.resource_id.id)
    return next(each for each in found if each.display_name == "s")


def counted(db: AirportClient) -> int:
    """What DuckDB gets for `count(*)`: it asks for the first column."""
    return db.scan("skiway.tables", columns=[]).read_all().num_rows


def stores_read(calls: CallCounter, db: AirportClient, columns: Sequence[str]) -> Counter[str]:
    """The calls to the stores of a scan that is not the first of its kind."""
    db.scan("skiway.tables", columns=columns).read_all()
    calls.reset()
    db.scan("skiway.tables", columns=columns).read_all()
    return Counter(calls.counts)


def test_counting_reads_as_much_of_few_tables_as_of_many(lake: Lake, calls: CallCounter) -> None:
    with lake.client() as db:
        few = stores_read(calls, db, [])
        add(db, range(FEW, MORE))
        assert stores_read(calls, db, []) == few
        assert counted(db) == MORE


def test_only_columns_about_snapshots_need_reads_for_each_table(lake: Lake, calls: CallCounter) -> None:
    with lake.client() as db:
        of_names = ["schema_name", "table_name", "kind", "connector"]
        connector = lake.connector(lake.catalog("files", connector_ref="files"), "parquet", "/files", {})
        mirror(lake, connector, range(1))
        few = stores_read(calls, db, of_names)
        mirror(lake, connector, range(1, MORE))
        assert stores_read(calls, db, of_names)["pointers.get"] == few["pointers.get"]
        assert stores_read(calls, db, ["row_count"])["pointers.get"] >= MORE


@pytest.mark.parametrize(
    "columns", [["schema_name"], ["table_name"], ["table_name", "row_count"], ["damage", "table_name"], None]
)
def test_columns_have_the_same_values_whichever_are_read(lake: Lake, columns: list[str] | None) -> None:
    with lake.client() as db:
        db.insert("s.t0", pa.table({"id": [1, 2]}))
        everything = db.scan("skiway.tables").read_all()
        read = db.scan("skiway.tables", columns=columns).read_all()
        assert read.equals(everything.select(read.schema.names))
        assert everything["row_count"].to_pylist()[0] == 2


def test_callers_count_the_tables_that_they_see(lake: Lake) -> None:
    """The count is that of the rows which the caller reads, also for callers who see some of the tables."""
    with lake.client() as db, lake.client(token="reader") as reader, lake.client(token="nothing") as nobody:
        assert counted(db) == counted(reader) == FEW
        assert counted(nobody) == 0
        table = tables.find(lake.realm, schema_of(lake).resource_id.id, "t1")
        assert table is not None
        request = v1.AddGrantRequest(object_id=table.resource_id, grantee="user:nothing", privilege=v1.PV_READ)
        grants.add(lake.realm, request)
    with lake.client(token="nothing") as nobody:
        names = nobody.scan("skiway.tables", columns=["table_name"]).read_all()["table_name"].to_pylist()
        assert names == ["t1"]
        assert counted(nobody) == 1


def test_conditions_are_counted_too(lake: Lake) -> None:
    with lake.client() as db:
        rows = db.scan("skiway.tables", columns=["schema_name"], where=col("schema_name") == "empty").read_all()
        assert rows.num_rows == 0
        for condition, rows in (("", FEW), (" WHERE table_name = 't1'", 1)):
            sql = f"SELECT count(*) AS n FROM skiway.tables{condition}"
            assert db.call("skiway.query", sql).read_all().to_pylist() == [{"n": rows}]
