"""Repeated checks of quality rules that need no profile: a sweep on the schedule of garbage collection."""

from __future__ import annotations

from skiway.config import Settings
from skiway.metastore import quality
from skiway.runtime.gc.schedule import Progress, Sweep
from skiway.runtime.workers import realms_of
from skiway.storage import Stores

__all__ = ["quality_sweep"]


def quality_sweep(settings: Settings, stores: Stores) -> Sweep:
    """The sweep, with the interval and limits from the settings."""
    rules, realm_of = settings.quality, realms_of(settings, stores)

    def step(token: str | None) -> Progress:
        done = quality.check_metadata(stores, realm_of=realm_of, size=rules.page_size, token=token)
        return Progress(done.looked_at, next_token=done.next_token)

    return Sweep(
        "quality",
        step,
        every_s=rules.tick_every.total_seconds(),
        slice_s=rules.max_tick_millis / 1000,
        enabled=rules.enabled,
    )
