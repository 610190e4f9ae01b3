"""Queries and metadata through the ADBC driver for Flight SQL."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import adbc_driver_manager
import duckdb
import grpc
import pyarrow as pa
import pytest

from authorization.worlds import Worlds
from flightsql.adbc import connected, rows
from lake.lakes import Lake
from lake.policed_lake import CANARY, NUMBERS, policed_lake
from runtime.servers import eventually
from skiway.lake import Handles, Sources, airport_service
from skiway.sandbox.queries import QueryProcess
from skiway.security import MemorySecrets
from skiway.sql import QueryEngine


def refused(cursor: Any, sql: str, *parameters: Any) -> tuple[str, str]:
    """The status and the message of the error."""
    with pytest.raises(adbc_driver_manager.Error) as caught:
        rows(cursor, sql, *parameters)
    return caught.value.status_code.name, str(caught.value)


def test_query(cursor: Any) -> None:
    assert rows(cursor, "SELECT * FROM s.people ORDER BY id") == [(1, "Ada"), (2, "Grace"), (3, None)]
    assert rows(cursor, "SELECT p.name FROM managed.s.people p JOIN s.adults a USING (id) ORDER BY id") == [
        ("Grace",),
        (None,),
    ]
    assert rows(cursor, "SELECT count(*) FROM s.people") == [(3,)]  # from the metadata of the table
    assert rows(cursor, "SELECT id FROM s.people WHERE id > 100") == []


@pytest.mark.parametrize(
    "value",
    [
        *(5, -1.5, 0.1, float("nan"), True, 'it\'s "quoted" $1 ?', "", b"\0'\xff", date(2024, 2, 29), Decimal("-1.50")),
        *(datetime(2024, 1, 1, 12, 30), datetime(2024, 1, 1, tzinfo=UTC), ["a,b", "it's", None], {"x": 1, "y z": "q'"}),
    ],
    ids=repr,
)
def test_parameters_are_those_of_duckdb(cursor: Any, value: Any) -> None:
    """A statement of this server returns what DuckDB returns for the same value."""
    sql = "SELECT id, ? AS bound, [?] AS wrapped FROM s.people WHERE name = ? AND id < $5 LIMIT $4"
    cursor.execute(sql, pa.record_batch([pa.array([each]) for each in (value, value, "Ada", 2, 100)], list("abcde")))
    found = cursor.fetch_arrow_table()
    peer = duckdb.from_arrow(pa.table({"a": pa.array([value])})).project("1::BIGINT AS id, a AS bound, [a] AS wrapped")
    expected = peer.to_arrow_table()
    types, values = str(expected.schema.field("bound").type), str(expected.to_pylist())
    assert str(found.to_pylist()) == values.replace("Etc/UTC", "UTC")
    assert str(found.schema.field("bound").type) == types.replace("Etc/UTC", "UTC")


def test_types_are_those_that_every_client_knows(cursor: Any) -> None:
    """Those of DuckDB's extension types, which other doors use, would be numbers and bytes to a BI tool."""
    cursor.execute(
        "SELECT true AS b, uuid() AS u, '5'::HUGEINT AS h, '{}'::JSON AS j, '101'::BIT AS bits, 255::UTINYINT AS u1, "
        "65535::USMALLINT AS u2, 4294967295::UINTEGER AS u4, 18446744073709551615::UBIGINT AS u8 FROM s.people"
    )
    assert [str(each) for each in cursor.fetch_arrow_table().schema.types] == [
        *("bool", "string", "decimal128(38, 0)", "string", "string", "int16", "int32", "int64", "decimal128(20, 0)")
    ]


def test_statement_is_executed_again_with_other_values(cursor: Any) -> None:
    sql = "SELECT name FROM s.people WHERE id = ?"
    assert [rows(cursor, sql, number) for number in (2, 1, 7, None)] == [[("Grace",)], [("Ada",)], [], []]


def test_parameters_are_found_by_name(cursor: Any) -> None:
    cursor.execute("SELECT $b - $a AS d", pa.record_batch([pa.array([1]), pa.array([10])], ["a", "b"]))
    assert cursor.fetchall() == [(9,)]
    cursor.execute("SELECT $b - $a AS d", pa.record_batch([pa.array([10]), pa.array([1])], ["b", "a"]))
    assert cursor.fetchall() == [(9,)]


@pytest.mark.parametrize(
    ("sql", "parameters", "status", "message"),
    [
        ("SELECT * FROM s.unknown", (), "NOT_FOUND", "table managed.s.unknown does not exist"),
        ("SELECT nothing FROM s.people", (), "INVALID_ARGUMENT", "nothing"),
        ("SELEC 1", (), "INVALID_ARGUMENT", "syntax error"),
        ("  ", (), "INVALID_ARGUMENT", "the statement is empty"),
        ("SELECT 1; SELECT 2", (), "INVALID_ARGUMENT", "expected one query, found 2 statements"),
        ("CREATE TABLE s.x AS SELECT 1", (), "INVALID_ARGUMENT", "only SELECT can run here"),
        ("DELETE FROM s.people", (), "INVALID_ARGUMENT", "only SELECT can run here"),
        ("SELECT * FROM read_csv('/etc/passwd')", (), "INVALID_ARGUMENT", "read_csv cannot be used here"),
        ("SELECT ?", (), "INVALID_ARGUMENT", "parameters without values: bind them first"),
        ("SELECT ?", (1, 2), "INVALID_ARGUMENT", "the query has 1 parameters, but 2 values were bound"),
        ("SELECT 1", (1,), "INVALID_ARGUMENT", "the query has 0 parameters, but 1 values were bound"),
        ("SELECT ?", ("a\0b",), "INVALID_ARGUMENT", "NUL"),
    ],
)
def test_errors_have_a_status_and_a_reason(
    cursor: Any, sql: str, parameters: tuple[Any, ...], status: str, message: str
) -> None:
    found = refused(cursor, sql, *parameters)
    assert found[0] == status, found
    assert message in found[1]


def test_several_rows_of_parameters_are_refused(cursor: Any) -> None:
    values = pa.record_batch([pa.array([1, 2])], ["a"])
    with pytest.raises(adbc_driver_manager.Error, match="a query takes one row of parameters, but several were sent"):
        cursor.execute("SELECT ?", values)


def test_writing_is_refused(lake: Lake, cursor: Any) -> None:
    with connected(lake.location, "writer") as connection, connection.cursor() as plain:
        plain.adbc_statement.set_sql_query("DELETE FROM s.people")
        with pytest.raises(
            adbc_driver_manager.NotSupportedError, match="StatementUpdate is not supported: Flight SQL is read-only"
        ):
            plain.adbc_statement.execute_update()
    with pytest.raises(
        adbc_driver_manager.NotSupportedError, match="StatementIngest is not supported: Flight SQL is read-only"
    ):
        cursor.adbc_ingest("people", pa.table({"id": [9], "name": ["x"]}), mode="append", db_schema_name="s")
    assert rows(cursor, "SELECT count(*) FROM s.people") == [(3,)]


def test_callers_need_a_valid_token(tmp_path: Path, queries: QueryEngine) -> None:
    worlds = Worlds(tmp_path)
    service = airport_service(worlds.access, handles=Handles(Sources(MemorySecrets()), worlds.warehouse), key=b"k" * 32)
    server = grpc.server(ThreadPoolExecutor(2))
    service.add_to(server)
    location = f"grpc://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        for token in ("", "unknown"):
            with connected(location, token) as connection, connection.cursor() as cursor:
                assert refused(cursor, "SELECT 1")[0] == "UNAUTHENTICATED"
        with connected(location, "administrator") as connection, connection.cursor() as cursor:
            # There are two catalogs, so a name needs its catalog, or a header does.
            assert rows(cursor, "SELECT count(*) FROM lake.sales.people") == [(0,)]
            assert "write catalog.sales.people" in refused(cursor, "SELECT id FROM sales.people")[1]
        with connected(location, "administrator", catalog="lake") as connection, connection.cursor() as cursor:
            assert rows(cursor, "SELECT id FROM sales.people") == []
        with connected(location, "administrator", catalog="none") as connection, connection.cursor() as cursor:
            assert refused(cursor, "SELECT 1")[0] == "NOT_FOUND"
        with connected(location, "stranger") as connection, connection.cursor() as cursor:
            assert refused(cursor, "SELECT count(*) FROM lake.sales.people")[0] == "NOT_FOUND"
            (shown,) = connection.adbc_get_objects(depth="all").read_all().to_pylist()
            assert shown == {"catalog_name": "", "catalog_db_schemas": []}  # the driver's own
    finally:
        server.stop(0).wait()
        service.close()


# -- metadata ----------------------------------------------------------------------------------------------------------


def listed(connection: Any, **filters: Any) -> dict[str, dict[str, str]]:
    """The types of tables by schema."""
    (catalog,) = connection.adbc_get_objects(depth="tables", **filters).read_all().to_pylist()
    assert catalog["catalog_name"] == "managed"
    return {
        schema["db_schema_name"]: {each["table_name"]: each["table_type"] for each in schema["db_schema_tables"]}
        for schema in catalog["catalog_db_schemas"]
    }


def test_metadata(lake: Lake) -> None:
    with connected(lake.location, "reader") as connection:
        found = listed(connection)
        assert found["s"] == {"people": "TABLE", "adults": "VIEW"}
        assert found["skiway"]["tables"] == "SYSTEM TABLE"
        assert listed(connection, db_schema_filter="s", table_name_filter="p%e") == {"s": {"people": "TABLE"}}
        assert listed(connection, db_schema_filter="s", table_name_filter="PEOPL_") == {"s": {"people": "TABLE"}}
        assert listed(connection, db_schema_filter="s", table_name_filter="eop") == {"s": {}}
        assert listed(connection, table_types_filter=["VIEW"])["s"] == {"adults": "VIEW"}
        assert connection.adbc_get_objects(depth="all", catalog_filter="other").read_all().num_rows == 0
        assert connection.adbc_get_table_types() == ["SYSTEM TABLE", "TABLE", "VIEW"]
        info = connection.adbc_get_info()
        assert info["vendor_name"] == "Skiway"
        columns = connection.adbc_get_table_schema("people", db_schema_filter="s")
        assert [(field.name, str(field.type)) for field in columns] == [("id", "int64"), ("name", "string")]
        facts = columns.field("name").metadata
        assert facts[b"ARROW:FLIGHT:SQL:TYPE_NAME"] == b"VARCHAR"
        assert facts[b"ARROW:FLIGHT:SQL:REMARKS"] == b"as in passports"
        with pytest.raises(adbc_driver_manager.Error, match="No table found"):
            connection.adbc_get_table_schema("unknown")


# -- rights ------------------------------------------------------------------------------------------------------------


def test_masked_values_stay_hidden(tmp_path: Path, queries: QueryEngine) -> None:
    with policed_lake(tmp_path, queries) as policed:
        policed.filter()
        policed.mask()
        with connected(policed.lake.location, "analyst") as connection, connection.cursor() as cursor:
            shown = rows(cursor, "SELECT * FROM s.people")
            assert len(shown) == 30
            shown += rows(cursor, "SELECT email, number FROM s.people WHERE email IS NOT DISTINCT FROM ?", None)
            shown += rows(cursor, "SELECT max(email), min(number), max(name) FROM s.people WHERE number > ? OR true", 0)
            texts = [refused(cursor, "SELECT CAST(name AS INTEGER) FROM s.people")[1]]
            texts += [str(connection.adbc_get_objects(depth="all").read_all().to_pylist()), str(shown)]
            assert not [text for text in texts for hidden in (CANARY, *map(str, NUMBERS)) if hidden in text]
        with connected(policed.lake.location, "writer") as connection, connection.cursor() as cursor:
            assert CANARY in rows(cursor, "SELECT max(email) FROM s.people")[0][0]


def test_caller_without_rights_reads_nothing(lake: Lake) -> None:
    with connected(lake.location, "nothing") as connection, connection.cursor() as cursor:
        assert refused(cursor, "SELECT * FROM s.people")[0] in ("UNAUTHORIZED", "NOT_FOUND")
        assert listed(connection, db_schema_filter="s") == {"s": {}}


# -- long results ------------------------------------------------------------------------------------------------------


def test_large_result_is_streamed(cursor: Any) -> None:
    """The first rows arrive long before the last: a result of 160 GB is neither computed nor stored."""
    cursor.execute("SELECT a.range, repeat('x', 100) AS text FROM range(1000000) a, range(1600) b")
    reader = cursor.fetch_record_batch()
    count = 0
    for batch in reader:
        count += batch.num_rows
        if count > 200_000:
            break
    assert batch.schema.names == ["range", "text"]
    cursor.adbc_cancel()


def test_all_rows_of_a_result_arrive(cursor: Any) -> None:
    cursor.execute("SELECT range AS n FROM range(1000000)")
    found = cursor.fetch_arrow_table()
    assert (found.num_rows, found["n"].combine_chunks().sum().as_py()) == (1_000_000, 499_999_500_000)


def test_query_ends_when_its_client_is_gone(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has not returned any row, so nothing but the end of the call can stop it."""
    started, ended = threading.Event(), threading.Event()
    run, close = QueryProcess.run, QueryProcess.close

    def running(self: QueryProcess, sql: str, *rest: Any, **more: Any) -> Any:
        if "30000000" in sql and not more["describe"]:
            started.set()
        return run(self, sql, *rest, **more)

    def closing(self: QueryProcess) -> None:
        close(self)
        if started.is_set():
            ended.set()

    monkeypatch.setattr(QueryProcess, "run", running)
    monkeypatch.setattr(QueryProcess, "close", closing)
    connection = connected(lake.location, "reader")
    cursor = connection.cursor()

    def execute() -> None:
        with pytest.raises(adbc_driver_manager.Error):
            rows(cursor, "SELECT count(*) FROM range(30000000) a, range(30000000) b WHERE (a.range * b.range) % 7 = 9")

    thread = threading.Thread(target=execute)
    thread.start()
    assert started.wait(200)
    began = time.monotonic()
    cursor.adbc_cancel()
    thread.join(200)
    eventually(ended.is_set)
    assert time.monotonic() - began < 10
    cursor.close()
    connection.close()
    with connected(lake.location, "reader") as again, again.cursor() as other:
        assert rows(other, "SELECT 1") == [(1,)]
