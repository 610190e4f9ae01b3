"""Tables in Unity Catalog, at a server that follows its REST API."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from formats.unity_service import API, TOKEN, UnityService, running_unity
from skiway.config.source_access import AddressRule
from skiway.errors import (
    InvalidArgument,
    LimitExceeded,
    NotFound,
    PermissionDenied,
    PreconditionFailed,
    SkiwayError,
    Unavailable,
    Unsupported,
)
from skiway.formats import Source, TableHandle, open_source
from skiway.formats.catalogs import unity
from skiway.security.source_access import SourceAccess
from storage.homes import running_aws

SALES = ("main", "sales")
ROWS = pa.table({"id": [1, 2, 3]})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Delta table and a folder of Parquet files."""
    found = tmp_path_factory.mktemp("unity")
    write_deltalake(found / "orders", ROWS)
    (found / "events").mkdir()
    pq.write_table(ROWS, found / "events" / "a.parquet")
    return found


@pytest.fixture
def service(folder: Path) -> Iterator[UnityService]:
    with running_unity() as running:
        running.add("main.sales.orders", f"file://{folder}/orders")
        running.add("main.sales.events", f"file://{folder}/events/", "PARQUET")
        running.add("main.sales.texts", f"file://{folder}/texts", "CSV")
        running.add("main.sales.seen", f"file://{folder}/orders", "DELTA", "VIEW")
        running.add("main.hr.people", f"file://{folder}/orders", table_type="MANAGED")
        running.add("other.a.t", f"file://{folder}/orders")
        running.add("third.a.t", f"file://{folder}/orders")
        yield running


def opened(service: UnityService, folder: Path | None, **more: object) -> Source:
    options = {} if folder is None else {"allowed-locations": str(folder)}
    access = more.pop("access", None)
    credentials = {"token": TOKEN, **more}
    uri = str(credentials.pop("uri", service.address))
    return open_source("unity", uri, options=options, credentials=credentials, access=access)  # type: ignore[arg-type]


def ids(handle: TableHandle) -> list[int]:
    current = handle.current()
    assert current is not None
    found: list[int] = handle.read(current).read_all()["id"].to_pylist()
    return found


def test_pages_of_catalogs_schemas_and_tables_are_listed(service: UnityService, folder: Path) -> None:
    with opened(service, folder) as source:
        assert source.namespaces() == [
            *(("main",), ("main", "hr"), ("main", "sales")),
            *(("other",), ("other", "a"), ("third",), ("third", "a")),
        ]
        assert source.tables(SALES) == ["events", "orders"]
        assert source.tables(("main",)) == []


@pytest.mark.parametrize(("table", "kind"), [("orders", "delta"), ("events", "parquet")])
def test_tables_are_read(service: UnityService, folder: Path, table: str, kind: str) -> None:
    with opened(service, folder, uri=service.address + API + "/") as source:
        handle = source.load(SALES, table)
        assert handle.format == kind
        assert ids(handle) == [1, 2, 3]


@pytest.mark.parametrize(
    ("namespace", "table", "error", "key"),
    [
        (SALES, "texts", Unsupported, "table.feature"),
        (SALES, "seen", Unsupported, "table.feature"),
        (SALES, "nothing", NotFound, "table.not_found"),
        (("main",), "orders", NotFound, "namespace.not_found"),
        (("a", "b", "c"), "orders", NotFound, "namespace.not_found"),
    ],
)
def test_other_tables_are_refused(
    service: UnityService, folder: Path, namespace: tuple[str, ...], table: str, error: type[SkiwayError], key: str
) -> None:
    with opened(service, folder) as source, pytest.raises(error) as raised:
        source.load(namespace, table)
    assert raised.value.key == key


def test_schema_that_does_not_exist_is_reported(service: UnityService, folder: Path) -> None:
    with opened(service, folder) as source, pytest.raises(NotFound, match=r"has no 'main\.nothing'"):
        source.tables(("main", "nothing"))


def test_wrong_token_is_reported_without_it(service: UnityService, folder: Path) -> None:
    with opened(service, folder, token="another-planted") as source, pytest.raises(PreconditionFailed) as raised:
        source.namespaces()
    assert raised.value.key == "source.credentials"
    assert "another-planted" not in f"{raised.value!r}{raised.value.detail}"
    with pytest.raises(InvalidArgument, match="type bearer"):
        opened(service, folder, credential="id:secret")


@pytest.mark.parametrize(
    ("status", "body", "error", "key"),
    [
        (503, b"", Unavailable, "source.unavailable"),
        (429, b"", Unavailable, "source.unavailable"),
        (400, b"", PreconditionFailed, "source.rejected"),
        (200, b"<html>", PreconditionFailed, "source.rejected"),
        (200, b"\xff", PreconditionFailed, "source.rejected"),
        (200, b"[]", PreconditionFailed, "source.rejected"),
        (200, b'{"catalogs": "main"}', PreconditionFailed, "source.rejected"),
        (200, b'{"catalogs": [{}]}', PreconditionFailed, "source.rejected"),
        (200, b'{"catalogs": [], "next_page_token": "1"}', PreconditionFailed, "source.rejected"),
        (200, b" " * 100, LimitExceeded, "metadata.decoded_size"),
    ],
)
def test_strange_answers_are_errors(
    service: UnityService,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    body: bytes,
    error: type[SkiwayError],
    key: str,
) -> None:
    monkeypatch.setattr(unity, "_MAX_ANSWER", 64)
    service.answers["/catalogs"] = (status, body)
    with opened(service, folder) as source, pytest.raises(error) as raised:
        source.namespaces()
    assert raised.value.key == key


def test_server_that_does_not_run_is_reported(folder: Path) -> None:
    with (
        opened(UnityService("http://127.0.0.1:1"), folder) as source,
        pytest.raises(Unavailable, match="does not respond"),
    ):
        source.namespaces()


# --- what may be accessed ---------------------------------------------------------------------------------------------


def test_files_outside_of_the_allowed_folders_are_refused(service: UnityService, folder: Path) -> None:
    service.add("main.sales.passwords", "file:///etc")
    service.add("main.sales.links", f"file://{folder}/../../etc")
    for allowed, table in ((None, "orders"), (folder, "passwords")):
        with opened(service, allowed) as source, pytest.raises(PermissionDenied, match="outside of the folders"):
            source.load(SALES, table)
    with opened(service, folder) as source, pytest.raises(InvalidArgument):
        source.load(SALES, "links")
    service.add("main.sales.elsewhere", "abfss://container@account.dfs.core.windows.net/t")
    with opened(service, folder) as source, pytest.raises(PermissionDenied, match="not open to sources"):
        source.load(SALES, "elsewhere")


def test_address_that_is_not_permitted_is_refused(service: UnityService, folder: Path) -> None:
    public = SourceAccess(addresses=(AddressRule.parsed("public"),))
    with pytest.raises(PermissionDenied) as raised:
        opened(service, folder, access=public)
    assert raised.value.key == "address.refused"
    with pytest.raises(InvalidArgument, match="begins with http"):
        opened(service, folder, uri="ftp://host")


def test_redirect_to_an_address_that_is_not_permitted_is_refused(service: UnityService, folder: Path) -> None:
    rule = AddressRule.parsed(f"http://127.0.0.1:{service.address.rpartition(':')[2]}")
    service.answers["/catalogs"] = (302, b"http://127.0.0.1:9/catalogs")
    with (
        opened(service, folder, access=SourceAccess(addresses=(rule,))) as source,
        pytest.raises(PermissionDenied) as raised,
    ):
        source.namespaces()
    assert raised.value.key == "address.refused"


# --- keys for S3 ------------------------------------------------------------------------------------------------------


def test_tables_in_s3_are_read_with_temporary_keys(service: UnityService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    with running_aws() as endpoint:
        own = {"s3.endpoint": endpoint, "s3.region": "us-east-1"}
        keys = {"s3.access-key-id": "writer", "s3.secret-access-key": "any"}
        storage = {
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "writer",
            "AWS_SECRET_ACCESS_KEY": "any",
            "AWS_S3_ALLOW_UNSAFE_RENAME": "true",
        }
        write_deltalake("s3://skiway-test/unity/orders", ROWS, storage_options=storage)
        service.add("main.sales.remote", "s3://skiway-test/unity/orders")

        def rows(**credentials: str) -> list[int]:
            with open_source(
                "unity", service.address, options=own, credentials={"token": TOKEN, **credentials}
            ) as source:
                return ids(source.load(SALES, "remote"))

        with pytest.raises(PreconditionFailed, match="credentials of type aws"):  # the server does not have this call
            rows()
        service.answers["/temporary-table-credentials"] = (200, json.dumps({"url": "s3://x"}).encode())
        with pytest.raises(PreconditionFailed, match="credentials of type aws"):
            rows()
        service.answers.clear()
        service.keys = {"access_key_id": "temporary", "secret_access_key": "any", "session_token": "token"}
        assert rows() == [1, 2, 3]
        asked = [given for method, path, given in service.requests if path == "/temporary-table-credentials"]
        assert asked[-1] == {"table_id": "id-of-main.sales.remote", "operation": "READ"}
        before = len(asked)
        assert rows(**keys) == [1, 2, 3]
        assert len([1 for _, path, _ in service.requests if path == "/temporary-table-credentials"]) == before
