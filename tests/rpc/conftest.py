from __future__ import annotations

from collections.abc import Iterator

import pytest

from rpc.rpc_server import Client, RpcServer, opened
from skiway.storage import Stores, open_stores


@pytest.fixture
def stores() -> Iterator[Stores]:
    with open_stores("memory://") as found:
        yield found


@pytest.fixture
def rpc_server(stores: Stores) -> Iterator[RpcServer]:
    with opened(stores) as rpc_server:
        yield rpc_server


@pytest.fixture
def client(rpc_server: RpcServer) -> Client:
    return rpc_server.client
