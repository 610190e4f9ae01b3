"""Rules about columns need a profile, which checks make."""

from __future__ import annotations

from pathlib import Path

import pytest

from metastore.managed_table_factory import ManagedTableFactory
from metastore.resource_factory import ResourceFactory
from skiway.metastore import jobs, quality
from skiway.metastore.managed.states import ManagedTable
from skiway.model import v1


@pytest.fixture
def lake(factory: ResourceFactory, tmp_path: Path) -> ManagedTableFactory:
    factory.catalog()
    return ManagedTableFactory.at(factory, tmp_path)


@pytest.fixture
def numbers(lake: ManagedTableFactory) -> ManagedTable:
    """A table with rows, no profile, and a rule about its column."""
    table = lake.append(lake.create("numbers"), 1, 2, 3)
    check = v1.RuleCheck(null_share=v1.NullShareCheck(column="x", max=0))
    spec = v1.QualityRuleSpec(display_name="r", table_id=table.table.resource_id, check=check)
    quality.CALLS.create(lake.home, v1.CreateRuleRequest(spec=spec))
    return table


def queued(lake: ManagedTableFactory) -> list[str]:
    return [
        job.table_id.id for job in jobs.scan(lake.home) if job.state == v1.JS_QUEUED and not job.HasField("quality")
    ]


def sweep(lake: ManagedTableFactory) -> None:
    quality.check_metadata(lake.factory.stores, realm_of=lake.factory.realm)


def test_a_check_makes_the_profile_that_a_rule_needs(lake: ManagedTableFactory, numbers: ManagedTable) -> None:
    for _ in range(2):
        found = quality.check(lake.home, v1.CheckRulesRequest(table_id=numbers.table.resource_id))
        (checked,) = found.rules
        assert checked.result.status == v1.RST_UNKNOWN
        assert checked.result.message == f"job {found.job.job_id} profiles the table, and then checks the rule"
        asked = v1.GetCheckRequest(table_id=numbers.table.resource_id, job_id=found.job.job_id)
        assert quality.get_check(lake.home, asked).job.job_id == found.job.job_id
    assert queued(lake) == [numbers.id]


def test_a_new_snapshot_is_profiled_for_its_rules(lake: ManagedTableFactory, numbers: ManagedTable) -> None:
    sweep(lake)
    assert queued(lake) == [numbers.id]
    (job,) = jobs.scan(lake.home)
    jobs.cancel(lake.home, v1.CancelReconcileJobRequest(job_id=job.job_id))
    sweep(lake)
    assert queued(lake) == [], "there is a result for the snapshot"
    lake.append(numbers, 4)
    sweep(lake)
    assert queued(lake) == [numbers.id]


def test_after_a_profile_no_other_is_made(lake: ManagedTableFactory, numbers: ManagedTable) -> None:
    quality.after_profile(lake.home, numbers.table.resource_id)
    assert queued(lake) == []
