from __future__ import annotations

from typing import Any

import pytest

from metastore.resource_factory import behavior, expect_error, mask
from skiway.errors import InvalidArgument, NotFound
from skiway.metastore.resources import catalogs, directory, namespaces, tables
from skiway.model import v1

Ref = v1.NameRef


def table_id(factory: Any, ref: v1.NameRef) -> v1.ResourceId:
    return directory.resolve_table(factory.home, v1.ResolveTableRequest(ref=ref)).resource_id


@behavior(43)
def test_names_resolve_to_ids_and_ids_to_names(factory):
    namespace = factory.namespace("sales", "eu")
    table, view = factory.table("people", namespace=namespace), factory.view("adults", namespace=namespace)
    catalog_id, home = namespace.catalog_id, factory.home
    found = directory.resolve_catalog(home, v1.ResolveCatalogRequest(ref=Ref(catalog=" lake ")))
    assert found.resource_id == catalog_id
    for ref in (Ref(catalog="lake", path=["sales", "eu"]), Ref(catalog="lake", path=["sales"], name="eu")):
        resolved = directory.resolve_namespace(home, v1.ResolveNamespaceRequest(ref=ref))
        assert resolved.resource_id == namespace.resource_id
    people = Ref(catalog="lake", path=[" sales", "eu"], name="people ")
    assert table_id(factory, people) == table.resource_id
    adults = Ref(catalog="lake", path=["sales", "eu"], name="adults")
    assert directory.resolve_view(home, v1.ResolveViewRequest(ref=adults)).resource_id == view.resource_id

    assert directory.lookup_catalog(home, v1.LookupCatalogRequest(resource_id=catalog_id)).display_name == "lake"
    looked_up = directory.lookup_namespace(home, v1.LookupNamespaceRequest(resource_id=namespace.resource_id)).ref
    assert looked_up == Ref(catalog="lake", path=["sales"], name="eu", resource_id=namespace.resource_id)
    looked_up = directory.lookup_table(home, v1.LookupTableRequest(resource_id=table.resource_id)).ref
    assert looked_up == Ref(catalog="lake", path=["sales", "eu"], name="people", resource_id=table.resource_id)
    looked_up = directory.lookup_view(home, v1.LookupViewRequest(resource_id=view.resource_id)).ref
    assert looked_up.name == "adults"


def test_id_in_a_name_takes_precedence(factory):
    table = factory.table()
    assert table_id(factory, Ref(name="whatever", resource_id=table.resource_id)) == table.resource_id
    request = v1.ResolveNamespaceRequest(ref=Ref(resource_id=table.namespace_id))
    assert directory.resolve_namespace(factory.home, request).resource_id == table.namespace_id
    request = v1.ResolveCatalogRequest(ref=Ref(resource_id=table.catalog_id))
    assert directory.resolve_catalog(factory.home, request).resource_id == table.catalog_id
    with expect_error(InvalidArgument, "kind"):
        table_id(factory, Ref(resource_id=table.namespace_id))


@behavior(20)
def test_dot_in_a_name_is_not_a_separator(factory):
    dotted, nested = factory.namespace("a.b"), factory.namespace("a", "b")
    for path, namespace in ((["a.b"], dotted), (["a", "b"], nested)):
        request = v1.ResolveNamespaceRequest(ref=Ref(catalog="lake", path=path))
        assert directory.resolve_namespace(factory.home, request).resource_id == namespace.resource_id
        looked_up = directory.lookup_namespace(
            factory.home, v1.LookupNamespaceRequest(resource_id=namespace.resource_id)
        ).ref
        assert [*looked_up.path, looked_up.name] == path


@behavior(43)
def test_names_in_managed_catalogs_are_resolved_in_any_case_and_keep_their_spelling(factory):
    table, view = factory.table("People"), factory.view("Adults")
    for path, name in ((["sales"], "people"), (["SALES"], "PEOPLE"), (["sales"], "People")):
        assert table_id(factory, Ref(catalog="lake", path=path, name=name)) == table.resource_id
    resolved = v1.ResolveViewRequest(ref=Ref(catalog="lake", path=["Sales"], name="ADULTS"))
    assert directory.resolve_view(factory.home, resolved).resource_id == view.resource_id
    named = v1.ResolveFQTablesRequest(names=v1.NameRefs(names=[Ref(catalog="lake", path=["SALES"], name="PEOPLE")]))
    (entry,) = directory.resolve_fq_tables(factory.home, named).tables
    assert (*entry.name.path, entry.name.name) == ("sales", "People")
    request = v1.ResolveNamespaceRequest(ref=Ref(catalog="lake", path=["SALES"]))
    assert directory.resolve_namespace(factory.home, request).resource_id == table.namespace_id


@behavior(43)
@pytest.mark.parametrize(
    ("ref", "error", "error_key"),
    [
        (Ref(), InvalidArgument, "catalog.missing"),
        (Ref(catalog="lake", path=["sales"]), InvalidArgument, "table.name.missing"),
        (Ref(catalog="lake", path=["sales", " "], name="t"), InvalidArgument, "path.segment.blank"),
        (Ref(catalog="lake", name="t"), InvalidArgument, "field"),
        (Ref(catalog="Lake", path=["sales"], name="people"), NotFound, "catalog.by.name.missing"),
        (Ref(catalog="lake", path=["no", "where"], name="t"), NotFound, "namespace.by.path.missing"),
        (Ref(catalog="lake", path=["sales"], name="Adults"), NotFound, "table.by.name.missing"),
        (Ref(catalog="lake", path=["sales"], name="adults"), NotFound, "table.by.name.missing"),
    ],
)
def test_unresolvable_reference_is_an_error(factory, ref, error, error_key):
    factory.table("people")
    factory.view("adults")
    with expect_error(error, error_key):
        table_id(factory, ref)


def test_error_names_what_is_missing(factory):
    factory.namespace("sales")
    with expect_error(NotFound, "view.by.name.missing", catalog="lake", path="sales", name="v"):
        directory.resolve_view(factory.home, v1.ResolveViewRequest(ref=Ref(catalog="lake", path=["sales"], name="v")))


@behavior(43)
def test_lookup_of_a_missing_resource_is_empty(factory):
    unknown = v1.ResourceId(id="nope")
    home = factory.home
    assert directory.lookup_catalog(home, v1.LookupCatalogRequest(resource_id=unknown)).display_name == ""
    assert not directory.lookup_namespace(home, v1.LookupNamespaceRequest(resource_id=unknown)).HasField("ref")
    assert not directory.lookup_table(home, v1.LookupTableRequest(resource_id=unknown)).HasField("ref")
    assert not directory.lookup_view(home, v1.LookupViewRequest(resource_id=unknown)).HasField("ref")
    factory.namespace("sales")
    for ref in (Ref(catalog="lake", path=["sales"], name="x"), Ref(catalog="no", path=["sales"], name="x")):
        found = directory.lookup_table_by_ref(home, v1.LookupTableByRefRequest(ref=ref))
        assert not found.HasField("resource_id")
    table = factory.table("x")
    ref = Ref(catalog="lake", path=["sales"], name="x")
    found = directory.lookup_table_by_ref(home, v1.LookupTableByRefRequest(ref=ref))
    assert found.resource_id == table.resource_id


@behavior(45)
def test_another_account_finds_nothing(factory):
    table = factory.table()
    factory.account("a2")
    stranger = factory.realm("a2")
    with expect_error(NotFound, "catalog.by.name.missing"):
        directory.resolve_catalog(stranger, v1.ResolveCatalogRequest(ref=Ref(catalog="lake")))
    for resource_id in (table.resource_id, v1.ResourceId(id=table.resource_id.id)):
        found = directory.lookup_table(stranger, v1.LookupTableRequest(resource_id=resource_id))
        assert not found.HasField("ref")
        with expect_error(NotFound, "table"):
            directory.resolve_table(stranger, v1.ResolveTableRequest(ref=Ref(resource_id=resource_id)))


@behavior(29, 45)
def test_renames_and_moves_are_visible_at_once(factory):
    table = factory.table("people")
    other = factory.namespace("zzz")
    tables.update(
        factory.home,
        v1.UpdateTableRequest(
            table_id=table.resource_id,
            spec=v1.TableSpec(display_name="humans", namespace_id=other.resource_id),
            update_mask=mask("display_name", "namespace_id"),
        ),
    )
    assert table_id(factory, Ref(catalog="lake", path=["zzz"], name="humans")) == table.resource_id
    with expect_error(NotFound, "table.by.name.missing"):
        table_id(factory, Ref(catalog="lake", path=["sales"], name="people"))
    namespaces.update(
        factory.home,
        v1.UpdateNamespaceRequest(
            namespace_id=other.resource_id,
            spec=v1.NamespaceSpec(display_name="yyy"),
            update_mask=mask("display_name"),
        ),
    )
    catalogs.update(
        factory.home,
        v1.UpdateCatalogRequest(
            catalog_id=table.catalog_id,
            spec=v1.CatalogSpec(display_name="pond"),
            update_mask=mask("display_name"),
        ),
    )
    looked_up = directory.lookup_table(factory.home, v1.LookupTableRequest(resource_id=table.resource_id)).ref
    assert (looked_up.catalog, list(looked_up.path), looked_up.name) == ("pond", ["yyy"], "humans")
    assert table_id(factory, looked_up) == table.resource_id


@behavior(44)
def test_list_keeps_its_order_and_omits_missing_names(factory):
    for name in ("b", "A", "c"):
        factory.table(name)
    wanted = [Ref(catalog="lake", path=["sales"], name=name) for name in ("c", "nope", "A", "a")]
    request = v1.ResolveFQTablesRequest(names=v1.NameRefs(names=wanted))
    found = directory.resolve_fq_tables(factory.home, request)
    assert [entry.name.name for entry in found.tables] == ["c", "A", "A"]
    assert (found.page.total_size, found.page.next_page_token) == (3, "")
    assert found.tables[0].resource_id == found.tables[0].name.resource_id
    request.page.page_token = "x"
    with expect_error(InvalidArgument, "page.token.invalid"):
        directory.resolve_fq_tables(factory.home, request)


@behavior(44)
@pytest.mark.parametrize("prefix", [Ref(catalog="lake", path=["sales"]), Ref(catalog="lake", name="sales")])
def test_prefix_lists_one_namespace_in_pages(factory, prefix):
    factory.namespace("sales")
    for name in "abcde":
        factory.view(name)
    factory.view("other", namespace=factory.namespace("sales", "eu"))
    factory.table("t")
    page, seen = v1.PageRequest(page_size=2), []
    while True:
        found = directory.resolve_fq_views(factory.home, v1.ResolveFQViewsRequest(prefix=prefix, page=page))
        seen += [entry.name.name for entry in found.views]
        assert found.page.total_size == 5
        page.page_token = found.page.next_page_token
        if not page.page_token:
            break
    assert seen == list("abcde")


@behavior(44)
def test_selector_is_required(factory):
    with expect_error(InvalidArgument, "selector.required"):
        directory.resolve_fq_tables(factory.home, v1.ResolveFQTablesRequest())
    with expect_error(InvalidArgument, "selector.required"):
        directory.resolve_fq_views(factory.home, v1.ResolveFQViewsRequest())


def test_number_of_store_calls_does_not_grow_with_the_catalog(factory, calls):
    factory.table("people")
    ref = Ref(catalog="lake", path=["sales"], name="people")

    def cost() -> int:
        calls.reset()
        table_id(factory, ref)
        return calls.total

    few = cost()
    for number in range(40):
        factory.namespace(f"n{number}")
        factory.table(f"t{number}", namespace=factory.namespace("sales", f"{number}"))
    assert cost() == few == 6
