"""What copies need of Spark, in one object for the worker."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from skiway.metastore.ingest.changes import DatabaseSource
from skiway.pipeline.ingest.distribution import SparkDistribution
from skiway.pipeline.interruption import joined

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from skiway.security.source_access import SourceAccess

__all__ = ["SparkCopies"]


@dataclass(frozen=True, slots=True)
class SparkCopies:
    """Copies on Spark. `spark` is called only if there is something to do. With `fetch_drivers`, drivers of databases are fetched."""

    spark: Callable[[], SparkSession]
    fetch_drivers: bool = True

    @property
    def distribute(self) -> SparkDistribution:
        """Calls functions as tasks of Spark."""
        return SparkDistribution(self.spark)

    def database(
        self, uri: str, *, options: Mapping[str, str], credentials: Mapping[str, str], access: SourceAccess
    ) -> DatabaseSource:
        """Open the database or the Airport server at `uri`, if `access` permits it."""
        if uri.startswith("grpc"):
            from skiway.pipeline.ingest.airport import open_airport

            return open_airport(uri, options=options, credentials=credentials, access=access)
        from skiway.pipeline.ingest.databases import open_database

        session = cache(self.spark)  # the driver is added to this one

        def spark() -> SparkSession:
            return joined(session())

        return open_database(
            spark,
            SparkDistribution(spark),
            uri,
            options=options,
            credentials=credentials,
            access=access,
            fetch_driver=self.fetch_drivers,
        )
