from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from formats.written import duck, written
from lake.lakes import Lake, mirrored_lake, opened_lake

__all__ = ["duck", "written"]


@pytest.fixture(scope="session")
def mirrors(written: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    """A lake whose catalogs `iceberg`, `delta` and `parquet` mirror those tables; nobody changes it."""
    with mirrored_lake(written, tmp_path_factory.mktemp("lake")) as lake:
        yield lake


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    """A lake with an empty managed catalog."""
    with opened_lake(tmp_path) as lake:
        yield lake
