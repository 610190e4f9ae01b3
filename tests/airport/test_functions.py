"""Functions over a real socket: scalar functions, table functions, and table functions over rows in lock-step."""

from __future__ import annotations

import threading

import grpc
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from airport.lockstep import Exchange
from airport.raw import Raw, code_of, descriptor
from skiway.airport import CatalogBuilder, InOutCall, Parameter, ScanOptions, Server, TableInOutFunction
from skiway.airport.wire import protocol
from skiway.airport.wire.protocol import InOutParameters, TableFunctionRequest, encode, packed
from skiway.errors import InvalidArgument
from skiway.model import flight_pb2 as flight

Code = grpc.StatusCode


def stream(**values: object) -> bytes:
    batch = pa.record_batch({name: pa.array([value]) for name, value in values.items()}) if values else None
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema if batch else pa.schema([])) as writer:
        if batch:
            writer.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


class Echo(InOutCall):
    def __init__(self, sizes: list[int], closed: threading.Event) -> None:
        self._sizes, self._closed, self._seen = sizes, closed, 0

    def process(self, rows: pa.RecordBatch):
        self._seen += rows.num_rows
        for size in self._sizes:
            yield pa.record_batch({"n": pa.array(range(size), pa.int64())})

    def finish(self):
        return [pa.record_batch({"n": [self._seen]})]

    def close(self) -> None:
        self._closed.set()


class Sizes(TableInOutFunction):
    """For each input batch, output batches of the requested sizes; at the end, the number of rows seen."""

    name = "sizes"
    parameters = (Parameter("sizes", pa.list_(pa.int64())),)
    closed = threading.Event()

    def schema_for(self, arguments, rows):
        if rows.names != ["x"]:
            raise InvalidArgument("give me a column x")
        return pa.schema({"n": pa.int64()})

    def open(self, arguments, rows):
        self.closed.clear()
        return Echo(arguments["sizes"].as_py(), self.closed)


@pytest.fixture(scope="module")
def server():
    builder = CatalogBuilder("demo")
    s = builder.schema("s")

    @s.scalar_function
    def shout(text: pa.StringArray) -> pa.StringArray:
        return pc.utf8_upper(text)

    @s.scalar_function(name="add")
    def add_ints(a: pa.Int64Array, b: pa.Int64Array) -> pa.Int64Array:
        return pc.add(a, b)

    @s.scalar_function(name="add")
    def add_texts(a: pa.StringArray, b: pa.StringArray) -> pa.StringArray:
        return pc.binary_join_element_wise(a, b, "")

    @s.scalar_function
    def type_name(value: pa.Array) -> pa.StringArray:
        return pa.array([str(value.type)] * len(value))

    @s.scalar_function(volatility="volatile")
    def answer() -> pa.Int64Array:
        return 42

    @s.scalar_function(returns=pa.int64())
    def chunked(x: pa.Int64Array):
        return pa.chunked_array([x.slice(0, 1), x.slice(1)])

    @s.scalar_function(returns=pa.int64())
    def too_few(x: pa.Int64Array):
        return x.slice(1)

    @s.scalar_function(returns=pa.int64())
    def broken(x: pa.Int64Array):
        raise ValueError("seven is not allowed")

    @s.scalar_function(returns=pa.int64())
    def refused(x: pa.Int64Array):
        raise InvalidArgument("seven is refused")

    @s.table_function(schema=pa.schema({"n": pa.int64()}))
    def numbers(upto: pa.Int64Scalar):
        yield pa.record_batch({"n": range(upto.as_py())})

    def shape(width: int, *, name: str = "c") -> pa.Schema:
        return pa.schema({f"{name}{i}": pa.int64() for i in range(width)})

    @s.table_function(schema=shape)
    def grid(width: int, *, name: str = "c", scan: ScanOptions):
        return pa.table({f: [len(scan.columns or ())] for f in shape(width, name=name).names})

    s.table_function(Sizes())
    with Server(builder.build(), port=0) as running:
        yield running


@pytest.fixture
def raw(server: Server):
    with Raw(server.location) as client:
        yield client


def call(raw: Raw, name: str, signature: str, *batches: pa.RecordBatch) -> list[list[object]]:
    exchange = Exchange(
        raw, ("demo", "s", name, "scalar_function", signature), batches[0].schema, "scalar_function", returning=True
    )
    answers = [exchange.ask(batch) for batch in batches]
    exchange.end()
    assert all(answer.schema.names == ["result"] for answer in answers)
    return [answer.column(0).to_pylist() for answer in answers]


def test_scalar_function_returns_a_batch_for_each_batch(raw: Raw) -> None:
    batches = [pa.record_batch({"text": ["ada", None]}), pa.record_batch({"text": ["grace"]})]
    assert call(raw, "shout", "string", *batches) == [["ADA", None], ["GRACE"]]


@pytest.mark.parametrize("rows", [1, 2047, 2048])
def test_full_vectors(raw: Raw, rows: int) -> None:
    batch = pa.record_batch({"a": range(rows), "b": range(rows)})
    assert call(raw, "add", "int64, int64", *[batch] * 3) == [[2 * i for i in range(rows)]] * 3


def test_no_rows_at_all(raw: Raw) -> None:
    path = ("demo", "s", "shout", "scalar_function", "string")
    exchange = Exchange(raw, path, pa.schema({"text": pa.string()}), "scalar_function", returning=True)
    assert exchange.schema == pa.schema({"result": pa.string()})
    exchange.end()


def test_overload_is_selected_by_argument_types(raw: Raw) -> None:
    assert call(raw, "add", "int64, int64", pa.record_batch({"a": [1], "b": [2]})) == [[3]]
    assert call(raw, "add", "string, string", pa.record_batch({"a": ["x"], "b": ["y"]})) == [["xy"]]


def test_any_accepts_every_type(raw: Raw) -> None:
    assert call(raw, "type_name", "ANY", pa.record_batch({"value": pa.array([1], pa.int32())})) == [["int32"]]
    assert call(raw, "type_name", "ANY", pa.record_batch({"value": [["a"]]})) == [["list<item: string>"]]


def test_no_arguments(raw: Raw) -> None:
    rows = pa.RecordBatch.from_struct_array(pa.array([{}] * 3, pa.struct([])))
    assert call(raw, "answer", "", rows) == [[42, 42, 42]]


def test_chunked_result_is_sent_as_one_batch(raw: Raw) -> None:
    assert call(raw, "chunked", "int64", pa.record_batch({"x": [1, 2, 3]})) == [[1, 2, 3]]


def test_arguments_of_a_similar_type_are_cast(raw: Raw) -> None:
    assert call(raw, "add", "int64, int64", pa.record_batch({"a": pa.array([1], pa.int8()), "b": [2]})) == [[3]]


@pytest.mark.parametrize(
    ("name", "code", "message"),
    [
        ("too_few", Code.INTERNAL, "too_few must return one value per row: it got 2 rows and returned 1"),
        ("broken", Code.INTERNAL, "internal error; see the server log, correlation id "),
        ("refused", Code.INVALID_ARGUMENT, "seven is refused"),
    ],
)
def test_failing_function_is_an_error_not_a_hang(raw: Raw, name: str, code: Code, message: str) -> None:
    with pytest.raises(grpc.RpcError) as failed:
        call(raw, name, "int64", pa.record_batch({"x": [7, 7]}))
    assert failed.value.code() is code
    correlation_id = dict(failed.value.trailing_metadata() or ())[protocol.CORRELATION_ID]
    assert failed.value.details() == (message + correlation_id if name == "broken" else message)


def test_too_many_arguments(raw: Raw) -> None:
    with pytest.raises(grpc.RpcError) as failed:
        call(raw, "shout", "string", pa.record_batch({"a": ["x"], "b": ["y"]}))
    assert failed.value.code() is Code.INVALID_ARGUMENT


# -- table functions --------------------------------------------------------------------------------------------------


def bind(raw: Raw, name: str, signature: str, parameters: bytes, rows: pa.Schema | None = None) -> flight.FlightInfo:
    path = descriptor("demo", "s", name, "table_function", signature)
    table = rows.serialize().to_pybytes() if rows is not None else b""
    request = TableFunctionRequest(packed(path), packed(parameters), packed(table))
    (body,) = raw.action("table_function_flight_info", encode(request))
    info = flight.FlightInfo.FromString(body)
    assert info.flight_descriptor.SerializeToString() == path
    return info


def test_a_table_function_is_bound_and_scanned(raw: Raw) -> None:
    parameters = stream(upto=3)
    info = bind(raw, "numbers", "int64", parameters)
    assert pa.ipc.read_schema(pa.py_buffer(info.schema)) == pa.schema({"n": pa.int64()})
    path = ("demo", "s", "numbers", "table_function", "int64")
    scanned = raw.scan(*path, columns=[0], table_function_parameters=packed(parameters))
    assert scanned.to_pydict() == {"n": [0, 1, 2]}


GRID = "int64, name => string"


def test_schema_may_depend_on_parameters_and_named_parameters_have_defaults(raw: Raw) -> None:
    path = ("demo", "s", "grid", "table_function", GRID)
    for parameters, names in ((stream(width=2), ["c0", "c1"]), (stream(width=1, name="x"), ["x0"])):
        info = bind(raw, "grid", GRID, parameters)
        assert pa.ipc.read_schema(pa.py_buffer(info.schema)).names == names
        assert raw.scan(*path, table_function_parameters=packed(parameters)).schema.names == names
    null_name = stream(width=2, name=None)
    assert pa.ipc.read_schema(pa.py_buffer(bind(raw, "grid", GRID, null_name).schema)).names == ["c0", "c1"]


def test_requested_columns_reach_the_function(raw: Raw) -> None:
    path = ("demo", "s", "grid", "table_function", GRID)
    scanned = raw.scan(*path, columns=[1], table_function_parameters=packed(stream(width=3)))
    assert scanned.to_pylist() == [{"c0": None, "c1": 1, "c2": None}]


def test_mismatched_arguments_are_rejected(raw: Raw) -> None:
    code, message = code_of(lambda: bind(raw, "numbers", "int64", stream(upto="many")))
    assert code is Code.INVALID_ARGUMENT
    assert "upto" in message
    assert code_of(lambda: bind(raw, "numbers", "int64", b"not arrow"))[0] is Code.INVALID_ARGUMENT


# -- table functions over rows ----------------------------------------------------------------------------------------


def over_rows(raw: Raw, sizes: list[int]) -> Exchange:
    opening = encode(InOutParameters(parameters=packed(stream(sizes=sizes))))
    path = ("demo", "s", "sizes", "table_function", "list<item: int64>")
    return Exchange(raw, path, pa.schema({"x": pa.int64()}), "table_function_in_out", returning=True, opening=opening)


@pytest.mark.parametrize("sizes", [[], [0], [1], [2047], [2048], [4096], [2048, 2048], [1, 0, 5000]])
def test_outputs_of_any_size_are_marked_at_the_end_of_each_chunk(raw: Raw, sizes: list[int]) -> None:
    info = bind(raw, "sizes", "list<item: int64>", stream(sizes=sizes or [0]), pa.schema({"x": pa.int64()}))
    assert pa.ipc.read_schema(pa.py_buffer(info.schema)) == pa.schema({"n": pa.int64()})
    exchange = over_rows(raw, sizes)
    for _ in range(3):
        exchange.send(pa.record_batch({"x": range(100)}))
        answers = list(exchange.chunks())
        assert sum(answer.num_rows for answer in answers) == sum(sizes)
        assert max(answer.num_rows for answer in answers) <= 2048
    exchange.half_close()
    assert [answer.to_pydict() for answer in exchange.chunks() if answer.num_rows] == [{"n": [300]}]
    assert list(exchange.call) == []
    assert Sizes.closed.wait(200)


def test_function_finishes_without_input(raw: Raw) -> None:
    exchange = over_rows(raw, [1])
    exchange.half_close()
    assert [answer.to_pydict() for answer in exchange.chunks() if answer.num_rows] == [{"n": [0]}]


def test_call_is_closed_when_the_client_disconnects(raw: Raw) -> None:
    exchange = over_rows(raw, [1])
    exchange.send(pa.record_batch({"x": [1]}))
    list(exchange.chunks())
    exchange.call.cancel()
    assert Sizes.closed.wait(200)


def test_function_may_reject_its_input_rows(raw: Raw) -> None:
    code, message = code_of(
        lambda: bind(raw, "sizes", "list<item: int64>", stream(sizes=[1]), pa.schema({"y": pa.int64()}))
    )
    assert (code, message) == (Code.INVALID_ARGUMENT, "give me a column x")


def test_two_kinds_of_table_functions_are_distinguished(raw: Raw) -> None:
    rows = ("demo", "s", "sizes", "table_function", "list<item: int64>")
    assert (
        code_of(lambda: raw.endpoints(*rows, table_function_parameters=packed(stream(sizes=[1]))))[0]
        is Code.UNIMPLEMENTED
    )
    path = ("demo", "s", "numbers", "table_function", "int64")
    with pytest.raises(grpc.RpcError) as failed:
        Exchange(raw, path, pa.schema({"x": pa.int64()}), "table_function_in_out", returning=True)
    assert failed.value.code() is Code.INVALID_ARGUMENT
