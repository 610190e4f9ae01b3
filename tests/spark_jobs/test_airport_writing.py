"""Spark writes tables with the data source `airport`: every row once, in one commit, whatever happens to its tasks."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from runtime.servers import Server as SkiwayServer
from skiway.airport import CatalogBuilder, ScanOptions, Server
from skiway.client import AirportClient, Metastore
from skiway.errors import InvalidArgument, NotFound, PermissionDenied, PreconditionFailed, SkiwayError, Unsupported
from skiway.model import v1
from spark_jobs.lakes import SPARK
from spark_jobs.test_airport_source import EVERY_TYPE
from web.explorers import with_tokens

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = SPARK

COLUMNS = pa.schema({"id": pa.int64(), "note": pa.string()})


@pytest.fixture(scope="module")
def lake(server_with_spark: SkiwayServer) -> Iterator[AirportClient]:
    with AirportClient(server_with_spark.addresses["airport"], "lake") as client:
        client.create_schema("written")
        yield client


@pytest.fixture
def table(lake: AirportClient) -> str:
    name = f"written.t{uuid.uuid4().hex[:8]}"
    lake.create_table(name, COLUMNS)
    lake.insert(name, pa.table({"id": [-1], "note": ["before"]}, COLUMNS))
    return name


def save(rows: DataFrame, lake: AirportClient, table: str, mode: str = "append", **options: Any) -> None:
    writer = rows.write.format("airport").mode(mode).option("location", f"{lake.location}/lake")
    writer.option("table", table).options(**options).save()


def ids(lake: AirportClient, table: str) -> list[int]:
    return sorted(lake.scan(table, columns=["id"]).read_all()["id"].to_pylist())


def operations(lake: AirportClient, table: str) -> list[str]:
    rows = lake.scan("skiway.snapshots").read_all().to_pylist()
    own = sorted(
        (each for each in rows if each["table_name"] == table.split(".")[1]), key=lambda each: each["created_at"]
    )
    return [each["operation"] for each in own]


def files(server: SkiwayServer, lake: AirportClient, table: str) -> set[Path]:
    """The data files and staged manifests in the folder of a table."""
    known = lake.scan("skiway.files").read_all().to_pylist()
    folder = Path(next(each["path"] for each in known if each["table_name"] == table.split(".")[1])).parents[1]
    folder = Path(str(folder).removeprefix("file:"))
    assert folder.is_dir()
    return {each for each in folder.rglob("*") if each.suffix == ".parquet" or each.name.startswith("staged-")}


def no_transaction_is_open(lake: AirportClient) -> bool:
    with Metastore(lake.location) as metastore:
        return list(metastore.transactions()) == []


def test_append_and_overwrite_are_one_commit_each(
    spark_with_source: SparkSession, lake: AirportClient, table: str
) -> None:
    rows = spark_with_source.range(0, 50_000, numPartitions=4).selectExpr("cast(id AS int) AS ID", "'x' AS note")
    save(rows, lake, table)
    assert ids(lake, table) == [-1, *range(50_000)]
    save(rows.limit(3), lake, table, "overwrite")
    assert ids(lake, table) == [0, 1, 2]
    assert operations(lake, table) == ["append", "append", "overwrite"]
    assert no_transaction_is_open(lake)


def test_no_rows_are_appended_without_a_commit_and_overwrite_all(lake: AirportClient, table: str) -> None:
    for replaces in (False, True):
        writer = writer_of(lake, table, replaces=replaces)
        writer.commit([writer.write(iter(())), None])
    assert ids(lake, table) == []
    assert operations(lake, table) == ["append", "delete"]


def test_every_type_is_written(spark_with_source: SparkSession, lake: AirportClient) -> None:
    lake.create_table_as("written.source", EVERY_TYPE)
    lake.create_table("written.target", EVERY_TYPE.schema)
    reader = spark_with_source.read.format("airport").option("location", f"{lake.location}/lake")
    save(reader.load("written.source"), lake, "written.target")
    expected, found = (lake.scan(name).read_all() for name in ("written.source", "written.target"))
    assert list(map(repr, found.to_pylist())) == list(map(repr, expected.to_pylist()))


def test_failed_job_leaves_nothing(
    spark_with_source: SparkSession, server_with_spark: SkiwayServer, lake: AirportClient, table: str
) -> None:
    before = files(server_with_spark, lake, table)
    rows = spark_with_source.range(0, 20, numPartitions=2).selectExpr(
        "id", "CASE WHEN id = 19 THEN raise_error('a bad row') ELSE 'x' END AS note"
    )
    with pytest.raises(Exception, match="a bad row"):
        save(rows, lake, table)
    assert ids(lake, table) == [-1]
    assert files(server_with_spark, lake, table) == before
    assert no_transaction_is_open(lake)


def writer_of(lake: AirportClient, table: str, *, replaces: bool = False, schema: str = "id long, note string") -> Any:
    return begin({"location": f"{lake.location}/lake", "table": table}, schema, replaces=replaces)


def begin(given: dict[str, str], schema: str, *, replaces: bool) -> Any:
    """The writer of a DataFrame, without Spark."""
    from pyspark.sql.types import StructType

    from skiway.spark.options import Options
    from skiway.spark.writing import AirportWriter

    columns = StructType()
    for column in schema.split(", "):
        name, of = column.split(" ")
        columns.add(name, of)
    return AirportWriter.begin(Options.of(given), columns, replaces=replaces)


def batches(*numbers: int, error: Exception | None = None) -> Iterator[pa.RecordBatch]:
    yield pa.record_batch({"id": list(numbers), "note": ["x"] * len(numbers)}, schema=COLUMNS)
    if error is not None:
        raise error


@pytest.mark.parametrize("replaces", [False, True])
def test_rows_of_unreported_runs_of_tasks_are_dropped(
    server_with_spark: SkiwayServer, lake: AirportClient, table: str, replaces: bool
) -> None:
    writer = writer_of(lake, table, replaces=replaces)
    before = files(server_with_spark, lake, table)
    first = writer.write(batches(1, 2))
    writer.write(batches(1, 2))  # a speculative run of the same task, or one whose executor died before it could report
    with pytest.raises(OSError, match="the task failed"):
        writer.write(batches(3, 4, error=OSError("the task failed")))
    second = writer.write(batches(3, 4))
    empty = writer.write(iter(()))
    assert ids(lake, table) == [-1]
    writer.commit([first, second, empty])
    writer.commit([first, second, empty])  # the answer to the first call was lost
    assert ids(lake, table) == [1, 2, 3, 4] if replaces else [-1, 1, 2, 3, 4]
    assert len(files(server_with_spark, lake, table) - before) == 2
    with pytest.raises(SkiwayError, match="is committed: begin a new one"):
        writer.write(batches(5))  # a run that the driver has forgotten
    assert len(files(server_with_spark, lake, table) - before) == 2


def test_aborted_write_leaves_nothing(server_with_spark: SkiwayServer, lake: AirportClient, table: str) -> None:
    writer = writer_of(lake, table)
    before = files(server_with_spark, lake, table)
    done = writer.write(batches(1))
    writer.abort([done, None])
    writer.abort([done, None])
    assert (ids(lake, table), files(server_with_spark, lake, table)) == ([-1], before)


@pytest.mark.parametrize(
    ("schema", "differences"),
    [
        ("id long", "it lacks 'note'"),
        ("id long, note string, Extra integer", "the table has no 'Extra'"),
        ("id string, note string", "column 'id' is string instead of bigint"),
        ("id decimal(5,0), other integer", "it lacks 'note'; the table has no 'other'; column 'id' is decimal"),
        ("id long, note string, ID integer", "names are equal without regard to case"),
    ],
)
def test_other_columns_are_named(lake: AirportClient, table: str, schema: str, differences: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        writer_of(lake, table, schema=schema)
    assert differences in str(refused.value)


def test_uuids_must_be_uuids() -> None:
    from skiway.spark.writing import table_rows

    columns = pa.schema({"key": pa.uuid()})
    texts = [None, str(uuid.UUID(int=7)), str(uuid.UUID(int=2**127))]
    batch = pa.record_batch({"KEY": pa.array(["skipped", *texts])}).slice(1)
    found = table_rows(batch, columns)
    assert found.schema.names == ["key"]
    assert [None if each is None else str(each) for each in found["key"].to_pylist()] == texts
    with pytest.raises(InvalidArgument, match="'x' in column 'key' is not a UUID"):
        table_rows(pa.record_batch({"key": ["x"]}), columns)


def test_mirrored_table_is_read_only(lake: AirportClient, table: str) -> None:
    columns = [{"id": 1, "name": "id", "required": False, "type": "long"}]
    with Metastore(lake.location) as metastore:
        upstream = v1.UpstreamRef(format=v1.TF_PARQUET, uri="file:///elsewhere")
        schema = {"type": "struct", "fields": columns}
        metastore.tables.create("lake.written.mirrored", schema=schema, upstream=upstream)
    lake.reload()
    with pytest.raises(PreconditionFailed, match="mirrored is not a managed table: change it in its source"):
        writer_of(lake, "written.mirrored", schema="id long")
    assert no_transaction_is_open(lake)


def test_callers_need_rights_and_cannot_replace_rows_that_policies_hide(tmp_path: Path) -> None:
    with with_tokens(tmp_path / "home") as (server, tokens):
        location = server.addresses["airport"]
        with AirportClient(location, "lake", token=tokens["ada"]) as db:
            db.create_schema("hr")
            db.create_table("hr.people", COLUMNS)
            db.create_table("hr.hidden", COLUMNS)
        with Metastore(server.address, token=tokens["ada"]) as metastore:
            metastore.grants.add("lake.hr.people", "user:eve", "read")
            metastore.grants.add("lake.hr.hidden", "user:eve", "write")
            metastore.policies.create("own", to=["user:eve"], on=["lake.hr.hidden"], row_filter="id > 3")

        def writer(table: str, *, replaces: bool) -> Any:
            given = {"location": f"{location}/lake", "table": table, "token": tokens["eve"]}
            return begin(given, "id long, note string", replaces=replaces)

        for replaces in (True, False):
            with pytest.raises(PermissionDenied) as refused:
                writer("hr.people", replaces=replaces)
            assert "table.write" in str(refused.value)
        rows = pa.table({"id": [1], "note": ["x"]}, COLUMNS).to_batches()
        adding, replacing = writer("hr.hidden", replaces=False), writer("hr.hidden", replaces=True)
        adding.commit([adding.write(iter(rows))])
        with pytest.raises(PermissionDenied, match="ask a caller without this policy"):
            replacing.commit([replacing.write(iter(rows))])
        with AirportClient(location, "lake", token=tokens["ada"]) as db:
            assert db.count("hr.hidden") == 1


def test_other_airport_servers_are_refused() -> None:
    other = CatalogBuilder("other")

    @other.schema("s").table(schema=COLUMNS)
    def t(scan: ScanOptions) -> pa.Table:
        return COLUMNS.empty_table()

    with Server(other.build(), port=0) as server, pytest.raises(Unsupported, match=r"s\.t is not on a Skiway server"):
        begin({"location": f"{server.location}/other", "table": "s.t"}, "id long, note string", replaces=False)


def test_missing_tables_views_and_options_of_reading_are_refused(lake: AirportClient, table: str) -> None:
    with pytest.raises(NotFound, match=r"table written\.missing not found"):
        writer_of(lake, "written.missing")
    with pytest.raises(SkiwayError, match="a view or a system table"):
        writer_of(lake, "skiway.tables")
    from skiway.spark.options import Options

    given = {"location": f"{lake.location}/lake", "table": table}
    with pytest.raises(InvalidArgument, match="the option columns is for reading"):
        Options.of({**given, "columns": "id"}).check_writing()
    with pytest.raises(InvalidArgument, match="transactionSeconds is 'soon'"):
        Options.of({**given, "transactionSeconds": "soon"})
    with pytest.raises(InvalidArgument, match="contains a token") as refused:
        Options.of({**given, "location": f"{lake.location}/lake?auth_token=canary-4711"})
    assert "canary" not in str(refused.value)
