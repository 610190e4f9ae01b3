"""`skiway webhooks`: the commands of all resources, and those for events that were given up."""

from __future__ import annotations

from typing import Annotated

import typer

from skiway.cli.command import Call, command
from skiway.cli.resources import commands_for
from skiway.resources import WEBHOOK

__all__ = ["app"]

app = commands_for(WEBHOOK)

WebhookName = Annotated[str, typer.Argument(metavar="WEBHOOK", help="The name of a webhook.")]


@command(app, "dead-letters")
def dead_letters(call: Call, name: WebhookName) -> None:
    """List the events that were given up, because all attempts failed."""
    columns = ["sequence", "kind", "action", "name", "given_up_at", "error", "is_due"]
    call.print_rows(call.lake.webhooks.dead_letters(name), columns, empty="there are no dead letters")


@command(app, "redeliver")
def redeliver(
    call: Call,
    name: WebhookName,
    sequences: Annotated[
        list[int] | None, typer.Argument(metavar="[NUMBER]...", help="Numbers of events; all dead letters by default.")
    ] = None,
) -> None:
    """Send dead letters again, each once."""
    due = call.lake.webhooks.redeliver(name, sequences or ())
    call.print_result(f"{due} events are sent again", {"due": due})
