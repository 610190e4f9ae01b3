"""Dropped tables, which can be restored until garbage collection may delete their files."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from urllib.parse import unquote

from skiway.errors import NotFound, PreconditionFailed
from skiway.formats.iceberg.metadata import read_metadata
from skiway.formats.iceberg.warehouse import TableFiles, Warehouse
from skiway.metastore.managed.places import files_of_table
from skiway.metastore.managed.states import ManagedTable
from skiway.metastore.managed.tables import DROPPED_FILE, drop, new_record, recorded, required_place
from skiway.metastore.records import keys
from skiway.metastore.records.realm import Realm
from skiway.metastore.records.updates import delete_plain
from skiway.model import v1
from skiway.storage import Pointer

__all__ = ["DroppedTable", "dropped_tables", "restore", "undrop"]


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
    files = files_of_table(realm, warehouse, table)
    if files.find(dropped.metadata_location) is None:
        raise _gone(dropped.name)
    metadata = read_metadata(files, dropped.metadata_location)
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
    names = sorted({each.name for each in dropped_tables(realm, namespace.resource_id.id)})
    return f"it can restore {', '.join(names[:10])}" if names else "there is none to restore"


def _gone(name: str) -> PreconditionFailed:
    return PreconditionFailed(
        f"table {name!r} cannot be restored: garbage collection has deleted some of its files",
        key="table.files_deleted",
    )
