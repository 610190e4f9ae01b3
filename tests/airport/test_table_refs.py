"""Tables that DuckDB reads itself: the calls, their arguments, and forbidden functions."""

from __future__ import annotations

import base64
import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import grpc
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import shapely

from airport.raw import Raw, code_of
from skiway.airport import (
    CatalogBuilder,
    DynamicSchemaTableRef,
    FunctionCall,
    FunctionCallRequest,
    SchemaRequest,
    Server,
    TableRef,
)
from skiway.airport.wire.duckdb_sql import extension_of
from skiway.airport.wire.protocol import FlightInfoRequest, FunctionCallUri, decode, encode, packed
from skiway.errors import InvalidArgument, PermissionDenied
from skiway.model import flight_pb2 as flight

PREFIX = "data:application/x-msgpack-duckdb-function-call;base64,"
PEOPLE = pa.table({"id": [1, 2, 3], "name": ["Ada", "Grace", "Edsger"]})


def opened(uri: str) -> tuple[str, pa.RecordBatch]:
    assert uri.startswith(PREFIX)
    call = decode(base64.b64decode(uri.removeprefix(PREFIX), validate=True), FunctionCallUri, "call")
    with pa.ipc.open_stream(call.data) as reader:
        (batch,) = list(reader)
    assert batch.num_rows == 1
    return call.function_name, batch


def run_by_duckdb(uri: str) -> list[tuple[Any, ...]]:
    """Run the location as DuckDB's client does: call the function with arguments of their Arrow types."""
    name, batch = opened(uri)
    values = {column: batch.column(column)[0].as_py() for column in batch.schema.names}
    positional = [f"${column}" for column in values if column.startswith("arg_")]
    named = [f"{column} := ${column}" for column in values if not column.startswith("arg_")]
    return duckdb.execute(f"FROM {name}({', '.join(positional + named)})", values).fetchall()


def one_ref(calls: Any, schema: pa.Schema = PEOPLE.schema, **options: Any) -> Server:
    builder = CatalogBuilder("demo")
    builder.schema("s").table_ref(schema=schema, name="t")(calls)
    return Server(builder.build(), port=0, **options)


def locations(raw: Raw, **parameters: Any) -> list[str]:
    return [place.uri for endpoint in raw.endpoints("demo", "s", "t", **parameters) for place in endpoint.location]


def test_parquet_and_csv_are_read_by_duckdb_itself(tmp_path: Path) -> None:
    pq.write_table(PEOPLE.slice(0, 2), tmp_path / "a.parquet")
    pq.write_table(PEOPLE.slice(2), tmp_path / "b.parquet")
    pa.csv.write_csv(PEOPLE, tmp_path / "c.csv")
    files = [str(tmp_path / "a.parquet"), str(tmp_path / "b.parquet")]
    rows = [tuple(row.values()) for row in PEOPLE.to_pylist()]
    with (
        one_ref(lambda request: FunctionCall("read_parquet", files, union_by_name=True)) as server,
        Raw(server.location) as raw,
    ):
        (uri,) = locations(raw)
        assert run_by_duckdb(uri) == rows
    with (
        one_ref(lambda request: FunctionCall("read_csv", str(tmp_path / "c.csv"), header=True)) as server,
        Raw(server.location) as raw,
    ):
        (uri,) = locations(raw)
        assert run_by_duckdb(uri) == rows
    with (
        one_ref(lambda request: [FunctionCall("read_parquet", file) for file in files]) as server,
        Raw(server.location) as raw,
    ):
        assert sorted(row for uri in locations(raw) for row in run_by_duckdb(uri)) == rows


MAP = pa.map_(pa.string(), pa.int64())
ARGUMENTS: dict[str, tuple[Any, pa.DataType]] = {
    "text": ("a", pa.string()),
    "bool": (True, pa.bool_()),
    "int": (7, pa.int64()),
    "negative int": (-(2**63), pa.int64()),
    "int beyond 63 bits": (2**64 - 1, pa.uint64()),
    "float": (0.5, pa.float64()),
    "datetime": (dt.datetime(2025, 1, 2, 3, 4, 5), pa.timestamp("us")),
    "datetime with zone": (dt.datetime(2025, 1, 2, tzinfo=dt.UTC), pa.timestamp("us", tz="UTC")),
    "date": (dt.date(2025, 1, 2), pa.date32()),
    "bytes": (b"\x00\xff", pa.binary()),
    "list": (["a", "b"], pa.list_(pa.string())),
    "list of ints": ([1, 2], pa.list_(pa.int64())),
    "nested list": ([[1], [2, 3]], pa.list_(pa.list_(pa.int64()))),
    "dict": ({"a": 1}, pa.struct({"a": pa.int64()})),
    "dict of different types": ({"a": "x", "b": 1.5}, pa.struct({"a": pa.string(), "b": pa.float64()})),
    "nested dict": ({"a": {"b": [1]}}, pa.struct({"a": pa.struct({"b": pa.list_(pa.int64())})})),
    "dict with an Arrow value": (
        {"a": None, "b": pa.scalar(1, pa.int8())},
        pa.struct({"a": pa.null(), "b": pa.int8()}),
    ),
    "list of dicts": (
        [{"a": 1, "b": None}, {"a": 2.5, "b": "x"}],
        pa.list_(pa.struct({"a": pa.float64(), "b": pa.string()})),
    ),
    "ints and floats": ([1, 2.5], pa.list_(pa.float64())),
    "ints and floats in nested lists": ([[1], [2.5], []], pa.list_(pa.list_(pa.float64()))),
    "NULL and floats": ([None, 1, 0.5], pa.list_(pa.float64())),
    "ints with and without sign": ([2**64 - 1, -1], pa.list_(pa.decimal128(20, 0))),
    "int beyond 64 bits": (2**70, pa.decimal128(38, 0)),
    "decimals": ([Decimal("1.5"), Decimal("10.25")], pa.list_(pa.decimal128(4, 2))),
    "ints and decimals": ([1, Decimal("0.25")], pa.list_(pa.decimal128(21, 2))),
    "empty list": ([], pa.list_(pa.null())),
    "map": (pa.scalar([("a", 1)], MAP), MAP),
    **{str(t): (pa.scalar(3, t), t) for t in (pa.int8(), pa.int16(), pa.int32(), pa.uint8(), pa.uint16(), pa.uint32())},
    "float32": (pa.scalar(0.5, pa.float32()), pa.float32()),
    "struct": (pa.scalar({"a": "INT"}, pa.struct([("a", pa.string())])), pa.struct([("a", pa.string())])),
    "uuid": (pa.scalar(b"x" * 16, pa.uuid()), pa.uuid()),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments_of_every_type(name: str) -> None:
    value, expected = ARGUMENTS[name]
    for call in (FunctionCall("read_csv", value), FunctionCall("read_csv", option=value)):
        _, batch = opened(call.location())
        assert batch.schema.names == ["arg_0" if call.args else "option"]
        assert batch.schema.field(0).type == expected
        assert batch.column(0)[0].as_py() == as_python(value)


def as_python(value: Any) -> Any:
    """The value that the client gets, as Python shows it."""
    match value:
        case pa.Scalar():
            return value.as_py()
        case dict():
            return {key: as_python(item) for key, item in value.items()}
        case _:
            return value


def test_geometry_is_sent_as_wkb() -> None:
    _, batch = opened(FunctionCall("read_parquet", shapely.Point(1, 2)).location())
    assert extension_of(batch.schema.field(0))[0] == "geoarrow.wkb"
    column = batch.column(0)  # an extension array, if the type was registered before
    storage = column.storage if isinstance(column, pa.ExtensionArray) else column
    assert shapely.from_wkb(storage[0].as_py()) == shapely.Point(1, 2)


def test_a_call_without_arguments() -> None:
    name, batch = opened(FunctionCall("read_text").location())
    assert (name, batch.num_columns) == ("read_text", 0)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (object(), "did not recognize Python value type"),
        ({}, "at least one field"),
        ({1: "x"}, "must be strings"),
        ({"a": 1, "A": 2}, "differ in more than case"),
        (10**38, "precision"),
        ([1, "a"], "mixes int64 and string"),
        ([True, 1], "mixes bool and int64"),
        ([0.1, Decimal("0.1")], r"mixes double and decimal128\(1, 1\)"),
        ([0.5, 2**53 + 1], "exactly representable"),
        ([Decimal("1e-30"), 2**63], "more than 38 digits"),
        ([dt.datetime(2025, 1, 1), dt.datetime(2025, 1, 1, tzinfo=dt.UTC)], "mixes timestamp"),
        ([dt.date(2025, 1, 1), dt.datetime(2025, 1, 1, 5)], "mixes date32"),
    ],
)
def test_value_without_an_arrow_type_is_rejected_with_a_workaround(value: Any, reason: str) -> None:
    with pytest.raises(InvalidArgument, match=f"{reason}.*pyarrow scalar"):
        FunctionCall("read_csv", value).location()


def test_named_argument_must_not_look_positional() -> None:
    with pytest.raises(InvalidArgument, match="arg_"):
        FunctionCall("read_csv", arg_0=1).location()


def test_only_functions_on_the_allow_list_are_sent() -> None:
    with one_ref(lambda request: FunctionCall("my_reader", "x")) as server, Raw(server.location) as raw:
        code, message = code_of(lambda: locations(raw))
        assert code is grpc.StatusCode.PERMISSION_DENIED
        assert "read_parquet" in message
    with (
        one_ref(lambda request: FunctionCall("my_reader", "x"), allowed_functions=["my_reader"]) as server,
        Raw(server.location) as raw,
    ):
        assert opened(locations(raw)[0])[0] == "my_reader"


@pytest.mark.parametrize("name", ["query", "query_table"])
def test_functions_that_crash_the_client_cannot_be_allowed(name: str) -> None:
    with pytest.raises(PermissionDenied):
        FunctionCall(name, "SELECT 1").location(allowed=[name])


def test_missing_call_is_an_error_in_the_table() -> None:
    with one_ref(lambda request: []) as server, Raw(server.location) as raw:
        code, message = code_of(lambda: locations(raw))
    assert code is grpc.StatusCode.INTERNAL
    assert "at least one" in message


def test_request_contains_filters_columns_and_time_point() -> None:
    seen: list[FunctionCallRequest] = []

    def calls(request: FunctionCallRequest) -> FunctionCall:
        seen.append(request)
        return FunctionCall("read_csv", "x")

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.schema({"a": pa.int64(), "b": pa.string()})) as writer:
        writer.write_batch(pa.record_batch({"a": [1], "b": ["x"]}))
    with one_ref(calls) as server, Raw(server.location) as raw:
        locations(
            raw,
            columns=[1],
            at_unit="VERSION",
            at_value="3",
            table_function_parameters=packed(sink.getvalue().to_pybytes()),
        )
        locations(raw)
    first, second = seen
    assert first.columns == ["name"]
    assert first.parameters == (1, "x")
    assert first.time_point is not None
    assert first.time_point.version() == 3
    assert not first.filter
    assert (second.columns, second.parameters, second.time_point) == (None, (), None)


def test_reference_whose_schema_depends_on_the_request() -> None:
    class Yearly(DynamicSchemaTableRef):
        name = "t"
        schema = pa.schema({"a": pa.int64()})

        def schema_for(self, request: SchemaRequest) -> pa.Schema:
            return pa.schema({"a": pa.int64(), "b": pa.string()}) if request.time_point else self.schema

        def function_calls(self, request: FunctionCallRequest) -> list[FunctionCall]:
            return [FunctionCall("read_csv", ",".join(request.columns or ()))]

    builder = CatalogBuilder("demo")
    builder.schema("s").table_ref(Yearly())
    path = flight.FlightDescriptor(type=1, path=["demo", "s", "t"]).SerializeToString()
    with Server(builder.build(), port=0) as server, Raw(server.location) as raw:
        (body,) = raw.action("flight_info", encode(FlightInfoRequest(packed(path), "TIMESTAMP", "2024-01-01")))
        info = flight.FlightInfo.FromString(body)
        assert pa.ipc.read_schema(pa.py_buffer(info.schema)).names == ["a", "b"]
        (uri,) = locations(raw, columns=[1], at_unit="TIMESTAMP", at_value="2024-01-01")
        assert opened(uri)[1].column(0)[0].as_py() == "b"
        assert code_of(lambda: locations(raw, columns=[1]))[0] is grpc.StatusCode.INVALID_ARGUMENT


def test_reference_has_no_stream_and_accepts_no_rows() -> None:
    with (
        one_ref(lambda request: FunctionCall("read_csv", "x"), ticket_key=b"k" * 32) as server,
        Raw(server.location) as raw,
    ):
        (endpoint,) = raw.endpoints("demo", "s", "t")
        assert endpoint.ticket.ticket == b"{}"
        assert code_of(raw.get(b"{}"))[0] is grpc.StatusCode.INVALID_ARGUMENT


def test_repr_of_a_call_shows_its_source_form() -> None:
    assert repr(FunctionCall("read_csv", "x", header=True)) == "FunctionCall('read_csv', 'x', header=True)"
    assert issubclass(DynamicSchemaTableRef, TableRef)
