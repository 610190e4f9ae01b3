"""Parts that are planned from row groups have all rows that a filter matches, and no part is without matching row groups."""

from __future__ import annotations

import operator
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from math import inf, nan
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.schema import Schema
from pyiceberg.table.update import AddSchemaUpdate, SetCurrentSchemaUpdate
from pyiceberg.types import LongType, NestedField

from formats.delete_files import add_deletion_vectors, add_equality_deletes, add_position_deletes
from formats.managed import LooseTable
from formats.pushed_filters import sent_filter
from skiway.client import col
from skiway.client.airport.filters import filter_mask
from skiway.client.airport.predicates import Predicate
from skiway.formats import MatchingPart, Snapshot
from skiway.formats.iceberg.changes.commits import plain as updates
from skiway.formats.iceberg.changes.evolution import AddColumn, RenameColumn, evolve
from skiway.formats.readers.scanning import ROW_POSITION
from skiway.lake.reading.scans import split

GROUPS, GROUP_ROWS = 6, 10
ROWS = GROUPS * GROUP_ROWS
LONG = "the same beginning of a text that writers shorten in their statistics, because it is long " * 60
START = datetime(2026, 1, 1, tzinfo=UTC)

SCHEMA = pa.schema(
    {
        "n": pa.int64(),
        "f": pa.float64(),
        "s": pa.string(),
        "long": pa.string(),
        "day": pa.date32(),
        "at": pa.timestamp("us", "UTC"),
        "price": pa.decimal128(9, 2),
        "flag": pa.bool_(),
    }
)


def values(number: int) -> dict[str, Any]:
    """A row. Row groups differ; one has only NULLs, and one NaN besides numbers."""
    group = number // GROUP_ROWS
    if group == 3:
        return dict.fromkeys(SCHEMA.names)
    return {
        "n": None if number % 7 == 0 else number,
        "f": nan if group == 4 and number % 2 else (inf if number == 59 else number / 2),
        "s": f"name {number:02d}",
        "long": f"{LONG}{number:02d}",
        "day": date(2026, 1, 1) + timedelta(days=number),
        "at": START + timedelta(hours=number),
        "price": Decimal(number) / 4,
        "flag": group == 5,
    }


def with_rows(folder: Path, version: str = "2") -> tuple[LooseTable, str]:
    """A table with one file of six row groups, and the path of the file."""
    table = LooseTable(folder, SCHEMA, format_version=version)
    table.metadata.properties["write.parquet.row-group-size-bytes"] = "1"
    groups = [range(first, first + GROUP_ROWS) for first in range(0, ROWS, GROUP_ROWS)]
    (file,) = table.append(*(pa.Table.from_pylist([values(each) for each in group], SCHEMA) for group in groups))
    assert pq.ParquetFile(file.file_path.removeprefix("file://")).num_row_groups == GROUPS
    return table, file.file_path


def plain(folder: Path) -> LooseTable:
    return with_rows(folder)[0]


def position_deletes(folder: Path) -> LooseTable:
    table, path = with_rows(folder)
    add_position_deletes(table, path, 0, 9, 10, 25, *range(50, 60))
    return table


def deletion_vector(folder: Path) -> LooseTable:
    table, path = with_rows(folder, "3")
    add_deletion_vectors(table, {path: [0, 9, 10, 25, *range(50, 60)]})
    return table


def equality_deletes(folder: Path) -> LooseTable:
    table, _ = with_rows(folder)
    add_equality_deletes(table, pa.table({"n": pa.array([1, 25, None], pa.int64())}), [1])
    return table


def renamed(folder: Path) -> LooseTable:
    """`n` has another name now, and a new column has its old name."""
    table, _ = with_rows(folder)
    table.change(evolve([RenameColumn("n", "number"), AddColumn("later", pa.int64())]))
    table.change(evolve([RenameColumn("later", "n")]))
    return table


def with_default(folder: Path) -> LooseTable:
    """A column that no file has, but that has the same value in all rows."""
    table, _ = with_rows(folder, "3")
    added = NestedField(20, "added", LongType(), required=False, initial_default=7, write_default=7)
    schema = Schema(*table.metadata.schema().fields, added, schema_id=1)
    table.change(updates([], [AddSchemaUpdate(schema=schema), SetCurrentSchemaUpdate(schema_id=-1)]))
    return table


TABLES = {
    each.__name__: each for each in (plain, position_deletes, deletion_vector, equality_deletes, renamed, with_default)
}


@pytest.fixture(scope="module", params=TABLES)
def table(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LooseTable:
    return TABLES[request.param](tmp_path_factory.mktemp("table"))


def now(table: LooseTable) -> Snapshot:
    found = table.handle.current()
    assert found is not None
    return found


def planned(table: LooseTable, where: Predicate) -> tuple[dict[int, MatchingPart], list[pa.Table]]:
    """What of the file is planned to be read, and the rows of each part of the scan."""
    handle, snapshot = table.handle, now(table)
    schema = handle.schema.arrow
    wanted = sent_filter(where, schema)
    files = handle.plan(snapshot, wanted)
    matching = handle.matching_parts(snapshot, files, wanted, schema=schema)
    left = files.filter(pc.is_in(files["ordinal"], pa.array([each for each in matching if matching[each].row_groups])))
    parts = split(snapshot.id, left, part_bytes=1, within_files=True, matching=matching)
    options = {"filter": wanted, "schema": schema, "positions": True}
    return matching, [
        handle.read(snapshot, files=part.of(left), share=part.share, **options).read_all() for part in parts
    ]


def bounds(name: str) -> st.SearchStrategy[Any]:
    """Values of a column, and some next to them."""
    numbers = st.integers(-2, ROWS + 1)
    make: dict[str, Callable[[int], Any]] = {
        "s": "name {:02d}".format,
        "long": lambda number: f"{LONG}{number:02d}",
        "day": lambda number: date(2026, 1, 1) + timedelta(days=number),
        "at": lambda number: START + timedelta(hours=number),
        "price": lambda number: Decimal(number) / 4,
        "flag": lambda number: number % 2 == 0,
    }
    if name == "f":
        return st.sampled_from([nan, inf, -inf]) | st.integers(-4, 2 * ROWS).map(lambda number: number / 4)
    return numbers.map(make.get(name, lambda number: number))


@st.composite
def conditions(draw: st.DrawFn, names: tuple[str, ...]) -> Predicate:
    name = draw(st.sampled_from(names))
    kind = draw(st.sampled_from(["compare", "between", "in", "null"]))
    if kind == "null":
        return col(name).is_null()
    if kind == "in":
        return col(name).isin(draw(st.lists(bounds(name), min_size=1, max_size=3)))
    if kind == "between":
        return col(name).between(draw(bounds(name)), draw(bounds(name)))
    compare = draw(st.sampled_from([operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge]))
    found: Predicate = compare(col(name), draw(bounds(name)))
    return found


def predicates(names: tuple[str, ...]) -> st.SearchStrategy[Predicate]:
    return st.recursive(
        conditions(names),
        lambda inner: (
            st.builds(operator.and_, inner, inner)
            | st.builds(operator.or_, inner, inner)
            | st.builds(operator.invert, inner)
        ),
        max_leaves=4,
    )


def matched(rows: pa.Table, where: Predicate) -> list[int]:
    """The positions of the rows that match, by another implementation of filters: that of the client."""
    batch = rows.combine_chunks().to_batches()[0] if rows.num_rows else pa.RecordBatch.from_pylist([], rows.schema)
    places = {name: place for place, name in enumerate(rows.schema.names)}
    found: list[int] = batch.filter(filter_mask(where, batch, places)).column(ROW_POSITION).to_pylist()
    return found


@given(data=st.data())
@settings(max_examples=settings.default.max_examples // 5)
def test_planned_parts_have_the_rows_of_a_scan_of_everything(table: LooseTable, data: st.DataObject) -> None:
    schema = table.handle.schema.arrow
    where = data.draw(predicates(tuple(schema.names)))
    everything = table.handle.read(now(table), schema=schema, positions=True).read_all()
    matching, parts = planned(table, where)
    rows = pa.concat_tables(parts) if parts else everything.slice(0, 0)
    assert matched(rows, where) == matched(everything, where)
    assert len(parts) <= sum(part.row_groups for part in matching.values())


@pytest.mark.parametrize(
    ("where", "groups"),
    [
        (col("n") == 25, 1),
        (col("day") == date(2026, 1, 13), 1),
        (col("at").between(START + timedelta(hours=8), START + timedelta(hours=11)), 2),
        (col("price") == Decimal("13.75"), 1),
        (col("s") == "name 30", 0),
        (col("n").is_null() & (col("day") > date(2026, 2, 25)), 1),
        (col("flag") == True, 1),  # noqa: E712
        (col("f") > 29.75, 5),  # footers do not count NaN, which is greater than every number
        (col("f") == 15.25, 0),
    ],
    ids=str,
)
def test_only_row_groups_that_may_match_are_planned(tmp_path: Path, where: Predicate, groups: int) -> None:
    matching, parts = planned(plain(tmp_path), where)
    assert [part.row_groups for part in matching.values()] == [groups]
    assert len(parts) == groups
    sizes = [part.size_bytes for part in matching.values()]
    assert sizes == [0] if not groups else sizes > [0]
