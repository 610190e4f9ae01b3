"""`skiway webhooks`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from skiway.cli.catalogs import Description
from skiway.cli.command import Call, command, group
from skiway.errors import InvalidArgument

if TYPE_CHECKING:
    from skiway.client.metastore import Webhook

__all__ = ["app"]

app = group("webhooks", "Send events of the account to other systems over HTTP.")

WebhookName = Annotated[str, typer.Argument(metavar="WEBHOOK", help="The name of a webhook.")]
Events = Annotated[
    list[str], typer.Option("--event", metavar="EVENT", help="Such as rule.failed, table.* or *; can be repeated.")
]
SecretEnv = Annotated[
    str | None, typer.Option(metavar="NAME", help="Environment variable with the secret that signs requests.")
]
SecretFile = Annotated[Path | None, typer.Option(metavar="PATH", help="File with the secret, instead.")]


@dataclass(frozen=True, slots=True)
class WebhookRecord:
    """A webhook in the output; listings do not have how far its delivery is."""

    name: str
    url: str
    events: list[str]
    paused: bool
    position: int | None
    attempt: int
    next_attempt_at: datetime | None
    last_error: str | None
    dead_letters: int | None
    id: str
    description: str | None
    version: int | None
    created_at: datetime | None
    damage: str | None = None

    @classmethod
    def of(cls, webhook: Webhook) -> WebhookRecord:
        """Convert a webhook of the client."""
        return cls(
            webhook.name,
            webhook.url,
            list(webhook.events),
            webhook.paused,
            webhook.position,
            webhook.attempt,
            webhook.next_attempt_at,
            webhook.last_error or None,
            webhook.dead_letters,
            str(webhook.id),
            webhook.description or None,
            webhook.version,
            None if webhook.damage else webhook.created_at,
            webhook.damage or None,
        )


@command(app, "list")
def list_webhooks(call: Call) -> None:
    """List the webhooks of the account."""
    found = [WebhookRecord.of(each) for each in call.lake.webhooks()]
    call.print_rows(found, ["name", "url", "events", "paused"], empty="there are no webhooks")


@command(app, "show")
def show(call: Call, name: WebhookName) -> None:
    """Show a webhook, its stored version, and how far its delivery is."""
    call.print_record(WebhookRecord.of(call.lake.webhooks.get(name)))


@command(app, "create")
def create(
    call: Call,
    name: WebhookName,
    url: Annotated[str, typer.Argument(metavar="URL", help="Address, such as https://example.org/hooks.")],
    events: Events,
    secret_env: SecretEnv = None,
    secret_file: SecretFile = None,
    paused: Annotated[bool, typer.Option("--paused", help="Do not send anything yet.")] = False,
    description: Description = None,
) -> None:
    """Create a webhook. It gets the events after this moment.

    Requests are signed with the secret. The operator decides to which addresses webhooks may send.
    """
    secret = _secret(secret_env, secret_file)
    if secret is None:
        raise typer.BadParameter("give the secret that signs requests", param_hint="--secret-env or --secret-file")
    made = call.lake.webhooks.create(name, url, events=events, secret=secret, paused=paused, description=description)
    call.print_result(f"created webhook {name}", WebhookRecord.of(made))


@command(app, "update")
def update(
    call: Call,
    name: WebhookName,
    url: Annotated[str | None, typer.Option(metavar="URL", help="The new address.")] = None,
    events: Events = [],  # noqa: B006 - typer copies it
    secret_env: SecretEnv = None,
    secret_file: SecretFile = None,
    paused: Annotated[bool | None, typer.Option("--pause/--resume", help="Let events wait, or send them.")] = None,
    description: Description = None,
) -> None:
    """Change a webhook. Events are replaced as a whole."""
    values: dict[str, Any] = {
        "url": url,
        "events": events or None,
        "secret": _secret(secret_env, secret_file),
        "paused": paused,
        "description": description,
    }
    given = {key: value for key, value in values.items() if value is not None}
    if not given:
        raise typer.BadParameter("give at least one new value")
    changed = call.lake.webhooks.update(name, **given)
    call.print_result(f"updated webhook {name}", WebhookRecord.of(changed))


@command(app, "delete")
def delete(call: Call, name: WebhookName) -> None:
    """Delete a webhook, its secret and its dead letters."""
    call.lake.webhooks.delete(name)
    call.print_result(f"deleted webhook {name}", {"name": name})


@command(app, "dead-letters")
def dead_letters(call: Call, name: WebhookName) -> None:
    """List the events that were given up, because all attempts failed."""
    found = call.lake.webhooks.dead_letters(name)
    columns = ["sequence", "kind", "action", "name", "given_up_at", "error", "is_due"]
    call.print_rows(found, columns, empty="there are no dead letters")


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


def _secret(env: str | None, file: Path | None) -> str | None:
    if env is not None:
        found = os.environ.get(env)
        if not found:
            raise InvalidArgument(f"the environment variable {env} is not set: set it to the secret")
        return found
    if file is None:
        return None
    try:
        return file.expanduser().read_text(encoding="utf-8").strip()
    except OSError as error:
        raise InvalidArgument(f"cannot read {file}: {error.strerror}") from None
