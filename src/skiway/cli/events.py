"""`skiway events`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from skiway.cli.command import Call, command, group

if TYPE_CHECKING:
    from skiway.client.metastore import Event

__all__ = ["app"]


app = group("events", "Show the events of the account: every committed change, in order.")

COLUMNS = ["sequence", "occurred_at", "kind", "action", "name", "snapshot_id", "caller"]


@dataclass(frozen=True, slots=True)
class EventRecord:
    """An event in the output."""

    sequence: int
    occurred_at: datetime
    kind: str
    action: str
    object_id: str
    name: str
    previous_name: str
    snapshot_id: int | None
    detail: str
    caller: str
    change_id: str

    @classmethod
    def of(cls, event: Event) -> EventRecord:
        """Convert an event of the client."""
        found = event.message
        return cls(
            found.sequence,
            event.occurred_at,
            found.kind,
            found.action,
            found.object_id,
            found.name,
            found.previous_name,
            event.snapshot_id,
            found.detail,
            found.caller,
            found.change_id,
        )


@command(app, "list")
def list_(
    call: Call,
    after: Annotated[int, typer.Option("--after", metavar="NUMBER", min=0, help="Events after this one.")] = 0,
) -> None:
    """List events, oldest first."""
    call.print_rows(map(EventRecord.of, call.lake.events(after=after)), COLUMNS, empty="there are no events")


@command(app, "watch")
def watch(
    call: Call,
    after: Annotated[
        int | None,
        typer.Option("--after", metavar="NUMBER", min=0, help="Events after this one; by default, new ones."),
    ] = None,
    count: Annotated[
        int | None, typer.Option("--count", metavar="NUMBER", min=1, help="Stop after this many events.")
    ] = None,
) -> None:
    """Print events as they happen, one line each, until Ctrl-C."""
    from itertools import islice

    with call.metastore(timeout_s=None) as lake:
        for event in islice(lake.events.watch(after=after), count):
            record = EventRecord.of(event)
            what = f"{record.kind} {record.name or record.object_id} {record.action}"
            call.print_result(f"{record.sequence}  {record.occurred_at:%Y-%m-%d %H:%M:%S}  {what}", record)
