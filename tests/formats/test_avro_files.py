"""Avro files byte by byte: headers, blocks, limits, types and decimals."""

from __future__ import annotations

import io
import json
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from skiway.errors import LimitExceeded, PreconditionFailed, Unsupported
from skiway.formats.readers import avro
from skiway.formats.readers.avro import _Container, _decimals, _logical, _physical_type, _varint, arrow_fields
from skiway.formats.schemas import field_id

SCHEMA = {"type": "record", "name": "r", "fields": [{"name": "n", "type": "long"}, {"name": "s", "type": "string"}]}
SYNC = bytes(range(16))
ROWS = [{"n": number, "s": "x" * number} for number in range(200)]


def sized(data: bytes) -> bytes:
    return _varint(len(data)) + data


def header(schema: Any = SCHEMA, *, count: int = 1, sizes: bytes = b"", **more: bytes) -> bytes:
    pairs = {"avro.schema": json.dumps(schema).encode(), **{f"avro.{key}": value for key, value in more.items()}}
    data = b"".join(sized(key.encode()) + sized(value) for key, value in pairs.items())
    return b"Obj\x01" + _varint(count * len(pairs)) + sizes + data + _varint(0) + SYNC


def block(count: int, data: bytes, sync: bytes = SYNC) -> bytes:
    return _varint(count) + sized(data) + sync


def record(number: int, text: str = "") -> bytes:
    return _varint(number) + sized(text.encode())


def container(data: bytes) -> _Container:
    return _Container(pa.PythonFile(io.BytesIO(data), "r"), "t.avro")


def rows_of(data: bytes) -> list[Any]:
    return list(fastavro.reader(container(data)))  # type: ignore[arg-type]


@pytest.mark.parametrize("codec", ["null", "deflate", "bzip2"])
@pytest.mark.parametrize("interval", [1, 100, 16_000])
def test_files_with_blocks_of_any_size_are_read(codec: str, interval: int) -> None:
    out = io.BytesIO()
    fastavro.writer(out, SCHEMA, ROWS, codec=codec, sync_interval=interval)
    assert rows_of(out.getvalue()) == ROWS


def test_bytes_are_read_in_pieces_of_any_size() -> None:
    data = header() + block(2, record(1, "a") + record(-7, "b" * 100)) + block(1, record(3))
    whole = container(data).read(10_000)
    assert whole.endswith(block(2, record(1, "a") + record(-7, "b" * 100)) + block(1, record(3)))
    for size in (1, 7, 100, len(whole)):
        pieces = container(data)
        found = [pieces.read(size) for _ in range(-(-len(whole) // size))]
        assert b"".join(found) == whole
        assert (pieces.read(1), pieces.read(0)) == (b"", b"")


def test_header_may_have_sizes_and_several_parts() -> None:
    assert rows_of(header() + block(1, record(5, "five"))) == [{"n": 5, "s": "five"}]
    assert rows_of(header(count=-1, sizes=_varint(1234)) + block(1, record(5))) == [{"n": 5, "s": ""}]
    assert rows_of(header(codec=b"null") + block(1, record(5))) == [{"n": 5, "s": ""}]
    assert rows_of(header()) == []


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"Obj\x02" + header()[4:], "it is not an Avro file"),
        (b"", "it is not an Avro file"),
        (header()[:20], "it is truncated"),
        (header()[:-1], "it is truncated"),
        (header("long"), "its schema is not that of records"),
        (header({"type": "enum", "name": "e", "symbols": ["a"]}), "its schema is not that of records"),
        (header() + block(1, record(5))[:-1], "it is truncated"),
        (header() + block(1, record(5), sync=SYNC[::-1]), "a block has no sync marker at its end"),
        (header() + _varint(1) + _varint(-1), "a part of it has -1 bytes"),
        (header() + b"\x80" * 10 + b"\x01", "a number in it is too long"),
    ],
)
def test_damaged_files_are_corrupt(data: bytes, reason: str) -> None:
    with pytest.raises(PreconditionFailed, match=r"'t\.avro' is corrupt") as refused:
        rows_of(data)
    assert refused.value.detail == reason


@pytest.mark.parametrize("number", [0, 1, -1, 63, 64, -64, -65, 2**31, 2**63 - 1, -(2**63)])
def test_numbers_of_any_length_are_read(number: int) -> None:
    assert rows_of(header() + block(1, record(number))) == [{"n": number, "s": ""}]


def test_parts_and_blocks_may_be_as_large_as_the_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "x" * 100
    data = record(1, text)
    monkeypatch.setattr(avro, "_MAX_BLOCK_BYTES", len(data))
    assert rows_of(header() + block(1, data)) == [{"n": 1, "s": text}]
    monkeypatch.setattr(avro, "_MAX_BLOCK_BYTES", len(data) - 1)
    with pytest.raises(PreconditionFailed) as refused:
        rows_of(header() + block(1, data))
    assert refused.value.detail == f"a part of it has {len(data)} bytes"
    longest = len(json.dumps(SCHEMA))
    monkeypatch.setattr(avro, "_MAX_HEADER_BYTES", longest)
    assert rows_of(header()) == []
    monkeypatch.setattr(avro, "_MAX_HEADER_BYTES", longest - 1)
    with pytest.raises(PreconditionFailed):
        rows_of(header())


def test_compressed_blocks_may_expand_to_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.BytesIO()
    fastavro.writer(out, SCHEMA, [{"n": 1, "s": "x" * 10_000}], codec="deflate")
    size = len(record(1, "x" * 10_000))
    monkeypatch.setattr(avro, "_MAX_BLOCK_BYTES", size)
    assert len(rows_of(out.getvalue())) == 1
    monkeypatch.setattr(avro, "_MAX_BLOCK_BYTES", size - 1)
    with pytest.raises(LimitExceeded, match=f"takes more than {size - 1} bytes"):
        rows_of(out.getvalue())


def types(*kinds: Any) -> list[pa.Field]:
    fields = [{"name": f"f{place}", "type": kind, "field-id": place} for place, kind in enumerate(kinds)]
    return list(arrow_fields({"fields": fields}, "t.avro").values())


@pytest.mark.parametrize(
    ("kind", "of"),
    [
        ("long", pa.int64()),
        ({"type": "string"}, pa.string()),
        ({"type": "fixed", "name": "f", "size": 7}, pa.binary(7)),
        ({"type": "fixed", "name": "d", "size": 7, "logicalType": "decimal", "precision": 9, "scale": 2}, pa.decimal128(9, 2)),
        ({"type": "bytes", "logicalType": "decimal", "precision": 9}, pa.decimal128(9, 0)),
        ({"type": "int", "logicalType": "date"}, pa.date32()),
        ({"type": "long", "logicalType": "time-micros"}, pa.time64("us")),
        ({"type": "long", "logicalType": "timestamp-millis"}, pa.timestamp("ms")),
        ({"type": "long", "logicalType": "timestamp-micros"}, pa.timestamp("us")),
        ({"type": "long", "logicalType": "timestamp-micros", "adjust-to-utc": True}, pa.timestamp("us", tz="UTC")),
        ({"type": "long", "logicalType": "timestamp-micros", "adjust-to-utc": False}, pa.timestamp("us")),
        ({"type": "long", "logicalType": "timestamp-nanos", "adjust-to-utc": True}, pa.timestamp("ns", tz="UTC")),
        ({"type": "long", "logicalType": "local-timestamp-micros"}, pa.timestamp("us")),
        ({"type": "long", "logicalType": "local-timestamp-nanos"}, pa.timestamp("ns")),
        ({"type": "long", "logicalType": "unknown"}, pa.int64()),
        ({"type": {"type": "int"}}, pa.int32()),
        ("null", pa.null()),
    ],
)  # fmt: skip
def test_types_of_columns(kind: Any, of: pa.DataType) -> None:
    required, optional, swapped = types(kind, ["null", kind], [kind, "null"])
    assert (required.type, optional.type, swapped.type) == (of, of, of)
    assert (required.nullable, optional.nullable, swapped.nullable) == (of == pa.null(), True, True)
    assert [field_id(each) for each in (required, optional, swapped)] == [0, 1, 2]


def test_union_of_one_type_is_that_type() -> None:
    single, empty = types(["long"], ["null"])
    assert (single.type, single.nullable) == (pa.int64(), False)
    assert (empty.type, empty.nullable) == (pa.null(), True)


def test_named_types_may_be_used_again() -> None:
    named = {"type": "fixed", "name": "id", "size": 4}
    assert [each.type for each in types(named, "id", {"type": "array", "items": "id", "element-id": 9})] == [
        pa.binary(4),
        pa.binary(4),
        pa.list_(pa.field("element", pa.binary(4), nullable=False)),
    ]


@pytest.mark.parametrize(
    "kind", [["long", "string"], ["null", "long", "string"], "id", {"type": "enum", "symbols": []}]
)
def test_unsupported_types_are_rejected_with_the_column(kind: Any) -> None:
    with pytest.raises(Unsupported, match=r"column 'f1' of file 't\.avro' has ") as refused:
        types("long", kind)
    assert refused.value.params == {"column": "f1", "file": "t.avro"}


def test_maps_and_lists_have_the_ids_of_their_parts() -> None:
    pair = {"type": "record", "name": "p", "fields": [
        {"name": "key", "type": "int", "field-id": 7}, {"name": "value", "type": ["null", "long"], "field-id": 8}
    ]}  # fmt: skip
    text, numbers, values = types(
        {"type": "map", "values": "long", "key-id": 5, "value-id": 6},
        {"type": "array", "logicalType": "map", "items": pair},
        {"type": "array", "items": ["null", "long"], "element-id": 9},
    )
    assert (text.type.key_type, text.type.item_type) == (pa.string(), pa.int64())
    assert (field_id(text.type.key_field), field_id(text.type.item_field)) == (5, 6)
    assert (numbers.type.key_type, numbers.type.item_type) == (pa.int32(), pa.int64())
    assert (field_id(numbers.type.key_field), field_id(numbers.type.item_field)) == (7, 8)
    assert (numbers.type.item_field.nullable, text.type.item_field.nullable) == (True, False)
    assert (field_id(values.type.value_field), values.type.value_field.nullable) == (9, True)


def test_decimals_are_big_endian_numbers_of_any_length() -> None:
    numbers = [0, 1, -1, 127, 128, -128, -129, 10**20, -(10**20), 10**38 - 1]
    texts = [each.to_bytes(max(1, (each.bit_length() + 8) // 8), "big", signed=True) for each in numbers]
    for scale in (0, 2):
        of = pa.decimal128(38, scale)
        expected = [Decimal(f"{each}E-{scale}") for each in numbers]
        assert _decimals(pa.array(texts), of).to_pylist() == expected
        assert _decimals(pa.array([None, *texts, None]), of).to_pylist() == [None, *expected, None]


NESTED = pa.struct(
    [
        pa.field("at", pa.timestamp("us", tz="UTC")),
        pa.field("l", pa.list_(pa.date32())),
        pa.field("m", pa.map_(pa.string(), pa.time64("us"))),
        pa.field("k", pa.map_(pa.int32(), pa.decimal128(9, 2))),
        pa.field("s", pa.struct({"b": pa.binary(), "n": pa.int64()})),
    ]
)


def test_decoded_values_are_reinterpreted_at_any_depth() -> None:
    physical = _physical_type(NESTED)
    assert [each.type for each in physical] == [
        pa.int64(),
        pa.list_(pa.int32()),
        pa.map_(pa.string(), pa.int64()),
        pa.list_(pa.struct([pa.field("key", pa.int32()), pa.field("value", pa.binary())])),
        pa.struct({"b": pa.binary(), "n": pa.int64()}),
    ]
    row = {"at": 7, "l": [1, None], "m": [("a", 5)], "k": [{"key": 3, "value": b"\x01\x00"}], "s": {"b": b"x", "n": 1}}
    nothing = dict.fromkeys(row)
    found = _logical(pa.array([row, None, nothing, row], physical), NESTED)
    found.validate(full=True)
    assert found.type == NESTED
    assert found.is_null().to_pylist() == [False, True, False, False]
    first, _, empty, last = found.to_pylist()
    assert first == last
    assert first["k"] == [(3, Decimal("2.56"))]
    assert [str(each) for each in (first["l"], first["m"], first["s"])] == [
        "[datetime.date(1970, 1, 2), None]",
        "[('a', datetime.time(0, 0, 0, 5))]",
        "{'b': b'x', 'n': 1}",
    ]
    assert first["at"].timestamp() == 7e-6
    assert empty == nothing
