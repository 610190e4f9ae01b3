from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from metastore.managed_table_factory import ManagedTableFactory
from metastore.resource_factory import ResourceFactory
from runtime.servers import Server, started
from skiway.storage import Stores, open_stores, utc_now
from spark_jobs.shared_spark import active, shared_session
from storage.homes import Clock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> SparkSession:
    return shared_session()


@pytest.fixture(scope="session")
def session_with_source(spark: SparkSession) -> SparkSession:
    from skiway.spark import AirportDataSource

    session = active(spark.newSession())
    session.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    session.dataSource.register(AirportDataSource)
    return session


@pytest.fixture
def spark_with_source(session_with_source: SparkSession) -> SparkSession:
    """A session with the data source `airport`, which is the active one."""
    return active(session_with_source)


QUICK = (
    "--set",
    "reconciler.poll_every=100ms",
    "--set",
    "reconciler.job_store.max_attempts=2",
    "--set",
    "reconciler.job_store.base_backoff_ms=10",
    "--set",
    "reconciler.spark.master=local[2]",
    "--set",
    "reconciler.spark.conf=spark.sql.shuffle.partitions=2",
)


@pytest.fixture(scope="session")
def server_with_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that starts a Spark of its own for its first job, and profiles even small tables on it.

    Each test uses its own connectors and namespaces.
    """
    settings = ("--set", "pipelines.enabled=true", "--set", "profiles.in_process_bytes=0")
    with started(tmp_path_factory.mktemp("server") / "home", *QUICK, *settings) as running:
        yield running


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def stores(clock: Clock) -> Iterator[Stores]:
    with open_stores("memory://", clock=clock) as opened:
        yield opened


@pytest.fixture
def factory(stores: Stores, clock: Clock) -> ResourceFactory:
    return ResourceFactory(stores, clock)


@pytest.fixture
def live_lake() -> Iterator[ResourceFactory]:
    """A lake in memory with one catalog. Its clock is that of the machine, as workers need it."""
    with open_stores("memory://") as opened:
        factory = ResourceFactory(opened, utc_now)  # type: ignore[arg-type]
        factory.catalog()
        yield factory


@pytest.fixture
def managed_lake(live_lake: ResourceFactory, tmp_path: Path) -> ManagedTableFactory:
    """The same lake, with a warehouse for managed tables."""
    return ManagedTableFactory.at(live_lake, tmp_path)
