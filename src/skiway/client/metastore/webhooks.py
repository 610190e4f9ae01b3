"""Webhooks: addresses to which servers send events of the account."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from google.protobuf.field_mask_pb2 import FieldMask

from skiway.client.metastore.collection import KEEP, Area, Keep, Listing, build, listing_of
from skiway.client.metastore.names import Id
from skiway.client.metastore.resources import Meta, time_of
from skiway.model import v1

__all__ = ["DeadLetter", "Webhook", "Webhooks"]


@dataclass(frozen=True, slots=True)
class Webhook:
    """A webhook. How far its delivery is (`position` and the following) is only known if it was read by itself."""

    id: Id
    name: str
    description: str
    url: str
    events: tuple[str, ...]
    paused: bool
    created_at: datetime
    version: int | None = None
    position: int | None = None
    attempt: int = 0
    next_attempt_at: datetime | None = None
    last_error: str = ""
    dead_letters: int | None = None
    damage: str = ""

    @classmethod
    def of(
        cls, webhook: v1.Webhook, meta: v1.MutationMeta | None = None, status: v1.WebhookStatus | None = None
    ) -> Webhook:
        """Convert the message."""
        has_next = status is not None and status.HasField("next_attempt_at")
        return cls(
            Id(webhook.resource_id.id),
            webhook.display_name,
            webhook.description,
            webhook.url,
            tuple(webhook.events),
            webhook.paused,
            webhook.created_at.ToDatetime(UTC),
            meta.pointer_version if meta else None,
            status.position if status else None,
            status.attempt if status else 0,
            time_of(status.next_attempt_at) if status is not None and has_next else None,
            status.last_error if status else "",
            status.dead_letters if status else None,
            webhook.damage,
        )


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """An event that was given up, because the webhook did not accept it."""

    sequence: int
    kind: str
    action: str
    object_id: str
    name: str
    given_up_at: datetime
    error: str
    is_due: bool

    @classmethod
    def of(cls, letter: v1.DeadLetter) -> DeadLetter:
        """Convert the message."""
        event = letter.event
        return cls(
            event.sequence,
            event.kind,
            event.action,
            event.object_id,
            event.name,
            time_of(letter.given_up_at),
            letter.error,
            letter.is_due,
        )


class Webhooks(Area):
    """`lake.webhooks`, by name, which is unique in the account."""

    def __call__(self, *, page_size: int | None = None) -> Listing[Webhook]:
        """List all webhooks by name."""

        def start() -> tuple[Mapping[str, Any], Callable[[Any], Webhook]]:
            return {}, Webhook.of

        return listing_of(self._calls, "ListWebhooks", "webhooks", start, page_size)

    def get(self, name: str) -> Webhook:
        """Return the webhook with a name or an `Id`, and how far its delivery is."""
        key = {"webhook_id": self._id(name)} if isinstance(name, Id) else {"display_name": name}
        response = self._calls.rpc("GetWebhook", **key)
        return Webhook.of(response.webhook, response.meta, response.status)

    def create(
        self,
        name: str,
        url: str,
        *,
        events: Sequence[str],
        secret: str,
        paused: bool = False,
        description: str | None = None,
        idempotency_key: str | None = None,
    ) -> Webhook:
        """Create a webhook for events such as `rule.failed`, `table.*` or `*`. The secret signs requests."""
        spec = build(
            v1.WebhookSpec,
            display_name=name,
            description=description,
            url=url,
            events=events,
            paused=paused,
            secret=secret,
        )
        response = self._calls.rpc("CreateWebhook", spec=spec, idempotency=self._calls.key(idempotency_key))
        return Webhook.of(response.webhook, response.meta)

    def update(
        self,
        name: str,
        *,
        new_name: str | Keep = KEEP,
        url: str | Keep = KEEP,
        events: Sequence[str] | Keep = KEEP,
        secret: str | Keep = KEEP,
        paused: bool | Keep = KEEP,
        description: str | Keep | None = KEEP,
        if_version: int | None = None,
    ) -> Webhook:
        """Change a webhook. Lists are replaced as a whole."""
        changes: dict[str, Any] = {
            "display_name": new_name,
            "description": description,
            "url": url,
            "events": events,
            "secret": secret,
            "paused": paused,
        }
        given = {key: value for key, value in changes.items() if value is not KEEP}
        response = self._calls.rpc(
            "UpdateWebhook",
            webhook_id=self._id(name),
            spec=build(v1.WebhookSpec, **given),
            update_mask=FieldMask(paths=sorted(given)),
            precondition=None if if_version is None else v1.Precondition(expected_version=if_version),
        )
        return Webhook.of(response.webhook, response.meta)

    def delete(self, name: str, *, if_version: int | None = None) -> Meta:
        """Delete a webhook, its secret and its dead letters; return its last stored version."""
        condition = None if if_version is None else v1.Precondition(expected_version=if_version)
        return Meta.of(self._calls.rpc("DeleteWebhook", webhook_id=self._id(name), precondition=condition).meta)

    def dead_letters(self, name: str) -> list[DeadLetter]:
        """Return the events that were given up, oldest first."""
        return [DeadLetter.of(each) for each in self._calls.rpc("ListDeadLetters", webhook_id=self._id(name)).letters]

    def redeliver(self, name: str, sequences: Sequence[int] = ()) -> int:
        """Send dead letters again, those with these numbers or all; return how many are about to be sent."""
        due: int = self._calls.rpc("RedeliverEvents", webhook_id=self._id(name), sequences=sequences).due
        return due

    def _id(self, name: str) -> v1.ResourceId:
        if isinstance(name, Id):
            return v1.ResourceId(id=name, kind=v1.RK_WEBHOOK)
        found: v1.ResourceId = self._calls.rpc("GetWebhook", display_name=name).webhook.resource_id
        return found
