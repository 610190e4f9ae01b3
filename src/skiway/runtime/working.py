"""The work on connectors that a process does: jobs on a thread of its own, and what calls ask for at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from os import getpid
from socket import gethostname

from skiway.config.kept import JobStore
from skiway.config.kept import Reconciler as Settings
from skiway.metastore import Realm
from skiway.metastore.job_queue import JobQueue
from skiway.metastore.job_rules import JobRules
from skiway.metastore.reconcile import Reconciler
from skiway.pipeline.capture import jobs_of
from skiway.pipeline.worker import Worker
from skiway.storage import Stores

__all__ = ["job_rules", "worker_of", "working"]


@contextmanager
def working(settings: Settings, stores: Stores, reconciler: Reconciler) -> Iterator[None]:
    """Jobs are done while inside, unless workers of their own do them; leaving gives back the one that is under way."""
    if settings.backend != "local":
        yield
        return
    with worker_of(settings, stores, reconciler):
        yield


def worker_of(settings: Settings, stores: Stores, reconciler: Reconciler) -> Worker:
    """A worker for the jobs of all accounts of a store."""
    queue = JobQueue(stores, rules=job_rules(settings.job_store))
    run = jobs_of(lambda account_id: Realm(stores, account_id), reconciler)
    return Worker(queue, run, name=f"{gethostname()}-{getpid()}", poll_s=settings.poll_every.total_seconds())


def job_rules(settings: JobStore) -> JobRules:
    """How often jobs are tried, and how long a worker may be silent."""
    return JobRules(
        max_attempts=settings.max_attempts,
        base_backoff_s=settings.base_backoff_ms / 1000,
        max_backoff_s=settings.max_backoff_ms / 1000,
        lease_s=settings.lease_ms / 1000,
        ready_scan_limit=settings.ready_scan_limit,
    )
