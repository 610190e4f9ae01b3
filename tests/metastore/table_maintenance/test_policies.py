"""Policies: which maintenance runs by itself, inherited from catalogs and namespaces; nothing by default."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table.update import SetPropertiesUpdate

from metastore.managed_table_factory import ManagedTableFactory
from metastore.resource_factory import ResourceFactory, mask
from metastore.table_maintenance.maintained_tables import MaintainedTable
from skiway.formats.iceberg.changes.commits import plain
from skiway.metastore import catalogs, namespaces
from skiway.metastore.jobs.queue import leased
from skiway.metastore.reconcile.outcomes import Control
from skiway.metastore.table_maintenance.tasks import policy_of, run_task, start_due
from skiway.model import v1

DAY = 86400.0


@pytest.fixture
def home(factory: ResourceFactory, tmp_path: Path) -> ManagedTableFactory:
    return ManagedTableFactory.at(factory, tmp_path)


@pytest.fixture
def table(home: ManagedTableFactory) -> MaintainedTable:
    """Six small files in six snapshots, of which five are old."""
    made = MaintainedTable.create(home)
    made.fill(6)
    home.factory.clock.advance(30 * DAY)
    return made


def set_properties(table: MaintainedTable, **properties: str) -> None:
    named = {name.replace("__", "."): text for name, text in properties.items()}
    table.change(plain((), (SetPropertiesUpdate(updates=named),)))


def set_on(table: MaintainedTable, kind: str, **properties: str) -> None:
    realm, record = table.home.home, table.now.table
    named = {name.replace("__", "."): text for name, text in properties.items()}
    if kind == "catalog":
        spec = v1.CatalogSpec(properties=named)
        request = v1.UpdateCatalogRequest(catalog_id=record.catalog_id, spec=spec, update_mask=mask("properties"))
        catalogs.update(realm, request)
    else:
        inside = v1.NamespaceSpec(properties=named)
        change = v1.UpdateNamespaceRequest(
            namespace_id=record.namespace_id, spec=inside, update_mask=mask("properties")
        )
        namespaces.update(realm, change)


def due(table: MaintainedTable, **options: Any) -> list[str]:
    """The actions for which jobs are started."""
    home = table.home
    _, started = start_due(home.factory.stores, home.warehouse, realm_of=lambda _: home.home, **options)
    return [each.maintenance.WhichOneof("task") or "" for each in started]


def test_nothing_runs_by_default(table: MaintainedTable) -> None:
    assert due(table) == []


def test_actions_that_are_on_and_worth_it_are_started_and_run(table: MaintainedTable) -> None:
    set_properties(table, maintenance__optimize="auto", maintenance__expire="auto")
    home = table.home
    _, started = start_due(home.factory.stores, home.warehouse, realm_of=lambda _: home.home)
    assert [each.maintenance.WhichOneof("task") for each in started] == ["optimize", "expire"]
    for job in started:
        run_task(home.home, home.warehouse, job.table_id, job.maintenance, Control(), job=leased(job))
    assert (len(table.paths()), table.ids()) == (1, list(range(60)))
    assert len(table.metadata.snapshots) < 7


def test_job_that_is_queued_is_not_started_twice(table: MaintainedTable) -> None:
    set_properties(table, maintenance__optimize="auto")
    home = table.home
    jobs = [start_due(home.factory.stores, home.warehouse, realm_of=lambda _: home.home)[1] for _ in range(2)]
    assert jobs[0][0].job_id == jobs[1][0].job_id


def test_nearest_property_wins(table: MaintainedTable) -> None:
    set_on(table, "catalog", maintenance__optimize="auto", maintenance__expire="auto")
    assert due(table) == ["optimize", "expire"]
    set_on(table, "namespace", maintenance__optimize="off")
    assert due(table) == ["expire"]
    set_properties(table, maintenance__optimize="auto", maintenance__expire="off")
    assert due(table) == ["optimize"]
    found = policy_of(table.home.home, table.now.table)
    assert found.source_of("expire") == "table people"


def test_options_are_inherited_one_by_one(table: MaintainedTable) -> None:
    set_on(table, "catalog", maintenance__expire="auto", **{"maintenance__expire__keep-last": "6"})
    assert due(table) == []
    set_properties(table, **{"maintenance__expire__keep-last": "2"})
    assert due(table) == ["expire"]


def test_large_rewrite_is_left_to_people(table: MaintainedTable, caplog: pytest.LogCaptureFixture) -> None:
    set_properties(table, maintenance__optimize="auto", **{"maintenance__optimize__max-bytes": "100"})
    with caplog.at_level(logging.WARNING, "skiway.maintenance"):
        assert due(table) == []
    assert "run skiway tables optimize" in caplog.text


def test_large_rewrite_is_started_if_it_runs_on_spark(table: MaintainedTable) -> None:
    set_properties(table, maintenance__optimize="auto", **{"maintenance__optimize__max-bytes": "100"})
    home = table.home

    def engines(spark_from_bytes: int | None) -> list[int]:
        _, jobs = start_due(
            home.factory.stores, home.warehouse, realm_of=lambda _: home.home, spark_from_bytes=spark_from_bytes
        )
        return [job.maintenance.optimize.engine for job in jobs]

    assert engines(None) == engines(1 << 40) == []
    assert engines(100) == [v1.OE_UNSPECIFIED]
    set_properties(table, maintenance__optimize__engine="spark")
    assert engines(None) == [v1.OE_SPARK]
    set_properties(table, maintenance__optimize__engine="process")
    assert engines(100) == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("optimize.engine", "trino"),
        ("optimize", "yes"),
        ("expire.keep-last", "many"),
        ("expire.older-than", "soon"),
        ("optimize.max-deleted", "2"),
    ],
)
def test_wrong_property_says_where_it_is_and_others_continue(
    home: ManagedTableFactory, table: MaintainedTable, caplog: pytest.LogCaptureFixture, name: str, text: str
) -> None:
    other = MaintainedTable(home, home.create("other", table.now.handle.schema.arrow).table.resource_id)
    other.fill(6)
    for each in (table, other):
        set_properties(each, maintenance__optimize="auto", maintenance__expire="auto")
    set_properties(table, **{f"maintenance.{name}": text})
    with caplog.at_level(logging.WARNING, "skiway.maintenance"):
        assert "optimize" in due(table)
    assert "table people" in caplog.text


def test_all_tables_are_examined_page_by_page(home: ManagedTableFactory, table: MaintainedTable) -> None:
    set_on(table, "catalog", maintenance__optimize="auto")
    others = [home.create(f"t{number}", table.now.handle.schema.arrow).table.resource_id for number in range(4)]
    for each in others:
        MaintainedTable(home, each).fill(5)
    token, found = None, []
    for _ in range(20):
        done, started = start_due(
            home.factory.stores, home.warehouse, realm_of=lambda _: home.home, size=2, token=token
        )
        found += [job.table_id.id for job in started]
        token = done.next_token
        if token is None:
            break
    assert sorted(found) == sorted(each.id for each in (table.id, *others))
