"""Folders of CSV files, or of files with one JSON object per line, as tables.

Such a table has no log: a snapshot is a listing of the files, as for Parquet files. Text has no types, so they come from the
option `columns`, such as `id long, price decimal(9,2), day date`, with the names of Iceberg's types. The columns of CSV that it
does not name are strings. Those of JSON have the types that the values have: numbers are `long` or `double`, and dates and
times remain strings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cached_property
from hashlib import sha256
from io import BufferedReader
from typing import Any, Final

import pyarrow as pa

from skiway.airport.filters import Filter
from skiway.errors import InvalidArgument, NotFound, Unsupported
from skiway.formats.files import Files, Found, decoding
from skiway.formats.folders.schemas import merged_schema
from skiway.formats.opening import FolderSource, SourceRequest, is_hidden
from skiway.formats.readers.scanning import DataFile, FileRows, IdAssigner, Scan
from skiway.formats.schemas import TableSchema, list_items, with_ids
from skiway.formats.source import FILE_COLUMNS, Content, Format, PartitionSpec, Snapshot, Source, TableHandle, TableName
from skiway.security.source_access import Location

_SUFFIXES: Final = {
    Format.CSV: (".csv", ".csv.gz"),
    Format.JSON: (".json", ".jsonl", ".ndjson", ".json.gz", ".jsonl.gz", ".ndjson.gz"),
}
_BLOCK_BYTES: Final = 4 << 20  # a row must fit into it


def open_csv_files(request: SourceRequest) -> Source:
    """Open the folders of CSV files below `request.uri`. The option `csv.delimiter` is a comma by default."""
    return _opened(request, Format.CSV)


def open_json_files(request: SourceRequest) -> Source:
    """Open the folders of JSON files below `request.uri`."""
    return _opened(request, Format.JSON)


def _opened(request: SourceRequest, of: Format) -> Source:
    files, root = request.files(), request.root
    if not any(files.children(root)):
        raise NotFound(f"there is nothing at {str(root)!r}; check the address of the source", key="source.not_found")
    delimiter = request.options.get("csv.delimiter", ",")
    if len(delimiter) != 1:
        raise InvalidArgument(f"csv.delimiter is {delimiter!r}, but must be one character", key="source.option")
    layout = _TextFolders(files, root, of, declared_columns(request.options.get("columns", "")), delimiter)
    return FolderSource(files, root, layout, as_table=request.as_table)


def declared_columns(text: str) -> dict[str, pa.DataType]:
    """The types in a list of columns such as `id long, price decimal(9,2)`."""
    from pydantic import ValidationError
    from pyiceberg.schema import Schema
    from pyiceberg.types import NestedField

    from skiway.formats.iceberg.types import arrow_columns

    found: dict[str, pa.DataType] = {}
    for item in list_items(text):
        name, _, of = item.strip().partition(" ")
        try:
            field = NestedField(field_id=1, name=name.strip('"'), field_type=of.strip().lower().replace(" ", ""))
            found[field.name] = arrow_columns(Schema(field)).field(0).type
        except (ValidationError, ValueError, TypeError):
            raise InvalidArgument(
                f"column {item.strip()!r} has no type that is known; write a name and a type of Iceberg, such as id long or "
                "price decimal(9,2)",
                key="source.option",
            ) from None
    return found


class _TextFolders:
    """A folder with text files is a table, including everything below it. In the root folder, each file is a table."""

    def __init__(
        self, files: Files, root: Location, of: Format, declared: Mapping[str, pa.DataType], delimiter: str
    ) -> None:
        self._files, self._root, self._format = files, root, of
        self._declared, self._delimiter = declared, delimiter

    def is_table(self, folder: Location, folders: list[Location], files: list[Found]) -> bool:  # noqa: ARG002
        return folder != self._root and any(map(self.is_table_file, files))

    def is_table_file(self, file: Found) -> bool:
        name = file.location.name
        return name.endswith(_SUFFIXES[self._format]) and not is_hidden(name)

    def open(self, name: TableName, place: Location) -> TableHandle:
        listing = [self._files.find(str(place))] if place.name.endswith(_SUFFIXES[self._format]) else []
        found = [each for each in listing if each is not None] or [
            each for each in self._files.walk(place) if self.is_table_file(each)
        ]
        return TextTable(name, place, self._files, self._format, found, self._declared, self._delimiter)


class TextTable(TableHandle):
    """The files of one listing, made when the table is loaded."""

    partition_specs = (PartitionSpec(0),)
    properties: Mapping[str, str] = {}

    def __init__(
        self,
        name: TableName,
        place: Location,
        files: Files,
        of: Format,
        listing: Sequence[Found],
        declared: Mapping[str, pa.DataType],
        delimiter: str,
    ) -> None:
        self.name, self.location, self.format = name, str(place), of
        self._files, self._listing = files, list(listing)
        self._declared, self._delimiter = dict(declared), delimiter
        if not listing:
            raise NotFound(f"table {str(name)!r} has no {of} files at {self.location!r}", key="table.not_found")

    @cached_property
    def schema(self) -> TableSchema:  # type: ignore[override]
        """The columns of all files. It reads each of them, so a copy asks only for the columns of new files."""
        return TableSchema.of(self.columns_of(self._file_table))

    def columns_of(self, files: pa.Table) -> pa.Schema:
        found = [(path, self._columns(path, etag)) for path, etag in _places(files)]
        return with_ids(merged_schema(found))

    def current(self, known: Sequence[Snapshot] = ()) -> Snapshot | None:
        same = [each for each in known if each.digest == self._digest]
        if same:
            return same[-1]
        newest_us = max(each.modified_us for each in self._listing)
        number = max((each.id for each in known), default=0) + 1
        return Snapshot(number, datetime.fromtimestamp(newest_us / 1_000_000, UTC), digest=self._digest)

    def snapshots(self, known: Sequence[Snapshot] = ()) -> list[Snapshot]:
        found = self.current(known)
        return [] if found is None or found in known else [found]

    def schema_at(self, snapshot: Snapshot) -> TableSchema:
        self._check(snapshot)
        return self.schema

    def files(self, snapshot: Snapshot) -> pa.Table:
        self._check(snapshot)
        return self._file_table

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
        first_batch_rows: int | None = None,  # noqa: ARG002 - rows are parsed in blocks of bytes
        share: tuple[int, int] | None = None,
    ) -> pa.RecordBatchReader:
        if filter is not None or share is not None:
            raise Unsupported("text files are only read as a whole", key="table.feature")
        target = self.schema_at(snapshot).arrow if schema is None else schema
        names = target.names if columns is None else list(columns)
        self._check_columns(target, names)
        scan = Scan(self._files, target, names, self._id_assigner(snapshot), positions=positions, batch_rows=batch_rows)
        chosen = self._file_table if files is None else files
        rows = (batch for file in self._data_files(snapshot, chosen) for batch in self._rows(scan, file))
        return pa.RecordBatchReader.from_batches(scan.output_schema, (batch for batch in rows if batch.num_rows))

    def _rows(self, scan: Scan, file: DataFile) -> Iterator[pa.RecordBatch]:
        start = 0
        with self._opened(file.path, file.etag) as opened:
            with decoding(self._files, file.path):
                reader = self._reader(opened, scan.schema)
            rows = None if reader is None else FileRows(scan, file, with_ids(reader.schema))
            while reader is not None and rows is not None:
                with decoding(self._files, file.path):
                    batch = next(reader, None)
                if batch is None:
                    return
                yield rows.requested(batch, start)
                start += batch.num_rows

    def _columns(self, path: str, etag: str) -> pa.Schema:
        """The columns of a file, in the order in which it has them."""
        from pyarrow import json

        with self._opened(path, etag) as opened, decoding(self._files, path):
            if self.format == Format.CSV:
                reader = self._reader(opened, pa.schema([]))
                return pa.schema([]) if reader is None else reader.schema
            declared = pa.schema(self._declared.items())
            if not opened.peek(1):
                return declared
            found = json.read_json(opened, _blocks(json), json.ParseOptions(explicit_schema=declared)).schema
        columns = (each.with_type(_json_type(each.type)) for each in found if each.name not in self._declared)
        return pa.schema([*declared, *(each for each in columns if each.type != pa.null())])

    def _reader(self, opened: BufferedReader, schema: pa.Schema) -> Any:
        """Read an open file in batches: of CSV all columns, of JSON those of `schema`. None if the file is empty."""
        from pyarrow import csv, json

        if not opened.peek(1):
            return None
        if self.format == Format.JSON:
            wanted = pa.schema([pa.field(each.name, each.type) for each in schema])
            parsing = json.ParseOptions(explicit_schema=wanted, unexpected_field_behavior="ignore")
            return json.open_json(opened, _blocks(json), parsing)
        parsing = csv.ParseOptions(delimiter=self._delimiter, newlines_in_values=True)
        header = bytes(opened.peek(_BLOCK_BYTES)).partition(b"\n")[0] + b"\n"
        names = csv.open_csv(pa.py_buffer(header), parse_options=parsing).schema.names
        values = csv.ConvertOptions(
            column_types={name: self._declared.get(name, pa.string()) for name in names},
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        )
        return csv.open_csv(opened, _blocks(csv), parsing, values)

    @contextmanager
    def _opened(self, path: str, etag: str | None) -> Iterator[BufferedReader]:
        with self._files.translated(path), self._files.open_unchanged(path, etag) as opened:
            plain = pa.CompressedInputStream(opened, "gzip") if path.endswith(".gz") else opened
            yield BufferedReader(plain, _BLOCK_BYTES)

    @cached_property
    def _digest(self) -> str:
        listed = "\n".join(f"{each.location}\t{each.size}\t{each.etag}" for each in self._listing)
        return sha256(listed.encode()).hexdigest()

    @cached_property
    def _file_table(self) -> pa.Table:
        count = len(self._listing)
        columns: dict[str, Any] = {
            "ordinal": range(count),
            "path": [str(each.location) for each in self._listing],
            "format": [str(self.format)] * count,
            "content": [Content.DATA] * count,
            "size_bytes": [each.size for each in self._listing],
            "etag": [each.etag for each in self._listing],
            "spec_id": [0] * count,
            "deletes": [[]] * count,
        }
        return pa.table(
            {field.name: pa.array(columns.get(field.name, [None] * count), field.type) for field in FILE_COLUMNS}
        )

    def _check(self, snapshot: Snapshot) -> None:
        if snapshot.digest != self._digest:
            raise self._no_snapshot(snapshot)

    def _id_assigner(self, snapshot: Snapshot) -> IdAssigner:  # noqa: ARG002
        return lambda schema, _: with_ids(schema)

    def _data_files(self, snapshot: Snapshot, files: pa.Table) -> Iterator[DataFile]:  # noqa: ARG002
        for ordinal, (path, etag) in zip(files["ordinal"].to_pylist(), _places(files), strict=True):
            yield DataFile(path, ordinal, etag=etag, format=str(self.format))


def _places(files: pa.Table) -> Iterator[tuple[str, str]]:
    return zip(files["path"].to_pylist(), files["etag"].to_pylist(), strict=True)


def _blocks(module: Any) -> Any:
    return module.ReadOptions(block_size=_BLOCK_BYTES, use_threads=False)


def _json_type(of: pa.DataType) -> pa.DataType:
    """The type of a column, given the one that Arrow found: it takes some texts for timestamps, depending on the others."""
    if pa.types.is_temporal(of):
        return pa.string()
    if pa.types.is_struct(of):
        return pa.struct([each.with_type(_json_type(each.type)) for each in of if each.type != pa.null()])
    if pa.types.is_list(of):
        return pa.list_(_json_type(of.value_type))
    return of
