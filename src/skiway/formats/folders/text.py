"""Folders of CSV files, or of files with one JSON object per line, as tables.

Text has no types, so they come from the
option `columns`, such as `id long, price decimal(9,2), day date`, with the names of Iceberg's types. The columns of CSV that it
does not name are strings. Those of JSON have the types that the values have: numbers are `long` or `double`, and dates and
times remain strings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from io import BufferedReader
from typing import Any, Final

import pyarrow as pa

from skiway.errors import InvalidArgument, NotFound, Unsupported
from skiway.formats.files import Files, Found, decoding
from skiway.formats.folders.listings import ListedTable, listing, merged_schema
from skiway.formats.iceberg import lib
from skiway.formats.opening import FolderLayout, SourceRequest, is_hidden, open_folders
from skiway.formats.readers.scanning import DataFile, FileRows, IdAssigner, Scan
from skiway.formats.schemas import TableSchema, list_items, with_ids
from skiway.formats.source import (
    Format,
    PartitionSpec,
    Snapshot,
    Source,
    TableHandle,
    TableName,
    file_rows,
    file_values,
)
from skiway.security.source_access import Location

_SUFFIXES: Final = {
    Format.CSV: (".csv", ".csv.gz"),
    Format.JSON: (".json", ".jsonl", ".ndjson", ".json.gz", ".jsonl.gz", ".ndjson.gz"),
}
_BLOCK_BYTES: Final = 4 << 20  # a row must fit into it


def open_text(request: SourceRequest) -> Source:
    """Open the folders of CSV or JSON files below `request.uri`. The option `csv.delimiter` is a comma by default."""
    delimiter = request.options.get("csv.delimiter", ",")
    if len(delimiter) != 1:
        raise InvalidArgument(f"csv.delimiter is {delimiter!r}, but must be one character", key="source.option")
    declared = declared_columns(request.options.get("columns", ""))
    return open_folders(request, _TextFolders(request.files(), request.root, Format(request.kind), declared, delimiter))


def declared_columns(text: str) -> dict[str, pa.DataType]:
    """The types in a list of columns such as `id long, price decimal(9,2)`."""
    from pydantic import ValidationError

    from skiway.formats.iceberg.types import arrow_columns

    found: dict[str, pa.DataType] = {}
    for item in list_items(text):
        name, _, of = item.strip().partition(" ")
        try:
            field = lib.types.NestedField(
                field_id=1, name=name.strip('"'), field_type=of.strip().lower().replace(" ", "")
            )
            found[field.name] = arrow_columns(lib.schema.Schema(field)).field(0).type
        except (ValidationError, ValueError, TypeError):
            raise InvalidArgument(
                f"column {item.strip()!r} has no type that is known; write a name and a type of Iceberg, such as id long or "
                "price decimal(9,2)",
                key="source.option",
            ) from None
    return found


class _TextFolders(FolderLayout):
    """A folder with text files is a table, including everything below it. In the root folder, each file is a table."""

    def __init__(
        self, files: Files, root: Location, of: Format, declared: Mapping[str, pa.DataType], delimiter: str
    ) -> None:
        super().__init__(files)
        self._root, self._format = root, of
        self._declared, self._delimiter = declared, delimiter

    def is_table(self, folder: Location, folders: list[Location], files: list[Found]) -> bool:  # noqa: ARG002
        return folder != self._root and any(map(self.is_table_file, files))

    def is_table_file(self, file: Found) -> bool:
        name = file.location.name
        return name.endswith(_SUFFIXES[self._format]) and not is_hidden(name)

    def open(self, name: TableName, place: Location) -> TableHandle:
        listed = listing(self.files, place, _SUFFIXES[self._format], self.is_table_file)
        return TextTable(name, place, self.files, self._format, listed, self._declared, self._delimiter)


class TextTable(ListedTable):
    """The text files of one listing."""

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
        found = [(path, self._columns(path, etag)) for path, etag in file_values(files, "path", "etag")]
        return with_ids(merged_schema(found))

    def _read(self, scan: Scan, snapshot: Snapshot, files: pa.Table | None) -> pa.RecordBatchReader:
        if scan.filter is not None or scan.share is not None:
            raise Unsupported("text files are only read as a whole", key="table.feature")
        chosen = self.files(snapshot) if files is None else files
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
        return pa.schema([*declared, *(column for column in columns if column.type != pa.null())])

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
    def _file_table(self) -> pa.Table:
        count = len(self._listing)
        return file_rows(
            count,
            path=[str(file.location) for file in self._listing],
            format=[str(self.format)] * count,
            size_bytes=[file.size for file in self._listing],
            etag=[file.etag for file in self._listing],
            equality_ids=[None] * count,
            deleted_rows=[None] * count,
        )

    def _id_assigner(self, snapshot: Snapshot) -> IdAssigner:  # noqa: ARG002
        return lambda schema, _: with_ids(schema)

    def _data_files(self, snapshot: Snapshot, files: pa.Table) -> Iterator[DataFile]:  # noqa: ARG002
        for ordinal, path, etag in file_values(files, "ordinal", "path", "etag"):
            yield DataFile(path, ordinal, etag=etag, format=str(self.format))


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
