"""Names to ids and back. `resolve` raises an error if something is missing, `lookup` returns an empty response."""

from __future__ import annotations

from typing import TypeVar

from google.protobuf.message import Message

from skiway.errors import InvalidArgument, NotFound
from skiway.metastore.records.errors import failure
from skiway.metastore.records.names import dotted, normal_path, normal_text
from skiway.metastore.records.realm import Realm, local_id
from skiway.metastore.records.repository import listed
from skiway.metastore.resources import catalogs, hierarchy
from skiway.metastore.resources.hierarchy import TABLES, VIEWS, Relations, full_path, is_managed, require_path
from skiway.model import v1
from skiway.telemetry.context import require_active

M = TypeVar("M", bound=Message)
R = TypeVar("R", v1.Table, v1.View)


def resolve_catalog(realm: Realm, request: v1.ResolveCatalogRequest) -> v1.ResolveCatalogResponse:
    """Return the id of the catalog with a name."""
    return v1.ResolveCatalogResponse(resource_id=_catalog(realm, request.ref).resource_id)


def resolve_namespace(realm: Realm, request: v1.ResolveNamespaceRequest) -> v1.ResolveNamespaceResponse:
    """Return the id of the namespace at a path. If the reference has a name, it is the last segment."""
    if request.ref.HasField("resource_id"):
        found = hierarchy.namespace(realm, request.ref.resource_id, field="ref.resource_id", damaged=True).value
        return v1.ResolveNamespaceResponse(resource_id=found.resource_id)
    _, namespace = _namespace(realm, request.ref, (*request.ref.path, *_last(request.ref)))
    return v1.ResolveNamespaceResponse(resource_id=namespace.resource_id)


def resolve_table(realm: Realm, request: v1.ResolveTableRequest) -> v1.ResolveTableResponse:
    """Return the id of the table with a name."""
    return v1.ResolveTableResponse(resource_id=_relation(realm, TABLES, request.ref).resource_id)


def resolve_view(realm: Realm, request: v1.ResolveViewRequest) -> v1.ResolveViewResponse:
    """Return the id of the view with a name."""
    return v1.ResolveViewResponse(resource_id=_relation(realm, VIEWS, request.ref).resource_id)


def lookup_catalog(realm: Realm, request: v1.LookupCatalogRequest) -> v1.LookupCatalogResponse:
    """Return the name of a catalog, if it exists."""
    try:
        catalog = _by_id(realm, request.resource_id, field="resource_id")
    except NotFound:
        return v1.LookupCatalogResponse()
    return v1.LookupCatalogResponse(display_name=catalog.display_name)


def lookup_namespace(realm: Realm, request: v1.LookupNamespaceRequest) -> v1.LookupNamespaceResponse:
    """Return the name of a namespace, if it exists."""
    try:
        namespace = hierarchy.namespace(realm, request.resource_id, field="resource_id", damaged=True).value
        catalog = _by_id(realm, namespace.catalog_id)
    except NotFound:
        return v1.LookupNamespaceResponse()
    ref = v1.NameRef(
        catalog=catalog.display_name,
        path=namespace.parents,
        name=namespace.display_name,
        resource_id=namespace.resource_id,
    )
    return v1.LookupNamespaceResponse(ref=ref)


def lookup_table(realm: Realm, request: v1.LookupTableRequest) -> v1.LookupTableResponse:
    """Return the name of a table, if it exists."""
    return v1.LookupTableResponse(ref=_lookup(realm, TABLES, request.resource_id))


def lookup_view(realm: Realm, request: v1.LookupViewRequest) -> v1.LookupViewResponse:
    """Return the name of a view, if it exists."""
    return v1.LookupViewResponse(ref=_lookup(realm, VIEWS, request.resource_id))


def lookup_table_by_ref(realm: Realm, request: v1.LookupTableByRefRequest) -> v1.LookupTableByRefResponse:
    """Return the id of the table with a name, if it exists."""
    try:
        return v1.LookupTableByRefResponse(resource_id=_relation(realm, TABLES, request.ref).resource_id)
    except NotFound:
        return v1.LookupTableByRefResponse()


def resolve_fq_tables(realm: Realm, request: v1.ResolveFQTablesRequest) -> v1.ResolveFQTablesResponse:
    """Return the existing tables among these names, or a page of the tables of a namespace."""
    entries, page = _selected(realm, TABLES, request)
    return v1.ResolveFQTablesResponse(tables=entries, page=page)


def resolve_fq_views(realm: Realm, request: v1.ResolveFQViewsRequest) -> v1.ResolveFQViewsResponse:
    """Return the existing views among these names, or a page of the views of a namespace."""
    entries, page = _selected(realm, VIEWS, request)
    return v1.ResolveFQViewsResponse(views=entries, page=page)


def _selected(
    realm: Realm, of: Relations[R], request: v1.ResolveFQTablesRequest | v1.ResolveFQViewsRequest
) -> tuple[list[v1.DirectoryEntry], v1.PageResponse]:
    match request.WhichOneof("selector"):
        case "names":
            return _named(realm, of, request.names, request.page)
        case "prefix":
            return _in_namespace(realm, of, request.prefix, request.page)
        case _:
            raise failure(InvalidArgument, "selector.required", choices="names or prefix")


def _catalog(realm: Realm, ref: v1.NameRef) -> v1.Catalog:
    # The id in a reference is that of its last part, so only a reference to a catalog can have a catalog's id.
    if ref.HasField("resource_id") and not ref.name and not ref.path:
        return _by_id(realm, ref.resource_id, field="ref.resource_id")
    name = normal_text(ref.catalog)
    if not name:
        raise failure(InvalidArgument, "catalog.missing", field="ref.catalog")
    found = catalogs.find(realm, name)
    if found is None:
        raise failure(NotFound, "catalog.by.name.missing", catalog=name)
    return catalogs.as_named(realm, found.value)


def _by_id(realm: Realm, given: v1.ResourceId, *, field: str = "catalog_id") -> v1.Catalog:
    return catalogs.as_named(realm, hierarchy.catalog(realm, given, field=field, damaged=True).value)


def _namespace(realm: Realm, ref: v1.NameRef, path: tuple[str, ...]) -> tuple[v1.Catalog, v1.Namespace]:
    catalog = _catalog(realm, v1.NameRef(catalog=ref.catalog))
    wanted = normal_path(path, field="ref.path")
    if not wanted:
        raise failure(InvalidArgument, "field", field="ref.path")
    return catalog, require_path(realm, catalog, wanted, damaged=True).value


def _last(ref: v1.NameRef) -> tuple[str, ...]:
    """The name as a further segment, unless the path ends with it already."""
    name = normal_text(ref.name)
    ends_with_it = bool(ref.path) and normal_text(ref.path[-1]) == name
    return (name,) if name and not ends_with_it else ()


def _relation(realm: Realm, of: Relations[R], ref: v1.NameRef) -> R:
    noun = of.kind.noun
    if ref.HasField("resource_id"):
        text = local_id(realm, ref.resource_id, of.kind.number, field="ref.resource_id")
        return realm.by_id(of.kind, text, damaged=True).value
    name = normal_text(ref.name)
    if normal_text(ref.catalog) and not name:
        raise failure(InvalidArgument, f"{noun}.name.missing", resource=noun, field="ref.name")
    catalog, namespace = _namespace(realm, ref, tuple(ref.path))
    namespace_id = namespace.resource_id.id
    if is_managed(catalog):
        found = of.find_any_case(realm, catalog, namespace_id, name)
    else:
        stored = realm.all(of.kind).at(of.by_name(realm.account_id, namespace_id, name))
        found = None if stored is None else stored.value
    if found is None:
        path = dotted(full_path(namespace))
        raise failure(
            NotFound, f"{noun}.by.name.missing", resource=noun, catalog=catalog.display_name, path=path, name=name
        )
    return found


def _lookup(realm: Realm, of: Relations[R], given: v1.ResourceId) -> v1.NameRef | None:
    try:
        found = _relation(realm, of, v1.NameRef(resource_id=given))
        return _entry(realm, found).name
    except NotFound:
        return None


def _entry(realm: Realm, relation: v1.Table | v1.View) -> v1.DirectoryEntry:
    """The directory entry of a table or view, with the stored names of its namespace and catalog."""
    namespace = hierarchy.namespace(realm, relation.namespace_id, damaged=True).value
    catalog = _by_id(realm, namespace.catalog_id)
    return _entry_of(catalog, namespace, relation)


def _entry_of(catalog: v1.Catalog, namespace: v1.Namespace, relation: v1.Table | v1.View) -> v1.DirectoryEntry:
    name = v1.NameRef(
        catalog=catalog.display_name,
        path=full_path(namespace),
        name=relation.display_name,
        resource_id=relation.resource_id,
    )
    return v1.DirectoryEntry(resource_id=relation.resource_id, name=name)


def _named(
    realm: Realm, of: Relations[R], refs: v1.NameRefs, page: v1.PageRequest
) -> tuple[list[v1.DirectoryEntry], v1.PageResponse]:
    if page.page_token:
        raise failure(InvalidArgument, "page.token.invalid", page_token=page.page_token[:100])
    found = []
    for ref in refs.names:
        require_active()
        try:
            found.append(_entry(realm, _relation(realm, of, ref)))
        except NotFound:
            continue
    return found, v1.PageResponse(total_size=len(found))


def _in_namespace(
    realm: Realm, of: Relations[R], prefix: v1.NameRef, page: v1.PageRequest
) -> tuple[list[v1.DirectoryEntry], v1.PageResponse]:
    if prefix.HasField("resource_id"):
        namespace = hierarchy.namespace(realm, prefix.resource_id, field="prefix.resource_id", damaged=True).value
        catalog = _by_id(realm, namespace.catalog_id)
    else:
        catalog, namespace = _namespace(realm, prefix, (*prefix.path, *_last(prefix)))
    where = of.by_name(realm.account_id, namespace.resource_id.id, "")
    relations, shown = listed(realm.all(of.kind), where, page)
    return [_entry_of(catalog, namespace, relation) for relation in relations], shown
