"""The log of a job: kept at the end of each attempt, bounded, and deleted with the job."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from metastore.mirrors import connector, queue
from metastore.resource_factory import ResourceFactory, expect_error
from skiway.errors import Conflict, NotFound
from skiway.metastore import connectors, gc, jobs
from skiway.metastore.jobs.api import keep_log
from skiway.metastore.jobs.attempts import Progress
from skiway.metastore.jobs.queue import JobQueue, Lease
from skiway.metastore.maintenance import Checker
from skiway.metastore.records import keys
from skiway.metastore.records.kinds import JOB
from skiway.model import v1
from skiway.storage import utc_now
from skiway.telemetry.logs import MAX_BYTES, CollectedLog

DAY_S = 24 * 3600


@pytest.fixture
def leased(factory: ResourceFactory) -> Lease:
    connectors.trigger(factory.home, v1.TriggerReconcileRequest(connector_id=connector(factory).resource_id))
    return lease_again(queue(factory))


def lease_again(of: JobQueue) -> Lease:
    found = of.lease("w")
    assert found is not None
    return found


def logged(*lines: str) -> CollectedLog:
    log = CollectedLog()
    for line in lines:
        log.write(line)
    return log


def kept(factory: ResourceFactory, lease: Lease, account: str = "a1") -> v1.GetReconcileJobLogResponse:
    return jobs.get_log(factory.realm(account), v1.GetReconcileJobLogRequest(job_id=lease.job.job_id))


def later() -> datetime:
    """A time at which all blobs are old enough to be deleted."""
    return utc_now() + timedelta(days=100)


def test_job_has_an_empty_log_until_its_first_attempt_ends(factory: ResourceFactory, leased: Lease) -> None:
    assert kept(factory, leased) == v1.GetReconcileJobLogResponse(job_id=leased.job.job_id)
    keep_log(queue(factory), leased, logged("one", "two"))
    assert (kept(factory, leased).text, kept(factory, leased).dropped_lines) == ("one\ntwo\n", 0)


def test_log_has_all_attempts(factory: ResourceFactory, leased: Lease) -> None:
    of = queue(factory)
    keep_log(of, leased, logged("first"))
    of.fail(leased, "broken")
    factory.clock.advance(60)
    keep_log(of, lease_again(of), logged("second"))
    assert kept(factory, leased).text == "first\nsecond\n"


def test_long_log_keeps_its_end_and_says_how_much_is_missing(factory: ResourceFactory, leased: Lease) -> None:
    of, half = queue(factory), [f"{number:07}" for number in range(MAX_BYTES // 16)]
    keep_log(of, leased, logged(*half))
    keep_log(of, leased, logged(*half))
    assert kept(factory, leased).dropped_lines == 0
    keep_log(of, leased, logged("the", "end"))
    note, first, *_, last = kept(factory, leased).text.splitlines()
    assert (note, first, last) == ("… 1 older lines were dropped: a log has at most 200 KB", "0000001", "end")
    longer = logged(*half, *half, *half)
    keep_log(of, leased, longer)
    assert kept(factory, leased).dropped_lines == longer.dropped + 2 * len(half) + 2
    stored = kept(factory, leased).text.partition("\n")[2]
    assert len(stored.encode()) <= MAX_BYTES
    assert stored.endswith(f"{half[-1]}\n")


def test_worker_that_lost_its_lease_keeps_no_log(factory: ResourceFactory, leased: Lease) -> None:
    of = queue(factory)
    factory.clock.advance(of.rules.lease_s + 1)
    with expect_error(Conflict, "job.lease.lost"):
        keep_log(of, leased, logged("late"))
    assert kept(factory, leased).text == ""


def test_log_is_kept_although_the_job_changes_at_the_same_time(
    factory: ResourceFactory, leased: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    of, checks = queue(factory), 0
    require_held = JobQueue.require_held

    def and_renew(self: JobQueue, lease: Lease, job: v1.Job) -> None:
        nonlocal checks
        require_held(self, lease, job)
        checks += 1
        if checks == 1:
            of.progress(leased, Progress(tables_scanned=checks))

    monkeypatch.setattr(JobQueue, "require_held", and_renew)
    keep_log(of, leased, logged("one"))
    assert kept(factory, leased).text == "one\n"
    assert checks > 2


def test_log_of_another_account_is_not_found(factory: ResourceFactory, leased: Lease) -> None:
    factory.account("a2")
    keep_log(queue(factory), leased, logged("one"))
    with expect_error(NotFound, "job", id=leased.job.job_id):
        kept(factory, leased, "a2")


def test_jobs_of_two_accounts_with_the_same_id_have_their_own_logs(factory: ResourceFactory, leased: Lease) -> None:
    factory.account("a2")
    factory.realm("a2").all(JOB).create(v1.Job(account_id="a2", job_id=leased.job.job_id, state=v1.JS_FAILED))
    keep_log(queue(factory), leased, logged("one"))
    assert kept(factory, leased, "a2").text == ""


def test_log_is_deleted_with_its_job(factory: ResourceFactory, leased: Lease) -> None:
    of, stores = queue(factory), factory.stores
    keep_log(of, leased, logged("one"))
    of.complete(leased, Progress())
    key = keys.job_log("a1", leased.job.job_id)
    pointer = stores.pointers.get(key)
    assert pointer is not None
    assert list(Checker(stores).defects()) == []
    assert gc.sweep_pointers(stores).removed == ()
    gc.sweep_blobs(stores, clock=later)
    assert kept(factory, leased).text == "one\n"
    factory.clock.advance(8 * DAY_S)
    assert len(gc.sweep_jobs(stores, clock=factory.clock).removed) == 1
    assert stores.pointers.get(key) is None
    gc.sweep_blobs(stores, clock=later)
    assert stores.blobs.head(pointer.blob_uri) is None
    assert list(Checker(stores).defects()) == []


def test_damaged_log_is_reported(factory: ResourceFactory, leased: Lease) -> None:
    keep_log(queue(factory), leased, logged("one"))
    pointer = factory.stores.pointers.get(keys.job_log("a1", leased.job.job_id))
    assert pointer is not None
    factory.stores.blobs.delete(pointer.blob_uri)
    assert [each.place for each in Checker(factory.stores).defects()] == [pointer.key]
