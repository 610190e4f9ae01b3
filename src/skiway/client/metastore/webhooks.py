"""Webhooks: addresses to which servers send events of the account."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypedDict, Unpack

from skiway.client.metastore.named import FromMessages, NamedCollection, NamedRecord
from skiway.resources import WEBHOOK

__all__ = ["DeadLetter", "Webhook", "WebhookFields", "Webhooks"]


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
    _resource, _record = WEBHOOK, Webhook.of

    def create(self, name: str, *, idempotency_key: str | None = None, **fields: Unpack[WebhookFields]) -> Webhook:
        """Create a webhook with a `url`, a `secret`, and `events` such as `rule.failed`, `table.*` or `*`."""
        return self._create(name, fields, idempotency_key)

    def update(
        self, name: str, *, new_name: str | None = None, if_version: int | None = None, **fields: Unpack[WebhookFields]
    ) -> Webhook:
        """Change the given fields of a webhook; None clears one."""
        return self._update(name, new_name, fields, if_version)

    def dead_letters(self, name: str) -> list[DeadLetter]:
        """Return the events that were given up, oldest first."""
        letters = self._calls.rpc("ListDeadLetters", **self._key(name)).letters
        return [DeadLetter.of(letter.event, letter) for letter in letters]

    def redeliver(self, name: str, sequences: Sequence[int] = ()) -> int:
        """Send dead letters again, those with these numbers or all; return how many are about to be sent."""
        due: int = self._calls.rpc("RedeliverEvents", **self._key(name), sequences=sequences).due
        return due
