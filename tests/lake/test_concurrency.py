"""Concurrent writers: every accepted row is present exactly once, and every lost race is a Conflict."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

import scope
from lake.lakes import Lake
from skiway.client import AirportClient, col
from skiway.errors import Conflict

SCHEMA = pa.schema({"id": pa.int64(), "writer": pa.int64()})


def test_eight_concurrent_inserters_lose_no_row(lake: Lake) -> None:
    with lake.client() as db:
        db.create_schema("s")
        db.create_table("s.t", SCHEMA)

    def work(writer: int) -> None:
        with lake.client() as db:
            for round_ in range(5):
                ids = [writer * 1000 + round_ * 10 + place for place in range(10)]
                assert db.insert("s.t", pa.table({"id": ids, "writer": [writer] * 10})).count == 10

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(8)))
    with lake.client() as db:
        found = sorted(db.scan("s.t").read_all()["id"].to_pylist())
        assert found == sorted(w * 1000 + r * 10 + p for w in range(8) for r in range(5) for p in range(10))
        assert db.scan("skiway.snapshots").read_all().num_rows == 40


ROUNDS = 4 if scope.ALL else 2


def test_concurrent_updates_and_inserts_succeed_completely_or_conflict(lake: Lake) -> None:
    """Each writer updates its own rows whenever it wins the race; rows of other writers stay unchanged."""
    with lake.client() as db:
        db.create_schema("s")
        db.create_table("s.t", pa.schema({"writer": pa.int64(), "value": pa.int64()}))
        for writer in range(8):
            db.insert("s.t", pa.table({"writer": [writer] * 20, "value": [0] * 20}))
    done, conflicts = [0] * 8, [0] * 8
    together = threading.Barrier(8)

    def work(writer: int) -> None:
        with lake.client() as db:
            together.wait()
            for round_ in range(ROUNDS):
                try:
                    changed = db.update("s.t", {"value": round_ + 1}, where=col("writer") == writer)
                    assert changed.count == 20
                    done[writer] = round_ + 1
                except Conflict:
                    conflicts[writer] += 1
                db.insert("s.t", pa.table({"writer": [100 + writer], "value": [round_]}))

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(8)))
    with lake.client() as db:
        rows = db.scan("s.t").read_all().to_pylist()
    for writer in range(8):
        assert [row["value"] for row in rows if row["writer"] == writer] == [done[writer]] * 20
        assert sorted(row["value"] for row in rows if row["writer"] == 100 + writer) == list(range(ROUNDS))
    assert sum(done) > 0


def test_two_updates_of_the_same_row_do_not_both_succeed(lake: Lake) -> None:
    with lake.client() as one, lake.client() as other:
        one.create_schema("s")
        one.create_table("s.t", SCHEMA)
        one.insert("s.t", pa.table({"id": [1, 2], "writer": [0, 0]}))
        with one.transaction():
            assert one.count("s.t") == 2
            other.update("s.t", {"writer": 7}, where=col("id") == 1)
            with pytest.raises(Conflict, match="the table has changed"):
                one.update("s.t", {"writer": 8}, where=col("id") == 2)
        assert values(one) == {1: 7, 2: 0}


def test_concurrently_inserted_rows_survive_an_update(lake: Lake) -> None:
    with lake.client() as one, lake.client() as other:
        one.create_schema("s")
        one.create_table("s.t", SCHEMA)
        one.insert("s.t", pa.table({"id": [1], "writer": [0]}))
        with one.transaction():
            assert one.count("s.t") == 1
            other.insert("s.t", pa.table({"id": [2], "writer": [0]}))
            assert one.update("s.t", {"writer": 9}).count == 1
        assert values(one) == {1: 9, 2: 0}


def values(db: AirportClient) -> dict[int, int]:
    return {row["id"]: row["writer"] for row in db.scan("s.t").read_all().to_pylist()}
