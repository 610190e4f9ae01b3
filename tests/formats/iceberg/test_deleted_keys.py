"""Equality deletes match exactly the rows that have one of their keys, in any number of columns."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skiway.errors import Unsupported
from skiway.formats.iceberg.deletes import EqualityDeletes, field_paths, key_fields
from skiway.formats.schemas import field_id, with_id

KEYS = st.sampled_from([None, -3, 0, 1, 2, 7])


def keys_of(rows: list[tuple[Any, ...]], width: int) -> list[pa.Array]:
    return [pa.array([row[place] for row in rows], pa.int64()) for place in range(width)]


@given(st.data(), st.integers(1, 3))
@settings(max_examples=40, deadline=None)
def test_rows_with_a_deleted_key_match(data: st.DataObject, width: int) -> None:
    some = st.lists(st.tuples(*[KEYS] * width), max_size=8)
    deleted, more, rows = data.draw(some), data.draw(some), data.draw(some)
    fields = tuple(pa.field(f"k{place}", pa.int64()) for place in range(width))
    tables = [pa.table(keys_of(each, width), schema=pa.schema(fields)) for each in (deleted, more)]
    found = EqualityDeletes.of(fields, tables).matches(keys_of(rows, width))
    assert found.to_pylist() == [row in (*deleted, *more) for row in rows]


def test_keys_larger_than_all_deleted_ones_do_not_match() -> None:
    fields = (pa.field("a", pa.int64()), pa.field("b", pa.int64()))
    deletes = EqualityDeletes.of(fields, [pa.table({"a": [1, 2], "b": [1, 2]})])
    found = deletes.matches([pa.array([1, 1, 2, 2, 9]), pa.array([1, 2, 1, 2, 9])])
    assert found.to_pylist() == [True, False, False, True, False]
    assert deletes.nbytes > 0


def test_texts_and_dictionaries_and_structs_are_compared_by_value() -> None:
    texts = pa.array(["x", "y", None])
    deletes = EqualityDeletes.of((pa.field("s", pa.string()),), [pa.table({"s": ["y", None]})])
    assert deletes.matches([texts]).to_pylist() == [False, True, True]
    assert deletes.matches([texts.dictionary_encode()]).to_pylist() == [False, True, True]
    inside = pa.StructArray.from_arrays([texts], names=["s"], mask=pa.array([False, True, False]))
    assert deletes.matches([pa.StructArray.from_arrays([inside], names=["t"])]).to_pylist() == [False, True, True]


def test_fields_of_structs_are_columns_reduced_to_the_field() -> None:
    def field(name: str, of: pa.DataType, number: int) -> pa.Field:
        return with_id(pa.field(name, of, nullable=False), number)

    inner = pa.struct([field("x", pa.int64(), 3), field("y", pa.int64(), 4)])
    schema = pa.schema([field("a", pa.int64(), 1), field("s", pa.struct([field("t", inner, 5)]), 2)])
    paths = field_paths(schema)
    assert {number: [each.name for each in path] for number, path in paths.items()} == {
        1: ["a"],
        2: ["s"],
        3: ["s", "t", "x"],
        4: ["s", "t", "y"],
        5: ["s", "t"],
    }
    plain, nested = key_fields([1, 4], paths, table="t")
    assert (plain.name, plain.type, field_id(plain)) == ("a (id 1)", pa.int64(), 1)
    assert (nested.name, field_id(nested)) == ("s.t.y (id 4)", 2)
    assert [each.name for each in nested.type] == ["t"]
    assert [(each.name, each.nullable, field_id(each)) for each in nested.type.field(0).type] == [("y", True, 4)]
    with pytest.raises(Unsupported, match="table 't' has equality deletes by a column with id 9") as refused:
        key_fields([1, 9], paths, table="t")
    assert refused.value.params["feature"] == "equality deletes by an unknown column"
