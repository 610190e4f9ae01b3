"""Iceberg clients read mirrored Delta and Parquet tables over REST, with the rows that Airport returns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from pyiceberg.catalog.rest import RestCatalog

import scope
from formats.oracles import assert_same_rows
from lake.lakes import Lake
from skiway.formats.iceberg.export.versions import ZERO_ID, snapshot_id

DELTA = {"root.types": 4, "root.evolved": 3, "root.many": 12, "root.empty": 1, "sales.partitioned": 1, "sales.odd": 1}
PARQUET = ["root.alone", "root.plain", "root.mixed", "root.empty", "root.duckdb", "area.hive"]
NULL_LISTS = "ls"
"""PyIceberg reads NULL as an empty list in columns that are lists of structs, in all Iceberg tables."""


@pytest.fixture(scope="module")
def uri(mirrors: Lake) -> Iterator[str]:
    with mirrors.rest_served() as uri:
        yield uri


@pytest.fixture
def pyiceberg(uri: str) -> dict[str, RestCatalog]:
    return {name: RestCatalog("lake", uri=uri, warehouse=name, token="writer") for name in ("delta", "parquet")}


@pytest.fixture(scope="module")
def attached(duck: duckdb.DuckDBPyConnection, uri: str) -> duckdb.DuckDBPyConnection:
    """DuckDB with the catalogs of the lake, in a time zone other than UTC."""
    duck.execute("CREATE OR REPLACE SECRET lake (TYPE iceberg, TOKEN 'writer')")
    for name in ("delta", "parquet"):
        duck.execute(f"ATTACH OR REPLACE '{name}' AS {name}_lake (TYPE iceberg, ENDPOINT '{uri}', SECRET lake)")
    duck.execute("SET TimeZone = 'America/New_York'")
    return duck


def airport_rows(mirrors: Lake, catalog: str, name: str, **at: Any) -> pa.Table:
    with mirrors.client(catalog) as db:
        return db.scan(tuple(name.split(".")), **at).read_all()


def assert_same(found: pa.Table, expected: pa.Table, *, without: str = "") -> None:
    names = [name for name in expected.column_names if name != without]
    assert sorted(found.column_names) == sorted(expected.column_names)
    assert_same_rows(found.select(names), expected.select(names))


@pytest.mark.parametrize("name", scope.sample(DELTA, every=2, keep=lambda name: name == "root.evolved"))
def test_pyiceberg_reads_every_version_of_a_delta_table(
    mirrors: Lake, pyiceberg: dict[str, RestCatalog], name: str
) -> None:
    table = pyiceberg["delta"].load_table(name)
    versions = range(DELTA[name])
    assert [each.snapshot_id for each in table.snapshots()] == [snapshot_id(version) for version in versions]
    if (
        name == "root.types"
    ):  # delta-rs wrote the later versions in two layouts of strings, which PyIceberg cannot combine
        versions = range(2)
    for version in versions:
        expected = airport_rows(mirrors, "delta", name, at_version=version)
        assert_same(table.scan(snapshot_id=snapshot_id(version)).to_arrow(), expected, without=NULL_LISTS)


@pytest.mark.needs("duckdb extensions")
@pytest.mark.parametrize("name", scope.sample(DELTA, every=2, keep=lambda name: name == "root.evolved"))
def test_duckdb_reads_every_version_of_a_delta_table(
    mirrors: Lake, attached: duckdb.DuckDBPyConnection, name: str
) -> None:
    for version in range(DELTA[name]):
        found = attached.execute(f"FROM delta_lake.{name} AT (VERSION => {snapshot_id(version)})").to_arrow_table()
        assert_same(found, airport_rows(mirrors, "delta", name, at_version=version))
    assert_same(attached.execute(f"FROM delta_lake.{name}").to_arrow_table(), airport_rows(mirrors, "delta", name))


@pytest.mark.parametrize("name", PARQUET)
def test_pyiceberg_reads_parquet_tables(mirrors: Lake, pyiceberg: dict[str, RestCatalog], name: str) -> None:
    table = pyiceberg["parquet"].load_table(name)
    expected = airport_rows(mirrors, "parquet", name)
    assert_same(table.scan().to_arrow(), expected, without=NULL_LISTS)
    assert table.scan().count() == expected.num_rows


@pytest.mark.needs("duckdb extensions")
@pytest.mark.parametrize("name", PARQUET)
def test_duckdb_reads_parquet_tables(mirrors: Lake, attached: duckdb.DuckDBPyConnection, name: str) -> None:
    expected = airport_rows(mirrors, "parquet", name)
    assert_same(attached.execute(f"FROM parquet_lake.{name}").to_arrow_table(), expected)
    assert attached.execute(f"SELECT count(*) FROM parquet_lake.{name}").fetchall() == [(expected.num_rows,)]


FILTERS = [
    ("delta", "sales.partitioned", "bo = true"),
    ("delta", "sales.partitioned", "dt >= '1969-12-10' AND dt < '1969-12-20'"),
    ("delta", "sales.odd", "k IS NULL"),
    ("delta", "root.many", "id = 7"),
    ("parquet", "area.hive", "year = 2025"),
    ("parquet", "area.hive", "country IS NULL OR day = '2026-01-02'"),
    ("parquet", "root.plain", "s = 'name 00009 ß'"),
    ("parquet", "root.plain", "dec > 2.5000"),
    ("parquet", "root.mixed", "st IS NULL"),
]


@pytest.mark.needs("duckdb extensions")
@pytest.mark.parametrize(("catalog", "name", "condition"), FILTERS)
def test_filters_keep_the_same_rows(
    mirrors: Lake,
    pyiceberg: dict[str, RestCatalog],
    attached: duckdb.DuckDBPyConnection,
    catalog: str,
    name: str,
    condition: str,
) -> None:
    everything = airport_rows(mirrors, catalog, name)
    with duckdb.connect() as plain:
        plain.register("everything", everything)
        expected = plain.execute(f"FROM everything WHERE {condition}").to_arrow_table()
    assert 0 < expected.num_rows < everything.num_rows
    found = attached.execute(f"FROM {catalog}_lake.{name} WHERE {condition}").to_arrow_table()
    assert_same(found, expected)
    scan = pyiceberg[catalog].load_table(name).scan(row_filter=condition)
    assert_same(scan.to_arrow(), expected, without=NULL_LISTS)


def test_files_are_skipped_by_partition_and_by_bounds(pyiceberg: dict[str, RestCatalog]) -> None:
    def planned(catalog: str, name: str, condition: str) -> int:
        return len(list(pyiceberg[catalog].load_table(name).scan(row_filter=condition).plan_files()))

    assert planned("delta", "root.many", "id = 7") == 1
    assert planned("parquet", "area.hive", "year = 2025 AND country = 'DE'") == 1
    assert planned("parquet", "root.plain", "id = 45") == 1
    assert planned("parquet", "root.plain", "id = 1000") == 0


def test_metadata_maps_names_to_ids_and_versions_to_snapshots(pyiceberg: dict[str, RestCatalog]) -> None:
    table = pyiceberg["delta"].load_table("root.evolved")
    assert [each.snapshot_id for each in table.snapshots()] == [ZERO_ID, 1, 2]
    assert [each.summary["skiway.version"] for each in table.snapshots() if each.summary] == ["0", "1", "2"]
    assert [each.summary.operation.value for each in table.snapshots() if each.summary] == [
        "append",
        "append",
        "overwrite",
    ]
    ids = {field.name: field.field_id for schema in table.schemas().values() for field in schema.fields}
    mapping = table.name_mapping()
    assert mapping is not None
    assert {each.names[0]: each.field_id for each in mapping.root} == ids
    assert table.properties["gc.enabled"] == "false"


def test_server_plans_scans(uri: str) -> None:
    """Then clients need no access to the manifests. PyIceberg cannot parse dates among the partition values of a plan."""
    catalog = RestCatalog("lake", uri=uri, warehouse="parquet", token="writer", **{"scan-planning-mode": "server"})
    scan = catalog.load_table("root.duckdb").scan(row_filter="part = 1")
    assert len(list(scan.plan_files())) == 1
    assert sorted(scan.to_arrow()["id"].to_pylist()) == [number for number in range(100) if number % 3 == 1]
