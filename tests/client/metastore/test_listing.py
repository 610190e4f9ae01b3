"""Listings: lazy, page by page, despite concurrent changes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import pytest

from client.metastore_server import Server, serving_metastore
from skiway.client import Metastore
from skiway.client.metastore import Listing
from skiway.errors import Internal, InvalidArgument, NotFound
from skiway.metastore import Realm
from skiway.metastore.resources import directory, tables
from skiway.model import v1

COUNT = 2500


@pytest.fixture(scope="module")
def running() -> Iterator[Server]:
    with serving_metastore() as server:
        realm = Realm(server.stores, "default")
        ref = v1.NameRef(catalog="lake", path=["sales"])
        namespace = directory.resolve_namespace(realm, v1.ResolveNamespaceRequest(ref=ref)).resource_id
        catalog = directory.resolve_catalog(realm, v1.ResolveCatalogRequest(ref=ref)).resource_id
        for number in range(COUNT):
            spec = v1.TableSpec(
                display_name=f"t{number:04d}", catalog_id=catalog, namespace_id=namespace, schema_json="{}"
            )
            tables.create(realm, v1.CreateTableRequest(spec=spec))
        yield server


@pytest.fixture
def server(running: Server) -> Server:
    running.seen.clear()
    return running


@pytest.fixture
def lake(server: Server) -> Iterator[Metastore]:
    with Metastore(server.address) as lake:
        yield lake


@pytest.mark.full
def test_all_tables_are_listed_once_in_small_pages_while_some_are_deleted(server: Server, lake: Metastore) -> None:
    listing = lake.tables("lake.sales", page_size=7)
    names = []
    for table in listing:
        names.append(table.name)
        if table.name == "t0006":  # the last of a page, where the next page starts
            lake.tables.delete(table)
        if table.name == "t1000":
            lake.tables.delete("lake.sales.t2000")  # one on a later page
    expected = [f"t{number:04d}" for number in range(COUNT) if number != 2000]
    assert names == expected
    assert server.methods().count("ListTables") == -(-(COUNT - 1) // 7)
    assert listing.total == COUNT - 2
    for name in ("t0006", "t2000"):
        lake.tables.create(f"lake.sales.{name}", schema="{}")


def test_pages_are_fetched_on_demand(server: Server, lake: Metastore) -> None:
    listing = lake.tables("lake.sales", page_size=7)
    assert server.methods() == []
    assert [table.name for table in islice(listing, 8)] == [f"t{number:04d}" for number in range(8)]
    assert server.methods() == ["ResolveNamespace", "ListTables", "ListTables"]


def test_listing_can_be_iterated_again_with_new_requests(lake: Metastore) -> None:
    listing = lake.tables("lake.sales", page_size=1000)
    before = sum(1 for _ in listing)
    added = lake.tables.create("lake.sales.t9999", schema="{}")
    assert sum(1 for _ in listing) == before + 1
    lake.tables.delete(added)


def test_listing_can_be_read_page_by_page(lake: Metastore) -> None:
    sizes = [len(page) for page in lake.tables("lake.sales", page_size=1000).pages()]
    assert sizes == [1000, 1000, 500]


def test_server_chooses_the_page_size_by_default(server: Server, lake: Metastore) -> None:
    assert len(next(iter(lake.tables("lake.sales").pages()))) == 50


def test_total_takes_one_small_call(server: Server, lake: Metastore) -> None:
    assert lake.tables("lake.sales").total == COUNT
    assert server.methods() == ["ResolveNamespace", "ListTables"]


def test_missing_parent_is_reported_when_the_listing_is_read(lake: Metastore) -> None:
    listing = lake.tables("lake.nowhere")
    with pytest.raises(NotFound, match="there is no namespace nowhere in catalog lake"):
        next(iter(listing))


@pytest.mark.parametrize("size", [0, -1])
def test_page_size_of_zero_is_rejected(lake: Metastore, size: int) -> None:
    with pytest.raises(InvalidArgument, match="it must be at least 1"):
        lake.tables("lake.sales", page_size=size)


def test_empty_page_in_the_middle_is_skipped() -> None:
    answers = {"": ([], "a"), "a": (["x"], "b"), "b": ([], "")}

    def turn(page: v1.PageRequest) -> tuple[list[str], v1.PageResponse]:
        items, token = answers[page.page_token]
        return items, v1.PageResponse(next_page_token=token)

    assert list(Listing(lambda: turn).pages()) == [["x"]]


def test_listing_stops_if_the_server_repeats_a_page_token() -> None:
    def turn(page: v1.PageRequest) -> tuple[list[str], v1.PageResponse]:
        return ["x"], v1.PageResponse(next_page_token="same")

    with pytest.raises(Internal, match="whose next page is itself"):
        list(Listing(lambda: turn))
