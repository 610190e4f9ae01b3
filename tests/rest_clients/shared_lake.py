"""A server that clients of Iceberg REST and of Airport use at the same time, with a token, as users would."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow as pa

from formats.oracles import assert_same_rows
from runtime.servers import started
from skiway.client import AirportClient

TOKEN = "etl-token-with-more-than-32-characters"
TOKENS = f"""
[[tokens]]
name = "etl"
account = "default"
roles = ["administrator"]
sha256 = "{sha256(TOKEN.encode()).hexdigest()}"
"""


@dataclass(frozen=True, slots=True)
class SharedLake:
    """The addresses of the server, and a folder that its operator approved for files of the catalog `lake`."""

    uri: str
    airport_address: str
    approved: Path

    def airport(self) -> AirportClient:
        """A newly attached client, which sees all tables as they are now."""
        return AirportClient(self.airport_address, catalog="lake", token=TOKEN)

    def over_airport(self, table: str, **options: Any) -> pa.Table:
        """The rows of a table or view, read over Airport."""
        with self.airport() as db:
            return db.scan(table, **options).read_all()

    def assert_same_over_airport(self, found: pa.Table, table: str, **options: Any) -> None:
        """Assert that a client of Iceberg REST found the rows that are read over Airport."""
        assert_same_rows(found, self.over_airport(table, **options))


@contextmanager
def shared_lake(folder: Path) -> Iterator[SharedLake]:
    """Start a server in its own process."""
    home, approved = folder / "home", folder / "approved"
    home.mkdir()
    approved.mkdir()
    (home / "tokens.toml").write_text(TOKENS)
    (home / "tokens.toml").chmod(0o600)
    locations = f"warehouse.locations=default/lake={approved}"
    with started(home, "--set", "auth.mode=token", "--set", locations) as server:
        yield SharedLake(f"{server.addresses['http']}/iceberg", server.addresses["airport"], approved)
