"""The data source, and its readers.

The parts of a scan are divided into partitions, which executors read as Arrow batches. Filters of Spark become predicates of the client
if they have the same meaning in both. Spark applies every filter itself, so the others only read more rows.

Each micro-batch of a stream has the rows that were appended between two snapshots. The offset of a stream is the id of a snapshot.
Snapshots never change, so a batch that Spark plans again after a restart has the same rows. The first batch of a stream without
`startingVersion` has all rows that the table has then.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from functools import cached_property
from itertools import pairwise
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import datasource as spark
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceWriter,
    Filter,
    InputPartition,
)
from pyspark.sql.types import StructType

from skiway.client import AirportClient, Predicate, ScanPart, col
from skiway.client.metastore import Metastore, Snapshot
from skiway.errors import PreconditionFailed
from skiway.spark.options import Options, forget_archives
from skiway.spark.types import arrow_target, converted, spark_schema
from skiway.spark.writing import AirportWriter

_VALUES: Final = (bool, int, float, str, Decimal, datetime.date)


def predicate_of(given: spark.Filter, schema: StructType) -> Predicate | None:
    """The predicate; None if there is none with the same meaning."""
    if isinstance(given, spark.Not):
        inner = predicate_of(given.child, schema)
        return None if inner is None else ~inner
    path: tuple[str, ...] = getattr(given, "attribute", ())
    if len(path) != 1 or path[0] not in schema.names:
        return None  # a field of a struct
    column, value = col(path[0]), getattr(given, "value", None)
    match given:
        case spark.IsNull():
            return column.is_null()
        case spark.IsNotNull():
            return ~column.is_null()
        case spark.In():
            values = tuple(given.value)
            return column.isin(values) if values and all(map(_is_plain, values)) else None
    if not _is_plain(value):
        return None
    match given:
        case spark.EqualTo():
            return column == value
        case spark.GreaterThan():
            return column > value
        case spark.GreaterThanOrEqual():
            return column >= value
        case spark.LessThan():
            return column < value
        case spark.LessThanOrEqual():
            return column <= value
        case _:
            return None


def _is_plain(value: Any) -> bool:
    """Whether a value means the same in Spark and in the client. Timestamps depend on the time zone of the session."""
    is_nan = isinstance(value, float) and value != value
    return isinstance(value, _VALUES) and not isinstance(value, datetime.datetime) and not is_nan


class ScanPartition(InputPartition):
    """A partition: one or more parts of a scan, which are read one after another."""

    def __init__(self, parts: Sequence[ScanPart]) -> None:
        self.parts = parts

    def __repr__(self) -> str:
        return f"a part of {self.parts[0].selection.table}"


def partitions_of(options: Options, parts: Sequence[ScanPart]) -> list[ScanPartition]:
    """Divide the parts of a scan into partitions: one for each, unless the option `partitions` allows fewer."""
    count = min(len(parts), options.partitions or len(parts))
    if not count:
        return []
    cuts = [-(-len(parts) * number // count) for number in range(count + 1)]
    return [ScanPartition(parts[start:end]) for start, end in pairwise(cuts)]


class AirportReader(DataSourceReader):
    """Reads one scan. Spark pickles it for executors, with its options."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options, self._schema = options, schema
        self._where: Predicate | None = None

    def partitions(self) -> Sequence[InputPartition]:
        """The partitions of the scan. All of them read the same snapshot."""
        with self._options.client() as client:
            parts = self._options.bind(client, self._where).parts()
        forget_archives()
        return partitions_of(self._options, parts)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The batches of one partition, in the types of Spark."""
        return batches_of(self._options, partition)


class PushdownReader(AirportReader):
    """Reads one scan with the filters of the first query that has any.

    Spark 4.1 keeps the partitions that were planned with filters, and uses them for later queries of the same DataFrame that
    have none, which then miss rows. So this reader is used only if the option `pushdown` asks for it.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Keep the filters that the server can apply. Spark applies all of them once more."""
        for each in filters:
            found = predicate_of(each, self._schema)
            if found is not None:
                self._where = found if self._where is None else self._where & found
        return filters


def batches_of(options: Options, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """The batches of one partition, in the types of Spark."""
    if not isinstance(partition, ScanPartition):
        return  # Spark passes None if a scan has no parts
    with options.client() as client:
        for part in partition.parts:
            target = arrow_target(part.schema)
            with client.read_part(part) as rows:
                for batch in rows:
                    yield converted(batch, target)
    forget_archives()


_BEGINNING: Final = 0
"""The offset before the first snapshot."""


class AirportStreamReader(DataSourceStreamReader):
    """Reads the rows that are appended to a table. Spark pickles it for executors, with its options."""

    def __init__(self, options: Options, schema: StructType) -> None:
        options.check_streaming()
        self._options, self._schema = options, schema

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """The snapshot after which a new stream begins."""
        match self._options.starting_version:
            case None:
                return {"snapshot": _BEGINNING}
            case "latest":
                return self.latestOffset()
            case version:
                with self._options.client() as client, self._options.metastore() as lake:
                    return {"snapshot": lake.snapshots.get(self._options.table_id(client, lake), int(version)).id}

    def latestOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """The current snapshot."""
        with self._options.client() as client, self._options.metastore() as lake:
            found = lake.snapshots.find(self._options.table_id(client, lake))
        return {"snapshot": _BEGINNING if found is None else found.id}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The partitions of the rows that were appended after the snapshot `start`, up to the snapshot `end`."""
        first, last = int(start["snapshot"]), int(end["snapshot"])
        if first == last:
            return []
        if first == _BEGINNING:
            versions = [str(last)]
        else:
            with self._options.client() as client, self._options.metastore() as lake:
                versions = self._ranges(lake, client, first, last)
        with self._options.client() as client:
            parts = [part for version in versions for part in self._parts(client, version)]
        return partitions_of(self._options, parts)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The batches of one partition, in the types of Spark."""
        return batches_of(self._options, partition)

    def _parts(self, client: AirportClient, version: str) -> list[ScanPart]:
        scan = client.bind(self._options.table, columns=self._schema.names, at_version=version)
        if _types(spark_schema(scan.schema)) != _types(self._schema):
            raise PreconditionFailed(
                f"the columns of table {self._options.table} have changed since the stream began: start the query again"
            )
        return scan.parts()

    def _ranges(self, lake: Metastore, client: AirportClient, first: int, last: int) -> list[str]:
        """The ranges of snapshots that only append rows, the oldest first."""
        known = {each.id: each for each in lake.snapshots(self._options.table_id(client, lake))}
        ranges: list[str] = []
        until = None  # the end of the range in which we are
        at = last
        while at != first:
            found = known.get(at)
            if found is None or found.parent_id is None:
                raise self._interrupted(first, last)
            if _operation(found) == "append":
                until = until or at
            else:
                self._check_skipped(found)
                if until is not None:
                    ranges.append(f"{at}..{until}")
                until = None
            at = found.parent_id
        if until is not None:
            ranges.append(f"{first}..{until}")
        return ranges[::-1]

    def _check_skipped(self, found: Snapshot) -> None:
        """Raise unless a snapshot that does not append rows may be skipped. Compaction changes no rows."""
        if _operation(found) != "replace" and not self._options.skip_changes:
            raise PreconditionFailed(
                f"snapshot {found.id} of table {self._options.table} does not only append rows ({_operation(found)}): a stream "
                "has appended rows only. Begin a new stream, or set the option skipChanges to true to skip such snapshots"
            )

    def _interrupted(self, first: int, last: int) -> PreconditionFailed:
        return PreconditionFailed(
            f"snapshot {last} of table {self._options.table} does not follow snapshot {first}, up to which the stream has read: "
            "snapshots between them have expired, or the table was replaced or rolled back. Begin a new stream with another "
            "checkpoint"
        )


def _operation(snapshot: Snapshot) -> str:
    return snapshot.summary.get("operation", "unknown")


def _types(schema: StructType) -> list[tuple[str, str]]:
    return [(field.name, field.dataType.simpleString()) for field in schema]


class AirportDataSource(DataSource):
    """`spark.read.format("airport")`, `spark.readStream.format("airport")` and `df.write.format("airport")`.

    Register it with `spark.dataSource.register(AirportDataSource)`.

    | option | meaning |
    |---|---|
    | `location` | the server and the catalog, `grpc://host:port/catalog` or `grpc+tls://…` |
    | `table` | the table, `schema.table`; `load("schema.table")` has the same effect |
    | `token`, `tokenFile` | the token of the caller, or a file of the driver that contains it |
    | `rootCertificates` | a PEM file, on the driver and on executors, if the server's certificate needs one |
    | `columns` | the columns to read: names separated by commas, or a JSON list |
    | `partitions` | the largest number of partitions; by default, there is one for each part that the server returns |
    | `versionAsOf`, `timestampAsOf` | the snapshot to read, by its id or a time |
    | `pushdown` | `true` sends filters to the server; use such a DataFrame for one query only |
    | `transactionSeconds` | how long a write may take, by default a day |
    | `startingVersion` | the snapshot after which a stream begins, or `latest` |
    | `skipChanges` | `true` if a stream skips snapshots that change or delete rows |
    """

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "airport"

    @cached_property
    def _options(self) -> Options:
        return Options.of(dict(self.options))

    def schema(self) -> StructType:
        """The columns of the table, or the chosen ones."""
        with self._options.client() as client:
            found = self._options.bind(client).schema
        forget_archives()
        return spark_schema(found)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """The writer of a DataFrame with this schema, which replaces all rows of the table if `overwrite` is set."""
        return AirportWriter.begin(self._options, schema, replaces=overwrite)

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of a scan."""
        return (PushdownReader if self._options.pushdown else AirportReader)(self._options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """The reader of a stream of appended rows."""
        return AirportStreamReader(self._options, schema)
