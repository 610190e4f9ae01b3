"""All reads of a transaction see one point in time, across tables and servers, and its own writes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from lake.lakes import Lake
from skiway.client import AirportClient, col
from skiway.lake.transactions import LakeTransactions
from skiway.metastore import directory, snapshots
from skiway.metastore.records import keys
from skiway.model import v1

ROWS = pa.table({"id": [1]})


@pytest.fixture
def db(lake: Lake) -> Iterator[AirportClient]:
    with lake.client() as client:
        client.create_schema("s")
        for name in ("s.a", "s.b"):
            client.create_table(name, ROWS.schema)
            client.insert(name, ROWS)
        yield client


@contextmanager
def joined(client: AirportClient, transaction_id: str) -> Iterator[AirportClient]:
    """A client that continues a transaction of another client, as DuckDB does with another server."""
    with client.transaction() as transaction:
        transaction._identifier = transaction_id
        yield client


@contextmanager
def second_server(lake: Lake) -> Iterator[AirportClient]:
    with lake.served() as location, AirportClient(location, "managed") as client:
        yield client


def counts(client: AirportClient) -> tuple[int, int]:
    return client.count("s.a"), client.count("s.b")


def test_tables_are_read_as_of_the_begin_on_every_server(lake: Lake, db: AirportClient) -> None:
    with second_server(lake) as other, db.transaction() as transaction:
        assert transaction.id
        with lake.client() as writer:
            writer.insert("s.a", ROWS)
            writer.insert("s.b", ROWS)
            assert counts(writer) == (2, 2)
            assert counts(db) == (1, 1), "although nothing was read before the writes"
            writer.truncate("s.a")
            with joined(other, transaction.id):
                assert counts(other) == (1, 1)
        assert counts(db) == (1, 1)
    assert counts(db) == (0, 2)


def test_table_functions_read_the_current_state(lake: Lake, db: AirportClient) -> None:
    """Clients send no transaction with their calls, and all connections of a process have the same session."""
    with db.transaction() as transaction, lake.client() as writer:
        assert transaction.id
        writer.insert("s.a", ROWS)
        (row,) = db.call("skiway.query", "SELECT count(*) AS n FROM s.a").read_all().to_pylist()
        assert (row["n"], db.count("s.a")) == (2, 1)


def test_own_writes_are_visible_on_every_server(lake: Lake, db: AirportClient) -> None:
    with second_server(lake) as other, lake.client() as writer, db.transaction() as transaction:
        db.insert("s.a", ROWS)
        writer.insert("s.b", ROWS)
        assert counts(db) == (2, 1)
        with joined(other, transaction.id):
            assert counts(other) == (2, 1)
            other.delete("s.a", where=col("id") == 1)
            assert counts(other) == (0, 1)
        writer.insert("s.a", ROWS)
    with second_server(lake) as third, joined(third, transaction.id):
        assert counts(third) == (0, 1), "the state after its last write"


def test_table_without_snapshots_stays_empty(lake: Lake, db: AirportClient) -> None:
    db.create_table("s.new", ROWS.schema)
    with second_server(lake) as other, db.transaction() as transaction:
        assert transaction.id
        with lake.client() as writer:
            writer.insert("s.new", ROWS)
        with joined(other, transaction.id):
            assert other.count("s.new") == 0
        assert db.count("s.new") == 0


def test_table_that_was_created_later_is_read_in_its_current_state(lake: Lake, db: AirportClient) -> None:
    with second_server(lake) as other, db.transaction() as transaction:
        db.create_table_as("s.made", ROWS)
        assert db.count("s.made") == 1
        with joined(other, transaction.id):
            assert other.count("s.made") == 1


def test_rollback_of_a_table_does_not_change_what_is_read(lake: Lake, db: AirportClient) -> None:
    first = int(db.scan("skiway.snapshots").read_all()["snapshot_id"][0].as_py())
    db.insert("s.a", ROWS)
    with second_server(lake) as other, db.transaction() as transaction:
        assert transaction.id
        with lake.client() as writer:
            writer.call("skiway.rollback_to", "s.a", first).read_all()
            assert writer.count("s.a") == 1
        with joined(other, transaction.id):
            assert other.count("s.a") == 2


def test_statement_after_a_commit_sees_it(db: AirportClient) -> None:
    for number in range(2, 12):
        db.insert("s.a", ROWS)
        assert db.count("s.a") == number


def test_expired_history_costs_nothing_to_old_tables(
    lake: Lake, db: AirportClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A managed table that was last changed some time ago is read without looking up its history."""
    looked_up: list[Any] = []
    monkeypatch.setattr(
        "skiway.metastore.resources.snapshots.current_at",
        lambda *arguments: (looked_up.append(arguments), (None, False))[1],
    )
    db.count("s.a")
    assert looked_up
    looked_up.clear()
    monkeypatch.setattr("skiway.lake.reading.state.COMMIT_TIME", timedelta(0))
    time.sleep(0.002)
    db.count("s.a")
    assert not looked_up


def test_snapshot_at_a_time_follows_the_clocks_of_the_commits(lake: Lake, db: AirportClient) -> None:
    realm = lake.realm
    ref = v1.NameRef(catalog="managed", path=["s"], name="a")
    table_id = directory.resolve_table(realm, v1.ResolveTableRequest(ref=ref)).resource_id
    seen = []
    for _ in range(3):
        db.insert("s.a", ROWS)
        time.sleep(0.002)
        seen.append((datetime.now(UTC), snapshots.current_id(realm, table_id.id)))
        time.sleep(0.002)
    for number, (moment, expected) in enumerate(seen):
        assert snapshots.current_at(realm, table_id.id, moment) == (expected, number < 2)
    assert snapshots.current_at(realm, table_id.id, datetime(2020, 1, 1, tzinfo=UTC)) == (None, True)


def test_replaced_snapshots_are_recorded_longer_than_a_transaction_lasts(lake: Lake, db: AirportClient) -> None:
    db.insert("s.a", ROWS)
    ref = v1.NameRef(catalog="managed", path=["s"], name="a")
    table = directory.resolve_table(lake.realm, v1.ResolveTableRequest(ref=ref)).resource_id
    found = list(lake.stores.pointers.scan(keys.replaced_snapshot("a1", table.id)))
    lifetime = LakeTransactions(b"key")._ttl
    assert found
    assert all(each.expires_at and each.expires_at > datetime.now(UTC) + lifetime for each in found)
