"""An identity provider with the device flow, and the person who confirms its codes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from security.issuer import Publisher, jwk, publishing, rsa_key, token

CLIENT = "command-line"
GRANT = "urn:ietf:params:oauth:grant-type:device_code"


@dataclass
class DeviceProvider:
    """`answers` are the responses to the next requests for tokens, as errors; then the person has confirmed the code."""

    published: Publisher
    answers: list[dict[str, str]] = field(default_factory=list)
    issued: list[str] = field(default_factory=list)
    """All tokens and secret codes that have left the provider."""
    lifetime_s: int = 300
    refreshes: bool = True
    code: dict[str, Any] = field(default_factory=dict)
    """Changes of the response with the code."""
    given: dict[str, Any] = field(default_factory=dict)
    """Changes of the response with the tokens."""
    refresh_token: str = ""
    device_code: str = ""
    revoked: list[str] = field(default_factory=list)
    scopes: str = ""

    def reset(self) -> None:
        """Forget everything but what is published."""
        self.__dict__.update(DeviceProvider(self.published).__dict__)

    def secret(self, text: str) -> str:
        self.issued.append(text)
        return text

    def token(self, **claims: Any) -> str:
        now = datetime.now(UTC)
        times = {"exp": now + timedelta(minutes=5), "nbf": now - timedelta(minutes=1), "iat": now}
        facts = {"iss": self.published.url, "account_id": "default", "roles": ["administrator"], **times, **claims}
        return self.secret(token(kid="main", jti=str(len(self.issued)), **facts))

    def authorize(self, form: dict[str, str]) -> tuple[int, Any]:
        if form.get("client_id") != CLIENT:
            return 401, {"error": "invalid_client", "error_description": "unknown\nclient"}
        self.scopes = form["scope"]
        self.device_code = self.secret(f"device-code-{len(self.issued)}-of-some-length")
        found = {
            "device_code": self.device_code,
            "user_code": "WDJB-MJHT",
            "verification_uri": f"{self.published.url}/device",
            "expires_in": 600,
            "interval": 0.01,
        }
        return 200, {name: value for name, value in {**found, **self.code}.items() if value is not None}

    def exchange(self, form: dict[str, str], authorization: str) -> tuple[int, Any]:
        assert not authorization, "the command line is a public client"
        if form["grant_type"] == "refresh_token":
            if form["refresh_token"] != self.refresh_token or not self.refreshes:
                return 400, {"error": "invalid_grant"}
            return self._tokens()
        assert (form["grant_type"], form["client_id"]) == (GRANT, CLIENT)
        if form["device_code"] != self.device_code:
            return 400, {"error": "invalid_grant"}
        return (400, self.answers.pop(0)) if self.answers else self._tokens()

    def revoke(self, form: dict[str, str]) -> tuple[int, Any]:
        self.revoked.append(form["token"])
        return 200, {}

    def _tokens(self) -> tuple[int, Any]:
        self.refresh_token = self.secret(f"refresh-token-{len(self.issued)}-of-some-length")
        found = {"access_token": self.token(), "refresh_token": self.refresh_token, "expires_in": self.lifetime_s}
        return 200, {name: value for name, value in {**found, **self.given}.items() if value is not None}


@contextmanager
def device_provider() -> Iterator[DeviceProvider]:
    with publishing(keys=[jwk(rsa_key(), "main")]) as published:
        found = DeviceProvider(published)
        published.exchange = lambda form, authorization: found.exchange(form, authorization)
        published.forms = {"/device_authorization": found.authorize, "/revoke": found.revoke}
        published.metadata = {
            "device_authorization_endpoint": f"{published.url}/device_authorization",
            "revocation_endpoint": f"{published.url}/revoke",
        }
        yield found
