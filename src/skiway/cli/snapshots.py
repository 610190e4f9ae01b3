"""Snapshots: the states of a table that can still be read."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from skiway.cli.command import Call, noun, verb
from skiway.errors import NotFound

if TYPE_CHECKING:
    from skiway.client.metastore import Metastore, Snapshot

__all__ = []


app = noun("snapshots", __doc__)

Table = Annotated[str, typer.Argument(metavar="TABLE", help="Such as lake.sales.people.")]
Number = Annotated[int, typer.Argument(metavar="SNAPSHOT", help="Its id.")]


@dataclass(frozen=True, slots=True)
class SnapshotRecord:
    """A snapshot, as it is written. `rows` and `data_files` are as its writer noted them."""

    id: int
    current: bool
    created_at: datetime | None
    ingested_at: datetime
    operation: str | None
    rows: int | None
    data_files: int | None
    parent_id: int | None
    schema_id: int
    summary: dict[str, str]

    @classmethod
    def of(cls, snapshot: Snapshot, current_id: int | None) -> SnapshotRecord:
        """What there is to tell of it."""
        noted = dict(snapshot.summary)
        return cls(
            snapshot.id,
            snapshot.id == current_id,
            snapshot.created_at,
            snapshot.ingested_at,
            noted.get("operation"),
            _number(noted.get("total-records")),
            _number(noted.get("total-data-files")),
            snapshot.parent_id,
            snapshot.message.schema_id,
            noted,
        )


@verb(app, "list")
def list_(call: Call, table: Table) -> None:
    """List the snapshots of a table, the newest first; one of them is the current one."""
    current = current_id(call.lake, table)
    found = (SnapshotRecord.of(each, current) for each in call.lake.snapshots(table))
    columns = ["id", "current", "created_at", "operation", "rows", "data_files"]
    call.rows(found, columns, nothing=f"{table} has no snapshots yet")


@verb(app, "get")
def get(call: Call, table: Table, number: Number) -> None:
    """Show one snapshot."""
    found = call.lake.snapshots.get(table, number)
    call.record(SnapshotRecord.of(found, current_id(call.lake, table)))


@verb(app, "set-current")
def set_current(call: Call, table: Table, number: Number) -> None:
    """Make a snapshot of a mirrored table the current one, such as an older one to roll back."""
    now = SnapshotRecord.of(call.lake.snapshots.set_current(table, number), number)
    call.done(f"{table} is now in the state of snapshot {now.id}", now)


@verb(app, "delete")
def delete(call: Call, table: Table, number: Number) -> None:
    """Delete a snapshot of a mirrored table, with its statistics. The current one can go only as the last."""
    gone = SnapshotRecord.of(call.lake.snapshots.get(table, number), None)
    call.lake.snapshots.delete(table, number)
    call.done(f"deleted snapshot {gone.id} of {table}", gone)


def current_id(lake: Metastore, table: str) -> int | None:
    """The id of a table's current snapshot; None while it has none."""
    try:
        return lake.snapshots.get(table).id
    except NotFound as error:
        if error.key != "snapshot.none":
            raise
        return None


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None
