"""Views: SQL in one or more dialects, the names of the tables and views it reads, and the callers with whose rights it is read."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Set
from functools import cached_property
from hashlib import sha256
from typing import Final

from skiway.errors import InvalidArgument, PreconditionFailed
from skiway.foundation import resources
from skiway.foundation.resources import namespace_path, schema_name
from skiway.metastore.records.errors import failure
from skiway.metastore.records.names import check_properties, folded, normal_path, normal_text
from skiway.metastore.records.realm import Realm
from skiway.metastore.records.updates import copied, copy_fields
from skiway.metastore.resources import catalogs, hierarchy, namespaces, tables
from skiway.metastore.resources.hierarchy import SYSTEM_NAMESPACES, VIEWS
from skiway.metastore.resources.view_dialects import (
    DUCKDB,
    QUERY_NAMES,
    default_catalog,
    duckdb_names,
    is_translated,
    view_sql,
)
from skiway.model import v1

MAX_BINDINGS: Final = 2000

Name = tuple[str, str, str]
"""Catalog, schema and name, as DuckDB knows them."""


def set_definer(realm: Realm, view: v1.View) -> None:
    """Record the caller as the editor of the view and, if it has definer rights, as its definer. Bind it to what it reads now."""
    view.ClearField("definer")
    subject = None if realm.policies is None else realm.policies.subject
    view.editor = "" if subject is None else subject.name
    if view.rights != v1.VR_DEFINER:
        return
    if subject is None or not subject.name:
        raise failure(InvalidArgument, "view.definer.missing", field="rights")
    view.definer.subject = subject.name
    view.definer.roles.extend(sorted(subject.roles))
    view.definer.groups.extend(sorted(subject.groups))
    view.definer.claims_json = json.dumps(dict(subject.claims), sort_keys=True)
    catalog = hierarchy.catalog(realm, view.catalog_id).value
    space = hierarchy.namespace(realm, view.namespace_id).value
    view.definer.catalog, view.definer.schema = catalog.display_name, schema_name(hierarchy.full_path(space))
    binder = _Binder(realm)
    binder.bind(view, (view.definer.catalog, view.definer.schema))
    view.definer.bindings.extend(binder.bound.values())


def without_claims(view: v1.View) -> v1.View:
    """The view without the roles, groups, claims and bindings of its definer."""
    if not view.HasField("definer"):
        return view
    shown = copied(view)
    shown.definer.CopyFrom(v1.ViewDefiner(subject=view.definer.subject))
    return shown


def query_digest(view: v1.View) -> str:
    """A digest of everything in a view that decides what DuckDB reads."""
    parts = v1.View(output_columns=view.output_columns)
    if is_translated(view.sql_definitions):
        parts.sql_definitions.extend(view.sql_definitions[:1])
        parts.creation_search_path.extend(view.creation_search_path)
        parts.properties[QUERY_NAMES] = view.properties.get(QUERY_NAMES, "")
        parts.display_name = default_catalog(view) or ""
    else:
        parts.sql_definitions.extend(definition for definition in view.sql_definitions if definition.dialect == DUCKDB)
    return sha256(parts.SerializeToString(deterministic=True)).hexdigest()


class BoundNames:
    """What the names in a view with definer rights mean. The view is now in `place`, a catalog and a schema."""

    def __init__(self, view: v1.View, place: tuple[str, str]) -> None:
        self._view, self._place = view, place
        if not view.definer.catalog:
            raise self._refused(
                f"view {view.display_name!r} was saved before views were bound to the objects that they read"
            )

    def admits(self, name: Name, found: v1.Table | v1.View | v1.Catalog) -> bool:
        """Whether the view reads this object by this name; for a system table, `found` is its catalog.

        A name that the view did not read is none to it, such as that of a common table expression. Raise if the name meant
        another object when the view was saved.
        """
        known = (self._known.get(each) or self._known.get(_folded(each)) for each in self._names(name))
        bindings = [binding for binding in known if binding is not None]
        for binding in bindings:
            self._check(".".join(name[1:]), binding, found)
        return bool(bindings)

    @cached_property
    def _known(self) -> dict[Name, v1.ViewBinding]:
        """The bindings by name, and by names that differ in case only."""
        exact = {(binding.catalog, binding.schema, binding.name): binding for binding in self._view.definer.bindings}
        return {_folded(name): each for name, each in exact.items()} | exact

    def _names(self, name: Name) -> Iterator[Name]:
        """The name as it is, and as it was before the catalog or schema of the view was renamed: a name may lack them."""
        catalog, schema, own = name
        yield name
        definer = self._view.definer
        is_here = _folded((catalog, schema, own)) == _folded((*self._place, own))
        if folded(catalog) == folded(self._place[0]):
            yield definer.catalog, definer.schema if is_here else schema, own

    def _check(self, name: str, binding: v1.ViewBinding, found: v1.Table | v1.View | v1.Catalog) -> None:
        view = f"view {self._view.display_name!r}"
        if not binding.HasField("resource_id"):
            raise self._refused(f"{name} did not exist when {view}, which reads it, was saved")
        if binding.resource_id.id != found.resource_id.id:
            raise self._refused(f"{name} was replaced after {view}, which reads it, was saved")
        if binding.definition != _definition(found):
            what = "the query of view" if isinstance(found, v1.View) else "the source of"
            raise self._refused(f"{what} {name} was changed after {view}, which reads it, was saved")

    def _refused(self, reason: str) -> PreconditionFailed:
        return PreconditionFailed(
            f"{reason}: its definer, {self._view.definer.subject!r}, must save the view again, if it may still be read with "
            "the rights of the definer",
            key="view.replaced",
            view=self._view.display_name,
        )


def _folded(name: Name) -> Name:
    catalog, schema, own = map(folded, name)
    return catalog, schema, own


def _definition(found: v1.Table | v1.View | v1.Catalog) -> str:
    """What must not change in a bound object.

    A view with definer rights has those of its last editor, so a change of its query shows nothing that others may not see.
    """
    match found:
        case v1.View() if found.rights != v1.VR_DEFINER:
            return query_digest(found)
        case v1.Table() if found.upstream.HasField("connector_id"):
            source = found.upstream
            parts = [source.connector_id.id, *source.namespace_path, source.table_display_name]
            return sha256(json.dumps(parts).encode()).hexdigest()
    return ""


class _Binder:
    """Looks up the names in a view, as the caller sees them now."""

    def __init__(self, realm: Realm) -> None:
        self._realm = realm
        self.bound: dict[Name, v1.ViewBinding] = {}

    def bind(self, view: v1.View, place: tuple[str, str]) -> None:
        """Bind all names in the query of a view in this catalog and schema, and in the views below it."""
        for name, is_optional in _names_in(view, place).items():
            if name in self.bound:
                continue
            found = self._find(*name)
            if found is None and is_optional:
                continue
            if len(self.bound) == MAX_BINDINGS:
                raise InvalidArgument(
                    f"a view with definer rights reads at most {MAX_BINDINGS} tables and views, also below other views",
                    key="view.definer.bindings",
                )
            binding = self.bound[name] = v1.ViewBinding(catalog=name[0], schema=name[1], name=name[2])
            if found is not None:
                binding.resource_id.CopyFrom(found.resource_id)
                binding.definition = _definition(found)
            if isinstance(found, v1.View) and found.rights != v1.VR_DEFINER:
                self.bind(found, name[:2])

    def _find(self, catalog: str, schema: str, name: str) -> v1.Table | v1.View | v1.Catalog | None:
        stored = catalogs.find(self._realm, catalog)
        try:
            path = namespace_path(schema)
        except InvalidArgument:
            return None
        if stored is None or stored.value.damage:
            return None
        if len(path) == 1 and folded(path[0]) in SYSTEM_NAMESPACES:
            return stored.value
        space = namespaces.find_any_case(self._realm, stored.value, path)
        if space is None:
            return None
        inside = space.resource_id.id
        table = tables.find_any_case(self._realm, stored.value, inside, name)
        return table or VIEWS.find_any_case(self._realm, stored.value, inside, name)


def _names_in(view: v1.View, place: tuple[str, str]) -> dict[Name, bool]:
    """The names in the query of a view, and whether each may be that of a common table expression.

    They are in its text and, if the engine that created the view has listed them, in its record.
    """
    names: dict[Name, bool] = {}
    for relation in view.base_relations:
        schema = schema_name(relation.path) if relation.path else place[1]
        names[relation.catalog or place[0], schema, relation.name] = False
    try:
        written = duckdb_names(view_sql(view, place[0]))
    except InvalidArgument:
        if not names:
            raise
        return names
    for levels, is_optional in written.items():
        if len(levels) <= len(place) + 1:
            full = (*place[: 3 - len(levels)], *levels)
            names.setdefault(full, is_optional)  # type: ignore[arg-type]
    return names


_HARMLESS = frozenset(("description", "properties"))
"""The fields that do not change to whom a view is shown, or what it shows, except by the properties in its digest."""


find, lookup, find_any_case, scan = VIEWS.find, VIEWS.lookup, VIEWS.find_any_case, VIEWS.scan


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
    created: v1.CreateViewResponse = CALLS.create(realm, request)
    return created


def list_(realm: Realm, request: v1.ListViewsRequest) -> v1.ListViewsResponse:
    """List the views of a namespace by name."""
    views, page = VIEWS.page(realm, request.namespace_id, request.page)
    return v1.ListViewsResponse(views=map(without_claims, views), page=page)


def _edit(realm: Realm, view: v1.View, spec: v1.ViewSpec, paths: Set[str], required: Set[str]) -> None:
    before = query_digest(view)
    copy_fields(view, spec, paths, required)
    if paths - _HARMLESS or query_digest(view) != before:
        set_definer(realm, view)  # its query runs with the rights of its last editor


def _normal(realm: Realm, spec: v1.ViewSpec, paths: Set[str]) -> None:
    if "sql_definitions" in paths:
        _check_sql(spec)
    if "base_relations" in paths:
        for relation in spec.base_relations:
            _name_only(relation)
    if "properties" in paths:
        check_properties(spec.properties)
    hierarchy.check_parent_ids(realm, spec)


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


CALLS: Final = VIEWS.calls(resources.VIEW, normal=_normal, edit=_edit, shown=without_claims)
update: Callable[[Realm, v1.UpdateViewRequest], v1.UpdateViewResponse] = CALLS.update
get, delete = CALLS.get, CALLS.delete
