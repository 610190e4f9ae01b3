"""The system table `query_history`: what callers ran, how long it took, and what it read.

Administrators see the queries of the account, all others their own. Texts, filters and plans contain values, and counts of files and bytes
tell about rows. So of a query that read a table which the viewer cannot read or which policies restrict, no counts and no plan are
shown, and of such a query of somebody else neither its text nor its error.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from typing import Any

from skiway.errors import SkiwayError
from skiway.lake.system.tables import Row, SystemScan, system_table
from skiway.metastore.queries.history import POLICIES, FinishedQuery, TableRead, finished, started_at
from skiway.metastore.resources import hierarchy
from skiway.model import v1


@system_table(
    "queries that have ended: who ran them, how long they took, and what they read",
    "query_id text, started_at timestamp, caller text, door text, kind text, text text, outcome text, error text, "
    "duration_ms double, queue_ms double, plan_ms double, run_ms double, send_ms double, rows bigint, bytes bigint, "
    "files_read bigint, files_pruned bigint, bytes_read bigint, tables text[], reads text, plan text",
)
def query_history(scan: SystemScan) -> Iterator[Row]:
    """The history of queries, the newest first. `reads` and `plan` are JSON: what was read of each table, and what DuckDB measured."""
    callers = scan.context.callers
    callers.require("catalog.read")
    callers.refuse_query_tokens("read the history of queries")
    callers.history.flush(now=True)
    own, sees_all = callers.authenticated.subject, scan.realm.administers
    is_visible = cache(lambda table_id: _is_visible(scan, table_id))
    wanted = scan.wanted("query_id")
    for query in finished(callers.own_realm()):
        if not (sees_all or query.caller == own) or wanted not in (None, query.query_id):
            continue
        is_open = all(each.reader != POLICIES and is_visible(each.table_id) for each in query.reads)
        yield _row(
            query,
            is_open=is_open,
            shows_text=query.caller == own or all(is_visible(each.table_id) for each in query.reads),
        )
        if wanted is not None and query.caller == own:
            return


def _is_visible(scan: SystemScan, table_id: str) -> bool:
    """Whether the viewer may read all of a table. Of a deleted table, that holds for administrators without policies."""
    callers = scan.context.callers
    if scan.realm.administers and not callers.is_under_policies:
        return True
    try:
        table = hierarchy.table(scan.realm, v1.ResourceId(id=table_id)).value
        callers.require("table.read", table)
    except SkiwayError:
        return False
    return callers.restriction(table) is None


def _row(query: FinishedQuery, *, is_open: bool, shows_text: bool) -> Row:
    send_ms = max(0.0, query.duration_ms - query.queue_ms - query.plan_ms - query.run_ms)
    counts: tuple[Any, ...] = (None,) * 3
    if is_open:
        considered, read = (
            sum(each.files_considered for each in query.reads),
            sum(each.files_read for each in query.reads),
        )
        counts = (read, considered - read, sum(each.bytes_read for each in query.reads))
    is_result = query.kind != "scan" or is_open
    return (
        query.query_id,
        started_at(query),
        query.caller,
        query.door,
        query.kind,
        query.text if shows_text else None,
        query.outcome,
        (query.error or None) if shows_text else None,
        query.duration_ms,
        query.queue_ms,
        query.plan_ms,
        query.run_ms,
        send_ms,
        query.rows if is_open or (is_result and shows_text) else None,
        query.bytes if is_open or (is_result and shows_text) else None,
        *counts,
        list(dict.fromkeys(each.name for each in query.reads)) if shows_text else None,
        json.dumps([_read(each) for each in query.reads]) if is_open else None,
        json.dumps(query.operators) if is_open and query.operators else None,
    )


def _read(each: TableRead) -> dict[str, Any]:
    return {
        "table": each.name,
        "filter": each.filter,
        "columns": each.columns,
        "snapshot_id": each.snapshot_id,
        "files": each.files_considered,
        "files_read": each.files_read,
        "bytes": each.bytes_considered,
        "bytes_read": each.bytes_read,
        "reader": each.reader,
    }
