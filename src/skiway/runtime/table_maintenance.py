"""Automatic maintenance: a sweep that starts the jobs which the policies of tables ask for.

It runs on the schedule of garbage collection, so one server of a store runs it at a time, and continues where the last one
stopped. Workers run the jobs.
"""

from __future__ import annotations

from skiway.config import Settings
from skiway.formats.iceberg.warehouse import Warehouse
from skiway.metastore.table_maintenance import MaintenanceArea
from skiway.metastore.table_maintenance.policies import start_due
from skiway.runtime.gc.schedule import Progress, Sweep
from skiway.runtime.workers import realms_of
from skiway.storage import Stores

__all__ = ["maintenance_sweep"]


def maintenance_sweep(settings: Settings, stores: Stores, warehouse: Warehouse) -> Sweep:
    """The sweep, with the interval and limits from the settings."""
    rules = settings.maintenance
    area = MaintenanceArea.of(warehouse, settings.gc.warehouse.min_age_ms)
    realm_of = realms_of(settings, stores)

    def step(token: str | None) -> Progress:
        done, _ = start_due(
            stores,
            warehouse,
            realm_of=realm_of,
            size=rules.page_size,
            orphan_age=area.orphan_age,
            spark_from_bytes=rules.spark.from_bytes,
            token=token,
        )
        return Progress(done.looked_at, next_token=done.next_token)

    return Sweep(
        "maintenance",
        step,
        every_s=rules.tick_every.total_seconds(),
        slice_s=rules.max_tick_millis / 1000,
        enabled=rules.enabled,
    )
