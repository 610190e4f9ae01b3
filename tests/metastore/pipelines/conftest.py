from __future__ import annotations

from pathlib import Path

import pytest

from metastore.managed_table_factory import ManagedTableFactory
from metastore.pipelines.pipeline_lake import PipelineLake
from metastore.resource_factory import ResourceFactory


@pytest.fixture
def lake(factory: ResourceFactory, tmp_path: Path) -> PipelineLake:
    factory.catalog()
    return PipelineLake(ManagedTableFactory.at(factory, tmp_path))
