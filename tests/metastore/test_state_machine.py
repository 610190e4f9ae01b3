"""Random sequences of changes to namespaces and relations, compared with a model of plain sets."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, precondition, rule

from metastore.integrity import damage
from metastore.resource_factory import ResourceFactory, mask
from skiway.errors import AlreadyExists, Conflict
from skiway.metastore.resources import directory, namespaces, tables, views
from skiway.model import v1
from skiway.storage import open_stores
from storage.homes import Clock

NAMES = st.sampled_from(["a", "b", "a.b", "c/d", "É"])
PATHS = st.lists(NAMES, min_size=1, max_size=3)


class Names(RuleBasedStateMachine):
    """The model: `paths` maps namespace ids to paths; `relations` maps tables and views to their namespace and name."""

    namespace_ids = Bundle("namespace_ids")
    relation_ids = Bundle("relation_ids")

    def __init__(self) -> None:
        super().__init__()
        clock = Clock()
        self.factory = ResourceFactory(open_stores("memory://", clock=clock), clock)
        self.catalog = self.factory.catalog()
        self.paths: dict[str, tuple[str, ...]] = {}
        self.relations: dict[str, tuple[str, str]] = {}
        self.views: set[str] = set()

    @rule(target=namespace_ids, path=PATHS)
    def create_namespace(self, path):
        exists = tuple(path) in self.paths.values()
        try:
            created = self.factory.namespace(*path, catalog=self.catalog)
        except AlreadyExists:
            assert exists
            return multiple()
        assert not exists
        for found in self._namespaces():
            self.paths.setdefault(found.resource_id.id, (*found.parents, found.display_name))
        assert {tuple(path[:length]) for length in range(1, len(path) + 1)} <= set(self.paths.values())
        return created.resource_id.id

    @rule(namespace_id=namespace_ids, name=NAMES)
    def rename_namespace(self, namespace_id, name):
        path = self.paths.get(namespace_id)
        if path is None:
            return
        request = v1.UpdateNamespaceRequest(
            namespace_id=v1.ResourceId(id=namespace_id),
            spec=v1.NamespaceSpec(display_name=name),
            update_mask=mask("display_name"),
        )
        wanted = (*path[:-1], name)
        allowed = wanted == path or (wanted not in self.paths.values() and not self._below(path))
        assert self._succeeds(lambda: namespaces.update(self.factory.home, request)) == allowed
        if allowed:
            self.paths[namespace_id] = wanted

    @rule(namespace_id=namespace_ids, everything=st.booleans())
    def delete_namespace(self, namespace_id, everything):
        path = self.paths.get(namespace_id)
        request = v1.DeleteNamespaceRequest(namespace_id=v1.ResourceId(id=namespace_id), require_empty=not everything)
        contained = [each for each, (where, _) in self.relations.items() if where == namespace_id]
        allowed = path is None or everything or not (contained or self._below(path))
        assert self._succeeds(lambda: namespaces.delete(self.factory.home, request)) == allowed
        if allowed and path is not None:
            gone = {namespace_id, *(each for each, its in self.paths.items() if its[: len(path)] == path)}
            self.paths = {each: its for each, its in self.paths.items() if each not in gone}
            self.relations = {each: its for each, its in self.relations.items() if its[0] not in gone}

    @rule(target=relation_ids, namespace_id=namespace_ids, name=NAMES, is_view=st.booleans())
    def create_relation(self, namespace_id, name, is_view):
        if namespace_id not in self.paths:
            return multiple()
        namespace = v1.Namespace(
            resource_id=v1.ResourceId(id=namespace_id), catalog_id=self.catalog.resource_id, display_name="-"
        )
        make = self.factory.view if is_view else self.factory.table
        exists = (namespace_id, name) in self.relations.values()
        try:
            created = make(name, namespace=namespace)
        except AlreadyExists:
            assert exists
            return multiple()
        assert not exists
        self.relations[created.resource_id.id] = (namespace_id, name)
        if is_view:
            self.views.add(created.resource_id.id)
        return created.resource_id.id

    @precondition(lambda self: self.paths)
    @rule(relation_id=relation_ids, name=NAMES, namespace_id=namespace_ids)
    def move_relation(self, relation_id, name, namespace_id):
        if relation_id not in self.relations or namespace_id not in self.paths:
            return
        spec = {"display_name": name, "namespace_id": v1.ResourceId(id=namespace_id)}
        changed = mask(*spec)
        allowed = (namespace_id, name) not in self.relations.values() or self.relations[relation_id] == (
            namespace_id,
            name,
        )
        if relation_id in self.views:
            view = v1.UpdateViewRequest(
                view_id=v1.ResourceId(id=relation_id), spec=v1.ViewSpec(**spec), update_mask=changed
            )
            done = self._succeeds(lambda: views.update(self.factory.home, view))
        else:
            table = v1.UpdateTableRequest(
                table_id=v1.ResourceId(id=relation_id), spec=v1.TableSpec(**spec), update_mask=changed
            )
            done = self._succeeds(lambda: tables.update(self.factory.home, table))
        assert done == allowed
        if allowed:
            self.relations[relation_id] = (namespace_id, name)

    @rule(relation_id=consumes(relation_ids))
    def delete_relation(self, relation_id):
        if relation_id in self.views:
            views.delete(self.factory.home, v1.DeleteViewRequest(view_id=v1.ResourceId(id=relation_id)))
        else:
            tables.delete(self.factory.home, v1.DeleteTableRequest(table_id=v1.ResourceId(id=relation_id)))
        self.relations.pop(relation_id, None)

    @invariant()
    def store_is_consistent(self):
        assert damage(self.factory.stores) == []

    @invariant()
    def listings_match_the_model(self):
        found = {each.resource_id.id: (*each.parents, each.display_name) for each in self._namespaces()}
        assert found == self.paths

    @invariant()
    def directory_matches_the_model(self):
        for relation_id, (namespace_id, name) in self.relations.items():
            ref = v1.NameRef(catalog="lake", path=self.paths[namespace_id], name=name)
            if relation_id in self.views:
                found = directory.resolve_view(self.factory.home, v1.ResolveViewRequest(ref=ref)).resource_id
            else:
                found = directory.resolve_table(self.factory.home, v1.ResolveTableRequest(ref=ref)).resource_id
            assert found.id == relation_id

    def teardown(self):
        self.factory.stores.close()

    def _namespaces(self):
        request = v1.ListNamespacesRequest(
            catalog_id=self.catalog.resource_id, recursive=True, page=v1.PageRequest(page_size=1000)
        )
        return namespaces.list_(self.factory.home, request).namespaces

    def _below(self, path):
        return any(len(its) > len(path) and its[: len(path)] == path for its in self.paths.values())

    def _succeeds(self, act):
        try:
            act()
        except Conflict:
            return False
        return True


TestNames = Names.TestCase
TestNames.settings = settings(max_examples=15 * max(1, settings.default.max_examples // 100), stateful_step_count=30)
