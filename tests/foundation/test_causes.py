"""Errors of libraries state the cause and the fix, as real components raise them: disks, S3, TLS servers."""

from __future__ import annotations

import errno
import json
import ssl
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import deltalake
import pyarrow as pa
import pytest

from airport.certificates import Authority
from skiway.errors import PreconditionFailed, SkiwayError, Unauthorized, Unavailable
from skiway.formats import open_source
from skiway.formats.iceberg.warehouse import Warehouse
from skiway.foundation.causes import BUCKET_MISSING, CERTIFICATE_UNTRUSTED, DISK_FULL, Cause, cause_of
from skiway.security.signing_keys import PublishedKeys, keys_by_url
from skiway.storage import open_blobs
from storage.homes import running_aws

ACCESS = {"s3.region": "us-east-1", "s3.access-key-id": "key", "s3.secret-access-key": "secret"}
KEYS = {"access_key_id": "key", "secret_access_key": "secret"}


def test_causes_are_found_behind_other_errors() -> None:
    def chained() -> None:
        try:
            raise OSError(errno.ENOSPC, "No space left on device")
        except OSError:
            raise ValueError("writing failed")  # noqa: B904 - libraries do this

    with pytest.raises(ValueError, match="writing failed") as raised:
        chained()
    assert cause_of(raised.value) is DISK_FULL
    assert cause_of(OSError(errno.EACCES, "Permission denied")) is None
    assert cause_of(RuntimeError("Disk quota exceeded (os error 122)")) is DISK_FULL


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("cannot write: No space left on device", DISK_FULL),
        ("Generic LocalFileSystem error: (os error 28)", DISK_FULL),
        ("(os error 122)", DISK_FULL),
        ("[Errno 28] x", DISK_FULL),
        ("Disk quota exceeded", DISK_FULL),
        ("database or disk is full", DISK_FULL),
        ("File too large", DISK_FULL),
        ("(os error 2)", None),
        ("(os error 280)", None),
        ("<Code>NoSuchBucket</Code>", BUCKET_MISSING),
        ("AWS Error NO_SUCH_BUCKET during", BUCKET_MISSING),
        ("The specified bucket does not exist", BUCKET_MISSING),
        ("[SSL: CERTIFICATE_VERIFY_FAILED] x", CERTIFICATE_UNTRUSTED),
        ("invalid peer certificate: UnknownIssuer", CERTIFICATE_UNTRUSTED),
        ("SSL peer certificate was not OK", CERTIFICATE_UNTRUSTED),
        ("PKIX path building failed", CERTIFICATE_UNTRUSTED),
    ],
)
def test_causes_are_found_in_the_text_of_any_library(text: str, cause: Cause | None) -> None:
    assert cause_of(RuntimeError(text)) is cause


# --- a full disk ------------------------------------------------------------------------------------------------------


@pytest.mark.full  # a container often has no user namespaces
@pytest.mark.needs("mounts")
def test_full_disk_is_reported_by_every_part_that_writes(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    script = Path(__file__).with_name("small_disk.py")
    steps = f"mount -t tmpfs -o size=1m tmpfs '{disk}' && exec '{sys.executable}' '{script}' '{disk}'"
    done = subprocess.run(["unshare", "-rm", "sh", "-c", steps], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    fix = "the disk is full; free some space, enlarge the disk, or raise the quota, then try again"
    assert found.pop("statement") == [
        "Unavailable",
        "statement.room",
        "the rows of this statement cannot be buffered on the server's disk (the disk is full): change fewer rows at once, or "
        "ask the operator for more space",
    ]
    remedy = fix.partition("; ")[2]
    assert found.pop("doctor: disk") == ["failed", f"nothing can be written to {disk}: the disk is full", remedy]
    assert found.pop("doctor: clock") == ["failed", "the disk is full ([Errno 28] No space left on device)", remedy]
    assert found == {
        "readiness": ["Unavailable", "disk.full", f"nothing can be written to {disk}: {fix}"],
        "pointers": ["Unavailable", "disk.full", f"the database file cannot be written: {fix}"],
        "reopening": ["Unavailable", "disk.full", f"the database file cannot be written: {fix}"],
        "opening": ["Unavailable", "disk.full", f"the database file cannot be written: {fix}"],
        "blobs": ["Unavailable", "disk.full", f"the blob store is unavailable: {fix}"],
        "warehouse": ["Unavailable", "disk.full", f"file '{disk}/warehouse/t/after' cannot be accessed: {fix}"],
    }


def test_full_disk_is_reported_by_the_reader_of_delta_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library may buffer on disk, and reports the error of the operating system as text."""
    deltalake.write_deltalake(str(tmp_path / "t"), pa.table({"id": [1]}))

    def fail(*_: object, **__: object) -> None:
        raise OSError("Generic LocalFileSystem error: No space left on device (os error 28)")

    monkeypatch.setattr(deltalake, "DeltaTable", fail)
    with (
        open_source("delta", str(tmp_path)) as source,
        pytest.raises(PreconditionFailed, check=lambda error: explained(error, DISK_FULL)),
    ):
        source.load((), "t").snapshots()


# --- a missing bucket -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def aws() -> Iterator[str]:
    with running_aws() as address:
        yield address


def explained(error: SkiwayError, cause: Cause) -> bool:
    """Whether the message has the cause and the fix, and no answer of a library."""
    return error.key == cause.key and cause.sentence in error.message and "http" not in error.message


def listed(kind: str, uri: str, options: dict[str, str]) -> object:
    """The namespaces of a source."""
    with open_source(kind, uri, options=options) as source:
        return source.namespaces()


def test_missing_bucket_is_reported_by_the_blob_store(aws: str) -> None:
    with pytest.raises(Unavailable, check=lambda error: explained(error, BUCKET_MISSING)):
        open_blobs(f"s3://nowhere/x?region=us-east-1&endpoint={aws}", options=KEYS)


def test_missing_bucket_is_reported_by_the_warehouse(aws: str) -> None:
    files = Warehouse.at("s3://nowhere/w", {**ACCESS, "s3.endpoint": aws}).everything()
    with pytest.raises(PreconditionFailed, check=lambda error: explained(error, BUCKET_MISSING)):
        files.write("s3://nowhere/w/t/x.json", b"x")


@pytest.mark.parametrize("kind", ["parquet", "iceberg", "delta"])
def test_missing_bucket_is_reported_by_connectors(aws: str, kind: str) -> None:
    options = {**ACCESS, "s3.endpoint": aws}
    with pytest.raises(PreconditionFailed, check=lambda error: explained(error, BUCKET_MISSING)):
        listed(kind, "s3://nowhere/x", options)


# --- an untrusted certificate -----------------------------------------------------------------------------------------


class Nothing(BaseHTTPRequestHandler):
    """Answers nothing useful, and logs nothing."""

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def https(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server with a certificate of an unknown authority."""
    pair = Authority(tmp_path_factory.mktemp("tls")).issue("server")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_: object) -> None:
            """Failed handshakes are expected."""

    server = Server(("127.0.0.1", 0), Nothing)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"https://localhost:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def untrusted(error: SkiwayError) -> bool:
    return error.key == CERTIFICATE_UNTRUSTED.key and CERTIFICATE_UNTRUSTED.sentence in error.message


@pytest.mark.full  # the store retries for seconds
def test_untrusted_certificate_is_reported_by_the_blob_store(https: str) -> None:
    with pytest.raises(Unavailable, check=untrusted):
        open_blobs(f"s3://bucket/x?region=us-east-1&endpoint={https}", options=KEYS)


def test_untrusted_certificate_is_reported_by_the_warehouse_and_connectors(https: str) -> None:
    access = {**ACCESS, "s3.endpoint": https}
    with pytest.raises(PreconditionFailed, check=untrusted):
        Warehouse.at("s3://bucket/w", access).everything().find("s3://bucket/w/t/x.json")
    with pytest.raises(PreconditionFailed, check=untrusted):
        listed("parquet", "s3://bucket/x", access)


@pytest.mark.full  # PyArrow and PyIceberg retry for seconds
def test_untrusted_certificate_is_reported_by_all_readers(https: str) -> None:
    with pytest.raises(PreconditionFailed, check=untrusted):
        Warehouse.at("s3://bucket/w", {**ACCESS, "s3.endpoint": https}).everything().read("s3://bucket/w/t/x.json")
    with pytest.raises(PreconditionFailed, check=untrusted):
        listed("iceberg", https, {})


def test_untrusted_key_server_is_explained_to_callers(https: str, caplog: pytest.LogCaptureFixture) -> None:
    keys = PublishedKeys(keys_by_url(https))
    with pytest.raises(Unauthorized) as refused:
        keys.find("one", "RS256")
    assert refused.value.key == "token.keys.unavailable"
    assert refused.value.message == (
        "no token can be verified: the keys that verify tokens cannot be fetched from the identity provider: "
        f"{CERTIFICATE_UNTRUSTED.sentence}"
    )
    assert https in caplog.text


@pytest.mark.parametrize(
    ("url", "told"),
    [
        (
            "https://localhost:1/keys",
            "it cannot be reached; check auth.oidc.issuer and auth.oidc.jwks_url, and the network",
        ),
        (
            "https://nowhere.invalid/keys",
            "it cannot be reached; check auth.oidc.issuer and auth.oidc.jwks_url, and the",
        ),
    ],
)
def test_unreachable_key_server_is_explained_to_callers(url: str, told: str) -> None:
    with pytest.raises(Unauthorized, match="no token can be verified") as refused:
        PublishedKeys(keys_by_url(url)).find("one", "RS256")
    assert told in refused.value.message
    assert "nowhere" not in refused.value.message
