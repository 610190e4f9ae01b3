"""The encoded filters never lose a row that the recorded predicate selects."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from hypothesis import given, settings

from airport.filters.recorded import COLUMNS, PREDICATES, WITH_FILTER, Oracle, numbers, random_rows, special_rows
from skiway.airport import filters

SQL = [filters.to_sql(each.filter) for each in WITH_FILTER]
SCHEMA = special_rows(1).schema
ARROW = [filters.to_arrow(each.filter) for each in WITH_FILTER]
ARROW_OF_SCHEMA = [filters.to_arrow(each.filter, SCHEMA) for each in WITH_FILTER]

# Parquet lacks the type, or part of its range.
NOT_IN_PARQUET = {"iv", "ts_s"}


def check_sql(rows: pa.Table) -> None:
    oracle = Oracle(rows)
    for predicate, where, expected in zip(PREDICATES, SQL, oracle.kept_by_client(PREDICATES), strict=True):
        if where is not None:
            lost = expected - oracle.kept(where)
            assert not lost, (predicate, where, rows.take(sorted(lost)))


def check_arrow(rows: pa.Table) -> None:
    kept_by_client = Oracle(rows).kept_by_client(PREDICATES)
    for expressions in (ARROW, ARROW_OF_SCHEMA):
        for predicate, expression, expected in zip(PREDICATES, expressions, kept_by_client, strict=True):
            if expression is not None:
                lost = expected - numbers(rows.filter(expression))
                assert not lost, (predicate, str(expression), rows.take(sorted(lost)))


def test_sql_loses_no_special_row() -> None:
    check_sql(special_rows())


def test_arrow_loses_no_special_row() -> None:
    check_arrow(special_rows())


@given(random_rows())
@settings(max_examples=settings.default.max_examples // 10)
def test_sql_loses_no_random_row(rows: pa.Table) -> None:
    check_sql(rows)


@given(random_rows())
@settings(max_examples=settings.default.max_examples // 10)
def test_arrow_loses_no_random_row(rows: pa.Table) -> None:
    check_arrow(rows)


def test_arrow_loses_no_row_of_a_parquet_file_to_its_statistics(tmp_path: Path) -> None:
    rows = special_rows()
    expected = Oracle(rows).kept_by_client(PREDICATES)
    pq.write_table(rows.drop_columns(list(NOT_IN_PARQUET)), tmp_path / "rows.parquet", row_group_size=2)
    dataset = ds.dataset(tmp_path / "rows.parquet")
    for each, kept in zip(WITH_FILTER, expected, strict=True):
        expression = filters.to_arrow(each.filter, dataset.schema)
        if expression is not None:
            lost = kept - numbers(dataset.to_table(columns=["rowid"], filter=expression))
            assert not lost, (each.predicate, str(expression))


def test_sql_selects_exactly_the_same_rows_where_nothing_can_fail_and_nothing_is_omitted() -> None:
    """Selecting a superset is not enough: `WHERE true` would pass all tests above."""
    oracle = Oracle(special_rows())
    left_out = {"i32 = 5 AND random() > 2", "ts > now()::TIMESTAMP"}  # the second was recorded at another time
    for predicate, where, expected in zip(PREDICATES, SQL, oracle.kept_by_client(PREDICATES), strict=True):
        if where is not None and "TRY(" not in where and predicate not in left_out:
            assert oracle.kept(where) == expected, (predicate, where)


def test_arrow_filters_are_selective() -> None:
    rows = special_rows()
    kept = [rows.filter(expression).num_rows for expression in ARROW if expression is not None]
    assert sum(kept) < len(kept) * rows.num_rows / 2


def test_the_rows_have_every_recorded_column() -> None:
    assert set().union(*(each.filter.columns for each in WITH_FILTER)) <= {*COLUMNS, "rowid"}
