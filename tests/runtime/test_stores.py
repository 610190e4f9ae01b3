"""Stores are opened as the settings describe them."""

from __future__ import annotations

from pathlib import Path

import pytest

from skiway.config import Settings, load
from skiway.config.storage import Kv
from skiway.errors import InvalidArgument
from skiway.runtime.stores import StoreUrls, store_urls
from skiway.storage import ABSENT, Stores, open_blobs, open_pointers
from storage.homes import running_aws


def test_default_stores_are_a_file_and_a_directory_in_the_home(tmp_path: Path):
    urls = store_urls(load(tmp_path), tmp_path)
    with open_urls(urls) as stores:
        uri = stores.blobs.put(b"a", folder="f")
        stores.pointers.compare_and_set("/a", uri, expect=ABSENT)
    assert (tmp_path / "pointers.db").is_file()
    assert (tmp_path / "blobs").is_dir()
    with open_urls(urls) as stores:
        assert stores.blobs.get(uri) == b"a"


def test_relative_home_is_relative_to_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert store_urls(Settings(), Path("lake home")) == store_urls(Settings(), tmp_path / "lake home")
    open_urls(store_urls(Settings(), Path("lake home"))).close()
    assert (tmp_path / "lake home" / "pointers.db").is_file()


def test_memory_stores_need_no_home():
    urls = store_urls(load(flags={"kv": "memory"}), None)
    assert urls == StoreUrls("memory://", "memory://")
    open_urls(urls).close()


@pytest.mark.parametrize(
    ("flags", "pointers", "blobs"),
    [
        (
            {"kv": "dynamodb", "kv.table": "lake", "blob": "s3", "blob.s3.bucket": "b"},
            "dynamodb://lake",
            "s3://b/",
        ),
        (
            {
                "kv": "dynamodb",
                "kv.auto_create": "false",
                "storage.aws.region": "eu-central-1",
                "storage.aws.dynamodb.endpoint_override": "http://127.0.0.1:8000",
                "blob": "s3",
                "blob.s3.bucket": "b",
                "blob.s3.prefix": "/lake/",
                "storage.aws.s3.endpoint": "http://127.0.0.1:9000",
                "storage.aws.s3.path_style_access": "false",
            },
            "dynamodb://skiway_pointers?region=eu-central-1&endpoint=http%3A%2F%2F127.0.0.1%3A8000&create=false",
            "s3://b/lake?region=eu-central-1&endpoint=http%3A%2F%2F127.0.0.1%3A9000&virtual_hosted_style_request=true",
        ),
        (
            {"kv.url": "postgresql://me@db/lake?schema=x", "blob.url": "s3://other/place"},
            "postgresql://me@db/lake?schema=x",
            "s3://other/place",
        ),
        (
            {
                "kv.url": "dynamodb://own?region=us-east-1",
                "blob.url": "s3://other/place?region=us-east-1",
                "storage.aws.region": "eu-central-1",
                "storage.aws.s3.endpoint": "http://127.0.0.1:9000",
                "storage.aws.s3.path_style_access": "false",
            },
            "dynamodb://own?region=us-east-1",
            "s3://other/place?region=us-east-1&endpoint=http%3A%2F%2F127.0.0.1%3A9000&virtual_hosted_style_request=true",
        ),
        ({"kv.url": "etcd://one", "blob.url": "ipfs://two"}, "etcd://one", "ipfs://two"),
    ],
)
def test_urls_are_built_from_settings(flags: dict[str, str], pointers: str, blobs: str):
    urls = store_urls(load(flags=flags), None)
    assert (urls.pointers, urls.blobs) == (pointers, blobs)


def test_secrets_are_passed_as_options_and_not_in_urls():
    aws = {
        "storage.aws.access_key_id": "AKIA",
        "storage.aws.secret_access_key": "shh",
        "storage.aws.session_token": "t",
    }
    urls = store_urls(load(flags={"kv": "dynamodb", "blob": "s3", "blob.s3.bucket": "b", **aws}), None)
    assert urls.pointer_options == {
        "aws_access_key_id": "AKIA",
        "aws_secret_access_key": "shh",
        "aws_session_token": "t",
    }
    assert urls.blob_options == {"access_key_id": "AKIA", "secret_access_key": "shh", "session_token": "t"}
    assert "shh" not in repr(urls) + urls.pointers + urls.blobs


def test_password_is_passed_as_an_option():
    urls = store_urls(load(flags={"kv.url": "postgresql://me:shh@db/lake", "blob.url": "s3://b"}), None)
    assert (urls.pointers, urls.pointer_options) == ("postgresql://me@db/lake", {"password": "shh"})


def test_aws_stores_open_with_the_generated_urls(caplog: pytest.LogCaptureFixture):
    caplog.set_level("ERROR", logger="werkzeug")
    with running_aws() as endpoint:
        flags = {
            "kv": "dynamodb",
            "kv.table": "lake",
            "blob": "s3",
            "blob.s3.bucket": "skiway-test",
            "storage.aws.region": "us-east-1",
            "storage.aws.dynamodb.endpoint_override": endpoint,
            "storage.aws.s3.endpoint": endpoint,
            "storage.aws.access_key_id": "test",
            "storage.aws.secret_access_key": "test",
        }
        with open_urls(store_urls(load(flags=flags), None)) as stores:
            uri = stores.blobs.put(b"a", folder="f")
            assert stores.pointers.compare_and_set("/a", uri, expect=ABSENT).blob_uri == uri
            assert stores.blobs.get(uri) == b"a"


def test_embedded_stores_need_a_home():
    with pytest.raises(InvalidArgument, match=r"^pointers.db needs a home directory: give one, or set kv.url$"):
        store_urls(load(), None)


def test_home_that_does_not_fit_in_a_url_is_rejected(tmp_path: Path):
    with pytest.raises(InvalidArgument, match=r"contains a \?: choose another directory$"):
        store_urls(load(), tmp_path / "what?")


def test_settings_created_in_code_are_validated_too():
    with pytest.raises(InvalidArgument, match=r"^kv.url is invalid: kv.backend postgresql requires it"):
        store_urls(Settings(kv=Kv(backend="postgresql")), None)


def open_urls(urls: StoreUrls) -> Stores:
    return Stores(
        open_pointers(urls.pointers, options=urls.pointer_options),
        open_blobs(urls.blobs, options=urls.blob_options),
    )
