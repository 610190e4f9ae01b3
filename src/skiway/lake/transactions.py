"""Transactions as DuckDB has them: an id for some statements, of whose end nobody hears.

Beginning one costs nothing: the id is a signed token with the moment it began and the server that gave it. The first read
of a table in a transaction pins its snapshot of then, in memory; later reads see the same. A write re-pins to what it
committed. Another server, which cannot know what was pinned, falls back to the snapshot as of the transaction's begin.
"""

from __future__ import annotations

import hmac
import secrets
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from threading import Lock
from typing import Final

from skiway.airport import TransactionManager, TransactionStatus
from skiway.errors import PreconditionFailed
from skiway.security import utc_now

__all__ = ["LakeTransactions"]

_MAC: Final = 24  # hexadecimal digits


class LakeTransactions(TransactionManager):
    """Ids and pins. Each statement that writes commits by itself, so there is nothing to commit or to roll back here."""

    def __init__(
        self,
        key: bytes,
        *,
        ttl: timedelta = timedelta(hours=1),
        keep: int = 100_000,
        clock: Callable[[], datetime] = utc_now,
        server: str | None = None,
    ) -> None:
        self._key = key
        self._ttl = ttl
        self._keep = keep
        self._clock = clock
        self._server = server or secrets.token_hex(4)
        self._lock = Lock()
        self._pins: OrderedDict[tuple[str, str, str], int | None] = OrderedDict()

    def begin(self) -> str:
        """A new id."""
        micros = int(self._clock().timestamp() * 1_000_000)
        body = f"{micros:x}.{self._server}.{secrets.token_hex(8)}"
        return f"{body}.{self._mac(body)}"

    def commit(self, transaction_id: str) -> None:
        """Nothing is left to do: what was written is visible."""

    def rollback(self, transaction_id: str) -> None:
        """What failed has left nothing behind; what was committed before stays."""

    def status(self, transaction_id: str) -> TransactionStatus | None:
        """Active, until it is too old; None for an id that is not one of ours."""
        began = self._began(transaction_id)
        return None if began is None or self._clock() - began > self._ttl else TransactionStatus.ACTIVE

    def pinned(
        self, transaction_id: str, table_id: str, point: str, *, find: Callable[[datetime | None], int | None]
    ) -> int | None:
        """The snapshot of a table that a transaction reads; `find` looks for it, as of a moment or as of now.

        `point` says which time the statement asks for, if it does. Without a transaction, each call finds anew.
        """
        began = self._began(transaction_id) if transaction_id else None
        if began is None:
            return find(None)
        if self._clock() - began > self._ttl:
            raise PreconditionFailed(
                f"this transaction began more than {self._ttl} ago, and what it saw is no longer kept: COMMIT or ROLLBACK, "
                "then begin a new one",
                key="transaction.expired",
            )
        key = (transaction_id, table_id, point)
        with self._lock:
            if key in self._pins:
                return self._pins[key]
        found = find(None if self._is_ours(transaction_id) else began)
        with self._lock:
            return self._put(key, self._pins.get(key, found))

    def repin(self, transaction_id: str, table_id: str, snapshot_id: int | None) -> None:
        """Let the transaction see what it has just written."""
        if transaction_id and self._began(transaction_id) is not None:
            with self._lock:
                self._put((transaction_id, table_id, ""), snapshot_id)

    def _put(self, key: tuple[str, str, str], snapshot_id: int | None) -> int | None:
        self._pins[key] = snapshot_id
        self._pins.move_to_end(key)
        while len(self._pins) > self._keep:
            self._pins.popitem(last=False)
        return snapshot_id

    def _is_ours(self, transaction_id: str) -> bool:
        return transaction_id.split(".")[1] == self._server

    def _began(self, transaction_id: str) -> datetime | None:
        body, _, mac = transaction_id.rpartition(".")
        if not hmac.compare_digest(mac.encode(), self._mac(body).encode()):
            return None
        return datetime.fromtimestamp(int(body.partition(".")[0], 16) / 1_000_000, UTC)

    def _mac(self, body: str) -> str:
        return hmac.digest(self._key, f"transaction:{body}".encode(), "sha256").hex()[:_MAC]
