"""`Metastore`: the typed client of the metastore's gRPC API."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Final, Generic, Self, TypeVar

from skiway.client.connection import Channel, Location, TlsOptions, Token
from skiway.client.metastore.calls import Caller, Calls, Retries
from skiway.client.metastore.catalogs import Accounts, Branches, Catalogs, Namespaces, Tables, Views
from skiway.client.metastore.collection import Area, plain_collection
from skiway.client.metastore.connectors import Connectors, Pipelines
from skiway.client.metastore.events import Events, Webhooks
from skiway.client.metastore.governance import Grants, Policies, Rules
from skiway.client.metastore.jobs import Jobs, Maintenance
from skiway.client.metastore.search import Directory, Search
from skiway.client.metastore.snapshots import Snapshots, Statistics
from skiway.client.metastore.transactions import Queries, Transactions
from skiway.errors import InvalidArgument
from skiway.foundation.resources import PLAIN, Resource
from skiway.model import v1

MIB: Final = 1024 * 1024


A = TypeVar("A", bound=Area)


class Part(Generic[A]):
    """An attribute of the client: the part of its API for one kind of resources."""

    def __init__(self, area: type[A]) -> None:
        self._area = area

    def __get__(self, lake: Metastore, owner: type[Metastore]) -> A:
        return self._area(lake._calls)


class Metastore:
    """A metastore, by kinds of resources. Call a kind to list its resources; it has methods to get, create and change them.

    >>> with Metastore("127.0.0.1:50051") as lake:                             # doctest: +SKIP
    ...     columns = [{"id": 1, "name": "name", "required": False, "type": "string"}]
    ...     lake.tables.create("lake.sales.people", schema={"type": "struct", "fields": columns})
    ...     for table in lake.tables("lake.sales"):
    ...         print(table.name, table.stats.row_count)

    The client is thread-safe and connects at the first call. `target` is `host:port`, or a location such as
    `grpc+tls://host:port`. `token` is sent with every call, or the result of a function. `account` names the account, if the
    server requires no token. `headers` are those of every call. `tls` has PEM files, by default gRPC's root certificates.
    `timeout_s` is the deadline of a call including its `retries`; uploads have a longer one. The largest accepted response has
    `max_message_bytes`. `ids` makes correlation ids and idempotency keys, for tests.
    """

    accounts = Part(Accounts)
    """Accounts, which own catalogs."""
    catalogs = Part(Catalogs)
    """Catalogs, such as `lake`."""
    namespaces = Part(Namespaces)
    """Namespaces, such as `lake.sales`."""
    tables = Part(Tables)
    """Tables, such as `lake.sales.people`."""
    branches = Part(Branches)
    """Branches of catalogs, such as `lake@dev`."""
    views = Part(Views)
    """Views, such as `lake.sales.totals`."""
    snapshots = Part(Snapshots)
    """Snapshots of tables."""
    statistics = Part(Statistics)
    """Statistics of tables, their columns and their files."""
    grants = Part(Grants)
    """Privileges of users and roles on catalogs, namespaces, tables and views."""
    policies = Part(Policies)
    """Policies, which decide what callers see of rows and columns, and the tags of columns."""
    rules = Part(Rules)
    """Quality rules of tables, and their results."""
    pipelines = Part(Pipelines)
    """Pipelines, which derive tables from other tables."""
    connectors = Part(Connectors)
    """Connectors, which mirror the tables of other catalogs and folders."""
    jobs = Part(Jobs)
    """Jobs, which sync connectors and profile tables."""
    queries = Part(Queries)
    """Queries, which are leases on snapshots."""
    transactions = Part(Transactions)
    """Transactions, which write rows for several tables that become visible together."""
    maintenance = Part(Maintenance)
    """Maintenance of managed tables: their health, compaction, the expiry of snapshots, and orphan files."""
    events = Part(Events)
    """Events, which are all changes of the account in order."""
    webhooks = Part(Webhooks)
    """Webhooks, which send events to other systems."""
    search = Part(Search)
    """Search over names, columns, comments and tags, and totals."""
    directory = Part(Directory)
    """Names to ids and back."""

    def __init__(
        self,
        target: str,
        *,
        token: Token = None,
        account: str | None = None,
        headers: Mapping[str, str] | None = None,
        tls: TlsOptions | None = None,
        timeout_s: float | None = 30.0,
        retries: Retries | None = None,
        max_message_bytes: int = 512 * MIB,
        ids: Callable[[], str] = lambda: str(uuid.uuid4()),
    ) -> None:
        """Create a client of the server at `target`, which is `host:port`.

        `token` is sent as `authorization: Bearer …`; a function is called for every call. `account` selects the account on a
        server without authentication.
        `headers` are sent with every call. `timeout_s` is the deadline of a call including its retries.
        """
        self._calls = Calls(
            Channel(_parse_target(target, tls), tls=tls, max_message_bytes=max_message_bytes),
            Caller(
                token=token, account=account, extra={name.lower(): value for name, value in (headers or {}).items()}
            ),
            timeout_s=timeout_s,
            retries=retries or Retries(),
            ids=ids,
        )

    @property
    def target(self) -> str:
        """The server's address, as the caller gave it."""
        return self._calls.channel.location.text

    def system_objects(self, engine_kind: str = "", engine_version: str = "") -> v1.SystemObjectsRegistry:
        """Return the functions, operators, types, casts, collations and aggregates of an engine.

        Without arguments it is the engine of `with_engine`.
        """
        if engine_kind or engine_version:
            return self.with_engine(engine_kind, engine_version).system_objects()
        caller = self._calls.caller
        request = v1.GetSystemObjectsRequest(engine_kind=caller.engine_kind, engine_version=caller.engine_version)
        return self._calls.call(request, v1.GetSystemObjectsResponse).registry

    def with_query(self, query_id: str) -> Metastore:
        """Return this client for the calls of one query. Both share a connection: closing one closes the other."""
        return self._with_caller(replace(self._calls.caller, query_id=query_id))

    def with_engine(self, kind: str, version: str) -> Metastore:
        """Return this client for the calls of an engine. Both share a connection: closing one closes the other."""
        return self._with_caller(replace(self._calls.caller, engine_kind=kind, engine_version=version))

    def on_branch(self, name: str) -> Metastore:
        """Return this client for calls that read catalogs, namespaces, tables, views, snapshots and statistics on a branch.

        The name is that of a catalog and a branch of it, such as `lake@dev`, which is also the catalog in the names of objects there.
        Both share a connection: closing one closes the other.
        """
        return self._with_caller(replace(self._calls.caller, branch=name))

    def close(self) -> None:
        """Cancel all running calls and close the connection."""
        self._calls.channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Metastore({self.target!r})"

    def _with_caller(self, caller: Caller) -> Metastore:
        other = object.__new__(type(self))
        other._calls = replace(self._calls, caller=caller)
        return other


def _plain(resource: Resource) -> property:
    return property(lambda lake: plain_collection(resource)(lake._calls))


for _resource in PLAIN:
    setattr(Metastore, _resource.plural, _plain(_resource))


def _parse_target(target: str, tls: TlsOptions | None) -> Location:
    """Parse `host:port`, or a location with a scheme such as `grpc+tls://host:port`."""
    try:
        found = Location.parse(Location.with_scheme(target))
    except InvalidArgument:
        raise InvalidArgument(
            f"{target!r} is not an address of a metastore: write host:port, such as 127.0.0.1:50051",
            key="field",
            field="target",
        ) from None
    return replace(found, text=target, is_tls=found.is_tls or tls is not None)
