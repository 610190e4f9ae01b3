from __future__ import annotations

from pathlib import Path

import pytest

from metastore.ingest.copies import FolderCopy
from metastore.managed_table_factory import ManagedTableFactory
from metastore.resource_factory import ResourceFactory


@pytest.fixture
def lake(factory: ResourceFactory, tmp_path: Path) -> ManagedTableFactory:
    return ManagedTableFactory.at(factory, tmp_path)


@pytest.fixture
def orders(lake: ManagedTableFactory, tmp_path: Path) -> FolderCopy:
    """The copy of a folder of Parquet files."""
    return FolderCopy(lake, tmp_path / "source")
