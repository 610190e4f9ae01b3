"""Events: the feed of an account, with every committed change.

`records.journal` adds events to all batches. Here they are put in order, a sequence without gaps per account, and returned by the
calls of `EventService`. Callers see the events of objects that they may read.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from google.protobuf.message import Message

from skiway.errors import Conflict, InvalidArgument, NotFound, PreconditionFailed
from skiway.foundation.resources import RESOURCES
from skiway.metastore.records import keys
from skiway.metastore.records.errors import failure, invalid_field
from skiway.metastore.records.journal import packed, unpacked
from skiway.metastore.records.kinds import CATALOG, NAMESPACE, RULE, SNAPSHOT, TABLE, VIEW, Kind
from skiway.metastore.records.realm import Realm
from skiway.model import v1
from skiway.storage import ABSENT, Delete, Operation, Pointer, PointerStore, Put

ATTEMPTS: Final = 20
"""How often events are numbered again because another reader was faster."""


@dataclass(frozen=True, slots=True)
class _Pending:
    pointer: Pointer
    message: v1.PendingEvent

    @property
    def of(self) -> tuple[str, str]:
        """The object whose events are ordered among each other."""
        event = self.message.event
        if event.action == "profiled" or not self.message.version:
            return "part", event.object_id  # of a table, without a relation to its version
        return event.kind, f"{event.object_id}/{event.detail}" if event.kind == "grant" else event.object_id

    @property
    def order(self) -> tuple[int, int, int, str]:
        """The place among the events of the object. Where versions do not tell, the key does, which begins with the time."""
        found = self.message
        if found.event.kind == "grant":
            return 0, 0, 0, self.pointer.key  # the version starts again if the same is granted again
        return found.version, found.phase, found.step, self.pointer.key


def sequence_pending(pointers: PointerStore, account_id: str) -> int:
    """Give sequence numbers to all events of an account that have none yet. Return how many got one from this call."""
    done = 0
    for _ in range(ATTEMPTS):
        last = pointers.get(keys.event_head(account_id))
        pending = _complete(pointers, account_id)
        if not pending:
            break
        ordered = list(_ordered(pending))
        size = (pointers.max_batch - 1) // 2  # the pointer to the end takes one place of the batch, and each event two
        with suppress(Conflict, NotFound):  # another reader was faster
            for start in range(0, len(ordered), size):
                some = ordered[start : start + size]
                *_, last = pointers.apply(_numbering(account_id, last, some))
                done += len(some)
    return done


def _complete(pointers: PointerStore, account_id: str) -> list[_Pending]:
    """The events without a number, and for each of them all earlier ones of the same object."""
    first = _listed(pointers, account_id)
    if not first:
        return []
    seen = {each.pointer.key for each in first}
    latest: dict[tuple[str, str], tuple[int, int, int, str]] = {}
    for each in first:
        latest[each.of] = max(each.order, latest.get(each.of, each.order))
    again = _listed(pointers, account_id)
    return [each for each in again if each.pointer.key in seen or (each.of in latest and each.order < latest[each.of])]


def _listed(pointers: PointerStore, account_id: str) -> list[_Pending]:
    found = pointers.scan(keys.event_pending(account_id))
    return [_Pending(pointer, v1.PendingEvent.FromString(unpacked(pointer))) for pointer in found]


def _ordered(pending: Iterable[_Pending]) -> Iterator[_Pending]:
    """By time, but those of one object in the order of their commits."""
    groups: dict[tuple[str, str], list[_Pending]] = {}
    for each in pending:
        groups.setdefault(each.of, []).append(each)
    for group in groups.values():
        group.sort(key=lambda each: each.order, reverse=True)
        if _is_restored(group):
            group.sort(key=lambda each: each.pointer.key, reverse=True)
    heads = [(group[-1].pointer.key, of) for of, group in groups.items()]  # keys begin with the time
    heapq.heapify(heads)
    while heads:
        _, of = heapq.heappop(heads)
        yield groups[of].pop()
        if groups[of]:
            heapq.heappush(heads, (groups[of][-1].pointer.key, of))


def _is_restored(group: Sequence[_Pending]) -> bool:
    """Whether a dropped table was restored, whose versions then start again."""
    deleted = [each.pointer.key for each in group if each.message.event.action == "deleted"]
    created = [each.pointer.key for each in group if each.message.event.action == "created"]
    return bool(deleted and created) and min(deleted) < max(created)


def _numbering(account_id: str, last: Pointer | None, some: Sequence[_Pending]) -> list[Operation]:
    sequence = 0 if last is None else int(last.blob_uri)
    batch: list[Operation] = []
    for each in some:
        sequence += 1
        event = v1.Event()
        event.CopyFrom(each.message.event)
        event.sequence = sequence
        batch.append(
            Put(keys.event(account_id, sequence), packed(event), expect=ABSENT, expires_at=each.pointer.expires_at)
        )
        batch.append(Delete(each.pointer.key, expect=each.pointer.version))
    expect = ABSENT if last is None else last.version
    return [*batch, Put(keys.event_head(account_id), str(sequence), expect=expect)]


# --- reading ----------------------------------------------------------------------------------------------------------


def head(pointers: PointerStore, account_id: str) -> int:
    """The sequence number of the last event; 0 if there was none."""
    last = pointers.get(keys.event_head(account_id))
    return 0 if last is None else int(last.blob_uri)


def read(pointers: PointerStore, account_id: str, *, after: int, limit: int) -> list[v1.Event]:
    """The next events after a sequence number."""
    prefix = keys.event(account_id)
    token = pointers.token_after(prefix, keys.event(account_id, after))
    page = pointers.page(prefix, size=limit, token=token)
    return [v1.Event.FromString(unpacked(pointer)) for pointer in page.items]


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
    events, cursor = _next(realm, None if request.newest else _checked(request.after), limit)
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


def _next(realm: Realm, after: int | None, limit: int) -> tuple[list[v1.Event], int]:
    """The events after a position that the caller may see, and the position of the last one, seen or not.

    Without a position, these are the last events of the feed.
    """
    pointers = realm.stores.pointers
    sequence_pending(pointers, realm.account_id)
    last = head(pointers, realm.account_id)
    if after is not None and after > last:
        raise failure(InvalidArgument, "events.after", field="after", found=str(after), last=str(last))
    found = read(pointers, realm.account_id, after=max(last - limit, 0) if after is None else after, limit=limit)
    first = found[0].sequence if found else last + 1
    if after and first != after + 1:
        raise failure(PreconditionFailed, "events.expired", after=str(after), first=str(first))
    cursor = found[-1].sequence if found else last
    return [event for event in found if _is_visible(realm, event)], cursor


def _checked(after: int) -> int:
    if after < 0:
        raise invalid_field("after", str(after), "use a number from 0 on")
    return after


# --- who sees what ----------------------------------------------------------------------------------------------------


def _is_visible(realm: Realm, event: v1.Event) -> bool:
    """Whether the caller may read the object. Deleted objects are visible where their container is.

    Events of rules tell about the rows of their tables, so callers who are restricted on a table do not see them.
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
    "sync": "connector.manage",
    **{resource.name: resource.permission for resource in RESOURCES},
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
        case "branch":
            return CATALOG, v1.Catalog(resource_id=an_id(event.catalog_id))
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
