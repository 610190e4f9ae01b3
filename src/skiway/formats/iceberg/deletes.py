"""Which delete files of an Iceberg snapshot apply to which of its data files.

A delete file applies to data that is as old as itself or older (to older data only, if it deletes by equality), and
lies in the same partition; or that it names. Deletes by equality that have no partition apply everywhere.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Set
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from skiway.formats.source import FILE_COLUMNS, Content

__all__ = ["PLACES", "with_deletes"]

# Where in a delete file the deletes of a data file are: columns behind those of a file table.
PLACES = pa.schema(
    {
        "referenced": pa.string(),
        "path_from": pa.binary(),
        "path_to": pa.binary(),
        "blob_offset": pa.int64(),
        "blob_size": pa.int64(),
    }
)


def with_deletes(files: pa.Table, *, unpartitioned: Set[int]) -> pa.Table:
    """`files` with its columns `deletes` and `deleted_rows` filled; `unpartitioned` are the ids of specs without fields."""
    if not pc.any(pc.not_equal(files["content"], Content.DATA), min_count=0).as_py():
        return files
    names = ["ordinal", "path", "content", "row_count", "spec_id", "sequence_number", *PLACES.names]
    rows = files.select(names).to_pylist()
    # As text, since there one NaN equals another.
    partitions = [
        (row["spec_id"], repr(value)) for row, value in zip(rows, files["partition"].to_pylist(), strict=True)
    ]
    index = _Index(unpartitioned)
    for row, partition in zip(rows, partitions, strict=True):
        if row["content"] != Content.DATA:
            index.add(row, partition)
    applied = [list(index.of(row, partition)) for row, partition in zip(rows, partitions, strict=True)]
    files = _set(files, "deletes", [[one["ordinal"] for one in found] for found in applied])
    return _set(files, "deleted_rows", [_deleted_rows(found) for found in applied])


def _set(files: pa.Table, name: str, values: list[Any]) -> pa.Table:
    field = FILE_COLUMNS.field(name)
    return files.set_column(files.schema.get_field_index(name), field, pa.array(values, field.type))


def _deleted_rows(deletes: list[Mapping[str, Any]]) -> int | None:
    """Known of a deletion vector only: others may delete a row twice, or rows of other files."""
    if not deletes:
        return 0
    vectors = [one for one in deletes if one["blob_offset"] is not None]
    return vectors[0]["row_count"] if len(deletes) == len(vectors) == 1 else None


class _Index:
    def __init__(self, unpartitioned: Set[int]) -> None:
        self.unpartitioned = unpartitioned
        self.by_path: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
        self.by_partition: dict[tuple[int, str], list[Mapping[str, Any]]] = defaultdict(list)
        self.everywhere: list[Mapping[str, Any]] = []

    def add(self, delete: Mapping[str, Any], partition: tuple[int, str]) -> None:
        if delete["referenced"] is not None:
            self.by_path[delete["referenced"]].append(delete)
        elif delete["content"] == Content.EQUALITY_DELETES and delete["spec_id"] in self.unpartitioned:
            self.everywhere.append(delete)
        else:
            self.by_partition[partition].append(delete)

    def of(self, file: Mapping[str, Any], partition: tuple[int, str]) -> Iterator[Mapping[str, Any]]:
        """The delete files that apply to a data file, or to none if it is not one."""
        if file["content"] != Content.DATA:
            return
        near = (*self.by_path.get(file["path"], ()), *self.by_partition.get(partition, ()), *self.everywhere)
        named = [delete for delete in near if delete["blob_offset"] is not None]
        yield from named  # a deletion vector holds all older position deletes too
        for delete in near:
            if delete["content"] == Content.EQUALITY_DELETES:
                if file["sequence_number"] < delete["sequence_number"]:
                    yield delete
            elif not named and _may_delete(delete, file):
                yield delete


def _may_delete(delete: Mapping[str, Any], file: Mapping[str, Any]) -> bool:
    path = file["path"].encode()
    low, high = delete["path_from"], delete["path_to"]
    is_old_enough = file["sequence_number"] <= delete["sequence_number"]
    return bool(is_old_enough and (low is None or low <= path) and (high is None or path <= high))
