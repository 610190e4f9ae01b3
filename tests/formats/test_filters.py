"""No filter loses a row in any format, and files and row groups that cannot match are not opened."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import scope
from airport.filters.predicates import ROWS, Client, conditions
from airport.filters.recorded import PREDICATES, WITH_FILTER, Oracle, numbers, random_rows
from formats.iceberg.test_filters import stored, without_unwritable_values
from formats.oracles import assert_same_rows
from formats.pushed_filters import pushed_filter
from formats.test_contents import now
from skiway.airport import filters
from skiway.formats import Source, TableHandle, open_source

COLUMNS = ["i8", "i32", "i64", "u64", "f", "d", "dec9", "b", "s", "bl", "dt", "st", "l", "rowid"]


@pytest.fixture(scope="module")
def client() -> Client:
    return Client()


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[TableHandle, Oracle]]:
    """Special rows in several sort orders, in small row groups and files, by three writers; each with its oracle."""
    from deltalake import write_deltalake
    from pyiceberg.catalog.memory import InMemoryCatalog
    from pyiceberg.transforms import BucketTransform, IdentityTransform, TruncateTransform

    folder = tmp_path_factory.mktemp("special")
    for place, column in enumerate(["i32", "d", "s", "dt"]):
        order = pc.sort_indices(ROWS[column])
        (folder / "parquet").mkdir(exist_ok=True)
        part = ROWS.select(COLUMNS).take(order)
        pq.write_table(part.slice(place, 12), folder / "parquet" / f"{column}.parquet", row_group_size=3)
    within = without_unwritable_values(ROWS)
    in_delta = within.select([name for name in COLUMNS if name != "u64"])
    for start in range(0, in_delta.num_rows, 6):
        write_deltalake(folder / "delta", in_delta.slice(start, 6), mode="append", partition_by=["b"])
    in_iceberg = stored(within).select([name for name in COLUMNS if name not in ("u64", "a")])
    catalog = InMemoryCatalog("test", warehouse=str(folder / "iceberg"))
    catalog.create_namespace("main")
    table = catalog.create_table("main.t", in_iceberg.schema)
    table.append(in_iceberg.slice(0, 12))
    with table.update_spec() as change:
        change.add_field("b", IdentityTransform())
        change.add_field("i64", BucketTransform(3))
        change.add_field("s", TruncateTransform(1))
    table.append(in_iceberg.slice(12))
    catalog.close()
    found: dict[str, tuple[TableHandle, Oracle]] = {}
    for kind, place, namespace, name in [
        ("parquet", folder / "parquet", (), "parquet"),
        ("delta", folder / "delta", (), "delta"),
        ("iceberg", folder / "iceberg", ("main",), "t"),
    ]:
        options = {"external.table-name": "parquet"} if kind == "parquet" else {}
        with open_source(kind, str(place), options=options) as source:
            handle = source.load(namespace, name)
            found[kind] = handle, Oracle(handle.read(now(handle)).read_all())
    return found


@pytest.mark.parametrize("kind", ["parquet", "delta", "iceberg"])
@given(predicate=conditions())
@settings(max_examples=settings.default.max_examples // 4)
def test_random_predicate_loses_no_row(
    client: Client, tables: dict[str, tuple[TableHandle, Oracle]], kind: str, predicate: str
) -> None:
    sent = client.sent(predicate)
    assume(sent is not None)
    handle, oracle = tables[kind]
    assume("u64" not in predicate or kind == "parquet")
    (matching,) = oracle.kept_by_client([predicate])
    read = handle.read(now(handle), columns=["rowid"], filter=filters.parse(sent or "")).read_all()
    assert matching <= numbers(read)


@pytest.mark.parametrize("kind", ["parquet", "delta", "iceberg"])
def test_filters_skip_files_and_rows(tables: dict[str, tuple[TableHandle, Oracle]], kind: str) -> None:
    """Otherwise the test above would prove little."""
    handle, oracle = tables[kind]
    files = handle.files(now(handle)).num_rows
    fewer_files = exact = 0
    for each in WITH_FILTER if scope.ALL else WITH_FILTER[::8]:
        fewer_files += handle.plan(now(handle), each.filter).num_rows < files
        rows = handle.read(now(handle), columns=["rowid"], filter=each.filter).read_all()
        try:
            (matching,) = oracle.kept_by_client([each.predicate])
        except Exception:  # noqa: BLE001 - the predicate uses a column that this table does not have
            continue
        assert matching <= numbers(rows), each.predicate
        exact += matching == numbers(rows)
    assert fewer_files > 2
    assert exact > 6


@given(rows=random_rows(), chosen=st.lists(st.sampled_from(WITH_FILTER), min_size=5, max_size=5))
@settings(max_examples=settings.default.max_examples // 10)
def test_no_random_row_is_lost_in_row_groups_of_one_row(
    tmp_path_factory: pytest.TempPathFactory, rows: pa.Table, chosen: list[Any]
) -> None:
    file = tmp_path_factory.mktemp("random") / "rows.parquet"
    held = rows.select(COLUMNS)
    pq.write_table(held, file, row_group_size=1)
    oracle = Oracle(held)
    with open_source("parquet", str(file)) as source:
        table = source.load((), "rows")
        for each in chosen:
            if each.filter.columns <= set(COLUMNS):
                (matching,) = oracle.kept_by_client([each.predicate])
                assert matching <= numbers(table.read(now(table), columns=["rowid"], filter=each.filter).read_all())


PRUNED = [
    ("iceberg", ("sales", "eu"), "partitioned", "id = 60", 2),
    ("iceberg", ("sales", "eu"), "partitioned", "i = 49", 4),
    ("iceberg", ("sales", "eu"), "partitioned", "ts < TIMESTAMP '2026-01-02 00:00:00'", 1),
    ("iceberg", ("sales", "eu"), "partitioned", "s LIKE 'name 00%' AND id > 40", 9),
    ("iceberg", ("sales",), "types", "id BETWEEN 45 AND 50", 1),
    ("delta", (), "types", "id > 75", 1),
    ("delta", ("sales",), "partitioned", "bo AND dt = DATE '1969-12-04'", 1),
    ("delta", ("sales",), "odd", "k = 'c/d=e'", 1),
    ("delta", ("sales",), "odd", "k IS NULL", 1),
    ("parquet", (), "plain", "id >= 80", 1),
    ("parquet", (), "plain", "id IN (1, 2, 3)", 1),
    ("parquet", ("area",), "hive", "year = 2025 AND country = 'DE'", 1),
    ("parquet", ("area",), "hive", "day > DATE '2026-01-03'", 1),
    ("parquet", ("area",), "hive", "country IS NULL", 1),
    ("parquet", (), "duckdb", "part = 2", 1),
]


@pytest.mark.parametrize(("kind", "namespace", "name", "predicate", "most"), scope.sample(PRUNED, every=3))
def test_files_that_cannot_match_may_be_missing(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    kind: str,
    namespace: tuple[str, ...],
    name: str,
    predicate: str,
    most: int,
) -> None:
    table: TableHandle = request.getfixturevalue(kind).load(namespace, name)
    everything = table.read(now(table)).read_all()
    condition = pushed_filter(predicate, table.schema.arrow)
    planned = table.plan(now(table), condition)
    assert 0 < planned.num_rows <= most < table.files(now(table)).num_rows
    with files_removed(set(table.files(now(table))["path"].to_pylist()) - set(planned["path"].to_pylist()), tmp_path):
        found = table.read(now(table), filter=condition).read_all()
    with Client("SELECT 1").connection as duck:
        duck.register("everything", everything)
        duck.register("found", found)
        expected = duck.execute(f"FROM everything WHERE {predicate}").to_arrow_table()
        assert expected.num_rows
        assert_same_rows(duck.execute(f"FROM found WHERE {predicate}").to_arrow_table(), expected)


@contextmanager
def files_removed(paths: set[str], elsewhere: Path) -> Iterator[None]:
    """Move these files away for the duration of the block."""
    moved = [(Path(path.removeprefix("file://")), elsewhere / str(place)) for place, path in enumerate(sorted(paths))]
    for file, other in moved:
        file.rename(other)
    try:
        yield
    finally:
        for file, other in moved:
            other.rename(file)


def test_row_groups_that_cannot_match_are_not_read(parquet: Source) -> None:
    table = parquet.load((), "alone")
    condition = pushed_filter("id = 25", table.schema.arrow)
    unfiltered = table.read(now(table), filter=None).read_all()
    groups = [batch.num_rows for batch in table.read(now(table), columns=["id"], filter=condition)]
    assert groups == [1]
    wide = pushed_filter("hash(id) = 1 AND id = 25", table.schema.arrow)
    assert table.read(now(table), filter=wide).read_all()["id"].to_pylist() == [25]
    assert unfiltered.num_rows == 60


def test_filter_uses_the_column_names_of_the_requested_schema(iceberg: Source) -> None:
    """Two columns that swapped names must not be confused."""
    table = iceberg.load(("sales",), "types")
    own = table.schema.arrow
    places = own.get_field_index("id"), own.get_field_index("i")
    swapped = own.set(places[0], own.field("id").with_name("i")).set(places[1], own.field("i").with_name("id"))
    condition = pushed_filter("i = 90", swapped)  # under the names of the snapshot, no file has such a value
    rows = table.read(now(table), schema=swapped, filter=condition, columns=["i"]).read_all()
    assert rows.to_pylist() == [{"i": 90}]


def test_recorded_predicates_exist() -> None:
    assert len(PREDICATES) > 100
