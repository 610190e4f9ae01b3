"""Attempts at jobs: their ends are logged and counted, and a job with failed tables is not a plain success."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from metastore.mirrors import RULES, connector, queue
from metastore.resource_factory import ResourceFactory
from skiway.errors import Conflict
from skiway.metastore import connectors, jobs
from skiway.metastore.jobs.attempts import Attempt, Progress
from skiway.metastore.jobs.queue import JobQueue
from skiway.model import v1
from skiway.runtime.telemetry import count_attempts, measure_queue
from skiway.telemetry.metrics import Metrics

SOME_FAILED = Progress(3, 2, {"b": "is corrupt"}, "1 of 3 tables failed: b: is corrupt")


def trigger(factory: ResourceFactory, name: str = "files") -> str:
    request = v1.TriggerReconcileRequest(connector_id=connector(factory, name).resource_id)
    return connectors.trigger(factory.home, request).job_id


def observed(factory: ResourceFactory) -> tuple[JobQueue, list[Attempt]]:
    attempts: list[Attempt] = []
    return replace(queue(factory), on_attempt=attempts.append), attempts


@pytest.mark.parametrize(
    ("done", "state"),
    [
        (Progress(3, 3), v1.JS_SUCCEEDED),
        (Progress(), v1.JS_SUCCEEDED),
        (SOME_FAILED, v1.JS_PARTIAL),
        (Progress(1, 0, {"b": "is corrupt"}), v1.JS_FAILED),
    ],
)
def test_job_is_partial_if_some_tables_failed_and_failed_if_all_did(factory, done, state):
    job_id = trigger(factory)
    job_queue = queue(factory)
    assert job_queue.complete(job_queue.lease("w"), done).state == state
    listed = jobs.list_(factory.home, v1.ListReconcileJobsRequest(state=state)).jobs
    assert [each.job_id for each in listed] == [job_id]


def test_partial_job_has_ended(factory):
    job_id, job_queue = trigger(factory), queue(factory)
    job_queue.complete(job_queue.lease("w"), SOME_FAILED)
    assert job_queue.lease("w") is None
    found = jobs.get(factory.home, v1.GetReconcileJobRequest(job_id=job_id)).job
    assert found.HasField("finished_at")
    assert (
        connectors.trigger(factory.home, v1.TriggerReconcileRequest(connector_id=found.connector_id)).job_id != job_id
    )


@pytest.mark.parametrize(
    ("act", "result", "level", "words"),
    [
        (lambda q, lease: q.complete(lease, Progress(3, 2)), "succeeded", "INFO", "after 2.0 s: 3 tables, 2 changed"),
        (
            lambda q, lease: q.complete(lease, SOME_FAILED),
            "partial",
            "WARNING",
            "only in part after 2.0 s: 1 of 3 tables",
        ),
        (
            lambda q, lease: q.fail(lease, "no such bucket", retry=False),
            "failed",
            "ERROR",
            "1 of at most 3: no such bucket",
        ),
        (
            lambda q, lease: q.fail(lease, "no answer"),
            "retried",
            "WARNING",
            "is retried in 1.0 s, because attempt 1 of",
        ),
        (lambda q, lease: q.cancelled(lease), "cancelled", "INFO", "was cancelled after 2.0 s"),
        (lambda q, lease: q.release(lease), "released", "INFO", "returned to the queue after 2.0 s"),
    ],
)
def test_end_of_an_attempt_is_logged_and_reported(factory, caplog, act, result, level, words):
    caplog.set_level(logging.INFO, "skiway.jobs")
    job_id = trigger(factory)
    job_queue, attempts = observed(factory)
    lease = job_queue.lease("w")
    factory.clock.advance(2)
    after = act(job_queue, lease)
    assert [(each.job, each.result, each.seconds) for each in attempts] == [(after, result, 2.0)]
    [record] = caplog.records
    assert (record.levelname, record.job_id, record.result, record.duration_s) == (level, job_id, result, 2.0)
    assert record.account_id == factory.home.account_id
    assert words in record.getMessage()


def test_lost_lease_is_reported_by_the_queue_that_notices(factory, caplog):
    trigger(factory)
    queue(factory).lease("w1")
    factory.clock.advance(RULES.lease_s)
    job_queue, attempts = observed(factory)
    job_queue.reclaim()
    assert [each.result for each in attempts] == ["retried"]
    assert "w1 did not renew its lease in time" in caplog.text


def test_rejected_report_counts_nothing(factory):
    trigger(factory)
    job_queue, attempts = observed(factory)
    lease = job_queue.lease("w1")
    job_queue.complete(lease, Progress())
    with pytest.raises(Conflict):
        job_queue.complete(lease, Progress())
    assert [each.result for each in attempts] == ["succeeded"]


def test_metrics_have_depth_and_age_of_the_queue_and_duration_and_results_of_attempts(factory):
    metrics = Metrics(strict=True)
    job_queue = replace(queue(factory), on_attempt=count_attempts(metrics))
    measure_queue(metrics, job_queue)

    def exported() -> dict[str, float]:
        lines = (line.rpartition(" ") for line in metrics.prometheus_text().splitlines() if not line.startswith("#"))
        return {name.removeprefix("skiway_service_jobs_"): float(value) for name, _, value in lines}

    assert exported() == {"queued": 0, "running": 0, "oldest_age_seconds": 0}
    for name in ("first", "second", "third"):
        trigger(factory, name)
        factory.clock.advance(10)
    assert exported() == {"queued": 3, "running": 0, "oldest_age_seconds": 30}
    lease = job_queue.lease("w")
    assert exported() == {"queued": 2, "running": 1, "oldest_age_seconds": 20}
    factory.clock.advance(7)
    job_queue.complete(lease, SOME_FAILED)
    job_queue.fail(job_queue.lease("w"), "no answer")
    found, account = exported(), factory.home.account_id
    assert found[f'attempts_total{{account="{account}",result="partial"}}'] == 1
    assert found[f'attempts_total{{account="{account}",result="retried"}}'] == 1
    assert found[f'failed_tables_total{{account="{account}"}}'] == 1
    assert found[f'duration_seconds_sum{{account="{account}",result="partial"}}'] == 7
    assert (found["queued"], found["running"]) == (2, 0)


def test_job_that_is_due_later_has_no_age(factory):
    trigger(factory)
    job_queue = queue(factory)
    job_queue.fail(job_queue.lease("w"), "no answer")
    assert (job_queue.queued(), job_queue.oldest_age_s()) == (1, 0.0)
