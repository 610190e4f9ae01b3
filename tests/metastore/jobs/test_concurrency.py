"""Many workers, two servers, one store: no job is done by two at a time, and none is done twice."""

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
from skiway.metastore.jobs.queue import JobQueue, JobRules, Lease, Progress
from skiway.model import v1
from skiway.storage import open_stores

WORKERS = 8
JOBS = 50


@pytest.fixture
def servers(tmp_path) -> Iterator[tuple[ResourceFactory, ResourceFactory]]:
    """Two that share nothing but the files."""
    url = f"sqlite:///{tmp_path}/pointers.db"
    with open_stores(url) as one, open_stores(url) as two:
        yield ResourceFactory(one), ResourceFactory(two)


def fill(factory: ResourceFactory) -> list[str]:
    """Many jobs, none of which does what another does."""
    connector_id = connector(factory).resource_id
    realm = Realm(factory.stores, "a1")
    scopes = [v1.JobScope(table=f"t{number}") for number in range(JOBS)]
    return [jobs.enqueue(realm, connector_id, scope=scope).job_id for scope in scopes]


def work_through(
    servers: tuple[ResourceFactory, ResourceFactory], rules: JobRules, do: Callable[[JobQueue, Lease], None]
) -> list[Lease]:
    """All leases that were given, to workers that go on until everything is over."""
    given: list[Lease] = []
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
                        given.append(lease)
                    do(queue, lease)
        except BaseException as error:
            failures.append(error)
            raise

    threads = [Thread(target=run, args=(number,)) for number in range(WORKERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    return given


def states(factory: ResourceFactory) -> Counter[int]:
    request = v1.ListReconcileJobsRequest(page=v1.PageRequest(page_size=1000))
    return Counter(job.state for job in jobs.list_(factory.home, request).jobs)


@behavior(73)
def test_many_workers_do_each_job_once_and_alone(servers):
    made = fill(servers[0])
    running: set[str] = set()
    lock = Lock()

    def do(queue: JobQueue, lease: Lease) -> None:
        with lock:
            assert lease.job.job_id not in running
            running.add(lease.job.job_id)
        lease = queue.progress(lease, Progress(1))
        with lock:
            running.remove(lease.job.job_id)
        queue.complete(lease, Progress(2))

    given = work_through(servers, JobRules(lease_s=600), do)
    assert sorted(lease.job.job_id for lease in given) == sorted(made)
    assert {lease.epoch for lease in given} == {1}
    assert states(servers[1]) == {v1.JS_SUCCEEDED: JOBS}
    assert damage(servers[0].stores) == []


@behavior(73)
def test_workers_that_fail_vanish_or_sleep_leave_every_job_done_once(servers):
    fill(servers[0])
    done: Counter[str] = Counter()
    luck = random.Random(7)
    lock = Lock()

    def do(queue: JobQueue, lease: Lease) -> None:
        with lock:
            chance = luck.random()
        try:
            if chance < 0.2:
                queue.fail(lease, "no luck")
            elif chance < 0.3:
                queue.release(lease)
            elif chance > 0.4:  # else the worker forgets it
                queue.complete(lease, Progress())
                with lock:
                    done[lease.job.job_id] += 1
        except Conflict as error:
            if error.key != "job.lease.lost":
                raise

    rules = JobRules(max_attempts=10**6, base_backoff_s=0.001, max_backoff_s=0.01, lease_s=0.5)
    given = work_through(servers, rules, do)
    assert set(done.values()) == {1}
    assert len(done) == JOBS
    assert states(servers[1]) == {v1.JS_SUCCEEDED: JOBS}
    epochs = Counter((lease.job.job_id, lease.epoch) for lease in given)
    assert set(epochs.values()) == {1}, "an epoch was given twice"
    assert len(given) > JOBS
    assert damage(servers[0].stores) == []


@behavior(73)
def test_many_that_ask_for_the_same_get_one_job(servers):
    request = v1.TriggerReconcileRequest(connector_id=connector(servers[0]).resource_id)
    outcomes = race(servers, lambda realm, _: connectors.trigger(realm, request).job_id)
    assert len(set(outcomes)) == 1
    assert sum(states(servers[0]).values()) == 1


def test_a_job_that_many_cancel_while_it_is_begun_ends_in_one_state(servers):
    connector_id = connector(servers[0]).resource_id
    job_id = jobs.enqueue(Realm(servers[0].stores, "a1"), connector_id).job_id

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
def test_one_of_many_begins_a_query_of_one_id(servers):
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
def test_of_many_that_renew_and_end_a_query_the_end_counts(servers):
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
    assert set(errors(outcomes)) <= {"query.not.found", "store.contended"}
    assert not isinstance(outcomes[3], Exception)
    found = queries.get(realm, v1.GetQueryRequest(query_id="q")).query
    assert found.state == v1.LS_ENDED_COMMIT
    assert damage(servers[0].stores) == []
