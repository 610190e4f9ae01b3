"""The contract of every blob store."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from hashlib import sha256

import obstore
import pytest

from skiway.errors import Internal, InvalidArgument, NotFound
from skiway.storage import blob_digest, blob_uri, utc_now


def damage(blobs, uri, data):
    """Write an object directly, bypassing the store."""
    obstore.put(blobs._objects, uri, data)


@pytest.fixture
def writes(blobs, monkeypatch):
    """The URIs that are actually written, in order."""
    written = []
    create, overwrite = blobs._create, blobs._overwrite

    def recording_create(uri, data):
        created = create(uri, data)
        if created:
            written.append(uri)
        return created

    def recording_overwrite(uri, data):
        written.append(uri)
        overwrite(uri, data)

    monkeypatch.setattr(blobs, "_create", recording_create)
    monkeypatch.setattr(blobs, "_overwrite", recording_overwrite)
    return written


@pytest.mark.parametrize("data", [b"", b"\x00\xff" * 10, b"x" * 12_000_000], ids=["empty", "binary", "12 MB"])
def test_blob_is_read_back_unchanged(blobs, data):
    assert blobs.get(blobs.put(data)) == data


def test_uri_contains_the_digest(blobs):
    uri = blobs.put(b"abc", folder="accounts/a-1/tables", suffix=".pb")
    digest = sha256(b"abc").hexdigest()
    assert uri == f"accounts/a-1/tables/ba/{digest}.pb" == blob_uri(b"abc", folder="accounts/a-1/tables", suffix=".pb")
    assert blob_digest(uri) == digest


def test_same_content_can_be_in_several_folders(blobs):
    here, there = blobs.put(b"abc", folder="here"), blobs.put(b"abc", folder="there")
    blobs.delete(here)
    assert blobs.get(there) == b"abc"


@pytest.mark.behavior(6)
def test_data_must_match_the_expected_digest(blobs):
    blobs.put(b"abc", sha256_hex=sha256(b"abc").hexdigest())
    with pytest.raises(InvalidArgument, match="was expected"):
        blobs.put(b"abd", sha256_hex=sha256(b"abc").hexdigest())
    assert blobs.head(blob_uri(b"abd")) is None


def test_missing_blob_is_not_found(blobs):
    uri = blob_uri(b"never put")
    with pytest.raises(NotFound, match=uri) as caught:
        blobs.get(uri)
    assert caught.value.params == {"uri": uri}
    assert blobs.head(uri) is None


def test_head_has_size_and_modification_time(blobs):
    before = utc_now() - timedelta(seconds=1)  # S3 reports whole seconds
    uri = blobs.put(b"12345")
    head = blobs.head(uri)
    assert (head.uri, head.size_bytes) == (uri, 5)
    assert before <= head.modified_at <= utc_now()
    assert head.modified_at.tzinfo is not None


def test_deletion_is_idempotent_and_allows_recreation(blobs):
    uri = blobs.put(b"abc")
    blobs.delete(uri)
    blobs.delete(uri)
    assert blobs.head(uri) is None
    assert blobs.put(b"abc") == uri
    assert blobs.get(uri) == b"abc"


def test_putting_the_same_blob_again_writes_nothing(blobs, writes):
    uri = blobs.put(b"abc")
    head = blobs.head(uri)
    assert blobs.put(b"abc") == uri
    assert writes == [uri]
    assert blobs.head(uri) == head


def test_putting_an_old_blob_again_renews_it(blobs, writes):
    uri = blobs.put(b"abc")
    blobs._clock = lambda: datetime.now(UTC) + timedelta(seconds=10)
    blobs.put(b"abc")
    assert writes == [uri, uri]
    assert blobs.get(uri) == b"abc"


@pytest.mark.behavior(6)
@pytest.mark.parametrize("damaged", [b"", b"abd", b"abcd"])
def test_corrupt_blob_is_detected_when_read_and_repaired_when_put(blobs, damaged):
    uri = blobs.put(b"abc", folder="f")
    damage(blobs, uri, damaged)
    with pytest.raises(Internal, match=f"blob {uri} is corrupt: its {len(damaged)} bytes") as caught:
        blobs.get(uri)
    assert (caught.value.key, caught.value.params) == ("blob.corrupt", {"uri": uri})
    blobs.put(b"abc", folder="f")
    assert blobs.get(uri) == b"abc"


def test_same_blob_can_be_put_concurrently(blobs, writes):
    with ThreadPoolExecutor(8) as pool:
        uris = set(pool.map(lambda _: blobs.put(b"the same"), range(32)))
    assert len(uris) == len(writes) == 1
    assert blobs.get(uris.pop()) == b"the same"


@pytest.mark.parametrize("size", [1, 2, 5, 11, 12, 1000])
def test_pages_show_each_blob_once_in_order(blobs, size):
    folders = ("", "a", "a-b", "a/b", "a/b/c", "b%20c", "~")
    uris = sorted(blobs.put(f"{number}".encode(), folder=folder) for folder in folders for number in range(3))
    inside = [uri for uri in uris if uri.startswith("a/")]
    assert [head.uri for head in blobs.scan(page_size=size)] == uris
    assert [head.uri for head in blobs.scan("a", page_size=size)] == inside
    assert [head.uri for head in blobs.scan("none", page_size=size)] == []
    assert blobs.page("a", size=len(inside)).next_token is None
    assert {head.size_bytes for head in blobs.scan()} == {1}


def test_pages_have_the_modification_time_of_blobs(blobs):
    uri = blobs.put(b"abc")
    assert [(head.uri, head.modified_at) for head in blobs.page().items] == [(uri, blobs.head(uri).modified_at)]


def test_page_token_stays_valid_when_its_blob_is_deleted(blobs):
    uris = sorted(blobs.put(f"{number}".encode(), folder="f") for number in range(4))
    page = blobs.page("f", size=2)
    blobs.delete(uris[1])
    assert [head.uri for head in blobs.page("f", token=page.next_token).items] == uris[2:]


def test_other_objects_are_not_listed(blobs):
    uri = blobs.put(b"abc", folder="f")
    damage(blobs, "f/notes.txt", b"hello")
    damage(blobs, "stray", b"hello")
    assert [head.uri for head in blobs.scan()] == [uri]


def test_page_tokens_of_other_listings_are_rejected(blobs):
    for number in range(3):
        blobs.put(f"{number}".encode(), folder="f")
    token = blobs.page("f", size=1).next_token
    for folder, wrong in (("", token), ("g", token), ("f", token[:-2] + "AA"), ("f", "x")):
        with pytest.raises(InvalidArgument, match="page token"):
            blobs.page(folder, token=wrong)


@pytest.mark.parametrize(
    "folder", ["/a", "a/", "a//b", ".", "..", "a/../b", "a/.", "a b", "a\\b", "é", "a\n", "x" * 201]
)
def test_invalid_folder_is_rejected(blobs, folder):
    for call in (lambda: blobs.put(b"abc", folder=folder), lambda: blobs.page(folder)):
        with pytest.raises(InvalidArgument, match="invalid blob folder"):
            call()


@pytest.mark.parametrize("folder", ["...", "..a", "a..", "a.b", "%2E%2E", "x=1", "~", "x" * 200])
def test_folder_can_contain_the_characters_of_key_segments(blobs, folder):
    assert blobs.get(blobs.put(b"abc", folder=folder)) == b"abc"


@pytest.mark.parametrize("suffix", ["pb", ".", ".PB", "/x", "..pb", ".x" * 20])
def test_invalid_suffix_is_rejected(blobs, suffix):
    with pytest.raises(InvalidArgument, match="invalid blob suffix"):
        blobs.put(b"abc", suffix=suffix)


DIGEST = "ab" * 32


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "x",
        DIGEST,
        f"cd/{DIGEST}",
        f"../ab/{DIGEST}",
        f"/ab/{DIGEST}",
        f"ab/{DIGEST}\n",
        f"ab/{DIGEST}/x",
        "skiway-format",
    ],
)
def test_invalid_uri_is_rejected(blobs, uri):
    for call in (blobs.get, blobs.head, blobs.delete):
        with pytest.raises(InvalidArgument, match="is not the address of a blob"):
            call(uri)


def test_every_call_is_reported_once(blobs_home):
    calls = []
    with blobs_home.blobs(on_call=calls.append) as blobs:
        uri = blobs.put(b"abc")
        blobs.put(b"abc")
        blobs.get(uri)
        blobs.head(uri)
        list(blobs.scan())
        blobs.delete(uri)
        with pytest.raises(NotFound):
            blobs.get(uri)
    operations = ["put", "put", "get", "head", "page", "delete", "get"]
    assert [(call.store, call.operation) for call in calls] == [("blobs", operation) for operation in operations]
    assert [call.error for call in calls] == [None] * 6 + ["NotFound"]
