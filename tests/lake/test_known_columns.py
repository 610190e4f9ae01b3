"""The columns that clients know: names, types, and what they can still read after a change."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from skiway.errors import SkiwayError
from skiway.formats.schemas import field_id, with_id
from skiway.lake.reading.columns import Columns, _with_distinct_names, columns_of


def field(name: str, number: int, of: pa.DataType = pa.int64(), *, nullable: bool = True, **facts: str) -> pa.Field:  # noqa: B008
    return with_id(pa.field(name, of, nullable=nullable, metadata=facts or None), number)


KNOWN = Columns("1", pa.schema([field("a", 1, doc="text"), field("b", 2, pa.string(), nullable=False)]))


def test_names_are_distinct_for_clients() -> None:
    schema = pa.schema([(name, pa.int64()) for name in ("rowid", "a", "A", "a_1", "ROWID", "a")])
    assert _with_distinct_names(schema).names == ["rowid_1", "a", "A_1", "a_1_1", "ROWID_2", "a_2"]


def test_announced_columns_have_comments_and_a_row_id() -> None:
    announced = KNOWN.announced
    assert announced.names == ["a", "b", "rowid"]
    assert [each.nullable for each in announced] == [True, False, True]
    assert announced.field("a").metadata == {b"comment": b"text"}
    assert announced.field("b").metadata is None
    assert announced.field("rowid").metadata == {b"is_rowid": b"1"}


def test_parts_of_types_are_announced_without_ids() -> None:
    inner = pa.struct([field("x", 3, nullable=False)])
    element, value = field("e", 4, inner), field("v", 5, inner)
    types = [inner, pa.list_(element), pa.list_(element, 2), pa.map_(pa.string(), value)]
    stored = pa.schema([field(f"c{place}", 10 + place, of) for place, of in enumerate(types)])
    announced = Columns("1", stored).announced
    plain = pa.struct([pa.field("x", pa.int64(), nullable=False)])
    element, value = pa.field("e", plain), pa.field("v", plain)
    expected = [plain, pa.list_(element), pa.list_(element, 2), pa.map_(pa.string(), value)]
    assert announced.types[:-1] == expected
    assert announced.field("c0").type.field("x").metadata is None
    assert announced.field("c1").type.value_field.type.field("x").metadata is None
    assert announced.field("c3").type.item_field.type.field("x").metadata is None


def test_creator_of_a_table_knows_its_own_types() -> None:
    given = pa.schema({"a": pa.int16(), "b": pa.string()})
    known = KNOWN.created_as(given)
    assert [(each.name, each.type, field_id(each)) for each in known.wanted] == [("a", pa.int16(), 1)]
    assert known.announced.field("a").type == pa.int16()
    rows = pa.record_batch({"b": ["x"], "a": pa.array([7], pa.int64())})
    shown = known.shown(rows, table="t")
    assert (shown.schema.names, shown.column("a").type, shown.column("a").to_pylist()) == (["b", "a"], pa.int16(), [7])
    assert known.shown(rows.select(["b"]), table="t").schema.names == ["b"]
    with pytest.raises(SkiwayError, match="column 'a' has values that its type cannot represent"):
        known.shown(pa.record_batch({"a": [70_000]}), table="t")
    assert KNOWN.shown(rows, table="t") is rows


@pytest.mark.parametrize(
    ("now", "names"),
    [
        ([field("a", 1), field("b", 2, pa.string(), nullable=False)], ["a", "b"]),
        ([field("b", 2, pa.string(), nullable=False), field("new", 1)], ["a", "b"]),
        ([field("b", 2, pa.string(), nullable=False)], ["b"]),
        ([field("a", 9), field("b", 2, pa.string(), nullable=False)], ["b"]),
        ([field("a", 1, pa.int32()), field("b", 2, pa.string(), nullable=False)], ["a", "b"]),
    ],
)
def test_columns_that_the_table_still_has_can_be_read(now: list[pa.Field], names: list[str]) -> None:
    assert KNOWN.readable(pa.schema(now), table="t").names == names


@pytest.mark.parametrize(
    ("now", "message"),
    [
        ([field("a", 1)], "column 'b' was dropped"),
        ([field("a", 1), field("b", 2, pa.string())], "column 'b' may be NULL now"),
        ([field("a", 1, pa.string()), field("b", 2, pa.string(), nullable=False)], "column 'a' is string now"),
    ],
)
def test_columns_that_a_client_would_misinterpret_are_errors(now: list[pa.Field], message: str) -> None:
    with pytest.raises(SkiwayError, match=message):
        KNOWN.readable(pa.schema(now), table="t")


def test_replaced_table_has_other_columns() -> None:
    optional = Columns("1", pa.schema([field("a", 1), field("b", 2)]))
    with pytest.raises(SkiwayError, match="it was replaced and has other columns"):
        optional.readable(pa.schema([field("a", 7)]), table="t")


def schema(*names: str, **more: Any) -> str:
    fields = [{"id": place, "name": name, "required": False, "type": "long"} for place, name in enumerate(names, 1)]
    return json.dumps({"type": "struct", "fields": fields, **more})


def test_id_of_a_schema_depends_on_its_content() -> None:
    plain, numbered = columns_of(schema("a")), columns_of(schema("a", **{"schema-id": 4}))
    assert numbered.id == f"4-{plain.id}"
    assert len(plain.id) == 12
    assert columns_of(schema("b")).id != plain.id
    assert columns_of(schema("a", **{"schema-id": 5})).id == f"5-{plain.id}"
    assert numbered.stored.names == ["a"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "Expecting property name"),
        ("[]", "Input should be a valid dictionary"),
        (schema(), "it has no columns"),
        ('{"type": "struct", "fields": [{"id": 1}]}', "validation error"),
    ],
)
def test_invalid_schemas_are_errors(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        columns_of(text)
