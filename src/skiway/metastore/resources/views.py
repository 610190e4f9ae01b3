"""Views: SQL in one or more dialects, and the names of the tables and views it reads."""

from __future__ import annotations

from collections.abc import Iterator

from skiway.errors import InvalidArgument
from skiway.metastore.records import keys, updates
from skiway.metastore.records.damage import damaged_error
from skiway.metastore.records.errors import failure
from skiway.metastore.records.idempotency import Claim, once
from skiway.metastore.records.kinds import VIEW
from skiway.metastore.records.names import exact_name, normal_path, normal_text, refuse_secrets
from skiway.metastore.records.realm import Realm, local_id, resource_id
from skiway.metastore.records.repository import Stored, listed
from skiway.metastore.records.updates import copy_field, masked_paths, retrying
from skiway.metastore.resources import hierarchy
from skiway.metastore.resources.definers import query_digest, set_definer, without_claims
from skiway.metastore.resources.ownership import is_managed, remover, writable_id, writer
from skiway.model import v1
from skiway.storage import Operation

__all__ = ["create", "delete", "find", "find_any_case", "get", "list_", "lookup", "scan", "update"]

FIELDS = (
    "display_name",
    "description",
    "catalog_id",
    "namespace_id",
    "sql_definitions",
    "base_relations",
    "creation_search_path",
    "output_columns",
    "properties",
    "rights",
)
_HARMLESS = frozenset(("description", "properties"))
"""The fields that do not change to whom a view is shown, or what it shows, except by the properties in its digest."""
REQUIRED = frozenset(("display_name", "catalog_id", "namespace_id", "sql_definitions"))


def create(realm: Realm, request: v1.CreateViewRequest) -> v1.CreateViewResponse:
    """Create a view."""
    if not request.HasField("spec"):
        raise failure(InvalidArgument, "view.missing.spec", field="spec")
    if not request.spec.HasField("catalog_id"):
        raise failure(InvalidArgument, "view.missing.catalog.id", field="catalog_id")
    if not request.spec.HasField("namespace_id"):
        raise failure(InvalidArgument, "view.missing.namespace.id", field="namespace_id")
    if not request.spec.sql_definitions:
        raise failure(InvalidArgument, "view.sql.required", field="sql_definitions")
    spec = updates.copied(request.spec)
    spec.display_name = request.spec.display_name  # so that a missing name is rejected like a blank one
    spec = _normal(realm, spec, set(FIELDS))
    claim = Claim(realm, "CreateView", request.idempotency.key, spec, v1.CreateViewResponse)
    return once(claim, lambda: retrying(lambda: _create(realm, spec, claim)))


def get(realm: Realm, request: v1.GetViewRequest) -> v1.GetViewResponse:
    """Return the view and its stored version."""
    view_id = local_id(realm, request.view_id, v1.RK_VIEW, field="view_id")
    found = realm.all(VIEW).require(keys.view(realm.account_id, view_id), name=view_id)
    return v1.GetViewResponse(view=without_claims(found.value), meta=found.meta)


def list_(realm: Realm, request: v1.ListViewsRequest) -> v1.ListViewsResponse:
    """List the views of a namespace by name."""
    namespace_id = hierarchy.namespace(realm, request.namespace_id, damaged=True).value.resource_id.id
    views, page = listed(realm.all(VIEW), keys.view_name(realm.account_id, namespace_id), request.page)
    return v1.ListViewsResponse(views=map(without_claims, views), page=page)


def find(realm: Realm, namespace_id: str, name: str) -> v1.View | None:
    """The view with this name in a namespace, or None."""
    wanted = normal_text(name)
    return realm.all(VIEW).named(keys.view_name(realm.account_id, namespace_id, wanted)) if wanted else None


def lookup(realm: Realm, catalog: v1.Catalog, namespace_id: str, name: str) -> v1.View | None:
    """The view with this name, in any case if the catalog is managed, or None. Raise if its record is damaged."""
    found = find(realm, namespace_id, name)
    if found is None and is_managed(catalog):
        found = find_any_case(realm, catalog, namespace_id, name)
        if found is not None and found.damage:
            raise damaged_error("view", found.display_name, found.damage)
    return found


def find_any_case(realm: Realm, catalog: v1.Catalog, namespace_id: str, name: str) -> v1.View | None:
    """The view with this name, or else one whose name differs in case only; None if there is none.

    One with a damaged record has `damage` set.
    """
    return hierarchy.relation_any_case(
        realm, realm.all(VIEW), catalog, namespace_id, name, by_name=keys.view_name, by_id=keys.view
    )


def scan(realm: Realm, namespace_id: str) -> Iterator[v1.View]:
    """All views of a namespace, by name. Those with a damaged record have `damage` set."""
    return (found.value for found in realm.all(VIEW).entries(keys.view_name(realm.account_id, namespace_id)))


def update(realm: Realm, request: v1.UpdateViewRequest) -> v1.UpdateViewResponse:
    """Update the masked fields of a view, and move it if its namespace changed."""
    view_id = writable_id(realm, request.view_id, v1.RK_VIEW, field="view_id")
    paths = masked_paths(request.update_mask, allowed=FIELDS, resource="view")
    spec = _normal(realm, request.spec, paths)

    def edit(view: v1.View) -> None:
        before = query_digest(view)
        for path in paths:
            copy_field(spec, view, path, required=path in REQUIRED)
        if set(paths) - _HARMLESS or query_digest(view) != before:
            set_definer(realm, view)  # its query runs with the rights of its last editor

    def write(current: Stored[v1.View], desired: v1.View) -> Stored[v1.View]:
        checks = hierarchy.entering(realm, desired, current.value)
        return writer(realm, VIEW).update(current, desired, also=lambda _: checks)

    def attempt() -> Stored[v1.View]:
        return updates.update(
            realm,
            realm.all(VIEW),
            keys.view(realm.account_id, view_id),
            name=view_id,
            precondition=request.precondition,
            edit=edit,
            write=write,
        )

    updated = retrying(attempt)
    return v1.UpdateViewResponse(view=without_claims(updated.value), meta=updated.meta)


def delete(realm: Realm, request: v1.DeleteViewRequest) -> v1.DeleteViewResponse:
    """Delete a view."""
    view_id = writable_id(realm, request.view_id, v1.RK_VIEW, field="view_id")
    key = keys.view(realm.account_id, view_id)
    meta = updates.delete(remover(realm, VIEW), key, name=view_id, precondition=request.precondition)
    return v1.DeleteViewResponse(meta=meta)


def _normal(realm: Realm, given: v1.ViewSpec, paths: set[str]) -> v1.ViewSpec:
    """A copy of the spec with names as they are stored, for the fields in `paths`."""
    spec = updates.copied(given)
    if "display_name" in paths and spec.HasField("display_name"):
        spec.display_name = exact_name(spec.display_name, resource="view")
    if "sql_definitions" in paths:
        _check_sql(spec)
    if "base_relations" in paths:
        for relation in spec.base_relations:
            _name_only(relation)
    if "properties" in paths:
        refuse_secrets(spec.properties, field="properties")
    hierarchy.check_parent_ids(realm, spec)
    return spec


def _check_sql(spec: v1.ViewSpec) -> None:
    dialects: set[str] = set()
    for definition in spec.sql_definitions:
        definition.dialect = normal_text(definition.dialect).lower()
        if not definition.sql.strip() or not definition.dialect:
            raise failure(InvalidArgument, "view.sql.required", field="sql_definitions")
        if definition.dialect in dialects:
            raise failure(InvalidArgument, "view.sql.duplicate", field="sql_definitions", dialect=definition.dialect)
        dialects.add(definition.dialect)


def _name_only(relation: v1.NameRef) -> None:
    """Store the name without an id, so that it also means a table that is created again.

    The default is the view's own catalog.
    """
    relation.ClearField("resource_id")
    relation.catalog = normal_text(relation.catalog)
    relation.path[:] = normal_path(relation.path, field="base_relations.path")
    relation.name = normal_text(relation.name)
    if not relation.name:
        raise failure(InvalidArgument, "field", field="base_relations.name")


def _create(realm: Realm, spec: v1.ViewSpec, claim: Claim[v1.CreateViewResponse]) -> v1.CreateViewResponse:
    now = realm.now()
    view = v1.View(resource_id=resource_id(realm, realm.ids(), v1.RK_VIEW), created_at=now, updated_at=now)
    for field in FIELDS:
        copy_field(spec, view, field)
    set_definer(realm, view)
    checks = hierarchy.entering(realm, view)

    def also(stored: Stored[v1.View]) -> tuple[Operation, ...]:
        return *checks, *claim.storing(v1.CreateViewResponse(view=without_claims(stored.value), meta=stored.meta))

    created = writer(realm, VIEW).create(view, also=also)
    return v1.CreateViewResponse(view=without_claims(created.value), meta=created.meta)
