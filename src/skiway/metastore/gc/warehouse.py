"""Files in the warehouse: which of them are in use, and how those that are not are deleted.

States of tables, queries and transactions use files. Failed commits, dropped tables and expired snapshots leave files that nothing uses.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from skiway.errors import Conflict, Contention, InvalidArgument, NotFound, PreconditionFailed, SkiwayError
from skiway.formats import Found, Location, location
from skiway.formats.iceberg.metadata import read_metadata
from skiway.formats.iceberg.warehouse import TableFiles, Warehouse, uri_of
from skiway.metastore.exports import find_export, forget_export
from skiway.metastore.gc.sweeps import Slice, noting_failure
from skiway.metastore.ingest.positions import position_file
from skiway.metastore.managed import locations, states
from skiway.metastore.managed.locations import files_of_table, folder_of, id_in, places, release_place
from skiway.metastore.queries.pins import PinnedSnapshot, is_pinned
from skiway.metastore.records import keys
from skiway.metastore.records.branches import is_creating, records_in_use
from skiway.metastore.records.kinds import LEASE, TABLE, TRANSACTION, VIEW, Kind
from skiway.metastore.records.realm import Realm
from skiway.metastore.records.repository import Repository, Stored
from skiway.metastore.records.updates import apply_batch
from skiway.metastore.transactions.api import expire
from skiway.metastore.transactions.staged_writes import staged_locations, uncommitted_paths
from skiway.model import v1
from skiway.storage import Clock, Stores

if TYPE_CHECKING:
    from pyiceberg.manifest import ManifestEntry, ManifestFile
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot

TRANSACTION_LIFETIME: Final = timedelta(hours=1)
"""How long a transaction of DuckDB can be open."""

_METADATA: Final = ".metadata.json"
_MISSING: Final = (PreconditionFailed, InvalidArgument, NotFound)

OnManifest: TypeAlias = "Callable[[ManifestFile, Sequence[ManifestEntry]], None]"


def _ignore(_manifest: ManifestFile, _entries: Sequence[ManifestEntry]) -> None:
    pass


def files_of_state(files: TableFiles, metadata: Location, *, on_manifest: OnManifest = _ignore) -> set[Location]:
    """The files that a state of a table references, given the location of its metadata.

    `on_manifest` is called with each manifest and its entries that are not deleted.
    """
    used: set[Location] = set()
    _add_state(used, files, metadata, on_manifest=on_manifest)
    return used


def unused_files(
    candidates: Iterable[Location], files: TableFiles, current: str, listed: list[Found], oldest_us: int
) -> list[Location]:
    """Those of the candidates that no state of the table since `oldest_us` references.

    `current` is the metadata of the current one, if there is one. The others are found among the `listed` files of the folder:
    those written since then, and those that they have replaced, as their metadata logs say. A table can have thousands of states
    with thousands of snapshots each, so no more of them are read when no candidate is left.
    """
    used: set[Location] = set()
    left = list(candidates)
    for add in _states(files, current, listed, oldest_us):
        if not left:
            break
        add(used)
        left = [each for each in left if each not in used]
    return left


def check_current_state(files: TableFiles, current: str, folder: Location, listed: Iterable[Found]) -> None:
    """Raise if the current state of a table is damaged, as far as its metadata and one manifest list show it.

    The manifest lists of all snapshots and the manifests of the current one must exist. `listed` are the files that were in the
    folder a moment ago. Of those that are missing there, the ones that were committed since can be read.
    """
    from skiway.formats.iceberg.manifest_files import entries, manifests
    from skiway.formats.iceberg.metadata_files import WritingIO

    present, io = {each.location for each in listed}, WritingIO(files)

    def is_missing(path: str) -> bool:
        place = location(path)
        return place not in present and place.is_within(folder)

    metadata = read_metadata(files, current)
    for snapshot in metadata.snapshots:
        if is_missing(snapshot.manifest_list):
            manifests(snapshot, io)
    for manifest in manifests(metadata.current_snapshot(), io):
        if is_missing(manifest.manifest_path):
            entries(manifest, io)


def _states(
    files: TableFiles, current: str, listed: list[Found], oldest_us: int
) -> Iterator[Callable[[set[Location]], None]]:
    """For each state, what adds the files that it references: first the current state, and then older ones."""
    if current:
        yield lambda used: _add_state(used, files, location(current))
    replaced: set[Location] = set()
    tried: set[Location] = set()

    def add_written(used: set[Location], place: Location) -> None:
        # It may belong to a commit that failed before it was published.
        with suppress(*_MISSING):
            replaced.update(_replaced_by(files, place))
            _add_state(used, files, place, tried=tried)

    states = {each.location: each.modified_us for each in listed if _METADATA in each.location.name}
    for place, modified_us in states.items():
        if modified_us >= oldest_us:
            yield partial(add_written, place=place)
    # Among them is the state that was current when the age began. Modification times cannot tell which one it is: they
    # can be equal.
    for place in replaced:
        if states.get(place, oldest_us) < oldest_us:
            yield partial(_add_state, files=files, place=place, tried=tried)


def leased_tables(realm: Realm, table_id: str) -> Iterator[v1.PinnedTable]:
    """What active queries and transactions have pinned of a table."""
    leases = (realm.all(LEASE).follow(each) for each in realm.stores.pointers.scan(keys.lease_active(realm.account_id)))
    read = chain.from_iterable(lease.value.tables for lease in leases if lease)
    return (each for each in read if each.table_id.id == table_id)


def pinned_files(realm: Realm, files: TableFiles, table_id: str) -> set[Location]:
    """The files of the table that are in use besides those of its present state: by active queries and transactions, and by
    branches and tags of the lake. Whatever deletes files of tables asks this function, unless a branch is being created.

    A query reads the files that were listed for it. A transaction reads a snapshot of the table in the state in which it
    was pinned. A branch uses the state of its base, and its present one.
    """
    found = branch_states(realm, VIEW, table_id)
    for state in branch_states(realm, TABLE, table_id):
        _add_state(found, files, state)
    for table in leased_tables(realm, table_id):
        if table.file_stats_uri and is_pinned(realm.stores, table.file_stats_uri):
            pinned = PinnedSnapshot(realm, table)
            found |= {location(path) for path in pinned.files()["file_path"].to_pylist()}
            if place := pinned.table().metadata_location:  # a mirrored table has none
                found.add(location(place))
                snapshot = read_metadata(files, place).snapshot_by_id(table.snapshot_id)
                if snapshot is not None:
                    add_files_of_snapshot(found, files, snapshot)
    return found


def branch_states(realm: Realm, kind: Kind[Any], own_id: str) -> set[Location]:
    """Where the metadata of a table or view is in the states that branches and tags of the lake use."""
    key = kind.by_id(realm.account_id, own_id)
    found: set[Location] = set()
    for uri in records_in_use(realm.stores, realm.account_id, key):
        record: Any = kind.message.FromString(realm.stores.blobs.get(uri))
        if record.metadata_location:
            found.add(location(record.metadata_location))
    return found


def _replaced_by(files: TableFiles, place: Location) -> set[Location]:
    """The state that this one has replaced, which is the last in its log; none for the first state of a table."""
    return {location(each.metadata_file) for each in read_metadata(files, uri_of(place)).metadata_log[-1:]}


def _add_state(
    used: set[Location],
    files: TableFiles,
    place: Location,
    *,
    on_manifest: OnManifest = _ignore,
    tried: set[Location] | None = None,
) -> None:
    """Add all files that a state references.

    For states that were replaced, `tried` are the manifest lists of snapshots that other states have as well. Those of snapshots
    that have expired since may be missing.
    """
    metadata = read_metadata(files, uri_of(place))
    used |= {place, *_of_metadata(metadata)}
    for snapshot in metadata.snapshots:
        if tried is None:
            add_files_of_snapshot(used, files, snapshot, on_manifest=on_manifest)
        elif (listing := location(snapshot.manifest_list)) not in tried:
            tried.add(listing)
            with suppress(*_MISSING):
                add_files_of_snapshot(used, files, snapshot)


def add_files_of_snapshot(
    used: set[Location],
    files: TableFiles,
    snapshot: Snapshot,
    *,
    known: Set[Location] = frozenset(),
    on_manifest: OnManifest = _ignore,
) -> None:
    """Add the manifest list, the manifests, and the data and delete files of a snapshot to those in `used`.

    A manifest list in `used`, and manifests in `used` or `known`, have been read already.
    """
    listing = location(snapshot.manifest_list)
    if listing in used:
        return
    from skiway.formats.iceberg.manifest_files import entries, manifests
    from skiway.formats.iceberg.metadata_files import WritingIO

    for manifest in manifests(snapshot, WritingIO(files)):
        place = location(manifest.manifest_path)
        if place not in used and place not in known:
            listed = entries(manifest, WritingIO(files))
            on_manifest(manifest, listed)
            used |= {place, *(location(entry.data_file.file_path) for entry in listed)}
    used.add(listing)


def _of_metadata(metadata: TableMetadata) -> Iterator[Location]:
    yield from (location(each.metadata_file) for each in metadata.metadata_log)
    yield from (location(each.statistics_path) for each in metadata.statistics)
    yield from (location(each.statistics_path) for each in metadata.partition_statistics)
    yield from (location(place) for snapshot in metadata.snapshots if (place := position_file(snapshot)))


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
        folders += (place.folder for place in _places(realm.stores, warehouse, after="") if place.id == table_id)
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
    due = [pointer for pointer in page.items if keys.queue_time(pointer.key) <= int(clock().timestamp() * 1_000_000)]
    removed: list[str] = []
    files: list[str] = []
    failed: list[str] = []
    for pointer in due:
        with noting_failure(pointer.key, failed):
            transaction = Repository(stores, TRANSACTION).find_named(pointer.key)
            if transaction is None:
                continue
            realm = Realm(stores, transaction.value.account_id, clock=clock)
            unused = uncommitted_paths(realm, warehouse, transaction.value)
            if not dry_run:
                with suppress(Conflict, PreconditionFailed, NotFound):  # it is committed or aborted at this moment
                    expire(realm, warehouse, transaction)
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
    for place in places(stores, after=after):
        if any(place.folder.is_within(root) for _, root in warehouse.approved):
            yield _Folder(place.account_id, place.table_id, place.folder, place.key)


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
    if is_creating(realm.stores, realm.account_id):  # a branch, which may get anything that the lake contains
        return Slice(len(listed))
    view = None if table else realm.all(VIEW).find(keys.view(realm.account_id, table_id))
    if table is None and view is None and not _is_abandoned(realm, table_id, listed, oldest):
        return Slice(len(listed))
    unused = [each for each in _old(listed, oldest_us) if each not in staged]
    try:
        # Whatever the age of files, a transaction reads the tables as of its begin.
        states_us = min(oldest_us, int((realm.clock() - TRANSACTION_LIFETIME).timestamp() * 1_000_000))
        state = "" if table is None else _current_state(realm, table.value)
        own = files_of_table(realm, warehouse, table.value) if table else files
        if unused and (table or branch_states(realm, TABLE, table_id)):
            unused = unused_files(unused, own, state, listed, states_us)
        elif state and location(state).is_within(folder):
            check_current_state(own, state, folder, listed)
    except SkiwayError:
        return Slice(len(listed), damaged=(uri_of(folder),))
    if view is not None and view.value.metadata_location:
        unused = [each for each in unused if each != location(view.value.metadata_location)]
    # Pins are checked after use, never before: a reader that pins files checks afterwards that they were still in use.
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
    return Slice(len(listed), orphans, sizes=tuple(sizes[orphan] for orphan in orphans))


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
        for batch in states.leftover_snapshots(realm, table, metadata):
            apply_batch(realm, batch, what=f"a snapshot of table {table.value.display_name}")


def _current_state(realm: Realm, table: v1.Table) -> str:
    """Where the current metadata of a table is; empty if a mirrored one is not exported."""
    if table.metadata_location:
        return table.metadata_location
    exported = find_export(realm, table.resource_id.id)
    return "" if exported is None else exported.location
