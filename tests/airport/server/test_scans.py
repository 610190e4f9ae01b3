"""Scans over a real socket: sizes, projection, return types of a scan, and cleanup."""

from __future__ import annotations

import datetime as dt
import gc
import json
import threading
import uuid
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import duckdb
import grpc
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.flight as fl
import pytest

from airport.raw import Raw, code_of
from skiway.airport import CatalogBuilder, InOutCall, ScanOptions, Server, TableInOutFunction, current_request
from skiway.airport.tables import record_batches
from skiway.airport.wire.frames import parse_frame
from skiway.airport.wire.protocol import ROWID_COLUMN, Progress, decode
from skiway.client import AirportClient
from skiway.errors import Internal, PreconditionFailed

ROWID = pa.field("rowid", pa.int64(), metadata={"is_rowid": "1"})


def serving(schema: pa.Schema, scan) -> Server:
    catalog = CatalogBuilder("demo")
    catalog.schema("s").table(schema=schema, name="t")(scan)
    return Server(catalog.build(), port=0)


@pytest.mark.parametrize("rows", [0, 1, 2048, 2049, 5_000_000])
def test_all_rows_arrive(rows: int) -> None:
    table = pa.table({"id": pa.array(range(rows), pa.int64())})
    with (
        serving(table.schema, lambda scan: table.to_batches(max_chunksize=65_536)) as server,
        Raw(server.location) as raw,
    ):
        scanned = raw.scan("demo", "s", "t", columns=[0])
    assert scanned.schema.equals(table.schema)
    assert scanned.num_rows == rows
    assert scanned["id"].combine_chunks() == table["id"].combine_chunks()


def test_one_column_of_a_hundred_costs_a_twentieth() -> None:
    table = pa.table({f"c{i}": pa.array(range(i, i + 100_000), pa.int64()) for i in range(100)})
    with serving(table.schema, lambda scan: table) as server, Raw(server.location) as raw:
        (all_columns,) = raw.endpoints("demo", "s", "t", columns=range(100))
        (one,) = raw.endpoints("demo", "s", "t", columns=[7])
        wide = sum(map(len, raw.get(all_columns.ticket.ticket)))
        narrow = sum(map(len, raw.get(one.ticket.ticket)))
        scanned = raw.scan("demo", "s", "t", columns=[7])
    assert narrow < 0.05 * wide
    assert scanned.schema.equals(table.schema)
    assert scanned["c7"].to_pylist() == table["c7"].to_pylist()
    assert scanned["c8"].null_count == scanned.num_rows


def test_a_batch_of_mostly_real_data_is_not_compressed() -> None:
    table = pa.table({"small": pa.array(range(10_000), pa.int64()), "large": pa.array(["x" * 100] * 10_000)})
    with serving(table.schema, lambda scan: table) as server, Raw(server.location) as raw:
        (large,) = raw.endpoints("demo", "s", "t", columns=[1])
        (small,) = raw.endpoints("demo", "s", "t", columns=[0])
        assert sum(map(len, raw.get(large.ticket.ticket))) > table["large"].nbytes
        assert sum(map(len, raw.get(small.ticket.ticket))) < 2 * table["small"].nbytes
        assert raw.scan("demo", "s", "t", columns=[1])["large"].to_pylist() == table["large"].to_pylist()


def test_scan_gets_each_column_once_in_the_clients_order() -> None:
    seen: list[ScanOptions] = []
    schema = pa.schema([pa.field("a", pa.int64()), ROWID, pa.field("b", pa.int64())])

    def scan(options: ScanOptions) -> pa.Table:
        seen.append(options)
        return pa.table({"a": [1], "rowid": [7], "b": [2]}, schema)

    with serving(schema, scan) as server, Raw(server.location) as raw:
        raw.scan("demo", "s", "t", columns=[1, ROWID_COLUMN, 1, 0])
        raw.scan("demo", "s", "t")
    assert [options.columns for options in seen] == [["b", "rowid", "a"], None]


def test_rowid_is_at_its_position_and_not_counted_as_a_column() -> None:
    schema = pa.schema([pa.field("a", pa.int64()), ROWID, pa.field("b", pa.string())])
    table = pa.table({"a": [1], "rowid": [7], "b": ["x"]}, schema)
    with serving(schema, lambda scan: table) as server, Raw(server.location) as raw:
        only_b = raw.scan("demo", "s", "t", columns=[1])
        only_rowid = raw.scan("demo", "s", "t", columns=[ROWID_COLUMN])
    assert only_b.to_pylist() == [{"a": None, "rowid": None, "b": "x"}]
    assert only_rowid.to_pylist() == [{"a": None, "rowid": 7, "b": None}]


def test_column_id_out_of_range_is_rejected() -> None:
    with serving(pa.schema({"a": pa.int64()}), lambda scan: ()) as server, Raw(server.location) as raw:
        code, message = code_of(lambda: raw.endpoints("demo", "s", "t", columns=[5]))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "5" in message


class Stream:
    """Any object with the Arrow stream interface."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def __arrow_c_stream__(self, requested_schema=None):
        return self.table.__arrow_c_stream__(requested_schema)


SOURCES = {
    "table": lambda t: t,
    "batch": lambda t: t.to_batches()[0],
    "list of batches": lambda t: t.to_batches(),
    "generator of batches": lambda t: iter(t.to_batches()),
    "generator of tables": lambda t: iter([t]),
    "reader": lambda t: t.to_reader(),
    "dataset scanner": lambda t: ds.dataset(t).scanner(),
    "dataset": lambda t: ds.dataset(t),
    "duckdb relation": lambda t: duckdb.from_arrow(t),
    "pandas frame": lambda t: t.to_pandas(),
    "arrow stream interface": Stream,
    "other column order": lambda t: t.select(["name", "id"]),
    "castable types": lambda t: t.set_column(0, "id", t["id"].cast(pa.int32())),
    "more columns than asked": lambda t: t.append_column("extra", t["id"]),
    "dict of lists": lambda t: t.to_pydict(),
    "dict of arrays": lambda t: {"id": t["id"], "name": t["name"].combine_chunks()},
    "list of rows": lambda t: t.to_pylist(),
    "generator of rows": lambda t: iter(t.to_pylist()),
    "rows and batches": lambda t: iter([t.to_pylist()[0], t.slice(1).to_batches()[0]]),
    "rows with missing values": lambda t: [{"id": 1, "name": "Ada"}, {"id": 2}],
    "arrow array interface": lambda t: t.to_struct_array().combine_chunks(),
    "empty batches in between": lambda t: [t.to_batches()[0].slice(0, 0), *t.to_batches()],
}


@pytest.mark.parametrize("source", SOURCES)
def test_a_scan_may_return(source: str) -> None:
    table = pa.table({"id": [1, 2], "name": ["Ada", None]})
    with serving(table.schema, lambda scan: SOURCES[source](table)) as server, Raw(server.location) as raw:
        assert raw.scan("demo", "s", "t", columns=[0, 1]).to_pylist() == table.to_pylist()


def test_a_missing_column_arrives_as_nulls() -> None:
    schema = pa.schema({"id": pa.int64(), "name": pa.string()})
    with serving(schema, lambda scan: pa.table({"name": ["Ada"]})) as server, Raw(server.location) as raw:
        assert raw.scan("demo", "s", "t", columns=[1]).to_pylist() == [{"id": None, "name": "Ada"}]


def test_rows_as_dicts_get_the_announced_types() -> None:
    """The type of a Python value is not always that of its column, and some types have no values of their own."""
    schema = pa.schema({"small": pa.int8(), "u": pa.uuid(), "m": pa.map_(pa.string(), pa.float64()), "d": pa.date32()})
    row = {"small": 1, "u": uuid.UUID(int=7), "m": {"a": 1}, "d": dt.date(2025, 1, 2), "unknown": object}
    with serving(schema, lambda scan: [row, {}]) as server, Raw(server.location) as raw:
        found = raw.scan("demo", "s", "t")
    assert found.schema.types == schema.types
    assert found.to_pylist() == [
        {"small": 1, "u": uuid.UUID(int=7), "m": [("a", 1.0)], "d": dt.date(2025, 1, 2)},
        dict.fromkeys(schema.names),
    ]


@pytest.mark.parametrize(("first", "kind"), [(True, iter), (True, list), (False, list)])
def test_column_that_only_some_rows_have_is_null_in_the_others(first: bool, kind: Callable[..., Any]) -> None:
    """Rows are sent in batches, and a whole batch can be without it."""
    numbers = range(10_000)
    named = numbers[0] if first else numbers[-1]
    schema = pa.schema({"id": pa.int64(), "name": pa.string()})
    rows = [{"id": number} | ({"name": "Ada"} if number == named else {}) for number in numbers]
    with serving(schema, lambda scan: kind(rows)) as server, Raw(server.location) as raw:
        found = raw.scan("demo", "s", "t", columns=[0, 1])
    assert found["id"].to_pylist() == list(numbers)
    assert found["name"].null_count == len(numbers) - 1
    assert found["name"][named].as_py() == "Ada"


def test_many_rows_as_dicts_stream() -> None:
    sent = []

    def rows(scan: ScanOptions) -> Iterator[dict[str, int]]:
        for number in range(10_000):
            sent.append(number)
            yield {"id": number}

    batches = record_batches(rows(ScanOptions()), pa.schema({"id": pa.int64()}))
    assert next(batches).num_rows == len(sent) < 10_000
    assert sum(batch.num_rows for batch in batches) + 4096 == 10_000


READ = "which cannot be read as Arrow: return a pyarrow table or batches of it, a dict of columns, or a list of rows as dicts"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (42, f"returned an int, {READ}"),
        (None, "returned None: return its rows as Arrow data, such as pa.table({…})"),
        ("rows", f"returned a str, {READ}"),
        (b"rows", f"returned a bytes, {READ}"),
        (["row"], f"returned a str, {READ}"),
        ([(1, "Ada")], f"returned a tuple, {READ}"),
        ([None], "returned None: return its rows as Arrow data, such as pa.table({…})"),
        (pa.array([1]), f"returned an Int64Array, {READ}"),
        (pa.chunked_array([[1]]), f"returned a ChunkedArray, {READ}"),
        (
            {"id": 1},
            "returned an int as column 'id': return a list or an array for each column, or a list of rows as dicts",
        ),
        ({"id": [1], "name": []}, "returned columns of different lengths: 'id' has 1, 'name' has 0"),
        ({7: [1]}, "returned a dict with the key 7: keys must be the names of columns"),
        (
            {"id": ["x"]},
            "returned values of another type than int64 for column 'id': return values of that type",
        ),
    ],
)
def test_scan_that_returns_no_arrow_data_is_a_clear_error(wrong: object, message: str) -> None:
    schema = pa.schema({"id": pa.int64(), "name": pa.string()})
    with serving(schema, lambda scan: wrong) as server, Raw(server.location) as raw:
        assert code_of(lambda: raw.scan("demo", "s", "t")) == (
            grpc.StatusCode.INTERNAL,
            f"the scan of table 's.t' {message}",
        )


def test_column_of_an_incompatible_type_is_an_error_that_names_it() -> None:
    with (
        serving(pa.schema({"id": pa.int64()}), lambda scan: pa.table({"id": ["x"]})) as server,
        Raw(server.location) as raw,
    ):
        code, message = code_of(lambda: raw.scan("demo", "s", "t"))
    assert code is grpc.StatusCode.INTERNAL
    assert "'id'" in message
    assert "int64" in message


def test_error_in_the_middle_of_a_scan_reaches_the_client() -> None:
    def scan(options: ScanOptions):
        yield pa.record_batch({"id": [1]})
        raise PreconditionFailed("the tape broke at row 2")

    with serving(pa.schema({"id": pa.int64()}), scan) as server, Raw(server.location) as raw:
        (endpoint,) = raw.endpoints("demo", "s", "t")
        frames = raw.get(endpoint.ticket.ticket)
        assert parse_frame(next(frames)).header
        assert parse_frame(next(frames)).body
        with pytest.raises(grpc.RpcError) as failed:
            next(frames)
    assert failed.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert failed.value.details() == "the tape broke at row 2"


def test_reader_is_closed_when_the_client_stops_early() -> None:
    closed = threading.Event()

    def scan(options: ScanOptions):
        try:
            while True:
                yield pa.record_batch({"id": range(10_000)})
        finally:
            closed.set()

    with serving(pa.schema({"id": pa.int64()}), scan) as server, Raw(server.location) as raw:
        (endpoint,) = raw.endpoints("demo", "s", "t")
        frames = raw.get(endpoint.ticket.ticket)
        next(frames)
        next(frames)
        frames.cancel()  # type: ignore[attr-defined]
        assert closed.wait(200)


def test_data_of_a_finished_scan_is_released() -> None:
    references: list[weakref.ref[pa.Table]] = []

    def scan(options: ScanOptions) -> pa.Table:
        table = pa.table({"id": range(10)})
        references.append(weakref.ref(table))
        return table

    with serving(pa.schema({"id": pa.int64()}), scan) as server, Raw(server.location) as raw:
        raw.scan("demo", "s", "t")
    gc.collect()
    assert references[0]() is None


def test_wide_batches_are_split_into_messages_of_bounded_size() -> None:
    table = pa.table({"v": pa.array(["x" * 1000] * 50_000)}).combine_chunks()
    with serving(table.schema, lambda scan: table) as server, Raw(server.location) as raw:
        (endpoint,) = raw.endpoints("demo", "s", "t")
        sizes = [len(frame) for frame in raw.get(endpoint.ticket.ticket)]
        assert raw.scan("demo", "s", "t").num_rows == 50_000
    assert max(sizes) < 10 * 1024 * 1024


def test_progress_is_reported_where_the_row_count_is_known() -> None:
    class Counted(pa_table_of(pa.table({"id": range(4)}))):  # type: ignore[misc]
        def row_count(self) -> int:
            return 4

    catalog = CatalogBuilder("demo")
    catalog.schema("s").table(Counted())
    with Server(catalog.build(), port=0) as server, Raw(server.location) as raw:
        (endpoint,) = raw.endpoints("demo", "s", "t")
        frames = [parse_frame(frame) for frame in raw.get(endpoint.ticket.ticket)]
    assert [decode(f.app_metadata, Progress, "x").progress for f in frames[1:]] == [0.5, 1.0]


def pa_table_of(table: pa.Table):
    from skiway.airport import Table

    class Fixed(Table):
        name = "t"
        schema = table.schema

        def scan(self, options: ScanOptions):
            return table.to_batches(max_chunksize=2)

    return Fixed


def test_scan_gets_the_filter_parsed_on_demand() -> None:
    seen: list[ScanOptions] = []

    def scan(options: ScanOptions):
        seen.append(options)
        return ()

    bigint = {"id": "BIGINT", "type_info": None}
    column = {"expression_class": "BOUND_COLUMN_REF", "type": "BOUND_COLUMN_REF", "alias": "id", "return_type": bigint}
    five = {"type": bigint, "is_null": False, "value": 5}
    comparison = {
        "expression_class": "BOUND_COMPARISON",
        "type": "COMPARE_GREATERTHAN",
        "left": {**column, "binding": {"table_index": 0, "column_index": 0}, "depth": 0},
        "right": {"expression_class": "BOUND_CONSTANT", "type": "VALUE_CONSTANT", "value": five},
    }
    sent = json.dumps({"filters": [comparison], "column_binding_names_by_index": ["id"]})
    with serving(pa.schema({"id": pa.int64()}), scan) as server, Raw(server.location) as raw:
        raw.scan("demo", "s", "t", json_filters=sent)
        raw.scan("demo", "s", "t", json_filters='{"filters":[],"column_binding_names_by_index":["id"]}')
    assert seen[0].filter.columns == {"id"}
    assert not seen[1].filter


def test_handler_sees_the_caller_and_the_request() -> None:
    seen = []

    def scan(options: ScanOptions):
        seen.append(current_request())
        yield pa.record_batch({"id": [1]})
        seen.append(current_request())

    headers = (
        ("airport-user-agent", "x"),
        ("airport-catalog", "demo"),
        ("airport-trace-id", "trace"),
        ("airport-client-session-id", "session"),
        ("airport-transaction-id", "tx"),
        ("x-own", "1"),
        ("x-own", "2"),
    )
    with serving(pa.schema({"id": pa.int64()}), scan) as server, Raw(server.location, headers) as raw:
        raw.scan("demo", "s", "t")
    first, second = seen
    assert first is second
    assert (first.method, first.catalog, first.trace_id, first.session_id, first.transaction_id) == (
        "DoGet", "demo", "trace", "session", "tx",
    )  # fmt: skip
    assert first.headers["x-own"] == ("1", "2")
    assert first.header("x-own") == "1"
    assert first.peer.startswith("ipv4:127.0.0.1")
    assert current_request().catalog == ""


def test_pyarrows_own_flight_client_reads_a_scan() -> None:
    table = pa.table({"id": [1, 2], "d": pa.array(["a", "b"]).dictionary_encode()})
    with serving(table.schema, lambda scan: table) as server, Raw(server.location) as raw:
        (endpoint,) = raw.endpoints("demo", "s", "t")
        with fl.connect(server.location) as client:
            read = client.do_get(fl.Ticket(endpoint.ticket.ticket)).read_all()
    assert read.to_pylist() == table.to_pylist()


# -- scans and functions that do not return what they declared ----------------------------------------------------------

STRICT = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string()), pa.field("n", pa.int64())]
)
GOOD = pa.table({"id": [1, 2], "name": ["a", None], "n": [3, 4]}, STRICT)
TWICE = pa.Table.from_arrays([*GOOD.columns, GOOD["name"]], names=["id", "name", "n", "name"])
NULLS = pa.table({"id": [1, None, None], "name": ["a", "b", "c"], "n": [1, 2, 3]})
NULL_IN_DICTIONARY = pa.table(
    {
        "id": pa.DictionaryArray.from_arrays(pa.array([0, 1]), pa.array([7, None])),
        "name": ["a", "b"],
        "n": [1, 2],
    }
)

RETURNED: dict[str, tuple[pa.Table, str]] = {
    "missing": (GOOD.drop_columns("name"), "did not return the requested column 'name': it returned 'id', 'n'"),
    "other case": (
        GOOD.rename_columns(["id", "Name", "n"]),
        "did not return the requested column 'name': it returned 'id', 'Name', 'n'",
    ),
    "no columns": (
        pa.Table.from_batches([pa.RecordBatch.from_struct_array(pa.array([{}, {}], pa.struct([])))]),
        "did not return the requested column 'id': it returned no columns",
    ),
    "twice": (TWICE, "returned column 'name' 2 times: it returned 'id', 'name', 'n', 'name'"),
    "NULL": (
        NULLS,
        "returned NULL in 2 of 3 rows of column 'id', which is NOT NULL: return values, or declare the column as nullable",
    ),
    "NULL in a dictionary": (
        NULL_IN_DICTIONARY,
        "returned NULL in 1 of 2 rows of column 'id', which is NOT NULL: return values, or declare the column as nullable",
    ),
}


@pytest.mark.parametrize("mistake", RETURNED)
def test_scan_or_function_that_returns_other_columns_than_it_declared_is_an_error(mistake: str) -> None:
    returned, complaint = RETURNED[mistake]
    builder = CatalogBuilder("demo")
    schema = builder.schema("s")
    schema.table(schema=STRICT, name="t")(lambda scan: returned)
    schema.table_function(schema=STRICT, name="f")(lambda: returned)

    class Call(InOutCall):
        def process(self, rows):
            return returned.to_batches()

    class OverRows(TableInOutFunction):
        name = "g"

        def schema_for(self, arguments, rows):
            return STRICT

        def open(self, arguments, rows):
            return Call()

    schema.table_function(OverRows())
    with (
        Server(builder.build(), port=0) as server,
        Raw(server.location) as raw,
        AirportClient(server.location, "demo") as db,
    ):
        internal = grpc.StatusCode.INTERNAL
        assert code_of(lambda: raw.scan("demo", "s", "t")) == (internal, f"the scan of table 's.t' {complaint}")
        function = ("demo", "s", "f", "table_function", "")
        assert code_of(lambda: raw.scan(*function)) == (internal, f"function s.f {complaint}")
        with pytest.raises(Internal) as failed:
            db.call("s.g", rows=pa.table({"x": [1]})).read_all()
        assert failed.value.message == f"function s.g {complaint}"


def test_columns_that_were_not_requested_may_be_missing_or_wrong() -> None:
    for returned in (GOOD.select(["n"]), NULLS, TWICE):
        with serving(STRICT, lambda scan, returned=returned: returned) as server, Raw(server.location) as raw:
            rows = raw.scan("demo", "s", "t", columns=[2])
            assert rows["n"].to_pylist() == returned["n"].to_pylist()
            assert rows["id"].null_count == rows.num_rows


def test_rows_that_are_as_declared_are_sent_without_a_copy_or_a_complaint() -> None:
    with serving(STRICT, lambda scan: GOOD) as server, Raw(server.location) as raw:
        assert raw.scan("demo", "s", "t").equals(GOOD)
        assert raw.scan("demo", "s", "t", columns=[0, 1, 2]).equals(GOOD)
