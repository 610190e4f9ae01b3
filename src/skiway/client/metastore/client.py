"""The typed client of the metastore."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Final, Self

from skiway.client.airport.connection import TlsOptions
from skiway.client.metastore.calls import Calls, Retries
from skiway.client.metastore.catalogs import Accounts, Catalogs
from skiway.client.metastore.connection import Caller, Channel, located
from skiway.client.metastore.connectors import Connectors
from skiway.client.metastore.directory import Directory
from skiway.client.metastore.jobs import Jobs
from skiway.client.metastore.namespaces import Namespaces
from skiway.client.metastore.queries import Queries
from skiway.client.metastore.snapshots import Snapshots
from skiway.client.metastore.statistics import Statistics
from skiway.client.metastore.tables import Tables, Views
from skiway.model import v1

__all__ = ["Metastore"]

MIB: Final = 1024 * 1024


class Metastore:
    """A metastore, by kinds of things: called, a kind lists them; its verbs are `get`, `find`, `create`, `update`, `delete`.

    >>> with Metastore("127.0.0.1:50051") as lake:                             # doctest: +SKIP
    ...     lake.tables.create("lake.sales.people", schema={"type": "struct", "fields": []})
    ...     for table in lake.tables("lake.sales"):
    ...         print(table.name, table.stats.row_count)

    Safe to use from many threads. It connects at the first call.
    """

    def __init__(
        self,
        target: str,
        *,
        token: str | None = None,
        account: str | None = None,
        headers: Mapping[str, str] | None = None,
        tls: TlsOptions | None = None,
        timeout_s: float | None = 30.0,
        retries: Retries | None = None,
        max_message_bytes: int = 512 * MIB,
        ids: Callable[[], str] = lambda: str(uuid.uuid4()),
    ) -> None:
        """A client of the server at `target`, which is `host:port`.

        `token` is sent as `authorization: Bearer …`; `account` chooses one where a server asks for no token; `headers`
        are sent with every call. `timeout_s` is for each call with all its retries.
        """
        self._calls = Calls(
            Channel(located(target, tls=tls is not None), tls, max_message_bytes),
            Caller(
                token=token, account=account, extra={name.lower(): value for name, value in (headers or {}).items()}
            ),
            timeout_s=timeout_s,
            retries=retries or Retries(),
            ids=ids,
        )

    @property
    def target(self) -> str:
        """Where the server is, as it was given."""
        return self._calls.channel.location.text

    @property
    def accounts(self) -> Accounts:
        """Accounts: who owns catalogs."""
        return Accounts(self._calls)

    @property
    def catalogs(self) -> Catalogs:
        """Catalogs: `lake`."""
        return Catalogs(self._calls)

    @property
    def namespaces(self) -> Namespaces:
        """Namespaces: `lake.sales`."""
        return Namespaces(self._calls)

    @property
    def tables(self) -> Tables:
        """Tables: `lake.sales.people`."""
        return Tables(self._calls)

    @property
    def views(self) -> Views:
        """Views: `lake.sales.totals`."""
        return Views(self._calls)

    @property
    def snapshots(self) -> Snapshots:
        """Snapshots of tables."""
        return Snapshots(self._calls)

    @property
    def statistics(self) -> Statistics:
        """Statistics of tables, their columns and their files."""
        return Statistics(self._calls)

    @property
    def connectors(self) -> Connectors:
        """Connectors: upstreams whose tables are mirrored."""
        return Connectors(self._calls)

    @property
    def jobs(self) -> Jobs:
        """Jobs: the work on connectors."""
        return Jobs(self._calls)

    @property
    def queries(self) -> Queries:
        """Queries: leases on what is read."""
        return Queries(self._calls)

    @property
    def directory(self) -> Directory:
        """Names to ids and back."""
        return Directory(self._calls)

    def system_objects(self, engine_kind: str = "", engine_version: str = "") -> v1.SystemObjectsRegistry:
        """The functions, operators, types, casts, collations and aggregates of an engine: this one, or the client's."""
        if engine_kind or engine_version:
            return self.with_engine(engine_kind, engine_version).system_objects()
        caller = self._calls.caller
        request = v1.GetSystemObjectsRequest(engine_kind=caller.engine_kind, engine_version=caller.engine_version)
        return self._calls.ask(request, v1.GetSystemObjectsResponse).registry

    def with_query(self, query_id: str) -> Metastore:
        """The same client for the calls of one query. Both share one connection: closing one closes the other."""
        return self._as(replace(self._calls.caller, query_id=query_id))

    def with_engine(self, kind: str, version: str) -> Metastore:
        """The same client on behalf of an engine. Both share one connection: closing one closes the other."""
        return self._as(replace(self._calls.caller, engine_kind=kind, engine_version=version))

    def close(self) -> None:
        """End all calls and hang up."""
        self._calls.channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Metastore({self.target!r})"

    def _as(self, caller: Caller) -> Metastore:
        other = object.__new__(type(self))
        other._calls = replace(self._calls, caller=caller)
        return other
