"""Vended credentials for tables in Google Cloud Storage and in Azure. The files are on disk here: only access is tested."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qsl

import pyarrow as pa
import pytest
from pyiceberg.exceptions import ForbiddenError

from authorization.callers import add_policies
from formats.object_store_on_disk import keep_on_disk
from rest.rest_server import RestServer, opened
from skiway.formats.iceberg.warehouse import Warehouse
from skiway.formats.object_stores import AzureStorage, GoogleToken
from skiway.metastore import Realm
from skiway.model import v1
from skiway.storage import Stores
from skiway.vending import S3Keys, S3Service, Signer, StagedTables, StaticKeys, Vending
from skiway.vending.azure_sas import AzureSignatures
from skiway.vending.gcs_tokens import GcsTokens
from vending.token_exchange import TokenExchange, token_exchange

SCHEMA = pa.schema({"id": pa.int64()})
HOST = "skiway.dfs.core.windows.net"
KEY = base64.b64encode(b"the key of the account").decode()
KEYS = S3Keys("key", "secret")
PATH = "/v1/lake/namespaces/sales/tables/people"


@pytest.fixture
def exchange() -> Iterator[TokenExchange]:
    with token_exchange() as found:
        yield found


@pytest.fixture
def vending(exchange: TokenExchange) -> Vending:
    """Credentials for all object stores, and signatures for S3."""
    expiry = (datetime.now(UTC) + timedelta(hours=1)).replace(tzinfo=None)
    own = GoogleToken(SimpleNamespace(token="own-token", expiry=expiry))
    azure = AzureStorage({"adls.account-name": "skiway", "adls.account-key": KEY})
    providers = {
        "s3": StaticKeys(accounts=["a1"], read=KEYS, write=KEYS),
        "gs": GcsTokens(own, endpoint=exchange.endpoint),
        "abfss": AzureSignatures(azure, lifetime_s=900),
    }
    return Vending(providers, Signer(lambda: KEYS, S3Service("")), StagedTables(b"0123456789abcdef" * 2))


@pytest.fixture(params=["gs://lake/tables", f"abfss://lake@{HOST}/tables"], ids=["gcs", "azure"])
def server(
    request: pytest.FixtureRequest,
    stores: Stores,
    tmp_path: Path,
    vending: Vending,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[RestServer]:
    keep_on_disk(tmp_path / "buckets", monkeypatch)
    properties = {"gcs.service-account-file": "/planted/secret", "adls.account-key": KEY}
    with opened(stores, tmp_path, warehouse=Warehouse.at(request.param, properties), vending=vending) as running:
        running.pyiceberg().create_namespace("sales")
        body = {"name": "people", "schema": {"type": "struct", "schema-id": 0, "fields": []}}
        assert running.call("POST", "/v1/lake/namespaces/sales/tables", body).status_code == 200
        yield running


def load(server: RestServer, *, token: str = "anybody", wanted: str = "vended-credentials", path: str = PATH) -> Any:
    headers = {"x_iceberg_access_delegation": wanted, "authorization": f"Bearer {token}"}
    answer = server.call("GET", path, **headers)
    assert answer.status_code == 200, answer.text
    return answer.json()


def is_in_gcs(server: RestServer) -> bool:
    return server.warehouse.root.scheme == "gs"


def limits(server: RestServer, config: dict[str, str], exchange: TokenExchange) -> tuple[str, str]:
    """The folder and the rights that the credentials are limited to."""
    if is_in_gcs(server):
        number = int(config["gcs.oauth2.token"].removeprefix("limited-"))
        (rule,) = exchange.requests[number - 1]["options"]["accessBoundary"]["accessBoundaryRules"]
        return rule["availabilityCondition"]["expression"].split("'")[-2], rule["availablePermissions"][0]
    token = dict(parse_qsl(config[f"adls.sas-token.{HOST}"]))
    return f"{token['sr']}{token['sdd']}", token["sp"]


def test_load_returns_credentials_for_the_table(server: RestServer, exchange: TokenExchange) -> None:
    loaded = load(server)
    (found,) = loaded["storage-credentials"]
    assert found["prefix"] == f"{loaded['metadata']['location']}/"
    assert found["config"].items() <= loaded["config"].items()
    folder = loaded["metadata"]["location"].partition("//")[2].partition("/")[2]
    if is_in_gcs(server):
        assert limits(server, found["config"], exchange) == (f"{folder}/", "inRole:roles/storage.objectUser")
        assert exchange.requests[0]["subject_token"] == "own-token"
    else:
        assert limits(server, found["config"], exchange) == (f"d{folder.count('/') + 1}", "racwdl")
    assert KEY not in str(loaded)
    assert "own-token" not in str(loaded)
    assert "planted" not in str(loaded)


def test_reader_gets_credentials_for_reading(server: RestServer, exchange: TokenExchange) -> None:
    config = load(server, token="reader")["config"]
    rights = "inRole:roles/storage.objectViewer" if is_in_gcs(server) else "rl"
    assert limits(server, config, exchange)[1] == rights


def test_credentials_can_be_renewed(server: RestServer) -> None:
    config = load(server)["config"]
    name = "gcs.oauth2.refresh-credentials-endpoint" if is_in_gcs(server) else "adls.refresh-credentials-endpoint"
    assert f"/{config[name]}" == f"{PATH}/credentials"
    (found,) = server.call("GET", f"{PATH}/credentials").json()["storage-credentials"]
    expiry = "gcs.oauth2.token-expires-at" if is_in_gcs(server) else f"adls.sas-token-expires-at-ms.{HOST}"
    assert int(found["config"][expiry]) > datetime.now(UTC).timestamp() * 1000
    assert found["config"].items() <= config.items(), "the same credentials, while they are fresh"


def test_restricted_caller_gets_no_credentials(server: RestServer, stores: Stores, exchange: TokenExchange) -> None:
    location = load(server)["metadata"]["location"]
    add_policies(Realm(stores, "a1"), v1.ResourceId(id=location.rpartition("/")[2], kind=v1.RK_TABLE))
    server.callers.known["restricted"] = replace(server.callers.known["anybody"], subject="restricted")
    exchange.requests.clear()
    with pytest.raises(ForbiddenError, match="policies no names, some rows restrict"):
        server.pyiceberg(token="restricted").load_credentials("sales.people", location)
    answer = server.call(
        "GET", PATH, x_iceberg_access_delegation="vended-credentials", authorization="Bearer restricted"
    )
    assert answer.status_code == 403
    assert exchange.requests == []


def test_client_that_does_not_ask_gets_no_credentials(server: RestServer, exchange: TokenExchange) -> None:
    found = load(server, wanted="")
    assert "storage-credentials" not in found
    assert found["config"] == {}
    assert exchange.requests == []


def test_requests_to_other_stores_are_not_signed(server: RestServer) -> None:
    found = load(server, wanted="remote-signing")
    assert found["config"] == {}
    body = {"region": "eu", "uri": "https://lake.s3.eu.amazonaws.com/tables/x", "method": "GET", "headers": {}}
    for provider in ("s3", "gcs", "adls"):
        answer = server.call("POST", f"{PATH}/sign", {**body, "provider": provider})
        assert answer.status_code == 406
        assert "only requests to S3 are signed, for tables in S3" in answer.text


def test_keys_of_s3_are_for_tables_in_s3(server: RestServer) -> None:
    server.app._lake = replace(
        server.app._lake, vending=Vending({"s3": StaticKeys(accounts=["a1"], read=KEYS, write=KEYS)})
    )
    assert "storage-credentials" not in load(server)
    assert server.call("GET", f"{PATH}/credentials").json() == {"storage-credentials": []}
