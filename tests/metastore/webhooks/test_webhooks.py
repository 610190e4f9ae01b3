"""Webhooks: as resources, and the delivery of events in order, at least once, with retries and dead letters."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from metastore.resource_factory import ResourceFactory, expect_error, mask
from skiway.errors import (
    AlreadyExists,
    Conflict,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    Unavailable,
)
from skiway.metastore import catalogs, events, gc, webhooks
from skiway.metastore.records import keys
from skiway.metastore.records.kinds import WEBHOOK
from skiway.metastore.records.repository import Repository
from skiway.metastore.records.secrets import SecretName
from skiway.metastore.records.updates import copied
from skiway.metastore.resources.named import NamedCalls
from skiway.metastore.webhooks import Delivery, DeliveryRules, WebhookPlace, signature
from skiway.model import v1
from skiway.runtime.workers import Deliveries
from skiway.security import MemorySecrets
from skiway.security.source_access import SourceAccess

SECRET = "a secret of many bytes"
URL = "https://hooks.example.org/skiway"
RULES = DeliveryRules(max_attempts=3, base_backoff_s=10, max_backoff_s=15)


@dataclass
class Endpoint:
    """Records requests, and refuses those for which `refuses` returns true."""

    refuses: Callable[[dict[str, Any]], bool] = lambda _: False
    requests: list[tuple[str, bytes, dict[str, str]]] = field(default_factory=list)

    def __call__(self, account_id: str, url: str, body: bytes, headers: dict[str, str]) -> None:
        assert account_id == "a1"
        self.requests.append((url, body, headers))
        if self.refuses(json.loads(body)):
            raise Unavailable("the answer has the status 500")

    @property
    def names(self) -> list[str]:
        """The names of the objects of the events, by request."""
        return [json.loads(body).get("name", "") for _, body, _ in self.requests]


@dataclass
class Hooks:
    """Webhooks of account `a1`."""

    factory: ResourceFactory
    secrets: MemorySecrets = field(default_factory=MemorySecrets)
    endpoint: Endpoint = field(default_factory=Endpoint)
    results: list[str] = field(default_factory=list)

    @property
    def calls(self) -> NamedCalls[v1.Webhook]:
        return webhooks.calls(self.secrets, None)

    @property
    def realm(self) -> Any:
        return self.factory.home

    def create(self, name: str = "hook", *, events: tuple[str, ...] = ("catalog.created",), **spec: Any) -> v1.Webhook:
        given = {"url": URL, "secret": SECRET, **spec}
        request = v1.CreateWebhookRequest(spec=v1.WebhookSpec(display_name=name, events=events, **given))
        return self.calls.create(self.realm, request).webhook

    def update(self, webhook: v1.Webhook, **spec: Any) -> v1.Webhook:
        request = v1.UpdateWebhookRequest(
            webhook_id=webhook.resource_id, spec=v1.WebhookSpec(**spec), update_mask=mask(*spec)
        )
        return self.calls.update(self.realm, request).webhook

    def delivery(self, webhook: v1.Webhook, owner: str = "s1") -> Delivery:
        def on_attempt(account_id: str, result: str, seconds: float) -> None:
            assert (account_id, seconds >= 0) == ("a1", True)
            self.results.append(result)

        return Delivery(
            self.realm,
            webhook.resource_id.id,
            self.secrets,
            self.endpoint,
            owner,
            RULES,
            on_attempt=on_attempt,
            jitter=lambda: 1.0,
        )

    def run(self, webhook: v1.Webhook) -> int:
        events.sequence_pending(self.realm.stores.pointers, "a1")
        return self.delivery(webhook).run()

    def status(self, webhook: v1.Webhook) -> v1.WebhookStatus:
        return self.calls.get(self.realm, v1.GetWebhookRequest(webhook_id=webhook.resource_id)).status

    def letters(self, webhook: v1.Webhook) -> list[v1.DeadLetter]:
        request = v1.ListDeadLettersRequest(webhook_id=webhook.resource_id)
        return list(webhooks.list_dead_letters(self.realm, request).letters)


@pytest.fixture
def hooks(factory: ResourceFactory) -> Hooks:
    return Hooks(factory)


# --- resources --------------------------------------------------------------------------------------------------------


def test_secret_is_stored_apart_from_the_webhook_and_deleted_with_it(hooks: Hooks) -> None:
    made = hooks.create(description="x")
    assert SECRET not in str(hooks.calls.get(hooks.realm, v1.GetWebhookRequest(display_name="hook")))
    assert hooks.secrets.get(*SecretName.of(made).stored_as) == SECRET.encode()
    changed = hooks.update(made, url="https://other.example.org/", paused=True, events=["*"], secret=SECRET)
    assert (changed.url, changed.paused, list(changed.events)) == ("https://other.example.org/", True, ["*"])
    hooks.calls.delete(hooks.realm, v1.DeleteWebhookRequest(webhook_id=made.resource_id))
    with pytest.raises(NotFound):
        hooks.secrets.get(*SecretName.of(made).stored_as)
    assert list(hooks.realm.stores.pointers.scan(keys.WEBHOOKS)) == []
    assert list(hooks.realm.stores.pointers.scan(keys.SECRETS)) == []


def test_secret_that_the_mask_does_not_name_is_ignored(hooks: Hooks) -> None:
    made = hooks.create()
    spec = v1.WebhookSpec(paused=True, secret="another secret of many bytes")
    hooks.calls.update(
        hooks.realm, v1.UpdateWebhookRequest(webhook_id=made.resource_id, spec=spec, update_mask=mask("paused"))
    )
    assert hooks.secrets.get(*SecretName.of(made).stored_as) == SECRET.encode()


def test_failed_creation_leaves_no_secret(hooks: Hooks) -> None:
    hooks.create()
    with expect_error(AlreadyExists, "webhook.already.exists"):
        hooks.create()
    assert repr(hooks.secrets) == "MemorySecrets(1 secrets)"


def test_secret_of_a_creation_or_deletion_that_was_killed_is_collected(
    hooks: Hooks, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = hooks.create("kept")
    gone = hooks.create("gone")
    with monkeypatch.context() as crashing:
        crashing.setattr(webhooks, "remove_all", lambda *_: None)
        crashing.setattr(type(hooks.realm.all(WEBHOOK)), "create", _killed)
        with pytest.raises(KeyboardInterrupt):
            hooks.create("new")
        hooks.calls.delete(hooks.realm, v1.DeleteWebhookRequest(webhook_id=gone.resource_id))
    assert repr(hooks.secrets) == "MemorySecrets(3 secrets)"

    def swept(**how: Any) -> int:
        return len(gc.sweep_secrets(hooks.factory.stores, hooks.secrets, clock=hooks.factory.clock, **how).removed)

    assert swept() == 0, "they may belong to a running call"
    hooks.factory.clock.advance(901)
    assert (swept(dry_run=True), swept(), swept()) == (2, 2, 0)
    assert hooks.secrets.get(*SecretName.of(kept).stored_as) == SECRET.encode()
    assert repr(hooks.secrets) == "MemorySecrets(1 secrets)"


def _killed(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("spec", "found"),
    [
        ({"url": "ftp://example.org/"}, "not an address"),
        ({"url": "https://"}, "not an address"),
        ({"url": "https://user:pass@example.org/"}, "an address with a secret"),
        ({"url": "https://example.org/?token=abcdefghijklmnop"}, "an address with a secret"),
        ({"events": ()}, "a list of 0"),
        ({"events": ("rule",)}, "'rule'"),
        ({"events": ("rules.failed",)}, "'rules.failed'"),
        ({"secret": "short"}, "too short"),
        ({"secret": ""}, "missing"),
    ],
)
def test_webhook_that_cannot_be_used_is_rejected(hooks: Hooks, spec: dict[str, Any], found: str) -> None:
    with expect_error(InvalidArgument, "field.invalid") as error:
        hooks.create(**spec)
    assert found in error.value.message
    assert "pass" not in error.value.message
    assert repr(hooks.secrets) == "MemorySecrets(0 secrets)"


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/", "http://169.254.169.254/latest/meta-data/", "http://[::1]/"])
def test_address_that_the_operator_does_not_permit_is_rejected(hooks: Hooks, url: str) -> None:
    access = SourceAccess(addresses=(), for_callers=True)
    spec = v1.WebhookSpec(display_name="hook", url=url, events=["*"], secret=SECRET)
    with expect_error(PermissionDenied, "address.refused"):
        webhooks.calls(hooks.secrets, access).create(hooks.realm, v1.CreateWebhookRequest(spec=spec))
    made = hooks.create()
    change = v1.UpdateWebhookRequest(webhook_id=made.resource_id, spec=v1.WebhookSpec(url=url), update_mask=mask("url"))
    with expect_error(PermissionDenied, "address.refused"):
        webhooks.calls(hooks.secrets, access).update(hooks.realm, change)


# --- delivery ---------------------------------------------------------------------------------------------------------


def test_new_events_are_delivered_in_order_and_signed(hooks: Hooks) -> None:
    hooks.factory.catalog("before")
    webhook = hooks.create()
    for name in ("one", "two"):
        hooks.factory.catalog(name)
    hooks.factory.namespace("not wanted", catalog=hooks.factory.first_catalog())
    assert hooks.run(webhook) == 2
    assert hooks.endpoint.names == ["one", "two"]
    assert hooks.run(webhook) == 0
    url, body, headers = hooks.endpoint.requests[0]
    event = json.loads(body)
    assert url == URL
    assert (event["kind"], event["action"], event["account_id"]) == ("catalog", "created", "a1")
    assert event["id"] == headers["X-Skiway-Event-Id"] == f"a1-{event['sequence']}"
    expected = signature(SECRET.encode(), int(headers["X-Skiway-Timestamp"]), body)
    assert headers["X-Skiway-Signature"] == expected


def test_signature_is_that_of_other_implementations() -> None:
    """The expected value is from: printf '1700000000.{}' | openssl dgst -sha256 -hmac key."""
    expected = "v1=9d713ed406bb7076d4123f0dc2c39d2df5c654ed4b0cd56b52c8b4c940bd63ae"
    assert signature(b"key", 1_700_000_000, b"{}") == expected


@pytest.mark.parametrize(
    ("pattern", "names"),
    [("*", ["c", "a"]), ("catalog.*", ["c"]), ("namespace.created", ["a"]), ("catalog.deleted", [])],
)
def test_events_are_chosen_by_kind_and_action(hooks: Hooks, pattern: str, names: list[str]) -> None:
    webhook = hooks.create(events=(pattern,))
    hooks.factory.namespace("a", catalog=hooks.factory.catalog("c"))
    hooks.run(webhook)
    assert [name for name in hooks.endpoint.names if name != "hook"] == names


def test_action_must_match(hooks: Hooks) -> None:
    webhook = hooks.create(events=("catalog.deleted",))
    made = hooks.factory.catalog("gone")
    catalogs.delete(hooks.realm, v1.DeleteCatalogRequest(catalog_id=made.resource_id))
    assert hooks.run(webhook) == 1
    assert json.loads(hooks.endpoint.requests[0][1])["action"] == "deleted"


def test_refused_event_is_sent_again_later_and_others_wait(hooks: Hooks) -> None:
    webhook = hooks.create()
    hooks.endpoint.refuses = lambda event: event["name"] == "one"
    for name in ("one", "two"):
        hooks.factory.catalog(name)
    assert hooks.run(webhook) == 0
    assert (hooks.status(webhook).attempt, hooks.status(webhook).last_error) == (1, "the answer has the status 500")
    hooks.run(webhook)
    assert hooks.endpoint.names == ["one"], "the next attempt is not due"
    hooks.factory.clock.advance(9.9)
    hooks.run(webhook)
    assert hooks.endpoint.names == ["one"]
    hooks.factory.clock.advance(0.2)
    hooks.endpoint.refuses = lambda _: False
    assert hooks.run(webhook) == 2
    assert hooks.endpoint.names == ["one", "one", "two"]
    ids = [headers["X-Skiway-Event-Id"] for _, _, headers in hooks.endpoint.requests]
    assert ids[0] == ids[1] != ids[2]
    assert hooks.status(webhook).attempt == 0


def test_event_that_is_never_accepted_becomes_a_dead_letter_and_can_be_sent_again(hooks: Hooks) -> None:
    webhook = hooks.create()
    hooks.endpoint.refuses = lambda event: event["name"] == "bad"
    for name in ("bad", "good"):
        hooks.factory.catalog(name)
    for _ in range(RULES.max_attempts):
        hooks.run(webhook)
        hooks.factory.clock.advance(16)
    assert hooks.endpoint.names == ["bad", "bad", "bad", "good"]
    assert hooks.results == ["failed", "failed", "given_up", "accepted"]
    (letter,) = hooks.letters(webhook)
    assert (letter.event.name, letter.error, letter.is_due) == ("bad", "the answer has the status 500", False)
    assert hooks.status(webhook).dead_letters == 1
    request = v1.RedeliverEventsRequest(webhook_id=webhook.resource_id, sequences=[letter.event.sequence])
    assert webhooks.redeliver(hooks.realm, request).due == 1
    assert webhooks.due_webhooks(hooks.realm).webhook_ids == (webhook.resource_id.id,)
    hooks.run(webhook)
    (again,) = hooks.letters(webhook)
    assert (again.is_due, len(hooks.endpoint.names), hooks.results[-1]) == (False, 5, "given_up")
    hooks.endpoint.refuses = lambda _: False
    webhooks.redeliver(hooks.realm, v1.RedeliverEventsRequest(webhook_id=webhook.resource_id))
    hooks.run(webhook)
    assert hooks.letters(webhook) == []
    assert hooks.endpoint.requests[-1][2]["X-Skiway-Event-Id"] == hooks.endpoint.requests[0][2]["X-Skiway-Event-Id"]
    with expect_error(InvalidArgument, "field.invalid", field="sequences"):
        webhooks.redeliver(hooks.realm, request)


def test_paused_webhook_keeps_its_events(hooks: Hooks) -> None:
    webhook = hooks.create(paused=True)
    hooks.factory.catalog("one")
    assert webhooks.due_webhooks(hooks.realm).webhook_ids == ()
    assert hooks.run(webhook) == 0
    hooks.update(webhook, paused=False)
    assert hooks.run(webhook) == 1


def test_new_secret_signs_the_next_request(hooks: Hooks) -> None:
    webhook = hooks.create()
    hooks.update(webhook, secret="another secret of many bytes")
    hooks.factory.catalog("one")
    hooks.run(webhook)
    _, body, headers = hooks.endpoint.requests[0]
    expected = signature(b"another secret of many bytes", int(headers["X-Skiway-Timestamp"]), body)
    assert headers["X-Skiway-Signature"] == expected


def test_stored_secret_signs_no_requests_to_another_address(hooks: Hooks) -> None:
    webhook = hooks.create()
    with expect_error(InvalidArgument, "field.invalid", field="secret"):
        hooks.update(webhook, url="https://attacker.example.org/")
    hooks.update(webhook, url=webhook.url, description="same address")
    hooks.factory.catalog("one")
    assert hooks.run(webhook) == 1
    assert {url for url, _, _ in hooks.endpoint.requests} == {webhook.url}


def test_new_secret_is_stored_before_the_new_address_and_deleted_if_that_fails(
    hooks: Hooks, monkeypatch: pytest.MonkeyPatch
) -> None:
    webhook = hooks.create()
    seen: list[bytes] = []

    def fail(_: Any, current: Any, desired: v1.Webhook, **__: Any) -> None:
        seen.append(hooks.secrets.get(*SecretName.of(desired).stored_as))
        raise Conflict("lost the race")

    monkeypatch.setattr(Repository, "update", fail)
    with pytest.raises(Conflict):
        hooks.update(webhook, url="https://other.example.org/", secret="another secret of many bytes")
    assert seen == [b"another secret of many bytes"]
    assert hooks.secrets.get(*SecretName.of(webhook).stored_as) == SECRET.encode()
    assert repr(hooks.secrets) == "MemorySecrets(1 secrets)"


def test_secret_of_an_older_version_is_used_until_it_is_replaced(hooks: Hooks) -> None:
    webhook = hooks.create()
    stored = hooks.realm.by_id(WEBHOOK, webhook.resource_id.id)
    old = copied(stored.value)
    old.ClearField("secret_id")
    hooks.realm.all(WEBHOOK).update(stored, old)
    hooks.secrets.put(*SecretName.of(old).stored_as, b"the secret of an older version")
    assert SecretName.of(old).stored_as == ("a1", "webhooks", webhook.resource_id.id)
    hooks.factory.catalog("one")
    assert hooks.run(webhook) == 1
    _, body, headers = hooks.endpoint.requests[0]
    expected = signature(b"the secret of an older version", int(headers["X-Skiway-Timestamp"]), body)
    assert headers["X-Skiway-Signature"] == expected
    changed = hooks.update(webhook, secret=SECRET)
    assert hooks.secrets.get(*SecretName.of(changed).stored_as) == SECRET.encode()


def test_missing_secret_is_an_error_of_the_delivery(hooks: Hooks) -> None:
    webhook = hooks.create()
    hooks.secrets.delete(*SecretName.of(webhook).stored_as)
    hooks.factory.catalog("one")
    hooks.run(webhook)
    assert hooks.endpoint.requests == []
    assert "secret of the webhook is missing" in hooks.status(webhook).last_error


def test_two_servers_do_not_send_the_same_event_at_the_same_time(hooks: Hooks) -> None:
    webhook = hooks.create()
    hooks.factory.catalog("one")
    others: list[int] = []

    def meanwhile(_: dict[str, Any]) -> bool:
        if not others:
            others.append(-1)
            others[0] = hooks.delivery(webhook, "s2").run()
        return False

    hooks.endpoint.refuses = meanwhile
    assert hooks.run(webhook) == 1
    assert others == [0]
    assert hooks.endpoint.names == ["one"]


def test_server_that_died_while_sending_repeats_the_event(hooks: Hooks, monkeypatch: pytest.MonkeyPatch) -> None:
    webhook = hooks.create()
    for name in ("one", "two"):
        hooks.factory.catalog(name)

    class Killed(BaseException):
        pass

    def kill(event: dict[str, Any]) -> bool:
        if event["name"] == "two":
            monkeypatch.setattr(WebhookPlace, "release", lambda *_: None)
            raise Killed
        return False

    hooks.endpoint.refuses = kill
    with pytest.raises(Killed):
        hooks.run(webhook)
    monkeypatch.undo()
    hooks.endpoint.refuses = lambda _: False
    assert hooks.run(webhook) == 0, "the lease of the dead server is still valid"
    hooks.factory.clock.advance(RULES.lease_s + 1)
    assert hooks.run(webhook) == 1
    assert hooks.endpoint.names == ["one", "two", "two"]


def test_due_webhooks_are_those_with_new_events(hooks: Hooks) -> None:
    assert list(webhooks.accounts_with_webhooks(hooks.factory.stores)) == []
    webhook = hooks.create()
    assert list(webhooks.accounts_with_webhooks(hooks.factory.stores)) == ["a1"]
    hooks.run(webhook)
    assert webhooks.due_webhooks(hooks.realm).webhook_ids == ()
    hooks.factory.catalog("one")
    assert webhooks.due_webhooks(hooks.realm).webhook_ids == (webhook.resource_id.id,)


def test_all_webhooks_are_delivered(hooks: Hooks) -> None:
    for name in ("a", "b"):
        hooks.create(name)
    hooks.factory.catalog("one")
    deliveries = Deliveries(
        hooks.factory.stores, hooks.factory.realm, secrets=hooks.secrets, send=hooks.endpoint, rules=RULES
    )
    deliveries.look()
    deliveries.wait()
    assert hooks.endpoint.names == ["one", "one"]


def test_accounts_without_webhooks_are_not_looked_at(hooks: Hooks, monkeypatch: pytest.MonkeyPatch) -> None:
    stores = hooks.factory.stores
    for number in range(20):
        hooks.factory.account(f"other{number:02d}")
    hooks.create("one")
    hooks.create("two")
    pages = list[str]()
    original = type(stores.pointers).page

    def counted(self: Any, prefix: str = "", **how: Any) -> Any:
        pages.append(prefix)
        return original(self, prefix, **how)

    monkeypatch.setattr(type(stores.pointers), "page", counted)
    assert list(webhooks.accounts_with_webhooks(stores)) == ["a1"]
    assert len(pages) == 2


def test_end_of_a_pause_is_known(hooks: Hooks) -> None:
    webhook = hooks.create()
    hooks.run(webhook)
    assert webhooks.due_webhooks(hooks.realm) == webhooks.Due((), None)
    hooks.endpoint.refuses = lambda _: True
    hooks.factory.catalog("one")
    hooks.run(webhook)
    assert webhooks.due_webhooks(hooks.realm) == webhooks.Due((), hooks.factory.clock.later(10))
    hooks.factory.clock.advance(10)
    assert webhooks.due_webhooks(hooks.realm) == webhooks.Due((webhook.resource_id.id,), None)
