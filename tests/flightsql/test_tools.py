"""What tools ask for besides queries: types of parameters, sessions, the information schema, SHOW, EXPLAIN, types, and facts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import adbc_driver_manager
import duckdb
import grpc
import pyarrow as pa
import pytest
from google.protobuf.any_pb2 import Any as AnyMessage

from airport.raw import Raw
from flightsql.adbc import connected, rows
from flightsql.test_attacks import as_, info, outcome, read, refusal
from lake.lakes import Lake
from lake.policed_lake import policed_lake
from skiway.errors import PermissionDenied
from skiway.flightsql.parameters import Parameter, casts, parameter_schema
from skiway.flightsql.protocol import encode
from skiway.model import flight_pb2 as flight
from skiway.model import flight_sql_pb2 as sql
from skiway.sql import QueryEngine


@pytest.fixture
def raw(lake: Lake) -> Iterator[Raw]:
    with Raw(lake.location, ()) as client:
        yield client


# -- parameters --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "types"),
    [
        ("SELECT * FROM s.people WHERE id = ? AND name LIKE ? LIMIT ?", ["int64", "string", "int64"]),
        ("SELECT CAST(? AS DATE), ?::TIMESTAMPTZ, ?::UUID", ["date32[day]", "timestamp[ms, tz=UTC]", "string"]),
        ("SELECT ?::VARCHAR::TIMESTAMP, ?::DECIMAL(9,2), ?::DECIMAL(20,2)", ["string", "double", "decimal128(20, 2)"]),
        ("SELECT ? + 1, round(1.25, ?), CASE WHEN ? THEN 1 END", ["int64", "int64", "bool"]),
        ("SELECT ?, id FROM s.people WHERE id IN (?, ?)", ["string", "int64", "int64"]),
        ("SELECT id FROM s.people WHERE list_contains(?, name)", ["list<item: string>"]),
        ("SELECT $b - $a, name FROM s.people WHERE id = $a", ["int64", "int64"]),
        ("EXPLAIN SELECT id FROM s.people WHERE id = ?", ["int64"]),
        ("SELECT * FROM s.adults WHERE id = ?", ["int64"]),
        ("SELECT * FROM s.people AT (VERSION => ?)", ["string"]),
    ],
)
def test_types_of_parameters(cursor: Any, query: str, types: list[str]) -> None:
    schema = cursor.adbc_prepare(query)
    assert [str(field.type) for field in schema] == types


def test_columns_are_known_before_values_are(raw: Raw) -> None:
    """A driver for JDBC takes a statement without columns for an update."""
    query = "SELECT id + ? AS a, CAST(? AS DATE) AS d, ? AS t, * EXCLUDE (id) FROM s.people"
    body = encode(sql.ActionCreatePreparedStatementRequest(query=query))
    (answer,) = raw.action("CreatePreparedStatement", body, as_("reader"))
    result = sql.ActionCreatePreparedStatementResult.FromString(AnyMessage.FromString(answer).value)
    columns = pa.ipc.read_schema(pa.py_buffer(result.dataset_schema))
    shown = [f"{field.name} {field.type}" for field in columns]
    assert shown == ["a int64", "d date32[day]", "t string", "name string"]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("INTERVAL", "14 months 3 days"),
        ("UUID", "7f1ff8a7-b1a9-4d1f-8f9a-0123456789ab"),
        ("STRUCT(a INTEGER, b VARCHAR)", "{'a': 1, 'b': it}"),
        ("MAP(VARCHAR, INTEGER)", "{k=1}"),
        ("INTEGER[][]", "[[1], NULL]"),
        ("TIMETZ", "12:34:56+02"),
        ("HUGEINT", "12345678901234567890123"),
    ],
)
def test_text_is_cast_to_types_that_drivers_cannot_send(cursor: Any, kind: str, text: str) -> None:
    query = f"SELECT count(*) FROM (SELECT CAST('{text.replace(chr(39), chr(39) * 2)}' AS {kind}) AS v) WHERE v = ?"
    assert rows(cursor, query, text) == [(1,)]


def test_value_that_is_not_of_the_type_stays(cursor: Any) -> None:
    """A comparison with a number that a column cannot have is false, and not an error."""
    query = "SELECT count(*) FROM (SELECT 1::TINYINT AS v) WHERE v < ?"
    assert rows(cursor, query, 5_000_000_000) == [(1,)]
    assert rows(cursor, "SELECT typeof(?::TINYINT + ?)", 1, 2)[0][0] == "BIGINT"
    assert rows(cursor, "SELECT 1 WHERE 1.00::DECIMAL(9,2) < ?", 1.005) == [(1,)]
    assert rows(cursor, "SELECT repeat('ab', ?), round(1.26, ?)", 2, 1)[0][0] == "abab"


def test_text_that_is_not_of_the_type_is_refused(cursor: Any) -> None:
    with pytest.raises(adbc_driver_manager.Error, match=r"(?s)abc.*INTERVAL"):
        rows(cursor, "SELECT 1 WHERE INTERVAL 1 DAY = ?", "abc")


def test_casts_follow_what_was_sent() -> None:
    parameters = [Parameter("1", "INTEGER"), Parameter("2", "UUID"), Parameter("3", "INTEGER[]"), Parameter("4", "")]
    asked = parameter_schema(parameters)
    assert casts(parameters, asked) == ["INTEGER", "UUID", "INTEGER[]", ""]
    renamed = pa.schema([(f"c{number}", field.type) for number, field in enumerate(asked)])
    assert casts(parameters, renamed) == ["INTEGER", "UUID", "INTEGER[]", ""]
    reordered = pa.schema(list(asked)[::-1])
    assert casts(parameters, reordered) == ["INTEGER", "UUID", "INTEGER[]", ""]
    others = pa.schema([pa.field(each.name, pa.int32()) for each in asked])
    assert casts(parameters, others) == ["", "", "", ""]
    assert casts(parameters, pa.schema([])) == []


# -- statements --------------------------------------------------------------------------------------------------------


def test_information_schema_is_that_of_duckdb(cursor: Any) -> None:
    """Its tables have the columns of DuckDB's, and the same rows for a table with the same columns."""
    with duckdb.connect() as database:
        database.execute("CREATE SCHEMA s; CREATE TABLE s.people (id BIGINT, name VARCHAR); ")
        for name in ("schemata", "tables", "views", "columns", "table_constraints", "key_column_usage",
                     "referential_constraints"):  # fmt: skip
            cursor.execute(f"SELECT * FROM information_schema.{name}")
            found = cursor.fetch_arrow_table().column_names
            known = database.sql(f"SELECT * FROM information_schema.{name}").columns
            assert set(found) <= set(known), name
            assert name == "columns" or set(found) == set(known), name
        query = (
            "SELECT column_name, ordinal_position, is_nullable, data_type, numeric_precision, numeric_precision_radix, "
            "numeric_scale FROM information_schema.columns WHERE table_schema = 's' AND table_name = 'people' ORDER BY 2"
        )
        assert rows(cursor, query) == database.sql(query).fetchall()
    comments = rows(
        cursor,
        "SELECT column_comment FROM information_schema.columns WHERE column_name = 'name' AND table_name = 'people'",
    )
    assert comments == [("as in passports",)]


def test_information_schema_shows_what_the_caller_may_see(tmp_path: Path, queries: QueryEngine) -> None:
    """Not the query of a view that a policy restricts. A view that cannot be read hides no others."""
    with policed_lake(tmp_path, queries) as policed:
        with policed.lake.client() as owner:
            for name, query in (("v", "SELECT email FROM people"), ("broken", "SELECT id FROM gone")):
                owner.create_table("s.gone", pa.schema({"id": pa.int64()}))
                owner.call("skiway.create_view", f"s.{name}", query).read_all()
                owner.drop_table("s.gone")
        policed.mask(("email",), objects=[policed.view("v").resource_id])
        listed = "SELECT table_name, view_definition FROM information_schema.views ORDER BY 1"
        with connected(policed.lake.location, "analyst") as connection, connection.cursor() as cursor:
            assert rows(cursor, listed) == [("broken", "SELECT id FROM gone"), ("v", None)]
            assert rows(cursor, "SELECT count(*) FROM information_schema.columns WHERE table_name = 'broken'") == [(1,)]
            assert rows(cursor, "SELECT DISTINCT email FROM s.v") == [(None,)]
        with connected(policed.lake.location, "writer") as connection, connection.cursor() as cursor:
            assert rows(cursor, listed) == [("broken", "SELECT id FROM gone"), ("v", "SELECT email FROM people")]
        with policed.lake.client() as owner:
            query = "SELECT table_name FROM information_schema.tables"
            owner.call("skiway.create_view", "s.w", query, named={"rights": "definer"}).read_all()
            owner.reload()
            with pytest.raises(PermissionDenied, match="has the rights of its definer"):
                owner.scan("s.w").read_all()


def test_show(cursor: Any) -> None:
    assert rows(cursor, "SHOW TABLES") == [("s.adults",), ("s.people",)]
    assert rows(cursor, "SHOW TABLES FROM managed.S") == [("adults",), ("people",)]
    assert rows(cursor, "SHOW DATABASES") == [("managed",)]
    assert rows(cursor, "SHOW SCHEMAS") == [("managed", "s", False), ("managed", "skiway", False)]
    assert [row[2] for row in rows(cursor, "SHOW ALL TABLES")] == ["adults", "people"]
    assert [row[0] for row in rows(cursor, "DESCRIBE s.people")] == ["id", "name"]
    assert rows(cursor, "SELECT count(*) FROM (SHOW TABLES)") == [(2,)]
    with pytest.raises(adbc_driver_manager.Error, match=r"SHOW .*variables.* cannot be used here"):
        rows(cursor, "SHOW VARIABLES")


def test_explain(cursor: Any) -> None:
    ((key, plan),) = rows(cursor, "explain SELECT name FROM s.people WHERE id > ?", 1)
    assert key == "physical_plan"
    assert "READ_PARQUET" in plan
    with pytest.raises(adbc_driver_manager.Error, match=r"table managed\.s\.unknown does not exist"):
        rows(cursor, "EXPLAIN SELECT * FROM s.unknown")
    for refused, reason in (
        ("EXPLAIN DELETE FROM s.people", "DELETE is not a query"),
        ("EXPLAIN ANALYZE SELECT 1", "EXPLAIN ANALYZE cannot be used here: EXPLAIN shows the plan"),
        ("EXPLAIN (FORMAT json) SELECT 1", "EXPLAIN is not a query"),
    ):
        with pytest.raises(adbc_driver_manager.Error, match=reason):
            rows(cursor, refused)
    assert rows(cursor, "-- a comment\n/* and another */ EXPLAIN SELECT 1")[0][0] == "physical_plan"


# -- sessions ----------------------------------------------------------------------------------------------------------


def cookies_of(
    raw: Raw, action: str, body: Any, *headers: tuple[str, str]
) -> tuple[list[bytes], list[tuple[str, str]]]:
    """The results of an action, and the header with the cookies that the server sets."""
    sent = flight.Action(type=action, body=body if isinstance(body, bytes) else body.SerializeToString())
    call = raw.stream("DoAction", sent.SerializeToString(), *headers)
    results = [flight.Result.FromString(each).body for each in call]
    kept = [str(value).partition(";")[0] for name, value in call.initial_metadata() if name == "set-cookie"]
    return results, [("cookie", "; ".join(kept))]


def options(**values: str) -> flight.SetSessionOptionsRequest:
    made = {name: flight.SessionOptionValue(string_value=value) for name, value in values.items()}
    return flight.SetSessionOptionsRequest(session_options=made)


def set_errors(results: list[bytes]) -> dict[str, str]:
    errors = flight.SetSessionOptionsResult.FromString(results[0]).errors
    return {name: flight.SetSessionOptionsResult.ErrorValue.Name(errors[name].value) for name in errors}


def current(raw: Raw, *headers: tuple[str, str]) -> dict[str, str]:
    (body,), _ = cookies_of(raw, "GetSessionOptions", flight.GetSessionOptionsRequest(), *headers)
    found = flight.GetSessionOptionsResult.FromString(body).session_options
    return {name: found[name].string_value for name in found}


def test_session_is_kept_in_cookies(raw: Raw) -> None:
    reader = as_("reader")
    assert current(raw, reader) == {"catalog": "managed", "schema": ""}
    results, cookies = cookies_of(raw, "SetSessionOptions", options(catalog="managed", schema="s"), reader)
    assert set_errors(results) == {}
    assert current(raw, reader, *cookies) == {"catalog": "managed", "schema": "s"}
    query = encode(sql.CommandStatementQuery(query="SELECT count(*) AS n FROM people"))
    ticket = info(raw, query, "reader", *cookies).endpoint[0].ticket.ticket
    assert read(raw, ticket) == [{"n": 3}]  # the ticket has what it needs
    assert refusal(info, raw, query)[0] is grpc.StatusCode.INVALID_ARGUMENT
    results, cookies = cookies_of(raw, "CloseSession", flight.CloseSessionRequest(), reader, *cookies)
    assert flight.CloseSessionResult.FromString(results[0]).status == flight.CloseSessionResult.CLOSED
    assert cookies == [("cookie", "skiway-catalog=; skiway-schema=")]


@pytest.mark.parametrize(
    ("wanted", "errors"),
    [
        (options(catalog="unknown"), {"catalog": "INVALID_VALUE"}),
        (options(schema="unknown"), {"schema": "INVALID_VALUE"}),
        (options(catalog="managed", schema="unknown"), {"schema": "INVALID_VALUE"}),
        (options(color="red"), {"color": "INVALID_NAME"}),
        (
            flight.SetSessionOptionsRequest(session_options={"schema": flight.SessionOptionValue(bool_value=True)}),
            {"schema": "INVALID_VALUE"},
        ),
    ],
    ids=str,
)
def test_session_options_that_are_refused(raw: Raw, wanted: Any, errors: dict[str, str]) -> None:
    results, cookies = cookies_of(raw, "SetSessionOptions", wanted, as_("reader"))
    assert set_errors(results) == errors
    assert cookies == [("cookie", "")]


def test_use_chooses_the_schema(raw: Raw) -> None:
    for statement in ("USE s", 'use "managed"."s";', "SET SCHEMA = 's'", "SET SCHEMA s"):
        command = encode(sql.CommandStatementQuery(query=statement))
        sent = flight.FlightDescriptor(type=flight.FlightDescriptor.CMD, cmd=command).SerializeToString()
        answer, call = raw.channel.unary_unary("/arrow.flight.protocol.FlightService/GetFlightInfo").with_call(
            sent, metadata=[as_("reader")]
        )
        kept = [str(value) for name, value in call.initial_metadata() if name == "set-cookie"]
        assert kept[1:] == ["skiway-schema=s; Path=/"], statement
        ticket = flight.FlightInfo.FromString(answer).endpoint[0].ticket.ticket
        assert read(raw, ticket) == [{"catalog": "managed", "schema": "s"}]
    code, message = refusal(info, raw, encode(sql.CommandStatementQuery(query="USE nothing")))
    assert (code, message) == (grpc.StatusCode.NOT_FOUND, "schema managed.nothing does not exist")


@pytest.mark.parametrize(
    "cookie",
    [
        "skiway-schema=%00",
        "skiway-schema=%22%3B--",
        "skiway-catalog=managed%22",
        "=;;;=",
        "skiway-schema=" + "x" * 4000,
    ],
    ids=["nul", "quote", "catalog", "empty", "long"],
)
def test_broken_cookies(raw: Raw, cookie: str) -> None:
    """They are names that do not exist."""
    query = encode(sql.CommandStatementQuery(query="SELECT count(*) AS n FROM s.people"))
    header = ("cookie", cookie)
    code, _ = outcome(lambda: read(raw, info(raw, query, "reader", header).endpoint[0].ticket.ticket))
    assert code in (grpc.StatusCode.OK, grpc.StatusCode.NOT_FOUND, grpc.StatusCode.INVALID_ARGUMENT)
    code, _ = refusal(info, raw, encode(sql.CommandStatementQuery(query="SELECT id FROM nothing")), "reader", header)
    assert code in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.INVALID_ARGUMENT)


def test_session_of_a_caller_without_a_token(raw: Raw) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        cookies_of(raw, "SetSessionOptions", b"\xff", as_("reader"))
    found: Any = caught.value
    assert found.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "malformed SetSessionOptionsRequest" in found.details()


def test_adbc_reads_and_sets_the_current_schema(lake: Lake) -> None:
    with connected(lake.location, "reader", cookies=True) as connection:
        assert (connection.adbc_current_catalog, connection.adbc_current_db_schema) == ("managed", "")
        connection.adbc_current_db_schema = "s"
        assert connection.adbc_current_db_schema == "s"
        with connection.cursor() as cursor:
            assert rows(cursor, "SELECT id FROM people WHERE name = ?", "Ada") == [(1,)]


# -- facts -------------------------------------------------------------------------------------------------------------


def test_every_number_of_sql_info_has_a_value(raw: Raw) -> None:
    facts = {each["info_name"]: each["value"] for each in read(raw, encode(sql.CommandGetSqlInfo()))}
    assert set(range(500, 577)) <= facts.keys()
    assert not [number for number, value in facts.items() if value is None]
    assert (facts[508], facts[513], facts[517], facts[557], facts[562]) == (
        ["ASOF", "PIVOT", "QUALIFY", "SAMPLE", "UNPIVOT"], "", [], 1 << 20, 0,
    )  # fmt: skip


def test_type_info(raw: Raw) -> None:
    """Types are ordered as Flight SQL demands, and are all types of DuckDB."""
    types = read(raw, encode(sql.CommandGetXdbcTypeInfo()))
    assert [(each["data_type"], each["type_name"]) for each in types] == sorted(
        (each["data_type"], each["type_name"]) for each in types
    )
    names = [each["type_name"] for each in types]
    with duckdb.connect() as database:
        for name in names:
            if name != "ENUM":
                assert str(database.sql(f"SELECT CAST(NULL AS {name})").types[0]).startswith(name)
    assert {"BOOLEAN", "VARCHAR", "DECIMAL", "TIMESTAMP WITH TIME ZONE"} <= set(names)
    texts = read(raw, encode(sql.CommandGetXdbcTypeInfo(data_type=12)))
    assert {each["type_name"] for each in texts} >= {"VARCHAR", "JSON", "UUID"}
    assert {each["literal_prefix"] for each in texts} == {"'"}
    assert read(raw, encode(sql.CommandGetXdbcTypeInfo(data_type=12345))) == []
