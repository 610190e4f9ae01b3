"""In queries on the server, DuckDB also reads files in object stores itself, through the server, which has the credentials."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import boto3
import pyarrow as pa
import pytest

from lake.lakes import Lake, opened_lake
from lake.test_direct_files import NESTED, both, watched
from skiway.client import AirportClient, col
from skiway.errors import InvalidArgument, NotFound, PreconditionFailed
from skiway.formats.iceberg.warehouse import Warehouse
from skiway.sandbox.queries import QueryProcess
from skiway.sandbox.relations import Channel, RemoteFiles, serve_channel
from skiway.sql import QueryEngine
from storage.homes import running_aws

__all__ = ["watched"]

SECRET = "planted-secret"
BUCKET = "direct-files"


@pytest.fixture(scope="module")
def store() -> Iterator[Any]:
    """The client of a store with an empty bucket."""
    with running_aws() as endpoint:
        s3 = boto3.client(
            "s3", endpoint_url=endpoint, region_name="us-east-1", aws_access_key_id="key", aws_secret_access_key=SECRET
        )
        s3.create_bucket(Bucket=BUCKET)
        yield s3


@pytest.fixture
def db(store: Any, tmp_path: Path, queries: QueryEngine, monkeypatch: pytest.MonkeyPatch) -> Iterator[AirportClient]:
    """A lake in the bucket, with a table of three files that have nested columns."""
    properties = {
        "s3.endpoint": store.meta.endpoint_url,
        "s3.region": "us-east-1",
        "s3.access-key-id": "key",
        "s3.secret-access-key": SECRET,
    }
    place = Warehouse.at(f"s3://{BUCKET}/{tmp_path.name}", properties)
    monkeypatch.setattr(Lake, "warehouse", property(lambda _: place))
    with opened_lake(tmp_path, queries=queries) as lake, lake.client() as client:
        client.create_schema("s")
        client.create_table("s.t", NESTED.schema)
        for first in range(3):
            numbers = pa.array([first * 10 + each for each in range(4)])
            client.insert("s.t", NESTED.set_column(0, "id", numbers))
        yield client


def _query(db: AirportClient, sql: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = db.call("skiway.query", sql).read_all().to_pylist()
    return rows


def test_files_and_scans_give_the_same_rows(
    db: AirportClient, watched: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(both(db, "SELECT * FROM s.t ORDER BY id", monkeypatch)) == 12
    both(db, "SELECT max(id), sum(point.x), count(tags) FROM s.t WHERE point.x > 1", monkeypatch)
    both(db, "SELECT a.id FROM s.t AS a JOIN s.t AS b ON a.id = b.id + 10 ORDER BY 1", monkeypatch)
    assert both(db, "SELECT id FROM s.t WHERE id BETWEEN 12 AND 19 ORDER BY id", monkeypatch) == [
        "{'id': 12}",
        "{'id': 13}",
    ]
    assert [sum(len(group.remote) for group in groups) for groups in watched] == [3, 3, 3, 1]
    assert not any(group.files for groups in watched for group in groups)


def test_credentials_and_names_stay_in_the_server(
    db: AirportClient, watched: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = list[str]()
    original = QueryProcess._send

    def send(self: QueryProcess, header: Any, parts: Any) -> None:
        sent.append(json.dumps(header) + str([bytes(part) for part in parts]))
        original(self, header, parts)

    monkeypatch.setattr(QueryProcess, "_send", send)
    assert _query(db, "SELECT count(id) AS n FROM s.t WHERE id >= 0") == [{"n": 12}]
    plan = str(db.call("skiway.explain", "SELECT id FROM s.t").read_all().to_pylist())
    assert watched[0]
    assert not any(word in "".join([*sent, plan]) for word in (SECRET, BUCKET, "s3://"))


def test_callers_cannot_name_files(db: AirportClient) -> None:
    for sql in (
        "SELECT * FROM 'skiway://0'",
        "SELECT * FROM read_parquet('skiway://0')",
        "SELECT * FROM read_blob('skiway://0')",
        "SELECT * FROM duckdb_secrets()",
        "SELECT * FROM s.t JOIN 'skiway://1' USING (id)",
        "SELECT * FROM s.t JOIN 's3://direct-files/x.parquet' AS x USING (id)",
        "SELECT *, getenv('AWS_SECRET_ACCESS_KEY') FROM s.t",
    ):
        with pytest.raises((InvalidArgument, NotFound)):
            _query(db, sql)
    assert len(_query(db, "SELECT id FROM s.t")) == 12


def test_missing_file_is_the_error_of_the_query(db: AirportClient, store: Any, tmp_path: Path) -> None:
    assert len(_query(db, "SELECT id FROM s.t")) == 12
    listed = store.list_objects_v2(Bucket=BUCKET, Prefix=tmp_path.name)["Contents"]
    (first, *_) = [each["Key"] for each in listed if each["Key"].endswith(".parquet")]
    store.delete_object(Bucket=BUCKET, Key=first)
    with pytest.raises(PreconditionFailed, match="is missing"):
        _query(db, "SELECT id FROM s.t")


def test_changed_rows_are_read(db: AirportClient, monkeypatch: pytest.MonkeyPatch) -> None:
    db.update("s.t", {"id": 99}, where=col("id") == 12)
    assert both(db, "SELECT max(id) AS n, count(*) AS c FROM s.t", monkeypatch) == ["{'n': 99, 'c': 12}"]


# --- channels ---------------------------------------------------------------------------------------------------------


def _channel(*contents: bytes) -> tuple[Channel, list[BaseException], threading.Thread]:
    theirs, ours = socket.socketpair()
    failures: list[BaseException] = []
    files = RemoteFiles([partial(pa.BufferReader, data) for data in contents])
    thread = threading.Thread(target=serve_channel, args=(ours, files, failures))
    thread.start()
    return Channel(theirs), failures, thread


def test_channel_reads_ranges() -> None:
    large = bytes(range(256)) * 40_000
    channel, failures, thread = _channel(b"abc", large)
    assert (channel.size(0), channel.size(1)) == (3, len(large))
    assert channel.read(1, 5, len(large)) == large[5:]
    assert [channel.read(0, *each) for each in ((0, 2), (2, 10), (3, 1), (10, 1), (-1, 2), (0, 0))] == [
        *(b"ab", b"c", b"", b"", b"", b"")
    ]
    channel.close()
    thread.join()
    assert failures == []


@pytest.mark.parametrize("number", [1, -1, 1 << 40])
def test_channel_has_no_other_files(number: int) -> None:
    channel, failures, thread = _channel(b"abc")
    with pytest.raises(EOFError):
        channel.read(number, 0, 1)
    thread.join()
    assert [type(each) for each in failures] == [IndexError]
    channel.close()
