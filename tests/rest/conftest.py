from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rest.house import House, opened
from skiway.storage import Stores, open_stores


@pytest.fixture
def stores() -> Iterator[Stores]:
    with open_stores("memory://") as found:
        yield found


@pytest.fixture
def house(stores: Stores, tmp_path: Path) -> Iterator[House]:
    with opened(stores, tmp_path) as house:
        yield house
