"""CREATE TABLE … AS of DuckDB is CREATE TABLE and then INSERT, in one transaction: if the INSERT fails, the table goes too."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from lake.lakes import Lake
from skiway.client import AirportClient
from skiway.errors import AlreadyExists, InvalidArgument, PreconditionFailed, SkiwayError, Unavailable

COLUMNS = pa.schema({"id": pa.int64(), "day": pa.date32()})
INFINITE = pa.table({"id": [1], "day": pa.array([2**31 - 1], pa.int32()).view(pa.date32())})
GOOD = pa.table({"id": [1], "day": pa.array([5], pa.int32()).view(pa.date32())})


@pytest.fixture
def db(lake: Lake) -> Iterator[AirportClient]:
    with lake.client() as db:
        db.create_schema("s")
        yield db


def tables(lake: Lake) -> list[str]:
    with lake.client() as fresh:
        return [table.name for schema in fresh.schemas() if schema.name == "s" for table in schema.tables]


def test_failed_insert_of_the_same_transaction_drops_the_table(lake: Lake, db: AirportClient) -> None:
    with db.transaction():
        db.create_table("s.t", COLUMNS)
        with pytest.raises(InvalidArgument, match="infinite date"):
            db.insert("s.t", INFINITE)
    assert tables(lake) == []
    with db.transaction():  # and the statement can be repeated
        db.create_table("s.t", COLUMNS, on_conflict="error")
        db.insert("s.t", GOOD)
    assert tables(lake) == ["t"]
    with lake.client() as other:
        assert other.count("s.t") == 1


def test_insert_that_cannot_start_drops_the_table(
    lake: Lake, db: AirportClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise Unavailable("the warehouse does not respond")

    with db.transaction():
        db.create_table("s.t", COLUMNS)
        with monkeypatch.context() as patched:
            patched.setattr("skiway.lake.writing.writable.Target.of", fail)
            with pytest.raises(Unavailable):
                db.insert("s.t", GOOD)
    assert tables(lake) == []


def test_table_that_somebody_altered_stays(lake: Lake, db: AirportClient) -> None:
    with db.transaction():
        db.create_table("s.t", COLUMNS)
        with lake.client() as other:
            other.remove_column("s.t", "day")
        with pytest.raises(PreconditionFailed, match="'day' was dropped"):
            db.insert("s.t", GOOD)
    assert tables(lake) == ["t"]


def test_insert_of_a_later_transaction_leaves_the_empty_table(lake: Lake, db: AirportClient) -> None:
    db.create_table("s.t", COLUMNS)
    with pytest.raises(InvalidArgument, match="infinite date"):
        db.insert("s.t", INFINITE)
    assert tables(lake) == ["t"]


def test_table_that_has_rows_stays(lake: Lake, db: AirportClient) -> None:
    with db.transaction():
        db.create_table("s.t", COLUMNS)
        db.insert("s.t", GOOD)
        with pytest.raises(InvalidArgument, match="infinite date"):
            db.insert("s.t", INFINITE)
    assert tables(lake) == ["t"]
    with lake.client() as other:
        assert other.count("s.t") == 1


def test_rows_of_another_client_keep_the_table(lake: Lake, db: AirportClient) -> None:
    with db.transaction():
        db.create_table("s.t", COLUMNS)
        with lake.client() as other:
            other.insert("s.t", GOOD)
        with pytest.raises(InvalidArgument, match="infinite date"):
            db.insert("s.t", INFINITE)
    assert tables(lake) == ["t"]


def test_failed_insert_of_another_client_leaves_the_table(lake: Lake, db: AirportClient) -> None:
    with lake.client() as other, other.transaction():
        other.scan("skiway.tables").read_all()  # its transaction begins before the table exists
        with db.transaction():
            db.create_table("s.t", COLUMNS)
        other.reload()
        with pytest.raises(InvalidArgument, match="infinite date"):
            other.insert("s.t", INFINITE)
    assert tables(lake) == ["t"]


def test_existing_table_stays_if_create_fails(lake: Lake, db: AirportClient) -> None:
    db.create_table("s.t", COLUMNS)
    with db.transaction(), pytest.raises(AlreadyExists):
        db.create_table("s.t", COLUMNS)
    assert tables(lake) == ["t"]


def test_error_of_the_statement_is_reported_if_the_table_cannot_be_dropped(
    lake: Lake, db: AirportClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise SkiwayError("the store does not respond")

    monkeypatch.setattr("skiway.metastore.managed.drop_unused", fail)
    with db.transaction():
        db.create_table("s.t", COLUMNS)
        with pytest.raises(InvalidArgument, match="infinite date"):
            db.insert("s.t", INFINITE)
    assert tables(lake) == ["t"]
