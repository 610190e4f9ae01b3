from __future__ import annotations

from collections.abc import Iterator

import pytest

import scope
from metastore.races import RacedPointers
from metastore.resource_factory import ResourceFactory
from skiway.storage import CallCounter, Stores, open_blobs, open_pointers
from storage.homes import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def calls() -> CallCounter:
    """Counts the calls to the stores."""
    return CallCounter()


@pytest.fixture(params=["memory", "sqlite"] if scope.ALL else ["memory"])
def stores(request, tmp_path, clock, calls) -> Iterator[Stores]:
    """Empty stores. The contract tests in `tests/storage` show that all backends behave the same."""
    url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/pointers.db"
    blobs = "memory://" if request.param == "memory" else (tmp_path / "blobs").as_uri()
    pointers = RacedPointers(open_pointers(url, clock=clock), clock=clock, on_call=calls)
    with Stores(pointers, open_blobs(blobs, clock=clock, on_call=calls)) as opened:
        yield opened


@pytest.fixture
def factory(stores, clock) -> ResourceFactory:
    return ResourceFactory(stores, clock)
