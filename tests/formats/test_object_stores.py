"""Requests to Google Cloud Storage and Azure: both clients send the credentials of the settings, and no others."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import google.auth
import pyarrow as pa
import pytest
from google.auth.exceptions import DefaultCredentialsError
from obstore.store import MemoryStore

from formats.google_key_file import written_key_file
from skiway.errors import PreconditionFailed, Unavailable
from skiway.formats.iceberg.warehouse import TableFiles, Warehouse
from skiway.formats.object_stores import AzureStorage, GcsStorage, ObjectReader, ObjectWriter, etag_of

ACCOUNT_KEY = "dGhlIGtleSBvZiB0aGUgYWNjb3VudA=="


class Service(ThreadingHTTPServer):
    """Has no objects, and issues the token `own-token`."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.requests = list[tuple[str, str, str]]()
        threading.Thread(target=self.serve_forever, args=[0.01], daemon=True).start()

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Service

    def _answer(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        body = json.dumps({"access_token": "own-token", "expires_in": 3600}).encode() if self.path == "/token" else b""
        if self.path != "/token":
            self.server.requests.append((self.command, self.path, self.headers.get("authorization", "")))
        self.send_response(200 if body else 404)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(b"" if self.command == "HEAD" else body)

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = _answer  # noqa: N815

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def service() -> Iterator[Service]:
    with Service() as found:
        yield found
        found.shutdown()


@pytest.fixture(autouse=True)
def _planted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Credentials in the environment that no request may contain."""
    for name in ("GOOGLE_BEARER_TOKEN", "AZURE_STORAGE_TOKEN", "AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_ACCOUNT_KEY"):
        monkeypatch.setenv(name, "cGxhbnRlZA==")

    def default(**_: Any) -> Any:
        raise DefaultCredentialsError("this machine has none")

    monkeypatch.setattr(google.auth, "default", default)


@pytest.fixture
def key_file(tmp_path: Path, service: Service) -> str:
    """The key file of a service account; its tokens come from the service."""
    return str(written_key_file(tmp_path, f"{service.uri}/token"))


def look_at(files: TableFiles, folder: str) -> None:
    """Look up a file with obstore, and open it with pyarrow."""
    assert files.find(f"{folder}/x") is None
    with pytest.raises(PreconditionFailed, match="is missing"):
        files.read(f"{folder}/x")


def test_both_clients_send_the_token_of_the_service_account(service: Service, key_file: str) -> None:
    warehouse = Warehouse.at("gs://lake/w", {"gcs.service.host": service.uri, "gcs.service-account-file": key_file})
    look_at(warehouse.files(warehouse.folder("t")), warehouse.folder("t"))
    assert len(service.requests) >= 2
    assert {authorization for _, _, authorization in service.requests} == {"Bearer own-token"}


def test_emulator_gets_no_credentials_of_the_machine(service: Service) -> None:
    warehouse = Warehouse.at("gs://lake/w", {"gcs.service.host": service.uri})
    files = warehouse.files(warehouse.folder("t"))
    look_at(files, warehouse.folder("t"))
    files.remove([f"{warehouse.folder('t')}/x"])
    assert {authorization for _, _, authorization in service.requests} <= {"", "Bearer none"}
    assert {"GET", "HEAD", "DELETE"} == {method for method, _, _ in service.requests}


def test_both_clients_sign_with_the_key_of_the_account(service: Service) -> None:
    properties = {
        "adls.endpoint": service.uri,
        "adls.account-name": "skiway",
        "adls.account-key": ACCOUNT_KEY,
    }
    warehouse = Warehouse.at("abfss://lake@skiway.dfs.core.windows.net/w", properties)
    look_at(warehouse.files(warehouse.folder("t")), warehouse.folder("t"))
    assert len(service.requests) >= 2
    for _, path, authorization in service.requests:
        assert path.startswith("/skiway/lake/w/")
        assert authorization.startswith("SharedKey skiway:")
        assert "sig=" not in path


def test_key_of_an_account_is_not_used_for_another() -> None:
    storage = AzureStorage({"adls.account-name": "skiway", "adls.account-key": ACCOUNT_KEY})
    assert storage.key_of("skiway") == ACCOUNT_KEY
    assert storage.key_of("other") is None
    assert AzureStorage({}).key_of("skiway") is None


@pytest.mark.parametrize("content", [None, "{}", "not JSON"])
def test_invalid_key_file_is_reported(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "key.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(Unavailable, match=r"check storage\.gcs\.service_account_file") as caught:
        _ = GcsStorage({"gcs.service-account-file": str(file)}).token
    assert str(file) in caught.value.detail


def test_machine_without_default_credentials_is_reported() -> None:
    warehouse = Warehouse.at("gs://lake/w")
    with pytest.raises(Unavailable, match="no valid Google credentials"):
        warehouse.files(warehouse.folder("t")).read(f"{warehouse.folder('t')}/x")


def test_etags_are_compared_without_quotes_where_services_add_them_sometimes() -> None:
    assert etag_of("abfss", '"0x1"') == etag_of("abfss", "0x1") == etag_of("gs", '"0x1"') == "0x1"
    assert etag_of("s3", '"0x1"') == '"0x1"', "stored etags of sources have quotes"


def test_file_that_obstore_writes_is_read_in_ranges() -> None:
    store, content = MemoryStore(), bytes(range(256)) * 10
    with pa.PythonFile(ObjectWriter(store, "x"), "w") as sink:
        sink.write(content[:1000])
        sink.write(pa.py_buffer(content[1000:]))
        assert sink.tell() == len(content)
    with pa.PythonFile(ObjectReader(store, "x"), "r") as file:
        assert file.size() == len(content)
        assert file.read_at(7, 300) == content[300:307]
        file.seek(0)
        assert file.read() == content
        file.seek(-3, 2)
        assert (file.tell(), file.read(10), file.read(10)) == (len(content) - 3, content[-3:], b"")
    with pytest.raises(FileNotFoundError):
        ObjectReader(store, "y")
