"""Webhooks: where events of the account are sent, how far the delivery is, and what was given up."""

from __future__ import annotations

from itertools import islice
from typing import Final

from skiway.errors import InvalidArgument
from skiway.web.rendering import path_to
from skiway.web.visits import Page, Redirect, Visit

__all__ = ["change_webhook", "webhooks"]

MAX_WEBHOOKS: Final = 50
MAX_LETTERS: Final = 100


def webhooks(visit: Visit) -> Page:
    """All webhooks, or one of them with the events that were given up."""
    lake = visit.lake
    if not visit.names:
        names = [each.name for each in islice(lake.webhooks(), MAX_WEBHOOKS)]
        return Page("webhooks.html", "Webhooks", {"webhooks": list(map(lake.webhooks.get, names))})  # with their state
    webhook = lake.webhooks.get(visit.name("webhook"))
    letters = lake.webhooks.dead_letters(webhook.name)
    data = {"webhook": webhook, "letters": letters[:MAX_LETTERS], "more": max(len(letters) - MAX_LETTERS, 0)}
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
            message = f"{action[:40]!r} is not an action: use pause, resume or redeliver"
            raise InvalidArgument(message, key="form.invalid")
    return Redirect(path_to("webhooks", name))
