"""Reading a scan: each part of it is a partition, which an executor reads as Arrow batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from skiway.client import Predicate, ScanPart
from skiway.spark.filters import predicate_of
from skiway.spark.options import Options
from skiway.spark.types import arrow_target, converted

__all__ = ["AirportReader", "Part", "PushdownReader", "batches_of"]


class Part(InputPartition):
    """A partition: a part of a scan."""

    def __init__(self, part: ScanPart) -> None:
        self.part = part

    def __repr__(self) -> str:
        return f"a part of {self.part.selection.table}"


class AirportReader(DataSourceReader):
    """Reads one scan. Spark pickles it for executors, with its options."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options, self._schema = options, schema
        self._where: Predicate | None = None

    def partitions(self) -> Sequence[InputPartition]:
        """The parts of the scan. All of them read the same snapshot."""
        with self._options.client() as client:
            return [Part(part) for part in self._options.bind(client, self._where).parts()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The batches of one part, in the types of Spark."""
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
    """The batches of one part, in the types of Spark."""
    if not isinstance(partition, Part):
        return  # Spark passes None if a scan has no parts
    target = arrow_target(partition.part.schema)
    with options.client() as client, client.read_part(partition.part) as rows:
        for batch in rows:
            yield converted(batch, target)
