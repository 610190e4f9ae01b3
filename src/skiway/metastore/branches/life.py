"""The life of branches: when one was changed last, how far it is from main, what only it uses, and the end of idle ones."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, Final

from skiway.errors import SkiwayError
from skiway.formats.iceberg.warehouse import Warehouse
from skiway.metastore.branches.differences import KINDS
from skiway.metastore.branches.opening import is_dead
from skiway.metastore.managed.locations import files_of_table
from skiway.metastore.records import keys
from skiway.metastore.records.branches import BranchPointers, branch_of, main_of, views
from skiway.metastore.records.journal import added_event
from skiway.metastore.records.kinds import ACCOUNT, BRANCH, CATALOG, TABLE, Kind
from skiway.metastore.records.names import BRANCH_MARK
from skiway.metastore.records.realm import Realm, timestamp
from skiway.metastore.records.repository import Repository, Stored
from skiway.metastore.records.updates import copied
from skiway.model import v1
from skiway.storage import Clock, Delete, Operation, Stores

KEPT_S: Final = 3 * 24 * 3600.0
"""How long the files of a deleted branch are kept for queries that read them."""
IDLE: Final = "it was idle"


def life(on_branch: Realm, warehouse: Warehouse) -> v1.BranchLife:
    """How a branch has been used. It lists the folders with its files, so it takes a while."""
    realm = on_branch.as_server()
    view = branch_of(realm.stores)
    assert view is not None, "the realm is that of a branch"
    found = v1.BranchLife(
        changed=sum(1 for _ in _changed(view)),
        changed_on_main=sum(1 for _ in _changed_on_main(view)),
        changed_at=timestamp(last_change(realm.stores, view)),
    )
    if view.branch.state != v1.BS_MERGED:  # else main has its files, too
        for key, pointer in view.changed(TABLE.by_id(realm.account_id, "")):
            table = None if pointer is None else realm.all(TABLE).find(key)
            if table is not None and table.value.metadata_location:
                files = files_of_table(realm, warehouse, table.value)
                sizes = [each.size for each in files.walk(files.reach.roots[0])]
                found.own_files += len(sizes)
                found.own_bytes += sum(sizes)
    return found


def _canonical(kind: Kind[Any], view: BranchPointers) -> str:
    """The prefix of the canonical keys of a kind."""
    return kind.by_id(view.branch.resource_id.account_id, "")


def _changed(view: BranchPointers) -> Iterator[str]:
    """The keys of the objects that the branch has created, changed or dropped."""
    for kind in KINDS:
        for key, pointer in view.changed(_canonical(kind, view)):
            if (None if pointer is None else pointer.blob_uri) != _uri(view, key):
                yield key


def _uri(view: BranchPointers, key: str) -> str | None:
    found = view.base.pointers.get(key)
    return None if found is None else found.blob_uri


def _changed_on_main(view: BranchPointers) -> Iterator[str]:
    """The keys of the objects of the base that main has changed or dropped since."""
    for kind in KINDS:
        prefix = _canonical(kind, view)
        now = {each.key: each.blob_uri for each in view.inner.scan(prefix)}
        yield from (each.key for each in view.base.below(prefix) if now.get(each.key) != each.blob_uri)


def last_change(stores: Stores, view: BranchPointers) -> datetime:
    """When something on the branch was changed last. Objects that it only dropped do not tell."""
    found = view.branch.updated_at.ToDatetime(UTC)
    for kind in KINDS:
        repository = Repository(stores, kind)
        for key, pointer in view.changed(_canonical(kind, view)):
            if pointer is not None and pointer.blob_uri != _uri(view, key):
                stored = repository.entry(pointer)
                if stored is not None and not stored.value.damage:
                    found = max(found, stored.value.updated_at.ToDatetime(UTC))
    return found


# --- the end -----------------------------------------------------------------------------------------------------------


def sweep(
    stores: Stores, *, clock: Clock, min_age_s: float = KEPT_S, idle_s: float = 0.0, dry_run: bool = False
) -> list[str]:
    """Delete idle branches, and what is left of branches that were deleted long ago, or whose creation has died. Return their ids.

    Branches are idle if nothing on them has changed for `idle_s` seconds; 0 keeps them. Tags are kept.
    """
    main, removed = main_of(stores), list[str]()
    for account in Repository(main, ACCOUNT).entries(keys.account()):
        realm = Realm(stores, account.value.resource_id.id, clock=clock)
        if idle_s > 0:
            removed += _end_idle(realm, clock() - timedelta(seconds=idle_s), dry_run=dry_run)
        for found in Repository(main, BRANCH).entries(keys.branch(realm.account_id)):
            if not found.value.damage and _is_over(realm, found.value, clock() - timedelta(seconds=min_age_s)):
                removed.append(found.value.resource_id.id)
                if not dry_run:
                    _remove(main, realm.account_id, found)
    return removed


def _end_idle(realm: Realm, before: datetime, *, dry_run: bool) -> Iterator[str]:
    """Delete the branches that were changed last before a time. One that changes meanwhile is kept."""
    for view in list(views(realm.stores, realm.account_id)):
        branch = view.branch
        if branch.is_tag or branch.state not in (v1.BS_OPEN, v1.BS_MERGED):
            continue
        if last_change(Stores(view, realm.stores.blobs), view) >= before:
            continue
        yield branch.resource_id.id
        if dry_run:
            continue
        stored = Repository(main_of(realm.stores), BRANCH).find(BRANCH.key(branch))
        catalog = realm.all(CATALOG).at(keys.catalog(realm.account_id, branch.catalog_id.id))
        if stored is None or catalog is None or stored.value != branch:
            continue
        try:
            realm.stores.pointers.apply(ending(realm, catalog.value, stored, detail=IDLE)[1])
        except SkiwayError:
            continue


def ending(
    realm: Realm, catalog: v1.Catalog, found: Stored[v1.Branch], *, detail: str = ""
) -> tuple[v1.Branch, list[Operation]]:
    """The branch as a deleted one, and the operations that delete it."""
    gone = copied(found.value)
    gone.state = v1.BS_DELETED
    gone.ClearField("busy_until")
    gone.updated_at.CopyFrom(realm.now())
    gone.deleted_at.CopyFrom(realm.now())
    batch = Repository(main_of(realm.stores), BRANCH).replacement(found, gone).operations
    return gone, [*batch, event_of(realm, catalog, gone, "deleted", detail=detail)]


def event_of(realm: Realm, catalog: v1.Catalog, branch: v1.Branch, action: str, *, detail: str = "") -> Operation:
    """The operation that stores an event about a branch."""
    if branch.checks:
        detail = f"{len(branch.checks)} rules passed"
    event = v1.Event(
        kind="branch",
        action=action,
        object_id=branch.resource_id.id,
        name=f"{catalog.display_name}{BRANCH_MARK}{branch.display_name}",
        catalog_id=catalog.resource_id.id,
        detail=detail,
    )
    return added_event(realm.stores, realm.account_id, event)


def _is_over(realm: Realm, branch: v1.Branch, oldest: datetime) -> bool:
    if branch.state == v1.BS_CREATING:
        return is_dead(realm, branch)
    return branch.state == v1.BS_DELETED and branch.deleted_at.ToDatetime(UTC) < oldest


def _remove(main: Stores, account_id: str, found: Stored[v1.Branch]) -> None:
    own_id = found.value.resource_id.id
    left = main.pointers.scan(keys.overlay(account_id, own_id) + "/")
    while batch := list(islice(left, main.pointers.max_batch)):
        main.pointers.apply([Delete(each.key, expect=each.version) for each in batch])
    base = main.pointers.get(keys.branch_base(account_id, own_id))
    also = [] if base is None else [Delete(base.key, expect=base.version)]
    Repository(main, BRANCH).delete(found.pointer, found.value, also=also)
