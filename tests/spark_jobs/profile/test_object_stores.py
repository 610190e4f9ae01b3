"""Files in object stores are read with the credentials of the connector."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from skiway.formats import TableHandle, open_source
from skiway.spark_jobs.profile.job import profiled
from skiway.spark_jobs.profile.layouts import file_schemas
from spark_jobs.lakes import opened, rows_of_all_types, write
from spark_jobs.profile.test_profile import profiled_in_process
from spark_jobs.profile.test_tasks import assert_alike
from storage.homes import running_aws

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.needs("java", "spark")
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
def test_tasks_and_this_process_read_in_a_bucket_what_they_read_on_disk(spark: SparkSession, tmp_path: Path) -> None:
    import boto3

    rows = rows_of_all_types(1)
    (path,) = write(tmp_path / "t", rows)
    with running_aws() as endpoint:
        keys = {"aws_access_key_id": "key", "aws_secret_access_key": "secret", "region_name": "us-east-1"}
        bucket = boto3.client("s3", endpoint_url=endpoint, **keys)
        for name in ("a 100%.parquet", "b.parquet"):
            bucket.put_object(Bucket="skiway-test", Key=f"lake/t/{name}", Body=path.read_bytes())
        properties = {"s3.endpoint": endpoint, "s3.access-key-id": "key", "s3.secret-access-key": "secret"}
        with open_source("parquet", "s3://skiway-test/lake", options=properties | {"s3.region": "us-east-1"}) as source:
            handle = source.load((), "t")
            snapshot = handle.current()
            assert snapshot is not None
            in_bucket = [profiles(spark, handle), profiled_in_process(handle, snapshot)]
    with opened(tmp_path) as (handle, _):
        on_disk = profiles(spark, handle)
    assert len(on_disk) == len(rows.schema)
    elsewhere = ["path", "etag"]
    for name in ("s3://skiway-test/lake/t/a 100%.parquet", "s3://skiway-test/lake/t/b.parquet"):
        for each in in_bucket:
            found = each.filter(pc.field("path") == name)
            assert_alike(on_disk.drop_columns(elsewhere), found.drop_columns(elsewhere))


def profiles(spark: SparkSession, handle: TableHandle) -> pa.Table:
    snapshot = handle.current()
    assert snapshot is not None
    parts = profiled(
        lambda: spark,
        handle.files(snapshot),
        handle.schema_at(snapshot),
        schemas=file_schemas(handle, snapshot),
        access=handle.file_access,
    )
    return pa.concat_tables(parts).sort_by([("path", "ascending"), ("column_id", "ascending")])
