"""Batches in which most columns are NULL: the same rows arrive, and the NULL columns take no space."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airport.wire.test_frames import TYPES, array_of, round_trip
from skiway.airport.server.scans import NullColumns
from skiway.airport.wire import encoding
from skiway.airport.wire.encoding import SparseBatches
from skiway.airport.wire.frames import BatchReader, FrameWriter


def among_nulls(column: pa.Array, rows: int) -> pa.RecordBatch:
    """A column between NULL columns of all types."""
    values = pa.concat_arrays([column] * (rows // len(column) + 1)).slice(0, rows)
    kinds = [pa.int64(), pa.string(), pa.list_(pa.struct([("x", pa.float64())])), pa.bool_(), pa.decimal128(20, 2)]
    nulls = [pa.nulls(rows, kind) for kind in kinds]
    names = ["a", "b", "asked", "c", "d", "e"]
    return pa.record_batch([*nulls[:2], values, *nulls[2:]], names=names)


NULLED = (0, 1, 3, 4, 5)


@pytest.mark.parametrize("name", [name for name in TYPES if name != "nested_dictionary"])
def test_every_type_round_trips_between_nulls(name: str) -> None:
    column = array_of(*TYPES[name])
    batches = [among_nulls(column, rows) for rows in (1, 4096, 4096, 3777)]
    assert round_trip(batches, null_columns=NULLED) == batches


def test_slice_of_a_larger_batch_round_trips() -> None:
    batch = among_nulls(pa.array(["one", None, "three", "four"]), 30_000)
    parts = [batch.slice(7, 10_001), batch.slice(10_008)]
    assert round_trip(parts, null_columns=NULLED) == parts


def test_all_columns_may_be_null() -> None:
    batch = pa.record_batch([pa.nulls(20_000, pa.int64()), pa.nulls(20_000, pa.string())], names=["a", "b"])
    assert round_trip([batch], null_columns=(0, 1)) == [batch]


def test_columns_without_buffers_round_trip() -> None:
    rows = 20_000
    empty = pa.array([{}] * rows, pa.struct([]))
    batch = pa.record_batch([pa.nulls(rows, pa.int64()), empty], names=["a", "asked"])
    assert round_trip([batch], null_columns=(0,)) == [batch]


def test_null_columns_take_no_space_and_the_others_are_unchanged() -> None:
    rows = 50_000
    column = pa.array(range(rows), pa.int64())
    batch = pa.record_batch([column, *(pa.nulls(rows, pa.int64()) for _ in range(9))], names=list("abcdefghij"))
    (frame,) = FrameWriter(batch.schema).batch(batch, null_columns=tuple(range(1, 10)))
    assert column.buffers()[1].to_pybytes() in frame
    assert len(frame) < column.nbytes * 1.1


def test_null_columns_of_a_fixed_width_need_no_memory_in_the_client() -> None:
    rows = 50_000
    kinds = [
        pa.int64(),
        pa.timestamp("us"),
        pa.float32(),
        pa.date32(),
        pa.bool_(),
        pa.binary(7),
        pa.uuid(),
        pa.string(),
    ]
    column = pa.array(range(rows), pa.int64())
    batch = pa.record_batch([column, *(pa.nulls(rows, kind) for kind in kinds)], names=list("abcdefghi"))
    writer = FrameWriter(batch.schema)
    stream = [writer.begin(), *writer.batch(batch, null_columns=tuple(range(1, 9)))]
    before = pa.total_allocated_bytes()
    (found,) = BatchReader(iter(stream))
    wide = 16 * rows + 4 * rows  # values of 16 bytes are longer than the body, and strings have offsets
    assert pa.total_allocated_bytes() - before < 1.1 * wide
    assert found == batch
    found.validate(full=True)


@given(rows=st.integers(1, 70_000))
def test_filters_leave_batches_of_any_size(rows: int) -> None:
    batch = among_nulls(pa.array([1, 2, None], pa.int16()), rows)
    assert round_trip([batch], null_columns=NULLED) == [batch]


def test_streams_share_compressed_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded, made, make = encoding._Encoded(), list[Any](), encoding._encoded_nulls
    monkeypatch.setattr(encoding, "_encoded", encoded)
    monkeypatch.setattr(encoding, "_encoded_nulls", lambda *what: made.append(what) or make(*what))
    batches = [among_nulls(pa.array([1.5, None]), rows) for rows in (60_000, 59_999, 59_000)]
    for _ in range(2):
        assert round_trip(batches, null_columns=NULLED) == batches
    kinds = {pa.float64(), *(batches[0].schema.field(i).type for i in NULLED if i != 3)}
    flat = [what for what in made if not what[0].num_fields]
    assert len(flat) == len(encoded.columns)
    assert {kind for kind, rows in flat if rows == 1} == kinds
    assert {kind for kind, rows in flat if rows == 61_440} == {pa.string(), pa.decimal128(20, 2)}, (
        "which are not borrowed"
    )
    assert len(encoded.templates) == 1


def test_shared_columns_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = encoding._Kept[int, bytes](len)
    monkeypatch.setattr(encoding, "_CACHED_BYTES", 100)
    for number in range(20):
        assert kept.get(number, lambda: b"x" * 30) == b"x" * 30
        assert len(kept) <= 3
    assert kept.get(19, lambda: b"other") == b"x" * 30
    monkeypatch.setattr(encoding, "_CACHED_VALUES", 2)
    for number in range(20, 40):
        kept.get(number, lambda: b"")
        assert len(kept) <= 3


class Unhashable(pa.ExtensionType):
    """A type that somebody has defined in Python."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self) -> None:
        super().__init__(pa.int64(), "test.unhashable")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""


@pytest.mark.parametrize("kind", [pa.uuid(), pa.opaque(pa.binary(16), "thing", "vendor"), Unhashable()], ids=str)
def test_extension_types_are_encoded_as_their_storage(kind: pa.DataType) -> None:
    columns = [pa.nulls(20_000, each) for each in (kind, kind.storage_type)]
    batches = [pa.record_batch([pa.array(range(20_000)), column], names=["asked", "other"]) for column in columns]
    found, expected = (SparseBatches(batch.schema, (1,)).message(batch) for batch in batches)
    assert found is not None
    assert expected is not None
    assert b"".join(found[1]) == b"".join(expected[1])


def test_the_size_of_null_columns_is_that_of_the_current_batch() -> None:
    nulls, rows = NullColumns(), (3, 20_000, 3)
    batches = [pa.record_batch([pa.nulls(count, pa.int64())] * 2, names=["a", "b"]) for count in rows]
    assert [nulls.nbytes(batch, (0, 1)) for batch in batches] == [batch.nbytes for batch in batches]
    assert nulls.nbytes(batches[1], (1,)) * 2 == batches[1].nbytes


def test_views_with_a_variable_number_of_buffers_are_encoded_by_arrow() -> None:
    batch = among_nulls(pa.array(["a text that is longer than twelve bytes"], pa.string_view()), 10)
    assert SparseBatches(batch.schema, NULLED).message(batch) is None
