"""The definers of views: the callers with whose rights views are read, if that was declared for them.

Such a view is bound to what it read when its definer saved it: each name in its query, and in those of the views with invoker
rights below it, to the id of an object. Otherwise a caller who may replace one of these objects would choose what is read with
the rights of the definer.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cached_property
from hashlib import sha256
from typing import Final

from skiway.errors import InvalidArgument, PreconditionFailed
from skiway.metastore.records import keys
from skiway.metastore.records.errors import failure
from skiway.metastore.records.kinds import VIEW
from skiway.metastore.records.names import folded
from skiway.metastore.records.realm import Realm
from skiway.metastore.records.updates import copied
from skiway.metastore.resources import catalogs, hierarchy, namespaces, tables
from skiway.metastore.resources.ownership import SYSTEM_NAMESPACES
from skiway.metastore.resources.view_dialects import (
    DUCKDB,
    QUERY_NAMES,
    default_catalog,
    duckdb_names,
    is_translated,
    view_sql,
)
from skiway.model import v1
from skiway.schema_names import namespace_path, schema_name

__all__ = ["BoundNames", "query_digest", "set_definer", "without_claims"]

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
        parts.sql_definitions.extend(each for each in view.sql_definitions if each.dialect == DUCKDB)
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
        exact = {(each.catalog, each.schema, each.name): each for each in self._view.definer.bindings}
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
        return table or hierarchy.relation_any_case(
            self._realm,
            self._realm.all(VIEW),
            stored.value,
            inside,
            name,
            by_name=keys.view_name,
            by_id=keys.view,
        )


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
