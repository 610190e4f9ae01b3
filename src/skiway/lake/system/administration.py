"""The system tables about the account and this server, and the function `end_query`.

The tables are `audit`, `events`, `queries`, `usage`, `lineage`, `reports`, `policies`, `tokens` and `settings`.

`queries` lists the statements that this server is running, and the leases of the account: transactions with more than one
statement, and queries that clients have begun over gRPC. Leases can be ended.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, Final

from skiway.config import shown as shown_setting
from skiway.config.settings import known
from skiway.errors import InvalidArgument
from skiway.flightsql import READING
from skiway.lake.context import Context
from skiway.lake.system.effects import ActingFunction, parameters_of
from skiway.lake.system.tables import Row, SystemScan, enum_name, moment_of, place_of, schema_of, system_table, unknown
from skiway.metastore import events as metastore_events
from skiway.metastore import policies as metastore_policies
from skiway.metastore import queries as metastore_queries
from skiway.metastore.pipelines.lineage import columns_by_source
from skiway.metastore.platform import token_uses
from skiway.metastore.usage import reports_of, usage_of
from skiway.model import v1
from skiway.security import TokenFile
from skiway.security.authentication import OBSERVES_PLATFORM
from skiway.security.tokens import token_id
from skiway.telemetry.audit import CATEGORIES

TAIL_BYTES: Final = 1 << 20
"""How much of each file is read."""
MAX_RECORDS: Final = 5000
COLUMNS: Final = frozenset(("time", "operation", "subject", "account_id", "outcome", "duration_ms", "correlation_id"))


@system_table(
    "the newest calls of the account on this server, for its administrators",
    "time timestamp, category text, operation text, caller text, outcome text, duration_ms double, "
    "correlation_id text, details text",
)
def audit(scan: SystemScan) -> Iterator[Row]:
    """The records of the account for its administrators, newest first, and nothing for all others."""
    settings = scan.context.settings.audit
    if not scan.realm.administers or not settings.enabled or settings.directory is None:
        return
    found = [
        (record["time"], category, record)
        for category in CATEGORIES
        for record in _records(settings.directory / f"{category}.log")
        if record.get("account_id") == scan.realm.account_id
    ]
    found.sort(key=lambda each: each[0], reverse=True)
    yield from (_audit_row(category, record) for _, category, record in found[:MAX_RECORDS])


def _records(file: Path) -> Iterator[dict[str, Any]]:
    """The records at the end of a file. Lines that are cut off or damaged are left out."""
    try:
        with file.open("rb") as lines:
            size = lines.seek(0, os.SEEK_END)
            lines.seek(max(0, size - TAIL_BYTES))
            if size > TAIL_BYTES:
                lines.readline()
            text = lines.read()
    except FileNotFoundError:
        return
    for line in text.splitlines():
        with suppress(ValueError):
            record = json.loads(line)
            if isinstance(record, dict) and isinstance(record.get("time"), str):
                yield record


def _audit_row(category: str, record: dict[str, Any]) -> Row:
    details = {name: value for name, value in record.items() if name not in COLUMNS and value not in ({}, "")}
    return (
        datetime.fromisoformat(record["time"]),
        category,
        record.get("operation"),
        record.get("subject"),
        record.get("outcome"),
        record.get("duration_ms"),
        record.get("correlation_id"),
        json.dumps(details, ensure_ascii=False),
    )


@system_table(
    "all changes of the account, in order",
    "sequence bigint, occurred_at timestamp, kind text, action text, object_id text, name text, "
    "previous_name text, snapshot_id bigint, detail text, caller text, change_id text, table_id text, "
    "job_id text, door text",
)
def events(scan: SystemScan) -> Iterator[Row]:
    """One row per event, oldest first."""
    cursor = -1
    response = v1.ListEventsResponse()
    while response.cursor != cursor:
        cursor = response.cursor
        response = metastore_events.list_(scan.realm, v1.ListEventsRequest(after=cursor, limit=1000))
        yield from map(_event_row, response.events)


def _event_row(event: v1.Event) -> Row:
    return (
        event.sequence,
        moment_of(event.occurred_at),
        event.kind,
        event.action,
        event.object_id,
        event.name or None,
        event.previous_name or None,
        event.snapshot_id if event.HasField("snapshot_id") else None,
        event.detail or None,
        event.caller or None,
        event.change_id,
        event.table_id or None,
        event.job_id or None,
        event.door or None,
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


@system_table(
    "running statements of this server, transactions with several statements, and leases on snapshots: "
    "the caller's own, or for administrators those of the account",
    "query_id text, kind text, state text, caller text, operation text, statements integer, "
    "tables leased_table[], started_at timestamp, last_used_at timestamp, expires_at timestamp",
)
def queries(scan: SystemScan) -> Iterator[Row]:
    """Statements and leases, from old to new: to administrators those of the account, to all others their own."""
    names: dict[str, str] = {}
    leases = [_query_row(scan, query, names) for query in metastore_queries.scan(scan.realm)]
    started_at = queries.schema.get_field_index("started_at")
    yield from sorted([*_running(scan), *leases], key=lambda row: row[started_at])


def _running(scan: SystemScan) -> Iterator[Row]:
    callers = scan.context.callers
    for served, call, began in callers.running():
        caller = call.principal.subject if call.principal else ""
        if served.operation not in _STATEMENTS or not (scan.realm.administers or caller == callers.principal.subject):
            continue
        name = ".".join([served.request.catalog, served.schema, served.name])
        used = [{"table": name, "snapshot_id": None}] if served.name else []
        identity = (served.correlation_id, "statement", "running", caller, served.operation)
        yield (*identity, 1, used, began, began, None)


def _query_row(scan: SystemScan, query: v1.QueryDescriptor, names: dict[str, str]) -> Row:
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
    parameters = parameters_of("query_id text")
    result = schema_of("query_id text, state text")

    def __init__(self, context: Context) -> None:
        self._context = context

    def act(self, given: Mapping[str, Any]) -> Row:
        """End the query. Callers end their own, administrators those of the account."""
        query_id = (given["query_id"] or "").strip()
        if not query_id:
            raise InvalidArgument("end_query needs an id: skiway.queries lists them", key="query.id")
        self._context.callers.require("catalog.read")
        self._context.callers.refuse_query_tokens("end another one")
        realm = self._context.callers.realm()
        metastore_queries.end(realm, v1.EndQueryRequest(query_id=query_id))
        state = metastore_queries.get(realm, v1.GetQueryRequest(query_id=query_id)).query.state
        return query_id, enum_name(v1.LeaseState, state, "LS_")


@system_table(
    "how often a table was read and written on each of the last 90 days; callers only for administrators",
    "schema_name text, table_name text, day date, reads bigint, writes bigint, bytes_read bigint, "
    "columns text->bigint, callers text->bigint",
)
def usage(scan: SystemScan) -> Iterator[Row]:
    """How often each table was used on each day. Only administrators see by whom.

    The bytes tell about the files, so they are not shown to callers under policies on the table.
    """
    scan.context.usage.flush()
    shows_callers = scan.context.callers.may("grant.manage")

    for shown in scan.visible:
        is_restricted = scan.context.callers.restriction(shown.table) is not None
        for day, used in usage_of(scan.realm, shown.table.resource_id.id):
            callers = used.callers.most_common() if shows_callers else None
            size = None if is_restricted else used.bytes_read
            yield (*shown.names, day, used.reads, used.writes, size, used.columns.most_common(), callers)


@system_table(
    "from which tables a table was written in the last 90 days, by a statement, a transaction or a pipeline",
    "schema_name text, table_name text, source_catalog text, source_schema text, source_table text, "
    "writes bigint, first_day date, last_day date, columns text->text[]",
)
def lineage(scan: SystemScan) -> Iterator[Row]:
    """From which tables each table was written: those that were read in the same transaction, and still exist.

    Of tables that a pipeline derives, `columns` has the columns of the source by the columns that are computed from them.
    """
    scan.context.usage.flush()

    for shown in scan.visible:
        counts: Counter[str] = Counter()
        days: dict[str, list[date]] = {}
        for day, used in usage_of(scan.realm, shown.table.resource_id.id):
            counts.update(used.sources)
            for source in used.sources:
                days.setdefault(source, []).append(day)
        columns = columns_by_source(scan.realm, shown.table)
        for source in dict.fromkeys([*(source for source, _ in counts.most_common()), *columns]):
            place = place_of(scan, source)
            if place is not None:
                first, last = (min(days[source]), max(days[source])) if source in days else (None, None)
                yield (*shown.names, *place, counts[source], first, last, columns.get(source))


@system_table(
    "metrics reports of Iceberg clients on their scans and commits",
    "schema_name text, table_name text, reported_at timestamp, kind text, snapshot_id bigint, operation text, "
    "columns text[], metrics text->bigint, filter text, caller text",
)
def reports(scan: SystemScan) -> Iterator[Row]:
    """The reports on tables that the caller may see.

    Filters contain values, so only who manages the table sees those of others. Metrics tell about files, so there are no reports for
    callers under policies on the table.
    """
    access, own = scan.realm.access, scan.realm.caller

    for shown in scan.visible:
        if scan.context.callers.restriction(shown.table) is not None:
            continue
        shows_all = access is None or access.may("grant.manage", shown.table)
        for at, each in reports_of(scan.realm, shown.table.resource_id.id):
            is_shown = shows_all or each.caller == own
            private = (each.filter or None, each.caller) if is_shown else (None, None)
            facts = (at, each.kind, each.snapshot_id, each.operation or None, list(each.columns))
            yield (*shown.names, *facts, list(each.metrics.items()), *private)


@system_table(
    "which rows and values callers do not see, for those who manage policies",
    "policy_name text, policy_id text, rule text, expression text, columns text[], tags text[], "
    "subjects text[], exceptions text[], object_ids text[], comment text, created_at timestamp, "
    "updated_at timestamp, damage text",
)
def policies(scan: SystemScan) -> Iterator[Row]:
    """The account's policies by name, for callers who may manage them."""
    if not scan.context.callers.may("policy.manage"):
        return
    yield from map(_policy_row, metastore_policies.scan(scan.realm))


def _policy_row(policy: v1.Policy) -> Row:
    names = (policy.display_name, policy.resource_id.id)
    if policy.damage:
        return (*names, *unknown(policies.schema, 3), policy.damage)
    if policy.HasField("row_filter"):
        rule: tuple[Any, ...] = ("filter", policy.row_filter.predicate, None)
    else:
        mask = policy.mask
        rule = (f"mask {enum_name(v1.MaskKind, mask.kind, 'MK_')}", mask.expression or None, list(mask.columns))
    return (
        *names,
        *rule,
        list(policy.tags),
        list(policy.subjects),
        list(policy.exceptions),
        [each.id for each in policy.objects],
        policy.description or None,
        moment_of(policy.created_at),
        moment_of(policy.updated_at),
        None,
    )


@system_table(
    "the access tokens of the account without their texts, for its administrators",
    "name text, id text, roles text[], state text, expires_at timestamp, last_used_at timestamp",
)
def tokens(scan: SystemScan) -> Iterator[Row]:
    """The tokens of the account for its administrators, and nothing for all others."""
    file = scan.context.settings.auth.tokens.file
    if not scan.realm.administers or file is None or not file.exists():
        return
    uses = token_uses(scan.realm.stores)

    for entry in sorted(TokenFile(file).entries(), key=lambda each: each.name):
        if entry.account == scan.realm.account_id:
            expired = entry.expires_at is not None and entry.expires_at <= datetime.now(UTC)
            state = "expired" if expired else "valid"
            yield entry.name, token_id(entry), [*entry.roles], state, entry.expires_at, uses.get(entry.sha256)


_OF_CALLERS: Final = ("quotas", "query", "sql", "idempotency", "events")
"""The sections that limit what callers do. The others describe the machines, addresses and folders of the operator."""


@system_table(
    "the settings of this server without secrets: all for operators, limits for administrators of accounts",
    "key text, value text, default text, description text",
)
def settings(scan: SystemScan) -> Iterator[Row]:
    """All settings for operators, the limits of callers for administrators of accounts, and nothing for all others."""
    callers = scan.context.callers
    sees_all = OBSERVES_PLATFORM in callers.principal.permissions
    if not (sees_all or scan.realm.administers):
        return

    for key, value in shown_setting(scan.context.settings).items():
        setting = known()[key]
        if not setting.kind.secret and (sees_all or key.partition(".")[0] in _OF_CALLERS):
            yield key, value or None, setting.default or None, setting.description
