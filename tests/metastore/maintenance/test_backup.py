"""Backup and restore: the restored store has the same contents, and everything that was committed before."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from metastore.managed_table_factory import ManagedTableFactory
from metastore.resource_factory import ResourceFactory, mask
from skiway.errors import InvalidArgument, PreconditionFailed
from skiway.formats.iceberg.warehouse import Warehouse
from skiway.metastore import Realm, connectors
from skiway.metastore.connectors.credentials import credentials
from skiway.metastore.maintenance import Checker, read_manifest, restore_backup, write_backup
from skiway.metastore.resources import catalogs
from skiway.model import v1
from skiway.security import SecretsStore, open_secrets
from skiway.storage import ABSENT, Pointer, StoreFormat, Stores, open_stores


def everything(stores: Stores) -> list[tuple[str, str, int]]:
    return [(each.key, each.blob_uri, each.version) for each in stores.pointers.scan()]


@pytest.fixture
def filled(factory: ResourceFactory, tmp_path: Path) -> ManagedTableFactory:
    managed = ManagedTableFactory.at(factory, tmp_path)
    table = managed.append(managed.create(), 1)
    managed.append(table, 2)
    factory.catalog("été ✓")
    return managed


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    folder = tmp_path / "secrets"
    folder.mkdir(mode=0o700)
    (folder / "one").write_bytes(b"sealed")
    return folder


def test_restored_store_is_the_same(filled: ManagedTableFactory, secrets: Path, tmp_path: Path) -> None:
    stores, backup = filled.factory.stores, tmp_path / "backup"
    made = write_backup(stores, backup, secrets=secrets, warehouse=filled.warehouse)
    assert made == read_manifest(backup)
    assert (made.pointers, made.secrets, made.missing) == (stores.pointers.count(), 1, ())
    assert backup.stat().st_mode & 0o777 == 0o700
    with gzip.open(backup / "warehouse.jsonl.gz", "rt") as lines:
        listed = [json.loads(line) for line in lines]
    on_disk = [path for path in Path(filled.warehouse.root.path).rglob("*") if path.is_file()]
    assert {(uri.removeprefix("file://"), size) for uri, size in listed} == {
        (str(path), path.stat().st_size) for path in on_disk
    }
    assert made.warehouse_files == len(on_disk) > 0
    with open_stores(f"sqlite:///{tmp_path}/restored.db") as restored:
        restore_backup(restored, backup, secrets=tmp_path / "new", warehouse=filled.warehouse)
        assert everything(restored) == everything(stores)
        assert (tmp_path / "new" / "one").read_bytes() == b"sealed"
        assert list(Checker(restored, filled.warehouse).defects()) == []
        request = v1.CreateCatalogRequest(spec=v1.CatalogSpec(display_name="after"))
        assert catalogs.create(Realm(restored, "a1"), request).catalog.display_name == "after"


def test_files_in_approved_locations_are_listed(factory: ResourceFactory, tmp_path: Path) -> None:
    name = factory.first_catalog().display_name
    approved = [(f"a1/{name}", str(tmp_path / "approved"))]
    managed = ManagedTableFactory(factory, Warehouse.at(str(tmp_path / "warehouse"), approved=approved))
    managed.append(managed.create(location=f"file://{tmp_path}/approved/people"), 1)
    (tmp_path / "approved" / "notes.txt").write_text("of somebody else")
    made = write_backup(factory.stores, tmp_path / "backup", secrets=None, warehouse=managed.warehouse)
    with gzip.open(tmp_path / "backup" / "warehouse.jsonl.gz", "rt") as lines:
        listed = {json.loads(line)[0].removeprefix("file://") for line in lines}
    assert listed == {str(path) for path in (tmp_path / "approved" / "people").rglob("*") if path.is_file()}
    assert made.warehouse_files == len(listed) > 2
    no_longer = Warehouse.at(str(tmp_path / "warehouse"))
    assert write_backup(factory.stores, tmp_path / "later", secrets=None, warehouse=no_longer).warehouse_files == 0


def test_blob_that_gc_deleted_since_its_pointer_changed_is_not_missing(
    filled: ManagedTableFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    factory = filled.factory
    catalog = factory.catalog("renamed meanwhile")
    stores = factory.stores
    (old,) = {each.blob_uri for each in stores.pointers.scan() if each.key.endswith(catalog.resource_id.id)}
    get = stores.blobs.get

    def get_after_gc(uri: str) -> bytes:
        if uri == old:
            monkeypatch.undo()
            request = v1.UpdateCatalogRequest(catalog_id=catalog.resource_id, spec=v1.CatalogSpec(description="new"))
            request.update_mask.paths.append("description")
            catalogs.update(factory.home, request)
            stores.blobs.delete(old)
        return get(uri)

    monkeypatch.setattr(stores.blobs, "get", get_after_gc)
    made = write_backup(stores, tmp_path / "backup", secrets=None, warehouse=filled.warehouse)
    assert made.missing == ()
    with open_stores("memory://") as restored:
        restore_backup(restored, tmp_path / "backup", secrets=None, warehouse=filled.warehouse)
        assert list(Checker(restored).defects()) == []


def test_credentials_that_are_replaced_during_a_backup_are_restored(
    filled: ManagedTableFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old secret is deleted at once, and the pointers of the backup may refer to it or to the new one."""
    realm, stores, folder = filled.factory.home, filled.factory.stores, tmp_path / "secrets"
    secrets = open_secrets(folder.as_uri())
    made = [_connector(realm, secrets, name) for name in ("before", "after")]
    snapshot = stores.pointers.snapshot

    def snapshot_between_changes() -> Iterator[Pointer]:
        monkeypatch.undo()
        _replace_credentials(realm, secrets, made[0], "new")
        found = list(snapshot())
        _replace_credentials(realm, secrets, made[1], "newer")
        return iter(found)

    monkeypatch.setattr(stores.pointers, "snapshot", snapshot_between_changes)
    write_backup(stores, tmp_path / "backup", secrets=folder, warehouse=filled.warehouse)
    with open_stores("memory://") as restored:
        restore_backup(restored, tmp_path / "backup", secrets=tmp_path / "new", warehouse=filled.warehouse)
        again, stored = Realm(restored, "a1"), open_secrets((tmp_path / "new").as_uri())
        records = [
            connectors.calls(None).get(again, v1.GetConnectorRequest(connector_id=v1.ResourceId(id=each)))
            for each in made
        ]
        found = [credentials(again, stored, each.connector) for each in records]
    assert [each and each.bearer.token for each in found] == ["new", "old"]
    assert {path.stat().st_mode & 0o077 for path in (tmp_path / "backup" / "secrets").rglob("*")} == {0}


def _connector(realm: Realm, secrets: SecretsStore, name: str) -> str:
    spec = v1.ConnectorSpec(
        display_name=name,
        kind=v1.CK_ICEBERG,
        uri="https://catalog.example.com",
        source=v1.ConnectorSource(namespace=v1.NamespacePath(segments=["sales"])),
        destination=v1.ConnectorDestination(catalog_display_name="lake"),
        auth=v1.ConnectorAuthSpec(scheme="oauth2", credentials=_bearer("old")),
    )
    made = connectors.create(realm, v1.CreateConnectorRequest(spec=spec), secrets=secrets)
    return made.connector.resource_id.id


def _replace_credentials(realm: Realm, secrets: SecretsStore, connector_id: str, token: str) -> None:
    request = v1.UpdateConnectorRequest(
        connector_id=v1.ResourceId(id=connector_id, account_id="a1", kind=v1.RK_CONNECTOR),
        spec=v1.ConnectorSpec(auth=v1.ConnectorAuthSpec(credentials=_bearer(token))),
        update_mask=mask("auth.credentials"),
    )
    connectors.calls(secrets).update(realm, request)


def _bearer(token: str) -> v1.ConnectorCredentials:
    return v1.ConnectorCredentials(bearer=v1.BearerToken(token=token))


def test_secret_that_vanishes_while_it_is_copied_does_not_end_the_backup(
    filled: ManagedTableFactory, secrets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (secrets / "two").write_bytes(b"sealed")
    copy = shutil.copy2

    def copy_and_delete(source: Path, target: Path) -> object:
        for other in {"one", "two"} - {source.name}:
            (secrets / other).unlink(missing_ok=True)
        return copy(source, target)

    monkeypatch.setattr(shutil, "copy2", copy_and_delete)
    made = write_backup(filled.factory.stores, tmp_path / "backup", secrets=secrets, warehouse=filled.warehouse)
    assert made.secrets == 1


def test_restored_store_has_the_format_of_the_backup(filled: ManagedTableFactory, tmp_path: Path) -> None:
    stores, warehouse = filled.factory.stores, filled.warehouse
    current = stores.pointers.format()
    for number, recorded in enumerate((StoreFormat(1), StoreFormat(2, complete=False))):
        stores.pointers.change_format(stores.pointers.format(), recorded)
        backup = tmp_path / f"backup-{number}"
        write_backup(stores, backup, secrets=None, warehouse=warehouse)
        with open_stores("memory://") as restored:
            assert restored.pointers.format() == current
            restore_backup(restored, backup, secrets=None, warehouse=warehouse)
            assert restored.pointers.format() == recorded


def test_backup_during_a_migration_has_the_format_of_its_pointers(
    filled: ManagedTableFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores = filled.factory.stores
    stores.pointers.change_format(stores.pointers.format(), StoreFormat(1))
    snapshot = stores.pointers.snapshot

    def snapshot_before_a_migration() -> Iterator[Pointer]:
        monkeypatch.undo()
        found = list(snapshot())
        stores.pointers.compare_and_set("/platform/converted", "text", expect=ABSENT)
        stores.pointers.change_format(StoreFormat(1), StoreFormat(2))
        return iter(found)

    monkeypatch.setattr(stores.pointers, "snapshot", snapshot_before_a_migration)
    made = write_backup(stores, tmp_path / "backup", secrets=None, warehouse=filled.warehouse)
    assert (made.store_format, made.pointers) == (2, stores.pointers.count())


def test_lost_blob_is_reported_and_the_rest_is_backed_up(filled: ManagedTableFactory, tmp_path: Path) -> None:
    stores = filled.factory.stores
    lost = next(each.blob_uri for each in stores.pointers.scan("/accounts/a1/catalogs/by-id/"))
    stores.blobs.delete(lost)
    made = write_backup(stores, tmp_path / "backup", secrets=None, warehouse=filled.warehouse)
    assert made.missing == (lost,)
    assert made.blobs > 3


def test_wrong_folders_and_stores_are_rejected(filled: ManagedTableFactory, secrets: Path, tmp_path: Path) -> None:
    stores, backup, warehouse = filled.factory.stores, tmp_path / "backup", filled.warehouse
    write_backup(stores, backup, secrets=secrets, warehouse=warehouse)
    with pytest.raises(InvalidArgument, match="already exists: give a folder that does not exist yet"):
        write_backup(stores, backup, secrets=None, warehouse=warehouse)
    with pytest.raises(PreconditionFailed, match="the store is not empty"):
        restore_backup(stores, backup, secrets=tmp_path / "new", warehouse=warehouse)
    other = ManagedTableFactory.at(filled.factory, tmp_path / "elsewhere").warehouse
    with open_stores("memory://") as empty:
        with pytest.raises(PreconditionFailed, match=r"add --set warehouse\.uri=file://"):
            restore_backup(empty, backup, secrets=tmp_path / "new", warehouse=other)
        with pytest.raises(PreconditionFailed, match=r"secrets\.backend is not file"):
            restore_backup(empty, backup, secrets=None, warehouse=warehouse)
        with pytest.raises(PreconditionFailed, match="is not empty"):
            restore_backup(empty, backup, secrets=secrets, warehouse=warehouse)
        shutil.copytree(backup, tmp_path / "torn")
        (tmp_path / "torn" / "manifest.json").unlink()
        with pytest.raises(InvalidArgument, match="not a complete backup"):
            restore_backup(empty, tmp_path / "torn", secrets=None, warehouse=warehouse)
        shutil.copytree(backup, tmp_path / "damaged")
        blob = next(path for path in (tmp_path / "damaged" / "blobs").rglob("*.*") if path.is_file())
        blob.write_bytes(blob.read_bytes() + b"x")
        with pytest.raises(InvalidArgument, match="was expected"):
            restore_backup(empty, tmp_path / "damaged", secrets=tmp_path / "new", warehouse=warehouse)
        assert everything(empty) == []
        manifest = json.loads((backup / "manifest.json").read_text()) | {"format": 99}
        (backup / "manifest.json").write_text(json.dumps(manifest))
        with pytest.raises(PreconditionFailed, match="upgrade Skiway"):
            restore_backup(empty, backup, secrets=None, warehouse=warehouse)
