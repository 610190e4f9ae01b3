"""The interface of all formats.

    Source            an upstream catalog, or a folder of tables
      └── TableHandle   one table: its schema and properties, its snapshots, their files and rows

The files of a snapshot are an Arrow table with a row per file, the *file table* (see `FILE_COLUMNS`). Planning needs
nothing else: files are pruned by filtering it, and `read` takes the rest.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from functools import partial
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from skiway.airport.filters import Filter
from skiway.errors import InvalidArgument, NotFound
from skiway.formats.files import Files
from skiway.formats.readers.footers import file_columns
from skiway.formats.readers.parquet import FileShape, MatchingPart, matching_part, open_file, read_shape
from skiway.formats.readers.reading import read_rows
from skiway.formats.readers.scanning import DataFile, IdAssigner, Scan
from skiway.formats.schemas import TableSchema, field_id
from skiway.formats.statistics import pruned


@dataclass(frozen=True, slots=True)
class SizedFile:
    """A file, and how large it is."""

    location: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Packed:
    """How many files became how many, and their sizes."""

    files_before: int = 0
    files_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0


Namespace: TypeAlias = tuple[str, ...]
"""The path of a namespace; the empty path is the root of a folder."""


class Format(StrEnum):
    """The format of a table."""

    ICEBERG = "iceberg"
    DELTA = "delta"
    PARQUET = "parquet"
    CSV = "csv"
    JSON = "json"


class Content(StrEnum):
    """The content of a file of a table."""

    DATA = "data"
    POSITION_DELETES = "position_deletes"
    EQUALITY_DELETES = "equality_deletes"


FILE_COLUMNS: Final = pa.schema(
    {
        "ordinal": pa.int32(),  # number of the file within the snapshot, in the order of paths
        "path": pa.string(),
        "format": pa.string(),
        "content": pa.string(),
        "row_count": pa.int64(),
        "size_bytes": pa.int64(),
        "etag": pa.string(),  # of the content, in formats whose files are not immutable
        "spec_id": pa.int32(),
        "sequence_number": pa.int64(),
        "equality_ids": pa.list_(pa.int32()),
        "deletes": pa.list_(pa.int32()),  # the ordinals of the delete files that apply to this one
        "deleted_rows": pa.int64(),  # how many rows they delete; NULL if unknown without reading them
    }
)
"""The columns that all file tables have in common. Two more depend on the table: `partition`, a struct of typed values
named after the ids of the partition fields, and `stats` (see `skiway.formats.statistics`)."""


_USUAL: Final[Mapping[str, Any]] = {
    "format": "parquet",
    "content": Content.DATA,
    "spec_id": 0,
    "equality_ids": [],
    "deletes": [],
    "deleted_rows": 0,
}
"""The values of a Parquet file without deletes."""


def file_rows(count: int, **columns: Any) -> pa.Table:
    """A file table of `count` files from lists or arrays; columns beyond `FILE_COLUMNS` follow those as they are.

    A column that is missing has the usual value, or NULL.
    """
    usual = {"ordinal": range(count), **{name: [_USUAL.get(name)] * count for name in FILE_COLUMNS.names[1:]}}
    typed = {field.name: _typed({**usual, **columns}[field.name], field.type) for field in FILE_COLUMNS}
    return pa.table({**typed, **{name: values for name, values in columns.items() if name not in typed}})


def partition_struct(columns: Mapping[int, pa.Array], count: int) -> pa.Array:
    """The column `partition` of a file table, from the values of partition fields by id."""
    if not columns:
        return pa.nulls(count, pa.struct([]))
    return pa.StructArray.from_arrays(list(columns.values()), names=[str(number) for number in columns])


def _typed(values: Any, of: pa.DataType) -> pa.Array:
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    return values.cast(of) if isinstance(values, pa.Array) else pa.array(values, of)


def file_values(files: pa.Table, *columns: str) -> Iterator[tuple[Any, ...]]:
    """The values of some columns of a file table, for each file."""
    return zip(*(files[name].to_pylist() for name in columns), strict=True)


def data_files(files: pa.Table) -> pa.Table:
    """The data files of a file table; not a copy if it has no delete files."""
    is_data = pc.equal(files["content"], Content.DATA)
    return files if pc.all(is_data, min_count=0).as_py() else files.filter(is_data)


@dataclass(frozen=True, slots=True)
class TableName:
    """The name of a table within its source."""

    namespace: Namespace
    name: str

    def __str__(self) -> str:
        return ".".join((*self.namespace, self.name))


@dataclass(frozen=True, slots=True)
class PartitionField:
    """How a partition value is derived from a column; `transform` is in Iceberg's notation."""

    id: int
    name: str
    source_id: int
    transform: str = "identity"


@dataclass(frozen=True, slots=True)
class PartitionSpec:
    """How a table is partitioned; an empty spec means unpartitioned."""

    id: int
    fields: tuple[PartitionField, ...] = ()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A state of a table.

    `digest` is a digest of the commit, in formats whose snapshot ids are not unique. The versions of a Delta table start at 0
    again after someone deletes and recreates the table; the digest tells the old version from the new one.
    """

    id: int
    created_at: datetime
    parent_id: int | None = None
    sequence_number: int = 0
    schema_id: int | None = None  # None if unknown without reading the snapshot
    summary: Mapping[str, str] = field(default_factory=dict)
    refs: tuple[str, ...] = ()
    manifest_list: str = ""
    digest: str = ""


@dataclass(frozen=True, slots=True)
class WholeFile:
    """A Parquet file without deleted rows.

    `columns` are those of the file that belong to the table, as they are stored, and `constants` are the values of other
    columns, both by field id. Files with the same columns share `columns`. `open` returns a descriptor for another process;
    it fails if the file has changed. With `may_change`, that can happen, because other programs write the file. A file in an
    object store has `open_remote` instead, which opens it in this process.
    """

    path: str
    columns: Mapping[int, pa.Field]
    constants: Mapping[int, pa.Scalar]
    open: Callable[[], int]
    may_change: bool = False
    open_remote: Callable[[], pa.NativeFile] | None = None


class Source(ABC):
    """An upstream catalog, or a folder of tables. A context manager that closes its connections."""

    @abstractmethod
    def namespaces(self) -> list[Namespace]:
        """List the namespaces that can have tables, sorted by name."""

    @abstractmethod
    def tables(self, namespace: Namespace) -> list[str]:
        """List the tables of a namespace, sorted by name; raises NotFound if it does not exist."""

    @abstractmethod
    def load(self, namespace: Namespace, table: str) -> TableHandle:
        """Load the current state of a table; raises NotFound, or Unsupported if it cannot be read correctly."""

    def location_of(self, namespace: Namespace, table: str) -> str:  # noqa: ARG002
        """Where a table is, also if it cannot be loaded; empty if only its metadata says so."""
        return ""

    def close(self) -> None:  # noqa: B027 - most sources have no connections
        """Close the connections."""

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class TableHandle(ABC):
    """A table in the state in which it was loaded. Safe to use from several threads."""

    name: TableName
    location: str
    format: Format
    schema: TableSchema
    partition_specs: tuple[PartitionSpec, ...]
    properties: Mapping[str, str]
    metadata_location: str = ""
    _files: Files
    refs: Mapping[str, int] = {}  # names of snapshots: branches and tags

    @property
    def file_access(self) -> Files:
        """What opens its files, also after it was sent to another process."""
        return self._files

    @property
    def partition_spec(self) -> PartitionSpec | None:
        """The spec that new files are partitioned by; None if the table has no specs."""
        return max(self.partition_specs, key=lambda each: each.id, default=None)

    @abstractmethod
    def current(self, known: Sequence[Snapshot] = ()) -> Snapshot | None:
        """The current snapshot; None for a table without snapshots.

        `known` are the snapshots recorded so far. Tables whose format does not number snapshots continue their numbers.
        """

    @abstractmethod
    def snapshots(self, known: Sequence[Snapshot] = ()) -> list[Snapshot]:
        """The snapshots that are not among `known`, oldest first."""

    @abstractmethod
    def schema_at(self, snapshot: Snapshot) -> TableSchema:
        """The schema in which the rows of a snapshot are read."""

    @property
    def defaults(self) -> Mapping[int, pa.Scalar]:
        """The values, by id, of columns and fields of structs in files that do not have them; others are NULL there."""
        return {}

    def columns_of(self, files: pa.Table) -> pa.Schema:  # noqa: ARG002
        """The columns of these files, for formats in which only the files know them; otherwise those of the table."""
        return self.schema.arrow

    @abstractmethod
    def files(self, snapshot: Snapshot) -> pa.Table:
        """The file table of a snapshot, sorted by path."""

    def plan(
        self,
        snapshot: Snapshot,
        filter: Filter | None = None,  # noqa: A002
        *,
        schema: pa.Schema | None = None,
    ) -> pa.Table:
        """The data files that may have rows that match `filter`, as rows of the file table.

        The filter uses the column names of `schema`, by default the schema of the snapshot.
        """
        data = data_files(self.files(snapshot))
        return pruned(data, filter, self.schema_at(snapshot).arrow if schema is None else schema)

    def read(
        self,
        snapshot: Snapshot,
        *,
        columns: Sequence[str] | None = None,
        filter: Filter | None = None,  # noqa: A002
        files: pa.Table | None = None,
        schema: pa.Schema | None = None,
        positions: bool = False,
        batch_rows: int = 65536,
        first_batch_rows: int | None = None,
        share: tuple[int, int] | None = None,
    ) -> pa.RecordBatchReader:
        """Read the rows of a snapshot: all that match `filter`, and possibly others that the caller must filter out.

        `files` are rows of the file table, to read fewer files than `plan` returns. `schema`, with field ids, is the
        schema to return the rows in, such as the current one of the table (`handle.schema.arrow`) or the one that a
        client has bound; columns are matched by id. With `positions`, two more columns hold the ordinal of the file and
        the position of the row in it. `first_batch_rows` and `share` are explained in `Scan`. Only a few batches are in
        memory at a time.
        """
        target = self.schema_at(snapshot).arrow if schema is None else schema
        names = target.names if columns is None else list(columns)
        if unknown := [name for name in names if target.get_field_index(name) < 0]:
            raise InvalidArgument(
                f"table {str(self.name)!r} has no column {unknown[0]!r}; it has {', '.join(target.names)}",
                key="column.unknown",
                column=unknown[0],
            )
        scan = Scan(
            self._files,
            target,
            names,
            self._id_assigner(snapshot),
            filter=filter,
            positions=positions,
            batch_rows=batch_rows,
            first_batch_rows=first_batch_rows,
            share=share,
        )
        return self._read(scan, snapshot, files)

    def _read(self, scan: Scan, snapshot: Snapshot, files: pa.Table | None) -> pa.RecordBatchReader:
        planned = None if files is not None else self.plan(snapshot, scan.filter, schema=scan.schema)
        chosen = pruned(files, scan.filter, scan.schema) if planned is None else planned
        return read_rows(scan, self._data_files(snapshot, chosen))

    def matching_parts(
        self,
        snapshot: Snapshot,
        files: pa.Table,
        filter: Filter,  # noqa: A002
        *,
        schema: pa.Schema,
    ) -> dict[int, MatchingPart]:
        """How much of some `files` the filter leaves when they are read, by their ordinals; see `matching_part`."""
        scan = Scan(self._files, schema, (), self._id_assigner(snapshot), filter=filter)
        found = {}
        for ordinal, path, etag in file_values(files, "ordinal", "path", "etag"):
            if etag is not None:
                self._files.check_unchanged(path, etag)
            if (part := matching_part(scan, path)) is not None:
                found[ordinal] = part
        return found

    def plain_files(self, snapshot: Snapshot, files: pa.Table) -> list[WholeFile] | None:
        """Whole files with their local paths, for readers on this machine that find all columns in them.

        None if that would be wrong for one of them: values of columns are stored elsewhere, the file may change, or the
        reader would have to check which files callers may read.
        """
        whole = None if self._files.reach.access.for_callers else self.whole_files(snapshot, files)
        if whole is None or any(file.constants or file.may_change for file in whole):
            return None
        return [replace(file, path=self._files.local_path(file.path) or file.path) for file in whole]

    def whole_files(self, snapshot: Snapshot, files: pa.Table, *, max_remote: int = 0) -> list[WholeFile] | None:
        """The files, for another reader of Parquet; None if one of them has deleted rows, is not Parquet, or too many are remote."""
        is_deleted = pc.any(pc.fill_null(pc.not_equal(files["deleted_rows"], 0), True))
        if is_deleted.as_py() or set(files["format"].unique().to_pylist()) - {"parquet"}:
            return None
        assign_ids = self._id_assigner(snapshot)
        found = []
        known: dict[
            int, tuple[pa.Schema, Mapping[int, pa.Field]]
        ] = {}  # by the identity of the schema, which files share
        for file in self._data_files(snapshot, files):
            is_whole = file.deleted is None and not file.deleted_keys
            is_remote = not self._files.can_open_descriptor(file.path)
            if not is_whole or (is_remote and files.num_rows > max_remote):
                return None
            shape = self.file_shape(file.path, etag=file.etag)
            if "INT96" in shape.physical_types or not shape.has_standard_lists:  # readers differ in what these mean
                return None
            if id(shape.columns) not in known:
                stored = assign_ids(shape.columns, file.path)
                columns = {number: each for each in stored if (number := field_id(each)) is not None}
                known[id(shape.columns)] = (shape.columns, columns)
            opens = partial(self._files.open_descriptor, file.path, file.etag)
            found.append(
                WholeFile(
                    file.path,
                    known[id(shape.columns)][1],
                    file.constants,
                    opens,
                    may_change=file.etag is not None,
                    open_remote=partial(self._files.open_unchanged, file.path, file.etag) if is_remote else None,
                )
            )
        return found

    def file_schema(self, snapshot: Snapshot, path: str, *, etag: str | None = None) -> pa.Schema:
        """Read the schema of a data file from its footer, with the field ids of the table.

        Raises Conflict if the file has changed since it had this `etag`.
        """
        if etag is not None:
            self._files.check_unchanged(path, etag)
        with open_file(self._files, path) as parquet:
            return self._id_assigner(snapshot)(file_columns(parquet), path)

    def file_shape(self, path: str, *, etag: str | None = None) -> FileShape:
        """How a data file stores its columns, from its footer; `etag` identifies the content of a file that may change."""
        return read_shape(self._files, path, etag=etag)

    def partition_spec_at(self, snapshot: Snapshot) -> PartitionSpec:  # noqa: ARG002
        """The spec that the files of a snapshot are partitioned by, in formats with one spec per snapshot."""
        return self.partition_spec or PartitionSpec(0)

    def partition_specs_at(self, snapshot: Snapshot) -> tuple[PartitionSpec, ...]:
        """The specs of the files of a snapshot, by the ids in their column `spec_id`."""
        own = self.partition_spec_at(snapshot)
        return tuple(own if spec.id == own.id else spec for spec in self.partition_specs)

    def has_mapped_columns(self, snapshot: Snapshot) -> bool:  # noqa: ARG002
        """Whether columns have other names in the files of a snapshot than in the table."""
        return False

    @abstractmethod
    def _id_assigner(self, snapshot: Snapshot) -> IdAssigner:
        """The function that adds the field ids of the table to the schema of a file."""

    @abstractmethod
    def _data_files(self, snapshot: Snapshot, files: pa.Table) -> Iterator[DataFile]:
        """The files to read, each with its deleted rows."""

    def _no_snapshot(self, snapshot: Snapshot) -> NotFound:
        return NotFound(
            f"table {str(self.name)!r} has no snapshot {snapshot.id}; it may have expired, list its snapshots",
            key="snapshot.not_found",
            table=str(self.name),
            snapshot=str(snapshot.id),
        )
