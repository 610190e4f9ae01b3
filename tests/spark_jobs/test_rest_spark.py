"""Spark with Iceberg's own REST client on our server: what it creates, changes and reads; PyIceberg is the oracle."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from rest.rest_server import RestServer, opened
from skiway.storage import open_stores
from spark_jobs.lakes import SPARK
from spark_jobs.shared_spark import rest_results

pytestmark = SPARK

STATEMENTS: dict[str, Any] = {
    "CREATE NAMESPACE lake.sales COMMENT 'orders'": [],
    "CREATE NAMESPACE lake.sales.`north west`": [],
    "SHOW NAMESPACES IN lake": [["sales"]],
    "SHOW NAMESPACES IN lake.sales": [["sales.`north west`"]],
    "CREATE TABLE lake.sales.people (id BIGINT, name STRING) USING iceberg PARTITIONED BY (bucket(2, id))": [],
    "INSERT INTO lake.sales.people VALUES (1, 'Ada'), (2, 'Grace'), (3, 'Edsger')": [],
    "UPDATE lake.sales.people SET name = 'Hopper' WHERE id = 2": [],
    "DELETE FROM lake.sales.people WHERE id = 3": [],
    "ALTER TABLE lake.sales.people ADD COLUMN age INT": [],
    "ALTER TABLE lake.sales.people RENAME COLUMN name TO who": [],
    "ALTER TABLE lake.sales.people SET TBLPROPERTIES ('team' = 'blue')": [],
    "MERGE INTO lake.sales.people t USING (SELECT 1 AS id, 36 AS age) s ON t.id = s.id WHEN MATCHED THEN UPDATE SET age = s.age": [],
    "SELECT * FROM lake.sales.people ORDER BY id": [[1, "Ada", 36], [2, "Hopper", None]],
    "CREATE TABLE lake.sales.made USING iceberg AS SELECT id, who FROM lake.sales.people": [],
    "CREATE OR REPLACE TABLE lake.sales.made USING iceberg AS SELECT id FROM lake.sales.people": [],
    "SELECT * FROM lake.sales.made ORDER BY id": [[1], [2]],
    "CREATE TABLE lake.sales.v3 (id BIGINT) USING iceberg TBLPROPERTIES ('format-version' = '3')": [],
    "INSERT INTO lake.sales.v3 VALUES (1), (2)": [],
    "DELETE FROM lake.sales.v3 WHERE id = 1": [],
    "SELECT * FROM lake.sales.v3": [[2]],
    "ALTER TABLE lake.sales.people CREATE BRANCH side": [],
    "INSERT INTO lake.sales.people.branch_side VALUES (9, 'Barbara', 1)": [],
    "SELECT count(*) FROM lake.sales.people VERSION AS OF 'side'": [[3]],
    "ALTER TABLE lake.sales.made RENAME TO sales.`north west`.moved": [],
    "SHOW TABLES IN lake.sales": [["sales", "people", False], ["sales", "v3", False]],
    "CREATE TABLE lake.sales.people (id BIGINT) USING iceberg": "AlreadyExists",
    "SELECT * FROM lake.sales.nothing": "TABLE_OR_VIEW_NOT_FOUND",
    "DROP NAMESPACE lake.sales": "NOT_EMPTY",
    "DROP TABLE lake.sales.v3 PURGE": [],
    "CALL lake.system.expire_snapshots(table => 'sales.people', older_than => TIMESTAMP '2100-01-01', retain_last => 1)": None,
}


@pytest.fixture(scope="module")
def rest_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestServer]:
    with open_stores("memory://") as stores, opened(stores, tmp_path_factory.mktemp("spark")) as rest_server:
        yield rest_server


@pytest.fixture(scope="module")
def spark_results(rest_server: RestServer) -> dict[str, Any]:
    """Spark's result for each statement."""
    return dict(zip(STATEMENTS, rest_results(rest_server.uri, list(STATEMENTS)), strict=True))


@pytest.mark.parametrize("statement", STATEMENTS)
def test_statement_has_the_expected_result(spark_results: dict[str, Any], statement: str) -> None:
    expected, found = STATEMENTS[statement], spark_results[statement]
    if isinstance(expected, str):
        assert expected.lower().replace("_", "") in f"{found}".lower().replace("_", "")
    else:
        assert isinstance(found, list), found
        assert expected is None or found == expected


@pytest.mark.usefixtures("spark_results")
def test_pyiceberg_reads_what_spark_wrote(rest_server: RestServer) -> None:
    catalog = rest_server.pyiceberg()
    people = catalog.load_table("sales.people")
    rows = sorted(people.scan().to_arrow().to_pylist(), key=lambda row: row["id"])
    assert rows == [{"id": 1, "who": "Ada", "age": 36}, {"id": 2, "who": "Hopper", "age": None}]
    assert people.properties["team"] == "blue"
    assert people.scan(snapshot_id=people.metadata.refs["side"].snapshot_id).to_arrow().num_rows == 3
    moved = catalog.load_table(("sales", "north west", "moved")).scan().to_arrow()
    assert sorted(moved["id"].to_pylist()) == [1, 2]
    assert catalog.load_namespace_properties("sales")["comment"] == "orders"
    assert catalog.list_tables("sales") == [("sales", "people")]


@pytest.mark.usefixtures("spark_results")
def test_snapshots_expired_by_spark_are_removed(rest_server: RestServer) -> None:
    people = rest_server.pyiceberg().load_table("sales.people")
    remaining = {ref.snapshot_id for ref in people.metadata.refs.values()}
    assert {each.snapshot_id for each in people.metadata.snapshots} == remaining
