"""Deleting and moving resources that contain others, without leaving anything behind in them.

A batch that adds a child to a parent checks that the parent is unchanged and not closing. To delete a parent, a process
first closes it, so that every later batch of a child fails; then counts the children; and then deletes the parent
together with the marker. Adding children never waits for others who add children.

A marker expires, so a process that dies does not keep a parent closed. Closing also moves the parent's version, so a
slow process whose marker has expired cannot finish: neither the marker nor the version is what it expects.
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

__all__ = ["close_parent", "counted", "inside", "remove_empty", "reopen", "reopening"]

M = TypeVar("M", bound=Message)


def inside(parent: Pointer) -> tuple[Operation, ...]:
    """The checks of a batch that adds a child to the parent."""
    return Check(parent.key, expect=parent.version), Check(keys.closing(parent.key), expect=ABSENT)


def close_parent(realm: Realm, parent: Pointer, *, resource: str) -> Pointer:
    """Prevent new children until the marker is deleted or expires, and return the parent's moved pointer."""
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


def reopening(parent: Pointer) -> tuple[Operation, ...]:
    """The operations that delete the closing marker; part of the batch that completes a deletion or move."""
    return (Delete(keys.closing(parent.key), expect=1),)


def reopen(realm: Realm, parent: Pointer) -> None:
    """Delete the closing marker after a failure, unless it has expired already."""
    try:
        realm.stores.pointers.apply([Check(parent.key, expect=parent.version), *reopening(parent)])
    except Conflict:
        return


def remove_empty(
    realm: Realm, repository: Repository[M], pointer: Pointer, value: M | None, *, require_empty: Callable[[], None]
) -> None:
    """Delete a parent that has no children. `require_empty` raises if it has; it runs before and after closing."""
    require_empty()
    moved = close_parent(realm, pointer, resource=repository.kind.noun)
    try:
        require_empty()
    except Conflict:
        reopen(realm, moved)
        raise
    repository.delete(moved, value, also=reopening(moved))


def counted(counts: Iterable[tuple[int, str]]) -> str:
    """Counts in words, such as `2 tables and 1 view`; empty if all are zero."""
    parts = [f"{count} {noun}{'' if count == 1 else 's'}" for count, noun in counts if count]
    return " and ".join(parts) if len(parts) < 3 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _why_not_closed(realm: Realm, parent: Pointer, resource: str) -> Conflict | PreconditionFailed | NotFound:
    name = keys.last_segment(parent.key)
    current = realm.stores.pointers.get(parent.key)
    if current is None:
        return failure(NotFound, resource, resource=resource, id=name)
    if current != parent:
        expected, actual = str(parent.version), str(current.version)
        return failure(
            PreconditionFailed, "version.mismatch", resource=resource, id=name, expected=expected, actual=actual
        )
    return failure(Contention, f"{resource}.closing", resource=resource, id=name)
