"""Views that Iceberg clients create are read in DuckDB, and the other way around; tables of version 1 are written."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pydantic import TypeAdapter
from pyiceberg.schema import Schema
from pyiceberg.table import StaticTable
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
)
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
    found = namespaces.lookup(lake.realm, catalog.resource_id, path)
    assert found is not None
    return found


def spark_view(
    lake: Lake,
    namespace: v1.Namespace,
    name: str,
    sql: str,
    catalog: str | None = None,
    *,
    schema: Schema = SCHEMA,
    **properties: str,
) -> managed.IcebergView:
    version = {
        "schema-id": 0,
        "representations": [{"type": "sql", "sql": sql, "dialect": "spark"}],
        "default-namespace": list(full_path(namespace)),
        "default-catalog": catalog,
    }
    return managed.create_view(
        lake.realm,
        lake.warehouse,
        namespace_id=namespace.resource_id,
        name=name,
        schema=schema,
        version=ViewVersion.model_validate(version),
        properties=properties,
    )


def columns(*names_and_types: tuple[str, Any]) -> Schema:
    fields = [NestedField(place, name, kind) for place, (name, kind) in enumerate(names_and_types, 1)]
    return Schema(*fields)


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


def test_view_of_spark_has_its_declared_columns(lake: Lake, db: AirportClient) -> None:
    """In Spark, `CREATE VIEW v (name, id) AS SELECT id, …` gives columns other names, and functions have other types."""
    schema = columns(("name", LongType()), ("id", StringType()), ("half", LongType()), ("n", LongType()))
    sql = "SELECT id, `a b`, floor(id / 2), count(*) FROM t GROUP BY ALL"
    spark_view(lake, namespace_of(lake, "s"), "v", sql, schema=schema)
    spark_view(lake, namespace_of(lake, "s"), "outer", "SELECT v.name AS id FROM v WHERE v.id = 'r1' AND half = 3")
    db.reload()
    assert db.table("s.v").columns == ("name", "id", "half", "n")
    found = db.scan("s.v", where=col("name") >= 8).read_all().sort_by("name")
    assert found.to_pylist() == [
        {"name": 8, "id": "r0", "half": 4, "n": 1},
        {"name": 9, "id": "r1", "half": 4, "n": 1},
    ]
    assert found.schema.field("half").type == pa.int64()
    assert db.scan("s.outer").read_all().to_pylist() == [{"id": 7}]


def test_view_of_all_columns_keeps_its_columns_when_the_table_gets_another_one(lake: Lake, db: AirportClient) -> None:
    schema = columns(("x", StringType()), ("y", LongType()))
    names = {"spark.query-column-names": "a b,id"}
    spark_view(lake, namespace_of(lake, "s"), "v", "SELECT * FROM (SELECT `a b`, id FROM t)", schema=schema, **names)
    spark_view(lake, namespace_of(lake, "s"), "all", "SELECT * FROM t", schema=columns(("a b", StringType())))
    db.reload()
    db.add_column("s.t", pa.field("more", pa.int64()))
    db.reload()
    assert db.scan("s.v", where=col("y") == 3).read_all().to_pylist() == [{"x": "r1", "y": 3}]
    assert db.scan("s.all", limit=1).read_all().to_pylist() == [{"a b": "r0"}]


def test_statistics_of_a_view_with_declared_columns_are_those_of_the_columns_it_shows(
    lake: Lake, db: AirportClient
) -> None:
    schema = columns(("a b", LongType()), ("id", StringType()))
    spark_view(lake, namespace_of(lake, "s"), "v", "SELECT id, `a b` FROM t", schema=schema)
    db.reload()
    found = db.statistics("s.v", "a b")
    assert (found.min, found.max) == (0, 9)
    assert db.statistics("s.v", "id").max == "r1"


def test_other_names_for_the_columns_of_a_view_replace_the_former_ones(lake: Lake, db: AirportClient) -> None:
    made = spark_view(lake, namespace_of(lake, "s"), "v", "SELECT id FROM t")
    current = made.metadata.versions[0].model_dump(mode="json", by_alias=True)
    added = columns(("number", LongType())).model_dump(mode="json", by_alias=True)
    updates = [
        {"action": "add-schema", "schema": added},
        {"action": "add-view-version", "view-version": {**current, "version-id": 2, "schema-id": -1}},
        {"action": "set-current-view-version", "view-version-id": -1},
    ]
    parsed = TypeAdapter(list[ViewUpdate]).validate_python(updates)
    managed.commit_view(lake.realm, lake.warehouse, made.view.resource_id, parsed)
    db.reload()
    assert db.table("s.v").columns == ("number",)
    assert db.scan("s.v").read_all()["number"].to_pylist() == list(range(10))


def test_all_types_of_iceberg_can_be_columns_of_a_view(lake: Lake, db: AirportClient) -> None:
    schema = columns(
        ("price", DecimalType(8, 2)),
        ("day", DateType()),
        ("moment", TimestamptzType()),
        ("local", TimestampType()),
        ("list", ListType(10, StringType())),
        ("map", MapType(11, StringType(), 12, LongType())),
        ("box", StructType(NestedField(13, 'a "b"', DoubleType()), NestedField(14, "c", BooleanType()))),
        ("bytes", BinaryType()),
        ("small", FloatType()),
    )
    sql = (
        "SELECT 1.5, date'2026-01-02', timestamp'2026-01-02 03:04:05', timestamp'2026-01-02 03:04:05', array('x'), "
        "map('k', 1), named_struct('a \"b\"', 2, 'c', true), X'0102', 3 FROM t WHERE id = 1"
    )
    spark_view(lake, namespace_of(lake, "s"), "v", sql, schema=schema)
    db.reload()
    (row,) = db.scan("s.v").read_all().to_pylist()
    moment = datetime(2026, 1, 2, 3, 4, 5)
    assert row == {
        "price": Decimal("1.50"),
        "day": date(2026, 1, 2),
        "moment": moment.replace(tzinfo=UTC),
        "local": moment,
        "list": ["x"],
        "map": [("k", 1)],
        "box": {'a "b"': 2.0, "c": True},
        "bytes": b"\x01\x02",
        "small": 3.0,
    }


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
