"""Endpoints: several of them, on other servers, and files that DuckDB reads for the client."""

from __future__ import annotations

import base64
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from client.recorder import Scripted, endpoints, frames, ordinary
from skiway.airport import FunctionCall as ServedCall
from skiway.airport import FunctionCallRequest, Server, TableRef
from skiway.airport.catalog import Catalog, Schema, Table
from skiway.airport.wire import protocol
from skiway.airport.wire.protocol import FunctionCallUri, encode
from skiway.client import AirportClient, Endpoint, FunctionCall, col
from skiway.errors import Internal, PermissionDenied, Unavailable, Unsupported
from skiway.model import flight_pb2 as flight

TABLE = pa.table({"a": [1, 2, 3], "b": ["x", "y", None]})


@pytest.fixture
def server() -> Scripted:
    return Scripted(ordinary(TABLE))


@pytest.fixture
def db(server: Scripted) -> Iterator[AirportClient]:
    with server.serving() as location, AirportClient(location, "c", token="T") as client:
        yield client


def test_rows_of_all_endpoints_are_concatenated(server: Scripted, db: AirportClient) -> None:
    server.answers["endpoints"] = endpoints(protocol.REUSE_CONNECTION, protocol.REUSE_CONNECTION)
    assert db.scan("s.t", columns=["a"]).read_all().column("a").to_pylist() == [1, 2, 3, 1, 2, 3]


def test_no_endpoints_give_no_rows(server: Scripted, db: AirportClient) -> None:
    server.answers["endpoints"] = endpoints()
    assert db.scan("s.t").read_all() == TABLE.slice(0, 0)


def test_ticket_is_sent_back_unchanged(server: Scripted, db: AirportClient) -> None:
    server.answers["endpoints"] = endpoints(protocol.REUSE_CONNECTION, ticket=b"\xff\x00 ticket")
    assert db.endpoints("s.t") == [Endpoint(b"\xff\x00 ticket")]
    db.scan("s.t").read_all()
    assert flight.Ticket.FromString(server.recorder.calls[-1].requests[0]).ticket == b"\xff\x00 ticket"


def test_rows_on_another_server_are_fetched_there_with_the_same_headers(server: Scripted, db: AirportClient) -> None:
    other = Scripted({"DoGet": frames(TABLE)})
    with other.serving() as elsewhere:
        server.answers["endpoints"] = endpoints(elsewhere)
        assert db.endpoints("s.t")[0].location == elsewhere
        assert db.scan("s.t").read_all() == TABLE
    (call,) = other.recorder.calls
    assert call.header("authorization") == "Bearer T"
    assert call.header("authority") == db.location
    assert "DoGet" not in server.recorder.names()


def test_unreachable_other_server_is_named(server: Scripted, db: AirportClient) -> None:
    server.answers["endpoints"] = endpoints("grpc://127.0.0.1:1")
    with pytest.raises(Unavailable, match=r"cannot reach grpc://127\.0\.0\.1:1"):
        db.scan("s.t").read_all()


# -- function calls -----------------------------------------------------------------------------------------------------


class Files(TableRef):
    """A table whose rows DuckDB reads from files."""

    name = "files"

    def __init__(self, calls: Callable[[], Sequence[ServedCall]], schema: pa.Schema = TABLE.schema) -> None:
        self._calls, self._schema = calls, schema

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    def function_calls(self, request: FunctionCallRequest) -> Sequence[ServedCall]:
        return self._calls()


class Lake(Catalog):
    name = "lake"

    def __init__(self, files: Files) -> None:
        self._files = files

    def schemas(self) -> Sequence[Schema]:
        files = self._files

        class Only(Schema):
            name = "s"

            def tables(self) -> Sequence[Table]:
                return ()

            def table_refs(self) -> Sequence[TableRef]:
                return [files]

        return [Only()]


@pytest.fixture
def parquet(tmp_path: Path) -> str:
    pq.write_table(TABLE.append_column("more", pa.array([9, 9, 9])), tmp_path / "a.parquet")
    return str(tmp_path / "a.parquet")


def test_function_call_can_be_inspected(parquet: str) -> None:
    call = ServedCall("read_parquet", [parquet, parquet], union_by_name=True)
    with (
        Server(Lake(Files(lambda: [call])), port=0) as server,
        AirportClient(server.location, "lake") as db,
    ):
        (endpoint,) = db.endpoints("s.files")
    assert endpoint.call == FunctionCall("read_parquet", ([parquet, parquet],), {"union_by_name": True})


def test_files_are_read_by_duckdb(parquet: str) -> None:
    calls = [ServedCall("read_parquet", [parquet, parquet], union_by_name=True), ServedCall("parquet_scan", parquet)]
    with (
        Server(Lake(Files(lambda: calls)), port=0) as server,
        AirportClient(server.location, "lake") as db,
    ):
        assert db.scan("s.files").read_all().to_pydict() == pa.concat_tables([TABLE] * 3).to_pydict()
        assert db.scan("s.files", columns=["b"], where=col("a") == 2).read_all().to_pylist() == [{"b": "y"}] * 3
        assert db.count("s.files") == 9


def test_file_columns_are_cast_to_the_table_schema(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a;b\n1;x\n2;y\n")
    schema = pa.schema([("a", pa.float64()), ("b", pa.string())])
    call = ServedCall("read_csv", str(tmp_path / "a.csv"), header=True, delim=";")
    with (
        Server(Lake(Files(lambda: [call], schema)), port=0) as server,
        AirportClient(server.location, "lake") as db,
    ):
        found = db.scan("s.files").read_all()
    assert found == pa.table({"a": [1.0, 2.0], "b": ["x", "y"]})


def test_missing_file_is_reported_by_duckdb(tmp_path: Path) -> None:
    call = ServedCall("read_parquet", str(tmp_path / "nope.parquet"))
    with (
        Server(Lake(Files(lambda: [call])), port=0) as server,
        AirportClient(server.location, "lake") as db,
        pytest.raises(Internal, match="DuckDB could not run read_parquet"),
    ):
        db.scan("s.files").read_all()


def uri(name: str, arguments: pa.RecordBatch) -> str:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, arguments.schema) as writer:
        writer.write_batch(arguments)
    body = encode(FunctionCallUri(name, sink.getvalue().to_pybytes()))
    return "data:application/x-msgpack-duckdb-function-call;base64," + base64.b64encode(body).decode()


@pytest.mark.parametrize("name", ["query", "system", "read_parquet(); DROP TABLE x; --", "getenv"])
def test_only_file_readers_are_run(server: Scripted, db: AirportClient, name: str) -> None:
    server.answers["endpoints"] = endpoints(uri(name, pa.record_batch({"arg_0": ["SELECT 1"]})))
    assert db.endpoints("s.t")[0].call == FunctionCall(name, ("SELECT 1",))
    with pytest.raises(PermissionDenied, match="not one of the file readers"):
        db.scan("s.t").read_all()


def test_argument_name_cannot_inject_sql(server: Scripted, db: AirportClient, parquet: str) -> None:
    arguments = pa.record_batch({"arg_0": [parquet], 'x" = 1) UNION SELECT 1, 2 --': [True]})
    server.answers["endpoints"] = endpoints(uri("read_parquet", arguments))
    with pytest.raises(Internal, match="DuckDB could not run read_parquet"):
        db.scan("s.t").read_all()


def test_more_than_ten_arguments_keep_their_order(server: Scripted, db: AirportClient) -> None:
    arguments = pa.record_batch({f"arg_{i}": [i] for i in range(12)})
    server.answers["endpoints"] = endpoints(uri("read_csv", arguments))
    (endpoint,) = db.endpoints("s.t")
    assert endpoint.call is not None
    assert endpoint.call.arguments == tuple(range(12))


@pytest.mark.parametrize(("arguments", "complaint"), [({"arg_0": ["x", "y"]}, "2 rows"), ({"arg_0": []}, "0 rows")])
def test_arguments_must_be_one_row(
    server: Scripted, db: AirportClient, arguments: dict[str, list[str]], complaint: str
) -> None:
    server.answers["endpoints"] = endpoints(uri("read_csv", pa.record_batch(arguments)))
    with pytest.raises(Internal, match=complaint):
        db.endpoints("s.t")


def test_parquet_file_as_location_is_a_function_call(server: Scripted, db: AirportClient, parquet: str) -> None:
    body = base64.b64encode(encode({"format": "parquet", "uri": parquet})).decode()
    server.answers["endpoints"] = endpoints(f"data:application/msgpack;base64,{body}")
    assert db.endpoints("s.t")[0].call == FunctionCall("parquet_scan", (parquet,))
    assert db.scan("s.t").read_all() == TABLE


def test_other_file_formats_are_not_read(server: Scripted, db: AirportClient) -> None:
    body = base64.b64encode(encode({"format": "ipc-file", "uri": "x"})).decode()
    server.answers["endpoints"] = endpoints(f"data:application/msgpack;base64,{body}")
    with pytest.raises(Unsupported, match="only parquet is supported"):
        db.endpoints("s.t")


def test_call_without_duckdb_is_rejected_with_what_to_install(
    server: Scripted, db: AirportClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.answers["endpoints"] = endpoints(uri("read_parquet", pa.record_batch({"arg_0": ["x"]})))
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(Unsupported, match=r"pip install 'skiway\[memory\]'"):
        db.scan("s.t").read_all()


# -- servers that are not trusted ----------------------------------------------------------------------------------------


def test_data_of_a_server_is_validated_unless_it_is_trusted(server: Scripted) -> None:
    not_utf8 = pa.array([b"\xff", b"y", None]).view(pa.string())
    server.answers["DoGet"] = frames(pa.table({"a": [1, 2, 3], "b": not_utf8}))
    with server.serving() as location, AirportClient(location, "c", trusted=False) as db:
        with pytest.raises(Internal, match="UTF8"):
            db.scan("s.t").read_all()
        with AirportClient(location, "c") as trusting:
            assert trusting.scan("s.t").read_all().num_rows == 3
