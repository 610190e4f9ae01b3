"""Automatic profiles: managed tables are profiled after writes, when enough rows have changed and nobody is writing."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table.update import SetPropertiesUpdate

from metastore.managed_table_factory import ManagedTableFactory, id_of
from metastore.races import meanwhile
from metastore.reconcile.test_profiling import RecordingProfiler
from metastore.resource_factory import ResourceFactory, mask
from skiway.errors import SkiwayError
from skiway.formats.iceberg.changes.commits import overwrite, plain
from skiway.metastore import catalogs, jobs, namespaces
from skiway.metastore import managed as managed_tables
from skiway.metastore.jobs.queue import JobQueue
from skiway.metastore.managed.states import ManagedTable
from skiway.metastore.reconcile import profiling
from skiway.metastore.reconcile.profiling import ProfileRules, Started, start_profiles
from skiway.metastore.reconcile.reconciler import Reconciler
from skiway.metastore.records import keys
from skiway.model import v1
from skiway.security import MemorySecrets
from skiway.spark_jobs.worker import Worker, jobs_of

MINUTE = 60.0
AUTO = ProfileRules(automatic=True)


@dataclass
class Lake:
    """Managed tables, the sweep that looks at them, and a worker with a stand-in for Spark."""

    managed: ManagedTableFactory
    profiler: RecordingProfiler

    def table(self, *values: int, name: str = "people") -> ManagedTable:
        return self.managed.append(self.managed.create(name), *values)

    def wait(self, seconds: float = 2 * MINUTE) -> None:
        self.managed.factory.clock.advance(seconds)

    def sweep(self, rules: ProfileRules = AUTO, **options: Any) -> Started:
        stores, warehouse = self.managed.factory.stores, self.managed.warehouse
        return start_profiles(stores, warehouse, realm_of=self.managed.factory.realm, rules=rules, **options)

    def due(self, rules: ProfileRules = AUTO) -> list[str]:
        """The tables for which jobs are started."""
        return [each.table_id.id for each in self.sweep(rules).jobs]

    def work(self, profile: Any = None) -> None:
        """Run all jobs."""
        reconciler = Reconciler(MemorySecrets(), profile or self.profiler, warehouse=self.managed.warehouse)
        factory = self.managed.factory
        queue = JobQueue(factory.stores, clock=factory.clock)
        worker = Worker(queue, jobs_of(factory.realm, reconciler), "w")
        while worker.work_once():
            pass

    def profile(self) -> None:
        """Profile the table that is due."""
        self.wait()
        assert len(self.sweep().jobs) == 1
        self.work()

    def states(self) -> list[str]:
        found = jobs.list_(self.managed.home, v1.ListReconcileJobsRequest()).jobs
        return [v1.JobState.Name(each.state) for each in found]

    def set_properties(self, table: ManagedTable, kind: str, **properties: str) -> None:
        named = {f"maintenance.{name.replace('__', '.')}": text for name, text in properties.items()}
        realm, record = self.managed.home, table.table
        if kind == "catalog":
            spec = v1.CatalogSpec(properties=named)
            catalogs.update(
                realm,
                v1.UpdateCatalogRequest(catalog_id=record.catalog_id, spec=spec, update_mask=mask("properties")),
            )
        elif kind == "namespace":
            change = v1.UpdateNamespaceRequest(
                namespace_id=record.namespace_id,
                spec=v1.NamespaceSpec(properties=named),
                update_mask=mask("properties"),
            )
            namespaces.update(realm, change)
        else:
            producer = plain((), (SetPropertiesUpdate(updates=named),))
            managed_tables.change(realm, self.managed.warehouse, id_of(table), producer)


@pytest.fixture
def lake(factory: ResourceFactory, tmp_path: Path) -> Lake:
    return Lake(ManagedTableFactory.at(factory, tmp_path), RecordingProfiler())


def test_written_table_is_profiled_once(lake: Lake) -> None:
    table = lake.table(1, 2, 3)
    lake.wait()
    assert lake.due() == [table.id]
    lake.work()
    assert lake.profiler.profiled == [table.metadata.current_snapshot_id]
    lake.wait()
    assert lake.due() == []


def test_table_with_statistics_of_an_older_version_is_profiled_once(lake: Lake) -> None:
    table = lake.table(1, 2, 3)
    lake.profiler.version -= 1
    lake.profile()
    pointers, key = lake.managed.factory.stores.pointers, keys.automatic_profile("a1", table.id)
    tried = pointers.get(key)
    assert tried is not None
    old = str(table.metadata.current_snapshot_id)  # as older versions wrote it
    pointers.compare_and_set(key, old, expect=tried.version)
    assert lake.due() == [table.id]
    lake.work()
    assert lake.due() == [], "even if it remains an older one"


def test_nothing_is_profiled_by_default(lake: Lake) -> None:
    lake.table(1)
    lake.wait()
    assert lake.due(ProfileRules()) == []


def test_table_without_rows_is_not_profiled(lake: Lake) -> None:
    lake.managed.create()
    lake.wait()
    assert lake.due() == []


def test_few_changed_rows_add_up_until_they_are_enough(lake: Lake) -> None:
    table = lake.table(*range(100))
    lake.profile()
    for number in range(11):
        lake.managed.append(table, number)
        lake.wait()
        assert lake.due() == [], f"{number + 1} rows are less than a tenth"
    lake.managed.append(table, 11)
    lake.wait()
    assert lake.due() == [table.id]


def test_deleted_rows_are_changed_rows(lake: Lake) -> None:
    table = lake.managed.append(lake.table(*range(800)), *range(100))
    lake.profile()
    [largest, *_] = sorted(table.handle.files(table.handle.current()).to_pylist(), key=lambda file: -file["row_count"])
    producer = overwrite([largest["path"]], [], based_on=table.metadata.current_snapshot_id)
    managed_tables.change(lake.managed.home, lake.managed.warehouse, id_of(table), producer)
    lake.wait()
    assert lake.due(ProfileRules(automatic=True, changed_rows=1.0)) == [table.id]


def test_after_many_small_commits_a_table_is_profiled(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiling, "MOST_COMMITS", 3)
    table = lake.table(*range(1000))
    lake.profile()
    for number in range(3):
        lake.wait()
        assert lake.due() == []
        lake.managed.append(table, number)
    lake.wait()
    assert lake.due() == [table.id]


def test_table_that_is_being_written_is_left_alone_for_a_while(lake: Lake) -> None:
    table = lake.table(1)
    for half_minutes in range(1, 20):
        lake.wait(0.5 * MINUTE)
        assert lake.due() == [], half_minutes
        lake.managed.append(table, 1)
    lake.wait(0.5 * MINUTE)
    assert lake.due() == [table.id]


def test_wrong_clock_of_a_writer_does_not_stop_profiles(lake: Lake) -> None:
    table = lake.table(1)
    lake.wait(-3600)
    assert lake.due() == [table.id]


def test_one_job_at_a_time(lake: Lake) -> None:
    """While a job is unfinished there is no second one; rows that were written meanwhile are profiled by the next."""
    table = lake.table(1)
    lake.wait()
    assert len(lake.sweep().jobs) == 1
    assert lake.sweep().jobs == []

    def profile(*given: Any, **named: Any) -> Any:
        """Rows are written during the profile, and a sweep runs."""
        if not lake.profiler.profiled:
            lake.managed.append(table, 2, 3)
            assert lake.sweep(ProfileRules(automatic=True, delay=timedelta())).jobs == []
        return lake.profiler(*given, **named)

    lake.work(profile)
    lake.wait()
    assert lake.due() == [table.id]
    lake.work(profile)
    assert lake.profiler.profiled == [each.snapshot_id for each in lake.managed.load(table).metadata.snapshots]


def test_several_servers_start_one_job(lake: Lake) -> None:
    """A server that has read the state before another one enqueued and finished the job does not start a second one."""
    lake.table(1)
    lake.wait()

    def other_server() -> None:
        assert len(lake.sweep().jobs) == 1
        lake.work()

    meanwhile(lake.managed.factory, "/accounts/a1/jobs/", other_server)
    assert lake.sweep().jobs == []
    assert lake.states() == ["JS_SUCCEEDED"]


def test_failed_profile_is_not_repeated_before_the_table_changes(lake: Lake) -> None:
    table = lake.table(1)

    def broken(*_: Any, **__: Any) -> Any:
        raise SkiwayError("Spark is broken")

    lake.wait()
    assert lake.due() == [table.id]
    lake.work(broken)
    assert lake.states() == ["JS_FAILED"]
    lake.wait()
    assert lake.due() == []
    lake.managed.append(table, 2)
    lake.wait()
    assert lake.due() == [table.id]


def test_nearest_property_wins_over_the_setting(lake: Lake) -> None:
    table = lake.table(1)
    lake.wait()
    lake.set_properties(table, "catalog", profile="auto")
    lake.set_properties(table, "namespace", profile="off")
    assert lake.due(ProfileRules()) == lake.due(AUTO) == []
    lake.set_properties(table, "table", profile="auto", profile__delay="1h")
    assert lake.due(ProfileRules()) == []
    lake.wait(60 * MINUTE)
    assert lake.due(ProfileRules()) == [table.id]


def test_share_of_changed_rows_is_a_property(lake: Lake) -> None:
    table = lake.table(*range(100))
    lake.profile()
    lake.managed.append(table, *range(30))
    lake.set_properties(table, "catalog", **{"profile__changed-rows": "0.5"})
    lake.wait()
    assert lake.due() == []
    lake.set_properties(table, "table", **{"profile__changed-rows": "0.2"})
    lake.wait()
    assert lake.due() == [table.id]


@pytest.mark.parametrize(
    ("name", "text"),
    [("profile", "yes"), ("profile.changed-rows", "20%"), ("profile.changed-rows", "2"), ("profile.delay", "soon")],
)
def test_wrong_property_is_logged_with_its_place_and_others_continue(
    lake: Lake, caplog: pytest.LogCaptureFixture, name: str, text: str
) -> None:
    table, other = lake.table(1), lake.table(1, name="other")
    lake.set_properties(table, "table", **{name: text})
    lake.wait()
    with caplog.at_level(logging.WARNING, "skiway.profile"):
        assert lake.due() == [other.id]
    assert f"property maintenance.{name} of table people is '{text}'" in caplog.text


def test_all_tables_are_examined_page_by_page(lake: Lake) -> None:
    tables = {lake.table(1, name=f"t{number}").id for number in range(5)}
    lake.wait()
    token, found = None, set()
    for _ in range(10):
        done = lake.sweep(size=2, token=token)
        found |= {each.table_id.id for each in done.jobs}
        token = done.next_token
        if token is None:
            break
    assert found == tables


def test_properties_of_outer_namespaces_are_inherited(lake: Lake) -> None:
    factory = lake.managed.factory
    factory.namespace("sales", properties={"maintenance.profile": "auto"})
    inner = factory.namespace("sales", "europe")
    table = lake.managed.append(lake.managed.create(namespace_id=inner.resource_id), 1)
    lake.wait()
    assert lake.due(ProfileRules()) == [table.id]
