"""Logging in to the explorer at an identity provider: a code is exchanged for a token, and only by the browser that asked."""

from __future__ import annotations

import hashlib
from base64 import b64decode, urlsafe_b64encode
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import httpx
import pytest

from runtime.servers import Server, started
from security.issuer import AUDIENCE, Publisher, jwk, publishing, rsa_key, token
from web.explorers import Visitor, visiting

SECRET = "p&ss word"


@dataclass
class Provider:
    """Issues codes for the person who is logged in there, and tokens for codes."""

    published: Publisher
    codes: dict[str, dict[str, str]] = field(default_factory=dict)
    answer: dict[str, Any] = field(default_factory=dict)
    error: dict[str, str] | None = None

    def token(self, **claims: Any) -> str:
        now = datetime.now(UTC)
        times = {"exp": now + timedelta(minutes=5), "nbf": now - timedelta(minutes=1), "iat": now}
        facts = {"iss": self.published.url, "account_id": "default", "roles": ["administrator"], **times, **claims}
        return token(kid="main", **facts)

    def authorize(self, address: str) -> str:
        """The person agrees: where the browser goes then."""
        assert address.startswith(f"{self.published.url}/authorize?")
        asked = dict(parse_qsl(urlsplit(address).query))
        assert (asked["response_type"], asked["client_id"], asked["scope"]) == ("code", "explorer", "openid email")
        assert asked["code_challenge_method"] == "S256"
        code = f"code-{len(self.codes)}"
        self.codes[code] = asked
        return f"{asked['redirect_uri']}?code={code}&state={asked['state']}"

    def exchange(self, form: dict[str, str], authorization: str) -> tuple[int, Any]:
        if self.error is not None:
            return 400, self.error
        asked = self.codes.pop(form["code"], None)
        digest = hashlib.sha256(form["code_verifier"].encode()).digest()
        is_proven = asked is not None and urlsafe_b64encode(digest).rstrip(b"=").decode() == asked["code_challenge"]
        known = b64decode(authorization.removeprefix("Basic ")).decode() == "explorer:p%26ss%20word"
        if asked is None or not is_proven or not known or form["redirect_uri"] != asked["redirect_uri"]:
            return 400, {"error": "invalid_grant", "error_description": "the code is\nnot valid"}
        return 200, self.answer or {"access_token": self.token(), "token_type": "Bearer"}


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    with publishing(keys=[jwk(rsa_key(), "main")]) as published:
        found = Provider(published)
        published.exchange = lambda form, authorization: found.exchange(form, authorization)
        yield found


@pytest.fixture(scope="module")
def server(provider: Provider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    home: Path = tmp_path_factory.mktemp("provider") / "home"
    home.mkdir()
    settings = {
        "auth.mode": "oidc",
        "auth.oidc.issuer": provider.published.url,
        "auth.oidc.audience": AUDIENCE,
        "auth.oidc.client_id": "explorer",
        "auth.oidc.client_secret": SECRET,
        "auth.oidc.scopes": "openid email",
    }
    given = [argument for name, value in settings.items() for argument in ("--set", f"{name}={value}")]
    with started(home, *given) as running:
        yield running


@pytest.fixture
def visitor(server: Server, provider: Provider) -> Iterator[Visitor]:
    provider.answer, provider.error = {}, None
    with visiting(server) as found:
        yield found


def sent_to_provider(visitor: Visitor, target: str = "/") -> str:
    answer = visitor.browser.get("/login/provider", params={"next": target})
    assert answer.status_code == 303, answer.text
    return answer.headers["location"]


def returned(visitor: Visitor, address: str) -> httpx.Response:
    return visitor.browser.get(address)


def test_visitor_logs_in_at_the_provider_and_reaches_the_page(visitor: Visitor, provider: Provider) -> None:
    first = visitor.get("/search?q=x")
    assert first.headers["location"] == "/login?next=%2Fsearch%3Fq%3Dx"
    page = visitor.page(first.headers["location"])
    assert 'href="/login/provider?next=/search%3Fq%3Dx"' in page
    assert "Log in with 127.0.0.1" in page
    answer = returned(visitor, provider.authorize(sent_to_provider(visitor, "/search?q=x")))
    assert (answer.status_code, answer.headers["location"]) == (303, "/search?q=x")
    assert "Search" in visitor.page("/search?q=x")
    assert "skiway_login" not in visitor.browser.cookies


def test_id_token_is_used_if_only_the_provider_can_read_its_access_tokens(visitor: Visitor, provider: Provider) -> None:
    address = sent_to_provider(visitor)
    nonce = dict(parse_qsl(urlsplit(address).query))["nonce"]
    provider.answer = {"access_token": "opaque", "id_token": provider.token(nonce=nonce)}
    assert returned(visitor, provider.authorize(address)).status_code == 303
    assert visitor.get("/").status_code == 200


def test_id_token_of_another_login_is_refused(visitor: Visitor, provider: Provider) -> None:
    other = dict(parse_qsl(urlsplit(sent_to_provider(visitor)).query))["nonce"]
    for claims in ({}, {"nonce": ""}, {"nonce": 1}, {"nonce": "käse"}, {"nonce": other}):
        for access_token in ("opaque", provider.token()):
            provider.answer = {"access_token": access_token, "id_token": provider.token(**claims)}
            address = sent_to_provider(visitor)
            answer = returned(visitor, provider.authorize(address))
            assert (answer.status_code, "of another login" in answer.text) == (401, True), claims
            assert "skiway_session" not in visitor.browser.cookies


@pytest.mark.parametrize("state", ["käse", "%ff", "x"])
def test_state_of_any_characters_is_refused(visitor: Visitor, provider: Provider, state: str) -> None:
    provider.authorize(sent_to_provider(visitor))
    assert visitor.browser.get(f"/login/callback?code=x&state={state}").status_code == 400


def test_another_browser_cannot_use_the_code(visitor: Visitor, server: Server, provider: Provider) -> None:
    address = provider.authorize(sent_to_provider(visitor))
    with visiting(server) as other:
        answer = returned(other, address)
        assert answer.status_code == 400
        assert "begun in another browser" in answer.text
        sent_to_provider(other)  # a login of its own, whose state is another one
        assert returned(other, address).status_code == 400
        assert "skiway_session" not in other.browser.cookies


def test_code_without_its_verifier_is_worthless(visitor: Visitor, provider: Provider) -> None:
    stolen = dict(parse_qsl(urlsplit(provider.authorize(sent_to_provider(visitor))).query))["code"]
    own = dict(parse_qsl(urlsplit(provider.authorize(sent_to_provider(visitor))).query))
    answer = visitor.browser.get("/login/callback", params={"code": stolen, "state": own["state"]})
    assert answer.status_code == 401
    assert "the identity provider refused the login: invalid_grant: the code is not valid; log in again" in answer.text
    assert "skiway_session" not in visitor.browser.cookies


def test_refusal_of_the_provider_is_shown(visitor: Visitor) -> None:
    state = dict(parse_qsl(urlsplit(sent_to_provider(visitor)).query))["state"]
    answer = visitor.browser.get("/login/callback", params={"error": "access_denied<script>", "state": state})
    assert answer.status_code == 401
    assert "refused the login: access_denied&lt;script&gt;" in answer.text


@pytest.mark.parametrize(
    ("claims", "found"),
    [({"aud": "another"}, "for the audience"), ({"account_id": "nowhere"}, "nowhere")],
    ids=["audience", "account"],
)
def test_token_that_the_server_rejects_starts_no_session(
    visitor: Visitor, provider: Provider, claims: dict[str, str], found: str
) -> None:
    provider.answer = {"access_token": provider.token(**claims)}
    answer = returned(visitor, provider.authorize(sent_to_provider(visitor)))
    assert answer.status_code in (401, 403)
    assert found in answer.text
    assert "skiway_session" not in visitor.browser.cookies


def test_token_that_is_too_large_for_a_session_is_refused_with_a_reason(visitor: Visitor, provider: Provider) -> None:
    provider.answer = {"access_token": provider.token(groups=["a group"] * 500)}
    answer = returned(visitor, provider.authorize(sent_to_provider(visitor)))
    assert answer.status_code == 400
    assert "more than a session can hold" in answer.text


def test_login_leads_only_to_pages_of_this_server(visitor: Visitor, provider: Provider) -> None:
    answer = returned(visitor, provider.authorize(sent_to_provider(visitor, "https://evil.example/")))
    assert answer.headers["location"] == "/"


def test_provider_that_returns_no_token_is_reported(visitor: Visitor, provider: Provider) -> None:
    provider.answer = {"token_type": "Bearer"}
    answer = returned(visitor, provider.authorize(sent_to_provider(visitor)))
    assert answer.status_code == 503
    assert "the identity provider cannot complete logins: its response contains no token" in answer.text
