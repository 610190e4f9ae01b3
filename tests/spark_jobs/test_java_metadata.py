"""Iceberg's Java library, called through the JVM of Spark, accepts our metadata, and we read what it writes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.table.update import snapshot as pyiceberg_snapshots

from rest.rest_server import RestServer, opened
from skiway.storage import open_stores
from spark_jobs.java_iceberg import Long
from spark_jobs.lakes import SPARK
from spark_jobs.shared_spark import session_with_rest_catalog

pytestmark = SPARK

HOUR_MS = 3_600_000
TIMES = {"id": 1, "name": "at", "required": False, "type": "timestamp_ns"}
ZONED = {"id": 2, "name": "zoned", "required": False, "type": "timestamptz_ns"}


@pytest.fixture
def rest_server(tmp_path: Path) -> Iterator[RestServer]:
    with open_stores("memory://") as stores, opened(stores, tmp_path) as server:
        server.call("POST", "/v1/lake/namespaces", {"namespace": ["s"]})
        yield server


@pytest.fixture
def java(rest_server: RestServer) -> Any:
    return session_with_rest_catalog(rest_server.uri)._jvm


def test_history_of_a_client_with_a_slow_clock_is_accepted(
    rest_server: RestServer, java: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    original: Any = getattr(pyiceberg_snapshots, "Snapshot")  # noqa: B009 - not exported
    rows = pa.table({"id": [1]})

    def slow(**fields: Any) -> Any:
        made = original(**fields)
        return made.model_copy(update={"timestamp_ms": made.timestamp_ms - HOUR_MS})

    table = rest_server.pyiceberg().create_table("s.t", rows.schema)
    table.append(rows)
    monkeypatch.setattr(pyiceberg_snapshots, "Snapshot", slow)
    table.append(rows)
    metadata = rest_server.call("GET", "/v1/lake/namespaces/s/tables/t").json()["metadata"]
    parse = java.org.apache.iceberg.TableMetadataParser.fromJson
    assert parse(json.dumps(metadata)).snapshotLog().size() == 2
    metadata["snapshot-log"][-1]["timestamp-ms"] -= HOUR_MS
    with pytest.raises(Exception, match="Expected sorted snapshot log entries"):
        parse(json.dumps(metadata))


def test_manifests_with_partitions_of_nanoseconds_are_read(rest_server: RestServer, java: Any) -> None:
    fields = [
        {
            "source-id": each["id"],
            "field-id": 999 + int(str(each["id"])),
            "name": f"p{each['id']}",
            "transform": "identity",
        }
        for each in (TIMES, ZONED)
    ]
    body = {
        "name": "t",
        "schema": {"type": "struct", "schema-id": 0, "fields": [TIMES, ZONED]},
        "partition-spec": {"spec-id": 0, "fields": fields},
        "properties": {"format-version": "3"},
    }
    assert rest_server.call("POST", "/v1/lake/namespaces/s/tables", body).status_code == 200
    catalog, settings = java.org.apache.iceberg.rest.RESTCatalog(), java.java.util.HashMap()
    for name, value in {"uri": rest_server.uri, "warehouse": "lake", "token": "anybody"}.items():
        settings.put(name, value)
    settings.put("token-refresh-enabled", "false")
    catalog.initialize("lake", settings)
    table = catalog.loadTable(java.org.apache.iceberg.catalog.TableIdentifier.parse("s.t"))
    moments = [1_700_000_000_123_456_789, 1_700_086_400_000_000_001]
    append = table.newAppend()
    for moment in moments:
        file = Path(table.location().removeprefix("file://"), "data", f"{moment}.parquet")
        file.parent.mkdir(parents=True, exist_ok=True)
        append.appendFile(_data_file(java, table, file, moment))
    append.commit()
    planned = rest_server.call("POST", "/v1/lake/namespaces/s/tables/t/plan", {}).json()
    found = {Path(task["data-file"]["file-path"]).stem for task in planned["file-scan-tasks"]}
    assert found == set(map(str, moments))


def _data_file(java: Any, table: Any, file: Path, moment: int) -> Any:
    """A file with a row at this moment, in its partition."""
    columns = {"at": pa.array([moment], pa.timestamp("ns")), "zoned": pa.array([moment], pa.timestamp("ns", "UTC"))}
    pq.write_table(pa.table(columns), file)
    partition = java.org.apache.iceberg.PartitionData(table.spec().partitionType())
    for place in range(2):
        partition.put(place, Long(moment))
    return (
        java.org.apache.iceberg.DataFiles.builder(table.spec())
        .withPath(file.as_uri())
        .withFileSizeInBytes(Long(file.stat().st_size))
        .withFormat("parquet")
        .withRecordCount(Long(1))
        .withPartition(partition)
        .build()
    )
