"""Infinite dates and timestamps are found at any depth; the moments next to them are not infinite."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from skiway.errors import InvalidArgument
from skiway.lake.writing.inserting import check_finite

DATE, TIMESTAMP = pa.date32(), pa.timestamp("us", tz="UTC")
MOST = {DATE: 2**31 - 1, TIMESTAMP: 2**63 - 1}


def numbers(of: pa.DataType, *values: int | None) -> pa.Array:
    return pa.array(values, pa.int32() if of == DATE else pa.int64()).view(of)


@pytest.mark.parametrize(("of", "word"), [(DATE, "date"), (TIMESTAMP, "timestamp")], ids=["date", "timestamp"])
@pytest.mark.parametrize("sign", [1, -1])
def test_infinity_is_rejected_and_its_neighbor_is_not(of: pa.DataType, word: str, sign: int) -> None:
    infinite = sign * MOST[of]
    for values in ([infinite], [0, infinite], [None, infinite, 5]):
        with pytest.raises(InvalidArgument, match=f"column 'at' has an infinite {word}, which Iceberg") as refused:
            check_finite(numbers(of, *values), column="at")
        assert refused.value.params == {"column": "at"}
    for values in ([infinite - sign], [0], [None], [], [1 - sign, None]):
        check_finite(numbers(of, *values), column="at")


def struct(values: pa.Array) -> pa.Array:
    return pa.StructArray.from_arrays([pa.nulls(len(values), pa.string()), values], names=["s", "at"])


def lists(values: pa.Array) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array([0, 1, len(values)], pa.int32()), values)


def map_of(keys: pa.Array, items: pa.Array) -> pa.Array:
    return pa.MapArray.from_arrays(pa.array(range(len(keys) + 1), pa.int32()), keys, items)


NESTED: dict[str, Any] = {
    "struct": struct,
    "list": lists,
    "struct in a list": lambda values: lists(struct(values)),
    "item": lambda values: map_of(pa.array(range(len(values))), values),
    "key": lambda values: map_of(values, pa.array(range(len(values)))),
    "fixed-size list": lambda values: pa.FixedSizeListArray.from_arrays(values, 1),
    "dictionary": lambda values: pa.DictionaryArray.from_arrays(pa.array(range(len(values)), pa.int32()), values),
    "runs": lambda values: pa.RunEndEncodedArray.from_arrays(pa.array(range(1, len(values) + 1), pa.int32()), values),
}


@pytest.mark.parametrize("kind", NESTED)
def test_infinity_is_found_in_nested_values(kind: str) -> None:
    nest, path = NESTED[kind], "x.at" if "struct" in kind else "x"
    check_finite(nest(numbers(DATE, 1, 2, 3)), column="x")
    for place in range(3):
        values = [1, 2, 3]
        values[place] = MOST[DATE]
        with pytest.raises(InvalidArgument, match=f"column '{path}' has an infinite date"):
            check_finite(nest(numbers(DATE, *values)), column="x")


def test_values_outside_of_a_slice_and_in_null_structs_do_not_matter() -> None:
    infinite = numbers(DATE, MOST[DATE], 1, MOST[DATE])
    pairs = map_of(pa.array([1, 2, 3]), infinite)
    check_finite(pairs.slice(1, 1), column="x")
    with pytest.raises(InvalidArgument):
        check_finite(pairs.slice(1, 2), column="x")
    hidden = pa.StructArray.from_arrays([infinite], names=["at"], mask=pa.array([True, False, True]))
    check_finite(hidden, column="x")


def test_other_types_have_no_infinity() -> None:
    check_finite(pa.array([2**63 - 1]), column="x")
    check_finite(pa.array([float("inf")]), column="x")
    check_finite(pa.array(["infinity"]), column="x")


@pytest.mark.parametrize("of", [pa.uuid(), pa.json_(), pa.bool8()], ids=str)
def test_lists_that_are_all_null_are_finite(of: pa.DataType) -> None:
    check_finite(pa.nulls(3, pa.list_(pa.struct({"a": of}))), column="c")
