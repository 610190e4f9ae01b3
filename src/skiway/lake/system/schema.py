"""The schema `skiway` of every catalog, and its tables `views`, `jobs` and `plans`; other modules have its other tables.

The rows of a system table are computed by each scan, and only for tables that the caller may see.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import cached_property
from typing import Any, Final

import pyarrow as pa

from skiway.airport import ScanOptions, Schema, Table, TableFunction, filters
from skiway.foundation.resources import schema_name
from skiway.lake.context import Context
from skiway.lake.schema import SYSTEM_SCHEMA
from skiway.lake.system import tables as contents
from skiway.lake.system import tables as statistics_tables
from skiway.lake.system.administration import (
    AUDIT,
    EVENTS,
    LINEAGE,
    POLICIES,
    QUERIES,
    REPORTS,
    SETTINGS,
    TOKENS,
    USAGE,
    EndQueryFunction,
    audit,
    events,
    lineage,
    policies,
    queries,
    reports,
    settings,
    tokens,
    usage,
)
from skiway.lake.system.functions import ExplainFunction, HistogramFunction, QueryFunction
from skiway.lake.system.scanning import (
    DAMAGE,
    MOMENT,
    NAMED,
    SystemScan,
    VisibleTable,
    arrow_table,
    enum_name,
    moment_of,
    readable,
)
from skiway.lake.system.table_functions import (
    BranchFunction,
    MergeFunction,
    PartitionByFunction,
    ProfileFunction,
    RefreshFunction,
    RollbackFunction,
    SortByFunction,
    TagFunction,
    UndropFunction,
)
from skiway.lake.system.tables import QUALITY, quality
from skiway.lake.system.view_functions import CreateViewFunction, DropViewFunction
from skiway.metastore import catalogs, connectors, namespaces, tables
from skiway.metastore import jobs as metastore_jobs
from skiway.metastore import views as metastore_views
from skiway.metastore.resources.hierarchy import full_path
from skiway.model import v1
from skiway.sql import Find

_EFFECTS: Final = (
    CreateViewFunction,
    DropViewFunction,
    RollbackFunction,
    TagFunction,
    BranchFunction,
    UndropFunction,
    PartitionByFunction,
    SortByFunction,
    MergeFunction,
    RefreshFunction,
    ProfileFunction,
)
_NAMES: Final = pa.schema({"schema_name": pa.string(), "table_name": pa.string()})


class SystemSchema(Schema):
    """System tables: tables, columns, snapshots, files and statistics of a catalog, jobs, and recent scans."""

    name = SYSTEM_SCHEMA
    comment = "system tables of the metastore"

    def __init__(self, context: Context, catalog: v1.Catalog, find: Find) -> None:
        self._context = context
        self._catalog = catalog
        self._find = find

    def tables(self) -> Sequence[Table]:
        """All system tables."""
        return [SystemTable(self._context, self._catalog, *definition) for definition in _ALL]

    def table_functions(self) -> Sequence[TableFunction]:
        """What DuckDB's client cannot express as a statement."""
        return self._functions

    @cached_property
    def _functions(self) -> Sequence[TableFunction]:
        query = QueryFunction(self._context, self._catalog.display_name, self._find)
        return [
            query,
            ExplainFunction(self._context, query),
            HistogramFunction(self._context, self._catalog.display_name, self._find),
            EndQueryFunction(self._context),
            *(function(self._context, self._catalog, self._find) for function in _EFFECTS),
        ]


class SystemTable(Table):
    """A system table, whose rows `rows` computes for each scan."""

    def __init__(
        self,
        context: Context,
        catalog: v1.Catalog,
        name: str,
        comment: str,
        schema: pa.Schema,
        rows: Callable[[SystemScan], pa.Table],
    ) -> None:
        self.name, self.comment = name, comment
        self._schema, self._rows = schema, rows
        self._context, self._catalog = context, catalog

    @property
    def schema(self) -> pa.Schema:
        """The columns of the table."""
        return self._schema

    def scan(self, options: ScanOptions) -> pa.Table:
        """The rows of the table. Tables that the filter excludes by name are not read."""
        realm = self._context.callers.realm()
        return self._rows(SystemScan(realm, self._context, self._catalog.display_name, list(self._visible(options))))

    def _visible(self, options: ScanOptions) -> Iterator[VisibleTable]:
        """The tables that the caller may see and whose names match the filter."""
        callers = self._context.callers
        callers.require("catalog.read")
        if not callers.may("table.read"):
            return
        realm = callers.realm()
        condition = filters.to_arrow(options.filter, _NAMES) if options.filter else None
        for namespace in namespaces.scan(realm, self._catalog.resource_id.id):
            schema = schema_name(full_path(namespace))
            found = list(tables.scan(realm, namespace.resource_id.id))
            names = pa.table(
                {"schema_name": [schema] * len(found), "table_name": [each.display_name for each in found]}, _NAMES
            )
            numbered = names.append_column("number", pa.array(range(len(found)), pa.int64()))
            chosen = numbered if condition is None else numbered.filter(condition)
            yield from (VisibleTable(schema, found[number]) for number in chosen["number"].to_pylist())


JOBS: Final = pa.schema(
    [
        pa.field("job_id", pa.string()),
        pa.field("connector", pa.string()),
        pa.field("state", pa.string()),
        pa.field("message", pa.string()),
        pa.field("attempt", pa.int32()),
        pa.field("tables_scanned", pa.int64()),
        pa.field("tables_changed", pa.int64()),
        pa.field("errors", pa.int64()),
        pa.field("created_at", MOMENT),
        pa.field("started_at", MOMENT),
        pa.field("finished_at", MOMENT),
        pa.field("next_attempt_at", MOMENT),
        pa.field("table_errors", pa.map_(pa.string(), pa.string())),
        DAMAGE,
    ]
)


def jobs(scan: SystemScan) -> pa.Table:
    """The account's jobs, newest first, for callers who may manage connectors."""
    if not scan.context.callers.may("connector.manage"):
        return JOBS.empty_table()
    names: dict[str, str | None] = {}

    def row(job: v1.Job) -> tuple[Any, ...]:
        connector_id = job.connector_id.id
        if connector_id not in names:
            found, _ = readable(lambda: connectors.find(scan.realm, connector_id))
            names[connector_id] = None if found is None else found.value.display_name
        counts = (job.attempt, job.tables_scanned, job.tables_changed, job.errors)
        moments = map(moment_of, (job.created_at, job.started_at, job.finished_at, job.next_attempt_at))
        state = enum_name(v1.JobState, job.state, "JS_") if job.state else None
        failures = [(each.table, each.message) for each in job.table_errors]
        return (job.job_id, names[connector_id], state, job.message, *counts, *moments, failures, job.damage or None)

    return arrow_table(JOBS, map(row, metastore_jobs.scan(scan.realm)))


PLANS: Final = pa.schema(
    [
        pa.field("planned_at", MOMENT),
        pa.field("subject", pa.string()),
        *NAMED,
        pa.field("snapshot_id", pa.int64()),
        pa.field("filter", pa.string()),
        pa.field("columns", pa.list_(pa.string())),
        pa.field("files_considered", pa.int64()),
        pa.field("files_read", pa.int64()),
        pa.field("files_pruned", pa.int64()),
        pa.field("bytes_considered", pa.int64()),
        pa.field("bytes_read", pa.int64()),
        pa.field("endpoints", pa.int32()),
        pa.field("reader", pa.string()),
    ]
)


_COUNTS: Final = (
    *("files_considered", "files_read", "files_pruned"),
    *("bytes_considered", "bytes_read", "endpoints"),
)
"""The columns of plans that tell about the files of a table."""


def plans(scan: SystemScan) -> pa.Table:
    """Recent scans that this server planned, of tables that the caller may see.

    Of tables that policies restrict, callers see only their own scans, and no counts: filters of others contain values.
    """
    callers = scan.context.callers
    restricted = {
        (each.schema_name, each.table.display_name): bool(each.table.damage)
        or callers.restriction(each.table) is not None
        for each in scan.visible
    }

    def rows() -> Iterator[tuple[Any, ...]]:
        for plan in scan.context.plans.of_account(scan.realm.account_id):
            name = (plan.schema_name, plan.table_name)
            if plan.catalog != scan.catalog or name not in restricted:
                continue
            values = asdict(plan) | {"files_pruned": plan.files_considered - plan.files_read}
            if restricted[name]:
                if plan.subject != callers.authenticated.subject:
                    continue
                values |= dict.fromkeys(_COUNTS)
            yield tuple(values[name] for name in PLANS.names)

    return arrow_table(PLANS, rows())


VIEWS: Final = pa.schema(
    [
        pa.field("schema_name", pa.string()),
        pa.field("view_name", pa.string()),
        pa.field("view_id", pa.string()),
        pa.field("sql", pa.map_(pa.string(), pa.string())),
        pa.field("columns", pa.list_(pa.string())),
        pa.field("reads", pa.list_(pa.string())),
        pa.field("rights", pa.string()),
        pa.field("definer", pa.string()),
        pa.field("comment", pa.string()),
        pa.field("created_at", MOMENT),
        pa.field("updated_at", MOMENT),
        DAMAGE,
    ]
)


def views(scan: SystemScan) -> pa.Table:
    """The views of the catalog that the caller may see, with their SQL by dialect."""
    catalog = catalogs.find(scan.realm, scan.catalog)
    if catalog is None or not scan.context.callers.may("view.read"):
        return VIEWS.empty_table()

    def rows() -> Iterator[tuple[Any, ...]]:
        for namespace in namespaces.scan(scan.realm, catalog.value.resource_id.id):
            schema = schema_name(full_path(namespace))
            for view in metastore_views.scan(scan.realm, namespace.resource_id.id):
                yield (schema, view.display_name, view.resource_id.id, *_described(view))

    return arrow_table(VIEWS, rows())


def _described(view: v1.View) -> tuple[Any, ...]:
    if view.damage:
        return (*[None] * 8, view.damage)
    columns = [f"{each.name} {each.logical_type}" for each in view.output_columns]
    reads = [".".join([each.catalog, *each.path, each.name]) for each in view.base_relations]
    sql = [(each.dialect, each.sql) for each in view.sql_definitions]
    rights = (enum_name(v1.ViewRights, view.rights, "VR_"), view.definer.subject or None)
    moments = (moment_of(view.created_at), moment_of(view.updated_at))
    return (sql, columns, reads, *rights, view.description or None, *moments, None)


_ALL: Final[tuple[tuple[str, str, pa.Schema, Callable[[SystemScan], pa.Table]], ...]] = (
    ("tables", "the tables of this catalog", contents.TABLES, contents.tables),
    ("columns", "their columns", contents.COLUMNS, contents.columns),
    ("snapshots", "their snapshots", contents.SNAPSHOTS, contents.snapshots),
    ("files", "the files of their current snapshots", contents.FILES, contents.files),
    ("column_stats", "the statistics of their columns", statistics_tables.COLUMN_STATS, statistics_tables.column_stats),
    (
        "column_history",
        "the statistics of their columns in earlier snapshots",
        statistics_tables.COLUMN_HISTORY,
        statistics_tables.column_history,
    ),
    (
        "partitions",
        "the partitions of their current snapshots",
        statistics_tables.PARTITIONS,
        statistics_tables.partitions,
    ),
    ("views", "the views of this catalog", VIEWS, views),
    ("policies", "which rows and values callers do not see", POLICIES, policies),
    ("quality", "quality rules of their data, and the newest results", QUALITY, quality),
    ("jobs", "synchronisation jobs, newest first", JOBS, jobs),
    ("queries", "running statements, transactions, and leases on snapshots", QUERIES, queries),
    ("settings", "the settings of this server", SETTINGS, settings),
    ("tokens", "the access tokens of the account", TOKENS, tokens),
    ("audit", "the newest calls of the account on this server", AUDIT, audit),
    ("usage", "how often tables were read and written, by day", USAGE, usage),
    ("lineage", "from which tables tables were written", LINEAGE, lineage),
    ("reports", "metrics reports of Iceberg clients on their scans and commits", REPORTS, reports),
    ("events", "all changes of the account, in order", EVENTS, events),
    ("plans", "recent scans of this server, and what their filters pruned", PLANS, plans),
)
