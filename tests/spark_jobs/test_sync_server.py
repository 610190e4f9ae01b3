"""Faulty sources on a real server with its own Spark: each fault is reported, the rest continues, and nothing is changed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.rest import RestCatalog

from metastore.upstreams import iceberg, parquet
from runtime.servers import Server, calling, eventually
from skiway.client import Metastore
from skiway.client.metastore.jobs import Job
from skiway.model import v1
from spark_jobs.catalogs import bad_catalog
from spark_jobs.lakes import SPARK
from spark_jobs.test_slice import spark_results

pytestmark = SPARK

PATIENCE_S = 180.0
SALES = v1.ConnectorSource(namespace=v1.NamespacePath(segments=["sales"]))


@pytest.fixture(scope="module")
def lake(server_with_spark: Server) -> Iterator[Metastore]:
    with Metastore(server_with_spark.address) as client:
        yield client


def synced(lake: Metastore, connector: str) -> Job:
    return lake.jobs.wait(lake.connectors.sync(connector), timeout_s=PATIENCE_S, every_s=0.1)


def tables(lake: Metastore, namespace: str) -> list[str]:
    return [table.name for table in lake.tables(f"lake.{namespace}")]


def test_job_can_be_watched(lake: Metastore, tmp_path: Path):
    for number in range(3):
        parquet(tmp_path / "people", f"f{number}", id=[number])
    guests = [f"guests{number}" for number in range(7)]  # so that the job takes longer than its reports are apart
    for name in guests:
        parquet(tmp_path / name, "f", id=[1])
    lake.connectors.create("watched", kind="parquet", uri=str(tmp_path), catalog="lake", namespace="watched")
    seen = list(lake.jobs.watch(lake.connectors.sync("watched"), timeout_s=PATIENCE_S, every_s=0.05))
    assert [each.state for each in seen][-1] == "succeeded", seen[-1]
    phases = [each.phase for each in seen if each.state == "running" and each.phase]
    assert phases == sorted(phases)
    assert phases[-1] == "statistics"
    assert all(before.message != after.message for before, after in itertools.pairwise(seen))
    during = [each for each in seen if each.tables_now]
    assert {name for each in during for name in each.tables_now} <= {*guests, "people"}
    assert any(each.files_total and each.files_done < each.files_total for each in during)
    last = seen[-1]
    assert (last.tables_done, last.tables_total, last.tables_now) == (8, 8, ())
    assert (last.files_done, last.files_total, last.fraction_done) == (10, 10, 1.0)
    assert tables(lake, "watched") == [*guests, "people"]


def test_unresponsive_source_is_retried_and_then_reported(lake: Metastore):
    lake.connectors.create(
        "away", kind="iceberg", uri="http://127.0.0.1:1", catalog="lake", namespace="away", source=SALES
    )
    job = synced(lake, "away")
    assert (job.state, job.message.attempt) == ("failed", 2)
    assert "source 'http://127.0.0.1:1' does not respond" in job.message.message
    assert "check its address" in job.message.message
    assert lake.namespaces.find("lake.away") is None


def test_wrong_credentials_are_reported_once_and_not_shown(lake: Metastore):
    with bad_catalog(token="the right one") as upstream:
        credentials = v1.ConnectorCredentials(bearer=v1.BearerToken(token="the wrong one"))
        lake.connectors.create(
            "stranger",
            kind="iceberg",
            uri=upstream.uri,
            catalog="lake",
            namespace="stranger",
            source=SALES,
            auth=v1.ConnectorAuthSpec(scheme="oauth2", credentials=credentials),
        )
        job = synced(lake, "stranger")
        validated = lake.connectors.validate("stranger")
    assert (job.state, job.message.attempt) == ("failed", 1)
    assert "rejected the credentials" in job.message.message
    assert "the wrong one" not in str(job.message)
    assert not validated.ok
    assert "rejected the credentials" in validated.summary
    assert lake.namespaces.find("lake.stranger") is None


def test_corrupt_file_stops_only_its_table_and_leaves_it_unchanged(lake: Metastore, tmp_path: Path):
    parquet(tmp_path / "good", "a", id=[1])
    parquet(tmp_path / "bad", "a", id=[1])
    lake.connectors.create("torn", kind="parquet", uri=str(tmp_path), catalog="lake", namespace="torn")
    assert synced(lake, "torn").state == "succeeded"
    before = {table.name: table.message for table in lake.tables("lake.torn")}
    snapshots = list(lake.snapshots("lake.torn.bad"))
    (tmp_path / "bad" / "b.parquet").write_bytes(b"PAR1 what is this PAR1")
    parquet(tmp_path / "good", "b", id=[2, 3])
    job = synced(lake, "torn")
    assert (job.state, list(job.errors)) == ("partial", ["bad"])
    assert f"file '{tmp_path}/bad/b.parquet' is corrupt" in job.errors["bad"]
    after = {table.name: table.message for table in lake.tables("lake.torn")}
    assert "is corrupt" in after["bad"].upstream.problem
    after["bad"].upstream.problem = ""
    assert after["bad"].upstream == before["bad"].upstream
    assert after["bad"].schema_json == before["bad"].schema_json
    assert list(lake.snapshots("lake.torn.bad")) == snapshots
    assert lake.statistics.get("lake.torn.good").row_count == 3


def test_missing_data_file_is_reported_and_the_other_tables_are_profiled(lake: Metastore, tmp_path: Path):
    catalog = iceberg(tmp_path)
    for name in ("whole", "holed"):
        table = catalog.create_table(f"sales.{name}", schema=pa.schema({"id": pa.int64()}))
        table.append(pa.table({"id": [1, 2]}))
        table.append(pa.table({"id": [3]}))
    lost = Path(table.inspect.files()["file_path"][0].as_py().removeprefix("file://"))
    content = lost.read_bytes()
    lost.unlink()
    lake.connectors.create(
        "holes",
        kind="iceberg",
        uri=f"sqlite:///{tmp_path}/catalog.db",
        catalog="lake",
        namespace="holes",
        source=SALES,
        properties={"warehouse": f"file://{tmp_path}/warehouse"},
        policy=v1.ConnectorPolicy(scope=v1.SNS_CURRENT),
    )
    job = synced(lake, "holes")
    assert (job.state, list(job.errors)) == ("partial", ["sales.holed"])
    assert "1 files could not be profiled" in job.errors["sales.holed"]
    assert str(lost) in job.errors["sales.holed"]
    assert tables(lake, "holes") == ["holed", "whole"]
    assert lake.statistics.get("lake.holes.whole").properties["files.profiled"] == "2"
    assert lake.statistics.get("lake.holes.holed").properties["files.profiled"] == "1"
    lost.write_bytes(content)
    job = synced(lake, "holes")
    assert (job.state, job.errors) == ("succeeded", {})
    assert lake.statistics.get("lake.holes.holed").properties["files.profiled"] == "2"


def test_column_of_an_unsupported_type_stops_only_its_table(lake: Metastore, tmp_path: Path):
    parquet(tmp_path / "good", "a", id=[1])
    (tmp_path / "odd").mkdir()
    pq.write_table(pa.table({"d": pa.array([1], pa.duration("us"))}), tmp_path / "odd" / "a.parquet")
    lake.connectors.create("types", kind="parquet", uri=str(tmp_path), catalog="lake", namespace="types")
    job = synced(lake, "types")
    assert (job.state, list(job.errors)) == ("partial", ["odd"])
    assert "column 'd' has type duration[us]" in job.errors["odd"]
    assert tables(lake, "types") == ["good", "odd"]
    assert lake.statistics.get("lake.types.good").row_count == 1


def test_column_that_spark_cannot_read_has_no_statistics_and_stops_nothing(lake: Metastore, tmp_path: Path):
    (tmp_path / "half").mkdir()
    half = pa.array([1.0, 2.0], pa.float32()).cast(pa.float16())
    pq.write_table(pa.table({"id": [1, 2], "half": half}), tmp_path / "half" / "a.parquet")
    lake.connectors.create("halves", kind="parquet", uri=str(tmp_path), catalog="lake", namespace="halves")
    job = synced(lake, "halves")
    assert (job.state, job.errors) == ("succeeded", {})
    assert [each.column_name for each in lake.statistics.columns("lake.halves.half")] == ["id"]
    assert lake.statistics.get("lake.halves.half").row_count == 2


def test_connector_with_a_policy_is_scheduled(lake: Metastore, tmp_path: Path):
    parquet(tmp_path / "t", "a", id=[1])
    policy = v1.ConnectorPolicy(enabled=True)
    policy.interval.seconds = 3600
    made = lake.connectors.create(
        "by itself", kind="parquet", uri=str(tmp_path), catalog="lake", namespace="auto", policy=policy
    )
    eventually(lambda: bool(list(lake.jobs(connector=made.id))))
    (job,) = lake.jobs(connector=made.id)
    assert lake.jobs.wait(job, timeout_s=PATIENCE_S).state == "succeeded"
    assert tables(lake, "auto") == ["t"]
    assert len(list(lake.jobs(connector=made.id))) == 1


def test_sketches_of_a_managed_table_are_readable_by_pyiceberg_and_ignored_by_spark(
    lake: Metastore, server_with_spark: Server
):
    server = server_with_spark
    rest = f"{server.addresses['http']}/iceberg"
    with closing(RestCatalog("lake", uri=rest, warehouse="lake")) as catalog:
        catalog.create_namespace("managed")
        table = catalog.create_table("managed.people", schema=pa.schema({"id": pa.int64(), "name": pa.string()}))
        table.append(pa.table({"id": [1, 2, 3, 4], "name": ["a", "b", "b", None]}))
        table_id = lake.tables.get("lake.managed.people").message.resource_id
        job = lake.jobs.wait(profiled(server, table_id), timeout_s=PATIENCE_S)
        assert (job.state, job.errors) == ("succeeded", {})
        (statistics,) = catalog.load_table("managed.people").metadata.statistics
        distinct = {blob.fields[0]: blob.properties["ndv"] for blob in statistics.blob_metadata}
        assert (statistics.snapshot_id, distinct) == (table.refresh().metadata.current_snapshot_id, {1: "4", 2: "2"})
        (rows, added) = spark_results(
            server,
            "SELECT count(*), count(DISTINCT name) FROM lake.managed.people",
            "INSERT INTO lake.managed.people VALUES (5, 'c')",
        )
        assert (rows, added) == ([[4, 2]], [])
        after = catalog.load_table("managed.people").metadata
        assert [each.snapshot_id for each in after.statistics] == [statistics.snapshot_id]
        assert after.current_snapshot_id != statistics.snapshot_id


def profiled(server: Server, table_id: v1.ResourceId) -> str:
    with calling(server.address) as caller:
        request = v1.TriggerReconcileRequest(table_id=table_id)
        answer = caller.call("ConnectorService/TriggerReconcile", request, v1.TriggerReconcileResponse)
        return str(answer.job_id)
