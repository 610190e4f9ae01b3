"""Field ids of nested schemas, their leaves, and schemas as JSON."""

from __future__ import annotations

import json
from hashlib import blake2b
from typing import Any

import pyarrow as pa
import pytest

from skiway.errors import Unsupported
from skiway.formats.schemas import (
    TableSchema,
    field_id,
    leaves,
    path_id,
    schema_json,
    type_name,
    with_id,
    with_ids,
)

NESTED = pa.schema(
    [
        pa.field("a", pa.int64(), nullable=False),
        pa.field("s", pa.struct([pa.field("x", pa.int32()), pa.field("t", pa.struct({"y": pa.string()}))])),
        pa.field("l", pa.list_(pa.struct({"in": pa.int64(), "more": pa.int64()}))),
        pa.field("m", pa.map_(pa.string(), pa.list_(pa.date32()))),
        pa.field("z", pa.float64()),
    ]
)


def test_every_field_has_the_id_of_its_path() -> None:
    paths: list[tuple[str, ...]] = []

    def number(path: tuple[str, ...]) -> int:
        paths.append(path)
        return len(paths)

    found = with_ids(NESTED, number)
    assert sorted(paths) == sorted(
        [
            ("a",),
            ("s",),
            ("s", "x"),
            ("s", "t"),
            ("s", "t", "y"),
            ("l",),
            ("l", "element"),
            ("l", "element", "in"),
            ("l", "element", "more"),
            ("m",),
            ("m", "key"),
            ("m", "value"),
            ("m", "value", "element"),
            ("z",),
        ]
    )
    assert [each.name for each in found] == NESTED.names
    assert field_id(found.field("l").type.value_field) == paths.index(("l", "element")) + 1
    assert [each.nullable for each in found] == [each.nullable for each in NESTED]


def test_leaves_are_counted_like_columns_of_parquet() -> None:
    found = leaves(with_ids(NESTED))
    assert [(leaf.path, leaf.index) for leaf in found] == [
        (("a",), 0),
        (("s", "x"), 1),
        (("s", "t", "y"), 2),
        (("z",), 7),
    ]
    assert [leaf.id for leaf in found] == [path_id(leaf.path) for leaf in found]
    assert [leaf.type for leaf in found] == [pa.int64(), pa.int32(), pa.string(), pa.float64()]
    assert leaves(NESTED) == [], "without ids"


def test_ids_of_paths_are_positive_and_distinct() -> None:
    paths = [("a", "b"), ("ab",), ("a",), ("b", "a"), *((f"c{number}",) for number in range(500))]
    numbers = [path_id(path) for path in paths]
    assert len(set(numbers)) == len(paths)
    assert all(0 < each < 2**31 for each in numbers)
    assert path_id(("a",)) == 1 + int.from_bytes(blake2b(b"a", digest_size=8).digest()) % (2**31 - 1)


@pytest.mark.parametrize(
    "of",
    [
        pa.list_(pa.int64()),
        pa.large_list(pa.int64()),
        pa.list_view(pa.int64()),
        pa.large_list_view(pa.int64()),
        pa.list_(pa.int64(), 3),
    ],
)
def test_lists_keep_their_layout(of: pa.DataType) -> None:
    found = with_ids(pa.schema({"l": of})).field("l").type
    assert type(found) is type(of)
    assert field_id(found.value_field) == path_id(("l", "element"))
    assert getattr(found, "list_size", -1) == getattr(of, "list_size", -1)


def test_id_replaces_all_but_documentation() -> None:
    field = pa.field("a", pa.int64(), metadata={"doc": "text", "other": "gone", "PARQUET:field_id": "7"})
    assert field_id(field) == 7
    assert with_id(field, 8).metadata == {b"doc": b"text", b"PARQUET:field_id": b"8"}
    assert with_id(field, None).metadata == {b"doc": b"text"}
    assert field_id(with_id(field, None)) is None
    assert field_id(with_id(field, 0)) == 0


def test_schema_as_json() -> None:
    schema = with_ids(
        pa.schema(
            [
                pa.field("a", pa.int64(), nullable=False, metadata={"doc": "text"}),
                pa.field("l", pa.list_(pa.field("item", pa.int64(), nullable=False))),
                pa.field("m", pa.map_(pa.string(), pa.field("v", pa.int64()))),
                pa.field("s", pa.struct({"x": pa.bool_()})),
            ]
        ),
        lambda path: {("a",): 1, ("l",): 2, ("l", "element"): 3, ("m",): 4, ("m", "key"): 5, ("m", "value"): 6, ("s",): 7}.get(path, 8),
    )  # fmt: skip
    values = {"type": "list", "element-id": 3, "element": "long", "element-required": True}
    pairs = {"type": "map", "key-id": 5, "key": "string", "value-id": 6, "value": "long", "value-required": False}
    inner = {"type": "struct", "fields": [{"id": 8, "name": "x", "required": False, "type": "boolean"}]}
    assert json.loads(schema_json(schema))["fields"] == [
        {"id": 1, "name": "a", "required": True, "type": "long", "doc": "text"},
        {"id": 2, "name": "l", "required": False, "type": values},
        {"id": 4, "name": "m", "required": False, "type": pairs},
        {"id": 7, "name": "s", "required": False, "type": inner},
    ]
    table = TableSchema.of(schema)
    assert json.loads(table.json) == {**json.loads(schema_json(schema)), "schema-id": table.id}
    assert table.id != TableSchema.of(schema.remove(0)).id


@pytest.mark.parametrize(
    ("of", "name"),
    [
        (pa.decimal128(38, 0), "decimal(38, 0)"),
        (pa.decimal256(38, 5), "decimal(38, 5)"),
        (pa.binary(3), "fixed[3]"),
        (pa.timestamp("us"), "timestamp"),
        (pa.timestamp("ms", tz="UTC"), "timestamptz"),
        (pa.timestamp("ns"), "timestamp_ns"),
        (pa.timestamp("ns", tz="UTC"), "timestamptz_ns"),
        (pa.dictionary(pa.int8(), pa.string_view()), "string"),
        (pa.uint64(), "decimal(20, 0)"),
        (pa.uint32(), "long"),
        (pa.uuid(), "uuid"),
        (pa.null(), "unknown"),
        (pa.decimal256(39, 0), None),
        (pa.decimal128(5, -1), None),
        (pa.duration("s"), None),
    ],
)
def test_names_of_types(of: pa.DataType, name: Any) -> None:
    if name is not None:
        assert type_name(of, "x") == name
        return
    with pytest.raises(Unsupported, match=r"column 'x' has type .*, which is not supported"):
        type_name(of, "x")
