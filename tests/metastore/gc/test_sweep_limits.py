"""How old things must be to be swept by default, and how many of them a slice processes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from metastore.gc.test_sweeps import describe, real_now, referenced_blobs, stored_blobs
from metastore.managed_table_factory import ManagedTableFactory
from metastore.resource_factory import ResourceFactory
from skiway.formats import location
from skiway.metastore import gc
from skiway.metastore.gc.sweeps import Slice
from skiway.metastore.gc.warehouse import _old, sweep_warehouse
from skiway.metastore.records import keys
from skiway.metastore.records.kinds import JOB
from skiway.metastore.records.realm import timestamp
from skiway.metastore.transactions.api import expire
from skiway.metastore.transactions.staged_writes import opened
from skiway.model import v1
from skiway.storage import Stores

SECOND = timedelta(seconds=1)


def test_blobs_are_kept_for_half_a_minute(factory: ResourceFactory) -> None:
    describe(factory, factory.catalog(), "two")
    unreferenced = stored_blobs(factory) - referenced_blobs(factory)
    written = real_now()
    for seconds, expected in ((28, set()), (32, unreferenced)):
        now = written + seconds * SECOND
        swept = gc.sweep_blobs(factory.stores, clock=lambda: now, dry_run=True)  # noqa: B023
        assert set(swept.removed) == expected


def test_finished_jobs_are_kept_for_a_week(factory: ResourceFactory) -> None:
    finished = factory.clock().replace(microsecond=0)
    job = v1.Job(account_id="a1", job_id="j", state=v1.JS_FAILED, finished_at=timestamp(finished))
    factory.home.all(JOB).create(job)
    week = timedelta(days=7)
    for age, count in ((week - SECOND, 0), (week, 0), (week + SECOND, 1)):
        swept = gc.sweep_jobs(factory.stores, clock=lambda: finished + age, dry_run=True)  # noqa: B023
        assert (len(swept.removed), swept.looked_at, swept.next_token) == (count, 1, None)


def test_secrets_without_a_connector_are_kept_for_a_quarter_of_an_hour(factory: ResourceFactory) -> None:
    marked = datetime(2026, 1, 1, tzinfo=UTC)
    factory.stores.pointers.compare_and_set(keys.secret("a1", "c", "s"), marked.isoformat(), expect=0)
    for seconds, count in ((899, 0), (900, 0), (901, 1)):
        now = marked + seconds * SECOND
        found = gc.sweep_secrets(factory.stores, cast(Any, None), clock=lambda: now, dry_run=True)  # noqa: B023
        assert (len(found.removed), found.looked_at) == (count, 1)


def test_slices_have_a_limited_size(factory: ResourceFactory) -> None:
    stores, long_ago = factory.stores, timestamp(factory.clock() - timedelta(days=8))
    for number in range(501):
        stores.blobs.put(f"{number}".encode(), folder="elsewhere")
        stores.pointers.compare_and_set(keys.secret("a1", "c", f"{number}"), "2026-01-01T00:00:00+00:00", expect=0)
        stores.pointers.compare_and_set(keys.event_pending("a1", f"{number:04}"), "x", expect=0)
    for number in range(201):
        job = v1.Job(account_id="a1", job_id=f"j{number:03}", state=v1.JS_FAILED, finished_at=long_ago)
        factory.home.all(JOB).create(job)
    dry: dict[str, Any] = {"dry_run": True}
    found = {
        "blobs": gc.sweep_blobs(stores, clock=real_now, **dry),
        "pointers": gc.sweep_pointers(stores, **dry),
        "jobs": gc.sweep_jobs(stores, clock=factory.clock, **dry),
        "secrets": gc.sweep_secrets(stores, cast(Any, None), clock=real_now, **dry),
        "events": gc.sweep_events(stores, **dry),
    }
    sizes = {name: each.looked_at for name, each in found.items()}
    assert sizes == {"blobs": 500, "pointers": 500, "jobs": 200, "secrets": 500, "events": 500}
    assert all(each.next_token for each in found.values())
    rest = gc.sweep_jobs(stores, clock=factory.clock, token=found["jobs"].next_token, **dry)
    assert (rest.looked_at, rest.next_token) == (1, None)


def test_jobs_of_fifty_accounts_are_swept_at_once(factory: ResourceFactory) -> None:
    long_ago = timestamp(factory.clock() - timedelta(days=8))
    for number in range(60):
        account = f"account-{number:02}"
        job = v1.Job(account_id=account, job_id="j", state=v1.JS_FAILED, finished_at=long_ago)
        factory.realm(account).all(JOB).create(job)
    first = gc.sweep_jobs(factory.stores, clock=factory.clock, dry_run=True)
    second = gc.sweep_jobs(factory.stores, clock=factory.clock, token=first.next_token, dry_run=True)
    assert 49 <= len(first.removed) <= 50
    assert (len(first.removed) + len(second.removed), second.next_token) == (60, None)


def test_two_thousand_pointers_expire_at_once(factory: ResourceFactory) -> None:
    soon = factory.clock() + SECOND
    for number in range(2001):
        factory.stores.pointers.compare_and_set(f"/other/{number}", "x", expect=0, expires_at=soon)
    factory.clock.advance(2)
    assert [gc.sweep_expired(factory.stores) for _ in range(3)] == [2000, 1, 0]


def test_slices_are_added() -> None:
    one, two = Slice(1, ("a",), ("x",), "t1"), Slice(2, ("b",), ("y",), "t2")
    assert one.followed_by(two) == Slice(3, ("a", "b"), ("x", "y"), "t2")


@pytest.fixture
def managed(factory: ResourceFactory, tmp_path: Path) -> ManagedTableFactory:
    return ManagedTableFactory.at(factory, tmp_path)


def test_twenty_tables_are_swept_at_once(managed: ManagedTableFactory) -> None:
    root = Path(managed.warehouse.root.path)
    for number in range(21):
        (root / "a1" / f"t{number:02}").mkdir(parents=True)
    first = sweep_warehouse(managed.factory.stores, managed.warehouse, clock=real_now)
    assert first.next_token is not None
    assert first.next_token.endswith("/a1/t19")
    (root / "a1" / "t20").rmdir()
    assert sweep_warehouse(managed.factory.stores, managed.warehouse, clock=real_now).next_token is None


def test_files_of_a_statement_are_as_young_as_its_youngest() -> None:
    folder = location("file:///w/t")

    def file(name: str, modified_us: int) -> Any:
        return SimpleNamespace(location=folder / name, modified_us=modified_us)

    statement = "0f8fad5b-d9cb-469f-a165-70867728950e"
    files = [file(f"1-{statement}.parquet", 5), file(f"2-{statement.upper()}.parquet", 10), file("a", 9), file("b", 10)]
    assert [each.name for each in _old(files, 10)] == ["a"]
    assert [each.name for each in _old(files, 11)] == [each.location.name for each in files]


def test_transactions_are_swept_when_they_are_due(managed: ManagedTableFactory) -> None:
    stores, clock = managed.factory.stores, managed.factory.clock
    until = clock() + timedelta(minutes=5)
    opened(managed.home, "tx", until=until)
    (due,) = (keys.queue_time(each.key) for each in stores.pointers.scan(keys.transaction_due()))
    moment = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=due)
    for now, count in ((moment - timedelta(microseconds=1), 0), (moment, 1)):
        found = gc.sweep_transactions(stores, managed.warehouse, clock=lambda: now, dry_run=True)  # noqa: B023
        assert (len(found.removed), found.looked_at, found.next_token) == (count, 1, None)


def test_transactions_are_swept_in_slices_until_one_is_not_due(managed: ManagedTableFactory) -> None:
    stores, start = managed.factory.stores, managed.factory.clock()
    for number in range(4):
        opened(managed.home, f"tx{number}", until=start + timedelta(minutes=number))

    def swept(minutes: float, token: str | None = None, size: int = 2) -> Slice:
        now = start + timedelta(minutes=minutes, days=30)
        options: dict[str, Any] = {"size": size, "token": token, "dry_run": True}
        return gc.sweep_transactions(stores, managed.warehouse, clock=lambda: now, **options)

    first = swept(10)
    assert (len(first.removed), first.looked_at, first.next_token is None) == (2, 2, False)
    second = swept(10, first.next_token)
    assert (len(second.removed), second.next_token) == (2, None)
    due = sorted(keys.queue_time(each.key) for each in stores.pointers.scan(keys.transaction_due()))
    early = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=due[0])
    found = gc.sweep_transactions(stores, managed.warehouse, clock=lambda: early, size=2, dry_run=True)
    assert (len(found.removed), found.looked_at, found.next_token) == (1, 2, None), "those that follow are not due"


def delete_blob(stores: Stores, key: str) -> None:
    pointer = stores.pointers.get(key)
    assert pointer is not None
    stores.blobs.delete(pointer.blob_uri)


def test_transaction_that_cannot_be_expired_does_not_stop_the_others(
    managed: ManagedTableFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores, start = managed.factory.stores, managed.factory.clock()
    for number in range(4):
        opened(managed.home, f"tx{number}", until=start + timedelta(minutes=number))
    damaged, unreachable, *others = (each.key for each in stores.pointers.scan(keys.transaction_due()))
    delete_blob(stores, damaged)

    def expire_some(realm: Any, warehouse: Any, found: Any) -> None:
        if found.value.transaction_id == "tx1":
            raise OSError("the folder of its table cannot be reached")
        expire(realm, warehouse, found)

    monkeypatch.setattr("skiway.metastore.gc.warehouse.expire", expire_some)
    swept = gc.sweep_transactions(stores, managed.warehouse, clock=lambda: start + timedelta(hours=1))
    assert swept.removed == tuple(others)
    assert [text.partition(": ")[0] for text in swept.failed] == [damaged, unreachable]
    assert "the folder of its table cannot be reached" in swept.failed[1]


def test_damaged_job_and_marker_do_not_stop_their_sweeps(factory: ResourceFactory) -> None:
    stores, clock = factory.stores, factory.clock
    for name in ("damaged", "old"):
        job = v1.Job(
            account_id="a1", job_id=name, state=v1.JS_FAILED, finished_at=timestamp(clock() - timedelta(days=8))
        )
        factory.home.all(JOB).create(job)
    delete_blob(stores, keys.job("a1", "damaged"))
    jobs = gc.sweep_jobs(stores, clock=clock)
    assert (jobs.removed, [text.partition(": ")[0] for text in jobs.failed]) == (
        (keys.job("a1", "old"),),
        [keys.job("a1", "damaged")],
    )
    for name, marked in ("a", "no time"), ("b", "2020-01-01T00:00:00+00:00"):
        stores.pointers.compare_and_set(keys.secret("a1", "c", name), marked, expect=0)
    secrets = gc.sweep_secrets(stores, cast(Any, None), clock=clock, dry_run=True)
    assert (secrets.removed, len(secrets.failed)) == ((keys.secret("a1", "c", "b"),), 1)
