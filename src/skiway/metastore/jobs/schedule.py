"""Scheduled jobs: connectors that are run automatically, as their policies say.

A scheduled connector has a pointer that holds when its next job is due. It is set and deleted in the batch that writes
the connector, and moved in the batch that enqueues the job. So exactly one of many servers enqueues it, and no crash
loses a run or causes two. One check is a scan over these pointers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from skiway.errors import Conflict, SkiwayError
from skiway.metastore import jobs
from skiway.metastore.records import keys
from skiway.metastore.records.kinds import CONNECTOR
from skiway.metastore.records.realm import Realm
from skiway.model import v1
from skiway.storage import ABSENT, Delete, Operation, Pointer, PointerStore, Put, Stores

__all__ = ["DEFAULT_INTERVAL", "MAX_CLOCK_SKEW", "JobSchedule", "Turn", "rescheduled", "unscheduled"]

DEFAULT_INTERVAL: Final = timedelta(minutes=10)
"""The interval of a policy that does not set one."""

MAX_CLOCK_SKEW: Final = timedelta(minutes=1)
"""A time that was set later than this from now was set by a wrong clock, and is ignored."""

log = logging.getLogger("skiway.schedule")


def rescheduled(realm: Realm, before: v1.Connector | None, after: v1.Connector) -> list[Operation]:
    """The operations that the batch needs that writes a connector; none if its schedule is unchanged."""
    if before is not None and _schedule(before) == _schedule(after):
        return []
    found = realm.stores.pointers.get(keys.schedule(realm.account_id, after.resource_id.id))
    if not _is_scheduled(after):
        return _deleting(found)
    now = realm.clock()
    key, turn = keys.schedule(realm.account_id, after.resource_id.id), Turn(now, max(now, _not_before(after)))
    return [Put(key, turn.text, expect=found.version if found else ABSENT)]


def unscheduled(pointers: PointerStore, account_id: str, connector_id: str) -> list[Operation]:
    """The operations that the batch needs that deletes a connector."""
    return _deleting(pointers.get(keys.schedule(account_id, connector_id)))


@dataclass(frozen=True, slots=True)
class JobSchedule:
    """The scheduled connectors of all accounts of a store."""

    stores: Stores
    realm_of: Callable[[str], Realm]

    def begin_due(self) -> list[v1.Job]:
        """Enqueue the jobs that are due, and return them.

        A connector with an unfinished job is skipped until that has finished.
        """
        begun = [self._begin(pointer) for pointer in self.stores.pointers.scan(keys.SCHEDULE)]
        return [job for job in begun if job is not None]

    def _begin(self, place: Pointer) -> v1.Job | None:
        account_id, connector_id = keys.schedule_ids(place.key)
        realm = self.realm_of(account_id)
        if not Turn.read(place).is_due(realm.clock()):
            return None
        try:
            return self._begin_now(realm, place, connector_id)
        except Conflict:
            return None  # another server was faster, or the connector was just changed
        except SkiwayError as error:
            # One broken connector must not block the others.
            log.warning("connector %s of account %s cannot be scheduled: %s", connector_id, account_id, error)
            return None

    def _begin_now(self, realm: Realm, place: Pointer, connector_id: str) -> v1.Job | None:
        found = realm.all(CONNECTOR).find(keys.connector(realm.account_id, connector_id))
        if found is None or not _is_scheduled(found.value):
            self.stores.pointers.compare_and_delete(place.key, expect=place.version)
            return None
        now = realm.clock()
        following = Turn(now, max(now + _interval(found.value), _not_before(found.value)))
        moved = Put(place.key, following.text, expect=place.version)
        return jobs.enqueue_unless_active(realm, found, also=[moved])


@dataclass(frozen=True, slots=True)
class Turn:
    """When something is due, and when that was decided."""

    decided_at: datetime
    due_at: datetime

    @classmethod
    def read(cls, place: Pointer) -> Turn:
        """The turn that a pointer holds. An unreadable one is due."""
        try:
            decided_at, due_at = map(datetime.fromisoformat, place.blob_uri.split(" "))
            return cls(decided_at.astimezone(UTC), due_at.astimezone(UTC))
        except ValueError:
            log.warning("%s is unreadable and therefore due now", place.key)
            return cls(_LONG_AGO, _LONG_AGO)

    @property
    def text(self) -> str:
        """The turn as a pointer holds it."""
        return f"{self.decided_at.isoformat()} {self.due_at.isoformat()}"

    def is_due(self, now: datetime) -> bool:
        """Whether it is due, or was decided by a wrong clock."""
        return self.due_at <= now or self.decided_at > now + MAX_CLOCK_SKEW


_LONG_AGO: Final = datetime(1970, 1, 1, tzinfo=UTC)


def _schedule(connector: v1.Connector) -> tuple[object, ...]:
    return _is_scheduled(connector), _interval(connector), _not_before(connector)


def _is_scheduled(connector: v1.Connector) -> bool:
    return connector.policy.enabled and connector.state == v1.CS_ACTIVE


def _interval(connector: v1.Connector) -> timedelta:
    return connector.policy.interval.ToTimedelta() or DEFAULT_INTERVAL


def _not_before(connector: v1.Connector) -> datetime:
    return connector.policy.not_before.ToDatetime(UTC)


def _deleting(found: Pointer | None) -> list[Operation]:
    return [] if found is None else [Delete(found.key, expect=found.version)]
