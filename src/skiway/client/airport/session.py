"""The state of an `AirportClient`: its connection, the cached listing of the catalog and the open transaction."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, TypeVar

from skiway.client.airport.calls import Calls, Trace, TransactionContext
from skiway.client.airport.listing import Listing
from skiway.errors import Cancelled, InvalidArgument, SkiwayError, Unsupported
from skiway.model.flight_pb2 import FlightDescriptor

__all__ = ["CatalogVersion", "OpenTransaction", "Session"]

T = TypeVar("T", bound="OpenTransaction")
RELEASES: Final = 3
"""How often a client sends the end of a transaction that has nothing to commit, if it is cancelled meanwhile."""


@dataclass(frozen=True, slots=True)
class CatalogVersion:
    """The version number of a catalog. It grows with each change; the version of a `fixed` catalog never changes."""

    version: int
    fixed: bool


class OpenTransaction:
    """A transaction of one thread. The client creates it on the server when the first statement needs its id.

    With `release`, the server also learns of its end if there is nothing to commit, and releases its snapshots.
    """

    def __init__(self, calls: Calls, *, explicit: bool, release: bool = False) -> None:
        self._calls = calls
        self.explicit = explicit
        self._release = release
        self._must_end = explicit
        self._identifier: str | None = None

    @property
    def id(self) -> str:
        """The id that the server assigned; "" if the server has no transactions."""
        if self._identifier is None:
            self._identifier = self._calls.create_transaction()
            if self.explicit and not self._identifier:
                raise Unsupported(
                    f"catalog {self._calls.catalog!r} has no transactions: without explicit=True, "
                    "each statement commits on its own"
                )
        return self._identifier

    @property
    def context(self) -> TransactionContext:
        """The transaction as calls carry it."""
        return TransactionContext(self.id, explicit=self.explicit)

    def end(self, action: str) -> None:
        """Commit or roll back, if there is anything to commit or release and any statement has used the transaction."""
        if self._must_end and self._identifier:
            self._calls.end_transaction(action, self._identifier)
        elif self._release and self._identifier:
            self._send_end(action, self._identifier)

    def _send_end(self, action: str, identifier: str) -> None:
        """Tell the server that the transaction has ended. Failures do not matter: nothing is lost, and it expires."""
        for _ in range(RELEASES):
            try:
                self._calls.end_transaction(action, identifier)
            except Cancelled:
                continue  # `cancel()` was meant for the statement, which has ended
            except SkiwayError:
                pass
            return


class Session:
    """What all statements of a client share. Thread-safe; each thread has its own transaction."""

    def __init__(self, calls: Calls, ids: Callable[[], str]) -> None:
        self.calls = calls
        self._ids = ids
        self._lock = threading.Lock()
        self._cached: Listing | None = None
        self._thread = threading.local()

    @property
    def location(self) -> str:
        """The server's address, as the user wrote it."""
        return self.calls.connection.location.text

    # -- the catalog ----------------------------------------------------------------------------------------------

    @property
    def cached_listing(self) -> Listing | None:
        """The listing, if it is loaded."""
        return self._cached

    def listing(self) -> Listing:
        """Return the listing of the catalog; load it at the first use."""
        transaction = self.explicit_context()
        with self._lock:
            if self._cached is None:
                self._cached = Listing(self.calls, self.calls.list_schemas(transaction))
            return self._cached

    def reload(self) -> None:
        """Drop the cached listing."""
        with self._lock:
            self._cached = None

    def poll_version(self) -> None:
        """Request the catalog's version, as DuckDB does for each table it binds, unless the version is fixed."""
        if self._cached is None or not self._cached.is_fixed:
            self.calls.catalog_version()

    # -- transactions ---------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def transaction(self, opened: T) -> Iterator[T]:
        """Run the statements of this thread in one transaction for the duration of the block."""
        if self.open_transaction() is not None:
            raise InvalidArgument("a transaction is already open in this thread; transactions cannot be nested")
        self._thread.transaction = opened
        try:
            yield opened
        except BaseException:
            self._thread.transaction = None
            with contextlib.suppress(Exception):  # the error that ends the block matters more than a failed rollback
                opened.end("rollback_transaction")
            if opened.explicit:
                self.reload()  # objects created inside the block no longer exist
            raise
        self._thread.transaction = None
        try:
            opened.end("commit_transaction")
        except BaseException:
            with contextlib.suppress(Exception):  # the server may not answer, and discards the rows later
                opened.end("rollback_transaction")
            raise

    def open_transaction(self) -> OpenTransaction | None:
        """The transaction that is open in this thread."""
        opened: OpenTransaction | None = getattr(self._thread, "transaction", None)
        return opened

    def begin(self) -> TransactionContext:
        """Return the context of the next statement: the open transaction, or a new one for this statement only."""
        opened = self.open_transaction()
        return TransactionContext(self.calls.create_transaction()) if opened is None else opened.context

    def explicit_context(self) -> TransactionContext | None:
        """The explicit transaction. Unlike other transactions, it also applies to calls about the catalog."""
        opened = self.open_transaction()
        return opened.context if opened is not None and opened.explicit else None

    # -- tracing --------------------------------------------------------------------------------------------------

    def trace(self, descriptor: FlightDescriptor, transaction: TransactionContext | None = None) -> Trace:
        """Return a new trace for the calls of one scan or exchange."""
        return Trace(self._ids(), descriptor, transaction or TransactionContext())

    def flight_trace(self, descriptor: FlightDescriptor, extra_headers: tuple[tuple[str, str], ...]) -> Trace:
        """Return a new trace for a flight outside of the catalog."""
        return Trace(self._ids(), descriptor, in_catalog=False, extra=extra_headers)
