"""Catalogs: the top level of an account's names."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final, Literal, TypeAlias, get_args

from skiway.errors import Conflict, InvalidArgument
from skiway.metastore.records import keys, updates
from skiway.metastore.records.errors import failure
from skiway.metastore.records.kinds import ACCOUNT, CATALOG
from skiway.metastore.records.names import exact_name, normal_text, refuse_secrets
from skiway.metastore.records.realm import Realm, resource_id
from skiway.metastore.records.repository import Stored, listed
from skiway.metastore.records.updates import (
    Claim,
    close_parent,
    copy_field,
    counted,
    inside,
    masked_paths,
    once,
    remove_empty,
    reopen,
    reopening,
    retrying,
)
from skiway.metastore.resources import hierarchy, namespaces
from skiway.metastore.resources.hierarchy import is_managed, writable_id
from skiway.model import v1
from skiway.storage import Pointer

SCAN_MODE = "scan.mode"
"""The property that selects who reads the tables of a catalog."""
ScanMode: TypeAlias = Literal["server", "client", "auto"]
SCAN_MODES: Final = get_args(ScanMode)

MUTABLE = ("display_name", "description", "connector_ref", "policy_ref", "properties")


def create(realm: Realm, request: v1.CreateCatalogRequest) -> v1.CreateCatalogResponse:
    """Create an empty catalog."""
    spec = _normal(request)
    claim = Claim(realm, "CreateCatalog", request.idempotency.key, spec, v1.CreateCatalogResponse)
    return once(claim, lambda: retrying(lambda: _create(realm, spec, claim)))


def get(realm: Realm, request: v1.GetCatalogRequest) -> v1.GetCatalogResponse:
    """Return the catalog and its stored version."""
    catalog = hierarchy.catalog(realm, request.catalog_id, field="catalog_id")
    return v1.GetCatalogResponse(catalog=catalog.value, meta=catalog.meta)


def list_(realm: Realm, request: v1.ListCatalogsRequest) -> v1.ListCatalogsResponse:
    """List the account's catalogs by name."""
    catalogs, page = listed(realm.all(CATALOG), keys.catalog_name(realm.account_id), request.page)
    return v1.ListCatalogsResponse(catalogs=catalogs, page=page)


def find(realm: Realm, name: str) -> Stored[v1.Catalog] | None:
    """The catalog with this name, or None. One with a damaged record has `damage` set."""
    wanted = normal_text(name)
    repository = realm.all(CATALOG)
    return repository.entry(realm.stores.pointers.get(keys.catalog_name(realm.account_id, wanted))) if wanted else None


def only(realm: Realm) -> Stored[v1.Catalog] | None:
    """The account's catalog if it has exactly one, or None."""
    found = list(islice(realm.all(CATALOG).entries(keys.catalog_name(realm.account_id)), 2))
    return found[0] if len(found) == 1 else None


def scan(realm: Realm) -> Iterator[v1.Catalog]:
    """All catalogs of the account, by name. Those with a damaged record have `damage` set."""
    return (found.value for found in realm.all(CATALOG).entries(keys.catalog_name(realm.account_id)))


def update(realm: Realm, request: v1.UpdateCatalogRequest) -> v1.UpdateCatalogResponse:
    """Update the masked fields of a catalog."""
    catalog_id = writable_id(realm, request.catalog_id, v1.RK_CATALOG, field="catalog_id")
    paths = masked_paths(request.update_mask, allowed=MUTABLE, resource="catalog")
    spec = updates.copied(request.spec)
    if "display_name" in paths and spec.HasField("display_name"):
        spec.display_name = exact_name(spec.display_name, resource="catalog")
    if "properties" in paths:
        _check_properties(spec)

    def edit(catalog: v1.Catalog) -> None:
        for path in paths:
            copy_field(spec, catalog, path, required=path == "display_name")

    updated = updates.update(
        realm, CATALOG, catalog_id, request.precondition, edit, lambda current, desired: _write(realm, current, desired)
    )
    return v1.UpdateCatalogResponse(catalog=updated.value, meta=updated.meta)


def delete(realm: Realm, request: v1.DeleteCatalogRequest) -> v1.DeleteCatalogResponse:
    """Delete a catalog.

    If it contains namespaces, raise an error or, with `require_empty` set to false, delete them first.
    """
    catalog_id = writable_id(realm, request.catalog_id, v1.RK_CATALOG, field="catalog_id")

    def remove(pointer: Pointer, catalog: v1.Catalog | None) -> None:
        name = catalog.display_name if catalog else catalog_id
        if request.HasField("require_empty") and not request.require_empty:
            namespaces.clear(realm, catalog_id, ())
        remove_empty(
            realm,
            realm.all(CATALOG),
            pointer,
            catalog,
            require_empty=lambda: _require_empty(realm, catalog_id, name),
        )

    meta = updates.delete(
        realm.all(CATALOG), keys.catalog(realm.account_id, catalog_id), catalog_id, request.precondition, remove
    )
    return v1.DeleteCatalogResponse(meta=meta)


def _normal(request: v1.CreateCatalogRequest) -> v1.CatalogSpec:
    if not request.HasField("spec"):
        raise failure(InvalidArgument, "spec.required", field="spec")
    spec = updates.copied(request.spec)
    spec.display_name = exact_name(spec.display_name, resource="catalog")
    _check_properties(spec)
    return spec


def _check_properties(spec: v1.CatalogSpec) -> None:
    refuse_secrets(spec.properties, field="properties")
    mode = spec.properties.get(SCAN_MODE, SCAN_MODES[0])
    if mode not in SCAN_MODES:
        raise InvalidArgument(
            f"property {SCAN_MODE} is {mode!r}, but must be {', '.join(SCAN_MODES[:-1])} or {SCAN_MODES[-1]}",
            key="property.invalid",
            field="properties",
        )


def _create(realm: Realm, spec: v1.CatalogSpec, claim: Claim[v1.CreateCatalogResponse]) -> v1.CreateCatalogResponse:
    account = realm.by_id(ACCOUNT, realm.account_id)
    now = realm.now()
    catalog = v1.Catalog(
        resource_id=resource_id(realm, realm.ids(), v1.RK_CATALOG),
        created_at=now,
        updated_at=now,
    )
    for path in MUTABLE:
        copy_field(spec, catalog, path)
    return claim.created(realm.all(CATALOG), catalog, inside(account.pointer))


def _write(realm: Realm, current: Stored[v1.Catalog], desired: v1.Catalog) -> Stored[v1.Catalog]:
    """Write the catalog.

    A connector can only be set or removed while the catalog is empty, because names then obey other rules.
    """
    if is_managed(current.value) == is_managed(desired):
        return realm.all(CATALOG).update(current, desired)
    _require_unused(realm, current.value)
    moved = close_parent(realm, current.pointer, resource="catalog")
    try:
        _require_unused(realm, current.value)
        return realm.all(CATALOG).update(Stored(current.value, moved), desired, also=lambda _: reopening(moved))
    except Conflict:
        reopen(realm, moved)
        raise


def _require_unused(realm: Realm, catalog: v1.Catalog) -> None:
    found = _held(realm, catalog.resource_id.id)
    if found:
        raise failure(Conflict, "catalog.connector.fixed", display_name=catalog.display_name, found=found)


def _held(realm: Realm, catalog_id: str) -> str:
    """The contents of a catalog in words; empty if there are none."""
    namespaces = realm.stores.pointers.count(keys.namespace_path(realm.account_id, catalog_id) + "/")
    return counted([(namespaces, "namespace")])


def _require_empty(realm: Realm, catalog_id: str, name: str) -> None:
    found = _held(realm, catalog_id)
    if found:
        raise failure(Conflict, "catalog.not_empty", display_name=name, found=found)
