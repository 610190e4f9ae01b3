"""The data source."""

from __future__ import annotations

from functools import cached_property

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, DataSourceWriter
from pyspark.sql.types import StructType

from skiway.spark.archives import forget_archives
from skiway.spark.options import Options
from skiway.spark.reading import AirportReader, PushdownReader
from skiway.spark.streaming import AirportStreamReader
from skiway.spark.types import spark_schema
from skiway.spark.writing import AirportWriter

__all__ = ["AirportDataSource"]


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
