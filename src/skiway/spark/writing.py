"""Writing a DataFrame: each task stages its rows in one transaction, which the driver commits.

A task may run several times: after a failure, or because a slow one has a speculative duplicate. Every run stages its rows as
a write of its own, and Spark reports one successful run of each task to the driver. The commit names the writes of these runs
only, so each row is written once. The server deletes the files of all other runs.

Columns are matched by name. A DataFrame must have all columns of the table and no others, in the types that Spark reads from the
table, or in smaller ones: an INT fits into a BIGINT.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StructType,
)

from skiway.client import Metastore
from skiway.client.metastore import Id, Transaction
from skiway.errors import InvalidArgument, Unsupported
from skiway.spark.options import Options, forget_archives
from skiway.spark.types import spark_schema

_INTEGERS: Final[tuple[type[DataType], ...]] = (ByteType, ShortType, IntegerType, LongType)
_UUID: Final = r"^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"


def check_columns(given: StructType, columns: pa.Schema, *, table: str) -> None:
    """Raise `InvalidArgument` if a DataFrame cannot be written to a table with these columns; the message names what differs."""
    found = {field.name.casefold(): field.dataType for field in given}
    if len(found) < len(given):
        raise InvalidArgument(
            f"the DataFrame has columns whose names are equal without regard to case ({', '.join(given.names)}): rename them"
        )
    wanted = {field.name.casefold(): field for field in columns}
    missing = [field.name for name, field in wanted.items() if name not in found]
    unknown = [field.name for field in given if field.name.casefold() not in wanted]
    differing = []
    for name, field in wanted.items():
        if name in found:
            expected = _type(field)
            if not _fits(found[name], expected):
                differing.append(
                    f"column {field.name!r} is {found[name].simpleString()} instead of {expected.simpleString()}"
                )
    parts = [
        *([f"it lacks {', '.join(map(repr, missing))}"] if missing else []),
        *([f"the table has no {', '.join(map(repr, unknown))}"] if unknown else []),
        *differing,
    ]
    if parts:
        raise InvalidArgument(
            f"the DataFrame does not have the columns of table {table}: {'; '.join(parts)}. Select and cast its columns"
        )


def table_rows(batch: pa.RecordBatch, columns: pa.Schema) -> pa.RecordBatch:
    """The rows of a DataFrame under the names of the table's columns. The server casts them to its types."""
    wanted = {field.name.casefold(): field for field in columns}
    fields = [wanted[name.casefold()] for name in batch.schema.names]
    arrays = [
        _uuids(column, field.name) if field.type == pa.uuid() else column
        for column, field in zip(batch.columns, fields, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, names=[field.name for field in fields])


def _type(field: pa.Field) -> DataType:
    """The type in which Spark reads a column."""
    try:
        return spark_schema(pa.schema([field])).fields[0].dataType
    except Unsupported:
        raise Unsupported(f"column {field.name!r} has type {field.type}, which Spark cannot write") from None


def _fits(given: DataType, wanted: DataType) -> bool:
    """Whether all values of a type are values of another one."""
    match given, wanted:
        case ArrayType(), ArrayType():
            return _fits(given.elementType, wanted.elementType)
        case MapType(), MapType():
            return _fits(given.keyType, wanted.keyType) and _fits(given.valueType, wanted.valueType)
        case StructType(), StructType():
            return given.names == wanted.names and all(
                _fits(one.dataType, other.dataType) for one, other in zip(given, wanted, strict=True)
            )
        case DecimalType(), DecimalType():
            whole = given.precision - given.scale
            return given.scale <= wanted.scale and whole <= wanted.precision - wanted.scale
        case FloatType(), DoubleType():
            return True
    if isinstance(given, _INTEGERS) and isinstance(wanted, _INTEGERS):
        return _INTEGERS.index(type(given)) <= _INTEGERS.index(type(wanted))
    return given == wanted


def _uuids(column: pa.Array, name: str) -> pa.Array:
    """Texts as UUIDs, without a Python object for each of them."""
    valid = pc.fill_null(pc.match_substring_regex(column, _UUID), True)
    if not pc.all(valid, min_count=0).as_py():
        found = column.filter(pc.invert(valid))[0].as_py()
        raise InvalidArgument(
            f"{found[:100]!r} in column {name!r} is not a UUID: write it like 123e4567-e89b-12d3-a456-426614174000"
        )
    texts = pc.fill_null(pc.replace_substring(column, "-", ""), "0" * 32).cast(pa.string())
    joined = pc.binary_join(pa.ListArray.from_arrays([0, len(texts)], texts), "")[0].as_py()
    data = pa.py_buffer(bytes.fromhex(joined))
    plain = pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), len(texts), [None, data])
    masked = pc.if_else(column.is_valid(), plain, pa.scalar(None, pa.binary(16)))
    return pa.ExtensionArray.from_storage(pa.uuid(), masked)


MESSAGE_BYTES = 4 * 1024 * 1024
"""About how many bytes are sent at once. Spark's own batches have 10,000 rows, however small these are."""


@dataclass(frozen=True)
class _Staged(WriterCommitMessage):
    """The rows of a successful run of a task; `write_id` is empty if there were none."""

    write_id: str
    row_count: int


class AirportWriter(DataSourceArrowWriter):
    """Writes one DataFrame. Spark pickles it for executors, with its options."""

    def __init__(
        self, options: Options, table_id: str, columns: pa.Schema, transaction_id: str, *, replaces: bool
    ) -> None:
        self._options, self._table_id, self._columns = options, Id(table_id), columns
        self._transaction_id, self._replaces = transaction_id, replaces

    @classmethod
    def begin(cls, options: Options, schema: StructType, *, replaces: bool) -> AirportWriter:
        """Begin the transaction of a write. Raise if the caller may not write these columns to the table."""
        options.check_writing()
        with options.client() as client, options.metastore() as lake:
            table = client.table(options.table)
            columns = pa.schema([field for place, field in enumerate(table.schema) if place != table.rowid])
            found = options.table_id(client, lake)
            check_columns(schema, columns, table=options.table)
            transaction = lake.transactions.begin(ttl_s=options.transaction_seconds)
            try:
                transaction.stage(Id(found), [])  # the server checks whether the caller may write
            except BaseException:
                transaction.abort()
                raise
        return cls(options, found, columns, transaction.id, replaces=replaces)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of one run of a task, on an executor."""
        batches = (table_rows(batch, self._columns) for batch in _grouped(iterator))
        with self._options.metastore() as lake:
            # Connecting may take several attempts, but rows cannot be sent again.
            staged = lake.transactions.get(self._transaction_id).stage(self._table_id, batches, timeout_s=None)
        forget_archives()
        return _Staged(staged.write_id, staged.row_count)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Make the rows of the successful runs visible at once, and discard all others."""
        chosen = [each.write_id for each in messages if isinstance(each, _Staged) and each.write_id]
        replaced = [self._table_id] if self._replaces else []
        with self._options.metastore() as lake:
            self._transaction(lake).commit(only=chosen, replace=replaced)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:  # noqa: ARG002
        """Discard all rows."""
        with self._options.metastore() as lake:
            self._transaction(lake).abort()

    def _transaction(self, lake: Metastore) -> Transaction:
        return lake.transactions.resume(self._transaction_id)


def _grouped(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in larger batches."""
    waiting: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        waiting.append(batch)
        size += batch.nbytes
        if size >= MESSAGE_BYTES:
            yield pa.concat_batches(waiting)
            waiting, size = [], 0
    if waiting:
        yield pa.concat_batches(waiting)
