"""PyIceberg reads and writes tables in S3 without keys of its own: with vended credentials, or with signed requests."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import quote

import boto3
import httpx
import pyarrow as pa
import pytest
from botocore import UNSIGNED
from botocore.config import Config
from botocore.exceptions import ClientError
from fsspec.spec import AbstractFileSystem
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import ForbiddenError
from pyiceberg.table import Table

from authorization.callers import add_policies
from rest.rest_server import RestServer, opened
from skiway.formats.iceberg.warehouse import Warehouse
from skiway.metastore import Realm, catalogs, namespaces
from skiway.model import v1
from skiway.storage import Stores
from skiway.vending import S3Keys, S3Service, Signer, StagedTables, StaticKeys, Vending
from skiway.vending.sts import StsCredentials, StsRole, sts_client
from vending.guarded_s3 import BUCKET, REGION, SERVER_KEY, GuardedS3, guarded_s3, url

ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "name": ["Ada", "Grace", "Barbara"]})
ROLE = StsRole("arn:aws:iam::123456789012:role/lake")
KEYS = S3Keys(**SERVER_KEY)


@pytest.fixture(scope="module")
def s3() -> Iterator[GuardedS3]:
    with guarded_s3() as found:
        yield found


@pytest.fixture(autouse=True)
def without_keys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, s3: GuardedS3) -> None:
    """Neither the environment nor files of the client have keys."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    s3.refused.clear()
    s3.used_keys.clear()


@pytest.fixture
def vending(s3: GuardedS3) -> Vending:
    sts = sts_client(region=REGION, endpoint=s3.endpoint, keys=KEYS)
    return Vending(
        {"s3": StsCredentials(sts, ROLE)},
        Signer(lambda: KEYS, S3Service(s3.endpoint)),
        StagedTables(b"0123456789abcdef" * 2),
    )


@pytest.fixture
def server(stores: Stores, tmp_path: Path, s3: GuardedS3, vending: Vending) -> Iterator[RestServer]:
    warehouse = Warehouse.at(f"s3://{BUCKET}/{tmp_path.name}", s3.properties)
    with opened(stores, tmp_path, warehouse=warehouse, vending=vending) as running:
        running.pyiceberg().create_namespace("sales")
        yield running


def table_in(server: RestServer, name: str = "sales.people", **properties: str) -> Table:
    table = server.pyiceberg(**properties).create_table(name, ROWS.schema)
    table.append(ROWS)
    return table


def key_of(location: str) -> str:
    return location.removeprefix(f"s3://{BUCKET}/")


# -- vended credentials -----------------------------------------------------------------------------------------------


def test_pyiceberg_writes_and_reads_with_vended_credentials_only(server: RestServer, s3: GuardedS3) -> None:
    table_in(server)
    s3.used_keys.clear()  # the server's own writes of metadata
    loaded = server.pyiceberg(token="reader").load_table("sales.people")
    assert loaded.scan().to_arrow().sort_by("id").to_pylist() == ROWS.to_pylist()
    assert s3.used_keys
    assert all(key.startswith("ASIA") for key in s3.used_keys)
    assert s3.refused == []
    assert SERVER_KEY["secret_access_key"] not in str(loaded.config)


def test_credentials_of_one_table_open_no_other(server: RestServer, s3: GuardedS3) -> None:
    own, other = table_in(server), table_in(server, "sales.orders")
    path = other.inspect.files()["file_path"][0].as_py()
    assert other.io.new_input(path).open().read()
    with pytest.raises(OSError, match="ACCESS_DENIED"):
        own.io.new_input(path).open().read()
    with pytest.raises(OSError, match="ACCESS_DENIED"):
        own.io.new_output(f"{other.location()}/data/planted").create(overwrite=True)
    with pytest.raises(OSError, match="ACCESS_DENIED"):
        own.io.delete(path)
    assert [method for _, method, _ in s3.refused] == ["HEAD", "POST", "HEAD"]


def test_reader_gets_credentials_that_cannot_write(server: RestServer) -> None:
    table_in(server)
    table = server.pyiceberg(token="reader").load_table("sales.people")
    with pytest.raises(OSError, match="ACCESS_DENIED"):
        table.io.new_output(f"{table.location()}/data/planted").create(overwrite=True)


def test_credentials_can_be_renewed(server: RestServer) -> None:
    table = table_in(server)
    catalog = server.pyiceberg()
    renewed = catalog.load_credentials("sales.people", table.metadata_location)
    assert renewed.keys() >= {"s3.access-key-id", "s3.secret-access-key", "s3.session-token"}
    assert int(renewed["s3.session-token-expires-at-ms"]) > 1_700_000_000_000
    loaded = load(server)
    assert (
        loaded["config"]["client.refresh-credentials-endpoint"] == "v1/lake/namespaces/sales/tables/people/credentials"
    )
    assert loaded["storage-credentials"][0]["prefix"] == f"{table.location()}/"


def load(server: RestServer, name: str = "people", **headers: str) -> Any:
    headers = {"x_iceberg_access_delegation": "vended-credentials", **headers}
    answer = server.call("GET", f"/v1/lake/namespaces/sales/tables/{name}", **headers)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_client_that_does_not_ask_gets_no_credentials(server: RestServer) -> None:
    table_in(server)
    found = load(server, x_iceberg_access_delegation="")
    assert "storage-credentials" not in found
    assert not {name for name in found["config"] if "key" in name or "token" in name or "signer" in name}


def test_callers_have_credentials_of_their_own(server: RestServer) -> None:
    table_in(server)
    first, again, other = load(server), load(server), load(server, authorization="Bearer reader")
    keys = [each["config"]["s3.access-key-id"] for each in (first, again, other)]
    assert keys[0] == keys[1] != keys[2]


def test_etag_of_a_load_with_credentials_is_valid_as_long_as_they_are_fresh(server: RestServer) -> None:
    table_in(server)
    path, asked = "/v1/lake/namespaces/sales/tables/people", {"x_iceberg_access_delegation": "vended-credentials"}
    with_keys = server.call("GET", path, **asked).headers["etag"]
    assert server.call("GET", path, **asked, if_none_match=with_keys).status_code == 304
    without = server.call("GET", path).headers["etag"]
    assert server.call("GET", path, **asked, if_none_match=without).status_code == 200
    as_reader = {**asked, "authorization": "Bearer reader"}
    assert server.call("GET", path, **as_reader, if_none_match=with_keys).status_code == 200


def test_credentials_are_not_stored_with_an_idempotency_key(server: RestServer, stores: Stores) -> None:
    body = {"name": "t", "schema": {"type": "struct", "schema-id": 0, "fields": []}}
    asked = {"x_iceberg_access_delegation": "vended-credentials", "idempotency_key": "k1"}
    first = server.call("POST", "/v1/lake/namespaces/sales/tables", body, **asked).json()
    token = first["config"]["s3.session-token"]
    again = server.call("POST", "/v1/lake/namespaces/sales/tables", body, **asked).json()
    assert again["metadata"] == first["metadata"]
    assert "storage-credentials" not in again
    blobs = [stores.blobs.get(head.uri) for head in stores.blobs.scan("")]
    assert not any(token.encode() in each for each in blobs)
    assert not any(token in each.blob_uri for each in stores.pointers.scan(""))


def test_restricted_caller_gets_neither_credentials_nor_signatures(server: RestServer, stores: Stores) -> None:
    table = table_in(server)
    add_policies(Realm(stores, "a1"), v1.ResourceId(id=table.location().rpartition("/")[2], kind=v1.RK_TABLE))
    server.callers.known["restricted"] = replace(server.callers.known["anybody"], subject="restricted")
    with pytest.raises(ForbiddenError, match="policies no names, some rows restrict"):
        server.pyiceberg(token="restricted").load_credentials("sales.people", table.location())
    signed = sign(server, "GET", f"{table.location()}/data/x", token="restricted")
    assert signed.status_code == 403
    assert "restrict" in signed.text


def test_tables_of_a_local_warehouse_have_no_credentials(stores: Stores, tmp_path: Path, vending: Vending) -> None:
    with opened(stores, tmp_path, vending=vending) as running:
        running.pyiceberg().create_namespace("sales")
        running.pyiceberg().create_table("sales.people", ROWS.schema)
        assert "storage-credentials" not in load(running)
        answer = running.call("GET", "/v1/lake/namespaces/sales/tables/people/credentials")
        assert answer.json() == {"storage-credentials": []}


def test_static_keys(stores: Stores, tmp_path: Path, s3: GuardedS3) -> None:
    keys = StaticKeys(accounts=["a1"], read=S3Keys("read-key", "r"), write=KEYS)
    warehouse = Warehouse.at(f"s3://{BUCKET}/{tmp_path.name}", s3.properties)
    with opened(stores, tmp_path, warehouse=warehouse, vending=Vending({"s3": keys})) as running:
        running.pyiceberg().create_namespace("sales")
        assert len(table_in(running).scan().to_arrow()) == 3
        assert load(running, authorization="Bearer reader")["config"]["s3.access-key-id"] == "read-key"
        # The keys open all tables, so a caller whom a policy restricts on one of them gets none.
        other = running.pyiceberg().create_table("sales.other", ROWS.schema)
        add_policies(Realm(stores, "a1"), v1.ResourceId(id=other.location().rpartition("/")[2], kind=v1.RK_TABLE))
        running.callers.known["restricted"] = replace(running.callers.known["anybody"], subject="restricted")
        found = load(running, authorization="Bearer restricted")
        assert "key" not in str(found["config"])
        assert "storage-credentials" not in found


def test_creator_whom_a_policy_restricts_gets_no_credentials(server: RestServer, stores: Stores) -> None:
    catalog = catalogs.find(Realm(stores, "a1"), "lake")
    assert catalog is not None
    sales = namespaces.lookup(Realm(stores, "a1"), catalog.value.resource_id, ["sales"])
    assert sales is not None
    add_policies(Realm(stores, "a1"), sales.resource_id)
    server.callers.known["restricted"] = replace(server.callers.known["anybody"], subject="restricted")
    body = {"name": "t", "schema": {"type": "struct", "schema-id": 0, "fields": []}}
    for asked in ("vended-credentials", "remote-signing"):
        headers = {"x_iceberg_access_delegation": asked, "authorization": "Bearer restricted"}
        answer = server.call("POST", "/v1/lake/namespaces/sales/tables", {**body, "name": asked}, **headers)
        assert answer.status_code == 200
        assert answer.json()["config"].keys() <= {"s3.endpoint", "s3.region", "client.region"}
        assert "storage-credentials" not in answer.json()


# -- remote signing ---------------------------------------------------------------------------------------------------

SIGNING = {
    "py-io-impl": "pyiceberg.io.fsspec.FsspecFileIO",
    "header.X-Iceberg-Access-Delegation": "remote-signing",
}


class S3FileSystem(AbstractFileSystem):  # type: ignore[misc]
    """As much of `s3fs` as PyIceberg needs, over boto3: s3fs itself requires an older botocore than ours."""

    protocol = "s3"
    cachable = False

    def __init__(self, anon: bool, client_kwargs: dict[str, Any], config_kwargs: dict[str, Any]) -> None:
        super().__init__()
        self.s3 = boto3.client("s3", **client_kwargs, config=Config(**config_kwargs, s3={"addressing_style": "path"}))
        assert config_kwargs["signature_version"] is UNSIGNED

    def _where(self, path: str) -> dict[str, str]:
        bucket, _, key = path.removeprefix("s3://").partition("/")
        return {"Bucket": bucket, "Key": key}

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        try:
            found = self.s3.head_object(**self._where(path))
        except ClientError as error:
            raise FileNotFoundError(path) from error
        return {"name": path, "size": found["ContentLength"], "type": "file"}

    def _open(self, path: str, mode: str = "rb", **_: Any) -> Any:
        if mode == "rb":
            return BytesIO(self.s3.get_object(**self._where(path))["Body"].read())
        put = self.s3.put_object

        class Sink(BytesIO):
            def close(sink) -> None:  # noqa: N805
                if not sink.closed:
                    put(**self._where(path), Body=sink.getvalue())
                super().close()

        return Sink()

    def _rm(self, path: str) -> None:
        self.s3.delete_object(**self._where(path))


@pytest.fixture
def s3fs(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in = ModuleType("s3fs")
    stand_in.S3FileSystem = S3FileSystem  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "s3fs", stand_in)


def sign(
    server: RestServer, method: str, location: str, *, token: str = "anybody", name: str = "people", **more: Any
) -> httpx.Response:
    uri = more.pop("uri", None) or url(server.warehouse.properties["s3.endpoint"], key_of(location))
    body = {"region": REGION, "uri": uri, "method": method, "headers": {}, **more}
    return server.call("POST", f"/v1/lake/namespaces/sales/tables/{name}/sign", body, authorization=f"Bearer {token}")


@pytest.mark.usefixtures("s3fs")
def test_pyiceberg_writes_and_reads_with_signed_requests_only(server: RestServer, s3: GuardedS3) -> None:
    table = table_in(server, **SIGNING)
    assert not {name for name in table.io.properties if "access-key" in name or "session-token" in name}
    loaded = server.pyiceberg(**SIGNING, token="reader").load_table("sales.people")
    assert loaded.scan().to_arrow().sort_by("id").to_pylist() == ROWS.to_pylist()
    table.overwrite(ROWS.slice(0, 1))
    assert s3.refused == []
    with pytest.raises(Exception, match="Failed to sign request 403"):
        loaded.io.new_output(f"{loaded.location()}/data/planted").create().close()
    other = table_in(server, "sales.orders", **SIGNING)
    with pytest.raises(Exception, match="Failed to sign request 403"):
        loaded.io.new_input(other.metadata_location).open()


@pytest.mark.usefixtures("s3fs")
def test_staged_table_is_written_with_signed_requests(server: RestServer, s3: GuardedS3) -> None:
    with server.pyiceberg(**SIGNING).create_table_transaction("sales.staged", ROWS.schema) as change:
        change.append(ROWS)
    assert server.pyiceberg(**SIGNING).load_table("sales.staged").scan().to_arrow().num_rows == 3
    assert s3.refused == []


def test_token_of_a_staged_table_is_for_its_caller_and_folder(server: RestServer) -> None:
    body = {"name": "t", "schema": {"type": "struct", "schema-id": 0, "fields": []}, "stage-create": True}
    asked = {"x_iceberg_access_delegation": "remote-signing"}
    staged = server.call("POST", "/v1/lake/namespaces/sales/tables", body, **asked).json()
    endpoint, location = staged["config"]["s3.signer.endpoint"], staged["metadata"]["location"]

    def signed(where: str, endpoint: str = endpoint, token: str = "anybody", method: str = "PUT") -> httpx.Response:
        uri = url(server.warehouse.properties["s3.endpoint"], key_of(where))
        wanted = {"region": REGION, "uri": uri, "method": method, "headers": {}}
        return server.call("POST", f"/{endpoint}", wanted, authorization=f"Bearer {token}")

    server.callers.known["other"] = replace(server.callers.known["anybody"], subject="other")

    assert signed(f"{location}/data/x").status_code == 200
    assert signed(f"{location}2/data/x").status_code == 403
    assert signed(f"{location}/data/x", token="other").status_code == 403
    assert signed(f"{location}/data/x", endpoint=endpoint[:-2] + "00").status_code == 403
    assert signed(f"{location}/data/x", endpoint=endpoint.partition("?")[0]).status_code == 404
    server.callers.known["anybody"] = replace(server.callers.known["reader"], subject="anybody")
    assert signed(f"{location}/data/x", method="GET").status_code == 403, "the caller may no longer write"


def test_signature_is_refused(server: RestServer) -> None:
    table, other = table_in(server), table_in(server, "sales.orders")
    inside, endpoint = f"{table.location()}/data/x", server.warehouse.properties["s3.endpoint"]
    assert sign(server, "PUT", inside).status_code == 200
    assert sign(server, "GET", inside, token="reader").status_code == 200
    assert sign(server, "PUT", inside, token="reader").status_code == 403
    assert sign(server, "DELETE", inside, token="reader").status_code == 403
    assert sign(server, "GET", inside, token="nobody").status_code == 403
    assert sign(server, "GET", inside, token="stranger").status_code == 404
    assert sign(server, "GET", f"{other.location()}/data/x").status_code == 403
    assert sign(server, "GET", inside, uri=f"{endpoint}/other/{key_of(inside)}").status_code == 403
    assert sign(server, "GET", inside, uri="http://[").status_code == 400
    assert sign(server, "GET", inside, headers={"x": 1}).status_code == 400
    assert sign(server, "GET", inside, provider="gcs").status_code == 406


def test_config_lists_what_is_configured(server: RestServer, stores: Stores, tmp_path: Path) -> None:
    on_table = "/v1/{prefix}/namespaces/{namespace}/tables/{table}"
    wanted = {f"GET {on_table}/credentials", f"POST {on_table}/sign"}
    assert wanted <= set(server.call("GET", "/v1/config?warehouse=lake").json()["endpoints"])
    server.app._lake = type(server.app._lake)(server.warehouse)
    assert not wanted & set(server.call("GET", "/v1/config?warehouse=lake").json()["endpoints"])
    table = server.pyiceberg().create_table("sales.plain", ROWS.schema)
    assert sign(server, "GET", f"{table.location()}/x", name="plain").status_code == 406
    assert server.call("GET", "/v1/lake/namespaces/sales/tables/plain/credentials").status_code == 406


def test_names_in_paths_are_encoded(server: RestServer) -> None:
    server.pyiceberg().create_namespace(("sales", "a/b"))
    RestCatalog.create_table(server.pyiceberg(), ("sales", "a/b", "t ü"), ROWS.schema)
    path = f"/v1/lake/namespaces/{quote('sales')}%1F{quote('a/b', safe='')}/tables/{quote('t ü')}"
    answer = server.call("GET", path, x_iceberg_access_delegation="remote-signing").json()
    endpoint = answer["config"]["s3.signer.endpoint"]
    assert endpoint == "v1/lake/namespaces/sales%1Fa%2Fb/tables/t%20%C3%BC/sign"
    uri = url(server.warehouse.properties["s3.endpoint"], key_of(answer["metadata"]["location"]) + "/data/x")
    wanted = {"region": REGION, "uri": uri, "method": "GET", "headers": {}}
    assert server.call("POST", f"/{endpoint}", wanted).status_code == 200
