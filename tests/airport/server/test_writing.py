"""INSERT, UPDATE and DELETE in lock-step, for every write interface that a table may implement."""

from __future__ import annotations

import threading
from collections.abc import Iterable

import grpc
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from airport.lockstep import Exchange, in_vectors
from airport.raw import Raw, descriptor
from skiway.airport import (
    CatalogBuilder,
    Deletable,
    DeletableBatch,
    DmlOptions,
    DmlResult,
    Insertable,
    Server,
    Statement,
    Table,
    Updatable,
    UpdatableBatch,
    Writable,
    Write,
    find_rowid_column,
)
from skiway.airport.wire.frames import FrameWriter, metadata_frame
from skiway.errors import ConstraintViolation, NotFound

Code = grpc.StatusCode
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("rowid", pa.int64())])
VISIBLE = pa.schema([("id", pa.int64()), ("name", pa.string())])


class Rows(Table):
    """A table of rows by id, as simple as possible."""

    name = "t"
    schema = SCHEMA

    def __init__(self, rows: Iterable[tuple[int, str | None]] = ()) -> None:
        self.rows = dict(enumerate(rows))
        self.calls: list[tuple[str, int, DmlOptions]] = []
        self.lock = threading.Lock()

    def scan(self, options):
        with self.lock:
            items = list(self.rows.items())
        return pa.table(
            {"id": [row[0] for _, row in items], "name": [row[1] for _, row in items], "rowid": [n for n, _ in items]},
            SCHEMA,
        )

    def add(self, rows: pa.Table) -> pa.Table:
        with self.lock:
            for row in rows.to_pylist():
                self.rows[len(self.rows)] = (row["id"], row["name"])
        return rows

    def change(self, ids: list[int], rows: pa.Table) -> pa.Table:
        for number, row in zip(ids, rows.to_pylist(), strict=True):
            if number not in self.rows:
                raise NotFound(f"row_id {number} not found in table")
            old = self.rows[number]
            self.rows[number] = (row.get("id", old[0]), row.get("name", old[1]))
        return pa.table(
            {"id": [self.rows[n][0] for n in ids], "name": [self.rows[n][1] for n in ids], "rowid": ids}, SCHEMA
        )

    def drop(self, ids: list[int]) -> pa.Table:
        deleted = [self.rows.pop(number) for number in ids]
        return pa.table({"id": [row[0] for row in deleted], "name": [row[1] for row in deleted]}, VISIBLE)


def result(rows: pa.Table, count: int, options: DmlOptions) -> DmlResult:
    return DmlResult(count, rows.to_reader() if options.returning else None)


class Simple(Rows, Insertable, Updatable, Deletable):
    """Row ids and values as separate arguments."""

    def insert(self, rows, options):
        table = rows.read_all()
        self.calls.append(("insert", table.num_rows, options))
        return result(self.add(table), table.num_rows, options)

    def update(self, row_ids, rows, options):
        table = rows.read_all()
        assert row_ids.type == pa.int64()
        assert find_rowid_column(table.schema) is None
        self.calls.append(("update", table.num_rows, options))
        return result(self.change(row_ids.to_pylist(), table), table.num_rows, options)

    def delete(self, row_ids, options):
        self.calls.append(("delete", len(row_ids), options))
        return result(self.drop(row_ids.to_pylist()), len(row_ids), options)


class InBatches(Rows, Insertable, UpdatableBatch, DeletableBatch, Updatable, Deletable):
    """Both interfaces; the one with the row id in the batch is preferred."""

    insert = Simple.insert

    def update(self, row_ids, rows, options):
        raise AssertionError("the batch form is preferred")

    def delete(self, row_ids, options):
        raise AssertionError("the batch form is preferred")

    def update_batch(self, rows, options):
        table = rows.read_all()
        self.calls.append(("update", table.num_rows, options))
        return result(self.change(ids(table), table), table.num_rows, options)

    def delete_batch(self, rows, options):
        table = rows.read_all()
        self.calls.append(("delete", table.num_rows, options))
        return result(self.drop(ids(table)), table.num_rows, options)


def ids(table: pa.Table) -> list[int]:
    return table.column(find_rowid_column(table.schema)).to_pylist()


class Statements(Rows, Writable):
    """Complete statements, all or nothing."""

    def __init__(self, rows: Iterable[tuple[int, str | None]] = ()) -> None:
        super().__init__(rows)
        self.ended: list[str] = []
        self.opened = threading.Event()
        self.aborted = threading.Event()

    def write(self, write: Write) -> Statement:
        self.opened.set()
        return CompleteStatement(self, write)


class CompleteStatement(Statement):
    def __init__(self, table: Statements, write: Write) -> None:
        self.table, self.write, self.batches, self.count = table, write, [], 0
        self.copy = Rows()
        with table.lock:
            self.copy.rows = dict(table.rows)

    def apply(self, rows):
        table = pa.Table.from_batches([rows])
        if table.num_columns and "id" in table.schema.names and pc.any(pc.equal(table["id"], -666)).as_py():
            raise ConstraintViolation("CHECK constraint failed on table t: id <> -666")
        match self.write.operation:
            case "insert":
                done = self.copy.add(table)
            case "update":
                done = self.copy.change(ids(table), table)
            case _:
                done = self.copy.drop(ids(table))
        self.count += rows.num_rows
        return done.combine_chunks().to_batches()[0] if self.write.options.returning and rows.num_rows else None

    def commit(self):
        with self.table.lock:
            self.table.rows = self.copy.rows
        self.table.ended.append("commit")
        return self.count

    def abort(self):
        self.table.ended.append("abort")
        self.table.aborted.set()


class ReadOnly(Rows):
    pass


def serving(table: Table) -> Server:
    builder = CatalogBuilder("demo")
    builder.schema("s").table(table)
    return Server(builder.build(), port=0)


PATH = ("demo", "s", "t")
FORMS = [Simple, InBatches, Statements]
UPDATE = pa.schema([("name", pa.string()), ("id", pa.int64()), ("rowid", pa.int64())])  # in the client's order
DELETE = pa.schema([("rowid", pa.int64())])


def numbered(rows: int) -> pa.Table:
    return pa.table({"id": range(rows), "name": [f"row {i}" for i in range(rows)]}, VISIBLE)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("returning", [False, True])
@pytest.mark.parametrize(
    "rows", [0, 1, 2049, *(pytest.param(each, marks=pytest.mark.full) for each in (2048, 100_000))]
)
def test_insert_update_delete_of_any_number_of_rows(form, returning: bool, rows: int) -> None:
    table = form()
    values = numbered(rows)
    with serving(table) as server, Raw(server.location) as raw:
        insert = Exchange(raw, PATH, VISIBLE, "insert", returning=returning)
        assert written(insert, in_vectors(values), returning) == values.to_pylist() * returning
        assert insert.finish() == rows
        assert list(table.rows.values()) == [tuple(row.values()) for row in values.to_pylist()]

        row_ids = pa.array(range(rows), pa.int64())
        names = pc.binary_join_element_wise(values["name"], "!", "")
        changed = pa.table({"name": names, "id": values["id"], "rowid": row_ids}, UPDATE)
        update = Exchange(raw, PATH, UPDATE, "update", returning=returning)
        assert written(update, in_vectors(changed), returning) == changed.to_pylist() * returning
        if returning:
            assert update.schema.names == UPDATE.names
        assert update.finish() == rows
        assert [row[1] for row in table.rows.values()] == [f"row {i}!" for i in range(rows)]

        delete = Exchange(raw, PATH, DELETE, "delete", returning=returning)
        deleted = written(delete, in_vectors(pa.table({"rowid": row_ids})), returning)
        assert deleted == changed.select(["id", "name"]).to_pylist() * returning
        assert delete.finish() == rows
        assert table.rows == {}


def written(exchange: Exchange, batches: list[pa.RecordBatch], returning: bool) -> list[dict[str, object]]:
    """Send all batches; with RETURNING, returns one batch of rows for each."""
    returned: list[dict[str, object]] = []
    for batch in batches:
        if returning:
            answer = exchange.ask(batch)
            assert answer.num_rows == batch.num_rows
            returned += answer.to_pylist()
        else:
            exchange.send(batch)
    return returned


def test_reader_interface_without_returning_gets_the_entire_statement_at_once() -> None:
    table = InBatches()
    with serving(table) as server, Raw(server.location) as raw:
        insert = Exchange(raw, PATH, VISIBLE, "insert", returning=False)
        written(insert, in_vectors(numbered(5000)), False)
        assert insert.finish() == 5000
        with_rows = Exchange(raw, PATH, VISIBLE, "insert", returning=True)
        written(with_rows, in_vectors(numbered(5000)), True)
        with_rows.finish()
    sizes = [(name, rows) for name, rows, _ in table.calls]
    assert sizes == [("insert", 5000), ("insert", 2048), ("insert", 2048), ("insert", 904)]
    assert table.calls[0][2] == DmlOptions(False, ())
    assert table.calls[1][2] == DmlOptions(True, ("id", "name"))


@pytest.mark.parametrize("operation", ["insert", "update", "delete"])
def test_writing_to_a_read_only_table_is_a_clear_error(operation: str) -> None:
    schema = {"insert": VISIBLE, "update": UPDATE, "delete": DELETE}[operation]
    with serving(ReadOnly()) as server, Raw(server.location) as raw, pytest.raises(grpc.RpcError) as failed:
        Exchange(raw, PATH, schema, operation, returning=False).finish()
    assert failed.value.code() is Code.FAILED_PRECONDITION
    assert failed.value.details() == f"table 't' does not support {operation.upper()} operations"


class OnlyUpdatableBatch(Rows, UpdatableBatch):
    update_batch = InBatches.update_batch


class OnlyUpdatable(Rows, Updatable):
    update = Simple.update


class OnlyDeletableBatch(Rows, DeletableBatch):
    delete_batch = InBatches.delete_batch


class OnlyDeletable(Rows, Deletable):
    delete = Simple.delete


@pytest.mark.parametrize(
    ("form", "updates", "deletes"),
    [
        (OnlyUpdatableBatch, True, False),
        (OnlyUpdatable, True, False),
        (OnlyDeletableBatch, False, True),
        (OnlyDeletable, False, True),
        (InBatches, True, True),
    ],
)
def test_each_interface_enables_only_its_own_statement(form, updates: bool, deletes: bool) -> None:
    for operation, schema, allowed in (("update", UPDATE, updates), ("delete", DELETE, deletes)):
        with serving(form([(1, "a")])) as server, Raw(server.location) as raw:
            rows = pa.record_batch({"name": ["b"], "id": [1], "rowid": [0]}, UPDATE).select(schema.names)
            if allowed:
                exchange = Exchange(raw, PATH, schema, operation, returning=False)
                exchange.send(rows)
                assert exchange.finish() == 1
            else:
                with pytest.raises(grpc.RpcError) as failed:
                    Exchange(raw, PATH, schema, operation, returning=False).finish()
                assert failed.value.code() is Code.FAILED_PRECONDITION


# -- row ids ----------------------------------------------------------------------------------------------------------


def failure(raw: Raw, operation: str, batch: pa.RecordBatch, *, returning: bool = False) -> tuple[Code, str]:
    def statement() -> None:
        exchange = Exchange(raw, PATH, batch.schema, operation, returning=returning)
        written(exchange, [batch], returning)
        exchange.finish()

    with pytest.raises(grpc.RpcError) as failed:
        statement()
    return failed.value.code(), failed.value.details() or ""


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("returning", [False, True])
@pytest.mark.parametrize("operation", ["update", "delete"])
def test_invalid_row_ids_change_nothing(form, operation: str, returning: bool) -> None:
    table = form([(1, "a"), (2, "b")])
    before = dict(table.rows)
    with serving(table) as server, Raw(server.location) as raw:
        missing = pa.record_batch({"name": ["x"]})
        code, message = failure(raw, operation, missing, returning=returning)
        assert (code, message) == (Code.INVALID_ARGUMENT, f"{operation.upper()} requires rowid column")
        text = pa.record_batch({"name": ["x"], "rowid": ["0"]})
        code, message = failure(raw, operation, text, returning=returning)
        assert code is Code.INVALID_ARGUMENT
        assert message.startswith("rowid must be integer type")
        null = pa.record_batch({"name": ["x"], "rowid": pa.array([None], pa.int64())})
        assert failure(raw, operation, null, returning=returning) == (
            Code.INVALID_ARGUMENT,
            "null rowid value not allowed",
        )
    assert table.rows == before


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("data_type", [pa.int64(), pa.int32(), pa.uint64()])
@pytest.mark.parametrize("marked", [False, True])
def test_row_ids_of_allowed_types_are_found_by_name_or_metadata(form, data_type: pa.DataType, marked: bool) -> None:
    table = form([(1, "a")])
    field = pa.field("key", data_type, metadata={"is_rowid": "1"}) if marked else pa.field("rowid", data_type)
    schema = pa.schema([pa.field("name", pa.string()), field])
    with serving(table) as server, Raw(server.location) as raw:
        exchange = Exchange(raw, PATH, schema, "update", returning=False)
        exchange.send(pa.record_batch({"name": ["z"], field.name: [0]}, schema))
        assert exchange.finish() == 1
    assert table.rows == {0: (1, "z")}


# -- violations of the lock-step --------------------------------------------------------------------------------------


class Miscounting(Rows, Insertable):
    def __init__(self, off_by: int) -> None:
        super().__init__()
        self.off_by = off_by

    def insert(self, rows, options):
        table = rows.read_all()
        returned = table.slice(1) if self.off_by < 0 else pa.concat_tables([table, table])
        return DmlResult(table.num_rows, returned if options.returning else None)


@pytest.mark.parametrize("off_by", [-1, 1])
def test_too_few_or_too_many_returned_rows_are_an_error_not_a_hang(off_by: int) -> None:
    with serving(Miscounting(off_by)) as server, Raw(server.location) as raw:
        code, message = failure(raw, "insert", pa.record_batch({"id": [1, 2], "name": ["a", "b"]}), returning=True)
    assert code is Code.INTERNAL
    assert message.startswith("RETURNING must return one row per written row: 2 rows were written")


def test_a_returned_batch_without_a_column_is_an_error() -> None:
    class Forgetful(Rows, Insertable):
        def insert(self, rows, options):
            table = rows.read_all()
            return DmlResult(table.num_rows, table.select(["id"]))

    with serving(Forgetful()) as server, Raw(server.location) as raw:
        code, message = failure(raw, "insert", pa.record_batch({"id": [1], "name": ["a"]}), returning=True)
    assert code is Code.INTERNAL
    assert "'name'" in message


def test_returned_rows_in_many_chunks_are_sent_as_one_batch() -> None:
    class Chunky(Rows, Insertable):
        def insert(self, rows, options):
            table = rows.read_all()
            return DmlResult(table.num_rows, [table.slice(i, 1) for i in range(table.num_rows)])

    with serving(Chunky()) as server, Raw(server.location) as raw:
        exchange = Exchange(raw, PATH, VISIBLE, "insert", returning=True)
        assert exchange.ask(pa.record_batch({"id": [1, 2], "name": ["a", "b"]}, VISIBLE)).num_rows == 2
        assert exchange.finish() == 2


def test_error_in_a_statement_has_a_duckdb_type_and_aborts_it() -> None:
    table = Statements()
    with serving(table) as server, Raw(server.location) as raw:
        exchange = Exchange(raw, PATH, VISIBLE, "insert", returning=True)
        exchange.ask(pa.record_batch({"id": [1], "name": ["fine"]}, VISIBLE))
        with pytest.raises(grpc.RpcError) as failed:
            exchange.ask(pa.record_batch({"id": [-666], "name": ["not"]}, VISIBLE))
    trailers = dict(failed.value.trailing_metadata())
    assert failed.value.code() is Code.FAILED_PRECONDITION
    assert b"ConstraintException" in trailers["grpc-status-details-bin"]
    assert trailers["x-arrow-status"] == "5"
    assert table.rows == {}
    assert table.ended == ["abort"]


@pytest.mark.parametrize("returning", [False, True])
def test_client_that_disconnects_during_a_statement_changes_nothing(returning: bool) -> None:
    table = Statements()
    with serving(table) as server, Raw(server.location) as raw:
        exchange = Exchange(raw, PATH, VISIBLE, "insert", returning=returning)
        written(exchange, in_vectors(numbered(4096)), returning)
        assert table.opened.wait(200)  # a client that disconnects earlier leaves nothing to undo
        exchange.call.cancel()
        assert table.aborted.wait(200)
    assert table.rows == {}
    assert table.ended == ["abort"]


@pytest.mark.parametrize("form", [Simple, Statements])
def test_as_many_updates_as_threads_can_scan_while_they_are_open(form) -> None:
    from skiway.airport import Limits

    table = form([(i, "a") for i in range(8)])
    builder = CatalogBuilder("demo")
    builder.schema("s").table(table)
    with (
        Server(builder.build(), port=0, limits=Limits(calls=2, scans=2, exchanges=8)) as server,
        Raw(server.location) as raw,
    ):
        open_updates = [Exchange(raw, PATH, UPDATE, "update", returning=False) for _ in range(8)]
        for number, exchange in enumerate(open_updates):
            scanned = raw.scan(*PATH)
            row = scanned.slice(number, 1).select(["name", "id", "rowid"]).cast(UPDATE)
            exchange.send(row.to_batches()[0])
        assert [exchange.finish() for exchange in open_updates] == [1] * 8


def test_table_that_stops_reading_early_does_not_block_the_client() -> None:
    class Lazy(Rows, Insertable):
        def insert(self, rows, options):
            return DmlResult(next(iter(rows)).num_rows)

    with serving(Lazy()) as server, Raw(server.location) as raw:
        exchange = Exchange(raw, PATH, VISIBLE, "insert", returning=False)
        written(exchange, in_vectors(numbered(10_000)), False)
        assert exchange.finish() == 2048


def test_too_few_columns_for_the_announced_schema_are_rejected() -> None:
    table = Simple()
    with serving(table) as server, Raw(server.location) as raw:
        frames = [metadata_frame(descriptor=descriptor(*PATH)), FrameWriter(VISIBLE).begin()]
        frames += FrameWriter(pa.schema({"id": pa.int64()})).batch(pa.record_batch({"id": [1]}))
        with pytest.raises(grpc.RpcError) as failed:
            list(raw.exchange(frames, ("airport-operation", "insert"), ("return-chunks", "0")))
    assert failed.value.code() is Code.INVALID_ARGUMENT
    assert table.rows == {}
