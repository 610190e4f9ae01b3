"""The background work of a process: workers, which run jobs and create those that are due, and the delivery of webhooks.

Webhooks are delivered by threads that send events over HTTP, only to addresses that the operator permits.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import datetime
from functools import partial
from os import getpid
from pathlib import Path
from socket import gethostname
from typing import Final

from skiway import __version__
from skiway.config import Settings
from skiway.config.metastore import JobStore
from skiway.errors import SkiwayError, TimedOut, Unavailable
from skiway.formats.iceberg.warehouse import Warehouse
from skiway.foundation.clock import Clock, TooLate, call_within, utc_now
from skiway.metastore import Realm, webhooks
from skiway.metastore.jobs.api import JobSchedule
from skiway.metastore.jobs.queue import JobQueue, JobRules, leased
from skiway.metastore.migrations import watching_format
from skiway.metastore.pipelines.api import PipelineSchedule
from skiway.metastore.pipelines.inputs import PipelineArea
from skiway.metastore.reconcile.outcomes import Control
from skiway.metastore.reconcile.reconciler import Reconciler
from skiway.metastore.table_maintenance.tasks import LargeOptimizer
from skiway.metastore.webhooks import Delivery, DeliveryRules, OnAttempt, Send
from skiway.runtime.authentication import current_roles
from skiway.runtime.lake import functions_of, opener_of, optimizer_of, spark_place, warehouse_of
from skiway.runtime.lifecycle import StopSignals, repeating
from skiway.runtime.source_access import source_access_of
from skiway.runtime.stores import secrets_of, stores_of
from skiway.runtime.telemetry import count_attempts, count_deliveries, logging_as_configured, measuring
from skiway.security import SecretsStore
from skiway.security.source_access import SourceAccess
from skiway.security.source_access.connections import guard_session
from skiway.spark_jobs.interruption import interruptible
from skiway.spark_jobs.pipeline_queries import SparkQueries
from skiway.spark_jobs.worker import SparkCopies, SparkProfile, Worker, jobs_of
from skiway.spark_queries.engine import SparkFunctions
from skiway.storage import Stores
from skiway.telemetry.lineage import Lineage
from skiway.telemetry.metrics import Metrics

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
    step_bytes = settings.reconciler.copy_step_bytes
    copies = SparkCopies(place.session, fetch_drivers=place.fetch_jars, step_bytes=step_bytes)
    opener = opener_of(warehouse, sources)
    capturing = partial(interruptible, "capture", Control())
    return Reconciler(secrets, spark_profile(settings), opener, warehouse, sources, copies, capturing)


def lineage_of(settings: Settings) -> Lineage:
    """What sends the lineage of runs, as the settings say."""
    given = settings.telemetry.lineage
    key = "" if given.api_key is None else given.api_key.reveal()
    return Lineage.to(given.url or "", api_key=key, file=given.file, namespace=given.namespace)


@contextmanager
def at_work(
    settings: Settings,
    stores: Stores,
    reconciler: Reconciler,
    metrics: Metrics,
    large: LargeOptimizer | None = None,
    functions: SparkFunctions | None = None,
) -> Iterator[Worker]:
    """Create jobs by policy, and run the jobs of all accounts, for the duration of the block. Yields the worker.

    At the end, unfinished jobs are returned to the queue.
    """
    realm_of, roles, own = realms_of(settings, stores), current_roles(settings), settings.reconciler
    place, poll_s = spark_place(own.spark), own.poll_every.total_seconds()
    lineage = lineage_of(settings)
    reconciler = replace(reconciler, lineage=lineage)
    schedules: list[JobSchedule | PipelineSchedule] = [JobSchedule(stores, realm_of)]
    if settings.pipelines.enabled and reconciler.warehouse is not None:
        area = PipelineArea(reconciler, roles, allows_python=functions is not None)
        schedules.append(PipelineSchedule(stores, realm_of, area))
    worker = Worker(
        JobQueue(stores, rules=job_rules(own.job_store), on_attempt=count_attempts(metrics)),
        jobs_of(
            realm_of,
            reconciler,
            SparkQueries(place.session) if settings.pipelines.enabled else None,
            large=large,
            current_roles=roles,
            functions=None if functions is None else lambda job: functions.for_job(leased(job)),
        ),
        name=worker_name(),
        poll_s=poll_s,
        at_once=own.parallel_jobs,
        revive=place.revive,
    )

    def begin_due() -> None:
        for schedule in schedules:
            try:
                schedule.begin_due()
            except SkiwayError as error:
                log.warning("the search for connectors and pipelines that are due failed: %s", error)

    with lineage, worker, repeating(begin_due, name="schedule", every_s=poll_s, stop_s=STOP_S):
        yield worker


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


DELIVERY_STOP_S: Final = 5.0

webhooks_log = logging.getLogger("skiway.webhooks")


class WebSender:
    """Sends a body over HTTP. Redirects are not followed, and the whole exchange has a time limit."""

    def __init__(self, access: SourceAccess, *, timeout_s: float) -> None:
        self._access, self._timeout_s = access, timeout_s

    def __call__(self, account_id: str, url: str, body: bytes, headers: dict[str, str]) -> None:
        """Send; raise `SkiwayError` unless the answer has a status from 200 to 299."""
        try:
            # An endpoint may send its answer byte by byte, which no timeout of a socket ends.
            call_within(self._timeout_s, lambda: self._post(account_id, url, body, headers), name="webhook-request")
        except TooLate:
            raise self._silent() from None
        except SkiwayError:
            raise
        except Exception as error:
            raise Unavailable(f"the request failed: {type(error).__name__}", key="webhook.failed") from error

    def _post(self, account_id: str, url: str, body: bytes, headers: dict[str, str]) -> None:
        import requests

        with requests.Session() as session:
            guard_session(session, self._access.of_account(account_id))
            named = {**headers, "User-Agent": f"skiway/{__version__}"}
            limit = self._timeout_s
            try:
                response = session.post(
                    url, data=body, headers=named, timeout=(limit, limit), allow_redirects=False, stream=True
                )
            except requests.Timeout:  # on a busy machine, it can be noticed before the limit of the whole exchange
                raise self._silent() from None
            with response:
                if not 200 <= response.status_code < 300:
                    raise Unavailable(f"the answer has the status {response.status_code}", key="webhook.refused")

    def _silent(self) -> TimedOut:
        return TimedOut(f"there was no answer within {self._timeout_s:g} s", key="webhook.silent")


class Deliveries:
    """Looks for webhooks with something to send, and gives each a thread, up to `parallel` at a time."""

    def __init__(
        self,
        stores: Stores,
        realm_of: Callable[[str], Realm],
        *,
        secrets: SecretsStore,
        send: Send,
        rules: DeliveryRules,
        parallel: int = 8,
        clock: Clock = utc_now,
        owner: str = "",
        on_attempt: OnAttempt = lambda _account_id, _result, _seconds: None,
    ) -> None:
        self._stores, self._realm_of, self._secrets, self._send = stores, realm_of, secrets, send
        self._rules, self._parallel, self._owner = rules, parallel, owner or worker_name()
        self._on_attempt, self._clock = on_attempt, clock
        self._seen: Hashable | None = None
        self._next_at: datetime | None = None
        self._busy: dict[tuple[str, str], threading.Thread] = {}
        self._lock = threading.Lock()

    def look(self) -> None:
        """Begin to deliver whatever is due. Returns without waiting for endpoints.

        If the store has not changed since nothing was due, and no pause has ended, nothing is read.
        """
        state = self._stores.pointers.state()
        if state is not None and state == self._seen and (self._next_at is None or self._clock() < self._next_at):
            return
        is_quiet, later = True, list[datetime]()
        for account_id in webhooks.accounts_with_webhooks(self._stores):
            realm = self._realm_of(account_id)
            due = webhooks.due_webhooks(realm)
            later += [due.next_at] if due.next_at is not None else []
            for webhook_id in due.webhook_ids:
                is_quiet = False
                self._begin(realm, webhook_id)
        self._seen, self._next_at = state if is_quiet else None, min(later, default=None)

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until nothing is being sent."""
        for thread in list(self._busy.values()):
            thread.join(timeout_s)

    def _begin(self, realm: Realm, webhook_id: str) -> None:
        key = realm.account_id, webhook_id
        with self._lock:
            if key in self._busy or len(self._busy) >= self._parallel:
                return
            delivery = Delivery(
                realm, webhook_id, self._secrets, self._send, self._owner, self._rules, self._on_attempt
            )
            thread = threading.Thread(target=self._deliver, args=(key, delivery), name="webhook", daemon=True)
            self._busy[key] = thread
        thread.start()

    def _deliver(self, key: tuple[str, str], delivery: Delivery) -> None:
        try:
            delivery.run()
        except SkiwayError as error:
            webhooks_log.warning("webhook %s of account %s was not delivered: %s", key[1], key[0], error)
        finally:
            with self._lock:
                del self._busy[key]


@contextmanager
def delivering(
    settings: Settings, stores: Stores, secrets: SecretsStore, access: SourceAccess, metrics: Metrics
) -> Iterator[None]:
    """Deliver webhooks for the duration of the block, unless the settings turn it off."""
    rules = settings.webhooks
    if not rules.enabled:
        yield
        return
    timeout_s = rules.timeout.total_seconds()
    deliveries = Deliveries(
        stores,
        realms_of(settings, stores),
        secrets=secrets,
        send=WebSender(access, timeout_s=timeout_s),
        rules=DeliveryRules(
            max_attempts=rules.max_attempts,
            base_backoff_s=rules.base_backoff.total_seconds(),
            max_backoff_s=rules.max_backoff.total_seconds(),
            lease_s=3 * timeout_s,
            dead_letters_s=rules.keep_dead_letters.total_seconds(),
        ),
        parallel=rules.parallel,
        on_attempt=count_deliveries(metrics),
    )

    def look() -> None:
        try:
            deliveries.look()
        except SkiwayError as error:
            webhooks_log.warning("the search for events to deliver failed: %s", error)

    try:
        with repeating(look, name="webhooks", every_s=rules.poll_every.total_seconds(), stop_s=DELIVERY_STOP_S):
            yield
    finally:
        deliveries.wait(DELIVERY_STOP_S)
