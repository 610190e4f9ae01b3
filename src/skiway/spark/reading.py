"""Reading a scan: its parts are divided into partitions, which executors read as Arrow batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from skiway.client import Predicate, ScanPart
from skiway.spark.archives import forget_archives
from skiway.spark.filters import predicate_of
from skiway.spark.options import Options
from skiway.spark.types import arrow_target, converted

__all__ = ["AirportReader", "PushdownReader", "ScanPartition", "batches_of", "partitions_of"]


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
