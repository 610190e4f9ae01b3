"""Spark reads the files of connectors in S3 with the credentials of the connector, never with those of the server."""

from __future__ import annotations

import pyarrow as pa
import pytest

from skiway.config.addresses import AddressRule
from skiway.formats.files import Files
from skiway.formats.reach import Reach
from skiway.pipeline.profile.layouts import layout_of
from skiway.pipeline.profile.object_stores import s3_options
from skiway.pipeline.profile.scanning import Constants, Scan
from skiway.security.source_access import SourceAccess, location

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
    scan = Scan(layout, (), Constants((), ()), lg_k=4, top=0, s3_access={})
    scan.opened(reader, pa.table({"path": ["s3://victim/a.parquet"]}))  # type: ignore[arg-type]
    assert reader.told["fs.s3a.bucket.victim.aws.credentials.provider"].endswith("AnonymousAWSCredentialsProvider")
