"""The sweeps of garbage collection, with the intervals and limits from the settings.

| sweep       | settings                      | deletes                                               |
|-------------|-------------------------------|-------------------------------------------------------|
| idempotency | gc.idempotency                | expired records                                       |
| cas         | gc.cas                        | unreferenced blobs                                    |
| pointer     | gc.pointer                    | dangling pointers                                     |
| jobs        | gc.reconcile_jobs             | jobs that finished long ago                           |
| secrets     | gc.pointer                    | secrets of connectors and webhooks that do not exist  |
| events      | gc.pointer                    | nothing; it numbers events that nobody has read       |
| transactions| gc.warehouse                  | files of transactions that nobody ended in time       |
| warehouse   | gc.warehouse                  | unreferenced files of managed tables                  |
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

from skiway.clock import Clock, SettledClock, utc_now
from skiway.config.metastore import Gc
from skiway.formats.iceberg.warehouse import Warehouse
from skiway.metastore import gc
from skiway.metastore.gc.warehouse import sweep_warehouse
from skiway.runtime.gc.schedule import Progress, Sweep
from skiway.security import SecretsStore
from skiway.storage import Stores

__all__ = ["once_round", "sweeps"]


def sweeps(
    stores: Stores,
    secrets: SecretsStore,
    settings: Gc,
    *,
    warehouse: Warehouse | None = None,
    clock: Clock = utc_now,
) -> list[Sweep]:
    """All sweeps, including disabled ones. The warehouse sweep is disabled if there is no warehouse."""
    work = _Work(stores, secrets, settings, clock, warehouse)
    # Blobs and files of running statements must not seem old because the clock jumped.
    of_blobs = replace(work, clock=SettledClock(clock, settings.cas.min_age_ms / 1000))
    of_files = replace(work, clock=SettledClock(clock, settings.warehouse.min_age_ms / 1000))
    expired, cas, pointer, jobs = settings.idempotency, settings.cas, settings.pointer, settings.reconcile_jobs
    files = settings.warehouse
    return [
        Sweep(
            "idempotency",
            partial(_expired, stores, expired.page_size),
            every_s=expired.tick_every.total_seconds(),
            slice_s=expired.slice_millis / 1000,
            batch_limit=expired.batch_limit,
            enabled=expired.enabled,
        ),
        Sweep(
            "cas",
            lambda token: _progress(_blobs(of_blobs, token)),
            every_s=cas.tick_every.total_seconds(),
            slice_s=cas.max_tick_millis / 1000,
            enabled=cas.enabled,
        ),
        Sweep(
            "pointer",
            lambda token: _progress(_pointers(work, token)),
            every_s=pointer.tick_every.total_seconds(),
            slice_s=pointer.max_tick_millis / 1000,
            enabled=pointer.enabled,
        ),
        Sweep(
            "jobs",
            lambda token: _progress(_jobs(work, token)),
            every_s=jobs.tick_every.total_seconds(),
            slice_s=min(jobs.slice_millis, jobs.max_tick_millis) / 1000,
            batch_limit=jobs.batch_limit,
            enabled=jobs.enabled,
        ),
        Sweep(
            "events",
            lambda token: _progress(gc.sweep_events(stores, size=pointer.page_size, token=token)),
            every_s=pointer.tick_every.total_seconds(),
            slice_s=pointer.max_tick_millis / 1000,
            enabled=pointer.enabled,
        ),
        Sweep(
            "secrets",
            lambda token: _progress(_secrets(work, token)),
            every_s=pointer.tick_every.total_seconds(),
            slice_s=pointer.max_tick_millis / 1000,
            enabled=pointer.enabled,
        ),
        Sweep(
            "transactions",
            lambda token: _progress(_transactions(work, token)),
            every_s=files.tick_every.total_seconds(),
            slice_s=files.max_tick_millis / 1000,
            enabled=files.enabled and warehouse is not None,
        ),
        Sweep(
            "warehouse",
            lambda token: _progress(_files(of_files, token)),
            every_s=files.tick_every.total_seconds(),
            slice_s=files.max_tick_millis / 1000,
            enabled=files.enabled and warehouse is not None,
        ),
    ]


def once_round(
    stores: Stores,
    secrets: SecretsStore,
    settings: Gc,
    *,
    dry_run: bool,
    warehouse: Warehouse | None = None,
    clock: Clock = utc_now,
) -> Iterator[tuple[str, gc.Slice]]:
    """Run every sweep completely, page by page, independently of the schedule.

    A dry run yields what would be deleted, except for expired records, which are invisible already.
    """
    if not dry_run:
        gc.sweep_expired(stores)
    work = _Work(stores, secrets, settings, clock, warehouse, dry_run=dry_run)
    steps = {"pointer": _pointers, "jobs": _jobs, "secrets": _secrets, "cas": _blobs}
    if warehouse is not None:
        steps = {"transactions": _transactions, **steps, "warehouse": _files}
    for name, step in steps.items():
        token: str | None = None
        while True:
            done = step(work, token)
            yield name, done
            if (token := done.next_token) is None:
                break


@dataclass(frozen=True, slots=True)
class _Work:
    """The arguments of every step."""

    stores: Stores
    secrets: SecretsStore
    settings: Gc
    clock: Clock
    warehouse: Warehouse | None = None
    dry_run: bool = False


def _expired(stores: Stores, page_size: int, _: str | None) -> Progress:
    count = gc.sweep_expired(stores, limit=page_size)
    return Progress(count, count, next_token="more" if count == page_size else None)


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


def _secrets(work: _Work, token: str | None) -> gc.Slice:
    size = work.settings.pointer.page_size
    return gc.sweep_secrets(work.stores, work.secrets, clock=work.clock, size=size, token=token, dry_run=work.dry_run)


def _files(work: _Work, token: str | None) -> gc.Slice:
    assert work.warehouse is not None, "the sweep is disabled without a warehouse"
    return sweep_warehouse(
        work.stores,
        work.warehouse,
        clock=work.clock,
        min_age_s=work.settings.warehouse.min_age_ms / 1000,
        size=work.settings.warehouse.page_size,
        token=token,
        dry_run=work.dry_run,
    )


def _progress(done: gc.Slice) -> Progress:
    return Progress(done.looked_at, len(done.removed), done.damaged, done.next_token)
