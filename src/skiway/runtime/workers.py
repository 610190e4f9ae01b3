"""The work on connectors that a process does: jobs on threads of its own, and those that are due by their policies."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from os import getpid
from pathlib import Path
from socket import gethostname
from typing import Final

from skiway.config import Settings as AllSettings
from skiway.config.metastore import JobStore, Spark
from skiway.config.metastore import Reconciler as Settings
from skiway.errors import SkiwayError
from skiway.formats.web_access import Addresses, permit
from skiway.metastore import Realm
from skiway.metastore.jobs.queue import JobQueue, JobRules
from skiway.metastore.jobs.schedule import JobSchedule
from skiway.metastore.reconcile.reconciler import Reconciler
from skiway.pipeline.session import SparkPlace
from skiway.pipeline.worker import SparkProfile, Worker, jobs_of
from skiway.runtime.lake import opener_of, warehouse_of
from skiway.runtime.lifecycle import StopSignals
from skiway.runtime.stores import secrets_of, stores_of
from skiway.storage import Stores
from skiway.telemetry import logs

__all__ = ["at_work", "job_rules", "prepare", "spark_place", "work", "worker_of", "working"]

PATIENCE_S: Final = 10.0

log = logging.getLogger("skiway.runtime")


def work(settings: AllSettings, home: Path, *, on_ready: Callable[[], None] = lambda: None) -> None:
    """Work on the jobs of a store until SIGTERM or SIGINT, beside any servers; then give back what is under way.

    A second signal ends at once. Main thread only.
    """
    with ExitStack() as parts:
        signals = parts.enter_context(StopSignals())
        parts.callback(logs.configure(settings.log))
        stores = parts.enter_context(stores_of(settings, home))
        prepare(settings.reconciler)
        warehouse = warehouse_of(settings)
        profile = SparkProfile(spark_place(settings.reconciler.spark).session)
        reconciler = Reconciler(secrets_of(settings), profile, opener_of(warehouse), warehouse)
        parts.enter_context(at_work(settings.reconciler, stores, reconciler))
        on_ready()
        log.info("worker %s waits for jobs", worker_name())
        log.info("told to stop by %s: jobs under way are given back", signals.wait().name)


@contextmanager
def working(settings: Settings, stores: Stores, reconciler: Reconciler) -> Iterator[None]:
    """Jobs are done while inside, unless workers of their own do them; leaving gives back those that are under way."""
    prepare(settings)
    if settings.backend != "local":
        yield
        return
    with at_work(settings, stores, reconciler):
        yield


@contextmanager
def at_work(settings: Settings, stores: Stores, reconciler: Reconciler) -> Iterator[None]:
    """Jobs are made by policies, and done, while inside."""
    schedule = JobSchedule(stores, lambda account_id: Realm(stores, account_id))
    with worker_of(settings, stores, reconciler), scheduling(schedule, every_s=settings.poll_every.total_seconds()):
        yield


@contextmanager
def scheduling(schedule: JobSchedule, *, every_s: float) -> Iterator[None]:
    """Jobs are made by policies while inside."""
    stop = threading.Event()

    def run() -> None:
        while not stop.is_set():
            try:
                schedule.begin_due()
            except SkiwayError as error:
                log.warning("connectors that are due cannot be looked for: %s", error)
            stop.wait(every_s)

    thread = threading.Thread(target=run, name="schedule", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(PATIENCE_S)


def prepare(settings: Settings) -> None:
    """Set for the whole process which addresses sources may be at."""
    permit(Addresses(settings.source_addresses))


def spark_place(settings: Spark) -> SparkPlace:
    """Where the Spark session is."""
    conf = dict(each.split("=", 1) for each in settings.conf)
    return SparkPlace(settings.master, settings.remote or "", conf)


def worker_of(settings: Settings, stores: Stores, reconciler: Reconciler) -> Worker:
    """A worker for the jobs of all accounts of a store."""
    return Worker(
        JobQueue(stores, rules=job_rules(settings.job_store)),
        jobs_of(lambda account_id: Realm(stores, account_id), reconciler),
        name=worker_name(),
        poll_s=settings.poll_every.total_seconds(),
        at_once=settings.parallel_jobs,
    )


def worker_name() -> str:
    """Tells this process from others."""
    return f"{gethostname()}-{getpid()}"


def job_rules(settings: JobStore) -> JobRules:
    """How often jobs are tried, and how long a worker may be silent."""
    return JobRules(
        max_attempts=settings.max_attempts,
        base_backoff_s=settings.base_backoff_ms / 1000,
        max_backoff_s=settings.max_backoff_ms / 1000,
        lease_s=settings.lease_ms / 1000,
        ready_scan_limit=settings.ready_scan_limit,
    )
