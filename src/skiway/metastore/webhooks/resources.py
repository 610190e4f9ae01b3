"""Webhooks as resources. Their secrets are in the secrets store only."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Final
from urllib.parse import urlsplit

from skiway.errors import Conflict, InvalidArgument, NotFound
from skiway.metastore.events import feed
from skiway.metastore.records import keys, updates
from skiway.metastore.records.errors import failure, invalid_field
from skiway.metastore.records.idempotency import Claim, once
from skiway.metastore.records.journal import EVENT_KINDS
from skiway.metastore.records.kinds import ACCOUNT, WEBHOOK
from skiway.metastore.records.names import exact_name
from skiway.metastore.records.parents import inside
from skiway.metastore.records.realm import Realm, by_id_or_name, local_id, resource_id
from skiway.metastore.records.repository import Stored, listed
from skiway.metastore.records.updates import masked_paths, retrying
from skiway.metastore.webhooks.positions import WebhookPlace
from skiway.model import v1
from skiway.security import SecretsStore
from skiway.security.secret_shapes import secret_in_uri
from skiway.security.source_access import SourceAccess
from skiway.storage import ABSENT, Delete, Operation, Pointer, Put, Stores

__all__ = [
    "SECRETS",
    "create",
    "delete",
    "get",
    "list_",
    "list_dead_letters",
    "redeliver",
    "remove_secret",
    "update",
]

SECRETS: Final = "webhooks"
"""The kind of secrets in the secrets store."""
FIELDS: Final = ("display_name", "description", "url", "events", "paused")
KINDS: Final = (*EVENT_KINDS, "sync", "maintenance")
PATTERN: Final = re.compile(r"\*|([a-z]+)\.(\*|[a-z]+)")
LEAST_SECRET: Final = 16
MAX_ITEMS: Final = 100
MAX_URL: Final = 2000


def create(
    realm: Realm, request: v1.CreateWebhookRequest, *, secrets: SecretsStore, access: SourceAccess | None
) -> v1.CreateWebhookResponse:
    """Create a webhook. It gets the events after this moment."""
    if not request.HasField("spec"):
        raise failure(InvalidArgument, "spec.required", field="spec")
    spec = request.spec
    claim = Claim(realm, "CreateWebhook", request.idempotency.key, spec, v1.CreateWebhookResponse)

    def attempt() -> v1.CreateWebhookResponse:
        account = realm.all(ACCOUNT).require(keys.account(realm.account_id), name=realm.account_id)
        now = realm.now()
        webhook = v1.Webhook(
            resource_id=resource_id(realm, realm.ids(), v1.RK_WEBHOOK), has_secret=True, created_at=now, updated_at=now
        )
        for field in FIELDS:
            updates.copy_field(spec, webhook, field, required=field in ("display_name", "url"))
        secret = _secret(spec)
        _check(realm, webhook, access)
        feed.sequence_pending(realm.stores.pointers, realm.account_id)
        place = WebhookPlace(realm, webhook.resource_id.id)
        begun = place.begin(feed.head(realm.stores.pointers, realm.account_id))

        def also(stored: Stored[v1.Webhook]) -> tuple[Operation, ...]:
            answer = v1.CreateWebhookResponse(webhook=stored.value, meta=stored.meta)
            return *inside(account.pointer), begun, *claim.storing(answer)

        marker = Put(
            keys.webhook_secret(realm.account_id, webhook.resource_id.id), realm.clock().isoformat(), expect=ABSENT
        )
        (marked,) = realm.stores.pointers.apply([marker])
        secrets.put(realm.account_id, SECRETS, webhook.resource_id.id, secret)
        try:
            created = realm.all(WEBHOOK).create(webhook, also=also)
        except BaseException:
            remove_secret(realm.stores, secrets, marked)
            raise
        return v1.CreateWebhookResponse(webhook=created.value, meta=created.meta)

    return once(claim, lambda: retrying(attempt))


def get(realm: Realm, request: v1.GetWebhookRequest) -> v1.GetWebhookResponse:
    """Return the webhook with an id or a name, its stored version, and how far its delivery is."""
    found = by_id_or_name(realm, WEBHOOK, request, v1.RK_WEBHOOK, key=keys.webhook, name_key=keys.webhook_name)
    status = WebhookPlace(realm, found.value.resource_id.id).status()
    return v1.GetWebhookResponse(webhook=found.value, meta=found.meta, status=status)


def list_(realm: Realm, request: v1.ListWebhooksRequest) -> v1.ListWebhooksResponse:
    """List the account's webhooks by name."""
    found, page = listed(realm.all(WEBHOOK), keys.webhook_name(realm.account_id), request.page)
    return v1.ListWebhooksResponse(webhooks=found, page=page)


def update(
    realm: Realm, request: v1.UpdateWebhookRequest, *, secrets: SecretsStore, access: SourceAccess | None
) -> v1.UpdateWebhookResponse:
    """Update the masked fields of a webhook. A new secret signs the next request; a new address needs one."""
    webhook_id = local_id(realm, request.webhook_id, v1.RK_WEBHOOK, field="webhook_id")
    paths = masked_paths(request.update_mask, allowed=(*FIELDS, "secret"), resource="webhook")

    def edit(webhook: v1.Webhook) -> None:
        before = webhook.url
        for path in paths - {"secret"}:
            updates.copy_field(request.spec, webhook, path, required=path in ("display_name", "url"))
        _check(realm, webhook, access if "url" in paths else None)
        if webhook.url != before and not secret:
            wanted = "give the secret again, because the stored one signs requests to the previous url only"
            raise invalid_field("secret", "missing, but url changes", wanted)
        if "secret" in paths:
            webhook.updated_at.CopyFrom(realm.now())  # the record changes with its secret

    def write(current: Stored[v1.Webhook], desired: v1.Webhook) -> Stored[v1.Webhook]:
        # The secret first: no request to the new address may be signed with the old secret.
        with _replaced(realm, secrets, webhook_id, secret) if secret else nullcontext():
            return realm.all(WEBHOOK).update(current, desired)

    secret = _secret(request.spec) if "secret" in paths else b""
    updated = updates.update(
        realm,
        realm.all(WEBHOOK),
        keys.webhook(realm.account_id, webhook_id),
        name=webhook_id,
        precondition=request.precondition,
        edit=edit,
        write=write,
    )
    if secret:  # the record may be the same
        secrets.put(realm.account_id, SECRETS, webhook_id, secret)
    return v1.UpdateWebhookResponse(webhook=updated.value, meta=updated.meta)


def delete(realm: Realm, request: v1.DeleteWebhookRequest, *, secrets: SecretsStore) -> v1.DeleteWebhookResponse:
    """Delete a webhook, also a damaged one, with its secret and dead letters."""
    webhook_id = local_id(realm, request.webhook_id, v1.RK_WEBHOOK, field="webhook_id")

    def remove(pointer: Pointer, webhook: v1.Webhook | None) -> None:
        realm.all(WEBHOOK).delete(pointer, webhook)

    key = keys.webhook(realm.account_id, webhook_id)
    meta = updates.delete(realm.all(WEBHOOK), key, name=webhook_id, precondition=request.precondition, remove=remove)
    WebhookPlace(realm, webhook_id).forget()
    marker = realm.stores.pointers.get(keys.webhook_secret(realm.account_id, webhook_id))
    if marker is None:  # a webhook of an older version
        secrets.delete(realm.account_id, SECRETS, webhook_id)
    else:
        remove_secret(realm.stores, secrets, marker)
    return v1.DeleteWebhookResponse(meta=meta)


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


def list_dead_letters(realm: Realm, request: v1.ListDeadLettersRequest) -> v1.ListDeadLettersResponse:
    """List the events that were given up, oldest first."""
    place = _place(realm, request.webhook_id)
    return v1.ListDeadLettersResponse(letters=[letter for letter, _ in place.letters()])


def redeliver(realm: Realm, request: v1.RedeliverEventsRequest) -> v1.RedeliverEventsResponse:
    """Send dead letters again: those with the given numbers, or all. Each is tried once."""
    place, wanted = _place(realm, request.webhook_id), set(request.sequences)
    found = [each for each in place.letters() if not wanted or each[0].event.sequence in wanted]
    missing = wanted - {letter.event.sequence for letter, _ in found}
    if missing:
        raise invalid_field("sequences", str(min(missing)), "no dead letter of the webhook has this number")
    due = 0
    for letter, pointer in found:
        letter.is_due = True
        due += place.change_letter(pointer, letter)
    return v1.RedeliverEventsResponse(due=due)


def _place(realm: Realm, given: v1.ResourceId) -> WebhookPlace:
    webhook_id = local_id(realm, given, v1.RK_WEBHOOK, field="webhook_id")
    realm.all(WEBHOOK).require(keys.webhook(realm.account_id, webhook_id), name=webhook_id, damaged=True)
    return WebhookPlace(realm, webhook_id)


@contextmanager
def _replaced(realm: Realm, secrets: SecretsStore, webhook_id: str, secret: bytes) -> Iterator[None]:
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


# --- checks -----------------------------------------------------------------------------------------------------------


def _secret(spec: v1.WebhookSpec) -> bytes:
    secret = spec.secret.encode()
    if len(secret) < LEAST_SECRET:
        wanted = f"give at least {LEAST_SECRET} bytes, such as the output of openssl rand -hex 32"
        raise invalid_field("secret", "too short" if secret else "missing", wanted)
    return secret


def _check(realm: Realm, webhook: v1.Webhook, access: SourceAccess | None) -> None:
    """Raise unless the webhook can be used. The operator decides which addresses it may have."""
    webhook.display_name = exact_name(webhook.display_name, resource="webhook")
    parts = urlsplit(webhook.url)
    if parts.scheme not in ("http", "https") or not parts.hostname or len(webhook.url) > MAX_URL:
        raise invalid_field("url", "not an address of a web server", "give a URL such as https://example.org/hooks")
    if parts.username or parts.password or secret_in_uri(webhook.url):
        raise invalid_field(
            "url", "an address with a secret in it", "leave it out: requests are signed with the secret"
        )
    if not 0 < len(webhook.events) <= MAX_ITEMS:
        raise invalid_field(
            "events", f"a list of {len(webhook.events)}", "name events such as rule.failed, table.* or *"
        )
    for text in webhook.events:
        match = PATTERN.fullmatch(text)
        if match is None or (match[1] is not None and match[1] not in KINDS):
            raise invalid_field(
                "events",
                repr(text[:100]),
                f"give *, or a kind and an action such as rule.failed; kinds are {', '.join(KINDS)}",
            )
    if access is not None:
        access.of_account(realm.account_id).check_url(webhook.url)
