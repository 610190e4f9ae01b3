from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from threading import Event, Thread
from typing import Any

import pytest

from metastore.wholeness import damage
from metastore.world import World, behaviour, key, mask
from skiway.errors import Unavailable
from skiway.metastore import Realm, gc
from skiway.metastore.records import keys
from skiway.metastore.records.kinds import JOB, SNAPSHOT
from skiway.metastore.records.realm import timestamp
from skiway.metastore.resources import catalogs, tables
from skiway.model import v1
from skiway.storage import open_stores
from storage.homes import Clock

HOUR = 3600.0


def real_now() -> datetime:
    return datetime.now(UTC)


def later() -> datetime:
    """Blobs are as old as the machine says, so the collector's clock runs ahead of it."""
    return real_now() + timedelta(hours=1)


def describe(world: World, catalog: v1.Catalog, text: str) -> None:
    request = v1.UpdateCatalogRequest(
        catalog_id=catalog.resource_id, spec=v1.CatalogSpec(description=text), update_mask=mask("description")
    )
    catalogs.update(world.home, request)


def uris(world: World) -> set[str]:
    return {head.uri for head in world.stores.blobs.scan()}


def named(world: World) -> set[str]:
    return {pointer.blob_uri for pointer in world.stores.pointers.scan()}


@behaviour(75)
def test_blobs_that_nobody_names_are_removed_when_they_are_old(world):
    catalog = world.catalog()
    describe(world, catalog, "two")
    old = uris(world) - named(world)
    assert len(old) == 1
    young = gc.sweep_blobs(world.stores, clock=real_now, min_age_s=HOUR)
    assert (young.removed, young.looked_at) == ((), len(uris(world)))
    dry = gc.sweep_blobs(world.stores, clock=later, dry_run=True)
    assert set(dry.removed) == old <= uris(world)
    assert set(gc.sweep_blobs(world.stores, clock=later).removed) == old
    assert uris(world) == named(world)
    assert damage(world.stores) == []


@behaviour(75)
def test_pinned_blobs_and_blobs_of_others_stay(world):
    catalog = world.catalog()
    describe(world, catalog, "two")
    (old,) = uris(world) - named(world)
    foreign = world.stores.blobs.put(b"not ours", folder="elsewhere")
    assert gc.sweep_blobs(world.stores, clock=later, pinned=lambda uri: uri == old).removed == ()
    assert {old, foreign} <= uris(world)


@behaviour(75)
def test_a_sweep_that_cannot_read_pointers_removes_nothing(world, monkeypatch):
    catalog = world.catalog()
    describe(world, catalog, "two")
    before = uris(world)
    asked = []

    def get(self: Any, key_: str) -> None:
        asked.append(key_)
        if len(asked) > 1:
            raise Unavailable("gone for a moment")

    monkeypatch.setattr(type(world.stores.pointers), "get", get)
    with pytest.raises(Unavailable):
        gc.sweep_blobs(world.stores, clock=later)
    assert uris(world) == before


@behaviour(75)
def test_a_blob_that_is_written_again_meanwhile_stays(world, monkeypatch):
    """Its writer is about to name it."""
    catalog = world.catalog()
    describe(world, catalog, "two")
    (old,) = uris(world) - named(world)
    head = type(world.stores.blobs).head

    def refreshed(self: Any, uri: str) -> Any:
        return replace(head(self, uri), modified_at=later())

    monkeypatch.setattr(type(world.stores.blobs), "head", refreshed)
    assert gc.sweep_blobs(world.stores, clock=later).removed == ()
    assert old in uris(world)


@behaviour(42)
def test_expired_keys_go_with_their_blobs_and_others_stay(world):
    request = v1.CreateCatalogRequest(spec=v1.CatalogSpec(display_name="lake"), idempotency=key("k"))
    first = catalogs.create(world.home, request)
    assert gc.sweep_blobs(world.stores, clock=later).removed == ()
    assert gc.sweep_expired(world.stores) == 0
    world.clock.advance(900)
    assert gc.sweep_expired(world.stores) == 1
    assert len(gc.sweep_blobs(world.stores, clock=later).removed) == 1
    assert catalogs.get(world.home, v1.GetCatalogRequest(catalog_id=first.catalog.resource_id)).meta == first.meta


@behaviour(76)
def test_names_without_a_resource_are_removed_and_nothing_else(world):
    keep, lose = world.catalog("keep"), world.catalog("lose")
    request = v1.CreateCatalogRequest(spec=v1.CatalogSpec(display_name="other"), idempotency=key("k"))
    catalogs.create(world.home, request)
    table = world.table()
    world.snapshot(table, 1)
    world.stores.pointers.compare_and_delete(keys.catalog("a1", lose.resource_id.id), expect=1)
    before = list(world.stores.pointers.scan())
    name = keys.catalog_name("a1", "lose")
    assert gc.sweep_pointers(world.stores, dry_run=True).removed == (name,)
    assert list(world.stores.pointers.scan()) == before
    assert gc.sweep_pointers(world.stores).removed == (name,)
    assert [each for each in before if each.key != name] == list(world.stores.pointers.scan())
    assert catalogs.get(world.home, v1.GetCatalogRequest(catalog_id=keep.resource_id)).catalog == keep
    world.catalog("lose")


@behaviour(76)
def test_an_account_may_be_called_like_a_part_of_keys(world):
    world.account("idempotency")
    realm = world.realm("idempotency")
    request = v1.CreateCatalogRequest(spec=v1.CatalogSpec(display_name="x"))
    catalog = catalogs.create(realm, request).catalog
    world.stores.pointers.compare_and_delete(keys.catalog("idempotency", catalog.resource_id.id), expect=1)
    assert len(gc.sweep_pointers(world.stores).removed) == 1


@behaviour(76)
def test_what_is_left_of_a_deleted_table_is_removed(world):
    table = world.table()
    tables.delete(world.home, v1.DeleteTableRequest(table_id=table.resource_id))
    world.home.all(SNAPSHOT).create(v1.Snapshot(table_id=table.resource_id, snapshot_id=1))
    pointer = keys.current_snapshot("a1", table.resource_id.id)
    world.stores.pointers.compare_and_set(pointer, "1", expect=0)
    assert len(gc.sweep_pointers(world.stores).removed) == 3
    assert list(world.stores.pointers.scan(keys.of_table("a1", table.resource_id.id))) == []


@behaviour(76)
def test_a_resource_whose_blob_is_lost_is_reported_and_kept(world):
    created = catalogs.create(world.home, v1.CreateCatalogRequest(spec=v1.CatalogSpec(display_name="x")))
    world.stores.blobs.delete(created.meta.blob_uri)
    swept = gc.sweep_pointers(world.stores)
    assert (swept.damaged, swept.removed) == ((created.meta.pointer_key,), ())


def test_jobs_that_were_over_long_ago_are_removed(world):
    week = timedelta(days=7, seconds=1)
    for job_id, state, age in [
        ("old", v1.JS_SUCCEEDED, week),
        ("failed", v1.JS_FAILED, week),
        ("young", v1.JS_SUCCEEDED, timedelta(days=6)),
        ("running", v1.JS_RUNNING, week),
    ]:
        finished_at = timestamp(world.clock() - age)
        job = v1.Job(account_id="a1", job_id=job_id, state=state, finished_at=finished_at)
        world.home.all(JOB).create(job)
    removed = gc.sweep_jobs(world.stores, clock=world.clock).removed
    assert removed == (keys.job("a1", "failed"), keys.job("a1", "old"))


@behaviour(77)
@pytest.mark.parametrize(("size", "accounts"), [(1, 50), (2, 1), (200, 1), (200, 50)])
def test_jobs_of_all_accounts_are_swept_once_each_also_of_accounts_that_are_gone(world, size, accounts):
    long_ago = timestamp(world.clock() - timedelta(days=8))
    expected = []
    for account in ("a-1", "a1", "a1.b", "gone", "z"):
        for number in range(3):
            job = v1.Job(account_id=account, job_id=f"j{number}", state=v1.JS_FAILED, finished_at=long_ago)
            world.realm(account).all(JOB).create(job)
            expected.append(keys.job(account, f"j{number}"))
    seen: list[str] = []
    token, slices = None, 0
    while token is not None or not slices:
        done = gc.sweep_jobs(world.stores, clock=world.clock, size=size, accounts=accounts, token=token, dry_run=True)
        seen, token, slices = [*seen, *done.removed], done.next_token, slices + 1
    assert sorted(seen) == sorted(expected)
    assert (slices == 1) == ((size, accounts) == (200, 50))
    assert world.stores.pointers.get(expected[0]) is not None  # nothing goes in a dry run


@behaviour(77)
def test_slices_go_on_where_the_last_one_ended(world):
    for number in range(5):
        describe(world, world.catalog(str(number)), "two")
    old = uris(world) - named(world)
    token, removed, slices = None, [], 0
    while True:
        step = gc.sweep_blobs(world.stores, clock=later, size=3, token=token)
        assert step.looked_at <= 3
        removed += step.removed
        slices += 1
        if (token := step.next_token) is None:
            break
    assert set(removed) == old
    assert slices >= 4


@behaviour(77)
def test_a_run_stops_when_its_time_is_used_up(world):
    for number in range(5):
        describe(world, world.catalog(str(number)), "two")
    ticks = iter(range(100))

    def sweep(token: str | None) -> gc.Slice:
        return gc.sweep_blobs(world.stores, clock=later, size=2, token=token)

    part = gc.run(sweep, seconds=2, monotonic=lambda: next(ticks))
    assert part.looked_at == 4
    assert part.next_token is not None
    rest = gc.run(sweep, seconds=HOUR, token=part.next_token)
    assert rest.next_token is None
    assert uris(world) == named(world)


def test_a_collector_does_not_disturb_writers(tmp_path):
    """Writers and a collector that spares only what is younger than ten seconds, for as long as a round takes."""
    with open_stores(f"sqlite:///{tmp_path}/p.db") as stores:
        world = World(stores, Clock(real_now()))
        realm, over = Realm(stores, "a1"), Event()
        catalog = world.catalog()

        def write() -> None:
            for number in range(40):
                describe(world, catalog, str(number))
                made = catalogs.create(
                    realm, v1.CreateCatalogRequest(spec=v1.CatalogSpec(display_name=f"c{number}"))
                ).catalog
                if number % 2:
                    catalogs.delete(realm, v1.DeleteCatalogRequest(catalog_id=made.resource_id))
            over.set()

        writer = Thread(target=write)
        writer.start()
        while not over.is_set():
            gc.run(lambda token: gc.sweep_blobs(stores, clock=real_now, min_age_s=10, token=token), seconds=9)
            swept = gc.sweep_pointers(stores)
            assert (swept.removed, swept.damaged) == ((), ())
        writer.join()
        assert damage(stores) == []
        assert catalogs.list_(realm, v1.ListCatalogsRequest()).page.total_size == 21
