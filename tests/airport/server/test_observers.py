"""Observers of a library server: what they see of each kind of call."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from runtime.servers import eventually
from skiway.airport import (
    BearerAuth,
    CatalogBuilder,
    DmlOptions,
    DmlResult,
    Insertable,
    Limits,
    ScanOptions,
    ServedCall,
    Server,
    Table,
)
from skiway.airport.memory import MemoryCatalog
from skiway.client import AirportClient
from skiway.errors import Cancelled, NotFound, SkiwayError, TimedOut, Unauthorized
from skiway.foundation.doors import outcome_of

ROWS = pa.table({"id": [1, 2, 3], "name": ["Ada", "Grace", "Edsger"]})


@dataclass
class Seen:
    """An observer that records every call and its outcome."""

    calls: list[ServedCall] = field(default_factory=list)
    errors: list[BaseException] = field(default_factory=list)

    @contextmanager
    def __call__(self, call: ServedCall) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self.errors.append(error)
            raise
        finally:
            self.calls.append(call)

    def last(self, operation: str) -> ServedCall:
        return next(call for call in reversed(self.calls) if call.operation == operation)


def demo() -> CatalogBuilder:
    builder = CatalogBuilder("demo")
    schema = builder.schema("s")
    schema.table(schema=ROWS.schema, name="people")(lambda scan: ROWS)

    @schema.scalar_function
    def shout(text: pa.StringArray) -> pa.StringArray:
        return pc.utf8_upper(text)

    @schema.table_function(schema=pa.schema({"n": pa.int64()}))
    def numbers(upto: pa.Int64Scalar):
        yield pa.record_batch({"n": range(upto.as_py())})

    return builder


def test_reads_and_functions_are_observed_with_their_rows_and_bytes() -> None:
    seen = Seen()
    with Server(demo().build(), port=0, observers=[seen]) as server, AirportClient(server.location, "demo") as db:
        assert db.scan("s.people").read_all().num_rows == 3
        scan = seen.last("scan")
        assert (scan.method, scan.request.catalog, scan.schema, scan.name) == ("DoGet", "demo", "s", "people")
        assert (scan.rows_in, scan.rows_out) == (0, 3)
        assert scan.bytes_out > ROWS.nbytes
        assert db.call_scalar("s.shout", pa.array(["a", "b"])).to_pylist() == ["A", "B"]
        function = seen.last("scalar_function")
        assert (function.name, function.rows_in, function.rows_out) == ("shout", 2, 2)
        assert db.call("s.numbers", 5).read_all().num_rows == 5
        assert (seen.last("table_function").name, seen.last("table_function").rows_out) == ("numbers", 5)
    assert {"list_schemas", "endpoints"} <= {call.operation for call in seen.calls}
    assert seen.errors == []


def test_writes_and_definitions_are_observed_with_their_target() -> None:
    seen = Seen()
    catalog = MemoryCatalog("scratch", schemas=["s"])
    with Server(catalog, port=0, observers=[seen]) as server, AirportClient(server.location, "scratch") as db:
        db.create_table("s.people", ROWS.schema)
        created = seen.last("create_table")
        assert (created.method, created.schema, created.name) == ("DoAction", "s", "people")
        db.insert("s.people", ROWS)
        insert = seen.last("insert")
        assert (insert.schema, insert.name, insert.rows_in) == ("s", "people", 3)
        assert insert.bytes_in > ROWS.nbytes


def test_observers_see_errors_and_are_entered_before_the_caller_is_known() -> None:
    seen = Seen()
    auth = BearerAuth({"secret": "ada"}.get)
    with Server(demo().build(), port=0, auth=auth, observers=[seen]) as server:
        with AirportClient(server.location, "demo", token="secret") as db, pytest.raises(NotFound):
            db.scan("s.nobody").read_all()
        assert seen.calls[-1].request.identity == "ada"
        with AirportClient(server.location, "demo", token="wrong") as db, pytest.raises(SkiwayError):
            db.schemas()
    assert isinstance(seen.errors[-1], Unauthorized)
    assert seen.calls[-1].request.identity == ""


def test_callers_correlation_id_is_kept_and_otherwise_generated() -> None:
    seen = Seen()
    with Server(demo().build(), port=0, observers=[seen]) as server, AirportClient(server.location, "demo") as db:
        db.schemas()
    assert all(call.correlation_id for call in seen.calls)


def test_several_observers_are_entered_in_order_and_exited_in_reverse() -> None:
    steps: list[str] = []

    def observer(name: str):
        @contextmanager
        def observe(call: ServedCall) -> Iterator[None]:
            steps.append(f"{name} in")
            yield
            steps.append(f"{name} out")

        return observe

    observers = [observer("a"), observer("b")]
    with Server(demo().build(), port=0, observers=observers) as server, AirportClient(server.location, "demo") as db:
        db.schemas()
    assert steps[:4] == ["a in", "b in", "b out", "a out"]


def test_a_client_learns_that_its_rows_are_committed_after_the_observers_are_done() -> None:
    observed, leave = threading.Event(), threading.Event()

    @contextmanager
    def observe(call: ServedCall) -> Iterator[None]:
        yield
        if call.operation == "insert":
            observed.set()
            assert leave.wait(200)

    catalog = MemoryCatalog("scratch", schemas=["s"])
    with Server(catalog, port=0, observers=[observe]) as server, AirportClient(server.location, "scratch") as db:
        db.create_table("s.people", ROWS.schema)
        with ThreadPoolExecutor(1) as threads:
            inserted = threads.submit(db.insert, "s.people", ROWS)
            assert observed.wait(200)
            assert not inserted.done()
            leave.set()
            assert inserted.result(200).count == 3


class Inserted(Table, Insertable):
    name, comment, schema = "t", "", pa.schema({"id": pa.int64()})

    def scan(self, options: ScanOptions) -> pa.Table:
        return pa.table({"id": pa.array([], pa.int64())})

    def __init__(self) -> None:
        self.reads = threading.Event()

    def insert(self, rows: pa.RecordBatchReader, options: DmlOptions) -> DmlResult:
        self.reads.set()
        with duckdb.connect() as connection:
            read = connection.from_arrow(rows).to_arrow_table()
        return DmlResult(read.num_rows, read if options.returning else None)


@pytest.mark.parametrize("returning", [False, True])
def test_exchange_of_a_client_that_is_gone_is_observed_as_cancelled(returning: bool) -> None:
    seen, table, builder = Seen(), Inserted(), CatalogBuilder("demo")
    builder.schema("s").table(table)

    def rows() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"id": [1]})
        threading.Event().wait()

    with Server(builder.build(), port=0, observers=[seen]) as server:
        db = AirportClient(server.location, "demo")

        def insert() -> None:
            with suppress(SkiwayError):
                db.insert("s.t", pa.RecordBatchReader.from_batches(Inserted.schema, rows()), returning=returning)

        threading.Thread(target=insert, daemon=True).start()
        assert table.reads.wait(200)
        db.close()
        eventually(lambda: bool(seen.errors))
    assert [outcome_of(error) for error in seen.errors] == [Cancelled.code]


@pytest.mark.parametrize("returning", [False, True])
def test_idle_exchange_is_observed_as_timed_out(returning: bool) -> None:
    """Whatever the error looks like after the table has read the rows with another library."""
    seen, stop, builder = Seen(), threading.Event(), CatalogBuilder("demo")
    builder.schema("s").table(Inserted())

    def rows() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"id": [1]})
        stop.wait(3)

    with (
        Server(builder.build(), port=0, observers=[seen], limits=Limits(idle_s=0.3)) as server,
        AirportClient(server.location, "demo") as db,
    ):
        with pytest.raises(TimedOut):
            db.insert("s.t", pa.RecordBatchReader.from_batches(Inserted.schema, rows()), returning=returning)
        stop.set()
    assert [type(error) for error in seen.errors] == [TimedOut]
