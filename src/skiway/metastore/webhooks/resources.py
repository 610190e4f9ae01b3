"""Webhooks as resources. Their secrets are in the secrets store only."""

from __future__ import annotations

import re
from collections.abc import Iterator, Set
from contextlib import contextmanager, suppress
from typing import Final
from urllib.parse import urlsplit

from skiway import resources
from skiway.errors import Conflict, NotFound
from skiway.metastore.events import feed
from skiway.metastore.records import keys
from skiway.metastore.records.errors import invalid_field
from skiway.metastore.records.journal import EVENT_KINDS
from skiway.metastore.records.kinds import WEBHOOK
from skiway.metastore.records.named import NamedCalls
from skiway.metastore.records.realm import Realm, local_id
from skiway.metastore.webhooks.positions import WebhookPlace
from skiway.model import v1
from skiway.security import SecretsStore
from skiway.security.secret_shapes import secret_in_uri
from skiway.security.source_access import SourceAccess
from skiway.storage import ABSENT, Delete, Operation, Pointer, Put, Stores

__all__ = ["SECRETS", "calls", "list_dead_letters", "redeliver", "remove_secret"]

SECRETS: Final = "webhooks"
"""The kind of secrets in the secrets store."""
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
            webhook.has_secret = True
        _check(webhook)
        if access is not None and "url" in paths:
            access.of_account(realm.account_id).check_url(webhook.url)

    @contextmanager
    def writing(realm: Realm, webhook: v1.Webhook, spec: v1.WebhookSpec, new: bool) -> Iterator[tuple[Operation, ...]]:
        webhook_id, secret = webhook.resource_id.id, spec.secret.encode()
        if new:
            with _new_secret(realm, secrets, webhook_id, secret):
                feed.sequence_pending(realm.stores.pointers, realm.account_id)
                begun = WebhookPlace(realm, webhook_id).begin(feed.head(realm.stores.pointers, realm.account_id))
                yield (begun,)
        elif secret:
            # The secret first: no request to the new address may be signed with the old secret.
            with _replaced_secret(realm, secrets, webhook_id, secret):
                yield ()
        else:
            yield ()

    def deleted(realm: Realm, webhook_id: str) -> None:
        WebhookPlace(realm, webhook_id).forget()
        marker = realm.stores.pointers.get(keys.webhook_secret(realm.account_id, webhook_id))
        if marker is None:  # a webhook of an older version
            secrets.delete(realm.account_id, SECRETS, webhook_id)
        else:
            remove_secret(realm.stores, secrets, marker)

    return NamedCalls(
        resources.WEBHOOK,
        WEBHOOK,
        keys.webhook,
        keys.webhook_name,
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
    realm.all(WEBHOOK).require(keys.webhook(realm.account_id, webhook_id), name=webhook_id, damaged=True)
    return WebhookPlace(realm, webhook_id)


# --- secrets ----------------------------------------------------------------------------------------------------------


@contextmanager
def _new_secret(realm: Realm, secrets: SecretsStore, webhook_id: str, secret: bytes) -> Iterator[None]:
    """Store the secret of a new webhook, after a marker by which gc finds it if this process dies."""
    marker = Put(keys.webhook_secret(realm.account_id, webhook_id), realm.clock().isoformat(), expect=ABSENT)
    (marked,) = realm.stores.pointers.apply([marker])
    secrets.put(realm.account_id, SECRETS, webhook_id, secret)
    try:
        yield
    except BaseException:
        remove_secret(realm.stores, secrets, marked)
        raise


@contextmanager
def _replaced_secret(realm: Realm, secrets: SecretsStore, webhook_id: str, secret: bytes) -> Iterator[None]:
    """Store a secret. If the block fails, the previous one is stored again."""
    before: bytes | None = None
    with suppress(NotFound):
        before = secrets.get(realm.account_id, SECRETS, webhook_id)
    secrets.put(realm.account_id, SECRETS, webhook_id, secret)
    try:
        yield
    except Exception:
        if before is not None:
            secrets.put(realm.account_id, SECRETS, webhook_id, before)
        raise


def remove_secret(stores: Stores, secrets: SecretsStore, marker: Pointer, *, dry_run: bool = False) -> bool:
    """Delete the secret of a marker unless its webhook exists. Return whether it was deleted, or would be."""
    account_id, webhook_id, _ = keys.secret_ids(marker.key)
    if stores.pointers.get(keys.webhook(account_id, webhook_id)) is not None:
        return False
    if not dry_run:
        secrets.delete(account_id, SECRETS, webhook_id)
        with suppress(Conflict, NotFound):
            stores.pointers.apply([Delete(marker.key, expect=marker.version)])
    return True


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
