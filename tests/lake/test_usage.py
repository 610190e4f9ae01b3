"""`skiway.usage` and `skiway.lineage`: who reads and writes tables, and from which others they are written."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

from lake.lakes import Lake
from skiway.client import AirportClient
from skiway.lake.context import UsageLog
from skiway.metastore import Realm
from skiway.metastore.usage import MAX_NAMES, Usage, add_usage, usage_of
from skiway.storage import open_stores

SCHEMA = pa.schema({"id": pa.int64(), "name": pa.string()})
ROWS = pa.table({"id": [1, 2], "name": ["a", "b"]}, SCHEMA)
DAY = dt.datetime.now(dt.UTC).date()


@pytest.fixture
def db(lake: Lake) -> Iterator[AirportClient]:
    with lake.client() as client:
        client.create_schema("s")
        for name in ("people", "copies"):
            client.create_table(("s", name), SCHEMA)
        client.insert("s.people", ROWS)
        yield client


def rows(db: AirportClient, name: str) -> list[dict[str, Any]]:
    return list(db.scan(("skiway", name)).read_all().to_pylist())


def test_reads_and_writes_are_counted_by_day(lake: Lake, db: AirportClient) -> None:
    db.scan("s.people", columns=["id"]).read_all()
    with lake.client(token="reader") as reader:
        reader.scan("s.people", columns=["name", "id"]).read_all()
        (seen,) = rows(reader, "usage")
    (used,) = rows(db, "usage")
    assert (used["schema_name"], used["table_name"], used["reads"], used["writes"]) == ("s", "people", 2, 1)
    assert used["day"] == dt.datetime.now(dt.UTC).date()
    assert used["bytes_read"] > 0
    assert dict(used["columns"]) == {"id": 2, "name": 1}
    assert dict(used["callers"]) == {"writer": 2, "reader": 1}
    assert (seen["callers"], seen["reads"]) == (None, 2)


def test_tables_read_in_the_transaction_of_a_write_are_its_sources(lake: Lake, db: AirportClient) -> None:
    with db.transaction():
        db.insert("s.copies", db.scan("s.people").read_all())
    (found,) = rows(db, "lineage")
    place = [found[name] for name in ("schema_name", "table_name", "source_catalog", "source_schema", "source_table")]
    assert place == ["s", "copies", "managed", "s", "people"]
    assert found["writes"] == 1
    assert found["first_day"] == found["last_day"]
    db.scan("s.copies").read_all()
    db.insert("s.people", ROWS)
    assert len(rows(db, "lineage")) == 1, "another transaction"
    db.drop_table("s.people")
    assert rows(db, "lineage") == []


def test_merge_has_its_source_as_lineage(db: AirportClient) -> None:
    db.call("skiway.merge", "s.copies", "SELECT * FROM s.people", "target.id = source.id").read_all()
    assert [(row["table_name"], row["source_table"]) for row in rows(db, "lineage")] == [("copies", "people")]


def test_usage_of_tables_that_the_caller_may_not_see_is_hidden(lake: Lake, db: AirportClient) -> None:
    with lake.client(token="nothing") as other:
        assert rows(other, "usage") == []
        assert rows(other, "lineage") == []
    assert rows(db, "usage")


def test_records_of_several_servers_are_added() -> None:
    with open_stores("memory://") as stores:
        realm = Realm(stores, "a1")
        one = Usage(1, 2, 3, Counter(a=1), Counter(ada=1), Counter(t=1))
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda _: add_usage(realm, "t1", DAY, one), range(40)))
        add_usage(realm, "t1", DAY + dt.timedelta(1), Usage(reads=1))
        first, second = usage_of(realm, "t1")
        assert first == (DAY, Usage(40, 80, 120, Counter(a=40), Counter(ada=40), Counter(t=40)))
        assert second[1].reads == 1
        assert list(usage_of(Realm(stores, "a2"), "t1")) == []


def test_wide_tables_have_bounded_records() -> None:
    with open_stores("memory://") as stores:
        realm = Realm(stores, "a1")
        counts = Counter({f"c{number}": number for number in range(1, MAX_NAMES + 100)})
        add_usage(realm, "t1", DAY, Usage(columns=counts))
        ((_, found),) = usage_of(realm, "t1")
        assert len(found.columns) == MAX_NAMES
        assert found.columns[f"c{MAX_NAMES + 99}"] == MAX_NAMES + 99


def test_log_stores_in_the_background_and_when_it_closes() -> None:
    with open_stores("memory://") as stores:
        realm = Realm(stores, "a1")
        log = UsageLog(every_s=0.01)
        log.written(realm, "t1", caller="ada", unit="")
        deadline = dt.datetime.now() + dt.timedelta(seconds=10)
        while not list(usage_of(realm, "t1")):
            assert dt.datetime.now() < deadline
        log.read(realm, "t1", caller="ada", unit="", columns=["id"], size_bytes=7)
        log.close()
        ((_, found),) = usage_of(realm, "t1")
        assert (found.reads, found.writes, found.bytes_read) == (1, 1, 7)


def test_commit_of_a_transaction_is_a_write_of_each_table_once(db: AirportClient) -> None:
    with db.transaction() as transaction:
        for name in ("s.people", "s.people", "s.copies"):
            transaction.insert(name, ROWS)
        before = {row["table_name"]: row["writes"] for row in rows(db, "usage")}
    after = {row["table_name"]: row["writes"] for row in rows(db, "usage")}
    assert (before, after) == ({"people": 1}, {"people": 2, "copies": 1})
