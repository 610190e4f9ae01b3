"""The system table `queries`, and the function `end_query`.

The table lists the statements that this server is running, and the leases of the account: transactions with more than one
statement, and queries that clients have begun over gRPC. Leases can be ended.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Final

import pyarrow as pa

from skiway.airport import Parameter
from skiway.errors import InvalidArgument
from skiway.flightsql import READING
from skiway.lake.context import Context
from skiway.lake.system.effects import ActingFunction
from skiway.lake.system.scanning import MOMENT, SystemScan, arrow_table, enum_name, moment_of, place_of
from skiway.metastore import queries as metastore_queries
from skiway.model import v1

__all__ = ["QUERIES", "EndQueryFunction", "queries"]

QUERIES: Final = pa.schema(
    [
        pa.field("query_id", pa.string()),
        pa.field("kind", pa.string()),
        pa.field("state", pa.string()),
        pa.field("caller", pa.string()),
        pa.field("operation", pa.string()),
        pa.field("statements", pa.int32()),
        pa.field("tables", pa.list_(pa.struct({"table": pa.string(), "snapshot_id": pa.int64()}))),
        pa.field("started_at", MOMENT),
        pa.field("last_used_at", MOMENT),
        pa.field("expires_at", MOMENT),
    ]
)

_STATEMENTS: Final = (
    "scan",
    "insert",
    "update",
    "delete",
    "table_function",
    "table_function_in_out",
    "scalar_function",
    READING,
)
"""The operations that are listed while they run; the others are planning and listings, which take a moment."""


def queries(scan: SystemScan) -> pa.Table:
    """Statements and leases, from old to new: to administrators those of the account, to all others their own."""
    rows = sorted([*_running(scan), *_leases(scan)], key=lambda row: row[QUERIES.get_field_index("started_at")])
    return arrow_table(QUERIES, iter(rows))


def _running(scan: SystemScan) -> Iterator[tuple[Any, ...]]:
    callers = scan.context.callers
    for served, call, began in callers.running():
        caller = call.principal.subject if call.principal else ""
        if served.operation not in _STATEMENTS or not (scan.realm.administers or caller == callers.principal.subject):
            continue
        name = ".".join([served.request.catalog, served.schema, served.name])
        used = [{"table": name, "snapshot_id": None}] if served.name else []
        identity = (served.correlation_id, "statement", "running", caller, served.operation)
        yield (*identity, 1, used, began, began, None)


def _leases(scan: SystemScan) -> Iterator[tuple[Any, ...]]:
    names: dict[str, str] = {}
    yield from (_row(scan, each, names) for each in metastore_queries.scan(scan.realm))


def _row(scan: SystemScan, query: v1.QueryDescriptor, names: dict[str, str]) -> tuple[Any, ...]:
    for pin in query.snapshots.pins:
        if pin.table_id.id not in names:
            names[pin.table_id.id] = ".".join(place_of(scan, pin.table_id.id) or (pin.table_id.id,))
    used = [{"table": names[pin.table_id.id], "snapshot_id": pin.snapshot_id} for pin in query.snapshots.pins]
    started: datetime | None = moment_of(query.created_at)
    return (
        query.query_id,
        enum_name(v1.QueryKind, query.kind, "QK_"),
        enum_name(v1.LeaseState, query.state, "LS_"),
        query.caller or None,
        None,
        query.statements or None,
        used,
        started,
        moment_of(query.last_used_at) or started,
        moment_of(query.expires_at),
    )


class EndQueryFunction(ActingFunction):
    """`end_query(id)`: ends a transaction or query, and releases its snapshots."""

    name = "end_query"
    comment = "Ends a transaction or query that skiway.queries lists: end_query('…')."
    parameters = (Parameter("query_id", pa.string()),)
    result = pa.schema({"query_id": pa.string(), "state": pa.string()})

    def __init__(self, context: Context) -> None:
        self._context = context

    def act(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """End the query. Callers end their own, administrators those of the account."""
        query_id = (given["query_id"] or "").strip()
        if not query_id:
            raise InvalidArgument("end_query needs an id: skiway.queries lists them", key="query.id")
        self._context.callers.require("catalog.read")
        self._context.callers.refuse_query_tokens("end another one")
        realm = self._context.callers.realm()
        metastore_queries.end(realm, v1.EndQueryRequest(query_id=query_id))
        state = metastore_queries.get(realm, v1.GetQueryRequest(query_id=query_id)).query.state
        return {"query_id": query_id, "state": enum_name(v1.LeaseState, state, "LS_")}
