"""The order of events: a sequence without gaps per account, to which events are only added at the end.

A change stores its events without a sequence number, under unique keys, so that writers never wait for each other
(`records.journal`). Whoever reads the feed first gives numbers to all events that have none yet, in one batch with the
pointer to the end of the feed. Readers do compete for that pointer; one wins, and the others find the events in the feed. So a
reader that continues after a number misses nothing, and no event gets a number that was passed already.

Events of one object are numbered in the order of their commits, which the versions of its pointers show. Events of
different objects are numbered about in the order of their times.

Numbering needs all earlier events of an object. A listing of a store may miss an event that was stored while it ran, and
contain a later one. So events are listed twice: every event of the first listing was stored before the second began, and
therefore all earlier events are in the second one, unless they have a number already.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from skiway.errors import Conflict, NotFound
from skiway.metastore.records import keys
from skiway.metastore.records.journal import packed, unpacked
from skiway.model import v1
from skiway.storage import ABSENT, Delete, Operation, Pointer, PointerStore, Put

__all__ = ["head", "read", "sequence_pending"]

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
        group.sort(key=_by_commit, reverse=True)
        if _is_restored(group):
            group.sort(key=_by_time, reverse=True)
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


def _by_commit(each: _Pending) -> tuple[int, int, int, str]:
    return each.order


def _by_time(each: _Pending) -> str:
    return each.pointer.key


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
