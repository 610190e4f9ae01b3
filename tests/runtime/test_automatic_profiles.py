"""The sweep that starts automatic profiles: with the rules of the settings, and only where Spark can run them."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from metastore.managed_table_factory import ManagedTableFactory, id_of
from metastore.resource_factory import ResourceFactory
from skiway.config import load
from skiway.formats.iceberg.warehouse import Warehouse
from skiway.metastore import jobs, statistics
from skiway.model import v1
from skiway.runtime.gc import sweeps
from skiway.runtime.source_access import source_access_of
from skiway.runtime.workers import reconciler_of
from skiway.security import MemorySecrets
from skiway.spark_jobs.worker import SparkProfile
from skiway.storage import open_stores
from storage.homes import Clock

LONG_AGO = Clock(datetime(2020, 1, 1, tzinfo=UTC))


@pytest.mark.parametrize(
    ("flags", "spark", "expected"),
    [
        ({}, True, True),
        ({}, False, False),
        ({"profiles.enabled": "false"}, True, False),
        ({"reconciler.backend": "remote"}, False, True),  # the workers have Spark
    ],
)
def test_there_is_no_sweep_where_spark_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, flags: dict[str, str], spark: bool, expected: bool
) -> None:
    monkeypatch.setattr(sweeps, "find_spec", lambda name: name if spark else None)
    with open_stores("memory://") as stores:
        home = ManagedTableFactory.at(ResourceFactory(stores, LONG_AGO), tmp_path)
        assert (
            sweeps.sweeps(load(flags=flags), stores, MemorySecrets(), warehouse=home.warehouse)[-1].enabled is expected
        )


@pytest.mark.parametrize(("share", "expected"), [("0.5", 0), ("0.2", 1)])
def test_sweep_uses_the_rules_of_the_settings(tmp_path: Path, share: str, expected: int) -> None:
    flags = {"profiles.automatic": "true", "profiles.delay": "1ms", "profiles.changed_rows": share}
    with open_stores("memory://") as stores:
        home = ManagedTableFactory.at(ResourceFactory(stores, LONG_AGO), tmp_path)
        table = home.append(home.create(), 1, 2, 3)
        stats = v1.TableStats(row_count=3, properties={"files.profiled": "1", "profile.version": "1"})
        snapshot_id = table.metadata.current_snapshot_id
        put = v1.PutTableStatsRequest(table_id=id_of(table), snapshot_id=snapshot_id, stats=stats)
        statistics.put_table(home.home, put)
        home.append(table, 4)
        sweep = sweeps.sweeps(load(flags=flags), stores, MemorySecrets(), warehouse=home.warehouse)[-1]
        assert sweep.step(None).next_token is None
        assert len(jobs.list_(home.home, v1.ListReconcileJobsRequest()).jobs) == expected


def test_samples_are_as_large_as_the_settings_say(tmp_path: Path) -> None:
    given = load(
        flags={
            "profiles.sample_above_bytes": "7",
            "profiles.sample_bytes": "3",
            "profiles.in_process_bytes": "5",
        }
    )
    sources = source_access_of(given, tmp_path)
    profile = reconciler_of(given, MemorySecrets(), Warehouse.at(str(tmp_path)), sources).profile
    assert isinstance(profile, SparkProfile)
    assert (profile.sample_above_bytes, profile.sample_bytes, profile.in_process_bytes) == (7, 3, 5)
