"""The integrity check: it finds every kind of damage, and nothing in a healthy store that is being written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from metastore.managed_table_factory import ManagedTableFactory
from metastore.resource_factory import ResourceFactory, mask
from skiway.errors import NotFound
from skiway.formats.iceberg import manifest_files
from skiway.metastore.maintenance import Checker, Defect
from skiway.metastore.platform import TokenUses
from skiway.metastore.records import keys
from skiway.metastore.records.kinds import CATALOG
from skiway.metastore.records.repository import Repository
from skiway.metastore.resources import catalogs, grants
from skiway.model import v1
from skiway.storage import ABSENT, Stores


def defects(factory: ResourceFactory) -> list[Defect]:
    return list(Checker(factory.stores).defects())


@pytest.fixture
def table(factory: ResourceFactory) -> v1.Table:
    catalog = factory.catalog()
    namespace = factory.namespace("sales", "eu", catalog=catalog)
    table = factory.table("People", namespace=namespace)
    factory.view("adults", namespace=namespace)
    factory.snapshot(table, 7)
    request = v1.AddGrantRequest(object_id=table.resource_id, grantee="user:ada", privilege=v1.PV_READ)
    grants.add(factory.home, request)
    TokenUses(factory.stores).note("ab" * 32)
    return table


def key_of(table: v1.Table) -> str:
    return keys.table("a1", table.resource_id.id)


def test_healthy_store_has_no_defects(factory: ResourceFactory, table: v1.Table) -> None:
    checker = Checker(factory.stores)
    assert list(checker.defects()) == []
    assert checker.counts["pointer"] == factory.stores.pointers.count()
    assert checker.counts["resource"] >= 6


def lose_blob(stores: Stores, table: v1.Table) -> str:
    pointer = stores.pointers.get(key_of(table))
    assert pointer is not None
    stores.blobs.delete(pointer.blob_uri)
    return "is missing"


def lose_name(stores: Stores, table: v1.Table) -> str:
    name = keys.table_name("a1", table.namespace_id.id, "People")
    stores.pointers.compare_and_delete(name, expect=1)
    return "has no name"


def lose_table(stores: Stores, table: v1.Table) -> str:
    stores.pointers.compare_and_delete(key_of(table), expect=1)
    return "does not exist"


def lose_namespace(stores: Stores, table: v1.Table) -> str:
    stores.pointers.compare_and_delete(keys.namespace("a1", table.namespace_id.id), expect=1)
    return "which does not exist"


def lose_snapshot(stores: Stores, table: v1.Table) -> str:
    stores.pointers.compare_and_delete(keys.snapshot("a1", table.resource_id.id, 7), expect=1)
    return "does not exist"


def replace_blob(stores: Stores, table: v1.Table) -> str:
    pointer = stores.pointers.get(key_of(table))
    assert pointer is not None
    other = stores.blobs.put(b"\xff\xff\xff", folder=keys.folder(pointer.key), suffix=".pb")
    stores.pointers.compare_and_set(pointer.key, other, expect=pointer.version)
    return "cannot be read"


@pytest.mark.parametrize("damage", [lose_blob, lose_name, lose_table, lose_namespace, lose_snapshot, replace_blob])
def test_damage_is_found(factory: ResourceFactory, table: v1.Table, damage: Callable[[Stores, v1.Table], str]) -> None:
    problem = damage(factory.stores, table)
    found = defects(factory)
    assert any(problem in each.problem for each in found), found


def test_resource_that_is_deleted_during_the_check_is_no_defect(
    factory: ResourceFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = factory.catalog("doomed")

    def deleted_meanwhile(_: str) -> bytes:
        monkeypatch.undo()
        catalogs.delete(factory.home, v1.DeleteCatalogRequest(catalog_id=catalog.resource_id))
        raise NotFound("gone")

    monkeypatch.setattr(factory.stores.blobs, "get", deleted_meanwhile)
    found = [each for each in defects(factory) if "accounts/by-id" not in each.place]
    assert found == []


def test_name_of_a_resource_that_is_created_during_the_check_is_no_defect(
    factory: ResourceFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check reads the name before the resource that it belongs to, and that one after both were written."""
    factory.catalog("one")
    get = factory.stores.pointers.get
    missed: list[str] = []

    def get_once_missing(key: str) -> object:
        if "/catalogs/by-id/" in key and not missed:
            missed.append(key)
            return None
        return get(key)

    monkeypatch.setattr(factory.stores.pointers, "get", get_once_missing)
    assert defects(factory) == []
    assert missed


def test_files_of_managed_tables_must_exist(factory: ResourceFactory, tmp_path: Path) -> None:
    managed = ManagedTableFactory.at(factory, tmp_path)
    table = managed.append(managed.create(), 1)
    table = managed.append(table, 2)
    checker = Checker(factory.stores, managed.warehouse)
    assert list(checker.defects()) == []
    assert checker.counts["managed table"] == 1
    assert checker.counts["file"] >= 7, "two data files, two manifests, two lists and the metadata"
    files = [path for path in Path(managed.warehouse.root.path).rglob("*") if path.is_file()]
    for suffix, problem in {
        ".parquet": "is missing",
        ".avro": "cannot be read",
        ".metadata.json": "is missing",
    }.items():
        lost = next(path for path in sorted(files, reverse=True) if path.name.endswith(suffix))
        content = lost.read_bytes()
        lost.unlink()
        found = list(Checker(factory.stores, managed.warehouse).defects())
        assert [problem in each.problem for each in found] == [True], (suffix, found)
        lost.write_bytes(content)
    assert list(Checker(factory.stores, managed.warehouse).defects()) == []
    factory.stores.pointers.compare_and_set("/platform/x", "plain", expect=ABSENT)
    assert list(Checker(factory.stores).defects()) == []


def test_sizes_of_files_must_agree(factory: ResourceFactory, tmp_path: Path) -> None:
    managed = ManagedTableFactory.at(factory, tmp_path)
    managed.append(managed.create(), 1)
    (file,) = Path(managed.warehouse.root.path).rglob("*.parquet")
    size = file.stat().st_size
    with file.open("ab") as longer:
        longer.write(b"x")
    (found,) = Checker(factory.stores, managed.warehouse).defects()
    assert f"it has {size + 1} bytes, but {size} according to its manifest" in found.problem
    assert found.place.endswith(file.name)


@pytest.mark.parametrize("noun", ["files", "rows"])
def test_counts_of_manifests_must_agree(
    factory: ResourceFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, noun: str
) -> None:
    managed = ManagedTableFactory.at(factory, tmp_path)
    managed.append(managed.append(managed.create(), 1), 2)
    assert list(Checker(factory.stores, managed.warehouse).defects()) == []
    read = manifest_files.manifests

    def wrong(*arguments: Any) -> Any:
        found = read(*arguments)
        place = {"files": 7, "rows": 10}[noun]  # added_files_count, added_rows_count
        for each in found:
            each[place] += 1
        return found

    monkeypatch.setattr(manifest_files, "manifests", wrong)
    problems = [each.problem for each in Checker(factory.stores, managed.warehouse).defects()]
    assert len(problems) == 2
    assert all(f" {noun}, but " in each for each in problems), problems


def test_a_catalog_whose_name_hides_branches_is_reported_until_it_is_renamed(factory: ResourceFactory) -> None:
    """Earlier releases allowed such names."""
    own_id = v1.ResourceId(account_id="a1", id="old", kind=v1.RK_CATALOG)
    old = v1.Catalog(resource_id=own_id, display_name="lake@dev")
    Repository(factory.stores, CATALOG).create(old)
    (found,) = defects(factory)
    assert "rename it with skiway catalogs update 'lake@dev' --name NAME" in found.problem
    request = v1.UpdateCatalogRequest(
        catalog_id=own_id, spec=v1.CatalogSpec(display_name="lake-dev"), update_mask=mask("display_name")
    )
    catalogs.update(factory.home, request)
    assert defects(factory) == []
