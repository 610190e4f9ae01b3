"""`skiway.rollback_to`, `tag` and `branch`: snapshots of managed tables with names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from lake.lakes import Lake
from lake.lakes import call_function as call
from skiway.client import AirportClient
from skiway.errors import (
    AlreadyExists,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    PreconditionFailed,
    SkiwayError,
)

SCHEMA = pa.schema({"id": pa.int64()})


@pytest.fixture
def db(lake: Lake) -> Iterator[AirportClient]:
    """A client of a lake with a table of two snapshots, with one and two rows."""
    with lake.client() as client:
        client.create_schema("s")
        client.create_table("s.t", SCHEMA)
        for number in (1, 2):
            client.insert("s.t", pa.table({"id": [number]}))
        yield client


def snapshots(db: AirportClient) -> list[int]:
    """The ids of the table's snapshots, oldest first."""
    found = db.scan("skiway.snapshots").read_all().sort_by("created_at")
    return [row["snapshot_id"] for row in found.to_pylist() if row["table_name"] == "t"]


def ids(db: AirportClient, **at: Any) -> list[int]:
    return sorted(db.scan("s.t", **at).read_all()["id"].to_pylist())


def test_table_is_rolled_back_and_forward(db: AirportClient) -> None:
    first, second = snapshots(db)
    done = call(db, "rollback_to", "s.t", first)
    assert done == {"table": "managed.s.t", "name": "main", "snapshot_id": first, "previous_id": second}
    assert ids(db) == [1]
    db.insert("s.t", pa.table({"id": [7]}))
    assert ids(db) == [1, 7]
    call(db, "rollback_to", "s.t", second)
    assert ids(db) == [1, 2]


@pytest.mark.parametrize("kind", ["tag", "branch"])
def test_named_snapshots_are_read(db: AirportClient, kind: str) -> None:
    first, second = snapshots(db)
    assert call(db, kind, "s.t", "now")["snapshot_id"] == second
    done = call(db, kind, "managed.S.T", "before import", snapshot=first)
    assert (done["name"], done["snapshot_id"], done["previous_id"]) == ("before import", first, None)
    db.insert("s.t", pa.table({"id": [3]}))
    assert ids(db, at_version="before import") == [1]
    assert ids(db, at_version="now") == [1, 2]
    with pytest.raises(AlreadyExists, match="add replace => true to move it"):
        call(db, kind, "s.t", "now", snapshot=first)
    assert call(db, kind, "s.t", "now", snapshot=first, replace=True)["previous_id"] == second
    assert ids(db, at_version="now") == [1]


@pytest.mark.parametrize(
    ("function", "arguments", "error", "message"),
    [
        ("rollback_to", ("s.t", 5), NotFound, "has no snapshot 5"),
        ("rollback_to", ("s.t", None), InvalidArgument, "needs the id of a snapshot"),
        ("rollback_to", ("s.nothing", 5), NotFound, "managed.s.nothing does not exist"),
        ("rollback_to", ("t", 5), InvalidArgument, "write schema.name"),
        ("tag", ("s.t", ""), InvalidArgument, "cannot be the name of a tag"),
        ("tag", ("s.t", "main"), InvalidArgument, "cannot be the name of a tag"),
        ("branch", ("s.t", "17"), InvalidArgument, "cannot be the name of a branch"),
        ("tag", ("s.empty", "x"), PreconditionFailed, "has no snapshots yet"),
    ],
)
def test_invalid_calls_change_nothing(
    db: AirportClient, function: str, arguments: tuple[Any, ...], error: type[SkiwayError], message: str
) -> None:
    db.create_table("s.empty", SCHEMA)
    with pytest.raises(error, match=message):
        call(db, function, *arguments)
    assert ids(db) == [1, 2]


def test_readers_cannot_change_snapshots(lake: Lake, db: AirportClient) -> None:
    first, _ = snapshots(db)
    with lake.client(token="reader") as reader:
        for function, arguments in (("rollback_to", ("s.t", first)), ("tag", ("s.t", "x")), ("branch", ("s.t", "x"))):
            with pytest.raises(PermissionDenied):
                call(reader, function, *arguments)
    assert ids(db) == [1, 2]


def test_dropped_table_is_restored(lake: Lake, db: AirportClient) -> None:
    first, second = snapshots(db)
    db.drop_table("s.t")
    with lake.client(token="reader") as reader, pytest.raises(PermissionDenied):
        call(reader, "undrop", "s.t")
    assert call(db, "undrop", "s.T") == {"table": "managed.s.T", "snapshot_id": second, "snapshots": 2}
    db.reload()
    assert ids(db) == [1, 2]
    assert ids(db, at_version=first) == [1]
    with pytest.raises(NotFound, match="there is none to restore"):
        call(db, "undrop", "s.t")
