"""`skiway.query_history`: what callers ran, how long it took, what it read, and who sees that."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lake.lakes import Lake
from lake.policed_lake import CANARY, PolicedLake, policed_lake
from skiway.client import AirportClient
from skiway.client.airport.predicates import col
from skiway.errors import InvalidArgument
from skiway.foundation.doors import PAGES
from skiway.lake.history import MAX_PENDING, QueryLog
from skiway.metastore import Realm
from skiway.metastore.queries.history import (
    MAX_BYTES,
    FinishedQuery,
    TableRead,
    add_finished,
    finished,
    trim_finished,
)
from skiway.sql import QueryEngine
from skiway.sql.measures import operators
from skiway.storage import open_stores

SCHEMA = pa.schema({"id": pa.int64(), "name": pa.string()})
SQL = "SELECT name, count(*) AS n FROM s.people WHERE id < 3 GROUP BY name"


@pytest.fixture
def db(lake: Lake) -> Iterator[AirportClient]:
    with lake.client() as client:
        client.create_schema("s")
        client.create_table(("s", "people"), SCHEMA)
        for first in (1, 11):
            client.insert("s.people", pa.table({"id": [first, first + 1], "name": ["a", "b"]}, SCHEMA))
        yield client


def history(db: AirportClient, kind: str = "query") -> list[dict[str, Any]]:
    found = db.scan(("skiway", "query_history")).read_all().to_pylist()
    return [row for row in found if row["kind"] == kind]


def test_a_query_is_listed_with_what_it_read_and_where_its_time_went(db: AirportClient) -> None:
    before = datetime.now(UTC)
    db.call("skiway.query", SQL).read_all()
    (found,) = history(db)
    assert (found["text"], found["caller"], found["door"], found["outcome"]) == (SQL, "writer", "airport", "OK")
    assert before <= found["started_at"] <= datetime.now(UTC)
    assert (found["rows"], found["files_read"], found["files_pruned"]) == (2, 1, 1)
    assert found["tables"] == ["managed.s.people"]
    assert found["bytes"] > 0
    assert found["bytes_read"] > 0
    parts = [found[name] for name in ("queue_ms", "plan_ms", "run_ms", "send_ms")]
    assert all(part >= 0 for part in parts)
    assert found["run_ms"] > 0
    assert sum(parts) == pytest.approx(found["duration_ms"], rel=0.01, abs=1)
    (read,) = json.loads(found["reads"])
    assert (read["files"], read["files_read"], read["reader"]) == (2, 1, "server")
    assert "id" in read["filter"]
    plan = json.loads(found["plan"])
    assert [each["depth"] for each in plan] == sorted(each["depth"] for each in plan)
    assert plan[-1]["rows"] == 2, "the rows that the scan returned"
    assert any("group" in each["name"] for each in plan)


def test_the_plan_of_a_repeated_query_is_measured_again(db: AirportClient) -> None:
    for _ in range(2):
        db.call("skiway.query", SQL).read_all()
    assert [bool(each["plan"]) for each in history(db)] == [True, True]


def test_scans_and_writes_of_clients_are_listed(db: AirportClient) -> None:
    db.scan("s.people", columns=["id"], where=col("id") > 5).read_all()
    (scan,) = history(db, "scan")
    assert scan["text"] == 'SELECT "id" FROM "s"."people" WHERE "id" > 5'
    assert (scan["rows"], scan["files_read"], scan["files_pruned"]) == (2, 1, 1)
    inserted = history(db, "insert")
    assert [(each["text"], each["rows"]) for each in inserted] == [('INSERT INTO "s"."people"', 2)] * 2


def test_a_failed_query_is_listed_with_its_error(db: AirportClient) -> None:
    with pytest.raises(InvalidArgument):
        db.call("skiway.query", "SELECT nothing FROM s.people").read_all()
    (found,) = history(db)
    assert found["outcome"] == "MC_INVALID_ARGUMENT"
    assert "nothing" in found["error"]
    assert found["text"] == "SELECT nothing FROM s.people"


def test_calls_of_pages_system_tables_and_plans_are_not_queries(lake: Lake, db: AirportClient) -> None:
    with lake.client(engine=PAGES) as page:
        page.scan("s.people").read_all()
        page.call("skiway.query", SQL).read_all()
    with lake.client(engine="explorer") as editor:
        editor.call("skiway.query", SQL).read_all()
    db.call("skiway.explain", SQL).read_all()
    db.scan("skiway.tables").read_all()
    assert [each["door"] for each in history(db)] == ["explorer"]
    assert history(db, "scan") == []


def test_others_see_only_their_own_queries(lake: Lake, db: AirportClient) -> None:
    db.call("skiway.query", SQL).read_all()
    with lake.client(token="reader") as reader:
        reader.call("skiway.query", "SELECT 1 AS mine").read_all()
        assert [each["text"] for each in history(reader)] == ["SELECT 1 AS mine"]
        assert history(reader, "insert") == []


# --- policies ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def policed(tmp_path: Path, queries: QueryEngine) -> Iterator[PolicedLake]:
    with policed_lake(tmp_path, queries) as found:
        found.filter()
        yield found


def test_counts_and_plans_of_tables_under_policies_are_hidden(policed: PolicedLake) -> None:
    sql = f"SELECT count(*) AS n FROM s.people WHERE name LIKE '{CANARY}%'"
    with policed.lake.client(token="analyst") as analyst, policed.lake.client(token="reader") as reader:
        analyst.call("skiway.query", sql).read_all()
        analyst.scan("s.people", where=col("id") < 20).read_all()
        (own,) = history(analyst)
        (scan,) = history(analyst, "scan")
        assert history(reader) == []
    assert own["text"] == sql
    hidden = ("files_read", "files_pruned", "bytes_read", "reads", "plan")
    assert {own[name] for name in hidden} == {None}
    assert {scan[name] for name in hidden} == {None}


# --- the store --------------------------------------------------------------------------------------------------------


def query(number: int, **more: Any) -> FinishedQuery:
    given = {"query_id": f"q{number}", "caller": "ada", "door": "airport", "kind": "query", "text": "SELECT 1", **more}
    return FinishedQuery(started_at=1_700_000_000.0 + number, **given)


def test_history_is_sorted_bounded_and_expires() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    stores = open_stores("memory://", clock=lambda: now)
    realm = Realm(stores, "a1", clock=lambda: now)
    add_finished(realm, [query(number) for number in range(7)], kept=timedelta(hours=1))
    trim_finished(realm, 5)
    assert [each.query_id for each in finished(realm)] == ["q6", "q5", "q4", "q3", "q2"]
    after = datetime.fromtimestamp(1_700_000_005, UTC)
    assert [each.query_id for each in finished(realm, after=after)] == ["q6", "q5"]
    assert list(finished(Realm(stores, "a2"))) == []
    now += timedelta(hours=2)
    assert list(finished(realm)) == []


def test_large_records_are_cut() -> None:
    realm = Realm(open_stores("memory://"), "a1")
    reads = [TableRead("t", "lake.s.t", filter="x" * 10_000, columns=["ö" * 500] * 100)] * 100
    plan = [{"name": "x" * 1000}] * 100
    add_finished(realm, [query(1, text="\ud800" + "ü" * 100_000, reads=reads, operators=plan)], kept=timedelta(hours=1))
    (pointer,) = realm.stores.pointers.scan("/query-history/")
    assert len(pointer.blob_uri.encode()) <= MAX_BYTES
    (found,) = finished(realm)
    assert found.text.endswith("…")
    assert found.reads[0].name == "lake.s.t"


def test_memory_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    log = QueryLog(every_s=3600)
    realm = Realm(open_stores("memory://"), "a1")
    for number in range(MAX_PENDING + 3):
        log.put(realm, query(number))
    log.flush(now=True)
    assert len(list(finished(realm))) == MAX_PENDING
    assert "3 queries are not in the history" in caplog.text
    log.close()


@pytest.mark.parametrize(
    "text", ["", "[", "[]", '{"children": 1}', '{"children": [1]}', '{"children": [{"extra_info": []}]}', "null"]
)
def test_profiles_that_cannot_be_read_have_no_operators(text: str) -> None:
    assert operators(text) == []


def test_deep_profiles_are_bounded() -> None:
    name = "X" * 1000
    for depth in (500, 100_000):
        deep = f'{{"operator_name": "{name}", "children": [' * depth + "]}" * depth
        found = operators(deep)
        assert len(found) <= 60
        assert all(len(each["name"]) <= 200 for each in found)
