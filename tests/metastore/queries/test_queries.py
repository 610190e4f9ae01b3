"""Query leases: what they pin, for how long, and that pinned data stays readable."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from metastore.integrity import damage
from metastore.races import limit_batches, meanwhile
from metastore.resource_factory import ResourceFactory, behavior, expect_error, mask
from skiway.errors import AlreadyExists, InvalidArgument, LimitExceeded, NotFound, PreconditionFailed
from skiway.metastore import Realm, gc, queries, statistics
from skiway.metastore.gc import sweeps as gc_sweeps
from skiway.metastore.queries import pins
from skiway.metastore.queries.leases import QueryRules
from skiway.metastore.queries.pins import PinnedSnapshot
from skiway.metastore.resources import snapshots, tables
from skiway.model import v1
from skiway.storage import Stores
from storage.homes import Clock

NOTHING = v1.SnapshotRef()
CURRENT = v1.SnapshotRef(special=v1.SS_CURRENT)

LEASES = "/accounts/a1/leases/"


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


def begin(
    factory: ResourceFactory, *inputs: v1.QueryInput, rules: QueryRules = queries.RULES, **more: Any
) -> v1.QueryDescriptor:
    catalog_id = factory.first_catalog().resource_id
    request = v1.BeginQueryRequest(inputs=inputs, **{"default_catalog_id": catalog_id, **more})
    return queries.begin(factory.home, request, rules=rules).query


def get(factory: ResourceFactory, query_id: str) -> v1.QueryDescriptor:
    return queries.get(factory.home, v1.GetQueryRequest(query_id=query_id)).query


def renew(factory: ResourceFactory, query_id: str, seconds: int = 0) -> datetime:
    request = v1.RenewQueryRequest(query_id=query_id, ttl_seconds=seconds)
    return queries.renew(factory.home, request).expires_at.ToDatetime(UTC)


def end(factory: ResourceFactory, query_id: str, *, commit: bool = True) -> None:
    queries.end(factory.home, v1.EndQueryRequest(query_id=query_id, commit=commit))


def pinned(factory: ResourceFactory, query: v1.QueryDescriptor, table: v1.Table) -> PinnedSnapshot:
    return queries.pinned(factory.home, query.query_id, table.resource_id)


def snapshot_ids(query: v1.QueryDescriptor) -> list[int]:
    return [pin.snapshot_id for pin in query.snapshots.pins]


def table_ids(query: v1.QueryDescriptor) -> list[str]:
    return [pin.table_id.id for pin in query.snapshots.pins]


def put_statistics(factory: ResourceFactory, table: v1.Table, snapshot_id: int, rows: int) -> None:
    target = {"table_id": table.resource_id, "snapshot_id": snapshot_id}
    statistics.put_table(factory.home, v1.PutTableStatsRequest(**target, stats=v1.TableStats(row_count=rows)))
    column = v1.ColumnStats(column_id=1, value_count=rows)
    statistics.put_columns(factory.home, [v1.PutColumnStatsRequest(**target, columns=[column])])
    file = v1.FileColumnStats(file_path="f", row_count=rows)
    statistics.put_files(factory.home, [v1.PutFileColumnStatsRequest(**target, files=[file])])


def collect(factory: ResourceFactory) -> set[str]:
    """Run gc and return everything it deleted. Its clock is ahead, since the age of blobs follows the clock of the machine."""
    gc.sweep_expired(factory.stores)
    gc.sweep_pointers(factory.stores)
    return set(gc.sweep_blobs(factory.stores, clock=lambda: datetime.now(UTC) + timedelta(hours=1)).removed)


@pytest.fixture
def people(factory) -> v1.Table:
    """A table with snapshots 0 to 2, created at 100, 200 and 300 s after 1970."""
    table = factory.table("people", schema_json='{"then": true}')
    for number in range(3):
        factory.snapshot(table, number, at=100 * (number + 1))
    return table


# --- what is pinned ---------------------------------------------------------------------------------------------------


@behavior(47)
def test_query_reads_the_state_from_when_it_began(factory, people):
    put_statistics(factory, people, 2, rows=10)
    query = begin(factory, of_table(people))
    assert snapshot_ids(query) == [2]
    factory.snapshot(people, 3, at=400)
    put_statistics(factory, people, 2, rows=99)
    spec = v1.SnapshotSpec(table_id=people.resource_id, snapshot_id=2, manifest_list="new")
    snapshots.update(factory.home, v1.UpdateSnapshotRequest(spec=spec, update_mask=mask("manifest_list")))
    request = v1.UpdateTableRequest(
        table_id=people.resource_id, spec=v1.TableSpec(schema_json="{}"), update_mask=mask("schema_json")
    )
    tables.update(factory.home, request)
    assert collect(factory) == set()
    read = pinned(factory, query, people)
    assert get(factory, query.query_id) == query
    assert (read.snapshot().snapshot_id, read.snapshot().manifest_list) == (2, "")
    assert read.table().schema_json == '{"then": true}'
    assert read.table_stats().row_count == 10
    assert [column.value_count for column in read.columns()] == [10]
    assert read.files()["row_count"].to_pylist() == [10]


@behavior(47, 75)
@pytest.mark.parametrize("deleted", ["table", "snapshot"])
def test_deleted_data_stays_readable_until_the_lease_ends(factory, people, deleted):
    put_statistics(factory, people, 1, rows=10)
    query = begin(factory, of_table(people, by_id(1)))
    if deleted == "table":
        tables.delete(factory.home, v1.DeleteTableRequest(table_id=people.resource_id))
    else:
        snapshots.delete(factory.home, v1.DeleteSnapshotRequest(table_id=people.resource_id, snapshot_id=1))
    collect(factory)
    read = pinned(factory, query, people)
    pinned_uris = set(pins.pinned_uris([read.of]))
    assert len(pinned_uris) == 5
    assert read.table().display_name == "people"
    assert read.snapshot().snapshot_id == 1
    assert read.table_stats().row_count == 10
    assert read.files()["row_count"].to_pylist() == [10]
    gone = pinned_uris if deleted == "table" else pinned_uris - {read.of.table_uri}
    end(factory, query.query_id)
    assert collect(factory) & pinned_uris == gone


@behavior(75)
def test_pins_of_an_abandoned_query_expire_with_its_lease(factory, people):
    query = begin(factory, of_table(people), ttl_seconds=60)
    read = pinned(factory, query, people)
    tables.delete(factory.home, v1.DeleteTableRequest(table_id=people.resource_id))
    factory.clock.advance(59)
    renew(factory, query.query_id, 100)
    factory.clock.advance(99)
    collect(factory)
    assert pinned(factory, query, people).snapshot().snapshot_id == 2
    factory.clock.advance(1 + 15)
    assert {read.of.snapshot_uri, read.of.table_uri} <= collect(factory)
    assert factory.stores.pointers.count("/pins/") == 0
    assert not [each for each in factory.stores.blobs.scan() if "/leases/" in each.uri]


@behavior(75)
def test_each_query_has_its_own_pins(factory, people):
    first, second = begin(factory, of_table(people)), begin(factory, of_table(people))
    tables.delete(factory.home, v1.DeleteTableRequest(table_id=people.resource_id))
    end(factory, first.query_id)
    collect(factory)
    assert pinned(factory, second, people).snapshot().snapshot_id == 2


@behavior(47)
def test_snapshot_changed_while_a_query_begins_is_read_again(factory, people):
    """The snapshot is deleted and collected after it was read and before it is pinned."""
    put_statistics(factory, people, 2, rows=10)

    def replace_snapshot() -> None:
        put_statistics(factory, people, 2, rows=20)
        factory.snapshot(people, 3, at=400)
        snapshots.delete(factory.home, v1.DeleteSnapshotRequest(table_id=people.resource_id, snapshot_id=2))
        assert collect(factory)

    meanwhile(factory, "/pins/", replace_snapshot)
    query = begin(factory, of_table(people))
    assert snapshot_ids(query) == [3]
    assert pinned(factory, query, people).snapshot().snapshot_id == 3


@behavior(75)
def test_snapshot_pinned_and_deleted_during_gc_is_kept(factory, people, monkeypatch):
    """Both happen after gc reaches the snapshot and before gc finds it unreferenced."""
    current = pinned(factory, begin(factory, of_table(people), query_id="before"), people).of.snapshot_uri
    end(factory, "before")
    original, began = gc_sweeps._unused, []

    def delayed_check(stores: Stores, uri: str) -> bool:
        if uri == current and not began:
            began.append(begin(factory, of_table(people)))
            tables.delete(factory.home, v1.DeleteTableRequest(table_id=people.resource_id))
        return original(stores, uri)

    monkeypatch.setattr(gc_sweeps, "_unused", delayed_check)
    collect(factory)
    assert pinned(factory, began[0], people).snapshot().snapshot_id == 2


def test_statistics_and_tables_replaced_while_a_query_begins_are_read_again(factory, people):
    put_statistics(factory, people, 2, rows=10)
    renamed = v1.UpdateTableRequest(
        table_id=people.resource_id, spec=v1.TableSpec(display_name="new"), update_mask=mask("display_name")
    )

    def read_during(change: Callable[[], object]) -> tuple[str, list[int]]:
        def act() -> None:
            change()
            assert collect(factory)

        meanwhile(factory, "/pins/", act)
        query = begin(factory, of_table(people))
        found = pinned(factory, query, people)
        read = found.table().display_name, found.files()["row_count"].to_pylist()
        end(factory, query.query_id)
        return read

    assert read_during(lambda: put_statistics(factory, people, 2, rows=20)) == ("people", [20])
    assert read_during(lambda: tables.update(factory.home, renamed)) == ("new", [20])


@behavior(51)
@pytest.mark.parametrize(
    ("requested", "default", "found"),
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
def test_snapshot_reference_takes_precedence_over_the_default_time(factory, people, requested, default, found):
    more = {} if default is None else {"as_of_default": Timestamp(seconds=default)}
    query = begin(factory, of_table(people, requested), **more)
    assert snapshot_ids(query) == [found]
    (pin,) = query.snapshots.pins
    by_time = (requested or NOTHING).WhichOneof("which") == "as_of" or (
        default is not None and (requested or NOTHING).WhichOneof("which") is None
    )
    assert pin.HasField("as_of") == by_time


@behavior(51)
def test_rolled_back_table_is_read_at_its_current_snapshot(factory, people):
    snapshots.set_current(factory.home, v1.SetCurrentSnapshotRequest(table_id=people.resource_id, snapshot_id=0))
    assert snapshot_ids(begin(factory, of_table(people))) == [0]


@behavior(51)
@pytest.mark.parametrize(
    ("requested", "error", "error_key"),
    [
        (by_id(7), NotFound, "query.snapshot.not.in.table"),
        (by_id(-1), NotFound, "query.snapshot.not.in.table"),
        (as_of(99), NotFound, "query.snapshot.not.found.at.time"),
        (v1.SnapshotRef(special=7), InvalidArgument, "snapshot.special.unsupported"),
        (v1.SnapshotRef(special=0), InvalidArgument, "snapshot.special.unsupported"),
    ],
)
def test_missing_snapshot_fails_the_whole_call(factory, people, requested, error, error_key):
    with expect_error(error, error_key):
        begin(factory, of_table(people, by_id(1)), of_table(people, requested), query_id="q")
    with expect_error(NotFound, "query.not_found", query_id="q"):
        get(factory, "q")
    assert damage(factory.stores) == []


def test_table_without_snapshots_cannot_be_read(factory):
    with expect_error(NotFound, "query.table.no.queryable.snapshot"):
        begin(factory, of_table(factory.table()))


@behavior(53)
def test_explicit_snapshot_applies_to_every_input_of_the_table(factory, people):
    for inputs in ([of_table(people), of_table(people, by_id(1))], [of_table(people, as_of(250)), of_table(people)]):
        assert snapshot_ids(begin(factory, *inputs, as_of_default=Timestamp(seconds=100))) == [1]


@behavior(53)
def test_equivalent_snapshot_references_are_pinned_once(factory, people):
    inputs = [of_table(people, by_id(1)), of_table(people, as_of(250)), named("sales", "people")]
    assert snapshot_ids(begin(factory, *inputs)) == [1]


@behavior(53)
@pytest.mark.parametrize("other", [by_id(0), as_of(100), CURRENT])
def test_query_cannot_read_two_snapshots_of_one_table(factory, people, other):
    conflict = {"table_id": people.resource_id.id, "pinned_snapshot": "1"}
    with expect_error(PreconditionFailed, "query.table.pin.conflict", **conflict):
        begin(factory, of_table(people, by_id(1)), of_table(people, other))


def test_tables_are_pinned_once_in_input_order(factory, people):
    other = factory.table("other")
    factory.snapshot(other, 5)
    query = begin(factory, of_table(other), named("sales", "people", catalog="lake"), named("sales", "other"))
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
def test_unresolvable_input_is_rejected(factory, people, given, error, error_key):
    with expect_error(error, error_key):
        begin(factory, of_table(people), given)


def test_id_in_a_name_takes_precedence(factory, people):
    view = factory.view("v", base_relations=[relation("people")])
    for target in (people.resource_id, v1.ResourceId(id=people.resource_id.id), view.resource_id):
        query = begin(factory, v1.QueryInput(name=v1.NameRef(catalog="no", name="no", resource_id=target)))
        assert table_ids(query) == [people.resource_id.id]
    with expect_error(NotFound, "query.input.unresolved", name="x"):
        begin(factory, v1.QueryInput(name=v1.NameRef(resource_id=v1.ResourceId(id="x"))))


# --- views ------------------------------------------------------------------------------------------------------------


@behavior(52)
def test_view_pins_its_tables_once_through_nested_views(factory, people):
    orders = factory.table("orders")
    factory.snapshot(orders, 9)
    inner = factory.view("inner", base_relations=[relation("people"), relation("sales", "orders")])
    outer = factory.view("outer", base_relations=[relation("inner"), relation("people")])
    query = begin(factory, named("sales", "outer"), of_table(orders))
    assert table_ids(query) == [people.resource_id.id, orders.resource_id.id]
    views = [(each.view_id.id, [table.id for table in each.base_table_ids]) for each in query.expansion.views]
    both = [people.resource_id.id, orders.resource_id.id]
    assert views == [(inner.resource_id.id, both), (outer.resource_id.id, both)]
    assert query.expansion.views[0].canonical_sql == "SELECT 1"
    assert [table.id for table in query.expansion.read_via_view_tables] == [people.resource_id.id]


@behavior(52)
def test_expansion_of_cyclic_views_terminates(factory, people):
    one = factory.view("one", base_relations=[relation("two"), relation("one")])
    factory.view("two", base_relations=[relation("one"), relation("people")])
    query = begin(factory, of_view(one), of_view(one))
    assert table_ids(query) == [people.resource_id.id]
    assert len(query.expansion.views) == 2


@behavior(52)
def test_time_on_a_view_applies_to_its_tables_and_a_snapshot_id_is_rejected(factory, people):
    view = factory.view("v", base_relations=[relation("people")])
    assert snapshot_ids(begin(factory, of_view(view, as_of(250)))) == [1]
    assert snapshot_ids(begin(factory, of_view(view), as_of_default=Timestamp(seconds=100))) == [0]
    with expect_error(InvalidArgument, "query.input.view.cannot.use.snapshot.id", view_id=view.resource_id.id):
        begin(factory, of_view(view, by_id(1)))
    with expect_error(PreconditionFailed, "query.table.pin.conflict"):
        begin(factory, of_view(view, as_of(250)), of_table(people, by_id(2)))


@behavior(52)
def test_view_resolves_names_in_its_own_catalog_and_search_path(factory, people):
    other = factory.catalog("other")
    namespace = factory.namespace("v", catalog=other)
    here = factory.table("here", namespace=namespace)
    there = factory.table("there", namespace=factory.namespace("deep", "er", catalog=other))
    for table in (here, there):
        factory.snapshot(table, 1)
    relations = [relation("here"), relation("there"), relation("sales", "people", catalog="lake")]
    view = factory.view(
        "v", namespace=namespace, base_relations=relations, creation_search_path=["no.where", "deep.er"]
    )
    found = [here.resource_id.id, there.resource_id.id, people.resource_id.id]
    assert table_ids(begin(factory, of_view(view))) == found
    lost = factory.view("lost", namespace=namespace, base_relations=[relation("people")])
    with expect_error(NotFound, "query.input.unresolved", name="other.people"):
        begin(factory, of_view(lost))


# --- lifetime ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def query(factory, people) -> v1.QueryDescriptor:
    return begin(factory, of_table(people), query_id="q", ttl_seconds=100)


@pytest.mark.parametrize(("requested", "given"), [(0, 60), (-5, 60), (1, 1), (100, 100), (2**31 - 1, 24 * 3600)])
def test_query_lease_lasts_as_requested_within_limits(factory, people, requested, given):
    query = begin(factory, ttl_seconds=requested)
    assert query.expires_at.ToDatetime(UTC) == factory.clock.later(given)
    assert (query.state, query.query_status, query.account_id) == (v1.LS_ACTIVE, v1.QS_SUBMITTED, "a1")
    assert query.created_at.ToDatetime(UTC) == factory.clock()


def test_query_needs_an_existing_catalog(factory):
    with expect_error(InvalidArgument, "query.catalog.required", field="default_catalog_id"):
        queries.begin(factory.home, v1.BeginQueryRequest())
    with expect_error(NotFound, "catalog"):
        queries.begin(factory.home, v1.BeginQueryRequest(default_catalog_id=v1.ResourceId(id="x")))


@behavior(48)
def test_duplicate_query_id_is_rejected_and_the_first_query_is_unaffected(factory, people, query):
    with expect_error(AlreadyExists, "query.already.exists", resource="query", name="q"):
        begin(factory, of_table(people, by_id(0)), query_id=" q ")
    assert get(factory, "q") == query
    end(factory, "q")
    with expect_error(AlreadyExists, "query.already.exists"):
        begin(factory, query_id="q")
    factory.clock.advance(100)
    assert begin(factory, query_id="q").state == v1.LS_ACTIVE


@behavior(48)
def test_first_of_two_concurrent_queries_with_one_id_keeps_its_pins(factory, people):
    meanwhile(factory, LEASES, lambda: begin(factory, of_table(people, by_id(0)), query_id="q"))
    with expect_error(AlreadyExists, "query.already.exists"):
        begin(factory, of_table(people, by_id(1)), query_id="q")
    tables.delete(factory.home, v1.DeleteTableRequest(table_id=people.resource_id))
    collect(factory)
    assert pinned(factory, get(factory, "q"), people).snapshot().snapshot_id == 0


@pytest.mark.parametrize(
    ("query_id", "error", "error_key"),
    [(" ", InvalidArgument, "field"), ("x" * 256, LimitExceeded, "name.too_long")],
)
def test_invalid_query_id_is_rejected(factory, query_id, error, error_key):
    with expect_error(error, error_key, field="query_id"):
        begin(factory, query_id=query_id)


@pytest.mark.parametrize("query_id", ["a/b", "..", "é" * 20, "é" * 255, "a.b c"])
def test_any_text_of_limited_length_is_a_valid_query_id(factory, people, query_id):
    query = begin(factory, of_table(people), query_id=query_id)
    assert get(factory, query_id) == query
    renew(factory, query_id, 100)
    end(factory, query_id)
    assert damage(factory.stores) == []


@behavior(49)
def test_renewal_extends_and_never_shortens_a_lease(factory, query):
    assert renew(factory, "q", 10) == factory.clock.later(100)
    factory.clock.advance(50)
    assert renew(factory, "q", 100) == factory.clock.later(100)
    assert renew(factory, "q") == factory.clock.later(100)
    assert get(factory, "q").expires_at.ToDatetime(UTC) == factory.clock.later(100)


@behavior(49)
@pytest.mark.parametrize("reason", ["ended", "expired", "unknown", "seen expired"])
def test_finished_query_is_not_renewed(factory, query, reason):
    query_id = "q"
    if reason == "ended":
        end(factory, "q")
    elif reason == "unknown":
        query_id = "other"
    else:
        factory.clock.advance(100)
        if reason == "seen expired":
            get(factory, "q")
    with expect_error(NotFound, "query.not_found", query_id=query_id):
        renew(factory, query_id, 1000)
    assert reason == "unknown" or get(factory, "q").state != v1.LS_ACTIVE


@behavior(49)
@pytest.mark.parametrize(("commit", "state"), [(True, v1.LS_ENDED_COMMIT), (False, v1.LS_ENDED_ABORT)])
def test_first_end_of_a_query_wins(factory, query, commit, state):
    end(factory, "q", commit=commit)
    first = get(factory, "q")
    assert first.state == state
    end(factory, "q", commit=not commit)
    assert get(factory, "q") == first
    with expect_error(NotFound, "query.not_found"):
        end(factory, "unknown")


def test_ended_query_can_be_read_during_its_grace_period(factory, query):
    factory.clock.advance(95)
    end(factory, "q")
    assert get(factory, "q").expires_at.ToDatetime(UTC) == factory.clock.later(15)
    factory.clock.advance(14.999)
    assert get(factory, "q").state == v1.LS_ENDED_COMMIT
    factory.clock.advance(0.001)
    with expect_error(NotFound, "query.not_found"):
        get(factory, "q")
    assert gc.sweep_expired(factory.stores) > 0
    assert damage(factory.stores) == []


def test_expired_query_can_be_read_during_its_grace_period_but_not_ended(factory, query, people):
    factory.clock.advance(100)
    assert get(factory, "q").state == v1.LS_EXPIRED
    end(factory, "q")
    assert get(factory, "q").state == v1.LS_EXPIRED
    with expect_error(PreconditionFailed, "query.not.active", state="expired"):
        pinned(factory, query, people)
    factory.clock.advance(15)
    with expect_error(NotFound, "query.not_found"):
        get(factory, "q")


@behavior(50)
def test_expiry_does_not_overwrite_a_renewal(factory, query, people):
    """A server whose clock lags renews the lease after it was found expired and before the expiry is written."""
    other = ResourceFactory(factory.stores, Clock(factory.clock()))
    other.clock.advance(99)
    factory.clock.advance(100)
    meanwhile(factory, LEASES, lambda: renew(other, "q", 50))
    found = get(factory, "q")
    assert (found.state, found.expires_at.ToDatetime(UTC)) == (v1.LS_ACTIVE, other.clock.later(50))
    assert pinned(factory, query, people).snapshot().snapshot_id == 2


@behavior(50)
def test_renewal_does_not_overwrite_an_end(factory, query):
    meanwhile(factory, LEASES, lambda: end(factory, "q"))
    with expect_error(NotFound, "query.not_found"):
        renew(factory, "q", 500)
    assert get(factory, "q").state == v1.LS_ENDED_COMMIT


@behavior(49, 75)
def test_short_renewal_does_not_shorten_a_concurrent_longer_one(factory, query, people):
    meanwhile(factory, "/pins/", lambda: renew(factory, "q", 1000))
    assert renew(factory, "q", 10) == factory.clock.later(1000)
    tables.delete(factory.home, v1.DeleteTableRequest(table_id=people.resource_id))
    factory.clock.advance(999)
    collect(factory)
    assert pinned(factory, query, people).snapshot().snapshot_id == 2


@behavior(59)
def test_query_is_not_visible_to_another_account(factory, query, people):
    factory.account("a2")
    foreign = factory.realm("a2")
    for call in (
        lambda: queries.get(foreign, v1.GetQueryRequest(query_id="q")),
        lambda: queries.renew(foreign, v1.RenewQueryRequest(query_id="q")),
        lambda: queries.end(foreign, v1.EndQueryRequest(query_id="q")),
        lambda: queries.pinned(foreign, "q", people.resource_id),
    ):
        with expect_error(NotFound, "query.not_found", query_id="q"):
            call()
    assert get(factory, "q") == query


def test_query_exists_for_its_caller_and_administrators_only(factory, people):
    ada, grace = (replace(factory.home, caller=name, administers=False) for name in ("ada", "grace"))
    begun = v1.BeginQueryRequest(
        query_id="own",
        default_catalog_id=factory.first_catalog().resource_id,
        inputs=[of_table(people)],
    )
    query = queries.begin(ada, begun).query
    for call in (
        lambda realm: queries.get(realm, v1.GetQueryRequest(query_id="own")),
        lambda realm: queries.renew(realm, v1.RenewQueryRequest(query_id="own")),
        lambda realm: queries.pinned(realm, "own", people.resource_id),
        lambda realm: queries.end(realm, v1.EndQueryRequest(query_id="own")),
    ):
        with expect_error(NotFound, "query.not_found", query_id="own"):
            call(grace)
        call(ada)
        call(factory.home)
    assert query.caller == "ada"


def test_query_is_visible_on_every_server_of_the_store(factory, query):
    elsewhere = Realm(factory.stores, "a1", clock=factory.clock)
    assert queries.get(elsewhere, v1.GetQueryRequest(query_id="q")).query == query


def test_number_of_active_queries_per_account_is_limited(factory):
    rules = QueryRules(max_leases=2)
    first = begin(factory, rules=rules)
    begin(factory, rules=rules)
    with expect_error(LimitExceeded, "query.too_many", found="2", limit="2"):
        begin(factory, rules=rules)
    end(factory, first.query_id)
    begin(factory, rules=rules)
    with expect_error(LimitExceeded, "query.too_many"):
        begin(factory, rules=rules)
    factory.clock.advance(60 + 15)
    begin(factory, rules=rules)


def test_table_that_is_not_an_input_is_not_pinned(factory, query, people):
    other = factory.table("other")
    with expect_error(NotFound, "query.table.not.pinned", table_id=other.resource_id.id):
        pinned(factory, query, other)
    with expect_error(InvalidArgument, "field", field="query_id"):
        queries.pinned(factory.home, " ", people.resource_id)


def test_query_may_read_more_tables_than_fit_in_one_batch(factory):
    limit_batches(factory, 8)
    many = [factory.table(f"t{number}") for number in range(9)]
    for table in many:
        factory.snapshot(table, 1)
    query = begin(factory, *map(of_table, many))
    renew(factory, query.query_id, 100)
    tables.delete(factory.home, v1.DeleteTableRequest(table_id=many[8].resource_id))
    collect(factory)
    assert pinned(factory, query, many[8]).table().display_name == "t8"
    end(factory, query.query_id)
    assert factory.stores.pointers.count("/pins/") == 0


@pytest.fixture(autouse=True)
def store_is_consistent(factory) -> Iterator[None]:
    yield
    assert damage(factory.stores) == []
