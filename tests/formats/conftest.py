from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from formats.oracles import extended
from formats.written import make_fixtures
from skiway.formats import Source, open_source


@pytest.fixture(scope="session")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the tables of all writers that need no Java."""
    folder = tmp_path_factory.mktemp("lake")
    make_fixtures.iceberg_tables(folder / "iceberg")
    make_fixtures.delta_tables(folder / "delta")
    make_fixtures.parquet_tables(folder / "parquet")
    return folder


@pytest.fixture(scope="session")
def duck(tmp_path_factory: pytest.TempPathFactory) -> Iterator[duckdb.DuckDBPyConnection]:
    with extended(tmp_path_factory.mktemp("extensions")) as duck:
        yield duck


@pytest.fixture(scope="session")
def iceberg(lake: Path) -> Iterator[Source]:
    """The Iceberg tables, through their SQL catalog."""
    options = {"catalog-name": "lake", "warehouse": f"file://{lake}/iceberg/warehouse"}
    with open_source("iceberg", f"sqlite:///{lake}/iceberg/catalog.db", options=options) as source:
        yield source


@pytest.fixture(scope="session")
def delta(lake: Path) -> Iterator[Source]:
    with open_source("delta", str(lake / "delta")) as source:
        yield source


@pytest.fixture(scope="session")
def parquet(lake: Path) -> Iterator[Source]:
    with open_source("parquet", str(lake / "parquet")) as source:
        yield source
