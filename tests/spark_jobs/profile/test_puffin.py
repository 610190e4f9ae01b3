"""The Puffin file, read by PyIceberg on its own and as part of a managed table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasketches
import pyarrow as pa
import pytest
from pyiceberg.table import StaticTable
from pyiceberg.table.puffin import PuffinFile

from metastore.managed_table_factory import ManagedTableFactory, id_of
from metastore.resource_factory import ResourceFactory
from skiway.errors import Conflict
from skiway.formats.iceberg.deletes import Puffin
from skiway.metastore.managed import commits
from skiway.metastore.reconcile.profiling import attach
from skiway.metastore.reconcile.reconciler import Reconciler
from skiway.security import MemorySecrets
from skiway.spark_jobs.profile.sketches import write_puffin
from skiway.spark_jobs.worker import SparkProfile
from spark_jobs.lakes import SPARK
from spark_jobs.sample_profiles import schema, theta


def test_sketches_are_read_back_from_their_offsets() -> None:
    of = schema(id=pa.int64(), name=pa.string(), price=pa.decimal128(9, 2), share=pa.float32())
    sketches = {1: theta(range(9000)), 2: theta(["a", "b"]), 3: theta(["1.00"]), 4: theta([0.5])}
    puffin = write_puffin(sketches, of, snapshot_id=77, sequence_number=5)
    footer = PuffinFile(puffin.data).footer
    assert [blob.fields for blob in footer.blobs] == [[1], [2]]  # Iceberg hashes decimals and floats differently
    for blob in footer.blobs:
        assert (blob.type, blob.snapshot_id, blob.sequence_number) == ("apache-datasketches-theta-v1", 77, 5)
        found = puffin.data[blob.offset : blob.offset + blob.length]
        assert found == sketches[blob.fields[0]]
        estimate = datasketches.compact_theta_sketch.deserialize(found).get_estimate()
        assert blob.properties == {"ndv": str(round(estimate))}
    assert puffin.data[-puffin.footer_size :][:4] == b"PFA1"


def test_table_without_sketches_has_an_empty_file() -> None:
    assert PuffinFile(write_puffin({}, schema(n=pa.int64()), snapshot_id=1, sequence_number=1).data).footer.blobs == []


# --- attached to managed tables ---------------------------------------------------------------------------------------


@pytest.fixture
def managed(factory: ResourceFactory, tmp_path: Path) -> ManagedTableFactory:
    return ManagedTableFactory.at(factory, tmp_path)


def statistics(managed: ManagedTableFactory, table: Any) -> list[Any]:
    """The statistics that PyIceberg finds in the table's metadata."""
    return list(StaticTable.from_metadata(managed.load(table).metadata_location).metadata.statistics)


def sketches(table: Any, *values: int) -> Puffin:
    snapshot = table.metadata.current_snapshot()
    number = snapshot.sequence_number
    return write_puffin(
        {1: theta(values)}, schema(x=pa.int64()), snapshot_id=snapshot.snapshot_id, sequence_number=number
    )


class TestWithSpark:
    pytestmark = SPARK

    def test_profile_of_a_managed_table_appears_in_its_metadata(self, managed: ManagedTableFactory, spark: Any) -> None:
        table = managed.append(managed.append(managed.create(), 1, 2, 3, 3), 3, 4)
        reconciler = Reconciler(MemorySecrets(), SparkProfile(lambda: spark), warehouse=managed.warehouse)
        assert reconciler.managed(managed.home, id_of(table)).failures == {}
        (found,) = statistics(managed, table)
        assert found.snapshot_id == table.metadata.current_snapshot_id
        (blob,) = found.blob_metadata
        assert (blob.type, blob.fields, blob.properties) == ("apache-datasketches-theta-v1", [1], {"ndv": "4"})
        content = Path(found.statistics_path.removeprefix("file://")).read_bytes()
        assert len(content) == found.file_size_in_bytes
        (inside,) = PuffinFile(content).footer.blobs
        sketch = datasketches.compact_theta_sketch.deserialize(content[inside.offset : inside.offset + inside.length])
        assert sketch.get_estimate() == 4
        assert managed.rows(table) == [1, 2, 3, 3, 3, 4]
        assert managed.load(table).metadata.current_snapshot_id == table.metadata.current_snapshot_id


def test_newer_sketches_replace_the_old_ones(managed: ManagedTableFactory) -> None:
    table = managed.append(managed.create(), 1)
    for values in ((1,), (1, 2)):
        snapshot_id = table.metadata.current_snapshot_id
        attach(
            managed.home, managed.warehouse, id_of(table), snapshot_id=snapshot_id, sketches=sketches(table, *values)
        )
    (found,) = statistics(managed, table)
    assert found.blob_metadata[0].properties == {"ndv": "2"}


def test_each_snapshot_has_its_own_statistics_file(managed: ManagedTableFactory) -> None:
    table = managed.create()
    for number in (1, 2):
        table = managed.append(table, number)
        snapshot_id = table.metadata.current_snapshot_id
        attach(managed.home, managed.warehouse, id_of(table), snapshot_id=snapshot_id, sketches=sketches(table, number))
    assert {each.snapshot_id for each in statistics(managed, table)} == {
        each.snapshot_id for each in table.metadata.snapshots
    }


def test_concurrently_removed_snapshot_is_skipped(managed: ManagedTableFactory) -> None:
    table = managed.append(managed.create(), 1)
    before = managed.load(table).metadata_location
    attach(managed.home, managed.warehouse, id_of(table), snapshot_id=4711, sketches=sketches(table, 1))
    assert managed.load(table).metadata_location == before


def test_nothing_is_attached_without_reliable_sketches(managed: ManagedTableFactory) -> None:
    table = managed.append(managed.create(), 1)
    before = managed.load(table).metadata_location
    snapshot_id = table.metadata.current_snapshot_id
    attach(managed.home, managed.warehouse, id_of(table), snapshot_id=snapshot_id, sketches=Puffin(b"", 0, []))
    assert managed.load(table).metadata_location == before


def test_statistics_are_stored_even_if_the_puffin_file_cannot_be_attached(managed, monkeypatch, caplog) -> None:
    table = managed.append(managed.create(), 1)

    def lost(*_: Any, **__: Any) -> None:
        raise Conflict("others are faster", key="commit.failed")

    monkeypatch.setattr(commits, "change", lost)
    snapshot_id = table.metadata.current_snapshot_id
    attach(managed.home, managed.warehouse, id_of(table), snapshot_id=snapshot_id, sketches=sketches(table, 1))
    assert "others are faster" in caplog.text
    assert statistics(managed, table) == []
