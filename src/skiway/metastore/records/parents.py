"""Things that hold other things: nothing may be left in one that is deleted or moved.

Whoever puts a child into a parent checks, in the same batch, that the parent is as it was read and not closing. Whoever
deletes a parent first closes it, which every later batch of a child runs into; then counts what is inside; and then
deletes the parent together with the marker. Putting children in never waits for others who do the same.

A marker expires, so a process that dies does not keep a parent closed. Closing moves the parent's version, so a slow
process whose marker has expired cannot finish: neither marker nor version is what it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import TypeVar

from google.protobuf.message import Message

from skiway.errors import Conflict, Contention, NotFound, PreconditionFailed
from skiway.metastore.records import keys
from skiway.metastore.records.errors import failure
from skiway.metastore.records.realm import Realm
from skiway.metastore.records.repository import Repository
from skiway.storage import ABSENT, Check, Delete, Operation, Pointer, Put

__all__ = ["ATTEMPTS", "applied", "closed", "described", "inside", "opened", "remove_empty", "reopen", "retrying"]

T = TypeVar("T")
M = TypeVar("M", bound=Message)

ATTEMPTS = 10


def inside(parent: Pointer) -> tuple[Operation, ...]:
    """What a batch must check that puts something into the parent."""
    return Check(parent.key, expect=parent.version), Check(keys.closing(parent.key), expect=ABSENT)


def closed(realm: Realm, parent: Pointer, *, resource: str) -> Pointer:
    """The parent's pointer, after which nothing can be put into it for a while."""
    expires_at = realm.clock() + timedelta(seconds=realm.closing_s)
    try:
        moved, _ = realm.stores.pointers.apply(
            [
                Put(parent.key, parent.blob_uri, expect=parent.version),
                Put(keys.closing(parent.key), "closing", expect=ABSENT, expires_at=expires_at),
            ]
        )
    except Contention:
        raise
    except Conflict:
        raise _why_not_closed(realm, parent, resource) from None
    return moved


def opened(parent: Pointer) -> tuple[Operation, ...]:
    """What the batch that ends a closing must do."""
    return (Delete(keys.closing(parent.key), expect=1),)


def reopen(realm: Realm, parent: Pointer) -> None:
    """Take the marker away again; one that has expired is gone already."""
    try:
        realm.stores.pointers.apply([Check(parent.key, expect=parent.version), *opened(parent)])
    except Conflict:
        return


def remove_empty(
    realm: Realm, repository: Repository[M], pointer: Pointer, value: M | None, *, require_empty: Callable[[], None]
) -> None:
    """Delete a parent that holds nothing, which `require_empty` insists on: before, and once nothing can come in."""
    require_empty()
    moved = closed(realm, pointer, resource=repository.kind.noun)
    try:
        require_empty()
    except Conflict:
        reopen(realm, moved)
        raise
    repository.delete(moved, value, also=opened(moved))


def applied(realm: Realm, batch: Iterable[Operation], *, what: str) -> None:
    """Do all of the batch, or raise `Contention` because something is no longer as it was read."""
    try:
        realm.stores.pointers.apply(batch)
    except Conflict:
        raise failure(Contention, "store.contended", what=what) from None


def retrying(attempt: Callable[[], T]) -> T:
    """What `attempt` returns. It is called again when others changed what it had read, but not for ever."""
    for _ in range(ATTEMPTS - 1):
        try:
            return attempt()
        except Contention:
            continue
    return attempt()


def _why_not_closed(realm: Realm, parent: Pointer, resource: str) -> Conflict | PreconditionFailed | NotFound:
    name = parent.key.rpartition("/")[2]
    now = realm.stores.pointers.get(parent.key)
    if now is None:
        return failure(NotFound, resource, resource=resource, id=name)
    if now != parent:
        expected, actual = str(parent.version), str(now.version)
        return failure(
            PreconditionFailed, "version.mismatch", resource=resource, id=name, expected=expected, actual=actual
        )
    return failure(Contention, f"{resource}.closing", resource=resource, id=name)


def described(counts: Iterable[tuple[int, str]]) -> str:
    """Such as `2 tables and 1 view`; empty for nothing."""
    said = [f"{count} {noun}{'' if count == 1 else 's'}" for count, noun in counts if count]
    return " and ".join(said) if len(said) < 3 else f"{', '.join(said[:-1])} and {said[-1]}"
