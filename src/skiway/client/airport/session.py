"""An attached catalog: the connection, the listing that is kept of it, and the transaction that statements run in."""

from __future__ import annotations

import contextlib
import os
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from types import TracebackType
from typing import Final, Self

from skiway.client.airport.calls import Calls, InTransaction
from skiway.client.airport.catalog import Schema, Table, TableName
from skiway.client.airport.connection import Connection, Location, TlsOptions, split_url
from skiway.client.airport.listing import Listing
from skiway.errors import InvalidArgument, Unsupported

__all__ = ["Attached", "CatalogVersion", "Transaction"]

MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class CatalogVersion:
    """A number that grows with each change of a catalog; a `fixed` one never does."""

    version: int
    fixed: bool


class Transaction:
    """A transaction of one thread; it begins when something is done in it."""

    def __init__(self, calls: Calls, *, explicit: bool) -> None:
        self._calls = calls
        self.explicit = explicit
        self._identifier: str | None = None

    @property
    def id(self) -> str:
        """Its id; "" where the server has none to give."""
        if self._identifier is None:
            self._identifier = self._calls.create_transaction()
            if self.explicit and not self._identifier:
                raise Unsupported(
                    f"catalog {self._calls.catalog!r} has no transactions: leave out explicit=True, "
                    "and each statement stands alone"
                )
        return self._identifier

    def end(self, action: str) -> None:
        """Commit or roll back what was done in it, if anything was."""
        if self.explicit and self._identifier:
            self._calls.end_transaction(action, self._identifier)


class Attached:
    """What all statements of a client share."""

    def __init__(
        self,
        location: str,
        catalog: str | None = None,
        *,
        token: str | None = None,
        token_on_scans: bool = True,
        tls: TlsOptions | None = None,
        timeout_s: float | None = None,
        max_message_bytes: int = 512 * MIB,
        ids: Callable[[], str] = lambda: str(uuid.uuid4()),
    ) -> None:
        address, named_catalog, named_token = split_url(location)
        self._connection = Connection(
            Location.parse(address), tls=tls, timeout_s=timeout_s, max_message_bytes=max_message_bytes
        )
        self._calls = Calls(
            self._connection,
            catalog=(named_catalog or "") if catalog is None else catalog,
            token=named_token if token is None else token,
            token_on_scans=token_on_scans,
            session_id=_session_id(os.getpid()),
        )
        self._ids = ids
        self._lock = threading.Lock()
        self._loaded: Listing | None = None
        self._thread = threading.local()

    @property
    def location(self) -> str:
        """Where the server is, as it was written."""
        return self._connection.location.text

    @property
    def catalog(self) -> str:
        """The attached catalog."""
        return self._calls.catalog

    # -- the catalog ----------------------------------------------------------------------------------------------

    def schemas(self) -> list[Schema]:
        """All schemas with their tables and functions, as they were at the first use."""
        return self._listing().schemas()

    def table(self, name: TableName) -> Table:
        """One table, by `schema.table` or a tuple of both; `NotFound` if there is none."""
        return self._listing().table(name)

    def reload(self) -> None:
        """Forget the listing; DuckDB must DETACH and ATTACH for that."""
        with self._lock:
            self._loaded = None

    def version(self) -> CatalogVersion:
        """The catalog's version now."""
        found = self._calls.catalog_version()
        return CatalogVersion(found.catalog_version, found.is_fixed)

    # -- transactions ---------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def transaction(self, *, explicit: bool = False) -> Iterator[Transaction]:
        """One transaction id for all statements of this thread inside; the first of them asks for it.

        As with DuckDB, the server still commits each statement by itself. An `explicit` transaction is all or nothing:
        it is committed at the end of the block and rolled back if an exception leaves it. DuckDB cannot do that.
        """
        if self._opened() is not None:
            raise InvalidArgument("a transaction is open in this thread already: there is none inside another")
        opened = self._thread.transaction = Transaction(self._calls, explicit=explicit)
        try:
            yield opened
        except BaseException:
            self._thread.transaction = None
            with contextlib.suppress(Exception):  # the error that ends the block says more than one of its undoing
                opened.end("rollback_transaction")
            if explicit:
                self.reload()  # what was created inside is gone
            raise
        self._thread.transaction = None
        opened.end("commit_transaction")

    def transaction_status(self, transaction_id: str) -> str | None:
        """`active`, `committed` or `aborted`; None for an id that the server does not know, or no more."""
        found = self._calls.transaction_status(transaction_id)
        return found.status if found.exists else None

    # -- life -----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End all calls and hang up."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- inside ---------------------------------------------------------------------------------------------------

    def _listing(self) -> Listing:
        unit = self._explicit()
        with self._lock:
            if self._loaded is None:
                self._loaded = Listing(self._calls, self._calls.list_schemas(unit))
            return self._loaded

    def _opened(self) -> Transaction | None:
        opened: Transaction | None = getattr(self._thread, "transaction", None)
        return opened

    def _begin(self) -> InTransaction:
        """What the next statement runs in: the open transaction, or one of its own."""
        opened = self._opened()
        if opened is None:
            return InTransaction(self._calls.create_transaction())
        return InTransaction(opened.id, by_client=opened.explicit)

    def _explicit(self) -> InTransaction | None:
        """The explicit transaction, which calls about the catalog are told of too; of others they are not."""
        opened = self._opened()
        return InTransaction(opened.id, by_client=True) if opened is not None and opened.explicit else None

    def _ask_version(self) -> None:
        """DuckDB asks at each bound table, unless the catalog said that it never changes."""
        if self._loaded is None or not self._loaded.is_fixed:
            self._calls.catalog_version()


@cache
def _session_id(_process: int) -> str:
    """One id for all clients of a process; a fork is another process."""
    return str(uuid.uuid4())
