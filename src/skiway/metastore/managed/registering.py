"""Tables from existing metadata files: dropped tables that are restored, and tables of other catalogs in approved locations."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING
from urllib.parse import unquote

from skiway.errors import InvalidArgument, NotFound, PreconditionFailed, SkiwayError
from skiway.formats import location as at
from skiway.formats.iceberg.metadata import read_metadata
from skiway.formats.iceberg.warehouse import TableFiles, Warehouse
from skiway.metastore.managed import locations
from skiway.metastore.managed.states import (
    ManagedTable,
    NewState,
    load,
    managed_record,
    publish,
    read_state,
    undoing,
)
from skiway.metastore.managed.tables import DROPPED_FILE, check_fillable, drop, new_record, recorded, required_place
from skiway.metastore.records import keys
from skiway.metastore.records.branches import branch_of
from skiway.metastore.records.errors import failure
from skiway.metastore.records.realm import Realm
from skiway.metastore.records.updates import delete_plain
from skiway.metastore.resources import hierarchy, tables
from skiway.model import v1
from skiway.storage import Pointer

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata


@dataclass(frozen=True, slots=True)
class DroppedTable:
    """A table that was dropped, and where its last metadata is."""

    table_id: str
    name: str
    metadata_location: str
    dropped_at: datetime


def dropped_tables(realm: Realm, namespace_id: str, name: str = "") -> list[DroppedTable]:
    """The dropped tables of a namespace, or those with a name in any case, the latest first."""
    found = realm.stores.pointers.scan(keys.dropped(realm.account_id, namespace_id, name))
    return sorted(map(_parsed, found), key=lambda each: each.dropped_at, reverse=True)


def undrop(realm: Realm, warehouse: Warehouse, namespace_id: v1.ResourceId, name: str) -> ManagedTable:
    """Restore the table with this name that was dropped last, with its id and all its snapshots.

    Its statistics and grants are lost.
    """
    place = required_place(realm, namespace_id)
    found = dropped_tables(realm, place.resource_id.id, name)
    if not found:
        raise NotFound(
            f"no table {name!r} of this schema was dropped in the last days: {_known(realm, place)}",
            key="table.not_dropped",
            table=name,
        )
    return restore(realm, warehouse, place, found[0])


def restore(
    realm: Realm, warehouse: Warehouse, place: v1.Namespace, dropped: DroppedTable, *, name: str = ""
) -> ManagedTable:
    """Restore a dropped table, with another name if one is given, in the state that its metadata describes."""
    table = new_record(realm, place, dropped.table_id, name or dropped.name)
    table.metadata_location = dropped.metadata_location  # which tells its folder
    files = locations.files_of_table(realm, warehouse, table)
    if files.find(dropped.metadata_location) is None:
        raise _gone(dropped.name)
    metadata = read_state(realm, files, dropped.metadata_location)
    restored = recorded(realm, table, metadata, dropped.metadata_location, files)
    # Checked when the table exists again: from then on, garbage collection keeps its files.
    if not _is_complete(restored, files):
        drop(realm, warehouse, table.resource_id)
        raise _gone(dropped.name)
    files.remove([f"{metadata.location}/{DROPPED_FILE}"])
    _forget(realm, place.resource_id.id, dropped)
    return restored


def _is_complete(table: ManagedTable, files: TableFiles) -> bool:
    try:
        return all(
            files.find(path) is not None
            for snapshot in table.handle.snapshots()
            for path in table.handle.files(snapshot)["path"].to_pylist()
            if files.is_owned(path)  # garbage collection deletes no others
        )
    except (NotFound, PreconditionFailed):  # a manifest is missing
        return False


def _forget(realm: Realm, namespace_id: str, dropped: DroppedTable) -> None:
    delete_plain(realm.stores, keys.dropped(realm.account_id, namespace_id, dropped.name, dropped.table_id))


def _parsed(pointer: Pointer) -> DroppedTable:
    dropped_at, name, location = pointer.blob_uri.split(" ", 2)
    return DroppedTable(
        unquote(pointer.key.rpartition("/")[2]), unquote(name), location, datetime.fromisoformat(dropped_at)
    )


def _known(realm: Realm, namespace: v1.Namespace) -> str:
    names = sorted({table.name for table in dropped_tables(realm, namespace.resource_id.id)})
    return f"it can restore {', '.join(names[:10])}" if names else "there is none to restore"


def _gone(name: str) -> PreconditionFailed:
    return PreconditionFailed(
        f"table {name!r} cannot be restored: garbage collection has deleted some of its files",
        key="table.files_deleted",
    )


def register(
    realm: Realm,
    warehouse: Warehouse,
    *,
    namespace_id: v1.ResourceId,
    name: str,
    metadata_location: str,
    overwrite: bool = False,
) -> ManagedTable:
    """Create a table from a metadata file; with `overwrite`, give an existing table the state that the file describes."""
    if (branch := branch_of(realm.stores)) is not None:
        raise failure(PreconditionFailed, "branch.register", name=branch.branch.display_name)
    place = required_place(realm, namespace_id)
    catalog = hierarchy.catalog(realm, place.catalog_id).value
    existing = tables.lookup(realm, catalog, place.resource_id.id, name) if overwrite else None
    former_id = _owner_id(realm, warehouse, metadata_location)
    if existing is not None:
        return _overwritten(realm, warehouse, existing, metadata_location, former_id)
    if former_id is None:
        return _registered(realm, warehouse, place, name, metadata_location)
    found = [table for table in dropped_tables(realm, place.resource_id.id) if table.table_id == former_id]
    if not found:
        raise _refused(metadata_location, "it is in the folder of a table that was not dropped from this namespace")
    return restore(realm, warehouse, place, replace(found[0], metadata_location=metadata_location), name=name)


def _registered(
    realm: Realm, warehouse: Warehouse, place: v1.Namespace, name: str, metadata_location: str
) -> ManagedTable:
    table = new_record(realm, place, realm.ids(), name)
    metadata, files, claimed = _read(realm, warehouse, table, metadata_location)
    locations.claim(realm, table.resource_id.id)
    with undoing(lambda: locations.release_place(realm.stores, metadata.location), when=claimed):
        check_fillable(realm, table, metadata)
        return recorded(realm, table, metadata, metadata_location, files)


def _overwritten(
    realm: Realm, warehouse: Warehouse, existing: v1.Table, metadata_location: str, former_id: str | None
) -> ManagedTable:
    managed_record(realm, existing.resource_id)  # raises unless the table is managed
    realm.require("table.write", existing)
    base = load(realm, warehouse, existing.resource_id)
    if former_id is not None:
        if former_id != base.id:
            raise _refused(metadata_location, f"it is not in the folder of table {existing.display_name}")
        metadata, files, claimed = read_metadata(base.files, metadata_location), base.files, False
        _check_files(metadata, files)
    else:
        metadata, files, claimed = _read(realm, warehouse, base.table, metadata_location)
    with undoing(lambda: locations.release_place(realm.stores, metadata.location), when=claimed):
        (made,) = publish(realm, [NewState(replace(base, files=files), metadata, metadata_location)])
    return made


def _read(
    realm: Realm, warehouse: Warehouse, table: v1.Table, metadata_location: str
) -> tuple[TableMetadata, TableFiles, bool]:
    """Read metadata in an approved location, claim the table's folder, and check what the metadata names.

    The last value says whether the folder was not claimed for the table before.
    """
    catalog = hierarchy.catalog(realm, table.catalog_id).value
    locations.check_approved(realm, warehouse, catalog, metadata_location)
    outside = warehouse.files(locations.chosen_folder(realm, warehouse, catalog, metadata_location.rpartition("/")[0]))
    folder = locations.chosen_folder(realm, warehouse, catalog, read_metadata(outside, metadata_location).location)
    if not at(metadata_location).is_within(at(folder)):
        raise _refused(metadata_location, f"it is not in the location of the table, {folder}")
    claimed = locations.claim_place(realm, warehouse, folder, table.resource_id.id, empty=False)
    files = locations.table_files(realm, warehouse, table, folder)
    try:
        metadata = read_metadata(files, metadata_location).model_copy(update={"location": folder})
        _check_files(metadata, files)
    except SkiwayError:
        if claimed:
            locations.release_place(realm.stores, folder)
        raise
    return metadata, files, claimed


def _check_files(metadata: TableMetadata, files: TableFiles) -> None:
    """Raise if the metadata names files, except data files, that the table may not have. Data files are checked later."""
    locations.check_properties(metadata.properties, files, metadata.location)
    for snapshot in metadata.snapshots:
        if not snapshot.manifest_list:
            raise PreconditionFailed(
                f"snapshot {snapshot.snapshot_id} has no manifest list, only manifests: rewrite the table with a newer engine first",
                key="table.register.unsupported",
            )
        files.reach.check(at(snapshot.manifest_list))
    for statistics in (*metadata.statistics, *metadata.partition_statistics):
        files.reach.check(at(statistics.statistics_path))


def _owner_id(realm: Realm, warehouse: Warehouse, metadata_location: str) -> str | None:
    """The id of the table, which may be dropped, in whose folder a file is; None if it is in no such folder."""
    try:
        place = at(metadata_location)
    except SkiwayError as error:
        raise _refused(metadata_location, "it is not a valid location") from error
    if (table_id := locations.id_at(realm, warehouse, place)) is not None:
        return table_id
    owner = locations.owner_of(realm.stores, place)
    return owner.table_id if owner is not None and owner.account_id == realm.account_id else None


def _refused(metadata_location: str, reason: str) -> InvalidArgument:
    return InvalidArgument(
        f"metadata file {metadata_location!r} cannot be registered, because {reason}: choose one in a location that the operator "
        "approved for the catalog with warehouse.locations, or of a table that was dropped from the same namespace",
        key="location.refused",
        location=metadata_location,
    )
