"""`seed.mode=iceberg` also creates files and a connector, whose first job mirrors and profiles them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from skiway.config import load
from skiway.metastore import Realm, catalogs, connectors, jobs, namespaces, tables
from skiway.metastore.reconcile import Reconciler
from skiway.metastore.seeding import DEFAULT_ACCOUNT, seed_home, seed_mirror
from skiway.model import v1
from skiway.runtime.parts import seed
from skiway.security import MemorySecrets
from skiway.storage import Stores, open_stores


@pytest.fixture
def stores() -> Iterator[Stores]:
    with open_stores("memory://") as opened:
        seed_home(opened)
        yield opened


def _connectors(realm: Realm) -> list[v1.Connector]:
    return list(connectors.list_(realm, v1.ListConnectorsRequest()).connectors)


def _jobs(realm: Realm) -> list[v1.Job]:
    return list(jobs.list_(realm, v1.ListReconcileJobsRequest()).jobs)


def test_the_first_job_of_the_connector_has_both_passes(stores: Stores, tmp_path: Path) -> None:
    realm, secrets = Realm(stores, DEFAULT_ACCOUNT), MemorySecrets()
    assert seed_mirror(stores, tmp_path, secrets=secrets, sync=True)
    (connector,) = _connectors(realm)
    (job,) = _jobs(realm)
    assert job.connector_id == connector.resource_id
    assert list(job.modes) == [v1.CAP_METADATA_ONLY_CORE, v1.CAP_STATS_ONLY_ASYNC]

    outcome = Reconciler(secrets).run(realm, connector.resource_id, mode=v1.CAP_METADATA_ONLY_CORE)

    assert outcome.scanned == 1
    assert not outcome.failures
    catalog = catalogs.find(realm, "example_files")
    assert catalog is not None
    (namespace,) = namespaces.scan(realm, catalog.value.resource_id.id)
    table = tables.find(realm, namespace.resource_id.id, "customers")
    assert table is not None
    assert table.upstream.connector_id == connector.resource_id


def test_without_synchronization_there_is_no_job(stores: Stores, tmp_path: Path) -> None:
    realm = Realm(stores, DEFAULT_ACCOUNT)
    seed_mirror(stores, tmp_path, secrets=MemorySecrets(), sync=False)
    assert len(_connectors(realm)) == 1
    assert _jobs(realm) == []


@pytest.mark.parametrize("is_enabled", [True, False])
def test_setting_decides_whether_the_files_are_synchronized(
    stores: Stores, tmp_path: Path, *, is_enabled: bool
) -> None:
    given = {"seed.enabled": "true", "seed.mode": "iceberg", "seed.sync.enabled": str(is_enabled).lower()}
    seed(stores, load(tmp_path, flags=given), MemorySecrets(), tmp_path)
    realm = Realm(stores, DEFAULT_ACCOUNT)
    assert len(_connectors(realm)) == 1
    assert len(_jobs(realm)) == int(is_enabled)


def test_what_was_deleted_does_not_come_back(stores: Stores, tmp_path: Path) -> None:
    realm, secrets = Realm(stores, DEFAULT_ACCOUNT), MemorySecrets()
    seed_mirror(stores, tmp_path, secrets=secrets, sync=True)
    (connector,) = _connectors(realm)
    connectors.calls(secrets).delete(realm, v1.DeleteConnectorRequest(connector_id=connector.resource_id))
    assert not seed_mirror(stores, tmp_path, secrets=secrets, sync=True)
    assert _connectors(realm) == []
