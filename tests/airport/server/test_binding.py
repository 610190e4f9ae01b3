"""Clients that know an earlier schema get rows in that schema, or are asked to attach again: nothing shifts, nothing crashes."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import grpc
import pyarrow as pa
import pytest

from airport.lockstep import Exchange
from airport.raw import Raw, code_of, descriptor
from skiway.airport import (
    Catalog,
    CatalogBuilder,
    InOutCall,
    ScanOptions,
    Schema,
    Server,
    Table,
    TableFunction,
    TableInOutFunction,
    TimePoint,
    TimeTravel,
)
from skiway.airport.catalog import CreateTable
from skiway.airport.memory import MemoryCatalog, MemorySchema, MemoryTable
from skiway.airport.server.tickets import as_listed, fingerprint
from skiway.airport.wire.frames import BatchReader
from skiway.airport.wire.protocol import (
    ROWID_COLUMN,
    EndpointsRequest,
    FlightInfoRequest,
    InOutParameters,
    ScanParameters,
    StatisticsRequest,
    TableFunctionRequest,
    decode,
    encode,
    packed,
)
from skiway.client import AirportClient, col
from skiway.errors import NotFound, PreconditionFailed
from skiway.model import flight_pb2 as flight

Code = grpc.StatusCode
COLUMNS = pa.schema({"a": pa.int64(), "b": pa.string(), "c": pa.int64()})
ROWS = pa.table({"a": [1, 2], "b": ["one", "two"], "c": [11, 22]}, COLUMNS)
FIVE = pa.table({"a": [5], "b": ["five"], "c": [55]}, COLUMNS)
CHANGED = r"the table changed \(.+\): DETACH and ATTACH again"


# -- what counts as the same schema -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "other",
    [
        pa.schema([*COLUMNS, ("d", pa.int64())]),
        pa.schema(list(COLUMNS)[:2]),
        pa.schema([COLUMNS.field(1), COLUMNS.field(0), COLUMNS.field(2)]),
        pa.schema({"a": pa.int64(), "bb": pa.string(), "c": pa.int64()}),
        pa.schema({"a": pa.int32(), "b": pa.string(), "c": pa.int64()}),
        pa.schema({"a": pa.int64(), "b": pa.large_string(), "c": pa.int64()}),
        pa.schema({"a": pa.int64(), "b": pa.json_(), "c": pa.int64()}),
        pa.schema([pa.field("a", pa.int64(), nullable=False), *list(COLUMNS)[1:]]),
        pa.schema([*list(COLUMNS)[:2], pa.field("c", pa.int64(), metadata={"is_rowid": "1"})]),
        pa.schema(
            [COLUMNS.field(0), pa.field("b", pa.string(), metadata={"ARROW:extension:name": "x"}), COLUMNS.field(2)]
        ),
    ],
)
def test_fingerprint_depends_on_all_that_clients_see_of_columns(other: pa.Schema) -> None:
    assert fingerprint(other) != fingerprint(COLUMNS)


def test_fingerprint_ignores_comments_and_defaults() -> None:
    described = pa.schema([field.with_metadata({"comment": "x", "default": "1"}) for field in COLUMNS], {"k": "v"})
    assert fingerprint(described) == fingerprint(pa.schema(list(COLUMNS))) == fingerprint(COLUMNS)


def test_schemas_are_forgotten_with_their_tables() -> None:
    schema = pa.schema({"only": pa.int64()})
    fingerprint(as_listed(schema))
    fingerprint(schema)
    gone = weakref.ref(schema)
    del schema
    gc.collect()
    assert gone() is None


# -- other people's DDL under an attached client ------------------------------------------------------------------------

Ddl = Callable[[MemorySchema, MemoryTable], object]


def recreate(columns: pa.Schema, rows: dict[str, Any]) -> Ddl:
    def run(schema: MemorySchema, table: MemoryTable) -> None:
        schema.drop_table(table.name)
        schema.add_table(table.name, pa.table(rows, columns))

    return run


def swap_columns(_: MemorySchema, table: MemoryTable) -> None:
    for old, new in (("a", "x"), ("c", "a"), ("x", "c")):
        table.rename_column(old, new)


def swap_tables(schema: MemorySchema, table: MemoryTable) -> None:
    name = table.name
    schema.add_table(f"{name} other", ROWS.select(["b", "a", "c"]))
    schema.rename_table(name, f"{name} before")
    schema.rename_table(f"{name} other", name)


DDL: Mapping[str, Ddl] = {
    "add a column": lambda _, table: table.add_column(pa.field("z", pa.float64())),
    "drop the first column": lambda _, table: table.remove_column("a"),
    "drop the last column": lambda _, table: table.remove_column("c"),
    "rename a column": lambda _, table: table.rename_column("b", "bb"),
    "swap two columns": swap_columns,
    "change a type": lambda _, table: table.change_column_type(pa.field("a", pa.string()), ""),
    "set NOT NULL": lambda _, table: table.set_not_null("a"),
    "swap two tables": swap_tables,
    "rename the table": lambda schema, table: schema.rename_table(table.name, f"{table.name} new"),
    "drop the table": lambda schema, table: schema.drop_table(table.name),
    "create another table": recreate(
        pa.schema({"x": pa.string(), "y": pa.list_(pa.string())}), {"x": ["h"], "y": [["i"]]}
    ),
    "create the same table": recreate(COLUMNS, {"a": [1], "b": ["uno"], "c": [7]}),
    "change a comment or default": lambda _, table: table.set_default("b", "'x'"),
}
HARMLESS = {"create the same table", "change a comment or default"}

Statement = Callable[[AirportClient, tuple[str, str]], object]
STATEMENTS: Mapping[str, Statement] = {
    "select": lambda db, name: db.scan(name).read_all(),
    "select a column": lambda db, name: db.scan(name, columns=["c"]).read_all(),
    "filter": lambda db, name: db.scan(name, where=col("b") == "one").read_all(),
    "count": lambda db, name: db.count(name),
    "insert": lambda db, name: db.insert(name, FIVE),
    "insert returning": lambda db, name: db.insert(name, FIVE, returning=True),
    "update": lambda db, name: db.update(name, {"b": "new"}, where=col("a") == 1),
    "update returning": lambda db, name: db.update(name, {"b": "new"}, where=col("a") == 1, returning=True),
    "update by id": lambda db, name: db.update(name, pa.table({"b": ["new"]}), row_ids=[0]),
    "delete": lambda db, name: db.delete(name, where=col("a") == 1),
    "delete returning": lambda db, name: db.delete(name, where=col("a") == 1, returning=True),
}


@pytest.mark.parametrize("ddl", DDL)
def test_client_that_attached_before_a_change_gets_its_schema_or_is_asked_to_attach_again(ddl: str) -> None:
    catalog = MemoryCatalog("m", schemas=["s"])
    schema = catalog.schema("s")
    assert schema is not None
    tables = {name: schema.add_table(name, ROWS) for name in STATEMENTS}
    with Server(catalog, port=0) as server, AirportClient(server.location, "m") as stale:
        stale.schemas()
        for table in tables.values():
            DDL[ddl](schema, table)
        for name, statement in STATEMENTS.items():
            before = {each.name: each.to_arrow() for each in schema.tables()}
            if ddl in HARMLESS:
                statement(stale, ("s", name))
                continue
            with pytest.raises((PreconditionFailed, NotFound), match=f"{CHANGED}|not found; DETACH and ATTACH again"):
                statement(stale, ("s", name))
            assert {each.name: each.to_arrow() for each in schema.tables()} == before, name


def test_rows_of_the_same_table_created_again_are_read_and_written() -> None:
    catalog = MemoryCatalog("m", schemas=["s"])
    schema = catalog.schema("s")
    assert schema is not None
    table = schema.add_table("t", ROWS)
    with Server(catalog, port=0) as server, AirportClient(server.location, "m") as stale:
        stale.schemas()
        DDL["create the same table"](schema, table)
        assert stale.scan("s.t").read_all().to_pylist() == [{"a": 1, "b": "uno", "c": 7}]
        changed = stale.update("s.t", {"b": "new"}, where=col("a") == 1, returning=True)
        assert changed.rows.to_pylist() == [{"a": 1, "b": "new", "c": 7}]


def test_own_ddl_needs_no_new_attach() -> None:
    with Server(MemoryCatalog("m", schemas=["s"]), port=0) as server, AirportClient(server.location, "m") as db:
        db.create_table("s.t", COLUMNS)
        db.insert("s.t", ROWS)
        db.add_column("s.t", pa.field("d", pa.int64()))
        db.rename_column("s.t", "a", "aa")
        db.change_column_type("s.t", "c", pa.string())
        db.insert("s.t", pa.table({"aa": [3], "b": ["three"], "c": ["33"], "d": [4]}))
        db.rename_table("s.t", "u")
        assert db.scan("s.u", where=col("aa") == 3).read_all().to_pylist() == [
            {"aa": 3, "b": "three", "c": "33", "d": 4}
        ]


# -- changes between the calls of one query -----------------------------------------------------------------------------


class Changing(Table, TimeTravel):
    """A table whose schema a test replaces at any time."""

    name = "t"

    def __init__(self, rows: pa.Table = ROWS) -> None:
        self.rows = rows
        self.past = rows
        self.on_scan: Callable[[], object] = lambda: None

    @property
    def schema(self) -> pa.Schema:
        return self.rows.schema

    def scan(self, options: ScanOptions) -> pa.Table:
        self.on_scan()
        return self.rows

    def at(self, point: TimePoint) -> Table | None:
        return Changing(self.past)


class Returning(TableFunction):
    """A function whose columns a test replaces at any time."""

    name = "f"
    rows = ROWS

    def schema_for(self, arguments: Mapping[str, pa.Scalar]) -> pa.Schema:
        return self.rows.schema

    def execute(self, arguments: Mapping[str, pa.Scalar], options: ScanOptions) -> pa.Table:
        return self.rows


class Echoing(TableInOutFunction, InOutCall):
    """A function over rows whose columns a test replaces at any time."""

    name = "g"
    result = COLUMNS

    def schema_for(self, arguments: Mapping[str, pa.Scalar], rows: pa.Schema) -> pa.Schema:
        return self.result

    def open(self, arguments: Mapping[str, pa.Scalar], rows: pa.Schema) -> InOutCall:
        return self

    def process(self, rows: pa.RecordBatch) -> list[pa.RecordBatch]:
        return ROWS.cast(self.result).to_batches()


@pytest.fixture
def table() -> Changing:
    return Changing()


@pytest.fixture
def function() -> Returning:
    return Returning()


@pytest.fixture
def over_rows() -> Echoing:
    return Echoing()


@pytest.fixture
def raw(table: Changing, function: Returning, over_rows: Echoing) -> Iterator[Raw]:
    builder = CatalogBuilder("demo")
    schema = builder.schema("s")
    schema.table(table)
    schema.table_function(function)
    schema.table_function(over_rows)
    with Server(builder.build(), port=0) as server, Raw(server.location) as client:
        yield client


OTHER = pa.table({"b": [1.5], "a": ["x"]})


def trace(number: str) -> tuple[str, str]:
    return "airport-trace-id", number


def ask(raw: Raw, action: str, body: object, *headers: tuple[str, str]) -> bytes:
    (answer,) = raw.action(action, encode(body), *headers)
    return answer


def tickets(raw: Raw, path: tuple[str, ...], *headers: tuple[str, str], **parameters: Any) -> list[bytes]:
    request = EndpointsRequest(packed(descriptor(*path)), ScanParameters(**parameters))
    answers = decode(ask(raw, "endpoints", request, *headers), list[bytes], "endpoints")
    return [flight.FlightEndpoint.FromString(data).ticket.ticket for data in answers]


def test_ticket_is_not_redeemed_for_other_columns(raw: Raw, table: Changing) -> None:
    (ticket,) = tickets(raw, ("demo", "s", "t"))
    assert list(raw.get(ticket))
    table.rows = OTHER
    code, message = code_of(raw.get(ticket))
    assert code is Code.FAILED_PRECONDITION
    assert "table 's.t': the table changed" in message


def test_stream_keeps_the_schema_that_was_checked_if_the_table_changes_while_it_is_scanned(
    raw: Raw, table: Changing
) -> None:
    def change() -> None:
        table.rows = ROWS.add_column(0, "first", pa.array(["x", "y"])).select(["first", "c", "b", "a"])

    table.on_scan = change
    (ticket,) = tickets(raw, ("demo", "s", "t"))
    reader = BatchReader(raw.get(ticket))
    assert pa.Table.from_batches(list(reader), reader.schema).equals(ROWS)

    table.rows, table.on_scan = ROWS, lambda: setattr(table, "rows", OTHER)
    (ticket,) = tickets(raw, ("demo", "s", "t"))
    code, message = code_of(raw.get(ticket))
    assert code is Code.INTERNAL
    assert message == "the scan of table 's.t' did not return the requested column 'c': it returned 'b', 'a'"


def test_table_named_by_a_user_is_bound_by_the_id_of_the_scan(raw: Raw, table: Changing) -> None:
    for number in ("1", "2"):
        raw.unary("GetFlightInfo", descriptor("demo", "s", "t"), trace(number))
    assert tickets(raw, ("demo", "s", "t"), trace("1"))
    table.rows = OTHER
    for action in ("endpoints", "column_statistics"):
        body = (
            EndpointsRequest(packed(descriptor("demo", "s", "t")), ScanParameters())
            if action == "endpoints"
            else StatisticsRequest(packed(descriptor("demo", "s", "t")), "a", "BIGINT")
        )
        code, message = code_of(lambda action=action, body=body: ask(raw, action, body, trace("2")))
        assert code is Code.FAILED_PRECONDITION, action
        assert "than when the query was planned" in message
    assert tickets(raw, ("demo", "s", "t"), trace("3")), "a new query uses the new columns"


def test_columns_of_a_function_are_those_that_the_query_was_planned_with(raw: Raw, function: Returning) -> None:
    path = ("demo", "s", "f", "table_function", "")
    request = TableFunctionRequest(packed(descriptor(*path)))
    ask(raw, "table_function_flight_info", request, trace("1"))
    (ticket,) = tickets(raw, path, trace("1"))
    function.rows = OTHER
    for late in (lambda: tickets(raw, path, trace("1")), lambda: list(raw.get(ticket))):
        code, message = code_of(late)
        assert code is Code.FAILED_PRECONDITION
        assert message == "function s.f: its columns changed since the query was planned: run the query again"
    ask(raw, "table_function_flight_info", request, trace("2"))
    (ticket,) = tickets(raw, path, trace("2"))
    assert list(raw.get(ticket))


def test_columns_of_a_function_over_rows_are_those_that_the_query_was_planned_with(
    raw: Raw, over_rows: Echoing
) -> None:
    path = ("demo", "s", "g", "table_function", "")
    given = pa.schema({"n": pa.int64()})
    request = TableFunctionRequest(packed(descriptor(*path)), table_input_schema=packed(given.serialize().to_pybytes()))
    raw.metadata = (*raw.metadata, ("airport-client-session-id", "session"))
    opening = encode(InOutParameters())

    def run() -> pa.Schema:
        exchange = Exchange(raw, path, given, "table_function_in_out", returning=True, opening=opening)
        exchange.half_close()
        return exchange.schema

    ask(raw, "table_function_flight_info", request, trace("1"))
    assert run().equals(COLUMNS)
    over_rows.result = pa.schema({"a": pa.string(), "b": pa.string(), "c": pa.string()})
    with pytest.raises(grpc.RpcError) as failed:
        run()
    assert failed.value.code() is Code.FAILED_PRECONDITION
    ask(raw, "table_function_flight_info", request, trace("2"))
    assert run().equals(over_rows.result)


def test_table_in_the_past_has_an_address_of_its_own(raw: Raw, table: Changing) -> None:
    def info(address: flight.FlightDescriptor, *headers: tuple[str, str]) -> flight.FlightInfo:
        request = FlightInfoRequest(packed(address.SerializeToString()), "VERSION", "1")
        return flight.FlightInfo.FromString(ask(raw, "flight_info", request, *headers))

    table.rows = OTHER
    with AirportClient(raw.target, "demo") as db:
        known = db.table("s.t").descriptor
    first = info(known)
    assert first.flight_descriptor != known, "the client uses it as the address of the table in the past"
    assert info(first.flight_descriptor, trace("1")).flight_descriptor == first.flight_descriptor
    path = tuple(first.flight_descriptor.path)
    (ticket,) = tickets(raw, path, at_unit="VERSION", at_value="1")
    reader = BatchReader(raw.get(ticket))
    assert pa.Table.from_batches(list(reader), reader.schema).select(COLUMNS.names).equals(ROWS)
    table.past = OTHER
    for late in (
        lambda: info(first.flight_descriptor, trace("1")),
        lambda: tickets(raw, path, at_unit="VERSION", at_value="1"),
        lambda: list(raw.get(ticket)),
    ):
        assert code_of(late)[0] is Code.FAILED_PRECONDITION


# -- tables without row ids ---------------------------------------------------------------------------------------------


def test_table_without_row_ids_can_be_counted_and_rejects_update_and_delete_clearly() -> None:
    asked: list[ScanOptions] = []
    builder = CatalogBuilder("demo")

    @builder.schema("s").table(schema=COLUMNS)
    def t(scan: ScanOptions) -> pa.Table:
        asked.append(scan)
        return ROWS.select(scan.columns or ROWS.schema.names)

    with (
        Server(builder.build(), port=0) as server,
        AirportClient(server.location, "demo") as db,
        Raw(server.location) as raw,
    ):
        listed = db.table("s.t")
        assert listed.schema.names == ["a", "b", "c", "rowid"], "without one, DuckDB fails with an internal error"
        assert listed.columns == ("a", "b", "c")
        path = tuple(listed.descriptor.path)
        assert raw.scan(*path, columns=[ROWID_COLUMN]).column("rowid").to_pylist() == [None, None]
        assert asked.pop().columns == ["a"]
        rows = raw.scan(*path, columns=[2, ROWID_COLUMN])
        assert (rows.schema.names, rows.column("c").to_pylist()) == (["a", "b", "c", "rowid"], [11, 22])
        assert asked.pop().columns == ["c"]
        assert db.scan("s.t", columns=["a"], where=col("rowid").is_null()).read_all().num_rows == 2
        assert not asked.pop().filter, "the table has no such column"
        with pytest.raises(PreconditionFailed, match="table 't' does not support UPDATE"):
            db.update("s.t", {"b": "x"})
        with pytest.raises(PreconditionFailed, match="table 't' does not support DELETE"):
            db.delete("s.t", where=col("a") == 1)
        assert raw.scan("demo", "s", "t").schema.equals(COLUMNS), "other Flight clients see the table as it is"


def test_table_whose_column_is_called_like_the_row_id_stays_as_it_is() -> None:
    schema = pa.schema({"RowID": pa.int64()})
    assert as_listed(schema).equals(schema)


# -- tables that are dropped while they are listed ----------------------------------------------------------------------


def test_listing_leaves_out_what_is_dropped_at_the_same_time() -> None:
    class Dropping(Schema):
        name = "s"

        def __init__(self, schema: MemorySchema) -> None:
            self._schema = schema

        def tables(self) -> list[Table]:
            found: list[Table] = list(self._schema.tables())
            if any(table.name == "gone" for table in found):
                self._schema.drop_table("gone")
            return found

    class Half(Schema):
        name = "half"

        def tables(self) -> list[Table]:
            raise NotFound("schema 'half' not found")

    class Live(Catalog):
        name = "m"

        def __init__(self) -> None:
            self.memory = MemoryCatalog("m", schemas=["s"])
            schema = self.memory.schema("s")
            assert schema is not None
            self.inner = schema
            schema.create_table(CreateTable("kept", COLUMNS))

        def schemas(self) -> list[Schema]:
            self.inner.create_table(CreateTable("gone", COLUMNS))
            return [Dropping(self.inner), Half()]

    with Server(Live(), port=0) as server, AirportClient(server.location, "m") as db, Raw(server.location) as raw:
        assert [(schema.name, [table.name for table in schema.tables]) for schema in db.schemas()] == [("s", ["kept"])]
        infos = [flight.FlightInfo.FromString(data) for data in raw.stream("ListFlights", b"")]
        assert [list(info.flight_descriptor.path) for info in infos] == [["m", "s", "kept"]]


# -- dictionaries -------------------------------------------------------------------------------------------------------

WORDS = pa.dictionary(pa.int8(), pa.string())
NESTED = pa.schema(
    {
        "d": WORDS,
        "s": pa.struct({"d": WORDS, "i": pa.int64()}),
        "l": pa.list_(WORDS),
        "m": pa.map_(pa.string(), WORDS),
        "f": pa.list_(WORDS, 1),
        "x": pa.dictionary(pa.int8(), pa.struct({"d": pa.string()})),
    }
)
VALUES: list[dict[str, Any]] = [
    {"d": "a", "s": {"d": "b", "i": 1}, "l": ["c", "d"], "m": [("k", "e")], "f": ["f"], "x": {"d": "g"}},
    {"d": None, "s": None, "l": [None], "m": [("k", None)], "f": [None], "x": None},
]
PLAIN = pa.schema(
    {
        "d": pa.string(),
        "s": pa.struct({"d": pa.string(), "i": pa.int64()}),
        "l": pa.list_(pa.string()),
        "m": pa.map_(pa.string(), pa.string()),
        "f": pa.list_(pa.string(), 1),
        "x": pa.struct({"d": pa.string()}),
    }
)


def dictionaries() -> pa.Table:
    structs = pa.array([{"d": "g"}], pa.struct({"d": pa.string()}))
    columns = [pa.array([row[name] for row in VALUES], NESTED.field(name).type) for name in NESTED.names[:-1]]
    return pa.table([*columns, pa.DictionaryArray.from_arrays(pa.array([0, None], pa.int8()), structs)], schema=NESTED)


def test_functions_send_plain_values_instead_of_dictionaries(raw: Raw, function: Returning) -> None:
    function.rows = dictionaries()
    path = ("demo", "s", "f", "table_function", "")
    body = ask(raw, "table_function_flight_info", TableFunctionRequest(packed(descriptor(*path))), trace("1"))
    assert pa.ipc.read_schema(pa.py_buffer(flight.FlightInfo.FromString(body).schema)).equals(PLAIN)
    assert raw.scan(*path).schema.equals(PLAIN)
    assert raw.scan(*path).to_pylist() == VALUES


def test_functions_over_rows_and_scalar_functions_send_plain_values_instead_of_dictionaries() -> None:
    class Encoding(Echoing):
        result = pa.schema({"d": WORDS})

        def process(self, rows: pa.RecordBatch) -> list[pa.RecordBatch]:
            return [pa.record_batch([rows.column(0).dictionary_encode().cast(WORDS)], names=["d"])]

    builder = CatalogBuilder("demo")
    schema = builder.schema("s")
    schema.table_function(Encoding())

    @schema.scalar_function(returns=WORDS)
    def encoded(values: WORDS) -> pa.Array:  # type: ignore[valid-type]
        return values.dictionary_encode() if not pa.types.is_dictionary(values.type) else values  # type: ignore[attr-defined]

    with Server(builder.build(), port=0) as server, AirportClient(server.location, "demo") as db:
        rows = db.call("s.g", rows=pa.table({"n": ["x", None]})).read_all()
        assert (rows.schema, rows.to_pylist()) == (pa.schema({"d": pa.string()}), [{"d": "x"}, {"d": None}])
        result = db.call_scalar("s.encoded", pa.array(["x", None]))
        assert (result.type, result.to_pylist()) == (pa.string(), ["x", None])


def test_tables_send_dictionaries_only_at_the_top_of_a_column() -> None:
    builder = CatalogBuilder("demo")
    builder.schema("s").table(schema=NESTED, name="t")(lambda scan: dictionaries())
    with (
        Server(builder.build(), port=0) as server,
        AirportClient(server.location, "demo") as db,
        Raw(server.location) as raw,
    ):
        listed = db.table("s.t").schema
        assert listed.field("d").type == WORDS
        assert [listed.field(name).type for name in ("s", "l", "m", "f")] == [
            PLAIN.field(name).type for name in ("s", "l", "m", "f")
        ]
        assert listed.field("x").type == NESTED.field("x").type
        assert raw.scan("demo", "s", "t").schema.equals(PLAIN), "DuckDB does not resolve them in airport_take_flight"
        assert db.scan("s.t").read_all().to_pylist() == raw.scan("demo", "s", "t").to_pylist() == VALUES
