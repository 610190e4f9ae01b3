"""Turns at a table that many commit to at once: no work that is bound to be lost, and nobody who waits for ever.

Commits of one server to one table are made one after the other, so that they do not lose races to each other. That saves
work and decides nothing: servers know nothing of each other's turns, and the compare-and-set decides.

A client of Iceberg REST that lost a race has to load the table and write its manifests anew before it can commit again,
while a statement that runs here is back in a moment. So as long as such clients are expected, statements stand aside for
a while, on all servers; else they might lose for ever to those who are nearer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from threading import Lock
from typing import Final
from weakref import WeakValueDictionary

from skiway.errors import Conflict, NotFound
from skiway.metastore.records.names import encoded
from skiway.metastore.records.realm import Realm
from skiway.storage import ABSENT

__all__ = ["from_afar", "stand_aside", "turn"]

LONGEST_TURN_S: Final = 10.0
"""After which the next one begins nevertheless: a store may have stopped answering."""
AGAIN_WITHIN_S: Final = 2.0
"""How long a client that lost is waited for: its own pause, loading the table, writing manifests."""
PATIENCE_S: Final = 5.0
"""How long a statement stands aside at most, however many clients are expected."""
_LOOK_EVERY_S: Final = 0.02

_turns: Final[WeakValueDictionary[tuple[int, str, str], _Turn]] = WeakValueDictionary()
_making: Final = Lock()


class _Turn:
    """The lock of one table, there as long as somebody wants it."""

    __slots__ = ("__weakref__", "lock")

    def __init__(self) -> None:
        self.lock = Lock()


@contextmanager
def turn(realm: Realm, table_id: str) -> Iterator[None]:
    """A block that is entered by one thread of this process at a time, for each table."""
    key = (id(realm.stores.pointers), realm.account_id, table_id)
    with _making:
        mine = _turns.setdefault(key, _Turn())
    has_turn = mine.lock.acquire(timeout=LONGEST_TURN_S)
    try:
        yield
    finally:
        if has_turn:
            mine.lock.release()


@contextmanager
def from_afar(realm: Realm, table_id: str) -> Iterator[None]:
    """A block in which a client commits that has a long way to try again; if it loses, it is expected for a while."""
    try:
        yield
    except Conflict:
        _expect_again(realm, table_id)
        raise


def _expect_again(realm: Realm, table_id: str) -> None:
    pointers, key = realm.stores.pointers, _key(realm, table_id)
    found, until = pointers.get(key), realm.clock() + timedelta(seconds=AGAIN_WITHIN_S)
    with suppress(Conflict, NotFound):  # another one lost at the same moment, and is expected
        pointers.compare_and_set(key, "expected", expect=found.version if found else ABSENT, expires_at=until)


def stand_aside(
    realm: Realm,
    table_id: str,
    *,
    pause: Callable[[float], None] = time.sleep,
    monotonic: Callable[[], float] = time.monotonic,
) -> None:
    """Wait while clients are expected that have lost to others."""
    until = monotonic() + PATIENCE_S
    while monotonic() < until and realm.stores.pointers.get(_key(realm, table_id)) is not None:
        pause(_LOOK_EVERY_S)


def _key(realm: Realm, table_id: str) -> str:
    return f"/expected/{encoded(realm.account_id)}/{encoded(table_id)}"
