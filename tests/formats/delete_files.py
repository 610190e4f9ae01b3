"""Delete rows of a table with delete files, as engines do that delete without rewriting; without such an engine."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.manifest import DATA_FILE_TYPE, DataFile, DataFileContent, FileFormat, ManifestContent
from pyiceberg.typedef import Record
from pyroaring import BitMap64

from formats.managed import LooseTable
from skiway.formats.iceberg.changes.commits import Change
from skiway.formats.iceberg.changes.snapshots import NewSnapshot
from skiway.formats.iceberg.manifest_files import write_manifest
from skiway.formats.iceberg.metadata_files import WritingIO
from skiway.formats.schemas import field_id, with_id

POSITIONS = pa.schema(
    [
        pa.field("file_path", pa.string(), nullable=False, metadata={"PARQUET:field_id": "2147483546"}),
        pa.field("pos", pa.int64(), nullable=False, metadata={"PARQUET:field_id": "2147483545"}),
    ]
)


def add_position_deletes(table: LooseTable, path: str, *positions: int, partition: Record | None = None) -> None:
    """Delete rows of the data file at `path` with a file of positions."""
    rows = pa.table({"file_path": [path] * len(positions), "pos": list(positions)}, schema=POSITIONS)
    _commit(table, _delete_file(table, rows, DataFileContent.POSITION_DELETES, partition))


def add_positions(table: LooseTable, deleted: dict[str, Sequence[int]]) -> None:
    """Delete rows of several data files with one file of positions, which names none of them in its metadata."""
    pairs = [(path, position) for path in sorted(deleted) for position in deleted[path]]
    rows = pa.table(list(zip(*pairs, strict=True)), schema=POSITIONS)
    _commit(table, _delete_file(table, rows, DataFileContent.POSITION_DELETES, None))


def add_equality_deletes(
    table: LooseTable,
    rows: pa.Table,
    ids: Sequence[int],
    *,
    equality_ids: Sequence[int] = (),
    spec_id: int = 0,
    partition: Record | None = None,
) -> None:
    """Delete the rows whose columns equal those of `rows`, which have the field ids `ids`.

    `equality_ids` are the ids of the compared fields, if they are nested in those columns.
    """
    _commit(table, _equality_deletes(table, rows, ids, equality_ids, partition), spec_id=spec_id)


def equality_delete_manifest(table: LooseTable, snapshot: NewSnapshot, rows: pa.Table, ids: Sequence[int]) -> None:
    """Add equality deletes to a snapshot that adds something else, too."""
    file = _equality_deletes(table, rows, ids, (), None)
    file.spec_id = 0
    _add_manifest(snapshot, table.files, [file], 0)


def _equality_deletes(
    table: LooseTable, rows: pa.Table, ids: Sequence[int], equality_ids: Sequence[int], partition: Record | None
) -> DataFile:
    own = [with_id(field, field_id(field) or number) for field, number in zip(rows.schema, ids, strict=True)]
    rows = rows.cast(pa.schema(own))
    compared = list(equality_ids or ids)
    return _delete_file(table, rows, DataFileContent.EQUALITY_DELETES, partition, equality_ids=compared)


def add_deletion_vectors(table: LooseTable, deleted: dict[str, Iterable[int]]) -> None:
    """Delete rows of data files with the deletion vectors of one file; the table has version 3."""
    uri = _new(table, "puffin")
    content, made, blobs = b"PFA1", [], []
    for path, positions in deleted.items():
        bitmap = BitMap64(positions)
        body = bytes.fromhex("d1d33964") + bitmap.serialize()
        blob = len(body).to_bytes(4) + body + zlib.crc32(body).to_bytes(4)
        file = DataFile.from_args(
            _table_format_version=3,
            content=DataFileContent.POSITION_DELETES,
            file_path=uri,
            file_format=FileFormat.PUFFIN,
            partition=Record(),
            record_count=len(bitmap),
            file_size_in_bytes=0,
        )
        names = [field.name for field in DATA_FILE_TYPE[3].fields]
        for name, value in [
            ("referenced_data_file", path),
            ("content_offset", len(content)),
            ("content_size_in_bytes", len(blob)),
        ]:
            file[names.index(name)] = value
        described = {"type": "deletion-vector-v1", "fields": [], "snapshot-id": -1, "sequence-number": -1}
        place = {"offset": len(content), "length": len(blob), "properties": {"referenced-data-file": path}}
        blobs.append({**described, **place})
        content += blob
        made.append(file)
    footer = json.dumps({"blobs": blobs}).encode()
    table.files.write(uri, content + b"PFA1" + footer + len(footer).to_bytes(4, "little") + bytes(4) + b"PFA1")
    _commit(table, *made)


def _new(table: LooseTable, suffix: str) -> str:
    return f"{table.metadata.location}/data/deletes-{len(table.metadata.snapshots)}.{suffix}"


def _delete_file(
    table: LooseTable, rows: pa.Table, content: DataFileContent, partition: Record | None, **more: Any
) -> DataFile:
    uri = _new(table, "parquet")
    with table.files.create(uri) as sink:
        pq.write_table(rows, sink)
    found = table.files.find(uri)
    assert found is not None
    return DataFile.from_args(
        _table_format_version=3,
        content=content,
        file_path=uri,
        file_format=FileFormat.PARQUET,
        partition=partition or Record(),
        record_count=rows.num_rows,
        file_size_in_bytes=found.size,
        **more,
    )


def _commit(table: LooseTable, *deletes: DataFile, spec_id: int = 0) -> None:
    """Commit delete files in a manifest of their own."""
    for file in deletes:
        file.spec_id = spec_id

    def produce(metadata: Any, files: Any, clock: Any) -> Change:
        snapshot = NewSnapshot(metadata, files, clock=clock)
        _add_manifest(snapshot, files, deletes, spec_id)
        return Change(snapshot.requirements, snapshot.finish("delete", {}))

    table.change(produce)


def _add_manifest(snapshot: NewSnapshot, files: Any, deletes: Sequence[DataFile], spec_id: int) -> None:
    metadata = snapshot.metadata
    manifest = write_manifest(
        metadata,
        spec_id,
        WritingIO(files),
        location=f"{metadata.location}/metadata/deletes-{snapshot.id}.avro",
        snapshot_id=snapshot.id,
        added=list(deletes),
        content=ManifestContent.DELETES,
    )
    snapshot._new_manifests.append(manifest)
    snapshot._added.extend(deletes)
