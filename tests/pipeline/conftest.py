from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from metastore.resource_factory import ResourceFactory
from skiway.pipeline.session import session
from skiway.storage import Stores, open_stores
from storage.homes import Clock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The only Spark session of this process."""
    with session("pipeline", "local[2]", **{"spark.sql.shuffle.partitions": 2}) as spark:
        yield spark


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
