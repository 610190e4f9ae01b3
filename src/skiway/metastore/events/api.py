"""The calls of `EventService`. Callers see the events of objects that they may read."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from google.protobuf.message import Message

from skiway.errors import InvalidArgument, PreconditionFailed
from skiway.metastore.events import feed
from skiway.metastore.records.errors import failure
from skiway.metastore.records.kinds import CATALOG, NAMESPACE, RULE, SNAPSHOT, TABLE, VIEW, Kind
from skiway.metastore.records.realm import Realm
from skiway.model import v1

__all__ = ["EventRules", "list_", "watch"]

DEFAULT_LIMIT: Final = 100
MAX_LIMIT: Final = 1000


@dataclass(frozen=True, slots=True)
class EventRules:
    """How long a watcher waits, and how often it looks for new events."""

    wait_s: float = 30.0
    max_wait_s: float = 60.0
    poll_s: float = 0.5
    sleep: Callable[[float], None] = time.sleep
    monotonic: Callable[[], float] = time.monotonic


RULES: Final = EventRules()


def list_(realm: Realm, request: v1.ListEventsRequest) -> v1.ListEventsResponse:
    """Return the next events after a position, or the newest ones, and where to continue."""
    limit = min(request.limit, MAX_LIMIT) if request.limit > 0 else DEFAULT_LIMIT
    events, cursor = _newest(realm, limit) if request.newest else _next(realm, _checked(request.after), limit)
    return v1.ListEventsResponse(events=events, cursor=cursor)


def watch(
    realm: Realm, request: v1.WatchEventsRequest, *, rules: EventRules = RULES
) -> Iterator[v1.WatchEventsResponse]:
    """Yield events as they happen, for a limited time. Without events, yield the position, so that a lost client is noticed."""
    cursor = _checked(request.after)
    wait_s = min(float(request.wait_seconds), rules.max_wait_s) if request.wait_seconds > 0 else rules.wait_s
    until = rules.monotonic() + wait_s
    while True:
        events, cursor = _next(realm, cursor, DEFAULT_LIMIT)
        yield v1.WatchEventsResponse(events=events, cursor=cursor)
        if rules.monotonic() >= until:
            return
        if not events:
            rules.sleep(rules.poll_s)


def _next(realm: Realm, after: int, limit: int) -> tuple[list[v1.Event], int]:
    """The events after a position that the caller may see, and the position of the last one, seen or not."""
    pointers = realm.stores.pointers
    feed.sequence_pending(pointers, realm.account_id)
    last = feed.head(pointers, realm.account_id)
    if after > last:
        raise failure(InvalidArgument, "events.after", field="after", found=str(after), last=str(last))
    found = feed.read(pointers, realm.account_id, after=after, limit=limit)
    first = found[0].sequence if found else last + 1
    if after and first != after + 1:
        raise failure(PreconditionFailed, "events.expired", after=str(after), first=str(first))
    cursor = found[-1].sequence if found else last
    return [event for event in found if _is_visible(realm, event)], cursor


def _newest(realm: Realm, limit: int) -> tuple[list[v1.Event], int]:
    """The last events of the feed that the caller may see, and its end."""
    pointers = realm.stores.pointers
    feed.sequence_pending(pointers, realm.account_id)
    last = feed.head(pointers, realm.account_id)
    found = feed.read(pointers, realm.account_id, after=max(last - limit, 0), limit=limit)
    cursor = found[-1].sequence if found else last
    return [event for event in found if _is_visible(realm, event)], cursor


def _checked(after: int) -> int:
    if after < 0:
        wanted = "use a number from 0 on"
        raise failure(InvalidArgument, "field.invalid", field="after", found=str(after), wanted=wanted)
    return after


# --- who sees what ----------------------------------------------------------------------------------------------------


def _is_visible(realm: Realm, event: v1.Event) -> bool:
    """Whether the caller may read the object. Deleted objects are visible where their container is.

    Events of rules tell about the rows of their tables, so callers whom policies restrict on a table do not see them.
    """
    if event.kind == "rule" and realm.policies is not None and realm.policies.of_table(event.table_id) is not None:
        return False
    if realm.access is None:
        return True
    kind, on = _described(realm, event)
    if kind is None or on is None:
        return realm.access.everywhere(_BY_ROLE[event.kind])
    guard = realm.access.guard(kind)
    return guard is None or guard.sees(on)


_BY_ROLE: Final = {
    "account": "account.read",
    "connector": "connector.manage",
    "grant": "grant.manage",
    "job": "connector.manage",
    "policy": "policy.manage",
    "sync": "connector.manage",
    "webhook": "webhook.manage",
    "pipeline": "connector.manage",
}
"""The permissions to see events of kinds that roles alone give access to."""


def _described(realm: Realm, event: v1.Event) -> tuple[Kind[Any] | None, Message | None]:
    """The object as far as the event describes it, which is enough to decide who may read it."""

    def an_id(text: str) -> v1.ResourceId:
        return v1.ResourceId(account_id=realm.account_id, id=text)

    own = an_id(event.object_id)
    match event.kind:
        case "catalog":
            return CATALOG, v1.Catalog(resource_id=own)
        case "namespace":
            *parents, name = event.name.split(".")
            return NAMESPACE, v1.Namespace(
                resource_id=own, catalog_id=an_id(event.catalog_id), parents=parents, display_name=name
            )
        case "maintenance":
            return SNAPSHOT, v1.Snapshot(table_id=own)
        case "table" if not event.namespace_id:
            return SNAPSHOT, v1.Snapshot(table_id=own)  # where the table is now is looked up
        case "table":
            return TABLE, v1.Table(resource_id=own, namespace_id=an_id(event.namespace_id))
        case "rule":
            return RULE, v1.QualityRule(resource_id=own, table_id=an_id(event.table_id))
        case "view":
            return VIEW, v1.View(resource_id=own, namespace_id=an_id(event.namespace_id))
    return None, None
