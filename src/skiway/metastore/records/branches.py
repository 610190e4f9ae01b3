"""Branches of the lake as stores: what a catalog contained when a branch was created, below what the branch has changed since.

`BranchPointers` looks like the store of an account, so everything that works on main works on a branch. Reads ask the overlay,
then the base, and never what main contains now. Writes go to the overlay, if they concern namespaces, tables or views, and
what belongs to them. Everything else, above all grants and policies, is shared with main, and cannot be changed from a branch.

The base lists tables by their records. The snapshots and statistics of a table are adopted when they are first needed:
copied from main as far as the base has them.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from typing import Any, Final, TypeVar
from urllib.parse import unquote

from google.protobuf.message import Message

from skiway.errors import Conflict, Contention, PreconditionFailed
from skiway.foundation.cache import Cache
from skiway.metastore.records import keys
from skiway.metastore.records.errors import failure
from skiway.metastore.records.journal import JournaledPointers
from skiway.metastore.records.kinds import BRANCH, NAMESPACE, TABLE, VIEW, Kind
from skiway.metastore.records.names import encoded, folded
from skiway.metastore.records.repository import Repository, Stored
from skiway.model import v1
from skiway.storage import ABSENT, Check, Delete, Operation, Pointer, PointerStore, Put, Stores
from skiway.storage.pointers.store import require

M = TypeVar("M", bound=Message)

_PAGE: Final = 1000
_OBJECTS: Final[tuple[Kind[Any], ...]] = (NAMESPACE, TABLE, VIEW)


@dataclass(eq=False)
class Base:
    """What a catalog contained at one moment: pointers by key, all of version 1, and the ids of its tables."""

    pointers: dict[str, Pointer]
    ordered: list[str]
    table_ids: frozenset[str]
    complete: set[str] = field(default_factory=set)
    """The tables whose snapshots were adopted, by `branch id/table id`, as far as this process knows."""

    @classmethod
    def parsed(cls, account_id: str, catalog_id: str, message: v1.BranchBase) -> Base:
        """The pointers that a base lists, derived from ids, names and digests."""
        found: dict[str, str] = {}
        tables: list[str] = []
        for each in message.namespaces:
            uri = record_uri(keys.namespace(account_id, each.id), each.digest)
            path = tuple(each.path)
            found[keys.namespace(account_id, each.id)] = uri
            found[keys.namespace_path(account_id, catalog_id, path)] = uri
            found[keys.namespace_level(account_id, catalog_id, path)] = uri
            if each.is_folded:
                found[keys.namespace_fold(account_id, catalog_id, path)] = uri
        for of in message.relations:
            own = (keys.view if of.is_view else keys.table)(account_id, of.id)
            inside = message.namespaces[of.namespace].id
            found[own] = uri = record_uri(own, of.digest)
            found[(keys.view_name if of.is_view else keys.table_name)(account_id, inside, of.name)] = uri
            found[keys.relation_name(account_id, inside, of.name)] = uri
            if of.is_folded:
                found[keys.relation_name(account_id, inside, folded(of.name))] = uri
            if not of.is_view:
                tables.append(of.id)
        return cls({key: Pointer(key, uri, 1) for key, uri in found.items()}, sorted(found), frozenset(tables))

    def below(self, prefix: str, *, after: str = "") -> Iterator[Pointer]:
        """The pointers whose keys start with a prefix and come after another key, in the order of their keys."""
        start = max(bisect_left(self.ordered, prefix), bisect_right(self.ordered, after))
        for position in range(start, len(self.ordered)):
            if not self.ordered[position].startswith(prefix):
                return
            yield self.pointers[self.ordered[position]]

    def has(self, uri: str) -> bool:
        """Whether a record is the one that the base lists for its object."""
        found = self.pointers.get(keys.of_blob(uri) or "")
        return found is not None and found.blob_uri == uri


def record_uri(key: str, digest: bytes) -> str:
    """The address of the record with this digest, of the resource with this canonical key."""
    text = digest.hex()
    return f"{keys.folder(key)}/{text[:2]}/{text}.pb"


_bases: Final = Cache[str, Base](400_000, weigh=lambda base: 1 + len(base.ordered))


def addresses_in(stores: Stores, pointer: Pointer) -> Iterator[str]:
    """The addresses of records that a pointer of a branch names: one in its overlay, or many in its base."""
    if pointer.key.startswith(keys.overlay()):
        address = pointer.blob_uri.partition(" ")[2]
        if address.startswith(keys.folder(keys.ACCOUNTS)):
            yield address
    elif keys.is_branch_base(pointer.key):
        account_id = keys.decoded(pointer.key.split("/")[2])
        base = v1.BranchBase.FromString(stores.blobs.get(pointer.blob_uri))
        yield from (record_uri(keys.namespace(account_id, each.id), each.digest) for each in base.namespaces)
        for each in base.relations:
            yield record_uri((keys.view if each.is_view else keys.table)(account_id, each.id), each.digest)


def base_of(stores: Stores, branch: v1.Branch) -> Base:
    """The base of a branch. It is empty while the branch is created."""
    account_id = branch.resource_id.account_id
    pointer = stores.pointers.get(keys.branch_base(account_id, branch.resource_id.id))
    if pointer is None:
        return Base({}, [], frozenset())

    def read() -> Base:
        return Base.parsed(
            account_id, branch.catalog_id.id, v1.BranchBase.FromString(stores.blobs.get(pointer.blob_uri))
        )

    return _bases.get(pointer.blob_uri, read)


Adopt = Callable[["BranchPointers", str], None]
"""Adopts the snapshots of a table with an id."""


def _nothing(_branch: BranchPointers, _table_id: str) -> None:
    """Adopt nothing: for readers of records only."""


class BranchPointers(PointerStore):
    """The pointers of an account as a branch of one of its catalogs has them. `inner` is the store of main."""

    def __init__(self, inner: PointerStore, stored: Stored[v1.Branch], base: Base, *, adopt: Adopt = _nothing) -> None:
        super().__init__(clock=inner._clock)
        self.inner, self.branch, self.base = inner, stored.value, base
        self._record, self._adopt = stored.pointer, adopt
        account_id, catalog_id = self.branch.resource_id.account_id, self.branch.catalog_id.id
        self._tables = keys.tables_of(account_id)
        self._own = keys.own_of_branch(account_id, catalog_id)
        self._shared = keys.shared_by_branches(account_id)
        self._prefix = keys.overlay(account_id, self.branch.resource_id.id)

    @property
    def id(self) -> str:
        """The id of the branch."""
        return self.branch.resource_id.id

    @property
    def max_batch(self) -> int:  # type: ignore[override]
        """That of main, without what a branch adds to a batch."""
        return self.inner.max_batch - 1

    def state(self, *, since: float | None = None) -> Hashable | None:
        """That of main, which changes with the branch."""
        return self.inner.state(since=since)

    def is_own(self, key: str) -> bool:
        """Whether the branch has a pointer of its own at this key, so that it does not share that of main."""
        return key.startswith(self._own)

    def get(self, key: str) -> Pointer | None:
        """The pointer of the branch or, if it is shared, that of main."""
        if not key.startswith(self._own):
            return self.inner.get(key)
        self._complete(key)
        return self._seen(key, self.inner.get(self._prefix + key))

    def _get(self, key: str) -> Pointer | None:
        return self.get(key)

    def changed(self, prefix: str = "") -> Iterator[tuple[str, Pointer | None]]:
        """The keys that the branch has changed, with their pointers; None for those that it has deleted."""
        start = len(self._prefix)
        for each in self.inner.scan(self._prefix + prefix):
            yield each.key[start:], _unpacked(each.key[start:], each)

    def adopted(self, table_id: str, found: Iterable[Pointer]) -> None:
        """Store the snapshots and statistics of a table of the base, unless another process has done it."""
        mark = self._mark(table_id)
        rest = iter(found)
        while batch := list(islice(rest, self.max_batch - 1)):
            puts = [Put(self._prefix + each.key, f"1 {each.blob_uri}", expect=ABSENT) for each in batch]
            while puts:
                try:
                    self.inner.apply([Check(mark, expect=ABSENT), *puts])
                    break
                except Conflict:
                    if self.inner.get(mark) is not None:
                        return
                    puts = [each for each in puts if self.inner.get(each.key) is None]

    def finish_adoption(self, table_id: str) -> None:
        """Record that the snapshots of a table were adopted."""
        if self.inner.get(self._mark(table_id)) is None:
            try:
                self.inner.apply([Put(self._mark(table_id), "adopted", expect=ABSENT)])
            except Conflict:  # another process has done it
                return

    def forsake(self, found: Iterable[Pointer]) -> None:
        """Forget adopted pointers whose blobs main no longer keeps."""
        for each in found:
            current = self.inner.get(self._prefix + each.key)
            if current is not None and current.blob_uri == f"1 {each.blob_uri}":
                self.inner.apply([Delete(current.key, expect=current.version)])

    # --- reading ------------------------------------------------------------------------------------------------------

    def _seen(self, key: str, changed: Pointer | None) -> Pointer | None:
        return self.base.pointers.get(key) if changed is None else _unpacked(key, changed)

    def _mark(self, table_id: str) -> str:
        return f"{self._prefix}/adopted/{encoded(table_id)}"

    def _complete(self, key: str) -> None:
        """Adopt the snapshots of a table if the key, or the prefix of keys, is about them."""
        if not key.startswith(self._tables):
            return
        segment, found, _ = key[len(self._tables) :].partition("/")
        if found and segment != "by-id" and (table_id := unquote(segment)) in self.base.table_ids:
            known = f"{self.id}/{table_id}"
            if known not in self.base.complete:
                if self.inner.get(self._mark(table_id)) is None:
                    self._adopt(self, table_id)
                else:
                    self.base.complete.add(known)

    def _scan(self, prefix: str, *, after: str, limit: int, now: datetime) -> Sequence[Pointer]:
        if prefix.startswith(self._own):
            self._complete(prefix)
            return tuple(islice(self._merged(prefix, after, now), limit))
        inside = sorted(each for each in self._own if each.startswith(prefix))
        if not inside:
            return self.inner._scan(prefix, after=after, limit=limit, now=now)
        shared = (each for each in self._pages(self.inner, prefix, after, now) if not each.key.startswith(self._own))
        own = (self._merged(each, after, now) for each in inside)
        return tuple(islice(heapq.merge(shared, *own, key=lambda each: each.key), limit))

    def _count(self, prefix: str, *, now: datetime) -> int:
        if not any(prefix.startswith(each) or each.startswith(prefix) for each in self._own):
            return self.inner._count(prefix, now=now)
        return sum(1 for _ in self._pages(self, prefix, "", now))

    @staticmethod
    def _pages(store: PointerStore, prefix: str, after: str, now: datetime) -> Iterator[Pointer]:
        while True:
            page = store._scan(prefix, after=after, limit=_PAGE, now=now)
            yield from page
            if len(page) < _PAGE:
                return
            after = page[-1].key

    def _merged(self, prefix: str, after: str, now: datetime) -> Iterator[Pointer]:
        start = len(self._prefix)
        behind = self._prefix + after if after else ""
        changed = ((each.key[start:], each) for each in self._pages(self.inner, self._prefix + prefix, behind, now))
        stored = ((each.key, None) for each in self.base.below(prefix, after=after))
        last = ""
        # Of two entries with the same key, the changed one comes first.
        for key, found in heapq.merge(changed, stored, key=lambda each: each[0]):
            if key != last and (seen := self._seen(key, found)) is not None:
                yield seen
            last = key

    # --- writing ------------------------------------------------------------------------------------------------------

    def _apply(self, batch: Sequence[Operation]) -> None:
        batch = [each for each in batch if not keys.is_event(each.key)]
        for each in batch:
            if not isinstance(each, Check) and not each.key.startswith((*self._own, *self._shared)):
                raise failure(PreconditionFailed, "branch.shared", name=self.branch.display_name)
        own = [each for each in batch if each.key.startswith(self._own)]
        shared = [each for each in batch if not each.key.startswith(self._own)]
        if all(isinstance(each, Check) for each in own):
            for each in own:
                require(each, self.get(each.key), self._clock())
            self.inner._apply(shared)
            return
        for each in own:
            if not isinstance(each, Delete) or not each.key.startswith(f"{self._tables}by-id/"):
                self._complete(each.key)
        self._require_open()
        translated: dict[str, Operation] = {}
        for each in own:
            translated |= {found.key: found for found in self._translated(each)}
        fence = Check(self._record.key, expect=self._record.version)
        try:
            self.inner._apply((*shared, *translated.values(), fence))
        except Conflict as error:
            now = self.inner.get(self._record.key)
            if now == self._record:
                raise
            raise failure(Contention, "store.contended", what=f"branch {self.branch.display_name}") from error

    def _purge(self, limit: int, *, now: datetime) -> int:
        return self.inner._purge(limit, now=now)

    def _translated(self, operation: Operation) -> Iterator[Operation]:
        key = self._prefix + operation.key
        before = self.inner.get(key)
        require(operation, self._seen(operation.key, before), self._clock())
        expect = ABSENT if before is None else before.version
        match operation:
            case Check():
                yield Check(key, expect=expect)
            case Put():
                value = f"{operation.expect + 1} {operation.blob_uri}"
                yield Put(key, value, expect=expect, expires_at=operation.expires_at)
            case Delete() if operation.key in self.base.pointers:
                yield Put(key, "0", expect=expect)
                if (table_id := self._dropped(operation.key)) and self.inner.get(self._mark(table_id)) is None:
                    yield Put(self._mark(table_id), "dropped", expect=ABSENT)
            case Delete():
                yield Delete(key, expect=expect)

    def _dropped(self, key: str) -> str:
        """The id of the table with this canonical key; empty for other keys."""
        before, _, table_id = key.rpartition("/")
        return unquote(table_id) if before == f"{self._tables}by-id" else ""

    def _require_open(self) -> None:
        branch = self.branch
        if branch.is_tag:
            raise failure(PreconditionFailed, "branch.is_tag", name=branch.display_name)
        if branch.state == v1.BS_MERGING:
            raise failure(Contention, "store.contended", what=f"branch {branch.display_name}")
        if branch.state != v1.BS_OPEN:
            state = v1.BranchState.Name(branch.state).removeprefix("BS_").lower()
            raise failure(PreconditionFailed, "branch.closed", name=branch.display_name, state=state)


def _unpacked(key: str, stored: Pointer) -> Pointer | None:
    version, _, uri = stored.blob_uri.partition(" ")
    return None if version == "0" else Pointer(key, uri, int(version), stored.expires_at)


# --- who may do what ---------------------------------------------------------------------------------------------------


class RightsPointers(PointerStore):
    """What decides about rights on a branch: records of main or, for objects that main does not have, of the branch."""

    def __init__(self, branch: BranchPointers) -> None:
        super().__init__(clock=branch._clock)
        self._branch, self._main = branch, branch.inner

    def get(self, key: str) -> Pointer | None:
        """The pointer of main, of the base, or of the branch: the first that exists."""
        found = self._main.get(key)
        if found is not None or not self._branch.is_own(key):
            return found
        return self._branch.base.pointers.get(key) or self._branch.get(key)

    def _get(self, key: str) -> Pointer | None:
        return self.get(key)

    def _apply(self, batch: Sequence[Operation]) -> None:
        raise AssertionError(f"decisions write nothing, not {batch}")

    def _scan(self, prefix: str, *, after: str, limit: int, now: datetime) -> Sequence[Pointer]:
        return self._main._scan(prefix, after=after, limit=limit, now=now)

    def _count(self, prefix: str, *, now: datetime) -> int:
        return self._main._count(prefix, now=now)

    def _purge(self, limit: int, *, now: datetime) -> int:
        raise AssertionError(f"decisions delete nothing, not {limit} at {now}")


def deciding(rights: Stores, value: M) -> M:
    """The state of an object that decides about rights on it: as it is on main, as it was when the branch was created, or as it is if
    only the branch has it. `rights` are stores of `RightsPointers`.
    """
    kind = next((each for each in _OBJECTS if isinstance(value, each.message)), None)
    if kind is None:
        return value
    found = Repository(rights, kind).at(kind.key(value))
    return value if found is None or found.value.damage else found.value


# --- all branches ------------------------------------------------------------------------------------------------------


def branch_of(stores: Stores) -> BranchPointers | None:
    """The branch whose stores these are; None on main."""
    pointers = stores.pointers
    inner = pointers.inner if isinstance(pointers, JournaledPointers) else pointers
    return inner if isinstance(inner, BranchPointers) else None


def main_of(stores: Stores) -> Stores:
    """The stores of main, without a journal."""
    pointers = stores.pointers
    while isinstance(pointers, JournaledPointers | BranchPointers):
        pointers = pointers.inner
    return Stores(pointers, stores.blobs)


def views(stores: Stores, account_id: str) -> Iterator[BranchPointers]:
    """The branches of an account in any state, also deleted ones whose files are still kept, to read records."""
    main = main_of(stores)
    for stored in Repository(main, BRANCH).entries(keys.branch(account_id)):
        if not stored.value.damage:
            yield BranchPointers(main.pointers, stored, base_of(main, stored.value))
        else:  # what it uses is unknown
            raise failure(
                PreconditionFailed,
                "resource.damaged",
                resource="branch",
                name=stored.value.resource_id.id,
                damage="lost",
            )


def is_used(stores: Stores, account_id: str, key: str) -> bool:
    """Whether a branch has, or may have, the object with a canonical key."""
    return is_creating(stores, account_id) or any(True for _ in records_in_use(stores, account_id, key))


def records_in_use(stores: Stores, account_id: str, key: str) -> Iterator[str]:
    """The addresses of all records that branches have of the object with a canonical key: that of the base, and the present one."""
    for view in views(stores, account_id):
        found = {each.blob_uri for each in (view.base.pointers.get(key), view.get(key)) if each is not None}
        yield from found


def is_creating(stores: Stores, account_id: str) -> bool:
    """Whether a branch is being created, which may list anything that main has contained since."""
    return any(view.branch.state == v1.BS_CREATING for view in views(stores, account_id))


def holds_blob(stores: Stores, uri: str) -> bool:
    """Whether a branch uses a blob that main does not use any more."""
    key = keys.of_blob(uri)
    if key is None or not key.startswith(keys.ACCOUNTS):
        return False
    account_id = unquote(key.split("/")[2])
    for view in views(stores, account_id):
        if view.branch.state == v1.BS_CREATING or view.base.has(uri):
            return True
        found = view.inner.get(keys.overlay(account_id, view.id) + key)
        if found is not None and found.blob_uri.partition(" ")[2] == uri:
            return True
    return False
