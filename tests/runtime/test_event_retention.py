"""The setting `events.retention` reaches the realms of workers."""

from __future__ import annotations

from datetime import timedelta

from skiway.config import Settings
from skiway.config.metastore import Events
from skiway.runtime.workers import realms_of
from skiway.storage import open_stores


def test_jobs_keep_events_for_the_configured_time() -> None:
    with open_stores("memory://") as stores:
        realm = realms_of(Settings(events=Events(retention=timedelta(days=30))), stores)("a1")
    assert realm.events_s == 30 * 24 * 3600
