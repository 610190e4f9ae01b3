"""How far the delivery of a webhook is: a position in the feed, a lease, and dead letters, all in plain pointers.

A position changes by compare-and-set, so of two servers that deliver the same event, one notices. The lease keeps them from
trying at the same time.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta

from skiway.errors import Conflict, NotFound
from skiway.metastore.records import keys
from skiway.metastore.records.realm import Realm, timestamp
from skiway.metastore.records.updates import delete_plain
from skiway.model import v1
from skiway.storage import ABSENT, Delete, Operation, Pointer, PointerStore, Put

__all__ = ["Position", "WebhookPlace", "after"]


@dataclass(frozen=True, slots=True)
class Position:
    """The last event that is done, and the attempts at the next one."""

    after: int
    attempt: int = 0
    next_us: int = 0
    error: str = ""

    @property
    def next_at(self) -> datetime:
        """When the next attempt is due."""
        return datetime.fromtimestamp(self.next_us / 1_000_000, UTC)


@dataclass(frozen=True, slots=True)
class WebhookPlace:
    """What is stored about the delivery of one webhook."""

    realm: Realm
    webhook_id: str

    @property
    def _pointers(self) -> PointerStore:
        return self.realm.stores.pointers

    def begin(self, after: int) -> Put:
        """The operation that begins after an event, for the batch that creates the webhook."""
        return Put(self._key("position"), json.dumps(asdict(Position(after))), expect=ABSENT)

    def read(self) -> tuple[Position, Pointer] | None:
        """The position and its pointer; None if the webhook was deleted."""
        found = self._pointers.get(self._key("position"))
        return None if found is None else (Position(**json.loads(found.blob_uri)), found)

    def move(self, before: Pointer, position: Position, *, also: tuple[Operation, ...] = ()) -> bool:
        """Store a position, unless it changed since it was read. Return whether it was stored."""
        put = Put(before.key, json.dumps(asdict(position)), expect=before.version)
        try:
            self._pointers.apply([put, *also])
        except (Conflict, NotFound):
            return False
        return True

    # --- the lease ----------------------------------------------------------------------------------------------------

    def lease(self, owner: str, seconds: float) -> Pointer | None:
        """Take the lease for some time; None if another server has it."""
        until = self.realm.clock() + timedelta(seconds=seconds)
        with suppress(Conflict):
            (held,) = self._pointers.apply([Put(self._key("lease"), owner, expect=ABSENT, expires_at=until)])
            return held
        return None

    def release(self, held: Pointer) -> None:
        """Return the lease, unless it has expired."""
        with suppress(Conflict, NotFound):
            self._pointers.apply([Delete(held.key, expect=held.version)])

    # --- dead letters -------------------------------------------------------------------------------------------------

    def give_up(self, event: v1.Event, error: str, *, expires_at: datetime) -> Put:
        """The operation that stores an event which could not be delivered."""
        letter = v1.DeadLetter(event=event, given_up_at=self.realm.now(), error=error)
        return Put(self._dead(event.sequence), _packed(letter), expect=ABSENT, expires_at=expires_at)

    def letters(self, *, limit: int = 1000) -> Iterator[tuple[v1.DeadLetter, Pointer]]:
        """The oldest dead letters with their pointers."""
        for pointer in self._pointers.page(self._key("dead/"), size=limit).items:
            yield v1.DeadLetter.FromString(base64.urlsafe_b64decode(pointer.blob_uri)), pointer

    def count_letters(self) -> int:
        """The number of dead letters."""
        return self._pointers.count(self._key("dead/"))

    def change_letter(self, pointer: Pointer, letter: v1.DeadLetter | None) -> bool:
        """Replace a dead letter, or delete it. Return whether it was unchanged until then."""
        operation: Operation = Delete(pointer.key, expect=pointer.version)
        if letter is not None:
            operation = Put(pointer.key, _packed(letter), expect=pointer.version, expires_at=pointer.expires_at)
        try:
            self._pointers.apply([operation])
        except (Conflict, NotFound):
            return False
        return True

    def forget(self) -> None:
        """Delete everything, after the webhook was deleted."""
        for pointer in list(self._pointers.scan(self._key(""))):
            delete_plain(self.realm.stores, pointer.key)

    def status(self) -> v1.WebhookStatus:
        """The delivery as callers see it."""
        found = self.read()
        position = Position(0) if found is None else found[0]
        status = v1.WebhookStatus(
            position=position.after,
            attempt=position.attempt,
            last_error=position.error,
            dead_letters=self.count_letters(),
        )
        if position.attempt:
            status.next_attempt_at.CopyFrom(timestamp(position.next_at))
        return status

    def _key(self, part: str) -> str:
        return keys.webhook_delivery(self.realm.account_id, self.webhook_id, part)

    def _dead(self, sequence: int) -> str:
        return self._key(f"dead/{sequence:019d}")


def _packed(letter: v1.DeadLetter) -> str:
    return base64.urlsafe_b64encode(letter.SerializeToString(deterministic=True)).decode()


def after(position: Position, sequence: int) -> Position:
    """The position after an event that is done."""
    return replace(position, after=sequence, attempt=0, next_us=0, error="")
