from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rest.rest_server import RestServer, opened
from skiway.storage import Stores, open_stores


@pytest.fixture
def stores() -> Iterator[Stores]:
    with open_stores("memory://") as found:
        yield found


@pytest.fixture
def rest_server(stores: Stores, tmp_path: Path) -> Iterator[RestServer]:
    with opened(stores, tmp_path) as rest_server:
        yield rest_server
