"""The functions of the schema `skiway` for single tables.

They start jobs (`refresh`, `profile`), change how rows are written (`partition_by`, `sort_by`), comment on columns (`comment_on`), name
snapshots (`rollback_to`, `tag`, `branch`), restore a dropped table (`undrop`), and merge rows (`merge`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, Literal

from skiway.airport.wire.duckdb_sql import castable_type, identifier
from skiway.errors import AlreadyExists, InvalidArgument, NotFound, PreconditionFailed
from skiway.formats.iceberg.changes import evolution
from skiway.formats.iceberg.changes.commits import Producer, rollback, set_ref
from skiway.formats.iceberg.metadata import MAIN
from skiway.lake.reading.columns import ROWID
from skiway.lake.reading.scans import with_row_ids
from skiway.lake.system.effects import Effect, effect
from skiway.lake.system.tables import Row, enum_name
from skiway.lake.writing.inserting import Changes
from skiway.lake.writing.writable import WritableTable
from skiway.metastore import jobs, managed
from skiway.metastore.jobs.queue import FINISHED
from skiway.metastore.managed import ManagedTable
from skiway.metastore.resources.hierarchy import full_path
from skiway.model import v1
from skiway.sql import Query, including
from skiway.sql.queries import MergeQuery

# --- jobs -------------------------------------------------------------------------------------------------------------

_JOB: Final = "table text, job_id text, state text, message text, tables_changed bigint"
_POLL_S: Final = 0.1
_MAX_WAIT_S: Final = 3600


@effect(
    "Reads the current state of a mirrored table from its source, and waits for it: refresh('s.t', wait_s => 60).",
    "name text, wait_s? double",
    _JOB,
)
def refresh(call: Effect) -> Row:
    """Mirror this table only."""

    def start(table: v1.Table) -> v1.Job:
        if table.metadata_location:
            raise PreconditionFailed(
                f"table {call.full_name} is managed here and always current: there is nothing to refresh",
                key="table.managed",
                table=call.full_name,
            )
        return _mirroring(call, table, v1.CAP_METADATA_ONLY_CORE, full=False)

    return _after_job(call, start, default_wait_s=60.0)


@effect(
    "Computes statistics of a table, in the background: profile('s.t', full => true, wait_s => 600).",
    "name text, full? boolean, wait_s? double",
    _JOB,
)
def profile(call: Effect) -> Row:
    """Profile this table only."""
    full = bool(call.given["full"])

    def start(table: v1.Table) -> v1.Job:
        if table.metadata_location:
            return jobs.enqueue(call.realm, v1.Job(table_id=table.resource_id, full_rescan=full))
        return _mirroring(call, table, v1.CAP_STATS_ONLY_ASYNC, full=full)

    return _after_job(call, start, default_wait_s=0.0)


def _mirroring(call: Effect, table: v1.Table, mode: v1.CaptureMode.ValueType, *, full: bool) -> v1.Job:
    path = v1.NamespacePath(segments=full_path(call.namespace))
    scope = v1.JobScope(namespaces=[path], table=table.display_name)
    source = table.upstream.connector_id
    return jobs.enqueue(call.realm, v1.Job(connector_id=source, scope=scope, modes=(mode,), full_rescan=full))


def _after_job(call: Effect, start: Callable[[v1.Table], v1.Job], *, default_wait_s: float) -> Row:
    """Start a job for a table, or join an equal one, and wait for it as long as the caller wants."""
    wait_s = default_wait_s if call.given["wait_s"] is None else call.given["wait_s"]
    if not 0 <= wait_s <= _MAX_WAIT_S:
        raise InvalidArgument(f"wait_s is {wait_s:g}: use 0 to {_MAX_WAIT_S} seconds", key="job.wait")
    table = call.table("table.read")
    call.realm.require_everywhere("connector.manage", what=f"a job for table {call.full_name}")
    job = start(table)
    deadline = time.monotonic() + wait_s
    while job.state not in FINISHED and time.monotonic() < deadline:
        time.sleep(_POLL_S)
        job = jobs.get(call.realm, v1.GetReconcileJobRequest(job_id=job.job_id)).job
    state = enum_name(v1.JobState, job.state, "JS_")
    return call.full_name, job.job_id, state, job.message or None, job.tables_changed


# --- how rows are written ---------------------------------------------------------------------------------------------

_LAYOUT: Final = "table text, before text, now text"


@effect(
    "Partitions new rows: partition_by('s.t', 'day(ts), bucket(16, id), region'), or '' for no partitions.",
    "name text, partitions text",
    _LAYOUT,
)
def partition_by(call: Effect) -> Row:
    """Set the partitions of rows that are written from now on."""

    def shown(table: ManagedTable) -> str:
        schema = table.metadata.schema()
        return ", ".join(
            _applied(str(field.transform), schema.find_column_name(field.source_id) or field.name)
            for field in table.metadata.spec().fields
        )

    return _with_layout(call, evolution.partition_by, call.given["partitions"], shown)


@effect(
    "Sorts new rows within files: sort_by('s.t', 'ts DESC, id'), or '' for no order.",
    "name text, columns text",
    _LAYOUT,
)
def sort_by(call: Effect) -> Row:
    """Set the order of rows that are written from now on."""

    def shown(table: ManagedTable) -> str:
        schema = table.metadata.schema()
        return ", ".join(
            _applied(str(field.transform), schema.find_column_name(field.source_id) or "")
            + f" {field.direction.value.upper()} {field.null_order.value.replace('-', ' ').upper()}"
            for field in table.metadata.sort_order().fields
        )

    return _with_layout(call, evolution.sort_by, call.given["columns"], shown)


def _with_layout(
    call: Effect, producer: Callable[[str], Producer], text: str | None, shown: Callable[[ManagedTable], str]
) -> Row:
    """Commit a change of the layout. Existing files stay as they are. It fails if another caller makes such a change at the same time."""
    changes = call.changes()
    before = changes.load()
    return call.full_name, shown(before), shown(changes.commit(producer(text or "")))


@effect(
    "Sets the comment of a column, which everybody sees who sees the table: comment_on('s.t', 'column', 'text'), or '' for none.",
    "name text, column text, comment text",
    "table text, column text, before text, now text",
)
def comment_on(call: Effect) -> Row:
    """Set the comment of a column."""
    changes, wanted = call.changes(), call.given["column"] or ""
    fields = changes.load().metadata.schema().fields
    before = next((each for each in fields if each.name.casefold() == wanted.casefold()), None)
    name, text = wanted if before is None else before.name, call.given["comment"] or ""
    changes.commit(evolution.evolve([evolution.ColumnDoc(name, text)]))
    return call.full_name, name, (before.doc if before else "") or "", text


def _applied(transform: str, column: str) -> str:
    """A transform in the notation of the functions: `bucket(16, id)`."""
    if transform == "identity":
        return column
    name, _, width = transform.rstrip("]").partition("[")
    return f"{name}({width}, {column})" if width else f"{name}({column})"


# --- snapshots --------------------------------------------------------------------------------------------------------

_NAMED: Final = "table text, name text, snapshot_id bigint, previous_id bigint"


@effect(
    "Makes a snapshot the current one again: rollback_to('s.t', 5781947118336215154).",
    "name text, snapshot bigint",
    _NAMED,
)
def rollback_to(call: Effect) -> Row:
    """Make an older snapshot the current one again."""
    changes = call.changes()
    if call.given["snapshot"] is None:
        raise InvalidArgument("rollback_to needs the id of a snapshot: skiway.snapshots lists them")
    return _with_name(call, changes, MAIN, rollback)


@effect(
    "Names a snapshot, the current one by default: tag('s.t', 'before import', snapshot => …).",
    "name text, tag text, snapshot? bigint, replace? boolean",
    _NAMED,
)
def tag(call: Effect) -> Row:
    """Give a snapshot a name that does not move."""
    return _with_ref(call, "tag")


@effect(
    "Starts a branch at a snapshot, the current one by default: branch('s.t', 'audit', snapshot => …).",
    "name text, branch text, snapshot? bigint, replace? boolean",
    _NAMED,
)
def branch(call: Effect) -> Row:
    """Give a snapshot a name to which other programs can commit."""
    return _with_ref(call, "branch")


def _with_ref(call: Effect, kind: Literal["branch", "tag"]) -> Row:
    changes, name = call.changes(), (call.given[kind] or "").strip()
    if not name or name == MAIN or name.isdecimal():
        raise InvalidArgument(
            f"{call.given[kind]!r} cannot be the name of a {kind}: choose one that is not empty, not a number, and not {MAIN}",
            key="snapshot.name",
        )
    return _with_name(call, changes, name, lambda snapshot_id: set_ref(name, snapshot_id, kind=kind))


def _with_name(call: Effect, changes: Changes, name: str, producer: Callable[[int], Producer]) -> Row:
    """Commit another snapshot of a name. It fails if another caller changes the same name at the same time."""
    before = changes.load().metadata
    previous = before.refs.get(name)
    if previous is not None and name != MAIN and not call.given["replace"]:
        raise AlreadyExists(
            f"{name!r} is a {previous.snapshot_ref_type} of table {call.place} already: add replace => true to move it",
            key="snapshot.name",
        )
    snapshot_id: int | None = call.given["snapshot"]
    if snapshot_id is None:
        current = before.current_snapshot()
        if current is None:
            raise PreconditionFailed(f"table {call.place} has no snapshots yet: insert rows first", key="snapshot.none")
        snapshot_id = current.snapshot_id
    changes.commit(producer(snapshot_id))
    return call.full_name, name, snapshot_id, previous.snapshot_id if previous else None


@effect(
    "Restores the table with this name that was dropped last, within three days, without its statistics and grants: undrop('s.t').",
    "name text",
    "table text, snapshot_id bigint, snapshots bigint",
    permission="table.write",
)
def undrop(call: Effect) -> Row:
    """Restore a table that was dropped in the last days, with all its snapshots."""
    warehouse = call.context.handles.warehouse
    metadata = managed.undrop(call.realm, warehouse, call.namespace.resource_id, call.name).metadata
    current = metadata.current_snapshot()
    return call.full_name, None if current is None else current.snapshot_id, len(metadata.snapshots)


# --- MERGE ------------------------------------------------------------------------------------------------------------

_TARGET: Final = "$target"


@effect(
    "Merges rows of a query into a table: merge('s.t', 'SELECT …', 'target.id = source.id', "
    "clauses => 'WHEN MATCHED THEN UPDATE WHEN NOT MATCHED THEN INSERT').",
    "name text, source text, on text, clauses? text",
    "table text, inserted bigint, updated bigint, deleted bigint",
    can_be_staged=True,
)
def merge(call: Effect) -> Row:
    """Join the source with the table on the server, and commit all updates, deletes and inserts at once, like MERGE INTO."""
    given = call.given
    for name, example in (("source", "SELECT …"), ("on", "target.id = source.id")):
        if not (given[name] or "").strip():
            raise InvalidArgument(f"merge needs {name!r}, such as {example!r}", key="merge.argument")
    table = call.find(call.catalog.display_name, call.schema, call.name)
    if not isinstance(table, WritableTable):
        raise NotFound(f"table {call.full_name} does not exist", key="table", table=call.full_name)
    columns = {field.name: castable_type(field) for field in table.schema if field.name != ROWID}
    query = MergeQuery(columns, given["source"], given["on"], given["clauses"] or "")
    statement = table.merging()
    try:
        for batch in call.context.queries.rows(_joined(call, query, table)):
            statement.apply(batch)
    except BaseException:
        statement.abort()
        raise
    statement.commit()
    return call.full_name, *(statement.counts[action] for action in ("insert", "update", "delete"))


def _joined(call: Effect, merge: MergeQuery, table: WritableTable) -> Query:
    target = (call.catalog.display_name, call.schema, _TARGET)
    source = call.context.queries.columns(call.query(call.given["source"]))
    find = including(call.find, target, with_row_ids(_TARGET, table.schema, table.scan))
    return call.query(merge.sql(".".join(map(identifier, target)), source.names), find)


EFFECTS: Final = (rollback_to, tag, branch, undrop, partition_by, sort_by, comment_on, merge, refresh, profile)
"""All of these functions."""
