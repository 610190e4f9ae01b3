"""Workers: they run reconcile jobs, and create jobs for connectors whose policy is due."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from os import getpid
from pathlib import Path
from socket import gethostname
from typing import Final

from skiway.config import Settings
from skiway.config.metastore import JobStore
from skiway.errors import SkiwayError
from skiway.formats.iceberg.warehouse import Warehouse
from skiway.metastore import Realm
from skiway.metastore.jobs.queue import JobQueue, JobRules, leased
from skiway.metastore.jobs.schedule import JobSchedule
from skiway.metastore.migrations import watching_format
from skiway.metastore.pipelines.inputs import PipelineArea
from skiway.metastore.pipelines.schedule import PipelineSchedule
from skiway.metastore.reconcile.outcomes import Control
from skiway.metastore.reconcile.reconciler import Reconciler
from skiway.metastore.table_maintenance.tasks import LargeOptimizer
from skiway.pipeline.derive import SparkQueries
from skiway.pipeline.ingest.engine import SparkCopies
from skiway.pipeline.interruption import interruptible
from skiway.pipeline.worker import SparkProfile, Worker, jobs_of
from skiway.runtime.authentication import current_roles
from skiway.runtime.lake import functions_of, opener_of, warehouse_of
from skiway.runtime.lifecycle import StopSignals, repeating
from skiway.runtime.source_access import source_access_of
from skiway.runtime.spark import optimizer_of, spark_place
from skiway.runtime.stores import secrets_of, stores_of
from skiway.runtime.telemetry import count_attempts, logging_as_configured, measuring
from skiway.security import SecretsStore
from skiway.security.source_access import SourceAccess
from skiway.spark_queries.functions import SparkFunctions
from skiway.storage import Stores
from skiway.telemetry.metrics import Metrics

__all__ = [
    "at_work",
    "job_rules",
    "realms_of",
    "reconciler_of",
    "spark_profile",
    "work",
    "worker_name",
    "worker_of",
    "working",
]

STOP_S: Final = 10.0

log = logging.getLogger("skiway.runtime")


def work(settings: Settings, home: Path, *, on_ready: Callable[[], None] = lambda: None) -> None:
    """Run the jobs of a store until SIGTERM or SIGINT, alongside servers; then return unfinished jobs to the queue.

    A second signal ends the process at once. Main thread only.
    """
    with ExitStack() as parts:
        signals = parts.enter_context(StopSignals())
        parts.enter_context(logging_as_configured(settings))
        metrics = parts.enter_context(measuring(settings))
        stores = parts.enter_context(stores_of(settings, home, metrics=metrics))
        parts.enter_context(watching_format(stores))
        warehouse, sources = warehouse_of(settings), source_access_of(settings, home)
        secrets = secrets_of(settings)
        reconciler = reconciler_of(settings, secrets, warehouse, sources)
        large = optimizer_of(settings, stores, secrets)
        functions = functions_of(settings, stores, secrets)
        parts.enter_context(at_work(settings, stores, reconciler, metrics, large, functions))
        on_ready()
        log.info("worker %s is waiting for jobs", worker_name())
        log.info("received %s: returning unfinished jobs to the queue", signals.wait().name)


def reconciler_of(settings: Settings, secrets: SecretsStore, warehouse: Warehouse, sources: SourceAccess) -> Reconciler:
    """What syncs, profiles and copies tables."""
    place = spark_place(settings.reconciler.spark)
    copies = SparkCopies(place.session, fetch_drivers=place.fetch_jars)
    opener = opener_of(warehouse, sources)
    capturing = partial(interruptible, "capture", Control())
    return Reconciler(secrets, spark_profile(settings), opener, warehouse, sources, copies, capturing)


@contextmanager
def working(
    settings: Settings,
    stores: Stores,
    reconciler: Reconciler,
    metrics: Metrics,
    large: LargeOptimizer | None = None,
    functions: SparkFunctions | None = None,
) -> Iterator[Worker | None]:
    """Run jobs for the duration of the block, unless only separate workers do; then return unfinished jobs.

    Yields the worker, if there is one.
    """
    if settings.reconciler.backend != "local":
        yield None
        return
    with at_work(settings, stores, reconciler, metrics, large, functions) as worker:
        yield worker


@contextmanager
def at_work(
    settings: Settings,
    stores: Stores,
    reconciler: Reconciler,
    metrics: Metrics,
    large: LargeOptimizer | None = None,
    functions: SparkFunctions | None = None,
) -> Iterator[Worker]:
    """Create jobs by policy, and run jobs, for the duration of the block. Yields the worker."""
    realm_of = realms_of(settings, stores)
    schedules: list[JobSchedule | PipelineSchedule] = [JobSchedule(stores, realm_of)]
    if settings.pipelines.enabled and reconciler.warehouse is not None:
        area = PipelineArea(reconciler, current_roles(settings), allows_python=functions is not None)
        schedules.append(PipelineSchedule(stores, realm_of, area))
    every_s = settings.reconciler.poll_every.total_seconds()
    with (
        worker_of(settings, stores, reconciler, metrics, large, functions) as worker,
        scheduling(schedules, every_s=every_s),
    ):
        yield worker


def scheduling(schedules: Sequence[JobSchedule | PipelineSchedule], *, every_s: float) -> AbstractContextManager[None]:
    """Create jobs by policy for the duration of the block."""

    def step() -> None:
        for schedule in schedules:
            try:
                schedule.begin_due()
            except SkiwayError as error:
                log.warning("the search for connectors and pipelines that are due failed: %s", error)

    return repeating(step, name="schedule", every_s=every_s, stop_s=STOP_S)


def spark_profile(settings: Settings) -> SparkProfile:
    """The function that profiles tables, with a Spark session that starts when it is needed."""
    given = settings.profiles
    return SparkProfile(
        spark_place(settings.reconciler.spark).session,
        sample_above_bytes=given.sample_above_bytes,
        sample_bytes=given.sample_bytes,
        in_process_bytes=given.in_process_bytes,
    )


def realms_of(settings: Settings, stores: Stores) -> Callable[[str], Realm]:
    """The accounts whose jobs are run."""
    retention_s = settings.events.retention.total_seconds()
    return lambda account_id: Realm(stores, account_id, events_s=retention_s)


def worker_of(
    settings: Settings,
    stores: Stores,
    reconciler: Reconciler,
    metrics: Metrics,
    large: LargeOptimizer | None = None,
    functions: SparkFunctions | None = None,
) -> Worker:
    """A worker for the jobs of all accounts."""
    place = spark_place(settings.reconciler.spark)
    queries = SparkQueries(place.session) if settings.pipelines.enabled else None
    return Worker(
        JobQueue(stores, rules=job_rules(settings.reconciler.job_store), on_attempt=count_attempts(metrics)),
        jobs_of(
            realms_of(settings, stores),
            reconciler,
            queries,
            large=large,
            current_roles=current_roles(settings),
            functions=None if functions is None else lambda job: functions.for_job(leased(job)),
        ),
        name=worker_name(),
        poll_s=settings.reconciler.poll_every.total_seconds(),
        at_once=settings.reconciler.parallel_jobs,
        revive=place.revive,
    )


def worker_name() -> str:
    """A name that identifies this process: host and process id."""
    return f"{gethostname()}-{getpid()}"


def job_rules(settings: JobStore) -> JobRules:
    """The rules for retries and leases of jobs."""
    return JobRules(
        max_attempts=settings.max_attempts,
        base_backoff_s=settings.base_backoff_ms / 1000,
        max_backoff_s=settings.max_backoff_ms / 1000,
        lease_s=settings.lease_ms / 1000,
        ready_scan_limit=settings.ready_scan_limit,
    )
