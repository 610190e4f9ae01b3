"""The token endpoint: clients with client credentials get access tokens, and exchange them for new ones."""

from __future__ import annotations

import json
import socket
from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import OAuthError

from rest.rest_server import RestServer, opened
from skiway.errors import LimitExceeded
from skiway.foundation.doors import WrongSecrets
from skiway.rest import RestOptions, app, bodies
from skiway.security import AccessTokens, NewToken, TokenAuthenticator, new_token
from skiway.storage import Stores
from skiway.telemetry.audit import AuditLog
from storage.homes import Clock

EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"
ACCESS = "urn:ietf:params:oauth:token-type:access_token"


class Issuing:
    """A server that issues tokens for `ada`, an administrator, and `bob`, a member without grants."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.ada: NewToken = new_token("ada", "a1", roles=["administrator"])
        self.bob: NewToken = new_token("bob", "a1", roles=["member"])
        self.entries = [self.ada.entry, self.bob.entry]
        self.authenticator = TokenAuthenticator(
            lambda: self.entries,
            accounts=None,
            access_tokens=AccessTokens(b"k" * 32, clock=self.clock),
            clock=self.clock,
        )
        self.server: RestServer

    def post(self, headers: Mapping[str, str] | None = None, **form: str) -> httpx.Response:
        return self.server.http.post(f"{self.server.uri}/v1/oauth/tokens", data=form, headers=headers or {})

    def token(self, secret: str, **form: str) -> str:
        answer = self.post(grant_type="client_credentials", client_secret=secret, **form)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["access_token"])

    def config(self, token: str) -> int:
        return self.server.call("GET", "/v1/config?warehouse=lake", authorization=f"Bearer {token}").status_code


@pytest.fixture
def issuing(stores: Stores, tmp_path: Path) -> Iterator[Issuing]:
    made = Issuing()
    with opened(stores, tmp_path, authenticator=made.authenticator, tokens=made.authenticator) as made.server:
        yield made


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_pyiceberg_with_a_credential(issuing: Issuing) -> None:
    secret = issuing.ada.text.reveal()
    for credential in (f"ada:{secret}", secret):
        lake = RestCatalog("lake", uri=issuing.server.uri, warehouse="lake", credential=credential)
        assert lake.list_namespaces() == []
    lake.create_namespace("sales")
    with pytest.raises(OAuthError, match="invalid_client"):
        RestCatalog(
            "lake", uri=issuing.server.uri, warehouse="lake", credential="ada:wrong-wrong-wrong-wrong-wrong-wrong"
        )


def test_answer_is_that_of_the_specification(issuing: Issuing) -> None:
    answer = issuing.post(
        grant_type="client_credentials", client_id="ada", client_secret=issuing.ada.text.reveal(), scope="catalog"
    )
    body = answer.json()
    assert body.pop("access_token").startswith("skiway_access_")
    assert body == {"token_type": "bearer", "expires_in": 3600, "issued_token_type": ACCESS}
    assert answer.headers["cache-control"] == "no-store"
    basic = b64encode(f"ada:{issuing.ada.text.reveal()}".encode()).decode()
    assert issuing.post({"authorization": f"Basic {basic}"}, grant_type="client_credentials").status_code == 200


def test_access_token_has_the_rights_of_its_owner(issuing: Issuing) -> None:
    ada, bob = issuing.token(issuing.ada.text.reveal()), issuing.token(issuing.bob.text.reveal())
    body = {"namespace": ["sales"]}
    assert issuing.server.call("POST", "/v1/lake/namespaces", body, authorization=f"Bearer {bob}").status_code == 403
    assert issuing.server.call("POST", "/v1/lake/namespaces", body, authorization=f"Bearer {ada}").status_code == 200
    issuing.entries.remove(issuing.ada.entry)
    assert issuing.config(ada) == 401, "a revoked token revokes its access tokens"


def test_token_exchange(issuing: Issuing) -> None:
    first = issuing.token(issuing.ada.text.reveal())
    issuing.clock.advance(1800)
    given = {"subject_token": first, "subject_token_type": ACCESS}
    second = issuing.post(grant_type=EXCHANGE, **given).json()["access_token"]
    issuing.clock.advance(1801)
    assert issuing.config(first) == 401
    assert issuing.config(second) == 200
    expired = issuing.post(grant_type=EXCHANGE, **given)
    assert (expired.status_code, expired.json()["error"]) == (401, "invalid_client")
    own = {"authorization": "Basic " + b64encode(f"ada:{issuing.ada.text.reveal()}".encode()).decode()}
    assert issuing.post(own, grant_type=EXCHANGE, **given).status_code == 200, "with the credentials of the same client"
    other = {"authorization": "Basic " + b64encode(f"bob:{issuing.bob.text.reveal()}".encode()).decode()}
    assert issuing.post(other, grant_type=EXCHANGE, **given).status_code == 401
    by_static = issuing.post(grant_type=EXCHANGE, subject_token=issuing.bob.text.reveal(), subject_token_type=ACCESS)
    assert by_static.status_code == 200


def test_exchange_gives_the_rights_of_the_subject(issuing: Issuing) -> None:
    ada, bob = issuing.token(issuing.ada.text.reveal()), issuing.token(issuing.bob.text.reveal())
    given = {"grant_type": EXCHANGE, "subject_token_type": ACCESS, "actor_token_type": ACCESS}
    made = issuing.post(**given, subject_token=bob, actor_token=ada).json()["access_token"]
    answer = issuing.server.call("POST", "/v1/lake/namespaces", {"namespace": ["x"]}, authorization=f"Bearer {made}")
    assert answer.status_code == 403
    assert issuing.post(**given, subject_token=bob, actor_token="forged").status_code == 401


@pytest.mark.parametrize(
    ("form", "status", "error"),
    [
        ({}, 400, "unsupported_grant_type"),
        ({"grant_type": "password"}, 400, "unsupported_grant_type"),
        ({"grant_type": "client_credentials"}, 400, "invalid_request"),
        ({"grant_type": "client_credentials", "client_secret": "unknown"}, 401, "invalid_client"),
        ({"grant_type": "client_credentials", "client_secret": "two words"}, 401, "invalid_client"),
        ({"grant_type": EXCHANGE}, 400, "invalid_request"),
        ({"grant_type": EXCHANGE, "subject_token": "x", "subject_token_type": "jwt"}, 400, "invalid_request"),
        ({"grant_type": EXCHANGE, "subject_token": "x", "subject_token_type": ACCESS}, 401, "invalid_client"),
        (
            {
                "grant_type": EXCHANGE,
                "subject_token": "x",
                "subject_token_type": ACCESS,
                "requested_token_type": "urn:ietf:params:oauth:token-type:saml2",
            },
            400,
            "invalid_request",
        ),
    ],
)
def test_refused_requests(issuing: Issuing, form: dict[str, str], status: int, error: str) -> None:
    answer = issuing.post(**form)
    assert (answer.status_code, answer.json()["error"]) == (status, error), answer.text


def test_client_id_must_be_that_of_the_token(issuing: Issuing) -> None:
    answer = issuing.post(grant_type="client_credentials", client_id="bob", client_secret=issuing.ada.text.reveal())
    assert (answer.status_code, answer.json()["error"]) == (401, "invalid_client")


@pytest.mark.parametrize(
    ("body", "media", "status"),
    [
        (b"grant_type=a&grant_type=b", "application/x-www-form-urlencoded", 400),
        (b"\xff=1", "application/x-www-form-urlencoded", 400),
        (b"{}", "application/json", 400),
        (b"a" * 100_000, "application/x-www-form-urlencoded", 413),
    ],
)
def test_invalid_forms(issuing: Issuing, body: bytes, media: str, status: int) -> None:
    url = f"{issuing.server.uri}/v1/oauth/tokens"
    answer = issuing.server.http.post(url, content=body, headers={"content-type": media})
    assert answer.status_code == status
    assert answer.json()["error"] == "invalid_request"


def test_session_header_of_another_caller_changes_nothing(issuing: Issuing) -> None:
    headers = {"authorization": f"Bearer {issuing.ada.text.reveal()}"}
    answer = issuing.post(headers, grant_type="client_credentials", client_secret="wrong")
    assert answer.status_code == 401, "what counts is the form"


def test_token_calls_are_audited_with_their_caller(stores: Stores, tmp_path: Path) -> None:
    made = Issuing()
    secret = made.ada.text.reveal()
    with (
        closing(AuditLog(tmp_path / "audit")) as audit,
        opened(
            stores, tmp_path, authenticator=made.authenticator, tokens=made.authenticator, audit=audit
        ) as made.server,
    ):
        token = made.token(secret)
        made.post(grant_type=EXCHANGE, subject_token=token, subject_token_type=ACCESS)
        made.post(grant_type="client_credentials", client_secret="wrong")
    text = (tmp_path / "audit" / "catalog.log").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    assert [(each["operation"], each["outcome"], each.get("subject", "")) for each in lines] == [
        ("IcebergRest/GetToken", "OK", "ada"),
        ("IcebergRest/GetToken", "OK", "ada"),
        ("IcebergRest/GetToken", "MC_UNAUTHENTICATED", ""),
    ]
    assert secret not in text


def test_forms_that_strangers_send_slowly_block_nobody(
    stores: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The form that was opened first is ended for the next one, so there are always places for others."""
    monkeypatch.setattr(bodies, "FORM_S", 60.0)  # their own deadline does not end them
    made = Issuing()
    arguments: Any = {"authenticator": made.authenticator, "tokens": made.authenticator}
    options = RestOptions(workers=1, waiting=15, forms=2)
    with opened(stores, tmp_path, options=options, **arguments) as made.server, ExitStack() as stack:
        address = urlsplit(made.server.uri)
        head = f"POST {address.path}/v1/oauth/tokens HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\ngrant"
        clients = []
        for _ in range(5):
            clients.append(stack.enter_context(socket.create_connection((str(address.hostname), address.port or 0))))
            clients[-1].sendall(head.encode())
        for ended in clients[:3]:
            ended.settimeout(10)
            assert ended.recv(10_000).startswith(b"HTTP/1.1 408 ")
        token = made.token(made.ada.text.reveal())
        assert made.config(token) == 200


def test_wrong_secrets_are_slowed_down_and_right_ones_work(issuing: Issuing, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them come from one address, as behind a proxy: nobody can lock out others."""
    monkeypatch.setattr(app, "SLOWED_S", 0.01)
    wrong = {"grant_type": "client_credentials", "client_id": "ada", "client_secret": "wrong-wrong-wrong-wrong-wrong"}
    answers = [issuing.post(**wrong) for _ in range(30)]
    assert [each.status_code for each in answers] == [401] * 10 + [429] * 20
    assert answers[-1].headers["retry-after"] == "6"
    assert "wrong secrets" in answers[-1].json()["error_description"]
    assert issuing.config(issuing.token(issuing.ada.text.reveal(), client_id="ada")) == 200
    assert issuing.post(**wrong).status_code == 429


def test_wrong_secrets_are_counted_by_address_and_forgotten() -> None:
    now = [0.0]
    wrong = WrongSecrets(burst=2, per_minute=6, clock=lambda: now[0])
    for _ in range(2):
        wrong.count("a")
    with pytest.raises(LimitExceeded, match="wait 10 s"):
        wrong.count("a")
    wrong.count("b")
    now[0] = 21.0
    wrong.count("a")
    with pytest.raises(LimitExceeded):
        wrong.count("a")
