"""Which files of a table are in use: by its states, by queries, and by transactions.

Everything that deletes files of a table asks here first: the sweep of the warehouse, the expiry of snapshots, and the removal
of orphan files.

A state of a table is a metadata file, with the snapshots that it lists. A file is in use if the current state references it,
if a state that was current within a given time does, or if a query or a transaction has pinned its snapshot. Of states that
were replaced, snapshots may have expired since, and with them their files; such snapshots use no files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import suppress
from datetime import timedelta
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Final, TypeAlias

from skiway.errors import InvalidArgument, NotFound, PreconditionFailed
from skiway.formats import Found, Location, location
from skiway.formats.iceberg.metadata import read_metadata
from skiway.formats.iceberg.warehouse import TableFiles, uri_of
from skiway.metastore.ingest.positions import position_file
from skiway.metastore.queries.pins import PinnedSnapshot, is_pinned
from skiway.metastore.records import keys
from skiway.metastore.records.kinds import LEASE
from skiway.metastore.records.realm import Realm
from skiway.model import v1

if TYPE_CHECKING:
    from pyiceberg.manifest import ManifestEntry, ManifestFile
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot

__all__ = [
    "TRANSACTION_LIFETIME",
    "add_files_of_snapshot",
    "check_current_state",
    "files_of_state",
    "leased_tables",
    "pinned_files",
    "unused_files",
]

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
    _add_state(used, files, metadata, on_manifest)
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
    from skiway.formats.iceberg.file_io import WritingIO
    from skiway.formats.iceberg.manifest_files import entries, manifests

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
        # It may belong to a commit that failed half-way, which nobody has seen.
        with suppress(*_MISSING):
            replaced.update(_replaced_by(files, place))
            _add_replaced_state(used, files, place, tried)

    states = {each.location: each.modified_us for each in listed if _METADATA in each.location.name}
    for place, modified_us in states.items():
        if modified_us >= oldest_us:
            yield partial(add_written, place=place)
    # Among them is the state that was current when the age began. Modification times cannot tell which one it is: they
    # can be equal.
    for place in replaced:
        if states.get(place, oldest_us) < oldest_us:
            yield partial(_add_replaced_state, files=files, place=place, tried=tried)


def leased_tables(realm: Realm, table_id: str) -> Iterator[v1.PinnedTable]:
    """What active queries and transactions have pinned of a table."""
    leases = (realm.all(LEASE).follow(each) for each in realm.stores.pointers.scan(keys.lease_active(realm.account_id)))
    read = chain.from_iterable(lease.value.tables for lease in leases if lease)
    return (each for each in read if each.table_id.id == table_id)


def pinned_files(realm: Realm, files: TableFiles, table_id: str) -> set[Location]:
    """The files of the table that active queries and transactions may still read.

    A query reads the files that were listed for it. A transaction reads a snapshot of the table in the state in which it
    was pinned.
    """
    found: set[Location] = set()
    for each in leased_tables(realm, table_id):
        if each.file_stats_uri and is_pinned(realm.stores, each.file_stats_uri):
            pinned = PinnedSnapshot(realm, each)
            found |= {location(path) for path in pinned.files()["file_path"].to_pylist()}
            if state := pinned.table().metadata_location:  # a mirrored table has none
                found.add(location(state))
                snapshot = read_metadata(files, state).snapshot_by_id(each.snapshot_id)
                if snapshot is not None:
                    add_files_of_snapshot(found, files, snapshot)
    return found


def _replaced_by(files: TableFiles, place: Location) -> set[Location]:
    """The state that this one has replaced, which is the last in its log; none for the first state of a table."""
    return {location(each.metadata_file) for each in read_metadata(files, uri_of(place)).metadata_log[-1:]}


def _add_state(used: set[Location], files: TableFiles, place: Location, on_manifest: OnManifest = _ignore) -> None:
    """Add all files that a state references."""
    metadata = read_metadata(files, uri_of(place))
    used |= {place, *_of_metadata(metadata)}
    for snapshot in metadata.snapshots:
        add_files_of_snapshot(used, files, snapshot, on_manifest=on_manifest)


def _add_replaced_state(used: set[Location], files: TableFiles, place: Location, tried: set[Location]) -> None:
    """Add all files that a replaced state references, except for those of snapshots that have expired since.

    `tried` are the manifest lists of snapshots that other states have as well.
    """
    metadata = read_metadata(files, uri_of(place))
    used |= {place, *_of_metadata(metadata)}
    for snapshot in metadata.snapshots:
        if (listing := location(snapshot.manifest_list)) not in tried:
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
    from skiway.formats.iceberg.file_io import WritingIO
    from skiway.formats.iceberg.manifest_files import entries, manifests

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
    yield from (location(place) for each in metadata.snapshots if (place := position_file(each)))
