"""A user of Trino. After each step, Spark over Iceberg REST and DuckDB over Airport have the same rows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import time
from itertools import count
from typing import Any

import boto3
import pyarrow as pa
import pytest

from spark_jobs.lakes import SPARK
from trino_script.installation import installed
from trino_script.lakes import Lake, as_arrow, opened_lake, page_statements
from trino_script.trino_server import TrinoError
from trino_script.values import python_rows
from vending.guarded_s3 import BUCKET, REGION, SERVER_KEY

pytestmark = SPARK

numbers = count(1)
Rows = list[tuple[Any, ...]]


class User:
    """A schema of its own, statements of Trino, and the comparison with Spark and Airport."""

    def __init__(self, lake: Lake) -> None:
        self.lake = lake
        self.schema = f"trino{next(numbers)}"
        self.run(f"CREATE SCHEMA lake.{self.schema}")

    def run(self, *statements: str, catalog: str = "lake", session: str = "") -> Rows:
        """Run statements, in which `s.` is the schema, and return the rows of the last one."""
        found: Rows = []
        headers = {"x-trino-session": session} if session else {}
        for statement in statements:
            found = python_rows(self.lake.trino.run(self.full(statement, catalog), **headers))
        return found

    def full(self, statement: str, catalog: str = "lake") -> str:
        return f" {statement}".replace(" s.", f" {catalog}.{self.schema}.").strip()

    def refused(self, statement: str, catalog: str = "lake") -> TrinoError:
        """The error of a statement."""
        with pytest.raises(TrinoError) as refusal:
            self.run(statement, catalog=catalog)
        return refusal.value

    def spark(self, *statements: str) -> Rows:
        """Run statements on Spark."""
        found: Rows = []
        for statement in statements:
            found = [tuple(row) for row in self.lake.spark.sql(self.full(statement)).collect()]
        return found

    def check(self, table: str) -> Rows:
        """The rows of a table as Trino reads them, which are those of Spark and of Airport."""
        found = as_arrow(self.lake.trino, f"SELECT * FROM lake.{self.schema}.{table}")
        self.lake.assert_same(found, f"{self.schema}.{table}")
        return in_order(found)

    def check_at(self, table: str, version: str | int) -> Rows:
        """The same for an earlier snapshot, a branch or a tag."""
        shown = f"'{version}'" if isinstance(version, str) else version
        found = as_arrow(self.lake.trino, f"SELECT * FROM lake.{self.schema}.{table} FOR VERSION AS OF {shown}")
        in_spark = f"SELECT * FROM lake.{self.schema}.{table} VERSION AS OF {shown}"
        self.lake.assert_same(found, f"{self.schema}.{table}", spark=in_spark, at_version=version)
        return in_order(found)

    def check_query(self, query: str, of_spark: str = "") -> Rows:
        """The rows of a query as Trino returns them, which are those of Spark."""
        found = as_arrow(self.lake.trino, self.full(query))
        self.lake.assert_same_in_spark(found, self.full(of_spark or query))
        return in_order(found)

    def snapshots(self, table: str) -> list[int]:
        return [
            number for (number,) in self.run(f'SELECT snapshot_id FROM s."{table}$snapshots" ORDER BY committed_at')
        ]


def in_order(found: pa.Table) -> Rows:
    return sorted((tuple(row.values()) for row in found.to_pylist()), key=repr)


def error_of(user: User, statement: str) -> TrinoError | None:
    """The error of a statement that may fail."""
    try:
        user.run(statement)
    except TrinoError as error:
        return error
    return None


def ids(rows: Rows) -> list[Any]:
    return [row[0] for row in rows]


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    installation = installed()
    if installation is None:
        pytest.skip("needs Trino; to get it: make trino")
    with opened_lake(tmp_path_factory.mktemp("lake"), installation) as found:
        yield found
        print(f"\n{len(found.trino.statements)} statements")


@pytest.fixture
def user(lake: Lake) -> User:
    return User(lake)


@pytest.fixture
def bucket(lake: Lake) -> Iterator[Any]:
    """A client of the bucket with the keys of the server."""
    keys = {f"aws_{name}": value for name, value in SERVER_KEY.items()}
    client = boto3.client("s3", region_name=REGION, endpoint_url=lake.s3.endpoint, **keys)
    yield client
    client.close()


def keys_below(bucket: Any, prefix: str) -> list[str]:
    return [each["Key"] for each in bucket.list_objects_v2(Bucket=BUCKET, Prefix=prefix).get("Contents", ())]


# --- rows -------------------------------------------------------------------------------------------------------------

TYPES = {
    "flag": ("BOOLEAN", "true"),
    "number": ("INTEGER", "-7"),
    "big": ("BIGINT", "9007199254740993"),
    "single": ("REAL", "REAL '1.5'"),
    "precise": ("DOUBLE", "nan()"),
    "price": ("DECIMAL(8, 2)", "1.25"),
    "huge": ("DECIMAL(38, 4)", "DECIMAL '1234567890123456789012345678901234.5678'"),
    "name": ("VARCHAR", "'wörd \U0001f600'"),
    "bytes": ("VARBINARY", "X'0001ff'"),
    "day": ("DATE", "DATE '1969-12-31'"),
    "moment": ("TIMESTAMP(6)", "TIMESTAMP '2026-01-01 01:02:03.456789'"),
    "instant": ("TIMESTAMP(6) WITH TIME ZONE", "TIMESTAMP '2026-01-01 01:02:03.456789 Europe/Paris'"),
    "tags": ("ARRAY(INTEGER)", "ARRAY[1, NULL]"),
    "place": ("ROW(x INTEGER, at ROW(y VARCHAR))", "ROW(1, ROW('deep'))"),
    "pairs": ("MAP(VARCHAR, INTEGER)", "MAP(ARRAY['k'], ARRAY[1])"),
    "boxes": ("ARRAY(ROW(a DOUBLE))", "ARRAY[ROW(0.5)]"),
    "key": ("UUID", "UUID '6ccd780c-baba-1026-9564-5b8c656024db'"),
}


@pytest.mark.parametrize("file_format", ["PARQUET", "ORC", "AVRO"])
def test_values_of_every_type_are_written_and_read(user: User, file_format: str) -> None:
    columns = ", ".join(f"{name} {kind}" for name, (kind, _) in TYPES.items())
    user.run(
        f"CREATE TABLE s.t ({columns}) WITH (format = '{file_format}')",
        f"INSERT INTO s.t VALUES ({', '.join(value for _, value in TYPES.values())})",
        f"INSERT INTO s.t VALUES ({', '.join('NULL' for _ in TYPES)})",
    )
    assert len(user.check("t")) == 2


def test_times_are_written_and_read(user: User) -> None:
    """Spark has no type for them."""
    user.run(
        "CREATE TABLE s.t (id BIGINT, at TIME(6))", "INSERT INTO s.t VALUES (1, TIME '01:02:03.456789'), (2, NULL)"
    )
    found = as_arrow(user.lake.trino, f"SELECT * FROM lake.{user.schema}.t")
    user.lake.assert_same_over_airport(found, f"{user.schema}.t")
    assert in_order(found)[0] == (1, time(1, 2, 3, 456789))


def test_types_that_iceberg_lacks_are_converted_or_refused(user: User) -> None:
    user.run("CREATE TABLE s.t (a TINYINT, b SMALLINT, c CHAR(5), d TIMESTAMP(3), e VARCHAR(5))")
    assert [row[1] for row in user.run("DESCRIBE s.t")] == ["integer", "integer", "varchar", "timestamp(6)", "varchar"]
    assert user.check("t") == []
    assert user.refused("CREATE TABLE s.j (a JSON)").name == "NOT_SUPPORTED"


PEOPLE = (
    "(1, 'Ada', DATE '2026-01-01'), (2, 'Grace', DATE '2026-02-01'), (3, 'Edsger', DATE '2026-02-02'), (4, NULL, NULL)"
)


def test_rows_are_inserted_updated_deleted_and_merged(user: User) -> None:
    user.run(
        "CREATE TABLE s.people (id BIGINT, name VARCHAR, day DATE) WITH (partitioning = ARRAY['month(day)'])",
        f"INSERT INTO s.people VALUES {PEOPLE}",
    )
    assert ids(user.check("people")) == [1, 2, 3, 4]
    user.run("UPDATE s.people SET name = 'Hopper' WHERE id = 2")
    assert user.check("people")[1][1] == "Hopper"
    user.run("DELETE FROM s.people WHERE id = 3")
    assert ids(user.check("people")) == [1, 2, 4]
    user.run(
        "MERGE INTO s.people AS t USING (VALUES (1, 'A'), (4, 'gone'), (5, 'new')) AS v(id, name) ON t.id = v.id "
        "WHEN MATCHED AND v.name = 'gone' THEN DELETE WHEN MATCHED THEN UPDATE SET name = v.name "
        "WHEN NOT MATCHED THEN INSERT (id, name) VALUES (v.id, v.name)"
    )
    assert [row[:2] for row in user.check("people")] == [(1, "A"), (2, "Hopper"), (5, "new")]
    user.run("DELETE FROM s.people WHERE day = DATE '2026-02-01'")  # of a partition's files, some rows
    assert ids(user.check("people")) == [1, 5]
    user.run("DELETE FROM s.people WHERE day IS NULL")
    assert ids(user.check("people")) == [1]
    user.run("TRUNCATE TABLE s.people")
    assert user.check("people") == []


def test_engines_change_the_same_table_in_turn(user: User) -> None:
    user.run("CREATE TABLE s.t (id BIGINT, name VARCHAR)", "INSERT INTO s.t VALUES (1, 'a'), (2, 'b'), (3, 'c')")
    modes = ", ".join(f"'write.{change}.mode' = 'merge-on-read'" for change in ("delete", "update", "merge"))
    user.spark(f"ALTER TABLE s.t SET TBLPROPERTIES ({modes})", "DELETE FROM s.t WHERE id = 1")
    assert ids(user.check("t")) == [2, 3]
    user.run("UPDATE s.t SET name = 'B' WHERE id = 2", "INSERT INTO s.t VALUES (4, 'd')")
    with user.lake.airport() as db:
        assert db.insert(f"{user.schema}.t", pa.table({"id": [5], "name": ["e"]})).count == 1
    user.run("DELETE FROM s.t WHERE id = 5")
    assert user.check("t") == [(2, "B"), (3, "c"), (4, "d")]


def test_tables_are_created_from_queries_and_replaced(user: User) -> None:
    user.run("CREATE TABLE s.t COMMENT 'numbers' AS SELECT n AS id, n * 1.5 AS x FROM UNNEST(sequence(1, 5)) AS r(n)")
    assert len(user.check("t")) == 5
    assert user.run("SELECT count(*) FROM s.t WHERE x > 4") == [(3,)]
    user.run("CREATE OR REPLACE TABLE s.t AS SELECT id FROM s.t WHERE id > 3")
    assert ids(user.check("t")) == [4, 5]
    user.run(
        "CREATE OR REPLACE TABLE s.made AS SELECT 1 AS one", "CREATE TABLE s.shape AS SELECT * FROM s.t WITH NO DATA"
    )
    assert (user.check("made"), user.check("shape")) == ([(1,)], [])
    user.run("CREATE TABLE IF NOT EXISTS s.t (other VARCHAR)", "CREATE TABLE s.shaped (LIKE s.t, more VARCHAR)")
    assert len(user.check("t")) == 2
    assert user.check("shaped") == []


# --- tables -----------------------------------------------------------------------------------------------------------


def test_partitions_prune_files_and_evolve(user: User) -> None:
    user.run(
        "CREATE TABLE s.t (id BIGINT, name VARCHAR, day DATE, at TIMESTAMP(6), number DECIMAL(8, 2)) WITH (partitioning = "
        "ARRAY['year(day)', 'bucket(id, 4)', 'truncate(name, 2)', 'hour(at)', 'truncate(number, 10)'])",
        "INSERT INTO s.t SELECT n, 'name' || CAST(n AS VARCHAR), DATE '2026-01-01' + INTERVAL '1' YEAR * n, "
        "TIMESTAMP '2026-01-01 00:00:00' + INTERVAL '1' HOUR * n, CAST(n AS DECIMAL(8, 2)) / 2 "
        "FROM UNNEST(sequence(-5, 5)) AS r(n)",
        "INSERT INTO s.t (id) VALUES (100)",
    )
    assert len(user.check("t")) == 12
    assert user.check_query("SELECT id FROM s.t WHERE day >= DATE '2030-01-01' AND id <> 5") == [(4,)]
    assert user.check_query("SELECT id FROM s.t WHERE id = -3 OR day IS NULL") == [(-3,), (100,)]
    user.run(
        "ALTER TABLE s.t SET PROPERTIES partitioning = ARRAY['month(day)', 'name']",
        "INSERT INTO s.t (id, name, day) VALUES (200, 'x', DATE '2026-05-01'), (201, 'y/=%', DATE '2026-05-02')",
        "UPDATE s.t SET name = 'z' WHERE id IN (1, 200)",
    )
    assert len(user.check("t")) == 14
    user.run("ALTER TABLE s.t SET PROPERTIES partitioning = ARRAY['day(at)']", "DELETE FROM s.t WHERE id = 201")
    user.run("ALTER TABLE s.t SET PROPERTIES partitioning = ARRAY[]", "INSERT INTO s.t (id) VALUES (300)")
    user.run("ALTER TABLE s.t EXECUTE optimize")
    assert len(user.check("t")) == 14
    assert user.check_query("SELECT count(*) AS n FROM s.t WHERE name = 'z'") == [(2,)]


def test_nested_fields_are_partition_sources(user: User) -> None:
    user.run(
        "CREATE TABLE s.t (id BIGINT, place ROW(country VARCHAR, city VARCHAR)) WITH (partitioning = ARRAY['\"place.country\"'])",
        "INSERT INTO s.t VALUES (1, ROW('NL', 'Utrecht')), (2, ROW('DE', 'Bonn')), (3, NULL)",
        "DELETE FROM s.t WHERE place.country = 'DE'",
    )
    assert ids(user.check("t")) == [1, 3]


def test_columns_are_added_renamed_changed_and_dropped(user: User) -> None:
    user.run(
        "CREATE TABLE s.t (id BIGINT NOT NULL, name VARCHAR COMMENT 'who', size INTEGER, x REAL, price DECIMAL(8, 2), "
        "place ROW(x INTEGER, y INTEGER))",
        "INSERT INTO s.t VALUES (1, 'Ada', 1, REAL '1.5', 1.25, ROW(1, 2))",
        "ALTER TABLE s.t ADD COLUMN tags ARRAY(VARCHAR)",
        "ALTER TABLE s.t ADD COLUMN IF NOT EXISTS tags ARRAY(VARCHAR)",
        "ALTER TABLE s.t ADD COLUMN note VARCHAR COMMENT 'a note' FIRST",
        "ALTER TABLE s.t ADD COLUMN second BIGINT AFTER note",
        "ALTER TABLE s.t ALTER COLUMN size SET DATA TYPE BIGINT",
        "ALTER TABLE s.t ALTER COLUMN x SET DATA TYPE DOUBLE",
        "ALTER TABLE s.t ALTER COLUMN price SET DATA TYPE DECIMAL(12, 2)",
        "ALTER TABLE s.t ALTER COLUMN id DROP NOT NULL",
        "ALTER TABLE s.t ADD COLUMN place.z DOUBLE",
        "ALTER TABLE s.t RENAME COLUMN place.z TO depth",
        "ALTER TABLE s.t DROP COLUMN place.y",
        "ALTER TABLE s.t RENAME COLUMN name TO who",
        "ALTER TABLE s.t DROP COLUMN second",
        "COMMENT ON COLUMN s.t.who IS 'a person'",
        "COMMENT ON TABLE s.t IS 'people'",
        "INSERT INTO s.t VALUES ('n', NULL, 'Grace', 2, 2.5, 1.25, ROW(1, 3.5), ARRAY['a', NULL])",
    )
    rows = user.check("t")
    assert [row[-2] for row in rows] == [{"x": 1, "depth": 3.5}, {"x": 1, "depth": None}]
    described = {row[0]: row[1:] for row in user.run("DESCRIBE s.t")}
    assert described["price"][0] == "decimal(12,2)"
    assert described["who"][2] == "a person"
    with user.lake.airport() as db:
        assert db.table(f"{user.schema}.t").comment == "people"
    assert {row[0]: row[2] for row in user.spark("DESCRIBE TABLE s.t")}["who"] == "a person"
    user.run("COMMENT ON TABLE s.t IS NULL", "ALTER TABLE s.t RENAME TO s.renamed")
    assert len(user.check("renamed")) == 2


def test_properties_and_sort_orders(user: User) -> None:
    user.run(
        "CREATE TABLE s.t (id BIGINT, name VARCHAR) WITH (format = 'ORC', format_version = 1, max_commit_retry = 7, "
        "sorted_by = ARRAY['name DESC', 'id'])",
        "INSERT INTO s.t SELECT n, CAST(n % 3 AS VARCHAR) FROM UNNEST(sequence(1, 9)) AS r(n)",
    )
    assert [name for (name,) in user.run("SELECT name FROM s.t")] == [*"222111000"]
    user.run(
        "ALTER TABLE s.t SET PROPERTIES format_version = 2",
        "ALTER TABLE s.t SET PROPERTIES format = 'PARQUET'",
        "ALTER TABLE s.t SET PROPERTIES sorted_by = ARRAY['id']",
        "DELETE FROM s.t WHERE id = 9",
        "ALTER TABLE s.t SET PROPERTIES max_commit_retry = 5",
    )
    assert len(user.check("t")) == 8
    properties: dict[str, str] = dict(user.run('SELECT key, value FROM s."t$properties"'))
    assert (properties["write.format.default"], properties["format-version"]) == ("PARQUET", "2")
    assert properties["sort-order"] == "id ASC NULLS FIRST"
    assert "max_commit_retry = 5" in user.run("SHOW CREATE TABLE s.t")[0][0]


def test_tables_of_version_3_are_read_as_long_as_nothing_is_deleted(user: User) -> None:
    assert "between 1 and 2" in user.refused("CREATE TABLE s.t (id BIGINT) WITH (format_version = 3)").message
    user.spark(
        "CREATE TABLE s.t (id BIGINT, name STRING) USING iceberg "
        "TBLPROPERTIES ('format-version' = '3', 'write.delete.mode' = 'merge-on-read')",
        "INSERT INTO s.t SELECT /*+ COALESCE(1) */ id, 'n' FROM range(4)",
    )
    user.run("INSERT INTO s.t VALUES (9, 'trino')")
    assert ids(user.check("t")) == [0, 1, 2, 3, 9]
    user.spark("DELETE FROM s.t WHERE id = 1")
    assert user.refused("SELECT * FROM s.t").name == "ICEBERG_BAD_DATA"
    with user.lake.airport() as db:
        assert db.scan(f"{user.schema}.t").read_all().num_rows == 4


def test_schemas_and_names(user: User) -> None:
    inner = f'"{user.schema}.inner"'
    user.run(f"CREATE SCHEMA lake.{inner}", f"CREATE TABLE lake.{inner}.t AS SELECT 1 AS id")
    assert (user.schema,) in user.run("SHOW SCHEMAS FROM lake")
    assert user.run(f"SHOW SCHEMAS FROM lake LIKE '{user.schema}.%'") == [(f"{user.schema}.inner",)]
    assert user.check_query(f"SELECT * FROM lake.{inner}.t", f"SELECT * FROM lake.{user.schema}.inner.t") == [(1,)]
    user.spark("CREATE TABLE s.`Mixed Case` (`The Id` BIGINT) USING iceberg", "INSERT INTO s.`Mixed Case` VALUES (7)")
    assert user.run('SELECT "the id" FROM s."mixed case"') == [(7,)]
    user.run('INSERT INTO s."MIXED CASE" VALUES (8)')
    user.run(f'CREATE TABLE lake.{user.schema}."a/b c%é" ("x.y" BIGINT, "select" VARCHAR)')
    user.run(f"INSERT INTO lake.{user.schema}.\"a/b c%é\" VALUES (1, 's')")
    assert user.run(f'SELECT "x.y" FROM lake.{user.schema}."a/b c%é"') == [(1,)]
    assert set(user.run(f"SHOW TABLES FROM lake.{user.schema}")) == {("mixed case",), ("a/b c%é",)}
    assert user.run(f"SHOW CREATE SCHEMA lake.{user.schema}")[0][0].startswith("CREATE SCHEMA")
    assert user.refused(f"DROP SCHEMA lake.{user.schema}").name == "SCHEMA_NOT_EMPTY"
    user.run(f"DROP TABLE lake.{inner}.t", f"DROP SCHEMA lake.{inner}", f"DROP SCHEMA lake.{user.schema} CASCADE")
    assert (user.schema,) not in user.run("SHOW SCHEMAS FROM lake")


def test_information_schema(user: User) -> None:
    user.run(
        "CREATE TABLE s.t (id BIGINT COMMENT 'key', name VARCHAR) COMMENT 'rows'",
        "CREATE VIEW s.v COMMENT 'names' AS SELECT name FROM s.t",
    )
    where = f"WHERE table_schema = '{user.schema}'"
    tables = user.run(f"SELECT table_name, table_type FROM lake.information_schema.tables {where} ORDER BY 1")
    assert tables == [("t", "BASE TABLE"), ("v", "VIEW")]
    columns = user.run(
        f"SELECT table_name, column_name, data_type FROM lake.information_schema.columns {where} ORDER BY 1, 2"
    )
    assert columns == [("t", "id", "bigint"), ("t", "name", "varchar"), ("v", "name", "varchar")]
    views = user.run(f"SELECT table_name FROM lake.information_schema.views {where}")
    assert views == [("v",)]
    comments = "SELECT table_name, comment FROM system.metadata.table_comments WHERE catalog_name = 'lake'"
    assert sorted(user.run(f"{comments} AND schema_name = '{user.schema}'")) == [("t", "rows"), ("v", "names")]
    assert [row[0] for row in user.run("SHOW COLUMNS FROM s.t")] == ["id", "name"]
    listed = user.run(f"SELECT table_name FROM lake.system.iceberg_tables WHERE table_schema = '{user.schema}'")
    assert listed == [("t",)]


# --- history ----------------------------------------------------------------------------------------------------------


def test_earlier_snapshots_are_read_and_restored(user: User) -> None:
    user.run("CREATE TABLE s.t (id BIGINT)", *(f"INSERT INTO s.t VALUES ({number})" for number in (1, 2, 3)))
    created, first, second, third = user.snapshots("t")
    assert user.check_at("t", created) == []
    assert ids(user.check_at("t", second)) == [1, 2]
    ((then,),) = user.run(f'SELECT CAST(committed_at AS VARCHAR) FROM s."t$snapshots" WHERE snapshot_id = {first}')
    assert user.run(f"SELECT * FROM s.t FOR TIMESTAMP AS OF TIMESTAMP '{then}'") == [(1,)]
    too_early = user.refused("SELECT * FROM s.t FOR TIMESTAMP AS OF TIMESTAMP '2000-01-01 00:00:00 UTC'")
    assert (too_early.name, "No version history" in too_early.message) == ("INVALID_ARGUMENTS", True)
    assert user.refused("SELECT * FROM s.t FOR VERSION AS OF 'nothing'").name == "INVALID_ARGUMENTS"
    assert user.refused("SELECT * FROM s.t FOR VERSION AS OF BIGINT '7'").name == "INVALID_ARGUMENTS"
    user.spark("ALTER TABLE s.t CREATE TAG done", f"ALTER TABLE s.t CREATE BRANCH side AS OF VERSION {first}")
    user.spark("INSERT INTO s.t.branch_side VALUES (9)")
    assert (ids(user.check_at("t", "side")), ids(user.check_at("t", "done"))) == ([1, 9], [1, 2, 3])
    user.run(f"ALTER TABLE s.t EXECUTE rollback_to_snapshot({first})")
    assert ids(user.check("t")) == [1]
    user.run("INSERT INTO s.t VALUES (10)")
    assert ids(user.check("t")) == [1, 10]
    assert ids(user.check_at("t", third)) == [1, 2, 3]
    changes = f"SELECT id, _change_type FROM TABLE(lake.system.table_changes('{user.schema}', 't', {created}, {first}))"
    assert user.run(changes) == [(1, "insert")]


def test_metadata_tables(user: User) -> None:
    user.run(
        "CREATE TABLE s.t (id BIGINT, part INTEGER) WITH (partitioning = ARRAY['part'])",
        "INSERT INTO s.t SELECT n, n % 2 FROM UNNEST(sequence(0, 3)) AS r(n)",
        "DELETE FROM s.t WHERE id = 3",
    )
    user.spark("ALTER TABLE s.t CREATE TAG done")
    of_spark = {
        "metadata_log_entries": "metadata_log_entries",
        "refs": "refs",
        "history": "history",
        "snapshots": "snapshots",
    }
    of_spark |= {"manifests": "manifests", "files": "files", "entries": "entries", "partitions": "partitions"}
    for name in of_spark:
        assert user.run(f'SELECT count(*) FROM s."t${name}"') == user.spark(f"SELECT count(*) FROM s.t.{name}"), name
    assert user.check_query(
        'SELECT name, type, snapshot_id FROM s."t$refs"', "SELECT name, type, snapshot_id FROM s.t.refs"
    )
    assert user.check_query(
        'SELECT file_path, record_count FROM s."t$files"', "SELECT file_path, record_count FROM s.t.files"
    )
    operations = [row[0] for row in user.run('SELECT operation FROM s."t$snapshots" ORDER BY committed_at')]
    assert operations == ["append", "append", "delete"]
    assert user.run('SELECT sum(record_count) FROM s."t$partitions"') == [(4,)]
    assert user.run('SELECT count(DISTINCT "$path") FROM s.t') == [(2,)]


# --- views ------------------------------------------------------------------------------------------------------------


def test_views(user: User) -> None:
    user.run(
        "CREATE TABLE s.people (id BIGINT, name VARCHAR, day DATE)",
        f"INSERT INTO s.people VALUES {PEOPLE}",
        "CREATE VIEW s.names COMMENT 'all' AS SELECT id, upper(name) AS name FROM s.people WHERE id > 1",
    )
    assert user.run("SELECT name FROM s.names WHERE id = 2") == [("GRACE",)]
    assert user.refused("CREATE VIEW s.names AS SELECT 1 AS x").name == "TABLE_ALREADY_EXISTS"
    user.run("CREATE OR REPLACE VIEW s.names SECURITY INVOKER AS SELECT id AS number, name AS who FROM s.people")
    assert user.run("SELECT who FROM s.names WHERE number = 1") == [("Ada",)]
    user.run("COMMENT ON VIEW s.names IS 'everybody'", "COMMENT ON COLUMN s.names.who IS 'a person'")
    assert "COMMENT 'everybody'" in user.run("SHOW CREATE VIEW s.names")[0][0]
    user.run("ALTER VIEW s.names RENAME TO s.called")
    assert len(user.run("SELECT * FROM s.called")) == 4
    assert user.refused("SELECT * FROM s.names").name == "TABLE_NOT_FOUND"
    assert user.refused("CREATE TABLE s.called (x BIGINT)").name == "TABLE_ALREADY_EXISTS"
    user.run("DROP VIEW s.called", "DROP VIEW IF EXISTS s.called")
    assert "does not exist" in user.refused("DROP VIEW s.called").message


def test_views_of_trino_are_read_by_spark_and_duckdb(user: User) -> None:
    user.run(
        "CREATE TABLE s.people (id BIGINT, name VARCHAR, day DATE)",
        f"INSERT INTO s.people VALUES {PEOPLE}",
        "CREATE VIEW s.v AS SELECT name, date_format(day, '%m') AS month, length(name) AS size FROM s.people WHERE id < 3",
        f"CREATE VIEW s.nested AS SELECT upper(name) AS name, size FROM lake.{user.schema}.v",
    )
    found = as_arrow(user.lake.trino, f"SELECT * FROM lake.{user.schema}.v")
    user.lake.assert_same_over_airport(found, f"{user.schema}.v")
    assert in_order(found) == [("Ada", "01", 3), ("Grace", "02", 5)]
    with user.lake.airport() as db:
        assert in_order(db.scan(f"{user.schema}.nested").read_all()) == [("ADA", 3), ("GRACE", 5)]
    user.run("CREATE VIEW s.plain AS SELECT id, upper(name) AS name FROM s.people WHERE id < 3")
    assert user.check("plain") == [(1, "ADA"), (2, "GRACE")]


def test_views_of_duckdb_are_read_and_those_of_spark_are_not(user: User) -> None:
    user.run("CREATE TABLE s.t (id BIGINT, name VARCHAR)", "INSERT INTO s.t VALUES (1, 'a'), (2, 'bb')")
    sql = (
        "SELECT id + 1 AS next, len(name) AS size, strftime(DATE '2026-01-02', '%d') AS day FROM t WHERE len(name) < 3"
    )
    with user.lake.airport() as db:
        db.call("skiway.create_view", f"{user.schema}.of_duckdb", sql).read_all()
    assert user.check("of_duckdb") == [(2, 1, "02"), (3, 2, "02")]
    user.run("ALTER VIEW s.of_duckdb RENAME TO s.called", "COMMENT ON VIEW s.called IS 'numbers'")
    assert len(user.check("called")) == 2
    user.spark("CREATE VIEW s.of_spark AS SELECT id + 1 AS next FROM s.t")
    assert user.refused("SELECT * FROM s.of_spark").name == "ICEBERG_UNSUPPORTED_VIEW_DIALECT"
    listed = user.run(f"SELECT table_name FROM lake.information_schema.views WHERE table_schema = '{user.schema}'")
    assert listed == [("called",)]
    for name in ("called", "of_spark"):
        replacing = f"CREATE OR REPLACE VIEW s.{name} AS SELECT id FROM s.t WHERE id = 1"
        assert "loss of view dialects" in user.refused(replacing).message
        user.spark(f"ALTER VIEW s.{name} SET TBLPROPERTIES ('replace.drop-dialect.allowed' = 'true')")
        user.run(replacing)
        assert user.check(name) == [(1,)]


# --- maintenance ------------------------------------------------------------------------------------------------------


def test_tables_are_maintained(user: User, bucket: Any) -> None:
    no_wait = "lake.expire_snapshots_min_retention=0s,lake.remove_orphan_files_min_retention=0s"
    user.run(
        "CREATE TABLE s.t (id BIGINT, name VARCHAR) WITH (partitioning = ARRAY['bucket(id, 2)'])",
        *(f"INSERT INTO s.t VALUES ({number}, 'n{number}'), ({number + 10}, 'm')" for number in range(3)),
        "DELETE FROM s.t WHERE id = 12",
    )
    before = user.check("t")
    user.run("ALTER TABLE s.t EXECUTE optimize(file_size_threshold => '10MB')")
    assert user.run('SELECT count(*) FROM s."t$files"') == [(2,)]
    user.run("ALTER TABLE s.t EXECUTE optimize_manifests")
    assert user.check("t") == before
    user.run("ALTER TABLE s.t EXECUTE expire_snapshots(retention_threshold => '0s')", session=no_wait)
    assert len(user.snapshots("t")) == 1
    assert user.check("t") == before
    ((path,),) = user.run('SELECT min("$path") FROM s.t')
    folder = path.removeprefix(f"s3://{BUCKET}/").partition("/data/")[0]
    bucket.put_object(Bucket=BUCKET, Key=f"{folder}/data/orphan.parquet", Body=b"nothing")
    assert len(keys_below(bucket, f"{folder}/data/")) == 3
    user.run("ALTER TABLE s.t EXECUTE remove_orphan_files(retention_threshold => '0s')", session=no_wait)
    assert [key for key in keys_below(bucket, f"{folder}/data/") if "orphan" in key] == []
    assert user.check("t") == before


def test_statistics_are_collected_and_dropped(user: User) -> None:
    user.run(
        "CREATE TABLE s.t (id BIGINT, name VARCHAR)",
        "INSERT INTO s.t SELECT n, CAST(n % 3 AS VARCHAR) FROM UNNEST(sequence(1, 99)) AS r(n)",
        "ALTER TABLE s.t EXECUTE drop_extended_stats",
        "ANALYZE s.t",
    )
    stats = {row[0]: row for row in user.run("SHOW STATS FOR s.t")}
    assert stats["name"][2] == 3.0
    user.run("ANALYZE s.t WITH (columns = ARRAY['id'])", "ALTER TABLE s.t EXECUTE drop_extended_stats")
    assert {row[0]: row for row in user.run("SHOW STATS FOR s.t")}["name"][2] is None
    assert len(user.check("t")) == 99


def test_tables_are_unregistered_registered_and_purged(user: User, bucket: Any) -> None:
    user.run("CREATE TABLE s.t (id BIGINT)", "INSERT INTO s.t VALUES (1), (2)")
    ((file,),) = user.run('SELECT file FROM s."t$metadata_log_entries" ORDER BY timestamp DESC, file DESC LIMIT 1')
    folder, _, name = file.partition("/metadata/")
    user.run(f"CALL lake.system.unregister_table('{user.schema}', 't')")
    assert user.refused("SELECT * FROM s.t").name == "TABLE_NOT_FOUND"
    user.run(
        f"CALL with_keys.system.register_table(schema_name => '{user.schema}', table_name => 'back', "
        f"table_location => '{folder}', metadata_file_name => '{name}')"
    )
    user.run("INSERT INTO s.back VALUES (3)", "DELETE FROM s.back WHERE id = 1")
    assert ids(user.check("back")) == [2, 3]
    assert keys_below(bucket, folder.removeprefix(f"s3://{BUCKET}/"))
    user.run("DROP TABLE s.back")
    assert keys_below(bucket, folder.removeprefix(f"s3://{BUCKET}/")) == []
    assert user.refused("SELECT * FROM s.back").name == "TABLE_NOT_FOUND"


# --- errors -----------------------------------------------------------------------------------------------------------


def test_errors_have_names_and_messages(user: User) -> None:
    user.run("CREATE TABLE s.t (id BIGINT NOT NULL)", "INSERT INTO s.t VALUES (1)")
    assert user.refused("CREATE TABLE s.t (id BIGINT)").name == "TABLE_ALREADY_EXISTS"
    assert user.refused(f"CREATE SCHEMA lake.{user.schema}").name == "SCHEMA_ALREADY_EXISTS"
    assert user.refused("SELECT * FROM s.nothing").name == "TABLE_NOT_FOUND"
    assert user.refused("SELECT * FROM lake.nowhere.t").name == "SCHEMA_NOT_FOUND"
    assert user.refused("SELECT nothing FROM s.t").name == "COLUMN_NOT_FOUND"
    assert user.refused("INSERT INTO s.t VALUES (NULL)").name == "CONSTRAINT_VIOLATION"
    user.run("CREATE TABLE s.other (id BIGINT)")
    assert user.refused("ALTER TABLE s.t RENAME TO s.other").name == "TABLE_ALREADY_EXISTS"
    away = user.refused("CREATE TABLE s.away (id BIGINT) WITH (location = 's3://elsewhere/folder')")
    assert "is not approved for catalog lake" in away.causes[0]
    for statement in (
        "CREATE MATERIALIZED VIEW s.mv AS SELECT * FROM s.t",
        f"ALTER SCHEMA lake.{user.schema} RENAME TO other",
        "GRANT SELECT ON s.t TO USER somebody",
    ):
        assert user.refused(statement).name == "NOT_SUPPORTED"
    assert "the token is unknown" in user.refused("SHOW SCHEMAS FROM stranger").message
    assert "must be a token of this server" in user.refused("SHOW SCHEMAS FROM each_user").causes[-1]


def test_concurrent_appends_succeed_and_concurrent_updates_are_serial(user: User) -> None:
    user.run("CREATE TABLE s.t (id BIGINT, n BIGINT)")
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: user.run(f"INSERT INTO s.t VALUES ({number}, 0)"), range(8)))

        refusals = [each for each in pool.map(lambda _: error_of(user, "UPDATE s.t SET n = n + 1"), range(4)) if each]
    assert {each.name for each in refusals} <= {"ICEBERG_COMMIT_ERROR"}
    assert all("conflicting" in each.message for each in refusals)
    done = 4 - len(refusals)
    assert done >= 1
    assert user.check("t") == [(number, done) for number in range(8)]


def test_grant_to_read_is_no_right_to_write(user: User) -> None:
    user.run("CREATE TABLE s.t (id BIGINT)", "INSERT INTO s.t VALUES (1)", "CREATE TABLE s.hidden (id BIGINT)")
    with user.lake.metastore() as metastore:
        metastore.grants.add(f"lake.{user.schema}.t", "user:reader", "read")
    assert user.run("SELECT * FROM s.t", catalog="reader") == [(1,)]
    assert user.run(f"SHOW TABLES FROM reader.{user.schema}") == [("t",)]
    assert user.refused("SELECT * FROM s.hidden", "reader").name == "TABLE_NOT_FOUND"
    for statement in ("DROP TABLE s.t", "ALTER TABLE s.t ADD COLUMN x BIGINT", "COMMENT ON TABLE s.t IS 'mine'"):
        assert "this requires the permission table.write" in str(user.refused(statement, "reader"))
    for statement in ("CREATE TABLE s.more AS SELECT 1 AS id", "CREATE VIEW s.more AS SELECT 1 AS id"):
        assert "this requires the permission" in str(user.refused(statement, "reader"))
    user.lake.s3.refused.clear()
    for statement in ("INSERT INTO s.t VALUES (2)", "DELETE FROM s.t", "UPDATE s.t SET id = 2", "TRUNCATE TABLE s.t"):
        assert "Status Code: 403" in user.refused(statement, "reader").causes[-1]
    assert {method for _, method, _ in user.lake.s3.refused} == {"PUT", "DELETE"}
    user.lake.s3.refused.clear()
    assert user.check("t") == [(1,)]


def test_tables_that_policies_restrict_are_refused_with_the_reason(user: User) -> None:
    user.run("CREATE TABLE s.t (id BIGINT, email VARCHAR)", "INSERT INTO s.t VALUES (1, 'ada@example.com')")
    with user.lake.metastore() as metastore:
        metastore.grants.add(f"lake.{user.schema}", "user:masked", "write")
        metastore.policies.create(
            "no emails", to=["user:masked"], on=[f"lake.{user.schema}.t"], mask="null", columns=["email"]
        )
    for statement in ("SELECT id FROM s.t", "INSERT INTO s.t VALUES (2, NULL)", "DROP TABLE s.t", "DESCRIBE s.t"):
        refusal = user.refused(statement, "masked")
        assert refusal.name == "ICEBERG_CATALOG_ERROR"
        assert "policy no emails restricts what you see of table t" in refusal.causes[-1]
    assert user.run(f"SHOW TABLES FROM masked.{user.schema}") == [("t",)]
    where = f"WHERE table_schema = '{user.schema}'"
    assert user.run(f"SELECT table_name FROM masked.information_schema.columns {where}") == []
    user.run("CREATE TABLE s.own AS SELECT 1 AS id", catalog="masked")
    assert user.run("SELECT * FROM s.own", catalog="masked") == user.check("own") == [(1,)]


# --- other warehouses, and the page -----------------------------------------------------------------------------------


def test_warehouse_may_be_a_local_folder(user: User) -> None:
    user.run(
        f"CREATE SCHEMA local.{user.schema}",
        f"CREATE TABLE local.{user.schema}.t (id BIGINT, name VARCHAR) WITH (partitioning = ARRAY['name'])",
        f"INSERT INTO local.{user.schema}.t VALUES (1, 'a'), (2, 'b c'), (3, 'd/e')",
        f"DELETE FROM local.{user.schema}.t WHERE id = 1",
        f"ALTER TABLE local.{user.schema}.t EXECUTE optimize",
        f"CREATE VIEW local.{user.schema}.v AS SELECT name FROM local.{user.schema}.t",
    )
    assert sorted(user.run(f"SELECT * FROM local.{user.schema}.v")) == [("b c",), ("d/e",)]
    ((path,),) = user.run(f'SELECT min("$path") FROM local.{user.schema}.t')
    assert path.startswith("file:///")
    user.run(f"DROP SCHEMA local.{user.schema} CASCADE")


def test_statements_of_the_page_run(user: User) -> None:
    snapshot, moment = "", ""
    for shown in page_statements():
        statement = re.sub(r"\b\d{19}\b", snapshot, shown)
        statement = re.sub(r"TIMESTAMP '[^']+'", f"TIMESTAMP '{moment} UTC'", statement)
        rows = user.run(statement)
        if "$snapshots" in statement:
            number, at, _ = max(rows, key=lambda row: row[1])
            snapshot, moment = str(number), f"{at:%Y-%m-%d %H:%M:%S.%f}"
    assert user.run("SELECT item, n FROM lake.shop.items ORDER BY 1") == [("mug", 1), ("pot", 1), ("tea", 1)]
    found = as_arrow(user.lake.trino, "SELECT * FROM lake.shop.orders")
    user.lake.assert_same(found, "shop.orders")


def test_keys_of_the_server_sufficed(lake: Lake) -> None:
    """No request of Trino and Spark went beyond the temporary keys that they got for a table, but for those of a reader."""
    assert lake.s3.refused == []
