"""How Spark reads files in object stores.

With the jars of a store, Spark reads the files itself: those of a connector with the credentials of the connector, never with
its own. The session of Spark has the credentials of the server. A connector could name a bucket that only the server may read,
at an endpoint of its own that has files of the same names, and would get statistics of the server's files. So every read of a
connector's files sets endpoint and credentials for each bucket; they take precedence over all settings of the session.

Without these jars, the tasks read the files with the reader of the lake, so object stores work on every Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, cast
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq

from skiway.formats import location
from skiway.formats.files import Files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["ADDRESS", "rows_in_tasks", "s3_options"]

ADDRESS: Final = "file_address"
_BATCH_ROWS: Final = 65_536

_PROVIDERS = "org.apache.hadoop.fs.s3a"


def s3_options(paths: Iterable[str], access: Mapping[str, str] | None) -> dict[str, str]:
    """The options of a read of these files. `access` are S3 properties; with None, Spark uses its own credentials."""
    buckets = {place.bucket for place in map(location, paths) if place.scheme == "s3"} if access is not None else set()
    # Hadoop would reuse a connection to the same bucket that was made with other credentials.
    options = {"fs.s3a.impl.disable.cache": "true"} if buckets else {}
    for bucket in sorted(buckets):
        options |= {f"fs.s3a.bucket.{bucket}.{name}": value for name, value in _settings(access or {}).items()}
    return options


def _settings(access: Mapping[str, str]) -> dict[str, str]:
    key, secret = access.get("s3.access-key-id", ""), access.get("s3.secret-access-key", "")
    token, endpoint = access.get("s3.session-token", ""), access.get("s3.endpoint", "")
    kind = "TemporaryAWSCredentialsProvider" if token else "SimpleAWSCredentialsProvider"
    settings = {
        "aws.credentials.provider": f"{_PROVIDERS}.{kind if key else 'AnonymousAWSCredentialsProvider'}",
        "access.key": key,
        "secret.key": secret,
        "session.token": token,
        "endpoint": endpoint or "s3.amazonaws.com",
        "path.style.access": str(bool(endpoint)).lower(),
        "connection.ssl.enabled": str(urlsplit(endpoint).scheme != "http").lower(),
        "endpoint.region": access.get("s3.region", ""),
    }
    return {name: value for name, value in settings.items() if value}


def rows_in_tasks(spark: SparkSession, access: Files, addresses: Mapping[str, str], schema: str) -> DataFrame:
    """The rows of Parquet files, one task for each, in the columns of `schema`, as DDL, and the address of the file."""
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    result = cast(StructType, StructType.fromDDL(f"{ADDRESS} STRING, {schema}"))
    columns = to_arrow_schema(StructType(result.fields[1:]), timestamp_utc=True)
    places = list(addresses.items())

    def read(numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                path, address = places[number]
                with access.open(path) as source:
                    yield from _read(source, columns, address)

    return spark.range(0, len(places), 1, max(1, len(places))).mapInArrow(read, result)


def _read(source: pa.NativeFile, columns: pa.Schema, address: str) -> Iterator[pa.RecordBatch]:
    file = pq.ParquetFile(source)
    here = [name for name in columns.names if name in file.schema_arrow.names]
    for rows in file.iter_batches(_BATCH_ROWS, columns=here):
        found = [
            _converted(rows.column(field.name), field.type) if field.name in here else pa.nulls(len(rows), field.type)
            for field in columns
        ]
        yield pa.RecordBatch.from_arrays([pa.repeat(address, len(rows)), *found], [ADDRESS, *columns.names])


def _converted(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """The values as Spark would read them: times and nanoseconds as numbers, and only the chosen fields of structs.

    The fields of a missing struct are NULL, which is all that counts: only they are profiled.
    """
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    if pa.types.is_struct(kind):
        parts = [_converted(column.field(field.name), field.type) for field in kind]
        return pa.StructArray.from_arrays(parts, fields=list(kind))
    return column.cast(kind)
