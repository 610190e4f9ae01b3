"""Queries: leases that keep what is read as it was when the query began. Planners begin them; here one can look and tidy up."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from skiway.cli.command import Call, noun, verb

if TYPE_CHECKING:
    from skiway.client.metastore import Metastore, Query

__all__ = []


app = noun("queries", __doc__)

Id = Annotated[str, typer.Argument(metavar="QUERY", help="Its id.")]
Ttl = Annotated[int, typer.Option("--ttl", metavar="SECONDS", min=1, help="How long it lives, unless it is renewed.")]


@dataclass(frozen=True, slots=True)
class Pin:
    """The snapshot of a table that a query reads; a table that is gone has no name any more."""

    table: str | None
    table_id: str
    snapshot_id: int


@dataclass(frozen=True, slots=True)
class QueryRecord:
    """A query, as it is written."""

    id: str
    state: str
    created_at: datetime
    expires_at: datetime
    tables: tuple[Pin, ...]

    @classmethod
    def of(cls, query: Query, lake: Metastore) -> QueryRecord:
        """What there is to tell of it."""
        pins = tuple(Pin(_name(lake, table_id), table_id, number) for table_id, number in query.snapshots.items())
        return cls(query.id, query.state, query.created_at, query.expires_at, pins)


def _name(lake: Metastore, table_id: str) -> str | None:
    from skiway.client.metastore import Id

    found = lake.tables.find(Id(table_id))
    return str(found) if found else None


def _show(call: Call, query: Query) -> None:
    from skiway.cli import rendering

    record = QueryRecord.of(query, call.lake)
    call.record(record)
    if not call.as_json:
        typer.echo()
        rendering.write_rows(record.tables, ["table", "snapshot_id"], nothing="it reads no tables")


@verb(app, "begin")
def begin(
    call: Call,
    tables: Annotated[list[str], typer.Argument(metavar="TABLE", help="What it reads, such as lake.sales.people.")],
    ttl: Ttl = 60,
    as_of: Annotated[
        datetime | None, typer.Option("--as-of", metavar="TIME", help="As the tables were then, in UTC.")
    ] = None,
    query_id: Annotated[str | None, typer.Option("--id", metavar="ID", help="An id of your own.")] = None,
) -> None:
    """Begin a query: hold on to the present snapshots of some tables, or to those of a time."""
    from datetime import UTC

    from skiway.client.metastore.names import segments

    catalog = segments(tables[0], resource="table")[:1]
    moment = None if as_of is None else as_of.replace(tzinfo=as_of.tzinfo or UTC)
    query = call.lake.queries.begin(*tables, catalog=catalog, ttl_s=ttl, as_of=moment, query_id=query_id)
    _show(call, query)


@verb(app, "get")
def get(call: Call, query: Id) -> None:
    """Show a query that lives, or has just ended."""
    _show(call, call.lake.queries.get(query))


@verb(app, "renew")
def renew(call: Call, query: Id, ttl: Ttl = 60) -> None:
    """Let a query live longer."""
    found = call.lake.queries.get(query)
    found.renew(ttl)
    record = QueryRecord.of(found, call.lake)
    call.done(f"query {query} lives until {record.expires_at:%Y-%m-%d %H:%M:%S} UTC", record)


@verb(app, "end")
def end(
    call: Call,
    query: Id,
    abort: Annotated[bool, typer.Option("--abort", help="Note that it came to nothing.")] = False,
) -> None:
    """End a query: let go of what it reads."""
    call.lake.queries.get(query).end(commit=not abort)
    call.done(f"ended query {query}", QueryRecord.of(call.lake.queries.get(query), call.lake))
