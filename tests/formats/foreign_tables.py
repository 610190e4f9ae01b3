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


def _loaded() -> ModuleType:
    spec = spec_from_file_location("make_fixtures", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


make_fixtures = _loaded()


@cache
def _made(session: Path) -> Path:
    """Fixtures belong to the folder of tests that takes them in; this lets all of a session share the tables."""
    folder = session / "foreign_tables"
    make_fixtures.iceberg_tables(folder / "iceberg")
    make_fixtures.delta_tables(folder / "delta")
    make_fixtures.parquet_tables(folder / "parquet")
    return folder


@pytest.fixture(scope="session")
def foreign_tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the tables of all writers that need no Java; nobody changes it."""
    return _made(tmp_path_factory.getbasetemp())


def iceberg_options(foreign_tables: Path) -> dict[str, str]:
    """What a source of its Iceberg tables is opened with, at `iceberg_uri`."""
    return {"catalog-name": "lake", "warehouse": f"file://{foreign_tables}/iceberg/warehouse"}


def iceberg_uri(foreign_tables: Path) -> str:
    """The SQL catalog of its Iceberg tables."""
    return f"sqlite:///{foreign_tables}/iceberg/catalog.db"


@pytest.fixture(scope="session")
def duck(tmp_path_factory: pytest.TempPathFactory) -> Iterator[duckdb.DuckDBPyConnection]:
    """A DuckDB with the extensions that read Iceberg and Delta."""
    with extended(tmp_path_factory.mktemp("extensions")) as duck:
        yield duck
