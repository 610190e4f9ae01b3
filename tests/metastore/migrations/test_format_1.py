"""Stores of format 1 are read, written and migrated without a loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from metastore.integrity import damage
from metastore.migrations.old_stores import KINDS, OldStore, format_1
from skiway.errors import PreconditionFailed
from skiway.metastore import Realm
from skiway.metastore.maintenance import Checker
from skiway.metastore.migrations import STEPS, migrate, require_usable
from skiway.metastore.platform import signing_key
from skiway.metastore.records import keys
from skiway.metastore.resources import catalogs
from skiway.model import v1
from skiway.security import MemorySecrets
from skiway.storage import Pointer, StoreFormat, Stores
from storage.conftest import server  # noqa: F401 - a fixture

NEW = v1.CreateCatalogRequest(spec=v1.CatalogSpec(display_name="new"))


@pytest.fixture(params=KINDS)
def old(request: pytest.FixtureRequest, tmp_path: Path, server: Callable[[str], str]) -> OldStore:  # noqa: F811
    return format_1(request.param, tmp_path / "home", server)


@pytest.fixture
def stores(old: OldStore) -> Iterator[Stores]:
    with old.open() as opened:
        yield opened


def content(stores: Stores) -> list[Pointer]:
    return list(stores.pointers.scan())


def run_all(stores: Stores, secrets: MemorySecrets) -> list[int]:
    return [step.to for step in migrate(stores, secrets, STEPS, settle_s=0)]


def test_content_is_the_same_after_a_migration(old: OldStore, stores: Stores) -> None:
    before = content(stores)
    assert stores.pointers.format() == StoreFormat(1)
    assert len(before) > 100
    assert run_all(stores, MemorySecrets()) == [2]
    assert stores.pointers.format() == StoreFormat(2)
    assert content(stores) == before
    assert list(Checker(stores).defects()) == []
    with old.open() as again:
        assert again.pointers.format() == StoreFormat(2)
        assert content(again) == before
        realm = Realm(again, "default")
        names = [each.display_name for each in catalogs.list_(realm, v1.ListCatalogsRequest()).catalogs]
        assert names == ["examples", "lake", "records"]
        assert catalogs.create(realm, NEW).catalog.display_name == "new"


def test_servers_of_this_version_use_the_store_before_the_migration(
    stores: Stores, caplog: pytest.LogCaptureFixture
) -> None:
    require_usable(stores, STEPS)
    assert "run `skiway migrate` after all servers are upgraded" in caplog.text
    made = catalogs.create(Realm(stores, "default"), NEW).catalog
    assert list(Checker(stores).defects()) == []
    assert stores.pointers.format() == StoreFormat(1)
    run_all(stores, MemorySecrets())
    assert catalogs.find(Realm(stores, "default"), "new").value == made


def test_plain_signing_key_is_moved_to_the_secrets_store(stores: Stores) -> None:
    """Versions before 0.1 wrote the key into the pointer. Servers use it until it is moved: all of them need the same."""
    key, secrets = bytes(range(32)), MemorySecrets()
    found = stores.pointers.get(keys.AIRPORT_SIGNING_KEY)
    assert found is not None
    stores.pointers.compare_and_set(found.key, key.hex(), expect=found.version)
    require_usable(stores, STEPS)
    assert signing_key(stores, secrets) == key
    assert stores.pointers.get(keys.AIRPORT_SIGNING_KEY) == replace(
        found, blob_uri=key.hex(), version=found.version + 1
    )
    assert len(secrets._secrets) == 0
    run_all(stores, secrets)
    assert signing_key(stores, secrets) == key
    moved = stores.pointers.get(keys.AIRPORT_SIGNING_KEY)
    assert moved is not None
    assert key.hex() not in moved.blob_uri
    STEPS[0].run(stores, secrets)
    assert stores.pointers.get(keys.AIRPORT_SIGNING_KEY) == moved
    assert len(secrets._secrets) == 1


def test_older_program_rejects_a_migrated_store(old: OldStore, stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    run_all(stores, MemorySecrets())
    monkeypatch.setattr("skiway.storage.pointers.sql.FORMAT_VERSION", 1)
    with pytest.raises(
        PreconditionFailed, match="has format 2, but this version of Skiway reads up to 1; upgrade Skiway"
    ):
        old.open()
    assert [each for each in damage(stores) if not each.startswith("/platform/")] == []
