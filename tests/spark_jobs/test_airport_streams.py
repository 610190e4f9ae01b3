"""Spark streams the rows that are appended to a table: each of them once, also after a restart."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from runtime.servers import Server
from skiway.client import AirportClient, Metastore, col
from skiway.client.metastore.jobs import optimize_task
from skiway.errors import InvalidArgument, NotFound, PreconditionFailed, SkiwayError
from spark_jobs.lakes import SPARK

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = SPARK

COLUMNS = pa.schema({"id": pa.int64(), "note": pa.string()})


@pytest.fixture(scope="module")
def lake(server_with_spark: Server) -> Iterator[AirportClient]:
    with AirportClient(server_with_spark.addresses["airport"], "lake") as client:
        client.create_schema("streamed")
        yield client


@pytest.fixture
def table(lake: AirportClient) -> str:
    name = f"streamed.t{uuid.uuid4().hex[:8]}"
    lake.create_table(name, COLUMNS)
    return name


def insert(lake: AirportClient, table: str, *numbers: int) -> None:
    lake.insert(table, pa.table({"id": list(numbers), "note": ["x"] * len(numbers)}, COLUMNS))


def stream(lake: AirportClient, table: str, **options: str) -> Any:
    """The reader of a stream, without Spark."""
    from pyspark.sql.types import StructType

    from skiway.spark.options import Options
    from skiway.spark.source import AirportStreamReader

    given = {"location": f"{lake.location}/lake", "table": table, **options}
    return AirportStreamReader(Options.of(given), StructType().add("id", "long").add("note", "string"))


def rows(reader: Any, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[int]:
    found = (batch for part in reader.partitions(start, end) for batch in reader.read(part))
    return sorted(number for batch in found for number in batch["id"].to_pylist())


@pytest.mark.full  # Spark gives a stream ten seconds to start a process, which a busy machine may exceed
def test_stream_continues_after_a_failed_batch_with_the_same_rows(
    spark_with_source: SparkSession, lake: AirportClient, table: str, tmp_path: Path
) -> None:
    seen: list[tuple[int, list[int]]] = []
    fails = False

    def handle(batch: Any, number: int) -> None:
        seen.append((number, sorted(row.id for row in batch.collect())))
        if fails:
            raise OSError("the sink failed")

    def run() -> None:
        source = spark_with_source.readStream.format("airport").option("location", f"{lake.location}/lake").load(table)
        query = source.writeStream.foreachBatch(handle).option("checkpointLocation", str(tmp_path / "checkpoint"))
        query.trigger(availableNow=True).start().awaitTermination()

    insert(lake, table, 1)
    insert(lake, table, 2, 3)
    run()
    insert(lake, table, 4)
    fails = True
    with pytest.raises(Exception, match="the sink failed"):
        run()
    insert(lake, table, 5)
    fails = False
    run()  # repeats the batch that failed
    run()
    assert seen == [(0, [1, 2, 3]), (1, [4]), (1, [4]), (2, [5])]


def test_batches_have_the_appended_rows(lake: AirportClient, table: str) -> None:
    reader = stream(lake, table)
    empty = reader.latestOffset()
    assert reader.initialOffset() == empty == {"snapshot": 0}
    assert rows(reader, empty, empty) == []
    insert(lake, table, 1)
    one = reader.latestOffset()
    insert(lake, table, 2)
    insert(lake, table, 3)
    three = reader.latestOffset()
    assert rows(reader, empty, one) == [1]
    assert rows(reader, empty, three) == [1, 2, 3]
    assert rows(reader, one, three) == [2, 3]
    assert rows(reader, three, three) == []
    assert stream(lake, table, startingVersion="latest").initialOffset() == three
    assert stream(lake, table, startingVersion=str(one["snapshot"])).initialOffset() == one


def test_other_changes_are_refused_or_skipped(lake: AirportClient, table: str) -> None:
    reader, skipping = stream(lake, table), stream(lake, table, skipChanges="true")
    insert(lake, table, 1, 2)
    start = reader.latestOffset()
    insert(lake, table, 3)
    lake.delete(table, where=col("id") == 1)
    deleted = reader.latestOffset()
    insert(lake, table, 4)
    end = reader.latestOffset()
    with pytest.raises(
        PreconditionFailed, match=f"snapshot {deleted['snapshot']} of table {table} does not only append"
    ):
        reader.partitions(start, end)
    assert rows(skipping, start, end) == [3, 4]
    assert rows(reader, deleted, end) == [4]
    assert rows(reader, {"snapshot": 0}, end) == [2, 3, 4], "a new stream begins with the current rows"
    with pytest.raises(PreconditionFailed, match="have expired, or the table was replaced or rolled back"):
        skipping.partitions(end, start)


def test_compaction_is_no_change(lake: AirportClient, table: str) -> None:
    reader = stream(lake, table)
    insert(lake, table, 1)
    start = reader.latestOffset()
    for number in range(2, 8):
        insert(lake, table, number)
    last = reader.latestOffset()
    with Metastore(lake.location.removeprefix("grpc://")) as metastore:
        job = metastore.maintenance.start(f"lake.{table}", optimize_task())
        assert metastore.maintenance.wait(f"lake.{table}", job).state == "succeeded"
    compacted = reader.latestOffset()
    assert compacted != last
    insert(lake, table, 8)
    assert rows(reader, start, reader.latestOffset()) == [2, 3, 4, 5, 6, 7, 8]
    assert rows(reader, start, compacted) == [2, 3, 4, 5, 6, 7]
    assert rows(reader, compacted, reader.latestOffset()) == [8]


def test_changed_columns_end_the_stream(lake: AirportClient, table: str) -> None:
    reader = stream(lake, table)
    insert(lake, table, 1)
    start = reader.latestOffset()
    lake.remove_column(table, "note")
    lake.insert(table, pa.table({"id": [2]}))
    with pytest.raises(SkiwayError, match="note"):
        reader.partitions(start, reader.latestOffset())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingVersion": "soon"}, "startingVersion is 'soon'"),
        ({"skipChanges": "perhaps"}, "skipChanges is 'perhaps'"),
        ({"versionAsOf": "1"}, "versionAsOf is for reading a single snapshot"),
    ],
)
def test_wrong_options_of_streams_are_explained(
    lake: AirportClient, table: str, options: dict[str, str], message: str
) -> None:
    with pytest.raises(InvalidArgument, match=message):
        stream(lake, table, **options)


def test_unknown_start_is_refused(lake: AirportClient, table: str) -> None:
    insert(lake, table, 1)
    with pytest.raises(NotFound):
        stream(lake, table, startingVersion="99").initialOffset()
