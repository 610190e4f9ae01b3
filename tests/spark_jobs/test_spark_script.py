"""A user of Spark SQL over Iceberg REST. After each step, Airport has the same rows.

`make test` runs it with the other Spark tests, without the tests that are marked as full; all of it runs with
`SKIWAY_TESTS=all .venv/bin/pytest tests/spark_jobs/test_spark_script.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from rest_clients.shared_lake import TOKEN, SharedLake, shared_lake
from scope import sample
from spark_jobs.lakes import SPARK
from spark_jobs.shared_spark import session_with_jars

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = SPARK

numbers = count(1)
Rows = list[tuple[Any, ...]]


class User:
    """A Spark session, a namespace of its own, and the comparison with Airport."""

    def __init__(self, lake: SharedLake, spark: SparkSession) -> None:
        self.lake, self.spark = lake, spark
        self.namespace = f"spark{next(numbers)}"
        self.run(f"CREATE NAMESPACE lake.{self.namespace}")

    def run(self, *statements: str) -> Rows:
        """Run statements, in which `s.` is the namespace, and return the rows of the last one."""
        found: Rows = []
        for statement in statements:
            found = [tuple(row) for row in self.spark.sql(self.full(statement)).collect()]
        return found

    def full(self, statement: str) -> str:
        return f" {statement}".replace(" s.", f" lake.{self.namespace}.").strip()

    def call(self, procedure: str, table: str, *arguments: str) -> Rows:
        """Call a procedure of Iceberg for a table."""
        given = ", ".join((f"table => '{self.namespace}.{table}'", *arguments))
        return self.run(f"CALL lake.system.{procedure}({given})")

    def refused(self, statement: str) -> str:
        """The reason why a statement is refused."""
        with pytest.raises(Exception) as refusal:  # noqa: PT011 - Spark has many classes of errors
            self.run(statement)
        return str(refusal.value)

    def check(self, table: str, **options: Any) -> Rows:
        """The rows of a table or view as Spark reads them, which are those that Airport reads."""
        return self._check(f"SELECT * FROM lake.{self.namespace}.{table}", table, **options)

    def check_at(self, table: str, version: str | int) -> Rows:
        """The same for an earlier snapshot, a branch or a tag."""
        shown = f"'{version}'" if isinstance(version, str) else version
        return self._check(f"SELECT * FROM s.{table} VERSION AS OF {shown}", table, at_version=version)

    def _check(self, query: str, table: str, **options: Any) -> Rows:
        found: pa.Table = self.spark.sql(self.full(query)).toArrow()
        self.lake.assert_same_over_airport(found, f"{self.namespace}.{table}", **options)
        return sorted((tuple(row.values()) for row in found.to_pylist()), key=repr)

    def snapshots(self, table: str) -> list[int]:
        found = self.run(f"SELECT snapshot_id FROM s.{table}.snapshots ORDER BY committed_at")
        return [number for (number,) in found]

    def metadata_file(self, table: str) -> str:
        ((found,),) = self.run(
            f"SELECT file FROM s.{table}.metadata_log_entries ORDER BY timestamp DESC, file DESC LIMIT 1"
        )
        return str(found)


@pytest.fixture(scope="module")
def lake(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedLake]:
    assert spark, "Spark starts before this process uses gRPC"
    with shared_lake(tmp_path_factory.mktemp("lake")) as found:
        yield found


@pytest.fixture(scope="module")
def session(lake: SharedLake) -> SparkSession:
    return session_with_jars(
        {
            "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
            "spark.sql.catalog.lake.type": "rest",
            "spark.sql.catalog.lake.uri": lake.uri,
            "spark.sql.catalog.lake.warehouse": "lake",
            "spark.sql.catalog.lake.credential": f"etl:{TOKEN}",
            "spark.sql.catalog.lake.oauth2-server-uri": f"{lake.uri}/v1/oauth/tokens",
            "spark.sql.catalog.lake.cache-enabled": "false",
            "spark.sql.catalog.hadoop": "org.apache.iceberg.spark.SparkCatalog",
            "spark.sql.catalog.hadoop.type": "hadoop",
            "spark.sql.catalog.hadoop.warehouse": str(lake.approved / "hadoop"),
        }
    )


@pytest.fixture
def user(lake: SharedLake, session: SparkSession) -> User:
    return User(lake, session)


def ids(rows: Rows) -> list[Any]:
    return [row[0] for row in rows]


PEOPLE = (
    "(1, 'Ada', DATE '2026-01-01'), (2, 'Grace', DATE '2026-02-01'), (3, 'Edsger', DATE '2026-02-02'), (4, NULL, NULL)"
)
MERGE = """MERGE INTO s.people t USING (SELECT * FROM VALUES (1, 'A'), (4, 'gone'), (5, 'new') AS v(id, name)) v ON t.id = v.id
    WHEN MATCHED AND v.name = 'gone' THEN DELETE
    WHEN MATCHED THEN UPDATE SET name = v.name
    WHEN NOT MATCHED THEN INSERT (id, name) VALUES (v.id, v.name)
    WHEN NOT MATCHED BY SOURCE THEN UPDATE SET name = lower(name)"""


@pytest.mark.parametrize(
    ("mode", "version"),
    [
        ("merge-on-read", 2),
        pytest.param("copy-on-write", 2, marks=pytest.mark.full),
        pytest.param("merge-on-read", 3, marks=pytest.mark.full),
    ],
)
def test_rows_are_inserted_updated_deleted_merged_and_overwritten(user: User, mode: str, version: int) -> None:
    modes = ", ".join(f"'write.{change}.mode' = '{mode}'" for change in ("delete", "update", "merge"))
    user.run(
        "CREATE TABLE s.people (id BIGINT, name STRING, day DATE) USING iceberg PARTITIONED BY (months(day)) "
        f"TBLPROPERTIES ('format-version' = '{version}', {modes})",
        f"INSERT INTO s.people VALUES {PEOPLE}",
    )
    assert ids(user.check("people")) == [1, 2, 3, 4]
    user.run("UPDATE s.people SET name = 'Hopper' WHERE id = 2")
    assert user.check("people")[1][1] == "Hopper"
    user.run("DELETE FROM s.people WHERE id = 3")
    assert ids(user.check("people")) == [1, 2, 4]
    has_deletes = user.run("SELECT count(*) FROM s.people.delete_files") != [(0,)]
    assert has_deletes == (mode == "merge-on-read")
    user.run(MERGE)
    assert [row[:2] for row in user.check("people")] == [(1, "A"), (2, "hopper"), (5, "new")]
    if mode == "merge-on-read":
        user.call("rewrite_position_delete_files", "people", "options => map('rewrite-all', 'true')")
        assert ids(user.check("people")) == [1, 2, 5]
        user.call(
            "rewrite_data_files", "people", "options => map('rewrite-all', 'true', 'remove-dangling-deletes', 'true')"
        )
        assert ids(user.check("people")) == [1, 2, 5]
    user.run("INSERT OVERWRITE s.people VALUES (9, 'over', DATE '2026-02-01')")
    assert ids(user.check("people")) == [9]
    user.run("TRUNCATE TABLE s.people")
    assert user.check("people") == []


@pytest.mark.full
def test_tables_and_partitions_are_altered(user: User) -> None:
    user.run(
        "CREATE TABLE s.t (id BIGINT NOT NULL, name STRING COMMENT 'who', day DATE) USING iceberg PARTITIONED BY (months(day))",
        "INSERT INTO s.t VALUES (1, 'Ada', DATE '2026-01-01')",
        "ALTER TABLE s.t SET IDENTIFIER FIELDS id",
        "ALTER TABLE s.t DROP IDENTIFIER FIELDS id",
        "ALTER TABLE s.t ADD COLUMNS (price DECIMAL(8, 2) COMMENT 'in euros', tags ARRAY<STRING>, place STRUCT<x: INT, y: INT>)",
        "ALTER TABLE s.t ADD COLUMN first INT FIRST",
        "ALTER TABLE s.t ADD COLUMN second INT AFTER first",
        "ALTER TABLE s.t ADD COLUMN place.z DOUBLE",
        "ALTER TABLE s.t ALTER COLUMN first TYPE BIGINT",
        "ALTER TABLE s.t ALTER COLUMN price TYPE DECIMAL(12, 2)",
        "ALTER TABLE s.t ALTER COLUMN first COMMENT 'one'",
        "ALTER TABLE s.t ALTER COLUMN id DROP NOT NULL",
        "ALTER TABLE s.t ALTER COLUMN day AFTER first",
        "ALTER TABLE s.t RENAME COLUMN place.z TO depth",
        "ALTER TABLE s.t RENAME COLUMN name TO who",
        "ALTER TABLE s.t DROP COLUMN second",
        "INSERT INTO s.t VALUES (1, DATE '2026-05-02', 2, 'Grace', 1.25, array('a', NULL), "
        "named_struct('x', 1, 'y', 2, 'depth', 3.5D))",
    )
    assert user.check("t")[0][-1] == {"x": 1, "y": 2, "depth": 3.5}
    user.run(
        "ALTER TABLE s.t ADD PARTITION FIELD bucket(4, id) AS shard",
        "INSERT INTO s.t VALUES (2, DATE '2026-05-03', 3, 'Edsger', NULL, NULL, NULL)",
        "ALTER TABLE s.t REPLACE PARTITION FIELD day_month WITH days(day)",
        "INSERT INTO s.t VALUES (3, DATE '2026-05-04', 4, 'Barbara', NULL, array(), NULL)",
        "ALTER TABLE s.t DROP PARTITION FIELD shard",
        "ALTER TABLE s.t WRITE ORDERED BY who, id DESC",
        "ALTER TABLE s.t WRITE DISTRIBUTED BY PARTITION",
        "ALTER TABLE s.t SET TBLPROPERTIES ('team' = 'blue', 'comment' = 'people')",
        "ALTER TABLE s.t UNSET TBLPROPERTIES ('team')",
        "DELETE FROM s.t WHERE who = 'Edsger'",
    )
    assert len(user.check("t")) == 3
    with user.lake.airport() as db:
        assert db.table(f"{user.namespace}.t").comment == "people"
    described = dict(row[:2] for row in user.run("DESCRIBE TABLE s.t"))
    assert (described["price"], described["Part 0"]) == ("decimal(12,2)", "days(day)")
    user.run("ALTER TABLE s.t RENAME TO s.renamed".replace(" s.renamed", f" {user.namespace}.renamed"))
    assert len(user.check("renamed")) == 3
    user.run("CREATE OR REPLACE TABLE s.renamed USING iceberg AS SELECT id FROM s.renamed WHERE id > 1")
    assert sorted(ids(user.check("renamed"))) == [2, 4]


def test_branches_and_tags(user: User) -> None:
    user.run(
        "CREATE TABLE s.t (id BIGINT, name STRING) USING iceberg TBLPROPERTIES ('write.wap.enabled' = 'true')",
        "INSERT INTO s.t VALUES (1, 'a')",
        "ALTER TABLE s.t CREATE TAG start RETAIN 7 DAYS",
        "ALTER TABLE s.t CREATE BRANCH side RETAIN 7 DAYS WITH SNAPSHOT RETENTION 2 SNAPSHOTS",
        "INSERT INTO s.t.branch_side VALUES (2, 'b')",
        "UPDATE s.t.branch_side SET name = 'B' WHERE id = 2",
    )
    assert (user.check("t"), user.check_at("t", "side")) == ([(1, "a")], [(1, "a"), (2, "B")])
    user.call("fast_forward", "t", "branch => 'main'", "to => 'side'")
    assert user.check("t") == [(1, "a"), (2, "B")]
    assert user.check_at("t", "start") == [(1, "a")]
    user.spark.conf.set("spark.wap.id", "audited")
    user.run("INSERT INTO s.t VALUES (3, 'c')")
    user.spark.conf.unset("spark.wap.id")
    assert ids(user.check("t")) == [1, 2]
    ((staged,),) = user.run("SELECT snapshot_id FROM s.t.snapshots WHERE summary['wap.id'] = 'audited'")
    user.call("cherrypick_snapshot", "t", f"snapshot_id => {staged}")
    assert ids(user.check("t")) == [1, 2, 3]
    user.spark.conf.set("spark.wap.branch", "audit")
    user.run("INSERT INTO s.t VALUES (4, 'd')")
    user.spark.conf.unset("spark.wap.branch")
    assert (ids(user.check("t")), ids(user.check_at("t", "audit"))) == ([1, 2, 3], [1, 2, 3, 4])
    user.run("ALTER TABLE s.t DROP BRANCH side", "ALTER TABLE s.t DROP TAG start")
    assert {name for (name,) in user.run("SELECT name FROM s.t.refs")} == {"main", "audit"}


def test_procedures_move_the_current_snapshot(user: User) -> None:
    user.run(
        "CREATE TABLE s.t (id BIGINT) USING iceberg", *(f"INSERT INTO s.t VALUES ({number})" for number in (1, 2, 3))
    )
    first, second, third = user.snapshots("t")
    user.call("rollback_to_snapshot", "t", f"snapshot_id => {second}")
    assert ids(user.check("t")) == [1, 2]
    user.call("set_current_snapshot", "t", f"snapshot_id => {third}")
    assert ids(user.check("t")) == [1, 2, 3]
    ((then,),) = user.run(
        f"SELECT committed_at + INTERVAL 1 MILLISECOND FROM s.t.snapshots WHERE snapshot_id = {first}"
    )
    user.call("rollback_to_timestamp", "t", f"timestamp => TIMESTAMP '{then}'")
    assert ids(user.check("t")) == [1]
    assert ids(user.check_at("t", third)) == [1, 2, 3]
    assert ids(user.call("ancestors_of", "t")) == [first]
    assert user.run("SELECT count(*) FROM s.t.history") == [(6,)]


@pytest.mark.full
def test_procedures_maintain_tables(user: User) -> None:
    user.run(
        "CREATE TABLE s.t (id BIGINT, name STRING) USING iceberg PARTITIONED BY (bucket(2, id))",
        *(f"INSERT INTO s.t VALUES ({number}, 'n{number}'), ({number + 10}, 'm')" for number in range(3)),
    )
    before = user.check("t")
    assert user.run("SELECT sum(record_count) FROM s.t.partitions") == [(6,)]
    user.call(
        "rewrite_data_files",
        "t",
        "strategy => 'sort'",
        "sort_order => 'id DESC'",
        "options => map('rewrite-all', 'true')",
    )
    assert user.check("t") == before
    user.call(
        "rewrite_data_files",
        "t",
        "strategy => 'sort'",
        "sort_order => 'zorder(id, name)'",
        "options => map('rewrite-all', 'true')",
    )
    user.call("rewrite_manifests", "t")
    user.call("compute_table_stats", "t")
    user.call("compute_partition_stats", "t")
    assert user.check("t") == before
    user.call("expire_snapshots", "t", "older_than => TIMESTAMP '2100-01-01'", "retain_last => 1")
    assert len(user.snapshots("t")) == 1
    assert user.call("remove_orphan_files", "t", "dry_run => true", "older_than => TIMESTAMP '2026-01-01'") == []
    assert user.check("t") == before
    user.run("INSERT INTO s.t VALUES (99, 'last')")
    assert len(user.check("t")) == 7


@pytest.mark.full
def test_metadata_tables(user: User) -> None:
    user.run(
        "CREATE TABLE s.t (id BIGINT, part INT) USING iceberg PARTITIONED BY (part) TBLPROPERTIES ('write.delete.mode' = 'merge-on-read')",
        "INSERT INTO s.t SELECT /*+ COALESCE(1) */ id, id % 2 FROM range(4)",
        "DELETE FROM s.t WHERE id = 3",
        "ALTER TABLE s.t CREATE TAG done",
    )
    counted = (
        "history",
        "snapshots",
        "files",
        "data_files",
        "delete_files",
        "manifests",
        "partitions",
        "refs",
        "entries",
    )
    found = {name: user.run(f"SELECT count(*) FROM s.t.{name}")[0][0] for name in counted}
    assert found == {
        "history": 2,
        "snapshots": 2,
        "files": 3,
        "data_files": 2,
        "delete_files": 1,
        "manifests": 2,
        "partitions": 2,
        "refs": 2,
        "entries": 3,
    }
    assert user.run("SELECT pos FROM s.t.position_deletes") == [(1,)]
    with user.lake.airport() as db:
        files = db.scan("skiway.files").read_all().to_pylist()
    own = [each for each in files if each["schema_name"] == user.namespace]
    assert {each["path"].rpartition("/")[2] for each in own} == {
        path.rpartition("/")[2] for (path,) in user.run("SELECT file_path FROM s.t.files")
    }


def test_tables_are_registered(user: User) -> None:
    place = user.lake.approved / user.namespace
    user.run(f"CREATE TABLE s.t (id BIGINT) USING iceberg LOCATION '{place}'", "INSERT INTO s.t VALUES (1), (2)")
    file = user.metadata_file("t")
    user.run("DROP TABLE s.t")
    user.call("register_table", "back", f"metadata_file => '{file}'")
    assert ids(user.check("back")) == [1, 2]
    user.run("INSERT INTO s.back VALUES (3)", "DELETE FROM s.back WHERE id = 1")
    assert ids(user.check("back")) == [2, 3]


@pytest.mark.parametrize("version", sample([1, 2, 3], every=3))
def test_tables_of_another_catalog_are_registered(user: User, version: int) -> None:
    name = f"hadoop.{user.namespace}.t"
    user.run(
        f"CREATE TABLE {name} (id BIGINT, part INT) USING iceberg PARTITIONED BY (part) "
        f"TBLPROPERTIES ('format-version' = '{version}')",
        f"INSERT INTO {name} VALUES (1, 1), (2, 2), (3, 2)",
        f"DELETE FROM {name} WHERE id = 2",
    )
    file = max((user.lake.approved / "hadoop" / user.namespace / "t" / "metadata").glob("*.metadata.json"))
    user.call("register_table", "t", f"metadata_file => '{file}'")
    assert user.check("t") == [(1, 1), (3, 2)]
    user.run("INSERT INTO s.t VALUES (4, 4)", "UPDATE s.t SET part = 9 WHERE id = 1")
    assert user.check("t") == [(1, 9), (3, 2), (4, 4)]


def test_existing_files_are_added(user: User, tmp_path: Path) -> None:
    folder = user.lake.approved / "files" / user.namespace
    user.spark.sql("SELECT id, id % 2 AS part FROM range(4)").write.partitionBy("part").parquet(str(folder / "parts"))
    user.spark.sql("SELECT id FROM range(3)").write.parquet(str(folder / "plain"))
    user.spark.sql("SELECT id FROM range(3)").write.parquet(str(tmp_path / "elsewhere"))
    user.run(
        "CREATE TABLE s.plain (id BIGINT) USING iceberg",
        "CREATE TABLE s.parts (id BIGINT, part INT) USING iceberg PARTITIONED BY (part)",
    )
    user.call("add_files", "plain", f"source_table => '`parquet`.`{folder}/plain`'")
    assert ids(user.check("plain")) == [0, 1, 2]
    user.call(
        "add_files", "parts", f"source_table => '`parquet`.`{folder}/parts`'", "partition_filter => map('part', '1')"
    )
    assert user.check("parts") == [(1, 1), (3, 1)]
    user.run("DELETE FROM s.plain WHERE id = 1", "INSERT INTO s.plain VALUES (9)")
    assert ids(user.check("plain")) == [0, 2, 9]
    elsewhere = f"source_table => '`parquet`.`{tmp_path}/elsewhere`'"
    refusal = user.refused(f"CALL lake.system.add_files(table => '{user.namespace}.plain', {elsewhere})")
    assert "operator approved" in refusal
    assert ids(user.check("plain")) == [0, 2, 9]


@pytest.mark.full
def test_tables_of_the_session_are_copied_by_reference(user: User) -> None:
    """Iceberg sets `gc.enabled` to false for such tables, so that no engine deletes the files of the source."""
    source, folder = f"spark_catalog.default.{user.namespace}", user.lake.approved / "sources" / user.namespace
    user.run(f"CREATE TABLE {source} USING parquet LOCATION '{folder}' AS SELECT id FROM range(3)")
    user.run(f"CALL lake.system.snapshot('{source}', 'lake.{user.namespace}.t')")
    assert ids(user.check("t")) == [0, 1, 2]
    user.run("INSERT INTO s.t VALUES (9)", "DELETE FROM s.t WHERE id = 1")
    assert ids(user.check("t")) == [0, 2, 9]
    user.run("DROP TABLE s.t")
    assert sorted(user.run(f"SELECT id FROM {source}")) == [(0,), (1,), (2,)]
    user.run(f"DROP TABLE {source}")


def test_views(user: User) -> None:
    user.run(
        "CREATE TABLE s.people (id BIGINT, name STRING, day DATE) USING iceberg",
        f"INSERT INTO s.people VALUES {PEOPLE}",
    )
    user.run("CREATE VIEW s.names AS SELECT id, upper(name) AS name FROM s.people WHERE id > 1")
    assert user.check("names")[0] == (2, "GRACE")
    user.run("CREATE VIEW IF NOT EXISTS s.names AS SELECT 1 AS x")
    assert "already exists" in user.refused("CREATE VIEW s.names AS SELECT 1 AS x")
    user.run(
        "CREATE OR REPLACE VIEW s.names (number COMMENT 'key', who) COMMENT 'all' TBLPROPERTIES ('team' = 'blue') "
        "AS SELECT id, name FROM s.people",
        "ALTER VIEW s.names SET TBLPROPERTIES ('a' = 'b')",
        "ALTER VIEW s.names UNSET TBLPROPERTIES ('team')",
    )
    assert user.check("names")[0] == (1, "Ada")
    properties = dict(user.run("SHOW TBLPROPERTIES s.names"))
    assert (properties["a"], "team" in properties) == ("b", False)
    assert "COMMENT 'all'" in user.run("SHOW CREATE TABLE s.names")[0][0]
    with user.lake.airport() as db:
        assert db.table(f"{user.namespace}.names").comment == "all"
    user.run(f"USE lake.{user.namespace}")
    user.run("CREATE VIEW decades AS SELECT floor(year(day) / 10) * 10 AS decade, count(*) AS n FROM people GROUP BY 1")
    user.run(
        "CREATE VIEW nested AS SELECT v.who, d.decade FROM names v JOIN decades d ON d.n = v.number WHERE v.number < 4"
    )
    user.run("USE spark_catalog.default")
    assert user.check("decades") == [(2020, 3), (None, 1)]
    assert user.check("nested") == [("Ada", None), ("Edsger", 2020)]
    user.run("ALTER VIEW s.names RENAME TO s.called")
    assert user.check("called")[0] == (1, "Ada")
    listed = {name for space, name, _ in user.run(f"SHOW VIEWS IN lake.{user.namespace}") if space == user.namespace}
    assert listed == {"called", "decades", "nested"}
    user.run("DROP VIEW s.nested", "DROP VIEW IF EXISTS s.nested")
    assert "VIEW_NOT_FOUND" in user.refused("DROP VIEW s.nested")


def test_names_of_views_and_tables_are_exclusive(user: User) -> None:
    user.run("CREATE TABLE s.t (id BIGINT) USING iceberg", "CREATE VIEW s.v AS SELECT id FROM s.t")
    assert "already exists" in user.refused("CREATE VIEW s.t AS SELECT 1 AS x")
    assert "already exists" in user.refused("CREATE TABLE s.v (x INT) USING iceberg")
    assert "already exists" in user.refused("ALTER VIEW s.v RENAME TO s.t")
    assert "NOT_FOUND" in user.refused("DROP TABLE s.v")
    assert "NOT_FOUND" in user.refused("DROP VIEW s.t")
    assert user.check("v") == []


def test_view_cannot_refer_to_what_only_the_session_knows(user: User) -> None:
    user.spark.sql("SELECT 1 AS x").createOrReplaceTempView("only_here")
    user.spark.udf.register("mine", lambda value: value)
    user.run("CREATE TABLE s.t (id BIGINT) USING iceberg")
    assert user.refused("CREATE VIEW s.bad AS SELECT * FROM only_here")
    assert user.refused("CREATE VIEW s.bad AS SELECT mine(id) AS x FROM s.t")
    assert not [name for space, name, _ in user.run(f"SHOW VIEWS IN lake.{user.namespace}") if space == user.namespace]


def test_view_of_duckdb_is_read_and_replaced(user: User) -> None:
    user.run(
        "CREATE TABLE s.people (id BIGINT, name STRING, day DATE) USING iceberg",
        f"INSERT INTO s.people VALUES {PEOPLE}",
    )
    sql = "SELECT name, strftime(day, '%Y') AS year, len(name) AS length FROM people WHERE id <> 2 AND name IS NOT NULL"
    with user.lake.airport() as db:
        db.call("skiway.create_view", f"{user.namespace}.v", sql).read_all()
    assert user.check("v") == [("Ada", "2026", 3), ("Edsger", "2026", 6)]
    assert "loss of view dialects" in user.refused("CREATE OR REPLACE VIEW s.v AS SELECT name FROM s.people")
    user.run("ALTER VIEW s.v SET TBLPROPERTIES ('replace.drop-dialect.allowed' = 'true')")
    user.run("CREATE OR REPLACE VIEW s.v AS SELECT name FROM s.people WHERE id = 1")
    assert user.check("v") == [("Ada",)]


@pytest.mark.full
def test_eight_concurrent_appenders_do_not_give_up(user: User) -> None:
    """With Spark's default retries."""
    user.run("CREATE TABLE s.t (id BIGINT) USING iceberg")

    def append(writer: int) -> None:
        for number in range(4):
            user.run(f"INSERT INTO s.t VALUES ({writer * 4 + number})")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(append, range(8)))
    assert sorted(ids(user.check("t"))) == list(range(32))
