"""Automatic profiles: managed tables are profiled after writes, when enough rows have changed.

A sweep looks at the tables from time to time, and enqueues a job for each one that needs a new profile. Writers are not involved, so
they never wait. Rules of the server say when a profile is due; the properties `maintenance.profile…` of catalogs, namespaces and
tables change them.

A pointer holds the snapshot and the version of profiles for which the last job was enqueued, and is written in the same batch as the
job. So several servers start one job, and a table whose profile fails is not tried again before it changes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from skiway.errors import Conflict, SkiwayError
from skiway.formats.iceberg.warehouse import Warehouse
from skiway.metastore import jobs, statistics
from skiway.metastore.jobs.schedule import MAX_CLOCK_SKEW
from skiway.metastore.managed.states import load
from skiway.metastore.platform import visit_accounts
from skiway.metastore.records import keys
from skiway.metastore.records.kinds import TABLE
from skiway.metastore.records.realm import Realm
from skiway.metastore.records.repository import Stored
from skiway.metastore.resources.inherited_properties import MAINTENANCE, InheritedProperties, inherited
from skiway.metastore.resources.snapshots import current_id
from skiway.model import v1
from skiway.storage import ABSENT, Pointer, Put, Stores

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot

__all__ = ["ProfileRules", "Started", "start_profiles"]

MOST_COMMITS: Final = 200
"""After so many commits a table is profiled, however few rows they changed."""

PATIENCE: Final = 10
"""A table that changes all the time is profiled after so many delays."""

REMEMBERED: Final = timedelta(days=7)
"""For how long a table is not tried again whose profile failed."""

_ROW_COUNTS: Final = ("added-records", "deleted-records", "added-position-deletes", "added-equality-deletes")

log = logging.getLogger("skiway.profile")


@dataclass(frozen=True, slots=True)
class ProfileRules:
    """When a table is profiled: whether at all, the share of rows that must have changed, and for how long it must have been quiet."""

    automatic: bool = False
    changed_rows: float = 0.1
    delay: timedelta = timedelta(minutes=1)

    def of(self, properties: InheritedProperties) -> ProfileRules:
        """The rules of a table with these properties."""
        return ProfileRules(
            properties.is_auto("profile", default=self.automatic),
            properties.share("profile.changed-rows", self.changed_rows),
            properties.duration("profile.delay") or self.delay,
        )


@dataclass(frozen=True, slots=True)
class Started:
    """How many tables a step looked at, the jobs that it started, and where to continue; None at the end."""

    looked_at: int
    jobs: list[v1.Job]
    next_token: str | None = None


def start_profiles(
    stores: Stores,
    warehouse: Warehouse,
    *,
    realm_of: Callable[[str], Realm],
    rules: ProfileRules,
    size: int = 50,
    token: str | None = None,
) -> Started:
    """Look at the next tables of all accounts, and enqueue the profiles that are due. A table that cannot be examined is logged."""
    started = list[v1.Job]()

    def visit(account_id: str, pointer: Pointer) -> None:
        realm = realm_of(account_id)
        found = realm.all(TABLE).follow(pointer)
        if found is not None and found.value.metadata_location:
            job = _started(realm, warehouse, found, rules)
            started.extend([] if job is None else [job])

    looked_at, next_token = visit_accounts(stores, keys.table, visit, size=size, token=token)
    return Started(looked_at, started, next_token)


def _started(realm: Realm, warehouse: Warehouse, table: Stored[v1.Table], rules: ProfileRules) -> v1.Job | None:
    try:
        properties = InheritedProperties(MAINTENANCE, inherited(realm, table.value, MAINTENANCE))
        return _started_by(realm, warehouse, table, rules.of(properties))
    except Conflict:
        return None  # the table has just been changed, or another server was faster
    except SkiwayError as error:
        # One broken table must not stop the others.
        log.warning("table %s of account %s is not profiled: %s", table.value.display_name, realm.account_id, error)
        return None


def _started_by(realm: Realm, warehouse: Warehouse, table: Stored[v1.Table], rules: ProfileRules) -> v1.Job | None:
    """Enqueue the profile of a table if it is due by these rules."""
    table_id = table.value.resource_id.id
    snapshot_id = current_id(realm, table_id) if rules.automatic else None
    if snapshot_id is None or _is_profiled(realm, table_id, snapshot_id):
        return None
    key = keys.automatic_profile(realm.account_id, table_id)
    tried, wanted = realm.stores.pointers.get(key), f"{snapshot_id}@{statistics.CURRENT_VERSION}"
    if tried is not None and tried.blob_uri == wanted:
        return None
    if not _is_due(realm, table_id, load(realm, warehouse, table.value.resource_id).metadata, rules):
        return None
    now = Put(
        key,
        wanted,
        expect=ABSENT if tried is None else tried.version,
        expires_at=realm.clock() + REMEMBERED,
    )
    return jobs.enqueue_profile_unless_active(realm, table, also=[now])


def _is_profiled(realm: Realm, table_id: str, snapshot_id: int) -> bool:
    found = statistics.table_statistics(realm, table_id, snapshot_id)
    return (
        found is not None
        and "files.profiled" in found.properties
        and statistics.profile_version(found) >= statistics.CURRENT_VERSION
    )


def _is_due(realm: Realm, table_id: str, metadata: TableMetadata, rules: ProfileRules) -> bool:
    """Whether enough rows have changed since the last profile, and nothing changes at the moment."""
    recent, has_profile = _since_profile(realm, table_id, metadata)
    if not recent:
        return False
    newest, oldest = recent[0], recent[-1]
    enough = rules.changed_rows * _count(newest, "total-records")
    if has_profile and sum(map(_changed, recent)) < enough:
        return False
    quiet, waited = (realm.clock() - _time(each) for each in (newest, oldest))
    is_quiet = quiet >= rules.delay or quiet < -MAX_CLOCK_SKEW  # or the writer has a wrong clock
    return is_quiet or waited >= PATIENCE * rules.delay


def _since_profile(realm: Realm, table_id: str, metadata: TableMetadata) -> tuple[list[Snapshot], bool]:
    """The snapshots since the last profile, the newest first and not too many, and whether there is such a profile."""
    found: list[Snapshot] = []
    current = metadata.current_snapshot()
    while current is not None and len(found) < MOST_COMMITS:
        if _is_profiled(realm, table_id, current.snapshot_id):
            return found, True
        found.append(current)
        parent = current.parent_snapshot_id
        current = None if parent is None else metadata.snapshot_by_id(parent)
    return found, False


def _changed(snapshot: Snapshot) -> int:
    """How many rows a commit added, deleted or rewrote, according to its summary."""
    return sum(_count(snapshot, name) for name in _ROW_COUNTS)


def _count(snapshot: Snapshot, name: str) -> int:
    """A number of a snapshot's summary; 0 if the writer left it out."""
    found = (snapshot.summary.get(name) if snapshot.summary else None) or "0"
    return int(found) if found.isdecimal() else 0


def _time(snapshot: Snapshot) -> datetime:
    return datetime.fromtimestamp(snapshot.timestamp_ms / 1000, UTC)
