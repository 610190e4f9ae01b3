"""The file table of an Iceberg snapshot, from its manifests.

A manifest never changes. Its content is cached as an Arrow table, which all snapshots that refer to it share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from skiway.errors import Unsupported
from skiway.formats.files import decoding
from skiway.formats.iceberg import lib
from skiway.formats.iceberg.deletes import FILE_PATH_ID, PLACES, with_deletes
from skiway.formats.iceberg.types import bounds, partition_type
from skiway.formats.schemas import leaves
from skiway.formats.source import FILE_COLUMNS, Content, file_rows, partition_struct
from skiway.formats.statistics import bound_type, column_stats, stats_struct
from skiway.foundation.memory_budget import arrow_bytes
from skiway.telemetry.context import require_active

if TYPE_CHECKING:
    from pyiceberg.manifest import ManifestEntry, ManifestFile
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot

    from skiway.formats.iceberg.metadata_files import ReadingIO

_CONTENTS: Final = (Content.DATA, Content.POSITION_DELETES, Content.EQUALITY_DELETES)


def partition_types(metadata: TableMetadata) -> dict[int, pa.DataType]:
    """The types of the partition fields of all specs, by field id."""
    fields = [field for spec in metadata.partition_specs for field in spec.fields]
    return {field.field_id: partition_type(field, metadata.schemas) for field in fields}


def file_table(metadata: TableMetadata, snapshot: Snapshot, schema: pa.Schema, io: ReadingIO, table: str) -> pa.Table:
    """Read the file table of `snapshot`, with the statistics of the columns of `schema` and the columns `PLACES`."""
    listed = lib.manifest_files.known_manifests(snapshot, io)
    columns = str([(leaf.id, str(leaf.type)) for leaf in leaves(schema)])  # its hash is computed once
    parts = []
    for manifest in listed:
        require_active()
        parts.append(_cached_manifest(metadata, manifest, schema, columns, io, table))
    if not parts:
        parts = [_rows([], 0, metadata, schema)]
    files = pa.concat_tables(parts).sort_by([("path", "ascending"), ("blob_offset", "ascending")]).combine_chunks()
    files = files.set_column(0, FILE_COLUMNS.field("ordinal"), pa.array(range(files.num_rows), pa.int32()))
    return with_deletes(files, unpartitioned={spec.spec_id for spec in metadata.partition_specs if not spec.fields})


def _cached_manifest(
    metadata: TableMetadata,
    manifest: ManifestFile,
    schema: pa.Schema,
    columns: str,
    io: ReadingIO,
    table: str,
) -> pa.Table:
    # Rows get their ids when the manifest is first listed in version 3, so it may be listed without and with them.
    key = (manifest.manifest_path, lib.manifest_files.first_row_id(manifest), columns, len(metadata.partition_specs))

    def load() -> pa.Table:
        with decoding(io.files, manifest.manifest_path):
            return _manifest(metadata, manifest, schema, io, table)

    return io.files.cached("iceberg manifest", *key, load=load, size_of=arrow_bytes)


def _manifest(
    metadata: TableMetadata, manifest: ManifestFile, schema: pa.Schema, io: ReadingIO, table: str
) -> pa.Table:
    if manifest.key_metadata:
        raise _encrypted(table, manifest.manifest_path)
    found = lib.manifest_files.entries(manifest, io)
    for entry in found:
        if entry.data_file.key_metadata:
            raise _encrypted(table, entry.data_file.file_path)
    return _rows(found, manifest.partition_spec_id, metadata, schema)


def _encrypted(table: str, file: str) -> Unsupported:
    return Unsupported(
        f"table {table!r} is encrypted (file {file!r}), which is not supported; copy it to an unencrypted table",
        key="table.feature",
        table=table,
        feature="encryption",
    )


def _rows(entries: Sequence[ManifestEntry], spec_id: int, metadata: TableMetadata, schema: pa.Schema) -> pa.Table:
    files: list[Any] = [entry.data_file for entry in entries]
    return file_rows(
        len(files),
        path=[file.file_path for file in files],
        format=[file.file_format.value.lower() for file in files],
        content=[_CONTENTS[int(file.content)] for file in files],
        row_count=[file.record_count for file in files],
        size_bytes=[file.file_size_in_bytes for file in files],
        spec_id=[spec_id] * len(files),
        sequence_number=[entry.sequence_number or 0 for entry in entries],  # version 1 has none
        equality_ids=[list(file.equality_ids or ()) for file in files],
        partition=_partition(files, spec_id, metadata),
        stats=_stats(files, schema),
        **_places(files),
    )


def _partition(files: Sequence[Any], spec_id: int, metadata: TableMetadata) -> pa.Array:
    types = partition_types(metadata)
    spec = metadata.specs()[spec_id] if files and types else metadata.spec()
    places = {field.field_id: place for place, field in enumerate(spec.fields)}
    columns = {
        number: pa.array([file.partition[places[number]] if number in places else None for file in files], of)
        for number, of in types.items()
    }
    return partition_struct(columns, len(files))


def _stats(files: Sequence[Any], schema: pa.Schema) -> pa.Array:
    columns = {}
    for leaf in leaves(schema):
        of = bound_type(leaf.type)
        lengths = {
            name: pa.array([(getattr(file, source) or {}).get(leaf.id) for file in files], pa.int64())
            for name, source in [("null_count", "null_value_counts"), ("nan_count", "nan_value_counts")]
        }
        # Columns outside of lists and maps have a value in every row, also in files that do not have them.
        counts = [(file.value_counts or {}).get(leaf.id, file.record_count) for file in files]
        lengths["value_count"] = pa.array(counts, pa.int64())
        ends = {
            name: bounds([(getattr(file, source) or {}).get(leaf.id) for file in files], of)
            for name, source in [("min", "lower_bounds"), ("max", "upper_bounds")]
        }
        exact = not (pa.types.is_string(of) or pa.types.is_binary(of))  # long strings and bytes are truncated
        columns[leaf.id] = column_stats(leaf.type, len(files), exact=exact, **lengths, **ends)
    return stats_struct(columns, len(files))


def _places(files: Sequence[Any]) -> Mapping[str, pa.Array]:
    """The columns `PLACES`: which data file, and which part of a file, a delete file refers to, and the first row id."""
    names = [field.name for field in lib.manifest.DATA_FILE_TYPE[3].fields]
    referenced, offset, size = (
        names.index(name) for name in ("referenced_data_file", "content_offset", "content_size_in_bytes")
    )
    columns: dict[str, list[Any]] = {
        "referenced": [file[referenced] for file in files],
        "path_from": [(file.lower_bounds or {}).get(FILE_PATH_ID) for file in files],
        "path_to": [(file.upper_bounds or {}).get(FILE_PATH_ID) for file in files],
        "blob_offset": [file[offset] for file in files],
        "blob_size": [file[size] for file in files],
        "first_row_id": [lib.manifest_files.first_row_id(file) for file in files],
    }
    return {name: pa.array(values, PLACES.field(name).type) for name, values in columns.items()}
