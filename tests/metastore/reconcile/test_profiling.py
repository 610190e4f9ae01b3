"""Statistics of managed tables, captured directly and by jobs, with a stand-in for Spark that records its calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from metastore.managed_table_factory import ManagedTableFactory, id_of
from metastore.resource_factory import ResourceFactory
from skiway.errors import InvalidArgument, NotFound, PreconditionFailed, Unsupported
from skiway.formats.iceberg.changes.commits import delete_all
from skiway.metastore import connectors, jobs, quality, statistics
from skiway.metastore import managed as managed_tables
from skiway.metastore.jobs.attempts import Amounts
from skiway.metastore.reconcile.outcomes import Control
from skiway.metastore.reconcile.reconciler import Reconciler, capture
from skiway.model import v1
from skiway.security import MemorySecrets


@dataclass
class RecordingProfiler:
    """Records which snapshots it profiles, and reports that all files were read or that some failed."""

    profiled: list[int] = field(default_factory=list)
    failed: Mapping[str, str] = field(default_factory=dict)
    version: int = statistics.CURRENT_VERSION
    runs: list[str] = field(default_factory=list)
    other_formats: Mapping[str, int] = field(default_factory=dict)

    def __call__(
        self, realm: Any, table_id: Any, snapshot: Any, *, handle: Any, on_progress: Any, again: str, **_: Any
    ) -> RecordingProfiler:
        self.profiled.append(snapshot.id)
        self.runs.append(again)
        files = handle.files(snapshot).num_rows
        on_progress(Amounts(files), Amounts(files))
        stats = v1.TableStats(row_count=files, data_file_count=files)
        stats.properties["files.profiled"] = str(files - len(self.failed))
        stats.properties[statistics.PROFILE_VERSION] = str(self.version)
        statistics.put_table(realm, v1.PutTableStatsRequest(table_id=table_id, snapshot_id=snapshot.id, stats=stats))
        return self


@pytest.fixture
def managed(factory: ResourceFactory, tmp_path: Path) -> ManagedTableFactory:
    return ManagedTableFactory.at(factory, tmp_path)


def reconciler(managed: ManagedTableFactory, profile: Any) -> Reconciler:
    return Reconciler(MemorySecrets(), profile, warehouse=managed.warehouse)


def capture_statistics(managed: ManagedTableFactory, table: Any, profile: Any) -> v1.SyncCaptureResponse:
    request = v1.SyncCaptureRequest(table_id=id_of(table), include_statistics=True)
    return capture(managed.home, request, reconciler=reconciler(managed, profile))


def test_current_snapshot_is_profiled_once(managed: ManagedTableFactory) -> None:
    table, profile = managed.append(managed.append(managed.create(), 1), 2), RecordingProfiler()
    response = capture_statistics(managed, table, profile)
    assert (response.tables_scanned, response.tables_changed, response.errors) == (1, 1, 0)
    assert capture_statistics(managed, table, profile).tables_changed == 0
    assert profile.profiled == [table.metadata.current_snapshot_id]
    after = managed.append(table, 3)
    assert capture_statistics(managed, table, profile).tables_changed == 1
    assert profile.profiled[1:] == [after.metadata.current_snapshot_id]


def test_profile_is_followed_by_a_check_of_the_quality_rules(managed: ManagedTableFactory) -> None:
    table = managed.append(managed.create(), 1)
    spec = v1.QualityRuleSpec(
        display_name="rows", table_id=id_of(table), check=v1.RuleCheck(row_count=v1.RowCountCheck(min=2))
    )
    quality.CALLS.create(managed.home, v1.CreateRuleRequest(spec=spec))
    capture_statistics(managed, table, RecordingProfiler())
    found = quality.CALLS.get(managed.home, v1.GetRuleRequest(display_name="rows")).rule.result
    assert (found.status, found.snapshot_id) == (v1.RST_FAILED, table.metadata.current_snapshot_id)


def test_table_without_snapshots_is_not_profiled(managed: ManagedTableFactory) -> None:
    profile = RecordingProfiler()
    assert capture_statistics(managed, managed.create(), profile).tables_changed == 0
    assert profile.profiled == []


def test_table_without_files_is_profiled_once(managed: ManagedTableFactory) -> None:
    table, profile = managed.append(managed.create(), 1), RecordingProfiler()
    managed_tables.change(managed.home, managed.warehouse, id_of(table), delete_all())
    assert [capture_statistics(managed, table, profile).tables_changed for _ in range(2)] == [1, 0]


def test_unreadable_files_are_reported_and_retried(managed: ManagedTableFactory) -> None:
    table, profile = managed.append(managed.create(), 1), RecordingProfiler(failed={"a.parquet": "it is corrupt"})
    response = capture_statistics(managed, table, profile)
    assert (response.errors, response.table_errors[0].table) == (1, "people")
    assert "a.parquet: it is corrupt" in response.table_errors[0].message
    profile.failed = {}
    assert capture_statistics(managed, table, profile).errors == 0
    assert len(profile.profiled) == 2


def test_job_profiles_the_table_and_is_not_enqueued_twice(managed: ManagedTableFactory) -> None:
    table, profile = managed.append(managed.create(), 1), RecordingProfiler()
    request = v1.TriggerReconcileRequest(table_id=id_of(table))
    job_id = connectors.trigger(managed.home, request).job_id
    assert connectors.trigger(managed.home, request).job_id == job_id
    other = managed.append(managed.create("other"), 1)
    assert connectors.trigger(managed.home, v1.TriggerReconcileRequest(table_id=id_of(other))).job_id != job_id
    job = jobs.get(managed.home, v1.GetReconcileJobRequest(job_id=job_id)).job
    assert not job.HasField("connector_id")
    outcome = reconciler(managed, profile).job(managed.home, job, Control())
    assert (outcome.scanned, outcome.changed, outcome.failures) == (1, 1, {})
    assert profile.profiled == [table.metadata.current_snapshot_id]
    assert len(jobs.list_(managed.home, v1.ListReconcileJobsRequest()).jobs) == 2


def test_full_rescan_profiles_again(managed: ManagedTableFactory) -> None:
    """Every run has an id, so that files are read again once in it; that of a job is the same in all of its attempts."""
    table, profile = managed.append(managed.create(), 1), RecordingProfiler()
    for _ in range(2):
        reconciler(managed, profile).managed(managed.home, id_of(table), full_rescan=True)
    assert len(set(profile.runs)) == len(profile.profiled) == 2
    request = v1.TriggerReconcileRequest(table_id=id_of(table), full_rescan=True)
    job_id = connectors.trigger(managed.home, request).job_id
    job = jobs.get(managed.home, v1.GetReconcileJobRequest(job_id=job_id)).job
    for _ in range(2):
        reconciler(managed, profile).job(managed.home, job, Control())
    assert profile.runs[2:] == [job_id, job_id]
    after = managed.append(table, 2)
    reconciler(managed, profile).managed(managed.home, id_of(after))
    assert profile.runs[4:] == [""]


def test_statistics_of_an_older_version_are_profiled_again(managed: ManagedTableFactory) -> None:
    table, profile = managed.append(managed.create(), 1), RecordingProfiler(version=statistics.CURRENT_VERSION - 1)
    assert [capture_statistics(managed, table, profile).tables_changed for _ in range(2)] == [1, 1]
    profile.version = statistics.CURRENT_VERSION
    assert [capture_statistics(managed, table, profile).tables_changed for _ in range(2)] == [1, 0]


def test_unsupported_profiling_request_is_rejected_with_a_reason(managed: ManagedTableFactory) -> None:
    table = managed.append(managed.create(), 1)
    mirrored = managed.factory.table("mirrored")
    with pytest.raises(PreconditionFailed, match="trigger the connector that mirrors it"):
        connectors.trigger(managed.home, v1.TriggerReconcileRequest(table_id=mirrored.resource_id))
    with pytest.raises(PreconditionFailed, match="is not a managed table"):
        capture_statistics(managed, mirrored, RecordingProfiler())
    with pytest.raises(NotFound):
        connectors.trigger(managed.home, v1.TriggerReconcileRequest(table_id=v1.ResourceId(id="none")))
    request = v1.SyncCaptureRequest(table_id=id_of(table))
    with pytest.raises(InvalidArgument, match="set include_statistics"):
        capture(managed.home, request, reconciler=reconciler(managed, RecordingProfiler()))
    with pytest.raises(Unsupported, match="does not profile tables"):
        capture_statistics(managed, table, None)
