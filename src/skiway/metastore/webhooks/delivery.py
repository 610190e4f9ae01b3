"""Delivers events to webhooks: in the order of the feed, one after the other, each at least once.

An event that is not accepted is sent again with growing pauses, and later events of the webhook wait for it. After the last
attempt it becomes a dead letter, and the next event is sent. The position is stored after each event, so a server that
dies repeats at most one of them, with the same id.
"""

from __future__ import annotations

import hmac
import json
import logging
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Final

from google.protobuf.json_format import MessageToDict

from skiway.errors import NotFound, SkiwayError
from skiway.metastore import events
from skiway.metastore.records import keys
from skiway.metastore.records.kinds import WEBHOOK
from skiway.metastore.records.realm import Realm
from skiway.metastore.records.secrets import SecretName
from skiway.metastore.webhooks.resources import Position, WebhookPlace, after
from skiway.model import v1
from skiway.security import SecretsStore
from skiway.storage import Stores

PAGE: Final = 100
MAX_ERROR: Final = 500

OnAttempt = Callable[[str, str, float], None]
"""Gets the account, the result (`accepted`, `failed` or `given_up`) and the seconds of each attempt."""

Send = Callable[[str, str, bytes, dict[str, str]], None]
"""Sends a body with headers to a URL on behalf of an account, and raises `SkiwayError` unless it was accepted."""

log = logging.getLogger("skiway.webhooks")


@dataclass(frozen=True, slots=True)
class DeliveryRules:
    """How often an event is sent, with which pauses, how long a lease lasts, and how long dead letters are stored."""

    max_attempts: int = 8
    base_backoff_s: float = 1.0
    max_backoff_s: float = 300.0
    lease_s: float = 60.0
    dead_letters_s: float = 30 * 86400.0

    def backoff_s(self, attempt: int) -> float:
        """The pause after the failed attempt number `attempt`, counted from 1."""
        return min(self.max_backoff_s, self.base_backoff_s * 2.0 ** min(attempt - 1, 60))


def signature(secret: bytes, timestamp: int, body: bytes) -> str:
    """What the header `X-Skiway-Signature` must be."""
    return "v1=" + hmac.new(secret, f"{timestamp}.".encode() + body, sha256).hexdigest()


def accounts_with_webhooks(stores: Stores) -> Iterator[str]:
    """The ids of accounts that have webhooks. Accounts without any take no time."""
    found, behind = stores.pointers.page(keys.WEBHOOKS, size=1).items, None
    while found:
        account_id = keys.webhook_account(found[0].key)
        yield account_id
        behind = stores.pointers.token_after(keys.WEBHOOKS, f"{keys.webhooks_of(account_id)}\U0010ffff")
        found = stores.pointers.page(keys.WEBHOOKS, size=1, token=behind).items


@dataclass(frozen=True, slots=True)
class Due:
    """The webhooks of an account for which there may be something to do now, and when the first of the others is due."""

    webhook_ids: tuple[str, ...] = ()
    next_at: datetime | None = None


def due_webhooks(realm: Realm) -> Due:
    """What is due in an account. Numbers new events."""
    events.sequence_pending(realm.stores.pointers, realm.account_id)
    head = events.head(realm.stores.pointers, realm.account_id)
    due, later = list[str](), list[datetime]()
    for found in realm.all(WEBHOOK).entries(keys.webhook(realm.account_id)):
        if found.value.damage or found.value.paused:
            continue
        place = WebhookPlace(realm, found.value.resource_id.id)
        state = place.read()
        if state is None:
            continue
        position, _ = state
        has_next = position.after < head
        if (has_next and position.next_at <= realm.clock()) or any(letter.is_due for letter, _ in place.letters()):
            due.append(found.value.resource_id.id)
        elif has_next:
            later.append(position.next_at)
    return Due(tuple(due), min(later, default=None))


@dataclass(frozen=True, slots=True)
class Delivery:
    """Delivers the events of one webhook. `owner` names the server in the lease."""

    realm: Realm
    webhook_id: str
    secrets: SecretsStore
    send: Send
    owner: str
    rules: DeliveryRules = field(default_factory=DeliveryRules)
    on_attempt: OnAttempt = lambda _account_id, _result, _seconds: None
    jitter: Callable[[], float] = lambda: random.uniform(0.5, 1.0)  # noqa: S311 - not used for security

    def run(self, *, most: int = PAGE) -> int:
        """Deliver what is due, up to a number of events, and return how many were accepted. Another server may be at it: then 0."""
        place, accepted = WebhookPlace(self.realm, self.webhook_id), 0
        for _ in range(most):
            held = place.lease(self.owner, self.rules.lease_s)
            if held is None:
                break
            try:
                done = self._step(place)
            finally:
                place.release(held)
            if done is None:
                break
            accepted += done
        return accepted

    def _step(self, place: WebhookPlace) -> bool | None:
        """Do the next thing: send an event, again or for the first time. Whether it was accepted; None if nothing is due."""
        found = self.realm.all(WEBHOOK).find(keys.webhook(self.realm.account_id, self.webhook_id))
        state = place.read()
        if found is None or state is None or found.value.paused:
            return None
        webhook = found.value
        for letter, pointer in place.letters():
            if letter.is_due:
                error = self._sent(webhook, letter.event, is_last=True)
                letter.is_due, letter.error = False, error
                place.change_letter(pointer, letter if error else None)
                return not error
        position, before = state
        if position.next_at > self.realm.clock():
            return None
        event, skipped = self._next(webhook, position)
        if event is None:
            if skipped > position.after:
                place.move(before, after(position, skipped))
            return None
        attempt = position.attempt + 1
        error = self._sent(webhook, event, is_last=attempt >= self.rules.max_attempts)
        if not error:
            place.move(before, after(position, event.sequence))
            return True
        if attempt < self.rules.max_attempts:
            due = self.realm.clock() + timedelta(seconds=self.rules.backoff_s(attempt) * self.jitter())
            waiting = Position(position.after, attempt, int(due.timestamp() * 1_000_000), error)
            place.move(before, replace(waiting, after=event.sequence - 1))
            return None
        log.warning(
            "webhook %s of account %s did not accept event %d in %d attempts: %s",
            webhook.display_name,
            self.realm.account_id,
            event.sequence,
            attempt,
            error,
        )
        expires_at = self.realm.clock() + timedelta(seconds=self.rules.dead_letters_s)
        given_up = place.give_up(event, error, expires_at=expires_at)
        place.move(before, after(position, event.sequence), also=(given_up,))
        return False

    def _next(self, webhook: v1.Webhook, position: Position) -> tuple[v1.Event | None, int]:
        """The next event that the webhook wants, or else the last one that it does not want."""
        pointers, reached = self.realm.stores.pointers, position.after
        while found := events.read(pointers, self.realm.account_id, after=reached, limit=PAGE):
            for event in found:
                if _is_wanted(webhook, event):
                    return event, event.sequence - 1
            reached = found[-1].sequence
        return None, reached

    def _sent(self, webhook: v1.Webhook, event: v1.Event, *, is_last: bool) -> str:
        """Send an event; an empty text if it was accepted, else what went wrong. The last attempt gives up if it fails."""
        began = time.monotonic()
        error = self._post(webhook, event)
        result = ("given_up" if is_last else "failed") if error else "accepted"
        self.on_attempt(self.realm.account_id, result, time.monotonic() - began)
        return error

    def _post(self, webhook: v1.Webhook, event: v1.Event) -> str:
        body = body_of(self.realm.account_id, event)
        timestamp = int(self.realm.clock().timestamp())
        try:
            secret = self.secrets.get(*SecretName.of(webhook).stored_as)
            headers = {
                "Content-Type": "application/json",
                "X-Skiway-Event-Id": event_id(self.realm.account_id, event),
                "X-Skiway-Timestamp": str(timestamp),
                "X-Skiway-Signature": signature(secret, timestamp, body),
            }
            self.send(self.realm.account_id, webhook.url, body, headers)
        except NotFound:
            return "the secret of the webhook is missing: set it again"
        except SkiwayError as error:
            return error.message[:MAX_ERROR]
        return ""


def event_id(account_id: str, event: v1.Event) -> str:
    """The id of an event, which is the same for all attempts."""
    return f"{account_id}-{event.sequence}"


def body_of(account_id: str, event: v1.Event) -> bytes:
    """The body of a request."""
    fields = MessageToDict(event, preserving_proto_field_name=True)
    for name in ("sequence", "snapshot_id"):
        if name in fields:
            fields[name] = int(fields[name])
    return json.dumps({"id": event_id(account_id, event), "account_id": account_id, **fields}).encode()


def _is_wanted(webhook: v1.Webhook, event: v1.Event) -> bool:
    return any(text in ("*", f"{event.kind}.*", f"{event.kind}.{event.action}") for text in webhook.events)
