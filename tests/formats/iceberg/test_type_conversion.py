"""Types, bounds and defaults of Iceberg in Arrow, and columns that cannot be stored."""

from __future__ import annotations

import struct
from datetime import date
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionField
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform
from pyiceberg.types import (
    DateType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    UUIDType,
)

from skiway.errors import InvalidArgument, Unsupported
from skiway.formats.iceberg import types
from skiway.formats.iceberg.types import bounds, defaults, format_version, iceberg_schema, partition_type


@pytest.mark.parametrize(
    ("of", "data", "value"),
    [
        (pa.int64(), (-5).to_bytes(8, "little", signed=True), -5),
        (pa.int64(), (-5).to_bytes(4, "little", signed=True), -5),
        (pa.int32(), (300).to_bytes(4, "little"), 300),
        (pa.date32(), (1).to_bytes(4, "little"), date(1970, 1, 2)),
        (pa.timestamp("us"), (1).to_bytes(4, "little"), None),
        (pa.bool_(), b"\0", False),
        (pa.bool_(), b"\1", True),
        (pa.string(), "ä".encode(), "ä"),
        (pa.string(), b"\xff", None),
        (pa.binary(), b"\xff", b"\xff"),
        (pa.binary(2), b"ab", b"ab"),
        (pa.binary(2), b"abc", None),
        (pa.float64(), struct.pack("<d", 1.5), 1.5),
        (pa.float64(), struct.pack("<f", 1.5), 1.5),
        (pa.float64(), b"123", None),
        (pa.decimal128(9, 2), (-256).to_bytes(2, "big", signed=True), Decimal("-2.56")),
        (pa.decimal128(9, 2), b"\x00", Decimal("0.00")),
        (pa.decimal128(9, 0), b"\x7f", Decimal(127)),
        (pa.list_(pa.int64()), b"x", None),
    ],
)  # fmt: skip
def test_bounds_are_decoded(of: pa.DataType, data: bytes, value: Any) -> None:
    found = bounds([None, data], of)
    assert found.type == of
    assert found.to_pylist() == [None, value]


def optional(number: int, name: str, of: Any, default: Any = None) -> NestedField:
    return NestedField(number, name, of, required=False, initial_default=default)


def nested() -> Schema:
    return Schema(
        optional(1, "a", IntegerType(), 7),
        optional(2, "s", StructType(optional(3, "d", DateType(), "2026-01-02"))),
        optional(4, "l", ListType(5, StructType(optional(6, "n", LongType(), 8)))),
        optional(7, "m", MapType(8, StringType(), 9, StructType(optional(10, "n", LongType(), 9)))),
    )


def test_defaults_of_columns_and_nested_fields() -> None:
    found = defaults(nested())
    assert {number: each.as_py() for number, each in found.items()} == {1: 7, 3: date(2026, 1, 2), 6: 8, 10: 9}
    assert found[1].type == pa.int32()


def test_type_of_a_partition_is_that_of_the_newest_schema_with_its_column() -> None:
    old = Schema(optional(1, "t", IntegerType()), optional(2, "u", UUIDType()))
    new = Schema(optional(1, "t", LongType()), optional(3, "at", TimestampType()))
    whole: Any = IdentityTransform()
    sources: list[tuple[int, Any]] = [(1, whole), (1, BucketTransform(4)), (2, whole), (3, DayTransform()), (9, whole)]
    fields = [PartitionField(number, 1000, transform, "p") for number, transform in sources]
    types = [partition_type(each, [old, new]) for each in fields]
    assert types == [pa.int64(), pa.int32(), pa.binary(16), pa.date32(), pa.null()]
    assert partition_type(fields[0], [new, old]) == pa.int32()


@pytest.mark.parametrize(
    ("of", "version"),
    [
        (pa.int64(), 2),
        (pa.timestamp("us"), 2),
        (pa.timestamp("ns"), 3),
        (pa.list_(pa.timestamp("ns", tz="UTC")), 3),
        (pa.struct({"a": pa.int64(), "b": pa.timestamp("ns")}), 3),
        (pa.struct({"a": pa.int64(), "b": pa.timestamp("us")}), 2),
        (pa.map_(pa.string(), pa.timestamp("ns")), 3),
        (pa.dictionary(pa.int32(), pa.string()), 2),
    ],
)
def test_version_that_has_all_types(of: pa.DataType, version: int) -> None:
    assert format_version(pa.schema({"x": pa.int64(), "y": of})) == version
    assert iceberg_schema(pa.schema({"y": of}), format_version=version).find_field("y").field_id == 1
    if version == 3:
        with pytest.raises(
            Unsupported, match=r"column 'y(\.b)?' has type .*, which Iceberg stores from format version 3 on"
        ):
            iceberg_schema(pa.schema({"y": of}))


@pytest.mark.parametrize(
    ("of", "named"),
    [
        (pa.null(), "null"),
        (pa.decimal256(39, 0), "decimal256"),
        (pa.decimal128(9, -2), "decimal128"),
        (pa.struct([]), "struct without fields"),
        (pa.month_day_nano_interval(), "month_day_nano_interval"),
        (pa.list_(pa.null()), "null"),
    ],
)
def test_types_that_cannot_be_stored_are_rejected_with_the_column(of: pa.DataType, named: str) -> None:
    with pytest.raises(Unsupported, match=f"column 'y' has type {named}") as refused:
        iceberg_schema(pa.schema({"x": pa.int64(), "y": of}))
    assert refused.value.params["column"] in ("y", "item", "element")


def test_decimals_may_have_38_digits() -> None:
    found = iceberg_schema(pa.schema({"x": pa.decimal256(38, 0), "y": pa.decimal128(38, 38)}))
    assert [str(each.field_type) for each in found.fields] == ["decimal(38, 0)", "decimal(38, 38)"]


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (pa.schema([]), "a table needs at least one column"),
        (pa.schema({"": pa.int64()}), "a column has no name"),
        (pa.schema([("a", pa.int64()), ("A", pa.int64())]), "columns 'a' and 'A' have the same name"),
        (pa.schema({"s": pa.struct([("", pa.int64())])}), "a column within 's' has no name"),
        (pa.schema({"s": pa.struct([("a", pa.int64()), ("A", pa.int64())])}), "columns 'a' and 'A' within 's' have"),
        (pa.schema({"a.b": pa.int64(), "a": pa.struct({"b": pa.int64()})}), "the column names are ambiguous"),
    ],
)
def test_names_of_columns_must_be_distinct_and_not_empty(schema: pa.Schema, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        iceberg_schema(schema)


def test_new_fields_are_numbered_and_keep_nullability_and_comments() -> None:
    inner = pa.struct([pa.field("n", pa.int64(), nullable=False), pa.field("o", pa.int32())])
    found = iceberg_schema(
        pa.schema(
            [
                pa.field("a", pa.int64(), nullable=False, metadata={"comment": "first"}),
                pa.field("l", pa.list_(pa.field("item", inner, nullable=False))),
                pa.field("m", pa.map_(pa.string(), pa.field("value", pa.int64(), nullable=False)), metadata={"doc": "x"}),
                pa.field("z", pa.string()),
            ]
        )
    )  # fmt: skip
    assert sorted(found._lazy_id_to_field) == list(range(1, 10))
    assert [(each.name, each.required, each.doc) for each in found.fields] == [
        ("a", True, "first"),
        ("l", False, None),
        ("m", False, "x"),
        ("z", False, None),
    ]
    assert [found.find_field(name).required for name in ("l.element", "l.element.n", "l.element.o", "m.value")] == [
        True,
        True,
        False,
        True,
    ]


@pytest.mark.parametrize("name", types._COMMON_TYPES)
def test_common_types_are_those_of_pyiceberg(name: str) -> None:
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    schema = Schema.model_validate({"fields": [{"id": 1, "name": "a", "required": False, "type": name}]})
    found = schema_to_pyarrow(schema.fields[0].field_type)
    assert types._plain_type(found) == types._COMMON_TYPES[name]
