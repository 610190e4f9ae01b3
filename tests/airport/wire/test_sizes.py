"""Small messages that become huge are rejected before anything is allocated for them."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest

from airport.wire.test_frames import TYPES, array_of
from skiway.airport.functions import read_row
from skiway.airport.wire.encoding import CONTINUATION, Compression, PlainMessageStream
from skiway.airport.wire.frames import BODY, HEADER, BatchReader, FrameWriter, parse_frame, varint
from skiway.airport.wire.sizes import MAX_DECODED_BYTES, check_message, check_values
from skiway.errors import InvalidArgument, LimitExceeded

GIB = 1 << 30


def read(schema: pa.Schema, *frames: bytes, limit: int = MAX_DECODED_BYTES) -> list[pa.RecordBatch]:
    return list(BatchReader(iter([FrameWriter(schema).begin(), *frames]), max_decoded_bytes=limit))


def compressed(batch: pa.RecordBatch, codec: str = "zstd") -> bytes:
    (frame,) = FrameWriter(batch.schema).batch(batch, compression=codec)  # type: ignore[arg-type]
    return frame


def announcing(frame: bytes, size: int, announced: int) -> bytes:
    """The frame, with `announced` bytes in every compressed buffer of `size` bytes."""
    old, new = struct.pack("<q", size), struct.pack("<q", announced)
    parts = frame.split(old + b"\x28\xb5\x2f\xfd")  # the magic number of zstd
    assert len(parts) > 1
    return (new + b"\x28\xb5\x2f\xfd").join(parts)


@pytest.fixture
def unallocated() -> Iterator[None]:
    """Fails if Arrow's default pool ever held more than 64 MiB during the test."""
    before = pa.default_memory_pool().max_memory()
    yield
    after = pa.default_memory_pool().max_memory()
    assert after <= max(before, pa.total_allocated_bytes() + 64 * 1024 * 1024)


@pytest.mark.usefixtures("unallocated")
def test_compressed_buffers_that_announce_gigabytes_are_rejected() -> None:
    batch = pa.record_batch({f"c{i}": pa.array(np.zeros(1000, np.int8)) for i in range(8)})
    bomb = announcing(compressed(batch), 1000, GIB)
    assert len(bomb) < 4096
    with pytest.raises(LimitExceeded, match=f"takes {8 * GIB} bytes when it is decoded.* limit of {MAX_DECODED_BYTES}"):
        read(batch.schema, bomb)


@pytest.mark.usefixtures("unallocated")
def test_compressed_dictionaries_are_checked_too() -> None:
    batch = pa.record_batch({"d": pa.array(["x" * 1000, "y" * 1000]).dictionary_encode()})
    messages = PlainMessageStream(batch.schema, "zstd").write(batch)
    header, body = (b"".join(map(bytes, part)) for part in messages[0])
    message = announcing(body, 2000, GIB)
    with pytest.raises(LimitExceeded, match="decoded"):
        check_message(header, memoryview(message))


@pytest.mark.usefixtures("unallocated")
def test_dictionaries_that_only_grow_are_limited_in_total() -> None:
    def values(start: int) -> pa.Array:
        return pa.array([f"{start + i:0>1000}" for i in range(100)])

    sink = pa.BufferOutputStream()
    grown = [pa.concat_arrays([values(100 * i) for i in range(n + 1)]) for n in range(8)]
    indices = pa.array([0], pa.int32())
    schema = pa.schema({"d": pa.dictionary(pa.int32(), pa.string())})
    with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True)) as writer:
        for dictionary in grown:
            writer.write_batch(pa.record_batch([pa.DictionaryArray.from_arrays(indices, dictionary)], schema=schema))
    messages = pa.ipc.MessageReader.open_stream(sink.getvalue())
    frames = [framed(message) for message in messages if message.type != "schema"]
    assert len(read(schema, *frames)) == 8
    with pytest.raises(LimitExceeded, match="the dictionaries of a stream"):
        read(schema, *frames, limit=500_000)


def framed(message: pa.ipc.Message) -> bytes:
    header, body = message.metadata.to_pybytes(), message.body.to_pybytes()
    header += b"\0" * (-len(header) % 8)
    return HEADER + varint(len(header)) + header + BODY + varint(len(body)) + body


@pytest.mark.usefixtures("unallocated")
def test_rows_without_bytes_are_limited() -> None:
    schema = pa.schema({"n": pa.null()})
    (frame,) = FrameWriter(schema).batch(pa.record_batch([pa.nulls(77_777)], schema=schema))
    many = frame.replace(struct.pack("<q", 77_777), struct.pack("<q", 1 << 40))
    assert many != frame
    with pytest.raises(LimitExceeded, match=f"a batch of {1 << 40} rows"):
        read(schema, many)


@pytest.mark.usefixtures("unallocated")
@pytest.mark.parametrize(
    "layout", ["dictionary", "nested dictionary", "runs", "views", "list views", "fixed dictionary"]
)
def test_values_that_are_repeated_a_million_times_are_rejected(layout: str) -> None:
    """Each column is small, but would take at least 64 GiB in the layout in which tables store it."""
    long = pa.array(["x" * 1_000_000])
    dictionary = pa.DictionaryArray.from_arrays(pa.array(np.zeros(100_000, np.int8)), long)
    match layout:
        case "dictionary":
            column = dictionary
        case "nested dictionary":
            column = pa.FixedSizeListArray.from_arrays(dictionary, 10)
        case "runs":
            column = pa.RunEndEncodedArray.from_arrays(pa.array([1 << 24], pa.int32()), long)
        case "views":
            view = struct.pack("<i4sii", 1_000_000, b"xxxx", 0, 0)
            column = pa.Array.from_buffers(
                pa.string_view(), 100_000, [None, pa.py_buffer(view * 100_000), long.buffers()[2]]
            )
        case "list views":
            values = pa.array(np.zeros(1_000_000, np.int64))
            sizes = pa.array(np.full(100_000, 1_000_000, np.int32))
            column = pa.ListViewArray.from_arrays(pa.array(np.zeros(100_000, np.int32)), sizes, values)
        case _:
            values = pa.array([bytes(1_000_000)], pa.binary(1_000_000))
            column = pa.DictionaryArray.from_arrays(pa.array(np.zeros(100_000, np.int8)), values)
    batch = pa.record_batch({"c": column})
    with pytest.raises(LimitExceeded, match=r"takes .* bytes when it is decoded"):
        read(batch.schema, *FrameWriter(batch.schema).batch(batch))


def test_one_long_value_among_many_short_ones_is_not_multiplied() -> None:
    """Sizes are added up exactly where an estimate exceeds the limit."""
    values = pa.array(["x" * 1_000_000, "y"])
    places = pa.array([0] + [1] * 100_000, pa.int8())
    ends = pa.array([1, 100_001], pa.int32())
    columns = {
        "dictionary": pa.DictionaryArray.from_arrays(places, values),
        "runs": pa.RunEndEncodedArray.from_arrays(ends, values),
        "views": pa.array(["x" * 1_000_000, *["y"] * 100_000], pa.string_view()),
    }
    for name, column in columns.items():
        batch = pa.record_batch({name: column})
        assert read(batch.schema, *FrameWriter(batch.schema).batch(batch)) == [batch]
        check_values([column], 3_000_000)
        with pytest.raises(LimitExceeded):
            check_values([column], 1_000_000)


def compressed_stream(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


@pytest.mark.usefixtures("unallocated")
def test_arguments_of_functions_are_checked() -> None:
    batch = pa.record_batch({"a": pa.array([b"\0" * 4000], pa.binary())})
    stream = compressed_stream(batch)
    assert read_row(stream, "arguments").equals(batch)
    with pytest.raises(LimitExceeded):
        read_row(announcing(stream, 4000, GIB), "arguments")


@pytest.mark.parametrize(("size", "is_kept"), [(100, True), (1_000_000, False)])
def test_only_small_arguments_are_kept(*, size: int, is_kept: bool) -> None:
    batch = pa.record_batch({"a": pa.array([b"\0" * size], pa.binary())})
    stream = compressed_stream(batch)
    assert len(stream) < 2000
    first, second = read_row(stream, "arguments"), read_row(stream, "arguments")
    assert first.equals(batch)
    assert second.equals(batch)
    assert (first is second) == is_kept


@pytest.mark.parametrize("codec", [None, "lz4", "zstd"])
def test_sizes_of_all_types_agree_with_arrow(codec: Compression | None) -> None:
    """The check finds at least what the decoded batch takes, and not much more."""
    for name, (kind, values) in TYPES.items():
        column = array_of(kind, values * 500)
        batch = pa.record_batch({"c": column})
        for header, body in PlainMessageStream(batch.schema, codec).write(batch):
            found = check_message(b"".join(map(bytes, header)), memoryview(b"".join(map(bytes, body))))
            if found.dictionary is None:
                assert found.rows == len(column), name
                assert found.size <= 2 * column.nbytes + 4096, name
                taken = column.indices.nbytes if isinstance(column, pa.DictionaryArray) else column.nbytes
                assert "dictionary" in name or found.size >= taken - 64, name
        check_values([column], 1024 * len(column))


def test_compression_of_an_old_arrow_is_rejected() -> None:
    batch = pa.record_batch({"c": pa.array([1])})
    frame = parse_frame(next(FrameWriter(batch.schema).batch(batch)))
    with pytest.raises(ValueError, match=r"Arrow 0\.17"):
        check_message(bytes(frame.header) + b"ARROW:experimental_compression", frame.body)


def test_headers_that_are_cut_or_damaged_are_errors_of_the_caller() -> None:
    batch = pa.record_batch({"c": pa.array(np.zeros(1000, np.int64))})
    frame = compressed(batch)
    header = bytes(parse_frame(frame).header)
    rng = np.random.default_rng(1)
    for _ in range(300):
        damaged = bytearray(header)
        for place in rng.integers(0, len(header), 3):
            damaged[place] = rng.integers(0, 256)
        assert len(damaged) == len(header)
        try:
            read(batch.schema, frame.replace(header, bytes(damaged)))
        except (InvalidArgument, LimitExceeded):
            continue


def test_readers_of_a_chosen_server_accept_larger_batches() -> None:
    schema = pa.schema({"n": pa.null()})
    rows = 1 << 26  # 512 MiB of row numbers
    (frame,) = FrameWriter(schema).batch(pa.record_batch([pa.nulls(77_777)], schema=schema))
    frame = frame.replace(struct.pack("<q", 77_777), struct.pack("<q", rows))
    with pytest.raises(LimitExceeded):
        read(schema, frame)
    (batch,) = BatchReader(iter([FrameWriter(schema).begin(), frame]), trusted=True)
    assert batch.num_rows == rows


def test_the_mark_of_a_message_is_not_part_of_its_header() -> None:
    batch = pa.record_batch({"c": pa.array([1, 2, 3])})
    message = batch.serialize().to_pybytes()
    assert message.startswith(CONTINUATION)
    assert check_message(message[8:], memoryview(b"")).rows == 3
