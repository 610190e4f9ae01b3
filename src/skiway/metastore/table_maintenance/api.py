"""The calls of `MaintenanceService`: the health of a table, what a task would do, and tasks as jobs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import islice
from typing import Final, TypeVar

from skiway.errors import NotFound, Unsupported
from skiway.formats.iceberg.warehouse import Warehouse
from skiway.metastore import jobs
from skiway.metastore.gc.references import TRANSACTION_LIFETIME
from skiway.metastore.managed.states import managed_record
from skiway.metastore.records.errors import failure
from skiway.metastore.records.realm import Realm
from skiway.metastore.resources import hierarchy
from skiway.metastore.table_maintenance.health import table_health
from skiway.metastore.table_maintenance.sources import SourceTables, not_maintained
from skiway.metastore.table_maintenance.tasks import check_task, planned, with_orphan_age
from skiway.model import v1

__all__ = ["MaintenanceArea", "get", "health", "plan", "start"]

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
    """The health of a managed table. Files tell about rows, so callers whom policies restrict do not get it."""
    table = managed_record(realm, request.table_id).value
    realm.require_unrestricted(table)
    found = table_health(as_server(realm), area.files(), table.resource_id, orphans_older_than=area.orphan_age)
    return v1.GetTableHealthResponse(health=found)


def plan(
    realm: Realm, request: v1.PlanMaintenanceRequest, *, area: MaintenanceArea
) -> Iterator[v1.PlanMaintenanceResponse]:
    """Everything that a task would do to a managed table now: a dry run."""
    table = _writable(realm, request.table_id)
    check_task(request.task)
    if table.metadata_location:
        found = planned(as_server(realm), area.files(), table.resource_id, request.task, orphan_age=area.orphan_age)
    else:
        found = _sources(area, table).planned(as_server(realm), table, request.task)
    yield v1.PlanMaintenanceResponse(refs=found.refs, action=request.task.WhichOneof("task") or "")
    for snapshots in _parts(found.snapshots):
        yield v1.PlanMaintenanceResponse(snapshots=snapshots)
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
        _sources(area, table).check(as_server(realm), table, task := request.task)
    return v1.StartMaintenanceResponse(job=jobs.enqueue_maintenance(realm, table.resource_id, task))


def get(realm: Realm, request: v1.GetMaintenanceRequest) -> v1.GetMaintenanceResponse:
    """The job, if it maintains this table. Callers whom policies restrict do not get it: it counts files."""
    table = hierarchy.table(realm, request.table_id).value
    if not table.metadata_location and not table.upstream.connector_id.id:
        raise not_maintained(table)
    realm.require_unrestricted(table)
    found = jobs.get(realm, v1.GetReconcileJobRequest(job_id=request.job_id)).job
    if not found.HasField("maintenance") or found.table_id.id != table.resource_id.id:
        raise failure(NotFound, "job", resource="job", id=request.job_id)
    return v1.GetMaintenanceResponse(job=found)


def as_server(realm: Realm) -> Realm:
    """The realm without the limits of its caller: whatever anybody reads must stay."""
    return replace(realm, access=None, policies=None)


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
