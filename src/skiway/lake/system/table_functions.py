"""The functions of the schema `skiway` for single tables.

They start jobs (`refresh`, `profile`), change how rows are written (`partition_by`, `sort_by`), name snapshots (`rollback_to`, `tag`,
`branch`), restore a dropped table (`undrop`), and merge rows (`merge`).
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, Final, Literal

import pyarrow as pa

from skiway.airport import Parameter
from skiway.airport.wire.duckdb_sql import castable_type, identifier
from skiway.errors import AlreadyExists, InvalidArgument, NotFound, PreconditionFailed
from skiway.formats.iceberg.changes.commits import Producer, rollback, set_ref
from skiway.formats.iceberg.changes.evolution import partition_by, sort_by
from skiway.formats.iceberg.metadata import MAIN
from skiway.lake.reading.columns import ROWID
from skiway.lake.reading.scans import WithRowIds
from skiway.lake.system.effects import ChangeTable, EffectFunction, Place
from skiway.lake.system.scanning import enum_name
from skiway.lake.writing.writable import WritableTable
from skiway.metastore import jobs, managed
from skiway.metastore.jobs.queue import FINISHED
from skiway.metastore.managed import ManagedTable
from skiway.metastore.resources.hierarchy import full_path
from skiway.model import v1
from skiway.sql import Query, including
from skiway.sql.queries import MergeQuery

_POLL_S: Final = 0.1
_MAX_WAIT_S: Final = 3600


class _JobFunction(ChangeTable):
    """A function that starts a job for a table, or joins an equal one, and waits for it as long as the caller wants."""

    permission = "table.read"
    result = pa.schema(
        {
            "table": pa.string(),
            "job_id": pa.string(),
            "state": pa.string(),
            "message": pa.string(),
            "tables_changed": pa.int64(),
        }
    )
    default_wait_s: float

    def change(self, place: Place, given: Mapping[str, Any]) -> dict[str, Any]:
        """Start the job and wait for it."""
        wait_s = self.default_wait_s if given["wait_s"] is None else given["wait_s"]
        if not 0 <= wait_s <= _MAX_WAIT_S:
            raise InvalidArgument(f"wait_s is {wait_s:g}: use 0 to {_MAX_WAIT_S} seconds", key="job.wait")
        table = self.found(place)
        realm = self._context.callers.realm()
        realm.require_everywhere("connector.manage", what=f"a job for table {self.full_name(place)}")
        job = self.started(place, table, given)
        deadline = time.monotonic() + wait_s
        while job.state not in FINISHED and time.monotonic() < deadline:
            time.sleep(_POLL_S)
            job = jobs.get(realm, v1.GetReconcileJobRequest(job_id=job.job_id)).job
        return {
            "table": self.full_name(place),
            "job_id": job.job_id,
            "state": enum_name(v1.JobState, job.state, "JS_"),
            "message": job.message or None,
            "tables_changed": job.tables_changed,
        }

    def started(self, place: Place, table: v1.Table, given: Mapping[str, Any]) -> v1.Job:
        """Start the job."""
        raise NotImplementedError

    def _mirrored(self, place: Place, table: v1.Table, mode: v1.CaptureMode.ValueType, *, full: bool) -> v1.Job:
        path = v1.NamespacePath(segments=full_path(place.namespace))
        scope = v1.JobScope(namespaces=[path], table=table.display_name)
        realm = self._context.callers.realm()
        return jobs.enqueue(realm, table.upstream.connector_id, scope=scope, modes=(mode,), full_rescan=full)


class RefreshFunction(_JobFunction):
    """`refresh(table)`: reads the current state of a mirrored table from its source."""

    name = "refresh"
    comment = (
        "Reads the current state of a mirrored table from its source, and waits for it: refresh('s.t', wait_s => 60)."
    )
    parameters = (Parameter("name", pa.string()), Parameter("wait_s", pa.float64(), named=True))
    default_wait_s = 60.0

    def started(self, place: Place, table: v1.Table, given: Mapping[str, Any]) -> v1.Job:  # noqa: ARG002
        """Start a job that mirrors this table only."""
        if table.metadata_location:
            raise PreconditionFailed(
                f"table {self.full_name(place)} is managed here and always current: there is nothing to refresh",
                key="table.managed",
                table=self.full_name(place),
            )
        return self._mirrored(place, table, v1.CAP_METADATA_ONLY_CORE, full=False)


class ProfileFunction(_JobFunction):
    """`profile(table)`: computes statistics of a table with Spark."""

    name = "profile"
    comment = (
        "Computes statistics of a table with Spark, in the background: profile('s.t', full => true, wait_s => 600)."
    )
    parameters = (
        Parameter("name", pa.string()),
        Parameter("full", pa.bool_(), named=True),
        Parameter("wait_s", pa.float64(), named=True),
    )
    default_wait_s = 0.0

    def started(self, place: Place, table: v1.Table, given: Mapping[str, Any]) -> v1.Job:
        """Start a job that profiles this table only."""
        full = bool(given["full"])
        if table.metadata_location:
            return jobs.enqueue_profile(self._context.callers.realm(), table.resource_id, full_rescan=full)
        return self._mirrored(place, table, v1.CAP_STATS_ONLY_ASYNC, full=full)


class _LayoutFunction(ChangeTable):
    """A function that changes how rows are written. Existing files stay as they are."""

    result = pa.schema({"table": pa.string(), "before": pa.string(), "now": pa.string()})

    def change(self, place: Place, given: Mapping[str, Any]) -> dict[str, Any]:
        """Commit the change. It fails if somebody else makes such a change at the same time."""
        changes = self.changes(place)
        before = changes.load()
        after = changes.commit(self.producer(given[self.parameters[1].name] or ""))
        return {"table": self.full_name(place), "before": self.shown(before), "now": self.shown(after)}

    @abstractmethod
    def producer(self, text: str) -> Producer:
        """The change to commit."""

    @abstractmethod
    def shown(self, table: ManagedTable) -> str:
        """The layout as text."""


class PartitionByFunction(_LayoutFunction):
    """`partition_by(table, partitions)`: the partitions of rows that are written from now on."""

    name = "partition_by"
    comment = "Partitions new rows: partition_by('s.t', 'day(ts), bucket(16, id), region'), or '' for no partitions."
    parameters = (Parameter("name", pa.string()), Parameter("partitions", pa.string()))

    def producer(self, text: str) -> Producer:
        """The change to commit."""
        return partition_by(text)

    def shown(self, table: ManagedTable) -> str:
        """The partitions as text."""
        schema = table.metadata.schema()
        return ", ".join(
            _applied(str(field.transform), schema.find_column_name(field.source_id) or field.name)
            for field in table.metadata.spec().fields
        )


class SortByFunction(_LayoutFunction):
    """`sort_by(table, columns)`: the order of rows that are written from now on."""

    name = "sort_by"
    comment = "Sorts new rows within files: sort_by('s.t', 'ts DESC, id'), or '' for no order."
    parameters = (Parameter("name", pa.string()), Parameter("columns", pa.string()))

    def producer(self, text: str) -> Producer:
        """The change to commit."""
        return sort_by(text)

    def shown(self, table: ManagedTable) -> str:
        """The sort order as text."""
        schema = table.metadata.schema()
        return ", ".join(
            _applied(str(field.transform), schema.find_column_name(field.source_id) or "")
            + f" {field.direction.value.upper()} {field.null_order.value.replace('-', ' ').upper()}"
            for field in table.metadata.sort_order().fields
        )


def _applied(transform: str, column: str) -> str:
    """A transform in the notation of the functions: `bucket(16, id)`."""
    if transform == "identity":
        return column
    name, _, width = transform.rstrip("]").partition("[")
    return f"{name}({width}, {column})" if width else f"{name}({column})"


class _SnapshotFunction(ChangeTable):
    """A function that changes which snapshots of a table have names."""

    result = pa.schema(
        {"table": pa.string(), "name": pa.string(), "snapshot_id": pa.int64(), "previous_id": pa.int64()}
    )

    def change(self, place: Place, given: Mapping[str, Any]) -> dict[str, Any]:
        """Commit the change of the name. It fails if somebody else changes the same name at the same time."""
        changes = self.changes(place)
        before, name = changes.load().metadata, self.ref(given)
        previous = before.refs.get(name)
        if previous is not None and name != MAIN and not given["replace"]:
            raise AlreadyExists(
                f"{name!r} is a {previous.snapshot_ref_type} of table {place} already: add replace => true to move it",
                key="snapshot.name",
            )
        snapshot_id: int | None = given["snapshot"]
        if snapshot_id is None:
            current = before.current_snapshot()
            if current is None:
                raise PreconditionFailed(f"table {place} has no snapshots yet: insert rows first", key="snapshot.none")
            snapshot_id = current.snapshot_id
        changes.commit(self.producer(name, snapshot_id))
        return {
            "table": self.full_name(place),
            "name": name,
            "snapshot_id": snapshot_id,
            "previous_id": previous.snapshot_id if previous else None,
        }

    def ref(self, given: Mapping[str, Any]) -> str:
        """The name of the snapshot."""
        name = (given[self.kind] or "").strip()
        if not name or name == MAIN or name.isdecimal():
            raise InvalidArgument(
                f"{given[self.kind]!r} cannot be the name of a {self.kind}: choose one that is not empty, not a number, and "
                f"not {MAIN}",
                key="snapshot.name",
            )
        return name

    def producer(self, name: str, snapshot_id: int) -> Producer:
        """The change to commit."""
        return set_ref(name, snapshot_id, kind=self.kind)

    kind: Literal["branch", "tag"] = "tag"


class RollbackFunction(_SnapshotFunction):
    """`rollback_to(table, snapshot)`: makes an older snapshot the current one again."""

    name = "rollback_to"
    comment = "Makes a snapshot the current one again: rollback_to('s.t', 5781947118336215154)."
    parameters = (Parameter("name", pa.string()), Parameter("snapshot", pa.int64()))

    def ref(self, given: Mapping[str, Any]) -> str:
        """The branch of the current snapshot."""
        if given["snapshot"] is None:
            raise InvalidArgument("rollback_to needs the id of a snapshot: skiway.snapshots lists them")
        return MAIN

    def producer(self, name: str, snapshot_id: int) -> Producer:
        """The change to commit."""
        assert name == MAIN
        return rollback(snapshot_id)


class TagFunction(_SnapshotFunction):
    """`tag(table, tag)`: gives a snapshot a name that does not move."""

    name = "tag"
    comment = "Names a snapshot, the current one by default: tag('s.t', 'before import', snapshot => …)."
    parameters = (
        Parameter("name", pa.string()),
        Parameter("tag", pa.string()),
        Parameter("snapshot", pa.int64(), named=True),
        Parameter("replace", pa.bool_(), named=True),
    )
    kind = "tag"


class BranchFunction(_SnapshotFunction):
    """`branch(table, branch)`: gives a snapshot a name to which other programs can commit."""

    name = "branch"
    comment = "Starts a branch at a snapshot, the current one by default: branch('s.t', 'audit', snapshot => …)."
    parameters = (
        Parameter("name", pa.string()),
        Parameter("branch", pa.string()),
        Parameter("snapshot", pa.int64(), named=True),
        Parameter("replace", pa.bool_(), named=True),
    )
    kind = "branch"


class UndropFunction(EffectFunction):
    """`undrop(table)`: restores a table that was dropped in the last days, with all its snapshots."""

    name = "undrop"
    comment = "Restores the table with this name that was dropped last: undrop('s.t')."
    permission = "table.write"
    parameters = (Parameter("name", pa.string()),)
    result = pa.schema({"table": pa.string(), "snapshot_id": pa.int64(), "snapshots": pa.int64()})

    def change(self, place: Place, given: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        """Restore the table."""
        realm, warehouse = self._context.callers.realm(), self._context.handles.warehouse
        metadata = managed.undrop(realm, warehouse, place.namespace.resource_id, place.name).metadata
        current = metadata.current_snapshot()
        return {
            "table": self.full_name(place),
            "snapshot_id": None if current is None else current.snapshot_id,
            "snapshots": len(metadata.snapshots),
        }


_TARGET: Final = "$target"


class MergeFunction(ChangeTable):
    """`merge(table, source, on)`: updates, deletes and inserts rows in one commit, like MERGE INTO."""

    name = "merge"
    can_be_staged = True
    comment = (
        "Merges rows of a query into a table: merge('s.t', 'SELECT …', 'target.id = source.id', "
        "clauses => 'WHEN MATCHED THEN UPDATE WHEN NOT MATCHED THEN INSERT')."
    )
    parameters = (
        Parameter("name", pa.string()),
        Parameter("source", pa.string()),
        Parameter("on", pa.string()),
        Parameter("clauses", pa.string(), named=True),
    )
    result = pa.schema({"table": pa.string(), "inserted": pa.int64(), "updated": pa.int64(), "deleted": pa.int64()})

    def change(self, place: Place, given: Mapping[str, Any]) -> dict[str, Any]:
        """Join the source with the table on the server, and commit the changes."""
        for name, example in (("source", "SELECT …"), ("on", "target.id = source.id")):
            if not (given[name] or "").strip():
                raise InvalidArgument(f"merge needs {name!r}, such as {example!r}", key="merge.argument")
        table = self._find(self._catalog.display_name, place.schema, place.name)
        if not isinstance(table, WritableTable):
            raise NotFound(f"table {self.full_name(place)} does not exist", key="table", table=self.full_name(place))
        columns = {field.name: castable_type(field) for field in table.schema if field.name != ROWID}
        merge = MergeQuery(columns, given["source"], given["on"], given["clauses"] or "")
        statement = table.merging()
        try:
            for batch in self._context.queries.rows(self._query(merge, given["source"], table, place)):
                statement.apply(batch)
        except BaseException:
            statement.abort()
            raise
        statement.commit()
        counts = statement.counts
        return {
            "table": self.full_name(place),
            "inserted": counts["insert"],
            "updated": counts["update"],
            "deleted": counts["delete"],
        }

    def _query(self, merge: MergeQuery, source: str, table: WritableTable, place: Place) -> Query:
        catalog, owner = self._catalog.display_name, self._context.callers.principal.account_id
        read = Query(source, self._find, catalog=catalog, schema=place.schema, owner=owner)
        target = (catalog, place.schema, _TARGET)
        sql = merge.sql(".".join(map(identifier, target)), self._context.queries.columns(read).names)
        find = including(self._find, target, WithRowIds(_TARGET, table.schema, table.scan))
        return Query(sql, find, catalog=catalog, schema=place.schema, owner=owner)
