"""What tools such as DBeaver do with the JDBC driver: statements, the metadata that they ask for, and the rights that hold."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError

from flightsql.jdbc import array_of, cause_of, connected, rows_of
from lake.lakes import Lake
from lake.policed_lake import CANARY, NUMBERS, policed_lake
from skiway import __version__
from skiway.sql import QueryEngine

pytestmark = [pytest.mark.needs("java", "spark"), pytest.mark.timeout(300)]


@pytest.fixture
def connection(jvm: Any, lake: Lake) -> Iterator[Any]:
    with connected(jvm, lake.location, "reader") as opened:
        yield opened


def rows(connection: Any, sql: str) -> list[dict[str, Any]]:
    with closing(connection.createStatement()) as statement:
        return rows_of(statement.executeQuery(sql))


def refused(connection: Any, sql: str) -> str:
    with closing(connection.createStatement()) as statement, pytest.raises(Py4JJavaError) as caught:
        statement.executeQuery(sql)
    return cause_of(caught.value)


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT name FROM s.people WHERE id = 1", [{"name": "Ada"}]),
        ("SHOW TABLES", [{"name": "s.adults"}, {"name": "s.people"}]),
        ("SHOW TABLES FROM s", [{"name": "adults"}, {"name": "people"}]),
        ("SHOW DATABASES", [{"database_name": "managed"}]),
        (
            "SELECT name, column_types FROM (SHOW ALL TABLES)",
            [
                {"name": "adults", "column_types": '["BIGINT"]'},
                {"name": "people", "column_types": '["BIGINT","VARCHAR"]'},
            ],
        ),
        (
            "SELECT column_name, column_type FROM (DESCRIBE s.people)",
            [
                {"column_name": "id", "column_type": "BIGINT"},
                {"column_name": "name", "column_type": "VARCHAR"},
            ],
        ),
        (
            "SELECT table_name, table_type FROM information_schema.tables WHERE table_schema = 's' ORDER BY 1",
            [{"table_name": "adults", "table_type": "VIEW"}, {"table_name": "people", "table_type": "BASE TABLE"}],
        ),
        (
            "SELECT c.column_name, c.data_type FROM managed.information_schema.columns c "
            "JOIN information_schema.tables t USING (table_catalog, table_schema, table_name) "
            "WHERE table_type = 'BASE TABLE' AND table_schema = 's' ORDER BY ordinal_position",
            [{"column_name": "id", "data_type": "BIGINT"}, {"column_name": "name", "data_type": "VARCHAR"}],
        ),
        ("SELECT view_definition AS v FROM information_schema.views", [{"v": "SELECT id FROM people WHERE id > 1"}]),
        ("SELECT * FROM information_schema.table_constraints", []),
        ("SELECT current_database() AS c", [{"c": "managed"}]),
    ],
)
def test_statements(connection: Any, sql: str, expected: list[dict[str, Any]]) -> None:
    assert rows(connection, sql) == expected


def test_explain(connection: Any) -> None:
    (plan,) = rows(connection, "EXPLAIN SELECT name FROM s.people WHERE id > 1")
    assert plan["explain_key"] == "physical_plan"
    assert "READ_PARQUET" in plan["explain_value"]
    with closing(connection.prepareStatement("EXPLAIN SELECT name FROM s.people WHERE id > ?")) as statement:
        statement.setInt(1, 1)
        assert "READ_PARQUET" in rows_of(statement.executeQuery())[0]["explain_value"]


def test_prepared_statement_is_executed_again(jvm: Any, connection: Any) -> None:
    with closing(
        connection.prepareStatement("SELECT id FROM s.people WHERE id > ? AND name LIKE ? LIMIT ?")
    ) as prepared:
        facts = prepared.getParameterMetaData()
        types = [facts.getParameterType(number) for number in (1, 2, 3)]
        assert types == [jvm.java.sql.Types.BIGINT, jvm.java.sql.Types.VARCHAR, jvm.java.sql.Types.BIGINT]
        assert prepared.getMetaData().getColumnTypeName(1) == "BIGINT"
        for least, pattern, limit, expected in ((0, "%", 5, [1, 2]), (1, "G%", 5, [2]), (0, "%", 1, [1])):
            prepared.setInt(1, least)
            prepared.setString(2, pattern)
            prepared.setLong(3, limit)
            assert [row["id"] for row in rows_of(prepared.executeQuery())] == expected


def test_setters_of_other_types(jvm: Any, connection: Any) -> None:
    """A number need not have the type of the column, or the scale of a decimal; and an array finds what is in it."""
    sql = "SELECT count(*) AS n FROM (SELECT 1::TINYINT AS t, 1.5::DECIMAL(9,2) AS d) WHERE t < ? AND d = ?"
    with closing(connection.prepareStatement(sql)) as prepared:
        prepared.setLong(1, 5_000_000_000)  # the driver would cut it to a TINYINT
        for set_decimal in (
            lambda: prepared.setDouble(2, 1.5),
            lambda: prepared.setBigDecimal(2, jvm.java.math.BigDecimal("1.5")),
            lambda: prepared.setBigDecimal(2, jvm.java.math.BigDecimal("1.500")),
        ):
            set_decimal()
            assert rows_of(prepared.executeQuery()) == [{"n": 1}]
    with closing(connection.prepareStatement("SELECT id FROM s.people WHERE list_contains(?, id)")) as prepared:
        prepared.setArray(1, array_of(jvm, connection, "BIGINT", [1, 3]))
        assert [row["id"] for row in rows_of(prepared.executeQuery())] == [1, 3]
    with closing(connection.prepareStatement("SELECT ? + 1 AS a, round(1.26, ?) AS b")) as prepared:
        prepared.setInt(1, 2)
        prepared.setInt(2, 1)
        assert rows_of(prepared.executeQuery()) == [{"a": 3, "b": "1.3"}]


def test_schema_is_chosen(jvm: Any, lake: Lake, connection: Any) -> None:
    """The driver keeps `setSchema` to itself, so USE chooses the schema later on, and a header does from the beginning."""
    connection.setSchema("s")
    assert connection.getSchema() == "s"
    assert "Table with name people does not exist" in refused(connection, "SELECT * FROM people")
    assert rows(connection, "USE s") == [{"catalog": "managed", "schema": "s"}]
    assert rows(connection, "SELECT count(*) AS n FROM people") == [{"n": 3}]
    assert rows(connection, "SHOW TABLES") == [{"name": "adults"}, {"name": "people"}]
    assert "schema managed.unknown does not exist" in refused(connection, "USE unknown")
    assert rows(connection, "USE managed") == [{"catalog": "managed", "schema": None}]
    with connected(jvm, lake.location, "reader", airport_schema="s") as other:
        assert rows(other, "SELECT count(*) AS n FROM people") == [{"n": 3}]


def test_catalog_is_chosen(jvm: Any, lake: Lake) -> None:
    with suppress(Py4JJavaError), connected(jvm, lake.location, "reader", catalog="managed") as chosen:
        found = rows(chosen, "SELECT current_database() AS c")  # version 18.3 of the driver fails when this is closed
    assert found == [{"c": "managed"}]
    with pytest.raises(Py4JJavaError) as caught, connected(jvm, lake.location, "reader", catalog="unknown"):
        pass
    assert "Cannot set session option for catalog" in cause_of(caught.value)


# -- metadata ----------------------------------------------------------------------------------------------------------

LISTINGS = {
    "getCatalogs": ((), 1),
    "getSchemas": ((None, "s"), 1),
    "getTableTypes": ((), 3),
    "getTables": (("managed", "s", "%", None), 2),
    "getColumns": (("managed", "s", "%", "%"), 3),
    "getPrimaryKeys": (("managed", "s", "people"), 0),
    "getImportedKeys": (("managed", "s", "people"), 0),
    "getExportedKeys": (("managed", "s", "people"), 0),
    "getCrossReference": (("managed", "s", "people", "managed", "s", "adults"), 0),
    "getIndexInfo": (("managed", "s", "people", False, True), 0),
    "getBestRowIdentifier": (("managed", "s", "people", 0, True), 0),
    "getVersionColumns": (("managed", "s", "people"), 0),
    "getProcedures": ((None, None, "%"), 0),
    "getProcedureColumns": ((None, None, "%", "%"), 0),
    "getFunctions": ((None, None, "%"), 0),
    "getFunctionColumns": ((None, None, "%", "%"), 0),
    "getUDTs": ((None, None, "%", None), 0),
    "getSuperTypes": ((None, None, "%"), 0),
    "getSuperTables": ((None, None, "%"), 0),
    "getAttributes": ((None, None, "%", "%"), 0),
    "getTablePrivileges": ((None, "s", "%"), 0),
    "getColumnPrivileges": (("managed", "s", "people", "%"), 0),
    "getPseudoColumns": ((None, None, "%", "%"), 0),
    "getTypeInfo": ((), 0),  # the driver does not ask the server
    "getClientInfoProperties": ((), 0),
}


@pytest.mark.parametrize("name", LISTINGS)
def test_listing(connection: Any, name: str) -> None:
    arguments, count = LISTINGS[name]
    assert len(rows_of(getattr(connection.getMetaData(), name)(*arguments))) == count


def test_tables_and_columns(jvm: Any, connection: Any) -> None:
    listed = connection.getMetaData()
    views = array_of_text(jvm, ["VIEW"])
    assert [row["TABLE_NAME"] for row in rows_of(listed.getTables(None, "s%", "%", views))] == ["adults"]
    assert [row["TABLE_NAME"] for row in rows_of(listed.getTables(None, "s", "peo_le", None))] == ["people"]
    id_, name = rows_of(listed.getColumns("managed", "s", "people", None))
    assert (id_["COLUMN_NAME"], id_["DATA_TYPE"], id_["TYPE_NAME"]) == ("id", jvm.java.sql.Types.BIGINT, "BIGINT")
    assert (name["TYPE_NAME"], name["REMARKS"], name["ORDINAL_POSITION"]) == ("VARCHAR", "as in passports", 2)


def array_of_text(jvm: Any, texts: list[str]) -> Any:
    made = jvm.java.lang.reflect.Array.newInstance(jvm.java.lang.Class.forName("java.lang.String"), len(texts))
    for index, text in enumerate(texts):
        made[index] = text
    return made


OF_JAVA = {"getMaxLogicalLobSize", "supportsRefCursors", "supportsSharding"}
"""Methods that Java implements, not the driver."""


def test_every_fact_about_the_database(jvm: Any, connection: Any) -> None:
    """A driver fails at a fact for which the server has no value."""
    listed = connection.getMetaData()
    methods = jvm.java.lang.Class.forName("java.sql.DatabaseMetaData").getMethods()
    names = {each.getName() for each in methods if each.getParameterCount() == 0} - OF_JAVA - LISTINGS.keys()
    facts = {name: getattr(listed, name)() for name in names}
    assert len(facts) > 120
    assert (facts["getDatabaseProductName"], facts["getDatabaseProductVersion"]) == ("Skiway", __version__)
    assert (facts["getIdentifierQuoteString"], facts["getCatalogTerm"], facts["getSchemaTerm"]) == (
        '"',
        "catalog",
        "schema",
    )
    for true in ("isReadOnly", "supportsGroupBy", "supportsUnionAll", "supportsFullOuterJoins", "nullsAreSortedAtEnd"):
        assert facts[true] is True, true
    for false in ("supportsTransactions", "supportsStoredProcedures", "supportsBatchUpdates", "supportsConvert"):
        assert facts[false] is False, false
    assert facts["getMaxStatementLength"] == 1 << 20


def test_calls_of_a_connection(connection: Any) -> None:
    for call, arguments in (("setAutoCommit", [True]), ("setReadOnly", [True]), ("clearWarnings", []), ("commit", [])):
        getattr(connection, call)(*arguments)
    assert connection.isValid(5)
    assert connection.getTransactionIsolation() == 0
    with closing(connection.createStatement()) as statement:
        statement.setMaxRows(2)
        statement.setFetchSize(100)
        statement.setQueryTimeout(10)
        assert statement.execute("SELECT * FROM s.people ORDER BY id")
        assert len(rows_of(statement.getResultSet())) == 2
        assert statement.getUpdateCount() == -1


COLUMN_FACTS = (
    *("getCatalogName", "getSchemaName", "getTableName", "getColumnLabel", "getColumnName", "getColumnType", "getColumnTypeName"),
    *("getColumnClassName", "getColumnDisplaySize", "getPrecision", "getScale", "isNullable", "isReadOnly", "isWritable"),
    *("isAutoIncrement", "isCaseSensitive", "isCurrency", "isDefinitelyWritable", "isSearchable", "isSigned"),
)  # fmt: skip


def test_session_of_dbeaver(jvm: Any, connection: Any) -> None:
    """Its calls for a new connection, the tree of objects, the tabs of a table, and the grid with sorting and a filter."""
    connection.setAutoCommit(True)
    assert (connection.getWarnings(), connection.isReadOnly(), connection.isClosed()) == (None, True, False)
    listed = connection.getMetaData()
    assert [row["TABLE_CAT"] for row in rows_of(listed.getCatalogs())] == ["managed"]
    schemas = [row["TABLE_SCHEM"] for row in rows_of(listed.getSchemas("managed", "%"))]
    assert "s" in schemas
    assert {row["TABLE_TYPE"] for row in rows_of(listed.getTableTypes())} == {"SYSTEM TABLE", "TABLE", "VIEW"}
    assert [(row["TABLE_NAME"], row["TABLE_TYPE"]) for row in rows_of(listed.getTables("managed", "s", "%", None))] == [
        ("adults", "VIEW"),
        ("people", "TABLE"),
    ]
    for schema in schemas:  # the tree opens all columns of a schema at once
        assert rows_of(listed.getColumns("managed", schema, None, "%")) or schema not in ("s", "skiway")
    for name in ("getPrimaryKeys", "getImportedKeys", "getExportedKeys"):
        assert rows_of(getattr(listed, name)("managed", "s", "people")) == []
    assert rows_of(listed.getIndexInfo("managed", "s", "people", False, True)) == []
    assert rows_of(listed.getFunctions("managed", "s", "%")) == rows_of(listed.getProcedures("managed", "s", "%")) == []

    forward, read_only = jvm.java.sql.ResultSet.TYPE_FORWARD_ONLY, jvm.java.sql.ResultSet.CONCUR_READ_ONLY
    for sql, found in (
        ('SELECT * FROM "managed"."s"."people"', 3),
        ("SELECT x.* FROM managed.s.people x\nWHERE name LIKE 'A%'\nORDER BY x.id DESC", 1),
        ("SELECT COUNT(*) FROM managed.s.people;", 1),
    ):
        with closing(connection.createStatement(forward, read_only)) as statement:
            statement.setFetchSize(200)
            statement.setMaxRows(200)
            assert statement.execute(sql)
            results = statement.getResultSet()
            facts = results.getMetaData()
            for number in range(1, facts.getColumnCount() + 1):
                for fact in COLUMN_FACTS:
                    getattr(facts, fact)(number)
            assert len(rows_of(results)) == found
            assert (statement.getMoreResults(), statement.getUpdateCount()) == (False, -1)
            statement.cancel()
    assert connection.isValid(10)


def test_errors_say_what_is_wrong(connection: Any) -> None:
    assert "INVALID_ARGUMENT: INSERT is not a query" in refused(connection, "INSERT INTO s.people VALUES (4, 'x')")
    assert "INVALID_ARGUMENT: Parser Error: syntax error" in refused(connection, "SELEC 1")
    assert "NOT_FOUND: table managed.s.unknown does not exist" in refused(connection, "SELECT * FROM s.unknown")


# -- rights ------------------------------------------------------------------------------------------------------------


def test_masked_values_stay_hidden(jvm: Any, tmp_path: Path, queries: QueryEngine) -> None:
    with policed_lake(tmp_path, queries) as policed:
        policed.filter()
        policed.mask()
        with connected(jvm, policed.lake.location, "analyst") as connection:
            shown = [rows(connection, "SELECT * FROM s.people"), rows(connection, "SELECT * FROM (SUMMARIZE s.people)")]
            shown += [rows(connection, "EXPLAIN SELECT * FROM s.people WHERE email > 'a'")]
            with closing(connection.prepareStatement("SELECT * FROM s.people WHERE email >= ?")) as prepared:
                prepared.setString(1, "")
                shown += [rows_of(prepared.executeQuery())]
            assert len(shown[0]) == 30
            text = str(shown)
            assert not [hidden for hidden in (CANARY, *map(str, NUMBERS)) if hidden in text]
        with connected(jvm, policed.lake.location, "writer") as connection:
            assert CANARY in str(rows(connection, "SELECT max(email) FROM s.people"))


def test_caller_without_rights_sees_no_names(jvm: Any, lake: Lake) -> None:
    with connected(jvm, lake.location, "nothing") as connection:
        assert rows(connection, "SHOW TABLES") == []
        assert rows(connection, "SELECT * FROM information_schema.columns WHERE table_schema = 's'") == []
        assert rows_of(connection.getMetaData().getTables(None, "s", None, None)) == []
        assert "people" not in refused(connection, "SELECT * FROM s.people").replace("managed.s.people", "")
