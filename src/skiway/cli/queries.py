"""`skiway queries`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from skiway.cli.command import Call, command, group

if TYPE_CHECKING:
    from skiway.client.metastore import Metastore, Query

__all__ = ["app"]


app = group(
    "queries", "Manage queries, which are leases on snapshots: what a query reads is not deleted before it ends."
)

Id = Annotated[str, typer.Argument(metavar="QUERY", help="Query id.")]
Ttl = Annotated[int, typer.Option("--ttl", metavar="SECONDS", min=1, help="Seconds until the lease expires.")]


@dataclass(frozen=True, slots=True)
class Pin:
    """The snapshot of a table that a query reads. A deleted table has no name."""

    table: str | None
    table_id: str
    snapshot_id: int


@dataclass(frozen=True, slots=True)
class QueryRecord:
    """A query in the output."""

    id: str
    kind: str
    state: str
    caller: str
    created_at: datetime
    last_used_at: datetime
    expires_at: datetime
    tables: tuple[Pin, ...]

    @classmethod
    def of(cls, query: Query, lake: Metastore) -> QueryRecord:
        """Convert a resource of the client."""
        pins = tuple(Pin(_name(lake, table_id), table_id, number) for table_id, number in query.snapshots.items())
        times = (query.created_at, query.last_used_at, query.expires_at)
        return cls(query.id, query.kind, query.state, query.caller, *times, pins)


def _name(lake: Metastore, table_id: str) -> str | None:
    from skiway.client.metastore import Id

    found = lake.tables.find(Id(table_id))
    return str(found) if found else None


def _show(call: Call, query: Query) -> None:
    from skiway.cli import rendering

    record = QueryRecord.of(query, call.lake)
    call.print_record(record)
    if call.is_for_people:
        typer.echo()
        rendering.write_rows(record.tables, ["table", "snapshot_id"], empty="the query reads no tables")


@command(app, "list")
def list_(call: Call) -> None:
    """List the active queries and transactions: your own, or as an administrator those of the account."""
    columns = ["id", "kind", "caller", "created_at", "last_used_at", "expires_at"]
    found = (QueryRecord.of(each, call.lake) for each in call.lake.queries())
    call.print_rows(found, columns, empty="no queries are active")


@command(app, "begin")
def begin(
    call: Call,
    tables: Annotated[
        list[str], typer.Argument(metavar="TABLE", help="Table to read, such as lake.sales.people; repeatable.")
    ],
    ttl: Ttl = 60,
    as_of: Annotated[
        datetime | None, typer.Option("--as-of", metavar="TIME", help="Read the tables as of this time, in UTC.")
    ] = None,
    query_id: Annotated[str | None, typer.Option("--id", metavar="ID", help="Query id; random by default.")] = None,
) -> None:
    """Begin a query on the current snapshots of tables, or on those as of a time."""
    from datetime import UTC

    from skiway.client.metastore.names import segments

    catalog = segments(tables[0], resource="table")[:1]
    moment = None if as_of is None else as_of.replace(tzinfo=as_of.tzinfo or UTC)
    query = call.lake.queries.begin(*tables, catalog=catalog, ttl_s=ttl, as_of=moment, query_id=query_id)
    _show(call, query)


@command(app, "get")
def get(call: Call, query: Id) -> None:
    """Show a query that is active or ended recently."""
    _show(call, call.lake.queries.get(query))


@command(app, "renew")
def renew(call: Call, query: Id, ttl: Ttl = 60) -> None:
    """Extend the lease of a query."""
    found = call.lake.queries.get(query)
    found.renew(ttl)
    record = QueryRecord.of(found, call.lake)
    call.print_result(f"query {query} expires at {record.expires_at:%Y-%m-%d %H:%M:%S} UTC", record)


@command(app, "end")
def end(
    call: Call,
    query: Id,
    abort: Annotated[bool, typer.Option("--abort", help="Record that the query was aborted.")] = False,
) -> None:
    """End a query or a transaction, and release its snapshots."""
    call.lake.queries.get(query).end(commit=not abort)
    call.print_result(f"ended query {query}", QueryRecord.of(call.lake.queries.get(query), call.lake))
