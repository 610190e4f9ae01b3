"""`skiway.query` with the engine Spark: who may use it, which queries and tables, and what their token permits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lake.lakes import ByToken, Lake, opened_lake
from lake.policed_lake import policed_lake
from skiway.client import AirportClient
from skiway.errors import InvalidArgument, PermissionDenied, PreconditionFailed, SkiwayError, Unauthorized
from skiway.lake.context import SparkSql
from skiway.metastore import catalogs, grants
from skiway.model import v1
from skiway.security import IssuedTokenAuthenticator, TokenHeaders
from skiway.security.signed_tokens import QueryTokens, ReadOnlyAuthorizer
from skiway.spark_queries.engine import SparkQuery
from skiway.sql import QueryEngine

TOKENS = QueryTokens(b"k" * 32)
ANSWER = pa.table({"n": [1, 2]})


@dataclass
class Recorded:
    """Answers every query with the same rows, and remembers the queries."""

    queries: list[SparkQuery] = field(default_factory=list)

    def columns(self, key: object, query: Callable[[], SparkQuery]) -> pa.Schema:
        self.queries.append(query())
        return ANSWER.schema

    @contextmanager
    def result(self, key: object, query: Callable[[], SparkQuery], **_: Any) -> Iterator[Any]:
        self.queries.append(query())
        yield ANSWER.schema, iter(ANSWER.to_batches())


@pytest.fixture
def engine() -> Recorded:
    return Recorded()


def spark_of(engine: Recorded) -> SparkSql:
    sql: Any = engine
    return SparkSql(sql, TOKENS, lambda: "grpc://127.0.0.1:1")


@pytest.fixture
def db(tmp_path: Path, queries: QueryEngine, engine: Recorded) -> Iterator[Lake]:
    """A lake that accepts the tokens of queries."""
    usual = IssuedTokenAuthenticator(ByToken(), TOKENS, TokenHeaders())
    with opened_lake(tmp_path, queries=queries, spark=spark_of(engine)) as lake:
        lake.authenticator, lake.authorizer = usual, ReadOnlyAuthorizer(lake.authorizer)
        with lake.served() as location:
            lake.location = location
            with lake.client() as client:
                client.create_schema("s")
                client.create_table_as("s.t", pa.table({"id": [1]}))
                client.create_schema("a.b")
                client.create_table_as("a.b.deep", pa.table({"id": [1]}))
            lake.catalog("other")
            yield lake


def on_spark(client: AirportClient, sql: str, **named: Any) -> pa.Table:
    return client.call("skiway.query", sql, named={"engine": "spark", **named}).read_all()


def test_names_become_views_of_the_data_source(db: Lake, engine: Recorded) -> None:
    sql = "SELECT count(*) AS n FROM s.t JOIN managed.s.t AS u USING (id) JOIN a.b.deep USING (id) JOIN `a.b`.deep AS d USING (id)"
    with db.client() as client:
        assert on_spark(client, sql) == ANSWER
        assert on_spark(client, "SELECT * FROM t", schema="s") == ANSWER
    tables = [options["table"] for options in engine.queries[0].tables.values()]
    assert tables == ['"s"."t"', '"s"."t"', '"a.b"."deep"', '"a.b"."deep"']
    assert {options["location"] for options in engine.queries[0].tables.values()} == {"grpc://127.0.0.1:1/managed"}
    assert all(view in engine.queries[0].sql for view in engine.queries[0].tables)
    assert [each["table"] for each in engine.queries[-1].tables.values()] == ['"s"."t"']


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("DROP TABLE s.t", "it is not a SELECT"),
        ("INSERT INTO s.t SELECT 1", "it is not a SELECT"),
        ("CREATE TABLE x USING parquet AS SELECT 1", "it is not a SELECT"),
        ("ADD JAR '/tmp/x.jar'", "cannot be used"),
        ("SET spark.sql.shuffle.partitions = 1", "it is not a SELECT"),
        ("SELECT 1; SELECT 2", "it has 2 statements"),
        ("SELECT reflect('java.lang.System', 'getenv', 'HOME')", "the function reflect is not allowed"),
        ("SELECT TRANSFORM(id) USING 'bash -c id' AS (b) FROM s.t", "is not allowed"),
        ("SELECT * FROM parquet.`/etc/passwd`", "table or view parquet./etc/passwd does not exist"),
        ("SELECT * FROM csv.`file:///etc/passwd`", "does not exist"),
        ("SELECT * FROM range(3)", "is not a table: name a table of the lake"),
        ("SELECT * FROM s.missing", "table or view s.missing does not exist"),
        ("SELECT * FROM t", "table or view t does not exist: write schema.table, or name the schema"),
        ("SELECT '${env:HOME}'", "Spark replaces by settings"),
        ("", "query needs SQL"),
    ],
)
def test_other_statements_and_tables_are_refused(db: Lake, engine: Recorded, sql: str, message: str) -> None:
    with db.client() as client, pytest.raises(InvalidArgument, match=message):
        on_spark(client, sql)
    assert engine.queries == []


def test_engine_must_be_known_and_allowed(db: Lake, lake: Lake) -> None:
    with db.client() as client:
        assert on_spark(client, "SELECT * FROM s.t", engine="DuckDB").to_pylist() == [{"id": 1}]
        with pytest.raises(InvalidArgument, match="engine is 'sparc': use 'duckdb' or 'spark'"):
            on_spark(client, "SELECT 1", engine="sparc")
    with lake.client() as client, pytest.raises(PreconditionFailed, match=r"sql\.spark\.enabled=true"):
        on_spark(client, "SELECT 1 AS x")


def test_callers_under_policies_are_refused(tmp_path: Path, queries: QueryEngine, engine: Recorded) -> None:
    with policed_lake(tmp_path, queries, spark=spark_of(engine)) as policed:
        policed.filter("region = 'EU'", subjects=["user:analyst"])
        for sql in ("SELECT * FROM s.people", "SELECT 1 AS x"):
            with (
                policed.lake.client(token="analyst") as client,
                pytest.raises(PermissionDenied, match="a policy restricts"),
            ):
                on_spark(client, sql)
        assert engine.queries == []
        with policed.lake.client(token="reader") as client:
            assert on_spark(client, "SELECT * FROM s.people") == ANSWER


def test_hidden_tables_do_not_exist(db: Lake, engine: Recorded) -> None:
    with db.client(token="stranger") as client, pytest.raises(SkiwayError):
        on_spark(client, "SELECT * FROM s.t")
    assert engine.queries == []


def test_token_reads_what_its_caller_reads_and_changes_nothing(db: Lake, engine: Recorded) -> None:
    with db.client(token="writer") as client:
        on_spark(client, "SELECT * FROM s.t")
    token = engine.queries[-1].token
    with db.client(token=token) as client:
        assert client.scan("s.t").read_all().to_pylist() == [{"id": 1}]
        changes: list[Callable[[], Any]] = [
            lambda: client.insert("s.t", pa.table({"id": [2]})),
            lambda: client.delete("s.t", [0]),
            lambda: client.drop_table("s.t"),
            lambda: client.create_schema("new"),
            lambda: client.create_table_as("s.new", pa.table({"id": [2]})),
            lambda: client.call("skiway.create_view", "s.v", "SELECT 1 AS x").read_all(),
            lambda: client.call("skiway.end_query", "some-id").read_all(),
            lambda: on_spark(client, "SELECT * FROM s.t"),
        ]
        for change in changes:
            with pytest.raises(PermissionDenied):
                change()
    with db.client() as client:
        assert client.scan("s.t").read_all().to_pylist() == [{"id": 1}]


def test_granted_rights_to_write_are_not_in_the_token(db: Lake, engine: Recorded) -> None:
    (catalog,) = (each for each in catalogs.scan(db.realm) if each.display_name == "managed")
    request = v1.AddGrantRequest(object_id=catalog.resource_id, grantee="user:stranger", privilege=v1.PV_WRITE)
    grants.add(db.realm, request)
    with db.client(token="stranger") as client:
        client.insert("s.t", pa.table({"id": [2]}))
        on_spark(client, "SELECT * FROM s.t")
    with db.client(token=engine.queries[-1].token) as client:
        assert len(client.scan("s.t").read_all()) == 2
        with pytest.raises(PermissionDenied):
            client.insert("s.t", pa.table({"id": [3]}))


@pytest.mark.parametrize(
    "forge", [lambda token: token[:-1], lambda token: token.replace(".", "A."), lambda token: "skiway_query_x"]
)
def test_forged_tokens_are_rejected(db: Lake, engine: Recorded, forge: Callable[[str], str]) -> None:
    with db.client() as client:
        on_spark(client, "SELECT * FROM s.t")
    with db.client(token=forge(engine.queries[-1].token)) as client, pytest.raises(Unauthorized, match="unknown"):
        client.scan("s.t").read_all()
