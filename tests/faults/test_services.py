"""Services that fail for a while: PostgreSQL restarts, S3 answers with errors, too slowly or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from faults.disturbed import NAME, disturbed
from faults.proxies import S3Proxy
from skiway.errors import Unavailable
from storage.homes import running_aws, running_postgres_server

pytestmark = [pytest.mark.timeout(600), pytest.mark.full]


@pytest.mark.needs("postgres")
def test_restarted_database_fails_statements_and_loses_nothing(tmp_path: Path) -> None:
    blobs = f"blob.url={(tmp_path / 'blobs').as_uri()}"
    with (
        running_postgres_server() as database,
        disturbed(tmp_path / "home", f"kv.url={database.url}", blobs) as running,
    ):
        database.stop()
        assert not running.writer.insert()
        assert isinstance(running.writer.errors[-1], Unavailable)
        database.start()
        running.writer.insert_until_it_works()
        assert running.doors.db.count(NAME) >= 2


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    with running_aws() as endpoint:
        yield endpoint


@pytest.mark.parametrize("disturbance", ["error", "throttle", "lost answer", "hang"])
def test_disturbed_object_store_fails_statements_and_loses_nothing(tmp_path: Path, s3: str, disturbance: str) -> None:
    with S3Proxy(s3).serving() as proxy:
        settings = (
            f"warehouse.uri=s3://skiway-test/{tmp_path.name}",
            f"storage.aws.s3.endpoint={proxy.endpoint}",
            "storage.aws.region=us-east-1",
            "storage.aws.access_key_id=key",
            "storage.aws.secret_access_key=secret",
        )
        with disturbed(tmp_path / "home", *settings) as running:
            proxy.disturbance = disturbance
            assert not running.writer.insert()
            assert proxy.disturbed
            assert isinstance(running.writer.errors[-1], Unavailable)
            proxy.disturbance = None
