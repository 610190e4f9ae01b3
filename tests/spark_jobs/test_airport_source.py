"""Spark reads tables of an Airport server with the data source `airport`; rows equal those that the client reads."""

from __future__ import annotations

import datetime
import importlib
import os
import re
import sys
import uuid
from collections.abc import Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import ZipFile

import pyarrow as pa
import pytest

import scope
from runtime.servers import Server
from scope import sample
from skiway.client import AirportClient
from skiway.errors import SkiwayError
from spark_jobs.lakes import SPARK
from spark_jobs.shared_spark import active

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = SPARK

PAGE = (Path(__file__).parents[2] / "docs" / "spark-source.md").read_text()
DAY = datetime.date(2026, 1, 1)
NOON = datetime.datetime(2026, 1, 1, 12, 30, 15, 123456)
UTC_NOON = NOON.replace(tzinfo=datetime.UTC)
EVERY_TYPE = pa.table(
    {
        "flag": pa.array([True, None, False]),
        "small": pa.array([1, None, 3], pa.int32()),
        "large": pa.array([2**60, None, -1], pa.int64()),
        "single": pa.array([0.5, None, float("nan")], pa.float32()),
        "double": pa.array([0.1, None, float("inf")], pa.float64()),
        "price": pa.array([Decimal("12.34"), None, Decimal("-0.01")], pa.decimal128(20, 2)),
        "day": pa.array([DAY, None, datetime.date(1969, 12, 31)]),
        "moment": pa.array([NOON, None, NOON], pa.timestamp("us")),
        "instant": pa.array([UTC_NOON, None, UTC_NOON], pa.timestamp("us", "UTC")),
        "text": pa.array(["ä", None, ""]),
        "data": pa.array([b"\x00\xff", None, b""]),
        "id": pa.ExtensionArray.from_storage(pa.uuid(), pa.array([bytes(range(16)), None, bytes(16)], pa.binary(16))),
        "list": pa.array([[1, None], None, []], pa.list_(pa.int32())),
        "record": pa.array([{"a": 1, "b": "x"}, None, {"a": None, "b": None}], pa.struct({"a": pa.int32(), "b": pa.string()})),
        "map": pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.int64())),
    }
)  # fmt: skip


@pytest.fixture(scope="module")
def lake(server_with_spark: Server) -> Iterator[AirportClient]:
    with AirportClient(server_with_spark.addresses["airport"], "lake") as client:
        client.create_schema("source")
        client.create_table_as("source.every_type", EVERY_TYPE)
        client.create_table("source.orders", pa.schema({"id": pa.int64(), "day": pa.date32(), "note": pa.string()}))
        for number in range(4):
            days = [DAY + datetime.timedelta(number)] * 10
            ids = list(range(number * 10, number * 10 + 10))
            client.insert("source.orders", pa.table({"id": ids, "day": days, "note": [f"n{each % 3}" for each in ids]}))
        yield client


def load(spark: SparkSession, lake: AirportClient, table: str, **options: Any) -> DataFrame:
    reader = spark.read.format("airport").option("location", f"{lake.location}/lake")
    return reader.options(**options).load(table)


def scans(lake: AirportClient, table: str) -> list[dict[str, Any]]:
    found = lake.scan("skiway.plans").read_all().to_pylist()
    return sorted((each for each in found if each["table_name"] == table), key=lambda each: each["planned_at"])


def test_every_type_is_read(spark_with_source: SparkSession, lake: AirportClient) -> None:
    found = load(spark_with_source, lake, "source.every_type")
    assert [field.dataType.simpleString() for field in found.schema] == [
        "boolean", "int", "bigint", "float", "double", "decimal(20,2)", "date", "timestamp_ntz", "timestamp", "string",
        "binary", "string", "array<int>", "struct<a:int,b:string>", "map<string,bigint>",
    ]  # fmt: skip
    read = found.toArrow()
    expected = lake.scan("source.every_type").read_all()
    for name in expected.column_names:
        wanted = expected[name].to_pylist()
        if name == "id":
            wanted = [None if each is None else str(uuid.UUID(bytes=each.bytes)) for each in wanted]
        assert list(map(repr, read[name].to_pylist())) == list(map(repr, wanted)), name


def test_columns_are_chosen_and_parts_are_read_together(spark_with_source: SparkSession, lake: AirportClient) -> None:
    found = load(spark_with_source, lake, "source.orders", columns="note, ID")
    assert found.columns == ["note", "id"]
    assert sorted(row.id for row in found.collect()) == list(range(40))
    assert load(spark_with_source, lake, "source.orders", columns='["day"]').columns == ["day"]


@pytest.mark.parametrize(
    ("condition", "ids", "files_read"),
    sample(
        [
            ("day = DATE '2026-01-02'", range(10, 20), 1),
            ("id > 35 AND note = 'n0'", [36, 39], 1),
            ("id IN (3, 33)", [3, 33], 2),
            ("NOT (id >= 10)", range(10), 1),
            ("day IS NULL", [], 0),
            ("note <=> 'n1' AND day < DATE '2026-01-02'", [1, 4, 7], 1),
            ("substring(note, 2, 1) = '1'", range(1, 40, 3), 4),
        ],
        every=3,
    ),
)
def test_filters_are_pushed_down(
    spark_with_source: SparkSession, lake: AirportClient, condition: str, ids: Sequence[int], files_read: int
) -> None:
    found = load(spark_with_source, lake, "source.orders", pushdown="true").where(condition).collect()
    assert sorted(row.id for row in found) == list(ids)
    assert scans(lake, "orders")[-1]["files_read"] == files_read


def test_filter_of_one_query_does_not_affect_the_next(spark_with_source: SparkSession, lake: AirportClient) -> None:
    orders = load(spark_with_source, lake, "source.orders")
    assert orders.where("id > 35").count() == 4
    assert orders.count() == 40  # Spark 4.1 would return 4 if the source took filters
    assert orders.where("id < 5").count() == 5


def test_snapshots_are_read_by_id_and_time(spark_with_source: SparkSession, lake: AirportClient) -> None:
    snapshots = lake.scan("skiway.snapshots").read_all().to_pylist()
    second = sorted(
        (each for each in snapshots if each["table_name"] == "orders"), key=lambda each: each["created_at"]
    )[1]
    by_id = load(spark_with_source, lake, "source.orders", versionAsOf=str(second["snapshot_id"]))
    assert by_id.count() == 20
    by_time = load(spark_with_source, lake, "source.orders", timestampAsOf=second["created_at"].isoformat())
    assert by_time.count() == 20


@pytest.mark.parametrize(
    ("option", "sizes"),
    [({}, [1] * 5), ({"partitions": "2"}, [3, 2]), ({"partitions": "3"}, [2, 2, 1]), ({"partitions": "9"}, [1] * 5)],
)
def test_parts_are_divided_into_partitions(lake: AirportClient, option: dict[str, str], sizes: list[int]) -> None:
    from skiway.spark.options import Options
    from skiway.spark.source import batches_of, partitions_of

    options = Options.of({"location": f"{lake.location}/lake", "table": "source.orders", "columns": "id", **option})
    (part,) = options.bind(lake).parts()
    found = partitions_of(options, [part] * 5)
    assert [len(each.parts) for each in found] == sizes
    rows = [sum(batch.num_rows for batch in batches_of(options, each)) for each in found]
    assert rows == [40 * size for size in sizes]
    assert partitions_of(options, []) == []


def test_archives_of_spark_are_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lake: AirportClient
) -> None:
    from skiway.spark.options import Options
    from skiway.spark.source import batches_of, partitions_of

    archives = [str(tmp_path / name) for name in ("of_spark.zip", "of_the_application.zip")]
    for number, archive in enumerate(archives):
        with ZipFile(archive, "w") as written:
            for name in ("first", "second"):
                written.writestr(f"archived_{name}_{number}.py", "")
        monkeypatch.syspath_prepend(archive)
        monkeypatch.delitem(sys.modules, f"archived_first_{number}", raising=False)
        importlib.import_module(f"archived_first_{number}")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["/elsewhere", archives[0]]))
    options = Options.of({"location": f"{lake.location}/lake", "table": "source.orders"})
    for partition in partitions_of(options, options.bind(lake).parts()):
        list(batches_of(options, partition))
    assert [archive in sys.path_importer_cache for archive in archives] == [False, True]
    importlib.import_module("archived_second_0")  # with a new finder


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"location": ""}, "the option location is missing"),
        ({"table": ""}, "the option table is missing"),
        ({"tabel": "x"}, "no option 'tabel'"),
        ({"columns": ""}, "name at least one column"),
        ({"partitions": "0"}, "the option partitions is '0': give a positive number, such as 8"),
        ({"pushdown": "yes"}, "the option pushdown is 'yes': give true or false"),
        ({"columns": "missing"}, "column 'missing' not found in source.orders"),
        ({"versionAsOf": "1", "timestampAsOf": "2026-01-01"}, "exclude each other"),
        ({"versionAsOf": "99"}, "has no snapshot with id 99"),
        ({"token": "a", "tokenFile": "b"}, "token and tokenFile exclude each other"),
        ({"tokenFile": "/nowhere/token"}, "the file of the option tokenFile cannot be read"),
        ({"table": "source.missing"}, "missing"),
    ],
)
def test_wrong_options_are_explained(lake: AirportClient, options: dict[str, str], message: str) -> None:
    from skiway.spark.options import Options

    given = {"location": f"{lake.location}/lake", "table": "source.orders", **options}
    with pytest.raises(SkiwayError, match=message):
        Options.of(given).bind(lake)


def test_token_is_in_no_plan_and_no_error(spark_with_source: SparkSession, lake: AirportClient, capfd: Any) -> None:
    found = load(spark_with_source, lake, "source.orders", token="canary-4711").where("id = 1")
    found.explain("extended")
    assert "canary-4711" not in capfd.readouterr().out
    with pytest.raises(Exception, match="missing") as refused:
        load(spark_with_source, lake, "source.missing", token="canary-4711")
    assert "canary-4711" not in str(refused.value)


def test_examples_in_the_documentation_run(
    spark: SparkSession, lake: AirportClient, capfd: pytest.CaptureFixture[str]
) -> None:
    lake.create_schema("shop")
    rows = pa.table({"day": [DAY, DAY + datetime.timedelta(1)], "customer": ["ada", "grace"], "amount": [1, 2]})
    lake.create_table_as("shop.orders", rows)
    lake.create_table("shop.totals", pa.schema({"customer": pa.string(), "total": pa.int64()}))
    program = {"spark": active(spark.newSession())}
    *examples, streaming = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert "readStream" in streaming
    # Spark gives a stream ten seconds to start a process, which a machine with more work than cores may exceed.
    for example in [*examples, *([streaming] if scope.ALL else [])]:
        exec(example.replace("grpc://127.0.0.1:50051", lake.location), program)
    printed = capfd.readouterr().out
    assert ("batch 0 2" in printed) == scope.ALL
    assert re.search(r"\| *grace *\| *2 *\|", printed)
    assert sorted(lake.scan("shop.totals").read_all()["total"].to_pylist()) == [1, 1, 2, 2]


def test_page_lists_the_options() -> None:
    from skiway.spark.options import KNOWN

    listed = {
        name.lower() for row in re.findall(r"^\| (`.*?) \|", PAGE, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)
    }
    assert listed == set(KNOWN) - {"path"}
