"""Every snapshot of every table has the rows that other programs read from it."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

import scope
from formats.foreign_tables import make_fixtures
from formats.oracles import assert_same_rows
from skiway.formats import FILE_ORDINAL, ROW_POSITION, Format, Snapshot, Source, TableHandle

ICEBERG = ["types", "evolved", "named"]
MORE_ICEBERG = ["adopted", "many", "empty", "first_version"]
DELTA = [((), "types"), ((), "evolved"), ((), "many"), ((), "empty"), (("sales",), "partitioned"), (("sales",), "odd")]
PARQUET = {
    "alone": "alone.parquet",
    "plain": "plain/*.parquet",
    "mixed": "mixed/*.parquet",
    "empty": "empty/*.parquet",
    "duckdb": "duckdb/*/*.parquet",
    "area.hive": "area/hive/*/*/*/*.parquet",
}


@pytest.mark.parametrize(
    "name",
    [
        *(("sales", each) for each in ICEBERG),
        ("sales", "eu", "partitioned"),
        *(pytest.param(("sales", each), marks=pytest.mark.full) for each in MORE_ICEBERG),
    ],
)
def test_iceberg_snapshots_have_the_rows_that_pyiceberg_reads(
    iceberg: Source, foreign_tables: Path, name: tuple[str, ...]
) -> None:
    from pyiceberg.catalog.sql import SqlCatalog

    table = iceberg.load(name[:-1], name[-1])
    with SqlCatalog("lake", uri=f"sqlite:///{foreign_tables}/iceberg/catalog.db") as catalog:
        oracle = catalog.load_table(name)
        found = table.snapshots()
        assert [each.id for each in found] == [each.snapshot_id for each in oracle.snapshots()]
        for snapshot in found:
            rows = table.read(snapshot).read_all()
            assert_same_rows(rows, oracle.scan(snapshot_id=snapshot.id).to_arrow())
            assert table.schema_at(snapshot).arrow == rows.schema


@pytest.mark.needs("duckdb extensions")
@pytest.mark.parametrize("name", ["types", "evolved", "named", "many"])
def test_iceberg_tables_have_the_rows_that_duckdb_reads(
    iceberg: Source, duck: duckdb.DuckDBPyConnection, name: str
) -> None:
    table = iceberg.load(("sales",), name)
    current = table.current()
    assert current is not None
    expected = duck.execute("FROM iceberg_scan(?)", [table.metadata_location]).to_arrow_table()
    assert_same_rows(table.read(current).read_all(), expected)


@pytest.mark.needs("duckdb extensions")
@pytest.mark.parametrize(("namespace", "name"), scope.sample(DELTA, every=2))
def test_delta_versions_have_the_rows_that_duckdb_and_delta_rs_read(
    delta: Source, foreign_tables: Path, duck: duckdb.DuckDBPyConnection, namespace: tuple[str, ...], name: str
) -> None:
    from deltalake import DeltaTable

    folder = str(foreign_tables.joinpath("delta", *namespace, name))
    table = delta.load(namespace, name)
    snapshots = table.snapshots()
    assert [each.id for each in snapshots] == list(range(DeltaTable(folder).version() + 1))
    for snapshot in snapshots:
        rows = table.read(snapshot).read_all()
        assert_same_rows(rows, DeltaTable(folder, version=snapshot.id).to_pyarrow_table())
        assert_same_rows(rows, duck.execute("FROM delta_scan(?, version => ?)", [folder, snapshot.id]).to_arrow_table())


@pytest.mark.parametrize("name", PARQUET)
def test_parquet_files_have_the_rows_that_duckdb_reads(parquet: Source, foreign_tables: Path, name: str) -> None:
    *namespace, last = name.split(".")
    table = parquet.load(tuple(namespace), last)
    rows = table.read(now(table)).read_all()
    with duckdb.connect() as duck:
        sql = f"FROM read_parquet('{foreign_tables}/parquet/{PARQUET[name]}', union_by_name => true, hive_partitioning => true)"
        expected = duck.execute(sql).to_arrow_table()
    assert sorted(rows.column_names) == sorted(expected.column_names)
    assert_same_rows(rows, expected.select(rows.column_names))


def test_branches_and_tags_resolve_to_snapshots(iceberg: Source) -> None:
    table = iceberg.load(("sales",), "named")
    by_ref = {ref: each for each in table.snapshots() for ref in each.refs}
    assert by_ref.keys() == {"main", "first", "trial"} == table.refs.keys()
    assert ids(table, by_ref["first"]) == list(range(5))
    assert ids(table, by_ref["trial"]) == [*range(5), 100, 101, 102]
    assert ids(table, by_ref["main"]) == list(range(10))


def test_column_with_the_same_name_and_another_id_is_a_different_column(iceberg: Source) -> None:
    table = iceberg.load(("sales",), "evolved")
    rows = table.read(now(table), columns=["id", "gone", "full_name"]).read_all().to_pylist()
    assert {row["gone"] for row in rows if row["id"] < 30} == {None}
    assert {row["gone"] for row in rows if row["id"] >= 30} == {"back"}
    assert {row["full_name"] for row in rows if row["id"] < 10} == {f"n{number}" for number in range(10)}


def test_older_schema_can_be_selected_by_id(iceberg: Source) -> None:
    """A client attached before the change sees renamed columns under their old names and dropped columns as NULL."""
    table = iceberg.load(("sales",), "evolved")
    second = table.schema_at(table.snapshots()[1]).arrow
    rows = table.read(now(table), schema=second, columns=["id", "name", "gone"]).read_all()
    assert rows.schema.names == ["id", "name", "gone"]
    assert rows.num_rows == 25
    assert set(rows["name"].to_pylist()) >= {"n1", "new"}


def test_positions_identify_rows(parquet: Source, foreign_tables: Path) -> None:
    import pyarrow.parquet as pq

    table = parquet.load((), "plain")
    rows = table.read(now(table), columns=["id"], positions=True).read_all()
    paths = table.files(now(table))["path"].to_pylist()
    for ordinal, path in enumerate(paths):
        own = rows.filter(pa.compute.field(FILE_ORDINAL) == ordinal)
        expected = pq.read_table(path)["id"].take(own[ROW_POSITION])
        assert own.num_rows == 40
        assert own["id"].to_pylist() == expected.to_pylist()


def test_only_the_given_files_are_read(parquet: Source) -> None:
    table = parquet.load((), "plain")
    files = table.files(now(table))
    assert table.read(now(table), files=files.slice(1, 1)).read_all()["id"].to_pylist() == list(range(40, 80))
    assert table.read(now(table), files=files.slice(0, 0)).read_all().num_rows == 0


@pytest.mark.parametrize("columns", [[], ["s"], ["tz", "id"]])
def test_only_requested_columns_are_returned_in_the_requested_order(parquet: Source, columns: list[str]) -> None:
    table = parquet.load((), "plain")
    rows = table.read(now(table), columns=columns).read_all()
    assert rows.column_names == columns
    assert rows.num_rows == 120


def test_table_without_snapshots_has_none(iceberg: Source) -> None:
    table = iceberg.load(("sales",), "empty")
    assert table.current() is None
    assert table.snapshots() == []


def test_known_snapshots_are_not_listed_again(iceberg: Source, delta: Source) -> None:
    for table in (iceberg.load(("sales",), "many"), delta.load((), "many")):
        known = table.snapshots()
        assert len(known) == 12
        assert table.snapshots(known[:9]) == known[9:]
        assert table.current() == known[-1]


def test_parent_of_a_snapshot_is_the_previous_one(iceberg: Source, delta: Source) -> None:
    for table in (iceberg.load(("sales",), "many"), delta.load((), "many")):
        found = table.snapshots()
        assert [each.parent_id for each in found[1:]] == [each.id for each in found[:-1]]


def test_sources_list_namespaces_and_tables(iceberg: Source, delta: Source, parquet: Source) -> None:
    assert iceberg.namespaces() == [("sales",), ("sales", "eu")]
    assert iceberg.tables(("sales",)) == sorted(ICEBERG + MORE_ICEBERG)
    assert delta.namespaces() == [(), ("sales",)]
    assert delta.tables(("sales",)) == ["odd", "partitioned"]
    assert parquet.namespaces() == [(), ("area",)]
    assert parquet.tables(()) == ["alone", "duckdb", "empty", "mixed", "plain"]
    assert parquet.load(("area",), "hive").format is Format.PARQUET


def test_schema_of_a_table_is_the_one_it_was_written_with(iceberg: Source) -> None:
    schema = iceberg.load(("sales",), "types").schema.arrow
    assert schema.names == make_fixtures.TYPES.names
    assert [field.type for field in schema if not field.type.num_fields] == [
        field.type for field in make_fixtures.TYPES if not field.type.num_fields
    ]


def now(table: TableHandle) -> Snapshot:
    current = table.current()
    assert current is not None
    return current


def ids(table: TableHandle, snapshot: Snapshot) -> list[int]:
    return sorted(table.read(snapshot, columns=["id"]).read_all()["id"].to_pylist())
