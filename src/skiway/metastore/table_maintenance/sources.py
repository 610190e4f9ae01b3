"""Maintenance of tables in their sources: OPTIMIZE and VACUUM of mirrored Delta tables, if the operator allows it.

VACUUM keeps the files of all versions that somebody may read through the lake: the mirrored one, those that were mirrored within the
lifetime of a transaction, and those that a query or transaction has leased. Afterwards the table is synchronized.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise

from skiway.errors import Conflict, InvalidArgument, PreconditionFailed, Unsupported
from skiway.formats import Packed, RewritableTable
from skiway.metastore.gc.references import TRANSACTION_LIFETIME, leased_tables
from skiway.metastore.reconcile.outcomes import Control, Outcome
from skiway.metastore.reconcile.reconciler import Reconciler
from skiway.metastore.records.realm import Realm
from skiway.metastore.resources import hierarchy, snapshots
from skiway.metastore.table_maintenance.optimizing import ATTEMPTS
from skiway.metastore.table_maintenance.tasks import Planned, orphan_age_of
from skiway.model import v1

__all__ = ["SourceTables", "not_maintained", "versions_in_use"]


@dataclass(frozen=True, slots=True)
class SourceTables:
    """Maintains mirrored tables in their sources."""

    reconciler: Reconciler

    def check(self, realm: Realm, table: v1.Table, task: v1.MaintenanceTask) -> None:
        """Raise if the task cannot be done."""
        with self._opened(realm, table, task):
            pass

    def planned(self, realm: Realm, table: v1.Table, task: v1.MaintenanceTask) -> Planned:
        """What the task would do now."""
        with self._opened(realm, table, task) as handle:
            if task.HasField("optimize"):
                found, reason = handle.packable(task.optimize.target_file_bytes), "small file"
            else:
                found = handle.remove_unused(
                    older_than=orphan_age_of(task.clean), keep=versions_in_use(realm, table.resource_id.id)
                )
                reason = "no version in use references it"
        files = [v1.PlannedFile(location=each.location, size_bytes=each.size_bytes, reason=reason) for each in found]
        return Planned(files=files)

    def run(self, realm: Realm, table: v1.Table, task: v1.MaintenanceTask, control: Control) -> Outcome:
        """Do the task, and synchronize the table."""
        control.check()
        outcome = Outcome(scanned=1)
        with self._opened(realm, table, task) as handle:
            if task.HasField("optimize"):
                done, attempts = _packed(handle, task.optimize, control)
                outcome.result = v1.MaintenanceResult(
                    files_rewritten=done.files_before,
                    files_added=done.files_after,
                    bytes_rewritten=done.bytes_before,
                    bytes_added=done.bytes_after,
                    groups_given_up=int(attempts > ATTEMPTS),
                )
                outcome.note = f"rewrote {done.files_before} files as {done.files_after}"
                if attempts > ATTEMPTS:
                    outcome.note += "; gave up for now, for others changed the table"
            else:
                removed = handle.remove_unused(
                    older_than=orphan_age_of(task.clean),
                    keep=versions_in_use(realm, table.resource_id.id),
                    dry_run=False,
                )
                size = sum(each.size_bytes for each in removed)
                outcome.result = v1.MaintenanceResult(files_removed=len(removed), bytes_removed=size)
                outcome.note = f"removed {len(removed)} unused files"
        self._synchronize(realm, table, control)
        outcome.changed = 1
        return outcome

    @contextmanager
    def _opened(self, realm: Realm, table: v1.Table, task: v1.MaintenanceTask) -> Iterator[RewritableTable]:
        _check_task(table, task)
        with self.reconciler.mirrored(realm, table) as handle:
            if not isinstance(handle, RewritableTable):
                raise not_maintained(table)
            handle.check_rewritable()
            yield handle

    def _synchronize(self, realm: Realm, table: v1.Table, control: Control) -> None:
        path = hierarchy.full_path(hierarchy.namespace(realm, table.namespace_id).value)
        scope = v1.JobScope(table=table.display_name, namespaces=[v1.NamespacePath(segments=path)])
        mode = v1.CAP_METADATA_ONLY_CORE
        synced = self.reconciler.run(realm, table.upstream.connector_id, mode=mode, scope=scope, control=control)
        if synced.failures:
            raise PreconditionFailed(
                f"the table was maintained, but not synchronized: {synced.message}", key="maintenance.unsynced"
            )


def versions_in_use(realm: Realm, table_id: str) -> set[int]:
    """The versions of a mirrored table that somebody may read through the lake at this moment."""
    known = sorted(snapshots.scan(realm, table_id), key=lambda each: each.snapshot_id)
    since = realm.clock() - TRANSACTION_LIFETIME
    used = {each.snapshot_id for each in leased_tables(realm, table_id)}
    used |= {each.snapshot_id for each in known[-1:]}
    for each, following in pairwise(known):
        if following.ingested_at.ToDatetime(since.tzinfo) >= since:
            used.add(each.snapshot_id)
    return used


def not_maintained(table: v1.Table) -> PreconditionFailed:
    """The error that a table cannot be maintained here."""
    return PreconditionFailed(
        f"table {table.display_name} is not a managed table: change it in its source",
        key="table.not_managed",
        id=table.resource_id.id,
    )


def _check_task(table: v1.Table, task: v1.MaintenanceTask) -> None:
    match task.WhichOneof("task"):
        case "expire":
            raise Unsupported(
                f"table {table.display_name} is a Delta table, whose versions expire by themselves: use clean, which removes their files",
                key="maintenance.delta",
            )
        case "optimize":
            if task.optimize.sort or task.optimize.engine == v1.OE_SPARK:
                what = "sorted" if task.optimize.sort else "optimized on Spark"
                raise Unsupported(
                    f"table {table.display_name} is a Delta table, which cannot be {what} here: pack its files, or use a z-order",
                    key="maintenance.delta",
                )
        case "clean":
            age = orphan_age_of(task.clean)
            if age is not None and age < TRANSACTION_LIFETIME:
                raise InvalidArgument(
                    f"unused files must be older than an hour, not {age}, because statements write files before they commit "
                    "them: choose an age that is longer than any statement takes",
                    key="maintenance.age",
                    field="older_than",
                )


def _packed(handle: RewritableTable, task: v1.OptimizeTask, control: Control) -> tuple[Packed, int]:
    """What was packed, and the number of attempts; one more than allowed if all were lost to other writers."""
    for attempt in range(1, ATTEMPTS + 1):
        control.check()
        try:
            return handle.pack(target_bytes=task.target_file_bytes, z_order=list(task.z_order)), attempt
        except Conflict:
            continue
    return Packed(), ATTEMPTS + 1
