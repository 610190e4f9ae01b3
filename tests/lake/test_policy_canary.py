"""A value that policies hide never leaves the server: not in rows, statistics, plans or errors, through any door.

Every value of the masked columns, and every name in a hidden row, contains a canary. A restricted caller runs generated
statements, and everything that the server sends is searched for it. The results must also be those of DuckDB on a table
from which the hidden rows and values were removed.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import grpc
import httpx
import pyarrow as pa
import pytest

import scope
from faults.proxies import TcpProxy
from lake.lakes import ByToken
from lake.policed_lake import CANARY, NUMBERS, ROWS, PolicedLake, policed_lake
from rest.rest_server import listening
from rpc.rpc_server import opened as opened_rpc
from skiway.client import AirportClient, col
from skiway.client.airport.predicates import Predicate
from skiway.client.connection import Connection, Stream
from skiway.errors import SkiwayError
from skiway.formats.iceberg.warehouse import Warehouse
from skiway.lake import Handles, Sources
from skiway.metastore import Realm, policies, queries, snapshots, statistics
from skiway.model import v1
from skiway.request_path import Access
from skiway.rest import RestApp
from skiway.rest.app import ROUTES
from skiway.security import MemorySecrets, PermissionAuthorizer
from skiway.sql import QueryEngine

PER_SEED = 5
SEEDS = scope.sample(range(40), every=40)
"""Each seed is five statements and as many scans, 200 in all."""

VALUES = [
    *("id", "name", "email", "number", "day", "region"),
    *("upper(email)", "length(email)", "number + id", "email || name", "md5(email)", "substr(email, 1, 12)"),
    *("CAST(email AS INTEGER)", "TRY_CAST(number AS VARCHAR)", "CAST(number AS UTINYINT)", "hash(number)"),
    *("CAST(substr(name, 6) AS INTEGER)", "1 // (id - 4)", "error(email)", "[email, name]", "{'a': email}"),
    *("CASE WHEN region = 'US' THEN error(name) END", "coalesce(email, name)", "regexp_extract(email, '[0-9]+')"),
]
AGGREGATES = [
    *("count(*)", "count(email)", "max(email)", "min(number)", "sum(number)", "count(DISTINCT email)"),
    *("string_agg(email, ',' ORDER BY id)", "bool_or(region <> 'EU')", "max(name)", "list(number ORDER BY id)"),
    *("approx_count_distinct(number)", "arg_max(email, id)", "max(length(name))"),
]
CONDITIONS = [
    *("number > 715516999", "email LIKE 'can%'", "email IS NOT NULL", "number IS NULL", "id IN (4, 5, 8)"),
    *("name > 'a'", "region <> 'EU'", "region = 'US'", "CAST(email AS INTEGER) > 0", "1 // (id - 8) > 0"),
    *("length(email) > 3", "number % 2 = 0", "day > DATE '2024-01-05'", "id % 4 = 0", "starts_with(name, 'canary')"),
    *("CAST(number AS VARCHAR) LIKE '7155%'", "contains(email, '@')", "number BETWEEN 1 AND 999999999"),
]
SOURCES = [
    *("s.people", "s.people", "s.everything", "(SELECT * FROM s.people WHERE id < 30) x"),
    "(SELECT a.* FROM s.people a JOIN s.people b ON a.id = b.id) x",
    "(SELECT * FROM s.people UNION ALL SELECT * FROM s.everything) x",
]


def statement(random_: random.Random) -> str:
    """A query with an order, so that its result is the same everywhere."""
    source, condition = random_.choice(SOURCES), random_.choice(CONDITIONS)
    if random_.random() < 0.5:
        condition = f"({condition} {random_.choice(['AND', 'OR'])} {random_.choice(CONDITIONS)})"
    where = f" WHERE {condition}" if random_.random() < 0.7 else ""
    if random_.random() < 0.4:
        shown = ", ".join(f"{each} AS a{i}" for i, each in enumerate(random_.sample(AGGREGATES, 3)))
        group = random_.choice(["", " GROUP BY region", " GROUP BY length(email)", " GROUP BY number"])
        return f"SELECT {shown} FROM {source}{where}{group} ORDER BY ALL"
    shown = ", ".join(f"{each} AS a{i}" for i, each in enumerate(random_.sample(VALUES, 3)))
    limit = f" LIMIT {random_.randint(1, 20)}" if random_.random() < 0.3 else ""
    return f"SELECT {shown} FROM {source}{where} ORDER BY ALL{limit}"


PREDICATES: list[Predicate] = [
    col("number") > 715_516_999,
    col("email") > "can",
    col("id") == 4,
    col("id") == 5,
    col("region") != "EU",
    col("name") > "can",
    (col("number") > 5) | (col("id") < 10),
    col("email").is_null(),
    ~col("email").is_null(),
]


class Sent:
    """Everything that servers sent to the restricted caller: messages, and the bytes of their connections."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self.raw = bytearray()

    def add(self, message: bytes) -> None:
        self.messages.append(message)

    def check(self, *also: object) -> None:
        """Raise if a canary was sent, as bytes or in what the client makes of them."""
        texts = [CANARY, *map(str, NUMBERS)]
        received = [*self.messages, bytes(self.raw)]
        for message in (*received, *(repr(each).encode() for each in also)):
            for text in texts:
                assert text.encode() not in message, (text, message[:3000])
        for message in received:
            for number in NUMBERS:
                assert number.to_bytes(8, "little") not in message, number
        self.messages.clear()
        del self.raw[:-64]  # a value may be continued in the next bytes


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Sent:
    recorded = Sent()
    following, calling = Stream.__next__, Connection.call

    def next_message(stream: Stream) -> bytes:
        try:
            message = following(stream)
        except SkiwayError as error:
            cause: Any = error.__cause__
            if isinstance(cause, grpc.RpcError):
                recorded.add(repr((str(error), cause, getattr(cause, "trailing_metadata", tuple)())).encode())
            raise
        recorded.add(message)
        return message

    def call(self: Connection, *given: Any) -> bytes:
        message = calling(self, *given)
        recorded.add(message)
        return message

    monkeypatch.setattr(Stream, "__next__", next_message)
    monkeypatch.setattr(Connection, "call", call)
    return recorded


@pytest.fixture
def policed(tmp_path: Path, queries: QueryEngine) -> Iterator[PolicedLake]:
    with policed_lake(tmp_path, queries) as made:
        with made.lake.client() as owner:
            owner.call("skiway.create_view", "s.everything", "SELECT * FROM people").read_all()
            # What others ask is in the log of plans.
            owner.scan("s.people", where=col("email") == ROWS["email"][3].as_py()).read_all()
        store_statistics(made)
        made.filter()
        made.mask()
        yield made


def store_statistics(policed: PolicedLake) -> None:
    """Statistics of columns, as profiles make them."""
    realm, table_id = policed.lake.realm, policed.table.resource_id
    now = snapshots.current_id(realm, table_id.id)
    assert now is not None
    columns = [
        v1.ColumnStats(column_id=4, column_name="email", logical_type="STRING", min=CANARY, max=CANARY, value_count=40),
        v1.ColumnStats(column_id=1, column_name="id", logical_type="LONG", min="0", max="39", value_count=40),
    ]
    columns[0].properties["top_values"] = json.dumps([[CANARY, 40]])
    statistics.put_columns(realm, [v1.PutColumnStatsRequest(table_id=table_id, snapshot_id=now, columns=columns)])
    statistics.add_to_history(realm, v1.TableStats(table_id=table_id, snapshot_id=now, row_count=40), columns)


@pytest.fixture(scope="module")
def peer() -> duckdb.DuckDBPyConnection:
    """DuckDB, on a table without the hidden rows and values."""
    database = duckdb.connect()
    database.register("original", ROWS)
    database.execute("""
        CREATE SCHEMA s;
        CREATE TABLE s.people AS
            SELECT * REPLACE (CAST(NULL AS VARCHAR) AS email, CAST(NULL AS BIGINT) AS number)
            FROM original WHERE region = 'EU';
        CREATE VIEW s.everything AS SELECT * FROM s.people;
    """)
    return database


def outcome(run: Callable[[], pa.Table]) -> tuple[bool, list[str]]:
    """Whether a query failed, and its rows as text."""
    try:
        return False, [str(row) for row in run().to_pylist()]
    except (SkiwayError, duckdb.Error):
        return True, []


@pytest.mark.parametrize("seed", SEEDS)
def test_statements(policed: PolicedLake, sent: Sent, peer: duckdb.DuckDBPyConnection, seed: int) -> None:
    random_ = random.Random(seed)
    proxy = TcpProxy(policed.lake.location.removeprefix("grpc://"), watch=sent.raw.extend)
    with proxy.serving(), AirportClient(f"grpc://{proxy.address}", "managed", token="analyst") as analyst:
        for sql in [statement(random_) for _ in range(PER_SEED)]:
            found = outcome(partial(lambda sql: analyst.call("skiway.query", sql).read_all(), sql))
            sent.check(found)
            assert found == outcome(partial(lambda sql: peer.execute(sql).to_arrow_table(), sql)), sql
            columns = random_.sample(ROWS.schema.names, random_.randint(0, 6))
            where, limit = random_.choice([None, *PREDICATES]), random_.choice([None, 3])
            name = random_.choice(["s.people", "s.everything"])
            table = analyst.scan(name, columns=columns, where=where, limit=limit).read_all()
            sent.check(table.to_pylist())
            assert table.num_rows <= peer.execute("SELECT count(*) FROM s.people").fetchall()[0][0]
            if "region" in columns:
                assert set(table["region"].to_pylist()) <= {"EU"}
            assert sent.raw


def test_system_tables_and_statistics(policed: PolicedLake, sent: Sent) -> None:
    with policed.lake.client(token="analyst") as analyst:
        shown: list[object] = [analyst.schemas(), list(analyst.flights()), analyst.databases().to_pylist()]
        for name in (
            "tables",
            "columns",
            "snapshots",
            "files",
            "column_stats",
            "column_history",
            "partitions",
            "views",
            "jobs",
            "plans",
            "usage",
            "lineage",
            "reports",
            "query_history",
            "tokens",
            "audit",
        ):
            shown.append(analyst.scan(f"skiway.{name}").read_all().to_pylist())
            shown.append(analyst.call("skiway.query", f"SELECT * FROM skiway.{name}").read_all().to_pylist())
        shown += [analyst.statistics("s.people", column) for column in ROWS.schema.names]
        shown += [analyst.endpoints("s.people", where=where) for where in PREDICATES[2:4]]
        assert shown
        sent.check(*shown)


def requests_of(policed: PolicedLake) -> dict[str, list[Any]]:
    """Requests about the table, for every method that reads something about tables."""
    table, namespace = policed.table.resource_id, policed.namespace.resource_id
    realm = policed.lake.realm
    now = v1.SnapshotRef(special=v1.SS_CURRENT)
    name = v1.NameRef(catalog="managed", path=["s"], name="people")
    inputs = [v1.QueryInput(table_id=table)]
    begun = queries.begin(realm, v1.BeginQueryRequest(default_catalog_id=policed.catalog.resource_id, inputs=inputs))
    return {
        "TableService/ListTables": [
            v1.ListTablesRequest(namespace_id=namespace),
            v1.ListTablesRequest(namespace_id=namespace, with_sizes=True),
        ],
        "TableService/GetTable": [v1.GetTableRequest(table_id=table), v1.GetTableRequest(table_id=table, snapshot=now)],
        "ViewService/ListViews": [v1.ListViewsRequest(namespace_id=namespace)],
        "SnapshotService/ListSnapshots": [v1.ListSnapshotsRequest(table_id=table)],
        "SnapshotService/GetSnapshot": [v1.GetSnapshotRequest(table_id=table, snapshot=now)],
        "TableStatisticsService/GetTableStats": [v1.GetTableStatsRequest(table_id=table, snapshot=now)],
        "TableStatisticsService/ListColumnStats": [v1.ListColumnStatsRequest(table_id=table, snapshot=now)],
        "TableStatisticsService/ListFileColumnStats": [v1.ListFileColumnStatsRequest(table_id=table, snapshot=now)],
        "TableStatisticsService/ListStatisticsHistory": [v1.ListStatisticsHistoryRequest(table_id=table)],
        "TableStatisticsService/ListPartitionStats": [v1.ListPartitionStatsRequest(table_id=table, snapshot=now)],
        "DirectoryService/ResolveTable": [v1.ResolveTableRequest(ref=name)],
        "DirectoryService/LookupTableByRef": [v1.LookupTableByRefRequest(ref=name)],
        "QueryService/BeginQuery": [
            v1.BeginQueryRequest(default_catalog_id=policed.catalog.resource_id, inputs=inputs)
        ],
        "QueryService/GetQuery": [v1.GetQueryRequest(query_id=begun.query.query_id)],
        "QueryService/FetchScanBundle": [v1.FetchScanBundleRequest(query_id=begun.query.query_id, table_id=table)],
    }


@pytest.mark.parametrize("by", ["filter and mask", "mask"])
def test_metastore(policed: PolicedLake, sent: Sent, by: str) -> None:
    """The locations of files are not sent either."""
    realm = policed.lake.realm
    if by == "mask":
        (own,) = [
            each
            for each in policies.calls(lambda *_: []).list_(realm, v1.ListPoliciesRequest()).policies
            if each.HasField("row_filter")
        ]
        policies.calls(lambda *_: []).delete(realm, v1.DeletePolicyRequest(policy_id=own.resource_id))
    with opened_rpc(
        policed.lake.stores, authenticator=ByToken(), realm_of=lambda _, caller: Realm(realm.stores, caller.account_id)
    ) as server:
        for operation, requests in requests_of(policed).items():
            for request in requests:
                everything = server.client.as_("writer")(operation, request)
                assert everything.code is grpc.StatusCode.OK, (operation, everything.text)
                answer = server.client.as_("analyst")(operation, request)
                messages = answer.message if isinstance(answer.message, list) else [answer.message]
                for message in filter(None, messages):
                    data = message.SerializeToString()
                    sent.add(data)
                    assert str(policed.lake.folder).encode() not in data, operation
                sent.check(answer)
                refused = answer.code is grpc.StatusCode.PERMISSION_DENIED
                assert refused == (operation in REFUSED[by]), (operation, answer.text)
                if getattr(request, "with_sizes", False):  # the number of all rows tells how many are hidden
                    assert len(everything.message.sizes) == 1
                    assert len(answer.message.sizes) == (1 if by == "mask" else 0)


OF_FILES = {f"TableStatisticsService/{name}" for name in ("ListFileColumnStats", "ListPartitionStats")}
OF_VALUES = {f"TableStatisticsService/{name}" for name in ("GetTableStats", "ListColumnStats", "ListStatisticsHistory")}
REFUSED = {
    "filter and mask": {*OF_FILES, *OF_VALUES, "QueryService/FetchScanBundle"},
    "mask": {*OF_FILES, "QueryService/FetchScanBundle"},
}


def test_rest(policed: PolicedLake, sent: Sent) -> None:
    """Iceberg clients of a restricted caller get no metadata, which leads to all files."""
    lake = policed.lake
    access = Access(lambda principal: Realm(lake.stores, principal.account_id), ByToken(), PermissionAuthorizer())
    handles = Handles(Sources(MemorySecrets()), Warehouse.at(str(lake.folder / "warehouse")))
    app = RestApp(access, warehouse=lake.warehouse, mirrors=handles.open)
    names = {"prefix": "managed", "namespace": "s", "table": "people", "view": "unknown", "plan-id": "unknown"}
    names["generic-table"] = "people"
    statuses = {}
    try:
        with listening(app) as uri, httpx.Client(headers={"authorization": "Bearer analyst"}) as client:
            for route in ROUTES:
                if not route.permissions:
                    continue
                path = route.path.format(**names)
                answer = client.request(route.method, f"{uri}{path}?warehouse=managed", json={})
                statuses[route.name] = answer.status_code
                sent.add(answer.content)
                sent.check(answer.headers)
                assert str(lake.folder) not in answer.text, route.name
            assert client.get(f"{uri}/v1/managed/namespaces/s/tables/people?snapshots=refs").status_code == 403
    finally:
        app.close()
    assert statuses["LoadTable"] == statuses["PlanTableScan"] == statuses["FetchPlanningResult"] == 403
    assert statuses["LoadGenericTable"] == 403
    assert statuses["ListTables"] == 200
