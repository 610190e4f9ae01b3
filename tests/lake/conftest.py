from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from formats.foreign_tables import duck, foreign_tables
from lake.lakes import Lake, mirrored_lake, opened_lake
from skiway.sandbox.queries import Queries
from skiway.sql import QueryEngine

__all__ = ["duck", "foreign_tables"]


@pytest.fixture(scope="session")
def mirrors(foreign_tables: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    """A read-only lake whose catalogs `iceberg`, `delta` and `parquet` mirror the foreign tables."""
    with mirrored_lake(foreign_tables, tmp_path_factory.mktemp("lake")) as lake:
        yield lake


@pytest.fixture(scope="module")
def queries() -> Iterator[QueryEngine]:
    """An engine that gives queries a minute."""
    pool = Queries(timeout_s=60)
    yield QueryEngine(pool)
    pool.close()


@pytest.fixture
def lake(tmp_path: Path, queries: QueryEngine) -> Iterator[Lake]:
    """A lake with an empty managed catalog."""
    with opened_lake(tmp_path, queries=queries) as lake:
        yield lake
