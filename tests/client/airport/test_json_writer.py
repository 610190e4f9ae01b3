"""Writing with the JSON contract from Python."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import grpc
import pyarrow as pa
import pytest

from client.recorder import Recorder, Refusal, Scripted, ordinary, recording, result
from skiway.airport import AirportService
from skiway.airport.memory import MemoryCatalog
from skiway.airport.wire.frames import parse_frame
from skiway.client import AirportClient
from skiway.errors import (
    ConstraintViolation,
    Internal,
    InvalidArgument,
    NotFound,
    NullRowId,
    PermissionDenied,
    SkiwayError,
)
from skiway.model.flight_pb2 import Action, FlightDescriptor, PutResult

COLUMNS = pa.schema([("id", pa.int64()), ("name", pa.string())])


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def db(recorder: Recorder) -> Iterator[AirportClient]:
    catalogs = [MemoryCatalog(""), MemoryCatalog("m", schemas=["s"])]
    with (
        recording(AirportService(catalogs), recorder) as location,
        AirportClient(location, "m", timeout_s=200) as client,
    ):
        client.create_table("s.t", COLUMNS, primary_key=["id"])
        recorder.calls.clear()
        yield client


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": ids, "name": [f"n{i}" for i in ids]}, COLUMNS)


def content(db: AirportClient) -> dict[str, list[Any]]:
    return db.scan("s.t").read_all().sort_by("id").to_pydict()  # type: ignore[no-any-return]


def row_ids(db: AirportClient) -> dict[int, int]:
    found = db.scan("s.t", columns=["id", "rowid"]).read_all()
    return dict(zip(found["id"].to_pylist(), found["rowid"].to_pylist(), strict=True))


@pytest.mark.parametrize("returning", [False, True])
@pytest.mark.parametrize("count", [0, 1, 5000])
def test_rows_are_inserted(db: AirportClient, count: int, *, returning: bool) -> None:
    written = db.json.insert("s.t", rows(*range(count)), returning=returning)
    assert written.count == count
    assert (written.rows is not None) == returning
    if written.rows is not None:
        assert written.rows.to_pydict() == rows(*range(count)).to_pydict()
    assert content(db) == rows(*range(count)).to_pydict()


def test_rows_are_updated_in_the_order_of_their_ids(db: AirportClient) -> None:
    db.json.insert("s.t", rows(1, 2, 3))
    ids = row_ids(db)
    written = db.json.update("s.t", [ids[3], ids[1]], rows(30, 10), returning=True)
    assert written.count == 2
    assert written.rows is not None
    assert written.rows.to_pydict() == rows(30, 10).to_pydict()
    assert content(db) == rows(2, 10, 30).to_pydict() | {"name": ["n2", "n10", "n30"]}


@pytest.mark.parametrize("returning", [False, True])
def test_rows_are_deleted(db: AirportClient, *, returning: bool) -> None:
    db.json.insert(("s", "t"), rows(1, 2, 3))
    ids = row_ids(db)
    written = db.json.delete("s.t", pa.array([ids[3], ids[1]]), returning=returning)
    assert written.count == 2
    if written.rows is not None:
        assert written.rows.to_pydict() == rows(3, 1).to_pydict()
    assert content(db) == rows(2).to_pydict()


def test_requests_match_the_contract(db: AirportClient, recorder: Recorder) -> None:
    db.json.insert("s.t", rows(1))
    db.json.delete("s.t", [0], returning=True)
    put, delete = recorder.calls
    assert (put.method, delete.name) == ("DoPut", "delete")
    command = FlightDescriptor.FromString(parse_frame(put.requests[0]).descriptor)
    named = {"catalog_name": "m", "schema_name": "s", "table_name": "t"}
    assert command.type == FlightDescriptor.CMD
    assert json.loads(command.cmd) == {**named, "operation": "insert", "returning": False}
    body = Action.FromString(delete.requests[0]).body
    assert json.loads(body) == {**named, "row_ids": [0], "returning": True}
    assert {call.header("airport-user-agent") for call in recorder.calls} == {""}
    assert {call.header("x-transaction-id") for call in recorder.calls} == {""}


def test_transaction_is_sent_in_its_own_header(db: AirportClient, recorder: Recorder) -> None:
    with contextlib.suppress(RuntimeError), db.transaction(explicit=True) as transaction:
        db.json.insert("s.t", rows(1))
        assert db.count("s.t") == 1
        raise RuntimeError
    (put,) = [call for call in recorder.calls if call.method == "DoPut"]
    assert put.header("x-transaction-id") == transaction.id
    assert db.count("s.t") == 0


@pytest.mark.parametrize(
    ("statement", "error", "message"),
    [
        (lambda j: j.insert("s.nope", rows(9)), NotFound, r"table 's\.nope' not found"),
        (lambda j: j.insert("nope.t", rows(9)), NotFound, "schema 'nope' not found"),
        (lambda j: j.insert("t", rows(9)), InvalidArgument, "names no schema"),
        (lambda j: j.insert("s.t", rows(9).select(["id"])), InvalidArgument, "table has 2 columns, input has 1"),
        (lambda j: j.insert("s.t", rows(9).rename_columns(["id", "x"])), InvalidArgument, "table has column 'name'"),
        (lambda j: j.insert("s.t", pa.table({"id": ["x"], "name": ["y"]})), InvalidArgument, "column 'id' is int64"),
        (lambda j: j.insert("s.t", rows(1)), ConstraintViolation, "Duplicate key"),
        (lambda j: j.insert("s.t", []), InvalidArgument, "rows contain no batch"),
        (lambda j: j.insert("s.t", 5), InvalidArgument, "not int"),
        (lambda j: j.update("s.t", [], rows(9)), InvalidArgument, "row_ids cannot be empty for UPDATE"),
        (lambda j: j.update("s.t", [0, 0], rows(9)), InvalidArgument, r"count \(2\) does not match input rows \(1\)"),
        (lambda j: j.update("s.t", [99], rows(9)), NotFound, "99"),
        (lambda j: j.update("s.t", [None], rows(9)), NullRowId, "null rowid"),
        (lambda j: j.delete("s.t", []), InvalidArgument, "row_ids cannot be empty for DELETE"),
        (lambda j: j.delete("s.t", [0, 99]), NotFound, "99"),
        (lambda j: j.delete("s.t", ["x"]), InvalidArgument, "row ids must be integers"),
    ],
)
def test_invalid_statements_are_rejected_and_change_nothing(
    db: AirportClient, statement: Any, error: type[SkiwayError], message: str
) -> None:
    db.json.insert("s.t", rows(1))
    with pytest.raises(error, match=message) as caught:
        statement(db.json)
    assert type(caught.value) is error
    assert content(db) == rows(1).to_pydict()


@pytest.mark.parametrize(
    "answers",
    [[], [b"\xff"], [PutResult(app_metadata=b"what").SerializeToString()]],
    ids=["nothing", "no message", "no outcome"],
)
def test_malformed_response_is_reported(answers: list[bytes]) -> None:
    def put(messages: Iterator[bytes]) -> list[bytes]:
        list(messages)
        return answers

    server = Scripted({**ordinary(COLUMNS.empty_table()), "DoPut": put, "delete": [result(b"{}")]})
    with server.serving() as location, AirportClient(location, "c", timeout_s=200) as db:
        with pytest.raises(Internal):
            db.json.insert("s.t", rows(1))
        with pytest.raises(Internal, match="sent a malformed response to delete"):
            db.json.delete("s.t", [1])
        server.answers["DoPut"] = Refusal(grpc.StatusCode.PERMISSION_DENIED, "not you")
        with pytest.raises(PermissionDenied, match="not you"):
            db.json.insert("s.t", rows(1))
