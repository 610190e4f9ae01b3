"""Random sequences of job queue operations by workers that appear and vanish, compared with a simple model."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, rule

from metastore.integrity import damage
from metastore.mirrors import RULES, connector, queue
from metastore.resource_factory import ResourceFactory, behavior, expect_error
from skiway.errors import Conflict, NotFound
from skiway.metastore import gc, jobs
from skiway.metastore.jobs.attempts import Progress
from skiway.metastore.jobs.queue import ACTIVE, FINISHED, Lease
from skiway.metastore.records.realm import timestamp
from skiway.model import v1
from skiway.storage import open_stores
from storage.homes import Clock

RETENTION_S = 100.0


@dataclass
class Model:
    """The expected state of a job. `until` is when it is due, when its lease expires, or when it finished."""

    table: str
    state: int
    until: datetime
    epoch: int = 0
    attempt: int = 0
    cancel: bool = False


class Queue(RuleBasedStateMachine):
    """Workers that vanished or slept keep their leases, and may use them at any later time."""

    url = "memory://"
    created = Bundle("created")
    leases = Bundle("leases")

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.clock = Clock()
        self.factory = ResourceFactory(self.open(), self.clock)
        self.connector_id = connector(self.factory).resource_id
        self.model: dict[str, Model] = {}

    def open(self):
        return open_stores(self.url.format(folder=Path(self.folder.name)), clock=self.clock)

    def teardown(self):
        self.factory.stores.close()
        self.folder.cleanup()

    @property
    def queue(self):
        return queue(self.factory)

    @rule(target=created, table=st.sampled_from("abc"), delay_s=st.sampled_from([0, 0, 5]))
    def enqueue(self, table, delay_s):
        due_at = self.clock.later(delay_s)
        work = v1.Job(connector_id=self.connector_id, scope=v1.JobScope(table=table), next_attempt_at=timestamp(due_at))
        found = jobs.enqueue(self.factory.home, work).job_id
        active = [each for each, job in self.model.items() if job.table == table and job.state in ACTIVE]
        if active:
            assert [found] == active
            return multiple()
        assert found not in self.model
        self.model[found] = Model(table, v1.JS_QUEUED, due_at)
        return found

    @rule(target=leases, worker=st.sampled_from(["w1", "w2", "w3"]))
    def lease(self, worker):
        self._reclaim()
        now = self.clock()
        due = sorted((job.until, each) for each, job in self.model.items() if job.state == v1.JS_QUEUED)
        lease = self.queue.lease(worker)
        if not due or due[0][0] > now:
            assert lease is None
            return multiple()
        job = self.model[due[0][1]]
        job.state, job.epoch, job.attempt = v1.JS_RUNNING, job.epoch + 1, job.attempt + 1
        job.until = self.clock.later(RULES.lease_s)
        assert (lease.job.job_id, lease.epoch, lease.job.lease_owner) == (due[0][1], job.epoch, worker)
        return lease

    @rule(lease=leases, call=st.sampled_from(["renew", "progress"]))
    def report_progress(self, lease, call):
        held = self._held(lease)
        work = self.queue.renew if call == "renew" else lambda lease: self.queue.progress(lease, Progress(1))
        renewed = self._attempt(lambda: work(lease), held)
        if held:
            held.until = self.clock.later(RULES.lease_s)
            assert renewed.cancel_requested == held.cancel

    @rule(lease=leases, failed=st.integers(0, 2))
    def complete(self, lease, failed):
        held = self._held(lease)
        done = Progress(2, failures={f"t{number}": "broken" for number in range(failed)})
        self._attempt(lambda: self.queue.complete(lease, done), held)
        if held:
            self._finish(held, [v1.JS_SUCCEEDED, v1.JS_PARTIAL, v1.JS_FAILED][failed])

    @rule(lease=leases, retry=st.booleans(), partial=st.booleans())
    def fail(self, lease, retry, partial):
        held = self._held(lease)
        done = Progress(2, failures={"t": "broken"}) if partial else None
        self._attempt(lambda: self.queue.fail(lease, "no luck", done=done, retry=retry), held)
        if held:
            self._failed(held, retry=retry, finally_=v1.JS_PARTIAL if partial else v1.JS_FAILED)

    @rule(lease=leases)
    def stop(self, lease):
        held = self._held(lease)
        self._attempt(lambda: self.queue.cancelled(lease), held)
        if held:
            self._finish(held, v1.JS_CANCELLED)

    @rule(lease=leases)
    def release(self, lease):
        held = self._held(lease)
        self._attempt(lambda: self.queue.release(lease), held)
        if held:
            held.attempt -= 1
            if held.cancel:
                self._finish(held, v1.JS_CANCELLED)
            else:
                held.state, held.until = v1.JS_QUEUED, self.clock()

    @rule(job_id=created)
    def cancel(self, job_id):
        request = v1.CancelReconcileJobRequest(job_id=job_id)
        if job_id not in self.model:
            with expect_error(NotFound, "job"):
                jobs.cancel(self.factory.home, request)
            return
        jobs.cancel(self.factory.home, request)
        job = self.model[job_id]
        if job.state == v1.JS_QUEUED:
            self._finish(job, v1.JS_CANCELLED)
        elif job.state == v1.JS_RUNNING:
            job.cancel = True

    @rule()
    def reclaim(self):
        assert self.queue.reclaim() == self._reclaim()

    @rule(seconds=st.sampled_from([0.5, 1.0, 9.999, 10.0, 60.0]))
    def pass_time(self, seconds):
        self.clock.advance(seconds)

    @rule()
    def collect(self):
        swept = gc.sweep_jobs(self.factory.stores, clock=self.clock, retention_s=RETENTION_S)
        oldest = int((self.clock() - timedelta(seconds=RETENTION_S)).timestamp())
        old = {
            each for each, job in self.model.items() if job.state in FINISHED and int(job.until.timestamp()) < oldest
        }
        assert {key.rpartition("/")[2] for key in swept.removed} == old
        self.model = {each: job for each, job in self.model.items() if each not in old}

    @invariant()
    def records_match_the_model(self):
        page = v1.PageRequest(page_size=1000)
        found = jobs.list_(self.factory.home, v1.ListReconcileJobsRequest(page=page)).jobs
        actual = {job.job_id: (job.state, job.lease_epoch, job.attempt, job.cancel_requested) for job in found}
        assert actual == {each: (job.state, job.epoch, job.attempt, job.cancel) for each, job in self.model.items()}
        for state in (*ACTIVE, *FINISHED):
            listed = jobs.list_(self.factory.home, v1.ListReconcileJobsRequest(page=page, state=state)).jobs
            assert {job.job_id for job in listed} == {e for e, job in self.model.items() if job.state == state}

    @invariant()
    def queue_contains_the_unfinished_jobs(self):
        active = sum(job.state in ACTIVE for job in self.model.values())
        assert self.factory.stores.pointers.count("/queue/") == active
        assert self.factory.stores.pointers.count("/accounts/a1/jobs/active/") == active

    @invariant()
    def store_is_consistent(self):
        assert damage(self.factory.stores) == []

    def _held(self, lease: Lease) -> Model | None:
        job = self.model.get(lease.job.job_id)
        held = job and job.state == v1.JS_RUNNING and job.epoch == lease.epoch and job.until > self.clock()
        return job if held else None

    def _attempt(self, act, held):
        if held:
            return act()
        gone = NotFound, Conflict
        with pytest.raises(gone, check=lambda error: error.key in ("job", "job.lease.lost")):
            act()
        return None

    def _reclaim(self) -> int:
        expired = [job for job in self.model.values() if job.state == v1.JS_RUNNING and job.until <= self.clock()]
        for job in expired:
            self._failed(job)
        return len(expired)

    def _failed(self, job: Model, *, retry: bool = True, finally_: int = v1.JS_FAILED) -> None:
        if job.cancel:
            self._finish(job, v1.JS_CANCELLED)
        elif not retry or job.attempt >= RULES.max_attempts:
            self._finish(job, finally_)
        else:
            delay_s = min(RULES.base_backoff_s * 2 ** (job.attempt - 1), RULES.max_backoff_s)
            job.state, job.until = v1.JS_QUEUED, self.clock.later(delay_s)

    def _finish(self, job: Model, state: int) -> None:
        job.state, job.until = state, self.clock()


class QueueOnFile(Queue):
    """The same on files, with a server that may restart at any time."""

    url = "sqlite:///{folder}/pointers.db"

    @rule()
    def restart(self):
        self.factory.stores.close()
        self.factory.stores = self.open()


def scaled(examples: int) -> settings:
    return settings(max_examples=examples * max(1, settings.default.max_examples // 100), stateful_step_count=40)


TestQueue = behavior(73)(Queue.TestCase)
TestQueue.settings = scaled(25)
TestQueueOnFile = pytest.mark.full(behavior(73)(QueueOnFile.TestCase))
TestQueueOnFile.settings = scaled(5)
