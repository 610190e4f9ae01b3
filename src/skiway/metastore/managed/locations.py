"""Locations of managed tables: folders of the warehouse that are named by ids, and places that callers choose where operators
have approved it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.compute as pc

from skiway.errors import AlreadyExists, InvalidArgument, SkiwayError
from skiway.formats import Location, location
from skiway.formats.iceberg.warehouse import TableFiles, Warehouse, uri_of
from skiway.formats.iceberg.writing.delete_files import check_write_modes
from skiway.metastore.records import keys
from skiway.metastore.records.branches import branch_of
from skiway.metastore.records.kinds import CATALOG
from skiway.metastore.records.names import check_properties as check_own_properties
from skiway.metastore.records.names import refuse_secrets
from skiway.metastore.records.realm import Realm
from skiway.metastore.records.updates import delete_plain
from skiway.model import v1
from skiway.storage import ABSENT, Pointer, Stores

if TYPE_CHECKING:
    from pyiceberg.table.update import TableUpdate

_PATHS: Final = ("write.data.path", "write.metadata.path", "write.object-storage.path", "write.folder-storage.path")


BRANCHES: Final = "branches"
"""The folder with what branches of the lake write, inside the folder of a table."""


def folder_of(realm: Realm, warehouse: Warehouse, table_id: str) -> str:
    """The location of the table with this id; on a branch, the folder of the branch in it."""
    return own_folder(realm, warehouse.folder(segment(realm.account_id), segment(table_id)))


def own_folder(realm: Realm, folder: str) -> str:
    """The part of the folder of a table where the realm writes: all of it or, on a branch, the folder of the branch."""
    branch = branch_of(realm.stores)
    return folder if branch is None else f"{folder}/{BRANCHES}/{segment(branch.id)}"


def folder_on_main(realm: Realm, folder: str) -> str:
    """The whole folder of a table, given that where the realm writes."""
    branch = branch_of(realm.stores)
    return folder if branch is None else folder.removesuffix(f"/{BRANCHES}/{segment(branch.id)}")


def folder_of_namespace(realm: Realm, warehouse: Warehouse, namespace_id: str) -> str:
    """The location that clients see for a namespace. It is always empty, because tables have folders of their own."""
    return folder_of(realm, warehouse, namespace_id)


def is_in_namespace(realm: Realm, warehouse: Warehouse, namespace_id: str, given: str) -> bool:
    """Whether a client derived the location of a table or view from that of the namespace, as Trino does."""
    try:
        return location(given).is_within(location(folder_of_namespace(realm, warehouse, namespace_id)))
    except SkiwayError:
        return False


def without_suggestions(realm: Realm, warehouse: Warehouse, namespace_id: str, updates: Sequence[Any]) -> list[Any]:
    """The updates of a view, without locations that a client derived from that of the namespace."""
    found = ((each, getattr(each, "location", None)) for each in updates)
    return [each for each, place in found if not (place and is_in_namespace(realm, warehouse, namespace_id, place))]


def check_updates(updates: Iterable[TableUpdate], files: TableFiles, folder: str) -> None:
    """Raise unless the table may have all files that the updates name; its `folder` does not change."""
    for update in updates:
        for name, given in _named(update):
            _check(name, given, files, folder)
        if update.action == "set-properties":
            check_properties(update.updates, files, folder)


def check_properties(properties: Mapping[str, str], files: TableFiles, folder: str) -> None:
    """Raise if properties have the names of secrets or wrong values, direct files to where the table may have none, or select
    an unknown write mode.
    """
    check_own_properties(properties)
    refuse_secrets((key.rpartition(".")[2] for key in properties), field="properties")
    for name in _PATHS:
        if name in properties:
            _check(name, properties[name], files, folder)
    check_write_modes(properties)


def check_files(paths: pa.ChunkedArray, files: TableFiles, folder: str) -> None:
    """Raise unless the table may have all these data files."""
    inside = pc.starts_with(paths, f"{folder}/")
    for each in files.readable:
        inside = pc.or_(inside, pc.starts_with(paths, f"{each}/"))
    plain = pc.and_(inside, pc.invert(pc.match_substring(paths, "..")))
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
        raise _refused_location(name, given)


def _refused_location(name: str, given: str) -> InvalidArgument:
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


def id_at(realm: Realm, warehouse: Warehouse, place: Location) -> str | None:
    """The id that the folder of a file is named after; None if the file is not in a folder of the account."""
    account = location(warehouse.folder(segment(realm.account_id)))
    if not place.is_within(account):
        return None
    return id_in(place.path.removeprefix(f"{account.path}/").partition("/")[0])


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
    if place is None or place.is_within(location(folder_on_main(realm, own))):
        return own
    found = owner_of(realm.stores, place)
    if found is None or found.table_id != table.resource_id.id:
        return own
    return own_folder(realm, uri_of(found.folder))


def files_of_table(realm: Realm, warehouse: Warehouse, table: v1.Table) -> TableFiles:
    """The files of a stored table."""
    return table_files(realm, warehouse, table, folder_of_table(realm, warehouse, table))


def table_files(realm: Realm, warehouse: Warehouse, table: v1.Table, folder: str) -> TableFiles:
    """The files of a table in `folder`, and those that it may read elsewhere in approved locations of its catalog.

    On a branch, all files of the table can be read, and only those in the folder of the branch can be written and deleted.
    """
    readable = [] if branch_of(realm.stores) is None else [folder_on_main(realm, folder)]
    if not warehouse.approved:
        return warehouse.files(folder, readable=readable)
    everything = Realm(realm.stores, realm.account_id)  # whatever the caller sees of the catalog
    catalog = everything.all(CATALOG).find(keys.catalog(realm.account_id, table.catalog_id.id))
    shared = warehouse.approved_for(realm.account_id, catalog.value.display_name) if catalog else []
    table_id, known = table.resource_id.id, dict[Location, bool]()

    def may_read(place: Location) -> bool:
        above = place.parent
        if above not in known:
            owner = owner_of(realm.stores, place)
            known[above] = owner is None or (owner.account_id, owner.table_id) == (realm.account_id, table_id)
        return known[above]

    own = folder_of(realm, warehouse, table_id)
    readable = readable and [*readable, folder_on_main(realm, own)]
    return warehouse.files(folder, more=[own], readable=readable, shared=shared, may_read=may_read)


def chosen_folder(realm: Realm, warehouse: Warehouse, catalog: v1.Catalog, given: str) -> str:
    """The folder that a caller chose for a table, as metadata contains it; raises unless the operator approved it."""
    if branch_of(realm.stores) is not None:
        raise InvalidArgument(
            f"location {given!r} cannot be chosen on a branch, which writes to a folder of its own: leave the location out",
            key="location.refused",
            location=given,
        )
    approved = warehouse.approved_for(realm.account_id, catalog.display_name)
    try:
        folder = location(given)
    except SkiwayError as error:
        raise _refused_place(given, catalog, approved) from error
    if not any(folder.is_within(root) and folder.real() != root.real() for root in approved):
        raise _refused_place(given, catalog, approved)
    return uri_of(warehouse.safe(folder))


def check_approved(realm: Realm, warehouse: Warehouse, catalog: v1.Catalog, given: str) -> None:
    """Raise unless the operator approved a location for the catalog, and it is not in the folder of a table."""
    approved = warehouse.approved_for(realm.account_id, catalog.display_name)
    try:
        place = warehouse.safe(location(given))
    except SkiwayError as error:
        raise _refused_place(given, catalog, approved) from error
    if not any(place.is_within(root) for root in approved):
        raise _refused_place(given, catalog, approved)
    if owner_of(realm.stores, place) is not None:
        raise _taken(given, "it belongs to another table")


def owner_of(stores: Stores, place: Location) -> Place | None:
    """The claim of the folder that a location is, or is in; None if there is none."""
    real = place.real()
    key = keys.place(real.scheme, real.bucket, real.path)
    while key.startswith(keys.PLACES):
        pointer = stores.pointers.get(key)
        if pointer is not None:
            return _place(pointer)
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
        _check_free(realm.stores, key, folder)  # once more: another folder may have been claimed in the meantime
    except AlreadyExists:
        release_place(realm.stores, folder)
        raise
    return True


def find_place(stores: Stores, folder: str) -> Place | None:
    """The claim of a folder, if there is one."""
    place = location(folder).real()
    pointer = stores.pointers.get(keys.place(place.scheme, place.bucket, place.path))
    return None if pointer is None else _place(pointer)


def places(stores: Stores, *, after: str = "") -> Iterator[Place]:
    """All claimed folders whose keys come after `after`, in the order of their keys."""
    return (_place(each) for each in stores.pointers.scan(keys.PLACES) if each.key > after)


def release_place(stores: Stores, folder: str) -> None:
    """Remove the claim of a folder that is deleted."""
    place = find_place(stores, folder)
    if place is not None:
        delete_plain(stores, place.key)


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


def _refused_place(given: str, catalog: v1.Catalog, approved: list[Location]) -> InvalidArgument:
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
