"""Webhooks: where events of the account are sent, how far the delivery is, and what was given up."""

from __future__ import annotations

from itertools import islice
from typing import Any, Final

from skiway.client.metastore import Webhook
from skiway.errors import InvalidArgument
from skiway.web.rendering import path_to
from skiway.web.visits import Page, Redirect, Visit

__all__ = ["change_webhook", "webhooks"]

MAX_WEBHOOKS: Final = 50
MAX_LETTERS: Final = 100


def webhooks(visit: Visit) -> Page:
    """All webhooks, or one of them with the events that were given up."""
    if not visit.names:
        names = [each.name for each in islice(visit.lake.webhooks(), MAX_WEBHOOKS)]
        found = [webhook_data(visit.lake.webhooks.get(name)) for name in names]  # listings do not have their state
        return Page("webhooks.html", "Webhooks", {"webhooks": found})
    webhook = visit.lake.webhooks.get(visit.name("webhook"))
    letters = visit.lake.webhooks.dead_letters(webhook.name)
    shown = [
        {
            "sequence": each.sequence,
            "event": f"{each.kind}.{each.action}",
            "name": each.name,
            "given_up_at": each.given_up_at,
            "error": each.error,
            "is_due": each.is_due,
        }
        for each in letters[:MAX_LETTERS]
    ]
    data = {"webhook": webhook_data(webhook), "letters": shown, "more": len(letters) - len(shown)}
    return Page("webhook.html", webhook.name, data)


def change_webhook(visit: Visit) -> Redirect:
    """Pause or resume a webhook, or send what was given up again."""
    name, action = visit.name("webhook"), visit.form.get("action", "")
    match action:
        case "pause" | "resume":
            visit.lake.webhooks.update(name, paused=action == "pause")
        case "redeliver":
            visit.lake.webhooks.redeliver(name)
        case _:
            raise InvalidArgument(
                f"{action[:40]!r} is not an action: use pause, resume or redeliver", key="form.invalid"
            )
    return Redirect(path_to("webhooks", name))


def webhook_data(webhook: Webhook) -> dict[str, Any]:
    """A webhook as pages show it. Its secret is never read."""
    return {
        "name": webhook.name,
        "url": webhook.url,
        "events": list(webhook.events),
        "comment": webhook.description,
        "state": "paused" if webhook.paused else "failing" if webhook.attempt else "active",
        "position": webhook.position,
        "attempt": webhook.attempt,
        "next_attempt_at": webhook.next_attempt_at,
        "last_error": webhook.last_error,
        "dead_letters": webhook.dead_letters,
        "created_at": webhook.created_at,
        "damage": webhook.damage,
    }
