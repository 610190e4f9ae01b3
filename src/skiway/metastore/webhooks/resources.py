"""Webhooks as resources, and how far the delivery of each is."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Set
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final
from urllib.parse import urlsplit

from skiway.errors import Conflict, NotFound
from skiway.foundation import resources
from skiway.metastore import events
from skiway.metastore.records import keys
from skiway.metastore.records.errors import invalid_field
from skiway.metastore.records.journal import EVENT_KINDS
from skiway.metastore.records.kinds import WEBHOOK
from skiway.metastore.records.realm import Realm, local_id, timestamp
from skiway.metastore.records.secrets import OF_WEBHOOK, forget, new_secret, remove_all
from skiway.metastore.records.updates import delete_plain
from skiway.metastore.resources.named import NamedCalls
from skiway.model import v1
from skiway.security import SecretsStore
from skiway.security.redaction import secret_in_uri
from skiway.security.source_access import SourceAccess
from skiway.storage import ABSENT, Delete, Operation, Pointer, PointerStore, Put


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


KINDS: Final = (*EVENT_KINDS, "sync", "maintenance")
PATTERN: Final = re.compile(r"\*|([a-z]+)\.(\*|[a-z]+)")
LEAST_SECRET: Final = 16
MAX_ITEMS: Final = 100
MAX_URL: Final = 2000


def calls(secrets: SecretsStore, access: SourceAccess | None) -> NamedCalls[v1.Webhook]:
    """The calls for webhooks. `access` decides which addresses they may have."""

    def check(realm: Realm, webhook: v1.Webhook, spec: v1.WebhookSpec, paths: Set[str]) -> None:
        if "secret" in paths:
            _check_secret(spec.secret.encode())
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


def _check_secret(secret: bytes) -> None:
    if len(secret) < LEAST_SECRET:
        wanted = f"give at least {LEAST_SECRET} bytes, such as the output of openssl rand -hex 32"
        raise invalid_field("secret", "too short" if secret else "missing", wanted)


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
