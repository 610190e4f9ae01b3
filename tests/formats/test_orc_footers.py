"""The footers of ORC files: messages, compressed chunks, and whether timestamps fit into nanoseconds."""

from __future__ import annotations

import zlib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import orc

from skiway.formats.readers.orc import _field, _has_timestamps, _Message, _Timestamps, _unchunked
from skiway.formats.schemas import field_id

MOMENT = datetime(2026, 1, 2, tzinfo=UTC)
LAST_MS = 2**63 // 1_000_000


def test_fields_of_messages() -> None:
    message = _Message(b"\x08\x96\x01" + b"\x12\x02hi" + b"\x19" + b"8" * 8 + b"\x25" + b"4" * 4 + b"\x12\x00\x28\x03")
    assert message.fields == [(1, 150), (2, b"hi"), (2, b""), (5, 3)], "numbers of fixed width are skipped"
    assert [message.number(each) for each in (1, 5, 7)] == [150, 3, 0]
    assert message.parts(2) == [b"hi", b""]
    assert message.parts(9) == []


def test_repeated_numbers_may_be_packed() -> None:
    assert _Message(b"\x08\x01\x0a\x03\x02\x96\x01\x08\x03").numbers(1) == [1, 2, 150, 3]
    assert _Message(b"").numbers(1) == []


@pytest.mark.parametrize("data", [b"\x12\x03hi", b"\x12\x01"])
def test_truncated_message_is_an_error(data: bytes) -> None:
    with pytest.raises(ValueError, match="truncated"):
        _Message(data)
    with pytest.raises(KeyError):
        _Message(b"\x0b")


def chunk(data: bytes, *, original: bool) -> bytes:
    return (len(data) << 1 | original).to_bytes(3, "little") + data


def deflated(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


def test_chunks_are_decompressed_unless_they_are_stored() -> None:
    parts = [b"a" * 1000, b"b", bytes(range(256)) * 2]
    data = b"".join(chunk(each, original=True) for each in parts)
    assert _unchunked(data, "deflate") == b"".join(parts)
    packed = b"".join(chunk(deflated(each), original=False) for each in parts)
    assert _unchunked(packed + data, "deflate") == b"".join(parts) * 2
    assert _unchunked(data, "null") == data
    assert _unchunked(b"", "deflate") == b""


def file_of(tmp_path: Path, codec: str = "zlib", **columns: Any) -> pa.NativeFile:
    orc.write_table(pa.table(columns), tmp_path / "t.orc", compression=codec)
    return pa.OSFile(str(tmp_path / "t.orc"))


def milliseconds(*values: int | None) -> pa.Array:
    return pa.array(values, pa.timestamp("ms"))


@pytest.mark.parametrize("codec", ["uncompressed", "zlib", "snappy", "zstd"])
@pytest.mark.parametrize("padding", [1, 60])
def test_every_column_is_judged_by_its_own_timestamps(tmp_path: Path, codec: str, padding: int) -> None:
    near, far = milliseconds(0, None), milliseconds(0, LAST_MS * 2)
    nested = pa.StructArray.from_arrays([pa.array([1, 2]), far], names=["n", "at"])
    columns = {f"column {number}": pa.array([number, 7]) for number in range(padding)}
    with file_of(tmp_path, codec, near=near, far=far, **columns, nested=nested, last=near) as file:
        times = _Timestamps(file)
        found = [times.fit_nanoseconds(place) for place in range(padding + 4)]
    assert found == [True, False, *[True] * padding, False, True]


@pytest.mark.parametrize(
    ("value", "fits"),
    [(LAST_MS - 2, True), (-LAST_MS + 2, True), (LAST_MS - 1, False), (LAST_MS, False), (-LAST_MS, False)],
)
def test_timestamps_fit_up_to_the_last_nanosecond(tmp_path: Path, value: int, fits: bool) -> None:
    for values in ([value], [0, value], [None, value]):
        with file_of(tmp_path, at=milliseconds(*values)) as file:
            assert _Timestamps(file).fit_nanoseconds(0) == fits


def test_column_of_nulls_fits(tmp_path: Path) -> None:
    with file_of(tmp_path, at=milliseconds(None, None), zoned=pa.array([MOMENT, None])) as file:
        times = _Timestamps(file)
        assert times.fit_nanoseconds(0)
        assert times.fit_nanoseconds(1)


def test_timestamps_without_statistics_do_not_fit(tmp_path: Path) -> None:
    with file_of(tmp_path, at=milliseconds(1), n=[1]) as file:
        times = _Timestamps(file)
    times._statistics = times._statistics[:1]
    assert not times.fit_nanoseconds(0)
    assert times.fit_nanoseconds(1), "other types need none"
    times._statistics = [_Message(b"\x08\x02")] * 3
    assert not times.fit_nanoseconds(0), "there are two values, with an unknown range"
    times._statistics = [_Message(b"")] * 3
    assert times.fit_nanoseconds(0), "there are no values"


@pytest.mark.parametrize(
    ("of", "expected"),
    [
        (pa.int64(), False),
        (pa.timestamp("ns"), True),
        (pa.list_(pa.timestamp("ns")), True),
        (pa.list_(pa.int64()), False),
        (pa.struct({"a": pa.int64(), "b": pa.timestamp("ns")}), True),
        (pa.struct({"a": pa.int64()}), False),
        (pa.map_(pa.timestamp("ns"), pa.int64()), True),
        (pa.map_(pa.int64(), pa.timestamp("ns")), True),
        (pa.map_(pa.int64(), pa.int64()), False),
    ],
)
def test_timestamps_are_found_in_nested_types(of: pa.DataType, expected: bool) -> None:
    assert _has_timestamps(of) == expected


def test_fields_have_ids_and_times_at_any_depth() -> None:
    def field(name: str, of: pa.DataType, number: int | None = None, *, time: bool = False) -> pa.Field:
        facts = {} if number is None else {"iceberg.id": str(number)}
        return pa.field(name, of, metadata={**facts, **({"iceberg.long-type": "TIME"} if time else {})})

    inner = pa.struct([field("at", pa.int64(), 3, time=True), field("n", pa.int64())])
    found = _field(field("st", inner, 2))
    assert field_id(found) == 2
    assert [(each.name, each.type, field_id(each)) for each in found.type] == [
        ("at", pa.time64("us"), 3),
        ("n", pa.int64(), None),
    ]
    times = _field(field("l", pa.list_(field("item", pa.int64(), 5, time=True)), 4))
    assert (field_id(times), times.type.value_type, field_id(times.type.value_field)) == (4, pa.time64("us"), 5)
    key = field("key", pa.int64(), 7, time=True).with_nullable(False)
    pairs = _field(field("m", pa.map_(key, field("value", pa.int64(), 8)), 6))
    assert (pairs.type.key_type, pairs.type.item_type) == (pa.time64("us"), pa.int64())
    assert (field_id(pairs.type.key_field), field_id(pairs.type.item_field)) == (7, 8)
