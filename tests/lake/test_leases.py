"""Leases of transactions: which transactions have one, what it protects, who sees it, and what happens when it is ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.table.update import RemoveSnapshotsUpdate, SetPropertiesUpdate

from lake.lakes import ByToken, Lake
from skiway.airport import Request
from skiway.airport.request import ServedCall
from skiway.airport.wire.protocol import TransactionState
from skiway.client import AirportClient
from skiway.client.airport.calls import Calls as AirportCalls
from skiway.errors import Cancelled, Conflict, InvalidArgument, NotFound, PreconditionFailed, Unavailable
from skiway.lake import transactions as lake_transactions
from skiway.lake.transactions import Statements, TransactionLeases, _Use
from skiway.metastore import PLATFORM, directory, gc, managed, queries
from skiway.metastore.queries import QueryRules, TransactionUse, use_in_transaction
from skiway.metastore.records.realm import Realm
from skiway.metastore.resources import accounts, catalogs
from skiway.metastore.table_maintenance.cleaning import expire_snapshots
from skiway.model import v1
from skiway.security import Principal, Roles

ROWS = pa.table({"id": [1]})


@pytest.fixture
def db(lake: Lake) -> Iterator[AirportClient]:
    with lake.client() as client:
        client.create_schema("s")
        for name in ("s.a", "s.b"):
            client.create_table(name, ROWS.schema)
            client.insert(name, ROWS)
        yield client


def listed(client: AirportClient, kind: str = "transaction") -> list[dict[str, Any]]:
    found = client.scan("skiway.queries").read_all().to_pylist()
    return [row for row in found if row["kind"] == kind]


def end(client: AirportClient, query_id: str) -> dict[str, Any]:
    (row,) = client.call("skiway.end_query", query_id).read_all().to_pylist()
    return dict(row)


@contextmanager
def joined(client: AirportClient, transaction_id: str) -> Iterator[AirportClient]:
    """A client that continues a transaction of another client."""
    with client.transaction() as transaction:
        transaction._identifier = transaction_id
        yield client


def id_of(lake: Lake, name: str) -> v1.ResourceId:
    ref = v1.NameRef(catalog="managed", path=["s"], name=name)
    return directory.resolve_table(lake.realm, v1.ResolveTableRequest(ref=ref)).resource_id


# -- which transactions have a lease -----------------------------------------------------------------------------------


def test_single_statements_store_nothing(lake: Lake, db: AirportClient) -> None:
    before = list(lake.stores.pointers.scan("/"))
    for _ in range(3):
        assert db.count("s.a") == 1
    assert listed(db) == []
    assert [each.key for each in lake.stores.pointers.scan("/") if "lease" in each.key or "pins" in each.key] == []
    assert len(list(lake.stores.pointers.scan("/"))) == len(before)


def test_second_statement_makes_the_transaction_visible(lake: Lake, db: AirportClient) -> None:
    with lake.client() as other, db.transaction() as transaction:
        db.count("s.a")
        assert listed(other) == []
        db.count("s.b")
        (row,) = listed(other)
        snapshots = {name: int(each["snapshot_id"].as_py()) for name, each in _snapshots(other).items()}
    assert row["query_id"] == transaction.id
    assert (row["state"], row["caller"], row["operation"], row["statements"]) == ("active", "writer", None, 2)
    assert {each["table"]: each["snapshot_id"] for each in row["tables"]} == {
        "managed.s.a": snapshots["a"],
        "managed.s.b": snapshots["b"],
    }
    assert row["started_at"] <= row["last_used_at"] < row["expires_at"]
    assert row["expires_at"] - row["started_at"] == timedelta(hours=1)


def test_second_statement_after_a_pause_makes_the_transaction_visible(
    lake: Lake, db: AirportClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lake_transactions, "RECENT", timedelta(0))  # other statements let the server forget this one
    with lake.client() as other, db.transaction() as transaction:
        db.count("s.a")
        assert other.count("s.a") == 1
        db.count("s.b")
        assert transaction.id in [row["query_id"] for row in listed(other)]


def test_end_of_a_transaction_releases_its_snapshots(lake: Lake, db: AirportClient) -> None:
    with db.transaction(explicit=True):
        db.scan("s.a").read_all()
        db.scan("s.b").read_all()
        with lake.client() as other:
            assert [row for row in listed(other) if row["state"] == "active"]
    assert not [row for row in listed(db) if row["state"] == "active"]


def _snapshots(client: AirportClient) -> dict[str, Any]:
    found = client.scan("skiway.snapshots").read_all()
    return {row["table_name"]: {"snapshot_id": pa.scalar(row["snapshot_id"])} for row in found.to_pylist()}


def test_later_statements_add_what_they_read_and_when(lake: Lake, db: AirportClient) -> None:
    with lake.client() as other, db.transaction():
        db.count("s.a")
        db.count("s.a")
        (first,) = listed(other)
        db.insert("s.b", ROWS)
        (second,) = listed(other)
    assert [each["table"] for each in first["tables"]] == ["managed.s.a"]
    assert [each["table"] for each in second["tables"]] == ["managed.s.a", "managed.s.b"]
    assert (first["statements"], second["statements"]) == (2, 3)
    assert second["last_used_at"] > first["last_used_at"]


def test_transaction_reads_its_own_inserts(lake: Lake, db: AirportClient) -> None:
    with lake.client() as other, db.transaction():
        db.insert("s.a", ROWS)
        other.insert("s.b", ROWS)
        assert (db.count("s.a"), db.count("s.b")) == (2, 1)


class Calls:
    """The calls of a session of DuckDB, in the order in which it makes them."""

    def __init__(self) -> None:
        self.statements, self.use = Statements(), _Use()

    def bind(self) -> None:
        self.statements.bind("session")

    def use_table(self, operation: str, trace: str) -> int:
        call = ServedCall(method="DoAction", correlation_id="", request=Request(), operation=operation)
        self.statements.count(self.use, Request(session_id="session", trace_id=trace, call=call))
        return self.use.statements


@pytest.mark.parametrize("has_statistics", [True, False])
def test_tables_of_one_statement_count_once(has_statistics: bool) -> None:
    """A join: both tables are bound, and the second is read after the first."""
    calls = Calls()
    calls.bind()
    calls.bind()
    planning = [("column_statistics", "1"), ("column_statistics", "2")] if has_statistics else []
    reading = [("endpoints", "1"), ("scan", "1"), ("endpoints", "2"), ("scan", "2")]
    assert {calls.use_table(operation, trace) for operation, trace in planning + reading} == {1}


def test_statement_that_is_bound_after_another_was_executed_counts() -> None:
    calls = Calls()
    calls.bind()
    calls.use_table("endpoints", "1")
    calls.use_table("scan", "1")
    calls.bind()
    assert calls.use_table("endpoints", "2") == 2
    calls.bind()
    assert calls.use_table("column_statistics", "3") == 3
    assert calls.use_table("endpoints", "3") == 3


def test_sessions_that_request_no_versions_have_a_statement_per_table() -> None:
    calls = Calls()
    assert [calls.use_table("endpoints", trace) for trace in "1123"] == [1, 1, 2, 3]


# -- ending ------------------------------------------------------------------------------------------------------------


def test_read_after_the_end_fails_on_every_server(lake: Lake, db: AirportClient) -> None:
    with lake.client() as other, lake.served() as location, AirportClient(location, "managed") as second:
        with db.transaction() as transaction:
            assert transaction.id
            db.count("s.a")
            db.count("s.a")
            assert end(other, transaction.id) == {"query_id": transaction.id, "state": "ended_abort"}
            assert listed(other) == []
            for name in ("s.a", "s.b"):
                with pytest.raises(PreconditionFailed, match=r"was ended.*ROLLBACK") as error:
                    db.count(name)
                assert error.value.key == "query.ended"
            with joined(second, transaction.id), pytest.raises(PreconditionFailed, match="was ended"):
                second.count("s.a")
        assert db.count("s.a") == 1, "the next transaction"


def test_call_of_a_running_statement_fails_after_the_end(lake: Lake) -> None:
    leases = TransactionLeases(lambda: lake.realm)
    leases.begun("t")
    now = datetime.now(UTC)
    requests = [Request(trace_id=trace) for trace in "12"]
    for request in requests:
        leases.enter("t", request, began=now, until=now + timedelta(hours=1))
    queries.end(lake.realm, v1.EndQueryRequest(query_id="t"))
    with pytest.raises(PreconditionFailed, match="was ended"):
        leases.enter("t", requests[-1], began=now, until=now + timedelta(hours=1))


def test_unknown_query_cannot_be_ended(db: AirportClient) -> None:
    with pytest.raises(NotFound, match="is not active"):
        end(db, "unknown")
    with pytest.raises(InvalidArgument, match=r"skiway\.queries lists them"):
        end(db, " ")


def test_planning_a_call_ends_nothing(lake: Lake, db: AirportClient) -> None:
    with lake.client() as other, db.transaction() as transaction:
        assert transaction.id
        db.count("s.a")
        db.count("s.a")
        assert other.call("skiway.end_query", transaction.id).schema.names == ["query_id", "state"]
        assert db.count("s.a") == 1


# -- who sees what -----------------------------------------------------------------------------------------------------


def test_readers_see_and_end_only_their_own(lake: Lake, db: AirportClient) -> None:
    reader, analyst = lake.client(token="reader"), lake.client(token="analyst")
    with reader, analyst, db.transaction() as writers, reader.transaction() as readers:
        assert writers.id
        assert readers.id
        for client in (db, reader):
            client.count("s.a")
            client.count("s.b")
        assert [row["query_id"] for row in listed(reader)] == [readers.id]
        assert listed(analyst) == []
        with pytest.raises(NotFound, match="is not active"):
            end(reader, writers.id)
        with lake.client() as administrator:
            assert {row["query_id"] for row in listed(administrator)} == {writers.id, readers.id}
            end(administrator, readers.id)
        assert db.count("s.a") == 1


@contextmanager
def inserting(client: AirportClient, look: Callable[[], None]) -> Iterator[None]:
    """An INSERT that calls `look` while it runs."""

    def batches() -> Iterator[pa.RecordBatch]:
        yield from ROWS.to_batches()
        look()

    client.insert("s.a", pa.RecordBatchReader.from_batches(ROWS.schema, batches()))
    yield


def test_running_statements_are_listed_to_their_caller_and_administrators(lake: Lake, db: AirportClient) -> None:
    seen: dict[str, set[tuple[str, str, str]]] = {}

    def look() -> None:
        for token in ("writer", "editor", "reader"):
            with lake.client(token=token) as client:
                rows = listed(client, "statement")
                assert {row["state"] for row in rows} == {"running"}
                seen[token] = {(row["caller"], row["operation"], row["tables"][0]["table"]) for row in rows}

    with inserting(db, look):
        own = {token: (token, "scan", "managed.skiway.queries") for token in ("writer", "editor", "reader")}
    insert = ("writer", "insert", "managed.s.a")
    assert seen == {"writer": {own["writer"], insert}, "editor": {own["editor"], insert}, "reader": {own["reader"]}}
    assert not [row for row in listed(db, "statement") if row["operation"] == "insert"], "it has ended"


def test_running_statements_of_other_accounts_are_not_listed(
    lake: Lake, db: AirportClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    accounts.create(
        Realm(lake.stores, PLATFORM),
        v1.CreateAccountRequest(spec=v1.AccountSpec(display_name="other"), account_id=v1.ResourceId(id="a2")),
    )
    catalogs.create(Realm(lake.stores, "a2"), v1.CreateCatalogRequest(spec=v1.CatalogSpec(display_name="managed")))
    authenticate = ByToken.authenticate
    monkeypatch.setattr(
        ByToken,
        "authenticate",
        lambda self, headers: (
            Principal("foreign", "a2", frozenset({"developer"}), Roles().permissions(["developer"]))
            if headers.get("authorization") == "Bearer foreign"
            else authenticate(self, headers)
        ),
    )
    seen: list[Any] = []

    def look() -> None:
        with lake.client(token="foreign") as client:
            seen.extend(row["caller"] for row in listed(client, "statement"))

    with inserting(db, look):
        assert seen == ["foreign"]


def test_leases_of_other_accounts_do_not_exist(lake: Lake, db: AirportClient) -> None:
    with db.transaction() as transaction:
        assert transaction.id
        db.count("s.a")
        db.count("s.a")
        other = Realm(lake.stores, "a2")
        assert not queries.list_(other, v1.ListQueriesRequest()).queries
        with pytest.raises(NotFound):
            queries.end(other, v1.EndQueryRequest(query_id=transaction.id))


def test_queries_over_grpc_are_listed_too(lake: Lake, db: AirportClient) -> None:
    catalog = directory.resolve_catalog(lake.realm, v1.ResolveCatalogRequest(ref=v1.NameRef(catalog="managed")))
    request = v1.BeginQueryRequest(
        query_id="mine",
        default_catalog_id=catalog.resource_id,
        inputs=[v1.QueryInput(table_id=id_of(lake, "a"))],
    )
    queries.begin(lake.realm, request)
    (row,) = listed(db, "query")
    assert (row["query_id"], row["statements"], [each["table"] for each in row["tables"]]) == (
        "mine",
        None,
        ["managed.s.a"],
    )
    end(db, "mine")
    assert listed(db, "query") == []


# -- what leases protect -----------------------------------------------------------------------------------------------


def test_snapshot_that_is_removed_meanwhile_stays_readable(lake: Lake, db: AirportClient) -> None:
    table = id_of(lake, "a")
    first = managed.load(lake.realm, lake.warehouse, table).metadata.current_snapshot_id
    assert first is not None
    with lake.client() as writer, db.transaction():
        assert (db.count("s.a"), db.count("s.b")) == (1, 1)
        writer.truncate("s.a")
        managed.commit(lake.realm, lake.warehouse, table, [], [RemoveSnapshotsUpdate(snapshot_ids=[first])])
        gc.sweep_warehouse(lake.stores, lake.warehouse, clock=lake.realm.clock, min_age_s=0, dry_run=False)
        assert db.scan("s.a").read_all().to_pylist() == [{"id": 1}]
    with pytest.raises(NotFound):
        db.scan("s.a", at_version=first).read_all()
    assert db.count("s.a") == 0


def test_lease_keeps_files_from_garbage_collection_until_it_ends(lake: Lake, db: AirportClient) -> None:
    """The lease is longer than the time for which garbage collection keeps all states of tables."""
    table = id_of(lake, "a")
    first = managed.load(lake.realm, lake.warehouse, table).metadata.current_snapshot_id
    assert first is not None
    state = managed.load(lake.realm, lake.warehouse, table).table.metadata_location
    now = datetime.now(UTC)
    used = TransactionUse("t", now, now + timedelta(hours=9), [(table.id, first)], 2)
    use_in_transaction(lake.realm, used)
    db.truncate("s.a")
    managed.commit(lake.realm, lake.warehouse, table, [], [RemoveSnapshotsUpdate(snapshot_ids=[first])])
    forget = SetPropertiesUpdate(updates={"write.metadata.previous-versions-max": "1"})
    for _ in range(2):  # then the current state no longer knows the first one
        managed.commit(lake.realm, lake.warehouse, table, [], [forget])

    def swept() -> tuple[str, ...]:
        later = lambda: now + timedelta(hours=5)  # noqa: E731
        return gc.sweep_warehouse(lake.stores, lake.warehouse, clock=later, min_age_s=0).removed

    def is_held(path: str) -> bool:
        return path.endswith(".parquet") or path == state

    assert not list(filter(is_held, swept()))
    queries.end(lake.realm, v1.EndQueryRequest(query_id="t"))
    assert len(list(filter(is_held, swept()))) == 2


@pytest.mark.parametrize("fails", [False, True])
def test_released_transaction_holds_no_snapshot(lake: Lake, db: AirportClient, fails: bool) -> None:
    """A transaction without `release` holds the old snapshot that it has read, because DuckDB ends no transactions."""
    table = id_of(lake, "a")
    first = managed.load(lake.realm, lake.warehouse, table).metadata.current_snapshot_id
    assert first is not None
    db.truncate("s.a")
    later = datetime.now(UTC) + timedelta(hours=1)  # then it has not been current for an hour
    realm = Realm(lake.stores, "a1", clock=lambda: later)

    def expired() -> tuple[list[int], list[str]]:
        report = expire_snapshots(realm, lake.warehouse, table, max_age_ms=0, min_count=1, dry_run=False)
        return report.expired, [each.location for each in report.files if each.location.endswith(".parquet")]

    def read(*, release: bool) -> None:
        with suppress(Conflict), db.transaction(release=release):
            db.count("s.b")
            assert db.scan("s.a", at_version=first).read_all().num_rows == 1
            assert expired() == ([], [])
            if fails:
                raise Conflict("the block fails")

    read(release=False)
    (held,) = listed(db)
    assert expired() == ([], [])
    end(db, held["query_id"])
    read(release=True)
    assert listed(db) == []
    snapshots, files = expired()
    assert (snapshots, len(files)) == ([first], 1)


def test_release_is_repeated_if_it_is_cancelled(db: AirportClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """`cancel()` is meant for statements, and can be called again while the transaction ends."""
    sent: list[str] = []
    end_transaction = AirportCalls.end_transaction

    def cancelled_once(self: AirportCalls, action: str, transaction_id: str) -> TransactionState:
        sent.append(action)
        if len(sent) == 1:
            raise Cancelled("the call was cancelled")
        return end_transaction(self, action, transaction_id)

    monkeypatch.setattr(AirportCalls, "end_transaction", cancelled_once)
    with db.transaction(release=True) as transaction:
        db.count("s.a")
        db.count("s.a")
    assert sent == ["commit_transaction"] * 2
    assert db.transaction_status(transaction.id) == "committed"
    assert listed(db) == []


def test_failed_release_does_not_fail_the_block(db: AirportClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise Unavailable("the server is gone")

    monkeypatch.setattr(AirportCalls, "end_transaction", fail)
    with db.transaction(release=True):
        db.insert("s.a", ROWS)
    assert db.count("s.a") == 2


def test_too_many_leases_do_not_stop_transactions(lake: Lake, db: AirportClient) -> None:
    now = datetime.now(UTC)
    rules = QueryRules(max_leases=1)
    for name in ("t1", "t2"):
        used = TransactionUse(name, now, now + timedelta(hours=1), [(id_of(lake, "a").id, 1)], 2)
        use_in_transaction(lake.realm, used, rules=rules)
    assert [row["query_id"] for row in listed(db)] == ["t1"]
