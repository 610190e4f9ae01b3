"""Locations of managed tables: a folder of the warehouse that is named by ids, never by anything that a caller sends.

A commit may name files: manifest lists, statistics, where to write. All of them must be in the table's folder, or one
table could expose the files of another.

A warehouse may also contain other things: tables of another store, for example one that was lost and replaced, or files
that people put there. So a folder is claimed before the first file is written to it, and garbage collection treats a
folder without a table as that of a dropped or unfinished table only if it was claimed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.compute as pc

from skiway.errors import AlreadyExists, InvalidArgument, SkiwayError
from skiway.formats import location
from skiway.formats.iceberg.delete_files import check_write_modes
from skiway.formats.iceberg.warehouse import TableFiles, Warehouse
from skiway.metastore.records import keys
from skiway.metastore.records.names import refuse_secrets
from skiway.metastore.records.realm import Realm
from skiway.metastore.records.updates import delete_plain
from skiway.storage import ABSENT

if TYPE_CHECKING:
    from pyiceberg.table.update import TableUpdate

__all__ = [
    "check_files",
    "check_properties",
    "check_updates",
    "claim",
    "claimed_at",
    "folder_of",
    "id_in",
    "release",
    "segment",
]

_PATHS: Final = ("write.data.path", "write.metadata.path", "write.object-storage.path", "write.folder-storage.path")


def folder_of(realm: Realm, warehouse: Warehouse, table_id: str) -> str:
    """The location of the table with this id."""
    return warehouse.folder(segment(realm.account_id), segment(table_id))


def check_updates(updates: Iterable[TableUpdate], files: TableFiles, folder: str) -> None:
    """Raise unless the table may have all files that the updates name; its `folder` does not change."""
    for update in updates:
        for name, given in _named(update):
            _check(name, given, files, folder)
        if update.action == "set-properties":
            check_properties(update.updates, files, folder)


def check_properties(properties: Mapping[str, str], files: TableFiles, folder: str) -> None:
    """Raise if properties have the names of secrets, direct files to where the table may have none, or select an unknown
    write mode.
    """
    refuse_secrets(properties, field="properties")
    refuse_secrets((key.rpartition(".")[2] for key in properties), field="properties")
    for name in _PATHS:
        if name in properties:
            _check(name, properties[name], files, folder)
    check_write_modes(properties)


def check_files(paths: pa.ChunkedArray, files: TableFiles, folder: str) -> None:
    """Raise unless the table may have all these data files."""
    plain = pc.and_(pc.starts_with(paths, f"{folder}/"), pc.invert(pc.match_substring(paths, "..")))
    for path in paths.filter(pc.invert(plain)).to_pylist():
        _check("a data file", path, files, folder)


def _named(update: Any) -> Iterable[tuple[str, str]]:
    match update.action:
        case "set-location":
            yield "location", update.location
        case "add-snapshot":
            yield "manifest-list", update.snapshot.manifest_list
        case "set-statistics":
            yield "statistics-path", update.statistics.statistics_path
        case "set-partition-statistics":
            yield "statistics-path", update.partition_statistics.statistics_path


def _check(name: str, given: str, files: TableFiles, folder: str) -> None:
    try:
        place = location(given)
        files.reach.check(place)
        inside = place == location(folder) if name == "location" else True
        if name == "write.metadata.path":  # the server writes there
            inside = place.is_within(location(folder))
    except SkiwayError:
        inside = False
    if not inside:
        raise _refused(name, given)


def _refused(name: str, given: str) -> InvalidArgument:
    return InvalidArgument(
        f"{name} {given!r} is not in the table's folder; a managed table has its files there, or in further locations that "
        "the operator approved for the catalog with warehouse.locations and that belong to no other table: leave it out, or "
        "choose such a location",
        key="location.refused",
        location=given,
    )


def segment(text: str) -> str:
    """The name of a folder of the warehouse for an id."""
    # Only letters, digits, - _ ~ and =, which are valid on every disk and in every object store.
    return quote(text, safe="").replace(".", "%2E").replace("%", "=")


def id_in(name: str) -> str:
    """The id that a folder of the warehouse is named after."""
    return unquote(name.replace("=", "%"))


def claim(realm: Realm, table_id: str) -> None:
    """Claim the folder of a table for this store, if it is not claimed yet."""
    if claimed_at(realm, table_id) is None:
        with suppress(AlreadyExists):  # another server was faster
            realm.stores.pointers.compare_and_set(
                keys.folder_claim(realm.account_id, table_id), realm.clock().isoformat(), expect=ABSENT
            )


def claimed_at(realm: Realm, table_id: str) -> datetime | None:
    """When the folder was claimed; None if it was not."""
    pointer = realm.stores.pointers.get(keys.folder_claim(realm.account_id, table_id))
    return None if pointer is None else datetime.fromisoformat(pointer.blob_uri)


def release(realm: Realm, table_id: str) -> None:
    """Remove the claim of a folder that is deleted."""
    delete_plain(realm.stores, keys.folder_claim(realm.account_id, table_id))
