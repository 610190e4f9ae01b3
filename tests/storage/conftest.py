from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from skiway.storage import BlobStore, PointerStore
from storage.dynamodb_local import running_dynamodb
from storage.homes import (
    BLOB_KINDS,
    POINTER_KINDS,
    SHARED_KINDS,
    Clock,
    Home,
    blob_home,
    pointer_home,
    running_aws,
    running_postgres,
)


@pytest.fixture(scope="session")
def server() -> Iterator[Callable[[str], str]]:
    """The addresses of services by name; each is started on first use."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    starters = {"postgresql": running_postgres, "aws": running_aws, "dynamodb": running_dynamodb}
    running: dict[str, str] = {}
    with ExitStack() as stack:

        def address(name: str) -> str:
            if name not in running:
                running[name] = stack.enter_context(starters[name]())
            return running[name]

        yield address


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=POINTER_KINDS)
def home(request, tmp_path, server) -> Home:
    """A home for pointers, in every backend."""
    return pointer_home(request.param, tmp_path, server)


@pytest.fixture(params=SHARED_KINDS)
def shared_home(request, tmp_path, server) -> Home:
    """A home for pointers that several processes can open."""
    return pointer_home(request.param, tmp_path, server)


@pytest.fixture
def pointers(home, clock) -> Iterator[PointerStore]:
    with home.pointers(clock=clock) as store:
        yield store


@pytest.fixture(params=BLOB_KINDS)
def blobs_home(request, tmp_path, server) -> Home:
    """A home for blobs, in every backend."""
    return blob_home(request.param, tmp_path, server)


@pytest.fixture
def blobs(blobs_home) -> Iterator[BlobStore]:
    with blobs_home.blobs() as store:
        yield store
