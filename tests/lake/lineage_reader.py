"""Row lineage of a table by a reader that follows the specification: it reads the Avro, Parquet and Puffin files as they are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyiceberg.avro.file import AvroFile
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table.deletion_vector import deletion_vectors_from_puffin_file
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.puffin import PuffinFile

ROW_ID, LAST_UPDATED = 2147483540, 2147483539

Lineage = dict[int, tuple[int | None, int | None]]


def read_lineage(metadata: TableMetadata) -> Lineage:
    """The row id and the last sequence number of each row that is not deleted, by its column `id`."""
    snapshot = metadata.current_snapshot()
    assert snapshot is not None
    found: Lineage = {}
    live = [
        (manifest, list(_live(manifest["manifest_path"])))
        for manifest in _records(snapshot.manifest_list)
        if manifest["added_files_count"] or manifest["existing_files_count"]
    ]
    deleted = dict(_deleted(file) for manifest, entries in live if manifest["content"] == 1 for _, file in entries)
    for manifest, entries in live:
        if manifest["content"] != 0:
            continue
        upcoming = manifest.get("first_row_id")
        for entry, file in entries:
            number = manifest["sequence_number"] if entry["sequence_number"] is None else entry["sequence_number"]
            first = file.get("first_row_id")
            if first is None and upcoming is not None:
                first, upcoming = upcoming, upcoming + file["record_count"]
            for position, row in enumerate(_rows(file["file_path"])):
                if position in deleted.get(file["file_path"], ()):
                    continue
                own = row.get(ROW_ID)
                inherited = None if first is None else first + position
                last = row.get(LAST_UPDATED)
                assert row["id"] not in found
                found[row["id"]] = (inherited if own is None else own, number if last is None else last)
    return found


def _live(manifest: str) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    for entry in _records(manifest):
        if entry["status"] != 2:
            of = entry["$schema"].find_field("data_file").field_type
            yield entry, dict(zip([field.name for field in of.fields], entry["data_file"]._data, strict=True))


def _records(path: str) -> Iterator[dict[str, Any]]:
    """The records of an Avro file, in its own schema."""
    with AvroFile[Any](PyArrowFileIO().new_input(path)) as reader:
        names = [field.name for field in reader.schema.fields]
        for record in reader:
            yield dict(zip(names, record._data, strict=True)) | {"$schema": reader.schema}


def _deleted(file: dict[str, Any]) -> tuple[str, set[int]]:
    """The data file of a deletion vector, and the positions that it deletes."""
    puffin = PuffinFile(Path(file["file_path"].removeprefix("file://")).read_bytes())
    vectors = {each.referenced_data_file: each for each in deletion_vectors_from_puffin_file(puffin)}
    return file["referenced_data_file"], set(vectors[file["referenced_data_file"]].to_vector().to_pylist())


def _rows(path: str) -> list[dict[Any, Any]]:
    """The rows of a Parquet file; its lineage columns are named by field id."""
    rows = pq.ParquetFile(path.removeprefix("file://")).read()
    numbers = [int((field.metadata or {})[b"PARQUET:field_id"]) for field in rows.schema]
    names = [
        number if number in (ROW_ID, LAST_UPDATED) else name
        for number, name in zip(numbers, rows.column_names, strict=True)
    ]
    columns = [column.to_pylist() for column in rows.columns]
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]
