"""The statistics in a file table match what DuckDB finds in the files."""

from __future__ import annotations

from typing import Any

import duckdb
import pyarrow as pa
import pytest

from formats.test_contents import now
from skiway.formats import FILE_COLUMNS, Content, Source, TableHandle
from skiway.formats.schemas import Leaf, leaves

TABLES = [
    ("iceberg", ("sales",), "types"),
    ("iceberg", ("sales", "eu"), "partitioned"),
    ("delta", (), "types"),
    ("delta", ("sales",), "partitioned"),
    ("parquet", (), "plain"),
    ("parquet", (), "alone"),
    ("parquet", (), "duckdb"),
    ("parquet", (), "empty"),
    ("parquet", ("area",), "hive"),
]


@pytest.mark.parametrize(("kind", "namespace", "name"), TABLES)
def test_file_statistics_match_duckdb(
    request: pytest.FixtureRequest, kind: str, namespace: tuple[str, ...], name: str
) -> None:
    source: Source = request.getfixturevalue(kind)
    table = source.load(namespace, name)
    files = table.files(now(table))
    known = 0
    with duckdb.connect() as duck:
        for file in files.to_pylist():
            inside = duck.execute(
                f"DESCRIBE FROM read_parquet('{file['path']}', hive_partitioning => false)"
            ).fetchall()
            duck.execute(
                f"CREATE OR REPLACE TEMP VIEW f AS FROM read_parquet('{file['path']}', hive_partitioning => false)"
            )
            assert duck.execute("SELECT count(*) FROM f").fetchone() == (file["row_count"],)
            for leaf in leaves(table.schema.arrow):
                if leaf.path[0] in {column for column, *_ in inside}:
                    known += check_column(duck, leaf, file["stats"][str(leaf.id)])
    assert known > 0 or not files.num_rows or name == "empty"


def check_column(duck: duckdb.DuckDBPyConnection, leaf: Leaf, stats: dict[str, Any]) -> int:
    """Check the reported statistics and return whether bounds are known."""
    column = ".".join(f'"{part}"' for part in leaf.path)
    is_float = pa.types.is_floating(leaf.type)
    number = f"FILTER (NOT isnan({column}))" if is_float else ""
    nans = f"count_if(isnan({column}))" if is_float else "0"
    sql = f"SELECT count(*) AS n, count_if({column} IS NULL) AS nulls, {nans} AS nans, "
    sql += f"min({column}) {number} AS low, max({column}) {number} AS high FROM f"
    (found,) = duck.execute(sql).to_arrow_table().to_pylist()
    assert stats["value_count"] == found["n"]
    assert stats["null_count"] in (found["nulls"], None)
    assert stats["nan_count"] in (found["nans"], None)
    if stats["min"] is None:
        assert not stats["exact"]
        return 0
    if stats["exact"]:
        assert (stats["min"], stats["max"]) == (found["low"], found["high"])
    else:
        assert found["low"] is None or stats["min"] <= found["low"] <= found["high"] <= stats["max"]
    return 1


@pytest.mark.parametrize(("kind", "namespace", "name"), TABLES)
def test_file_tables_have_the_same_schema(
    request: pytest.FixtureRequest, kind: str, namespace: tuple[str, ...], name: str
) -> None:
    table: TableHandle = request.getfixturevalue(kind).load(namespace, name)
    files = table.files(now(table))
    assert files.schema.names == [*FILE_COLUMNS.names, "partition", "stats"]
    assert pa.schema(list(files.schema)[: len(FILE_COLUMNS)]) == FILE_COLUMNS
    assert files["ordinal"].to_pylist() == list(range(files.num_rows))
    assert files["path"].to_pylist() == sorted(files["path"].to_pylist())
    assert set(files["content"].to_pylist()) <= set(Content)
    fields = {str(field.id) for spec in table.partition_specs for field in spec.fields}
    assert {each.name for each in files.schema.field("partition").type} == fields


def test_bounds_are_known_for_every_primitive_type(parquet: Source) -> None:
    table = parquet.load((), "plain")
    stats = table.files(now(table)).to_pylist()[0]["stats"]
    unknown = {leaf.path for leaf in leaves(table.schema.arrow) if stats[str(leaf.id)]["min"] is None}
    assert unknown == set()


def test_partition_values_are_typed(parquet: Source, delta: Source) -> None:
    hive = parquet.load(("area",), "hive")
    kinds = [each.type for each in hive.files(now(hive)).schema.field("partition").type]
    assert kinds == [pa.int64(), pa.date32(), pa.string()]
    odd = delta.load(("sales",), "odd")
    values = [next(iter(each.values())) for each in odd.files(now(odd))["partition"].to_pylist()]
    assert set(values) == {"a b", "c/d=e", "ü%", None}


def test_truncated_timestamps_in_delta_statistics_widen_the_bounds(delta: Source) -> None:
    table = delta.load((), "types")
    (leaf,) = (each for each in leaves(table.schema.arrow) if each.path == ("ts",))
    for file in table.files(now(table)).to_pylist():
        stats = file["stats"][str(leaf.id)]
        assert not stats["exact"]
        assert stats["min"] < stats["max"]
