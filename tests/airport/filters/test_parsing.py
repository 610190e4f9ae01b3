from __future__ import annotations

import copy
import json
import math
import time
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airport.filters.building import (
    FIVE,
    both,
    call,
    cast,
    column,
    compare,
    constant,
    either,
    kind,
    negate,
    operator,
    text,
    value,
)
from airport.filters.recorded import RECORDED
from skiway.airport import filters
from skiway.airport.filters import (
    ColumnRef,
    Compare,
    Comparison,
    Constant,
    Filter,
    Interval,
    LogicalType,
    Unknown,
    parsing,
)
from skiway.airport.filters.nodes import walk
from skiway.airport.filters.parsing import LARGE, MAX_BYTES, MAX_DEPTH, MAX_NODES, MAX_TOTAL_NODES
from skiway.errors import InvalidArgument
from skiway.formats.iceberg.planning.filters import to_iceberg


def only(sent: str) -> filters.Node:
    (node,) = filters.parse(sent).predicates
    return node


def constant_of(of: str | dict[str, Any], raw: Any) -> Any:
    node = only(text(constant(of, raw)))
    assert isinstance(node, Constant), node
    return node.value


@pytest.mark.parametrize("sent", RECORDED, ids=lambda each: each.predicate)
def test_every_recorded_filter_is_understood(sent) -> None:
    nodes = [node for predicate in sent.filter.predicates for node in walk(predicate)]
    assert not [node for node in nodes if isinstance(node, Unknown)]
    assert len(sent.filter.predicates) == len(json.loads(sent.json_filters)["filters"])


def test_filter_is_immutable_with_types_and_column_names() -> None:
    parsed = filters.parse(text(compare(column(1, "VARCHAR"), "EQUAL", constant("VARCHAR", "x"))).encode())
    varchar = LogicalType("VARCHAR")
    assert parsed == Filter((Comparison(Compare.EQ, ColumnRef("s", varchar), Constant("x", varchar)),))
    assert parsed.columns == {"s"}
    assert hash(parsed) == hash(filters.parse(text(compare(column(1, "VARCHAR"), "EQUAL", constant("VARCHAR", "x")))))
    with pytest.raises(AttributeError):
        parsed.predicates = ()  # type: ignore[misc]


@pytest.mark.parametrize("sent", ["", b"", '{"filters":[],"column_binding_names_by_index":["i"]}', '{"filters":[]}'])
def test_filter_without_predicates_is_falsy(sent: str | bytes) -> None:
    assert not filters.parse(sent)
    assert filters.parse(sent) == Filter()
    assert filters.parse(sent).columns == frozenset()


@pytest.mark.parametrize(
    "sent",
    ["{", "[]", "null", "5", '"x"', "{}", '{"filters":{}}', '{"filters":[5]}', '{"filters":[],"column_binding_names_by_index":{}}',
     '{"filters":[],"column_binding_names_by_index":[5]}', b"\xff\xfe\xfd", '{"filters":[]} trailing', f'{{"filters":[{"9" * 5000}]}}'],
)  # fmt: skip
def test_invalid_filter_is_rejected(sent: str | bytes) -> None:
    with pytest.raises(InvalidArgument, match="cannot parse the pushed-down filter") as refused:
        filters.parse(sent)
    assert refused.value.key == "filter.malformed"


def deep(levels: int, wrap: str) -> str:
    """JSON text of any depth, deeper than a JSON encoder would write."""
    boolean = json.dumps(kind("BOOLEAN"))
    opening, closing = {
        "not": (f'{{"expression_class":"BOUND_OPERATOR","type":"OPERATOR_NOT","return_type":{boolean},"children":[', "]}"),
        "and": ('{"expression_class":"BOUND_CONJUNCTION","type":"CONJUNCTION_AND","children":[', "]}"),
        "list": ("[", "]"),
        "value": (f'{{"expression_class":"BOUND_CONSTANT","value":{{"is_null":false,"type":{boolean},"value":', "}}"),
        "type": ('{"id":"LIST","type_info":{"alias":"","child_type":', "}}"),
    }[wrap]  # fmt: skip
    inside = {"not": json.dumps(FIVE), "and": json.dumps(FIVE), "type": json.dumps(kind("INTEGER"))}.get(wrap, "1")
    nested = opening * levels + inside + closing * levels
    if wrap == "type":
        nested = json.dumps(column(0)).replace(json.dumps(kind("INTEGER")), nested)
    return f'{{"filters":[{nested}],"column_binding_names_by_index":["i"]}}'


@pytest.mark.parametrize("wrap", ["not", "and", "list", "value", "type"])
@pytest.mark.parametrize("levels", [10_000])
def test_ten_thousand_levels_give_a_clear_error(wrap: str, levels: int) -> None:
    with pytest.raises(InvalidArgument, match="is nested deeper than 150 levels"):
        filters.parse(deep(levels, wrap))


@pytest.mark.parametrize("levels", [MAX_DEPTH, 2 * MAX_DEPTH, 480])
def test_one_level_too_deep_gives_the_same_error(levels: int) -> None:
    with pytest.raises(InvalidArgument, match="is nested deeper"):
        filters.parse(deep(levels, "not"))


@pytest.mark.parametrize("wrap", ["not", "and"])
def test_the_deepest_allowed_filter_passes_every_encoder(wrap: str) -> None:
    parsed = filters.parse(deep(MAX_DEPTH - 2, wrap))
    assert filters.to_sql(parsed) == '"i" = 5'
    assert str(filters.to_arrow(parsed)) == "(i == 5)"


def between(value: dict[str, Any], upper_inclusive: bool) -> dict[str, Any]:
    bound = constant("INTEGER", 1)
    inclusive = {"lower_inclusive": True, "upper_inclusive": upper_inclusive}
    return {"expression_class": "BOUND_BETWEEN", "input": value, "lower": bound, "upper": bound, **inclusive}


@pytest.mark.parametrize(
    "wrap",
    [
        lambda inner: call("+", inner, constant("INTEGER", 1), of="INTEGER"),
        lambda inner: operator("OPERATOR_COALESCE", inner, constant("INTEGER", 1)),
        lambda inner: call("greatest", inner, constant("INTEGER", 1), of="INTEGER"),
        lambda inner: cast(inner, "BIGINT"),
        lambda inner: compare(inner, "EQUAL", constant("BOOLEAN", True)),
        lambda inner: between(inner, True),
        lambda inner: between(inner, False),
    ],
)
def test_encoding_time_is_linear_in_the_length_of_nested_filters(wrap: Any) -> None:
    node = column(0)
    for _ in range(MAX_DEPTH - 5):
        node = wrap(node)
    sent = text(compare(node, "EQUAL", constant("INTEGER", 5)), negate(node))
    parsed = filters.parse(sent)
    assert len(filters.to_sql(parsed) or "") < 10 * len(sent)
    filters.to_arrow(parsed)
    to_iceberg(parsed)


@pytest.mark.parametrize(
    ("of", "raw", "expected"),
    [
        ("BOOLEAN", True, True),
        ("TINYINT", -128, -128),
        ("UBIGINT", 2**64 - 1, 2**64 - 1),
        ("HUGEINT", {"upper": -(2**63), "lower": 0}, -(2**127)),
        ("HUGEINT", {"upper": -1, "lower": 2**64 - 2}, -2),
        ("UHUGEINT", {"upper": 2**64 - 1, "lower": 2**64 - 1}, 2**128 - 1),
        ("DOUBLE", 1, 1.0),
        ("DOUBLE", -math.inf, -math.inf),
        ("UUID", {"upper": -7908807583029587245, "lower": 11841725276408463360}, UUID("123e4567-e89b-12d3-a456-426614174000")),
        ("DATE", 2**31 - 1, 2**31 - 1),
        ("TIMESTAMP", -(2**63) + 1, -(2**63) + 1),
        ("TIME WITH TIME ZONE", 2**63, 2**63),
        ("INTERVAL", {"months": -1, "days": 2, "micros": -3}, Interval(-1, 2, -3)),
        ("VARCHAR", "a\0'\"\n", "a\0'\"\n"),
        ("BLOB", "\\xAA\\x01ab\\x5C\\x22", b'\xaa\x01ab\\"'),
        ("BLOB", "", b""),
        ("BIT", {"base64": "Bf0="}, "101"),
        ("BIT", "\x00\x05", "00000101"),
        ("BIGNUM", {"base64": "gAACAQI="}, 258),
        ("BIGNUM", {"base64": "f//9/v0="}, -258),
    ],
)  # fmt: skip
def test_constants_of_every_type(of: str, raw: Any, expected: Any) -> None:
    result = constant_of(of, raw)
    assert result == expected
    assert type(result) is type(expected)


@pytest.mark.parametrize(
    ("width", "scale", "raw", "expected"),
    [
        (9, 2, 125, "1.25"),
        (18, 4, -1, "-0.0001"),
        (38, 0, {"upper": 0, "lower": 5}, "5"),
        (
            38,
            10,
            {"upper": 669260594276348691, "lower": 14143994772844922133},
            "1234567890123456789012345678.0123456789",
        ),
        (38, 38, {"upper": -1, "lower": 2**64 - 1}, "-1E-38"),
    ],
)
def test_decimals_are_exact(width: int, scale: int, raw: Any, expected: str) -> None:
    result = constant_of(kind("DECIMAL", type="DECIMAL_TYPE_INFO", width=width, scale=scale), raw)
    assert result == Decimal(expected)
    assert result.as_tuple().exponent == -scale


def test_nested_constants_are_tuples() -> None:
    ints = kind("LIST", type="LIST_TYPE_INFO", child_type=kind("INTEGER"))
    pair = kind(
        "STRUCT",
        type="STRUCT_TYPE_INFO",
        child_types=[{"first": "k", "second": kind("VARCHAR")}, {"first": "l", "second": ints}],
    )
    listed = value(ints, {"children": [value("INTEGER", 1), value("INTEGER", None)]})
    struct = {"children": [value("VARCHAR", "x"), listed]}
    assert constant_of(pair, struct) == ("x", (1, None))
    entries = kind(
        "STRUCT",
        type="STRUCT_TYPE_INFO",
        child_types=[{"first": "key", "second": kind("VARCHAR")}, {"first": "value", "second": ints}],
    )
    mapped = kind("MAP", type="LIST_TYPE_INFO", child_type=entries)
    of_map = LogicalType(
        "MAP",
        fields=(
            ("key", LogicalType("VARCHAR")),
            ("value", LogicalType("LIST", fields=(("", LogicalType("INTEGER")),))),
        ),
    )
    node = only(
        text(
            constant(
                mapped, {"children": [value({**entries, "type_info": {"alias": "", **entries["type_info"]}}, struct)]}
            )
        )
    )
    assert node == Constant((("x", (1, None)),), of_map)  # fmt: skip


def test_enum_is_its_member_and_unknown_without_members() -> None:
    members = kind("ENUM", type="ENUM_TYPE_INFO", values_count=2, values=["small", "big"])
    assert constant_of(members, 1) == "big"
    assert only(text(constant(members, 2))) == Unknown("BOUND_CONSTANT")
    assert only(text(constant("ENUM", 0))) == Unknown("BOUND_CONSTANT")


@pytest.mark.parametrize(
    "odd",
    [
        {"expression_class": "BOUND_REF", "index": 0},
        {"expression_class": "BOUND_PARAMETER"},
        {"expression_class": "BOUND_OF_A_LATER_VERSION", "children": []},
        {"expression_class": None},
        {"expression_class": ["BOUND_CAST"]},
        {},
        {"expression_class": "BOUND_COMPARISON", "type": "COMPARE_EQUAL"},
        {"expression_class": "BOUND_COMPARISON", "type": "COMPARE_ROUGHLY", "left": FIVE, "right": FIVE},
        {"expression_class": "BOUND_CONJUNCTION", "type": "CONJUNCTION_XOR", "children": []},
        {"expression_class": "BOUND_CONJUNCTION", "type": "CONJUNCTION_AND", "children": 5},
        operator("OPERATOR_NOT"),
        operator("OPERATOR_NOT", FIVE, FIVE),
        operator("OPERATOR_OF_A_LATER_VERSION", FIVE),
        operator("COMPARE_IN", column(0)),
        column(3),
        column(-1),
        column(0, depth=1),
        column(0, {"id": 5, "type_info": None}),
        column(0, kind("DECIMAL", width="9", scale=2)),
        column(0, kind("DECIMAL")),
        column(0, kind("DECIMAL", width=0, scale=0)),
        column(0, kind("DECIMAL", width=39, scale=0)),
        constant(kind("DECIMAL", width=9, scale=2**32 - 1), 5),
        constant(kind("ARRAY", child_type=kind("INTEGER"), size=2**62), {"children": [value("INTEGER", 1)]}),
        cast(column(0), "INTEGER", try_cast="yes"),  # type: ignore[arg-type]
        constant("INTEGER", 2**31),
        constant("INTEGER", 1.5),
        constant("INTEGER", True),
        constant("BOOLEAN", 1),
        constant("DOUBLE", "1"),
        constant("DOUBLE", 10**400),
        constant("VARCHAR", "half of a pair: \ud83e"),
        constant("VARCHAR", 5),
        constant("BLOB", "\\x1"),
        constant("BLOB", "ü"),
        constant("BIT", {"base64": "!"}),
        constant("HUGEINT", 5),
        constant("GEOMETRY", "POINT (1 2)"),
        constant(kind("ARRAY", child_type=kind("INTEGER"), size=2), {"children": [value("INTEGER", 1)]}),
        constant(kind("LIST", child_type=kind("INTEGER")), {"children": [value("VARCHAR", "x")]}),
    ],
    ids=lambda odd: json.dumps(odd)[:80],
)
def test_unsupported_expressions_are_unknown_and_never_an_error(odd: dict[str, Any]) -> None:
    parsed = filters.parse(text(FIVE, odd))
    assert isinstance(parsed.predicates[0], Comparison)
    assert isinstance(parsed.predicates[1], Unknown)
    assert filters.to_sql(parsed) == '"i" = 5'


@pytest.mark.parametrize("name", ["+", "||", "&", "greatest", "xor", "lower"])
@pytest.mark.parametrize("arguments", [0, 3])
def test_calls_with_a_wrong_number_of_arguments_are_never_an_error(name: str, arguments: int) -> None:
    odd = compare(call(name, *[column(0)] * arguments, of="INTEGER"), "EQUAL", constant("INTEGER", 5))
    parsed = filters.parse(text(odd, cast(call(name, of="INTEGER"), "BOOLEAN")))
    for dialect in ("duckdb", "postgres", "sqlite", "generic"):
        filters.to_sql(parsed, dialect=dialect)
    if (expression := filters.to_arrow(parsed, pa.schema({"i": pa.int32()}))) is not None:
        pa.table({"i": pa.array([5], pa.int32())}).filter(expression)


def test_only_duckdbs_own_functions_count_as_builtin() -> None:
    for catalog, schema, builtin in [
        ("system", "main", True),
        ("", "", True),
        ("lake", "main", False),
        ("system", "sales", False),
    ]:
        node = only(text(call("lower", column(1, "VARCHAR"), of="VARCHAR", catalog=catalog, schema=schema)))
        assert isinstance(node, filters.Function)
        assert node.builtin is builtin


def test_column_names_come_only_from_the_binding_list() -> None:
    sent = text(compare(column(1, alias="liar"), "EQUAL", column(2)), names=("a", 'b"', "c"))
    assert filters.parse(sent).columns == {'b"', "c"}


def test_types_have_sql_names() -> None:
    decimal = LogicalType("DECIMAL", width=9, scale=2)
    listed = LogicalType("LIST", fields=(("", decimal),))
    assert LogicalType("TIMESTAMP WITH TIME ZONE").sql == "TIMESTAMP WITH TIME ZONE"
    assert LogicalType("ARRAY", fields=(("", listed),), size=3).sql == "DECIMAL(9,2)[][3]"
    assert (
        LogicalType("STRUCT", fields=(('a"b', listed), ("c", LogicalType("DATE")))).sql
        == 'STRUCT("a""b" DECIMAL(9,2)[], "c" DATE)'
    )
    assert (
        LogicalType("MAP", fields=(("key", LogicalType("DATE")), ("value", decimal))).sql == "MAP(DATE, DECIMAL(9,2))"
    )
    assert LogicalType("ENUM", members=("it's", "b")).sql == "ENUM('it''s', 'b')"


@pytest.mark.parametrize("of", [LogicalType("INTEGER); DROP TABLE t; --"), LogicalType("VARCHAR", alias="JSON"), LogicalType("NULL"),
                                LogicalType("STRUCT", fields=(("", LogicalType("DATE")),))])  # fmt: skip
def test_type_without_an_sql_name_has_no_sql(of: LogicalType) -> None:
    assert of.sql is None


scalars = st.none() | st.booleans() | st.integers(-3, 2**70) | st.floats() | st.text(max_size=3)
junk = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
)


@given(st.data())
def test_damaged_filter_is_parsed_or_rejected_without_other_errors(data: st.DataObject) -> None:
    sample = both(
        FIVE,
        either(negate(FIVE), call("prefix", column(1, "VARCHAR"), constant("VARCHAR", "a"))),
        cast(column(1, "VARCHAR"), "DATE"),
    )
    damaged = copy.deepcopy(sample)
    node: Any = damaged
    while True:
        key = data.draw(st.sampled_from(sorted(node) if isinstance(node, dict) else range(len(node))))
        below = node[key]
        if not (isinstance(below, dict | list) and below) or data.draw(st.booleans()):
            node[key] = data.draw(junk)
            break
        node = below
    sent = json.dumps({"filters": [damaged], "column_binding_names_by_index": ["i", "s"]})
    parsed = filters.parse(sent)
    filters.to_sql(parsed)
    filters.to_arrow(parsed)


def wide(count: int) -> str:
    """A predicate with so many children."""
    return json.dumps(either(*[{}] * count))


@pytest.mark.parametrize(
    ("predicates", "parsed_count"),
    [
        (wide(MAX_NODES - 1), 1),
        (wide(MAX_NODES), 0),
        (f"{wide(MAX_NODES)}, {{}}, {wide(MAX_NODES - 2)}", 2),
        (f"{wide(MAX_NODES)}, {{}}, {wide(MAX_NODES - 1)}", 1),
        (f"{wide(MAX_NODES)}, {wide(MAX_NODES)}, {{}}", 0),
        ("{}," * 1_000_000 + "{}", MAX_TOTAL_NODES),
        ('{"x": "' + "x" * MAX_BYTES + '"}', 0),
    ],
    ids=["largest", "too large", "between", "too large in all", "after large ones", "a million", "too long"],
)
def test_predicates_that_are_too_large_are_left_to_the_client(predicates: str, parsed_count: int) -> None:
    started = time.process_time()
    parsed = filters.parse(f'{{"filters": [{predicates}], "column_binding_names_by_index": []}}')
    assert time.process_time() - started < 3
    assert len(parsed.predicates) == parsed_count


LISTS = [
    [constant("BIGINT", number) for number in range(3000)],
    [constant("VARCHAR", "x" * 40 + str(number)) for number in range(3000)],
    [constant("VARCHAR", "x" * (LARGE + 1)), *[constant("VARCHAR", "y")] * 50],
    [constant("BIGINT", 1), *[constant("INTEGER", 2)] * 50],
    [*[constant("BIGINT", 1)] * 50, constant("BIGINT", None), constant("BIGINT", "1")],
    [*[constant(kind("LIST", child_type=kind("INTEGER")), {"children": [value("INTEGER", 1)]})] * 50],
    [*[FIVE] * 600, *[constant("BOOLEAN", True)] * 600],
    [both(either(*[constant("BOOLEAN", True)] * 600), FIVE)] * 3,
]


@pytest.mark.parametrize("children", LISTS, ids=map(str, range(len(LISTS))))
def test_large_filters_are_read_in_pieces_with_the_same_result(children: list[Any], monkeypatch: Any) -> None:
    sent = text(operator("COMPARE_IN", column(0, "BIGINT"), *children), FIVE)
    in_pieces = filters.parse(sent)
    monkeypatch.setattr(parsing, "FEW", MAX_NODES)
    monkeypatch.setattr(parsing, "LARGE", MAX_BYTES)
    assert filters.parse(sent) == in_pieces
    assert len([*walk(in_pieces.predicates[0])]) > len(children)


def test_large_filters_with_nan_are_left_to_the_client() -> None:
    """Python's module, which understands NaN, would make other calls wait."""
    nan = compare(column(2, "DOUBLE"), "EQUAL", constant("DOUBLE", math.nan))
    assert len(filters.parse(text(nan)).predicates) == 1
    assert not filters.parse(text(nan, compare(column(1, "VARCHAR"), "EQUAL", constant("VARCHAR", "x" * LARGE))))
