"""Events, which are the committed changes of an account in order, and webhooks, which send them to other systems."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypedDict, Unpack

from skiway.client.metastore.collection import Area, NamedCollection
from skiway.client.metastore.resources import Attribute, FromMessages, NamedRecord
from skiway.foundation.resources import WEBHOOK
from skiway.model import v1


@dataclass(frozen=True, slots=True)
class Event:
    """A change of one object."""

    message: v1.Event

    sequence = Attribute[int]()
    """The position in the feed. Events after it are newer."""
    occurred_at = Attribute[datetime]()
    """When the change was made."""
    kind = Attribute[str]()
    """The kind of the object, such as `table`."""
    action = Attribute[str]()
    """What happened: `created`, `changed`, `renamed`, `committed`, `profiled` or `deleted`."""
    name = Attribute[str]()
    """The name of the object; empty if the change did not involve it."""
    snapshot_id = Attribute[int | None]()
    """The snapshot that became the current one of a table, if one did."""
    caller = Attribute[str]()
    """Who made the change; empty for the server itself."""


class Events(Area):
    """`lake.events`, identified by their position in the feed."""

    def __call__(self, *, after: int = 0) -> Iterator[Event]:
        """Yield the events after a position, up to the newest one. 0 is the beginning of the feed."""
        cursor = after
        while True:
            response = self._calls.rpc("ListEvents", after=cursor, limit=1000)
            yield from map(Event, response.events)
            if response.cursor == cursor:
                return
            cursor = response.cursor

    def newest(self, limit: int = 100) -> tuple[list[Event], int]:
        """Return the newest events, at most 1000, and the position of the end of the feed."""
        response = self._calls.rpc("ListEvents", limit=limit, newest=True)
        return [*map(Event, response.events)], response.cursor

    def watch(self, *, after: int | None = None) -> Iterator[Event]:
        """Yield the events after a position, and wait for more. None is the end of the feed."""
        cursor = self.newest(1)[1] if after is None else after
        while True:
            for response in self._calls.stream(
                v1.WatchEventsRequest(after=cursor, wait_seconds=20), v1.WatchEventsResponse
            ):
                yield from map(Event, response.events)
                cursor = response.cursor


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook(NamedRecord):
    """A webhook. How far its delivery is (`position` and the following) is only known if it was read by itself."""

    url: str
    events: tuple[str, ...]
    paused: bool
    position: int | None = None
    attempt: int = 0
    next_attempt_at: datetime | None = None
    last_error: str = ""
    dead_letters: int | None = None
    description: str | None = None
    state: str = field(init=False)
    """`paused`, `failing` while the next event is not accepted, or `active`."""

    def __post_init__(self) -> None:
        state = "paused" if self.paused else "failing" if self.attempt else "active"
        object.__setattr__(self, "state", state)


class WebhookFields(TypedDict, total=False):
    """What people set. Lists are replaced as a whole; the secret signs requests."""

    url: str
    events: Sequence[str]
    secret: str
    paused: bool
    description: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter(FromMessages):
    """An event that was given up, because the webhook did not accept it."""

    sequence: int
    kind: str
    action: str
    object_id: str
    name: str
    given_up_at: datetime
    error: str
    is_due: bool


class Webhooks(NamedCollection[Webhook]):
    """`lake.webhooks`, by name, which is unique in the account."""

    __slots__ = ()
    _kind, _record = WEBHOOK, Webhook.of

    def create(self, name: str, *, idempotency_key: str | None = None, **fields: Unpack[WebhookFields]) -> Webhook:
        """Create a webhook with a `url`, a `secret`, and `events` such as `rule.failed`, `table.*` or `*`."""
        return self._create({"name": name, **fields}, idempotency_key)

    def update(
        self, name: str, *, new_name: str | None = None, if_version: int | None = None, **fields: Unpack[WebhookFields]
    ) -> Webhook:
        """Change the given fields of a webhook; None clears one."""
        return self._rename(name, new_name, fields, if_version)

    def dead_letters(self, name: str) -> list[DeadLetter]:
        """Return the events that were given up, oldest first."""
        letters = self._calls.rpc("ListDeadLetters", **self._key(name)).letters
        return [DeadLetter.of(letter.event, letter) for letter in letters]

    def redeliver(self, name: str, sequences: Sequence[int] = ()) -> int:
        """Send dead letters again, those with these numbers or all; return how many are about to be sent."""
        due: int = self._calls.rpc("RedeliverEvents", **self._key(name), sequences=sequences).due
        return due
