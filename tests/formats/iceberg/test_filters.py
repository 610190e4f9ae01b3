from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import assume, given, settings
from pyiceberg.catalog.memory import InMemoryCatalog
from pyiceberg.expressions import (
    AlwaysFalse,
    AlwaysTrue,
    And,
    BooleanExpression,
    EqualTo,
    In,
    IsNull,
    NotEqualTo,
    Or,
    StartsWith,
)
from pyiceberg.expressions.literals import DateLiteral, TimestampLiteral
from pyiceberg.expressions.visitors import bind
from pyiceberg.io.pyarrow import expression_to_pyarrow, pyarrow_to_schema
from pyiceberg.schema import Schema
from pyiceberg.table import Table

import scope
from airport.filters.building import (
    FIVE,
    UNKNOWN,
    both,
    call,
    column,
    compare,
    constant,
    either,
    kind,
    negate,
    operator,
    text,
)
from airport.filters.predicates import ROWS, Client, conditions
from airport.filters.recorded import COLUMNS, PREDICATES, WITH_FILTER, Oracle, numbers, random_rows, special_rows
from skiway.airport import filters
from skiway.formats.iceberg.planning.filters import to_iceberg

D = column(2, "DOUBLE")

# How Iceberg stores types it does not have; None where it cannot.
STORED: dict[str, pa.DataType | None] = {
    "i8": pa.int32(),
    "i16": pa.int32(),
    "u8": pa.int32(),
    "u16": pa.int32(),
    "u32": pa.int64(),
    **dict.fromkeys(["u64", "iv", "a", "ts_s", "ts_ms", "ts_ns"]),
}


def iceberg(
    *predicates: dict[str, Any], schema: Schema | None = None, names: tuple[str, ...] = ("i", "s", "d")
) -> BooleanExpression:
    return to_iceberg(filters.parse(text(*predicates, names=names)), schema)


def stored(rows: pa.Table) -> pa.Table:
    """`rows` as stored in an Iceberg table."""
    types = {name: STORED.get(name, rows.schema.field(name).type) for name in COLUMNS}
    kept = pa.schema([(name, of) for name, of in types.items() if of is not None])
    return rows.select(kept.names).cast(kept).append_column("rowid", rows["rowid"])


def without_unwritable_values(rows: pa.Table) -> pa.Table:
    """`rows` without the dates and the time (24:00) that PyIceberg cannot write because Python cannot represent them."""
    day = 86400 * 10**6
    for name, most in [("dt", 700_000), ("ts", 700_000 * day), ("tz", 700_000 * day), ("tm", day)]:
        values = rows[name]
        count = values.cast(pa.int32() if name == "dt" else pa.int64())
        kept = pc.and_(pc.greater(count, -most), pc.less(count, most))
        place = rows.schema.get_field_index(name)
        rows = rows.set_column(place, rows.schema.field(name), pc.if_else(kept, values, pa.scalar(None, values.type)))
    return rows


@pytest.fixture(scope="module")
def client() -> Client:
    return Client()


@pytest.fixture(scope="module")
def oracle() -> Oracle:
    return Oracle(ROWS)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    """The special rows in a table of a few files, so that statistics prune entire files."""
    warehouse: Path = tmp_path_factory.mktemp("warehouse")
    catalog = InMemoryCatalog("test", warehouse=str(warehouse))
    catalog.create_namespace("main")
    rows = stored(without_unwritable_values(special_rows()))
    created = catalog.create_table("main.t", schema=rows.schema)
    for start in range(0, rows.num_rows, 8):
        created.append(rows.slice(start, 8))
    return created


def check(rows: pa.Table, schema: Schema) -> None:
    held = stored(rows)
    expected = Oracle(rows).kept_by_client(PREDICATES)
    for each, kept in zip(WITH_FILTER, expected, strict=True):
        expression = to_iceberg(each.filter, schema)
        bound = bind(schema, expression, case_sensitive=True)
        lost = kept - numbers(held.filter(expression_to_pyarrow(bound, schema)))
        assert not lost, (each.predicate, expression, rows.take(sorted(lost)))


def test_no_special_row_is_lost(table: Table) -> None:
    check(special_rows(), table.schema())


@given(rows=random_rows())
@settings(max_examples=settings.default.max_examples // 10)
def test_no_random_row_is_lost(table: Table, rows: pa.Table) -> None:
    check(rows, table.schema())


def test_scan_of_a_real_table_loses_no_row(table: Table) -> None:
    expected = Oracle(without_unwritable_values(special_rows())).kept_by_client(PREDICATES)
    files = len(list(table.scan().plan_files()))
    pruned = 0
    cases = list(zip(WITH_FILTER, expected, strict=True))
    for each, kept in cases if scope.ALL else cases[::3]:
        expression = to_iceberg(each.filter, table.schema())
        if expression != AlwaysTrue():
            scan = table.scan(row_filter=expression, selected_fields=("rowid",))
            lost = kept - numbers(scan.to_arrow())
            assert not lost, (each.predicate, expression)
            pruned += len(list(scan.plan_files())) < files
    assert pruned > 7  # otherwise no file was pruned and the test proves little


@given(predicate=conditions())
@settings(max_examples=settings.default.max_examples // 2)
def test_random_predicate_loses_no_row(table: Table, client: Client, oracle: Oracle, predicate: str) -> None:
    sent = client.sent(predicate)
    assume(sent is not None)
    expression = to_iceberg(filters.parse(sent or ""), table.schema())
    (expected,) = oracle.kept_by_client([predicate])
    held = stored(ROWS).filter(
        expression_to_pyarrow(bind(table.schema(), expression, case_sensitive=True), table.schema())
    )
    assert expected <= numbers(held), expression


def test_unsupported_child_is_dropped_from_and_but_voids_or_and_not() -> None:
    assert iceberg(both(FIVE, UNKNOWN)) == EqualTo("i", 5)
    assert iceberg(either(FIVE, UNKNOWN)) == AlwaysTrue()
    assert iceberg(negate(both(FIVE, UNKNOWN))) == AlwaysTrue()
    assert iceberg(UNKNOWN) == AlwaysTrue()
    assert to_iceberg(filters.parse("")) == AlwaysTrue()


def test_null_is_distinguished_from_every_value() -> None:
    assert iceberg(compare(column(0), "EQUAL", constant("INTEGER", None))) == AlwaysFalse()
    assert iceberg(compare(column(0), "NOT_DISTINCT_FROM", constant("INTEGER", None))) == IsNull("i")
    assert iceberg(compare(column(0), "DISTINCT_FROM", constant("INTEGER", 5))) == Or(NotEqualTo("i", 5), IsNull("i"))
    assert iceberg(operator("COMPARE_IN", column(0), *(constant("INTEGER", n) for n in (1, 2, None)))) == In(
        "i", {1, 2}
    )
    assert iceberg(operator("COMPARE_NOT_IN", column(0), constant("INTEGER", None))) == AlwaysFalse()


@pytest.mark.parametrize("op", ["GREATERTHAN", "GREATERTHANOREQUALTO", "NOTEQUAL", "DISTINCT_FROM"])
def test_comparison_that_nan_satisfies_is_not_translated(op: str) -> None:
    assert iceberg(compare(D, op, constant("DOUBLE", 0.5))) == AlwaysTrue()
    assert iceberg(compare(D, "EQUAL", constant("DOUBLE", math.nan))) == AlwaysTrue()
    assert iceberg(call("isnan", D)) == AlwaysTrue()


def test_pattern_is_translated_to_its_prefix() -> None:
    text_column = column(1, "VARCHAR")
    assert iceberg(call("~~", text_column, constant("VARCHAR", "ab_c%"))) == StartsWith("s", "ab")
    assert iceberg(
        call("like_escape", text_column, constant("VARCHAR", "a$_%"), constant("VARCHAR", "$"))
    ) == StartsWith("s", "a_")
    assert iceberg(negate(call("~~", text_column, constant("VARCHAR", "ab_c%")))) == AlwaysTrue()


def test_dates_and_timestamps_are_translated_exactly() -> None:
    assert iceberg(compare(column(0, "DATE"), "EQUAL", constant("DATE", 2**31 - 1))) == EqualTo(
        "i", DateLiteral(2**31 - 1)
    )
    infinite = compare(column(0, "TIMESTAMP"), "EQUAL", constant("TIMESTAMP", 2**63 - 1))
    assert iceberg(infinite) == EqualTo("i", TimestampLiteral(2**63 - 1))


def test_values_that_iceberg_cannot_store_are_not_translated() -> None:
    assert iceberg(compare(column(0, "UBIGINT"), "EQUAL", constant("UBIGINT", 2**64 - 1))) == AlwaysTrue()
    assert iceberg(compare(column(0, "TIMESTAMP_NS"), "EQUAL", constant("TIMESTAMP_NS", 1))) == AlwaysTrue()


def test_struct_field_is_translated_with_a_dot_and_dotted_column_is_not_translated() -> None:
    struct = kind("STRUCT", child_types=[{"first": "X", "second": kind("INTEGER")}])
    field = call("struct_extract", column(0, struct), constant("VARCHAR", "x"), of="INTEGER")
    assert iceberg(compare(field, "EQUAL", constant("INTEGER", 5))) == EqualTo("i.X", 5)
    assert iceberg(FIVE, names=("i.X",)) == AlwaysTrue()


def test_conditions_that_do_not_match_the_schema_are_omitted() -> None:
    schema = pyarrow_to_schema(pa.schema([pa.field("i", pa.int32(), metadata={"PARQUET:field_id": "1"})]))
    rowid = compare(column(1, "BIGINT"), "EQUAL", constant("BIGINT", 5))
    assert iceberg(FIVE, rowid, schema=schema, names=("i", "rowid")) == EqualTo("i", 5)
    assert iceberg(compare(column(0, "VARCHAR"), "EQUAL", constant("VARCHAR", "x")), schema=schema) == AlwaysTrue()


def test_many_conditions_do_not_exhaust_the_stack() -> None:
    wide = either(*(compare(column(0), "EQUAL", constant("INTEGER", n)) for n in range(5_000)))
    assert iceberg(wide) == AlwaysTrue()
    assert iceberg(FIVE, wide) == EqualTo("i", 5)
    assert isinstance(iceberg(both(FIVE, compare(column(1, "VARCHAR"), "EQUAL", constant("VARCHAR", "x")))), And)
