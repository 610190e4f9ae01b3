"""Leases of queries: what they pin, for how long, and that it can be read all that time."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from metastore.wholeness import damage
from metastore.world import World, behaviour, mask, refused
from skiway.errors import AlreadyExists, InvalidArgument, LimitExceeded, NotFound, PreconditionFailed
from skiway.metastore import Realm, gc, queries, statistics
from skiway.metastore.gc import sweeps as gc_sweeps
from skiway.metastore.queries import leases, pins
from skiway.metastore.queries.leases import QueryRules
from skiway.metastore.queries.pins import PinnedSnapshot
from skiway.metastore.resources import snapshots, tables
from skiway.model import v1
from skiway.storage import Stores
from storage.homes import Clock

NOTHING = v1.SnapshotRef()
CURRENT = v1.SnapshotRef(special=v1.SS_CURRENT)


def by_id(number: int) -> v1.SnapshotRef:
    return v1.SnapshotRef(snapshot_id=number)


def as_of(seconds: int) -> v1.SnapshotRef:
    return v1.SnapshotRef(as_of=Timestamp(seconds=seconds))


def of_table(table: v1.Table, snapshot: v1.SnapshotRef | None = None) -> v1.QueryInput:
    return v1.QueryInput(table_id=table.resource_id, snapshot=snapshot)


def of_view(view: v1.View, snapshot: v1.SnapshotRef | None = None) -> v1.QueryInput:
    return v1.QueryInput(view_id=view.resource_id, snapshot=snapshot)


def named(*parts: str, catalog: str = "") -> v1.QueryInput:
    *path, name = parts
    return v1.QueryInput(name=v1.NameRef(catalog=catalog, path=path, name=name))


def relation(*parts: str, catalog: str = "") -> v1.NameRef:
    *path, name = parts
    return v1.NameRef(catalog=catalog, path=path, name=name)


def begin(world: World, *inputs: v1.QueryInput, rules: QueryRules = queries.RULES, **more: Any) -> v1.QueryDescriptor:
    catalog_id = world.first_catalog().resource_id
    request = v1.BeginQueryRequest(inputs=inputs, **{"default_catalog_id": catalog_id, **more})
    return queries.begin(world.home, request, rules=rules).query


def get(world: World, query_id: str) -> v1.QueryDescriptor:
    return queries.get(world.home, v1.GetQueryRequest(query_id=query_id)).query


def renew(world: World, query_id: str, seconds: int = 0) -> datetime:
    request = v1.RenewQueryRequest(query_id=query_id, ttl_seconds=seconds)
    return queries.renew(world.home, request).expires_at.ToDatetime(UTC)


def end(world: World, query_id: str, *, commit: bool = True) -> None:
    queries.end(world.home, v1.EndQueryRequest(query_id=query_id, commit=commit))


def pinned(world: World, query: v1.QueryDescriptor, table: v1.Table) -> PinnedSnapshot:
    return queries.pinned(world.home, query.query_id, table.resource_id)


def snapshot_ids(query: v1.QueryDescriptor) -> list[int]:
    return [pin.snapshot_id for pin in query.snapshots.pins]


def table_ids(query: v1.QueryDescriptor) -> list[str]:
    return [pin.table_id.id for pin in query.snapshots.pins]


def put_statistics(world: World, table: v1.Table, snapshot_id: int, rows: int) -> None:
    target = {"table_id": table.resource_id, "snapshot_id": snapshot_id}
    statistics.put_table(world.home, v1.PutTableStatsRequest(**target, stats=v1.TableStats(row_count=rows)))
    column = v1.ColumnStats(column_id=1, value_count=rows)
    statistics.put_columns(world.home, [v1.PutColumnStatsRequest(**target, columns=[column])])
    file = v1.FileColumnStats(file_path="f", row_count=rows)
    statistics.put_files(world.home, [v1.PutFileColumnStatsRequest(**target, files=[file])])


def collect(world: World) -> set[str]:
    """All that gc removes now. Blobs are as old as the machine says, so the collector's clock runs ahead of it."""
    gc.sweep_expired(world.stores)
    gc.sweep_pointers(world.stores)
    return set(gc.sweep_blobs(world.stores, clock=lambda: datetime.now(UTC) + timedelta(hours=1)).removed)


@pytest.fixture
def people(world) -> v1.Table:
    """A table with snapshots 0 to 2, made at 100, 200 and 300 s after 1970."""
    table = world.table("people", schema_json='{"then": true}')
    for number in range(3):
        world.snapshot(table, number, at=100 * (number + 1))
    return table


# --- what is pinned ---------------------------------------------------------------------------------------------------


@behaviour(47)
def test_what_a_query_reads_stays_as_it_was_when_it_began(world, people):
    put_statistics(world, people, 2, rows=10)
    query = begin(world, of_table(people))
    assert snapshot_ids(query) == [2]
    world.snapshot(people, 3, at=400)
    put_statistics(world, people, 2, rows=99)
    spec = v1.SnapshotSpec(table_id=people.resource_id, snapshot_id=2, manifest_list="new")
    snapshots.update(world.home, v1.UpdateSnapshotRequest(spec=spec, update_mask=mask("manifest_list")))
    request = v1.UpdateTableRequest(
        table_id=people.resource_id, spec=v1.TableSpec(schema_json="{}"), update_mask=mask("schema_json")
    )
    tables.update(world.home, request)
    assert collect(world) == set()
    read = pinned(world, query, people)
    assert get(world, query.query_id) == query
    assert (read.snapshot().snapshot_id, read.snapshot().manifest_list) == (2, "")
    assert read.table().schema_json == '{"then": true}'
    assert read.table_stats().row_count == 10
    assert [column.value_count for column in read.columns()] == [10]
    assert read.files()["row_count"].to_pylist() == [10]


@behaviour(47, 75)
@pytest.mark.parametrize("way", ["table", "snapshot"])
def test_what_is_deleted_stays_readable_for_the_lease_and_goes_after_it(world, people, way):
    put_statistics(world, people, 1, rows=10)
    query = begin(world, of_table(people, by_id(1)))
    if way == "table":
        tables.delete(world.home, v1.DeleteTableRequest(table_id=people.resource_id))
    else:
        snapshots.delete(world.home, v1.DeleteSnapshotRequest(table_id=people.resource_id, snapshot_id=1))
    collect(world)
    read = pinned(world, query, people)
    held = set(pins.pinned_uris([read.of]))
    assert len(held) == 5
    assert read.table().display_name == "people"
    assert read.snapshot().snapshot_id == 1
    assert read.table_stats().row_count == 10
    assert read.files()["row_count"].to_pylist() == [10]
    gone = held if way == "table" else held - {read.of.table_uri}
    end(world, query.query_id)
    assert collect(world) & held == gone


@behaviour(75)
def test_pins_of_a_query_that_is_never_ended_go_with_its_time(world, people):
    query = begin(world, of_table(people), ttl_seconds=60)
    read = pinned(world, query, people)
    tables.delete(world.home, v1.DeleteTableRequest(table_id=people.resource_id))
    world.clock.advance(59)
    renew(world, query.query_id, 100)
    world.clock.advance(99)
    collect(world)
    assert pinned(world, query, people).snapshot().snapshot_id == 2
    world.clock.advance(1 + 15)
    assert {read.of.snapshot_uri, read.of.table_uri} <= collect(world)
    assert world.stores.pointers.count("/pins/") == 0
    assert not [each for each in world.stores.blobs.scan() if "/leases/" in each.uri]


@behaviour(75)
def test_each_of_two_queries_holds_its_own_pins(world, people):
    first, second = begin(world, of_table(people)), begin(world, of_table(people))
    tables.delete(world.home, v1.DeleteTableRequest(table_id=people.resource_id))
    end(world, first.query_id)
    collect(world)
    assert pinned(world, second, people).snapshot().snapshot_id == 2


@behaviour(47)
def test_what_changes_while_a_query_begins_is_read_again(world, people, monkeypatch):
    """The snapshot is deleted, and collected, after it was read and before it is pinned."""
    put_statistics(world, people, 2, rows=10)
    original = pins.hold

    def late(*arguments: Any, **named: Any) -> None:
        monkeypatch.setattr(pins, "hold", original)
        put_statistics(world, people, 2, rows=20)
        world.snapshot(people, 3, at=400)
        snapshots.delete(world.home, v1.DeleteSnapshotRequest(table_id=people.resource_id, snapshot_id=2))
        assert collect(world)
        original(*arguments, **named)

    monkeypatch.setattr(pins, "hold", late)
    query = begin(world, of_table(people))
    assert snapshot_ids(query) == [3]
    assert pinned(world, query, people).snapshot().snapshot_id == 3


@behaviour(75)
def test_what_is_pinned_and_deleted_while_gc_looks_stays(world, people, monkeypatch):
    """Both happens between gc's coming to the snapshot and its finding out that nobody names it."""
    current = pinned(world, begin(world, of_table(people), query_id="before"), people).of.snapshot_uri
    end(world, "before")
    original, began = gc_sweeps._unused, []

    def slow(stores: Stores, uri: str) -> bool:
        if uri == current and not began:
            began.append(begin(world, of_table(people)))
            tables.delete(world.home, v1.DeleteTableRequest(table_id=people.resource_id))
        return original(stores, uri)

    monkeypatch.setattr(gc_sweeps, "_unused", slow)
    collect(world)
    assert pinned(world, began[0], people).snapshot().snapshot_id == 2


def test_statistics_that_are_replaced_while_a_query_begins_are_read_again(world, people, monkeypatch):
    put_statistics(world, people, 2, rows=10)
    original = pins.hold

    def late(*arguments: Any, **named: Any) -> None:
        monkeypatch.setattr(pins, "hold", original)
        put_statistics(world, people, 2, rows=20)
        assert collect(world)
        original(*arguments, **named)

    monkeypatch.setattr(pins, "hold", late)
    query = begin(world, of_table(people))
    assert pinned(world, query, people).files()["row_count"].to_pylist() == [20]


@behaviour(51)
@pytest.mark.parametrize(
    ("asked", "default", "found"),
    [
        (None, None, 2),
        (NOTHING, None, 2),
        (CURRENT, None, 2),
        (by_id(0), None, 0),
        (by_id(1), None, 1),
        (by_id(0), 250, 0),
        (as_of(250), None, 1),
        (as_of(100), None, 0),
        (as_of(100), 250, 0),
        (None, 250, 1),
        (NOTHING, 250, 1),
        (CURRENT, 250, 2),
    ],
)
def test_an_id_counts_more_than_a_time_and_what_is_said_more_than_the_default(world, people, asked, default, found):
    more = {} if default is None else {"as_of_default": Timestamp(seconds=default)}
    query = begin(world, of_table(people, asked), **more)
    assert snapshot_ids(query) == [found]
    (pin,) = query.snapshots.pins
    by_time = (asked or NOTHING).WhichOneof("which") == "as_of" or (
        default is not None and (asked or NOTHING).WhichOneof("which") is None
    )
    assert pin.HasField("as_of") == by_time


@behaviour(51)
def test_a_rolled_back_table_is_read_where_it_was_rolled_back_to(world, people):
    snapshots.set_current(world.home, v1.SetCurrentSnapshotRequest(table_id=people.resource_id, snapshot_id=0))
    assert snapshot_ids(begin(world, of_table(people))) == [0]


@behaviour(51)
@pytest.mark.parametrize(
    ("asked", "error", "error_key"),
    [
        (by_id(7), NotFound, "query.snapshot.not.in.table"),
        (by_id(-1), NotFound, "query.snapshot.not.in.table"),
        (as_of(99), NotFound, "query.snapshot.not.found.at.time"),
        (v1.SnapshotRef(special=7), InvalidArgument, "snapshot.special.unsupported"),
        (v1.SnapshotRef(special=0), InvalidArgument, "snapshot.special.unsupported"),
    ],
)
def test_a_state_that_is_not_there_fails_the_whole_call(world, people, asked, error, error_key):
    with refused(error, error_key):
        begin(world, of_table(people, by_id(1)), of_table(people, asked), query_id="q")
    with refused(NotFound, "query.not.found", query_id="q"):
        get(world, "q")
    assert damage(world.stores) == []


def test_a_table_without_snapshots_cannot_be_read(world):
    with refused(NotFound, "query.table.no.queryable.snapshot"):
        begin(world, of_table(world.table()))


@behaviour(53)
def test_what_is_said_of_a_table_counts_wherever_else_it_is_read(world, people):
    for inputs in ([of_table(people), of_table(people, by_id(1))], [of_table(people, as_of(250)), of_table(people)]):
        assert snapshot_ids(begin(world, *inputs, as_of_default=Timestamp(seconds=100))) == [1]


@behaviour(53)
def test_two_ways_to_say_the_same_state_are_one(world, people):
    inputs = [of_table(people, by_id(1)), of_table(people, as_of(250)), named("sales", "people")]
    assert snapshot_ids(begin(world, *inputs)) == [1]


@behaviour(53)
@pytest.mark.parametrize("other", [by_id(0), as_of(100), CURRENT])
def test_two_states_of_one_table_cannot_be_read_by_one_query(world, people, other):
    conflict = {"table_id": people.resource_id.id, "pinned_snapshot": "1"}
    with refused(PreconditionFailed, "query.table.pin.conflict", **conflict):
        begin(world, of_table(people, by_id(1)), of_table(people, other))


def test_tables_are_pinned_once_in_the_order_of_the_inputs(world, people):
    other = world.table("other")
    world.snapshot(other, 5)
    query = begin(world, of_table(other), named("sales", "people", catalog="lake"), named("sales", "other"))
    assert table_ids(query) == [other.resource_id.id, people.resource_id.id]
    assert query.expansion == v1.ExpansionMap()


@pytest.mark.parametrize(
    ("given", "error", "error_key"),
    [
        (v1.QueryInput(), InvalidArgument, "query.input.invalid"),
        (named("sales", "nobody"), NotFound, "query.input.unresolved"),
        (named("nowhere", "people"), NotFound, "query.input.unresolved"),
        (named("sales", "people", catalog="no"), NotFound, "query.input.unresolved"),
        (v1.QueryInput(table_id=v1.ResourceId(id="x")), NotFound, "table"),
        (v1.QueryInput(view_id=v1.ResourceId(id="x")), NotFound, "view"),
        (v1.QueryInput(table_id=v1.ResourceId(id="x", kind=v1.RK_VIEW)), InvalidArgument, "kind"),
    ],
)
def test_an_input_that_means_nothing_is_refused(world, people, given, error, error_key):
    with refused(error, error_key):
        begin(world, of_table(people), given)


def test_an_id_inside_a_name_decides(world, people):
    view = world.view("v", base_relations=[relation("people")])
    for target in (people.resource_id, v1.ResourceId(id=people.resource_id.id), view.resource_id):
        query = begin(world, v1.QueryInput(name=v1.NameRef(catalog="no", name="no", resource_id=target)))
        assert table_ids(query) == [people.resource_id.id]
    with refused(NotFound, "query.input.unresolved", name="x"):
        begin(world, v1.QueryInput(name=v1.NameRef(resource_id=v1.ResourceId(id="x"))))


# --- views ------------------------------------------------------------------------------------------------------------


@behaviour(52)
def test_a_view_pins_the_tables_it_reads_once_through_other_views(world, people):
    orders = world.table("orders")
    world.snapshot(orders, 9)
    inner = world.view("inner", base_relations=[relation("people"), relation("sales", "orders")])
    outer = world.view("outer", base_relations=[relation("inner"), relation("people")])
    query = begin(world, named("sales", "outer"), of_table(orders))
    assert table_ids(query) == [people.resource_id.id, orders.resource_id.id]
    views = [(each.view_id.id, [table.id for table in each.base_table_ids]) for each in query.expansion.views]
    both = [people.resource_id.id, orders.resource_id.id]
    assert views == [(inner.resource_id.id, both), (outer.resource_id.id, both)]
    assert query.expansion.views[0].canonical_sql == "SELECT 1"
    assert [table.id for table in query.expansion.read_via_view_tables] == [people.resource_id.id]


@behaviour(52)
def test_views_that_read_each_other_end(world, people):
    one = world.view("one", base_relations=[relation("two"), relation("one")])
    world.view("two", base_relations=[relation("one"), relation("people")])
    query = begin(world, of_view(one), of_view(one))
    assert table_ids(query) == [people.resource_id.id]
    assert len(query.expansion.views) == 2


@behaviour(52)
def test_a_time_on_a_view_applies_to_its_tables_and_an_id_is_refused(world, people):
    view = world.view("v", base_relations=[relation("people")])
    assert snapshot_ids(begin(world, of_view(view, as_of(250)))) == [1]
    assert snapshot_ids(begin(world, of_view(view), as_of_default=Timestamp(seconds=100))) == [0]
    with refused(InvalidArgument, "query.input.view.cannot.use.snapshot.id", view_id=view.resource_id.id):
        begin(world, of_view(view, by_id(1)))
    with refused(PreconditionFailed, "query.table.pin.conflict"):
        begin(world, of_view(view, as_of(250)), of_table(people, by_id(2)))


@behaviour(52)
def test_a_view_means_names_in_its_own_catalog_and_along_its_search_path(world, people):
    other = world.catalog("other")
    place = world.namespace("v", catalog=other)
    here = world.table("here", namespace=place)
    there = world.table("there", namespace=world.namespace("deep", "er", catalog=other))
    for table in (here, there):
        world.snapshot(table, 1)
    relations = [relation("here"), relation("there"), relation("sales", "people", catalog="lake")]
    view = world.view("v", namespace=place, base_relations=relations, creation_search_path=["no.where", "deep.er"])
    found = [here.resource_id.id, there.resource_id.id, people.resource_id.id]
    assert table_ids(begin(world, of_view(view))) == found
    lost = world.view("lost", namespace=place, base_relations=[relation("people")])
    with refused(NotFound, "query.input.unresolved", name="other.people"):
        begin(world, of_view(lost))


# --- how long ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def query(world, people) -> v1.QueryDescriptor:
    return begin(world, of_table(people), query_id="q", ttl_seconds=100)


@pytest.mark.parametrize(("asked", "given"), [(0, 60), (-5, 60), (1, 1), (100, 100), (2**31 - 1, 24 * 3600)])
def test_a_query_lives_as_long_as_asked_for_within_bounds(world, people, asked, given):
    query = begin(world, ttl_seconds=asked)
    assert query.expires_at.ToDatetime(UTC) == world.clock.later(given)
    assert (query.state, query.query_status, query.account_id) == (v1.LS_ACTIVE, v1.QS_SUBMITTED, "a1")
    assert query.created_at.ToDatetime(UTC) == world.clock()


def test_a_query_needs_a_catalog_that_exists(world):
    with refused(InvalidArgument, "query.catalog.required", field="default_catalog_id"):
        queries.begin(world.home, v1.BeginQueryRequest())
    with refused(NotFound, "catalog"):
        queries.begin(world.home, v1.BeginQueryRequest(default_catalog_id=v1.ResourceId(id="x")))


@behaviour(48)
def test_an_id_that_is_taken_is_refused_and_the_first_query_intact(world, people, query):
    with refused(AlreadyExists, "query.already.exists", resource="query", name="q"):
        begin(world, of_table(people, by_id(0)), query_id=" q ")
    assert get(world, "q") == query
    end(world, "q")
    with refused(AlreadyExists, "query.already.exists"):
        begin(world, query_id="q")
    world.clock.advance(100)
    assert begin(world, query_id="q").state == v1.LS_ACTIVE


@behaviour(48)
def test_of_two_that_begin_at_once_under_one_id_the_first_keeps_its_pins(world, people, monkeypatch):
    original = leases._create

    def late(*arguments: Any) -> None:
        monkeypatch.setattr(leases, "_create", original)
        begin(world, of_table(people, by_id(0)), query_id="q")
        original(*arguments)

    monkeypatch.setattr(leases, "_create", late)
    with refused(AlreadyExists, "query.already.exists"):
        begin(world, of_table(people, by_id(1)), query_id="q")
    tables.delete(world.home, v1.DeleteTableRequest(table_id=people.resource_id))
    collect(world)
    assert pinned(world, get(world, "q"), people).snapshot().snapshot_id == 0


@pytest.mark.parametrize(
    ("query_id", "error", "error_key"),
    [(" ", InvalidArgument, "field"), ("x" * 256, LimitExceeded, "name.too_long")],
)
def test_an_id_that_cannot_be_one_is_refused(world, query_id, error, error_key):
    with refused(error, error_key, field="query_id"):
        begin(world, query_id=query_id)


@pytest.mark.parametrize("query_id", ["a/b", "..", "é" * 20, "é" * 255, "a.b c"])
def test_any_text_of_moderate_length_is_an_id(world, people, query_id):
    query = begin(world, of_table(people), query_id=query_id)
    assert get(world, query_id) == query
    renew(world, query_id, 100)
    end(world, query_id)
    assert damage(world.stores) == []


@behaviour(49)
def test_renewing_extends_and_never_shortens(world, query):
    assert renew(world, "q", 10) == world.clock.later(100)
    world.clock.advance(50)
    assert renew(world, "q", 100) == world.clock.later(100)
    assert renew(world, "q") == world.clock.later(100)
    assert get(world, "q").expires_at.ToDatetime(UTC) == world.clock.later(100)


@behaviour(49)
@pytest.mark.parametrize("way", ["ended", "expired", "unknown", "seen expired"])
def test_what_is_over_is_not_renewed(world, query, way):
    query_id = "q"
    if way == "ended":
        end(world, "q")
    elif way == "unknown":
        query_id = "other"
    else:
        world.clock.advance(100)
        if way == "seen expired":
            get(world, "q")
    with refused(NotFound, "query.not.found", query_id=query_id):
        renew(world, query_id, 1000)
    assert way == "unknown" or get(world, "q").state != v1.LS_ACTIVE


@behaviour(49)
@pytest.mark.parametrize(("commit", "state"), [(True, v1.LS_ENDED_COMMIT), (False, v1.LS_ENDED_ABORT)])
def test_the_first_end_counts(world, query, commit, state):
    end(world, "q", commit=commit)
    first = get(world, "q")
    assert first.state == state
    end(world, "q", commit=not commit)
    assert get(world, "q") == first
    with refused(NotFound, "query.not.found"):
        end(world, "unknown")


def test_an_ended_query_can_be_asked_for_during_its_grace(world, query):
    world.clock.advance(95)
    end(world, "q")
    assert get(world, "q").expires_at.ToDatetime(UTC) == world.clock.later(15)
    world.clock.advance(14.999)
    assert get(world, "q").state == v1.LS_ENDED_COMMIT
    world.clock.advance(0.001)
    with refused(NotFound, "query.not.found"):
        get(world, "q")
    assert gc.sweep_expired(world.stores) > 0
    assert damage(world.stores) == []


def test_an_expired_query_can_be_asked_for_during_its_grace_and_not_be_ended_otherwise(world, query, people):
    world.clock.advance(100)
    assert get(world, "q").state == v1.LS_EXPIRED
    end(world, "q")
    assert get(world, "q").state == v1.LS_EXPIRED
    with refused(PreconditionFailed, "query.not.active", state="expired"):
        pinned(world, query, people)
    world.clock.advance(15)
    with refused(NotFound, "query.not.found"):
        get(world, "q")


@behaviour(50)
def test_an_expiry_does_not_overwrite_a_renewal(world, query, people, monkeypatch):
    """A server whose clock lags renews between the moment the lease is found expired and that being written."""
    other = World(world.stores, Clock(world.clock()))
    other.clock.advance(99)
    world.clock.advance(100)
    original = leases._replace

    def late(*arguments: Any) -> None:
        monkeypatch.setattr(leases, "_replace", original)
        renew(other, "q", 50)
        original(*arguments)

    monkeypatch.setattr(leases, "_replace", late)
    found = get(world, "q")
    assert (found.state, found.expires_at.ToDatetime(UTC)) == (v1.LS_ACTIVE, other.clock.later(50))
    assert pinned(world, query, people).snapshot().snapshot_id == 2


@behaviour(50)
def test_a_renewal_does_not_overwrite_an_end(world, query, monkeypatch):
    original = leases._replace

    def late(*arguments: Any) -> None:
        monkeypatch.setattr(leases, "_replace", original)
        end(world, "q")
        original(*arguments)

    monkeypatch.setattr(leases, "_replace", late)
    with refused(NotFound, "query.not.found"):
        renew(world, "q", 500)
    assert get(world, "q").state == v1.LS_ENDED_COMMIT


@behaviour(49, 75)
def test_a_short_renewal_takes_nothing_from_a_longer_one_at_the_same_time(world, query, people, monkeypatch):
    original = pins.hold

    def late(*arguments: Any, **named: Any) -> None:
        monkeypatch.setattr(pins, "hold", original)
        renew(world, "q", 1000)
        original(*arguments, **named)

    monkeypatch.setattr(pins, "hold", late)
    assert renew(world, "q", 10) == world.clock.later(1000)
    tables.delete(world.home, v1.DeleteTableRequest(table_id=people.resource_id))
    world.clock.advance(999)
    collect(world)
    assert pinned(world, query, people).snapshot().snapshot_id == 2


@behaviour(59)
def test_another_account_finds_nothing(world, query, people):
    world.account("a2")
    foreign = world.realm("a2")
    for call in (
        lambda: queries.get(foreign, v1.GetQueryRequest(query_id="q")),
        lambda: queries.renew(foreign, v1.RenewQueryRequest(query_id="q")),
        lambda: queries.end(foreign, v1.EndQueryRequest(query_id="q")),
        lambda: queries.pinned(foreign, "q", people.resource_id),
    ):
        with refused(NotFound, "query.not.found", query_id="q"):
            call()
    assert get(world, "q") == query


def test_any_server_of_the_store_answers(world, query):
    elsewhere = Realm(world.stores, "a1", clock=world.clock)
    assert queries.get(elsewhere, v1.GetQueryRequest(query_id="q")).query == query


def test_an_account_has_a_limited_number_of_active_queries(world):
    rules = QueryRules(max_leases=2)
    first = begin(world, rules=rules)
    begin(world, rules=rules)
    with refused(LimitExceeded, "query.too_many", found="2", limit="2"):
        begin(world, rules=rules)
    end(world, first.query_id)
    begin(world, rules=rules)
    with refused(LimitExceeded, "query.too_many"):
        begin(world, rules=rules)
    world.clock.advance(60 + 15)
    begin(world, rules=rules)


def test_a_table_that_was_not_named_is_not_pinned(world, query, people):
    other = world.table("other")
    with refused(NotFound, "query.table.not.pinned", table_id=other.resource_id.id):
        pinned(world, query, other)
    with refused(InvalidArgument, "field", field="query_id"):
        queries.pinned(world.home, " ", people.resource_id)


def test_a_query_may_read_more_tables_than_fit_one_batch(world, monkeypatch):
    monkeypatch.setattr(type(world.stores.pointers), "max_batch", 8)
    many = [world.table(f"t{number}") for number in range(9)]
    for table in many:
        world.snapshot(table, 1)
    query = begin(world, *map(of_table, many))
    renew(world, query.query_id, 100)
    tables.delete(world.home, v1.DeleteTableRequest(table_id=many[8].resource_id))
    collect(world)
    assert pinned(world, query, many[8]).table().display_name == "t8"
    end(world, query.query_id)
    assert world.stores.pointers.count("/pins/") == 0


@pytest.fixture(autouse=True)
def nothing_is_damaged(world) -> Iterator[None]:
    yield
    assert damage(world.stores) == []
