"""One life of a table, on every place that resources can be kept."""

from __future__ import annotations

import pytest

from metastore.wholeness import damage
from metastore.world import World, behaviour, key, mask, refused
from skiway.errors import AlreadyExists, PreconditionFailed
from skiway.metastore import statistics
from skiway.metastore.resources import catalogs, directory, snapshots, tables
from skiway.model import v1
from skiway.storage import Stores
from storage.conftest import server  # noqa: F401 - a fixture
from storage.homes import blob_home, pointer_home


@behaviour(18)
@pytest.mark.parametrize(
    ("pointers", "blobs"), [("memory", "memory"), ("sqlite", "file"), ("postgresql", "file"), ("dynamodb", "s3")]
)
def test_resources_live_alike_on_every_backend(pointers, blobs, tmp_path, server, clock):  # noqa: F811
    places = pointer_home(pointers, tmp_path, server), blob_home(blobs, tmp_path, server)
    with places[0].pointers(clock=clock) as opened, places[1].blobs(clock=clock) as content:
        world = World(Stores(opened, content), clock)
        place = world.namespace("sales", "eu")
        table = world.table(namespace=place)
        with refused(AlreadyExists, "table.already.exists"):
            world.table(namespace=place)
        update = v1.UpdateTableRequest(
            table_id=table.resource_id,
            spec=v1.TableSpec(display_name="humans"),
            update_mask=mask("display_name"),
            precondition=v1.Precondition(expected_version=1),
        )
        assert tables.update(world.home, update).meta.pointer_version == 2
        with refused(PreconditionFailed, "version.mismatch"):
            tables.update(world.home, update)
        ref = v1.NameRef(catalog="lake", path=["sales", "eu"], name="humans")
        found = directory.resolve_table(world.home, v1.ResolveTableRequest(ref=ref))
        assert found.resource_id == table.resource_id
        for number in (1, 2):
            world.snapshot(table, number, at=number)
        put = v1.PutColumnStatsRequest(
            table_id=table.resource_id, snapshot_id=2, columns=[v1.ColumnStats(column_id=1)], idempotency=key("k")
        )
        assert statistics.put_columns(world.home, [put]).upserted == 1
        listed = snapshots.list_(world.home, v1.ListSnapshotsRequest(table_id=table.resource_id))
        assert [each.snapshot_id for each in listed.snapshots] == [2, 1]
        assert damage(world.stores) == []
        catalogs.delete(world.home, v1.DeleteCatalogRequest(catalog_id=table.catalog_id, require_empty=False))
        assert [each.key for each in world.stores.pointers.scan("/accounts/a1/")] == []
