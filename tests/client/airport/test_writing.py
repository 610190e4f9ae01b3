"""INSERT, UPDATE and DELETE from Python: what is sent, returned and rejected."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from client.recorder import Recorder, Refusal, Scripted, ordinary, recording
from skiway.airport import (
    AirportService,
    CatalogBuilder,
    CreateTable,
    DmlOptions,
    DmlResult,
    Insertable,
    ScanOptions,
    Server,
    Table,
)
from skiway.airport.memory import MemoryCatalog
from skiway.airport.wire.frames import BatchReader, FrameWriter, metadata_frame
from skiway.airport.wire.protocol import TotalChanged, encode
from skiway.client import AirportClient, col
from skiway.errors import (
    Conflict,
    ConstraintViolation,
    Internal,
    InvalidArgument,
    LimitExceeded,
    NotFound,
    NullRowId,
    PreconditionFailed,
    SkiwayError,
)

COLUMNS = pa.schema([("id", pa.int64()), ("name", pa.string()), ("v", pa.float64())])


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def db(recorder: Recorder) -> Iterator[AirportClient]:
    """A catalog with table `s.t`, in which `id` is the key and `v` is positive."""
    catalog = MemoryCatalog("m", schemas=["s"])
    with (
        recording(AirportService(catalog), recorder) as location,
        AirportClient(location, "m", timeout_s=200) as client,
    ):
        client.create_table("s.t", COLUMNS, primary_key=["id"], checks=["v >= 0"])
        recorder.calls.clear()
        yield client


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": ids, "name": [f"n{i}" for i in ids], "v": [i / 2 for i in ids]}, COLUMNS)


def endless() -> Iterator[pa.RecordBatch]:
    return itertools.repeat(rows(*range(2048)).to_batches()[0])


def content(db: AirportClient) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in db.scan("s.t").read_all().sort_by("id").to_pylist()]


def row_ids(db: AirportClient, *ids: int) -> list[int]:
    found = db.scan("s.t", columns=["id", "rowid"]).read_all().to_pylist()
    numbers = {row["id"]: row["rowid"] for row in found}
    return [numbers[i] for i in ids]


def sent(recorder: Recorder) -> BatchReader:
    """The rows of the one exchange that was recorded."""
    (call,) = [call for call in recorder.calls if call.method == "DoExchange"]
    return BatchReader(iter(call.requests))


# -- INSERT -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "form",
    [
        lambda table: table,
        lambda table: table.to_reader(),
        lambda table: table.to_batches()[0],
        lambda table: table.to_batches(),
        lambda table: iter(table.to_batches(max_chunksize=1)),
    ],
    ids=["table", "reader", "batch", "list of batches", "iterator of batches"],
)
def test_rows_are_inserted_from_any_input_type(db: AirportClient, form: Any) -> None:
    assert db.insert("s.t", form(rows(1, 2, 3))).count == 3
    assert content(db) == [(1, "n1", 0.5), (2, "n2", 1.0), (3, "n3", 1.5)]


def test_columns_are_matched_by_name_cast_and_filled_with_null(db: AirportClient, recorder: Recorder) -> None:
    given = pa.table({"V": pa.array([3], pa.int8()), "ID": pa.array([7], pa.uint16())})
    returned = db.insert("s.t", given, returning=True).rows
    assert returned is not None
    assert returned.to_pydict() == {"id": [7], "name": [None], "v": [3.0]}
    assert sent(recorder).schema == COLUMNS, "all columns, in the table's order and types"
    assert content(db) == [(7, None, 3.0)]


@pytest.mark.parametrize("count", [0, 1, 2048, 2049, 5000])
@pytest.mark.parametrize("returning", [False, True])
def test_rows_are_sent_in_batches_of_2048(
    db: AirportClient, recorder: Recorder, count: int, *, returning: bool
) -> None:
    written = db.insert("s.t", rows(*range(count)), returning=returning)
    assert written.count == count
    assert (written.rows is None) == (not returning)
    if written.rows is not None:
        assert written.rows.to_pydict() == rows(*range(count)).to_pydict()
    sizes = [batch.num_rows for batch in sent(recorder)]
    assert sizes == [2048] * (count // 2048) + ([count % 2048] if count % 2048 else [])
    assert db.count("s.t") == count


def test_empty_iterable_inserts_nothing(db: AirportClient) -> None:
    assert db.insert("s.t", []).count == 0


class Counting(Table, Insertable):
    """A table that counts its input batches; with RETURNING they arrive one by one."""

    name = "t"
    schema = COLUMNS

    def __init__(self) -> None:
        self.batches = 0

    def scan(self, options: ScanOptions) -> pa.Table:
        return COLUMNS.empty_table()

    def insert(self, given: pa.RecordBatchReader, options: DmlOptions) -> DmlResult:
        table = given.read_all()
        self.batches += 1
        return DmlResult(table.num_rows, table)


def test_returning_reads_a_batch_only_after_the_previous_one_was_answered() -> None:
    table, answered = Counting(), []
    builder = CatalogBuilder("demo")
    builder.schema("s").table(table)

    def source() -> Iterator[pa.RecordBatch]:
        for i in range(20):
            answered.append(table.batches)
            yield rows(i).to_batches()[0]

    with Server(builder.build(), port=0) as server, AirportClient(server.location, "demo") as db:
        assert db.insert("s.t", source(), returning=True).count == 20
    assert answered == list(range(20))


def test_not_null_is_checked_before_the_row_is_sent(db: AirportClient, recorder: Recorder) -> None:
    with pytest.raises(ConstraintViolation, match=r"NOT NULL constraint failed: t\.id"):
        db.insert("s.t", pa.table({"id": [*range(3000), None]}))
    assert content(db) == []
    recorder.wait_for("DoExchange")
    assert all(batch["id"].null_count == 0 for batch in sent(recorder)), "rows before it may have been sent"


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (pa.table({"id": ["x"]}), InvalidArgument, "cannot cast string to int64 for column 'id' of s.t"),
        (pa.table({"id": [1.5]}), InvalidArgument, "cannot cast double to int64 for column 'id' of s.t"),
        (pa.table({"nope": [1]}), NotFound, "column 'nope' not found in s.t"),
        (pa.table([[1], [2]], names=["id", "ID"]), InvalidArgument, "column 'ID' of s.t occurs twice"),
        (pa.table({"id": [1], "rowid": [1]}), InvalidArgument, "column 'rowid' .* the server assigns row ids"),
        ({"id": [1]}, InvalidArgument, "not dict: try pyarrow.table"),
        (5, InvalidArgument, "not int: try pyarrow.table"),
        ("rows", InvalidArgument, "not str"),
        ([1], InvalidArgument, "the iterable yields a int"),
        (
            [rows(1).to_batches()[0], rows(2).select(["v"]).to_batches()[0]],
            InvalidArgument,
            "all batches must have the same schema: the first has id, name, v, a later one v",
        ),
        (rows(1, 1), ConstraintViolation, "Duplicate key .*id: 1.* violates primary key"),
        (pa.table({"id": [1], "v": [-1.0]}), ConstraintViolation, "CHECK constraint failed"),
    ],
)
def test_invalid_rows_are_rejected_and_nothing_is_inserted(
    db: AirportClient, given: Any, error: type[SkiwayError], message: str
) -> None:
    with pytest.raises(error, match=message) as caught:
        db.insert("s.t", given)
    assert type(caught.value) is error
    assert content(db) == []


def test_late_failure_rolls_back_all_batches(db: AirportClient) -> None:
    db.insert("s.t", rows(4000))
    with pytest.raises(ConstraintViolation):
        db.insert("s.t", rows(*range(5000)))
    assert content(db) == [(4000, "n4000", 2000.0)]


def test_failing_source_rolls_back_all_batches(db: AirportClient) -> None:
    def source() -> Iterator[pa.RecordBatch]:
        yield rows(1).to_batches()[0]
        raise RuntimeError("the file ended early")

    with pytest.raises(RuntimeError, match="ended early"):
        db.insert("s.t", source(), returning=True)
    assert db.count("s.t") == 0
    assert db.insert("s.t", rows(1)).count == 1


def test_inserting_into_a_read_only_table_is_a_clear_error() -> None:
    builder = CatalogBuilder("demo")
    builder.schema("s").table(schema=COLUMNS, name="t")(lambda scan: rows(1))
    with Server(builder.build(), port=0) as server, AirportClient(server.location, "demo") as db:
        with pytest.raises(PreconditionFailed, match="does not support INSERT"):
            db.insert("s.t", endless())
        with pytest.raises(PreconditionFailed, match="does not support UPDATE"):
            db.update("s.t", {"id": 2})
        with pytest.raises(PreconditionFailed, match="does not support DELETE"):
            db.truncate("s.t")
        with pytest.raises(NotFound, match=r"table s\.nope not found"):
            db.insert("s.nope", rows(1))


def test_extension_types_are_inserted(db: AirportClient) -> None:
    key = uuid.uuid4()
    fields = [
        ("id", pa.uuid()),
        ("doc", pa.json_()),
        ("tags", pa.list_(pa.string())),
        ("at", pa.struct([("x", pa.int32())])),
    ]
    db.create_table("s.u", pa.schema(fields))
    given = pa.table(
        {
            "id": pa.array([key.bytes, None], pa.binary(16)),
            "doc": pa.array(["{}", None]),
            "tags": pa.array([["a"], None]),
            "at": pa.array([{"x": 1}, None], pa.struct([("x", pa.int64())])),
        }
    )
    assert db.insert("s.u", given).count == 2
    assert db.insert("s.u", pa.table({"tags": pa.array([None], pa.list_(pa.string()))})).count == 1
    assert db.update("s.u", {"doc": "[1]"}, where=col("id").is_null()).count == 2
    found = db.scan("s.u").read_all().to_pylist()
    assert found[0] == {"id": key, "doc": "{}", "tags": ["a"], "at": {"x": 1}}
    assert [row["doc"] for row in found] == ["{}", "[1]", "[1]"]


# -- UPDATE -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def filled(db: AirportClient, recorder: Recorder) -> AirportClient:
    db.insert("s.t", rows(1, 2, 3, 4))
    recorder.calls.clear()
    return db


def test_rows_are_updated_by_id_in_a_column(filled: AirportClient, recorder: Recorder) -> None:
    first, third = row_ids(filled, 1, 3)
    given = pa.table({"rowid": [third, first], "v": [30, 10], "name": ["c", "a"]})
    written = filled.update("s.t", given, returning=True)
    assert written.count == 2
    assert sent(recorder).schema.names == ["v", "name", "rowid"], "the row id comes last"
    assert written.rows is not None
    assert written.rows.to_pydict() == {"v": [30.0, 10.0], "name": ["c", "a"], "rowid": [third, first]}
    assert content(filled) == [(1, "a", 10.0), (2, "n2", 1.0), (3, "c", 30.0), (4, "n4", 2.0)]


def test_rows_are_updated_by_separate_ids(filled: AirportClient) -> None:
    ids = pa.chunked_array([[i] for i in row_ids(filled, 4, 2)])
    assert filled.update("s.t", pa.table({"name": ["d", "b"]}).to_batches(max_chunksize=1), row_ids=ids).count == 2
    assert [name for _, name, _ in content(filled)] == ["n1", "b", "n3", "d"]


def test_update_by_predicate_sets_values(filled: AirportClient, recorder: Recorder) -> None:
    assert filled.update("s.t", {"v": 100, "name": None}, where=col("id") >= 3).count == 2
    assert content(filled)[2:] == [(3, None, 100.0), (4, None, 100.0)]
    assert sent(recorder).schema.names == ["v", "name", "rowid"]


def test_update_by_predicate_computes_from_columns(filled: AirportClient, recorder: Recorder) -> None:
    swapped = {"V": lambda id, v: pc.add(v, id), "name": lambda name: pc.utf8_upper(name)}  # noqa: A006
    written = filled.update("s.t", swapped, where=col("id") < 3, returning=True)
    assert written.rows is not None
    assert written.rows.to_pylist() == [{"id": 1, "name": "N1", "v": 1.5}, {"id": 2, "name": "N2", "v": 3.0}]
    assert content(filled) == [(1, "N1", 1.5), (2, "N2", 3.0), (3, "n3", 1.5), (4, "n4", 2.0)]
    assert sent(recorder).schema.names == ["v", "name", "id", "rowid"], "RETURNING sends all columns"


def test_update_that_matches_no_row_changes_nothing(filled: AirportClient) -> None:
    written = filled.update("s.t", {"v": 1.0}, where=col("id") == 99, returning=True)
    assert written.count == 0
    assert written.rows is not None
    assert written.rows.schema.names == ["id", "name", "v"]


def test_update_runs_while_its_scan_does(filled: AirportClient, recorder: Recorder) -> None:
    filled.insert("s.t", rows(*range(10, 9000)))
    recorder.calls.clear()
    assert filled.update("s.t", {"v": lambda v: pc.add(v, 1)}).count == 8994
    order = [name for name in recorder.names() if name != "column_statistics"]
    assert order == ["create_transaction", "catalog_version", "catalog_version", "endpoints", "DoGet", "DoExchange"]
    traces = [call.header("airport-trace-id") for call in recorder.calls[-3:]]
    assert traces[0] == traces[1] != traces[2], "the scan has one trace, the exchange another"


@pytest.mark.parametrize(
    ("given", "options", "error", "message"),
    [
        (pa.table({"v": [1.0]}), {}, InvalidArgument, "needs row ids: give a column 'rowid', or row_ids="),
        (pa.table({"v": [1.0], "rowid": pa.array([None], pa.int64())}), {}, NullRowId, "null rowid"),
        (pa.table({"v": [1.0]}), {"row_ids": [None]}, NullRowId, "null rowid"),
        (
            pa.table({"v": [1.0], "rowid": [0.5]}),
            {},
            InvalidArgument,
            "cannot cast double to int64 for column 'rowid' of s.t",
        ),
        (
            pa.table({"v": [1.0], "rowid": ["x"]}),
            {},
            InvalidArgument,
            "cannot cast string to int64 for column 'rowid' of s.t",
        ),
        (pa.table({"v": [1.0]}), {"row_ids": ["x"]}, InvalidArgument, "row ids must be 64-bit integers"),
        (pa.table({"v": [1.0]}), {"row_ids": 7}, InvalidArgument, "an array or a list of integers, not int"),
        (pa.table({"v": [1.0]}), {"row_ids": [1, 2]}, InvalidArgument, "2 row ids were given for 1 rows"),
        (pa.table({"v": [1.0, 2.0]}), {"row_ids": [1]}, InvalidArgument, "1 row ids were given for 2 rows"),
        (pa.table({"v": [1.0], "rowid": [0]}), {"row_ids": [1]}, InvalidArgument, "row ids are given twice"),
        (pa.table({"rowid": [0]}), {}, InvalidArgument, "sets no column"),
        (pa.table({"v": [1.0], "rowid": [2**40]}), {}, NotFound, f"no row with id {2**40}"),
        (pa.table({"nope": [1.0], "rowid": [0]}), {}, NotFound, "column 'nope' not found"),
        (
            pa.table({"v": ["x"], "rowid": [0]}),
            {},
            InvalidArgument,
            "cannot cast string to double for column 'v' of s.t",
        ),
        (pa.table({"id": pa.array([None], pa.int64()), "rowid": [0]}), {}, ConstraintViolation, "NOT NULL"),
        (pa.table({"v": [1.0], "rowid": [0]}), {"where": col("id") == 1}, InvalidArgument, "where= needs a mapping"),
        ({"v": 1.0}, {"row_ids": [1]}, InvalidArgument, "row_ids need Arrow data"),
        ({}, {}, InvalidArgument, "needs columns to change"),
        ({"v": 1.0, "V": 2.0}, {}, InvalidArgument, "each once"),
        ({"nope": 1.0}, {}, NotFound, "column 'nope' not found"),
        ({"v": "x"}, {}, InvalidArgument, "'x' .str. does not fit column 'v' of s.t, which is double"),
        ({"v": pa.scalar("x")}, {}, InvalidArgument, "cannot cast string to double for column 'v' of s.t"),
        ({"v": lambda nope: nope}, {}, NotFound, "column 'nope' not found"),
        ({"v": lambda v: v.slice(1)}, {}, InvalidArgument, "must return an array of 4 values"),
        ({"v": lambda v: 5}, {}, InvalidArgument, "must return an array of 4 values"),
        ({"v": -1.0}, {}, ConstraintViolation, "CHECK constraint failed"),
        ({"id": 1}, {}, ConstraintViolation, "Duplicate key"),
        ({"id": None}, {}, ConstraintViolation, r"NOT NULL constraint failed: t\.id"),
        ({"v": 1.0}, {"where": col("nope") == 1}, NotFound, "column 'nope' not found"),
    ],
)
def test_invalid_updates_are_rejected_and_change_nothing(
    filled: AirportClient, given: Any, options: dict[str, Any], error: type[SkiwayError], message: str
) -> None:
    before = content(filled)
    with pytest.raises(error, match=message) as caught:
        filled.update("s.t", given, **options)
    assert type(caught.value) is error
    assert content(filled) == before


def test_value_may_be_a_date_that_python_does_not_have(db: AirportClient) -> None:
    far = pa.scalar(3_789_742, pa.int32()).cast(pa.date32())
    db.create_table("s.days", pa.schema([("day", pa.date32())]))
    db.insert("s.days", pa.table({"day": pa.array([0], pa.date32())}))
    assert db.update("s.days", {"day": far}).count == 1
    assert db.scan("s.days", where=col("day") == far).read_all()["day"].cast(pa.int32()).to_pylist() == [3_789_742]


def test_concurrently_changed_row_is_a_conflict(filled: AirportClient) -> None:
    def meddling(v: pa.Array) -> pa.Array:
        with AirportClient(filled.location, "m") as other:
            other.update("s.t", {"v": 7.0}, where=col("id") == 2)
        return v

    with pytest.raises(Conflict, match="retry it"):
        filled.update("s.t", {"v": meddling})
    assert [v for _, _, v in content(filled)] == [0.5, 7.0, 1.5, 2.0]


# -- DELETE -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("returning", [False, True])
def test_rows_are_deleted_by_id(filled: AirportClient, *, returning: bool) -> None:
    written = filled.delete("s.t", row_ids(filled, 3, 1), returning=returning)
    assert written.count == 2
    assert (written.rows is not None) == returning
    if written.rows is not None:
        assert written.rows.to_pydict() == rows(3, 1).to_pydict()
    assert [key for key, _, _ in content(filled)] == [2, 4]


@pytest.mark.parametrize("returning", [False, True])
def test_rows_are_deleted_by_predicate(filled: AirportClient, *, returning: bool) -> None:
    written = filled.delete("s.t", where=col("id").isin([2, 3]), returning=returning)
    assert written.count == 2
    if written.rows is not None:
        assert written.rows.to_pydict() == rows(2, 3).to_pydict()
    assert [key for key, _, _ in content(filled)] == [1, 4]


def test_delete_accepts_ids_as_int32_and_uint64(filled: AirportClient) -> None:
    first, second = row_ids(filled, 1, 2)
    assert filled.delete("s.t", pa.array([first], pa.int32())).count == 1
    assert filled.delete("s.t", pa.array([second], pa.uint64())).count == 1


def test_truncate_deletes_all_and_counts_them(filled: AirportClient, recorder: Recorder) -> None:
    filled.insert("s.t", rows(*range(10, 5000)))
    recorder.calls.clear()
    assert filled.truncate("s.t").count == 4994
    assert sent(recorder).schema == pa.schema([("rowid", pa.int64())])
    assert content(filled) == []
    assert filled.truncate("s.t").count == 0


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({}, InvalidArgument, "either row_ids or where; truncate"),
        ({"row_ids": [1], "where": col("id") == 1}, InvalidArgument, "either row_ids or where"),
        ({"row_ids": [0, None]}, NullRowId, "null rowid"),
        ({"row_ids": [0, 2**40]}, NotFound, "no row with id"),
        ({"row_ids": ["x"]}, InvalidArgument, "row ids must be 64-bit integers"),
        ({"row_ids": [2**70]}, InvalidArgument, "row ids must be 64-bit integers"),
        ({"row_ids": pa.array(["x"])}, InvalidArgument, "cannot cast string to int64 for column 'rowid' of s.t"),
        ({"row_ids": "12"}, InvalidArgument, "not str"),
        ({"where": col("nope") == 1}, NotFound, "column 'nope' not found"),
    ],
)
def test_invalid_deletes_are_rejected_and_change_nothing(
    filled: AirportClient, options: dict[str, Any], error: type[SkiwayError], message: str
) -> None:
    before = content(filled)
    with pytest.raises(error, match=message) as caught:
        filled.delete("s.t", **options)
    assert type(caught.value) is error
    assert content(filled) == before


# -- servers that violate the lock-step ---------------------------------------------------------------------------------


def careless(*answers: bytes) -> Scripted:
    """A server with `s.t` that answers the first batch of an exchange with these frames, then ends it."""
    schema = COLUMNS.append(pa.field("rowid", pa.int64(), metadata={"is_rowid": "1"}))

    def exchange(messages: Iterator[bytes]) -> Iterator[bytes]:
        list(itertools.islice(messages, 2))
        yield FrameWriter(COLUMNS).begin()
        next(messages)
        yield from answers

    return Scripted({**ordinary(schema.empty_table()), "DoExchange": exchange})


def frame(table: pa.Table) -> bytes:
    (found,) = FrameWriter(COLUMNS).batch(table.to_batches()[0])
    return found


@pytest.mark.parametrize(
    ("returning", "answers", "message"),
    [
        (False, [], r"ended DoExchange \(insert\) before its response was complete"),
        (True, [], "before its response was complete"),
        (True, [frame(rows(1, 2))], "returned 2 rows for a batch of 1; it must return as many"),
        (True, [metadata_frame(encode(TotalChanged(1)))], "returned no rows for a batch of 1; it must return as many"),
        (False, [frame(rows(1))], "sent rows instead of the number of changed rows"),
        (False, [metadata_frame(b"many")], "sent a malformed response"),
        (True, [frame(rows(1))], "before its response was complete"),
        (True, [b"\xff"], "sent a malformed response"),
    ],
)
def test_server_out_of_step_is_an_error_not_a_hang(returning: bool, answers: list[bytes], message: str) -> None:
    with (
        careless(*answers).serving() as location,
        AirportClient(location, "c", timeout_s=200) as db,
        pytest.raises(Internal, match=message),
    ):
        db.insert("s.t", rows(1), returning=returning)


def test_server_that_ends_the_exchange_early_does_not_block_the_sender() -> None:
    with (
        careless().serving() as location,
        AirportClient(location, "c", timeout_s=200) as db,
        pytest.raises(Internal, match="ended the call before the client had sent everything"),
    ):
        db.insert("s.t", endless())


def test_error_while_rows_are_sent_reaches_the_sender() -> None:
    server = careless()
    server.answers["DoExchange"] = Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, "the disk is full")
    with (
        server.serving() as location,
        AirportClient(location, "c", timeout_s=200) as db,
        pytest.raises(LimitExceeded, match="the disk is full"),
    ):
        db.insert("s.t", endless())


# -- concurrency --------------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_fifty_concurrent_writers_lose_no_row() -> None:
    catalog = MemoryCatalog("m", schemas=["s"])
    catalog.schema("s").create_table(CreateTable("t", COLUMNS))  # type: ignore[union-attr]
    with Server(catalog, port=0) as server:

        def write(writer: int) -> int:
            with AirportClient(server.location, "m", timeout_s=60) as db:
                ids = range(writer * 1000, writer * 1000 + 100)
                total = db.insert("s.t", rows(*ids)).count
                own = (col("id") >= ids.start) & (col("id") < ids.stop)
                total += db.update("s.t", {"v": lambda v: pc.add(v, 1)}, where=own).count
                return total + db.delete("s.t", where=col("id") == ids.start, returning=True).count

        with ThreadPoolExecutor(50) as pool:
            assert list(pool.map(write, range(50))) == [201] * 50
        with AirportClient(server.location, "m") as db:
            left = db.scan("s.t").read_all()
    expected = {i: i / 2 + 1 for writer in range(50) for i in range(writer * 1000 + 1, writer * 1000 + 100)}
    assert dict(zip(left["id"].to_pylist(), left["v"].to_pylist(), strict=True)) == expected


def test_one_client_writes_from_many_threads(db: AirportClient) -> None:
    with ThreadPoolExecutor(8) as pool:
        counts = list(pool.map(lambda i: db.insert("s.t", rows(*range(i * 100, i * 100 + 100))).count, range(16)))
    assert counts == [100] * 16
    assert db.count("s.t") == 1600


def test_transaction_id_is_sent_with_writes_and_their_scans(filled: AirportClient, recorder: Recorder) -> None:
    filled.update("s.t", {"v": 1.0}, where=col("id") == 1)
    named = {call.name for call in recorder.calls if call.header("airport-transaction-id")}
    assert named == {"column_statistics", "endpoints", "DoGet", "DoExchange"}
    assert {call.header("airport-auto-commit") for call in recorder.calls} == {""}
