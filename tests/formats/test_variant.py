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

from skiway.formats.variant import is_variant, variant_json

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


def test_missing_value_is_null_and_json_null_is_not() -> None:
    rows = pa.array([None, stored("null")], pa.struct({"metadata": pa.binary(), "value": pa.binary()}))
    assert variant_json(rows).to_pylist() == [None, "null"]


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
