"""The store of file profiles: which files and columns are known, without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from metastore.resource_factory import ResourceFactory
from skiway.errors import Contention, NotFound
from skiway.metastore import gc
from skiway.metastore.resources import tables
from skiway.metastore.statistics.file_table import ProfileIndex, ProfileRecords, written
from skiway.model import v1
from skiway.spark_jobs.profile.figures import PROFILE
from skiway.spark_jobs.profile.store import ProfileStore
from spark_jobs.sample_profiles import file_table, profiles, row, schema

ONE = schema(n=pa.int64())


def profiles_of_files(*files: int, values: Sequence[int] = (1, 2)) -> pa.Table:
    return profiles(*(row(file, 1, values, pa.int64()) for file in files))


@pytest.fixture
def table(factory: ResourceFactory) -> v1.Table:
    return factory.table("people")


@pytest.fixture
def store(factory: ResourceFactory, table: v1.Table) -> ProfileStore:
    return ProfileStore(factory.home, table.resource_id)


def paths(table: pa.Table) -> list[str]:
    return [path.removesuffix(".parquet")[-2:] for path in table["path"].to_pylist()]


def pointers(factory: ResourceFactory) -> list[str]:
    return [each.key for each in factory.stores.pointers.scan("/") if "/profiles/" in each.key]


def test_added_profiles_are_known(store: ProfileStore) -> None:
    files = file_table(ONE, [2, 2, 2])
    assert paths(store.unknown(files)) == ["00", "01", "02"]
    store.add(profiles_of_files(0, 2))
    assert paths(store.unknown(files)) == ["01"]
    assert store.load(files).equals(profiles_of_files(0, 2))


def test_file_with_different_content_is_unknown(store: ProfileStore) -> None:
    store.add(profiles_of_files(0))
    assert store.unknown(file_table(ONE, [2], size_bytes=[1001])).num_rows == 1
    assert store.unknown(file_table(ONE, [2], etag=["new"])).num_rows == 1
    assert store.load(file_table(ONE, [2], etag=["new"])).num_rows == 0


def test_known_profile_is_not_replaced(store: ProfileStore) -> None:
    store.add(profiles_of_files(0))
    store.add(profiles_of_files(0, values=(7, 8, 9)))
    assert store.load(file_table(ONE, [2])).equals(profiles_of_files(0))


def test_unreadable_files_are_retried(store: ProfileStore) -> None:
    failed = profiles({"path": "/lake/000001.parquet", "size_bytes": 1000, "error": "it is broken"})
    store.add(pa.concat_tables([profiles_of_files(0), failed]))
    assert paths(store.unknown(file_table(ONE, [2, 2]))) == ["01"]


def test_many_additions_leave_few_parts(store: ProfileStore, factory: ResourceFactory) -> None:
    for file in range(20):
        store.add(profiles_of_files(file))
    assert len(pointers(factory)) <= 6
    assert store.load(file_table(ONE, [2] * 20)).num_rows == 20
    assert store.unknown(file_table(ONE, [2] * 20)).num_rows == 0


def test_listing_known_files_takes_one_read(factory: ResourceFactory, store: ProfileStore) -> None:
    for file in range(5):
        store.add(profiles_of_files(file))
    index = factory.stores.pointers.get(next(key for key in pointers(factory) if key.endswith("/index")))
    assert index is not None
    for key in pointers(factory):
        pointer = factory.stores.pointers.get(key)
        if pointer is not None and pointer != index:
            factory.stores.blobs.delete(pointer.blob_uri)
    assert paths(store.unknown(file_table(ONE, [2] * 6))) == ["05"]


def test_concurrent_additions_both_succeed(
    factory: ResourceFactory, store: ProfileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish, raced = ProfileRecords.publish, []

    def late(self: ProfileRecords, before: ProfileIndex, *, part: bytes, index: bytes) -> None:
        if not raced:
            raced.append(True)
            store.add(profiles_of_files(1))
        publish(self, before, part=part, index=index)

    monkeypatch.setattr(ProfileRecords, "publish", late)
    store.add(profiles_of_files(0))
    assert store.load(file_table(ONE, [2, 2])).num_rows == 2


def test_nothing_is_added_to_a_deleted_table(factory: ResourceFactory, table: v1.Table, store: ProfileStore) -> None:
    tables.delete(factory.home, v1.DeleteTableRequest(table_id=table.resource_id))
    with pytest.raises(NotFound):
        store.add(profiles_of_files(0))
    assert pointers(factory) == []


def collect(factory: ResourceFactory) -> None:
    """Run both sweeps, an hour from now."""
    later = datetime.now(UTC) + timedelta(hours=1)
    gc.sweep_pointers(factory.stores, size=10_000)
    gc.sweep_blobs(factory.stores, clock=lambda: later, size=10_000)


def test_profiles_live_as_long_as_their_table(factory: ResourceFactory, table: v1.Table, store: ProfileStore) -> None:
    for file in range(3):
        store.add(profiles_of_files(file))
    collect(factory)
    assert store.load(file_table(ONE, [2] * 3)).num_rows == 3
    tables.delete(factory.home, v1.DeleteTableRequest(table_id=table.resource_id))
    collect(factory)
    assert pointers(factory) == []
    assert [blob.uri for blob in factory.stores.blobs.page("", size=1000).items if "/profiles/" in blob.uri] == []


def test_lost_part_is_reported(factory: ResourceFactory, store: ProfileStore) -> None:
    store.add(profiles_of_files(0))
    (part,) = (key for key in pointers(factory) if "/parts/" in key)
    factory.stores.pointers.compare_and_delete(part, expect=1)
    with pytest.raises(Contention, match="profile it again"):
        store.load(file_table(ONE, [2]))


def test_empty_profile_stores_nothing(factory: ResourceFactory, store: ProfileStore) -> None:
    store.add(PROFILE.empty_table())
    assert pointers(factory) == []


# --- columns that are left out ----------------------------------------------------------------------------------------

TWO = schema(n=pa.int64(), m=pa.int64())


def with_columns(*columns: int, files: Sequence[int] = (0, 1), values: Sequence[int] = (1, 2)) -> pa.Table:
    return profiles(*(row(file, column, values, pa.int64()) for file in files for column in columns))


def with_excluded_columns(store: ProfileStore, *columns: int) -> ProfileStore:
    return ProfileStore(store.realm, store.table_id, left_out=frozenset(columns))


def test_file_is_known_if_all_requested_columns_were_profiled(store: ProfileStore) -> None:
    files = file_table(TWO, [2, 2])
    with_excluded_columns(store, 2).add(with_columns(1))
    assert with_excluded_columns(store, 2).unknown(files).num_rows == 0
    assert with_excluded_columns(store, 2).load(files).equals(with_columns(1))
    assert paths(store.unknown(files)) == ["00", "01"]
    assert store.load(files).num_rows == 0, "otherwise its other column would count as NULL"
    assert with_excluded_columns(store, 1).unknown(files).num_rows == 2


def test_file_profiled_with_all_columns_is_known_for_any_selection(store: ProfileStore) -> None:
    files = file_table(TWO, [2, 2])
    store.add(with_columns(1, 2))
    assert with_excluded_columns(store, 2).unknown(files).num_rows == 0
    assert with_excluded_columns(store, 2).load(files).num_rows == 4


@pytest.mark.parametrize("more", [(), (2, 3, 4, 5, 6)])
def test_profile_with_more_columns_replaces_the_old_one(store: ProfileStore, more) -> None:
    """Whether its old part is merged, as one of few files, or stays because of the other files in it."""
    files = file_table(TWO, [2] * 8)
    with_excluded_columns(store, 2).add(with_columns(1, files=(0, 1, *more)))
    store.add(with_columns(1, 2, files=(0,), values=(7, 8, 9)))
    assert store.load(files).equals(with_columns(1, 2, files=(0,), values=(7, 8, 9)))
    assert paths(store.unknown(files)) == ["01", "02", "03", "04", "05", "06", "07"]
    narrow = with_excluded_columns(store, 2)
    assert len(narrow.unknown(files)) == 8 - 2 - len(more)
    assert narrow.load(files)["path"].unique().to_pylist() == [f"/lake/{n:06}.parquet" for n in (0, 1, *more)]
    assert narrow.load(files).num_rows == 2 + 1 + len(more)


def test_profile_is_not_replaced_by_one_with_fewer_columns(store: ProfileStore) -> None:
    files = file_table(TWO, [2])
    store.add(with_columns(1, 2, files=(0,)))
    with_excluded_columns(store, 2).add(with_columns(1, files=(0,), values=(7, 8, 9)))
    assert store.load(files).equals(with_columns(1, 2, files=(0,)))


def test_index_without_column_selection_is_read(store: ProfileStore, monkeypatch) -> None:
    from skiway.spark_jobs.profile import store as module

    old = pa.schema([field for field in module._INDEX if field.name != "left_out"])
    store.add(profiles_of_files(0))
    index = store._records.index()
    rows = module._index(index).select(old.names).combine_chunks()
    store._records._indexes.update(index.stored, store._records._message(module.written(rows)))  # type: ignore[attr-defined]
    assert store.unknown(file_table(ONE, [2])).num_rows == 0
    store.add(profiles_of_files(1))
    assert store.load(file_table(ONE, [2, 2])).equals(profiles_of_files(0, 1))


def test_profile_of_an_old_version_without_lists_is_replaced(factory: ResourceFactory, table: v1.Table) -> None:
    """An old index does not say that values in lists and maps are profiled, and old parts do not count them."""
    store = ProfileStore(factory.home, table.resource_id)
    store.add(profiles_of_files(0, 1))
    records = ProfileRecords(factory.home, table.resource_id)
    old_part = written(profiles_of_files(0, 1).drop_columns(["element_count"]).combine_chunks())
    index = pa.ipc.open_file(pa.py_buffer(records.index().content)).read_all().drop_columns(["with_elements", "part"])
    index = index.append_column("part", pa.repeat(records.digest(old_part), 2))
    records.publish(records.index(), part=old_part, index=written(index.combine_chunks()))
    files = file_table(ONE, [2, 2])
    assert store.unknown(files).num_rows == 0
    assert store.load(files).equals(profiles_of_files(0, 1))
    with_lists = ProfileStore(factory.home, table.resource_id, elements=True)
    assert (with_lists.unknown(files).num_rows, with_lists.load(files).num_rows) == (2, 0)
    with_lists.add(profiles_of_files(0))
    assert paths(with_lists.unknown(files)) == ["01"]
    store.add(profiles_of_files(2))  # merges the parts
    assert paths(with_lists.unknown(files)) == ["01"]
    assert store.load(files).num_rows == 2
