"""Many workers of two servers on one store: each job is run by one worker at a time, and only once."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from threading import Lock, Thread

import pytest

from metastore.integrity import damage
from metastore.mirrors import connector
from metastore.resource_factory import ResourceFactory, behavior
from metastore.test_concurrency import errors, race
from skiway.errors import Conflict
from skiway.metastore import Realm, connectors, jobs, queries
from skiway.metastore.jobs.attempts import Progress
from skiway.metastore.jobs.queue import JobQueue, JobRules, Lease
from skiway.model import v1
from skiway.storage import open_stores

WORKERS = 8
JOBS = 50


@pytest.fixture
def servers(tmp_path) -> Iterator[tuple[ResourceFactory, ResourceFactory]]:
    """Two servers that share only their files."""
    url = f"sqlite:///{tmp_path}/pointers.db"
    with open_stores(url) as one, open_stores(url) as two:
        yield ResourceFactory(one), ResourceFactory(two)


def enqueue_jobs(factory: ResourceFactory) -> list[str]:
    """Enqueue many jobs with different scopes."""
    connector_id = connector(factory).resource_id
    realm = Realm(factory.stores, "a1")
    scopes = [v1.JobScope(table=f"t{number}") for number in range(JOBS)]
    return [jobs.enqueue(realm, v1.Job(connector_id=connector_id, scope=scope)).job_id for scope in scopes]


def run_workers(
    servers: tuple[ResourceFactory, ResourceFactory], rules: JobRules, handle: Callable[[JobQueue, Lease], None]
) -> list[Lease]:
    """Run workers until all jobs are finished, and return all leases they got."""
    granted: list[Lease] = []
    failures: list[BaseException] = []
    lock = Lock()

    def run(number: int) -> None:
        stores = servers[number % 2].stores
        queue = JobQueue(stores, rules=rules)
        try:
            while stores.pointers.count("/queue/"):
                lease = queue.lease(f"w{number}")
                if lease is not None:
                    with lock:
                        granted.append(lease)
                    handle(queue, lease)
        except BaseException as error:
            failures.append(error)
            raise

    threads = [Thread(target=run, args=(number,)) for number in range(WORKERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    return granted


def states(factory: ResourceFactory) -> Counter[int]:
    request = v1.ListReconcileJobsRequest(page=v1.PageRequest(page_size=1000))
    return Counter(job.state for job in jobs.list_(factory.home, request).jobs)


@behavior(73)
def test_concurrent_workers_run_each_job_exactly_once(servers):
    created = enqueue_jobs(servers[0])
    running: set[str] = set()
    lock = Lock()

    def handle(queue: JobQueue, lease: Lease) -> None:
        with lock:
            assert lease.job.job_id not in running
            running.add(lease.job.job_id)
        lease = queue.progress(lease, Progress(1))
        with lock:
            running.remove(lease.job.job_id)
        queue.complete(lease, Progress(2))

    granted = run_workers(servers, JobRules(lease_s=600), handle)
    assert sorted(lease.job.job_id for lease in granted) == sorted(created)
    assert {lease.epoch for lease in granted} == {1}
    assert states(servers[1]) == {v1.JS_SUCCEEDED: JOBS}
    assert damage(servers[0].stores) == []


@behavior(73)
@pytest.mark.full
def test_each_job_completes_once_despite_failing_and_vanishing_workers(servers):
    enqueue_jobs(servers[0])
    completions: Counter[str] = Counter()
    random_source = random.Random(7)
    lock = Lock()

    def handle(queue: JobQueue, lease: Lease) -> None:
        with lock:
            draw = random_source.random()
        try:
            if draw < 0.2:
                queue.fail(lease, "no luck")
            elif draw < 0.3:
                queue.release(lease)
            elif draw > 0.4:  # otherwise the worker abandons the job
                queue.complete(lease, Progress())
                with lock:
                    completions[lease.job.job_id] += 1
        except Conflict as error:
            if error.key != "job.lease.lost":
                raise

    rules = JobRules(max_attempts=10**6, base_backoff_s=0.001, max_backoff_s=0.01, lease_s=0.5)
    granted = run_workers(servers, rules, handle)
    assert set(completions.values()) == {1}
    assert len(completions) == JOBS
    assert states(servers[1]) == {v1.JS_SUCCEEDED: JOBS}
    epochs = Counter((lease.job.job_id, lease.epoch) for lease in granted)
    assert set(epochs.values()) == {1}, "each epoch must be granted only once"
    assert len(granted) > JOBS
    assert damage(servers[0].stores) == []


@behavior(73)
def test_concurrent_identical_triggers_create_one_job(servers):
    request = v1.TriggerReconcileRequest(connector_id=connector(servers[0]).resource_id)
    outcomes = race(servers, lambda realm, _: connectors.trigger(realm, request).job_id)
    assert len(set(outcomes)) == 1
    assert sum(states(servers[0]).values()) == 1


def test_job_cancelled_while_it_is_leased_ends_in_one_state(servers):
    connector_id = connector(servers[0]).resource_id
    job_id = jobs.enqueue(Realm(servers[0].stores, "a1"), v1.Job(connector_id=connector_id)).job_id

    def act(realm: Realm, number: int) -> object:
        if number % 2:
            return JobQueue(realm.stores).lease(f"w{number}")
        return jobs.cancel(realm, v1.CancelReconcileJobRequest(job_id=job_id)).job

    outcomes = race(servers, act)
    assert errors(outcomes) == {}
    leases = [each for each in outcomes if isinstance(each, Lease)]
    assert len(leases) <= 1
    for lease in leases:
        assert JobQueue(servers[0].stores).renew(lease).cancel_requested
    assert states(servers[0]) == {v1.JS_RUNNING if leases else v1.JS_CANCELLED: 1}
    assert damage(servers[0].stores) == []


@behavior(48)
def test_one_of_many_concurrent_callers_begins_a_query_with_a_given_id(servers):
    table = servers[0].table()
    servers[0].snapshot(table, 1)
    request = v1.BeginQueryRequest(
        query_id="q",
        default_catalog_id=table.catalog_id,
        inputs=[v1.QueryInput(table_id=table.resource_id)],
    )
    outcomes = race(servers, lambda realm, _: queries.begin(realm, request))
    assert errors(outcomes) == {"query.already.exists": len(outcomes) - 1}


@behavior(49, 50)
def test_end_of_a_query_wins_over_concurrent_renewals(servers):
    table = servers[0].table()
    servers[0].snapshot(table, 1)
    realm = Realm(servers[0].stores, "a1")
    request = v1.BeginQueryRequest(
        query_id="q", default_catalog_id=table.catalog_id, inputs=[v1.QueryInput(table_id=table.resource_id)]
    )
    queries.begin(realm, request)

    def act(realm: Realm, number: int) -> object:
        if number == 3:
            return queries.end(realm, v1.EndQueryRequest(query_id="q", commit=True))
        return queries.renew(realm, v1.RenewQueryRequest(query_id="q", ttl_seconds=100 + number))

    outcomes = race(servers, act)
    assert set(errors(outcomes)) <= {"query.not_found", "store.contended"}
    assert not isinstance(outcomes[3], Exception)
    found = queries.get(realm, v1.GetQueryRequest(query_id="q")).query
    assert found.state == v1.LS_ENDED_COMMIT
    assert damage(servers[0].stores) == []
