from __future__ import annotations

from collections.abc import Iterator

import pytest

from rest_clients.shared_lake import SharedLake, shared_lake


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedLake]:
    """The server of a module. Each test uses its own namespace."""
    with shared_lake(tmp_path_factory.mktemp("lake")) as found:
        yield found
