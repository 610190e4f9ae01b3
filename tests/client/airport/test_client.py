"""The client end to end, with our own server on loopback."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from client.recorded_catalog import EMPLOYEES, RecordedCatalog, service
from client.recorder import Recorder, Scripted, ordinary, recording, result, root, table_info
from skiway.airport import CatalogBuilder, Server, current_request, filters
from skiway.client import AirportClient, CatalogVersion, ColumnStatistics, col
from skiway.errors import Cancelled, Conflict, InvalidArgument, NotFound, Unsupported

PEOPLE = "static_data.employees"
SCAN = ["create_transaction", "catalog_version", "endpoints", "DoGet"]


@pytest.fixture(scope="module")
def world() -> RecordedCatalog:
    return RecordedCatalog()


@pytest.fixture(scope="module")
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture(scope="module")
def location(world: RecordedCatalog, recorder: Recorder) -> Iterator[str]:
    with recording(service(world), recorder) as found:
        yield found


@pytest.fixture
def db(location: str, recorder: Recorder) -> Iterator[AirportClient]:
    with AirportClient(location, "demo", token="ada") as client:
        recorder.calls.clear()
        yield client


# -- the catalog --------------------------------------------------------------------------------------------------------


def test_schemas_have_comments_tables_and_functions(db: AirportClient) -> None:
    schemas = {schema.name: schema for schema in db.schemas()}
    assert list(schemas) == ["static_data", "remote_data", "utils", "w", "tt"]
    assert schemas["static_data"].comment == "Some example static data"
    assert [table.name for table in schemas["static_data"].tables] == ["big_chunk", "employees"]
    added = next(function for function in schemas["utils"].functions if function.name == "test_add")
    assert (added.kind, added.parameters.names, added.returns.types) == ("scalar_function", ["a", "b"], [pa.int64()])
    assert str(added) == "utils.test_add"


def test_schema_has_tags_and_comments_of_its_tables() -> None:
    builder = CatalogBuilder("demo")
    schema = builder.schema("t", comment="c", tags={"owner": "ada"})

    @schema.table(schema=pa.schema([("a", pa.int64())]), comment="rows")
    def rows(scan: object) -> pa.Table:
        return pa.table({"a": [1]})

    with Server(builder.build(), port=0) as server, AirportClient(server.location, "demo") as db:
        schema_t = next(schema for schema in db.schemas() if schema.name == "t")
        assert dict(schema_t.tags) == {"owner": "ada"}
        assert db.table("t.rows").comment == "rows"


def test_catalog_is_loaded_once(db: AirportClient, recorder: Recorder) -> None:
    db.schemas()
    db.table(PEOPLE)
    db.scan(PEOPLE).read_all()
    db.schemas()
    assert recorder.names() == ["list_schemas", *SCAN]


def test_reload_loads_the_catalog_again(db: AirportClient, recorder: Recorder) -> None:
    db.schemas()
    db.reload()
    db.schemas()
    assert recorder.names() == ["list_schemas", "list_schemas"]


def test_table_names_are_resolved_as_in_duckdb(db: AirportClient) -> None:
    table = db.table(PEOPLE)
    assert (table.schema_name, table.name, str(table)) == ("static_data", "employees", PEOPLE)
    assert table.schema.names == EMPLOYEES.schema.names
    assert table.has_statistics
    assert db.table("STATIC_DATA.Employees") is table
    assert db.table(("static_data", "employees")) is table


def test_unknown_table_is_not_found(db: AirportClient) -> None:
    for name in ("static_data.nope", "nope.employees", ("static_data", "nope")):
        with pytest.raises(NotFound, match=r"table .*nope.* not found; schemas of catalog 'demo': 'static_data'"):
            db.table(name)


def test_name_without_a_schema_is_rejected(db: AirportClient) -> None:
    with pytest.raises(InvalidArgument, match=r"'employees' names no schema: write 'schema\.table'"):
        db.table("employees")


def test_names_may_contain_dots() -> None:
    builder = CatalogBuilder("demo")
    for schema_name, table_name in (("a.b", "c"), ("a", "b.d")):

        def rows(scan: object, said: str = table_name) -> pa.Table:
            return pa.table({"said": [said]})

        columns = pa.schema([("said", pa.string())])
        builder.schema(schema_name).table(schema=columns, name=table_name)(rows)
    with Server(builder.build(), port=0) as server, AirportClient(server.location, "demo") as db:
        assert db.scan("a.b.c").read_all().to_pylist() == [{"said": "c"}]
        assert db.scan("a.b.d").read_all().to_pylist() == [{"said": "b.d"}]


def test_unknown_catalog_is_not_found(location: str) -> None:
    with AirportClient(location, "nope", token="ada") as db, pytest.raises(NotFound, match="catalog 'nope'"):
        db.schemas()


def test_version_is_returned(db: AirportClient) -> None:
    assert db.version() == CatalogVersion(1, fixed=False)


def test_version_of_a_fixed_catalog_is_not_requested() -> None:
    answers = ordinary(pa.table({"a": [1]}))
    answers["list_schemas"] = [result(root(table_info(pa.schema([("a", pa.int64())])), fixed=True))]
    server = Scripted(answers)
    with server.serving() as location, AirportClient(location, "c") as db:
        db.scan("s.t").read_all()
    assert server.recorder.names() == ["create_transaction", "list_schemas", "endpoints", "DoGet"]


# -- reading ------------------------------------------------------------------------------------------------------------


def test_scan_returns_only_the_requested_columns_in_order(db: AirportClient) -> None:
    rows = db.scan(PEOPLE, columns=["balance", "name"])
    assert rows.schema.names == ["balance", "name"]
    assert rows.read_all() == EMPLOYEES.select(["balance", "name"])


def test_scan_without_columns_returns_the_visible_ones(db: AirportClient, world: RecordedCatalog) -> None:
    assert db.scan(PEOPLE).read_all().cast(EMPLOYEES.schema) == EMPLOYEES
    assert db.scan("tt.v").schema.names == ["a", "b"]


def test_filter_is_applied_even_if_the_server_sends_more_rows(db: AirportClient) -> None:
    assert db.scan(PEOPLE, columns=["name"], where=col("age") > 30).read_all().to_pylist() == [{"name": "Amy"}]
    by_id = col("id") == uuid.UUID("b975e418-7a6d-4afd-b1a4-1f7174ce1805")
    assert db.scan(PEOPLE, columns=["name"], where=by_id).read_all().to_pylist() == [{"name": "Emily"}]


def test_filter_and_columns_reach_the_server() -> None:
    seen = []
    builder = CatalogBuilder("demo")

    @builder.schema("s").table(schema=pa.schema([("a", pa.int64()), ("b", pa.string()), ("c", pa.string())]))
    def t(scan: object) -> pa.Table:
        seen.append(scan)
        return pa.table({"a": [1, 2], "b": ["x", "y"]})

    with Server(builder.build(), port=0) as server, AirportClient(server.location, "demo") as db:
        assert db.scan("s.t", columns=["b"], where=col("a") == 2).read_all().to_pylist() == [{"b": "y"}]
        raw = db.bind("s.t", where=col("a") == 2).selection.json_filters()
        assert db.scan("s.t", columns=["b"], where=raw).read_all().num_rows == 2, (
            "filter text is only applied by the server"
        )
    assert seen[0].columns == ["a", "b"]  # type: ignore[attr-defined]
    assert filters.to_sql(seen[0].filter).replace('"', "") == "a = 2"  # type: ignore[attr-defined]
    assert seen[1].columns == ["b"]  # type: ignore[attr-defined]
    assert seen[1].filter == seen[0].filter  # type: ignore[attr-defined]


def test_rows_are_counted(db: AirportClient) -> None:
    assert db.count("static_data.big_chunk") == 100_000
    assert db.count("static_data.big_chunk", where=col("id") < 10) == 10
    assert db.count("w.t") == 0


def test_unknown_column_is_named(db: AirportClient) -> None:
    with pytest.raises(NotFound, match=r"column 'nope' not found in static_data\.employees; it has 'name', 'age'"):
        db.scan(PEOPLE, columns=["nope"])
    with pytest.raises(InvalidArgument, match="give a list of names"):
        db.scan(PEOPLE, columns="name")


def test_invalid_filter_fails_before_anything_is_read(db: AirportClient, recorder: Recorder) -> None:
    with pytest.raises(InvalidArgument, match="column 'age' is INTEGER"):
        db.scan(PEOPLE, where=col("age") > "thirty")
    assert "endpoints" not in recorder.names()


def test_statistics_are_returned_as_a_value(db: AirportClient) -> None:
    assert db.statistics(PEOPLE, "age") == ColumnStatistics(30, 32, False, True, 2)
    assert db.statistics(PEOPLE, "Nickname").has_null is True


def test_missing_statistics_are_a_clear_error(db: AirportClient) -> None:
    with pytest.raises(Unsupported, match="has no statistics"):
        db.statistics("static_data.big_chunk", "id")


def test_statistics_are_requested_only_to_plan_like_duckdb(db: AirportClient, recorder: Recorder) -> None:
    db.scan(PEOPLE, columns=["age"]).read_all()
    assert "column_statistics" not in recorder.names()
    db.scan(PEOPLE, columns=["age"], plan=True).read_all()
    assert recorder.names().count("column_statistics") == 2


def test_time_travel_by_version_and_by_time(db: AirportClient) -> None:
    assert db.scan("tt.v", at_version=1).read_all().to_pydict() == {"a": [1]}
    assert db.scan("tt.v", at_version=2).read_all().to_pydict() == {"a": [1, 2]}
    assert db.scan("tt.v", at_version=3).schema.names == ["a", "b"]
    with pytest.raises(Unsupported, match="Timestamp not supported"):
        db.scan("tt.v", at_timestamp="2025-01-01 10:00:00")
    with pytest.raises(NotFound, match="did not exist at version 9"):
        db.scan("tt.v", at_version=9)
    with pytest.raises(InvalidArgument, match="give one of them"):
        db.scan("tt.v", at_version=1, at_timestamp="now")


def test_table_function_is_called(db: AirportClient) -> None:
    assert db.call("utils.test_repeat", "x", 2).read_all().to_pydict() == {"result": ["x", "x"]}
    with pytest.raises(NotFound, match=r"table function utils\.nope not found"):
        db.call("utils.nope")
    with pytest.raises(InvalidArgument, match=r"does not accept 1 arguments; overloads: test_repeat\(input, count\)"):
        db.call("utils.test_repeat", "x")
    with pytest.raises(InvalidArgument, match=r"'many' .* does not fit parameter count"):
        db.call("utils.test_repeat", "x", "many")
    with pytest.raises(InvalidArgument, match="needs input rows: give them as rows="):
        db.call("utils.test_table_in_out", "x")


# -- streaming ----------------------------------------------------------------------------------------------------------


def test_only_an_open_transaction_begins_with_a_function_call(db: AirportClient, recorder: Recorder) -> None:
    db.call("utils.test_repeat", "x", 2).read_all()
    assert "create_transaction" not in recorder.names()
    with db.transaction():
        db.call("utils.test_repeat", "x", 2).read_all()
        assert recorder.names().count("create_transaction") == 1


class Fountain:
    """A table of a thousand megabytes that counts how many were read, and notices when its reader is closed."""

    def __init__(self) -> None:
        self.produced = 0
        self.closed = threading.Event()
        builder = CatalogBuilder("demo")
        builder.schema("s").table(schema=pa.schema([("a", pa.int64())]), name="t")(self.rows)
        self.catalog = builder.build()

    def rows(self, scan: object) -> Iterator[pa.RecordBatch]:
        batch = pa.record_batch({"a": pa.array(range(131_072), pa.int64())})
        try:
            for _ in range(1000):
                self.produced += 1
                yield batch
        finally:
            self.closed.set()


def test_closing_early_closes_the_servers_reader() -> None:
    fountain = Fountain()
    with Server(fountain.catalog, port=0) as server, AirportClient(server.location, "demo") as db:
        with db.scan("s.t") as rows:
            assert rows.read_next_batch().num_rows == 131_072
        assert fountain.closed.wait(200)
        assert fountain.produced < 1000


def test_garbage_collected_rows_close_the_servers_reader() -> None:
    fountain = Fountain()
    with Server(fountain.catalog, port=0) as server, AirportClient(server.location, "demo") as db:
        rows = db.scan("s.t")
        rows.read_next_batch()
        del rows
        assert fountain.closed.wait(200)


def test_server_is_not_drained_ahead_of_the_reader() -> None:
    fountain = Fountain()
    with Server(fountain.catalog, port=0) as server, AirportClient(server.location, "demo") as db:
        before = pa.total_allocated_bytes()
        with db.scan("s.t") as rows:
            for _ in range(20):
                rows.read_next_batch()
            assert fountain.produced < 100
            assert pa.total_allocated_bytes() - before < 64 * 1024 * 1024
        assert fountain.closed.wait(200)


def test_rows_can_be_read_by_any_arrow_consumer(db: AirportClient) -> None:
    assert pa.table(db.scan(PEOPLE, columns=["age"])).column("age").to_pylist() == [30, 32]
    reader = db.scan(PEOPLE, columns=["age"]).to_reader()
    assert isinstance(reader, pa.RecordBatchReader)
    assert reader.read_all().num_rows == 2
    assert sum(batch.num_rows for batch in db.scan("static_data.big_chunk")) == 100_000
    rows = db.scan(PEOPLE, columns=["age"])
    rows.read_next_batch()
    with pytest.raises(StopIteration):
        rows.read_next_batch()


def test_dictionary_columns_are_streamed() -> None:
    table = pa.table({"a": pa.array(["x", None, "y", "x"]).dictionary_encode()})
    builder = CatalogBuilder("demo")
    builder.schema("s").table(schema=table.schema, name="t")(lambda scan: table)
    with Server(builder.build(), port=0) as server, AirportClient(server.location, "demo") as db:
        assert db.scan("s.t").read_all().column("a").to_pylist() == ["x", None, "y", "x"]
        assert db.scan("s.t", where=col("a") == "x").read_all().num_rows == 2


def test_one_client_serves_many_threads(db: AirportClient, recorder: Recorder) -> None:
    def work(number: int) -> int:
        with db.transaction():
            return db.count("static_data.big_chunk", where=col("id") < number)

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(40))) == list(range(40))
    assert recorder.names().count("list_schemas") == 1
    assert recorder.names().count("create_transaction") == 40


# -- transactions and headers -------------------------------------------------------------------------------------------


def test_statements_of_a_transaction_share_its_id(db: AirportClient, recorder: Recorder) -> None:
    db.schemas()
    with db.transaction():
        assert recorder.names() == ["list_schemas"], "it starts with its first statement"
        db.count("w.t")
        db.count("w.t")
    db.count("w.t")
    assert recorder.names().count("create_transaction") == 2
    with db.transaction(), pytest.raises(InvalidArgument, match="transactions cannot be nested"), db.transaction():
        pass


def test_transaction_id_is_sent_with_the_same_calls_as_in_duckdb() -> None:
    columns = pa.schema([("a", pa.int64())], metadata={"can_produce_statistics": "1"})
    server = Scripted(ordinary(pa.table({"a": [1]}), identifier="tx-1"))
    statistics = pa.record_batch(
        {"min": [1], "max": [1], "has_null": [False], "has_not_null": [True], "distinct_count": [0]}
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, statistics.schema) as writer:
        writer.write_batch(statistics)
    server.answers["list_schemas"] = [result(root(table_info(columns)))]
    server.answers["flight_info"] = [result(table_info(columns))]
    server.answers["column_statistics"] = [result(sink.getvalue().to_pybytes())]
    with server.serving() as location, AirportClient(location, "c") as db:
        db.scan("s.t", at_version=1, plan=True).read_all()
        assert db.statistics("s.t", "a").distinct_count is None
    sent = [(call.name, call.header("airport-transaction-id")) for call in server.recorder.calls[:8]]
    assert sent == [
        ("create_transaction", ""),
        ("list_schemas", ""),
        ("flight_info", ""),
        ("catalog_version", ""),
        ("flight_info", "tx-1"),
        ("column_statistics", "tx-1"),
        ("column_statistics", "tx-1"),
        ("endpoints", "tx-1"),
    ]


def test_every_scan_has_one_trace_id_and_every_process_one_session_id(db: AirportClient, recorder: Recorder) -> None:
    db.scan(PEOPLE, columns=["age"], plan=True).read_all()
    db.scan(PEOPLE, columns=["age"], plan=True).read_all()
    traces = [call.header("airport-trace-id") for call in recorder.calls if call.header("airport-trace-id")]
    assert len(set(traces)) == 2
    assert len(traces) == 8
    with AirportClient(db.location, "demo", token="ada") as other:
        other.version()
    sessions = {call.header("airport-client-session-id") for call in recorder.calls}
    assert len(sessions) == 1
    assert uuid.UUID(sessions.pop())


def test_server_sees_the_caller() -> None:
    seen = []
    builder = CatalogBuilder("demo")

    @builder.schema("s").table(schema=pa.schema([("a", pa.int64())]))
    def t(scan: object) -> pa.Table:
        seen.append(current_request())
        return pa.table({"a": [1]})

    ids = iter(["trace-1", "trace-2"])
    with (
        Server(builder.build(), port=0) as server,
        AirportClient(server.location, "demo", token="T", ids=lambda: next(ids)) as db,
    ):
        db.scan("s.t").read_all()
        expected = {
            "airport-user-agent": ("airport/20250723",),
            "authority": (server.location,),
            "authorization": ("Bearer T",),
            "airport-catalog": ("demo",),
            "airport-trace-id": ("trace-1",),
            "airport-flight-path": ("/".join(db.table("s.t").descriptor.path),),
        }
    request = seen[0]
    assert {name: request.headers[name] for name in expected} == expected
    assert (request.token, request.trace_id, request.catalog) == ("T", "trace-1", "demo")
    assert "airport-action-name" not in request.headers


def test_empty_catalog_name_is_not_sent_as_header() -> None:
    answers = ordinary(pa.table({"a": [1]}))
    answers["list_schemas"] = [result(root(table_info(pa.schema([("a", pa.int64())]), catalog="")))]
    server = Scripted(answers)
    with server.serving() as location, AirportClient(location) as db:
        db.scan("s.t").read_all()
    assert all("airport-catalog" not in dict(call.headers) for call in server.recorder.calls)
    assert b"\xaccatalog_name\xa0" in server.recorder.calls[0].requests[0]


# -- ad hoc -------------------------------------------------------------------------------------------------------------


def test_custom_actions_are_called_with_raw_bytes() -> None:
    def echo(body: bytes) -> list[bytes]:
        return [body, b"again " + body]

    with (
        Server(CatalogBuilder("demo").build(), port=0, actions={"echo": echo}) as server,
        AirportClient(server.location, "demo") as db,
    ):
        assert db.action("echo", b"\xff") == [b"\xff", b"again \xff"]
        assert db.action("echo", "text") == [b"text", b"again text"]
        assert db.action("echo") == [b"", b"again "]
        with pytest.raises(Unsupported, match="unknown action 'nope'"):
            db.action("nope")


def test_any_flight_can_be_read(db: AirportClient, recorder: Recorder) -> None:
    rows = db.take_flight(
        ["demo", "static_data", "employees"], columns=["name"], where=col("age") > 30, headers={"x-mine": "1"}
    ).read_all()
    assert rows.to_pylist() == [{"name": "Amy"}]
    assert recorder.names() == ["GetFlightInfo", "endpoints", "DoGet"]
    assert {call.header("x-mine") for call in recorder.calls} == {"1"}
    assert {call.header("airport-catalog") for call in recorder.calls} == {""}


def test_string_is_sent_as_a_command(db: AirportClient) -> None:
    with pytest.raises(InvalidArgument, match="not a path"):
        db.take_flight("SELECT 1")


def test_databases_and_flights_are_listed(db: AirportClient) -> None:
    assert db.databases().to_pydict() == {"name": ["demo"]}
    flights = {flight.path: flight for flight in db.flights()}
    employees = flights["demo", "static_data", "employees"]
    assert employees.schema.names == EMPLOYEES.schema.names
    assert (employees.command, employees.total_bytes, employees.ordered) == (b"", -1, False)
    assert employees.app_metadata


def test_error_in_a_transaction_leaves_the_client_usable() -> None:
    answers = ordinary(pa.table({"a": [1]}))
    server = Scripted(answers)
    with server.serving() as location, AirportClient(location, "c") as db:
        with pytest.raises(Conflict), db.transaction():
            raise Conflict("mine")
        with db.transaction():
            assert db.count("s.t") == 1


# --- quoted names, limits and cancelling --------------------------------------------------------------------------


@pytest.fixture
def odd_names() -> Iterator[tuple[AirportClient, threading.Event]]:
    """A server with oddly named tables, one of them endless; the event is set when its scan has ended."""
    ended = threading.Event()
    catalog = CatalogBuilder("odd")
    folder = catalog.schema("csv")
    schema = pa.schema({"id": pa.int64()})

    @folder.table(name="two words", schema=schema)
    def two_words(_scan: object) -> pa.Table:
        return pa.table({"id": [1]})

    @catalog.schema("eu.west").table(name='a"b.c', schema=schema)
    def dotted(_scan: object) -> pa.Table:
        return pa.table({"id": [2]})

    @folder.table(name="endless", schema=schema)
    def endless(_scan: object) -> Iterator[pa.RecordBatch]:
        try:
            while not ended.wait(0.001):
                yield pa.record_batch({"id": range(1000)})
        finally:
            ended.set()

    with Server(catalog.build(), port=0) as server, AirportClient(server.location, "odd") as client:
        yield client, ended
        ended.set()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ('csv."two words"', 1),
        ("csv.two words", 1),
        ('"csv"."two words"', 1),
        ('"eu.west"."a""b.c"', 2),
        (("eu.west", 'a"b.c'), 2),
    ],
)
def test_names_can_be_quoted(odd_names: tuple[AirportClient, threading.Event], name: str, expected: int) -> None:
    assert odd_names[0].scan(name).read_all()["id"].to_pylist() == [expected]


@pytest.mark.parametrize("name", ['csv."two', 'csv."two"words', 'two"words', '"csv.two words"'])
def test_malformed_name_is_rejected(odd_names: tuple[AirportClient, threading.Event], name: str) -> None:
    with pytest.raises(InvalidArgument, match=r"valid name|names no schema"):
        odd_names[0].scan(name)


@pytest.mark.parametrize("limit", [1, 999, 1000, 1001, 2500])
def test_limit_returns_the_first_rows_and_ends_the_scan(
    odd_names: tuple[AirportClient, threading.Event], limit: int
) -> None:
    client, ended = odd_names
    found = client.scan("csv.endless", limit=limit).read_all()["id"].to_pylist()
    assert found == [number % 1000 for number in range(limit)]
    assert ended.wait(200)


def test_limit_of_zero_has_the_schema_and_a_negative_one_is_rejected(
    odd_names: tuple[AirportClient, threading.Event],
) -> None:
    client, _ = odd_names
    none = client.scan("csv.two words", limit=0).read_all()
    assert (none.num_rows, none.schema.names) == (0, ["id"])
    assert client.scan("csv.two words", limit=5).read_all().num_rows == 1
    with pytest.raises(InvalidArgument, match="must not be negative"):
        client.scan("csv.two words", limit=-1)


def test_cancel_ends_running_scans_and_the_client_can_be_used_again(
    odd_names: tuple[AirportClient, threading.Event],
) -> None:
    client, ended = odd_names
    rows = iter(client.scan("csv.endless"))
    next(rows)
    client.cancel()
    with pytest.raises(Cancelled):
        for _ in rows:
            pass
    assert ended.wait(200)
    assert client.scan("csv.two words").read_all().num_rows == 1
