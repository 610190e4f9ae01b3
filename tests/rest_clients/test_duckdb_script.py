"""A user of DuckDB's iceberg extension. After each step, Airport has the same rows."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import duckdb
import pyarrow as pa
import pytest

from formats.oracles import extended
from rest_clients.shared_lake import TOKEN, SharedLake

pytestmark = pytest.mark.needs("duckdb extensions")

numbers = count(1)


class User:
    """A DuckDB that has attached the server over Iceberg REST, a schema of its own, and the comparison with Airport."""

    def __init__(self, lake: SharedLake, duck: duckdb.DuckDBPyConnection) -> None:
        self.lake, self.duck = lake, duck
        self.schema = f"duck{next(numbers)}"
        self.run(f"CREATE SCHEMA lake.{self.schema}")

    def attach(self, name: str, signed_in: str) -> None:
        self.run(f"ATTACH 'lake' AS {name} (TYPE iceberg, ENDPOINT '{self.lake.uri}', {signed_in})")

    def run(self, *statements: str) -> list[tuple[object, ...]]:
        """Run statements, in which `s.` is the schema, and return the rows of the last one."""
        for statement in statements:
            self.duck.execute(self.full(statement))
        return self.duck.fetchall()

    def full(self, statement: str) -> str:
        return statement.replace(" s.", f" lake.{self.schema}.").replace("(s.", f"(lake.{self.schema}.")

    def check(self, table: str) -> list[tuple[object, ...]]:
        """The rows of a table as DuckDB reads them over Iceberg REST, which are those that Airport reads."""
        found = self.duck.sql(f"FROM lake.{self.schema}.{table}").to_arrow_table()
        self.lake.assert_same_over_airport(found, f"{self.schema}.{table}")
        return sorted(tuple(row.values()) for row in found.to_pylist())


@pytest.fixture(scope="module")
def attached(lake: SharedLake, tmp_path_factory: pytest.TempPathFactory) -> Iterator[duckdb.DuckDBPyConnection]:
    """The DuckDB of a module: loading the extensions takes a second."""
    with extended(tmp_path_factory.mktemp("extensions")) as duck:
        duck.execute(
            f"CREATE SECRET lake (TYPE iceberg, CLIENT_ID 'etl', CLIENT_SECRET '{TOKEN}', "
            f"OAUTH2_SERVER_URI '{lake.uri}/v1/oauth/tokens')"
        )
        duck.execute(f"ATTACH 'lake' AS lake (TYPE iceberg, ENDPOINT '{lake.uri}', SECRET lake)")
        yield duck


@pytest.fixture
def user(lake: SharedLake, attached: duckdb.DuckDBPyConnection) -> Iterator[User]:
    with attached.cursor() as duck:
        yield User(lake, duck)


def test_user_signs_in_with_a_secret_or_a_token(user: User) -> None:
    user.run("CREATE TABLE s.t (id BIGINT)", "INSERT INTO s.t VALUES (1)")
    user.attach("by_token", f"TOKEN '{TOKEN}'")
    assert user.run(f"FROM by_token.{user.schema}.t") == [(1,)]
    with pytest.raises(duckdb.Error, match="Unauthorized"):
        user.attach("nobody", "TOKEN 'wrong'")


def test_rows_are_inserted_updated_deleted_and_merged(user: User) -> None:
    user.run(
        "CREATE TABLE s.t (id BIGINT NOT NULL, name VARCHAR, price DECIMAL(8,2), tags INTEGER[], place STRUCT(a INTEGER), "
        "pairs MAP(VARCHAR, INTEGER), moment TIMESTAMP, instant TIMESTAMPTZ, bytes BLOB, key UUID, flag BOOLEAN, day DATE)",
        "INSERT INTO s.t VALUES (1, 'Ada', 1.25, [1, NULL], {'a': 1}, MAP {'k': 1}, TIMESTAMP '2026-01-01 01:02:03.4', "
        "TIMESTAMPTZ '2026-01-01 01:02:03+00', '\\x01'::BLOB, '6ccd780c-baba-1026-9564-5b8c656024db', true, '2026-01-01')",
        "INSERT INTO s.t (id) SELECT i FROM range(2, 5) AS r(i)",
    )
    assert [row[0] for row in user.check("t")] == [1, 2, 3, 4]
    user.run("UPDATE s.t SET name = 'Grace' WHERE id = 2")
    assert [row[:2] for row in user.check("t")] == [(1, "Ada"), (2, "Grace"), (3, None), (4, None)]
    user.run("DELETE FROM s.t WHERE id = 1")
    assert [row[0] for row in user.check("t")] == [2, 3, 4]
    user.run(
        "MERGE INTO s.t AS t USING (VALUES (2, 'new'), (9, 'nine')) AS v(id, name) ON t.id = v.id "
        "WHEN MATCHED THEN UPDATE SET name = v.name WHEN NOT MATCHED THEN INSERT (id, name) VALUES (v.id, v.name)"
    )
    assert [row[:2] for row in user.check("t")] == [(2, "new"), (3, None), (4, None), (9, "nine")]
    user.run("TRUNCATE s.t")
    assert user.check("t") == []


def test_tables_are_created_partitioned_altered_renamed_and_dropped(user: User) -> None:
    user.run(
        "CREATE TABLE s.parts (id INTEGER, part VARCHAR) PARTITIONED BY (bucket(4, id), part)",
        "INSERT INTO s.parts SELECT i, 'p' || (i % 3) FROM range(10) AS r(i)",
        "DELETE FROM s.parts WHERE id = 3",
        "UPDATE s.parts SET part = 'q' WHERE id = 4",
    )
    assert len(user.check("parts")) == 9
    user.run(
        "ALTER TABLE s.parts ADD COLUMN more INTEGER",
        "ALTER TABLE s.parts ALTER COLUMN more TYPE BIGINT",
        "ALTER TABLE s.parts RENAME COLUMN id TO number",
        "ALTER TABLE s.parts SET PARTITIONED BY (number)",
        "INSERT INTO s.parts VALUES (10, 'r', 11)",
        "ALTER TABLE s.parts DROP COLUMN part",
        "ALTER TABLE s.parts SET ('team' = 'blue')",
    )
    assert user.check("parts")[-1] == (10, 11)
    assert ("team", "blue") in user.run("SELECT * FROM iceberg_table_properties(s.parts)")
    user.run("ALTER TABLE s.parts RENAME TO pieces")
    assert len(user.check("pieces")) == 10
    user.run("CREATE TABLE s.made AS SELECT i AS id, i * 1.5 AS x FROM range(5) AS r(i)")
    assert len(user.check("made")) == 5
    user.run(f"CREATE TABLE s.placed (id INTEGER) WITH ('location' = 'file://{user.lake.approved}/{user.schema}')")
    user.run("INSERT INTO s.placed VALUES (1)")
    assert user.check("placed") == [(1,)]
    user.run("DROP TABLE s.made", "DROP TABLE s.placed", "DROP TABLE s.pieces", "DROP TABLE IF EXISTS s.pieces")
    with pytest.raises(duckdb.CatalogException, match="does not exist"):
        user.run("DROP TABLE s.pieces")
    user.run(f"DROP SCHEMA lake.{user.schema}")


def test_tables_of_version_3(user: User) -> None:
    user.run(
        "CREATE TABLE s.t (id INTEGER, moment TIMESTAMP_NS) WITH ('format-version' = '3')",
        "INSERT INTO s.t VALUES (1, '2026-01-01 00:00:00.123456789'), (2, NULL)",
    )
    user.check("t")
    user.run("DELETE FROM s.t WHERE id = 1", "ALTER TABLE s.t ADD COLUMN n INTEGER DEFAULT 5", "UPDATE s.t SET id = 9")
    assert user.check("t") == [(9, None, 5)]


def test_earlier_snapshots_are_read(user: User) -> None:
    user.run("CREATE TABLE s.t (id INTEGER)", "INSERT INTO s.t VALUES (1)", "INSERT INTO s.t VALUES (2)")
    ((first, then), _) = user.run(
        "SELECT snapshot_id, timestamp_ms FROM iceberg_snapshots(s.t) ORDER BY sequence_number"
    )
    for point, options in (
        (f"VERSION => {first}", {"at_version": first}),
        (f"TIMESTAMP => TIMESTAMP '{then}'", {"at_timestamp": then}),
    ):
        found = user.duck.sql(user.full(f"SELECT * FROM s.t AT ({point})")).to_arrow_table()
        assert found.to_pylist() == [{"id": 1}]
        user.lake.assert_same_over_airport(found, f"{user.schema}.t", **options)


def test_transactions_are_all_or_nothing(user: User) -> None:
    user.run("CREATE TABLE s.a (id INTEGER)", "CREATE TABLE s.b (id INTEGER)")
    user.run("BEGIN", "INSERT INTO s.a VALUES (1)", "INSERT INTO s.b VALUES (1)")
    assert user.run("SELECT id FROM s.a") == [(1,)]
    assert user.lake.over_airport(f"{user.schema}.a").num_rows == 0
    user.run("ROLLBACK")
    assert user.check("a") == []
    user.run("BEGIN", "INSERT INTO s.a VALUES (1), (2)", "INSERT INTO s.b VALUES (3)", "DELETE FROM s.a WHERE id = 1")
    user.run("CREATE TABLE s.made (id INTEGER)", "INSERT INTO s.made VALUES (4)", "COMMIT")
    assert (user.check("a"), user.check("b"), user.check("made")) == ([(2,)], [(3,)], [(4,)])


def test_losing_transaction_changes_nothing_and_can_be_repeated(user: User) -> None:
    """The extension does not repeat a commit that lost a race."""
    user.run("CREATE TABLE s.a (id INTEGER)", "CREATE TABLE s.b (id INTEGER)")
    with user.duck.cursor() as other:
        user.run("BEGIN", "INSERT INTO s.a VALUES (1)", "INSERT INTO s.b VALUES (1)")
        other.execute(user.full("INSERT INTO s.b VALUES (2)"))
        with pytest.raises(duckdb.TransactionException, match="409"):
            user.run("COMMIT")
    assert (user.check("a"), user.check("b")) == ([], [(2,)])
    user.run("BEGIN", "INSERT INTO s.a VALUES (1)", "INSERT INTO s.b VALUES (1)", "COMMIT")
    assert (user.check("a"), user.check("b")) == ([(1,)], [(1,), (2,)])


def test_tables_written_over_airport_are_read(user: User) -> None:
    with user.lake.airport() as db:
        db.create_table(f"{user.schema}.t", pa.schema({"id": pa.int64(), "name": pa.string()}))
        db.insert(f"{user.schema}.t", pa.table({"id": [1, 2], "name": ["Ada", None]}))
        assert user.check("t") == [(1, "Ada"), (2, None)]
        db.truncate(f"{user.schema}.t")
        assert user.check("t") == []


def test_views_are_not_shown_by_the_extension(user: User) -> None:
    """Remove this test, and the sentence in docs/reference/iceberg-suites.md, when DuckDB's extension supports views."""
    with user.lake.airport() as db:
        db.call("skiway.create_view", f"{user.schema}.v", "SELECT 42 AS x").read_all()
    with pytest.raises(duckdb.CatalogException, match="does not exist"):
        user.run("SELECT * FROM s.v")
    with pytest.raises(duckdb.NotImplementedException, match="View"):
        user.run("CREATE VIEW s.w AS SELECT 1 AS x")


def test_nested_namespaces_have_dotted_names(user: User) -> None:
    name = f'"{user.schema}.inner"'
    user.run(
        f"CREATE SCHEMA lake.{name}",
        f"CREATE TABLE lake.{name}.t (id INTEGER)",
        f"INSERT INTO lake.{name}.t VALUES (1)",
    )
    found = user.duck.sql(f"FROM lake.{name}.t").to_arrow_table()
    assert found.num_rows == 1
    user.lake.assert_same_over_airport(found, f"{name}.t")
