from __future__ import annotations

from typing import Any

import pytest

from metastore.wholeness import damage
from metastore.world import behaviour, key, mask, refused
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


def listed(world: Any, **request: Any) -> list[str]:
    if not request.keys() & {"namespace_id", "catalog_id"}:
        request["catalog_id"] = world.first_catalog().resource_id
    return paths(namespaces.list_(world.home, List(**request)))


def update(world: Any, namespace: v1.Namespace, *mask_paths: str, **spec: Any) -> v1.UpdateNamespaceResponse:
    request = Update(namespace_id=namespace.resource_id, spec=Spec(**spec), update_mask=mask(*mask_paths))
    return namespaces.update(world.home, request)


def test_a_namespace_is_stored_as_asked_for(world):
    catalog = world.catalog()
    spec = Spec(display_name=" raw  data", catalog_id=catalog.resource_id, description="d", properties={"k": "v"})
    created = namespaces.create(world.home, Create(spec=spec))
    assert (created.namespace.display_name, created.namespace.description) == ("raw data", "d")
    assert created.namespace.catalog_id == catalog.resource_id
    found = namespaces.get(world.home, Get(namespace_id=created.namespace.resource_id))
    assert (found.namespace, found.meta) == (created.namespace, created.meta)
    assert damage(world.stores) == []


@behaviour(20)
def test_a_dot_in_a_name_is_not_a_level(world):
    dotted, nested = world.namespace("a.b"), world.namespace("a", "b")
    assert dotted.resource_id != nested.resource_id
    assert listed(world) == ["a", "a.b"]
    assert listed(world, recursive=True) == ["a", "a.b", "a/b"]
    assert listed(world, path=["a"]) == ["a/b"]
    assert listed(world, path=["a.b"]) == []


@behaviour(21)
def test_missing_parents_are_created_and_existing_ones_used(world):
    world.namespace("x", "y", "z", description="leaf")
    assert listed(world, recursive=True) == ["x", "x/y", "x/y/z"]
    world.namespace("x", "y", "w")
    assert listed(world, recursive=True) == ["x", "x/y", "x/y/w", "x/y/z"]
    with refused(AlreadyExists, "namespace.already.exists", name="x.y"):
        world.namespace("x", "y")
    assert damage(world.stores) == []


@behaviour(36, 38)
def test_a_key_makes_a_repeated_creation_one(world):
    catalog_id = world.catalog().resource_id
    request = Create(spec=Spec(display_name="b", path=["a"], catalog_id=catalog_id), idempotency=key("k"))
    first = namespaces.create(world.home, request)
    request.spec.display_name, request.spec.path[:] = " b", ["a "]
    assert namespaces.create(world.home, request) == first
    request.spec.description = "other"
    with refused(Conflict, "idempotency.mismatch"):
        namespaces.create(world.home, request)


@pytest.mark.parametrize(
    ("spec", "error_key"),
    [
        (Spec(), "display.name.required"),
        (Spec(display_name="x", path=["a", " "]), "path.segment.blank"),
        (Spec(display_name="x"), "field"),
        (Spec(display_name="x", catalog_id=v1.ResourceId(id="x", kind=v1.RK_TABLE)), "kind"),
    ],
)
def test_bad_specs_are_refused(world, spec, error_key):
    with refused(InvalidArgument, error_key):
        namespaces.create(world.home, Create(spec=spec))


def test_a_missing_catalog_and_a_foreign_one_are_not_found(world):
    world.account("a2")
    theirs = catalogs.create(
        world.realm("a2"), v1.CreateCatalogRequest(spec=v1.CatalogSpec(display_name="x"))
    ).catalog.resource_id
    for catalog_id in (v1.ResourceId(id="nope"), theirs, v1.ResourceId(id=theirs.id)):
        with refused(NotFound, "catalog", id=catalog_id.id):
            namespaces.create(world.home, Create(spec=Spec(display_name="x", catalog_id=catalog_id)))


def test_a_hierarchy_has_a_limit(world):
    world.namespace(*map(str, range(16)))
    with refused(LimitExceeded, "path.too_deep"):
        world.namespace(*map(str, range(17)))


@behaviour(22)
def test_children_descendants_and_prefixes_are_listed(world):
    for path in (["a"], ["a", "b", "c"], ["a", "bc"], ["ab"], ["a.b"], ["a", "b.x"]):
        world.namespace(*path)
    inner = next(each for each in _all(world) if each.display_name == "b")
    assert listed(world) == listed(world, children_only=True) == ["a", "a.b", "ab"]
    assert listed(world, path=["a"]) == ["a/b", "a/b.x", "a/bc"]
    assert sorted(listed(world, path=["a"], recursive=True)) == ["a/b", "a/b.x", "a/b/c", "a/bc"]
    assert listed(world, namespace_id=inner.resource_id) == ["a/b/c"]
    assert listed(world, name_prefix="a") == ["a", "a.b", "ab"]
    assert listed(world, name_prefix="ab") == ["ab"]
    assert listed(world, name_prefix="a.") == ["a.b"]
    assert sorted(listed(world, recursive=True, name_prefix="a.b")) == ["a.b", "a/b", "a/b.x", "a/b/c", "a/bc"]
    assert listed(world, recursive=True, name_prefix="a.b.c") == ["a/b/c"]
    assert listed(world, name_prefix="ａｂ") == ["ab"]
    assert listed(world, path=["a"], name_prefix="bc") == ["a/bc"]


def _all(world: Any) -> list[v1.Namespace]:
    request = List(catalog_id=world.first_catalog().resource_id, recursive=True)
    return list(namespaces.list_(world.home, request).namespaces)


@behaviour(22)
def test_contradicting_or_missing_selectors_are_refused(world):
    catalog_id = world.catalog().resource_id
    with refused(InvalidArgument, "selector.required"):
        namespaces.list_(world.home, List())
    with refused(InvalidArgument, "selector.ambiguous"):
        namespaces.list_(world.home, List(catalog_id=catalog_id, children_only=True, recursive=True))
    with refused(InvalidArgument, "selector.ambiguous"):
        namespaces.list_(world.home, List(namespace_id=world.namespace("a").resource_id, path=["x"]))
    with refused(NotFound, "namespace.by.path.missing", catalog="lake", path="no.where"):
        namespaces.list_(world.home, List(catalog_id=catalog_id, path=["no", "where"]))


@behaviour(23)
@pytest.mark.parametrize("name_prefix", ["", "n.", "n"])
def test_pages_show_each_namespace_once_with_a_stable_total(world, name_prefix):
    for number in range(7):
        world.namespace(f"n.{number}")
    page, seen, totals = v1.PageRequest(page_size=3), [], []
    while True:
        request = List(catalog_id=world.first_catalog().resource_id, name_prefix=name_prefix, page=page)
        found = namespaces.list_(world.home, request)
        seen += paths(found)
        totals.append(found.page.total_size)
        page.page_token = found.page.next_page_token
        if not page.page_token:
            break
    assert seen == [f"n.{number}" for number in range(7)]
    assert totals == [7, 7, 7]
    with refused(InvalidArgument, "page.token.invalid"):
        request.page.page_token = "nonsense"
        namespaces.list_(world.home, request)


def test_listing_children_does_not_read_grandchildren(world, calls):
    for number in range(30):
        world.namespace("a", f"{number:02d}")
    world.namespace("b")
    calls.reset()
    catalog_id = world.first_catalog().resource_id
    calls.reset()
    assert listed(world, catalog_id=catalog_id) == ["a", "b"]
    assert calls.counts == {"pointers.get": 1, "pointers.page": 1, "pointers.count": 1, "blobs.get": 3}


def test_the_number_of_store_calls_does_not_grow_with_the_catalog(world, calls):
    catalog = world.catalog()

    def cost() -> int:
        calls.reset()
        world.namespace("p", f"new {world.ids()}", catalog=catalog)
        return calls.total

    world.namespace("p", catalog=catalog)
    few = cost()
    for number in range(50):
        world.namespace("p", f"{number}", catalog=catalog)
    assert cost() == few


# --- updates ----------------------------------------------------------------------------------------------------------


@behaviour(12)
def test_a_namespace_is_renamed_and_moved(world):
    namespace = world.namespace("a", "b")
    world.namespace("c")
    assert update(world, namespace, "display_name", display_name=" x ").namespace.parents == ["a"]
    assert listed(world, recursive=True) == ["a", "a/x", "c"]
    assert update(world, namespace, "path", path=["c", "y"]).namespace.display_name == "y"
    assert listed(world, recursive=True) == ["a", "c", "c/y"]
    update(world, namespace, "path", path=[])
    assert listed(world, recursive=True) == ["a", "c", "y"]
    assert listed(world, path=["c"]) == []
    assert damage(world.stores) == []
    assert list(world.stores.pointers.scan("/closing/")) == []


@behaviour(29)
def test_a_namespace_moves_to_another_catalog_only_while_it_is_empty(world):
    namespace, other = world.namespace("a"), world.catalog("other")
    blocker = table_in(world, namespace)
    with refused(Conflict, "namespace.has.children", found="1 table"):
        update(world, namespace, "catalog_id", catalog_id=other.resource_id)
    assert update(world, namespace, "display_name", display_name="b").namespace.display_name == "b"
    world.home.all(TABLE).delete(blocker.pointer, blocker.value)
    moved = update(world, namespace, "catalog_id", catalog_id=other.resource_id).namespace
    assert moved.catalog_id == other.resource_id
    assert listed(world, catalog_id=other.resource_id) == ["b"]


def test_a_namespace_with_namespaces_in_it_does_not_move(world):
    namespace = world.namespace("a")
    world.namespace("a", "b")
    before = list(world.stores.pointers.scan())
    with refused(Conflict, "namespace.has.children", display_name="a", found="1 namespace"):
        update(world, namespace, "display_name", display_name="x")
    assert list(world.stores.pointers.scan()) == before
    assert update(world, namespace, "description", description="d").namespace.description == "d"


def test_a_move_goes_to_an_existing_place_outside_of_the_namespace(world):
    namespace, _ = world.namespace("a"), world.namespace("b")
    with refused(NotFound, "namespace.by.path.missing", path="no"):
        update(world, namespace, "path", path=["no", "x"])
    with refused(InvalidArgument, "field.invalid", field="path", found="a.x"):
        update(world, namespace, "path", path=["a", "x"])
    with refused(AlreadyExists, "namespace.already.exists", name="b"):
        update(world, namespace, "display_name", display_name="b")
    with refused(NotFound, "catalog"):
        update(world, namespace, "catalog_id", catalog_id=v1.ResourceId(id="nope"))
    assert list(world.stores.pointers.scan("/closing/")) == []
    assert listed(world) == ["a", "b"]


@behaviour(25, 26)
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
def test_masks_that_cannot_be_are_refused(world, mask_paths, error_key):
    with refused(InvalidArgument, error_key):
        update(world, world.namespace("a"), *mask_paths)


# --- deletion ---------------------------------------------------------------------------------------------------------


def table_in(world: Any, namespace: v1.Namespace) -> Any:
    return world.home.all(TABLE).create(
        v1.Table(
            resource_id=v1.ResourceId(account_id="a1", id=world.ids(), kind=v1.RK_TABLE),
            namespace_id=namespace.resource_id,
            display_name="t",
        )
    )


def view_in(world: Any, namespace: v1.Namespace) -> Any:
    return world.home.all(VIEW).create(
        v1.View(
            resource_id=v1.ResourceId(account_id="a1", id=world.ids(), kind=v1.RK_VIEW),
            namespace_id=namespace.resource_id,
            display_name="v",
        )
    )


@behaviour(24)
@pytest.mark.parametrize("asked", [{}, {"require_empty": True}])
def test_a_namespace_that_holds_something_is_not_deleted(world, asked):
    namespace = world.namespace("a")
    request = Delete(namespace_id=namespace.resource_id, **asked)
    view = view_in(world, namespace)
    with refused(Conflict, "namespace.not_empty", display_name="a", found="1 view"):
        namespaces.delete(world.home, request)
    table_in(world, namespace)
    world.namespace("a", "b")
    world.namespace("a", "c", "d")
    with refused(Conflict, "namespace.not_empty", found="1 table, 1 view and 2 namespaces"):
        namespaces.delete(world.home, request)
    assert view.pointer == world.stores.pointers.get(view.pointer.key)
    meta = namespaces.get(world.home, Get(namespace_id=namespace.resource_id)).meta
    assert meta.pointer_version == 1
    with refused(Conflict, "catalog.not_empty", display_name="lake", found="4 namespaces"):
        catalogs.delete(world.home, v1.DeleteCatalogRequest(catalog_id=namespace.catalog_id))


@behaviour(24)
def test_a_namespace_is_deleted_with_all_it_holds_when_so_asked(world):
    namespace, kept = world.namespace("a"), world.namespace("ab")
    for inner in (namespace, world.namespace("a", "b"), world.namespace("a", "b", "c"), kept):
        table_in(world, inner)
        view_in(world, inner)
    namespaces.delete(world.home, Delete(namespace_id=namespace.resource_id, require_empty=False))
    assert listed(world, recursive=True) == ["ab"]
    assert len(list(world.stores.pointers.scan("/accounts/a1/tables/"))) == 1
    assert damage(world.stores) == []
    catalogs.delete(world.home, v1.DeleteCatalogRequest(catalog_id=kept.catalog_id, require_empty=False))
    assert list(world.stores.pointers.scan(keys.of_account("a1"))) == []


@behaviour(24)
def test_nothing_is_created_in_what_is_being_deleted_or_moved(world):
    namespace = world.namespace("a")
    pointer = world.stores.pointers.get(keys.namespace("a1", namespace.resource_id.id))
    moved = close_parent(world.home, pointer, resource="namespace")
    with pytest.raises(Contention):
        world.namespace("a", "b")
    with refused(Contention, "namespace.closing", id=namespace.resource_id.id):
        close_parent(world.home, moved, resource="namespace")
    world.clock.advance(30)
    world.namespace("a", "b")
    with refused(Conflict, "namespace.not_empty"):
        namespaces.delete(world.home, Delete(namespace_id=namespace.resource_id))


@behaviour(24)
@pytest.mark.parametrize("act", ["delete", "rename"])
def test_a_child_that_comes_in_just_before_closing_keeps_the_namespace_where_it_is(world, monkeypatch, act):
    namespace = world.namespace("a")
    module = "skiway.metastore.records.parents" if act == "delete" else "skiway.metastore.resources.namespaces"
    monkeypatch.setattr(f"{module}.close_parent", _after(lambda: world.namespace("a", "b")))
    acts = {
        "delete": lambda: namespaces.delete(world.home, Delete(namespace_id=namespace.resource_id)),
        "rename": lambda: update(world, namespace, "display_name", display_name="x"),
    }
    with pytest.raises(Conflict, match="1 namespace"):
        acts[act]()
    assert listed(world, recursive=True) == ["a", "a/b"]
    assert list(world.stores.pointers.scan("/closing/")) == []
    assert damage(world.stores) == []


def _after(happening: Any) -> Any:
    def late(*arguments: Any, **named: Any) -> Any:
        happening()
        return close_parent(*arguments, **named)

    return late


@behaviour(14)
def test_a_namespace_whose_blob_is_lost_can_be_deleted(world):
    created = namespaces.get(world.home, Get(namespace_id=world.namespace("a").resource_id))
    world.stores.blobs.delete(created.meta.blob_uri)
    namespaces.delete(world.home, Delete(namespace_id=created.namespace.resource_id))
    world.namespace("a")
    assert damage(world.stores) == []
