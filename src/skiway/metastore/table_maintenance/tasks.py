"""Maintenance tasks: optimize, expire or clean a table, as a dry run and as a job, on request or by properties of the table."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Protocol

from skiway.errors import InvalidArgument, SkiwayError, Unsupported
from skiway.formats import Packed
from skiway.formats.iceberg.changes.maintenance import CompactionRules, new_order, unused_deletes
from skiway.formats.iceberg.warehouse import Warehouse
from skiway.metastore import jobs
from skiway.metastore.gc.sweeps import Slice
from skiway.metastore.jobs.attempts import Amounts
from skiway.metastore.managed.states import ManagedTable, load
from skiway.metastore.platform import visit_accounts
from skiway.metastore.reconcile.outcomes import Control, Outcome
from skiway.metastore.records import keys
from skiway.metastore.records.kinds import TABLE
from skiway.metastore.records.realm import Realm
from skiway.metastore.resources import hierarchy
from skiway.metastore.resources.tables import MAINTENANCE, InheritedProperties, inherited
from skiway.metastore.table_maintenance.cleaning import Planned, expire_snapshots, remove_orphans
from skiway.metastore.table_maintenance.optimizing import OptimizeReport, RulesOf, optimize, planned_groups
from skiway.model import v1
from skiway.security import LeasedJob
from skiway.storage import Pointer, Stores

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata


class LargeOptimizer(Protocol):
    """Optimizes tables outside of this process: on request, and if at least `from_bytes` are to be rewritten."""

    @property
    def from_bytes(self) -> int | None: ...

    def optimize(
        self, table: ManagedTable, name: Sequence[str], rules: CompactionRules, *, job: LeasedJob, control: Control
    ) -> OptimizeReport:
        """Optimize a table. `name` is that of its catalog, its namespaces and the table."""


def check_task(task: v1.MaintenanceTask) -> None:
    """Raise if the task is not set, or has impossible values."""
    match task.WhichOneof("task"):
        case None:
            raise InvalidArgument("the task is missing: set optimize, expire or clean", key="field", field="task")
        case "optimize":
            given = task.optimize
            if given.target_file_bytes < 0 or given.min_files < 0:
                raise _invalid("target_file_bytes and min_files", "a number that is not negative")
            if given.HasField("max_deleted") and not 0 <= given.max_deleted <= 1:
                raise _invalid("max_deleted", "a share between 0 and 1")
        case "expire":
            if task.expire.keep_last < 0 or task.expire.older_than.ToTimedelta() < timedelta():
                raise _invalid("keep_last and older_than", "a number or duration that is not negative")


def planned(realm: Realm, warehouse: Warehouse, table_id: v1.ResourceId, task: v1.MaintenanceTask) -> Planned:
    """What the task would do to the table now."""
    if not task.HasField("optimize"):
        return _cleaned(realm, warehouse, table_id, task, dry_run=True)
    table = load(realm, warehouse, table_id)
    groups = planned_groups(table, compaction_rules(task.optimize)(table.metadata))
    return Planned(
        [
            v1.PlannedFile(location=path, size_bytes=size, group=number, reason=group.reason)
            for number, group in enumerate(groups, start=1)
            for path, size in zip(group.paths, group.files["size_bytes"].to_pylist(), strict=True)
        ]
    )


def _cleaned(
    realm: Realm,
    warehouse: Warehouse,
    table_id: v1.ResourceId,
    task: v1.MaintenanceTask,
    *,
    dry_run: bool,
    check: Callable[[], None] = lambda: None,
) -> Planned:
    """Expire snapshots or remove orphan files; in a dry run, only report them."""
    if task.HasField("expire"):
        rules = expiry_rules(task.expire)
        return expire_snapshots(realm, warehouse, table_id, **rules, dry_run=dry_run, check=check)
    return remove_orphans(realm, warehouse, table_id, older_than=orphan_age_of(task.clean), dry_run=dry_run)


def run_task(
    realm: Realm,
    warehouse: Warehouse,
    table_id: v1.ResourceId,
    task: v1.MaintenanceTask,
    control: Control,
    *,
    job: LeasedJob,
    large: LargeOptimizer | None = None,
) -> Outcome:
    """Do the task. `control` stops it, and gets its progress. `large` is for optimizations on Spark."""
    realm = replace(realm, past_protection=True)
    name = load(realm, warehouse, table_id).table.display_name
    outcome = Outcome(scanned=1)
    outcome.stages.total = 1
    outcome.stages.begun(name)
    control.report(outcome.progress)

    def on_progress(done: int, total: int) -> None:
        outcome.stages.files(name, Amounts(done), Amounts(total))
        control.report(outcome.progress)

    if task.HasField("optimize"):
        report = _optimized_elsewhere(realm, warehouse, table_id, task.optimize, control, job, large) or optimize(
            realm,
            warehouse,
            table_id,
            rules_of=compaction_rules(task.optimize),
            check=control.check,
            on_progress=on_progress,
        )
        outcome.result = rewriting_result(report, given_up=len(report.given_up))
        outcome.changed = int(report.commits > 0)
        outcome.note = (
            f"rewrote {report.files_before} files as {report.files_after}; {report.deletes_removed} unused delete files "
            f"removed; {report.manifests_before} manifests became {report.manifests_after}"
        )
        if report.given_up:
            outcome.note += f"; gave up {len(report.given_up)} groups, for others changed them: {report.given_up[0]}"
    else:
        removed = _cleaned(realm, warehouse, table_id, task, dry_run=False, check=control.check)
        outcome.result = v1.MaintenanceResult(
            snapshots_removed=len(removed.expired), files_removed=len(removed.files), bytes_removed=removed.size_bytes
        )
        outcome.changed = int(bool(removed.expired or removed.refs or removed.files))
        files = f"{len(removed.files)} {'files' if task.HasField('expire') else 'orphan files'}"
        snapshots = f"{len(removed.expired)} snapshots and " if task.HasField("expire") else ""
        outcome.note = f"removed {snapshots}{files}"
    outcome.stages.ended(name)
    return outcome


def rewriting_result(report: OptimizeReport | Packed, *, given_up: int) -> v1.MaintenanceResult:
    """The figures of an optimization."""
    return v1.MaintenanceResult(
        files_rewritten=report.files_before,
        files_added=report.files_after,
        bytes_rewritten=report.bytes_before,
        bytes_added=report.bytes_after,
        groups_given_up=given_up,
    )


def _optimized_elsewhere(
    realm: Realm,
    warehouse: Warehouse,
    table_id: v1.ResourceId,
    task: v1.OptimizeTask,
    control: Control,
    job: LeasedJob,
    large: LargeOptimizer | None,
) -> OptimizeReport | None:
    """What was done on Spark; None if the table is to be optimized in this process."""
    if task.engine == v1.OE_PROCESS or (large is None and task.engine != v1.OE_SPARK):
        return None
    if large is None:
        raise Unsupported(
            "this worker cannot optimize tables on Spark: install skiway[spark], or use the engine process",
            key="maintenance.spark.missing",
        )
    table = load(realm, warehouse, table_id)
    rules = compaction_rules(task)(table.metadata)
    size = sum(group.size_bytes for group in planned_groups(table, rules))
    if not runs_on_spark(task, size, large.from_bytes):
        return None
    catalog = hierarchy.catalog(realm, table.table.catalog_id).value
    path = hierarchy.full_path(hierarchy.namespace(realm, table.table.namespace_id).value)
    name = (catalog.display_name, *path, table.table.display_name)
    return large.optimize(table, name, rules, job=job, control=control)


def runs_on_spark(task: v1.OptimizeTask, size_bytes: int, from_bytes: int | None) -> bool:
    """Whether an optimization that rewrites `size_bytes` runs on Spark: on request, or if it is large."""
    if task.engine == v1.OE_UNSPECIFIED:
        return from_bytes is not None and size_bytes >= from_bytes
    return task.engine == v1.OE_SPARK


def compaction_rules(task: v1.OptimizeTask) -> RulesOf:
    """The rules of an optimization, for a given state of the table."""

    def rules_of(metadata: TableMetadata) -> CompactionRules:
        given: dict[str, Any] = {"order": new_order(metadata, sort=task.sort, z_order=list(task.z_order))}
        if task.target_file_bytes:
            given["target_bytes"] = task.target_file_bytes
        if task.min_files:
            given["min_files"] = task.min_files
        if task.HasField("max_deleted"):
            given["max_deleted"] = task.max_deleted
        return CompactionRules.of(metadata, **given)

    return rules_of


def expiry_rules(task: v1.ExpireTask) -> Mapping[str, Any]:
    """The rules of an expiry, as arguments of `expire_snapshots`."""
    age = task.older_than.ToTimedelta() if task.HasField("older_than") else None
    return {
        "max_age_ms": None if age is None else int(age.total_seconds() * 1000),
        "min_count": task.keep_last or None,
    }


def orphan_age_of(task: v1.CleanTask) -> timedelta | None:
    """The age that a task gives; None if it gives none."""
    return task.older_than.ToTimedelta() if task.HasField("older_than") else None


def with_orphan_age(task: v1.MaintenanceTask, age: timedelta | None) -> v1.MaintenanceTask:
    """The task, with this age if it cleans and gives none: the worker that runs it may have other settings."""
    made = v1.MaintenanceTask()
    made.CopyFrom(task)
    if made.HasField("clean") and not made.clean.HasField("older_than") and age is not None:
        made.clean.older_than.FromTimedelta(age)
    return made


def _invalid(fields: str, wanted: str) -> InvalidArgument:
    return InvalidArgument(f"{fields} must be {wanted}", key="field.invalid", field=fields)


ACTIONS: Final = ("optimize", "expire", "clean")
_MOST_BYTES: Final = 10 << 30
_ENGINES: Final[Mapping[str, v1.OptimizeEngine.ValueType]] = {
    "auto": v1.OE_UNSPECIFIED,
    "process": v1.OE_PROCESS,
    "spark": v1.OE_SPARK,
}

log = logging.getLogger("skiway.maintenance")


class TablePolicy(InheritedProperties):
    """The properties about maintenance that a table has or inherits."""

    def task(self, action: str) -> v1.MaintenanceTask:
        """The task of an action, with the options that the properties set."""
        match action:
            case "optimize":
                task = v1.OptimizeTask(min_files=self.number("optimize.min-files", 0), engine=self._engine())
                if "optimize.max-deleted" in self.properties:
                    task.max_deleted = self.share("optimize.max-deleted", 0)
                made = v1.MaintenanceTask(optimize=task)
            case "expire":
                made = v1.MaintenanceTask(expire=v1.ExpireTask(keep_last=self.number("expire.keep-last", 0)))
                if (age := self.duration("expire.older-than")) is not None:
                    made.expire.older_than.FromTimedelta(age)
            case _:
                made = v1.MaintenanceTask(clean=v1.CleanTask())
                if (age := self.duration("clean.older-than")) is not None:
                    made.clean.older_than.FromTimedelta(age)
        check_task(made)
        return made

    @property
    def most_bytes(self) -> int:
        """How much an automatic optimization may rewrite."""
        return self.number("optimize.max-bytes", _MOST_BYTES)

    def _engine(self) -> v1.OptimizeEngine.ValueType:
        found = self.text("optimize.engine", "auto")
        if found not in _ENGINES:
            raise self.invalid("optimize.engine", "auto, process or spark")
        return _ENGINES[found]


def policy_of(realm: Realm, table: v1.Table) -> TablePolicy:
    """The policy of a table: its own properties, and those that it inherits."""
    return TablePolicy(MAINTENANCE, inherited(realm, table, MAINTENANCE))


def start_due(
    stores: Stores,
    warehouse: Warehouse,
    *,
    realm_of: Callable[[str], Realm],
    size: int = 20,
    orphan_age: timedelta | None = None,
    spark_from_bytes: int | None = None,
    token: str | None = None,
) -> tuple[Slice, list[v1.Job]]:
    """Look at the next tables of all accounts, and start the jobs that their policies ask for.

    Optimizations that rewrite at least `spark_from_bytes` run on Spark.

    Returns how many tables were examined, where to continue, and the jobs. A table that cannot be examined is logged.
    """
    started = list[v1.Job]()

    def visit(account_id: str, pointer: Pointer) -> None:
        realm = realm_of(account_id)
        table = realm.all(TABLE).follow(pointer)
        if table is not None and table.value.metadata_location:
            started.extend(_started(realm, warehouse, table.value, orphan_age, spark_from_bytes))

    looked_at, next_token = visit_accounts(stores, keys.table, visit, size=size, token=token)
    return Slice(looked_at, next_token=next_token), started


def _started(
    realm: Realm, warehouse: Warehouse, table: v1.Table, orphan_age: timedelta | None, spark_from_bytes: int | None
) -> Iterator[v1.Job]:
    """Start the jobs of a table that are due."""
    try:
        policy = policy_of(realm, table)
        for action in filter(policy.is_auto, ACTIONS):
            task = with_orphan_age(policy.task(action), orphan_age)
            if _is_due(realm, warehouse, table, policy, task, spark_from_bytes):
                yield jobs.enqueue(realm, v1.Job(table_id=table.resource_id, maintenance=task))
    except SkiwayError as error:
        # One broken table must not stop the others.
        log.warning("table %s of account %s is not maintained: %s", table.display_name, realm.account_id, error)


def _is_due(
    realm: Realm,
    warehouse: Warehouse,
    table: v1.Table,
    policy: TablePolicy,
    task: v1.MaintenanceTask,
    spark_from_bytes: int | None,
) -> bool:
    """Whether a task would do anything now, and not too much for this process."""
    match task.WhichOneof("task"):
        case "optimize":
            now = load(realm, warehouse, table.resource_id)
            groups = planned_groups(now, compaction_rules(task.optimize)(now.metadata))
            size = sum(group.size_bytes for group in groups)
            if size > policy.most_bytes and not runs_on_spark(task.optimize, size, spark_from_bytes):
                log.warning(
                    "table %s is not optimized automatically, because %d bytes are to be rewritten, which is more than "
                    "maintenance.optimize.max-bytes: run skiway tables optimize",
                    table.display_name,
                    size,
                )
                return False
            return bool(groups or unused_deletes(now.metadata, now.files))
        case _:
            due = planned(realm, warehouse, table.resource_id, task)
            return bool(due.refs or due.files or due.expired)
