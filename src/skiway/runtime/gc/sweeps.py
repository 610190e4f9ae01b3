"""The background work that one server of a store does at a time: garbage collection, maintenance, quality rules and profiles.

`KINDS` defines the sweeps of garbage collection for the schedule, `skiway gc`, the settings and the documentation, and `STARTING` those
that start jobs, which workers run. Each continues where the last one stopped.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib.util import find_spec
from operator import attrgetter
from typing import Any, Final

from skiway.config import Settings
from skiway.formats.iceberg.warehouse import Warehouse
from skiway.foundation.clock import Clock, SettledClock, utc_now
from skiway.metastore import Realm, branches, gc, quality
from skiway.metastore.gc import Slice
from skiway.metastore.reconcile.profiling import ProfileRules, start_profiles
from skiway.metastore.table_maintenance import MaintenanceArea
from skiway.metastore.table_maintenance.tasks import start_due
from skiway.runtime.gc.schedule import Sweep
from skiway.runtime.workers import realms_of
from skiway.security import SecretsStore
from skiway.storage import Stores

log = logging.getLogger("skiway.gc")


@dataclass(frozen=True, slots=True)
class Page:
    """A page of a sweep that ran once: its result, or the error that ended the sweep."""

    kind: SweepKind
    result: Slice
    error: Exception | None = None


def is_enabled(kind: SweepKind, settings: Settings, warehouse: Warehouse | None) -> bool:
    """Whether servers run the sweep with these settings."""
    return (
        kind.is_possible(settings)
        and kind.limits(settings).enabled
        and not (kind.needs_warehouse and warehouse is None)
    )


def sweeps(
    settings: Settings,
    stores: Stores,
    secrets: SecretsStore,
    *,
    warehouse: Warehouse | None = None,
    clock: Clock = utc_now,
) -> list[Sweep]:
    """All sweeps for the schedule, including disabled ones."""
    work = _Work(settings, stores, secrets, clock, warehouse)
    return [_scheduled(kind, work) for kind in (*KINDS, *STARTING)]


def once_round(
    settings: Settings,
    stores: Stores,
    secrets: SecretsStore,
    *,
    dry_run: bool,
    warehouse: Warehouse | None = None,
    clock: Clock = utc_now,
) -> Iterator[Page]:
    """Run garbage collection completely, page by page, independently of the schedule and of which sweeps servers run.

    Sweeps that need a warehouse run only if there is one. A sweep that fails yields its error, and the next one runs. A dry run
    yields what would be deleted, except for expired records, which are invisible already.
    """
    work = _Work(settings, stores, secrets, clock, warehouse, dry_run=dry_run)
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
            yield Page(kind, Slice(), error)
            return
        yield Page(kind, result)
        if (token := result.next_token) is None:
            return


def _scheduled(kind: SweepKind, work: _Work) -> Sweep:
    limits = kind.limits(work.settings)
    millis = [getattr(limits, name, None) for name in ("slice_millis", "max_tick_millis")]
    if kind.is_settled:  # blobs and files of running statements must not seem old because the clock jumped
        work = replace(work, clock=SettledClock(work.clock, limits.min_age_ms / 1000))
    return Sweep(
        kind.name,
        lambda token: kind.step(work, token),
        every_s=limits.tick_every.total_seconds(),
        slice_s=min(limit for limit in millis if limit is not None) / 1000,
        batch_limit=getattr(limits, "batch_limit", None),
        enabled=is_enabled(kind, work.settings, work.warehouse),
    )


@dataclass(frozen=True, slots=True)
class _Work:
    """The arguments of every step."""

    settings: Settings
    stores: Stores
    secrets: SecretsStore
    clock: Clock
    warehouse: Warehouse | None = None
    dry_run: bool = False

    @property
    def files(self) -> Warehouse:
        """The warehouse of a step that needs it."""
        assert self.warehouse is not None, "the sweep is disabled without a warehouse"
        return self.warehouse

    @property
    def realm_of(self) -> Callable[[str], Realm]:
        """The accounts that the sweep visits."""
        return realms_of(self.settings, self.stores)


def _expired(work: _Work, _: str | None) -> Slice:
    limit = work.settings.gc.idempotency.page_size
    count = 0 if work.dry_run else gc.sweep_expired(work.stores, limit=limit)
    return Slice(count, unnamed=count, next_token="more" if count == limit else None)


def _blobs(work: _Work, token: str | None) -> Slice:
    own = work.settings.gc.cas
    age_s = own.min_age_ms / 1000
    return gc.sweep_blobs(
        work.stores, clock=work.clock, min_age_s=age_s, size=own.page_size, token=token, dry_run=work.dry_run
    )


def _pointers(work: _Work, token: str | None) -> Slice:
    return gc.sweep_pointers(work.stores, size=work.settings.gc.pointer.page_size, token=token, dry_run=work.dry_run)


def _jobs(work: _Work, token: str | None) -> Slice:
    own = work.settings.gc.reconcile_jobs
    return gc.sweep_jobs(
        work.stores,
        clock=work.clock,
        retention_s=own.retention_ms / 1000,
        size=own.page_size,
        accounts=own.accounts_page_size,
        token=token,
        dry_run=work.dry_run,
    )


def _transactions(work: _Work, token: str | None) -> Slice:
    return gc.sweep_transactions(work.stores, work.files, clock=work.clock, token=token, dry_run=work.dry_run)


def _events(work: _Work, token: str | None) -> Slice:
    return gc.sweep_events(work.stores, size=work.settings.gc.pointer.page_size, token=token, dry_run=work.dry_run)


def _secrets(work: _Work, token: str | None) -> Slice:
    size = work.settings.gc.pointer.page_size
    return gc.sweep_secrets(work.stores, work.secrets, clock=work.clock, size=size, token=token, dry_run=work.dry_run)


def _files(work: _Work, token: str | None) -> Slice:
    own = work.settings.gc.warehouse
    age_s = own.min_age_ms / 1000
    return gc.sweep_warehouse(
        work.stores,
        work.files,
        clock=work.clock,
        min_age_s=age_s,
        size=own.page_size,
        token=token,
        dry_run=work.dry_run,
    )


def _branches(work: _Work, _: str | None) -> Slice:
    own = work.settings.gc.warehouse
    age_s, idle_s = own.min_age_ms / 1000, 0.0 if own.idle_branches is None else own.idle_branches.total_seconds()
    removed = branches.sweep(work.stores, clock=work.clock, min_age_s=age_s, idle_s=idle_s, dry_run=work.dry_run)
    return Slice(len(removed), tuple(removed))


def _maintenance(work: _Work, token: str | None) -> Slice:
    own = work.settings.maintenance
    area = MaintenanceArea.of(work.files, work.settings.gc.warehouse.min_age_ms)
    page, _ = start_due(
        work.stores,
        work.files,
        realm_of=work.realm_of,
        size=own.page_size,
        orphan_age=area.orphan_age,
        spark_from_bytes=own.spark.from_bytes,
        token=token,
    )
    return page


def _rules(work: _Work, token: str | None) -> Slice:
    size = work.settings.quality.page_size
    page = quality.check_metadata(work.stores, realm_of=work.realm_of, size=size, token=token)
    return Slice(page.looked_at, next_token=page.next_token)


def _profiles(work: _Work, token: str | None) -> Slice:
    own = work.settings.profiles
    rules = ProfileRules(own.automatic, own.changed_rows, own.delay)
    page = start_profiles(work.stores, work.files, realm_of=work.realm_of, rules=rules, size=own.page_size, token=token)
    return Slice(page.looked_at, next_token=page.next_token)


def _has_spark(settings: Settings) -> bool:
    """Whether Spark is installed here. If only separate workers run jobs, they have it."""
    return settings.reconciler.backend == "remote" or find_spec("pyspark") is not None


@dataclass(frozen=True, slots=True)
class SweepKind:
    """A sweep: its name, the section with its settings, the noun for what it deletes, which is empty if it deletes nothing, the words of
    the documentation, and a step, which processes one page.
    """

    name: str
    section: str
    noun: str
    deletes: str
    step: Callable[[_Work, str | None], Slice]
    needs_warehouse: bool = False
    is_settled: bool = False
    is_possible: Callable[[Settings], bool] = lambda _: True

    def limits(self, settings: Settings) -> Any:
        """The section with its interval and its limits."""
        return attrgetter(self.section)(settings)


KINDS: Final = (
    SweepKind(
        "transactions",
        "gc.warehouse",
        "transaction",
        "[transactions](transactions.md) that were not committed in time, with their files, and records of those that "
        "ended a day ago",
        _transactions,
        needs_warehouse=True,
    ),
    SweepKind(
        "idempotency",
        "gc.idempotency",
        "expired record",
        "expired idempotency keys, markers, events, and leases of queries with their pins",
        _expired,
    ),
    SweepKind("pointer", "gc.pointer", "pointer", "dangling pointers, and the statistics of deleted tables", _pointers),
    SweepKind(
        "jobs",
        "gc.reconcile_jobs",
        "job",
        "jobs that ended longer ago than `gc.reconcile_jobs.retention_ms`",
        _jobs,
    ),
    SweepKind("secrets", "gc.pointer", "secret", "secrets of deleted connectors and webhooks", _secrets),
    SweepKind(
        "events",
        "gc.pointer",
        "",
        "nothing; it gives new [events](transactions.md#events) their numbers",
        _events,
    ),
    SweepKind(
        "branches",
        "gc.warehouse",
        "branch",
        "[branches of the lake](branches.md) that are idle longer than `gc.warehouse.idle_branches`, and what "
        "is left of branches that were deleted longer ago than `gc.warehouse.min_age_ms`",
        _branches,
        needs_warehouse=True,
        is_settled=True,
    ),
    SweepKind("cas", "gc.cas", "blob", "unreferenced blobs older than `gc.cas.min_age_ms`", _blobs, is_settled=True),
    SweepKind(
        "warehouse",
        "gc.warehouse",
        "file",
        "unreferenced files of [managed tables](managed-tables.md#unreferenced-files) older than "
        "`gc.warehouse.min_age_ms` (three days)",
        _files,
        needs_warehouse=True,
        is_settled=True,
    ),
)
"""The sweeps of garbage collection in their order: those that release blobs come before those that delete them."""

STARTING: Final = (
    SweepKind("maintenance", "maintenance", "", "", _maintenance, needs_warehouse=True),
    SweepKind("quality", "quality", "", "", _rules),
    SweepKind("profiles", "profiles", "", "", _profiles, needs_warehouse=True, is_possible=_has_spark),
)
"""The sweeps that start jobs: maintenance of tables, checks of quality rules, and profiles."""
