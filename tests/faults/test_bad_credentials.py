"""Invalid credentials: a real server rejects each with its own error key, and nothing changes."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import jwt
import pytest

from rpc.rpc_server import Answer, Client
from runtime.servers import NO_GC, eventually, started, stored_pointers
from security.issuer import AUDIENCE, Publisher, claims, ec_key, jwk, pem, publishing, rsa_key
from skiway.metastore.records import keys
from skiway.model import v1
from skiway.security import TokenEntry, new_token
from skiway.storage import Stores, open_stores

pytestmark = pytest.mark.timeout(180)

HOUR = timedelta(hours=1)
UNKNOWN = "Zk3vR8pQw1nT6yBs0dLxJc5uHa9eMfGi"


class SecuredServer:
    """A server that requires credentials, and its stores."""

    def __init__(self, channel: grpc.Channel, stores: Stores) -> None:
        self._channel, self._stores = channel, stores

    def create(self, credentials: str | None, name: str = "new") -> Answer:
        """Create a catalog, sending these credentials in the `authorization` header."""
        headers = {} if credentials is None else {"authorization": credentials}
        request = v1.CreateCatalogRequest(spec=v1.CatalogSpec(display_name=name))
        return Client(self._channel, caller="")("CatalogService/CreateCatalog", request, **headers)

    def call(self, token: str, operation: str, request: Any) -> Answer:
        return Client(self._channel, caller=token)(operation, request)

    def pointers(self) -> list[Any]:
        """All pointers but those that record the last use of a valid token and the last run of a sweep."""
        return [each for each in stored_pointers(self._stores) if not each.key.startswith(keys.token_use())]


@contextmanager
def secured_server(home: Path, *settings: str) -> Iterator[SecuredServer]:
    arguments = [part for each in (*NO_GC, *settings) for part in ("--set", each)]
    with (
        started(home, *arguments) as server,
        open_stores(f"sqlite:///{home}/pointers.db", (home / "blobs").as_uri()) as stores,
        grpc.insecure_channel(server.address) as channel,
    ):
        yield SecuredServer(channel, stores)


def assert_rejected(server: SecuredServer, credentials: str | None, key: str) -> None:
    before = server.pointers()
    answer = server.create(credentials)
    assert answer.code is grpc.StatusCode.UNAUTHENTICATED, answer
    assert (answer.error.code, answer.error.message_key) == (v1.MC_UNAUTHENTICATED, key)
    response = f"{answer.text} {answer.status} {answer.headers} {answer.trailers}"
    assert not [part for part in (credentials or "").split(".") if len(part) > 16 and part in response]
    assert server.pointers() == before


@pytest.fixture(scope="module")
def provider() -> Iterator[Publisher]:
    with publishing(keys=[jwk(rsa_key(), "k1"), jwk(ec_key(), "k2")]) as publisher:
        yield publisher


@pytest.fixture(scope="module")
def oidc(provider: Publisher, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredServer]:
    settings = ("auth.mode=oidc", f"auth.oidc.issuer={provider.url}", f"auth.oidc.audience={AUDIENCE}")
    with secured_server(tmp_path_factory.mktemp("oidc") / "home", *settings) as server:
        yield server


def valid_claims(provider: Publisher, **changes: Any) -> dict[str, Any]:
    """The claims of a valid token, with changes; None leaves a claim out."""
    now = datetime.now(UTC)
    good = {"iss": provider.url, "account_id": "default", "roles": ["administrator"]}
    return claims(**{**good, "exp": now + HOUR, "nbf": now - HOUR, "iat": now - HOUR, **changes})


def signed(provider: Publisher, private: Any = None, algorithm: str = "RS256", kid: str = "k1", **changes: Any) -> str:
    return jwt.encode(
        valid_claims(provider, **changes), private or rsa_key(), algorithm=algorithm, headers={"kid": kid}
    )


def encoded(content: dict[str, Any]) -> str:
    return (
        base64.urlsafe_b64encode(json.dumps(content, default=lambda moment: int(moment.timestamp())).encode())
        .rstrip(b"=")
        .decode()
    )


def shared_secret(provider: Publisher) -> str:
    """Signed with the public key, as if it were a shared secret."""
    text = f"{encoded({'alg': 'HS256', 'typ': 'JWT', 'kid': 'k1'})}.{encoded(valid_claims(provider))}"
    digest = hmac.new(pem(rsa_key()).encode(), text.encode(), hashlib.sha256).digest()
    return f"{text}.{base64.urlsafe_b64encode(digest).rstrip(b'=').decode()}"


def unsigned(provider: Publisher, algorithm: str) -> str:
    return f"{encoded({'alg': algorithm, 'typ': 'JWT', 'kid': 'k1'})}.{encoded(valid_claims(provider))}."


def tampered(provider: Publisher) -> str:
    """A valid token whose claims were replaced after signing."""
    header, _, signature = signed(provider).split(".")
    return f"{header}.{encoded(valid_claims(provider, sub='eve'))}.{signature}"


JWTS = {
    "expired": (lambda provider: signed(provider, exp=datetime.now(UTC) - HOUR), "token.expired"),
    "not yet valid": (lambda provider: signed(provider, nbf=datetime.now(UTC) + HOUR), "token.not_yet_valid"),
    "for another audience": (lambda provider: signed(provider, aud="another"), "token.audience"),
    "for no audience": (lambda provider: signed(provider, aud=None), "token.audience"),
    "of another issuer": (lambda provider: signed(provider, iss="https://evil.example.com"), "token.issuer"),
    "without an end": (lambda provider: signed(provider, exp=None), "token.claim"),
    "without a subject": (lambda provider: signed(provider, sub=None), "token.claim"),
    "for no account": (lambda provider: signed(provider, account_id=None), "token.account"),
    "for an unknown account": (lambda provider: signed(provider, account_id="nobody"), "token.account"),
    "signed by another key": (lambda provider: signed(provider, rsa_key("eve")), "token.signature"),
    "signed by an unpublished key": (lambda provider: signed(provider, rsa_key("eve"), kid="k9"), "token.key"),
    "signed in another way than its key": (lambda provider: signed(provider, kid="k2"), "token.algorithm"),
    "changed": (tampered, "token.signature"),
    "alg none": (lambda provider: unsigned(provider, "none"), "token.algorithm"),
    "alg NoNe": (lambda provider: unsigned(provider, "NoNe"), "token.algorithm"),
    "HS256 with the public key": (shared_secret, "token.algorithm"),
    "half": (lambda provider: signed(provider)[:40], "token.malformed"),
}


@pytest.mark.parametrize("case", JWTS)
def test_invalid_token_is_rejected(oidc, provider, case):
    make, key = JWTS[case]
    assert_rejected(oidc, f"Bearer {make(provider)}", key)


@pytest.mark.parametrize(
    ("credentials", "key"), [(None, "token.missing"), ("", "token.missing"), ("Bearer", "token.malformed")]
)
def test_missing_or_empty_token_is_rejected(oidc, credentials, key):
    assert_rejected(oidc, credentials, key)


def test_valid_token_is_accepted(oidc, provider):
    for name, token in {"rsa": signed(provider), "ec": signed(provider, ec_key(), "ES256", "k2")}.items():
        assert oidc.create(f"Bearer {token}", name).code is grpc.StatusCode.OK
        assert oidc.create(token, f"{name} without the word").code is grpc.StatusCode.OK


@pytest.fixture
def token_home(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    return home


def write(home: Path, *entries: TokenEntry) -> None:
    """Replace the tokens file atomically."""
    new_file = home / "tokens.new"
    new_file.write_text("".join(entry.toml() for entry in entries))
    new_file.replace(home / "tokens.toml")


def test_missing_unknown_expired_and_revoked_tokens_are_rejected(token_home):
    good = new_token("ada", "default", roles=["administrator"])
    expired = new_token("bob", "default", roles=["administrator"], expires_at=datetime.now(UTC) - HOUR)
    write(token_home, good.entry, expired.entry)
    with secured_server(token_home, "auth.mode=token") as server:
        assert server.create(f"Bearer {good.text.reveal()}", "hers").code is grpc.StatusCode.OK
        for credentials, key in (
            (None, "token.missing"),
            (f"Bearer {UNKNOWN}", "token.unknown"),
            (f"Bearer {good.text.reveal()}x", "token.unknown"),
            (f"Bearer {good.text.reveal()[:-1]}", "token.unknown"),
            (f"Bearer {good.entry.sha256}", "token.unknown"),
            (f"Bearer {expired.text.reveal()}", "token.expired"),
        ):
            assert_rejected(server, credentials, key)
        write(token_home, expired.entry)
        eventually(lambda: server.create(f"Bearer {good.text.reveal()}").code is not grpc.StatusCode.ALREADY_EXISTS)
        assert_rejected(server, f"Bearer {good.text.reveal()}", "token.unknown")


def test_authenticated_caller_without_permission_is_denied(token_home):
    reader = new_token("reader", "default")
    admin = new_token("admin", "default", roles=["administrator"])
    platform = new_token("platform", "", roles=["platform-admin"])
    write(token_home, reader.entry, admin.entry, platform.entry)
    account = v1.CreateAccountRequest(spec=v1.AccountSpec(display_name="more"))
    catalog = v1.CreateCatalogRequest(spec=v1.CatalogSpec(display_name="more"))
    with secured_server(token_home, "auth.mode=token") as server:
        before = server.pointers()
        for token, operation, request, key in (
            (reader, "CatalogService/CreateCatalog", catalog, "permission.missing"),
            (reader, "AccountService/CreateAccount", account, "permission.missing"),
            (admin, "AccountService/CreateAccount", account, "permission.missing"),
            (platform, "CatalogService/CreateCatalog", catalog, "permission.missing"),
        ):
            answer = server.call(token.text.reveal(), operation, request)
            assert answer.code is grpc.StatusCode.PERMISSION_DENIED, answer
            assert (answer.error.code, answer.error.message_key) == (v1.MC_PERMISSION_DENIED, key)
        assert server.pointers() == before
        assert server.call(platform.text.reveal(), "AccountService/CreateAccount", account).code is grpc.StatusCode.OK
