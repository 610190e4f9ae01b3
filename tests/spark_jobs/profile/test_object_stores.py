"""Spark reads the files of connectors in S3 with the credentials of the connector, never with those of the server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from skiway.config.source_access import AddressRule
from skiway.formats import TableHandle, open_source
from skiway.formats.files import Files, Reach
from skiway.security.source_access import SourceAccess, location
from skiway.spark_jobs.profile.job import profiled
from skiway.spark_jobs.profile.layouts import file_schemas, layout_of
from skiway.spark_jobs.profile.scanning import Constants, Scan, s3_options
from spark_jobs.lakes import opened, rows_of_all_types, write
from spark_jobs.profile.test_profile import profiled_in_process
from spark_jobs.profile.test_python_tasks import assert_alike
from storage.homes import running_aws

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PATHS = ["s3://victim/a.parquet", "s3a://other/b.parquet", "/local/c.parquet"]
S3A = "org.apache.hadoop.fs.s3a"


def files(**access: bool) -> Files:
    given = {"s3.endpoint": "http://127.0.0.1:9000", "s3.access-key-id": "own", "s3.secret-access-key": "own"}
    return Files(given, Reach((location("s3://victim/"),), SourceAccess(addresses=RULES, **access)))


RULES = (AddressRule.parsed("loopback"),)


def test_every_bucket_gets_the_credentials_of_the_connector() -> None:
    access = files(for_callers=True).own_s3_access
    options = s3_options(PATHS, access)
    assert options["fs.s3a.impl.disable.cache"] == "true"
    for bucket in ("victim", "other"):
        prefix = f"fs.s3a.bucket.{bucket}"
        assert options[f"{prefix}.access.key"] == options[f"{prefix}.secret.key"] == "own"
        assert options[f"{prefix}.endpoint"] == "http://127.0.0.1:9000"
        assert options[f"{prefix}.aws.credentials.provider"] == f"{S3A}.SimpleAWSCredentialsProvider"
        assert options[f"{prefix}.connection.ssl.enabled"] == "false"


@pytest.mark.parametrize(
    ("access", "provider"),
    [
        ({}, "AnonymousAWSCredentialsProvider"),
        ({"s3.access-key-id": "k", "s3.secret-access-key": "s"}, "SimpleAWSCredentialsProvider"),
        (
            {"s3.access-key-id": "k", "s3.secret-access-key": "s", "s3.session-token": "t"},
            "TemporaryAWSCredentialsProvider",
        ),
    ],
)
def test_without_credentials_requests_are_anonymous(access: dict[str, str], provider: str) -> None:
    options = s3_options(["s3://victim/a.parquet"], access)
    assert options["fs.s3a.bucket.victim.aws.credentials.provider"] == f"{S3A}.{provider}"
    assert options["fs.s3a.bucket.victim.endpoint"] == "s3.amazonaws.com"


def test_own_tables_and_permitted_connectors_use_the_settings_of_spark() -> None:
    assert files().own_s3_access is None
    ambient = Files({"s3.ambient-credentials": "true"}, Reach((), SourceAccess(for_callers=True)))
    assert ambient.own_s3_access is None
    assert s3_options(PATHS, None) == s3_options(["/local/c.parquet"], {}) == {}


def test_the_options_are_those_of_the_read() -> None:
    class Reader:
        """Records what Spark is told."""

        def __init__(self) -> None:
            self.told: dict[str, str] = {}
            self.read = self

        def schema(self, _: str) -> Reader:
            return self

        def option(self, name: str, value: str) -> Reader:
            return self.options(**{name: value})

        def options(self, **more: str) -> Reader:
            self.told |= more
            return self

        def parquet(self, *_: str) -> Reader:
            return self

        def selectExpr(self, *_: str) -> Reader:
            return self

    reader = Reader()
    layout = layout_of(pa.schema([]), [])
    scan = Scan(layout, (), Constants((), ()), lg_k=4, top=0, access=Files({}, files(for_callers=True).reach))
    scan.opened(reader, pa.table({"path": ["s3://victim/a.parquet"]}))  # type: ignore[arg-type]
    assert reader.told["fs.s3a.bucket.victim.aws.credentials.provider"].endswith("AnonymousAWSCredentialsProvider")


@pytest.mark.needs("java", "spark")
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
def test_tasks_and_this_process_read_what_spark_reads_from_disk(spark: SparkSession, tmp_path: Path) -> None:
    """This Spark has no jars for S3, so the tasks read the files in the bucket."""
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
