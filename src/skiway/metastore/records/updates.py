"""Changes of stored resources: preconditions, field masks, updates, deletions, retries and idempotency keys."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any, Final, Generic, TypeVar, cast

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

from skiway.errors import (
    Busy,
    Conflict,
    Contention,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    PreconditionFailed,
    SkiwayError,
)
from skiway.metastore.records import keys
from skiway.metastore.records.errors import failure
from skiway.metastore.records.kinds import GRANT, IDEMPOTENCY, Kind
from skiway.metastore.records.realm import Realm, timestamp
from skiway.metastore.records.repository import Repository, Stored, etag, meta_of
from skiway.model import v1
from skiway.storage import ABSENT, Check, Delete, Operation, Pointer, Put, Stores

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
    kind: Kind[M],
    own_id: str,
    precondition: v1.Precondition,
    edit: Callable[[M], None],
    write: Write[M] | None = None,
    *,
    key: str = "",
    always: bool = False,
) -> Stored[M]:
    """Apply `edit` to a copy of the resource with an id and store the result, unless nothing changed and `always` is not set.

    `write` stores it where a plain update is not enough. A lost race is not retried, because the caller decided on the
    basis of what it had read.
    """
    repository, key = realm.all(kind), key or kind.by_id(realm.account_id, own_id)
    current = repository.require(key, name=own_id)
    check(precondition, current.pointer, resource=kind.noun, name=own_id)
    desired = copied(current.value)
    edit(desired)
    repository.require_change(current.value, desired)
    if desired == current.value and not always:
        if has_conditions(precondition):
            check(precondition, repository.require(key, name=own_id).pointer, resource=kind.noun, name=own_id)
        return current
    cast(Any, desired).updated_at.CopyFrom(realm.now())
    return (write or repository.update)(current, desired)


def delete(
    repository: Repository[M], key: str, name: str, precondition: v1.Precondition, remove: Remove[M] | None = None
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
            forget_grants(repository.stores, key)
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


def forget_grants(stores: Stores, key: str) -> None:
    """Delete the grants on a deleted object, which have no effect any more: nothing else gets its id."""
    grants = Repository(stores, GRANT)
    for pointer in stores.pointers.scan(keys.grants_on(key)):
        with suppress(Conflict, NotFound, PreconditionFailed):  # another server deletes it
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
    pointer = stores.pointers.get(key)
    with suppress(Conflict, NotFound):
        expect = ABSENT if pointer is None else pointer.version
        stores.pointers.compare_and_set(key, value, expect=expect, expires_at=expires_at)


def delete_plain(stores: Stores, key: str) -> None:
    """Delete a pointer that holds a value itself, unless another server changes it at the same moment."""
    pointer = stores.pointers.get(key)
    if pointer is not None:
        with suppress(Conflict, NotFound):
            stores.pointers.compare_and_delete(key, expect=pointer.version)


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


def copy_fields(target: Message, source: Message, paths: Iterable[str], required: Set[str] = frozenset()) -> None:
    """Set the fields at the paths to their values in `source`. Raise if that clears one of those that are `required`."""
    for path in sorted(paths):
        copy_field(source, target, path, required=path in required)


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


@contextmanager
def closed(realm: Realm, parent: Pointer, *, resource: str, require: Callable[[], None]) -> Iterator[Pointer]:
    """Prevent new children in the block, which gets the parent's moved pointer, and whose batch contains `reopening`.

    `require` raises if the children do not allow the change; it is called before and after closing.
    """
    require()
    moved = close_parent(realm, parent, resource=resource)
    try:
        require()
        yield moved
    except Conflict:
        reopen(realm, moved)
        raise


def remove_empty(
    realm: Realm, repository: Repository[M], pointer: Pointer, value: M | None, *, held: Callable[[], str]
) -> None:
    """Delete a parent that has no children. `held` returns what it contains in words; "" is nothing."""
    noun = repository.kind.noun
    name = keys.last_segment(pointer.key) if value is None else repository.kind.title(value)

    def require() -> None:
        if found := held():
            raise failure(Conflict, f"{noun}.not_empty", display_name=name, found=found)

    with closed(realm, pointer, resource=noun, require=require) as moved:
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


CHANGES_RIGHTS: Final = ("CreatePolicy",)
"""Operations after which the caller may have other rights. Their responses contain nothing that these hide."""

R = TypeVar("R", bound=Message)

BETWEEN: Final = "|"
"""Separates the digests of the request and of the caller's rights in a fingerprint."""


@dataclass(frozen=True, slots=True)
class Claim(Generic[R]):
    """A request with its idempotency key. `request` has normalized names; a blank key stores nothing."""

    realm: Realm
    operation: str
    key: str
    request: Message
    response: type[R]

    def stored_response(self) -> R | None:
        """The response to an earlier request with this key, or None."""
        if not self.key.strip():
            return None
        slot = Slot(self.realm, self.operation, self.key, fingerprint(self.request))
        record = slot.find()
        if record is None:
            return None
        if not slot.matches(record):
            raise failure(Conflict, "idempotency.mismatch", op=self.operation, idempotency_key=self.key)
        if self.operation not in CHANGES_RIGHTS:
            slot.require_rights(record)
        return self.response.FromString(record.answer)

    def created(
        self,
        repository: Repository[M],
        value: M,
        batch: Iterable[Operation] = (),
        *,
        shown: Callable[[M], M] = lambda value: value,
    ) -> R:
        """Create a resource in one batch with the stored response and further operations. Callers see it as `shown` returns it."""

        def response(stored: Stored[M]) -> R:
            return self.response(**{repository.kind.noun: shown(stored.value), "meta": stored.meta})

        return response(repository.create(value, also=lambda stored: (*batch, *self.storing(response(stored)))))

    def storing(self, response: R) -> tuple[Operation, ...]:
        """The operations that store the response until it expires; part of the batch that makes the change."""
        if not self.key.strip():
            return ()
        slot = Slot(self.realm, self.operation, self.key, fingerprint(self.request))
        stored = response.SerializeToString(deterministic=True)
        return (slot.put(stored, expect=ABSENT, for_s=self.realm.idempotency_ttl_s),)


def once(claim: Claim[R], act: Callable[[], R]) -> R:
    """The stored response to an earlier request with this key, or that of `act`, which must store it."""
    earlier = claim.stored_response()
    if earlier is not None:
        return earlier
    try:
        return act()
    except Conflict:
        # A request with the same key may have been faster.
        earlier = claim.stored_response()
        if earlier is None:
            raise
        return earlier


@dataclass(frozen=True, slots=True)
class Slot:
    """The record of one idempotency key. While a request runs it is reserved; afterwards it holds the response."""

    realm: Realm
    operation: str
    key: str
    fingerprint: str

    def find(self) -> v1.IdempotencyRecord | None:
        """The record of an earlier request with this key, or None. Without a response, it is still running."""
        return self.realm.all(IDEMPOTENCY).named(self._where)

    def matches(self, record: v1.IdempotencyRecord) -> bool:
        """Whether the record is that of the same request."""
        return record.fingerprint.partition(BETWEEN)[0] == self.fingerprint

    def require_rights(self, record: v1.IdempotencyRecord) -> None:
        """Raise `PermissionDenied` if the caller has other rights than when the response was stored."""
        if record.fingerprint.partition(BETWEEN)[2] != self.realm.rights:
            raise failure(PermissionDenied, "idempotency.rights", idempotency_key=self.key)

    def put(self, response: bytes, *, expect: int, for_s: float) -> Put:
        """Write the record's blob, and return the operation that stores the record for `for_s` seconds."""
        now = self.realm.clock()
        expires_at = now + timedelta(seconds=for_s)
        record = v1.IdempotencyRecord(
            account_id=self.realm.account_id,
            operation=self.operation,
            key=self._own_key,
            fingerprint=f"{self.fingerprint}{BETWEEN}{self.realm.rights}",
            answer=response,
            created_at=timestamp(now),
            updated_at=timestamp(now),
            expires_at=timestamp(expires_at),
        )
        data = record.SerializeToString(deterministic=True)
        uri = self.realm.stores.blobs.put(data, folder=keys.folder(self._where), suffix=".pb")
        return Put(self._where, uri, expect=expect, expires_at=expires_at)

    def reserve(self, *, for_s: float) -> int:
        """Reserve the key, and return the version for `complete` or `free`. Raise `Conflict` if it is in use."""
        return self._write(b"", expect=ABSENT, for_s=for_s)

    def complete(self, version: int, response: bytes) -> None:
        """Store the response until it expires."""
        self._write(response, expect=version, for_s=self.realm.idempotency_ttl_s)

    def free(self, version: int) -> None:
        """Allow the request to be sent again. If that fails, the reservation expires."""
        with suppress(SkiwayError):
            self.realm.stores.pointers.compare_and_delete(self._where, expect=version)

    @property
    def _where(self) -> str:
        return keys.idempotency(self.realm.account_id, self.operation, self._own_key)

    @property
    def _own_key(self) -> str:
        """The key, which callers do not share."""
        return f"{self.realm.caller}\n{self.key}"

    def _write(self, response: bytes, *, expect: int, for_s: float) -> int:
        put = self.put(response, expect=expect, for_s=for_s)
        pointers = self.realm.stores.pointers
        return pointers.compare_and_set(put.key, put.blob_uri, expect=expect, expires_at=put.expires_at).version


def fingerprint(request: Message) -> str:
    """A digest that is equal for equal messages."""
    return base64.b64encode(sha256(request.SerializeToString(deterministic=True)).digest()).decode()
