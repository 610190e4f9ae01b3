from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from faults.crashing_server import Launcher
from faults.deployments import Deployment
from storage.homes import running_postgres


@pytest.fixture(scope="session")
def launcher() -> Iterator[Launcher]:
    """Starts servers that kill themselves."""
    started = Launcher()
    yield started
    started.close()


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    with running_postgres() as url:
        yield url


@pytest.fixture
def new_deployment(tmp_path: Path, request: pytest.FixtureRequest) -> Callable[[str], Deployment]:
    """Return a function that creates empty deployments with a given kind of pointer store."""

    def make(kind: str) -> Deployment:
        name = f"t{uuid.uuid4().hex}"
        folder = tmp_path / name
        folder.mkdir()
        pointers = f"sqlite:///{folder}/pointers.db"
        if kind == "postgresql":
            url = request.getfixturevalue("postgres")
            pointers = f"{url}{'&' if '?' in url else '?'}schema={name}"
        return Deployment(pointers, (folder / "blobs").as_uri(), folder)

    return make
