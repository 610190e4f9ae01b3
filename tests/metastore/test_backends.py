"""The lifecycle of a table on every storage backend."""

from __future__ import annotations

import pytest

from metastore.integrity import damage
from metastore.resource_factory import ResourceFactory, behavior, expect_error, key, mask
from skiway.errors import AlreadyExists, PreconditionFailed
from skiway.metastore import statistics
from skiway.metastore.resources import catalogs, directory, snapshots, tables
from skiway.model import v1
from skiway.storage import Stores
from storage.conftest import server  # noqa: F401 - a fixture
from storage.homes import blob_home, pointer_home


@behavior(18)
@pytest.mark.parametrize(
    ("pointers", "blobs"),
    [
        ("memory", "memory"),
        ("sqlite", "file"),
        ("postgresql", "file"),
        pytest.param("dynamodb", "s3", marks=pytest.mark.full),
    ],
)
def test_resource_lifecycle_is_the_same_on_every_backend(pointers, blobs, tmp_path, server, clock):  # noqa: F811
    places = pointer_home(pointers, tmp_path, server), blob_home(blobs, tmp_path, server)
    with places[0].pointers(clock=clock) as opened, places[1].blobs(clock=clock) as content:
        factory = ResourceFactory(Stores(opened, content), clock)
        namespace = factory.namespace("sales", "eu")
        table = factory.table(namespace=namespace)
        with expect_error(AlreadyExists, "table.already.exists"):
            factory.table(namespace=namespace)
        update = v1.UpdateTableRequest(
            table_id=table.resource_id,
            spec=v1.TableSpec(display_name="humans"),
            update_mask=mask("display_name"),
            precondition=v1.Precondition(expected_version=1),
        )
        assert tables.update(factory.home, update).meta.pointer_version == 2
        with expect_error(PreconditionFailed, "version.mismatch"):
            tables.update(factory.home, update)
        ref = v1.NameRef(catalog="lake", path=["sales", "eu"], name="humans")
        found = directory.resolve_table(factory.home, v1.ResolveTableRequest(ref=ref))
        assert found.resource_id == table.resource_id
        for number in (1, 2):
            factory.snapshot(table, number, at=number)
        put = v1.PutColumnStatsRequest(
            table_id=table.resource_id, snapshot_id=2, columns=[v1.ColumnStats(column_id=1)], idempotency=key("k")
        )
        assert statistics.put_columns(factory.home, [put]).upserted == 1
        listed = snapshots.list_(factory.home, v1.ListSnapshotsRequest(table_id=table.resource_id))
        assert [each.snapshot_id for each in listed.snapshots] == [2, 1]
        assert damage(factory.stores) == []
        catalogs.delete(factory.home, v1.DeleteCatalogRequest(catalog_id=table.catalog_id, require_empty=False))
        assert [each.key for each in factory.stores.pointers.scan("/accounts/a1/")] == []
