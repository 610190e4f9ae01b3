"""Callers find, list and count only what they may see, whatever the shared index contains."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from metastore.resource_factory import ResourceFactory
from metastore.search.searches import WAIT_MS, Searching, totals_in
from skiway.errors import NotFound
from skiway.metastore import search
from skiway.metastore.resources import grants, policies
from skiway.metastore.resources import tables as stored_tables
from skiway.model import v1

CANARY = "canary"
SCHEMA = '{"type": "struct", "fields": [{"id": 1, "name": "note", "type": "string"}]}'


@pytest.fixture
def searching(factory: ResourceFactory) -> Iterator[Searching]:
    found = Searching(factory)
    yield found
    found.indexes.close()


@pytest.fixture
def tables(searching: Searching) -> dict[str, v1.Table]:
    """`lake.sales.people` and `lake.sales.canary`, each with a size, and `lake.canary_hr.canary_staff`."""
    factory = searching.factory
    people = factory.table("people", description="of the shop")
    canary = factory.table(CANARY, description=f"{CANARY} comment", schema_json=SCHEMA)
    factory.view(f"{CANARY}_view", description=CANARY)
    hidden = factory.namespace(f"{CANARY}_hr")
    staff = factory.table(f"{CANARY}_staff", namespace=hidden)
    factory.catalog(f"{CANARY}_catalog")
    searching.store_size(people, 3)
    searching.store_size(canary, 7000)
    request = v1.SetColumnTagsRequest(table_id=canary.resource_id, column="note", tags=[f"{CANARY}-tag"])
    policies.set_tags(factory.home, request)
    searching.grant("ada", people.resource_id)
    return {"people": people, CANARY: canary, "staff": staff}


def all_answers(searching: Searching, name: str) -> bytes:
    """Everything that a caller is told."""
    texts = ("people", "lake", "sales", "note", "shop", CANARY, f"{CANARY}-tag")
    answers = [
        *(searching.answer(text, name) for text in texts),
        *(searching.summary(name, *path) for path in ((), ("lake",), ("lake", "sales"))),
        *(searching.list(name, *path) for path in ((), ("lake",), ("lake", "sales"))),
        searching.list(name, condition=v1.OC_WITHOUT_STATISTICS),
        searching.list(name, condition=v1.OC_DAMAGED),
    ]
    return b"".join(each.SerializeToString() for each in answers)


def test_nothing_shows_a_table_to_a_caller_without_a_grant(searching: Searching, tables: dict[str, v1.Table]) -> None:
    assert CANARY.encode() in all_answers(searching, "reader"), "the index has it"
    told = all_answers(searching, "ada")
    assert b"people" in told
    assert CANARY.encode() not in told
    for table in (tables[CANARY], tables["staff"]):
        assert table.resource_id.id.encode() not in told
    assert searching.find(CANARY, "ada") == []
    found = searching.summary("ada")
    assert totals_in(found) == (1, 0, 3, 30)
    assert [(list(each.path), each.tables) for each in found.containers] == [(["lake"], 1)]
    assert [list(each.path) for each in found.largest] == [["lake", "sales", "people"]]
    assert [(each.format, each.tables) for each in found.formats] == [(v1.TF_UNSPECIFIED, 1)]
    assert totals_in(searching.summary("reader")) == (3, 1, 7003, 70030)
    assert searching.list("ada").total == 1


def test_ids_and_paths_that_the_caller_does_not_see_do_not_exist(
    searching: Searching, tables: dict[str, v1.Table]
) -> None:
    ids = [each.resource_id.id for each in tables.values()]
    request = v1.ListObjectsRequest(ids=[*ids, tables["staff"].namespace_id.id])
    shown = search.list_objects(searching.as_("ada"), request, indexes=searching.indexes)
    assert [each.resource_id.id for each in shown.objects] == [tables["people"].resource_id.id]
    assert shown.total == 1
    everything = search.list_objects(searching.as_("reader"), request, indexes=searching.indexes)
    assert [each.path[-1] for each in everything.objects] == ["people", CANARY, f"{CANARY}_staff", f"{CANARY}_hr"]
    for path in (("lake", f"{CANARY}_hr"), (f"{CANARY}_catalog",), ("lake", "nowhere")):
        for call in (searching.summary, searching.list):
            with pytest.raises(NotFound):
                call("ada", *path)


def test_grants_count_from_the_next_call_on(searching: Searching, tables: dict[str, v1.Table]) -> None:
    assert searching.find(CANARY, "eve") == []
    assert totals_in(searching.summary("eve")) == (0, 0, 0, 0)
    searching.grant("eve", tables["people"].namespace_id)
    assert [path for path, _ in searching.find(CANARY, "eve")] == ["lake.sales.canary", "lake.sales.canary_view"]
    assert totals_in(searching.summary("eve")) == (2, 1, 7003, 70030)
    request = v1.RevokeGrantRequest(object_id=tables["people"].namespace_id, grantee="user:eve")
    grants.revoke(searching.factory.home, request)
    assert searching.find(CANARY, "eve") == []
    assert totals_in(searching.summary("eve")) == (0, 0, 0, 0)


def test_tags_are_shown_only_to_callers_who_manage_policies(searching: Searching, tables: dict[str, v1.Table]) -> None:
    assert tables
    assert searching.find(f"{CANARY}-tag") == [("lake.sales.canary", f"tag {CANARY}-tag of column note")]
    assert searching.find(f"{CANARY}-tag", "reader") == []
    assert ("lake.sales.canary", "name") in searching.find(CANARY, "reader"), "where its tag is not named"


@pytest.mark.parametrize("where", ["table", "namespace", "catalog", "tag", "damaged"])
def test_row_filters_withhold_sizes(searching: Searching, tables: dict[str, v1.Table], where: str) -> None:
    canary = tables[CANARY]
    assert totals_in(searching.summary("reader")) == (3, 1, 7003, 70030)
    on = {"table": [canary.resource_id], "namespace": [canary.namespace_id], "catalog": [canary.catalog_id]}
    on["damaged"] = [tables["people"].resource_id]
    searching.filter_rows("reader", *on.get(where, []), tags=[f"{CANARY}-tag"] if where == "tag" else [])
    if where == "damaged":
        (pointer,) = searching.factory.stores.pointers.scan("/accounts/a1/policies/by-id/")
        searching.factory.stores.blobs.delete(pointer.blob_uri)
    left = (3, 1, 3, 30) if where in ("table", "tag") else (3, 1, 0, 0)
    assert totals_in(searching.summary("reader")) == left
    assert all(each.total_size_bytes != 70_000 for each in searching.summary("reader").largest)
    (hit, *_) = searching.answer(CANARY, "reader").hits
    assert (hit.object.path[-1], hit.object.HasField("row_count")) == (CANARY, False)
    assert totals_in(searching.summary("server")) == (3, 1, 7003, 70030)


def test_row_filters_on_other_tags_or_for_others_withhold_nothing(
    searching: Searching, tables: dict[str, v1.Table]
) -> None:
    searching.filter_rows("reader", tags=["another-tag"], title="by tag")
    searching.filter_rows("somebody", tables[CANARY].resource_id, title="of somebody")
    assert totals_in(searching.summary("reader")) == (3, 1, 7003, 70030)


def test_accounts_do_not_find_each_others_objects(searching: Searching, tables: dict[str, v1.Table]) -> None:
    assert tables
    searching.find(CANARY)
    searching.factory.account("a2")
    elsewhere = searching.factory.realm("a2")
    for text in (CANARY, "people", "lake"):
        request = v1.SearchRequest(text=text, wait_ms=WAIT_MS)
        assert not search.search(elsewhere, request, indexes=searching.indexes).hits
    request = v1.GetSummaryRequest(wait_ms=WAIT_MS)
    assert totals_in(search.get_summary(elsewhere, request, indexes=searching.indexes)) == (0, 0, 0, 0)


def test_stale_entries_show_nothing_that_the_caller_may_not_see(
    searching: Searching, tables: dict[str, v1.Table]
) -> None:
    """While many changes are being read, the index is out of date, but what is shown is not."""
    factory = searching.factory
    searching.grant("eve", tables["people"].namespace_id)
    assert len(searching.find(CANARY, "eve")) == 2
    with searching.indexes.of(factory.home) as (index, _):
        stale = {area.id: dict(area.relations) for area in index.areas.values()}
    request = v1.UpdateTableRequest(
        table_id=tables[CANARY].resource_id,
        spec=v1.TableSpec(namespace_id=tables["staff"].namespace_id, display_name="moved away"),
    )
    request.update_mask.paths.extend(["namespace_id", "display_name"])
    stored_tables.update(factory.home, request)
    searching.find("people")
    with searching.indexes.of(factory.home) as (index, _):
        for area in index.areas.values():
            area.relations.clear()
            area.relations.update(stale[area.id])
        assert searching.find(CANARY, "eve") == [("lake.sales.canary_view", "name")]
        assert b"moved" not in searching.answer(CANARY, "eve").SerializeToString()
        assert searching.find("comment", "reader") == [("lake.canary_hr.moved away", "comment")]
        (area,) = (each for each in index.areas.values() if each.path == ("lake", "sales"))
        area.relations[tables["people"].resource_id.id].text += " outdated"
        assert searching.find("outdated", "reader") == [], "it does not contain the word any more"
