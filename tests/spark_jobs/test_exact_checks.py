"""Exact figures for quality rules, which Spark computes from rows that its tasks read.

The expected figures are computed in Python from the rows that PyIceberg reads.
"""

from __future__ import annotations

import sys
from datetime import UTC, date, datetime, time
from decimal import Decimal
from math import ceil, isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pyarrow as pa
import pytest
from pyspark import cloudpickle

from formats.delete_files import add_position_deletes
from formats.managed import LooseTable
from skiway.formats import TableHandle, data_files
from skiway.formats.iceberg.changes.evolution import AddColumn, WidenColumn, evolve
from skiway.formats.schemas import leaves
from skiway.metastore.quality.facts import type_of
from skiway.metastore.quality.verdicts import Interval, KeyFacts, TableFacts
from skiway.metastore.statistics.bounds import bound
from skiway.model import v1
from skiway.spark_jobs import quality
from skiway.spark_jobs.quality import measure
from spark_jobs.lakes import SPARK

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = SPARK
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # tasks do not have the modules of tests

SCHEMA = pa.schema(
    {
        "id": pa.int32(),
        "part": pa.string(),
        "ratio": pa.float64(),
        "day": pa.date32(),
        "at": pa.timestamp("us", tz="UTC"),
        "clock": pa.time64("us"),
        "price": pa.decimal128(9, 2),
        "ok": pa.bool_(),
        "code": pa.uuid(),
        "blob": pa.binary(),
    }
)
TYPES = {
    "id": "long",
    "part": "string",
    "ratio": "double",
    "day": "date",
    "at": "timestamptz",
    "clock": "time",
    "price": "decimal(9,2)",
    "ok": "boolean",
    "code": "uuid",
    "blob": "binary",
    "note": "string",
}
TABLE = v1.Table(
    display_name="t",
    schema_json=str(
        {
            "type": "struct",
            "fields": [
                {"id": number, "name": name, "type": kind, "required": 0}
                for number, (name, kind) in enumerate(TYPES.items())
            ],
        }
    ).replace("'", '"'),
)


LAYOUTS = ("plain", "partitioned")
SPECIAL = ("id", "part", "note")
"""A widened column, the partition column, and one that older files do not have."""


def row(number: int) -> dict[str, Any]:
    """Rows in which every column has NULL and repeated values; `ratio` also has NaN."""
    if number % 7 == 3:
        return {"id": number, "part": "x" if number % 2 else None}
    return {
        "id": number,
        "part": "x" if number % 2 else "y",
        "ratio": float("nan") if number % 5 == 0 else number / 4,
        "day": date(2026, 1, 1 + number % 9),
        "at": datetime(2026, 1, 1, number % 11, 30, tzinfo=UTC),
        "clock": time(number % 13, 15),
        "price": Decimal(number % 17) / 4,
        "ok": number % 3 == 0,
        "code": UUID(int=number % 6),
        "blob": bytes([number % 4]),
    }


def batch(*numbers: int) -> pa.Table:
    rows = [row(number) for number in numbers]
    columns = {
        field.name: pa.array([each.get(field.name) for each in rows], field.type)
        if field.name != "code"
        else pa.array([each["code"].bytes if each.get("code") else None for each in rows], pa.binary(16)).cast(
            pa.uuid()
        )
        for field in SCHEMA
    }
    return pa.table(columns, schema=SCHEMA)


@pytest.fixture(scope="module", params=LAYOUTS)
def table(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LooseTable:
    """A table with a widened column, files without a column that was added later, and deleted rows in one file."""
    folder: Path = tmp_path_factory.mktemp("exact")
    made = LooseTable(folder, SCHEMA, *(["part"] if request.param == "partitioned" else []))
    made.append(batch(*range(40)))
    made.change(evolve([AddColumn("note", pa.string()), WidenColumn("id", pa.int64())]))
    later = batch(*range(35, 60)).set_column(0, "id", pa.array(range(35, 60), pa.int64()))
    written = made.append(later.append_column("note", pa.array([f"n{number % 3}" for number in range(25)])))
    partition = written[0].partition if request.param == "partitioned" else None
    add_position_deletes(made, written[0].file_path, 0, 1, 2, partition=partition)
    return made


def measured(spark: SparkSession, table: LooseTable, *checks: v1.RuleCheck) -> TableFacts:
    handle = table.handle
    snapshot = handle.current()
    assert snapshot is not None
    return measure(lambda: spark, handle, snapshot, TABLE, checks)


def values(table: LooseTable, name: str) -> list[Any]:
    found = table.rows()[name]
    plain = found.combine_chunks().storage.to_pylist() if name == "code" else found.to_pylist()
    return [each for each in plain if each is not None]


def compared(name: str, value: Any) -> Any:
    """A value of PyIceberg as rules compare it."""
    match value:
        case datetime():
            return value.astimezone(UTC).replace(tzinfo=None)
        case UUID():
            return value.bytes
    return value


CASES = [
    pytest.param(layout, name, marks=pytest.mark.full if layout == "partitioned" and name not in SPECIAL else ())
    for layout in LAYOUTS
    for name in TYPES
]


@pytest.mark.parametrize(("table", "name"), CASES, indirect=["table"])
def test_figures_are_those_of_the_rows(spark: SparkSession, table: LooseTable, name: str) -> None:
    found = values(table, name)
    ordered = sorted(compared(name, each) for each in found if not (isinstance(each, float) and isnan(each)))
    different = {"NaN" if isinstance(each, float) and isnan(each) else each for each in found}
    facts = measured(
        spark,
        table,
        v1.RuleCheck(null_share=v1.NullShareCheck(column=name)),
        v1.RuleCheck(distinct_count=v1.DistinctCountCheck(column=name)),
        v1.RuleCheck(range=v1.RangeCheck(column=name)),
        v1.RuleCheck(quantile=v1.QuantileCheck(column=name, quantile=0.5)),
        v1.RuleCheck(quantile=v1.QuantileCheck(column=name, quantile=0.9)),
        v1.RuleCheck(allowed_values=v1.AllowedValuesCheck(column=name, values=["x"] * 100)),
    )
    column, rows = facts.columns[name], table.rows().num_rows
    assert facts.rows == Interval(rows, rows)
    assert column.null_share == Interval((rows - len(found)) / rows, (rows - len(found)) / rows)
    assert column.distinct == Interval(len(different), len(different))
    assert column.least == Interval(ordered[0], ordered[0])
    assert column.most == Interval(ordered[-1], ordered[-1])
    expected = {rank: ordered[ceil(rank * len(ordered)) - 1] for rank in (0.5, 0.9)}
    assert column.quantiles == expected
    assert column.is_complete
    assert column.values is not None
    kind = type_of(TYPES[name])
    assert kind is not None
    texts = {bound(kind, text).value for text in column.values if text != "NaN"}
    assert texts == set(ordered)
    assert ("NaN" in column.values) == ("NaN" in different)


def test_only_some_values_are_read_if_there_are_many(spark: SparkSession, table: LooseTable) -> None:
    check = v1.RuleCheck(allowed_values=v1.AllowedValuesCheck(column="id", values=["1", "2", "3"]))
    column = measured(spark, table, check).columns["id"]
    assert (len(column.values or ()), column.is_complete) == (4, False)


@pytest.mark.parametrize("key", [("id",), ("id", "part"), ("part", "ok"), ("id", "note")])
def test_keys_are_compared_in_all_rows(spark: SparkSession, table: LooseTable, key: tuple[str, ...]) -> None:
    rows = [tuple(each[name] for name in key) for each in table.rows().select(list(key)).to_pylist()]
    complete = [each for each in rows if None not in each]
    repeated = sum(complete.count(each) > 1 for each in set(complete))
    facts = measured(spark, table, v1.RuleCheck(unique=v1.UniqueCheck(columns=key)))
    assert facts.keys == {key: KeyFacts(repeated, len(rows) - len(complete))}
    assert repeated or key == ("id", "note")


class Counted:
    """A table whose reads are lines of a file, which tasks write."""

    def __init__(self, handle: TableHandle, log: Path) -> None:
        self.handle, self.log = handle, log

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.handle, name)

    def read(self, *given: Any, files: pa.Table, **how: Any) -> Any:
        with self.log.open("a") as log:
            log.write(f"{files['path'].to_pylist()}\n")
        return self.handle.read(*given, files=files, **how)


def test_rules_of_several_columns_share_one_scan_of_a_table_with_deletes(
    spark: SparkSession, table: LooseTable, tmp_path: Path
) -> None:
    log = tmp_path / "reads"
    handle: Any = Counted(table.handle, log)
    snapshot = handle.current()
    checks = [
        v1.RuleCheck(null_share=v1.NullShareCheck(column="note")),
        v1.RuleCheck(range=v1.RangeCheck(column="id")),
        v1.RuleCheck(quantile=v1.QuantileCheck(column="price", quantile=0.5)),
        v1.RuleCheck(unique=v1.UniqueCheck(columns=["id", "part"])),
        v1.RuleCheck(distinct_count=v1.DistinctCountCheck(column="day")),
    ]
    facts = measure(lambda: spark, handle, snapshot, TABLE, checks)
    assert set(facts.columns) >= {"note", "id", "price", "day"}
    read = log.read_text().splitlines()
    assert sorted(read) == sorted(set(read))
    assert len(read) == data_files(handle.files(snapshot)).num_rows


def test_rows_are_counted_without_columns(spark: SparkSession, table: LooseTable) -> None:
    facts = measured(spark, table, v1.RuleCheck(row_count=v1.RowCountCheck(min=1)))
    rows = table.rows().num_rows
    assert facts.rows == Interval(rows, rows)


@pytest.mark.parametrize("table", LAYOUTS[:1], indirect=True)
@pytest.mark.parametrize("name", ["part", "ratio", "day", "at", "price", "ok", "code"])
def test_quantiles_of_many_values_are_found_by_counting(
    spark: SparkSession, table: LooseTable, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values of every kind are compared with those of a sample, until few enough are left to sort."""
    monkeypatch.setattr(quality, "_SORTED_VALUES", 8)
    monkeypatch.setattr(quality, "_SAMPLED_VALUES", 5)  # never more than there are values
    found = [each for each in values(table, name) if not (isinstance(each, float) and isnan(each))]
    ordered = sorted(compared(name, each) for each in found)
    checks = [v1.RuleCheck(quantile=v1.QuantileCheck(column=name, quantile=rank)) for rank in (0.01, 0.5)]
    expected = {rank: ordered[ceil(rank * len(ordered)) - 1] for rank in (0.01, 0.5)}
    assert measured(spark, table, *checks).columns[name].quantiles == expected


def test_few_values_are_sorted_for_a_quantile(
    spark: SparkSession, table: LooseTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark keeps as many values in memory as are skipped after sorting."""
    from pyspark.sql.classic.dataframe import DataFrame

    skipped: list[int] = []
    usual = DataFrame.offset

    def offset(self: Any, number: int) -> Any:
        skipped.append(number)
        return usual(self, number)

    monkeypatch.setattr(DataFrame, "offset", offset)
    id_ = next(leaf for leaf in leaves(table.handle.schema.arrow) if leaf.path == ("id",))
    rows = spark.range(1_000_000).selectExpr("CASE WHEN id % 2 = 0 THEN (id * 7919) % 1000003 ELSE 5 END AS v0")
    ordered = sorted(number * 7919 % 1000003 if number % 2 == 0 else 5 for number in range(1_000_000))
    for rank in (0.3, 0.9):
        found = quality._Rows(rows, {"id": id_}, TABLE)._quantile("id", rank, {})
        assert found == {"quantiles": {rank: ordered[ceil(rank * len(ordered)) - 1]}}
    assert all(number < quality._SORTED_VALUES for number in skipped)
