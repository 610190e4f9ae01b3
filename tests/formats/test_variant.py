"""Variants become JSON, shredded or not. PySpark's own encoder and DuckDB write them."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.variant_utils import VariantUtils

from skiway.formats.extension_types import is_variant, variant_json

DOCUMENTS = [
    "null",
    "true",
    "false",
    "0",
    "-1",
    "127",
    "-32768",
    "2147483647",
    "-9223372036854775808",
    "12345678901234567890",
    "1.25",
    "-0.00001",
    "1e300",
    '"short"',
    '""',
    json.dumps("long " * 40),
    '"ß\\n\\""',
    "[]",
    "{}",
    '[1, [2, [3, {"a": null}]], "x"]',
    '{"b": 1, "a": {"c": [true, false]}, "ü": "é"}',
    json.dumps({f"key {number}": number for number in range(300)}),
    json.dumps(list(range(1000))),
]


def stored(text: str) -> dict[str, bytes]:
    value, metadata = VariantUtils.parse_json(text)
    return {"metadata": bytes(metadata), "value": bytes(value)}


@pytest.mark.parametrize("text", DOCUMENTS, ids=lambda text: text[:40])
def test_json_documents_survive(text: str) -> None:
    (found,) = variant_json(pa.array([stored(text)])).to_pylist()
    assert json.loads(found, parse_float=str) == json.loads(VariantUtils.to_json(**stored(text)), parse_float=str)
    assert json.loads(found) == json.loads(text)


PRIMITIVES = [
    (0, b"", "null"),
    (1, b"", "true"),
    (2, b"", "false"),
    (3, struct.pack("<b", -3), "-3"),
    (4, struct.pack("<h", -300), "-300"),
    (5, struct.pack("<i", -70_000), "-70000"),
    (6, struct.pack("<q", -(2**40)), str(-(2**40))),
    (7, struct.pack("<d", 0.1), "0.1"),
    (8, b"\x02" + (-105).to_bytes(4, "little", signed=True), "-1.05"),
    (9, b"\x01" + (10**12 + 5).to_bytes(8, "little"), "100000000000.5"),
    (10, b"\x00" + (10**30).to_bytes(16, "little"), str(10**30)),
    (11, struct.pack("<i", -1), '"1969-12-31"'),
    (12, struct.pack("<q", 1), '"1970-01-01 00:00:00.000001+00:00"'),
    (13, struct.pack("<q", 1_500_000), '"1970-01-01 00:00:01.5"'),
    (14, struct.pack("<f", 0.5), "0.5"),
    (15, struct.pack("<I", 2) + b"\x00\xff", '"AP8="'),
    (16, struct.pack("<I", 2) + "ß".encode(), '"ß"'),
    (17, struct.pack("<q", 3_600_000_001), '"01:00:00.000001"'),
    (18, struct.pack("<q", 1_000_000_001), '"1970-01-01 00:00:01.000000001+00:00"'),
    (19, struct.pack("<q", -1), '"1969-12-31 23:59:59.999999999"'),
    (20, bytes(range(16)), '"00010203-0405-0607-0809-0a0b0c0d0e0f"'),
]


@pytest.mark.parametrize(("number", "data", "expected"), PRIMITIVES, ids=[str(each[0]) for each in PRIMITIVES])
def test_each_primitive_type_of_the_format_is_read(number: int, data: bytes, expected: str) -> None:
    rows = pa.array([{"metadata": b"\x01\x00\x00", "value": bytes([number << 2]) + data}])
    assert variant_json(rows).to_pylist() == [expected]
    with pytest.raises(ValueError, match="of type 21"):
        variant_json(pa.array([{"metadata": b"\x01\x00\x00", "value": bytes([21 << 2])}]))


def packed(kind: int, values: list[bytes], *, width: int, large: bool, names: list[int] | None = None) -> bytes:
    """An array (3) or an object (2) with numbers of this width."""
    id_bits = 0 if names is None else (width - 1) << 2
    header = (width - 1) | id_bits | ((16 if kind == 2 else 4) if large else 0)
    places, total = [], 0
    for value in [*values, b""]:
        places.append(total)
        total += len(value)
    parts = [bytes([header << 2 | kind]), len(values).to_bytes(4 if large else 1, "little")]
    parts += [each.to_bytes(width, "little") for each in [*(names or []), *places]]
    return b"".join([*parts, *values])


@pytest.mark.parametrize("width", [1, 2, 3, 4])
@pytest.mark.parametrize("large", [False, True])
def test_arrays_and_objects_of_all_widths_are_read(width: int, large: bool) -> None:
    names = b"".join(each.to_bytes(width, "little") for each in (2, 0, 1, 3)) + b"bcd"
    metadata = bytes([1 | (width - 1) << 6]) + names
    values = [bytes([3 << 2, 5]), bytes([1 << 2])]
    array = packed(3, values, width=width, large=large)
    value = packed(2, [array, values[0]], width=width, large=large, names=[1, 0])
    assert variant_json(pa.array([{"metadata": metadata, "value": value}])).to_pylist() == ['{"b":5,"cd":[5,true]}']


def test_missing_value_is_null_and_json_null_is_not() -> None:
    values = [None, stored("null"), {**stored("1"), "value": None}]
    rows = pa.array(values, pa.struct({"metadata": pa.binary(), "value": pa.binary()}))
    assert variant_json(rows).to_pylist() == [None, "null", None]


VALUES = [
    ("1::TINYINT", "1"),
    ("-300::SMALLINT", "-300"),
    ("1.5::FLOAT", "1.5"),
    ("'NaN'::DOUBLE", '"NaN"'),
    ("'-inf'::DOUBLE", '"-Infinity"'),
    ("-1.05::DECIMAL(4,2)", "-1.05"),
    ("12345678901.5::DECIMAL(18,1)", "12345678901.5"),
    ("12345678901234567890123456789.125::DECIMAL(38,3)", "12345678901234567890123456789.125"),
    ("DATE '1969-12-31'", '"1969-12-31"'),
    ("TIMESTAMP '2026-01-02 03:04:05.678'", '"2026-01-02 03:04:05.678"'),
    ("TIMESTAMPTZ '2026-01-02 03:04:05+00'", '"2026-01-02 03:04:05+00:00"'),
    ("TIMESTAMP_NS '2026-01-02 03:04:05.000000001'", '"2026-01-02 03:04:05.000000001"'),
    ("TIME '03:04:05'", '"03:04:05"'),
    ("TIME '03:04:05.01'", '"03:04:05.01"'),
    ("TIMESTAMPTZ '2026-01-02 03:04:05.1+00'", '"2026-01-02 03:04:05.1+00:00"'),
    ("'\\x00\\xFF'::BLOB", '"AP8="'),
    ("'00000000-0000-0000-0000-000000000001'::UUID", '"00000000-0000-0000-0000-000000000001"'),
]


def written(folder: Path, sql: str, options: str = "") -> pa.StructArray:
    place = folder / "v.parquet"
    with duckdb.connect() as duck:
        duck.execute("SET TimeZone = 'UTC'")
        duck.execute(f"COPY (SELECT * FROM (VALUES {sql}) t(v)) TO '{place}' (FORMAT parquet {options})")
    found = pq.read_table(place)["v"].combine_chunks()
    assert is_variant(found.type)
    return found


@pytest.mark.parametrize(("value", "expected"), VALUES, ids=[value for value, _ in VALUES])
def test_values_that_json_does_not_have_become_text(tmp_path: Path, value: str, expected: str) -> None:
    """In an array with another type, which is not shredded, and alone, which is."""
    mixed = written(tmp_path, f"([({value})::VARIANT, 'text'::VARIANT]::VARIANT)")
    assert variant_json(mixed).to_pylist() == [f'[{expected},"text"]']
    assert variant_json(written(tmp_path, f"(({value})::VARIANT)")).to_pylist() == [expected]


OBJECTS = """
    ({'b': [true, NULL], 'a': 1, 'c': {'d': 'x'}}::VARIANT), ('text'::VARIANT), ({'a': 'other', 'c': 5}::VARIANT),
    ({'z': DATE '2026-01-02', 'l': [1, 2], 'a': NULL}::VARIANT), ([1]::VARIANT), ({'l': ['x']}::VARIANT)
"""
EXPECTED = [
    '{"a":1,"b":[true,null],"c":{"d":"x"}}',
    '"text"',
    '{"a":"other","c":5}',
    '{"a":null,"l":[1,2],"z":"2026-01-02"}',
    "[1]",
    '{"l":["x"]}',
]


@pytest.mark.parametrize(
    "shredding",
    ["", "STRUCT(a INTEGER, c STRUCT(d VARCHAR), l INTEGER[])", "STRUCT(z DATE, b BOOLEAN[])", "INTEGER[]", "VARCHAR"],
)
def test_shredded_values_are_put_together(tmp_path: Path, shredding: str) -> None:
    options = f", SHREDDING {{'v': '{shredding}'}}" if shredding else ""
    found = written(tmp_path, OBJECTS, options)
    assert "typed_value" in {field.name for field in found.type}
    assert variant_json(found).to_pylist() == EXPECTED


def test_damaged_values_raise_expected_errors() -> None:
    whole = stored('{"b": [1, "x", 2.5, null], "a": {"c": "text"}}')
    damaged: list[dict[str, Any]] = []
    for part, data in whole.items():
        damaged += [{**whole, part: data[:size]} for size in range(len(data))]
        damaged += [{**whole, part: data[:at] + bytes([data[at] ^ 255]) + data[at + 1 :]} for at in range(len(data))]
    failed = 0
    for each in damaged:
        try:
            variant_json(pa.array([each]))
        except (ValueError, LookupError, OverflowError, TypeError, struct.error):
            failed += 1
    assert failed > len(damaged) / 2


def test_deeply_nested_value_is_rejected() -> None:
    with pytest.raises(ValueError, match="more than 200 levels"):
        variant_json(pa.array([stored("[" * 250 + "]" * 250)]))
