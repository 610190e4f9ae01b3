"""Streaming reads: each micro-batch has the rows that were appended between two snapshots.

The offset of a stream is the id of a snapshot. Snapshots never change, so a batch that Spark plans again after a restart has the
same rows. The first batch of a stream without `startingVersion` has all rows that the table has then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from skiway.client import AirportClient, ScanPart
from skiway.client.metastore import Metastore, Snapshot
from skiway.errors import PreconditionFailed
from skiway.spark.options import Options
from skiway.spark.reading import batches_of, partitions_of
from skiway.spark.types import spark_schema

__all__ = ["AirportStreamReader"]

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
