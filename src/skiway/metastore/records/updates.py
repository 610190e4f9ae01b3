"""Conditional changes of stored resources: preconditions, field masks, updates, deletions and retries.

A field in the mask is copied from the spec. If the spec does not set it, an optional field is cleared, and a required
one is an error. Maps and lists are replaced as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import datetime
from typing import Any, Final, TypeVar, cast

from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.message import Message
from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception,
    retry_if_exception_type,
    retry_if_not_exception_type,
    stop_after_attempt,
    wait_none,
)
from tenacity.wait import wait_base

from skiway.errors import Busy, Conflict, Contention, InvalidArgument, NotFound, PreconditionFailed
from skiway.metastore.records import keys
from skiway.metastore.records.errors import failure
from skiway.metastore.records.kinds import GRANT
from skiway.metastore.records.realm import Realm
from skiway.metastore.records.repository import Repository, Stored, etag, meta_of
from skiway.model import v1
from skiway.storage import ABSENT, Operation, Pointer, Stores

__all__ = [
    "ATTEMPTS",
    "apply_batch",
    "check",
    "copied",
    "copy_field",
    "delete",
    "delete_plain",
    "has_conditions",
    "masked_paths",
    "retrying",
    "set_plain",
    "update",
]

M = TypeVar("M", bound=Message)
T = TypeVar("T")

Remove = Callable[[Pointer, M | None], None]
Write = Callable[[Stored[M], M], Stored[M]]

ATTEMPTS = 10
"""How often a change is attempted while others change what it has read."""

GRANTED_ON: Final = ("catalog", "namespace", "table", "view")
"""The kinds of objects on which privileges are granted."""


# --- changes ----------------------------------------------------------------------------------------------------------


def update(
    realm: Realm,
    repository: Repository[M],
    key: str,
    *,
    name: str,
    precondition: v1.Precondition,
    edit: Callable[[M], None],
    write: Write[M] | None = None,
    always: bool = False,
) -> Stored[M]:
    """Apply `edit` to a copy of the resource and store the result, unless nothing changed and `always` is not set.

    `write` stores it where a plain update is not enough. A lost race is not retried, because the caller decided on the
    basis of what it had read.
    """
    current = repository.require(key, name=name)
    check(precondition, current.pointer, resource=repository.kind.noun, name=name)
    desired = copied(current.value)
    edit(desired)
    repository.require_change(current.value, desired)
    if desired == current.value and not always:
        if has_conditions(precondition):
            again = repository.require(key, name=name)
            check(precondition, again.pointer, resource=repository.kind.noun, name=name)
        return current
    cast(Any, desired).updated_at.CopyFrom(realm.now())
    return (write or repository.update)(current, desired)


def delete(
    repository: Repository[M], key: str, *, name: str, precondition: v1.Precondition, remove: Remove[M] | None = None
) -> v1.MutationMeta:
    """Delete a resource and return where it was stored.

    Deleting a missing resource is not an error, unless the request has a precondition. A lost race is retried under
    the same condition.
    """
    conditional = has_conditions(precondition)

    def attempt() -> v1.MutationMeta:
        found = repository.peek(key)
        if found is None:
            if conditional:
                raise repository.missing(name)
            return v1.MutationMeta(pointer_key=key)
        pointer, value = found
        if value is not None:
            repository.require_change(value)
        check(precondition, pointer, resource=repository.kind.noun, name=name)
        (remove or repository.delete)(pointer, value)
        if repository.kind.noun in GRANTED_ON:
            _forget_grants(repository.stores, key)
        return meta_of(pointer, value)

    def give_up(state: RetryCallState) -> v1.MutationMeta:
        error = state.outcome.exception() if state.outcome else None
        if isinstance(error, Contention):
            raise error
        raise failure(Contention, "store.contended", what=f"{repository.kind.noun} {name}") from error

    return Retrying(
        retry=retry_if_exception(lambda error: not conditional and _is_lost_race(error)),
        stop=stop_after_attempt(ATTEMPTS),
        retry_error_callback=give_up,
    )(attempt)


def _forget_grants(stores: Stores, key: str) -> None:
    """Delete the grants on a deleted object, which have no effect any more: nothing else gets its id."""
    grants = Repository(stores, GRANT)
    for pointer in stores.pointers.scan(keys.grants_on(key)):
        with suppress(Conflict, NotFound, PreconditionFailed):  # somebody else deletes it
            found = grants.peek(pointer.key)
            if found is not None:
                grants.delete(*found)


def _is_lost_race(error: BaseException) -> bool:
    if isinstance(error, Contention | NotFound):
        return not isinstance(error, Busy)
    return isinstance(error, PreconditionFailed) and error.key == "version.mismatch"


def retrying(attempt: Callable[[], T], *, attempts: int = ATTEMPTS, pauses: wait_base | None = None) -> T:
    """Return what `attempt` returns. Call it again, up to `attempts` times in all, when it loses a race.

    `pauses` are the times between the attempts, by default none.
    """
    is_lost_race = retry_if_exception_type(Contention) & retry_if_not_exception_type(Busy)
    return Retrying(retry=is_lost_race, stop=stop_after_attempt(attempts), wait=pauses or wait_none(), reraise=True)(
        attempt
    )


def apply_batch(realm: Realm, batch: Iterable[Operation], *, what: str) -> None:
    """Apply the whole batch, or raise `Contention` because something changed since it was read."""
    try:
        realm.stores.pointers.apply(batch)
    except Conflict:
        raise failure(Contention, "store.contended", what=what) from None


def set_plain(stores: Stores, key: str, value: str, *, expires_at: datetime | None = None) -> None:
    """Set a pointer that holds a value itself, unless another server sets it at the same moment."""
    found = stores.pointers.get(key)
    with suppress(Conflict, NotFound):
        expect = ABSENT if found is None else found.version
        stores.pointers.compare_and_set(key, value, expect=expect, expires_at=expires_at)


def delete_plain(stores: Stores, key: str) -> None:
    """Delete a pointer that holds a value itself, unless another server changes it at the same moment."""
    found = stores.pointers.get(key)
    if found is not None:
        with suppress(Conflict, NotFound):
            stores.pointers.compare_and_delete(key, expect=found.version)


# --- preconditions ----------------------------------------------------------------------------------------------------


def has_conditions(precondition: v1.Precondition) -> bool:
    """Whether the precondition requires anything."""
    return precondition.HasField("expected_version") or precondition.HasField("expected_etag")


def check(precondition: v1.Precondition, pointer: Pointer, *, resource: str, name: str) -> None:
    """Raise `PreconditionFailed` unless the resource at `pointer` has the expected version and etag."""
    if precondition.HasField("expected_version") and precondition.expected_version != pointer.version:
        expected, actual = str(precondition.expected_version), str(pointer.version)
        raise failure(
            PreconditionFailed, "version.mismatch", resource=resource, id=name, expected=expected, actual=actual
        )
    if precondition.HasField("expected_etag") and precondition.expected_etag != etag(pointer):
        expected, actual = precondition.expected_etag, etag(pointer)
        raise failure(PreconditionFailed, "etag.mismatch", resource=resource, id=name, expected=expected, actual=actual)


# --- field masks ------------------------------------------------------------------------------------------------------


def copied(value: M) -> M:
    """A copy of a message."""
    copy = type(value)()
    copy.CopyFrom(value)
    return copy


def masked_paths(mask: FieldMask, *, allowed: Iterable[str], resource: str) -> set[str]:
    """The paths of a mask in lower case. Raise if there are none, or if one is not allowed."""
    paths = {path.strip().lower() for path in mask.paths}
    if not paths:
        raise failure(InvalidArgument, "update.mask.required", field="update_mask")
    choices = sorted(allowed)
    for path in sorted(paths):
        if path not in choices:
            raise failure(
                InvalidArgument,
                "update.mask.path.invalid",
                path=path,
                resource=resource,
                allowed=", ".join(choices),
                field="update_mask",
            )
    return paths


def copy_field(source: Message, target: Message, path: str, *, required: bool = False) -> None:
    """Set the field at `path` of `target` to its value in `source`. Both messages must have a field, or a choice between
    fields, of this name.
    """
    *parents, name = path.split(".")
    for parent in parents:
        source, target = getattr(source, parent), getattr(target, parent)
    if name in source.DESCRIPTOR.oneofs_by_name:
        target.ClearField(name)
        name = source.WhichOneof(name) or ""
        if not name:
            return
    if _is_set(source, name):
        _replace(target, name, getattr(source, name))
    elif required:
        raise failure(InvalidArgument, f"{name.replace('_', '.')}.cannot.clear", field=path)
    else:
        target.ClearField(name)


def _is_set(message: Message, name: str) -> bool:
    field = message.DESCRIPTOR.fields_by_name[name]
    return message.HasField(name) if field.has_presence else bool(getattr(message, name))


def _replace(target: Message, name: str, value: Any) -> None:
    """Assign to a field of any type. Only scalar fields can be set; others are merged into an empty one."""
    target.ClearField(name)
    if isinstance(value, Message):
        getattr(target, name).CopyFrom(value)
    elif isinstance(value, str | bytes | int | float):
        setattr(target, name, value)
    else:
        getattr(target, name).MergeFrom(value)
