from __future__ import annotations

from typing import Any

import pytest

from metastore.world import behaviour, mask, refused
from skiway.errors import InvalidArgument, NotFound
from skiway.metastore.resources import catalogs, directory, namespaces, tables
from skiway.model import v1

Ref = v1.NameRef


def table_id(world: Any, ref: v1.NameRef) -> v1.ResourceId:
    return directory.resolve_table(world.home, v1.ResolveTableRequest(ref=ref)).resource_id


@behaviour(43)
def test_names_resolve_to_ids_and_ids_to_names(world):
    namespace = world.namespace("sales", "eu")
    table, view = world.table("people", namespace=namespace), world.view("adults", namespace=namespace)
    catalog_id, home = namespace.catalog_id, world.home
    found = directory.resolve_catalog(home, v1.ResolveCatalogRequest(ref=Ref(catalog=" lake ")))
    assert found.resource_id == catalog_id
    for ref in (Ref(catalog="lake", path=["sales", "eu"]), Ref(catalog="lake", path=["sales"], name="eu")):
        resolved = directory.resolve_namespace(home, v1.ResolveNamespaceRequest(ref=ref))
        assert resolved.resource_id == namespace.resource_id
    people = Ref(catalog="lake", path=[" sales", "eu"], name="people ")
    assert table_id(world, people) == table.resource_id
    adults = Ref(catalog="lake", path=["sales", "eu"], name="adults")
    assert directory.resolve_view(home, v1.ResolveViewRequest(ref=adults)).resource_id == view.resource_id

    assert directory.lookup_catalog(home, v1.LookupCatalogRequest(resource_id=catalog_id)).display_name == "lake"
    said = directory.lookup_namespace(home, v1.LookupNamespaceRequest(resource_id=namespace.resource_id)).ref
    assert said == Ref(catalog="lake", path=["sales"], name="eu", resource_id=namespace.resource_id)
    said = directory.lookup_table(home, v1.LookupTableRequest(resource_id=table.resource_id)).ref
    assert said == Ref(catalog="lake", path=["sales", "eu"], name="people", resource_id=table.resource_id)
    said = directory.lookup_view(home, v1.LookupViewRequest(resource_id=view.resource_id)).ref
    assert said.name == "adults"


def test_an_id_in_a_name_decides(world):
    table = world.table()
    assert table_id(world, Ref(name="whatever", resource_id=table.resource_id)) == table.resource_id
    request = v1.ResolveNamespaceRequest(ref=Ref(resource_id=table.namespace_id))
    assert directory.resolve_namespace(world.home, request).resource_id == table.namespace_id
    request = v1.ResolveCatalogRequest(ref=Ref(resource_id=table.catalog_id))
    assert directory.resolve_catalog(world.home, request).resource_id == table.catalog_id
    with refused(InvalidArgument, "kind"):
        table_id(world, Ref(resource_id=table.namespace_id))


@behaviour(20)
def test_a_dot_in_a_name_is_not_a_level(world):
    dotted, nested = world.namespace("a.b"), world.namespace("a", "b")
    for path, namespace in ((["a.b"], dotted), (["a", "b"], nested)):
        request = v1.ResolveNamespaceRequest(ref=Ref(catalog="lake", path=path))
        assert directory.resolve_namespace(world.home, request).resource_id == namespace.resource_id
        said = directory.lookup_namespace(world.home, v1.LookupNamespaceRequest(resource_id=namespace.resource_id)).ref
        assert [*said.path, said.name] == path


@behaviour(43)
@pytest.mark.parametrize(
    ("ref", "error", "error_key"),
    [
        (Ref(), InvalidArgument, "catalog.missing"),
        (Ref(catalog="lake", path=["sales"]), InvalidArgument, "table.name.missing"),
        (Ref(catalog="lake", path=["sales", " "], name="t"), InvalidArgument, "path.segment.blank"),
        (Ref(catalog="lake", name="t"), InvalidArgument, "field"),
        (Ref(catalog="Lake", path=["sales"], name="people"), NotFound, "catalog.by.name.missing"),
        (Ref(catalog="lake", path=["no", "where"], name="t"), NotFound, "namespace.by.path.missing"),
        (Ref(catalog="lake", path=["sales"], name="People"), NotFound, "table.by.name.missing"),
        (Ref(catalog="lake", path=["sales"], name="adults"), NotFound, "table.by.name.missing"),
    ],
)
def test_resolving_is_strict(world, ref, error, error_key):
    world.table("people")
    world.view("adults")
    with refused(error, error_key):
        table_id(world, ref)


def test_what_is_missing_is_named(world):
    world.namespace("sales")
    with refused(NotFound, "view.by.name.missing", catalog="lake", path="sales", name="v"):
        directory.resolve_view(world.home, v1.ResolveViewRequest(ref=Ref(catalog="lake", path=["sales"], name="v")))


@behaviour(43)
def test_looking_up_what_is_not_there_is_empty(world):
    unknown = v1.ResourceId(id="nope")
    home = world.home
    assert directory.lookup_catalog(home, v1.LookupCatalogRequest(resource_id=unknown)).display_name == ""
    assert not directory.lookup_namespace(home, v1.LookupNamespaceRequest(resource_id=unknown)).HasField("ref")
    assert not directory.lookup_table(home, v1.LookupTableRequest(resource_id=unknown)).HasField("ref")
    assert not directory.lookup_view(home, v1.LookupViewRequest(resource_id=unknown)).HasField("ref")
    world.namespace("sales")
    for ref in (Ref(catalog="lake", path=["sales"], name="x"), Ref(catalog="no", path=["sales"], name="x")):
        found = directory.lookup_table_by_ref(home, v1.LookupTableByRefRequest(ref=ref))
        assert not found.HasField("resource_id")
    table = world.table("x")
    ref = Ref(catalog="lake", path=["sales"], name="x")
    found = directory.lookup_table_by_ref(home, v1.LookupTableByRefRequest(ref=ref))
    assert found.resource_id == table.resource_id


@behaviour(45)
def test_another_account_finds_nothing(world):
    table = world.table()
    world.account("a2")
    stranger = world.realm("a2")
    with refused(NotFound, "catalog.by.name.missing"):
        directory.resolve_catalog(stranger, v1.ResolveCatalogRequest(ref=Ref(catalog="lake")))
    for resource_id in (table.resource_id, v1.ResourceId(id=table.resource_id.id)):
        found = directory.lookup_table(stranger, v1.LookupTableRequest(resource_id=resource_id))
        assert not found.HasField("ref")
        with refused(NotFound, "table"):
            directory.resolve_table(stranger, v1.ResolveTableRequest(ref=Ref(resource_id=resource_id)))


@behaviour(29, 45)
def test_renames_and_moves_show_at_once(world):
    table = world.table("people")
    other = world.namespace("zzz")
    tables.update(
        world.home,
        v1.UpdateTableRequest(
            table_id=table.resource_id,
            spec=v1.TableSpec(display_name="humans", namespace_id=other.resource_id),
            update_mask=mask("display_name", "namespace_id"),
        ),
    )
    assert table_id(world, Ref(catalog="lake", path=["zzz"], name="humans")) == table.resource_id
    with refused(NotFound, "table.by.name.missing"):
        table_id(world, Ref(catalog="lake", path=["sales"], name="people"))
    namespaces.update(
        world.home,
        v1.UpdateNamespaceRequest(
            namespace_id=other.resource_id,
            spec=v1.NamespaceSpec(display_name="yyy"),
            update_mask=mask("display_name"),
        ),
    )
    catalogs.update(
        world.home,
        v1.UpdateCatalogRequest(
            catalog_id=table.catalog_id,
            spec=v1.CatalogSpec(display_name="pond"),
            update_mask=mask("display_name"),
        ),
    )
    said = directory.lookup_table(world.home, v1.LookupTableRequest(resource_id=table.resource_id)).ref
    assert (said.catalog, list(said.path), said.name) == ("pond", ["yyy"], "humans")
    assert table_id(world, said) == table.resource_id


@behaviour(44)
def test_a_list_keeps_its_order_and_leaves_out_what_is_missing(world):
    for name in ("b", "A", "c"):
        world.table(name)
    wanted = [Ref(catalog="lake", path=["sales"], name=name) for name in ("c", "nope", "A", "a")]
    request = v1.ResolveFQTablesRequest(names=v1.NameRefs(names=wanted))
    found = directory.resolve_fq_tables(world.home, request)
    assert [entry.name.name for entry in found.tables] == ["c", "A"]
    assert (found.page.total_size, found.page.next_page_token) == (2, "")
    assert found.tables[0].resource_id == found.tables[0].name.resource_id
    request.page.page_token = "x"
    with refused(InvalidArgument, "page.token.invalid"):
        directory.resolve_fq_tables(world.home, request)


@behaviour(44)
@pytest.mark.parametrize("prefix", [Ref(catalog="lake", path=["sales"]), Ref(catalog="lake", name="sales")])
def test_a_prefix_pages_through_one_namespace(world, prefix):
    world.namespace("sales")
    for name in "abcde":
        world.view(name)
    world.view("other", namespace=world.namespace("sales", "eu"))
    world.table("t")
    page, seen = v1.PageRequest(page_size=2), []
    while True:
        found = directory.resolve_fq_views(world.home, v1.ResolveFQViewsRequest(prefix=prefix, page=page))
        seen += [entry.name.name for entry in found.views]
        assert found.page.total_size == 5
        page.page_token = found.page.next_page_token
        if not page.page_token:
            break
    assert seen == list("abcde")


@behaviour(44)
def test_a_selector_is_needed(world):
    with refused(InvalidArgument, "selector.required"):
        directory.resolve_fq_tables(world.home, v1.ResolveFQTablesRequest())
    with refused(InvalidArgument, "selector.required"):
        directory.resolve_fq_views(world.home, v1.ResolveFQViewsRequest())


def test_the_number_of_store_calls_does_not_grow_with_the_catalog(world, calls):
    world.table("people")
    ref = Ref(catalog="lake", path=["sales"], name="people")

    def cost() -> int:
        calls.reset()
        table_id(world, ref)
        return calls.total

    few = cost()
    for number in range(40):
        world.namespace(f"n{number}")
        world.table(f"t{number}", namespace=world.namespace("sales", f"{number}"))
    assert cost() == few == 7
