"""The pytest plugin: a served catalog, clients for it, and recorded traffic of DuckDB as fixtures.

Override `airport_catalog` in your tests to return the catalog, or what else a `Server` accepts. Servers listen on a free
port of this machine and stop at the end of the test. Skiway is imported when a fixture is used, not when pytest starts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from skiway.airport import Server
    from skiway.client import AirportClient
    from skiway.testing.recordings import Recordings

__all__ = [
    "airport_catalog",
    "airport_client",
    "airport_connect",
    "airport_recordings",
    "airport_serve",
    "airport_server",
]


@pytest.fixture
def airport_catalog() -> Any:
    """What `airport_server` serves. Override this fixture."""
    pytest.fail(
        "define a fixture called airport_catalog that returns your catalog; airport_server and airport_client use it",
        pytrace=False,
    )


@pytest.fixture
def airport_serve() -> Iterator[Callable[..., Server]]:
    """A function that starts a server: `airport_serve(catalogs, **options)`, with the options of `Server`.

    Clients see the text of unexpected exceptions, so that a failing test shows it.
    """
    from skiway.airport import Server

    with ExitStack() as running:

        def serve(catalogs: Any, **options: Any) -> Server:
            return running.enter_context(Server(catalogs, **{"port": 0, "debug": True, **options}))

        yield serve


@pytest.fixture
def airport_server(airport_catalog: Any, airport_serve: Callable[..., Server]) -> Server:
    """A server for `airport_catalog`; `airport_server.location` is its address."""
    return airport_serve(airport_catalog)


@pytest.fixture
def airport_connect() -> Iterator[Callable[..., AirportClient]]:
    """A function that connects a client: `airport_connect(server, catalog, token=…)`. Without a name, to the only catalog."""
    from skiway.client import AirportClient

    with ExitStack() as connected:

        def connect(server: Server, catalog: str = "", **options: Any) -> AirportClient:
            return connected.enter_context(AirportClient(server.location, catalog, **options))

        yield connect


@pytest.fixture
def airport_client(
    airport_catalog: Any, airport_server: Server, airport_connect: Callable[..., AirportClient]
) -> AirportClient:
    """A client of `airport_server`, without a token. It makes the same calls as DuckDB."""
    name = getattr(airport_catalog, "name", "")
    return airport_connect(airport_server, name if isinstance(name, str) else "")


@pytest.fixture(scope="session")
def airport_recordings() -> Recordings:
    """Recorded traffic of the real DuckDB client: `filters` and `conversations`."""
    from skiway.testing.recordings import recordings

    return recordings()
