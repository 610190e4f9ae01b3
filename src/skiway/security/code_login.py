"""Logging in at an identity provider: the authorization code flow of OpenID Connect, with PKCE.

The browser is sent to the provider, and returns with a code. The server exchanges the code for tokens. This is written here
instead of using a library because it is one address and one request, and the request needs the limits of `identity_provider`.
"""

from __future__ import annotations

import hashlib
import hmac
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from threading import Lock
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

import jwt
from cachetools import TTLCache

from skiway.errors import Unauthorized
from skiway.security.identity_provider import LOGIN, check_url, metadata_of, post_form, quoted_error, unavailable

__all__ = ["CodeLogin"]

METADATA_S: Final = 300.0


def _has_nonce(token: str, nonce: str) -> bool:
    """Whether an ID token contains the nonce. The server checks the signature of a token when it is used."""
    try:
        found = jwt.decode(token, options={"verify_signature": False}).get("nonce")
    except jwt.InvalidTokenError:
        return False
    return isinstance(found, str) and hmac.compare_digest(found.encode(errors="replace"), nonce.encode())


class CodeLogin:
    """Logins at one issuer. `client_secret` is empty for a public client, which PKCE alone protects."""

    def __init__(
        self,
        issuer: str,
        client_id: str,
        *,
        client_secret: str = "",
        scopes: str = "openid",
        allow_http: bool = False,
        timeout_s: float = 5.0,
    ) -> None:
        check_url(issuer, allow_http=allow_http)
        self._issuer, self._client_id, self._client_secret = issuer, client_id, client_secret
        self._scopes, self._allow_http, self._timeout_s = scopes, allow_http, timeout_s
        self._metadata: TTLCache[str, Mapping[str, Any]] = TTLCache(1, METADATA_S)
        self._lock = Lock()

    @property
    def name(self) -> str:
        """The host of the issuer, for people."""
        return urlsplit(self._issuer).hostname or self._issuer

    def address(self, redirect_uri: str, *, state: str, verifier: str, nonce: str) -> str:
        """Where the browser asks for a code. It then returns to `redirect_uri` with the code and `state`.

        The provider puts `nonce` into the ID token.
        """
        challenge = urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()
        asked = {
            "response_type": "code",
            "client_id": self._client_id,
            "redirect_uri": redirect_uri,
            "scope": self._scopes,
            "state": state,
            "nonce": nonce,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
        }
        endpoint = self._endpoint("authorization_endpoint")
        return f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(asked)}"

    def tokens(self, code: str, *, verifier: str, redirect_uri: str, nonce: str) -> list[str]:
        """The tokens for a code: the access token, then the ID token. Some providers issue access tokens that only they can read.

        An ID token must have the nonce of this login: otherwise it belongs to another one.
        """
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect_uri,
            "client_id": self._client_id,
            "code_verifier": verifier,
        }
        user = None
        if self._client_secret and self._accepts_basic():
            user = quote(self._client_id, safe=""), quote(self._client_secret, safe="")
        elif self._client_secret:
            form["client_secret"] = self._client_secret
        status, answer = post_form(self._endpoint("token_endpoint"), form, user=user, timeout_s=self._timeout_s)
        if status != 200:
            raise Unauthorized(
                f"the identity provider refused the login: {quoted_error(answer)}; log in again", key="login.refused"
            )
        found = [answer.get(name) for name in ("access_token", "id_token")]
        tokens = [each for each in found if isinstance(each, str) and each]
        if not tokens:
            raise unavailable(self._issuer, "its response contains no token", problem=LOGIN)
        identity = answer.get("id_token")
        if isinstance(identity, str) and identity and not _has_nonce(identity, nonce):
            raise Unauthorized(
                "the identity provider sent the ID token of another login: log in again", key="login.nonce"
            )
        return tokens

    def _accepts_basic(self) -> bool:
        methods = self._published().get("token_endpoint_auth_methods_supported", ["client_secret_basic"])
        return not isinstance(methods, list) or "client_secret_basic" in methods

    def _endpoint(self, name: str) -> str:
        found = self._published().get(name)
        if not isinstance(found, str):
            raise unavailable(self._issuer, f"its metadata contains no {name}", problem=LOGIN)
        check_url(found, allow_http=self._allow_http)
        return found

    def _published(self) -> Mapping[str, Any]:
        with self._lock:
            found = self._metadata.get(self._issuer)
        if found is None:
            found = metadata_of(self._issuer, timeout_s=self._timeout_s, problem=LOGIN)
            with self._lock:
                self._metadata[self._issuer] = found
        return found
