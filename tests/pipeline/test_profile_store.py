"""Which files are known, and what of them, without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from metastore.world import World
from pipeline.made import file_table, profiles, row, schema
from skiway.errors import Contention, NotFound
from skiway.metastore import gc, tables
from skiway.model import v1
from skiway.pipeline.profiles import PROFILE
from skiway.pipeline.store import ProfileStore

ONE = schema(n=pa.int64())


def of_files(*files: int, values: Sequence[int] = (1, 2)) -> pa.Table:
    return profiles(*(row(file, 1, values, pa.int64()) for file in files))


@pytest.fixture
def table(world: World) -> v1.Table:
    return world.table("people")


@pytest.fixture
def store(world: World, table: v1.Table) -> ProfileStore:
    return ProfileStore(world.home, table.resource_id)


def paths(table: pa.Table) -> list[str]:
    return [path.removesuffix(".parquet")[-2:] for path in table["path"].to_pylist()]


def pointers(world: World) -> list[str]:
    return [each.key for each in world.stores.pointers.scan("/") if "/profiles/" in each.key]


def test_what_was_added_is_known(store: ProfileStore) -> None:
    files = file_table(ONE, [2, 2, 2])
    assert paths(store.unknown(files)) == ["00", "01", "02"]
    store.add(of_files(0, 2))
    assert paths(store.unknown(files)) == ["01"]
    assert store.load(files).equals(of_files(0, 2))


def test_a_file_with_other_content_is_unknown(store: ProfileStore) -> None:
    store.add(of_files(0))
    assert store.unknown(file_table(ONE, [2], size_bytes=[1001])).num_rows == 1
    assert store.unknown(file_table(ONE, [2], etag=["new"])).num_rows == 1
    assert store.load(file_table(ONE, [2], etag=["new"])).num_rows == 0


def test_what_is_known_is_not_replaced(store: ProfileStore) -> None:
    store.add(of_files(0))
    store.add(of_files(0, values=(7, 8, 9)))
    assert store.load(file_table(ONE, [2])).equals(of_files(0))


def test_files_that_could_not_be_read_are_tried_again(store: ProfileStore) -> None:
    failed = profiles({"path": "/lake/000001.parquet", "size_bytes": 1000, "error": "it is broken"})
    store.add(pa.concat_tables([of_files(0), failed]))
    assert paths(store.unknown(file_table(ONE, [2, 2]))) == ["01"]


def test_many_additions_leave_few_parts(store: ProfileStore, world: World) -> None:
    for file in range(20):
        store.add(of_files(file))
    assert len(pointers(world)) <= 6
    assert store.load(file_table(ONE, [2] * 20)).num_rows == 20
    assert store.unknown(file_table(ONE, [2] * 20)).num_rows == 0


def test_listing_what_is_known_is_one_read(world: World, store: ProfileStore) -> None:
    for file in range(5):
        store.add(of_files(file))
    index = world.stores.pointers.get(next(key for key in pointers(world) if key.endswith("/index")))
    assert index is not None
    for key in pointers(world):
        pointer = world.stores.pointers.get(key)
        if pointer is not None and pointer != index:
            world.stores.blobs.delete(pointer.blob_uri)
    assert paths(store.unknown(file_table(ONE, [2] * 6))) == ["05"]


def test_two_who_add_at_once_both_succeed(world: World, store: ProfileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    publish, raced = ProfileStore._publish, []

    def late(self: ProfileStore, *given: object) -> None:
        if not raced:
            raced.append(True)
            store.add(of_files(1))
        publish(self, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(ProfileStore, "_publish", late)
    store.add(of_files(0))
    assert store.load(file_table(ONE, [2, 2])).num_rows == 2


def test_nothing_is_added_to_a_table_that_is_gone(world: World, table: v1.Table, store: ProfileStore) -> None:
    tables.delete(world.home, v1.DeleteTableRequest(table_id=table.resource_id))
    with pytest.raises(NotFound):
        store.add(of_files(0))
    assert pointers(world) == []


def collect(world: World) -> None:
    """Both sweeps, an hour from now."""
    later = datetime.now(UTC) + timedelta(hours=1)
    gc.run(lambda token: gc.sweep_pointers(world.stores, token=token), seconds=60)
    gc.run(lambda token: gc.sweep_blobs(world.stores, clock=lambda: later, token=token), seconds=60)


def test_profiles_stay_with_their_table_and_go_with_it(world: World, table: v1.Table, store: ProfileStore) -> None:
    for file in range(3):
        store.add(of_files(file))
    collect(world)
    assert store.load(file_table(ONE, [2] * 3)).num_rows == 3
    tables.delete(world.home, v1.DeleteTableRequest(table_id=table.resource_id))
    collect(world)
    assert pointers(world) == []
    assert [blob.uri for blob in world.stores.blobs.page("", size=1000).items if "/profiles/" in blob.uri] == []


def test_a_part_that_is_lost_is_told(world: World, store: ProfileStore) -> None:
    store.add(of_files(0))
    (part,) = (key for key in pointers(world) if "/parts/" in key)
    world.stores.pointers.compare_and_delete(part, expect=1)
    with pytest.raises(Contention, match="profile it again"):
        store.load(file_table(ONE, [2]))


def test_an_empty_profile_leaves_nothing(world: World, store: ProfileStore) -> None:
    store.add(PROFILE.empty_table())
    assert pointers(world) == []
