from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from formats.written import duck, iceberg_options, iceberg_uri, written
from skiway.formats import Source, open_source

__all__ = ["duck", "written"]


@pytest.fixture(scope="session")
def iceberg(written: Path) -> Iterator[Source]:
    """The Iceberg tables, through their SQL catalog."""
    with open_source("iceberg", iceberg_uri(written), options=iceberg_options(written)) as source:
        yield source


@pytest.fixture(scope="session")
def delta(written: Path) -> Iterator[Source]:
    with open_source("delta", str(written / "delta")) as source:
        yield source


@pytest.fixture(scope="session")
def parquet(written: Path) -> Iterator[Source]:
    with open_source("parquet", str(written / "parquet")) as source:
        yield source
