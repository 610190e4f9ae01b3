from __future__ import annotations

from typing import Any

import pytest

from metastore.integrity import damage
from metastore.resource_factory import behavior, expect_error, key, mask
from skiway.errors import AlreadyExists, Conflict, Contention, InvalidArgument, LimitExceeded, NotFound
from skiway.metastore.records import keys
from skiway.metastore.records.kinds import TABLE, VIEW
from skiway.metastore.records.updates import close_parent
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


def test_namespace_is_stored_as_requested(factory):
    catalog = factory.catalog()
    spec = Spec(display_name="raw data", catalog_id=catalog.resource_id, description="d", properties={"k": "v"})
    created = namespaces.create(factory.home, Create(spec=spec))
    assert (created.namespace.display_name, created.namespace.description) == ("raw data", "d")
    assert created.namespace.catalog_id == catalog.resource_id
    found = namespaces.get(factory.home, Get(namespace_id=created.namespace.resource_id))
    assert (found.namespace, found.meta) == (created.namespace, created.meta)
    assert damage(factory.stores) == []


@behavior(20)
def test_dot_in_a_name_is_not_a_separator(factory):
    dotted, nested = factory.namespace("a.b"), factory.namespace("a", "b")
    assert dotted.resource_id != nested.resource_id
    assert listed(factory) == ["a", "a.b"]
    assert listed(factory, recursive=True) == ["a", "a.b", "a/b"]
    assert listed(factory, path=["a"]) == ["a/b"]
    assert listed(factory, path=["a.b"]) == []


@behavior(21)
def test_missing_parents_are_created_and_existing_ones_are_used(factory):
    factory.namespace("x", "y", "z", description="leaf")
    assert listed(factory, recursive=True) == ["x", "x/y", "x/y/z"]
    factory.namespace("x", "y", "w")
    assert listed(factory, recursive=True) == ["x", "x/y", "x/y/w", "x/y/z"]
    with expect_error(AlreadyExists, "namespace.already.exists", name="x.y"):
        factory.namespace("x", "y")
    assert damage(factory.stores) == []


@behavior(36, 38)
def test_creation_with_the_same_idempotency_key_is_done_once(factory):
    catalog_id = factory.catalog().resource_id
    request = Create(spec=Spec(display_name="b", path=["a"], catalog_id=catalog_id), idempotency=key("k"))
    first = namespaces.create(factory.home, request)
    request.spec.catalog_id.account_id = ""
    assert namespaces.create(factory.home, request) == first
    request.spec.description = "other"
    with expect_error(Conflict, "idempotency.mismatch"):
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
def test_invalid_specs_are_rejected(factory, spec, error_key):
    with expect_error(InvalidArgument, error_key):
        namespaces.create(factory.home, Create(spec=spec))


def test_missing_and_foreign_catalogs_are_not_found(factory):
    factory.account("a2")
    foreign_id = catalogs.create(
        factory.realm("a2"), v1.CreateCatalogRequest(spec=v1.CatalogSpec(display_name="x"))
    ).catalog.resource_id
    for catalog_id in (v1.ResourceId(id="nope"), foreign_id, v1.ResourceId(id=foreign_id.id)):
        with expect_error(NotFound, "catalog", id=catalog_id.id):
            namespaces.create(factory.home, Create(spec=Spec(display_name="x", catalog_id=catalog_id)))


def test_depth_of_the_hierarchy_is_limited(factory):
    factory.namespace(*map(str, range(16)))
    with expect_error(LimitExceeded, "path.too_deep"):
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
def test_contradictory_or_missing_selectors_are_rejected(factory):
    catalog_id = factory.catalog().resource_id
    with expect_error(InvalidArgument, "selector.required"):
        namespaces.list_(factory.home, List())
    with expect_error(InvalidArgument, "selector.ambiguous"):
        namespaces.list_(factory.home, List(catalog_id=catalog_id, children_only=True, recursive=True))
    with expect_error(InvalidArgument, "selector.ambiguous"):
        namespaces.list_(factory.home, List(namespace_id=factory.namespace("a").resource_id, path=["x"]))
    with expect_error(NotFound, "namespace.by.path.missing", catalog="lake", path="no.where"):
        namespaces.list_(factory.home, List(catalog_id=catalog_id, path=["no", "where"]))


@behavior(23)
@pytest.mark.parametrize("name_prefix", ["", "n.", "n"])
def test_pages_list_each_namespace_once_with_a_stable_total(factory, name_prefix):
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
    with expect_error(InvalidArgument, "page.token.invalid"):
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


def test_number_of_store_calls_does_not_grow_with_the_catalog(factory, calls):
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
def test_namespace_is_renamed_and_moved(factory):
    namespace = factory.namespace("a", "b")
    factory.namespace("c")
    assert update(factory, namespace, "display_name", display_name="x").namespace.parents == ["a"]
    assert listed(factory, recursive=True) == ["a", "a/x", "c"]
    assert update(factory, namespace, "path", path=["c", "y"]).namespace.display_name == "y"
    assert listed(factory, recursive=True) == ["a", "c", "c/y"]
    update(factory, namespace, "path", path=[])
    assert listed(factory, recursive=True) == ["a", "c", "y"]
    assert listed(factory, path=["c"]) == []
    assert damage(factory.stores) == []
    assert list(factory.stores.pointers.scan("/closing/")) == []


@behavior(29)
def test_only_an_empty_namespace_moves_to_another_catalog(factory):
    namespace, other = factory.namespace("a"), factory.catalog("other")
    blocker = table_in(factory, namespace)
    with expect_error(Conflict, "namespace.has.children", found="1 table"):
        update(factory, namespace, "catalog_id", catalog_id=other.resource_id)
    assert update(factory, namespace, "display_name", display_name="b").namespace.display_name == "b"
    factory.home.all(TABLE).delete(blocker.pointer, blocker.value)
    moved = update(factory, namespace, "catalog_id", catalog_id=other.resource_id).namespace
    assert moved.catalog_id == other.resource_id
    assert listed(factory, catalog_id=other.resource_id) == ["b"]


def test_namespace_with_children_cannot_be_moved(factory):
    namespace = factory.namespace("a")
    factory.namespace("a", "b")
    before = list(factory.stores.pointers.scan())
    with expect_error(Conflict, "namespace.has.children", display_name="a", found="1 namespace"):
        update(factory, namespace, "display_name", display_name="x")
    assert list(factory.stores.pointers.scan()) == before
    assert update(factory, namespace, "description", description="d").namespace.description == "d"


def test_namespace_moves_only_to_an_existing_parent_outside_itself(factory):
    namespace, _ = factory.namespace("a"), factory.namespace("b")
    with expect_error(NotFound, "namespace.by.path.missing", path="no"):
        update(factory, namespace, "path", path=["no", "x"])
    with expect_error(InvalidArgument, "field.invalid", field="path", found="a.x"):
        update(factory, namespace, "path", path=["a", "x"])
    with expect_error(AlreadyExists, "namespace.already.exists", name="b"):
        update(factory, namespace, "display_name", display_name="b")
    with expect_error(NotFound, "catalog"):
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
def test_invalid_update_masks_are_rejected(factory, mask_paths, error_key):
    with expect_error(InvalidArgument, error_key):
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
@pytest.mark.parametrize("options", [{}, {"require_empty": True}])
def test_namespace_that_is_not_empty_is_not_deleted(factory, options):
    namespace = factory.namespace("a")
    request = Delete(namespace_id=namespace.resource_id, **options)
    view = view_in(factory, namespace)
    with expect_error(Conflict, "namespace.not_empty", display_name="a", found="1 view"):
        namespaces.delete(factory.home, request)
    table_in(factory, namespace)
    factory.namespace("a", "b")
    factory.namespace("a", "c", "d")
    with expect_error(Conflict, "namespace.not_empty", found="1 table, 1 view and 2 namespaces"):
        namespaces.delete(factory.home, request)
    assert view.pointer == factory.stores.pointers.get(view.pointer.key)
    meta = namespaces.get(factory.home, Get(namespace_id=namespace.resource_id)).meta
    assert meta.pointer_version == 1
    with expect_error(Conflict, "catalog.not_empty", display_name="lake", found="4 namespaces"):
        catalogs.delete(factory.home, v1.DeleteCatalogRequest(catalog_id=namespace.catalog_id))


@behavior(24)
def test_namespace_is_deleted_with_its_contents_on_request(factory):
    namespace, sibling = factory.namespace("a"), factory.namespace("ab")
    for inner in (namespace, factory.namespace("a", "b"), factory.namespace("a", "b", "c"), sibling):
        table_in(factory, inner)
        view_in(factory, inner)
    namespaces.delete(factory.home, Delete(namespace_id=namespace.resource_id, require_empty=False))
    assert listed(factory, recursive=True) == ["ab"]
    assert len(list(factory.stores.pointers.scan("/accounts/a1/tables/"))) == 1
    assert damage(factory.stores) == []
    catalogs.delete(factory.home, v1.DeleteCatalogRequest(catalog_id=sibling.catalog_id, require_empty=False))
    assert list(factory.stores.pointers.scan(keys.of_account("a1"))) == []


@behavior(24)
def test_nothing_is_created_in_a_namespace_that_is_being_deleted_or_moved(factory):
    namespace = factory.namespace("a")
    pointer = factory.stores.pointers.get(keys.namespace("a1", namespace.resource_id.id))
    moved = close_parent(factory.home, pointer, resource="namespace")
    with pytest.raises(Contention):
        factory.namespace("a", "b")
    with expect_error(Contention, "namespace.closing", id=namespace.resource_id.id):
        close_parent(factory.home, moved, resource="namespace")
    factory.clock.advance(30)
    factory.namespace("a", "b")
    with expect_error(Conflict, "namespace.not_empty"):
        namespaces.delete(factory.home, Delete(namespace_id=namespace.resource_id))


@behavior(24)
@pytest.mark.parametrize("act", ["delete", "rename"])
def test_child_created_just_before_closing_prevents_delete_and_move(factory, monkeypatch, act):
    namespace = factory.namespace("a")
    monkeypatch.setattr("skiway.metastore.records.updates.close_parent", _after(lambda: factory.namespace("a", "b")))
    acts = {
        "delete": lambda: namespaces.delete(factory.home, Delete(namespace_id=namespace.resource_id)),
        "rename": lambda: update(factory, namespace, "display_name", display_name="x"),
    }
    with pytest.raises(Conflict, match="1 namespace"):
        acts[act]()
    assert listed(factory, recursive=True) == ["a", "a/b"]
    assert list(factory.stores.pointers.scan("/closing/")) == []
    assert damage(factory.stores) == []


def _after(change: Any) -> Any:
    def delayed_call(*arguments: Any, **keywords: Any) -> Any:
        change()
        return close_parent(*arguments, **keywords)

    return delayed_call


@behavior(14)
def test_namespace_with_a_missing_blob_can_be_deleted(factory):
    created = namespaces.get(factory.home, Get(namespace_id=factory.namespace("a").resource_id))
    factory.stores.blobs.delete(created.meta.blob_uri)
    namespaces.delete(factory.home, Delete(namespace_id=created.namespace.resource_id))
    factory.namespace("a")
    assert damage(factory.stores) == []
