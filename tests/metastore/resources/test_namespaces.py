from __future__ import annotations

from typing import Any

import pytest

from metastore.integrity import damage
from metastore.resource_factory import behavior, key, mask, refused
from skiway.errors import AlreadyExists, Conflict, Contention, InvalidArgument, LimitExceeded, NotFound
from skiway.metastore.records import keys
from skiway.metastore.records.kinds import TABLE, VIEW
from skiway.metastore.records.parents import close_parent
from skiway.metastore.resources import catalogs, namespaces
from skiway.model import v1

Create, Update, Delete, Get, List = (
    v1.CreateNamespaceRequest,
    v1.UpdateNamespaceRequest,
    v1.DeleteNamespaceRequest,
    v1.GetNamespaceRequest,
    v1.ListNamespacesRequest,
)
Spec = v1.NamespaceSpec


def paths(found: v1.ListNamespacesResponse) -> list[str]:
    return ["/".join((*each.parents, each.display_name)) for each in found.namespaces]


def listed(factory: Any, **request: Any) -> list[str]:
    if not request.keys() & {"namespace_id", "catalog_id"}:
        request["catalog_id"] = factory.first_catalog().resource_id
    return paths(namespaces.list_(factory.home, List(**request)))


def update(factory: Any, namespace: v1.Namespace, *mask_paths: str, **spec: Any) -> v1.UpdateNamespaceResponse:
    request = Update(namespace_id=namespace.resource_id, spec=Spec(**spec), update_mask=mask(*mask_paths))
    return namespaces.update(factory.home, request)


def test_a_namespace_is_stored_as_asked_for(factory):
    catalog = factory.catalog()
    spec = Spec(display_name=" raw  data", catalog_id=catalog.resource_id, description="d", properties={"k": "v"})
    created = namespaces.create(factory.home, Create(spec=spec))
    assert (created.namespace.display_name, created.namespace.description) == ("raw data", "d")
    assert created.namespace.catalog_id == catalog.resource_id
    found = namespaces.get(factory.home, Get(namespace_id=created.namespace.resource_id))
    assert (found.namespace, found.meta) == (created.namespace, created.meta)
    assert damage(factory.stores) == []


@behavior(20)
def test_a_dot_in_a_name_is_not_a_level(factory):
    dotted, nested = factory.namespace("a.b"), factory.namespace("a", "b")
    assert dotted.resource_id != nested.resource_id
    assert listed(factory) == ["a", "a.b"]
    assert listed(factory, recursive=True) == ["a", "a.b", "a/b"]
    assert listed(factory, path=["a"]) == ["a/b"]
    assert listed(factory, path=["a.b"]) == []


@behavior(21)
def test_missing_parents_are_created_and_existing_ones_used(factory):
    factory.namespace("x", "y", "z", description="leaf")
    assert listed(factory, recursive=True) == ["x", "x/y", "x/y/z"]
    factory.namespace("x", "y", "w")
    assert listed(factory, recursive=True) == ["x", "x/y", "x/y/w", "x/y/z"]
    with refused(AlreadyExists, "namespace.already.exists", name="x.y"):
        factory.namespace("x", "y")
    assert damage(factory.stores) == []


@behavior(36, 38)
def test_a_key_makes_a_repeated_creation_one(factory):
    catalog_id = factory.catalog().resource_id
    request = Create(spec=Spec(display_name="b", path=["a"], catalog_id=catalog_id), idempotency=key("k"))
    first = namespaces.create(factory.home, request)
    request.spec.display_name, request.spec.path[:] = " b", ["a "]
    assert namespaces.create(factory.home, request) == first
    request.spec.description = "other"
    with refused(Conflict, "idempotency.mismatch"):
        namespaces.create(factory.home, request)


@pytest.mark.parametrize(
    ("spec", "error_key"),
    [
        (Spec(), "display.name.required"),
        (Spec(display_name="x", path=["a", " "]), "path.segment.blank"),
        (Spec(display_name="x"), "field"),
        (Spec(display_name="x", catalog_id=v1.ResourceId(id="x", kind=v1.RK_TABLE)), "kind"),
    ],
)
def test_bad_specs_are_refused(factory, spec, error_key):
    with refused(InvalidArgument, error_key):
        namespaces.create(factory.home, Create(spec=spec))


def test_a_missing_catalog_and_a_foreign_one_are_not_found(factory):
    factory.account("a2")
    theirs = catalogs.create(
        factory.realm("a2"), v1.CreateCatalogRequest(spec=v1.CatalogSpec(display_name="x"))
    ).catalog.resource_id
    for catalog_id in (v1.ResourceId(id="nope"), theirs, v1.ResourceId(id=theirs.id)):
        with refused(NotFound, "catalog", id=catalog_id.id):
            namespaces.create(factory.home, Create(spec=Spec(display_name="x", catalog_id=catalog_id)))


def test_a_hierarchy_has_a_limit(factory):
    factory.namespace(*map(str, range(16)))
    with refused(LimitExceeded, "path.too_deep"):
        factory.namespace(*map(str, range(17)))


@behavior(22)
def test_children_descendants_and_prefixes_are_listed(factory):
    for path in (["a"], ["a", "b", "c"], ["a", "bc"], ["ab"], ["a.b"], ["a", "b.x"]):
        factory.namespace(*path)
    inner = next(each for each in _all(factory) if each.display_name == "b")
    assert listed(factory) == listed(factory, children_only=True) == ["a", "a.b", "ab"]
    assert listed(factory, path=["a"]) == ["a/b", "a/b.x", "a/bc"]
    assert sorted(listed(factory, path=["a"], recursive=True)) == ["a/b", "a/b.x", "a/b/c", "a/bc"]
    assert listed(factory, namespace_id=inner.resource_id) == ["a/b/c"]
    assert listed(factory, name_prefix="a") == ["a", "a.b", "ab"]
    assert listed(factory, name_prefix="ab") == ["ab"]
    assert listed(factory, name_prefix="a.") == ["a.b"]
    assert sorted(listed(factory, recursive=True, name_prefix="a.b")) == ["a.b", "a/b", "a/b.x", "a/b/c", "a/bc"]
    assert listed(factory, recursive=True, name_prefix="a.b.c") == ["a/b/c"]
    assert listed(factory, name_prefix="ａｂ") == ["ab"]
    assert listed(factory, path=["a"], name_prefix="bc") == ["a/bc"]


def _all(factory: Any) -> list[v1.Namespace]:
    request = List(catalog_id=factory.first_catalog().resource_id, recursive=True)
    return list(namespaces.list_(factory.home, request).namespaces)


@behavior(22)
def test_contradicting_or_missing_selectors_are_refused(factory):
    catalog_id = factory.catalog().resource_id
    with refused(InvalidArgument, "selector.required"):
        namespaces.list_(factory.home, List())
    with refused(InvalidArgument, "selector.ambiguous"):
        namespaces.list_(factory.home, List(catalog_id=catalog_id, children_only=True, recursive=True))
    with refused(InvalidArgument, "selector.ambiguous"):
        namespaces.list_(factory.home, List(namespace_id=factory.namespace("a").resource_id, path=["x"]))
    with refused(NotFound, "namespace.by.path.missing", catalog="lake", path="no.where"):
        namespaces.list_(factory.home, List(catalog_id=catalog_id, path=["no", "where"]))


@behavior(23)
@pytest.mark.parametrize("name_prefix", ["", "n.", "n"])
def test_pages_show_each_namespace_once_with_a_stable_total(factory, name_prefix):
    for number in range(7):
        factory.namespace(f"n.{number}")
    page, seen, totals = v1.PageRequest(page_size=3), [], []
    while True:
        request = List(catalog_id=factory.first_catalog().resource_id, name_prefix=name_prefix, page=page)
        found = namespaces.list_(factory.home, request)
        seen += paths(found)
        totals.append(found.page.total_size)
        page.page_token = found.page.next_page_token
        if not page.page_token:
            break
    assert seen == [f"n.{number}" for number in range(7)]
    assert totals == [7, 7, 7]
    with refused(InvalidArgument, "page.token.invalid"):
        request.page.page_token = "nonsense"
        namespaces.list_(factory.home, request)


def test_listing_children_does_not_read_grandchildren(factory, calls):
    for number in range(30):
        factory.namespace("a", f"{number:02d}")
    factory.namespace("b")
    calls.reset()
    catalog_id = factory.first_catalog().resource_id
    calls.reset()
    assert listed(factory, catalog_id=catalog_id) == ["a", "b"]
    assert calls.counts == {"pointers.get": 1, "pointers.page": 1, "pointers.count": 1, "blobs.get": 3}


def test_the_number_of_store_calls_does_not_grow_with_the_catalog(factory, calls):
    catalog = factory.catalog()

    def cost() -> int:
        calls.reset()
        factory.namespace("p", f"new {factory.ids()}", catalog=catalog)
        return calls.total

    factory.namespace("p", catalog=catalog)
    few = cost()
    for number in range(50):
        factory.namespace("p", f"{number}", catalog=catalog)
    assert cost() == few


# --- updates ----------------------------------------------------------------------------------------------------------


@behavior(12)
def test_a_namespace_is_renamed_and_moved(factory):
    namespace = factory.namespace("a", "b")
    factory.namespace("c")
    assert update(factory, namespace, "display_name", display_name=" x ").namespace.parents == ["a"]
    assert listed(factory, recursive=True) == ["a", "a/x", "c"]
    assert update(factory, namespace, "path", path=["c", "y"]).namespace.display_name == "y"
    assert listed(factory, recursive=True) == ["a", "c", "c/y"]
    update(factory, namespace, "path", path=[])
    assert listed(factory, recursive=True) == ["a", "c", "y"]
    assert listed(factory, path=["c"]) == []
    assert damage(factory.stores) == []
    assert list(factory.stores.pointers.scan("/closing/")) == []


@behavior(29)
def test_a_namespace_moves_to_another_catalog_only_while_it_is_empty(factory):
    namespace, other = factory.namespace("a"), factory.catalog("other")
    blocker = table_in(factory, namespace)
    with refused(Conflict, "namespace.has.children", found="1 table"):
        update(factory, namespace, "catalog_id", catalog_id=other.resource_id)
    assert update(factory, namespace, "display_name", display_name="b").namespace.display_name == "b"
    factory.home.all(TABLE).delete(blocker.pointer, blocker.value)
    moved = update(factory, namespace, "catalog_id", catalog_id=other.resource_id).namespace
    assert moved.catalog_id == other.resource_id
    assert listed(factory, catalog_id=other.resource_id) == ["b"]


def test_a_namespace_with_namespaces_in_it_does_not_move(factory):
    namespace = factory.namespace("a")
    factory.namespace("a", "b")
    before = list(factory.stores.pointers.scan())
    with refused(Conflict, "namespace.has.children", display_name="a", found="1 namespace"):
        update(factory, namespace, "display_name", display_name="x")
    assert list(factory.stores.pointers.scan()) == before
    assert update(factory, namespace, "description", description="d").namespace.description == "d"


def test_a_move_goes_to_an_existing_place_outside_of_the_namespace(factory):
    namespace, _ = factory.namespace("a"), factory.namespace("b")
    with refused(NotFound, "namespace.by.path.missing", path="no"):
        update(factory, namespace, "path", path=["no", "x"])
    with refused(InvalidArgument, "field.invalid", field="path", found="a.x"):
        update(factory, namespace, "path", path=["a", "x"])
    with refused(AlreadyExists, "namespace.already.exists", name="b"):
        update(factory, namespace, "display_name", display_name="b")
    with refused(NotFound, "catalog"):
        update(factory, namespace, "catalog_id", catalog_id=v1.ResourceId(id="nope"))
    assert list(factory.stores.pointers.scan("/closing/")) == []
    assert listed(factory) == ["a", "b"]


@behavior(25, 26)
@pytest.mark.parametrize(
    ("mask_paths", "error_key"),
    [
        ([], "update.mask.required"),
        (["parents"], "update.mask.path.invalid"),
        (["path", "display_name"], "update.mask.path.mix"),
        (["display_name"], "display.name.cannot.clear"),
        (["catalog_id"], "catalog.id.cannot.clear"),
    ],
)
def test_masks_that_cannot_be_are_refused(factory, mask_paths, error_key):
    with refused(InvalidArgument, error_key):
        update(factory, factory.namespace("a"), *mask_paths)


# --- deletion ---------------------------------------------------------------------------------------------------------


def table_in(factory: Any, namespace: v1.Namespace) -> Any:
    return factory.home.all(TABLE).create(
        v1.Table(
            resource_id=v1.ResourceId(account_id="a1", id=factory.ids(), kind=v1.RK_TABLE),
            namespace_id=namespace.resource_id,
            display_name="t",
        )
    )


def view_in(factory: Any, namespace: v1.Namespace) -> Any:
    return factory.home.all(VIEW).create(
        v1.View(
            resource_id=v1.ResourceId(account_id="a1", id=factory.ids(), kind=v1.RK_VIEW),
            namespace_id=namespace.resource_id,
            display_name="v",
        )
    )


@behavior(24)
@pytest.mark.parametrize("asked", [{}, {"require_empty": True}])
def test_a_namespace_that_holds_something_is_not_deleted(factory, asked):
    namespace = factory.namespace("a")
    request = Delete(namespace_id=namespace.resource_id, **asked)
    view = view_in(factory, namespace)
    with refused(Conflict, "namespace.not_empty", display_name="a", found="1 view"):
        namespaces.delete(factory.home, request)
    table_in(factory, namespace)
    factory.namespace("a", "b")
    factory.namespace("a", "c", "d")
    with refused(Conflict, "namespace.not_empty", found="1 table, 1 view and 2 namespaces"):
        namespaces.delete(factory.home, request)
    assert view.pointer == factory.stores.pointers.get(view.pointer.key)
    meta = namespaces.get(factory.home, Get(namespace_id=namespace.resource_id)).meta
    assert meta.pointer_version == 1
    with refused(Conflict, "catalog.not_empty", display_name="lake", found="4 namespaces"):
        catalogs.delete(factory.home, v1.DeleteCatalogRequest(catalog_id=namespace.catalog_id))


@behavior(24)
def test_a_namespace_is_deleted_with_all_it_holds_when_so_asked(factory):
    namespace, kept = factory.namespace("a"), factory.namespace("ab")
    for inner in (namespace, factory.namespace("a", "b"), factory.namespace("a", "b", "c"), kept):
        table_in(factory, inner)
        view_in(factory, inner)
    namespaces.delete(factory.home, Delete(namespace_id=namespace.resource_id, require_empty=False))
    assert listed(factory, recursive=True) == ["ab"]
    assert len(list(factory.stores.pointers.scan("/accounts/a1/tables/"))) == 1
    assert damage(factory.stores) == []
    catalogs.delete(factory.home, v1.DeleteCatalogRequest(catalog_id=kept.catalog_id, require_empty=False))
    assert list(factory.stores.pointers.scan(keys.of_account("a1"))) == []


@behavior(24)
def test_nothing_is_created_in_what_is_being_deleted_or_moved(factory):
    namespace = factory.namespace("a")
    pointer = factory.stores.pointers.get(keys.namespace("a1", namespace.resource_id.id))
    moved = close_parent(factory.home, pointer, resource="namespace")
    with pytest.raises(Contention):
        factory.namespace("a", "b")
    with refused(Contention, "namespace.closing", id=namespace.resource_id.id):
        close_parent(factory.home, moved, resource="namespace")
    factory.clock.advance(30)
    factory.namespace("a", "b")
    with refused(Conflict, "namespace.not_empty"):
        namespaces.delete(factory.home, Delete(namespace_id=namespace.resource_id))


@behavior(24)
@pytest.mark.parametrize("act", ["delete", "rename"])
def test_a_child_that_comes_in_just_before_closing_keeps_the_namespace_where_it_is(factory, monkeypatch, act):
    namespace = factory.namespace("a")
    module = "skiway.metastore.records.parents" if act == "delete" else "skiway.metastore.resources.namespaces"
    monkeypatch.setattr(f"{module}.close_parent", _after(lambda: factory.namespace("a", "b")))
    acts = {
        "delete": lambda: namespaces.delete(factory.home, Delete(namespace_id=namespace.resource_id)),
        "rename": lambda: update(factory, namespace, "display_name", display_name="x"),
    }
    with pytest.raises(Conflict, match="1 namespace"):
        acts[act]()
    assert listed(factory, recursive=True) == ["a", "a/b"]
    assert list(factory.stores.pointers.scan("/closing/")) == []
    assert damage(factory.stores) == []


def _after(happening: Any) -> Any:
    def late(*arguments: Any, **named: Any) -> Any:
        happening()
        return close_parent(*arguments, **named)

    return late


@behavior(14)
def test_a_namespace_whose_blob_is_lost_can_be_deleted(factory):
    created = namespaces.get(factory.home, Get(namespace_id=factory.namespace("a").resource_id))
    factory.stores.blobs.delete(created.meta.blob_uri)
    namespaces.delete(factory.home, Delete(namespace_id=created.namespace.resource_id))
    factory.namespace("a")
    assert damage(factory.stores) == []
