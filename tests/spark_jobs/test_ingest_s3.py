"""Copies from a bucket into a warehouse in a bucket: the tasks of Spark read and write S3 themselves, without jars."""

from __future__ import annotations

import io
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from metastore.ingest.copies import FolderCopy
from metastore.managed_table_factory import ManagedTableFactory
from metastore.resource_factory import ResourceFactory
from skiway.config.source_access import AddressRule
from skiway.errors import PermissionDenied
from skiway.formats.iceberg.warehouse import Warehouse
from skiway.metastore.connectors.specs import CopyMode
from skiway.security.source_access import SourceAccess
from skiway.spark_jobs.key_joins import SparkJoins
from skiway.storage import open_stores, utc_now
from spark_jobs.lakes import SPARK
from storage.homes import running_aws

pytestmark = SPARK

OPEN = SourceAccess(addresses=(AddressRule.parsed("loopback"),), for_callers=True, ambient_credentials=False)


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_objects_are_loaded_once(spark, tmp_path: Path, kind: str):
    import boto3

    with running_aws() as endpoint, open_stores("memory://") as stores:
        keys = {"aws_access_key_id": "key", "aws_secret_access_key": "secret", "region_name": "us-east-1"}
        bucket = boto3.client("s3", endpoint_url=endpoint, **keys)
        properties = {
            "s3.endpoint": endpoint,
            "s3.access-key-id": "key",
            "s3.secret-access-key": "secret",
            "s3.region": "us-east-1",
        }
        factory = ResourceFactory(stores, utc_now)  # type: ignore[arg-type]
        factory.catalog()
        lake = ManagedTableFactory(factory, Warehouse.at("s3://skiway-test/warehouse", properties))
        copy = FolderCopy(
            lake,
            tmp_path,
            kind,
            options={"uri": "s3://skiway-test/source", "columns": "id long", **properties},
            distribute=SparkJoins(lambda: spark),
            access=OPEN,
        ).in_mode(CopyMode.UPSERT, "id")

        def put(name: str, *ids: int) -> None:
            body = io.BytesIO(b"id,v\n" + b"".join(f"{each},{name}\n".encode() for each in ids))
            if kind == "parquet":
                body = io.BytesIO()
                pq.write_table(pa.table({"id": ids, "v": [name] * len(ids)}), body)
            bucket.put_object(Bucket="skiway-test", Key=f"source/orders/{name}.{kind}", Body=body.getvalue())

        put("a", 1, 2)
        assert (copy.load(), copy.load()) == (True, False)
        put("b", 2, 3)
        assert (copy.load(), copy.load()) == (True, False)
        handle = copy.table().handle
        rows = handle.read(handle.current()).read_all().to_pylist()
        assert sorted(tuple(row.values()) for row in rows) == [(1, "a"), (2, "b"), (3, "b")]
        copy.access = SourceAccess(addresses=(), for_callers=True)
        with pytest.raises(PermissionDenied):
            copy.load()
