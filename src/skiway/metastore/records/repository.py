"""Resources, stored as pointers and blobs.

A write stores the blob first and then moves all pointers of the resource in one batch. So a reader sees the resource
before or after the change, never in between, and a process that dies leaves at most an unreferenced blob. When a batch
is rejected, the pointers are read again to find out why.

Listings are paged. A page token names the last resource of the page, so pages stay correct while resources come and go.
"""

from __future__ import annotations

import base64
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Generic, TypeVar, cast

from google.protobuf.message import DecodeError, Message

from skiway.errors import AlreadyExists, Conflict, Contention, Internal, NotFound, PreconditionFailed, SkiwayError
from skiway.metastore.records import keys
from skiway.metastore.records.damage import damage_of, damaged_error, partial_record
from skiway.metastore.records.errors import failure
from skiway.metastore.records.kinds import Kind
from skiway.model import v1
from skiway.storage import ABSENT, Delete, Operation, Page, Pointer, Put, Stores, blob_digest
from skiway.storage.calls import first_page, open_token, seal_token
from skiway.telemetry.context import require_active

M = TypeVar("M", bound=Message)
T = TypeVar("T")

DEFAULT_PAGE_SIZE = 50
LEAST_READ = 100
MAX_PAGE_SIZE = 1000


@dataclass(frozen=True, slots=True)
class Stored(Generic[M]):
    """A resource as read or written, with its canonical pointer. The caller may modify the message."""

    value: M
    pointer: Pointer

    @property
    def meta(self) -> v1.MutationMeta:
        """Where and in which version it is stored."""
        return meta_of(self.pointer, self.value)

    @property
    def etag(self) -> str:
        """A digest of the content."""
        return etag(self.pointer)


@dataclass(frozen=True, slots=True)
class Replacement(Generic[M]):
    """A change of a resource that is not published yet: its state before and after, and the operations to apply."""

    current: Stored[M]
    stored: Stored[M]
    operations: tuple[Operation, ...]
    added: tuple[str, ...]
    """The names that the resource gets."""


@dataclass(frozen=True, slots=True)
class Creation(Generic[M]):
    """A new resource that is not published yet, and the operations to apply."""

    stored: Stored[M]
    operations: tuple[Put, ...]


Also = Callable[[Stored[M]], Iterable[Operation]]
"""Returns further operations for the batch that writes a resource, given what will be written."""


class Guard(ABC):
    """Decides which resources of a kind a caller sees and may change."""

    __slots__ = ()

    @property
    def sees_everything(self) -> bool:
        """Whether the caller sees all resources of the account."""
        return True

    @property
    def allows_unreadable(self) -> bool:
        """Whether the caller may delete resources that cannot be read, whatever they are."""
        return False

    def sees(self, value: Message) -> bool:  # noqa: ARG002
        """Whether the caller sees the resource. What a caller does not see does not exist for them."""
        return True

    def shown(self, value: Message) -> Message | None:
        """What the caller sees of a resource that it sees; None if that is nothing."""
        return value

    @abstractmethod
    def require_change(self, *states: Message) -> None:
        """Raise `PermissionDenied` unless the caller may change the resource, in all these states."""

    def require_create(self, value: Message) -> None:
        """Raise `PermissionDenied` unless the caller may create the resource."""
        self.require_change(value)


@dataclass(frozen=True, slots=True)
class Repository(Generic[M]):
    """All resources of one kind; with `guards`, those that a caller sees, of which it may change some."""

    stores: Stores
    kind: Kind[M]
    guards: tuple[Guard, ...] = ()

    def find(self, key: str) -> Stored[M] | None:
        """The resource at a canonical key, or None."""
        return self.follow(self.stores.pointers.get(key))

    def named(self, key: str) -> M | None:
        """The resource at one of its other keys, or None."""
        found = self.find(key)
        return None if found is None else found.value

    def find_named(self, key: str) -> Stored[M] | None:
        """The resource at one of its other keys, with its canonical pointer, or None."""
        while (found := self.find(key)) is not None:
            own = self.stores.pointers.get(keys.owner(found.pointer))
            if own is not None and own.blob_uri == found.pointer.blob_uri:
                return Stored(found.value, own)
            # Both pointers move together. If they differ, the resource changed between the two reads, or is damaged.
            if self.stores.pointers.get(key) == found.pointer:
                raise self._partial(found.value, key)
        return None

    def require(self, key: str, *, name: str, damaged: bool = False) -> Stored[M]:
        """The resource at a canonical key. Raise `NotFound` with `name` if there is none.

        If `damaged`, a damaged resource is returned with what its keys tell, as in listings. Otherwise the error says what
        is damaged.
        """
        found = self.entry(self.stores.pointers.get(key))
        if found is None:
            raise self.missing(name)
        damage = getattr(found.value, "damage", "")  # some kinds of resources are never listed
        if damage and not damaged:
            raise damaged_error(self.kind.noun, name, damage)
        return found

    def peek(self, key: str) -> tuple[Pointer, M | None] | None:
        """The canonical pointer and, if its blob can be read, the resource. Used to delete damaged resources too."""
        pointer = self.stores.pointers.get(key)
        if pointer is None:
            return None
        try:
            value = self._parsed(pointer.blob_uri)
        except (NotFound, Internal):
            return (pointer, None) if all(guard.allows_unreadable for guard in self.guards) else None
        return (pointer, value) if self.sees(value) else None

    @property
    def sees_everything(self) -> bool:
        """Whether the caller sees all resources of the account."""
        return all(guard.sees_everything for guard in self.guards)

    def sees(self, value: Message) -> bool:
        """Whether the caller sees the resource."""
        return all(guard.sees(value) for guard in self.guards)

    def require_change(self, *states: M) -> None:
        """Raise `PermissionDenied` unless the caller may change a resource, in its states before and after."""
        for guard in self.guards:
            guard.require_change(*states)

    def missing(self, name: str) -> NotFound:
        """The error that there is no such resource."""
        return failure(NotFound, self.kind.noun, resource=self.kind.noun, id=name)

    def page(self, prefix: str, *, size: int, token: str | None = None) -> Page[M]:
        """The next resources whose keys start with `prefix`, as `entry` returns them.

        Pages of a caller who does not see everything are as full as those of others, and their tokens contain the name of the last
        visible resource: neither tells of hidden ones.
        """
        pointers = self.stores.pointers
        if self.sees_everything:
            page = pointers.page(prefix, size=size, token=token)
            return Page(tuple(found.value for found in map(self.entry, page.items) if found), page.next_token)
        visible: list[Stored[M]] = []
        last = ""
        while True:
            page = pointers.page(prefix, size=max(size, LEAST_READ), token=token)
            for pointer in page.items:
                if (found := self.entry(pointer)) is None:
                    continue
                if len(visible) == size:
                    return Page(tuple(each.value for each in visible), pointers.token_after(prefix, last))
                visible.append(found)
                last = pointer.key
            if (token := page.next_token) is None:
                return Page(tuple(each.value for each in visible), None)

    def follow(self, pointer: Pointer | None) -> Stored[M] | None:
        """The resource that a pointer names, as of now; None if it was deleted in the meantime."""
        while pointer is not None:
            try:
                return self._shown(self._parsed(pointer.blob_uri), pointer)
            except NotFound:
                # Deleted or replaced in the meantime, unless the pointer is unchanged: then the store is damaged.
                again = self.stores.pointers.get(pointer.key)
                if again == pointer:
                    raise failure(Internal, "pointer.dangling", pointer=pointer.key) from None
                pointer = again
        return None

    def entry(self, pointer: Pointer | None) -> Stored[M] | None:
        """The resource that a pointer names, for a listing; None if it was deleted in the meantime.

        A damaged resource has `damage` set, and otherwise only what its keys tell.
        """
        try:
            return self.follow(pointer)
        except Internal as error:
            damage = damage_of(error)
            if damage is None or pointer is None:
                raise
            own = keys.owner(pointer)
            others = [pointer.key] if pointer.key != own else [namesake.key for namesake in self._namesakes(pointer)]
            found = partial_record(self.kind.message, self.kind.noun, (own, *others), damage)
            if found is None:
                raise
            return self._shown(found, pointer)

    def _shown(self, value: M, pointer: Pointer) -> Stored[M] | None:
        """What the caller sees of a resource; None if that is nothing."""
        for guard in self.guards:
            shown = guard.shown(value) if guard.sees(value) else None
            if shown is None:
                return None
            value = cast(M, shown)
        return Stored(value, pointer)

    def entries(self, prefix: str) -> Iterator[Stored[M]]:
        """All resources whose keys start with `prefix`, in the order of their keys, as `entry` returns them."""
        for pointer in self.stores.pointers.scan(prefix):
            require_active()
            if (found := self.entry(pointer)) is not None:
                yield found

    def scan(self, prefix: str) -> Iterator[Stored[M]]:
        """All resources whose keys start with `prefix`, in the order of their keys. Skips resources that are deleted."""
        return filter(None, map(self.follow, self.stores.pointers.scan(prefix)))

    def count(self, prefix: str) -> int:
        """The number of resources whose keys start with `prefix`."""
        if not self.sees_everything:
            return sum(1 for _ in self.entries(prefix))
        return self.stores.pointers.count(prefix)

    def create(self, value: M, *, also: Also[M] = lambda _: ()) -> Stored[M]:
        """Reserve all keys of a new resource at once, or none.

        Creating exactly the same resource again is not an error.
        """
        prepared = self.creation(value)
        self._apply([*prepared.operations, *also(prepared.stored)], lambda: self.explain_creation(prepared))
        return prepared.stored

    def creation(self, value: M) -> Creation[M]:
        """Check that the caller may create a resource, write its blob, and return the operations that publish it."""
        for guard in self.guards:
            guard.require_create(value)
        stored, reserved = self.reservation(value)
        return Creation(stored, tuple(reserved))

    def explain_creation(self, rejected: Creation[M]) -> SkiwayError | None:
        """The reason why the store rejected the operations of a creation; None if exactly this resource exists."""
        stored = rejected.stored
        found = {put.key: self.stores.pointers.get(put.key) for put in rejected.operations}
        ours = [key for key, name in found.items() if name and name.blob_uri == stored.pointer.blob_uri]
        taken = [name for name in found.values() if name and name.blob_uri != stored.pointer.blob_uri]
        if len(ours) == len(found):
            return None
        for name in taken:
            return self._taken(stored.value, name)
        return self._partial(stored.value, ours[0]) if ours else self._contended(stored.value)

    def reservation(self, value: M) -> tuple[Stored[M], list[Put]]:
        """Write the blob of a new resource, and return the resource and the operations that publish it."""
        stored = self._put(value, version=ABSENT)
        names = (stored.pointer.key, *self.kind.names(value))
        return stored, [Put(key, stored.pointer.blob_uri, expect=ABSENT) for key in names]

    def update(self, current: Stored[M], value: M, *, also: Also[M] = lambda _: ()) -> Stored[M]:
        """Replace a resource that is unchanged since it was read, and free the names it no longer has."""
        prepared = self.replacement(current, value)
        self._apply([*prepared.operations, *also(prepared.stored)], lambda: self.explain(prepared))
        return prepared.stored

    def save(self, current: Stored[M] | None, value: M, *, what: str = "", also: Also[M] = lambda _: ()) -> Stored[M]:
        """Create a resource, or replace it as it was read.

        Raise `Contention` about `what` if it was changed since, so that the caller derives it again.
        """
        try:
            return self.create(value, also=also) if current is None else self.update(current, value, also=also)
        except (AlreadyExists, NotFound, PreconditionFailed):
            changed = what or f"the {self.kind.noun} of {self.kind.title(value)}"
            raise failure(Contention, "store.contended", what=changed) from None

    def replacement(self, current: Stored[M], value: M) -> Replacement[M]:
        """Write the blob of a changed resource, and return the resource and the operations that publish it."""
        self.require_change(current.value, value)
        stored = self._put(value, version=current.pointer.version)
        held = {name.key: name for name in self._names(current)}
        added = [key for key in self.kind.names(value) if key not in held]
        uri, wanted = stored.pointer.blob_uri, set(self.kind.names(value))
        batch: list[Operation] = [Put(stored.pointer.key, uri, expect=current.pointer.version)]
        batch += (Put(key, uri, expect=ABSENT) for key in added)
        batch += (Put(key, uri, expect=name.version) for key, name in held.items() if key in wanted)
        batch += (Delete(key, expect=name.version) for key, name in held.items() if key not in wanted)
        return Replacement(current, stored, tuple(batch), tuple(added))

    def explain(self, rejected: Replacement[M]) -> SkiwayError:
        """The reason why the store rejected the operations of a replacement."""
        return self._explain_change(rejected.current.pointer, rejected.stored, rejected.added)

    def delete(self, pointer: Pointer, value: M | None, *, also: Iterable[Operation] = ()) -> None:
        """Delete a resource that is unchanged since it was read, even if it is unreadable (see `peek`).

        Leaves its blobs to gc.
        """
        if value is not None:
            self.require_change(value)
        names = self._namesakes(pointer) if value is None else self._names_of(pointer, value)
        batch = [Delete(each.key, expect=each.version) for each in (pointer, *names)]
        self._apply([*batch, *also], lambda: self._explain_change(pointer, None, ()))

    # --- reading ------------------------------------------------------------------------------------------------------

    def _parsed(self, uri: str) -> M:
        data = self.stores.blobs.get(uri)
        try:
            return self.kind.message.FromString(data)
        except DecodeError:
            raise failure(Internal, "blob.unreadable", uri=uri, resource=self.kind.noun) from None

    def _names(self, current: Stored[M]) -> list[Pointer]:
        """The other pointers of a resource, which must have the same blob as the canonical one."""
        found = {key: self.stores.pointers.get(key) for key in self.kind.names(current.value)}
        for key, name in found.items():
            if name is None or name.blob_uri != current.pointer.blob_uri:
                if self.stores.pointers.get(current.pointer.key) != current.pointer:
                    raise self._moved(current.pointer)
                raise self._partial(current.value, key)
        return [name for name in found.values() if name is not None]

    def _namesakes(self, pointer: Pointer) -> list[Pointer]:
        """The other pointers of an unreadable resource: a scan for all that have its blob's address, which is slow."""
        everything = chain.from_iterable(map(self.stores.pointers.scan, (keys.account_of(pointer.key), keys.QUEUE)))
        return [each for each in everything if each.blob_uri == pointer.blob_uri and each.key != pointer.key]

    def _names_of(self, pointer: Pointer, value: M) -> list[Pointer]:
        found = (self.stores.pointers.get(key) for key in self.kind.names(value))
        return [name for name in found if name is not None and name.blob_uri == pointer.blob_uri]

    # --- writing ------------------------------------------------------------------------------------------------------

    def _apply(self, batch: Iterable[Operation], explain: Callable[[], SkiwayError | None]) -> None:
        """Apply a batch. If the store rejects it, raise what `explain` returns; None is no error."""
        try:
            self.stores.pointers.apply(batch)
        except Contention:
            raise
        except Conflict:
            if (reason := explain()) is not None:
                raise reason from None

    def _put(self, value: M, *, version: int) -> Stored[M]:
        key = self.kind.key(value)
        data = value.SerializeToString(deterministic=True)
        uri = self.stores.blobs.put(data, folder=keys.folder(key), suffix=".pb")
        return Stored(value, Pointer(key, uri, version + 1))

    def _explain_change(self, before: Pointer, stored: Stored[M] | None, added: Iterable[str]) -> SkiwayError:
        if self.stores.pointers.get(before.key) != before:
            return self._moved(before)
        if stored is not None:
            for name in map(self.stores.pointers.get, added):
                if name is not None:
                    return self._taken(stored.value, name)
            return self._contended(stored.value)
        return failure(Contention, "store.contended", what=f"{self.kind.noun} {keys.last_segment(before.key)}")

    def _moved(self, before: Pointer) -> SkiwayError:
        now = self.stores.pointers.get(before.key)
        name = keys.last_segment(before.key)
        if now is None:
            return self.missing(name)
        return failure(
            PreconditionFailed,
            "version.mismatch",
            resource=self.kind.noun,
            id=name,
            expected=str(before.version),
            actual=str(now.version),
        )

    def _taken(self, value: M, name: Pointer) -> SkiwayError:
        """The error that the name belongs to another resource.

        A name without a resource means that the store is damaged.
        """
        if name.key != keys.owner(name) and self.stores.pointers.get(keys.owner(name)) is None:
            if self.stores.pointers.get(name.key) == name:
                return self._partial(value, name.key)
            return self._contended(value)
        noun, title = self.kind.noun, self.kind.title(value)
        if keys.is_relation_name(name.key):
            return failure(AlreadyExists, "relation.name.already.claimed", resource=noun, name=title)
        return failure(AlreadyExists, f"{noun}.already.exists", resource=noun, name=title)

    def _partial(self, value: M, key: str) -> Internal:
        title = self.kind.title(value)
        return failure(Internal, "pointer.partial", resource=self.kind.noun, name=title, pointer=key)

    def _contended(self, value: M) -> Contention:
        return failure(Contention, "store.contended", what=f"{self.kind.noun} {self.kind.title(value)}")


def etag(pointer: Pointer) -> str:
    """The SHA-256 of the content in Base64. It is part of the blob's address, so no read is needed."""
    return base64.b64encode(bytes.fromhex(blob_digest(pointer.blob_uri))).decode()


def meta_of(pointer: Pointer, value: Message | None = None) -> v1.MutationMeta:
    """The metadata of a stored resource for responses; without the message, the time of the last update is missing."""
    return v1.MutationMeta(
        pointer_key=pointer.key,
        blob_uri=pointer.blob_uri,
        pointer_version=pointer.version,
        etag=etag(pointer),
        updated_at=None if value is None else cast(Any, value).updated_at,
    )


# --- pages ------------------------------------------------------------------------------------------------------------


def page_size(request: v1.PageRequest, *, default: int = DEFAULT_PAGE_SIZE) -> int:
    """The requested page size, at most `MAX_PAGE_SIZE`, or the default."""
    return min(request.page_size, MAX_PAGE_SIZE) if request.page_size > 0 else default


def listed(repository: Repository[M], prefix: str, request: v1.PageRequest) -> tuple[Sequence[M], v1.PageResponse]:
    """A page of the resources whose keys start with `prefix`, in the order of their keys."""
    page = repository.page(prefix, size=page_size(request), token=request.page_token or None)
    return page.items, v1.PageResponse(next_page_token=page.next_token or "", total_size=repository.count(prefix))


def sliced(
    items: Sequence[T],
    request: v1.PageRequest,
    *,
    listing: str,
    name: Callable[[T], str],
    default: int = DEFAULT_PAGE_SIZE,
) -> tuple[Sequence[T], v1.PageResponse]:
    """A page of `items`, which must be sorted by `name`. `listing` identifies the listing that a token belongs to."""
    after = open_token(listing, request.page_token) if request.page_token else ""
    rest = (item for item in items if name(item) > after)
    shown, more = first_page(rest, page_size(request, default=default))
    token = seal_token(listing, name(shown[-1])) if more else ""
    return shown, v1.PageResponse(next_page_token=token, total_size=len(items))
