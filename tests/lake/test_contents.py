"""Through Airport, every snapshot of every table has the rows that other programs read from it."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

import scope
from formats.oracles import assert_same_rows
from lake.lakes import Lake
from skiway.client import col
from skiway.errors import InvalidArgument, NotFound

ICEBERG = ["types", "evolved", "first_version"]
if scope.ALL:
    ICEBERG += ["named", "adopted", "many", "empty"]
DELTA = [
    *(("root", each) for each in ("types", "evolved", "many", "empty")),
    *(("sales", each) for each in ("partitioned", "odd")),
]
PARQUET = {
    ("root", "alone"): "alone.parquet",
    ("root", "plain"): "plain/*.parquet",
    ("root", "mixed"): "mixed/*.parquet",
    ("root", "empty"): "empty/*.parquet",
    ("root", "duckdb"): "duckdb/*/*.parquet",
    ("area", "hive"): "area/hive/*/*/*/*.parquet",
}


@pytest.mark.parametrize("name", [("sales", each) for each in ICEBERG] + [("sales", "eu", "partitioned")])
def test_iceberg_snapshots_have_the_rows_that_pyiceberg_reads(
    mirrors: Lake, foreign_tables: Path, name: tuple[str, ...]
) -> None:
    from pyiceberg.catalog.sql import SqlCatalog

    with (
        SqlCatalog("lake", uri=f"sqlite:///{foreign_tables}/iceberg/catalog.db") as catalog,
        mirrors.client("iceberg") as db,
    ):
        oracle = catalog.load_table(name)
        table_name = (".".join(name[:-1]), name[-1])
        assert_same_rows(db.scan(table_name).read_all(), oracle.scan().to_arrow())
        for snapshot in oracle.snapshots():
            rows = db.scan(table_name, at_version=snapshot.snapshot_id).read_all()
            assert_same_rows(rows, oracle.scan(snapshot_id=snapshot.snapshot_id).to_arrow())


@pytest.mark.needs("duckdb extensions")
@pytest.mark.parametrize(
    "name", scope.sample(["evolved", "types", "named", "many", "first_version", "adopted"], every=3)
)
def test_iceberg_snapshots_have_the_rows_that_duckdb_reads(
    mirrors: Lake, foreign_tables: Path, duck: duckdb.DuckDBPyConnection, name: str
) -> None:
    from pyiceberg.catalog.sql import SqlCatalog

    with SqlCatalog("lake", uri=f"sqlite:///{foreign_tables}/iceberg/catalog.db") as catalog:
        table = catalog.load_table(("sales", name))
        location = table.metadata_location
        snapshots = [each.snapshot_id for each in table.snapshots()]
    with mirrors.client("iceberg") as db:
        expected = duck.execute("FROM iceberg_scan(?)", [location]).to_arrow_table()
        assert_same_rows(db.scan(("sales", name)).read_all(), expected)
        for each in snapshots:
            then = duck.execute("FROM iceberg_scan(?, snapshot_from_id => ?)", [location, each]).to_arrow_table()
            assert_same_rows(db.scan(("sales", name), at_version=each).read_all(), then)


@pytest.mark.needs("duckdb extensions")
@pytest.mark.parametrize(("schema", "name"), scope.sample(DELTA, every=2))
def test_delta_versions_have_the_rows_that_duckdb_reads(
    mirrors: Lake, foreign_tables: Path, duck: duckdb.DuckDBPyConnection, schema: str, name: str
) -> None:
    from deltalake import DeltaTable

    folder = str(foreign_tables.joinpath("delta", *([] if schema == "root" else [schema]), name))
    with mirrors.client("delta") as db:
        for version in range(DeltaTable(folder).version() + 1):
            rows = db.scan((schema, name), at_version=version).read_all()
            expected = duck.execute("FROM delta_scan(?, version => ?)", [folder, version]).to_arrow_table()
            assert_same_rows(rows, expected)


@pytest.mark.parametrize("name", PARQUET)
def test_parquet_tables_have_the_rows_that_duckdb_reads(
    mirrors: Lake, foreign_tables: Path, name: tuple[str, str]
) -> None:
    with mirrors.client("parquet") as db, duckdb.connect() as duck:
        rows = db.scan(name).read_all()
        sql = f"FROM read_parquet('{foreign_tables}/parquet/{PARQUET[name]}', union_by_name => true, hive_partitioning => true)"
        expected = duck.execute(sql).to_arrow_table()
        assert_same_rows(rows, expected.select(rows.column_names))
        assert_same_rows(db.scan(name, at_version=1).read_all(), rows)


@pytest.mark.parametrize(
    "sql",
    [
        "id >= 100",
        "id = 50",
        "i < -20 AND bo",
        "s = 'name 00009 ß'",
        "dec > 2.5",
        "d IS NULL",
        "ts >= TIMESTAMP '2026-01-20'",
        "dt = DATE '1970-01-05'",
        "id IN (3, 43, 83)",
    ],
)
@pytest.mark.parametrize(
    ("catalog", "table"), scope.sample([("iceberg", "sales.types"), ("parquet", "root.plain")], every=2)
)
def test_filter_keeps_the_rows_that_duckdb_keeps(mirrors: Lake, catalog: str, table: str, sql: str) -> None:
    where = {
        "id >= 100": col("id") >= 100,
        "id = 50": col("id") == 50,
        "i < -20 AND bo": (col("i") < -20) & (col("bo") == True),  # noqa: E712
        "s = 'name 00009 ß'": col("s") == "name 00009 ß",
        "dec > 2.5": col("dec") > Decimal("2.5"),
        "d IS NULL": col("d").is_null(),
        "ts >= TIMESTAMP '2026-01-20'": col("ts") >= datetime(2026, 1, 20),
        "dt = DATE '1970-01-05'": col("dt") == date(1970, 1, 5),
        "id IN (3, 43, 83)": col("id").isin([3, 43, 83]),
    }[sql]
    with mirrors.client(catalog) as db, duckdb.connect() as duck:
        everything = db.scan(table).read_all()
        duck.register("everything", everything)
        expected = duck.execute(f"FROM everything WHERE {sql}").to_arrow_table()
        assert_same_rows(db.scan(table, where=where).read_all(), expected)
        assert db.count(table, where=where) == expected.num_rows


def test_names_and_times_resolve_to_snapshots(mirrors: Lake) -> None:
    with mirrors.client("iceberg") as db:
        assert ids(db.scan("sales.named", at_version="first").read_all()) == list(range(5))
        assert ids(db.scan("sales.named", at_version="trial").read_all()) == [*range(5), 100, 101, 102]
        history = db.scan("skiway.snapshots", columns=["snapshot_id", "created_at", "is_current"], where=named("named"))
        past = history.read_all().sort_by("created_at").to_pylist()
        assert ids(db.scan("sales.named", at_timestamp=past[0]["created_at"]).read_all()) == list(range(5))
        assert ids(db.scan("sales.named", at_timestamp="2100-01-01").read_all()) == list(range(10))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"at_version": 5}, "no snapshot with id 5"),
        ({"at_version": "nowhere"}, "named ones: first, main, trial"),
        ({"at_timestamp": "1999-01-01"}, "as old as 1999"),
    ],
)
def test_time_or_version_without_a_snapshot_is_reported(
    mirrors: Lake, arguments: dict[str, object], message: str
) -> None:
    with mirrors.client("iceberg") as db, pytest.raises(NotFound, match=message):
        db.scan("sales.named", **arguments)  # type: ignore[arg-type]


def test_invalid_time_is_rejected(mirrors: Lake) -> None:
    with mirrors.client("iceberg") as db, pytest.raises(InvalidArgument, match="ISO timestamp"):
        db.scan("sales.named", at_timestamp="yesterday")


def named(table: str) -> object:
    return col("table_name") == table


def ids(rows: pa.Table) -> list[int]:
    return sorted(rows["id"].to_pylist())
