"""Secrets with a text of their own are given to a server in every way there is; afterwards none is found anywhere.

A server at log level DEBUG, with its audit trail, a log file and debug details in its answers, is called rightly and
wrongly, loses a blob, and loses its database. Then all that it wrote and all that it answered is searched.
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
"""A correlation id: no secret, and to be found, which shows that the search looks where it should."""


def planted(what: str) -> str:
    """A secret that cannot be anywhere by chance."""
    return f"{what}{secrets.token_hex(16)}"


@dataclass
class Evidence:
    """All that a server let out: what it wrote, answered and left on disk, by where it was found."""

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

    def holding(self, text: str) -> list[str]:
        """Where the text is, as it is or in a disguise."""
        data = text.encode()
        disguises = {data, data.hex().encode(), quote(text, safe="").encode(), data[::-1], *_base64(data)}
        return [where for where, content in self.found.items() if any(each in content for each in disguises)]


def _base64(data: bytes) -> Iterator[bytes]:
    """Its Base64 wherever it begins in a longer text, without the ends that depend on what is around."""
    for before in range(3):
        text = base64.b64encode(b"\0" * before + data)
        yield text[4 if before else 0 : -4]
        yield text[4 if before else 0 : -4].replace(b"+", b"-").replace(b"/", b"_")


@contextmanager
def watched(evidence: Evidence, home: Path, *arguments: str) -> Iterator[Server]:
    """A server whose error stream is read all the time, and is evidence in the end."""
    with ThreadPoolExecutor(1) as pool, started(home, *arguments) as server:
        assert server.process.stderr is not None
        errors: Future[str] = pool.submit(server.process.stderr.read)
        yield server
        server.stop()
        evidence.add("error stream", errors.result(30))


def settings_file(folder: Path, **values: str) -> tuple[str, str]:
    """A file outside the home, so that it is not searched: there the secrets have to be."""
    file = folder / "settings.toml"
    file.write_text("".join(f'{name.replace("__", ".")} = "{value}"\n' for name, value in values.items()))
    return "--config", str(file)


LOUD = (
    *("--set", "log.level=DEBUG"),
    *("--set", "errors.debug_details=true"),
    *("--set", "audit.enabled=true"),
)


@pytest.fixture
def evidence() -> Evidence:
    return Evidence()


@dataclass(frozen=True)
class Talk:
    """Calls whose answers are evidence."""

    channel: grpc.Channel
    evidence: Evidence
    token: str = ""

    def __call__(self, operation: str, request: Any = None, **headers: str) -> Answer:
        client = Client(self.channel, self.token)
        return self.evidence.answer(operation, client(operation, request, **{"x_correlation_id": CANARY, **headers}))


def assert_found_nowhere(evidence: Evidence, *planted: str, but_canary_in: tuple[str, ...]) -> None:
    seen = " ".join(evidence.holding(CANARY))
    assert [place for place in but_canary_in if place not in seen] == [], "the search finds what is there"
    assert {secret: where for secret in planted if (where := evidence.holding(secret))} == {}


@pytest.mark.needs("postgres")
def test_no_secret_of_callers_settings_or_connectors_is_found_anywhere(tmp_path, evidence, capfd):
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
        server = parts.enter_context(watched(evidence, home, *config, *LOUD))
        channel = parts.enter_context(grpc.insecure_channel(server.address))
        ada = Talk(channel, evidence, good)

        _enter_wrongly(Talk(channel, evidence), wrong, claims)
        table = _do_right_and_wrong(ada, in_property)
        connector = _connect(ada, bearer, client_secret)
        _connect_wrongly(ada, connector, in_uri=in_uri, in_property=in_property, in_header=in_header)
        _replace_credentials(ada, connector, replaced)
        with open_stores(url, blobs) as stores:
            for pointer in stores.pointers.scan():
                evidence.add(f"pointer {pointer.key}", f"{pointer.key} {pointer.blob_uri}")
            whole = stores.pointers.get(f"/accounts/default/tables/by-id/{table.id}")
            lost = blob_uri(b"lost", folder=f"accounts/default/tables/by-id/{table.id}", suffix=".pb")
            stores.pointers.compare_and_set(whole.key, lost, expect=whole.version)
        assert ada("TableService/GetTable", v1.GetTableRequest(table_id=table)).code is grpc.StatusCode.INTERNAL
        postgres.close()  # the database is gone, and the server has to say so
        ada("CatalogService/ListCatalogs", v1.ListCatalogsRequest(), timeout=60)
    written = capfd.readouterr()
    evidence.add("streams of the tests", written.out + written.err)
    evidence.files(tmp_path / "searched")
    jwt_parts = claims.split(".")[1:]
    assert_found_nowhere(
        evidence,
        *(good, wrong, *jwt_parts, password, aws_id, aws_key, hidden),
        *(bearer, client_secret, replaced, in_uri, in_property, in_header),
        but_canary_in=(
            "error stream",
            "skiway.log",
            "audit/catalog.log",
            "audit/connector.log",
            "header x-correlation-id",
        ),
    )


def _enter_wrongly(stranger: Talk, wrong: str, claims: str) -> None:
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


def _do_right_and_wrong(ada: Talk, secret: str) -> v1.ResourceId:
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


def _connect(ada: Talk, bearer: str, client_secret: str) -> v1.ResourceId:
    given = (
        v1.ConnectorCredentials(bearer=v1.BearerToken(token=bearer)),
        v1.ConnectorCredentials(
            client=v1.ClientCredentials(
                endpoint="https://id.example.com/token", client_id="c", client_secret=client_secret
            )
        ),
    )
    for number, credentials in enumerate(given):
        spec = v1.ConnectorSpec(
            display_name=f"upstream {number}",
            kind=v1.CK_ICEBERG,
            uri="https://catalog.example.com",
            source=v1.ConnectorSource(namespace=v1.NamespacePath(segments=["sales"])),
            destination=v1.ConnectorDestination(catalog_display_name="lake"),
            auth=v1.ConnectorAuthSpec(scheme="oauth2", credentials=credentials),
        )
        answer = ada("ConnectorService/CreateConnector", v1.CreateConnectorRequest(spec=spec))
        assert answer.code is grpc.StatusCode.OK, answer.text
    connector: v1.ResourceId = answer.message.connector.resource_id
    assert len(ada("ConnectorService/ListConnectors", v1.ListConnectorsRequest()).message.connectors) == 2
    assert ada("ConnectorService/GetConnector", v1.GetConnectorRequest(connector_id=connector)).message
    assert ada("ConnectorService/TriggerReconcile", v1.TriggerReconcileRequest(connector_id=connector)).message
    return connector


def _connect_wrongly(ada: Talk, connector: v1.ResourceId, *, in_uri: str, in_property: str, in_header: str) -> None:
    for path, spec in (
        ("uri", v1.ConnectorSpec(uri=f"https://user:{in_uri}@catalog.example.com")),
        ("auth.properties", v1.ConnectorSpec(auth=v1.ConnectorAuthSpec(properties={"client_secret": in_property}))),
        ("auth.header_hints", v1.ConnectorSpec(auth=v1.ConnectorAuthSpec(header_hints={"authorization": in_header}))),
    ):
        request = v1.UpdateConnectorRequest(connector_id=connector, spec=spec, update_mask=mask(path))
        answer = ada("ConnectorService/UpdateConnector", request)
        assert answer.code is grpc.StatusCode.INVALID_ARGUMENT, answer.text


def _replace_credentials(ada: Talk, connector: v1.ResourceId, secret: str) -> None:
    credentials = v1.ConnectorCredentials(aws=v1.AwsCredentials(access_key_id=secret, secret_access_key=secret))
    request = v1.UpdateConnectorRequest(
        connector_id=connector,
        spec=v1.ConnectorSpec(auth=v1.ConnectorAuthSpec(credentials=credentials)),
        update_mask=mask("auth.credentials"),
    )
    assert ada("ConnectorService/UpdateConnector", request).code is grpc.StatusCode.OK


def test_a_token_of_an_identity_provider_is_found_nowhere(tmp_path, evidence):
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
        with watched(evidence, home, *arguments, *LOUD) as server, grpc.insecure_channel(server.address) as channel:
            codes = [Talk(channel, evidence, each)("CatalogService/ListCatalogs").code.name for each in tokens]
            assert codes == ["OK", "UNAUTHENTICATED", "UNAUTHENTICATED"]
    evidence.files(home)
    assert_found_nowhere(
        evidence, *(part for each in tokens for part in each.split(".")[1:]), but_canary_in=("audit/catalog.log",)
    )


def test_a_server_that_cannot_start_does_not_tell_the_password(tmp_path, evidence):
    password = planted("PgPassword")
    url = f"postgresql://{CANARY}:{password}@127.0.0.1:1/skiway"
    for url_given in (url, f"{url}?connect_timeout=x", url.replace("127.0.0.1:1", "127.0.0.1:port")):
        blobs = f"blob.url={(tmp_path / 'blobs').as_uri()}"
        asked = ("serve", "--home", tmp_path / "home", "--grpc", "127.0.0.1:0", "--set", f"kv.url={url_given}")
        ended = skiway(*asked, "--set", blobs, "--set", "log.level=DEBUG")
        assert (ended.returncode, ended.stderr.count("\n")) == (1, 1), "it says why in one sentence"
        evidence.add("error stream", ended.stdout + ended.stderr)
    evidence.files(tmp_path)
    assert_found_nowhere(evidence, password, but_canary_in=("error stream",))
