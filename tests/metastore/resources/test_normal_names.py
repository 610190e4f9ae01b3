"""Names that are not in normal form: rejected when something is created or renamed, accepted when it is looked up."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from metastore.integrity import damage
from metastore.resource_factory import ResourceFactory, behavior, expect_error, mask
from skiway.errors import InvalidArgument
from skiway.metastore.platform import AccountDirectory
from skiway.metastore.resources import accounts, catalogs, directory, namespaces, tables, views
from skiway.model import v1

NAME = mask("display_name")
NOT_NORMAL = {" padded ": "padded", "two \t words": "two words", "a\u00a0b": "a b", "ﬁle": "file", "e\u0301": "é"}


def create_account(factory: ResourceFactory, name: str) -> str:
    request = v1.CreateAccountRequest(spec=v1.AccountSpec(display_name=name))
    return accounts.create(factory.platform, request).account.display_name


def rename_account(factory: ResourceFactory, name: str) -> str:
    request = v1.UpdateAccountRequest(
        account_id=v1.ResourceId(id="a1"), spec=v1.AccountSpec(display_name=name), update_mask=NAME
    )
    return accounts.update(factory.platform, request).account.display_name


def create_catalog(factory: ResourceFactory, name: str) -> str:
    return factory.catalog(name).display_name


def rename_catalog(factory: ResourceFactory, name: str) -> str:
    catalog_id = factory.first_catalog().resource_id
    request = v1.UpdateCatalogRequest(catalog_id=catalog_id, spec=v1.CatalogSpec(display_name=name), update_mask=NAME)
    return catalogs.update(factory.home, request).catalog.display_name


def create_namespace(factory: ResourceFactory, name: str) -> str:
    return factory.namespace(name).display_name


def create_parent_of_namespace(factory: ResourceFactory, name: str) -> str:
    return factory.namespace(name, "child").parents[0]


def rename_namespace(factory: ResourceFactory, name: str) -> str:
    namespace_id = factory.first_namespace().resource_id
    request = v1.UpdateNamespaceRequest(
        namespace_id=namespace_id, spec=v1.NamespaceSpec(display_name=name), update_mask=NAME
    )
    return namespaces.update(factory.home, request).namespace.display_name


def move_namespace(factory: ResourceFactory, name: str) -> str:
    namespace_id = factory.first_namespace().resource_id
    request = v1.UpdateNamespaceRequest(
        namespace_id=namespace_id, spec=v1.NamespaceSpec(path=[name]), update_mask=mask("path")
    )
    return namespaces.update(factory.home, request).namespace.display_name


def create_table(factory: ResourceFactory, name: str) -> str:
    return factory.table(name).display_name


def rename_table(factory: ResourceFactory, name: str) -> str:
    (table,) = tables.scan(factory.home, factory.first_namespace().resource_id.id)
    request = v1.UpdateTableRequest(table_id=table.resource_id, spec=v1.TableSpec(display_name=name), update_mask=NAME)
    return tables.update(factory.home, request).table.display_name


def create_view(factory: ResourceFactory, name: str) -> str:
    return factory.view(name).display_name


def rename_view(factory: ResourceFactory, name: str) -> str:
    listing = v1.ListViewsRequest(namespace_id=factory.first_namespace().resource_id)
    (view,) = views.list_(factory.home, listing).views
    request = v1.UpdateViewRequest(view_id=view.resource_id, spec=v1.ViewSpec(display_name=name), update_mask=NAME)
    return views.update(factory.home, request).view.display_name


@behavior(19)
@pytest.mark.parametrize("name", NOT_NORMAL, ids=ascii)
@pytest.mark.parametrize(
    ("store", "field"),
    [
        (create_account, "display_name"),
        (rename_account, "display_name"),
        (create_catalog, "display_name"),
        (rename_catalog, "display_name"),
        (create_namespace, "display_name"),
        (create_parent_of_namespace, "path"),
        (rename_namespace, "display_name"),
        (move_namespace, "path"),
        (create_table, "display_name"),
        (rename_table, "display_name"),
        (create_view, "display_name"),
        (rename_view, "display_name"),
    ],
)
def test_name_that_is_not_normal_is_rejected_with_the_normal_form_and_nothing_is_stored(
    factory: ResourceFactory, store: Callable[[ResourceFactory, str], str], field: str, name: str
) -> None:
    normal = NOT_NORMAL[name]
    factory.table("people")
    factory.view("adults")
    pointers, blobs = list(factory.stores.pointers.scan()), list(factory.stores.blobs.scan())
    with expect_error(InvalidArgument, "name.not.normal", field=field, found=repr(name), wanted=repr(normal)) as caught:
        store(factory, name)
    assert f"use {normal!r} (" in str(caught.value)
    assert list(factory.stores.pointers.scan()) == pointers
    assert list(factory.stores.blobs.scan()) == blobs
    assert store(factory, normal) == normal
    assert damage(factory.stores) == []


@pytest.mark.parametrize("spelling", NOT_NORMAL, ids=ascii)
def test_existing_name_is_found_by_every_spelling(factory: ResourceFactory, spelling: str) -> None:
    normal, home = NOT_NORMAL[spelling], factory.home
    rename_account(factory, normal)
    catalog = factory.catalog(normal)
    namespace = factory.namespace(normal, catalog=catalog)
    table = factory.table(normal, namespace=namespace)
    other = factory.namespace("views", catalog=catalog)
    view = factory.view(normal, namespace=other)
    namespace_id = namespace.resource_id.id

    assert AccountDirectory(factory.stores).find(spelling) == "a1"
    found = catalogs.find(home, spelling)
    assert found is not None
    assert found.value == catalog
    assert namespaces.lookup(home, catalog.resource_id, [spelling]) == namespace
    assert namespaces.find_any_case(home, catalog, [spelling.upper()]) == namespace
    assert tables.find(home, namespace_id, spelling) == table
    assert tables.find_any_case(home, catalog, namespace_id, spelling.upper()) == table
    request = v1.ResolveViewRequest(ref=v1.NameRef(catalog=spelling, path=["views"], name=spelling))
    assert directory.resolve_view(home, request).resource_id == view.resource_id
