"""Automatic profiles: a sweep that starts profiles of managed tables after writes, on the schedule of garbage collection.

One server of a store runs it at a time, and workers run the jobs. Where no process can run them, because Spark is not installed,
there is no sweep.
"""

from __future__ import annotations

from importlib.util import find_spec

from skiway.config import Settings
from skiway.formats.iceberg.warehouse import Warehouse
from skiway.metastore.reconcile.automatic_profiles import ProfileRules, start_profiles
from skiway.runtime.gc.schedule import Progress, Sweep
from skiway.runtime.workers import realms_of
from skiway.storage import Stores

__all__ = ["profile_sweep"]


def profile_sweep(settings: Settings, stores: Stores, warehouse: Warehouse) -> Sweep:
    """The sweep, with the rules, the interval and the limits from the settings."""
    given, realm_of = settings.profiles, realms_of(settings, stores)
    rules = ProfileRules(given.automatic, given.changed_rows, given.delay)

    def step(token: str | None) -> Progress:
        done = start_profiles(stores, warehouse, realm_of=realm_of, rules=rules, size=given.page_size, token=token)
        return Progress(done.looked_at, next_token=done.next_token)

    return Sweep(
        "profiles",
        step,
        every_s=given.tick_every.total_seconds(),
        slice_s=given.max_tick_millis / 1000,
        enabled=given.enabled and _has_spark(settings),
    )


def _has_spark(settings: Settings) -> bool:
    """Whether Spark is installed here. If only separate workers run jobs, they have it."""
    return settings.reconciler.backend == "remote" or find_spec("pyspark") is not None
