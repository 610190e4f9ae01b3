"""FlightData frames round-trip through the codec, and are compatible with pyarrow's own Flight code."""

from __future__ import annotations

import datetime as dt
import decimal
import uuid
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skiway.airport.wire.frames import BatchReader, FrameWriter, metadata_frame, parse_frame
from skiway.errors import InvalidArgument, LimitExceeded

HUGEINT = pa.opaque(pa.binary(16), "hugeint", "DuckDB")
BIT = pa.opaque(pa.binary(), "bit", "DuckDB")
TIME_TZ = pa.opaque(pa.binary(8), "time_tz", "DuckDB")
BIGNUM = pa.opaque(pa.binary(), "bignum", "DuckDB")

# every type of the protocol's two tables, with boundary values
TYPES: dict[str, tuple[pa.DataType, list[object]]] = {
    "null": (pa.null(), [None, None]),
    "bool": (pa.bool_(), [True, False, None]),
    **{str(t): (t, [0, None, 1]) for t in (pa.int8(), pa.int16(), pa.int32(), pa.int64())},
    **{str(t): (t, [0, None, 255]) for t in (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())},
    "float": (pa.float32(), [0.5, None, float("inf")]),
    "double": (pa.float64(), [-0.0, None, float("-inf")]),
    "decimal128": (pa.decimal128(38, 10), [decimal.Decimal("1.25"), None]),
    "decimal64": (pa.decimal64(18, 4), [decimal.Decimal("1.25"), None]),
    "decimal32": (pa.decimal32(9, 2), [decimal.Decimal("1.25"), None]),
    "string": (pa.string(), ["", None, "häuser\0"]),
    "large_string": (pa.large_string(), ["a", None]),
    "string_view": (pa.string_view(), ["short", None, "a text that is longer than twelve bytes"]),
    "binary": (pa.binary(), [b"\x00\xff", None]),
    "large_binary": (pa.large_binary(), [b"a", None]),
    "binary_view": (pa.binary_view(), [b"a", None, b"b" * 40]),
    "fixed_size_binary": (pa.binary(3), [b"abc", None]),
    "date32": (pa.date32(), [dt.date(1970, 1, 2), None]),
    "date64": (pa.date64(), [dt.date(1970, 1, 2), None]),
    "time32": (pa.time32("ms"), [dt.time(1, 2, 3), None]),
    "time64us": (pa.time64("us"), [dt.time(1, 2, 3), None]),
    "time64ns": (pa.time64("ns"), [1, None]),
    **{f"timestamp_{u}": (pa.timestamp(u), [0, None, 2**40]) for u in ("s", "ms", "us", "ns")},
    "timestamptz": (pa.timestamp("us", tz="Europe/Berlin"), [0, None]),
    "duration": (pa.duration("us"), [1, None]),
    "interval": (pa.month_day_nano_interval(), [(1, 2, 3), None]),
    "list": (pa.list_(pa.int32()), [[1, None], [], None]),
    "large_list": (pa.large_list(pa.string()), [["a"], None]),
    "list_view": (pa.list_view(pa.int32()), [[1], None, [2, 3]]),
    "fixed_size_list": (pa.list_(pa.int32(), 2), [[1, 2], None]),
    "struct": (pa.struct([("x", pa.int32()), ("y", pa.list_(pa.string()))]), [{"x": 1, "y": ["a"]}, None]),
    "map": (pa.map_(pa.string(), pa.int32()), [[("k", 1)], None, []]),
    "dictionary": (pa.dictionary(pa.uint8(), pa.string()), ["a", None, "b", "a"]),
    "nested_dictionary": (pa.list_(pa.dictionary(pa.int32(), pa.string())), [["a", "b"], None, ["a"]]),
    "uuid": (pa.uuid(), [uuid.UUID(int=1), None]),
    "json": (pa.json_(), ['{"a":1}', None]),
    "bool8": (pa.bool8(), [True, None, False]),
    "hugeint": (HUGEINT, [b"\xfe" + b"\xff" * 15, None]),
    "time_tz": (TIME_TZ, [bytes.fromhex("efd2000068c46108"), None]),
    "bit": (BIT, [b"\x05\xfd", None]),
    "bignum": (BIGNUM, [b"\x80\x00\x02\x01\x02", None]),
}


def array_of(data_type: pa.DataType, values: list[object]) -> pa.Array:
    if isinstance(data_type, pa.OpaqueType | pa.Bool8Type):
        plain = [int(v) if isinstance(v, bool) else v for v in values]
        return pa.ExtensionArray.from_storage(data_type, pa.array(plain, data_type.storage_type))
    if pa.types.is_list(data_type) and pa.types.is_dictionary(data_type.value_type):
        plain = pa.array(values, pa.list_(pa.string()))
        encoded = plain.values.dictionary_encode()
        return pa.ListArray.from_arrays(plain.offsets, encoded, mask=plain.is_null())
    if pa.types.is_dictionary(data_type):
        return pa.array(values, pa.string()).dictionary_encode().cast(data_type)
    return pa.array(values, data_type)


def sparse_union() -> pa.Array:
    types = pa.array([0, 1, 0], pa.int8())
    return pa.UnionArray.from_sparse(types, [pa.array([1, None, 3], pa.int32()), pa.array(["a", "b", "c"])], ["n", "s"])


def round_trip(batches: list[pa.RecordBatch], **options: Any) -> list[pa.RecordBatch]:
    writer = FrameWriter(batches[0].schema)
    frames = [writer.begin()]
    for batch in batches:
        frames += writer.batch(batch, **options)
    reader = BatchReader(iter(frames))
    assert reader.schema.equals(batches[0].schema, check_metadata=True)
    return list(reader)


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_every_type_round_trips(name: str, compression: str | None) -> None:
    column = array_of(*TYPES[name])
    batch = pa.record_batch([column], names=["v"])
    assert round_trip([batch], compression=compression) == [batch]


@pytest.mark.parametrize("name", TYPES)
def test_every_type_round_trips_in_large_batches(name: str) -> None:
    column = array_of(*TYPES[name])
    large = pa.concat_arrays([column] * (20_000 // len(column)))
    batch = pa.record_batch([large, pa.array(range(len(large)))], names=["v", "i"])
    assert round_trip([batch]) == [batch]


def test_union_round_trips() -> None:
    batch = pa.record_batch([sparse_union()], names=["u"])
    assert round_trip([batch])[0].to_pydict() == batch.to_pydict()


def test_dictionaries_may_change_between_batches() -> None:
    values = [["a", "b"], ["c", "a"], ["c", "c"]]
    batches = [pa.record_batch([pa.array(w).dictionary_encode()], names=["d"]) for w in values]
    assert [b.to_pydict()["d"] for b in round_trip(batches)] == values


def test_an_unchanged_dictionary_is_sent_once() -> None:
    batch = pa.record_batch([pa.array(["a", "b"]).dictionary_encode()], names=["d"])
    writer = FrameWriter(batch.schema)
    assert len(list(writer.batch(batch))) == 2
    assert len(list(writer.batch(batch))) == 1


def test_an_empty_dictionary_is_still_sent() -> None:
    batch = pa.record_batch([pa.array([None, None], pa.dictionary(pa.int8(), pa.string()))], names=["d"])
    assert round_trip([batch])[0].to_pydict() == {"d": [None, None]}


def test_metadata_is_sent_with_the_rows_not_with_their_dictionary() -> None:
    batch = pa.record_batch([pa.array(["a"]).dictionary_encode()], names=["d"])
    dictionary, rows = FrameWriter(batch.schema).batch(batch, app_metadata=b"m")
    assert (parse_frame(dictionary).app_metadata, parse_frame(rows).app_metadata) == (b"", b"m")


def test_zero_rows() -> None:
    batch = pa.record_batch([pa.array([], pa.int64())], names=["v"])
    assert round_trip([batch]) == [batch]


def test_zero_columns_keep_their_row_count() -> None:
    batch = pa.RecordBatch.from_struct_array(pa.array([{}] * 5, pa.struct([])))
    assert [b.num_rows for b in round_trip([batch])] == [5]


def test_metadata_only_messages_before_and_among_batches() -> None:
    writer = FrameWriter(pa.schema({"v": pa.int64()}))
    batch = pa.record_batch({"v": [1]})
    frames = [metadata_frame(descriptor=b"D"), metadata_frame(b"before"), writer.begin(descriptor=b"D")]
    frames += [*writer.batch(batch), metadata_frame(b"after")]
    reader = BatchReader(iter(frames))
    assert reader.wait_for_descriptor() == b"D"
    assert [(b and b.num_rows, m) for b, m in reader.with_metadata()] == [(1, b""), (None, b"after")]
    assert reader.opening == [b"before"]


def test_nothing_is_read_ahead() -> None:
    writer = FrameWriter(pa.schema({"v": pa.dictionary(pa.int8(), pa.string())}))
    batch = pa.record_batch([pa.array(["a"], pa.dictionary(pa.int8(), pa.string()))], names=["v"])
    read: list[int] = []

    def frames():
        for number, frame in enumerate([writer.begin(), *writer.batch(batch), *writer.batch(batch)]):
            read.append(number)
            yield frame

    rows = iter(BatchReader(frames()))
    next(rows)
    assert read == [0, 1, 2]  # schema, dictionary, first batch


def test_slices_contain_only_their_own_rows() -> None:
    column = pa.array([f"row {i}" for i in range(100_000)])
    batch = pa.record_batch([column], names=["v"]).slice(50_000, 10)
    (frame,) = FrameWriter(batch.schema).batch(batch)
    assert len(frame) < 1_000
    assert round_trip([batch]) == [batch]


def test_pyarrow_reads_our_messages_and_we_read_its() -> None:
    batch = pa.record_batch({"v": range(50_000), "s": ["a"] * 50_000})
    (frame,) = FrameWriter(batch.schema).batch(batch)
    assert pa.ipc.read_record_batch(pa.py_buffer(parse_frame(frame).message()), batch.schema) == batch


def test_length_of_a_message_just_below_the_int32_limit_is_correct() -> None:
    batch = pa.record_batch([pa.array([b"x" * (1 << 20)] * 64, pa.large_binary())], names=["v"])
    (frame,) = FrameWriter(batch.schema).batch(batch)
    parsed = parse_frame(frame)
    assert len(parsed.body) >= 64 << 20
    assert list(BatchReader(iter([FrameWriter(batch.schema).begin(), frame]))) == [batch]


@pytest.mark.parametrize("rows", [3, 20_000])
@pytest.mark.parametrize("compression", [None, "lz4"])
@pytest.mark.parametrize("columns", [[0], [2, 1], [3, 9], [], [0, 1, 2, 3]])
def test_chosen_columns_equal_those_of_a_reader_of_all(rows: int, compression: str | None, columns: list[int]) -> None:
    lists = pa.array([[{"x": float(i)}] for i in range(rows)])
    batch = pa.record_batch({"a": range(rows), "l": lists, "s": [f"row {i}" for i in range(rows)], "n": [None] * rows})
    batch = batch.set_column(3, "n", pa.nulls(rows, pa.int64()))
    writer = FrameWriter(batch.schema)
    nulls = (3,) if compression else ()
    frames = [writer.begin(), *writer.batch(batch, compression=compression, null_columns=nulls)]
    (plain,) = BatchReader(iter(frames))
    reader = BatchReader(iter(frames), columns=columns)
    assert reader.schema == batch.schema
    (found,) = reader
    assert (found.num_rows, found.schema.names) == (rows, batch.schema.names)
    known = [position for position in columns if position < 4]
    assert found.select(known) == plain.select(known)
    left_out = set(range(4)) - set(known) if 0 < len(known) < 4 else set()
    assert {i for i in range(4) if found.schema.field(i).type == pa.null()} == left_out


def test_chosen_columns_of_a_stream_with_dictionaries() -> None:
    batch = pa.record_batch({"d": pa.array(["a", "b"]).dictionary_encode(), "n": [1, 2]})
    writer = FrameWriter(batch.schema)
    (found,) = BatchReader(iter([writer.begin(), *writer.batch(batch)]), columns=[0])
    assert found.select([0]) == batch.select([0])


def test_chosen_columns_are_validated_and_limited() -> None:
    bad = pa.StringArray.from_buffers(2, pa.py_buffer(b"\0\0\0\0\xff\0\0\0\1\0\0\0"), pa.py_buffer(b"x"))
    batch = pa.record_batch([bad, pa.array([1, 2])], names=["s", "n"])
    frames = [FrameWriter(batch.schema).begin(), *FrameWriter(batch.schema).batch(batch)]
    with pytest.raises(InvalidArgument, match="column 's'"):
        list(BatchReader(iter(frames), columns=[0]))
    assert [found["n"].to_pylist() for found in BatchReader(iter(frames), columns=[1])] == [[1, 2]]
    with pytest.raises(LimitExceeded):
        list(BatchReader(iter(frames), columns=[1], max_decoded_bytes=10))


@given(st.binary(max_size=200))
def test_random_bytes_are_parsed_or_rejected(data: bytes) -> None:
    try:
        parse_frame(data)
        list(BatchReader(iter([data, data])))
    except InvalidArgument:
        pass


@given(st.data())
def test_damaged_batches_are_read_or_rejected(data: st.DataObject) -> None:
    batch = pa.record_batch({"v": ["a", "bb", None], "n": [1, 2, 3]})
    writer = FrameWriter(batch.schema)
    (frame,) = writer.batch(batch)
    position = data.draw(st.integers(0, len(frame) - 1))
    damaged = frame[:position] + bytes([data.draw(st.integers(0, 255))]) + frame[position + 1 :]
    columns = data.draw(st.sampled_from([None, [0], [1]]))
    try:
        for read in BatchReader(iter([writer.begin(), damaged]), columns=columns):
            read.validate(full=False)
    except (InvalidArgument, LimitExceeded):
        pass


def test_truncated_frame_is_a_clear_error() -> None:
    frame = FrameWriter(pa.schema({"v": pa.int64()})).begin()
    with pytest.raises(InvalidArgument, match="field 2 should have"):
        parse_frame(frame[:40])


def test_body_shorter_than_declared_is_rejected() -> None:
    batch = pa.record_batch({"v": range(10)})
    writer = FrameWriter(batch.schema)
    frame = parse_frame(next(writer.batch(batch)))
    header = bytes(frame.header)
    cut = b"\x12" + bytes([len(header) & 127 | 128, len(header) >> 7]) + header
    with pytest.raises(InvalidArgument, match="invalid record batch"):
        list(BatchReader(iter([writer.begin(), cut])))


def test_stream_without_a_schema_is_rejected() -> None:
    with pytest.raises(InvalidArgument, match="before a schema"):
        _ = BatchReader(iter([metadata_frame(b"x")])).schema


def test_invalid_value_is_reported_with_the_name_of_its_column() -> None:
    late = pa.array([86_400_000_000]).view(pa.time64("us"))
    decimals = pa.array([bytes([0xFF] * 15 + [0x7F])], pa.binary(16)).view(pa.decimal128(38, 0))
    for values, message in (
        (late, "column 'c' has a time that is not within a day, such as 24:00:00"),
        (pa.ListArray.from_arrays([0, 1], late), "column 'c' has a time that is not within a day"),
        (decimals, "column 'c': .* does not fit in precision"),
    ):
        batch = pa.record_batch({"id": pa.array([1]), "c": values})
        writer = FrameWriter(batch.schema)
        with pytest.raises(InvalidArgument, match=message):
            list(BatchReader(iter([writer.begin(), *writer.batch(batch)])))
