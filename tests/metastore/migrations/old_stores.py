"""Stores of format 1, as a server of version 0.1 wrote them before migrations existed.

`format_1.tar.gz` has one store of each kind: a dump of its database, its blobs, and the folder of its secrets. The demo tables
(`seed.enabled`), the catalog `records`, a view, a connector with credentials, a grant and the account `other` are in it.
"""

from __future__ import annotations

import sqlite3
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from uuid import uuid4

import psycopg

from skiway.storage import Stores, open_stores

Kind = Literal["sqlite", "postgres"]
KINDS: tuple[Kind, ...] = ("sqlite", "postgres")
ARCHIVE = Path(__file__).with_name("format_1.tar.gz")


@dataclass(frozen=True)
class OldStore:
    """A home with a store of format 1, and the URLs of its parts."""

    home: Path
    pointers: str
    blobs: str

    def open(self) -> Stores:
        return open_stores(self.pointers, self.blobs)

    @property
    def settings(self) -> tuple[str, ...]:
        """The options of `skiway` commands that select this store."""
        return ("--set", f"kv.url={self.pointers}", "--set", f"blob.url={self.blobs}")


def format_1(kind: Kind, home: Path, server: Callable[[str], str]) -> OldStore:
    """Restore the store into a new home; `server` returns the addresses of services."""
    home.mkdir(mode=0o700, parents=True)
    with tarfile.open(ARCHIVE) as archive:
        for member in archive.getmembers():
            folder, _, name = member.name.partition("/")
            if folder == kind and name:
                archive.extract(member.replace(name=name), home, filter="data")
    dump = (home / "dump.sql").read_text()
    if kind == "sqlite":
        with sqlite3.connect(home / "pointers.db") as database:
            database.executescript(dump)
        database.close()
        return OldStore(home, f"sqlite:///{home}/pointers.db", (home / "blobs").as_uri())
    url, schema = server("postgresql"), f"t{uuid4().hex}"
    with psycopg.connect(url) as connection:
        dump = dump.replace("SCHEMA skiway;", f"SCHEMA {schema};").replace(" skiway.", f" {schema}.")
        connection.execute(dump.encode())
    return OldStore(home, f"{url}{'&' if '?' in url else '?'}schema={schema}", (home / "blobs").as_uri())
