"""Spark, DuckDB, PyIceberg, delta-rs and gRPC work together in one process."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from skiway.errors import InvalidArgument, PreconditionFailed
from skiway.spark_jobs.session import session, settings_for
from spark_jobs.shared_spark import shared_session

if TYPE_CHECKING:
    import duckdb
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(300)  # the first test starts Spark

PEOPLE = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "name": ["Ada", "Grace", "Edsger"]})


@pytest.fixture(scope="module")
def spark() -> SparkSession:
    return shared_session()


@pytest.fixture
def duck(tmp_path: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """A DuckDB connection with the extensions from wheels, installed into a temporary folder."""
    import duckdb
    from duckdb_extensions import import_extension

    with duckdb.connect(config={"extension_directory": str(tmp_path / "extensions")}) as duck:
        for extension in ("avro", "httpfs", "iceberg", "delta"):
            import_extension(extension, con=duck)
            duck.load_extension(extension)
        yield duck


@pytest.fixture
def iceberg_metadata(tmp_path: Path) -> str:
    """The metadata location of an Iceberg table with PEOPLE, appended in two commits."""
    from pyiceberg.catalog.sql import SqlCatalog

    files = {"uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/warehouse"}
    with SqlCatalog("lake", **files) as catalog:
        catalog.create_namespace("sales")
        table = catalog.create_table("sales.people", PEOPLE.schema)
        table.append(PEOPLE.slice(0, 2))
        table.append(PEOPLE.slice(2))
        assert catalog.load_table("sales.people").scan().to_arrow().sort_by("id") == PEOPLE
        return table.metadata_location


@pytest.fixture
def delta_folder(tmp_path: Path) -> str:
    from deltalake import DeltaTable, write_deltalake

    folder = str(tmp_path / "delta")
    write_deltalake(folder, PEOPLE)
    assert DeltaTable(folder).to_pyarrow_table() == PEOPLE
    return folder


@pytest.mark.needs("java", "spark", "duckdb extensions")
def test_engines_formats_and_grpc_share_one_process(
    tmp_path: Path, spark: SparkSession, duck: duckdb.DuckDBPyConnection, iceberg_metadata: str, delta_folder: str
) -> None:
    pq.write_table(PEOPLE, tmp_path / "people.parquet")
    assert fetch(spark.read.parquet(str(tmp_path / "people.parquet")).sort("id")) == PEOPLE
    assert duck.execute("from iceberg_scan(?) order by id", [iceberg_metadata]).to_arrow_table() == PEOPLE
    assert duck.execute("from delta_scan(?) order by id", [delta_folder]).to_arrow_table() == PEOPLE
    assert call_over_grpc(b"land") == b"LAND"


@pytest.mark.needs("java", "spark")
def test_session_is_quiet_local_and_in_utc(spark: SparkSession) -> None:
    for name, value in {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.log.level": "ERROR",
        "spark.master": "local[2]",
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
    }.items():
        assert spark.conf.get(name) == value, name
    java: Any = spark
    arguments = java._jvm.java.lang.management.ManagementFactory.getRuntimeMXBean().getInputArguments()
    assert "-Duser.timezone=UTC" in list(arguments), "also for JDBC drivers"


@pytest.mark.needs("java", "spark")
def test_workers_run_the_python_of_the_driver(spark: SparkSession) -> None:
    def executable(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        import sys

        for batch in batches:
            yield pa.record_batch({"executable": [sys.executable] * batch.num_rows})

    answers = fetch(spark.range(1).mapInArrow(executable, "executable string"))
    assert answers["executable"].to_pylist() == [sys.executable]


@pytest.mark.needs("java", "spark")
def test_running_session_is_reused_with_new_runtime_settings(spark: SparkSession) -> None:
    before = spark.conf.get("spark.sql.shuffle.partitions")
    try:
        assert session("again", "local[2]", **{"spark.sql.shuffle.partitions": 3}) is spark
        assert spark.conf.get("spark.sql.shuffle.partitions") == "3" != before
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", before)


@pytest.mark.needs("java", "spark")
@pytest.mark.parametrize(
    ("master", "settings", "message_pattern"),
    [
        ("local[1]", {}, r"spark\.master=local\[1\]: this process runs one where it is local\[2\]"),
        ("local[2]", {"spark.driver.memory": "3g"}, r"spark\.driver\.memory=3g: .* where it is not set"),
    ],
)
def test_running_session_with_other_static_settings_is_rejected(
    spark: SparkSession, master: str, settings: dict[str, str], message_pattern: str
) -> None:
    with ThreadPoolExecutor() as threads, pytest.raises(PreconditionFailed, match=message_pattern):
        threads.submit(session, "other", master, **settings).result()
    assert spark.conf.get("spark.master") == "local[2]"


def test_setting_that_spark_would_ignore_is_rejected() -> None:
    with pytest.raises(InvalidArgument, match="'driver_memory' is not a Spark setting"):
        session("typo", driver_memory="2g")


def test_driver_is_reachable_by_a_cluster_but_local_otherwise() -> None:
    assert settings_for("spark://host:7077").keys().isdisjoint({"spark.driver.host", "spark.driver.bindAddress"})
    assert settings_for("local[4]")["spark.driver.bindAddress"] == "127.0.0.1"


def test_explicit_settings_override_defaults() -> None:
    assert settings_for("local[4]", **{"spark.ui.enabled": True})["spark.ui.enabled"] is True


def fetch(frame: DataFrame) -> pa.Table:
    with warnings.catch_warnings():
        # Spark leaves closing the result socket to the garbage collector.
        warnings.filterwarnings("ignore", "unclosed <socket", ResourceWarning, module="socket")
        return frame.toArrow()


def call_over_grpc(request: bytes) -> bytes:
    """Make one unary call on loopback to a server in this process."""
    import grpc

    def upper(request: bytes, context: grpc.ServicerContext) -> bytes:
        return request.upper()

    service = grpc.method_handlers_generic_handler("stack.Echo", {"Upper": grpc.unary_unary_rpc_method_handler(upper)})
    with ThreadPoolExecutor() as threads:
        server = grpc.server(threads, handlers=[service])
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
                upper_call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/stack.Echo/Upper")
                return upper_call(request, timeout=10)
        finally:
            server.stop(grace=None).wait()
