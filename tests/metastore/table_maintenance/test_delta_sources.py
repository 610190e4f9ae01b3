"""OPTIMIZE and VACUUM of Delta tables in sources that the operator has opened for it."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable as Written
from deltalake import write_deltalake

from metastore.managed_table_factory import ManagedTableFactory
from metastore.resource_factory import ResourceFactory
from metastore.upstreams import SECRETS, connector, mirrored
from skiway.errors import Conflict, InvalidArgument, PermissionDenied, PreconditionFailed, Unsupported
from skiway.formats import location, open_source
from skiway.formats.delta.table import DeltaTable
from skiway.metastore import jobs, queries, table_maintenance
from skiway.metastore.jobs.queue import JobQueue
from skiway.metastore.queries.leases import QueryRules
from skiway.metastore.reconcile.outcomes import Control
from skiway.metastore.reconcile.reconciler import Reconciler
from skiway.metastore.table_maintenance import MaintenanceArea
from skiway.metastore.table_maintenance.api import SourceTables, versions_in_use
from skiway.model import v1
from skiway.security.source_access import SourceAccess
from skiway.spark_jobs.worker import Worker, jobs_of

LEASES = QueryRules(max_ttl_s=1e9)
OPTIMIZE = v1.MaintenanceTask(optimize=v1.OptimizeTask())
LONG_AGO_S = 30 * 86400


def vacuum(hours: int = 24 * 7) -> v1.MaintenanceTask:
    task = v1.MaintenanceTask(clean=v1.CleanTask())
    task.clean.older_than.FromSeconds(hours * 3600)
    return task


@dataclass
class Mirrored:
    """A Delta table, its mirror, and a worker."""

    factory: ResourceFactory
    folder: Path
    area: MaintenanceArea
    worker: Worker

    @property
    def table(self) -> v1.Table:
        return next(each for each in mirrored(self.factory).values() if each.display_name == "orders")

    def append(self, *ids: int) -> None:
        write_deltalake(self.folder, pa.table({"id": list(ids)}), mode="append")

    def sync(self) -> None:
        assert self.area.sources is not None
        self.area.sources._synchronize(self.factory.home, self.table, Control())

    def run(self, task: v1.MaintenanceTask) -> v1.Job:
        """Run a task as a job."""
        request = v1.StartMaintenanceRequest(table_id=self.table.resource_id, task=task)
        job = table_maintenance.start(self.factory.home, request, area=self.area).job
        assert self.worker.work_once()
        got = v1.GetMaintenanceRequest(table_id=self.table.resource_id, job_id=job.job_id)
        return table_maintenance.get(self.factory.home, got).job

    def plan(self, task: v1.MaintenanceTask) -> set[str]:
        request = v1.PlanMaintenanceRequest(table_id=self.table.resource_id, task=task)
        parts = table_maintenance.plan(self.factory.home, request, area=self.area)
        return {Path(file.location).name for part in parts for file in part.files}

    def lease(self) -> str:
        request = v1.BeginQueryRequest(
            default_catalog_id=self.table.catalog_id,
            inputs=[v1.QueryInput(table_id=self.table.resource_id)],
            ttl_seconds=10**7,
        )
        return queries.begin(self.factory.home, request, rules=LEASES).query.query_id

    def on_disk(self) -> set[str]:
        return {path.name for path in self.folder.glob("*.parquet")}

    def ids(self, version: int | None = None) -> list[int]:
        return sorted(Written(self.folder, version=version).to_pyarrow_table()["id"].to_pylist())

    def grow_old(self) -> None:
        """Make files and their removal old, as if a month had passed."""
        for file in self.folder.rglob("*.parquet"):
            os.utime(file, (time.time() - LONG_AGO_S,) * 2)
        for file in (self.folder / "_delta_log").glob("*.json"):
            actions = [json.loads(line) for line in file.read_text().splitlines()]
            for action in actions:
                if "remove" in action:
                    action["remove"]["deletionTimestamp"] -= LONG_AGO_S * 1000
            file.write_text("\n".join(map(json.dumps, actions)))
        self.factory.clock.advance(LONG_AGO_S)


def made(factory: ResourceFactory, folder: Path, writable: tuple[str, ...]) -> Mirrored:
    factory.catalog()
    home = ManagedTableFactory.at(factory, folder / "lake")
    access = SourceAccess(local_roots=(str(folder),), writable=writable)
    reconciler = Reconciler(SECRETS, None, partial(open_source, access=access), home.warehouse, access)
    area = MaintenanceArea(home.warehouse, sources=SourceTables(reconciler))
    queue = JobQueue(factory.stores, clock=factory.clock)
    worker = Worker(queue, jobs_of(lambda _account: factory.home, reconciler), name="w")
    found = Mirrored(factory, folder / "delta" / "shop" / "orders", area, worker)
    for number in range(6):
        found.append(number, number + 100)
    source = v1.ConnectorSource(namespace=v1.NamespacePath(segments=["shop"]))
    created = connector(factory, str(folder / "delta"), v1.CK_DELTA, source=source)
    outcome = reconciler.run(factory.home, created.resource_id, mode=v1.CAP_METADATA_ONLY_CORE)
    assert not outcome.failures, outcome.failures
    return found


@pytest.fixture
def delta(factory: ResourceFactory, tmp_path: Path) -> Mirrored:
    return made(factory, tmp_path, (str(tmp_path / "delta"),))


def test_files_are_packed_and_the_mirror_follows(delta: Mirrored) -> None:
    before = delta.ids()
    assert delta.plan(OPTIMIZE) == delta.on_disk()
    job = delta.run(OPTIMIZE)
    result = job.maintenance_result
    assert (job.state, result.files_rewritten, result.files_added) == (v1.JS_SUCCEEDED, 6, 1), job.message
    assert result.bytes_rewritten > result.bytes_added > 0
    assert (delta.ids(), delta.ids(5)) == (before, before)
    assert max(versions_in_use(delta.factory.home, delta.table.resource_id.id)) == Written(delta.folder).version() == 6


def test_vacuum_keeps_leased_versions_and_the_dry_run_lists_what_is_deleted(delta: Mirrored) -> None:
    rows, old = delta.ids(), delta.on_disk()
    lease = delta.lease()
    delta.run(OPTIMIZE)
    delta.grow_old()
    orphan = delta.folder / "part-00000-killed.parquet"
    orphan.write_bytes(b"x")
    assert delta.plan(vacuum()) == set(), "the orphan is young, and the rest is leased"
    os.utime(orphan, (time.time() - LONG_AGO_S,) * 2)
    assert delta.plan(vacuum()) == {orphan.name}
    delta.run(vacuum())
    assert delta.on_disk() >= old
    assert (delta.ids(5), orphan.exists()) == (rows, False)
    queries.end(delta.factory.home, v1.EndQueryRequest(query_id=lease), rules=LEASES)
    delta.factory.clock.advance(7200)
    planned, before = delta.plan(vacuum()), delta.on_disk()
    job = delta.run(vacuum())
    assert planned == old == before - delta.on_disk()
    assert (job.maintenance_result.files_removed, job.maintenance_result.bytes_removed > 0) == (6, True)
    assert delta.ids() == rows


def test_vacuum_keeps_what_was_mirrored_within_the_last_hour(delta: Mirrored) -> None:
    old = delta.on_disk()
    delta.grow_old()
    Written(delta.folder).optimize.compact()
    delta.grow_old()
    assert delta.plan(vacuum()) == set(), "the mirror still shows the version before"
    delta.sync()
    assert delta.plan(vacuum()) == set(), "a transaction may read it"
    delta.factory.clock.advance(3599)
    assert delta.plan(vacuum()) == set()
    delta.factory.clock.advance(2)
    assert delta.plan(vacuum()) == old


def test_retention_of_the_table_is_the_default(delta: Mirrored) -> None:
    delta.run(OPTIMIZE)
    delta.factory.clock.advance(LONG_AGO_S)
    task = v1.MaintenanceTask(clean=v1.CleanTask())
    assert delta.plan(task) == delta.plan(vacuum(1)) == set(), "removed just now"
    delta.grow_old()
    assert len(delta.plan(task)) == 6


def test_source_is_read_only_unless_the_operator_opens_it(factory: ResourceFactory, tmp_path: Path) -> None:
    closed = made(factory, tmp_path, (str(tmp_path / "other"),))
    before = closed.on_disk()
    for task in (OPTIMIZE, vacuum()):
        with pytest.raises(PermissionDenied, match=r"not open for maintenance.*sources\.writable"):
            closed.plan(task)
        with pytest.raises(PermissionDenied):
            closed.run(task)
    assert (closed.on_disk(), Written(closed.folder).version()) == (before, 5)


def test_worker_checks_the_permission_itself(delta: Mirrored, factory: ResourceFactory, tmp_path: Path) -> None:
    assert delta.area.sources is not None
    access = SourceAccess(local_roots=(str(tmp_path),))
    closed = Reconciler(SECRETS, None, partial(open_source, access=access), delta.area.warehouse, access)
    delta.worker.run = jobs_of(lambda _account: factory.home, closed)
    job = delta.run(OPTIMIZE)
    assert (job.state, "not open for maintenance" in job.message) == (v1.JS_FAILED, True)
    assert Written(delta.folder).version() == 5


def test_other_accounts_get_only_their_own_folders(tmp_path: Path) -> None:
    access = SourceAccess(writable=(f"{tmp_path}/{{account}}",))
    own = location(str(tmp_path / "a1" / "t"))
    assert access.of_account("a1").check_writable(own) == own
    for other in (access.of_account("a2"), access):
        with pytest.raises(PermissionDenied):
            other.check_writable(own)
    with pytest.raises(PermissionDenied):
        SourceAccess(writable=("/",)).check_writable(location("s3://bucket/t"))


def test_table_with_links_is_not_changed(delta: Mirrored, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (delta.folder / "p=1").symlink_to(tmp_path / "outside")
    with pytest.raises(PermissionDenied, match="contains the symbolic link"):
        delta.plan(vacuum())


@pytest.mark.parametrize("feature", ["deletionVectors", "columnMapping", "rowTracking", "clustering"])
def test_feature_that_would_be_lost_is_named(delta: Mirrored, feature: str) -> None:
    reader = [feature] if feature in ("deletionVectors", "columnMapping") else []
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": reader, "writerFeatures": [feature]}
    log = delta.folder / "_delta_log" / f"{6:020}.json"
    log.write_text(json.dumps({"protocol": protocol}))
    before = delta.on_disk()
    with pytest.raises(Unsupported, match=f"has the feature {feature}, which would not be kept"):
        delta.plan(OPTIMIZE)
    with pytest.raises(Unsupported):
        delta.run(vacuum())
    assert delta.on_disk() == before


@pytest.mark.parametrize(
    ("task", "error", "message"),
    [
        (v1.MaintenanceTask(expire=v1.ExpireTask()), Unsupported, "use clean"),
        (v1.MaintenanceTask(optimize=v1.OptimizeTask(sort="id")), Unsupported, "cannot be sorted here"),
        (v1.MaintenanceTask(optimize=v1.OptimizeTask(engine=v1.OE_SPARK)), Unsupported, "cannot be optimized on Spark"),
        (vacuum(0), InvalidArgument, "older than an hour"),
    ],
)
def test_wrong_tasks_say_what_to_do(delta: Mirrored, task: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        delta.run(task)


def test_rows_are_put_in_z_order(delta: Mirrored) -> None:
    rows = delta.ids()
    job = delta.run(v1.MaintenanceTask(optimize=v1.OptimizeTask(z_order=["id"])))
    assert (job.state, len(delta.on_disk()), delta.ids()) == (v1.JS_SUCCEEDED, 7, rows)


@pytest.mark.parametrize(("lost", "given_up"), [(3, 0), (4, 1)])
def test_writers_win(delta: Mirrored, monkeypatch: pytest.MonkeyPatch, lost: int, given_up: int) -> None:
    original, tries = DeltaTable.pack, iter(range(100))

    def pack(self: DeltaTable, **options: Any) -> Any:
        if next(tries) < lost:
            raise Conflict("others were faster")
        return original(self, **options)

    monkeypatch.setattr(DeltaTable, "pack", pack)
    job = delta.run(OPTIMIZE)
    assert (job.state, job.maintenance_result.groups_given_up) == (v1.JS_SUCCEEDED, given_up)
    assert len(Written(delta.folder).file_uris()) == (6 if given_up else 1)


def test_other_mirrors_are_maintained_in_their_source(factory: ResourceFactory, delta: Mirrored) -> None:
    table = factory.table("loose")
    request = v1.StartMaintenanceRequest(table_id=table.resource_id, task=OPTIMIZE)
    with pytest.raises(PreconditionFailed, match="is not a managed table: change it in its source"):
        table_maintenance.start(factory.home, request, area=delta.area)
    assert not list(jobs.scan(factory.home))
