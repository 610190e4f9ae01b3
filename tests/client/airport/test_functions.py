"""Functions called from Python: scalar functions, and table functions over rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from client.recorded_catalog import RecordedCatalog, service
from client.recorder import Recorder, Scripted, ordinary, recording, result, root, table_info
from skiway.airport import CatalogBuilder, Server
from skiway.airport.wire.frames import FrameWriter
from skiway.client import AirportClient, col
from skiway.errors import Internal, InvalidArgument, NotFound, SkiwayError


@pytest.fixture(scope="module")
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture(scope="module")
def db(recorder: Recorder) -> Iterator[AirportClient]:
    with (
        recording(service(RecordedCatalog()), recorder) as location,
        AirportClient(location, "demo", token="t", timeout_s=200) as client,
    ):
        yield client


def test_scalar_function_returns_a_value_for_each_row(db: AirportClient) -> None:
    assert db.call_scalar("utils.test_uppercase", pa.array(["a", None, "c"])).to_pylist() == ["A", None, "C"]
    batch = pa.record_batch({"x": pa.array([1, 2], pa.int8()), "y": [3, 4]})
    assert db.call_scalar("utils.test_add", batch).to_pylist() == [4, 6]
    assert db.call_scalar(("utils", "test_add"), pa.chunked_array([[1], [2]]), pa.array([3, 4])).to_pylist() == [4, 6]


@pytest.mark.parametrize("count", [0, 1, 2048, 2049, 5000])
def test_scalar_function_over_any_number_of_rows(db: AirportClient, count: int) -> None:
    numbers = pa.array(range(count), pa.int64())
    result = db.call_scalar("utils.test_add", numbers, numbers)
    assert result.to_pylist() == [2 * i for i in range(count)]
    assert result.type == pa.int64()
    assert all(len(chunk) <= 2048 for chunk in result.chunks)


def test_function_of_any_receives_the_callers_type(db: AirportClient) -> None:
    assert db.call_scalar("utils.test_any_type", pa.array([1.5, None])).to_pylist() == ["1.5", None]
    assert db.call_scalar("utils.test_any_type", pa.array([7], pa.int8())).to_pylist() == ["7"]


def test_function_without_arguments_is_called_for_a_number_of_rows(db: AirportClient) -> None:
    assert len(db.call_scalar("utils.test_time")) == 1
    assert len(db.call_scalar("utils.test_time", rows=3000)) == 3000


def test_overload_is_selected_by_argument_types() -> None:
    builder = CatalogBuilder("demo")
    schema = builder.schema("s")

    @schema.scalar_function(name="kind")
    def of_text(value: pa.StringArray) -> pa.StringArray:
        return pa.repeat("text", len(value))

    @schema.scalar_function(name="kind")
    def of_numbers(value: pa.Int64Array) -> pa.StringArray:
        return pa.repeat("number", len(value))

    with Server(builder.build(), port=0) as server, AirportClient(server.location, "demo") as client:
        assert client.call_scalar("s.kind", pa.array([1])).to_pylist() == ["number"]
        assert client.call_scalar("s.kind", pa.array(["x"])).to_pylist() == ["text"]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda db: db.call_scalar("utils.nope"), NotFound, r"scalar function utils\.nope not found"),
        (
            lambda db: db.call_scalar("utils.test_add", pa.array([1])),
            InvalidArgument,
            r"does not accept 1 arguments; overloads: test_add\(a, b\)",
        ),
        (
            lambda db: db.call_scalar("utils.test_add", pa.array(["x"]), pa.array([1])),
            InvalidArgument,
            "cannot cast string to int64 for parameter a",
        ),
        (lambda db: db.call_scalar("utils.test_add", 1, 2), InvalidArgument, "argument a must be an array, not a int"),
        (lambda db: db.call_scalar("utils.test_add", pa.array([1, 2]), pa.array([1])), InvalidArgument, "differ in length: 2, 1 rows"),
        (lambda db: db.call("utils.test_echo", "x", rows=pa.table({"a": [1]})), InvalidArgument, "does not accept 1 arguments over rows"),
        (lambda db: db.call("utils.test_table_in_out_echo"), InvalidArgument, "needs input rows"),
        (lambda db: db.call("utils.test_table_in_out_echo", rows=[]), InvalidArgument, "contain no batch"),
        (lambda db: db.call("utils.test_table_in_out_echo", rows=5), InvalidArgument, "not int"),
        (lambda db: db.call("utils.test_table_in_out_echo", rows=pa.table({"a": [1]}), columns=["b"]), NotFound, "column 'b' not found"),
    ],
)  # fmt: skip
def test_invalid_calls_are_rejected(db: AirportClient, call: Any, error: type[SkiwayError], message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        call(db)
    assert type(caught.value) is error


@pytest.mark.parametrize("count", [0, 1, 2048, 2049, 4096, 5000])
def test_function_over_rows_returns_rows(db: AirportClient, count: int) -> None:
    given = pa.table({"n": pa.array(range(count), pa.int64()), "t": [str(i) for i in range(count)]})
    assert db.call("utils.test_table_in_out_echo", rows=given).read_all().to_pydict() == given.to_pydict()


def test_function_over_rows_may_return_more_rows_and_a_final_batch(db: AirportClient) -> None:
    rows = db.call("utils.test_table_in_out", "p", rows=pa.table({"x": ["a", "b"]}))
    assert rows.read_all().to_pydict() == {"input": ["p", "p", "last"], "x": ["a", "b", "row"]}
    huge = db.call("utils.test_table_in_out_huge", rows=pa.table({"x": [1]})).read_all()
    assert huge.num_rows == 13 * 5000
    assert pc.unique(huge["value"]).to_pylist() == [*range(10), -1, -2, -3]


def test_columns_and_predicate_apply_to_the_result(db: AirportClient) -> None:
    given = pa.table({"n": range(10), "t": [str(i) for i in range(10)]})
    rows = db.call("utils.test_table_in_out_echo", rows=given, columns=["t"], where=col("n") >= 8)
    assert rows.schema.names == ["t"]
    assert rows.read_all().to_pydict() == {"t": ["8", "9"]}


def test_rows_are_sent_as_the_output_is_read(db: AirportClient) -> None:
    read = []

    def source() -> Iterator[pa.RecordBatch]:
        for i in range(5):
            read.append(i)
            yield pa.record_batch({"n": [i]})

    with db.call("utils.test_table_in_out_echo", rows=source()) as rows:
        assert read == [0], "to learn the columns"
        assert rows.read_next_batch()["n"].to_pylist() == [0]
        assert rows.read_next_batch()["n"].to_pylist() == [1]
        assert read == [0, 1]


def test_exception_in_a_function_keeps_its_class_and_the_server_running() -> None:
    builder = CatalogBuilder("demo")
    schema = builder.schema("s")

    @schema.scalar_function
    def picky(value: pa.Int64Array) -> pa.Int64Array:
        if pc.any(pc.less(value, 0)).as_py():
            raise InvalidArgument("no number below zero, please")
        if pc.any(pc.equal(value, 7)).as_py():
            raise RuntimeError("seven")
        return value

    with Server(builder.build(), port=0) as server, AirportClient(server.location, "demo", timeout_s=200) as client:
        with pytest.raises(InvalidArgument, match="no number below zero"):
            client.call_scalar("s.picky", pa.array([*range(10_000, 15_000), -1]))
        with pytest.raises(Internal, match="internal error; see the server log, correlation id") as hidden:
            client.call_scalar("s.picky", pa.array([7]))
        assert "seven" not in str(hidden.value), "the text of a foreign exception stays on the server"
        assert client.call_scalar("s.picky", pa.array([1])).to_pylist() == [1]


def test_batch_without_a_chunk_marker_is_malformed() -> None:
    batch = pa.record_batch({"a": [1]})
    parameters = pa.schema([pa.field("rows", pa.null(), metadata={"is_table_type": "1"})]).serialize().to_pybytes()
    function = table_info(batch.schema, "f", type="table_function", input_schema=parameters)

    def exchange(messages: Iterator[bytes]) -> Iterator[bytes]:
        writer = FrameWriter(batch.schema)
        yield writer.begin()
        yield from writer.batch(batch, app_metadata=b"chunk_perhaps")

    answers = {
        **ordinary(pa.table({"a": [1]})),
        "list_schemas": [result(root(function))],
        "table_function_flight_info": [result(function)],
        "DoExchange": exchange,
    }
    with (
        Scripted(answers).serving() as location,
        AirportClient(location, "c", timeout_s=200) as client,
        pytest.raises(Internal, match="marked b'chunk_perhaps'"),
    ):
        client.call("s.f", rows=batch).read_all()
