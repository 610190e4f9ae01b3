"""Joins of rows by their keys, as copies and pipelines merge them. Spark shuffles the keys among its tasks; rows stay in their files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from skiway.metastore.ingest.keys import PLACE, EachPlace, KeyRows, by_file, joined_columns
from skiway.spark_jobs.tasks import RESULT, SparkDistribution, collected, in_tasks, outcome

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class SparkJoins(SparkDistribution):
    """Runs calls as tasks of Spark, and joins keys there."""

    def last_rows(self, rows: Sequence[KeyRows], keys: pa.Schema, parts: Sequence[int], each: EachPlace[R]) -> list[R]:
        """Call `each` with the rows of files whose keys occur again in a later row: in a later file, or below in the same file."""
        from pyspark.sql import Window
        from pyspark.sql import functions as f

        if not len(parts):
            return []
        later = Window.partitionBy(*_names(keys)).orderBy(f.desc("file"), f.desc("position"))
        found = self._keys(rows, keys).withColumn("n", f.row_number().over(later)).where("n > 1")
        everything = found.select(*PLACE.names).unionAll(self._markers(parts))
        return self._called(everything, max(parts) + 1, each)

    def matches(
        self, rows: Sequence[KeyRows], of: Sequence[KeyRows], keys: pa.Schema, each: EachPlace[R], *, are_few: bool
    ) -> list[R]:
        """Call `each` with the rows whose keys are among those `of` other rows, which may be few."""
        from pyspark.sql import functions as f

        wanted = self._keys(of, keys).select(*_names(keys))
        wanted = f.broadcast(wanted) if are_few else wanted
        found = self._keys(rows, keys).join(wanted, _names(keys), "left_semi").select(*PLACE.names)
        return self._called(found, len(rows), each)

    def _keys(self, rows: Sequence[KeyRows], keys: pa.Schema) -> DataFrame:
        from pyspark.sql.pandas.types import from_arrow_schema

        return in_tasks(self.spark(), rows, lambda one: one.batches(), from_arrow_schema(joined_columns(keys)))

    def _markers(self, parts: Sequence[int]) -> DataFrame:
        """A row for each file, so that each is passed on."""
        from pyspark.sql.pandas.types import from_arrow_schema

        columns = [pa.array(parts, pa.int32()), pa.array(range(len(parts)), pa.int32()), pa.array([-1] * len(parts))]
        batch = pa.RecordBatch.from_arrays(columns, schema=PLACE)
        return in_tasks(self.spark(), [batch], lambda one: [one], from_arrow_schema(PLACE))

    def _called(self, places: DataFrame, parts: int, each: EachPlace[R]) -> list[R]:
        ordered = places.repartitionById(parts, "part").sortWithinPartitions("file", "position")
        return collected(ordered.select("file", "position").mapInArrow(_calling(each), RESULT))


def _calling(each: EachPlace[Any]) -> Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]:
    def run(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        yield outcome(0, lambda: each(by_file(batches)))

    return run


def _names(keys: pa.Schema) -> list[str]:
    return [f"k{place}" for place in range(len(keys))]
