"""Random changes of a lake: after each, callers find and count what plain listings show them."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from metastore.resource_factory import ResourceFactory, mask
from metastore.search.searches import Searching, change_table, totals_in
from skiway.errors import SkiwayError
from skiway.metastore.resources import catalogs, grants, namespaces, policies, tables, views
from skiway.metastore.search import SearchIndexes
from skiway.model import v1
from skiway.storage import open_stores
from storage.homes import Clock

NAMES = st.sampled_from(["orders", "Orders_old", "people", "a.b", "über", "x y"])
TEXTS = ("orders", "o", "lake", "people a", "über", "pii", "lake.sales", "amount", "note", "zzz")
CALLERS = ("server", "reader", "ada", "bob")
COLUMNS = st.sampled_from(["amount", "Note", "über"])


class Changes(RuleBasedStateMachine):
    """One lake, four callers, and an index that reads up to five changes in a call."""

    @initialize()
    def begin(self) -> None:
        self.opened = open_stores("memory://", clock=Clock())
        self.factory = ResourceFactory(self.opened.__enter__(), Clock())
        self.searching = Searching(self.factory, SearchIndexes(max_changes=5))
        self.factory.namespace("sales", catalog=self.factory.catalog("lake"))

    def teardown(self) -> None:
        if hasattr(self, "searching"):
            self.searching.indexes.close()
            self.opened.__exit__(None, None, None)

    def some(self, kind: str, data: st.DataObject) -> Any:
        """One of the objects of a kind."""
        page = v1.PageRequest(page_size=1000)
        found: list[Any] = list(catalogs.list_(self.factory.home, v1.ListCatalogsRequest(page=page)).catalogs)
        if kind != "catalog":
            listed = (namespaces.scan(self.factory.home, each.resource_id.id) for each in found)
            found = [each for some in listed for each in some]
        if kind in ("table", "view"):
            scan: Any = tables.scan if kind == "table" else views.scan
            found = [each for some in found for each in scan(self.factory.home, some.resource_id.id)]
        return data.draw(st.sampled_from(found)) if found else None

    @rule(name=NAMES, data=st.data())
    def add_catalog(self, name: str, data: st.DataObject) -> None:
        with suppress(SkiwayError):
            self.factory.catalog(name, description=data.draw(NAMES))

    @rule(name=NAMES, data=st.data(), inside=st.booleans())
    def add_namespace(self, name: str, data: st.DataObject, inside: bool) -> None:
        catalog = self.some("catalog", data)
        with suppress(SkiwayError):
            self.factory.namespace(*(["sales", name] if inside else [name]), catalog=catalog, description=name)

    @rule(name=NAMES, column=COLUMNS, data=st.data())
    def add_table(self, name: str, column: str, data: st.DataObject) -> None:
        namespace = self.some("namespace", data)
        schema = f'{{"type": "struct", "fields": [{{"id": 1, "name": "{column}", "type": "long", "doc": "{name}"}}]}}'
        if namespace is not None:
            with suppress(SkiwayError):
                self.factory.table(name, namespace=namespace, schema_json=schema)

    @rule(name=NAMES, data=st.data())
    def add_view(self, name: str, data: st.DataObject) -> None:
        namespace = self.some("namespace", data)
        if namespace is not None:
            with suppress(SkiwayError):
                self.factory.view(name, namespace=namespace, description="a note")

    @rule(name=NAMES, data=st.data(), field=st.sampled_from(["display_name", "description", "namespace_id"]))
    def change(self, name: str, data: st.DataObject, field: str) -> None:
        table, namespace = self.some("table", data), self.some("namespace", data)
        if table is not None and namespace is not None:
            with suppress(SkiwayError):
                value = namespace.resource_id if field == "namespace_id" else name
                change_table(self.factory.home, table, **{field: value})

    @rule(name=NAMES, data=st.data(), kind=st.sampled_from(["catalog", "namespace"]))
    def rename_container(self, name: str, data: st.DataObject, kind: str) -> None:
        found = self.some(kind, data)
        if found is None:
            return
        with suppress(SkiwayError):
            if kind == "catalog":
                catalogs.update(
                    self.factory.home,
                    v1.UpdateCatalogRequest(
                        catalog_id=found.resource_id,
                        spec=v1.CatalogSpec(display_name=name),
                        update_mask=mask("display_name"),
                    ),
                )
            else:
                namespaces.update(
                    self.factory.home,
                    v1.UpdateNamespaceRequest(
                        namespace_id=found.resource_id,
                        spec=v1.NamespaceSpec(display_name=name),
                        update_mask=mask("display_name"),
                    ),
                )

    @rule(data=st.data(), kind=st.sampled_from(["namespace", "table", "view"]))
    def delete(self, data: st.DataObject, kind: str) -> None:
        found, home = self.some(kind, data), self.factory.home
        if found is None:
            return
        with suppress(SkiwayError):
            if kind == "namespace":
                request = v1.DeleteNamespaceRequest(namespace_id=found.resource_id, require_empty=False)
                namespaces.delete(home, request)
            elif kind == "table":
                tables.delete(home, v1.DeleteTableRequest(table_id=found.resource_id))
            else:
                views.delete(home, v1.DeleteViewRequest(view_id=found.resource_id))

    @rule(data=st.data(), column=COLUMNS, on=st.booleans())
    def tag(self, data: st.DataObject, column: str, on: bool) -> None:
        table = self.some("table", data)
        if table is not None:
            request = v1.SetColumnTagsRequest(
                table_id=table.resource_id, column=column, tags=["pii", "note"] if on else []
            )
            with suppress(SkiwayError):
                policies.set_tags(self.factory.home, request)

    @rule(data=st.data(), rows=st.integers(0, 1000))
    def store_size(self, data: st.DataObject, rows: int) -> None:
        table = self.some("table", data)
        if table is not None:
            self.searching.store_size(table, rows)

    @rule(data=st.data(), name=st.sampled_from(["ada", "bob"]), kind=st.sampled_from(["catalog", "namespace", "table"]))
    def grant(self, data: st.DataObject, name: str, kind: str) -> None:
        found = self.some(kind, data)
        if found is not None:
            with suppress(SkiwayError):
                self.searching.grant(name, found.resource_id)

    @rule(data=st.data(), name=st.sampled_from(["ada", "bob"]), kind=st.sampled_from(["catalog", "namespace", "table"]))
    def revoke(self, data: st.DataObject, name: str, kind: str) -> None:
        found = self.some(kind, data)
        if found is not None:
            with suppress(SkiwayError):
                request = v1.RevokeGrantRequest(object_id=found.resource_id, grantee=f"user:{name}")
                grants.revoke(self.factory.home, request)

    @rule(
        data=st.data(),
        name=st.sampled_from(["reader", "ada"]),
        kind=st.sampled_from(["catalog", "namespace", "table", "tag"]),
        title=st.integers(0, 2),
    )
    def filter_rows(self, data: st.DataObject, name: str, kind: str, title: int) -> None:
        found = None if kind == "tag" else self.some(kind, data)
        if found is not None or kind == "tag":
            with suppress(SkiwayError):
                on = [] if found is None else [found.resource_id]
                tags = ["pii"] if kind == "tag" else []
                self.searching.filter_rows(name, *on, tags=tags, title=f"filter {title}")

    @invariant()
    def callers_find_what_listings_show(self) -> None:
        if not hasattr(self, "searching"):
            return
        for name in CALLERS:
            twin = self.searching.twin(name)
            for text in TEXTS:
                assert self.searching.find(text, name) == twin.find(text), (name, text)
            assert totals_in(self.searching.summary(name)) == twin.totals(), name
            assert [".".join(each.path) for each in self.searching.list(name).objects] == twin.relations(), name


TestRandomChanges = Changes.TestCase
TestRandomChanges.settings = settings(
    max_examples=4 * max(1, settings.default.max_examples // 100), stateful_step_count=20, deadline=None
)
