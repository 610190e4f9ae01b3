"""Managed tables at locations that callers choose, where operators have approved it.

By default the server chooses the folder of a table. Operators can approve further locations for a catalog, with
`warehouse.locations`; then a caller may name a folder below one of them. Each folder is claimed for one table, and no
folder may be inside that of another table, or one table could read or delete the files of the other.

A table may also refer to files elsewhere in the approved locations, such as data files that existed before, if they are not in
the folder of another table. They are read, and never deleted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import unquote

from skiway.errors import AlreadyExists, InvalidArgument, SkiwayError
from skiway.formats import Location, location
from skiway.formats.iceberg.warehouse import TableFiles, Warehouse, uri_of
from skiway.metastore.managed.locations import folder_of
from skiway.metastore.records import keys
from skiway.metastore.records.kinds import CATALOG
from skiway.metastore.records.realm import Realm
from skiway.metastore.records.updates import delete_plain
from skiway.model import v1
from skiway.storage import ABSENT, Pointer, Stores

__all__ = [
    "Place",
    "check_approved",
    "chosen_folder",
    "claim_place",
    "files_of_table",
    "find_place",
    "folder_of_table",
    "owner_of",
    "places",
    "release_place",
    "table_files",
]


@dataclass(frozen=True, slots=True)
class Place:
    """A folder outside of the warehouse that is claimed for a table. `key` is its key in the store."""

    key: str
    account_id: str
    table_id: str
    folder: Location


def folder_of_table(realm: Realm, warehouse: Warehouse, table: v1.Table) -> str:
    """The location of a stored table: the folder of its id, or one that its creator chose."""
    own = folder_of(realm, warehouse, table.resource_id.id)
    place = location(table.metadata_location) if table.metadata_location and warehouse.approved else None
    if place is None or place.is_within(location(own)):
        return own
    found = owner_of(realm.stores, place)
    return own if found is None or found.table_id != table.resource_id.id else uri_of(found.folder)


def files_of_table(realm: Realm, warehouse: Warehouse, table: v1.Table) -> TableFiles:
    """The files of a stored table."""
    return table_files(realm, warehouse, table, folder_of_table(realm, warehouse, table))


def table_files(realm: Realm, warehouse: Warehouse, table: v1.Table, folder: str) -> TableFiles:
    """The files of a table in `folder`, and those that it may read elsewhere in approved locations of its catalog."""
    if not warehouse.approved:
        return warehouse.files(folder)
    everything = Realm(realm.stores, realm.account_id)  # whatever the caller sees of the catalog
    found = everything.all(CATALOG).find(keys.catalog(realm.account_id, table.catalog_id.id))
    shared = warehouse.approved_for(realm.account_id, found.value.display_name) if found else []
    table_id, known = table.resource_id.id, dict[Location, bool]()

    def may_read(place: Location) -> bool:
        above = place.parent
        if above not in known:
            owner = owner_of(realm.stores, place)
            known[above] = owner is None or (owner.account_id, owner.table_id) == (realm.account_id, table_id)
        return known[above]

    own = folder_of(realm, warehouse, table_id)
    return warehouse.files(folder, more=[own], shared=shared, may_read=may_read)


def chosen_folder(realm: Realm, warehouse: Warehouse, catalog: v1.Catalog, given: str) -> str:
    """The folder that a caller chose for a table, as metadata contains it; raises unless the operator approved it."""
    approved = warehouse.approved_for(realm.account_id, catalog.display_name)
    try:
        folder = location(given)
    except SkiwayError as error:
        raise _refused(given, catalog, approved) from error
    if not any(folder.is_within(root) and folder.real() != root.real() for root in approved):
        raise _refused(given, catalog, approved)
    return uri_of(warehouse.safe(folder))


def check_approved(realm: Realm, warehouse: Warehouse, catalog: v1.Catalog, given: str) -> None:
    """Raise unless the operator approved a location for the catalog, and it is not in the folder of a table."""
    approved = warehouse.approved_for(realm.account_id, catalog.display_name)
    try:
        place = warehouse.safe(location(given))
    except SkiwayError as error:
        raise _refused(given, catalog, approved) from error
    if not any(place.is_within(root) for root in approved):
        raise _refused(given, catalog, approved)
    if owner_of(realm.stores, place) is not None:
        raise _taken(given, "it belongs to another table")


def owner_of(stores: Stores, place: Location) -> Place | None:
    """The claim of the folder that a location is, or is in; None if there is none."""
    real = place.real()
    key = keys.place(real.scheme, real.bucket, real.path)
    while key.startswith(keys.PLACES):
        found = stores.pointers.get(key)
        if found is not None:
            return _place(found)
        key = key.rpartition("/")[0]
    return None


def claim_place(realm: Realm, warehouse: Warehouse, folder: str, table_id: str, *, empty: bool = True) -> bool:
    """Claim a folder for a table, and return whether it was not claimed for the table before.

    Raises AlreadyExists if it, or one around or inside it, is taken, or if it must be `empty` and is not.
    """
    place, pointers = location(folder).real(), realm.stores.pointers
    key = keys.place(place.scheme, place.bucket, place.path)
    before = find_place(realm.stores, folder)
    if before is not None and (before.account_id, before.table_id) == (realm.account_id, table_id):
        return False
    _check_free(realm.stores, key, folder)
    if empty and warehouse.files(folder).walk(location(folder)):
        raise _taken(folder, "it contains files")
    try:
        pointers.compare_and_set(key, keys.place_owner(realm.account_id, table_id, folder), expect=ABSENT)
    except AlreadyExists:
        raise _taken(folder, "it belongs to another table") from None
    try:
        _check_free(realm.stores, key, folder)  # once more: another folder may have been claimed meanwhile
    except AlreadyExists:
        release_place(realm.stores, folder)
        raise
    return True


def find_place(stores: Stores, folder: str) -> Place | None:
    """The claim of a folder, if there is one."""
    place = location(folder).real()
    found = stores.pointers.get(keys.place(place.scheme, place.bucket, place.path))
    return None if found is None else _place(found)


def places(stores: Stores, *, after: str = "") -> Iterator[Place]:
    """All claimed folders whose keys come after `after`, in the order of their keys."""
    return (_place(each) for each in stores.pointers.scan(keys.PLACES) if each.key > after)


def release_place(stores: Stores, folder: str) -> None:
    """Remove the claim of a folder that is deleted."""
    found = find_place(stores, folder)
    if found is not None:
        delete_plain(stores, found.key)


def _check_free(stores: Stores, key: str, folder: str) -> None:
    above = key.rpartition("/")[0]
    while above.startswith(keys.PLACES):
        if stores.pointers.get(above) is not None:
            raise _taken(folder, "it is inside the folder of another table")
        above = above.rpartition("/")[0]
    if stores.pointers.page(f"{key}/", size=1).items:
        raise _taken(folder, "it contains the folder of another table")


def _place(pointer: Pointer) -> Place:
    account_id, table_id, folder = map(unquote, pointer.blob_uri.split("/"))
    return Place(pointer.key, account_id, table_id, location(folder))


def _refused(given: str, catalog: v1.Catalog, approved: list[Location]) -> InvalidArgument:
    open_ = f"choose a folder below {', '.join(map(uri_of, approved))}, or leave" if approved else "leave"
    return InvalidArgument(
        f"location {given!r} is not approved for catalog {catalog.display_name}: {open_} the location out, and the server "
        "chooses it; operators approve locations with warehouse.locations",
        key="location.refused",
        location=given,
    )


def _taken(folder: str, reason: str) -> AlreadyExists:
    return AlreadyExists(
        f"location {folder!r} cannot be used for a new table, because {reason}: choose another folder",
        key="location.taken",
        location=folder,
    )
