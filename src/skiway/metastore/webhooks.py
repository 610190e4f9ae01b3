"""Webhooks: events of an account that servers send to an address over HTTP.

They are delivered in the order of the feed, one after the other, each at least once. An event that is not accepted is sent
again with growing pauses, and later events of the webhook wait for it. After the last attempt it becomes a dead letter, and
the next event is sent. The position is stored after each event, so a server that dies repeats at most one of them, with the
same id.
"""

from __future__ import annotations

import base64
import hmac
import json
import logging
import random
import re
import time
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Final
from urllib.parse import urlsplit

from google.protobuf.json_format import MessageToDict

from skiway.errors import Conflict, NotFound, SkiwayError
from skiway.foundation import resources
from skiway.metastore import events
from skiway.metastore.records import keys
from skiway.metastore.records.errors import invalid_field
from skiway.metastore.records.journal import EVENT_KINDS
from skiway.metastore.records.kinds import WEBHOOK
from skiway.metastore.records.realm import Realm, local_id, timestamp
from skiway.metastore.records.secrets import OF_WEBHOOK, SecretName, forget, new_secret, remove_all
from skiway.metastore.records.updates import delete_plain
from skiway.metastore.resources.named import NamedCalls
from skiway.model import v1
from skiway.security import SecretsStore
from skiway.security.redaction import secret_in_uri
from skiway.security.source_access import SourceAccess
from skiway.storage import ABSENT, Delete, Operation, Pointer, PointerStore, Put, Stores


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
        pointer = self._pointers.get(self._key("position"))
        return None if pointer is None else (Position(**json.loads(pointer.blob_uri)), pointer)

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
        return Put(self._key(f"dead/{event.sequence:019d}"), _packed(letter), expect=ABSENT, expires_at=expires_at)

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


def _packed(letter: v1.DeadLetter) -> str:
    return base64.urlsafe_b64encode(letter.SerializeToString(deterministic=True)).decode()


def after(position: Position, sequence: int) -> Position:
    """The position after an event that is done."""
    return replace(position, after=sequence, attempt=0, next_us=0, error="")


KINDS: Final = (*EVENT_KINDS, "sync", "maintenance")
PATTERN: Final = re.compile(r"\*|([a-z]+)\.(\*|[a-z]+)")
LEAST_SECRET: Final = 16
MAX_ITEMS: Final = 100
MAX_URL: Final = 2000


def calls(secrets: SecretsStore, access: SourceAccess | None) -> NamedCalls[v1.Webhook]:
    """The calls for webhooks. `access` decides which addresses they may have."""

    def check(realm: Realm, webhook: v1.Webhook, spec: v1.WebhookSpec, paths: Set[str]) -> None:
        if "secret" in paths:
            if len(spec.secret.encode()) < LEAST_SECRET:
                wanted = f"give at least {LEAST_SECRET} bytes, such as the output of openssl rand -hex 32"
                raise invalid_field("secret", "too short" if spec.secret else "missing", wanted)
            webhook.secret_id = f"{OF_WEBHOOK}-{realm.ids()}"
        _check(webhook)
        if access is not None and "url" in paths:
            access.of_account(realm.account_id).check_url(webhook.url)

    @contextmanager
    def writing(
        realm: Realm, webhook: v1.Webhook, spec: v1.WebhookSpec, before: v1.Webhook | None
    ) -> Iterator[tuple[Operation, ...]]:
        if before is not None and before.secret_id == webhook.secret_id:
            yield ()
            return
        with new_secret(realm, secrets, webhook, data=spec.secret.encode()) as taken:
            if before is not None:
                yield (taken,)
            else:
                events.sequence_pending(realm.stores.pointers, realm.account_id)
                head = events.head(realm.stores.pointers, realm.account_id)
                yield taken, WebhookPlace(realm, webhook.resource_id.id).begin(head)
        if before is not None:
            forget(realm, secrets, before)

    def deleted(realm: Realm, webhook_id: str) -> None:
        WebhookPlace(realm, webhook_id).forget()
        remove_all(realm, secrets, webhook_id)

    return NamedCalls(
        resources.WEBHOOK,
        WEBHOOK,
        check,
        writing,
        status=lambda realm, webhook: {"status": WebhookPlace(realm, webhook.resource_id.id).status()},
        deleted=deleted,
    )


def list_dead_letters(realm: Realm, request: v1.ListDeadLettersRequest) -> v1.ListDeadLettersResponse:
    """List the events that were given up, oldest first."""
    place = _place(realm, request.webhook_id)
    return v1.ListDeadLettersResponse(letters=[letter for letter, _ in place.letters()])


def redeliver(realm: Realm, request: v1.RedeliverEventsRequest) -> v1.RedeliverEventsResponse:
    """Send dead letters again: those with the given numbers, or all. Each is tried once."""
    place, wanted = _place(realm, request.webhook_id), set(request.sequences)
    letters = [each for each in place.letters() if not wanted or each[0].event.sequence in wanted]
    missing = wanted - {letter.event.sequence for letter, _ in letters}
    if missing:
        raise invalid_field("sequences", str(min(missing)), "no dead letter of the webhook has this number")
    due = 0
    for letter, pointer in letters:
        letter.is_due = True
        due += place.change_letter(pointer, letter)
    return v1.RedeliverEventsResponse(due=due)


def _place(realm: Realm, given: v1.ResourceId) -> WebhookPlace:
    webhook_id = local_id(realm, given, v1.RK_WEBHOOK, field="webhook_id")
    realm.by_id(WEBHOOK, webhook_id, damaged=True)
    return WebhookPlace(realm, webhook_id)


# --- checks -----------------------------------------------------------------------------------------------------------


def _check(webhook: v1.Webhook) -> None:
    """Raise unless the webhook can be used."""
    parts = urlsplit(webhook.url)
    if parts.scheme not in ("http", "https") or not parts.hostname or len(webhook.url) > MAX_URL:
        raise invalid_field("url", "not an address of a web server", "give a URL such as https://example.org/hooks")
    if parts.username or parts.password or secret_in_uri(webhook.url):
        wanted = "leave it out: requests are signed with the secret"
        raise invalid_field("url", "an address with a secret in it", wanted)
    if not 0 < len(webhook.events) <= MAX_ITEMS:
        wanted = "name events such as rule.failed, table.* or *"
        raise invalid_field("events", f"a list of {len(webhook.events)}", wanted)
    for text in webhook.events:
        match = PATTERN.fullmatch(text)
        if match is None or (match[1] is not None and match[1] not in KINDS):
            wanted = f"give *, or a kind and an action such as rule.failed; kinds are {', '.join(KINDS)}"
            raise invalid_field("events", repr(text[:100]), wanted)


# --- delivery ---------------------------------------------------------------------------------------------------------


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
