"""The key that signs tickets is in the secrets store; the pointer store only names it."""

from __future__ import annotations

from typing import Any

import pytest

from skiway.metastore import platform
from skiway.metastore.records import keys
from skiway.security import MemorySecrets
from skiway.storage import Stores, open_stores


@pytest.fixture
def stores() -> Any:
    with open_stores("memory://", "memory://") as opened:
        yield opened


def stored(stores: Stores) -> str:
    found = stores.pointers.get(keys.AIRPORT_SIGNING_KEY)
    assert found is not None
    return found.blob_uri


def test_key_is_not_in_the_pointer_store(stores: Stores) -> None:
    secrets = MemorySecrets()
    key = platform.signing_key(stores, secrets)
    assert len(key) == 32
    assert key.hex() not in stored(stores)
    assert platform.signing_key(stores, secrets) == key


def test_servers_that_start_at_the_same_time_agree(stores: Stores) -> None:
    shared = MemorySecrets()

    class Slow(MemorySecrets):
        """Another server creates the key while this one stores its own."""

        def put(self, *where: Any) -> None:
            shared.put(*where)
            self.first = platform.signing_key(stores, shared)

        def get(self, *where: str) -> bytes:
            return shared.get(*where)

        def delete(self, *where: str) -> None:
            shared.delete(*where)

    slow = Slow()
    assert platform.signing_key(stores, slow) == slow.first
    assert len(shared._secrets) == 1, "the key that lost is deleted"


def test_lost_key_is_replaced(stores: Stores, caplog: pytest.LogCaptureFixture) -> None:
    first = platform.signing_key(stores, MemorySecrets())
    assert platform.signing_key(stores, MemorySecrets()) != first
    assert "must also share the secrets store" in caplog.text
