"""`skiway events`, `skiway webhooks` and `skiway queries`: what happens in the account, and what reads its tables now."""

from __future__ import annotations

import math
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from skiway.cli.command import Call, command, group
from skiway.cli.lake.resources import commands_for
from skiway.cli.options import duration
from skiway.foundation.resources import WEBHOOK
from skiway.presentation.tables import picked

if TYPE_CHECKING:
    from skiway.client.metastore import Event, Metastore, Query

events_app = group("events", "Show the events of the account: every committed change, in order.")


def _event(event: Event) -> dict[str, Any]:
    """An event in the output."""
    facts = picked(
        event.message, "kind", "action", "object_id", "name", "previous_name", "detail", "caller", "change_id", "door"
    )
    return {**picked(event, "sequence", "occurred_at"), **facts, "snapshot_id": event.snapshot_id}


@command(events_app, "list")
def list_events(
    call: Call,
    after: Annotated[int, typer.Option("--after", metavar="NUMBER", min=0, help="Events after this one.")] = 0,
) -> None:
    """List events, oldest first."""
    columns = ["sequence", "occurred_at", "kind", "action", "name", "snapshot_id", "caller", "door"]
    call.print_rows(map(_event, call.lake.events(after=after)), columns, empty="there are no events")


@command(events_app, "watch")
def watch_events(
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
            what = f"{event.kind} {event.name or event.message.object_id} {event.action}"
            call.print_result(f"{event.sequence}  {event.occurred_at:%Y-%m-%d %H:%M:%S}  {what}", _event(event))


webhooks_app = commands_for(WEBHOOK)

WebhookName = Annotated[str, typer.Argument(metavar="WEBHOOK", help="The name of a webhook.")]


@command(webhooks_app, "dead-letters")
def dead_letters(call: Call, name: WebhookName) -> None:
    """List the events that were given up, because all attempts failed."""
    columns = ["sequence", "kind", "action", "name", "given_up_at", "error", "is_due"]
    call.print_rows(call.lake.webhooks.dead_letters(name), columns, empty="there are no dead letters")


@command(webhooks_app, "redeliver")
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


queries_app = group(
    "queries", "Manage queries, which are leases on snapshots: what a query reads is not deleted before it ends."
)

Id = Annotated[str, typer.Argument(metavar="QUERY", help="Query id.")]
Ttl = Annotated[str, typer.Option("--ttl", metavar="DURATION", help="When the lease expires, such as 30s or 5m.")]


def _query(query: Query, lake: Metastore) -> dict[str, Any]:
    """A query in the output, with the snapshots that it reads. A deleted table has no name."""
    from skiway.client.metastore import Id

    pins = []
    for table_id, snapshot_id in query.snapshots.items():
        table = lake.tables.find(Id(table_id))
        pins.append({"table": str(table) if table else None, "table_id": table_id, "snapshot_id": snapshot_id})
    facts = picked(query, "id", "kind", "state", "caller", "created_at", "last_used_at", "expires_at")
    return {**facts, "tables": tuple(pins)}


def _show_query(call: Call, query: Query) -> None:
    from skiway.cli import rendering

    record = _query(query, call.lake)
    call.print_record(record)
    if call.is_for_people:
        typer.echo()
        rendering.write_rows(record["tables"], ["table", "snapshot_id"], empty="the query reads no tables")


def seconds(ttl: str) -> int:
    """The seconds of a lease, which has at least one."""
    return math.ceil(duration(ttl, "--ttl").total_seconds())


@command(queries_app, "list")
def list_queries(call: Call) -> None:
    """List the active queries and transactions: your own, or as an administrator those of the account."""
    columns = ["id", "kind", "caller", "created_at", "last_used_at", "expires_at"]
    records = (_query(query, call.lake) for query in call.lake.queries())
    call.print_rows(records, columns, empty="no queries are active")


@command(queries_app, "begin")
def begin_query(
    call: Call,
    tables: Annotated[
        list[str], typer.Argument(metavar="TABLE", help="Table to read, such as lake.sales.people; repeatable.")
    ],
    ttl: Ttl = "60s",
    as_of: Annotated[
        datetime | None, typer.Option("--as-of", metavar="TIME", help="Read the tables as of this time, in UTC.")
    ] = None,
    query_id: Annotated[str | None, typer.Option("--id", metavar="ID", help="Query id; random by default.")] = None,
) -> None:
    """Begin a query on the current snapshots of tables, or on those as of a time."""
    from datetime import UTC

    from skiway.client.metastore.calls import segments

    catalog = segments(tables[0], resource="table")[:1]
    moment = None if as_of is None else as_of.replace(tzinfo=as_of.tzinfo or UTC)
    query = call.lake.queries.begin(*tables, catalog=catalog, ttl_s=seconds(ttl), as_of=moment, query_id=query_id)
    _show_query(call, query)


@command(queries_app, "get")
def get_query(call: Call, query: Id) -> None:
    """Show a query that is active or ended recently."""
    _show_query(call, call.lake.queries.get(query))


@command(queries_app, "renew")
def renew_query(call: Call, name: Id, ttl: Ttl = "60s") -> None:
    """Extend the lease of a query."""
    query = call.lake.queries.get(name)
    query.renew(seconds(ttl))
    message = f"query {name} expires at {query.expires_at:%Y-%m-%d %H:%M:%S} UTC"
    call.print_result(message, _query(query, call.lake))


@command(queries_app, "end")
def end_query(
    call: Call,
    query: Id,
    abort: Annotated[bool, typer.Option("--abort", help="Record that the query was aborted.")] = False,
) -> None:
    """End a query or a transaction, and release its snapshots."""
    call.lake.queries.get(query).end(commit=not abort)
    call.print_result(f"ended query {query}", _query(call.lake.queries.get(query), call.lake))


@command(queries_app, "history")
def query_history(
    call: Call,
    text: Annotated[
        str, typer.Option("--text", metavar="WORDS", help="Only those with these words in SQL, tables or error.")
    ] = "",
    caller: Annotated[str, typer.Option("--caller", metavar="SUBJECT", help="Only those of this caller.")] = "",
    since: Annotated[
        str | None, typer.Option("--since", metavar="DURATION", help="Only those of the last 2h or 7d.")
    ] = None,
    slower_than: Annotated[
        str | None,
        typer.Option("--slower-than", metavar="DURATION", help="Only those that took at least this long, such as 1s."),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", metavar="NUMBER", min=1, help="At most this many.")] = 50,
) -> None:
    """List queries that have ended, the newest first: your own, or as an administrator those of the account."""
    from datetime import UTC

    from skiway.presentation.query_history import recent_queries

    found: list[dict[str, Any]] = []
    if (catalog := _a_catalog(call)) is not None:
        with call.airport(catalog) as lake:
            found = recent_queries(
                lake,
                text=text,
                caller=caller,
                since=None if since is None else datetime.now(UTC) - duration(since, "--since"),
                slower_than_ms=0
                if slower_than is None
                else duration(slower_than, "--slower-than").total_seconds() * 1000,
                limit=limit,
            )
    columns = [
        "started_at",
        "caller",
        "door",
        "duration_ms",
        "rows",
        "files_read",
        "files_pruned",
        "outcome",
        "text",
        "query_id",
    ]
    call.print_rows(found, columns, empty="no queries have ended")


@command(queries_app, "why")
def why_slow(call: Call, query: Id) -> None:
    """Say why a query of the history took as long as it did."""
    from skiway.errors import NotFound
    from skiway.presentation.query_history import query_called, reasons

    catalog, found = _a_catalog(call), None
    if catalog is not None:
        with call.airport(catalog) as lake:
            found = query_called(lake, query)
    if found is None:
        raise NotFound(f"there is no query {query} in the history: `skiway queries history` lists them", key="query")
    record = {**found, "reasons": reasons(found)}
    call.print_result("\n".join(record["reasons"]), record)


def _a_catalog(call: Call) -> str | None:
    """A catalog: the history is the same in all of them."""
    return next((str(each) for each in call.lake.catalogs(page_size=1)), None)
