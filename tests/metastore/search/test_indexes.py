"""The index of an account: it follows every change, never makes a call wait for long, and has a limited size."""

from __future__ import annotations

import json
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from metastore.resource_factory import ResourceFactory, mask
from metastore.search.searches import WAIT_MS, Searching, change_table, totals_in
from skiway.errors import InvalidArgument, Unavailable
from skiway.metastore import events, search
from skiway.metastore.resources import catalogs, namespaces, policies, tables, views
from skiway.metastore.search import SearchIndexes, index, indexes
from skiway.model import v1
from skiway.storage import CallCounter

SCHEMA = '{"type": "struct", "fields": [{"id": 1, "name": "amount", "type": "long", "doc": "in euros"}]}'


@pytest.fixture
def searching(factory: ResourceFactory) -> Iterator[Searching]:
    found = Searching(factory)
    yield found
    found.indexes.close()


def paths(searching: Searching, text: str) -> list[str]:
    return [path for path, _ in searching.find(text)]


# --- freshness --------------------------------------------------------------------------------------------------------


def test_index_follows_tables(searching: Searching) -> None:
    factory = searching.factory
    assert paths(searching, "orders") == []
    table = factory.table("orders", schema_json=SCHEMA)
    assert paths(searching, "orders") == paths(searching, "euros") == ["lake.sales.orders"]
    change_table(factory.home, table, description="what was bought")
    assert paths(searching, "bought") == ["lake.sales.orders"]
    change_table(factory.home, table, display_name="purchases")
    assert paths(searching, "orders") == []
    assert paths(searching, "purchases") == ["lake.sales.purchases"]
    change_table(factory.home, table, schema_json='{"fields": [{"id": 1, "name": "price", "type": "long"}]}')
    assert paths(searching, "amount") == []
    assert searching.find("price") == [("lake.sales.purchases", "column price")]
    tags = v1.SetColumnTagsRequest(table_id=table.resource_id, column="price", tags=["pii"])
    policies.set_tags(factory.home, tags)
    assert searching.find("pii") == [("lake.sales.purchases", "tag pii of column price")]
    policies.set_tags(factory.home, v1.SetColumnTagsRequest(table_id=table.resource_id, column="price"))
    assert searching.find("pii") == []
    searching.store_size(table, 5)
    assert totals_in(searching.summary()) == (1, 0, 5, 50)
    searching.store_size(table, 6)
    assert totals_in(searching.summary()) == (1, 0, 6, 60)
    tables.delete(factory.home, v1.DeleteTableRequest(table_id=table.resource_id))
    assert paths(searching, "purchases") == []
    assert totals_in(searching.summary()) == (0, 0, 0, 0)


def test_comments_of_columns_are_found_but_are_no_comment_of_the_table(searching: Searching) -> None:
    fields = [{"id": 1, "name": "a", "required": False, "type": "int", "doc": "about the column"}]
    schema = json.dumps({"type": "struct", "fields": fields})
    for description in ("about the table", ""):
        name = f"t{len(description)}"
        searching.factory.table(name, description=description, schema_json=schema)
        hits = searching.answer(f"{name} column").hits
        assert [(hit.object.path[-1], hit.found_in, hit.object.comment) for hit in hits] == [
            (name, "comment", description)
        ]


def test_index_follows_views(searching: Searching) -> None:
    factory = searching.factory
    assert paths(searching, "adults") == []
    view = factory.view("adults", description="over 18")
    assert searching.find("over") == [("lake.sales.adults", "comment")]
    assert totals_in(searching.summary()) == (0, 1, 0, 0)
    request = v1.UpdateViewRequest(view_id=view.resource_id, spec=v1.ViewSpec(display_name="grown_ups"))
    request.update_mask.CopyFrom(mask("display_name"))
    views.update(factory.home, request)
    assert paths(searching, "over") == ["lake.sales.grown_ups"]
    views.delete(factory.home, v1.DeleteViewRequest(view_id=view.resource_id))
    assert paths(searching, "grown") == []


def test_index_follows_names_of_catalogs_and_namespaces(searching: Searching) -> None:
    factory = searching.factory
    catalog, namespace = factory.catalog("lake"), factory.namespace("sales")
    table = factory.table("orders")
    assert paths(searching, "lake.sales.orders") == ["lake.sales.orders"]
    request = v1.UpdateNamespaceRequest(
        namespace_id=namespace.resource_id,
        spec=v1.NamespaceSpec(display_name="shop", description="of Ada"),
        update_mask=mask("display_name", "description"),
    )
    namespaces.update(factory.home, request)
    assert paths(searching, "sales") == []
    assert paths(searching, "shop") == ["lake.shop", "lake.shop.orders"]
    assert paths(searching, "ada") == ["lake.shop"]
    renamed = v1.UpdateCatalogRequest(
        catalog_id=catalog.resource_id, spec=v1.CatalogSpec(display_name="ocean"), update_mask=mask("display_name")
    )
    catalogs.update(factory.home, renamed)
    assert paths(searching, "lake") == []
    assert sorted(paths(searching, "ocean")) == ["ocean", "ocean.shop", "ocean.shop.orders"]
    other = factory.namespace("other", catalog=catalog)
    change_table(factory.home, table, namespace_id=other.resource_id)
    assert paths(searching, "orders") == ["ocean.other.orders"]
    assert [(list(each.path), each.tables) for each in searching.summary("server", "ocean").containers] == [
        (["ocean", "other"], 1),
        (["ocean", "shop"], 0),
    ]
    namespaces.delete(factory.home, v1.DeleteNamespaceRequest(namespace_id=other.resource_id, require_empty=False))
    assert paths(searching, "orders") == paths(searching, "other") == []
    assert [list(each.path) for each in searching.summary("server", "ocean").containers] == [["ocean", "shop"]]
    catalogs.delete(factory.home, v1.DeleteCatalogRequest(catalog_id=catalog.resource_id, require_empty=False))
    assert paths(searching, "ocean") == []
    assert searching.summary().containers == []  # type: ignore[comparison-overlap]


def test_objects_are_found_whatever_order_their_events_have(
    searching: Searching, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Events of different objects are only about in the order of the changes."""
    factory = searching.factory
    factory.catalog("first")
    assert paths(searching, "orders") == []
    factory.table("orders", namespace=factory.namespace("sales", catalog=factory.catalog("second")))
    read = events.read

    def reversed_events(*of: Any, **how: Any) -> list[v1.Event]:
        found = read(*of, **how)
        objects = [(each.kind, each.object_id) for each in reversed(found)]
        return [
            v1.Event(sequence=each.sequence, kind=kind, object_id=object_id)
            for each, (kind, object_id) in zip(found, objects, strict=True)
        ]

    monkeypatch.setattr(events, "read", reversed_events)
    assert paths(searching, "orders") == ["second.sales.orders"]


def test_damaged_objects_are_listed_as_damaged(searching: Searching) -> None:
    factory = searching.factory
    table, fine = factory.table("broken"), factory.table("fine")
    searching.store_size(fine, 1)
    pointer = factory.stores.pointers.get(f"/accounts/a1/tables/by-id/{table.resource_id.id}")
    assert pointer is not None
    factory.stores.blobs.delete(pointer.blob_uri)
    (found,) = searching.list(condition=v1.OC_DAMAGED).objects
    assert (list(found.path), bool(found.damage)) == (["lake", "sales", "broken"], True)
    assert searching.list(condition=v1.OC_WITHOUT_STATISTICS).total == 0
    assert paths(searching, "broken") == ["lake.sales.broken"]


def test_tables_without_statistics_are_listed(searching: Searching) -> None:
    searching.store_size(searching.factory.table("known"), 0)
    searching.factory.table("unknown")
    searching.factory.view()
    found = searching.list(condition=v1.OC_WITHOUT_STATISTICS)
    assert [each.path[-1] for each in found.objects] == ["unknown"]


def test_lists_have_parts(searching: Searching) -> None:
    for number in range(5):
        searching.factory.table(f"t{number}")
    request = v1.ListObjectsRequest(path=["lake"], offset=3, limit=10, wait_ms=WAIT_MS)
    found = search.list_objects(searching.factory.home, request, indexes=searching.indexes)
    assert ([each.path[-1] for each in found.objects], found.total) == (["t3", "t4"], 5)


@pytest.mark.parametrize(
    ("call", "request_"),
    [
        (search.search, v1.SearchRequest(text="x" * 1001)),
        (search.list_objects, v1.ListObjectsRequest(offset=-1)),
        (search.list_objects, v1.ListObjectsRequest(ids=["x"] * 1001)),
    ],
)
def test_invalid_requests_are_rejected(searching: Searching, call: Callable[..., Any], request_: Any) -> None:
    with pytest.raises(InvalidArgument):
        call(searching.factory.home, request_, indexes=searching.indexes)


# --- how it is built and updated --------------------------------------------------------------------------------------


def test_searches_read_only_the_feed_and_the_hits(searching: Searching, calls: CallCounter) -> None:
    for number in range(50):
        searching.factory.table(f"t{number}")
    searching.find("t7")
    calls.reset()
    searching.find("t7")
    assert calls.total < 15
    searching.factory.table("later")
    calls.reset()
    assert paths(searching, "later") == ["lake.sales.later"]
    assert calls.total < 30


def test_answers_say_that_the_index_is_being_built_and_contain_what_is_known(
    searching: Searching, monkeypatch: pytest.MonkeyPatch
) -> None:
    searching.factory.table("early", namespace=searching.factory.namespace("a"))
    searching.factory.table("late", namespace=searching.factory.namespace("b"))
    reached, go_on = threading.Event(), threading.Event()
    read = index.relations_in

    def slowly(realm: Any, namespace_id: str, tags: Any) -> Any:
        for entry in read(realm, namespace_id, tags):
            if entry.name == "late":
                reached.set()
                assert go_on.wait(200)
            yield entry

    monkeypatch.setattr("skiway.metastore.search.indexes.relations_in", slowly)
    first = search.search(searching.factory.home, v1.SearchRequest(text="early"), indexes=searching.indexes)
    assert first.incomplete.is_temporary
    assert reached.wait(200)
    request = v1.SearchRequest(text="lake")
    started = time.monotonic()
    second = search.search(searching.factory.home, request, indexes=searching.indexes)
    assert time.monotonic() - started < 5
    assert [".".join(each.object.path) for each in second.hits] == ["lake", "lake.a.early", "lake.a", "lake.b"]
    assert "being built" in second.incomplete.reason
    go_on.set()
    assert paths(searching, "late") == ["lake.b.late"]


def test_changes_while_the_index_is_built_are_not_lost(searching: Searching, monkeypatch: pytest.MonkeyPatch) -> None:
    factory = searching.factory
    table = factory.table("before")
    read = index.relations_in

    def changing(realm: Any, namespace_id: str, tags: Any) -> Any:
        found = list(read(realm, namespace_id, tags))
        change_table(factory.home, table, display_name="after")
        factory.table("new", namespace=factory.namespace("more"))
        yield from found

    monkeypatch.setattr("skiway.metastore.search.indexes.relations_in", changing)
    assert paths(searching, "before") == []
    assert paths(searching, "after") == ["lake.sales.after"]
    assert paths(searching, "new") == ["lake.more.new"]


def test_many_changes_are_read_in_the_background(factory: ResourceFactory) -> None:
    searching = Searching(factory, SearchIndexes(max_changes=3))
    namespace = factory.first_namespace()
    assert paths(searching, "sales") == ["lake.sales"]
    for number in range(10):
        factory.table(f"t{number}", namespace=namespace)
    answer = search.search(factory.home, v1.SearchRequest(text="t9"), indexes=searching.indexes)
    assert answer.incomplete.is_temporary
    assert "updated" in answer.incomplete.reason
    assert len(paths(searching, "t")) == 10
    searching.indexes.close()


def test_calls_do_not_number_many_events(searching: Searching, monkeypatch: pytest.MonkeyPatch) -> None:
    factory = searching.factory
    namespace = factory.first_namespace()
    assert paths(searching, "sales") == ["lake.sales"]
    monkeypatch.setattr(indexes, "PAGE", 3)
    for number in range(5):
        factory.table(f"t{number}", namespace=namespace)
    reached, go_on, numbering = threading.Event(), threading.Event(), events.sequence_pending
    callers: list[str] = []

    def slowly(*of: Any) -> int:
        callers.append(threading.current_thread().name)
        reached.set()
        assert go_on.wait(200)
        return numbering(*of)

    monkeypatch.setattr(events, "sequence_pending", slowly)
    answer = search.search(factory.home, v1.SearchRequest(text="t4"), indexes=searching.indexes)
    assert "updated" in answer.incomplete.reason
    assert reached.wait(200)
    (caller,) = callers
    assert caller.startswith("search-index")
    go_on.set()
    assert len(paths(searching, "t")) == 5


def test_index_is_built_again_if_events_are_missing(searching: Searching, monkeypatch: pytest.MonkeyPatch) -> None:
    factory = searching.factory
    factory.table("kept")
    assert paths(searching, "kept") == ["lake.sales.kept"]
    factory.table("new")
    factory.table("newer")
    read = events.read
    monkeypatch.setattr(events, "read", lambda *of, **how: read(*of, **how)[1:])  # the first has expired
    assert paths(searching, "new") == ["lake.sales.new", "lake.sales.newer"]
    assert paths(searching, "kept") == ["lake.sales.kept"]


def test_failed_build_is_reported_and_tried_again(
    searching: Searching, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    searching.factory.table("orders")

    def fail(*_: Any) -> Any:
        raise Unavailable("the store does not answer")

    with monkeypatch.context() as broken:
        broken.setattr("skiway.metastore.search.indexes.all_tags", fail)
        assert "could not be built" in searching.answer("orders").incomplete.reason
    assert "search index of account a1" in caplog.text
    assert paths(searching, "orders") == ["lake.sales.orders"]


def test_callers_at_the_same_time_build_one_index(searching: Searching, monkeypatch: pytest.MonkeyPatch) -> None:
    searching.factory.table("orders")
    built: list[str] = []
    read = index.all_tags
    monkeypatch.setattr("skiway.metastore.search.indexes.all_tags", lambda realm: built.append("") or read(realm))  # type: ignore[func-returns-value]
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda _: paths(searching, "orders"), range(16)))
    assert found == [["lake.sales.orders"]] * 16
    assert len(built) == 1


# --- size -------------------------------------------------------------------------------------------------------------


def test_size_of_an_index_is_known_and_returns_to_zero(factory: ResourceFactory) -> None:
    searching = Searching(factory)
    namespace = factory.first_namespace()
    made = [factory.table(f"table_{number}", namespace=namespace, description="x" * 500) for number in range(200)]
    tracemalloc.start()
    try:
        searching.find("nothing")
        actual, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert searching.indexes.size_bytes > 200 * 500
    assert actual < 3 * searching.indexes.size_bytes
    for table in made:
        tables.delete(factory.home, v1.DeleteTableRequest(table_id=table.resource_id))
    searching.find("nothing")
    assert 0 < searching.indexes.size_bytes < 3000, "of the catalog and the namespace"
    searching.indexes.close()
    assert searching.indexes.size_bytes == 0


def test_index_never_exceeds_its_limit_and_says_so(factory: ResourceFactory) -> None:
    limit = 20_000
    now = [0.0]
    searching = Searching(factory, SearchIndexes(max_bytes=limit, monotonic=lambda: now[0]))
    namespace = factory.first_namespace()
    made = [factory.table(f"t{number}", namespace=namespace, description="x" * 1000) for number in range(20)]
    answer = searching.answer("t")
    assert "no room" in answer.incomplete.reason
    assert not answer.incomplete.is_temporary
    assert 0 < len(answer.hits) < 20
    assert searching.indexes.size_bytes <= limit
    for table in made:
        change_table(factory.home, table, description="short")
    searching.answer("t")
    assert searching.indexes.size_bytes <= limit
    now[0] += indexes.RETRY_S + 1
    assert len(paths(searching, "t")) == 20, "it is built again later, and now there is room"
    searching.indexes.close()


def test_indexes_that_are_not_used_make_room_for_others(factory: ResourceFactory) -> None:
    now = [0.0]
    searching = Searching(factory, SearchIndexes(max_bytes=15_000, monotonic=lambda: now[0]))
    factory.account("a2")
    for number in range(10):
        factory.table(f"t{number}", description="x" * 100)
    assert len(paths(searching, "t")) == 10
    second = v1.SearchRequest(text="t", limit=100, wait_ms=WAIT_MS)
    realm = factory.realm("a2")
    catalog = catalogs.create(realm, v1.CreateCatalogRequest(spec=v1.CatalogSpec(display_name="lake"))).catalog
    spec = v1.NamespaceSpec(display_name="sales", catalog_id=catalog.resource_id)
    namespace = namespaces.create(realm, v1.CreateNamespaceRequest(spec=spec)).namespace
    for number in range(10):
        spec_of_table = v1.TableSpec(
            display_name=f"t{number}",
            description="x" * 100,
            schema_json="{}",
            catalog_id=catalog.resource_id,
            namespace_id=namespace.resource_id,
        )
        tables.create(realm, v1.CreateTableRequest(spec=spec_of_table))
    cut = search.search(realm, second, indexes=searching.indexes)
    assert "no room" in cut.incomplete.reason, "the other index was used just now"
    assert len(searching.answer("t").hits) == 10
    now[0] += indexes.RETRY_S + 1
    answer = search.search(realm, second, indexes=searching.indexes)
    assert (len(answer.hits), answer.HasField("incomplete")) == (10, False)
    assert searching.indexes.size_bytes <= 15_000
    searching.indexes.close()


def test_index_that_is_forgotten_while_it_is_built_takes_no_room(
    searching: Searching, monkeypatch: pytest.MonkeyPatch
) -> None:
    searching.factory.table("orders")
    reached, go_on = threading.Event(), threading.Event()
    head = events.head

    def slowly(*of: Any) -> int:
        reached.set()
        assert go_on.wait(200)
        return head(*of)

    monkeypatch.setattr(events, "head", slowly)
    search.search(searching.factory.home, v1.SearchRequest(text="orders"), indexes=searching.indexes)
    assert reached.wait(200)
    shut_down = searching.indexes._threads.shutdown

    def go_on_and_shut_down(**how: Any) -> None:
        go_on.set()
        shut_down(**how)

    monkeypatch.setattr(searching.indexes._threads, "shutdown", go_on_and_shut_down)
    searching.indexes.close()
    assert searching.indexes.size_bytes == 0
