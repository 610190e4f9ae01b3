"""`skiway snapshots`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from skiway.cli.command import Call, command, group
from skiway.cli.jobs import connector_names
from skiway.cli.tables import AtSnapshot, call_function
from skiway.errors import NotFound
from skiway.presentation.table_records import TableRecord

if TYPE_CHECKING:
    from skiway.client.metastore import Metastore, Snapshot

__all__ = ["app"]


app = group("snapshots", "Manage snapshots, the states of a table that can be read.")

Table = Annotated[str, typer.Argument(metavar="TABLE", help="Full name, such as lake.sales.people.")]
RefName = Annotated[str, typer.Argument(metavar="NAME", help="Name of the snapshot.")]
Replace = Annotated[bool, typer.Option("--replace", help="Move the name if it exists.")]
Number = Annotated[int, typer.Argument(metavar="SNAPSHOT", help="Snapshot id.")]


@dataclass(frozen=True, slots=True)
class SnapshotRecord:
    """A snapshot in the output. `rows` and `data_files` are from the summary of its writer."""

    id: int
    current: bool
    created_at: datetime | None
    ingested_at: datetime | None
    operation: str | None
    rows: int | None
    data_files: int | None
    parent_id: int | None
    schema_id: int
    summary: dict[str, str]
    damage: str | None = None

    @classmethod
    def of(cls, snapshot: Snapshot, current_id: int | None) -> SnapshotRecord:
        """Convert a resource of the client."""
        summary = dict(snapshot.summary)
        return cls(
            snapshot.id,
            snapshot.id == current_id,
            snapshot.created_at,
            None if snapshot.damage else snapshot.ingested_at,
            summary.get("operation"),
            _number(summary.get("total-records")),
            _number(summary.get("total-data-files")),
            snapshot.parent_id,
            snapshot.message.schema_id,
            summary,
            snapshot.damage or None,
        )


@command(app, "list")
def list_(call: Call, table: Table) -> None:
    """List the snapshots of a table, newest first."""
    current = _current_id(call.lake, table)
    found = (SnapshotRecord.of(each, current) for each in call.lake.snapshots(table))
    columns = ["id", "current", "created_at", "operation", "rows", "data_files"]
    call.print_rows(found, columns, empty=f"{table} has no snapshots yet")


@command(app, "get")
def get(call: Call, table: Table, number: Number) -> None:
    """Show a snapshot."""
    found = call.lake.snapshots.get(table, number)
    call.print_record(SnapshotRecord.of(found, _current_id(call.lake, table)))


@command(app, "set-current")
def set_current(call: Call, table: Table, number: Number) -> None:
    """Make a snapshot the current one, to roll back.

    That of a mirrored table lasts until the next sync.
    """
    if TableRecord.of(call.lake.tables.get(table), connector_names(call.lake)).origin == "managed":
        call_function(call, table, "rollback_to", number)
        current = SnapshotRecord.of(call.lake.snapshots.get(table, number), number)
    else:
        current = SnapshotRecord.of(call.lake.snapshots.set_current(table, number), number)
    call.print_result(f"the current snapshot of {table} is now {current.id}", current)


@command(app, "tag")
def tag(call: Call, table: Table, name: RefName, snapshot: AtSnapshot = None, replace: Replace = False) -> None:
    """Give a snapshot of a managed table a name, which AT (VERSION => 'name') reads."""
    _set_ref(call, table, "tag", name, snapshot, replace)


@command(app, "branch")
def branch(call: Call, table: Table, name: RefName, snapshot: AtSnapshot = None, replace: Replace = False) -> None:
    """Start a branch of a managed table at a snapshot, for programs that commit to branches."""
    _set_ref(call, table, "branch", name, snapshot, replace)


def _set_ref(call: Call, table: str, kind: str, name: str, snapshot: int | None, replace: bool) -> None:
    done = call_function(call, table, kind, name, snapshot=snapshot, replace=replace)
    call.print_result(f"{kind} {name} of {table} is snapshot {done['snapshot_id']}", done)


@command(app, "delete")
def delete(call: Call, table: Table, number: Number) -> None:
    """Delete a snapshot of a mirrored table and its statistics.

    The current snapshot can be deleted only if it is the last one.
    """
    deleted = SnapshotRecord.of(call.lake.snapshots.get(table, number), None)
    call.lake.snapshots.delete(table, number)
    call.print_result(f"deleted snapshot {deleted.id} of {table}", deleted)


def _current_id(lake: Metastore, table: str) -> int | None:
    """Return the id of a table's current snapshot, or None if it has no snapshots."""
    try:
        return lake.snapshots.get(table).id
    except NotFound as error:
        if error.key != "snapshot.none":
            raise
        return None


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None
