"""Manifests are merged when there are enough small ones, up to a target size, by spec and content."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from formats.managed import LooseTable
from skiway.formats.iceberg.changes.evolution import partition_by
from skiway.formats.iceberg.manifest_files import manifests
from skiway.formats.iceberg.metadata_files import WritingIO

ROWS = pa.table({"x": [1, 2, 3]})
MIN_COUNT, TARGET, ENABLED = (
    f"commit.{name}" for name in ("manifest.min-count-to-merge", "manifest.target-size-bytes", "manifest-merge.enabled")
)


def listed(table: LooseTable) -> list[int]:
    """The number of files in each manifest, in the order of the list."""
    found = manifests(table.metadata.current_snapshot(), WritingIO(table.files))
    return [(each.added_files_count or 0) + (each.existing_files_count or 0) for each in found]


@pytest.fixture
def table(tmp_path: Path) -> LooseTable:
    return LooseTable(tmp_path, ROWS.schema)


def append(table: LooseTable, count: int) -> list[int]:
    for _ in range(count):
        table.append(ROWS)
    return listed(table)


def test_manifests_are_merged_when_there_are_enough(table: LooseTable) -> None:
    table.metadata.properties[MIN_COUNT] = "3"
    assert append(table, 3) == [1, 1, 1], "two before the last commit"
    assert append(table, 1) == [1, 3]
    assert append(table, 1) == [1, 1, 3]
    assert append(table, 1) == [1, 5]
    assert sorted(table.rows()["x"].to_pylist()) == sorted([1, 2, 3] * 6)


def test_merging_can_be_switched_off(table: LooseTable) -> None:
    table.metadata.properties.update({MIN_COUNT: "1", ENABLED: "FALSE"})
    assert append(table, 4) == [1, 1, 1, 1]


def test_single_manifest_is_not_written_again(table: LooseTable) -> None:
    table.metadata.properties[MIN_COUNT] = "1"
    append(table, 1)
    (before,) = manifests(table.metadata.current_snapshot(), WritingIO(table.files))
    assert append(table, 1) == [1, 1]
    after = manifests(table.metadata.current_snapshot(), WritingIO(table.files))
    assert before.manifest_path in {each.manifest_path for each in after}


def test_merged_manifests_have_the_target_size(table: LooseTable) -> None:
    append(table, 4)
    sizes = [each.manifest_length for each in manifests(table.metadata.current_snapshot(), WritingIO(table.files))]
    largest = max(sizes)
    table.metadata.properties.update({MIN_COUNT: "2", TARGET: str(2 * largest + 2)})
    assert sorted(append(table, 1)) == [1, 2, 2]


def test_large_manifests_stay_as_they_are(table: LooseTable) -> None:
    append(table, 3)
    smallest = min(
        each.manifest_length for each in manifests(table.metadata.current_snapshot(), WritingIO(table.files))
    )
    table.metadata.properties.update({MIN_COUNT: "2", TARGET: str(2 * smallest)})
    assert append(table, 1) == [1, 1, 1, 1]


def test_manifests_of_different_specs_are_not_merged(table: LooseTable) -> None:
    append(table, 2)
    table.change(partition_by("x"))
    table.metadata.properties[MIN_COUNT] = "2"
    table.append(ROWS)
    assert sorted(listed(table)) == [2, 3]
    table.append(ROWS)
    assert sorted(listed(table)) == [2, 3, 3]
    table.append(ROWS)
    assert sorted(listed(table)) == [2, 3, 6]
