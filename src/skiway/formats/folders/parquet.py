"""Parquet files as a table: a single file, or a folder of files, possibly Hive-partitioned.

Reading a file that has changed since it was listed raises an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Final, TypeAlias

import pyarrow as pa

from skiway.errors import NotFound, Unsupported
from skiway.formats.extension_types import as_geometry, geometry_columns, storage_field
from skiway.formats.files import Files, Found
from skiway.formats.folders.listings import ListedTable, listing, listing_digest, merged_schema, partition_columns
from skiway.formats.opening import FolderLayout, SourceRequest, is_hidden, open_folders
from skiway.formats.readers.footers import file_columns, row_groups
from skiway.formats.readers.parquet import open_file
from skiway.formats.readers.scanning import DataFile, IdAssigner
from skiway.formats.schemas import TableSchema, leaves, path_id, with_ids
from skiway.formats.source import (
    Format,
    PartitionField,
    PartitionSpec,
    Snapshot,
    Source,
    TableHandle,
    TableName,
    file_rows,
    partition_struct,
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
    files, root = request.files(), request.root
    is_file = root.name.endswith(_SUFFIXES) and files.find(str(root)) is not None
    single = TableName((), root.name.rpartition(".")[0]) if is_file else None
    return open_folders(request, _ParquetFolders(files, root), single=single)


class _ParquetFolders(FolderLayout):
    """A folder with Parquet files, or with folders like `year=2026`, is a table, including everything below it.

    In the root folder of the source, each Parquet file is a table of its own.
    """

    def __init__(self, files: Files, root: Location) -> None:
        super().__init__(files)
        self._root = root

    def is_table(self, folder: Location, folders: list[Location], files: list[Found]) -> bool:
        return any("=" in each.name for each in folders) or (
            folder != self._root and any(self.is_table_file(file) for file in files)
        )

    def is_table_file(self, file: Found) -> bool:
        return file.location.name.endswith(_SUFFIXES) and not is_hidden(file.location.name)

    def open(self, name: TableName, place: Location) -> TableHandle:
        return ParquetTable(name, place, self.files)


class ParquetTable(ListedTable):
    """The Parquet files of one listing."""

    def __init__(
        self, name: TableName, place: Location, files: Files, *, listing: Sequence[Found] | None = None
    ) -> None:
        self.name = name
        self.format = Format.PARQUET
        self.location = str(place)
        self.properties = {}
        self._files = files
        self._place = place
        self._listing = _listed(files, place) if listing is None else listing
        if not self._listing:
            raise NotFound(
                f"table {str(name)!r} has no Parquet files at {self.location!r}", key="table.not_found", table=str(name)
            )
        self._partition = partition_columns([_relative(file.location, place) for file in self._listing])
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
        then = [file for file in self._listing if etags.get(str(file.location)) == file.etag]
        if not then or len(then) < len(etags):
            raise self._no_snapshot(snapshot)
        older = ParquetTable(self.name, self._place, self._files, listing=then)
        older._check(snapshot)
        return older

    def is_unchanged(self) -> bool:
        """List the files again: are they the same as when the table was loaded?"""
        return listing_digest(_listed(self._files, self._place)) == self._digest

    def _no_snapshot(self, snapshot: Snapshot) -> NotFound:
        return NotFound(
            f"listing {snapshot.id} of table {str(self.name)!r} can no longer be read: some of its files were changed or "
            "deleted, or it was not stored; read a newer one",
            key="snapshot.not_found",
            table=str(self.name),
            snapshot=str(snapshot.id),
        )

    def _snapshot(self, known: Sequence[Snapshot]) -> Snapshot:
        snapshot = super()._snapshot(known)
        return replace(
            snapshot,
            parent_id=max((each.id for each in known), default=None),
            sequence_number=snapshot.id,
            schema_id=self.schema.id,
            summary={"operation": "listing", "total-data-files": str(len(self._listing))},
        )

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
                    raise Unsupported(
                        f"geometries in column {name!r} are in {crs} in file {str(file.location)!r}, but in {found[name]} in "
                        "the files before it; use one coordinate system, or move the file out of the table",
                        key="file.disagrees",
                        file=str(file.location),
                        column=name,
                    )
        return {name: crs for name, crs in found.items() if name not in plain}

    @cached_property
    def _file_table(self) -> pa.Table:
        rows = pa.array([footer.num_rows for footer, _ in self._all_footers], pa.int64())
        keys = zip(self.partition_specs[0].fields, self._partition.values(), strict=True)
        return file_rows(
            len(self._listing),
            path=[str(file.location) for file in self._listing],
            row_count=rows,
            size_bytes=[file.size for file in self._listing],
            etag=[file.etag for file in self._listing],
            partition=partition_struct({field.id: values for field, values in keys}, len(self._listing)),
            stats=self._stats(rows),
        )

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


def _of_file(stats: pa.StructArray, number: int, of: pa.DataType, rows: pa.Scalar) -> pa.StructArray:
    """The statistics of a column in a file; all NULL if the file does not have it."""
    place = stats.type.get_field_index(str(number))
    return constant_stats(pa.nulls(1, of), pa.array([rows], pa.int64())) if place < 0 else stats.field(place)


def _listed(files: Files, place: Location) -> Sequence[Found]:
    def is_data(file: Found) -> bool:
        path = _relative(file.location, place)
        return path.endswith(_SUFFIXES) and not any(map(is_hidden, path.split("/")))

    return listing(files, place, _SUFFIXES, is_data)


def _relative(place: Location, folder: Location) -> str:
    return place.path.removeprefix(folder.path).lstrip("/") or place.name
