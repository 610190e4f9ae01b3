"""Tables written by other programs, created once per test session, and a DuckDB that reads them independently."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import duckdb
import pytest

from formats.oracles import extended

SCRIPT = Path(__file__).parents[2] / "scripts" / "make_fixtures.py"


def _load_script() -> ModuleType:
    spec = spec_from_file_location("make_fixtures", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


make_fixtures = _load_script()


@cache
def _create_tables(session: Path) -> Path:
    """Create the tables once per session; pytest would run the fixture once per folder that imports it."""
    folder = session / "foreign_tables"
    make_fixtures.iceberg_tables(folder / "iceberg")
    make_fixtures.delta_tables(folder / "delta")
    make_fixtures.parquet_tables(folder / "parquet")
    return folder


@pytest.fixture(scope="session")
def foreign_tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A read-only folder with the tables of all writers that need no Java."""
    return _create_tables(tmp_path_factory.getbasetemp())


def iceberg_options(foreign_tables: Path) -> dict[str, str]:
    """Options to open a source of the Iceberg tables at `iceberg_uri`."""
    return {"catalog-name": "lake", "warehouse": f"file://{foreign_tables}/iceberg/warehouse"}


def iceberg_uri(foreign_tables: Path) -> str:
    """The URI of the SQL catalog of the Iceberg tables."""
    return f"sqlite:///{foreign_tables}/iceberg/catalog.db"


@pytest.fixture(scope="session")
def duck(tmp_path_factory: pytest.TempPathFactory) -> Iterator[duckdb.DuckDBPyConnection]:
    """A DuckDB with the extensions that read Iceberg and Delta."""
    with extended(tmp_path_factory.mktemp("extensions")) as duck:
        yield duck
