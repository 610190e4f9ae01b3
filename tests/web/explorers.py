"""A server with an explorer, and a visitor who sends requests without a browser."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx

from runtime.servers import Server, skiway, started
from skiway.client import Metastore
from skiway.metastore import Realm, statistics
from skiway.model import v1
from skiway.storage import open_stores

TABS: Final = (
    "columns",
    "rows",
    "snapshots",
    "statistics",
    "files",
    "lineage",
    "plans",
    "quality",
    "health",
    "access",
    "connect",
)
"""The tabs of the page of a table."""


@dataclass
class Visitor:
    """Somebody with a browser: cookies are kept, redirects are not followed."""

    browser: httpx.Client

    def get(self, path: str, **headers: str) -> httpx.Response:
        return self.browser.get(path, headers=headers)

    def page(self, path: str) -> str:
        answer = self.get(path)
        assert answer.status_code == 200, answer.text
        return answer.text

    def data(self, path: str) -> Any:
        kind, _, query = path.partition("?")
        answer = self.get(f"{kind}.json?{query}")
        assert answer.status_code == 200, answer.text
        return answer.json()

    def send(self, path: str, form: Mapping[str, str], *, on: str = "/connectors", **headers: str) -> httpx.Response:
        """Send a form as the page `on` would."""
        token = re.search(r'name="form_token" value="(\w+)"', self.get(on).text)
        filled = {"form_token": token[1] if token else "", **form}
        return self.browser.post(path, data=filled, headers=headers)


@contextmanager
def visiting(server: Server) -> Iterator[Visitor]:
    with httpx.Client(base_url=server.addresses["http"], timeout=60) as browser:
        yield Visitor(browser)


def token_of(home: Path, name: str, *roles: str) -> str:
    """A new token of the default account."""
    named = [argument for role in roles for argument in ("--role", role)]
    made = skiway("tokens", "create", name, "--account", "default", *named, "--home", home)
    assert made.returncode == 0, made.stderr
    return made.stdout.strip()


@contextmanager
def with_tokens(home: Path, *arguments: str) -> Iterator[tuple[Server, dict[str, str]]]:
    """A server with authentication, and tokens of an administrator and of somebody without grants."""
    tokens = {"ada": token_of(home, "ada", "administrator"), "eve": token_of(home, "eve", "member")}
    with started(home, "--set", "auth.mode=token", *arguments) as server:
        yield server, tokens


def store_history(home: Path, metastore: Metastore) -> None:
    """Statistics of both snapshots of a table, as profiles store them."""
    table = metastore.tables.get("lake.sales.people").message
    snapshots = list(metastore.snapshots("lake.sales.people"))
    with open_stores(f"sqlite:///{home}/pointers.db", (home / "blobs").as_uri()) as stores:
        realm = Realm(stores, table.resource_id.account_id)
        for median, snapshot in zip((40, 70), reversed(snapshots), strict=True):
            columns = [
                v1.ColumnStats(
                    column_id=1, column_name="id", value_count=100, properties={"quantiles": f'{{"0.5": "{median}"}}'}
                ),
                v1.ColumnStats(
                    column_id=2, column_name="name", value_count=100, properties={"top_values": f'[["ann", {median}]]'}
                ),
            ]
            stats = v1.TableStats(table_id=table.resource_id, snapshot_id=snapshot.id, row_count=100)
            statistics.add_to_history(realm, stats, columns)
