"""Parquet files as a table: a single file, or a folder of files, possibly Hive-partitioned.

Such a table has no log. A snapshot is a listing of the files; listings are numbered by the caller, and a listing with the
same files is the same snapshot. Reading a file that has changed since it was listed raises an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa

from skiway.errors import NotFound, Unsupported
from skiway.formats.extension_types import as_geometry, geometry_columns, storage_field
from skiway.formats.files import Files, Found
from skiway.formats.folders.schemas import merged_schema, partition_columns
from skiway.formats.opening import FolderSource, SourceRequest, is_hidden
from skiway.formats.readers.footers import file_columns, row_groups
from skiway.formats.readers.parquet import open_file
from skiway.formats.readers.scanning import DataFile, IdAssigner
from skiway.formats.schemas import TableSchema, leaves, path_id, with_ids
from skiway.formats.source import (
    FILE_COLUMNS,
    Content,
    Format,
    PartitionField,
    PartitionSpec,
    Snapshot,
    Source,
    TableHandle,
    TableName,
)
from skiway.formats.statistics import constant_stats, merged_units, stats_struct
from skiway.security.source_access import Location

if TYPE_CHECKING:
    from pyarrow.parquet import FileMetaData

_SUFFIXES: Final = (".parquet", ".parq")
_AT_ONCE: Final = 8  # footers
_FIRST_PARTITION_ID: Final = 1000

Footer: TypeAlias = tuple["FileMetaData", pa.Schema]


def open_parquet(request: SourceRequest) -> Source:
    """Open the tables below `request.uri`, or the single table it is."""
    files = request.files()
    root = request.root
    as_table = request.as_table
    if root.name.endswith(_SUFFIXES) and files.find(str(root)) is not None:
        as_table = as_table or TableName((), root.name.rpartition(".")[0])
    elif not any(files.children(root)):
        raise NotFound(f"there is nothing at {str(root)!r}; check the address of the source", key="source.not_found")
    return FolderSource(files, root, _ParquetFolders(files, root), as_table=as_table)


class _ParquetFolders:
    """A folder with Parquet files, or with folders like `year=2026`, is a table, including everything below it.

    In the root folder of the source, each Parquet file is a table of its own.
    """

    def __init__(self, files: Files, root: Location) -> None:
        self._files = files
        self._root = root

    def is_table(self, folder: Location, folders: list[Location], files: list[Found]) -> bool:
        return any("=" in each.name for each in folders) or (
            folder != self._root and any(self.is_table_file(each) for each in files)
        )

    def is_table_file(self, file: Found) -> bool:
        return file.location.name.endswith(_SUFFIXES) and not is_hidden(file.location.name)

    def open(self, name: TableName, place: Location) -> TableHandle:
        return ParquetTable(name, place, self._files)


class ParquetTable(TableHandle):
    """The files of one listing, made when the table is loaded."""

    def __init__(
        self, name: TableName, place: Location, files: Files, *, listing: Sequence[Found] | None = None
    ) -> None:
        self.name = name
        self.format = Format.PARQUET
        self.location = str(place)
        self.properties = {}
        self._files = files
        self._place = place
        self._listing = _listing(files, place) if listing is None else listing
        if not self._listing:
            raise NotFound(
                f"table {str(name)!r} has no Parquet files at {self.location!r}", key="table.not_found", table=str(name)
            )
        self._partition = partition_columns([_relative(each.location, place) for each in self._listing])
        self.schema = TableSchema.of(self._union())
        fields = [
            PartitionField(_FIRST_PARTITION_ID + number, key, path_id((key,)))
            for number, key in enumerate(self._partition)
        ]
        self.partition_specs = (PartitionSpec(0, tuple(fields)),)

    def as_listed(self, snapshot: Snapshot, etags: Mapping[str, str]) -> ParquetTable:
        """The table as of an older listing, given by its paths and etags; raises NotFound if a file has changed."""
        if snapshot.digest == self._digest:
            return self
        then = [each for each in self._listing if etags.get(str(each.location)) == each.etag]
        if not then or len(then) < len(etags):
            raise self._gone(snapshot)
        older = ParquetTable(self.name, self._place, self._files, listing=then)
        older._check(snapshot)
        return older

    def is_unchanged(self) -> bool:
        """List the files again: are they the same as when the table was loaded?"""
        return _digest(_listing(self._files, self._place)) == self._digest

    def current(self, known: Sequence[Snapshot] = ()) -> Snapshot | None:
        same = [each for each in known if each.digest == self._digest]
        return same[-1] if same else self._snapshot(known)

    def snapshots(self, known: Sequence[Snapshot] = ()) -> list[Snapshot]:
        return [] if any(each.digest == self._digest for each in known) else [self._snapshot(known)]

    def schema_at(self, snapshot: Snapshot) -> TableSchema:
        self._check(snapshot)
        return self.schema

    def files(self, snapshot: Snapshot) -> pa.Table:
        self._check(snapshot)
        return self._file_table

    def _check(self, snapshot: Snapshot) -> None:
        if snapshot.digest != self._digest:
            raise self._gone(snapshot)

    def _gone(self, snapshot: Snapshot) -> NotFound:
        return NotFound(
            f"listing {snapshot.id} of table {str(self.name)!r} can no longer be read: some of its files were changed or "
            "deleted, or it was not stored; read a newer one",
            key="snapshot.not_found",
            table=str(self.name),
            snapshot=str(snapshot.id),
        )

    def _snapshot(self, known: Sequence[Snapshot]) -> Snapshot:
        parent = max((each.id for each in known), default=None)
        newest_us = max(each.modified_us for each in self._listing)
        return Snapshot(
            id=(parent or 0) + 1,
            created_at=datetime.fromtimestamp(newest_us / 1_000_000, UTC),
            parent_id=parent,
            sequence_number=(parent or 0) + 1,
            schema_id=self.schema.id,
            summary={"operation": "listing", "total-data-files": str(len(self._listing))},
            digest=self._digest,
        )

    @cached_property
    def _digest(self) -> str:
        return _digest(self._listing)

    @cached_property
    def _all_footers(self) -> list[Footer]:
        with ThreadPoolExecutor(_AT_ONCE) as threads:
            return list(threads.map(self._footer, self._listing))

    def _footer(self, file: Found) -> Footer:
        def load() -> Footer:
            with open_file(self._files, str(file.location)) as parquet:
                return parquet.metadata, file_columns(parquet)

        return self._files.cached(
            "parquet footer",
            str(file.location),
            file.etag,
            load=load,
            size_of=lambda footer: footer[0].serialized_size,
        )

    def _union(self) -> pa.Schema:
        """The columns of the files, followed by the partition columns, which take precedence."""
        schemas = []
        for file, (_, schema) in zip(self._listing, self._all_footers, strict=True):
            own = [storage_field(each) for each in schema if each.name not in self._partition]
            schemas.append((str(file.location), pa.schema(own)))
        keys = [pa.field(key, values.type) for key, values in self._partition.items()]
        shapes = self._geometries()
        columns = (
            as_geometry(each, shapes[each.name]) if each.name in shapes else each for each in merged_schema(schemas)
        )
        return with_ids(pa.schema([*columns, *keys]))

    def _geometries(self) -> dict[str, str]:
        """The coordinate systems of the columns that are geometries in all files that have them."""
        found: dict[str, str] = {}
        plain: set[str] = set(self._partition)
        for file, (footer, schema) in zip(self._listing, self._all_footers, strict=True):
            here = geometry_columns(footer, schema)
            plain |= set(schema.names) - here.keys()
            for name, crs in here.items():
                if found.setdefault(name, crs) != crs:
                    raise _mixed(name, crs, found[name], str(file.location))
        return {name: crs for name, crs in found.items() if name not in plain}

    @cached_property
    def _file_table(self) -> pa.Table:
        count = len(self._listing)
        rows = pa.array([footer.num_rows for footer, _ in self._all_footers], pa.int64())
        columns: dict[str, Any] = {
            "ordinal": range(count),
            "path": [str(each.location) for each in self._listing],
            "format": ["parquet"] * count,
            "content": [Content.DATA] * count,
            "row_count": rows,
            "size_bytes": [each.size for each in self._listing],
            "etag": [each.etag for each in self._listing],
            "spec_id": [0] * count,
            "sequence_number": [None] * count,
            "equality_ids": [[]] * count,
            "deletes": [[]] * count,
            "deleted_rows": [0] * count,
        }
        typed = {name: pa.array(values, FILE_COLUMNS.field(name).type) for name, values in columns.items()}
        return pa.table({**typed, "partition": self._partition_struct(), "stats": self._stats(rows)})

    def _partition_struct(self) -> pa.Array:
        if not self._partition:
            return pa.nulls(len(self._listing), pa.struct([]))
        names = [str(field.id) for field in self.partition_specs[0].fields]
        return pa.StructArray.from_arrays(list(self._partition.values()), names=names)

    def _stats(self, rows: pa.Array) -> pa.Array:
        columns = [leaf for leaf in leaves(self.schema.arrow) if leaf.path[0] not in self._partition]
        merged = [
            merged_units(
                row_groups(footer, self._with_ids(schema, str(file.location)), columns)["stats"].combine_chunks()
            )
            for file, (footer, schema) in zip(self._listing, self._all_footers, strict=True)
        ]
        found = {}
        for leaf in columns:
            parts = [_of_file(stats, leaf.id, leaf.type, count) for stats, count in zip(merged, rows, strict=True)]
            found[leaf.id] = pa.concat_arrays(parts)
        paths = {path_id((key,)): constant_stats(values, rows) for key, values in self._partition.items()}
        return stats_struct(found | paths, len(merged))

    def _id_assigner(self, snapshot: Snapshot) -> IdAssigner:  # noqa: ARG002
        return self._with_ids

    def _with_ids(self, schema: pa.Schema, file: str) -> pa.Schema:  # noqa: ARG002
        """Assign ids by name; partition columns are not read from the file."""
        return with_ids(schema, lambda path: None if path[0] in self._partition else path_id(path))

    def _data_files(self, snapshot: Snapshot, files: pa.Table) -> Iterator[DataFile]:  # noqa: ARG002
        sources = {str(field.id): field.source_id for field in self.partition_specs[0].fields}
        for file in range(files.num_rows):
            values = files["partition"][file]
            constants = {number: values[name] for name, number in sources.items()}
            path, ordinal, etag = (files[name][file].as_py() for name in ("path", "ordinal", "etag"))
            yield DataFile(path, ordinal, etag=etag, constants=constants)


def _mixed(column: str, crs: str, other: str, file: str) -> Unsupported:
    return Unsupported(
        f"geometries in column {column!r} are in {crs} in file {file!r}, but in {other} in the files before it; use one "
        "coordinate system, or move the file out of the table",
        key="file.disagrees",
        file=file,
        column=column,
    )


def _of_file(stats: pa.StructArray, number: int, of: pa.DataType, rows: pa.Scalar) -> pa.StructArray:
    """The statistics of a column in a file; all NULL if the file does not have it."""
    place = stats.type.get_field_index(str(number))
    return constant_stats(pa.nulls(1, of), pa.array([rows], pa.int64())) if place < 0 else stats.field(place)


def _listing(files: Files, place: Location) -> list[Found]:
    alone = files.find(str(place)) if place.name.endswith(_SUFFIXES) else None
    if alone is not None:
        return [alone]
    return [each for each in files.walk(place) if _is_data(_relative(each.location, place))]


def _digest(listing: Sequence[Found]) -> str:
    listed = "\n".join(f"{each.location}\t{each.size}\t{each.etag}" for each in listing)
    return sha256(listed.encode()).hexdigest()


def _relative(place: Location, folder: Location) -> str:
    return place.path.removeprefix(folder.path).lstrip("/") or place.name


def _is_data(path: str) -> bool:
    return path.endswith(_SUFFIXES) and not any(is_hidden(segment) for segment in path.split("/"))
