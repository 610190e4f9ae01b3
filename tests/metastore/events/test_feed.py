"""The events of an account: what they say, their order, who sees them, and how long."""

from __future__ import annotations

from base64 import urlsafe_b64decode
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from metastore.faults import Crashed, CrashPoint, crashing_stores
from metastore.managed_table_factory import ManagedTableFactory, id_of
from metastore.races import limit_batches
from metastore.resource_factory import ResourceFactory, expect_error, mask
from skiway.errors import InvalidArgument, PreconditionFailed
from skiway.formats.iceberg.changes.commits import append
from skiway.metastore import Realm, catalogs, connectors, events, gc, grants, jobs, managed, tables
from skiway.metastore import events as feed
from skiway.metastore.events import EventRules
from skiway.metastore.managed import TableChange
from skiway.metastore.records import keys
from skiway.metastore.records.access import AccessDecision
from skiway.metastore.records.journal import EVENT_KINDS, Journal
from skiway.metastore.records.kinds import KINDS
from skiway.metastore.resources import namespaces, snapshots, views
from skiway.model import v1
from skiway.security import MemorySecrets
from skiway.storage import ABSENT, Put

WITHOUT_EVENTS = {
    "snapshot": "an event of its table",
    "table_stats": "an event of its table",
    "column_stats": "an event of its table",
    "file_stats": "an event of its table",
    "lease": "queries change nothing",
    "transaction": "nothing is committed until its tables change",
    "idempotency": "belongs to the change that it protects",
    "column_tags": "an event of its table",
    "rule_results": "an event of its rule, if the status changes",
    "job_log": "an event of its job",
}


def read(realm: Realm, after: int = 0, limit: int = 0) -> list[v1.Event]:
    return list(events.list_(realm, v1.ListEventsRequest(after=after, limit=limit)).events)


def told(realm: Realm, after: int = 0) -> list[tuple[str, ...]]:
    """Kind, action and name of all events."""
    return [(each.kind, each.action, each.name) for each in read(realm, after, 1000)]


def test_every_kind_of_resource_has_events_or_a_reason() -> None:
    assert {kind.noun for kind in KINDS} == EVENT_KINDS.keys() | WITHOUT_EVENTS.keys()


def test_events_say_what_happened(factory: ResourceFactory) -> None:
    home = replace(factory.home, caller="ada")
    catalog, namespace, view = factory.catalog(), factory.namespace("sales", "eu"), factory.view()
    table = factory.table()
    request = v1.UpdateTableRequest(
        table_id=table.resource_id, spec=v1.TableSpec(display_name="folk"), update_mask=mask("display_name")
    )
    tables.update(home, request)
    factory.snapshot(table, 7, at=7)
    views.delete(home, v1.DeleteViewRequest(view_id=view.resource_id))
    grants.add(home, v1.AddGrantRequest(object_id=table.resource_id, grantee="user:bob", privilege=v1.PV_READ))
    grants.revoke(home, v1.RevokeGrantRequest(object_id=table.resource_id, grantee="user:bob"))
    tables.delete(home, v1.DeleteTableRequest(table_id=table.resource_id))
    found = read(home)
    assert [(each.kind, each.action, each.name) for each in found] == [
        ("account", "created", "account a1"),
        ("catalog", "created", "lake"),
        ("namespace", "created", "sales"),
        ("namespace", "created", "sales.eu"),
        ("view", "created", "adults"),
        ("table", "created", "people"),
        ("table", "renamed", "folk"),
        ("table", "committed", ""),
        ("view", "deleted", "adults"),
        ("grant", "created", ""),
        ("grant", "deleted", ""),
        ("table", "deleted", "folk"),
    ]
    assert [each.sequence for each in found] == list(range(1, 13))
    renamed, committed, revoked, dropped = found[6], found[7], found[10], found[11]
    assert (renamed.previous_name, renamed.caller, renamed.object_id) == ("people", "ada", table.resource_id.id)
    assert renamed.namespace_id == dropped.namespace_id == table.namespace_id.id
    assert committed.snapshot_id == 7
    assert (revoked.detail, revoked.object_id) == ("user:bob", table.resource_id.id)
    assert found[3].catalog_id == catalog.resource_id.id == namespace.catalog_id.id
    assert not found[1].caller
    assert found[5].occurred_at.ToDatetime() == factory.clock().replace(tzinfo=None)


def test_failed_and_unnecessary_changes_have_no_events(factory: ResourceFactory) -> None:
    factory.catalog()
    before = len(read(factory.home))
    with pytest.raises(Exception, match="already exists"):
        factory.catalog()
    same = v1.UpdateCatalogRequest(
        catalog_id=factory.first_catalog().resource_id,
        spec=v1.CatalogSpec(display_name="lake"),
        update_mask=mask("display_name"),
    )
    catalogs.update(factory.home, same)
    assert len(read(factory.home)) == before


def test_deleting_a_full_namespace_has_one_event_per_object(factory: ResourceFactory) -> None:
    table = factory.table()
    for number in (1, 2):
        factory.snapshot(table, number, at=number)
    factory.view()
    before = len(read(factory.home))
    request = v1.DeleteNamespaceRequest(namespace_id=table.namespace_id, require_empty=False)
    namespaces.delete(factory.home, request)
    assert sorted(told(factory.home, before)) == [
        ("namespace", "deleted", "sales"),
        ("table", "deleted", "people"),
        ("view", "deleted", "adults"),
    ]


def test_commit_to_several_tables_has_events_with_one_change_id(factory: ResourceFactory, tmp_path: Path) -> None:
    lake = ManagedTableFactory.at(factory, tmp_path)
    one, two = lake.create("one"), lake.create("two")
    before = len(read(factory.home))
    changes = [TableChange(id_of(table), append(lake.write(table, 1))) for table in (one, two)]
    made = managed.change_all(lake.home, lake.warehouse, changes)
    found = read(factory.home, before)
    assert sorted((each.kind, each.action, each.name, each.snapshot_id) for each in found) == sorted(
        ("table", "committed", table.table.display_name, table.metadata.current_snapshot_id) for table in made
    )
    assert len({each.change_id for each in found}) == 1


def test_restored_table_is_created_after_it_was_deleted(factory: ResourceFactory, tmp_path: Path) -> None:
    lake = ManagedTableFactory.at(factory, tmp_path)
    table = lake.append(lake.create(), 1)
    factory.clock.advance(1)
    managed.drop(lake.home, lake.warehouse, id_of(table))
    factory.clock.advance(1)
    restored = managed.undrop(lake.home, lake.warehouse, table.table.namespace_id, "people")
    factory.clock.advance(1)
    lake.append(restored, 2)
    found = [each.action for each in read(lake.home) if each.kind == "table"]
    assert found == ["created", "committed", "deleted", "created", "committed"]


def test_job_has_events_of_its_states_only(factory: ResourceFactory) -> None:
    factory.catalog()
    spec = v1.ConnectorSpec(
        display_name="files",
        kind=v1.CK_PARQUET,
        uri="file:///x",
        destination=v1.ConnectorDestination(catalog_display_name="lake"),
    )
    made = connectors.create(factory.home, v1.CreateConnectorRequest(spec=spec), secrets=MemorySecrets()).connector
    before = len(read(factory.home))
    connectors.trigger(factory.home, v1.TriggerReconcileRequest(connector_id=made.resource_id))
    queue = jobs.JobQueue(factory.stores, clock=factory.clock)
    lease = queue.lease("w")
    assert lease is not None
    lease = queue.renew(lease)
    queue.complete(lease, jobs.Progress())
    found = read(factory.home, before)
    assert [(each.kind, each.action, each.detail) for each in found] == [
        ("job", "created", "queued"),
        ("job", "changed", "running"),
        ("sync", "succeeded", ""),
        ("job", "changed", "succeeded"),
    ]


# --- order ------------------------------------------------------------------------------------------------------------


def test_events_of_a_table_are_in_the_order_of_their_commits_whatever_the_clocks_say(
    factory: ResourceFactory, tmp_path: Path
) -> None:
    lake = ManagedTableFactory.at(factory, tmp_path)
    table = lake.create()
    servers = [replace(lake.home, clock=lambda n=n: factory.clock() - timedelta(hours=n)) for n in range(5)]  # type: ignore[misc]
    ids = [
        lake.append(table, number, realm=server).metadata.current_snapshot_id for number, server in enumerate(servers)
    ]
    found = [each for each in read(lake.home) if each.kind == "table"]
    assert [each.snapshot_id for each in found[1:]] == ids
    assert found[0].action == "created"


def test_mirrored_snapshots_and_changes_of_the_record_are_in_order(factory: ResourceFactory) -> None:
    table = factory.table()
    clocks = [timedelta(hours=-n) for n in range(4)]
    realms = [replace(factory.home, clock=lambda each=each: factory.clock() + each) for each in clocks]  # type: ignore[misc]

    def describe(realm: Realm) -> None:
        request = v1.UpdateTableRequest(
            table_id=table.resource_id, spec=v1.TableSpec(description=str(id(realm))), update_mask=mask("description")
        )
        tables.update(realm, request)

    def snapshot(realm: Realm, number: int) -> None:
        spec = v1.SnapshotSpec(table_id=table.resource_id, snapshot_id=number)
        spec.upstream_created_at.seconds = number
        snapshots.create(realm, v1.CreateSnapshotRequest(spec=spec))

    snapshot(realms[0], 1)
    snapshot(realms[1], 2)
    describe(realms[2])
    snapshot(realms[3], 3)
    found = [(each.action, each.snapshot_id) for each in read(factory.home) if each.kind == "table"]
    assert found == [("created", 0), ("committed", 1), ("committed", 2), ("changed", 0), ("committed", 3)]


def test_batch_that_does_not_name_the_version_of_a_table_is_ordered_by_time(factory: ResourceFactory) -> None:
    table = factory.table()
    factory.clock.advance(1)
    current = keys.current_snapshot("a1", table.resource_id.id)
    factory.home.stores.pointers.apply([Put(current, "5", expect=ABSENT)])
    found = [(each.action, each.snapshot_id) for each in read(factory.home) if each.kind == "table"]
    assert found == [("created", 0), ("committed", 5)]


def test_deleting_the_rest_of_a_dropped_table_fits_into_a_batch(factory: ResourceFactory) -> None:
    """It uses the whole batch, so nothing may be added to it."""
    table = factory.table()
    for number in range(4):
        factory.snapshot(table, number, at=number)
    limit_batches(factory, 10)
    tables.delete(factory.home, v1.DeleteTableRequest(table_id=table.resource_id))
    assert list(factory.stores.pointers.scan(keys.of_table("a1", table.resource_id.id))) == []
    assert told(factory.home)[-1] == ("table", "deleted", "people")


def test_event_that_a_listing_misses_is_numbered_before_later_ones(
    factory: ResourceFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first listing passes the place of an event before it is stored, and then finds the next one."""
    factory.catalog()
    listed, hidden = feed._listed, []

    def partly(pointers: Any, account_id: str) -> Any:
        found = listed(pointers, account_id)
        if not hidden:
            hidden.append(min(found, key=lambda each: each.order))
            return [each for each in found if each.of == ("catalog", catalog.resource_id.id)][1:]
        return found

    catalog = factory.first_catalog()
    for text in ("one", "two"):
        request = v1.UpdateCatalogRequest(
            catalog_id=catalog.resource_id, spec=v1.CatalogSpec(description=text), update_mask=mask("description")
        )
        catalogs.update(factory.home, request)
    monkeypatch.setattr(feed, "_listed", partly)
    assert [each.action for each in read(factory.home) if each.kind == "catalog"] == ["created", "changed", "changed"]
    versions = [each.sequence for each in read(factory.home) if each.kind == "catalog"]
    assert versions == sorted(versions)


def test_writers_of_different_tables_do_not_conflict(factory: ResourceFactory) -> None:
    """Each batch contains the pointers of one table and new pointers for events only."""
    batches: list[Any] = []
    store = type(factory.stores.pointers)
    apply = store._apply
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "_apply", lambda self, batch: (batches.append(batch), apply(self, batch))[1])
        factory.table("one")
        factory.table("two", namespace=factory.first_namespace())
    written = [
        {operation.key for operation in batch if isinstance(operation, Put) and operation.expect != ABSENT}
        for batch in batches
    ]
    assert not any(written), "no pointer is shared"
    keys_of = [{operation.key for operation in batch if isinstance(operation, Put)} for batch in batches]
    assert all(not (one & two) for n, one in enumerate(keys_of) for two in keys_of[n + 1 :])


def test_concurrent_readers_and_writers_see_each_event_once(factory: ResourceFactory) -> None:
    factory.catalog()
    namespace = factory.namespace("sales")

    def write(number: int) -> None:
        factory.table(f"t{number}", namespace=namespace)

    def follow(_: int) -> list[v1.Event]:
        cursor, seen = 0, list[v1.Event]()
        for _ in range(30):
            response = events.list_(factory.home, v1.ListEventsRequest(after=cursor, limit=3))
            cursor = response.cursor
            seen += response.events
        return seen

    with ThreadPoolExecutor(8) as pool:
        readers = pool.map(follow, range(3))
        list(pool.map(write, range(12)))
        followed = list(readers)
    complete = read(factory.home, limit=1000)
    assert [each.sequence for each in complete] == list(range(1, 16))
    for seen in followed:
        assert seen == complete[: len(seen)], "an event never appears before one that was read"
    assert sorted(each.name for each in complete if each.kind == "table") == sorted(f"t{n}" for n in range(12))


@pytest.mark.parametrize("when", ["before", "after"])
def test_crash_while_events_are_numbered_loses_and_repeats_none(factory: ResourceFactory, when: Any) -> None:
    at = 0
    while True:
        at += 1
        factory.table(f"t{at}")
        crash_point = CrashPoint(at, when)
        with suppress(Crashed):
            read(replace(factory.home, stores=crashing_stores(factory.stores, crash_point)))
        if crash_point.done < at:
            break
    found = read(factory.home, limit=1000)
    assert [each.sequence for each in found] == list(range(1, len(found) + 1))
    assert [each.name for each in found if each.kind == "table"] == [f"t{n + 1}" for n in range(at)]


def test_store_with_small_batches_numbers_all_events(factory: ResourceFactory) -> None:
    for number in range(6):
        factory.table(f"t{number}")
    limit_batches(factory, 5)
    assert [each.sequence for each in read(factory.home)] == list(range(1, 10))


# --- reading ----------------------------------------------------------------------------------------------------------


def test_cursor_continues_where_a_page_ended(factory: ResourceFactory) -> None:
    factory.table()
    first = events.list_(factory.home, v1.ListEventsRequest(limit=2))
    second = events.list_(factory.home, v1.ListEventsRequest(after=first.cursor, limit=2))
    assert [each.sequence for each in (*first.events, *second.events)] == [1, 2, 3, 4]
    end = events.list_(factory.home, v1.ListEventsRequest(after=second.cursor))
    assert (list(end.events), end.cursor) == ([], 4)
    factory.view()
    assert told(factory.home, end.cursor) == [("view", "created", "adults")]


def test_positions_that_cannot_be_valid_are_rejected(factory: ResourceFactory) -> None:
    factory.catalog()
    with expect_error(InvalidArgument, "field.invalid", field="after"):
        read(factory.home, -1)
    with expect_error(InvalidArgument, "events.after", found="3", last="2"):
        read(factory.home, 3)


def test_expired_events_are_deleted_and_a_reader_that_missed_some_is_told(factory: ResourceFactory) -> None:
    factory.catalog()
    assert len(read(factory.home)) == 2
    factory.clock.advance(7 * 86400 - 1)
    factory.namespace("new")
    assert len(read(factory.home)) == 3
    factory.clock.advance(1)
    assert [each.sequence for each in read(factory.home)] == [3]
    assert told(factory.home, 2) == [("namespace", "created", "new")]
    with expect_error(PreconditionFailed, "events.expired", after="1", first="3"):
        read(factory.home, 1)
    gc.sweep_expired(factory.stores)
    assert len(list(factory.stores.pointers.scan("/events/feed/"))) == 1


def test_garbage_collection_numbers_events_that_nobody_reads(factory: ResourceFactory) -> None:
    factory.account("a2")
    factory.catalog()
    assert gc.sweep_events(factory.stores, dry_run=True).looked_at == 3
    gc.sweep_events(factory.stores)
    assert list(factory.stores.pointers.scan(keys.event_pending())) == []
    assert feed.head(factory.stores.pointers, "a1") == 2
    assert feed.head(factory.stores.pointers, "a2") == 1


def test_watcher_gets_events_as_they_happen(factory: ResourceFactory) -> None:
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds
        if now[0] == 1.0:
            factory.catalog()

    rules = EventRules(poll_s=0.5, sleep=sleep, monotonic=lambda: now[0])
    request = v1.WatchEventsRequest(wait_seconds=2)
    seen = list(events.watch(factory.home, request, rules=rules))
    assert [(each.kind, each.action) for response in seen for each in response.events] == [
        ("account", "created"),
        ("catalog", "created"),
    ]
    assert seen[-1].cursor == 2
    assert now[0] == 2.0


# --- accounts and callers ---------------------------------------------------------------------------------------------


def test_accounts_have_feeds_of_their_own(factory: ResourceFactory) -> None:
    factory.account("a2")
    factory.catalog()
    assert told(factory.realm("a2")) == [("account", "created", "account a2")]
    assert told(factory.home) == [("account", "created", "account a1"), ("catalog", "created", "lake")]


def granted(factory: ResourceFactory, *grantees: str) -> Realm:
    decision = AccessDecision(lambda: factory.stores, "a1", allows=lambda _: False, grantees=grantees)
    return replace(factory.home, access=decision)


def test_caller_with_grants_sees_the_events_of_these_objects(factory: ResourceFactory) -> None:
    table, other = factory.table(), factory.table("secret")
    factory.view()
    hidden = factory.namespace("hr")
    for kind, object_id in (("ada", table.resource_id), ("bob", table.catalog_id), ("eve", table.namespace_id)):
        request = v1.AddGrantRequest(object_id=object_id, grantee=f"user:{kind}", privilege=v1.PV_READ)
        grants.add(factory.home, request)
    assert told(granted(factory, "user:ada")) == [
        ("catalog", "created", "lake"),
        ("namespace", "created", "sales"),
        ("table", "created", "people"),
    ]
    inside = [*told(granted(factory, "user:ada")), ("table", "created", "secret"), ("view", "created", "adults")]
    assert told(granted(factory, "user:eve")) == inside
    assert told(granted(factory, "user:bob")) == [*inside, ("namespace", "created", "hr")]
    assert told(granted(factory, "user:nobody")) == []
    cursor = events.list_(granted(factory, "user:nobody"), v1.ListEventsRequest()).cursor
    assert cursor == len(read(factory.home)), "the position advances over hidden events"
    assert (other.display_name, hidden.display_name) == ("secret", "hr")


def test_journal_keeps_names_of_several_objects_apart(factory: ResourceFactory) -> None:
    def name(object_id: str, text: str) -> list[Put]:
        blob = f"accounts/a1/tables/by-id/{object_id}/aa/{object_id}.pb"
        named = (keys.table("a1", object_id), keys.table_name("a1", "n1", text))
        return [Put(key, blob, expect=ABSENT) for key in named]

    entries = Journal(factory.clock).entries([*name("t1", "one"), *name("t2", "two/2")])
    found = [v1.PendingEvent.FromString(urlsafe_b64decode(put.blob_uri)).event for put in entries]
    assert [(each.object_id, each.name) for each in found] == [("t1", "one"), ("t2", "two/2")]


def test_newest_events_end_where_the_feed_does(factory: ResourceFactory) -> None:
    everything = [factory.table(f"t{number}") and read(factory.home, 0, 1000) for number in range(4)][-1]
    found = events.list_(factory.home, v1.ListEventsRequest(newest=True, limit=2, after=999))
    assert (list(found.events), found.cursor) == (everything[-2:], everything[-1].sequence)
    assert read(factory.home, found.cursor) == []
    assert list(events.list_(factory.home, v1.ListEventsRequest(newest=True, limit=1000)).events) == everything


def test_newest_events_of_an_empty_feed(factory: ResourceFactory) -> None:
    found = events.list_(replace(factory.home, account_id="nobody"), v1.ListEventsRequest(newest=True))
    assert (list(found.events), found.cursor) == ([], 0)


def test_many_events_are_listed_twice_and_not_once_per_batch(
    factory: ResourceFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(12):
        factory.table(f"t{number}")
    listings: list[str] = []
    listed = feed._listed
    monkeypatch.setattr(feed, "_listed", lambda *given: listings.append("") or listed(*given))
    limit_batches(factory, 7)
    done = feed.sequence_pending(factory.home.stores.pointers, factory.home.account_id)
    assert done > 12
    assert [each.sequence for each in read(factory.home, 0, 1000)] == [*range(1, done + 1)]
    assert len(listings) <= 6  # two, and one that finds nothing, for each of the two calls
