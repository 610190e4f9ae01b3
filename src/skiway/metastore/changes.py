"""How every kind of resource is updated and deleted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from google.protobuf.message import Message

from skiway.errors import Contention, NotFound, PreconditionFailed
from skiway.metastore import preconditions
from skiway.metastore.failures import failure
from skiway.metastore.parents import ATTEMPTS
from skiway.metastore.realm import Realm
from skiway.metastore.repository import Repository, Stored, meta_of
from skiway.model import v1
from skiway.storage import Pointer

__all__ = ["copied", "delete", "update"]

M = TypeVar("M", bound=Message)

Remove = Callable[[Pointer, M | None], None]
Write = Callable[[Stored[M], M], Stored[M]]


def copied(value: M) -> M:
    """A copy of one's own."""
    copy = type(value)()
    copy.CopyFrom(value)
    return copy


def update(
    realm: Realm,
    repository: Repository[M],
    key: str,
    *,
    name: str,
    precondition: v1.Precondition,
    edit: Callable[[M], None],
    write: Write[M] | None = None,
) -> Stored[M]:
    """The resource after `edit`, which is given a copy. What `edit` leaves as it was is not written.

    `write` replaces the one by the other where that takes more than a plain update. A lost race is not tried again: the
    caller decided on what it had read.
    """
    current = repository.require(key, name=name)
    preconditions.check(precondition, current.pointer, resource=repository.kind.noun, name=name)
    desired = copied(current.value)
    edit(desired)
    if desired == current.value:
        if preconditions.demands(precondition):
            again = repository.require(key, name=name)
            preconditions.check(precondition, again.pointer, resource=repository.kind.noun, name=name)
        return current
    cast(Any, desired).updated_at.CopyFrom(realm.now())
    return (write or repository.update)(current, desired)


def delete(
    repository: Repository[M], key: str, *, name: str, precondition: v1.Precondition, remove: Remove[M] | None = None
) -> v1.MutationMeta:
    """Delete a resource; where it was stored. Deleting what is not there is fine, unless something is demanded of it."""
    remove = remove or repository.delete
    demanded = preconditions.demands(precondition)
    lost: Contention | None = None
    for _ in range(ATTEMPTS):
        found = repository.peek(key)
        if found is None:
            if demanded:
                raise repository.missing(name)
            return v1.MutationMeta(pointer_key=key)
        pointer, value = found
        preconditions.check(precondition, pointer, resource=repository.kind.noun, name=name)
        try:
            remove(pointer, value)
        except (NotFound, Contention, PreconditionFailed) as error:
            if demanded or not _lost_race(error):
                raise
            lost = error if isinstance(error, Contention) else lost
        else:
            return meta_of(pointer, value)
    raise lost or failure(Contention, "store.contended", what=f"{repository.kind.noun} {name}")


def _lost_race(error: NotFound | Contention | PreconditionFailed) -> bool:
    return isinstance(error, Contention | NotFound) or error.key == "version.mismatch"
