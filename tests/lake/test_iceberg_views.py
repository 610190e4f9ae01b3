"""Views that Iceberg clients create are read in DuckDB, and the other way around; tables of version 1 are written."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pydantic import TypeAdapter
from pyiceberg.schema import Schema
from pyiceberg.table import StaticTable
from pyiceberg.types import LongType, NestedField
from pyiceberg.view.metadata import ViewVersion

from lake.lakes import Lake
from skiway.client import AirportClient, col
from skiway.formats.iceberg.view_metadata import ViewUpdate
from skiway.metastore import catalogs, managed, namespaces, tables, views
from skiway.metastore.resources.hierarchy import full_path
from skiway.model import v1

ROWS = pa.table({"id": pa.array(range(10), pa.int64()), "a b": [f"r{number % 2}" for number in range(10)]})
SCHEMA = Schema(NestedField(1, "id", LongType()))


@pytest.fixture
def db(lake: Lake) -> Iterator[AirportClient]:
    with lake.client() as client:
        for schema in ("s", "deep.er"):
            client.create_schema(schema)
            client.create_table(f'"{schema}".t', ROWS.schema)
            client.insert(f'"{schema}".t', ROWS)
        yield client


def namespace_of(lake: Lake, *path: str) -> v1.Namespace:
    (catalog,) = (each for each in catalogs.scan(lake.realm) if each.display_name == "managed")
    found = namespaces.find(lake.realm, catalog.resource_id.id, path)
    assert found is not None
    return found


def spark_view(lake: Lake, namespace: v1.Namespace, name: str, sql: str, catalog: str | None = None) -> None:
    version = {
        "schema-id": 0,
        "representations": [{"type": "sql", "sql": sql, "dialect": "spark"}],
        "default-namespace": list(full_path(namespace)),
        "default-catalog": catalog,
    }
    managed.create_view(
        lake.realm,
        lake.warehouse,
        namespace_id=namespace.resource_id,
        name=name,
        schema=SCHEMA,
        version=ViewVersion.model_validate(version),
        properties={},
    )


@pytest.mark.parametrize(
    ("path", "catalog", "sql"),
    [
        (("s",), None, "SELECT id FROM t WHERE `a b` = 'r1'"),
        (("deep", "er"), None, "SELECT id FROM t WHERE `a b` = 'r1'"),
        (("s",), "mine", "SELECT t.id FROM mine.s.t WHERE t.`a b` = 'r1'"),
        (("s",), "mine", "SELECT x.id FROM mine.deep.er.t AS x WHERE x.`a b` = 'r1'"),
        (("s",), None, "WITH odd AS (SELECT * FROM deep.er.t) SELECT id FROM odd WHERE `a b` = 'r1'"),
    ],
)
def test_view_of_spark_is_read(
    lake: Lake, db: AirportClient, path: tuple[str, ...], catalog: str | None, sql: str
) -> None:
    spark_view(lake, namespace_of(lake, *path), "v", sql, catalog)
    db.reload()
    found = db.scan(f'"{".".join(path)}".v').read_all()
    assert sorted(found["id"].to_pylist()) == [1, 3, 5, 7, 9]


def test_tables_that_a_view_of_spark_reads_are_recorded(lake: Lake, db: AirportClient) -> None:
    namespace = namespace_of(lake, "s")
    spark_view(lake, namespace, "v", "SELECT t.id FROM t JOIN mine.deep.er.t AS u USING (id)", "mine")
    assert db
    found = views.find(lake.realm, namespace.resource_id.id, "v")
    assert found is not None
    assert [(list(each.path), each.name) for each in found.base_relations] == [(["s"], "t"), (["deep", "er"], "t")]


def test_view_of_duckdb_has_a_version_for_each_change(lake: Lake, db: AirportClient) -> None:
    def create(sql: str, **named: Any) -> managed.IcebergView:
        db.call("skiway.create_view", "s.v", sql, named=named).read_all()
        record = views.find(lake.realm, namespace_of(lake, "s").resource_id.id, "v")
        assert record is not None
        return managed.load_view(lake.realm, lake.warehouse, record)

    first = create('SELECT id, "a b" FROM s.t', comment="all")
    assert [each.name for each in first.metadata.schemas[0].fields] == ["id", "a b"]
    assert first.metadata.properties == {"comment": "all"}
    update = {"action": "set-properties", "updates": {"owner": "me"}}
    parsed = TypeAdapter(ViewUpdate).validate_python(update)
    managed.commit_view(lake.realm, lake.warehouse, first.view.resource_id, [parsed])
    second = create('SELECT id FROM "deep.er".t', replace=True)
    assert second.metadata.current_version_id == 2
    current = {each.root.dialect: each.root.sql for each in second.metadata.versions[1].representations}
    assert current["spark"] == "SELECT id FROM `deep`.`er`.`t` AS `t`"
    assert second.metadata.properties == {"owner": "me"}
    db.reload()
    assert db.scan("s.v").read_all().column_names == ["id"]


def test_table_of_version_1_is_written_from_duckdb(lake: Lake) -> None:
    with lake.client() as db:
        db.create_schema("s")
        table_id = lake.managed_table(ROWS.schema, **{"format-version": "1"})
        db.reload()
        db.insert("s.t", ROWS)
        db.delete("s.t", where=col("id") >= 8)
        db.insert("s.t", ROWS.slice(9, 1))
        found = sorted(db.scan("s.t").read_all()["id"].to_pylist())
    assert found == [0, 1, 2, 3, 4, 5, 6, 7, 9]
    record = tables.get(lake.realm, v1.GetTableRequest(table_id=table_id)).table
    other = StaticTable.from_metadata(record.metadata_location)
    assert other.metadata.format_version == 1
    assert sorted(other.scan().to_arrow()["id"].to_pylist()) == found
