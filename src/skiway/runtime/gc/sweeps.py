"""The sweeps of garbage collection, and the periodic work that runs on its schedule: maintenance, quality rules and profiles.

`KINDS` defines the sweeps of garbage collection for the schedule, `skiway gc`, the settings and the documentation. One
server of a store runs a sweep at a time, and continues where the last one stopped. Workers run the jobs that sweeps start.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any, Final

from skiway.config import Settings
from skiway.config.metastore import Gc
from skiway.formats.iceberg.warehouse import Warehouse
from skiway.foundation.clock import Clock, SettledClock, utc_now
from skiway.metastore import gc, quality
from skiway.metastore.reconcile.profiling import ProfileRules, start_profiles
from skiway.metastore.table_maintenance import MaintenanceArea
from skiway.metastore.table_maintenance.tasks import start_due
from skiway.runtime.gc.schedule import Progress, Sweep
from skiway.runtime.workers import realms_of
from skiway.security import SecretsStore
from skiway.storage import Stores

log = logging.getLogger("skiway.gc")


@dataclass(frozen=True, slots=True)
class Page:
    """A page of a sweep that ran once: its result, or the error that ended the sweep."""

    kind: SweepKind
    result: gc.Slice
    error: Exception | None = None


def is_enabled(kind: SweepKind, settings: Gc, warehouse: Warehouse | None) -> bool:
    """Whether servers run the sweep with these settings."""
    return bool(_section(kind, settings).enabled) and not (kind.needs_warehouse and warehouse is None)


def sweeps(
    stores: Stores,
    secrets: SecretsStore,
    settings: Gc,
    *,
    warehouse: Warehouse | None = None,
    clock: Clock = utc_now,
) -> list[Sweep]:
    """All sweeps for the schedule, including disabled ones."""
    work = _Work(stores, secrets, settings, clock, warehouse)
    return [_scheduled(kind, work) for kind in KINDS]


def once_round(
    stores: Stores,
    secrets: SecretsStore,
    settings: Gc,
    *,
    dry_run: bool,
    warehouse: Warehouse | None = None,
    clock: Clock = utc_now,
) -> Iterator[Page]:
    """Run every sweep completely, page by page, independently of the schedule and of which sweeps servers run.

    Those that need a warehouse run only if there is one. A sweep that fails yields its error, and the next one runs. A dry run
    yields what would be deleted, except for expired records, which are invisible already.
    """
    work = _Work(stores, secrets, settings, clock, warehouse, dry_run=dry_run)
    for kind in KINDS:
        if warehouse is not None or not kind.needs_warehouse:
            yield from _pages(kind, work)


def _pages(kind: SweepKind, work: _Work) -> Iterator[Page]:
    token: str | None = None
    while True:
        try:
            result = kind.step(work, token)
        except Exception as error:  # the other sweeps run, whatever this one raised
            log.debug("gc %s failed", kind.name, exc_info=True)
            yield Page(kind, gc.Slice(), error)
            return
        yield Page(kind, result)
        if (token := result.next_token) is None:
            return


def _section(kind: SweepKind, settings: Gc) -> Any:
    return getattr(settings, kind.section)


def _scheduled(kind: SweepKind, work: _Work) -> Sweep:
    section = _section(kind, work.settings)
    if kind.is_settled:  # blobs and files of running statements must not seem old because the clock jumped
        work = replace(work, clock=SettledClock(work.clock, section.min_age_ms / 1000))
    enabled = is_enabled(kind, work.settings, work.warehouse)
    return _sweep(kind.name, lambda token: _progress(kind.step(work, token)), section, enabled=enabled)


@dataclass(frozen=True, slots=True)
class _Work:
    """The arguments of every step."""

    stores: Stores
    secrets: SecretsStore
    settings: Gc
    clock: Clock
    warehouse: Warehouse | None = None
    dry_run: bool = False


def _expired(work: _Work, _: str | None) -> gc.Slice:
    limit = work.settings.idempotency.page_size
    count = 0 if work.dry_run else gc.sweep_expired(work.stores, limit=limit)
    return gc.Slice(count, unnamed=count, next_token="more" if count == limit else None)


def _blobs(work: _Work, token: str | None) -> gc.Slice:
    return gc.sweep_blobs(
        work.stores,
        clock=work.clock,
        min_age_s=work.settings.cas.min_age_ms / 1000,
        size=work.settings.cas.page_size,
        token=token,
        dry_run=work.dry_run,
    )


def _pointers(work: _Work, token: str | None) -> gc.Slice:
    return gc.sweep_pointers(work.stores, size=work.settings.pointer.page_size, token=token, dry_run=work.dry_run)


def _jobs(work: _Work, token: str | None) -> gc.Slice:
    jobs = work.settings.reconcile_jobs
    return gc.sweep_jobs(
        work.stores,
        clock=work.clock,
        retention_s=jobs.retention_ms / 1000,
        size=jobs.page_size,
        accounts=jobs.accounts_page_size,
        token=token,
        dry_run=work.dry_run,
    )


def _transactions(work: _Work, token: str | None) -> gc.Slice:
    assert work.warehouse is not None
    return gc.sweep_transactions(work.stores, work.warehouse, clock=work.clock, token=token, dry_run=work.dry_run)


def _events(work: _Work, token: str | None) -> gc.Slice:
    return gc.sweep_events(work.stores, size=work.settings.pointer.page_size, token=token, dry_run=work.dry_run)


def _secrets(work: _Work, token: str | None) -> gc.Slice:
    size = work.settings.pointer.page_size
    return gc.sweep_secrets(work.stores, work.secrets, clock=work.clock, size=size, token=token, dry_run=work.dry_run)


def _files(work: _Work, token: str | None) -> gc.Slice:
    assert work.warehouse is not None, "the sweep is disabled without a warehouse"
    return gc.sweep_warehouse(
        work.stores,
        work.warehouse,
        clock=work.clock,
        min_age_s=work.settings.warehouse.min_age_ms / 1000,
        size=work.settings.warehouse.page_size,
        token=token,
        dry_run=work.dry_run,
    )


def _progress(done: gc.Slice) -> Progress:
    return Progress(done.looked_at, done.count, done.damaged, done.next_token, done.failed)


@dataclass(frozen=True, slots=True)
class SweepKind:
    """A sweep: its name, the section of `gc` with its settings, the noun for what it deletes, which is empty if it deletes
    nothing, the words of the documentation, and a step, which processes one page.
    """

    name: str
    section: str
    noun: str
    deletes: str
    step: Callable[[_Work, str | None], gc.Slice]
    needs_warehouse: bool = False
    is_settled: bool = False


KINDS: Final = (
    SweepKind(
        "transactions",
        "warehouse",
        "transaction",
        "[transactions](transactions.md) that were not committed in time, with their files, and records of those that "
        "ended a day ago",
        _transactions,
        needs_warehouse=True,
    ),
    SweepKind(
        "idempotency",
        "idempotency",
        "expired record",
        "expired idempotency keys, markers, events, and leases of queries with their pins",
        _expired,
    ),
    SweepKind("pointer", "pointer", "pointer", "dangling pointers, and the statistics of deleted tables", _pointers),
    SweepKind(
        "jobs",
        "reconcile_jobs",
        "job",
        "jobs that ended longer ago than `gc.reconcile_jobs.retention_ms`",
        _jobs,
    ),
    SweepKind("secrets", "pointer", "secret", "secrets of deleted connectors and webhooks", _secrets),
    SweepKind(
        "events",
        "pointer",
        "",
        "nothing; it gives new [events](transactions.md#events) their numbers",
        _events,
    ),
    SweepKind("cas", "cas", "blob", "unreferenced blobs older than `gc.cas.min_age_ms`", _blobs, is_settled=True),
    SweepKind(
        "warehouse",
        "warehouse",
        "file",
        "unreferenced files of [managed tables](managed-tables.md#unreferenced-files) older than "
        "`gc.warehouse.min_age_ms` (three days)",
        _files,
        needs_warehouse=True,
        is_settled=True,
    ),
)
"""All sweeps in their order: those that release blobs come before those that delete them."""


def periodic_sweeps(settings: Settings, stores: Stores, warehouse: Warehouse) -> list[Sweep]:
    """The sweeps that start jobs: maintenance of tables, checks of quality rules, and profiles."""
    maintenance, rules, profiles = settings.maintenance, settings.quality, settings.profiles
    area = MaintenanceArea.of(warehouse, settings.gc.warehouse.min_age_ms)
    profile_rules = ProfileRules(profiles.automatic, profiles.changed_rows, profiles.delay)
    realm_of = realms_of(settings, stores)

    def maintain(token: str | None) -> Progress:
        page, _ = start_due(
            stores,
            warehouse,
            realm_of=realm_of,
            size=maintenance.page_size,
            orphan_age=area.orphan_age,
            spark_from_bytes=maintenance.spark.from_bytes,
            token=token,
        )
        return Progress(page.looked_at, next_token=page.next_token)

    def check(token: str | None) -> Progress:
        page = quality.check_metadata(stores, realm_of=realm_of, size=rules.page_size, token=token)
        return Progress(page.looked_at, next_token=page.next_token)

    def profile(token: str | None) -> Progress:
        page = start_profiles(
            stores, warehouse, realm_of=realm_of, rules=profile_rules, size=profiles.page_size, token=token
        )
        return Progress(page.looked_at, next_token=page.next_token)

    return [
        _sweep("maintenance", maintain, maintenance, enabled=maintenance.enabled),
        _sweep("quality", check, rules, enabled=rules.enabled),
        _sweep("profiles", profile, profiles, enabled=profiles.enabled and _has_spark(settings)),
    ]


def _sweep(name: str, step: Callable[[str | None], Progress], section: Any, *, enabled: bool) -> Sweep:
    """A sweep with the interval and the limits of a section of the settings."""
    millis = [getattr(section, limit, None) for limit in ("slice_millis", "max_tick_millis")]
    return Sweep(
        name,
        step,
        every_s=section.tick_every.total_seconds(),
        slice_s=min(limit for limit in millis if limit is not None) / 1000,
        batch_limit=getattr(section, "batch_limit", None),
        enabled=enabled,
    )


def _has_spark(settings: Settings) -> bool:
    """Whether Spark is installed here. If only separate workers run jobs, they have it."""
    return settings.reconciler.backend == "remote" or find_spec("pyspark") is not None
