from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from threading import Event, Thread
from typing import Any

import pytest

from metastore.integrity import damage
from metastore.resource_factory import ResourceFactory, behavior, key, mask
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


def one_hour_ahead() -> datetime:
    """A clock for gc that is ahead: the age of blobs follows the clock of the machine."""
    return real_now() + timedelta(hours=1)


def describe(factory: ResourceFactory, catalog: v1.Catalog, text: str) -> None:
    request = v1.UpdateCatalogRequest(
        catalog_id=catalog.resource_id, spec=v1.CatalogSpec(description=text), update_mask=mask("description")
    )
    catalogs.update(factory.home, request)


def stored_blobs(factory: ResourceFactory) -> set[str]:
    return {head.uri for head in factory.stores.blobs.scan()}


def referenced_blobs(factory: ResourceFactory) -> set[str]:
    return {pointer.blob_uri for pointer in factory.stores.pointers.scan("/accounts/")}


@behavior(75)
def test_old_unreferenced_blobs_are_deleted(factory):
    catalog = factory.catalog()
    describe(factory, catalog, "two")
    unreferenced = stored_blobs(factory) - referenced_blobs(factory)
    assert len(unreferenced) == 1
    recent = gc.sweep_blobs(factory.stores, clock=real_now, min_age_s=HOUR)
    assert (recent.removed, recent.looked_at) == ((), len(stored_blobs(factory)))
    dry_run = gc.sweep_blobs(factory.stores, clock=one_hour_ahead, dry_run=True)
    assert set(dry_run.removed) == unreferenced <= stored_blobs(factory)
    assert set(gc.sweep_blobs(factory.stores, clock=one_hour_ahead).removed) == unreferenced
    assert stored_blobs(factory) == referenced_blobs(factory)
    assert damage(factory.stores) == []


@behavior(75)
def test_pinned_and_unrelated_blobs_are_kept(factory):
    catalog = factory.catalog()
    describe(factory, catalog, "two")
    (unreferenced,) = stored_blobs(factory) - referenced_blobs(factory)
    unrelated = factory.stores.blobs.put(b"not ours", folder="elsewhere")
    assert gc.sweep_blobs(factory.stores, clock=one_hour_ahead, pinned=lambda uri: uri == unreferenced).removed == ()
    assert {unreferenced, unrelated} <= stored_blobs(factory)


@behavior(75)
def test_sweep_that_cannot_read_pointers_deletes_nothing(factory, monkeypatch):
    catalog = factory.catalog()
    describe(factory, catalog, "two")
    before = stored_blobs(factory)
    requested = []

    def get(self: Any, key_: str) -> None:
        requested.append(key_)
        if len(requested) > 1:
            raise Unavailable("gone for a moment")

    monkeypatch.setattr(type(factory.stores.pointers), "get", get)
    with pytest.raises(Unavailable):
        gc.sweep_blobs(factory.stores, clock=one_hour_ahead)
    assert stored_blobs(factory) == before


@behavior(75)
def test_blob_rewritten_during_a_sweep_is_kept(factory, monkeypatch):
    """Its writer is about to create a reference to it."""
    catalog = factory.catalog()
    describe(factory, catalog, "two")
    (unreferenced,) = stored_blobs(factory) - referenced_blobs(factory)
    head = type(factory.stores.blobs).head

    def refreshed(self: Any, uri: str) -> Any:
        return replace(head(self, uri), modified_at=one_hour_ahead())

    monkeypatch.setattr(type(factory.stores.blobs), "head", refreshed)
    assert gc.sweep_blobs(factory.stores, clock=one_hour_ahead).removed == ()
    assert unreferenced in stored_blobs(factory)


@behavior(42)
def test_expired_idempotency_keys_are_deleted_with_their_blobs(factory):
    request = v1.CreateCatalogRequest(spec=v1.CatalogSpec(display_name="lake"), idempotency=key("k"))
    first = catalogs.create(factory.home, request)
    assert gc.sweep_blobs(factory.stores, clock=one_hour_ahead).removed == ()
    assert gc.sweep_expired(factory.stores) == 0
    factory.clock.advance(900)
    assert gc.sweep_expired(factory.stores) == 1
    assert len(gc.sweep_blobs(factory.stores, clock=one_hour_ahead).removed) == 1
    assert catalogs.get(factory.home, v1.GetCatalogRequest(catalog_id=first.catalog.resource_id)).meta == first.meta


@behavior(76)
def test_only_names_without_a_resource_are_deleted(factory):
    keep, dangling = factory.catalog("keep"), factory.catalog("lose")
    request = v1.CreateCatalogRequest(spec=v1.CatalogSpec(display_name="other"), idempotency=key("k"))
    catalogs.create(factory.home, request)
    table = factory.table()
    factory.snapshot(table, 1)
    factory.stores.pointers.compare_and_delete(keys.catalog("a1", dangling.resource_id.id), expect=1)
    before = list(factory.stores.pointers.scan())
    name = keys.catalog_name("a1", "lose")
    assert gc.sweep_pointers(factory.stores, dry_run=True).removed == (name,)
    assert list(factory.stores.pointers.scan()) == before
    assert gc.sweep_pointers(factory.stores).removed == (name,)
    assert [each for each in before if each.key != name] == list(factory.stores.pointers.scan())
    assert catalogs.get(factory.home, v1.GetCatalogRequest(catalog_id=keep.resource_id)).catalog == keep
    factory.catalog("lose")


@behavior(76)
def test_account_id_may_equal_a_key_segment(factory):
    factory.account("idempotency")
    realm = factory.realm("idempotency")
    request = v1.CreateCatalogRequest(spec=v1.CatalogSpec(display_name="x"))
    catalog = catalogs.create(realm, request).catalog
    factory.stores.pointers.compare_and_delete(keys.catalog("idempotency", catalog.resource_id.id), expect=1)
    assert len(gc.sweep_pointers(factory.stores).removed) == 1


@behavior(76)
def test_remains_of_a_deleted_table_are_deleted(factory):
    table = factory.table()
    tables.delete(factory.home, v1.DeleteTableRequest(table_id=table.resource_id))
    factory.home.all(SNAPSHOT).create(v1.Snapshot(table_id=table.resource_id, snapshot_id=1))
    pointer = keys.current_snapshot("a1", table.resource_id.id)
    factory.stores.pointers.compare_and_set(pointer, "1", expect=0)
    assert len(gc.sweep_pointers(factory.stores).removed) == 3
    assert list(factory.stores.pointers.scan(keys.of_table("a1", table.resource_id.id))) == []


@behavior(76)
def test_resource_with_a_missing_blob_is_reported_and_kept(factory):
    created = catalogs.create(factory.home, v1.CreateCatalogRequest(spec=v1.CatalogSpec(display_name="x")))
    factory.stores.blobs.delete(created.meta.blob_uri)
    result = gc.sweep_pointers(factory.stores)
    assert (result.damaged, result.removed) == ((created.meta.pointer_key,), ())


def test_old_finished_jobs_are_deleted(factory):
    week = timedelta(days=7, seconds=1)
    for job_id, state, age in [
        ("old", v1.JS_SUCCEEDED, week),
        ("failed", v1.JS_FAILED, week),
        ("partial", v1.JS_PARTIAL, week),
        ("young", v1.JS_SUCCEEDED, timedelta(days=6)),
        ("running", v1.JS_RUNNING, week),
    ]:
        finished_at = timestamp(factory.clock() - age)
        job = v1.Job(account_id="a1", job_id=job_id, state=state, finished_at=finished_at)
        factory.home.all(JOB).create(job)
    removed = gc.sweep_jobs(factory.stores, clock=factory.clock).removed
    assert removed == tuple(keys.job("a1", name) for name in ("failed", "old", "partial"))


@behavior(77)
@pytest.mark.parametrize(("size", "accounts"), [(1, 50), (2, 1), (200, 1), (200, 50)])
def test_each_job_is_swept_once_even_if_its_account_is_deleted(factory, size, accounts):
    long_ago = timestamp(factory.clock() - timedelta(days=8))
    expected = []
    for account in ("a-1", "a1", "a1.b", "gone", "z"):
        for number in range(3):
            job = v1.Job(account_id=account, job_id=f"j{number}", state=v1.JS_FAILED, finished_at=long_ago)
            factory.realm(account).all(JOB).create(job)
            expected.append(keys.job(account, f"j{number}"))
    seen: list[str] = []
    token, slices = None, 0
    while token is not None or not slices:
        done = gc.sweep_jobs(
            factory.stores, clock=factory.clock, size=size, accounts=accounts, token=token, dry_run=True
        )
        seen, token, slices = [*seen, *done.removed], done.next_token, slices + 1
    assert sorted(seen) == sorted(expected)
    assert (slices == 1) == ((size, accounts) == (200, 50))
    assert factory.stores.pointers.get(expected[0]) is not None  # a dry run deletes nothing


@behavior(77)
def test_each_slice_continues_where_the_last_one_ended(factory):
    for number in range(5):
        describe(factory, factory.catalog(str(number)), "two")
    unreferenced = stored_blobs(factory) - referenced_blobs(factory)
    token, removed, slices = None, [], 0
    while True:
        step = gc.sweep_blobs(factory.stores, clock=one_hour_ahead, size=3, token=token)
        assert step.looked_at <= 3
        removed += step.removed
        slices += 1
        if (token := step.next_token) is None:
            break
    assert set(removed) == unreferenced
    assert slices >= 4


def test_gc_does_not_interfere_with_writers(tmp_path):
    """Writers run concurrently with a gc that keeps only blobs younger than ten seconds."""
    with open_stores(f"sqlite:///{tmp_path}/p.db") as stores:
        factory = ResourceFactory(stores, Clock(real_now()))
        realm, finished = Realm(stores, "a1"), Event()
        catalog = factory.catalog()

        def write() -> None:
            for number in range(40):
                describe(factory, catalog, str(number))
                created = catalogs.create(
                    realm, v1.CreateCatalogRequest(spec=v1.CatalogSpec(display_name=f"c{number}"))
                ).catalog
                if number % 2:
                    catalogs.delete(realm, v1.DeleteCatalogRequest(catalog_id=created.resource_id))
            finished.set()

        writer = Thread(target=write)
        writer.start()
        while not finished.is_set():
            gc.sweep_blobs(stores, clock=real_now, min_age_s=10, size=10_000)
            result = gc.sweep_pointers(stores)
            assert (result.removed, result.damaged) == ((), ())
        writer.join()
        assert damage(stores) == []
        assert catalogs.list_(realm, v1.ListCatalogsRequest()).page.total_size == 21
