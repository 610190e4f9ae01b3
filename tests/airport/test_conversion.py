"""`to_column`: every encoding of a value is converted exactly to the same column, or rejected."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skiway.airport.conversion import storable, to_column
from skiway.airport.server.scans import cast_column
from skiway.errors import InvalidArgument

HUGEINT = pa.opaque(pa.binary(16), "hugeint", "DuckDB")
UHUGEINT = pa.opaque(pa.binary(16), "uhugeint", "DuckDB")
TIMETZ = pa.opaque(pa.binary(8), "time_tz", "DuckDB")
BIT = pa.opaque(pa.binary(), "bit", "DuckDB")
DAY_US = 24 * 3600 * 1_000_000


def wrapped(data_type: pa.DataType, values: list[Any]) -> pa.Array:
    return pa.ExtensionArray.from_storage(data_type, pa.array(values, data_type.storage_type))


def column(array: pa.Array, data_type: pa.DataType) -> pa.Array:
    result = to_column(array, pa.field("c", data_type))
    result.validate()
    assert result.type == data_type
    return result


def huge(values: list[int | None], *, signed: bool = True) -> list[bytes | None]:
    return [None if v is None else v.to_bytes(16, "little", signed=signed) for v in values]


def as_decimals(values: list[int | None], *, signed: bool) -> pa.Array:
    """As DuckDB sends them by default: the bits of the number, declared as a decimal."""
    return pa.array(huge(values, signed=signed), pa.binary(16)).view(pa.decimal128(38, 0))


def lists_of(values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(st.none() | values, max_size=20)


def both_ways(one: pa.Array, other: pa.Array, cut: int) -> None:
    """Check that each encoding converts to the other, also as a slice of a longer array."""
    for source, expected in ((one, other), (other, one)):
        assert column(source, expected.type).equals(expected)
        start = min(cut, len(one))
        assert column(source.slice(start), expected.type).equals(expected.slice(start))


@given(lists_of(st.uuids()), st.integers(0, 5))
def test_uuids_convert_between_text_and_bytes(values: list[uuid.UUID | None], cut: int) -> None:
    text = pa.array([None if v is None else str(v) for v in values], pa.string())
    binary = wrapped(pa.uuid(), [None if v is None else v.bytes for v in values])
    both_ways(text, binary, cut)
    assert column(binary.storage, pa.uuid()).equals(binary)
    assert column(pa.array([v and str(v).upper() for v in values], pa.large_string()), pa.uuid()).equals(binary)


@given(lists_of(st.integers(-(2**127), 2**127 - 1)))
def test_hugeints_convert_between_decimal_and_bytes(values: list[int | None]) -> None:
    assert column(as_decimals(values, signed=True), HUGEINT).equals(wrapped(HUGEINT, huge(values)))


@given(lists_of(st.integers(0, 2**128 - 1)))
def test_uhugeints_convert_between_decimal_and_bytes(values: list[int | None]) -> None:
    expected = wrapped(UHUGEINT, huge(values, signed=False))
    assert column(as_decimals(values, signed=False), UHUGEINT).equals(expected)


@given(lists_of(st.integers(-(10**38) + 1, 10**38 - 1)), st.integers(0, 5))
def test_hugeints_of_38_digits_convert_to_decimals(values: list[int | None], cut: int) -> None:
    both_ways(pa.array(values, pa.decimal128(38, 0)), wrapped(HUGEINT, huge(values)), cut)


@given(lists_of(st.integers(-(2**63), 2**63 - 1)))
def test_integers_convert_to_hugeints(values: list[int | None]) -> None:
    assert column(pa.array(values, pa.int64()), HUGEINT).equals(wrapped(HUGEINT, huge(values)))


@given(lists_of(st.booleans()), st.integers(0, 5))
def test_booleans_convert_between_bits_and_bytes(values: list[bool | None], cut: int) -> None:
    both_ways(pa.array(values, pa.bool_()), wrapped(pa.bool8(), [None if v is None else int(v) for v in values]), cut)


@given(lists_of(st.integers(0, DAY_US)), st.integers(0, 5))
def test_times_without_offset_are_at_utc(values: list[int | None], cut: int) -> None:
    packed = [None if v is None else ((v << 24) | 57599).to_bytes(8, "little") for v in values]
    both_ways(pa.array(values, pa.time64("us")), wrapped(TIMETZ, packed), cut)


@given(lists_of(st.binary(max_size=9)), st.integers(0, 5))
def test_bits_and_json_differ_from_bytes_and_text_only_by_extension_name(values: list[bytes | None], cut: int) -> None:
    both_ways(pa.array(values, pa.binary()), wrapped(BIT, values), cut)
    texts = [None if v is None else v.hex() for v in values]
    both_ways(pa.array(texts, pa.string()), wrapped(pa.json_(pa.string()), texts), cut)


@given(lists_of(st.text(max_size=4)), st.sampled_from([pa.uint8(), pa.int16(), pa.int32()]))
def test_dictionary_members_are_strings(values: list[str | None], index: pa.DataType) -> None:
    plain = pa.array(values, pa.string())
    encoded = pa.DictionaryArray.from_arrays(
        plain.dictionary_encode().indices.cast(index), plain.dictionary_encode().dictionary
    )
    for form in (plain, encoded, plain.cast(pa.large_string()), plain.cast(pa.string_view())):
        encoded_again = column(form, pa.dictionary(pa.int32(), pa.string()))
        assert encoded_again.dictionary_decode().equals(plain)
        assert column(form, pa.string()).equals(plain)


Row = dict[str, Any]
ROWS: st.SearchStrategy[list[Row | None]] = lists_of(
    st.fixed_dictionaries(
        {
            "ids": st.none() | st.lists(st.none() | st.uuids(), max_size=3),
            "flag": st.none() | st.booleans(),
            "sizes": st.none() | st.lists(st.tuples(st.text(max_size=2), st.none() | st.integers(0, 99)), max_size=3),
            "pair": st.none() | st.tuples(st.uuids(), st.uuids()),
        }
    )
)


def nested(rows: list[Row | None], *, lossless: bool) -> pa.Array:
    """The same rows in one of the two encodings, built child by child."""
    key = pa.uuid() if lossless else pa.string()
    number = HUGEINT if lossless else pa.decimal128(38, 0)

    def ids(values: list[uuid.UUID | None]) -> pa.Array:
        return (
            wrapped(key, [v and v.bytes for v in values]) if lossless else pa.array([v and str(v) for v in values], key)
        )

    def flags(values: list[bool | None]) -> pa.Array:
        return (
            wrapped(pa.bool8(), [None if v is None else int(v) for v in values])
            if lossless
            else pa.array(values, pa.bool_())
        )

    def sizes(values: list[int | None]) -> pa.Array:
        return wrapped(HUGEINT, huge(values)) if lossless else pa.array(values, number)

    def listed(lists: list[Any], make: Callable[[list[Any]], pa.Array], width: int | None = None) -> pa.Array:
        flat = make([v for values in lists if values is not None for v in values])
        lengths = [0 if values is None else len(values) for values in lists]
        offsets = [sum(lengths[:i]) for i in range(len(lengths) + 1)]
        if width:
            dense = pa.FixedSizeListArray.from_arrays(flat, width)
            place = iter(range(len(dense)))
            return dense.take(pa.array([None if v is None else next(place) for v in lists], pa.int64()))
        return pa.ListArray.from_arrays(
            pa.array(offsets, pa.int32()), flat, mask=pa.array([v is None for v in lists], pa.bool_())
        )

    def mapped(lists: list[Any]) -> pa.Array:
        as_list = listed(
            lists,
            lambda pairs: pa.StructArray.from_arrays(
                [pa.array([k for k, _ in pairs], pa.string()), sizes([v for _, v in pairs])], ["key", "value"]
            ),
        )
        return pa.MapArray.from_arrays(
            as_list.offsets, as_list.values.field(0), as_list.values.field(1), mask=as_list.is_null()
        )

    def member(name: str) -> list[Any]:
        return [None if row is None else row[name] for row in rows]

    children = [
        listed(member("ids"), ids),
        flags(member("flag")),
        mapped(member("sizes")),
        listed(member("pair"), ids, 2),
    ]
    mask = pa.array([row is None for row in rows], pa.bool_())
    return pa.StructArray.from_arrays(children, ["ids", "flag", "sizes", "pair"], mask=mask)


@settings(max_examples=50)
@given(ROWS, st.integers(0, 5))
def test_nested_values_convert_between_both_encodings(rows: list[Row | None], cut: int) -> None:
    both_ways(nested(rows, lossless=False), nested(rows, lossless=True), cut)


@given(st.lists(st.tuples(st.booleans(), st.uuids(), st.binary(max_size=6)), max_size=10))
def test_values_under_nulls_are_ignored(slots: list[tuple[bool, uuid.UUID, bytes]]) -> None:
    texts = [str(value).encode() if valid else garbage for valid, value, garbage in slots]
    offsets = pa.array([sum(map(len, texts[:i])) for i in range(len(texts) + 1)], pa.int32())
    validity = pa.array([valid for valid, _, _ in slots], pa.bool_()).buffers()[1]
    dirty = pa.Array.from_buffers(
        pa.string(), len(slots), [validity, offsets.buffers()[1], pa.py_buffer(b"".join(texts))]
    )
    expected = wrapped(pa.uuid(), [value.bytes if valid else None for valid, value, _ in slots])
    assert column(dirty, pa.uuid()).equals(expected)
    inside = pa.StructArray.from_arrays([dirty.filter(pa.array([True] * len(slots), pa.bool_()))], ["k"])
    assert column(inside, pa.struct({"k": pa.uuid()})).field(0).equals(expected)


def test_garbage_under_a_null_parent_is_ignored() -> None:
    child = pa.array(["no uuid", str(uuid.UUID(int=1))])
    mask = pa.array([True, False])
    parent = pa.StructArray.from_arrays([child], ["k"], mask=mask)
    result = column(parent, pa.struct({"k": pa.uuid()}))
    assert result.to_pylist() == [None, {"k": uuid.UUID(int=1)}]
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), child, mask=mask)
    assert column(lists, pa.list_(pa.uuid())).to_pylist() == [None, [uuid.UUID(int=1)]]
    pairs = pa.FixedSizeListArray.from_arrays(child, 1, mask=mask)
    assert column(pairs, pa.list_(pa.uuid(), 1)).to_pylist() == [None, [uuid.UUID(int=1)]]
    union = pa.UnionArray.from_sparse(pa.array([0, 1], pa.int8()), [pa.array([1, 2]), child], ["n", "k"], [0, 1])
    target = pa.sparse_union([pa.field("n", pa.int64()), pa.field("k", pa.uuid())])
    for cut in (0, 1):
        assert column(union.slice(cut), target).to_pylist() == [1, uuid.UUID(int=1)][cut:]


@pytest.mark.parametrize(
    ("array", "target"),
    [
        (pa.array(["123e4567e89b12d3a456426614174000"]), pa.uuid()),
        (pa.array(["123e4567-e89b-12d3-a456-42661417400g"]), pa.uuid()),
        (pa.array([b"short"]), pa.uuid()),
        (pa.array([-1]), UHUGEINT),
        (wrapped(HUGEINT, huge([-1])), UHUGEINT),
        (wrapped(UHUGEINT, huge([2**127], signed=False)), HUGEINT),
        (wrapped(HUGEINT, huge([10**38])), pa.decimal128(38, 0)),
        (wrapped(HUGEINT, huge([-(2**127)])), pa.decimal128(38, 0)),
        (wrapped(HUGEINT, huge([2**63])), pa.int64()),
        (wrapped(TIMETZ, [((1 << 24) | 1).to_bytes(8, "little")]), pa.time64("us")),
        (pa.array(["101"]), BIT),
        (pa.array([0.1]), pa.float32()),
        (pa.array([1.5]), pa.int64()),
        (pa.array([0.125]), pa.decimal128(5, 2)),
        (pa.array([300]), pa.int8()),
        (pa.array([2**53 + 1]), pa.float64()),
        (pa.array([2], pa.int8()), pa.bool_()),
        (pa.array([1], pa.timestamp("us")), pa.timestamp("ms")),
        (pa.array([1], pa.timestamp("us")), pa.timestamp("us", "UTC")),
        (pa.array([1], pa.timestamp("us", "UTC")), pa.timestamp("us")),
        (pa.array([2**63 - 1], pa.timestamp("us")), pa.timestamp("ns")),
        (pa.array([1], pa.timestamp("us")), pa.date32()),
        (pa.array([1], pa.time64("us")), pa.time32("ms")),
        (pa.array([b"\xff"]), pa.string()),
        (pa.array([b"abc"]), pa.binary(2)),
        (pa.array([1]), pa.null()),
        (pa.array([[1]]), pa.list_(pa.int64(), 2)),
        (pa.array([{"a": 1}]), pa.struct({"b": pa.int64()})),
        (pa.array([{"a": 1}]), pa.struct({"a": pa.int64(), "b": pa.int64()})),
        (pa.array([{"a": 1}]), pa.int64()),
        (pa.array([1]), pa.list_(pa.int64())),
        (pa.array(["x"]), pa.int64()),
    ],
)  # fmt: skip
def test_lossy_conversions_are_rejected(array: pa.Array, target: pa.DataType) -> None:
    with pytest.raises(InvalidArgument, match=r"column 'price' has type .* cannot be converted to it without loss"):
        to_column(array, pa.field("price", target))


def test_types_of_duckdb_are_named_as_in_sql() -> None:
    largest = pa.ExtensionArray.from_storage(HUGEINT, pa.array([(2**127 - 1).to_bytes(16, "little")], pa.binary(16)))
    with pytest.raises(InvalidArgument, match=r"has type DECIMAL\(38,0\), and HUGEINT cannot be converted to it"):
        to_column(largest, pa.field("price", pa.decimal128(38)))


@pytest.mark.parametrize(
    ("array", "target", "expected"),
    [
        (pa.array([1, None], pa.int64()), pa.decimal128(5, 2), [1, None]),
        (pa.array([1.0, float("nan")]), pa.float32(), None),
        (pa.array([7], pa.int32()), pa.uint8(), [7]),
        (pa.array(["12"]), pa.int64(), [12]),
        (pa.nulls(2), HUGEINT, [None, None]),
        (pa.array([1], pa.date32()), pa.date64(), None),
        (pa.array([{"b": 2, "a": 1}]), pa.struct({"a": pa.int8(), "b": pa.int8()}), [{"a": 1, "b": 2}]),
        (pa.array([[1], None], pa.list_view(pa.int8())), pa.list_(pa.int16()), [[1], None]),
        (pa.array([[1], [2]], pa.large_list(pa.int8())), pa.list_(pa.int16(), 1), [[1], [2]]),
        (pa.array([60, None], pa.duration("s")), pa.month_day_nano_interval(), [(0, 0, 60_000_000_000), None]),
        (pa.array([1], pa.timestamp("us", "Asia/Tokyo")), pa.timestamp("us", "UTC"), None),
        (pa.array([2**63 - 1], pa.timestamp("us", "Asia/Tokyo")), pa.timestamp("us", "UTC"), None),
    ],
)  # fmt: skip
def test_other_exact_conversions_are_supported(
    array: pa.Array, target: pa.DataType, expected: list[Any] | None
) -> None:
    result = column(array, target)
    if expected is not None:
        assert [tuple(v) if isinstance(v, pa.MonthDayNano) else v for v in result.to_pylist()] == expected


TYPES = st.recursive(
    st.sampled_from(
        [
            pa.bool_(), pa.bool8(), pa.int32(), pa.string(), pa.string_view(), pa.binary_view(), pa.uuid(), HUGEINT,
            pa.duration("ms"), pa.dictionary(pa.int8(), pa.string()), pa.run_end_encoded(pa.int32(), pa.int64()),
        ]
    ),
    lambda inner: st.one_of(
        inner.map(pa.list_), inner.map(pa.list_view), inner.map(pa.large_list), inner.map(lambda t: pa.list_(t, 2)),
        st.lists(inner, min_size=1, max_size=3).map(lambda ts: pa.struct([(f"m{i}", t) for i, t in enumerate(ts)])),
        inner.map(lambda t: pa.map_(pa.string(), t)),
    ),
    max_leaves=4,
)  # fmt: skip


@given(TYPES)
def test_storable_type_is_unchanged(data_type: pa.DataType) -> None:
    once = storable(pa.field("c", data_type, nullable=False, metadata={"comment": "x"}))
    assert storable(once).equals(once, check_metadata=True)
    assert not once.nullable
    assert once.metadata == {b"comment": b"x"}


@pytest.mark.parametrize("byte", [2, -1, 127])
def test_byte_that_is_no_boolean_is_rejected(byte: int) -> None:
    values = pa.ExtensionArray.from_storage(pa.bool8(), pa.array([1, None, 0, byte], pa.int8()))
    assert column(values.slice(0, 3), pa.bool_()).to_pylist() == [True, None, False]
    for array, target in (
        (values, pa.bool_()),
        (pa.ListArray.from_arrays([0, 4], values), pa.list_(pa.bool_())),
        (pa.StructArray.from_arrays([values], names=["x"]), pa.struct({"x": pa.bool_()})),
    ):
        with pytest.raises(InvalidArgument, match="some bytes are neither 0 nor 1"):
            column(array, target)


@pytest.mark.parametrize(
    ("array", "target"),
    [
        (pa.RunEndEncodedArray.from_arrays([2, 3], pa.array(["a", None])), pa.string()),
        (pa.RunEndEncodedArray.from_arrays([2, 3], pa.array([1, None])), pa.int64()),
        (pa.array([[1], None, [2, 3]], pa.list_view(pa.int32())), pa.list_(pa.int64())),
        (pa.array([["a"], None, []], pa.large_list_view(pa.string_view())), pa.list_(pa.string())),
        (pa.array([{"x": [1]}, None], pa.struct({"x": pa.list_view(pa.int8())})), pa.struct({"x": pa.list_(pa.int8())})),
        (pa.array([[("k", [1])], None], pa.map_(pa.string(), pa.list_view(pa.int8()))), pa.map_(pa.string(), pa.list_(pa.int8()))),
        (pa.array(["a", None], pa.string_view()), pa.string()),
        (pa.array(["a", None]).dictionary_encode(), pa.string()),
    ],
    ids=str,
)  # fmt: skip
def test_scan_may_return_any_layout_of_a_declared_type(array: pa.Array, target: pa.DataType) -> None:
    for part in (array, array.slice(1)):
        cast = cast_column(part, pa.field("c", target))
        cast.validate(full=True)
        assert cast.type == target
        assert cast.to_pylist() == [each.as_py() for each in part]
