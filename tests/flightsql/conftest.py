from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from flightsql.adbc import connected
from flightsql.jdbc import driver_jar, java_machine
from lake.lakes import Lake, opened_lake
from skiway.sandbox.queries import Queries
from skiway.sql import QueryEngine


@pytest.fixture(scope="module")
def queries() -> Iterator[QueryEngine]:
    """An engine that gives queries a minute."""
    pool = Queries(timeout_s=60)
    yield QueryEngine(pool)
    pool.close()


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory, queries: QueryEngine) -> Iterator[Lake]:
    """A lake with the table `managed.s.people` and the view `managed.s.adults`."""
    with opened_lake(tmp_path_factory.mktemp("lake"), queries=queries) as made:
        with made.client() as owner:
            owner.create_schema("s")
            columns = [
                pa.field("id", pa.int64()),
                pa.field("name", pa.string(), metadata={"comment": "as in passports"}),
            ]
            owner.create_table("s.people", pa.schema(columns))
            owner.insert("s.people", pa.table({"id": [1, 2, 3], "name": ["Ada", "Grace", None]}))
            owner.call("skiway.create_view", "s.adults", "SELECT id FROM people WHERE id > 1").read_all()
        yield made


@pytest.fixture
def cursor(lake: Lake) -> Iterator[Any]:
    """A cursor of the ADBC driver, as the caller `reader`."""
    with connected(lake.location, "reader") as connection, connection.cursor() as opened:
        yield opened


@pytest.fixture(scope="module")
def jvm() -> Iterator[Any]:
    """A Java with the JDBC driver. Its time zone is UTC: the driver takes the time of its own zone for UTC."""
    jar = driver_jar()
    if jar is None:
        pytest.skip("needs the JDBC driver for Flight SQL; to get it: run once with a network")
    with java_machine(jar, "-Duser.timezone=UTC") as machine:
        yield machine
