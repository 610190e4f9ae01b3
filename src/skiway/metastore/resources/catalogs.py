"""Catalogs: the top level of an account's names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Set
from itertools import islice
from typing import Final, Literal, TypeAlias, get_args

from skiway.errors import Conflict, InvalidArgument
from skiway.foundation import resources
from skiway.metastore.records import keys
from skiway.metastore.records.branches import branch_of, main_of
from skiway.metastore.records.errors import failure, invalid_field
from skiway.metastore.records.kinds import BRANCH, CATALOG
from skiway.metastore.records.names import BRANCH_MARK, check_choice, check_properties, normal_text
from skiway.metastore.records.realm import Realm
from skiway.metastore.records.repository import Repository, Stored
from skiway.metastore.records.updates import closed, copied, counted, remove_empty, reopening
from skiway.metastore.resources import namespaces
from skiway.metastore.resources.hierarchy import is_managed, writable_id
from skiway.metastore.resources.named import Calls
from skiway.model import v1
from skiway.storage import Pointer

SCAN_MODE = "scan.mode"
"""The property that selects who reads the tables of a catalog."""
ScanMode: TypeAlias = Literal["server", "client", "auto"]
SCAN_MODES: Final = get_args(ScanMode)


_MERGER: Final = re.compile(r"(user|role|group):.+")


def find(realm: Realm, name: str) -> Stored[v1.Catalog] | None:
    """The catalog with this name, or None. One with a damaged record has `damage` set.

    On a branch of the lake, its catalog is also found by the name of the branch, such as `lake@dev`, and then has this name.
    """
    wanted = normal_text(name)
    if not wanted:
        return None
    found = realm.all(CATALOG).at(keys.catalog_name(realm.account_id, wanted))
    view, (of, _, branch) = branch_of(realm.stores), wanted.rpartition(BRANCH_MARK)
    if found is not None or view is None or branch != view.branch.display_name:
        return found
    found = realm.all(CATALOG).at(keys.catalog_name(realm.account_id, of))
    if found is None or found.value.resource_id.id != view.branch.catalog_id.id:
        return None
    return Stored(as_named(realm, found.value), found.pointer)


def as_named(realm: Realm, catalog: v1.Catalog) -> v1.Catalog:
    """A catalog with the name by which callers know it: on a branch of the lake, its catalog has that of the branch."""
    view = branch_of(realm.stores)
    if view is None or catalog.resource_id.id != view.branch.catalog_id.id or BRANCH_MARK in catalog.display_name:
        return catalog
    shown = copied(catalog)
    shown.display_name = f"{catalog.display_name}{BRANCH_MARK}{view.branch.display_name}"
    return shown


def only(realm: Realm) -> Stored[v1.Catalog] | None:
    """The account's catalog if it has exactly one, or None."""
    found = list(islice(realm.all(CATALOG).entries(keys.catalog_name(realm.account_id)), 2))
    return found[0] if len(found) == 1 else None


def scan(realm: Realm) -> Iterator[v1.Catalog]:
    """All catalogs of the account, by name. Those with a damaged record have `damage` set."""
    return (found.value for found in realm.all(CATALOG).entries(keys.catalog_name(realm.account_id)))


def _remove(realm: Realm, request: v1.DeleteCatalogRequest, pointer: Pointer, catalog: v1.Catalog | None) -> None:
    """Delete a catalog. If it contains namespaces, raise an error or, if `require_empty` is false, delete them first."""
    catalog_id = keys.last_segment(pointer.key)
    if request.HasField("require_empty") and not request.require_empty:
        namespaces.clear(realm, catalog_id, ())
        _delete_branches(realm, catalog_id)
    remove_empty(realm, realm.all(CATALOG), pointer, catalog, held=lambda: _held(realm, catalog_id))


def _delete_branches(realm: Realm, catalog_id: str) -> None:
    """Delete the branches of a catalog. Garbage collection deletes what they have."""
    repository = Repository(main_of(realm.stores), BRANCH)
    for found in list(repository.scan(keys.branch_name(realm.account_id, catalog_id))):
        gone = copied(found.value)
        gone.state = v1.BS_DELETED
        gone.deleted_at.CopyFrom(realm.now())
        own = repository.find(BRANCH.key(gone))
        if own is not None:
            repository.update(own, gone)


def _check(_: Realm, catalog: v1.Catalog, __: v1.CatalogSpec, paths: Set[str]) -> None:
    if "display_name" in paths and BRANCH_MARK in catalog.display_name:
        raise failure(InvalidArgument, "catalog.name.branch", name=catalog.display_name, field="display_name")
    if catalog.protected and not is_managed(catalog):
        raise failure(InvalidArgument, "catalog.protection", name=catalog.display_name, field="protected")
    if unknown := [each for each in catalog.mergers if not _MERGER.fullmatch(each)]:
        raise invalid_field(
            "mergers", repr(unknown[0][:100]), "name them as user:<subject>, role:<name> or group:<name>"
        )
    if "properties" not in paths:
        return
    check_properties(catalog.properties)
    check_choice(catalog.properties, SCAN_MODE, SCAN_MODES)


def _normal(_: Realm, spec: v1.CatalogSpec, __: Set[str]) -> None:
    """Leave out empty texts: a command that sets a list to one clears it."""
    for field in (spec.mergers, spec.required_rules):
        field[:] = dict.fromkeys(filter(None, field))


def _write(realm: Realm, current: Stored[v1.Catalog], desired: v1.Catalog) -> Stored[v1.Catalog]:
    """Write the catalog.

    A connector can only be set or removed while the catalog is empty, because names then obey other rules.
    """
    if is_managed(current.value) == is_managed(desired):
        return realm.all(CATALOG).update(current, desired)

    def require() -> None:
        if found := _held(realm, desired.resource_id.id):
            raise failure(Conflict, "catalog.connector.fixed", display_name=current.value.display_name, found=found)

    with closed(realm, current.pointer, resource="catalog", require=require) as moved:
        return realm.all(CATALOG).update(Stored(current.value, moved), desired, also=lambda _: reopening(moved))


def _held(realm: Realm, catalog_id: str) -> str:
    """The contents of a catalog in words; empty if there are none."""
    namespaces = realm.stores.pointers.count(keys.namespace_path(realm.account_id, catalog_id) + "/")
    branches = realm.stores.pointers.count(keys.branch_name(realm.account_id, catalog_id))
    return counted([(namespaces, "namespace"), (branches, "branch" if branches == 1 else "branche")])


CALLS: Final = Calls(
    resources.CATALOG, CATALOG, _check, id_of=writable_id, normal=_normal, write=_write, remove=_remove
)
list_: Callable[[Realm, v1.ListCatalogsRequest], v1.ListCatalogsResponse] = CALLS.list_
create, get, update, delete = CALLS.create, CALLS.get, CALLS.update, CALLS.delete
