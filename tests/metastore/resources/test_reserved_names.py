"""Reserved names: system names, and in managed catalogs names that differ from another only in case."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import pairwise
from threading import Barrier, Thread
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metastore.faults import Crashed, CrashPoint, crashing_stores
from metastore.integrity import damage
from metastore.resource_factory import ResourceFactory, behavior, expect_error, mask, names
from skiway.errors import (
    AlreadyExists,
    Conflict,
    Contention,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    PreconditionFailed,
    SkiwayError,
)
from skiway.metastore import gc
from skiway.metastore.records import keys, updates
from skiway.metastore.records.kinds import CATALOG, NAMESPACE, TABLE, VIEW
from skiway.metastore.records.names import folded, normal_text
from skiway.metastore.resources import catalogs, hierarchy, namespaces, tables, views
from skiway.metastore.resources.hierarchy import SYSTEM_ACCOUNT, SYSTEM_NAMESPACES
from skiway.model import v1
from skiway.storage import open_stores
from storage.homes import Clock

SHADOWS = (*SYSTEM_NAMESPACES, "Information_Schema", "SKIWAY", "ｓｋｉｗａｙ", "SKIwAY", "information_ſchema")


def system_id(kind: v1.ResourceKind.ValueType) -> v1.ResourceId:
    return v1.ResourceId(account_id=SYSTEM_ACCOUNT, id="abcdef01-2345-4000-8000-000000000001", kind=kind)


def rename_table(factory: ResourceFactory, table: v1.Table, name: str) -> v1.Table:
    request = v1.UpdateTableRequest(
        table_id=table.resource_id, spec=v1.TableSpec(display_name=name), update_mask=mask("display_name")
    )
    return tables.update(factory.home, request).table


def rename_view(factory: ResourceFactory, view: v1.View, name: str) -> v1.View:
    request = v1.UpdateViewRequest(
        view_id=view.resource_id, spec=v1.ViewSpec(display_name=name), update_mask=mask("display_name")
    )
    return views.update(factory.home, request).view


def move_table(factory: ResourceFactory, table: v1.Table, to: v1.Namespace) -> v1.Table:
    request = v1.UpdateTableRequest(
        table_id=table.resource_id,
        spec=v1.TableSpec(catalog_id=to.catalog_id, namespace_id=to.resource_id),
        update_mask=mask("catalog_id", "namespace_id"),
    )
    return tables.update(factory.home, request).table


def move_namespace(factory: ResourceFactory, namespace: v1.Namespace, *path: str) -> v1.Namespace:
    request = v1.UpdateNamespaceRequest(
        namespace_id=namespace.resource_id, spec=v1.NamespaceSpec(path=path), update_mask=mask("path")
    )
    return namespaces.update(factory.home, request).namespace


def set_connector(factory: ResourceFactory, catalog: v1.Catalog, connector: str | None) -> v1.Catalog:
    spec = v1.CatalogSpec(connector_ref=connector) if connector else v1.CatalogSpec()
    request = v1.UpdateCatalogRequest(catalog_id=catalog.resource_id, spec=spec, update_mask=mask("connector_ref"))
    return catalogs.update(factory.home, request).catalog


def claim_errors(factory: ResourceFactory) -> list[str]:
    """Resources of managed catalogs without a claim for their folded name, and resources of other catalogs with one."""
    return [f"{kind.noun} {kind.title(value)}" for kind, value, claimed in _claims(factory) if not claimed]


def _claims(factory: ResourceFactory) -> Iterator[tuple[Any, Any, bool]]:
    for kind, prefix in ((NAMESPACE, "namespaces"), (TABLE, "tables"), (VIEW, "views")):
        for pointer in factory.stores.pointers.scan(f"/accounts/a1/{prefix}/by-id/"):
            value: Any = factory.home.all(kind).follow(pointer).value  # type: ignore[misc]
            catalog = factory.home.all(CATALOG).find(keys.catalog("a1", value.catalog_id.id)).value
            (fold,) = kind.folds(value)
            found = factory.stores.pointers.get(fold)
            held = found is not None and found.blob_uri == pointer.blob_uri
            wanted = not catalog.connector_ref or fold in kind.names(value)
            yield kind, value, held == wanted


# --- system names -----------------------------------------------------------------------------------------------------


@behavior(83)
@pytest.mark.parametrize("connector", [None, "files"])
def test_namespace_that_would_shadow_a_system_namespace_is_rejected(factory, connector):
    catalog = factory.catalog(connector_ref=connector)
    for name in SHADOWS:
        normal = normal_text(name)
        with expect_error(AlreadyExists, "namespace.reserved", name=normal):
            factory.namespace(normal, catalog=catalog)
        for spelling in {name, f" {name} ", f"\u00a0{name}\t"} - {normal}:
            with expect_error(InvalidArgument, "name.not.normal", found=repr(spelling), wanted=repr(normal)):
                factory.namespace(spelling, catalog=catalog)
    assert namespaces.list_(factory.home, v1.ListNamespacesRequest(catalog_id=catalog.resource_id)).namespaces == []


@behavior(83)
@pytest.mark.parametrize("name", SYSTEM_NAMESPACES)
def test_nothing_is_created_below_a_system_namespace(factory, name):
    with expect_error(PermissionDenied, "system.object.immutable", name=f"{name}.mine"):
        factory.namespace(name, "mine")
    with expect_error(PermissionDenied, "system.object.immutable", name=f"{name.upper()}.a.b"):
        factory.namespace(name.upper(), "a", "b")


@behavior(83)
@pytest.mark.parametrize("name", SYSTEM_NAMESPACES)
def test_namespace_cannot_be_renamed_to_or_moved_below_a_system_namespace(factory, name):
    namespace = factory.namespace("sales")
    with expect_error(AlreadyExists, "namespace.reserved"):
        move_namespace(factory, namespace, name.title())
    with expect_error(PermissionDenied, "system.object.immutable"):
        move_namespace(factory, namespace, name, "sales")
    request = v1.UpdateNamespaceRequest(
        namespace_id=namespace.resource_id, spec=v1.NamespaceSpec(display_name=name), update_mask=mask("display_name")
    )
    with expect_error(AlreadyExists, "namespace.reserved"):
        namespaces.update(factory.home, request)
    assert damage(factory.stores) == []
    assert not list(factory.stores.pointers.scan("/closing/"))


@behavior(83)
def test_system_names_are_free_below_the_top_level_and_for_other_kinds(factory):
    namespace = factory.namespace("sales", "information_schema")
    factory.table("skiway", namespace=namespace)
    factory.view("information_schema", namespace=namespace)
    assert factory.catalog("skiway").display_name == "skiway"


@behavior(83)
def test_system_objects_cannot_be_changed(factory):
    namespace = factory.namespace("sales")
    catalog_id, namespace_id = system_id(v1.RK_CATALOG), system_id(v1.RK_NAMESPACE)
    table_id, view_id = system_id(v1.RK_TABLE), system_id(v1.RK_VIEW)
    name = mask("display_name")
    system = v1.Namespace(resource_id=namespace_id, catalog_id=namespace.catalog_id)
    attempts: list[Callable[[], Any]] = [
        lambda: catalogs.update(factory.home, v1.UpdateCatalogRequest(catalog_id=catalog_id, update_mask=name)),
        lambda: catalogs.delete(factory.home, v1.DeleteCatalogRequest(catalog_id=catalog_id)),
        lambda: factory.namespace("mine", catalog=v1.Catalog(resource_id=catalog_id)),
        lambda: namespaces.update(factory.home, v1.UpdateNamespaceRequest(namespace_id=namespace_id, update_mask=name)),
        lambda: namespaces.delete(factory.home, v1.DeleteNamespaceRequest(namespace_id=namespace_id)),
        lambda: factory.table(namespace=system),
        lambda: move_table(factory, factory.table(), system),
        lambda: tables.update(factory.home, v1.UpdateTableRequest(table_id=table_id, update_mask=name)),
        lambda: tables.delete(factory.home, v1.DeleteTableRequest(table_id=table_id)),
        lambda: factory.view(namespace=system),
        lambda: views.update(factory.home, v1.UpdateViewRequest(view_id=view_id, update_mask=name)),
        lambda: views.delete(factory.home, v1.DeleteViewRequest(view_id=view_id)),
    ]
    for attempt in attempts:
        with expect_error(PermissionDenied, "system.object.immutable"):
            attempt()


# --- names that differ only in case -----------------------------------------------------------------------------------


@given(st.text())
def test_folding_of_ascii_removes_only_case(text):
    name = normal_text(text)
    assert folded(name.upper()) == folded(name.upper().lower().upper())
    if name.isascii():
        assert folded(name) == folded(name.swapcase()) == name.lower()


@pytest.mark.parametrize(("one", "other"), [("Straße", "STRASSE"), ("ÉTÉ", "été"), ("Σ", "ς"), ("K", "k")])
def test_folding_covers_more_than_ascii(one, other):
    assert folded(one) == folded(other)


@behavior(30)
@pytest.mark.parametrize(("first", "second"), [("orders", "Orders"), ("Orders", "orders"), ("Orders", "ORDERS")])
def test_names_of_tables_and_views_in_a_managed_catalog_are_case_insensitive(factory, first, second):
    table = factory.table(first)
    with expect_error(AlreadyExists, "relation.name.already.claimed", resource="table", name=second):
        factory.table(second)
    with expect_error(AlreadyExists, "relation.name.already.claimed", resource="view", name=second):
        factory.view(second)
    other, view = factory.table("people"), factory.view("adults")
    with expect_error(AlreadyExists, "relation.name.already.claimed", resource="table", name=second):
        rename_table(factory, other, second)
    with expect_error(AlreadyExists, "relation.name.already.claimed", resource="view", name=second):
        rename_view(factory, view, second)
    assert claim_errors(factory) == damage(factory.stores) == []
    tables.delete(factory.home, v1.DeleteTableRequest(table_id=table.resource_id))
    factory.view(second)
    assert claim_errors(factory) == damage(factory.stores) == []


def test_same_name_in_the_same_case_already_exists(factory):
    factory.table("Orders")
    with expect_error(AlreadyExists, "table.already.exists", name="Orders"):
        factory.table("Orders")


def test_each_namespace_has_its_own_names(factory):
    one, two = factory.namespace("one"), factory.namespace("two")
    factory.table("Orders", namespace=one)
    factory.table("orders", namespace=two)
    assert claim_errors(factory) == []


def test_rename_that_changes_only_the_case_works_in_both_directions(factory):
    table, view, namespace = factory.table("Orders"), factory.view("Adults"), factory.namespace("Empty")
    for before, after in pairwise(("Orders", "orders", "ORDERS", "Orders")):
        assert table.display_name == before
        table = rename_table(factory, table, after)
        assert claim_errors(factory) == damage(factory.stores) == []
    assert rename_view(factory, view, "adults").display_name == "adults"
    assert move_namespace(factory, namespace, "EMPTY").display_name == "EMPTY"
    assert claim_errors(factory) == damage(factory.stores) == []
    with expect_error(AlreadyExists, "namespace.already.exists"):
        factory.namespace("empty")


def test_rename_frees_the_old_name_in_every_case(factory):
    rename_table(factory, factory.table("Orders"), "Sales")
    factory.view("ORDERS")
    with expect_error(AlreadyExists, "relation.name.already.claimed"):
        factory.table("sales")
    assert claim_errors(factory) == damage(factory.stores) == []


def test_update_without_a_rename_keeps_the_claim(factory):
    table = factory.table("Orders")
    request = v1.UpdateTableRequest(
        table_id=table.resource_id, spec=v1.TableSpec(description="all"), update_mask=mask("description")
    )
    tables.update(factory.home, request)
    namespace = factory.first_namespace()
    request = v1.UpdateNamespaceRequest(
        namespace_id=namespace.resource_id, spec=v1.NamespaceSpec(description="all"), update_mask=mask("description")
    )
    namespaces.update(factory.home, request)
    assert claim_errors(factory) == damage(factory.stores) == []
    assert gc.sweep_pointers(factory.stores).removed == ()
    with expect_error(AlreadyExists, "relation.name.already.claimed"):
        factory.table("orders")


@behavior(30)
def test_namespace_names_in_a_managed_catalog_are_case_insensitive_at_every_level(factory):
    factory.namespace("Sales", "Eu")
    with expect_error(AlreadyExists, "namespace.already.exists", name="sales"):
        factory.namespace("sales")
    with expect_error(AlreadyExists, "namespace.already.exists", name="Sales.EU"):
        factory.namespace("Sales", "EU")
    assert hierarchy.full_path(factory.namespace("sales", "Us")) == ("Sales", "Us")
    assert hierarchy.full_path(factory.namespace("SALES", "eu", "de", "be")) == ("Sales", "Eu", "de", "be")
    eu = factory.namespace("eu")
    assert names(namespaces.list_(factory.home, v1.ListNamespacesRequest(catalog_id=eu.catalog_id)).namespaces) == [
        "Sales",
        "eu",
    ]
    with expect_error(AlreadyExists, "namespace.already.exists", name="SALES"):
        move_namespace(factory, eu, "SALES")
    with expect_error(AlreadyExists, "namespace.already.exists", name="Sales.eu"):
        move_namespace(factory, eu, "sALES", "eu")
    with expect_error(InvalidArgument, "field.invalid", field="path"):
        move_namespace(factory, eu, "EU", "inside")
    move_namespace(factory, eu, "sALES", "Fr")
    assert names(
        namespaces.list_(factory.home, v1.ListNamespacesRequest(catalog_id=eu.catalog_id, path=["SALES"])).namespaces
    ) == ["Eu", "Fr", "Us"]
    assert not list(factory.stores.pointers.scan("/closing/"))
    assert claim_errors(factory) == damage(factory.stores) == []


def test_deleted_namespace_frees_its_name_in_every_case(factory):
    namespace = factory.namespace("Sales")
    factory.namespace("Other", "Deep")
    namespaces.delete(factory.home, v1.DeleteNamespaceRequest(namespace_id=namespace.resource_id))
    factory.namespace("SALES")
    catalog_id = namespace.catalog_id
    catalogs.delete(factory.home, v1.DeleteCatalogRequest(catalog_id=catalog_id, require_empty=False))
    assert list(factory.stores.pointers.scan("/accounts/a1/catalogs/")) == []


def test_deleting_the_contents_of_a_namespace_frees_their_names(factory):
    namespace = factory.namespace("sales")
    factory.table("Orders", namespace=namespace)
    factory.view("Adults", namespace=namespace)
    request = v1.DeleteNamespaceRequest(namespace_id=namespace.resource_id, require_empty=False)
    namespaces.delete(factory.home, request)
    assert list(factory.stores.pointers.scan("/accounts/a1/namespaces/")) == []


def test_deleting_a_table_with_a_missing_blob_frees_its_claim(factory):
    table = factory.table("Orders")
    pointer = factory.stores.pointers.get(keys.table("a1", table.resource_id.id))
    factory.stores.blobs.delete(pointer.blob_uri)
    tables.delete(factory.home, v1.DeleteTableRequest(table_id=table.resource_id))
    factory.table("orders")
    assert damage(factory.stores) == []


@behavior(30)
def test_mirrored_names_may_differ_only_in_case(factory):
    catalog = factory.catalog(connector_ref="files")
    one, two = factory.namespace("Sales", catalog=catalog), factory.namespace("sales", "eu", catalog=catalog)
    factory.table("Orders", namespace=one)
    factory.table("orders", namespace=one)
    factory.view("ORDERS", namespace=one)
    with expect_error(AlreadyExists, "relation.name.already.claimed"):
        factory.view("orders", namespace=one)
    assert two.parents == ["sales"]
    assert claim_errors(factory) == damage(factory.stores) == []


def test_table_moves_between_managed_and_other_catalogs(factory):
    connected, managed = factory.catalog("connected", connector_ref="files"), factory.catalog("managed")
    there, here = factory.namespace("n", catalog=connected), factory.namespace("n", catalog=managed)
    upper, lower = factory.table("Orders", namespace=there), factory.table("orders", namespace=there)
    upper = move_table(factory, upper, here)
    with expect_error(AlreadyExists, "relation.name.already.claimed"):
        move_table(factory, lower, here)
    assert claim_errors(factory) == damage(factory.stores) == []
    move_table(factory, upper, there)
    move_table(factory, lower, here)
    assert claim_errors(factory) == damage(factory.stores) == []


def test_connector_of_a_catalog_changes_only_while_it_is_empty(factory):
    catalog = set_connector(factory, factory.catalog("lake"), "files")
    namespace = factory.namespace("Sales", catalog=catalog)
    factory.namespace("sales", catalog=catalog)
    with expect_error(Conflict, "catalog.connector.fixed", found="2 namespaces"):
        set_connector(factory, catalog, None)
    assert set_connector(factory, catalog, "other files").connector_ref == "other files"
    assert not list(factory.stores.pointers.scan("/closing/"))
    for each in (
        namespace,
        *namespaces.list_(factory.home, v1.ListNamespacesRequest(catalog_id=catalog.resource_id)).namespaces,
    ):
        namespaces.delete(factory.home, v1.DeleteNamespaceRequest(namespace_id=each.resource_id))
    assert not set_connector(factory, catalog, None).HasField("connector_ref")
    factory.namespace("Sales", catalog=catalog)
    with expect_error(Conflict, "catalog.connector.fixed"):
        set_connector(factory, catalog, "files")
    with expect_error(AlreadyExists, "namespace.already.exists"):
        factory.namespace("sales", catalog=catalog)
    assert claim_errors(factory) == damage(factory.stores) == []


def test_namespace_created_just_before_the_catalog_is_closed_keeps_its_rules(factory, monkeypatch):
    catalog = factory.catalog("lake")
    close = updates.close_parent

    def delayed_call(*arguments: Any, **named: Any) -> Any:
        factory.namespace("Sales", catalog=catalog)
        return close(*arguments, **named)

    monkeypatch.setattr(updates, "close_parent", delayed_call)
    with expect_error(Conflict, "catalog.connector.fixed", found="1 namespace"):
        set_connector(factory, catalog, "files")
    assert not list(factory.stores.pointers.scan("/closing/"))
    assert claim_errors(factory) == damage(factory.stores) == []


def test_lowercase_names_cost_no_extra_store_calls(factory, calls):
    namespace = factory.namespace("sales")

    def cost(name: str) -> int:
        calls.reset()
        factory.table(name, namespace=namespace)
        return int(calls.total)

    assert (cost("orders"), cost("People")) == (5, 7)  # one looks whether the catalog is protected


NAMES = st.sampled_from(["orders", "Orders", "ORDERS", "people", "People", "straße", "STRASSE"])
STEPS = st.lists(
    st.tuples(st.sampled_from(["table", "view", "rename", "delete"]), NAMES, st.integers(0, 9)), max_size=12
)


@given(STEPS)
def test_no_sequence_of_changes_leaves_names_that_differ_only_in_case(steps):
    with open_stores("memory://") as stores:
        factory = ResourceFactory(stores)
        namespace, there = factory.namespace("sales"), list[v1.Table | v1.View]()
        for verb, name, number in steps:
            taken = {folded(each.display_name): each for each in there}
            try:
                if verb in ("table", "view"):
                    there.append(getattr(factory, verb)(name, namespace=namespace))
                    assert folded(name) not in taken
                elif there:
                    chosen = there.pop(number % len(there))
                    there += [changed] if (changed := change(factory, verb, chosen, name)) else []
            except AlreadyExists:
                there += [chosen] if verb == "rename" else []
                assert taken[folded(name)] is not (chosen if verb == "rename" else None)
            assert claim_errors(factory) == damage(stores) == []
        assert len({folded(each.display_name) for each in there}) == len(there)


def change(factory: ResourceFactory, verb: str, chosen: v1.Table | v1.View, name: str) -> v1.Table | v1.View | None:
    """Rename or delete a table or view, and return what is left of it."""
    if verb == "rename":
        return (
            rename_table(factory, chosen, name) if isinstance(chosen, v1.Table) else rename_view(factory, chosen, name)
        )
    if isinstance(chosen, v1.Table):
        tables.delete(factory.home, v1.DeleteTableRequest(table_id=chosen.resource_id))
    else:
        views.delete(factory.home, v1.DeleteViewRequest(view_id=chosen.resource_id))
    return None


@pytest.mark.parametrize("when", ["before", "after"])
def test_crash_at_any_step_leaves_both_name_and_claim_or_neither(when):
    def act(factory: ResourceFactory) -> None:
        table = factory.table("Orders", namespace=factory.namespace("Sales", "Eu"))
        rename_table(factory, table, "ORDERS")
        set_connector(factory, factory.catalog("Other"), "files")
        tables.delete(factory.home, v1.DeleteTableRequest(table_id=table.resource_id))

    def run(crash_point: CrashPoint) -> ResourceFactory:
        factory = ResourceFactory(stores, clock)
        with suppress(Crashed):
            act(ResourceFactory(crashing_stores(stores, crash_point), clock, factory.ids))
        return factory

    clock, counted = Clock(), CrashPoint()
    with open_stores("memory://", clock=clock) as stores:
        run(counted)
    assert counted.done > 20
    for moment in range(1, counted.done + 1):
        with open_stores("memory://", clock=clock) as stores:
            assert claim_errors(run(CrashPoint(moment, when))) == damage(stores) == []


# --- races ------------------------------------------------------------------------------------------------------------


def race(*acts: Callable[[], Any]) -> list[Any]:
    """Run all functions at the same time, and return the result or the Skiway error of each."""
    barrier = Barrier(len(acts))
    outcomes: list[Any] = [None] * len(acts)

    def run(number: int) -> None:
        barrier.wait()
        try:
            outcomes[number] = acts[number]()
        except SkiwayError as error:
            outcomes[number] = type(error)

    threads = [Thread(target=run, args=(number,)) for number in range(len(acts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


ORDERS = ("orders", "Orders", "ORDERS", "oRDERS", "orDers", "ordeRs")


@behavior(30)
def test_one_of_several_concurrent_creations_in_different_cases_wins(factory):
    namespace = factory.namespace("sales")
    for round_ in range(5):
        acts = [
            lambda name=f"{name} {round_}", make=make: make(name, namespace=namespace)
            for name, make in zip(ORDERS, (factory.table, factory.view) * 3, strict=True)
        ]
        outcomes = Counter(each if isinstance(each, type) else "won" for each in race(*acts))
        assert outcomes == {"won": 1, AlreadyExists: len(ORDERS) - 1}
    assert claim_errors(factory) == damage(factory.stores) == []


@behavior(30)
def test_one_of_several_concurrent_renames_in_different_cases_wins(factory):
    namespace = factory.namespace("sales")
    for round_ in range(5):
        created = [
            factory.table(f"t{round_} {name}{number}", namespace=namespace) for number, name in enumerate(ORDERS)
        ]
        acts = [
            lambda table=table, name=f"{name} {round_}": rename_table(factory, table, name)
            for table, name in zip(created, ORDERS, strict=True)
        ]
        outcomes = Counter(each if isinstance(each, type) else "won" for each in race(*acts))
        assert outcomes == {"won": 1, AlreadyExists: len(ORDERS) - 1}
    assert claim_errors(factory) == damage(factory.stores) == []


@behavior(30)
def test_concurrent_namespace_creations_in_different_cases_leave_one_case(factory):
    catalog = factory.catalog()
    for round_ in range(5):
        acts = [lambda name=f"{name} {round_}": factory.namespace(name, catalog=catalog) for name in ORDERS[:3]]
        acts += [lambda name=f"{name} {round_}": factory.namespace(name, "x", catalog=catalog) for name in ORDERS[:3]]
        outcomes = race(*acts)
        won = {
            each.parents[0] if each.parents else each.display_name for each in outcomes if not isinstance(each, type)
        }
        assert len(won) == 1
        assert {each for each in outcomes if isinstance(each, type)} == {AlreadyExists}
    assert claim_errors(factory) == damage(factory.stores) == []


def test_catalog_that_gets_a_connector_while_it_is_filled_stays_consistent(factory):
    for round_ in range(8):
        catalog = factory.catalog(f"c{round_}")
        fill = [
            lambda name=name, catalog=catalog: factory.namespace(name, "x", catalog=catalog)
            for name in ("Sales", "sales")
        ]
        outcomes = race(*fill, partial(set_connector, factory, catalog, "files"))
        assert {each for each in outcomes if isinstance(each, type)} <= {
            AlreadyExists,
            Conflict,
            Contention,  # the catalog was closed at every check: the caller may retry
            PreconditionFailed,
        }, outcomes
        assert claim_errors(factory) == damage(factory.stores) == []
    assert not list(factory.stores.pointers.scan("/closing/"))


def test_missing_catalog_is_reported_before_names_are_claimed(factory):
    namespace = factory.namespace("sales")
    gone = v1.Namespace(resource_id=namespace.resource_id, catalog_id=v1.ResourceId(id="gone", kind=v1.RK_CATALOG))
    with expect_error(NotFound, "catalog", id="gone"):
        factory.table("Orders", namespace=gone)


# --- lookup in any case -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("connector", [None, "files"])
def test_lookup_in_any_case_finds_tables_and_namespaces_and_no_views(factory, connector):
    catalog = factory.catalog(connector_ref=connector)
    namespace = factory.namespace("Sales", "Eu", catalog=catalog)
    table = factory.table("People", namespace=namespace)
    plain = factory.table("plain", namespace=namespace)
    factory.view("Adults", namespace=namespace)
    factory.view("totals", namespace=namespace)

    def find(name: str) -> v1.Table | None:
        return tables.find_any_case(factory.home, catalog, namespace.resource_id.id, name)

    assert find("People") == find("people") == find("PEOPLE") == table
    assert find("PLAIN") == plain
    assert [find(name) for name in ("Adults", "adults", "totals", "TOTALS", "nobody", "")] == [None] * 6
    assert namespaces.find_any_case(factory.home, catalog, ["sales", "EU"]) == namespace
    assert namespaces.find_any_case(factory.home, catalog, ["sales", "us"]) is None


def test_lookup_in_a_managed_catalog_reads_no_listing(factory, monkeypatch):
    catalog = factory.catalog()
    namespace = factory.namespace("sales", catalog=catalog)
    monkeypatch.setattr(type(factory.stores.pointers), "scan", None)
    assert tables.find_any_case(factory.home, catalog, namespace.resource_id.id, "new") is None
    assert namespaces.find_any_case(factory.home, catalog, ["new"]) is None
