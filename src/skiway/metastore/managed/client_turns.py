"""Turns of REST clients that lose commit races.

When a commit fails, the client has to load the table and write its manifests again. Clients give up after a few attempts;
PyIceberg and Iceberg's Java library retry four times. Other clients, and statements that run on the server, may commit
first each time. So clients that lose take turns:

- After the first loss, statements on all servers wait for the retry for a short time.
- After the second loss, the client joins the line of the table. Its response is held until all clients before it are done.
  Then it has a short time for its retry, in which the others wait.
- A client that arrives while others are in the line joins it too, and commits when it is first. If it loses then, it has a
  short time for its retry as well.

The id of the snapshot that a commit adds recognizes the client, because clients keep it when they retry. Commits without a
snapshot take no turns. All servers share the line, which is stored with the pointers. None of this affects correctness,
which the compare-and-set of commits ensures: waiting ends after a limited time, whatever happens to clients and servers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from threading import Condition
from typing import Final

import msgspec

from skiway.errors import Conflict, SkiwayError
from skiway.metastore.records import keys
from skiway.metastore.records.realm import Realm
from skiway.metastore.records.updates import delete_plain, set_plain

__all__ = ["CLIENT_RETRY_S", "MAX_HELD_S", "MAX_WAIT_S", "TURN_S", "ClientTurns", "Sleep", "wait_for_clients"]

CLIENT_RETRY_S: Final = 2.0
"""How long statements wait for a client that lost a race: its own pause, loading the table, writing manifests."""
MAX_WAIT_S: Final = 5.0
"""How long a statement waits at most, however many clients are expected."""
TURN_S: Final = 3.0
"""How long other clients wait while a client has its turn."""
MAX_HELD_S: Final = 15.0
"""How long a request of a client is held at most. Clients wait at least a minute for a response."""
_KNOWN_S: Final = 60.0  # how long the losses of a client are counted
_POLL_S: Final = 0.02  # of statements
_OTHERS_S: Final = 0.05  # until changes of the line by other servers are noticed

Sleep = Callable[[float], None]
Hold = Callable[[], AbstractContextManager[bool]]


class _Lost(msgspec.Struct, frozen=True):
    """A client that has lost. It is in the line if it has a place, and its turn has begun if it `is_called`."""

    until: float
    """Other commits wait for the client until this time, in seconds since 1970."""
    place: float | None = None
    is_called: bool = False


@dataclass(frozen=True, slots=True)
class _Line:
    """The clients that have lost races for one table. A client without a snapshot has the id 0."""

    realm: Realm
    table_id: str

    def get(self, client: int) -> _Lost | None:
        found = self.realm.stores.pointers.get(self._key(client))
        return None if found is None else msgspec.json.decode(found.blob_uri, type=_Lost)

    def put(self, client: int, lost: _Lost) -> None:
        expires_at = datetime.fromtimestamp(lost.until + _KNOWN_S, UTC)
        set_plain(self.realm.stores, self._key(client), msgspec.json.encode(lost).decode(), expires_at=expires_at)

    def remove(self, client: int) -> None:
        delete_plain(self.realm.stores, self._key(client))

    def first(self) -> int | None:
        """The client that has its turn, or else the first client in the line; None if the line is empty."""
        waiting = [
            (not lost.is_called, lost.place, client) for client, lost in self._expected() if lost.place is not None
        ]
        return min(waiting)[-1] if waiting else None

    def is_expecting(self) -> bool:
        """Whether any client is expected to retry."""
        return any(True for _ in self._expected())

    @property
    def now(self) -> float:
        return self.realm.clock().timestamp()

    def _expected(self) -> Iterator[tuple[int, _Lost]]:
        now, prefix = self.now, self._prefix
        for pointer in self.realm.stores.pointers.scan(prefix):
            lost = msgspec.json.decode(pointer.blob_uri, type=_Lost)
            if lost.until > now:
                yield int(pointer.key.removeprefix(prefix)), lost

    @property
    def _prefix(self) -> str:
        return keys.expected_clients(self.realm.account_id, self.table_id)

    def _key(self, client: int) -> str:
        return f"{self._prefix}{client}"


class ClientTurns:
    """Lets the clients of one server take turns, and those of other servers too.

    Requests are held in a block of `hold`, which yields False if too many of them wait already. Without it none is held.
    """

    def __init__(self, hold: Hold = lambda: nullcontext(False)) -> None:
        self._hold = hold
        self._changed = Condition()

    @contextmanager
    def taken(self, realm: Realm, table_id: str, snapshot_id: int | None) -> Iterator[None]:
        """A block in which a client commits. It begins when no other client is before it; if it fails, it is held."""
        line, client = _Line(realm, table_id), snapshot_id or 0
        if client:
            self._queue(line, client)
        try:
            yield
        except Conflict:
            with suppress(SkiwayError):  # the caller needs to know about the conflict
                self._lost(line, client)
            raise
        except BaseException:
            self._done(line, client)
            raise
        self._done(line, client)

    def _lost(self, line: _Line, client: int) -> None:
        before = line.get(client)
        if before is not None and before.is_called:  # not even in its turn: let the others go on
            self._leave(line, client)
        elif client and before is not None:
            self._queue(line, client)
            line.put(client, _Lost(line.now + TURN_S, before.place or line.now, is_called=True))
        else:
            line.put(client, _Lost(line.now + CLIENT_RETRY_S))

    def _queue(self, line: _Line, client: int) -> None:
        """Join the line unless it is empty, and wait until the client is first."""
        if line.first() in (None, client):
            return
        with self._hold() as is_held:
            if is_held:
                line.put(client, _Lost(line.now + MAX_HELD_S + TURN_S, line.now))
                until = time.monotonic() + MAX_HELD_S
                while line.first() not in (None, client) and time.monotonic() < until:
                    with self._changed:
                        self._changed.wait(_OTHERS_S)

    def _done(self, line: _Line, client: int) -> None:
        """Let the next client go on. A failure of the store does not change the outcome of the commit."""
        with suppress(SkiwayError):
            if client and line.get(client) is not None:
                self._leave(line, client)

    def _leave(self, line: _Line, client: int) -> None:
        line.remove(client)
        self._notify()

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()


def wait_for_clients(
    realm: Realm,
    table_id: str,
    *,
    sleep: Sleep = time.sleep,
    monotonic: Callable[[], float] = time.monotonic,
) -> None:
    """Wait while remote clients that lost a race are expected to retry."""
    until, line = monotonic() + MAX_WAIT_S, _Line(realm, table_id)
    while monotonic() < until and line.is_expecting():
        sleep(_POLL_S)
