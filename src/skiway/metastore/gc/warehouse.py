"""Unreferenced files in the warehouse: leftovers of failed commits, dropped tables and expired snapshots.

A file is deleted if it is older than a minimum age, no state of the table within that age references it, and no query
has pinned it. The age protects files that are being written: a commit references files that are younger than it takes,
and the files of one statement, which have its id in their names, count as young as the youngest of them. The states
protect files that are being read: a query that began within that time may read a state that was replaced since. So the
age must be longer than any statement or query takes; the default is three days. States of the last hour are kept in any case,
because transactions read them.

The states are found by the metadata files in the folder: the current one, those written within the age, and those that
they have replaced, as their metadata logs say. So the one that was current when the age began is among them, and the old
metadata of a commit that failed is not.

The files of open transactions are kept, whatever their age. A transaction that was neither committed nor aborted in time
expires (`sweep_transactions`), and its files are deleted at once.

A mirrored table has a folder if it was exported (see `exports`): the state is then that of the export.

A folder without a table belongs to a dropped or unfinished table if it was claimed (see `managed.locations`). Otherwise
it belongs to somebody else, and is left alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import islice
from typing import Final, NamedTuple

from skiway.errors import Conflict, Contention, NotFound, PreconditionFailed, SkiwayError
from skiway.formats import Found, Location, location
from skiway.formats.iceberg.metadata import read_metadata
from skiway.formats.iceberg.warehouse import Warehouse, uri_of
from skiway.metastore.exports import find_export, forget_export
from skiway.metastore.gc.references import (
    TRANSACTION_LIFETIME,
    check_current_state,
    pinned_files,
    unused_files,
)
from skiway.metastore.gc.sweeps import Slice, noting_failure
from skiway.metastore.managed import locations, snapshot_records
from skiway.metastore.managed.locations import folder_of, id_in
from skiway.metastore.managed.places import files_of_table, places, release_place
from skiway.metastore.records import keys
from skiway.metastore.records.kinds import TABLE, TRANSACTION, VIEW
from skiway.metastore.records.realm import Realm
from skiway.metastore.records.repository import Repository, Stored
from skiway.metastore.records.updates import apply_batch
from skiway.metastore.transactions.endings import expire
from skiway.metastore.transactions.staged_writes import staged_locations, uncommitted_paths
from skiway.model import v1
from skiway.storage import Clock, Stores

__all__ = ["THREE_DAYS_S", "sweep_table", "sweep_transactions", "sweep_warehouse"]

THREE_DAYS_S: Final = 3 * 24 * 3600.0
_ID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)


def sweep_warehouse(
    stores: Stores,
    warehouse: Warehouse,
    *,
    clock: Clock,
    min_age_s: float = THREE_DAYS_S,
    size: int = 20,
    token: str | None = None,
    dry_run: bool = True,
) -> Slice:
    """Delete, or in a dry run report, the unreferenced files of the next `size` tables.

    A table whose metadata is unreadable is reported as damaged, and none of its files are deleted. If all files of a table are
    younger than the age, the sweep does not read its manifests, and only reports those that are missing.
    """
    folders = _folders(warehouse, after=token or "", limit=size + 1) if _is_inside(token) else []
    folders += islice(
        _places(stores, warehouse, after="" if _is_inside(token) else token or ""), size + 1 - len(folders)
    )
    done = Slice()
    for table in folders[:size]:
        realm = Realm(stores, table.account_id, clock=clock)
        done = done.followed_by(_sweep(realm, warehouse, table.id, table.folder, min_age_s=min_age_s, dry=dry_run))
    more = len(folders) > size
    return replace(done, next_token=folders[size - 1].token if more else None)


def sweep_table(
    realm: Realm, warehouse: Warehouse, table_id: str, *, min_age_s: float = THREE_DAYS_S, dry_run: bool = True
) -> Slice:
    """Delete, or in a dry run report, the unreferenced files of one table, like `sweep_warehouse`."""
    folders = [location(folder_of(realm, warehouse, table_id))]
    if warehouse.approved:
        folders += (each.folder for each in _places(realm.stores, warehouse, after="") if each.id == table_id)
    done = Slice()
    for folder in folders:
        done = done.followed_by(_sweep(realm, warehouse, table_id, folder, min_age_s=min_age_s, dry=dry_run))
    return done


def sweep_transactions(
    stores: Stores,
    warehouse: Warehouse,
    *,
    clock: Clock,
    size: int = 200,
    token: str | None = None,
    dry_run: bool = False,
) -> Slice:
    """End transactions whose time is over, with their files, and delete the records of those that ended long ago."""
    page = stores.pointers.page(keys.transaction_due(), size=size, token=token)
    due = [each for each in page.items if keys.queue_time(each.key) <= int(clock().timestamp() * 1_000_000)]
    removed: list[str] = []
    files: list[str] = []
    failed: list[str] = []
    for pointer in due:
        with noting_failure(pointer.key, failed):
            found = Repository(stores, TRANSACTION).find_named(pointer.key)
            if found is None:
                continue
            realm = Realm(stores, found.value.account_id, clock=clock)
            unused = uncommitted_paths(realm, warehouse, found.value)
            if not dry_run:
                with suppress(Conflict, PreconditionFailed, NotFound):  # it is committed or aborted at this moment
                    expire(realm, warehouse, found)
            removed.append(pointer.key)
            files += unused
    # The order is that of time, so what follows is not due either.
    next_token = page.next_token if len(due) == len(page.items) else None
    return Slice(len(page.items), tuple(removed), next_token=next_token, files=tuple(files), failed=tuple(failed))


class _Folder(NamedTuple):
    """The folder of a table; `token` is its place in the order of the sweep."""

    account_id: str
    id: str
    folder: Location
    token: str


def _is_inside(token: str | None) -> bool:
    """Whether the sweep is still in the warehouse. Folders that callers chose come after it."""
    return not (token or "").startswith(keys.PLACES)


def _places(stores: Stores, warehouse: Warehouse, *, after: str) -> Iterator[_Folder]:
    """The folders of tables at approved locations. Those that are no longer approved are left alone."""
    for each in places(stores, after=after):
        if any(each.folder.is_within(root) for _, root in warehouse.approved):
            yield _Folder(each.account_id, each.table_id, each.folder, each.key)


def _folders(warehouse: Warehouse, *, after: str, limit: int) -> list[_Folder]:
    """The folders of tables in the order of their locations."""
    files, found = warehouse.everything(), list[_Folder]()
    for account in files.children(warehouse.root)[0]:
        if after and uri_of(account) < after.rpartition("/")[0]:
            continue
        for table in files.children(account)[0]:
            if uri_of(table) > after:
                found.append(_Folder(id_in(account.name), id_in(table.name), table, uri_of(table)))
            if len(found) == limit:
                return found
    return found


def _sweep(
    realm: Realm, warehouse: Warehouse, table_id: str, folder: Location, *, min_age_s: float, dry: bool
) -> Slice:
    files = warehouse.files(uri_of(folder))
    oldest = realm.clock() - timedelta(seconds=min_age_s)
    oldest_us = int(oldest.timestamp() * 1_000_000)
    # Listed before the table is read: everything committed after that is younger than the age.
    listed = files.walk(folder)
    # Staged files are found before the table is read: those that are committed in between are then in use.
    staged = staged_locations(realm, table_id)
    table = realm.all(TABLE).find(keys.table(realm.account_id, table_id))
    view = None if table else realm.all(VIEW).find(keys.view(realm.account_id, table_id))
    if table is None and view is None and not _is_abandoned(realm, table_id, listed, oldest):
        return Slice(len(listed))
    unused = [each for each in _old(listed, oldest_us) if each not in staged]
    try:
        # Whatever the age of files, a transaction reads the tables as of its begin.
        states_us = min(oldest_us, int((realm.clock() - TRANSACTION_LIFETIME).timestamp() * 1_000_000))
        state = "" if table is None else _current_state(realm, table.value)
        own = files_of_table(realm, warehouse, table.value) if table else files
        if table and unused:
            unused = unused_files(unused, own, state, listed, states_us)
        elif state and location(state).is_within(folder):
            check_current_state(own, state, folder, listed)
    except SkiwayError:
        return Slice(len(listed), damaged=(uri_of(folder),))
    if view is not None and view.value.metadata_location:
        unused = [each for each in unused if each != location(view.value.metadata_location)]
    # Pins are checked after use, never before: whoever pins checks afterwards that the files were still in use.
    try:
        pinned = pinned_files(realm, own, table_id) if unused else set()
    except SkiwayError:
        return Slice(len(listed), damaged=(uri_of(folder),))
    orphans = tuple(uri_of(each) for each in unused if each not in pinned)
    sizes = {uri_of(each.location): each.size for each in listed}
    if not dry:
        files.remove(orphans)
        if view is None:
            _tidy(realm, warehouse, table, table_id, folder)
    return Slice(len(listed), orphans, sizes=tuple(sizes[each] for each in orphans))


def _is_abandoned(realm: Realm, table_id: str, listed: Sequence[Found], oldest: datetime) -> bool:
    """Whether a folder without a table is ours, and nothing was written to it since `oldest`.

    A drop writes a file there.
    """
    claimed_at = locations.claimed_at(realm, table_id)
    if claimed_at is None:
        return False
    last_us = max((each.modified_us for each in listed), default=int(claimed_at.timestamp() * 1_000_000))
    return last_us < int(oldest.timestamp() * 1_000_000)


def _old(listed: Sequence[Found], oldest_us: int) -> Iterator[Location]:
    """The files that no statement within the age has written."""
    at_work = {_written_by(each) for each in listed if each.modified_us >= oldest_us}
    return (each.location for each in listed if _written_by(each) not in at_work)


def _written_by(file: Found) -> str:
    """What the files of one statement have in common: the id in their names, or the whole name if it has none."""
    found = _ID.search(file.location.name)
    return found[0].lower() if found else uri_of(file.location)


def _tidy(realm: Realm, warehouse: Warehouse, table: Stored[v1.Table] | None, table_id: str, folder: Location) -> None:
    """Delete what is left besides files: empty folders of a deleted table, and records of expired snapshots."""
    if table is None:
        files = warehouse.files(uri_of(folder))
        files.remove_folders(folder)
        if not files.walk(folder):
            locations.release(realm, table_id)
            release_place(realm.stores, uri_of(folder))
            forget_export(realm, table_id)
        return
    locations.claim(realm, table_id)  # for tables that were created before folders were claimed
    if not table.value.metadata_location:
        return
    metadata = read_metadata(files_of_table(realm, warehouse, table.value), table.value.metadata_location)
    with suppress(Contention):  # others commit to the table all the time: the next sweep deletes the rest
        for batch in snapshot_records.leftover(realm, table, metadata):
            apply_batch(realm, batch, what=f"a snapshot of table {table.value.display_name}")


def _current_state(realm: Realm, table: v1.Table) -> str:
    """Where the current metadata of a table is; empty if a mirrored one is not exported."""
    if table.metadata_location:
        return table.metadata_location
    exported = find_export(realm, table.resource_id.id)
    return "" if exported is None else exported.location
