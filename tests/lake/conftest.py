from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from formats.oracles import extended
from formats.written import make_fixtures
from lake.lakes import Lake, opened_lake


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the tables of all writers that need no Java."""
    folder = tmp_path_factory.mktemp("written")
    make_fixtures.iceberg_tables(folder / "iceberg")
    make_fixtures.delta_tables(folder / "delta")
    make_fixtures.parquet_tables(folder / "parquet")
    return folder


@pytest.fixture(scope="session")
def duck(tmp_path_factory: pytest.TempPathFactory) -> Iterator[duckdb.DuckDBPyConnection]:
    with extended(tmp_path_factory.mktemp("extensions")) as duck:
        yield duck


@pytest.fixture(scope="session")
def mirrors(written: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    """A lake whose catalogs `iceberg`, `delta` and `parquet` mirror those tables; nobody changes it."""
    with opened_lake(tmp_path_factory.mktemp("lake")) as lake:
        options = {"catalog-name": "lake", "warehouse": f"file://{written}/iceberg/warehouse"}
        lake.mirror("iceberg", f"sqlite:///{written}/iceberg/catalog.db", options=options)
        lake.mirror("delta", str(written / "delta"), options={"delta.source": "filesystem"})
        lake.mirror("parquet", str(written / "parquet"))
        yield lake


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    """A lake with an empty managed catalog."""
    with opened_lake(tmp_path) as lake:
        yield lake
