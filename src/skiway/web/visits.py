"""A request of a visitor: the clients that act with the visitor's credentials, and the parameters of the page."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Final

from skiway.client import AirportClient, Metastore
from skiway.client.metastore import Incomplete
from skiway.errors import InvalidArgument, NotFound, SkiwayError, Unauthorized
from skiway.foundation.resources import schema_name
from skiway.metastore.records.names import BRANCH_MARK

WAIT_S: Final = 0.5
"""How long a page waits for an index that is being built. Then it shows what is known, and says that it is not everything."""


@dataclass(frozen=True, slots=True)
class Visitor:
    """Somebody who visits. Without authentication, the token is empty."""

    token: str = field(default="", repr=False)
    session_id: str = ""


@dataclass(frozen=True, slots=True)
class Clients:
    """Opens clients of the server that the explorer belongs to, with the credentials of a visitor."""

    metastore: Callable[[Visitor], Metastore]
    airport: Callable[[Visitor, str], AirportClient]
    location: Callable[[], str]
    """Where DuckDB finds the server, such as `grpc://lake.example.com:50051`."""
    editor: Callable[[Visitor, str, str], AirportClient]
    """A new client of a catalog for one query, whose id it sends: the query has that id in the history."""
    running: dict[tuple[str, str], AirportClient] = field(default_factory=dict)
    """The clients of queries that run, by session and query."""
    clock: Callable[[], datetime] = lambda: datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class TablePath:
    """Where a table is, in the names that DuckDB uses: a nested namespace is one schema."""

    catalog: str
    schema: str
    name: str


@dataclass
class Visit:
    """One request. `names` are those in the path, `query` is the query string, and `form` the fields of a form."""

    visitor: Visitor
    clients: Clients
    names: tuple[str, ...] = ()
    query: Mapping[str, str] = field(default_factory=dict)
    form: Mapping[str, str] = field(default_factory=dict)
    origin: str = ""
    """The address of the server as the visitor knows it, such as `https://lake.example.com`."""

    @cached_property
    def lake(self) -> Metastore:
        """The metastore, as the visitor may see it."""
        return self.clients.metastore(self.visitor)

    @property
    def branch(self) -> str:
        """The branch of the lake that the path is about, such as `lake@dev`; empty for main."""
        return self.names[0] if self.names and BRANCH_MARK in self.names[0] else ""

    @cached_property
    def there(self) -> Metastore:
        """The metastore where the objects of the path are: on main or on a branch."""
        return self.lake.on_branch(self.branch) if self.branch else self.lake

    def airport(self, catalog: str) -> AirportClient:
        """A catalog over Airport, as the visitor may see it."""
        return self.clients.airport(self.visitor, catalog)

    def name(self, what: str) -> str:
        """The only name in the path."""
        if len(self.names) != 1:
            raise NotFound(f"the address has {len(self.names)} names: it has one, that of a {what}", key="page.unknown")
        return self.names[0]

    def table_path(self) -> TablePath:
        """The table that the path names. Raises if the path has too few names for that."""
        if len(self.names) < 3:
            raise NotFound("the address of a table names a catalog, a namespace and the table", key="page.unknown")
        catalog, *namespace, name = self.names
        return TablePath(catalog, schema_name(tuple(namespace)), name)

    def number(self, name: str, default: int, *, most: int) -> int:
        """A positive whole number in the query string."""
        text = self.query.get(name, "")
        if not text:
            return default
        if not (text.isascii() and text.isdecimal() and len(text) < 10):
            raise InvalidArgument(f"{name} is {text[:40]!r}: give a whole number", key="query.invalid", field=name)
        return max(1, min(int(text), most))

    @property
    def at(self) -> int | None:
        """The snapshot to travel to; None is the current one."""
        text = self.query.get("at", "")
        if not text:
            return None
        if not text.lstrip("-").isdecimal() or not text.isascii() or len(text) > 20:
            raise InvalidArgument(f"at is {text[:40]!r}: give the id of a snapshot", key="query.invalid", field="at")
        return int(text)


@dataclass(frozen=True, slots=True)
class Page:
    """A page: `data` is shown by a template, and returned as it is by the `.json` twin of the page."""

    template: str
    title: str
    data: Mapping[str, Any]
    status: int = 200


@dataclass(frozen=True, slots=True)
class Redirect:
    """The address to go to after a change."""

    to: str


def optional(read: Callable[[], Any]) -> tuple[Any, str]:
    """A part of a page that may fail without the rest: what `read` returns and "", or None and the reason."""
    try:
        return read(), ""
    except Unauthorized:
        raise
    except SkiwayError as error:
        return None, error.message


def incomplete_data(found: Incomplete | None) -> dict[str, Any] | None:
    """Why a page may lack something, as pages show it."""
    return None if found is None else {"reason": found.reason, "is_temporary": found.is_temporary}


def first_catalog(visit: Visit) -> str:
    """The name of a catalog that the visitor sees, for what is the same in all of them; empty if there is none."""
    found = next(iter(visit.lake.catalogs(page_size=1)), None)
    return "" if found is None else found.name


def system_rows(visit: Visit, table: str) -> list[dict[str, Any]]:
    """The rows of a system table that is the same in all catalogs; none if the visitor sees no catalog."""
    catalog = first_catalog(visit)
    if not catalog:
        return []
    rows: list[dict[str, Any]] = visit.airport(catalog).scan(("skiway", table)).read_all().to_pylist()
    return rows
