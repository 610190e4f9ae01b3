from __future__ import annotations

from collections.abc import Iterator

import pytest

from rpc.house import Client, House, opened
from skiway.storage import Stores, open_stores


@pytest.fixture
def stores() -> Iterator[Stores]:
    with open_stores("memory://") as found:
        yield found


@pytest.fixture
def house(stores: Stores) -> Iterator[House]:
    with opened(stores) as house:
        yield house


@pytest.fixture
def client(house: House) -> Client:
    return house.client
