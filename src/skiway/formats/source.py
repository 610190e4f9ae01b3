"""Tables of others, read through one small interface.

    Source            an upstream catalog, or a folder of tables
      └── TableHandle   one table: what it is, its snapshots, their files, their rows

The files of a snapshot are one Arrow table, the *file table*, a row per file (see `FILE_COLUMNS`). It is all that is
needed to plan: files are pruned by filtering it, and `read` takes what is left.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from skiway.airport.filters import Filter
from skiway.errors import InvalidArgument, NotFound
from skiway.formats.files import Files
from skiway.formats.parquet.reading import DataFile, Identifier, Scan, opened, rows_of
from skiway.formats.pruning import pruned
from skiway.formats.schemas import TableSchema

__all__ = [
    "FILE_COLUMNS",
    "Content",
    "Format",
    "Namespace",
    "PartitionField",
    "PartitionSpec",
    "Snapshot",
    "Source",
    "TableHandle",
    "TableName",
    "data_files",
]

Namespace: TypeAlias = tuple[str, ...]
"""The path to a namespace; the empty one is the root of a folder."""


class Format(StrEnum):
    """How a table is kept."""

    ICEBERG = "iceberg"
    DELTA = "delta"
    PARQUET = "parquet"


class Content(StrEnum):
    """What a file of a table holds."""

    DATA = "data"
    POSITION_DELETES = "position_deletes"
    EQUALITY_DELETES = "equality_deletes"


FILE_COLUMNS: Final = pa.schema(
    {
        "ordinal": pa.int32(),  # the file's number within the snapshot, in the order of paths
        "path": pa.string(),
        "format": pa.string(),
        "content": pa.string(),
        "row_count": pa.int64(),
        "size_bytes": pa.int64(),
        "etag": pa.string(),  # of the content, where files are not immutable by their format
        "spec_id": pa.int32(),
        "sequence_number": pa.int64(),
        "equality_ids": pa.list_(pa.int32()),
        "deletes": pa.list_(pa.int32()),  # the ordinals of the delete files that apply to this one
        "deleted_rows": pa.int64(),  # how many rows they delete; NULL where only reading them tells
    }
)
"""The columns of a file table that are the same for all tables. Two more depend on the table: `partition`, a struct of
typed values named by the ids of the partition fields, and `stats` (see `skiway.formats.statistics`)."""


def data_files(files: pa.Table) -> pa.Table:
    """Those rows of a file table that are data files; mostly all of them, which are then not copied."""
    is_data = pc.equal(files["content"], Content.DATA)
    return files if pc.all(is_data, min_count=0).as_py() else files.filter(is_data)


@dataclass(frozen=True, slots=True)
class TableName:
    """Which table it is, within its source."""

    namespace: Namespace
    name: str

    def __str__(self) -> str:
        return ".".join((*self.namespace, self.name))


@dataclass(frozen=True, slots=True)
class PartitionField:
    """How one partition value is made of a column; `transform` is written as Iceberg writes it."""

    id: int
    name: str
    source_id: int
    transform: str = "identity"


@dataclass(frozen=True, slots=True)
class PartitionSpec:
    id: int
    fields: tuple[PartitionField, ...] = ()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A state of a table. `digest` identifies the content where snapshots have no ids upstream."""

    id: int
    created_at: datetime
    parent_id: int | None = None
    sequence_number: int = 0
    schema_id: int | None = None  # None where only reading the snapshot tells
    summary: Mapping[str, str] = field(default_factory=dict)
    refs: tuple[str, ...] = ()
    manifest_list: str = ""
    digest: str = ""


class Source(ABC):
    """An upstream catalog, or a folder of tables. A context manager; `close` lets go of its connections."""

    @abstractmethod
    def namespaces(self) -> list[Namespace]:
        """Those that can hold tables, by name."""

    @abstractmethod
    def tables(self, namespace: Namespace) -> list[str]:
        """The tables in one, by name; NotFound where there is no such namespace."""

    @abstractmethod
    def load(self, namespace: Namespace, table: str) -> TableHandle:
        """The table as it is now; NotFound where there is none, Unsupported where it cannot be read rightly."""

    def close(self) -> None:  # noqa: B027 - most sources hold nothing
        """Let go of connections."""

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class TableHandle(ABC):
    """One table, as it was when it was loaded. Safe to use from several threads."""

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
    def partition_spec(self) -> PartitionSpec | None:
        """How new files are partitioned; None where there is no word for it."""
        return max(self.partition_specs, key=lambda each: each.id, default=None)

    @abstractmethod
    def current(self, known: Sequence[Snapshot] = ()) -> Snapshot | None:
        """The snapshot that is current; None for a table that never had one.

        `known` are those already seen, for tables whose snapshots are numbered by whoever looks at them.
        """

    @abstractmethod
    def snapshots(self, known: Sequence[Snapshot] = ()) -> list[Snapshot]:
        """The snapshots that are not among `known`, older ones first."""

    @abstractmethod
    def schema_at(self, snapshot: Snapshot) -> TableSchema:
        """The schema its rows are read in."""

    @abstractmethod
    def files(self, snapshot: Snapshot) -> pa.Table:
        """The file table of a snapshot, in the order of paths."""

    def plan(
        self,
        snapshot: Snapshot,
        filter: Filter | None = None,  # noqa: A002
        *,
        schema: pa.Schema | None = None,
    ) -> pa.Table:
        """The data files of the file table that may hold rows on which `filter` is true.

        The filter calls columns as `schema` does; without it, as the snapshot's own.
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
    ) -> pa.RecordBatchReader:
        """The rows of a snapshot: all on which `filter` is true, and such others as only the caller can tell apart.

        `files` are rows of its file table, when fewer than `plan` gives are wanted. `schema`, one with field ids, asks
        for the rows in another form than the snapshot had: that of the table now (`handle.schema.arrow`), or the one
        that a client knows; columns are matched by id. With `positions`, two more columns say where a row is: the
        file's ordinal and the row's place in it. A few batches are in memory at a time.
        """
        answered = self.schema_at(snapshot).arrow if schema is None else schema
        wanted = answered.names if columns is None else list(columns)
        self._check_columns(answered, wanted)
        chosen = self.plan(snapshot, filter, schema=schema) if files is None else pruned(files, filter, answered)
        scan = Scan(
            self._files,
            answered,
            wanted,
            self._identifier(snapshot),
            filter=filter,
            positions=positions,
            batch_rows=batch_rows,
        )
        return rows_of(scan, self._data_files(snapshot, chosen))

    def file_schema(self, snapshot: Snapshot, path: str, *, etag: str | None = None) -> pa.Schema:
        """The columns of a data file of a snapshot, from its footer, with the ids of the table's.

        Conflict where the file is not the one any more that had this `etag`.
        """
        if etag is not None:
            self._files.check_unchanged(path, etag)
        with opened(self._files, path) as parquet:
            return self._identifier(snapshot)(parquet.schema_arrow, path)

    def _check_columns(self, schema: pa.Schema, columns: Sequence[str]) -> None:
        for column in columns:
            if schema.get_field_index(column) < 0:
                raise InvalidArgument(
                    f"table {str(self.name)!r} has no column {column!r}; it has {', '.join(schema.names)}",
                    key="column.unknown",
                    column=column,
                )

    @abstractmethod
    def _identifier(self, snapshot: Snapshot) -> Identifier:
        """What gives ids to the fields of a file's schema."""

    @abstractmethod
    def _data_files(self, snapshot: Snapshot, files: pa.Table) -> Iterator[DataFile]:
        """The files to read, each with the rows that were deleted from it."""

    def _no_snapshot(self, snapshot: Snapshot) -> NotFound:
        return NotFound(
            f"table {str(self.name)!r} has no snapshot {snapshot.id}, or no longer; list its snapshots",
            key="snapshot.not_found",
            table=str(self.name),
            snapshot=str(snapshot.id),
        )
