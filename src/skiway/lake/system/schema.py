"""The schema `skiway` of every catalog, and its tables `views`, `jobs` and `plans`; other modules have its other tables.

The rows of a system table are computed by each scan, and only for tables that the caller may see.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from typing import Final

import pyarrow as pa

from skiway.airport import ScanOptions, Schema, Table, TableFunction, filters
from skiway.foundation.resources import schema_name
from skiway.lake.context import Context
from skiway.lake.system import administration, branches, history
from skiway.lake.system import tables as contents
from skiway.lake.system.effects import EffectFunction, create_view, drop_view
from skiway.lake.system.functions import ExplainFunction, HistogramFunction, QueryFunction
from skiway.lake.system.preview import SeenByFunction
from skiway.lake.system.table_functions import EFFECTS
from skiway.lake.system.tables import (
    Definition,
    Row,
    SystemScan,
    VisibleTable,
    enum_name,
    moment_of,
    readable,
    system_table,
)
from skiway.metastore import catalogs, connectors, namespaces, tables
from skiway.metastore import jobs as metastore_jobs
from skiway.metastore import views as metastore_views
from skiway.metastore.resources.hierarchy import full_path
from skiway.model import v1
from skiway.sql import CountsRows, Find

SYSTEM_SCHEMA: Final = "skiway"

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
        return [SystemTable(self._context, self._catalog, definition) for definition in _ALL]

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
            administration.EndQueryFunction(self._context),
            SeenByFunction(self._context, self._catalog.display_name, self._find),
            *(function(self._context, self._catalog) for function in branches.FUNCTIONS),
            branches.DiffRowsFunction(self._context, self._catalog, self._find),
            *(
                EffectFunction(declared, self._context, self._catalog, self._find)
                for declared in (create_view, drop_view, *EFFECTS)
            ),
        ]


class SystemTable(Table, CountsRows):
    """A system table, whose rows are computed for each scan."""

    def __init__(self, context: Context, catalog: v1.Catalog, definition: Definition) -> None:
        self.name, self.comment, self.schema = definition.name, definition.comment, definition.schema
        self._definition = definition
        self._context, self._catalog = context, catalog

    def scan(self, options: ScanOptions) -> pa.Table:
        """The rows of the table. Tables that the filter excludes by name are not read."""
        wanted = options.columns
        if (
            wanted is not None
            and set(wanted) <= {"schema_name"}
            and not options.filter
            and (counts := self._counts()) is not None
        ):
            return pa.table({"schema_name": _repeated(counts)})
        realm = self._context.callers.realm()
        visible = list(self._visible(options))
        name = self._catalog.display_name
        return self._definition(SystemScan(realm, self._context, name, visible, options.columns, options.filter))

    def counted_rows(self) -> int | None:
        """How many tables there are, of the table that has one row for each; None if they have to be read."""
        counts = self._counts()
        return None if counts is None else sum(counts.values())

    def _counts(self) -> Mapping[str, int] | None:
        """How many tables each schema has, without reading them. DuckDB asks for the first column to count rows."""
        callers = self._context.callers
        if self._definition is not contents.tables or not callers.may("table.read"):
            return None
        callers.require("catalog.read")
        realm = callers.realm()
        found = namespaces.scan(realm, self._catalog.resource_id.id)
        counts = {
            schema_name(full_path(namespace)): tables.count(realm, namespace.resource_id.id) for namespace in found
        }
        known = {name: count for name, count in counts.items() if count is not None}
        return known if len(known) == len(counts) else None

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


def _repeated(counts: Mapping[str, int]) -> pa.ChunkedArray:
    """Each text as often as its count says."""
    return pa.chunked_array([pa.repeat(text, count) for text, count in counts.items()], pa.string())


@system_table(
    "synchronisation jobs, the newest first, with the errors of their tables",
    "job_id text, connector text, state text, message text, attempt integer, tables_scanned bigint, "
    "tables_changed bigint, errors bigint, created_at timestamp, started_at timestamp, finished_at timestamp, "
    "next_attempt_at timestamp, table_errors text->text, damage text",
)
def jobs(scan: SystemScan) -> Iterator[Row]:
    """The account's jobs, newest first, for callers who may manage connectors."""
    if not scan.context.callers.may("connector.manage"):
        return
    names: dict[str, str | None] = {}

    def row(job: v1.Job) -> Row:
        connector_id = job.connector_id.id
        if connector_id not in names:
            found, _ = readable(lambda: connectors.find(scan.realm, connector_id))
            names[connector_id] = None if found is None else found.value.display_name
        counts = (job.attempt, job.tables_scanned, job.tables_changed, job.errors)
        moments = map(moment_of, (job.created_at, job.started_at, job.finished_at, job.next_attempt_at))
        state = enum_name(v1.JobState, job.state, "JS_") if job.state else None
        failures = [(error.table, error.message) for error in job.table_errors]
        return (job.job_id, names[connector_id], state, job.message, *counts, *moments, failures, job.damage or None)

    yield from map(row, metastore_jobs.scan(scan.realm))


_COUNTS: Final = (*("files_considered", "files_read", "files_pruned"), *("bytes_considered", "bytes_read", "endpoints"))
"""The columns of plans that tell about the files of a table."""


@system_table(
    "recent scans of this server: what their filters pruned, and whether the server or the client read the files",
    "planned_at timestamp, subject text, schema_name text, table_name text, snapshot_id bigint, filter text, "
    "columns text[], files_considered bigint, files_read bigint, files_pruned bigint, "
    "bytes_considered bigint, bytes_read bigint, endpoints integer, reader text",
)
def plans(scan: SystemScan) -> Iterator[Row]:
    """Recent scans that this server planned, of tables that the caller may see.

    Of tables that policies restrict, callers see only their own scans, and no counts: filters of others contain values.
    """
    callers = scan.context.callers
    restricted = {
        (each.schema_name, each.table.display_name): bool(each.table.damage)
        or callers.restriction(each.table) is not None
        for each in scan.visible
    }

    for plan in scan.context.plans.of_account(scan.realm.account_id):
        name = (plan.schema_name, plan.table_name)
        if plan.catalog != scan.catalog or name not in restricted:
            continue
        values = asdict(plan) | {"files_pruned": plan.files_considered - plan.files_read}
        if restricted[name]:
            if plan.subject != callers.authenticated.subject:
                continue
            values |= dict.fromkeys(_COUNTS)
        yield tuple(values[name] for name in plans.schema.names)


@system_table(
    "views: their SQL by dialect, their columns, and what they read",
    "schema_name text, view_name text, view_id text, sql text->text, columns text[], reads text[], "
    "rights text, definer text, comment text, created_at timestamp, updated_at timestamp, damage text",
)
def views(scan: SystemScan) -> Iterator[Row]:
    """The views of the catalog that the caller may see, with their SQL by dialect."""
    catalog = catalogs.find(scan.realm, scan.catalog)
    if catalog is None or not scan.context.callers.may("view.read"):
        return

    for namespace in namespaces.scan(scan.realm, catalog.value.resource_id.id):
        schema = schema_name(full_path(namespace))
        for view in metastore_views.scan(scan.realm, namespace.resource_id.id):
            yield (schema, view.display_name, view.resource_id.id, *_described(view))


def _described(view: v1.View) -> Row:
    if view.damage:
        return (*[None] * 8, view.damage)
    columns = [f"{column.name} {column.logical_type}" for column in view.output_columns]
    reads = [".".join([relation.catalog, *relation.path, relation.name]) for relation in view.base_relations]
    sql = [(definition.dialect, definition.sql) for definition in view.sql_definitions]
    rights = (enum_name(v1.ViewRights, view.rights, "VR_"), view.definer.subject or None)
    moments = (moment_of(view.created_at), moment_of(view.updated_at))
    return (sql, columns, reads, *rights, view.description or None, *moments, None)


_ALL: Final = (
    contents.tables,
    contents.columns,
    contents.snapshots,
    contents.files,
    contents.column_stats,
    contents.column_history,
    contents.partitions,
    views,
    administration.policies,
    contents.quality,
    jobs,
    administration.queries,
    history.query_history,
    administration.settings,
    administration.tokens,
    administration.audit,
    administration.usage,
    administration.lineage,
    administration.reports,
    administration.events,
    branches.branches_table,
    plans,
)
