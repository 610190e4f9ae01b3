"""The calls of `MaintenanceService`: the health of a table, what a task would do, and tasks as jobs, also in the sources of
mirrored tables.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice, pairwise
from typing import Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from skiway.errors import Conflict, InvalidArgument, NotFound, PreconditionFailed, Unsupported
from skiway.formats import Content, Packed, RewritableTable, data_files, location
from skiway.formats.iceberg.changes.maintenance import CompactionRules, FileGroup, unused_deletes
from skiway.formats.iceberg.warehouse import Warehouse
from skiway.metastore import jobs
from skiway.metastore.gc.warehouse import TRANSACTION_LIFETIME, leased_tables
from skiway.metastore.managed.states import ManagedTable, load, managed_record
from skiway.metastore.reconcile.outcomes import Control, Outcome
from skiway.metastore.reconcile.reconciler import Reconciler
from skiway.metastore.records.errors import failure
from skiway.metastore.records.realm import Realm
from skiway.metastore.resources import hierarchy, snapshots
from skiway.metastore.table_maintenance.cleaning import Planned, expire_snapshots, remove_orphans
from skiway.metastore.table_maintenance.optimizing import ATTEMPTS, MIN_MANIFESTS, live_manifests, planned_groups
from skiway.metastore.table_maintenance.tasks import (
    check_task,
    orphan_age_of,
    planned,
    rewriting_result,
    with_orphan_age,
)
from skiway.model import v1

_LIMITS: Final = (1 << 20, 16 << 20, 128 << 20, 512 << 20)
_OPEN_COST: Final = "read.split.open-file-cost"
_OPEN_COST_STORE: Final = 4 << 20
_OPEN_COST_DISK: Final = 512 << 10


def table_health(
    realm: Realm, warehouse: Warehouse, table_id: v1.ResourceId, *, orphans_older_than: timedelta | None = None
) -> v1.TableHealth:
    """The health of a table now. The realm must be that of the server: leases of all callers count."""
    table = load(realm, warehouse, table_id)
    current = table.handle.current()
    files = None if current is None else table.handle.files(current)
    rules = CompactionRules.of(table.metadata)
    health = v1.TableHealth(table_id=table.table.resource_id, snapshots=len(table.metadata.snapshots))
    if current is not None and files is not None:
        health.snapshot_id = current.id
        _count_files(health, files, rules)
        manifests = live_manifests(table)
        health.manifests = len(manifests)
        health.manifest_bytes = sum(manifest.manifest_length for manifest in manifests)
    groups = planned_groups(table, rules)
    if files is not None:
        health.expected_gain = _expected_gain(files, groups, rules, open_cost=_open_cost(table))
    unused = unused_deletes(table.metadata, table.files)
    expired = expire_snapshots(realm, warehouse, table_id, dry_run=True)
    orphans = remove_orphans(realm, warehouse, table_id, older_than=orphans_older_than, dry_run=True)
    health.expirable_snapshots = len(expired.expired)
    health.expirable_bytes = expired.size_bytes
    health.orphan_files, health.orphan_bytes = len(orphans.files), orphans.size_bytes
    health.reclaimable_bytes = expired.size_bytes + orphans.size_bytes
    health.decisions.extend(
        [
            _optimize_decision(health, groups, rules, unused=len(unused)),
            _expire_decision(expired),
            _clean_decision(orphans),
        ]
    )
    return health


def _count_files(health: v1.TableHealth, files: pa.Table, rules: CompactionRules) -> None:
    data = data_files(files)
    sizes: list[int] = data["size_bytes"].to_pylist()
    small = [size for size in sizes if rules.is_small(size)]
    health.target_file_bytes = rules.target_bytes
    health.data_files, health.data_bytes = len(sizes), sum(sizes)
    health.small_files, health.small_bytes = len(small), sum(small)
    health.rows = _total(data["row_count"])
    health.sizes.extend(_histogram(sizes))
    deletes = files.filter(pc.not_equal(files["content"], Content.DATA))
    health.delete_files, health.delete_bytes = deletes.num_rows, _total(deletes["size_bytes"])
    by_position = deletes.filter(pc.equal(deletes["content"], Content.POSITION_DELETES))
    health.equality_delete_files = deletes.num_rows - by_position.num_rows
    health.deleted_rows = min(_total(by_position["row_count"]), health.rows)
    health.deleted_share = health.deleted_rows / health.rows if health.rows else 0.0


def _histogram(sizes: Sequence[int]) -> Iterator[v1.FileSizes]:
    """How many files are how large."""
    lower = 0
    for upper in (*_LIMITS, 0):
        inside = [size for size in sizes if lower <= size and (size < upper or not upper)]
        yield v1.FileSizes(from_bytes=lower, to_bytes=upper, files=len(inside), bytes=sum(inside))
        lower = upper


def _open_cost(table: ManagedTable) -> int:
    """How many bytes can be read in the time that it takes to open a file."""
    given = table.metadata.properties.get(_OPEN_COST, "")
    if given.isdecimal():
        return int(given)
    return _OPEN_COST_DISK if location(table.metadata.location).scheme == "file" else _OPEN_COST_STORE


def _expected_gain(files: pa.Table, groups: Sequence[FileGroup], rules: CompactionRules, *, open_cost: int) -> float:
    """The share of the time of a full scan that `optimize` would save.

    The time is estimated by the bytes of data files and delete files, and by a cost for opening each of them. Rewritten files are
    taken to keep their size.
    """
    data = data_files(files)
    rewritten = pa.array([path for group in groups for path in group.paths], pa.string())
    kept = data.filter(pc.invert(pc.is_in(data["path"], value_set=rewritten)))
    before = _total(files["size_bytes"]) + open_cost * files.num_rows
    after = _total(kept["size_bytes"]) + open_cost * kept.num_rows
    after += sum(group.size_bytes + open_cost * _files_after(group, rules) for group in groups)
    applied = files.filter(pc.is_in(files["ordinal"], value_set=pc.list_flatten(kept["deletes"]).unique()))
    after += _total(applied["size_bytes"]) + open_cost * applied.num_rows
    return max(0.0, 1 - after / before) if before else 0.0


def _files_after(group: FileGroup, rules: CompactionRules) -> int:
    return max(1, -(-group.size_bytes // rules.target_bytes))


def _optimize_decision(
    health: v1.TableHealth, groups: Sequence[FileGroup], rules: CompactionRules, *, unused: int
) -> v1.MaintenanceDecision:
    before = sum(group.files.num_rows for group in groups)
    size = sum(group.size_bytes for group in groups)
    after = sum(_files_after(group, rules) for group in groups)
    reasons = []
    if groups:
        reasons.append(
            f"{before} of {health.data_files} data files, {_size(size)}, would become about {after} of up to "
            f"{_size(rules.target_bytes)} ({_summary(groups)}), and a full scan would take about {health.expected_gain:.0%} less "
            "time (an estimate)"
        )
    if unused:
        reasons.append(f"{unused} delete files apply to no data file any more")
    if health.manifests >= 2 * MIN_MANIFESTS:
        reasons.append(f"{health.manifests} manifests would be merged")
    health.files_saved = max(0, before - after)
    is_due = bool(reasons)
    if not is_due:
        reasons.append(
            f"{health.small_files} of {health.data_files} data files are smaller than three quarters of "
            f"{_size(rules.target_bytes)}, and {health.deleted_share:.0%} of the rows are deleted: too few to rewrite"
        )
    return v1.MaintenanceDecision(action="optimize", is_due=is_due, reason="; ".join(reasons))


def _summary(groups: Sequence[FileGroup]) -> str:
    places = "1 group" if len(groups) == 1 else f"{len(groups)} groups"
    return f"{places}, the first with {groups[0].reason}"


def _expire_decision(report: Planned) -> v1.MaintenanceDecision:
    kept = Counter(report.kept.values())
    staying = "; ".join(f"{number} kept: {reason}" for reason, number in sorted(kept.items())) or "there are no others"
    what = f"{len(report.expired)} snapshots expire, which frees {len(report.files)} files, {_size(report.size_bytes)}"
    is_due = bool(report.expired or report.refs)
    return v1.MaintenanceDecision(
        action="expire", is_due=is_due, reason=f"{what if is_due else 'no snapshot expires'} ({staying})"
    )


def _clean_decision(report: Planned) -> v1.MaintenanceDecision:
    what = f"{len(report.files)} files, {_size(report.size_bytes)}, are old and no state of the table references them"
    return v1.MaintenanceDecision(
        action="clean", is_due=bool(report.files), reason=what if report.files else "there are no old orphan files"
    )


def _total(column: pa.ChunkedArray) -> int:
    return int(pc.sum(column, min_count=0).as_py())


def _size(number: float) -> str:
    """A number of bytes in words."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if number < 1024:
            return f"{number:.0f} {unit}" if unit == "bytes" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} TiB"


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
                outcome.result = rewriting_result(done, given_up=int(attempts > ATTEMPTS))
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
    """The versions of a mirrored table that queries of the lake may read now."""
    known = sorted(snapshots.scan(realm, table_id), key=lambda each: each.snapshot_id)
    since = realm.clock() - TRANSACTION_LIFETIME
    used = {table.snapshot_id for table in leased_tables(realm, table_id)}
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


_MESSAGE_FILES: Final = 1000
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class MaintenanceArea:
    """Where tables are maintained, and the age from which files count as orphans. Without a warehouse there are none.

    `sources` maintains mirrored tables in their sources.
    """

    warehouse: Warehouse | None = None
    orphan_age: timedelta | None = None
    sources: SourceTables | None = None

    @classmethod
    def of(cls, warehouse: Warehouse, orphan_age_ms: int, sources: SourceTables | None = None) -> MaintenanceArea:
        """The area with the age of the sweep of the warehouse, which is too young for callers if it is below an hour."""
        return cls(warehouse, max(TRANSACTION_LIFETIME, timedelta(milliseconds=orphan_age_ms)), sources)

    def files(self) -> Warehouse:
        """The warehouse. Raise `Unsupported` if there is none."""
        if self.warehouse is None:
            raise Unsupported("this server has no warehouse, so it has no tables to maintain", key="warehouse.missing")
        return self.warehouse


def health(realm: Realm, request: v1.GetTableHealthRequest, *, area: MaintenanceArea) -> v1.GetTableHealthResponse:
    """The health of a managed table. Files tell about rows, so callers who are restricted by policies do not get it."""
    table = managed_record(realm, request.table_id).value
    realm.require_unrestricted(table)
    found = table_health(realm.as_server(), area.files(), table.resource_id, orphans_older_than=area.orphan_age)
    return v1.GetTableHealthResponse(health=found)


def plan(
    realm: Realm, request: v1.PlanMaintenanceRequest, *, area: MaintenanceArea
) -> Iterator[v1.PlanMaintenanceResponse]:
    """Everything that a task would do to a managed table now: a dry run."""
    table = _writable(realm, request.table_id)
    check_task(request.task)
    if table.metadata_location:
        task = with_orphan_age(request.task, area.orphan_age)
        found = planned(realm.as_server(), area.files(), table.resource_id, task)
    else:
        found = _sources(area, table).planned(realm.as_server(), table, request.task)
    yield v1.PlanMaintenanceResponse(refs=found.refs, action=request.task.WhichOneof("task") or "")
    for part in _parts(found.snapshots):
        yield v1.PlanMaintenanceResponse(snapshots=part)
    for files in _parts(found.files):
        yield v1.PlanMaintenanceResponse(files=files)


def start(realm: Realm, request: v1.StartMaintenanceRequest, *, area: MaintenanceArea) -> v1.StartMaintenanceResponse:
    """Enqueue a job for the task. If an unfinished job does the same, return that one."""
    table = _writable(realm, request.table_id)
    check_task(request.task)
    if table.metadata_location:
        area.files()
        task = with_orphan_age(request.task, area.orphan_age)
    else:  # files of Delta tables have an age of their own
        _sources(area, table).check(realm.as_server(), table, task := request.task)
    return v1.StartMaintenanceResponse(job=jobs.enqueue(realm, v1.Job(table_id=table.resource_id, maintenance=task)))


def get(realm: Realm, request: v1.GetMaintenanceRequest) -> v1.GetMaintenanceResponse:
    """The job, if it maintains this table. Callers who are restricted by policies do not get it: it counts files."""
    table = hierarchy.table(realm, request.table_id).value
    if not table.metadata_location and not table.upstream.connector_id.id:
        raise not_maintained(table)
    realm.require_unrestricted(table)
    found = jobs.get(realm, v1.GetReconcileJobRequest(job_id=request.job_id)).job
    if not found.HasField("maintenance") or found.table_id.id != table.resource_id.id:
        raise failure(NotFound, "job", resource="job", id=request.job_id)
    return v1.GetMaintenanceResponse(job=found)


def _writable(realm: Realm, table_id: v1.ResourceId) -> v1.Table:
    table = hierarchy.table(realm, table_id).value
    realm.require("table.write", table)
    return table


def _sources(area: MaintenanceArea, table: v1.Table) -> SourceTables:
    """What maintains a mirrored table. Raise `PreconditionFailed` if nothing does."""
    if area.sources is None or not table.upstream.connector_id.id:
        raise not_maintained(table)
    return area.sources


def _parts(items: Sequence[T]) -> Iterator[list[T]]:
    rest = iter(items)
    while some := list(islice(rest, _MESSAGE_FILES)):
        yield some
