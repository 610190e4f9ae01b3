"""Files of the warehouse that nothing refers to: what failed commits, dropped tables and expired snapshots leave.

A file is removed if it is older than a minimum age, and no state that the table was in within that age refers to it. Both
halves are needed. The first keeps what is being written now: a commit names files that are younger than it is long. The
second keeps what is being read now: a query that began within that time may read a state that was replaced since. So the
age must be longer than any statement runs; the default is three days.

States are known by their metadata files, which are files of the folder too: the present one, those written within the
age, and the last one before, which was the present one when the age began.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from skiway.errors import PreconditionFailed, SkiwayError
from skiway.formats.files import Found
from skiway.formats.iceberg_metadata import read_metadata
from skiway.formats.iceberg_warehouse import TableFiles, Warehouse, uri_of
from skiway.formats.locations import Location, location
from skiway.metastore import keys, managed_records
from skiway.metastore.gc import Slice
from skiway.metastore.kinds import TABLE
from skiway.metastore.managed_locations import id_in
from skiway.metastore.parents import applied
from skiway.metastore.realm import Realm
from skiway.metastore.repository import Stored
from skiway.model import v1
from skiway.storage import Clock, Stores

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot

__all__ = ["THREE_DAYS_S", "sweep_warehouse"]

THREE_DAYS_S: Final = 3 * 24 * 3600.0
_METADATA: Final = ".metadata.json"


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
    """Remove the files of the next `size` tables that nothing refers to, or say which they are.

    A table whose metadata cannot be read is reported as damaged, and nothing of it is removed.
    """
    folders = _folders(warehouse, after=token or "", limit=size + 1)
    done = Slice()
    for account_id, table_id, folder in folders[:size]:
        realm = Realm(stores, account_id, clock=clock)
        done = done.followed_by(_sweep(realm, warehouse, table_id, folder, min_age_s=min_age_s, dry=dry_run))
    more = len(folders) > size
    return Slice(done.looked_at, done.removed, done.damaged, uri_of(folders[size - 1][2]) if more else None)


def _folders(warehouse: Warehouse, *, after: str, limit: int) -> list[tuple[str, str, Location]]:
    """The folders of tables, in the order of their locations, with the ids that name them."""
    files, found = warehouse.everything(), []
    for account in files.children(warehouse.root)[0]:
        if after and uri_of(account) < after.rpartition("/")[0]:
            continue
        for table in files.children(account)[0]:
            if uri_of(table) > after:
                found.append((id_in(account.name), id_in(table.name), table))
            if len(found) == limit:
                return found
    return found


def _sweep(
    realm: Realm, warehouse: Warehouse, table_id: str, folder: Location, *, min_age_s: float, dry: bool
) -> Slice:
    files = warehouse.files(uri_of(folder))
    oldest_us = int((realm.clock() - timedelta(seconds=min_age_s)).timestamp() * 1_000_000)
    # Listed before the table is looked at: what is committed after that is younger than the age.
    listed = files.walk(folder)
    table = realm.all(TABLE).find(keys.table(realm.account_id, table_id))
    try:
        used = _used(files, table.value, listed, oldest_us) if table else _until_old(listed, oldest_us)
    except SkiwayError:
        return Slice(len(listed), damaged=(uri_of(folder),))
    old = [each.location for each in listed if each.modified_us < oldest_us]
    orphans = tuple(uri_of(each) for each in old if each not in used)
    if not dry:
        files.remove(orphans)
        _tidy(realm, files, table, folder)
    return Slice(len(listed), orphans)


def _tidy(realm: Realm, files: TableFiles, table: Stored[v1.Table] | None, folder: Location) -> None:
    """What is left beside files: folders of a table that is gone, records of snapshots that are."""
    if table is None:
        files.remove_folders(folder)
        return
    metadata = read_metadata(files, table.value.metadata_location)
    for batch in managed_records.leftover(realm, table, metadata):
        applied(realm, batch, what=f"a snapshot of table {table.value.display_name}")


def _until_old(listed: list[Found], oldest_us: int) -> set[Location]:
    """All files of a table that was dropped, as long as one is young: its drop is marked by a file."""
    return {each.location for each in listed} if any(each.modified_us >= oldest_us for each in listed) else set()


def _used(files: TableFiles, table: v1.Table, listed: list[Found], oldest_us: int) -> set[Location]:
    """The files that the table's states refer to."""
    present = location(table.metadata_location)
    used = _of_state(files, present)
    for place in set(_recent(listed, oldest_us)) - {present}:
        try:
            used |= _of_state(files, place, known=used)
        except PreconditionFailed as error:
            # The state of a commit that failed half-way: nobody was ever shown it.
            if error.key != "file.missing":
                raise
    return used


def _of_state(files: TableFiles, place: Location, *, known: Set[Location] = frozenset()) -> set[Location]:
    metadata = read_metadata(files, uri_of(place))
    used = {place, *_of_metadata(metadata)}
    for each in metadata.snapshots:
        if location(each.manifest_list) not in known:
            used.update(map(location, _of_snapshot(each, files)))
    return used


def _recent(listed: list[Found], oldest_us: int) -> Iterator[Location]:
    """The metadata files of the states that the table was in since then."""
    states = sorted((each for each in listed if _METADATA in each.location.name), key=lambda each: each.modified_us)
    young = [each.location for each in states if each.modified_us >= oldest_us]
    yield from young
    yield from (each.location for each in states[len(states) - len(young) - 1 : len(states) - len(young)])


def _of_metadata(metadata: TableMetadata) -> Iterator[Location]:
    yield from (location(each.metadata_file) for each in metadata.metadata_log)
    yield from (location(each.statistics_path) for each in metadata.statistics)
    yield from (location(each.statistics_path) for each in metadata.partition_statistics)


def _of_snapshot(snapshot: Snapshot, files: TableFiles) -> Iterator[str]:
    from skiway.formats.iceberg_manifest_writing import entries, manifests

    yield snapshot.manifest_list
    for manifest in manifests(snapshot, files.io):
        yield manifest.manifest_path
        yield from (entry.data_file.file_path for entry in entries(manifest, files.io))
