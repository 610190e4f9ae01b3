"""The store that version 0.1 writes stays readable: every record in it has what it had, also after all migrations.

A change of this test's archive is no fix. Records that older versions wrote need a migration: see CONTRIBUTING.
"""

from __future__ import annotations

import json
import sqlite3
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import ParseDict

from metastore.integrity import damage
from metastore.migrations.write_store import ARCHIVE, fields_now, records_in
from skiway.metastore import Realm
from skiway.metastore.maintenance import Checker
from skiway.metastore.migrations import STEPS, migrate, require_usable
from skiway.metastore.records.kinds import KINDS
from skiway.metastore.records.repository import Repository
from skiway.metastore.resources import catalogs
from skiway.model import v1
from skiway.security import MemorySecrets
from skiway.storage import FORMAT_VERSION, StoreFormat, Stores, open_stores

NEW_KINDS = frozenset({"branch"})
"""Kinds of records that were added after the archive was written."""

REMOVED = {("skiway.v1.Webhook", "has_secret")}
"""Fields that servers no longer need: a webhook without a `secret_id` has the secret that the store kept under its own id."""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    with sqlite3.connect(tmp_path / "pointers.db") as database:
        database.executescript((tmp_path / "dump.sql").read_text())
    database.close()
    return tmp_path


@pytest.fixture
def stores(home: Path) -> Iterator[Stores]:
    with open_stores(f"sqlite:///{home}/pointers.db", (home / "blobs").as_uri()) as opened:
        yield opened


@pytest.fixture
def content(home: Path) -> dict[str, Any]:
    written: dict[str, Any] = json.loads((home / "content.json").read_text())
    for message, field in REMOVED:
        del written["fields"][message][field]
        kinds = [kind.noun for kind in KINDS if kind.message.DESCRIPTOR.full_name == message]
        for record in (record for noun in kinds for record in written["records"][noun].values()):
            del record[field]
    return written


def test_archive_has_records_of_every_kind(content: dict[str, Any]) -> None:
    """If a kind was added, add it to `NEW_KINDS`, or write the archive of a new format."""
    assert {kind.noun for kind in KINDS} - NEW_KINDS == set(content["records"])


def test_fields_of_records_mean_what_they_meant(content: dict[str, Any]) -> None:
    """A field that was removed, renumbered or has another type needs a new format, and a migration from this one."""
    now = fields_now()
    for message, fields in content["fields"].items():
        for field, description in fields.items():
            assert now[message].get(field) == description or FORMAT_VERSION > 2, (message, field)


@pytest.mark.parametrize("migrated", [False, True])
def test_every_record_is_read(stores: Stores, content: dict[str, Any], migrated: bool) -> None:
    assert stores.pointers.format() == StoreFormat(2)
    if migrated:
        assert [step.to for step in migrate(stores, MemorySecrets(), STEPS, settle_s=0)] == [
            step.to for step in STEPS if step.to > 2
        ]
        assert stores.pointers.format() == StoreFormat(FORMAT_VERSION)
    else:
        require_usable(stores, STEPS)
    for kind in KINDS:
        for key, written in content["records"].get(kind.noun, {}).items():
            records: Repository[Any] = Repository(stores, kind)
            record = records.require(key, name=key).value
            record.DiscardUnknownFields()  # of removed fields
            assert record == ParseDict(written, kind.message()), key
    assert records_in(stores) == content["records"]
    assert (list(Checker(stores).defects()), damage(stores)) == ([], [])


def test_servers_of_this_version_change_the_store(stores: Stores) -> None:
    realm = Realm(stores, "a1")
    created = catalogs.create(realm, v1.CreateCatalogRequest(spec=v1.CatalogSpec(display_name="new"))).catalog
    found = catalogs.list_(realm, v1.ListCatalogsRequest()).catalogs
    assert [catalog.display_name for catalog in found] == ["again", "lake", "new"]
    assert created in found
    catalogs.delete(realm, v1.DeleteCatalogRequest(catalog_id=created.resource_id))
    assert (list(Checker(stores).defects()), damage(stores)) == ([], [])
