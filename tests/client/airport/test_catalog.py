"""The sources of a schema's contents: inline, a bundle, a URL, or ListFlights."""

from __future__ import annotations

import hashlib
import http.server
import threading
from collections.abc import Iterator

import pyarrow as pa
import pytest

from client.recorder import Scripted, ordinary, result, root, table_info
from skiway.airport.wire.protocol import Contents, encode, packed, seal
from skiway.client import AirportClient
from skiway.errors import Internal, NotFound
from skiway.model import flight_pb2 as flight

COLUMNS = pa.schema([("a", pa.int64())])
SEALED = seal([table_info(COLUMNS)])
HASH = hashlib.sha256(SEALED).hexdigest()


@pytest.fixture
def server() -> Scripted:
    return Scripted(ordinary(pa.table({"a": [1]})))


@pytest.fixture
def db(server: Scripted) -> Iterator[AirportClient]:
    with server.serving() as location, AirportClient(location, "c", timeout_s=20) as client:
        yield client


@pytest.fixture
def web() -> Iterator[str]:
    """A web server that serves the contents."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/s" else 404)
            self.end_headers()
            self.wfile.write(SEALED if self.path == "/s" else b"")

        def log_message(self, *_arguments: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as serving:
        thread = threading.Thread(target=serving.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{serving.server_port}"
        serving.shutdown()
        thread.join()


def names(db: AirportClient) -> list[str]:
    return [table.name for schema in db.schemas() for table in schema.tables]


def test_inline_contents_need_no_hash(server: Scripted, db: AirportClient) -> None:
    server.answers["list_schemas"] = [result(root(contents=Contents(serialized=SEALED)))]
    assert names(db) == ["t"]


def test_bundle_contains_contents_by_hash(server: Scripted, db: AirportClient) -> None:
    bundle = encode([["0" * 64, b"other"], [HASH, SEALED]])
    listing = root(contents=Contents(sha256=HASH), bundle=Contents.inline(bundle))
    server.answers["list_schemas"] = [result(listing)]
    assert names(db) == ["t"]


def test_bundle_with_a_wrong_hash_is_a_server_error(server: Scripted, db: AirportClient) -> None:
    bundle = encode([[HASH, seal([])]])
    server.answers["list_schemas"] = [result(root(contents=Contents(sha256=HASH), bundle=Contents.inline(bundle)))]
    with pytest.raises(Internal, match="sent data with hash"):
        db.schemas()


def test_contents_at_a_url_are_fetched_and_verified(server: Scripted, db: AirportClient, web: str) -> None:
    server.answers["list_schemas"] = [result(root(contents=Contents(sha256=HASH, url=f"{web}/s")))]
    assert names(db) == ["t"]
    server.answers["list_schemas"] = [result(root(contents=Contents(sha256="0" * 64, url=f"{web}/s")))]
    db.reload()
    with pytest.raises(Internal, match="sent data with hash"):
        db.schemas()


def test_failing_url_is_named(server: Scripted, db: AirportClient, web: str) -> None:
    server.answers["list_schemas"] = [result(root(contents=Contents(sha256=HASH, url=f"{web}/gone")))]
    with pytest.raises(Internal, match=r"cannot download .*/gone': HTTP Error 404"):
        db.schemas()


def test_url_replaces_stale_inline_contents(server: Scripted, db: AirportClient, web: str) -> None:
    contents = Contents(sha256=HASH, url=f"{web}/s", serialized=b"stale")
    server.answers["list_schemas"] = [result(root(contents=contents))]
    assert names(db) == ["t"]


def test_schema_without_contents_is_listed_with_list_flights(server: Scripted, db: AirportClient) -> None:
    server.answers["list_schemas"] = [result(root(contents=Contents()))]
    server.answers["ListFlights"] = [table_info(COLUMNS), table_info(COLUMNS, "u")]
    assert names(db) == ["t", "u"]
    call = server.recorder.calls[-1]
    assert call.header("airport-list-flights-filter-catalog") == "c"
    assert call.header("airport-list-flights-filter-schema") == "s"
    assert call.header("airport-catalog") == "c"
    assert call.requests == (b"",)
    assert "airport-duckdb-json-filters" not in dict(call.headers)


def test_broken_schema_does_not_break_the_others(server: Scripted, db: AirportClient) -> None:
    server.answers["list_schemas"] = [result(root(contents=Contents(serialized=b"?")))]
    with pytest.raises(NotFound):
        db.table("other.t")
    with pytest.raises(Internal):
        db.table("s.t")


def test_exact_match_is_preferred_over_another_case(server: Scripted, db: AirportClient) -> None:
    upper = pa.schema([("A", pa.string()), ("a", pa.int64())])
    server.answers["list_schemas"] = [result(root(table_info(upper, "T"), table_info(COLUMNS, "t")))]
    assert db.table("s.t").schema == COLUMNS
    assert db.table("S.T").schema == upper
    assert db.table("s.T").position("a") == 1
    assert db.table("s.T").position("A") == 0
    assert db.table("s.t").position("A") == 0


def test_rowid_is_hidden_and_found_by_its_metadata(server: Scripted, db: AirportClient) -> None:
    marked = pa.schema([pa.field("key", pa.int64(), metadata={"is_rowid": "1"}), ("a", pa.string())])
    server.answers["list_schemas"] = [result(root(table_info(marked)))]
    table = db.table("s.t")
    assert table.columns == ("a",)
    assert table.rowid == table.position("rowid") == 0
    bound = db.bind("s.t", columns=["rowid", "a"])
    assert bound.schema.names == ["rowid", "a"]
    assert bound.selection.column_ids() == [0xFFFF_FFFF_FFFF_FFFF, 0]


def as_text(value: object) -> object:
    """The same value with all bytes packed as MessagePack `str`, as a server in C++ sends them."""
    if isinstance(value, bytes):
        return packed(value)
    if isinstance(value, list):
        return [as_text(part) for part in value]
    return {key: as_text(part) for key, part in value.items()} if isinstance(value, dict) else value


def test_bytes_packed_as_strings_are_accepted(server: Scripted, db: AirportClient) -> None:
    facts = {"type": "table_function", "catalog": "c", "schema": "s", "name": "f"}
    facts |= {"input_schema": COLUMNS.serialize().to_pybytes()}
    function = flight.FlightInfo(
        schema=COLUMNS.serialize().to_pybytes(), app_metadata=encode(as_text(facts))
    ).SerializeToString()
    inner = encode(as_text([table_info(COLUMNS), function]))
    contents = encode(as_text([len(inner), pa.compress(inner, codec="zstd", asbytes=True)]))
    schema = {
        "name": "s",
        "description": "",
        "tags": {},
        "contents": {"sha256": "", "url": None, "serialized": contents},
    }
    version = {"catalog_version": 1, "is_fixed": False}
    outer = encode(as_text({"contents": {"sha256": ""}, "schemas": [schema], "version_info": version}))
    listing = encode(as_text([len(outer), pa.compress(outer, codec="zstd", asbytes=True)]))
    server.answers["list_schemas"] = [result(listing)]
    place = flight.FlightEndpoint(
        ticket=flight.Ticket(ticket=b"\xff"), location=[flight.Location(uri="arrow-flight-reuse-connection://?")]
    )
    server.answers["endpoints"] = [result(encode(as_text([place.SerializeToString()])))]
    assert names(db) == ["t"]
    assert db.schemas()[0].functions[0].parameters == COLUMNS
    assert db.count("s.t") == 1
