"""Unique secrets are passed to a server in every possible way; afterwards none of them is found anywhere.

A server at log level DEBUG, with an audit log, a log file and debug details in its answers, gets valid and invalid
calls, loses a blob, and loses its database. Then everything that it wrote and answered is searched.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import grpc
import pytest

from metastore.resource_factory import mask
from rpc.rpc_server import Answer, Client
from runtime.servers import Server, skiway, started
from security.issuer import AUDIENCE, jwk, publishing, rsa_key, token
from skiway.model import v1
from skiway.security import new_token
from skiway.storage import blob_uri, open_stores
from storage.homes import running_postgres

pytestmark = pytest.mark.timeout(240)

CANARY = "canary-7d1f0c"
"""A correlation id, which is not secret and must be found: this shows that the search works."""


def planted(what: str) -> str:
    """A random secret that cannot occur by chance."""
    return f"{what}{secrets.token_hex(16)}"


@dataclass
class Evidence:
    """All output of a server: what it wrote, answered and left on disk, by location."""

    found: dict[str, bytes] = field(default_factory=dict)

    def add(self, where: str, text: str | bytes) -> None:
        self.found[f"{len(self.found)} {where}"] = text.encode() if isinstance(text, str) else text

    def answer(self, operation: str, answer: Answer) -> Answer:
        message = b"" if answer.message is None else answer.message.SerializeToString()
        self.add(f"message of {operation}", message)
        self.add(f"status of {operation}", answer.text)
        for name, value in (*answer.headers.items(), *answer.trailers.items()):
            self.add(f"header {name} of {operation}", value)
        return answer

    def files(self, folder: Path) -> None:
        for path in folder.rglob("*"):
            self.add(str(path.relative_to(folder)), str(path))
            if path.is_file():
                self.add(str(path.relative_to(folder)), path.read_bytes())

    def locations_of(self, text: str) -> list[str]:
        """Where the text occurs, plain or encoded."""
        data = text.encode()
        encodings = {data, data.hex().encode(), quote(text, safe="").encode(), data[::-1], *_base64(data)}
        return [where for where, content in self.found.items() if any(each in content for each in encodings)]


def _base64(data: bytes) -> Iterator[bytes]:
    """Its Base64 encodings at each offset in a longer text, without the ends that depend on the context."""
    for before in range(3):
        text = base64.b64encode(b"\0" * before + data)
        yield text[4 if before else 0 : -4]
        yield text[4 if before else 0 : -4].replace(b"+", b"-").replace(b"/", b"_")


@contextmanager
def watched(evidence: Evidence, home: Path, *arguments: str) -> Iterator[Server]:
    """Start a server whose error stream is read continuously and added to the evidence."""
    with ThreadPoolExecutor(1) as pool, started(home, *arguments) as server:
        assert server.process.stderr is not None
        errors: Future[str] = pool.submit(server.process.stderr.read)
        yield server
        server.stop()
        evidence.add("error stream", errors.result(200))


def settings_file(folder: Path, **values: str) -> tuple[str, str]:
    """Write a settings file outside the home; it contains the secrets and is not searched."""
    file = folder / "settings.toml"
    file.write_text("".join(f'{name.replace("__", ".")} = "{value}"\n' for name, value in values.items()))
    return "--config", str(file)


VERBOSE = (
    *("--set", "log.level=DEBUG"),
    *("--set", "errors.debug_details=true"),
    *("--set", "audit.enabled=true"),
)


@pytest.fixture
def evidence() -> Evidence:
    return Evidence()


@dataclass(frozen=True)
class RecordingClient:
    """A client that adds all answers to the evidence."""

    channel: grpc.Channel
    evidence: Evidence
    token: str = ""

    def __call__(self, operation: str, request: Any = None, **headers: str) -> Answer:
        client = Client(self.channel, self.token)
        return self.evidence.answer(operation, client(operation, request, **{"x_correlation_id": CANARY, **headers}))


def assert_found_nowhere(evidence: Evidence, *planted: str, canary_in: tuple[str, ...]) -> None:
    seen = " ".join(evidence.locations_of(CANARY))
    assert [place for place in canary_in if place not in seen] == [], "the search must find the canary"
    assert {secret: where for secret in planted if (where := evidence.locations_of(secret))} == {}


@pytest.mark.needs("postgres")
def test_secrets_of_callers_settings_and_connectors_are_not_leaked(tmp_path, evidence, capfd):
    home = tmp_path / "searched" / "home"
    home.mkdir(mode=0o700, parents=True)
    made = new_token("ada", "default", roles=["administrator"])
    (home / "tokens.toml").write_text(made.entry.toml())
    good, wrong, password = made.text.reveal(), planted("WrongToken"), planted("PgPassword")
    aws_id, aws_key, hidden = planted("AKIA"), planted("AwsSecret"), planted("Session")
    bearer, client_secret, replaced = planted("Bearer"), planted("ClientSecret"), planted("Replaced")
    in_uri, in_property, in_header = planted("UriPassword"), planted("Property"), planted("Header")
    claims = token(rsa_key(), sub="ada")

    with ExitStack() as parts:
        postgres = parts.enter_context(ExitStack())
        url = postgres.enter_context(running_postgres())
        blobs = (tmp_path / "searched" / "blobs").as_uri()
        config = settings_file(
            tmp_path,
            kv__url=url.replace("postgres@", f"postgres:{password}@", 1),
            blob__url=blobs,
            auth__mode="token",
            log__file=str(home / "log" / "skiway.log"),
            storage__aws__access_key_id=aws_id,
            storage__aws__secret_access_key=aws_key,
            storage__aws__session_token=hidden,
        )
        shown = skiway("config", "--home", home, *config, "--output", "json")
        assert shown.returncode == 0, shown.stderr
        evidence.add("skiway config", shown.stdout + shown.stderr)
        server = parts.enter_context(watched(evidence, home, *config, *VERBOSE))
        channel = parts.enter_context(grpc.insecure_channel(server.address))
        ada = RecordingClient(channel, evidence, good)

        _authenticate_with_invalid_credentials(RecordingClient(channel, evidence), wrong, claims)
        table = _make_valid_and_invalid_calls(ada, in_property)
        connector = _create_connectors(ada, bearer, client_secret)
        _update_connector_with_secrets(ada, connector, in_uri=in_uri, in_property=in_property, in_header=in_header)
        _replace_credentials(ada, connector, replaced)
        with open_stores(url, blobs) as stores:
            for pointer in stores.pointers.scan():
                evidence.add(f"pointer {pointer.key}", f"{pointer.key} {pointer.blob_uri}")
            original = stores.pointers.get(f"/accounts/default/tables/by-id/{table.id}")
            lost = blob_uri(b"lost", folder=f"accounts/default/tables/by-id/{table.id}", suffix=".pb")
            stores.pointers.compare_and_set(original.key, lost, expect=original.version)
        damaged = ada("TableService/GetTable", v1.GetTableRequest(table_id=table))
        assert damaged.code is grpc.StatusCode.FAILED_PRECONDITION
        postgres.close()  # the server must report that the database is gone
        ada("CatalogService/ListCatalogs", v1.ListCatalogsRequest(), timeout=60)
    written = capfd.readouterr()
    evidence.add("streams of the tests", written.out + written.err)
    evidence.files(tmp_path / "searched")
    jwt_parts = claims.split(".")[1:]
    assert_found_nowhere(
        evidence,
        *(good, wrong, *jwt_parts, password, aws_id, aws_key, hidden),
        *(bearer, client_secret, replaced, in_uri, in_property, in_header),
        canary_in=(
            "error stream",
            "skiway.log",
            "audit/catalog.log",
            "audit/connector.log",
            "header x-correlation-id",
        ),
    )


def _authenticate_with_invalid_credentials(stranger: RecordingClient, wrong: str, claims: str) -> None:
    for credentials in (
        f"Bearer {wrong}",
        wrong,
        f"Basic {wrong}",
        f"Bearer {wrong} {wrong}",
        f"Bearer {claims}",
        claims,
    ):
        answer = stranger("CatalogService/ListCatalogs", v1.ListCatalogsRequest(), authorization=credentials)
        assert answer.code is grpc.StatusCode.UNAUTHENTICATED


def _make_valid_and_invalid_calls(ada: RecordingClient, secret: str) -> v1.ResourceId:
    spec = v1.CatalogSpec(display_name="shop")
    key = v1.IdempotencyKey(key="not secret")
    request = v1.CreateCatalogRequest(spec=spec, idempotency=key)
    catalog = ada("CatalogService/CreateCatalog", request).message.catalog.resource_id
    assert ada("CatalogService/CreateCatalog", request).code is grpc.StatusCode.OK
    space = v1.NamespaceSpec(display_name="sales", catalog_id=catalog)
    answer = ada("NamespaceService/CreateNamespace", v1.CreateNamespaceRequest(spec=space))
    place = {"catalog_id": catalog, "namespace_id": answer.message.namespace.resource_id}
    spec = v1.TableSpec(display_name="people", schema_json="{}", **place)
    table = ada("TableService/CreateTable", v1.CreateTableRequest(spec=spec)).message.table.resource_id
    ada("SnapshotService/CreateSnapshot", v1.CreateSnapshotRequest(spec=v1.SnapshotSpec(table_id=table, snapshot_id=1)))
    stats = v1.ColumnStats(column_id=1, column_name="c", value_count=1)
    upload = v1.PutColumnStatsRequest(table_id=table, snapshot_id=1, columns=[stats])
    assert ada("TableStatisticsService/PutColumnStats", [upload]).code is grpc.StatusCode.OK
    for wrong in ({"password": secret}, {"secret-access-key": secret}):
        spec = v1.TableSpec(display_name="more", schema_json="{}", properties=wrong, **place)
        answer = ada("TableService/CreateTable", v1.CreateTableRequest(spec=spec))
        assert answer.error.message_key == "property.secret"
    assert ada("TableService/GetTable", b"\xff\xff").error.message_key == "message.malformed"
    assert ada("TableService/GetTable", v1.GetTableRequest()).error.message_key == "field"
    return table


def _create_connectors(ada: RecordingClient, bearer: str, client_secret: str) -> v1.ResourceId:
    all_credentials = (
        v1.ConnectorCredentials(bearer=v1.BearerToken(token=bearer)),
        v1.ConnectorCredentials(
            client=v1.ClientCredentials(
                endpoint="https://id.example.com/token", client_id="c", client_secret=client_secret
            )
        ),
    )
    for number, credentials in enumerate(all_credentials):
        spec = v1.ConnectorSpec(
            display_name=f"upstream {number}",
            kind=v1.CK_ICEBERG,
            uri="https://catalog.example.com",
            source=v1.ConnectorSource(namespace=v1.NamespacePath(segments=["sales"])),
            destination=v1.ConnectorDestination(catalog_display_name="lake"),
            auth=v1.ConnectorAuthSpec(scheme="oauth2", credentials=credentials),
        )
        key = v1.IdempotencyKey(key=f"connector {number}")
        answer = ada("ConnectorService/CreateConnector", v1.CreateConnectorRequest(spec=spec, idempotency=key))
        assert answer.code is grpc.StatusCode.OK, answer.text
    connector: v1.ResourceId = answer.message.connector.resource_id
    assert len(ada("ConnectorService/ListConnectors", v1.ListConnectorsRequest()).message.connectors) == 2
    assert ada("ConnectorService/GetConnector", v1.GetConnectorRequest(connector_id=connector)).message
    assert ada("ConnectorService/TriggerReconcile", v1.TriggerReconcileRequest(connector_id=connector)).message
    return connector


def _update_connector_with_secrets(
    ada: RecordingClient, connector: v1.ResourceId, *, in_uri: str, in_property: str, in_header: str
) -> None:
    for path, spec in (
        ("uri", v1.ConnectorSpec(uri=f"https://user:{in_uri}@catalog.example.com")),
        ("uri", v1.ConnectorSpec(uri=f"https://catalog.example.com/x?sig={in_uri}")),
        ("uri", v1.ConnectorSpec(uri=f"postgresql://user@db.example.com/x?password={in_uri}")),
        ("properties", v1.ConnectorSpec(properties={"note": f"Bearer {in_property}"})),
        ("properties", v1.ConnectorSpec(properties={"url": f"https://user:{in_property}@catalog.example.com"})),
        ("auth.properties", v1.ConnectorSpec(auth=v1.ConnectorAuthSpec(properties={"client_secret": in_property}))),
        ("auth.header_hints", v1.ConnectorSpec(auth=v1.ConnectorAuthSpec(header_hints={"X-Auth": in_header}))),
        ("auth.header_hints", v1.ConnectorSpec(auth=v1.ConnectorAuthSpec(header_hints={"authorization": in_header}))),
    ):
        request = v1.UpdateConnectorRequest(connector_id=connector, spec=spec, update_mask=mask(path))
        answer = ada("ConnectorService/UpdateConnector", request)
        assert answer.code is grpc.StatusCode.INVALID_ARGUMENT, answer.text


def _replace_credentials(ada: RecordingClient, connector: v1.ResourceId, secret: str) -> None:
    credentials = v1.ConnectorCredentials(aws=v1.AwsCredentials(access_key_id=secret, secret_access_key=secret))
    request = v1.UpdateConnectorRequest(
        connector_id=connector,
        spec=v1.ConnectorSpec(auth=v1.ConnectorAuthSpec(credentials=credentials)),
        update_mask=mask("auth.credentials"),
    )
    assert ada("ConnectorService/UpdateConnector", request).code is grpc.StatusCode.OK


def test_tokens_of_an_identity_provider_are_not_leaked(tmp_path, evidence):
    home = tmp_path / "home"
    with publishing(keys=[jwk(rsa_key(), "k1")]) as provider:
        settings = ("auth.mode=oidc", f"auth.oidc.issuer={provider.url}", f"auth.oidc.audience={AUDIENCE}")
        arguments = [part for each in settings for part in ("--set", each)]
        tokens = [
            token(
                rsa_key(), kid="k1", iss=provider.url, account_id="default", jti=planted("good"), exp=4e9, nbf=0, iat=0
            ),
            token(rsa_key("eve"), kid="k1", iss=provider.url, jti=planted("forged")),
            token(rsa_key(), kid="k1", iss=provider.url, jti=planted("late"), exp=1, nbf=0, iat=0),
        ]
        with watched(evidence, home, *arguments, *VERBOSE) as server, grpc.insecure_channel(server.address) as channel:
            codes = [
                RecordingClient(channel, evidence, each)("CatalogService/ListCatalogs").code.name for each in tokens
            ]
            assert codes == ["OK", "UNAUTHENTICATED", "UNAUTHENTICATED"]
    evidence.files(home)
    assert_found_nowhere(
        evidence, *(part for each in tokens for part in each.split(".")[1:]), canary_in=("audit/catalog.log",)
    )


def test_server_that_cannot_start_does_not_leak_the_password(tmp_path, evidence):
    password = planted("PgPassword")
    url = f"postgresql://{CANARY}:{password}@127.0.0.1:1/skiway"
    for url_given in (url, f"{url}?connect_timeout=x", url.replace("127.0.0.1:1", "127.0.0.1:port")):
        blobs = f"blob.url={(tmp_path / 'blobs').as_uri()}"
        command = ("serve", "--home", tmp_path / "home", "--grpc", "127.0.0.1:0", "--set", f"kv.url={url_given}")
        ended = skiway(*command, "--set", blobs, "--set", "log.level=DEBUG")
        assert (ended.returncode, ended.stderr.count("\n")) == (1, 1), "the reason is one line"
        evidence.add("error stream", ended.stdout + ended.stderr)
    evidence.files(tmp_path)
    assert_found_nowhere(evidence, password, canary_in=("error stream",))
