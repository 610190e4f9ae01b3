"""Random programs over namespaces and relations, against a model of plain sets."""

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
    """`paths` are the namespaces by id; `relations` tell where each table and view is, and under which name."""

    places = Bundle("places")
    things = Bundle("things")

    def __init__(self) -> None:
        super().__init__()
        clock = Clock()
        self.factory = ResourceFactory(open_stores("memory://", clock=clock), clock)
        self.catalog = self.factory.catalog()
        self.paths: dict[str, tuple[str, ...]] = {}
        self.relations: dict[str, tuple[str, str]] = {}
        self.views: set[str] = set()

    @rule(target=places, path=PATHS)
    def create_namespace(self, path):
        taken = tuple(path) in self.paths.values()
        try:
            made = self.factory.namespace(*path, catalog=self.catalog)
        except AlreadyExists:
            assert taken
            return multiple()
        assert not taken
        for found in self._namespaces():
            self.paths.setdefault(found.resource_id.id, (*found.parents, found.display_name))
        assert {tuple(path[:length]) for length in range(1, len(path) + 1)} <= set(self.paths.values())
        return made.resource_id.id

    @rule(place=places, name=NAMES)
    def rename_namespace(self, place, name):
        path = self.paths.get(place)
        if path is None:
            return
        request = v1.UpdateNamespaceRequest(
            namespace_id=v1.ResourceId(id=place),
            spec=v1.NamespaceSpec(display_name=name),
            update_mask=mask("display_name"),
        )
        wanted = (*path[:-1], name)
        allowed = wanted == path or (wanted not in self.paths.values() and not self._below(path))
        assert self._succeeds(lambda: namespaces.update(self.factory.home, request)) == allowed
        if allowed:
            self.paths[place] = wanted

    @rule(place=places, everything=st.booleans())
    def delete_namespace(self, place, everything):
        path = self.paths.get(place)
        request = v1.DeleteNamespaceRequest(namespace_id=v1.ResourceId(id=place), require_empty=not everything)
        held = [each for each, (where, _) in self.relations.items() if where == place]
        allowed = path is None or everything or not (held or self._below(path))
        assert self._succeeds(lambda: namespaces.delete(self.factory.home, request)) == allowed
        if allowed and path is not None:
            gone = {place, *(each for each, its in self.paths.items() if its[: len(path)] == path)}
            self.paths = {each: its for each, its in self.paths.items() if each not in gone}
            self.relations = {each: its for each, its in self.relations.items() if its[0] not in gone}

    @rule(target=things, place=places, name=NAMES, is_view=st.booleans())
    def create_relation(self, place, name, is_view):
        if place not in self.paths:
            return multiple()
        namespace = v1.Namespace(
            resource_id=v1.ResourceId(id=place), catalog_id=self.catalog.resource_id, display_name="-"
        )
        make = self.factory.view if is_view else self.factory.table
        taken = (place, name) in self.relations.values()
        try:
            made = make(name, namespace=namespace)
        except AlreadyExists:
            assert taken
            return multiple()
        assert not taken
        self.relations[made.resource_id.id] = (place, name)
        if is_view:
            self.views.add(made.resource_id.id)
        return made.resource_id.id

    @precondition(lambda self: self.paths)
    @rule(thing=things, name=NAMES, place=places)
    def move_relation(self, thing, name, place):
        if thing not in self.relations or place not in self.paths:
            return
        spec = {"display_name": name, "namespace_id": v1.ResourceId(id=place)}
        changed = mask(*spec)
        allowed = (place, name) not in self.relations.values() or self.relations[thing] == (place, name)
        if thing in self.views:
            view = v1.UpdateViewRequest(view_id=v1.ResourceId(id=thing), spec=v1.ViewSpec(**spec), update_mask=changed)
            done = self._succeeds(lambda: views.update(self.factory.home, view))
        else:
            table = v1.UpdateTableRequest(
                table_id=v1.ResourceId(id=thing), spec=v1.TableSpec(**spec), update_mask=changed
            )
            done = self._succeeds(lambda: tables.update(self.factory.home, table))
        assert done == allowed
        if allowed:
            self.relations[thing] = (place, name)

    @rule(thing=consumes(things))
    def delete_relation(self, thing):
        if thing in self.views:
            views.delete(self.factory.home, v1.DeleteViewRequest(view_id=v1.ResourceId(id=thing)))
        else:
            tables.delete(self.factory.home, v1.DeleteTableRequest(table_id=v1.ResourceId(id=thing)))
        self.relations.pop(thing, None)

    @invariant()
    def store_is_whole(self):
        assert damage(self.factory.stores) == []

    @invariant()
    def listings_agree(self):
        found = {each.resource_id.id: (*each.parents, each.display_name) for each in self._namespaces()}
        assert found == self.paths

    @invariant()
    def directory_agrees(self):
        for thing, (place, name) in self.relations.items():
            ref = v1.NameRef(catalog="lake", path=self.paths[place], name=name)
            if thing in self.views:
                found = directory.resolve_view(self.factory.home, v1.ResolveViewRequest(ref=ref)).resource_id
            else:
                found = directory.resolve_table(self.factory.home, v1.ResolveTableRequest(ref=ref)).resource_id
            assert found.id == thing

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
TestNames.settings = settings(max_examples=40 * max(1, settings.default.max_examples // 100), stateful_step_count=30)
