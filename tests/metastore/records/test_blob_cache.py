from __future__ import annotations

from typing import Any

import pytest

from metastore.resource_factory import ResourceFactory, behavior, expect_error, mask
from skiway.errors import Internal, NotFound
from skiway.metastore.resources import directory, tables
from skiway.model import v1
from skiway.storage import CallCounter, open_stores
from skiway.storage.blobs.cache import with_blob_cache

REF = v1.NameRef(catalog="lake", path=["sales"], name="people")


def resolved(factory: ResourceFactory, ref: v1.NameRef = REF) -> v1.ResourceId:
    return directory.resolve_table(factory.home, v1.ResolveTableRequest(ref=ref)).resource_id


def rename(factory: ResourceFactory, table: v1.Table, name: str) -> None:
    request = v1.UpdateTableRequest(
        table_id=table.resource_id, spec=v1.TableSpec(display_name=name), update_mask=mask("display_name")
    )
    tables.update(factory.home, request)


@pytest.fixture
def servers(tmp_path, calls) -> Any:
    """Two servers on one store, each with its own cache; the calls of the second are counted."""
    url = f"sqlite:///{tmp_path}/p.db"
    with open_stores(url) as one, open_stores(url, on_call=calls) as two:
        yield ResourceFactory(with_blob_cache(one)), ResourceFactory(with_blob_cache(two))


@behavior(45, 46)
def test_change_is_visible_at_once_on_every_server(servers):
    one, two = servers
    table = one.table("people")
    assert resolved(two) == resolved(one) == table.resource_id
    rename(one, table, "humans")
    for factory in servers:
        with expect_error(NotFound, "table.by.name.missing"):
            resolved(factory)
        assert resolved(factory, v1.NameRef(catalog="lake", path=["sales"], name="humans")) == table.resource_id
        ref = directory.lookup_table(factory.home, v1.LookupTableRequest(resource_id=table.resource_id)).ref
        assert ref.name == "humans"


@behavior(46)
def test_absence_is_not_cached(servers):
    one, two = servers
    one.namespace("sales")
    with expect_error(NotFound, "table.by.name.missing"):
        resolved(two)
    table = one.table("people")
    assert resolved(two) == table.resource_id
    tables.delete(one.home, v1.DeleteTableRequest(table_id=table.resource_id))
    with expect_error(NotFound, "table.by.name.missing"):
        resolved(two)


def test_cached_name_is_resolved_without_reading_blobs(servers, calls: CallCounter):
    one, two = servers
    one.table("people")
    resolved(two)
    calls.reset()
    resolved(two)
    assert calls.counts == {"pointers.get": 3}


@behavior(45)
def test_cache_is_not_shared_between_accounts(servers):
    one, two = servers
    table = one.table("people")
    resolved(two)
    two.account("a2")
    with expect_error(NotFound, "catalog.by.name.missing"):
        directory.resolve_table(two.realm("a2"), v1.ResolveTableRequest(ref=REF))
    foreign_id = v1.ResourceId(account_id="a2", id=table.resource_id.id)
    assert not directory.lookup_table(two.realm("a2"), v1.LookupTableRequest(resource_id=foreign_id)).HasField("ref")


def test_changing_a_returned_message_does_not_affect_the_cache(servers):
    one, _ = servers
    table = one.table("people")
    read = tables.get(one.home, v1.GetTableRequest(table_id=table.resource_id)).table
    read.display_name = "changed"
    assert tables.get(one.home, v1.GetTableRequest(table_id=table.resource_id)).table == table


def test_cache_is_bounded_and_large_blobs_are_not_cached(calls):
    with open_stores("memory://", on_call=calls) as stores:
        blobs = with_blob_cache(stores, max_bytes=6400).blobs
        small = [blobs.put(bytes([number]) * 100) for number in range(70)]
        large = blobs.put(b"x" * 101)
        calls.reset()
        assert [blobs.get(uri) for uri in small[6:]] == [bytes([number]) * 100 for number in range(6, 70)]
        assert calls.total == 0
        for uri in (small[0], large, large):
            blobs.get(uri)
        assert calls.counts == {"blobs.get": 3}


def test_presence_age_and_damage_come_from_the_store():
    with open_stores("memory://") as stores:
        blobs = with_blob_cache(stores).blobs
        uri = blobs.put(b"data", folder="f")
        assert blobs.head(uri) == stores.blobs.head(uri)
        assert [head.uri for head in blobs.scan("f")] == [uri]
        blobs.delete(uri)
        assert (blobs.head(uri), stores.blobs.head(uri)) == (None, None)
        stores.blobs._create(uri, b"damaged")
        with expect_error(Internal, "blob.corrupt"):
            with_blob_cache(stores).blobs.get(uri)
