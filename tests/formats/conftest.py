from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from formats.foreign_tables import duck, foreign_tables, iceberg_options, iceberg_uri
from skiway.formats import Source, open_source

__all__ = ["duck", "foreign_tables"]


@pytest.fixture(scope="session")
def iceberg(foreign_tables: Path) -> Iterator[Source]:
    """The Iceberg tables, through their SQL catalog."""
    with open_source("iceberg", iceberg_uri(foreign_tables), options=iceberg_options(foreign_tables)) as source:
        yield source


@pytest.fixture(scope="session")
def delta(foreign_tables: Path) -> Iterator[Source]:
    with open_source("delta", str(foreign_tables / "delta")) as source:
        yield source


@pytest.fixture(scope="session")
def parquet(foreign_tables: Path) -> Iterator[Source]:
    with open_source("parquet", str(foreign_tables / "parquet")) as source:
        yield source
