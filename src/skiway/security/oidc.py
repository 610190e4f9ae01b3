"""Mode `oidc`: JSON Web Tokens signed by an identity provider, and logins at the provider in a browser.

`OidcAuthenticator` verifies a token. `bearer_of` reads its claims, which providers write in different ways.

`CodeLogin` is the authorization code flow of OpenID Connect, with PKCE. The browser is sent to the provider, and returns
with a code. The server exchanges the code for tokens. This is written here instead of using a library because it is one
address and one request, and the request needs the limits of `identity_provider`.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

import jwt
from jwt.exceptions import InvalidSubjectError

from skiway.config.server import Session
from skiway.errors import InvalidArgument, Unauthorized
from skiway.foundation.cache import Cache
from skiway.foundation.clock import Clock, utc_now
from skiway.security.authentication import Accounts, Admission, Principal, Roles, TokenHeaders
from skiway.security.identity_provider import LOGIN, check_url, metadata_of, post_form, quoted_error, unavailable
from skiway.security.signing_keys import (
    PublishedKeys,
    SigningKey,
    SigningKeys,
    StaticKey,
    keys_by_discovery,
    keys_by_url,
)

# Public-key algorithms only. With HMAC, anyone who can verify a token could also sign one, and a public key mistaken for a
# shared secret would let everyone sign. `none` is not a signature.
MAX_QUOTED = 100
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")


@dataclass(frozen=True, slots=True)
class OidcRules:
    """Which tokens are accepted: their issuer, audiences, algorithms and headers, and the names of their claims.

    The issuer may be empty with a `StaticKey`: the holder of the private key is the issuer then.
    """

    issuer: str
    audiences: Sequence[str]
    algorithms: Sequence[str] = ALGORITHMS
    leeway_s: float = 30.0
    claims: Session = field(default_factory=Session)
    headers: TokenHeaders = field(default_factory=TokenHeaders)

    def __post_init__(self) -> None:
        if not self.audiences or isinstance(self.audiences, str) or not all(self.audiences):
            raise InvalidArgument(
                f"the audiences of tokens are {self.audiences!r}, so tokens for other services would be accepted: "
                "list at least one"
            )
        unsafe = sorted(set(self.algorithms) - set(ALGORITHMS))
        if unsafe or not self.algorithms:
            raise InvalidArgument(
                f"tokens cannot be verified with {', '.join(unsafe) or 'no algorithm'}: choose from {', '.join(ALGORITHMS)}"
            )


def open_keys(issuer: str, *, public_key: str = "", jwks_url: str = "", allow_http: bool = False) -> SigningKeys:
    """The keys for tokens: a public key in PEM format, else the key set at a URL, else the one found by discovery."""
    if public_key and jwks_url:
        raise InvalidArgument("both a public key and the URL of a key set are configured: keep one of them")
    if public_key:
        return StaticKey(public_key)
    if jwks_url:
        return PublishedKeys(keys_by_url(jwks_url, allow_http=allow_http))
    return PublishedKeys(keys_by_discovery(issuer, allow_http=allow_http))


class OidcAuthenticator:
    """Accepts tokens signed by the issuer. With `accounts`, the account of a token must exist.

    Only `platform_subjects` may use platform roles: those who assign roles at the issuer may not be the operators of this server.
    """

    def __init__(
        self,
        rules: OidcRules,
        keys: SigningKeys,
        *,
        accounts: Accounts | None,
        roles: Roles | None = None,
        platform_subjects: Iterable[str] = (),
        clock: Clock = utc_now,
    ) -> None:
        if not rules.issuer and not isinstance(keys, StaticKey):
            raise InvalidArgument("published keys may belong to several issuers: name the issuer of tokens")
        self._rules = rules
        self._keys = keys
        self._admission = Admission(roles or Roles(), accounts, frozenset(platform_subjects))
        self._clock = clock

    def authenticate(self, headers: Mapping[str, str]) -> Principal:
        """The bearer of the token in the headers."""
        claims = self._verified(self._rules.headers.token(headers))
        self._check_time(claims)
        return self._admission.admit(bearer_of(claims, self._rules.claims))

    def _verified(self, token: str) -> Mapping[str, Any]:
        """The claims of a token after verifying its signature, issuer and audience."""
        kid, algorithm = self._header(token)
        key = self._keys.find(kid, algorithm)
        try:
            return self._decoded(token, key, algorithm)
        except jwt.PyJWTError as error:
            raise self._error(error, token) from None

    def _header(self, token: str) -> tuple[str, str]:
        """The key id and algorithm, which are needed to verify the token."""
        try:
            header = jwt.get_unverified_header(token)
        except jwt.PyJWTError:
            raise _malformed() from None
        kid, algorithm = header.get("kid", ""), header.get("alg", "")
        if not isinstance(kid, str) or not isinstance(algorithm, str):
            raise _malformed()
        if algorithm not in self._rules.algorithms:
            raise Unauthorized(
                f"the token is signed with an algorithm that is not accepted: use {', '.join(self._rules.algorithms)}",
                key="token.algorithm",
            )
        return kid, algorithm

    def _decoded(self, token: str, key: SigningKey, algorithm: str) -> Mapping[str, Any]:
        return jwt.decode(
            token,
            key.key,
            algorithms=[algorithm],
            audience=list(self._rules.audiences),
            issuer=self._rules.issuer or None,
            # `_check_time` checks times against our own clock.
            options={"require": ["exp", "sub"], "verify_exp": False, "verify_nbf": False, "verify_iat": False},
        )

    def _check_time(self, claims: Mapping[str, Any]) -> None:
        now, leeway = self._clock(), timedelta(seconds=self._rules.leeway_s)
        begins, ends = moment_of(claims, "nbf"), moment_of(claims, "exp")
        if ends is not None and now - leeway >= ends:
            raise Unauthorized(
                f"the token was valid until {ends.isoformat()}, and it is {now.isoformat()}: get a new one from the issuer",
                key="token.expired",
            )
        if begins is not None and now + leeway < begins:
            raise Unauthorized(
                f"the token is valid from {begins.isoformat()}, and it is {now.isoformat()}: retry then; if this is unexpected, "
                "compare the clocks of issuer and server",
                key="token.not_yet_valid",
            )

    def _error(self, error: jwt.PyJWTError, token: str) -> Unauthorized:
        """Our error for one of PyJWT, whose message may quote from the token."""
        missing = error.claim if isinstance(error, jwt.MissingRequiredClaimError) else ""
        if isinstance(error, jwt.InvalidAudienceError) or missing == "aud":
            wanted = " or ".join(self._rules.audiences)
            return Unauthorized(
                f"the token is for the audience {_quoted(token, 'aud')}, but this server requires {wanted}: get a token for it "
                "from the issuer, or have the operator correct auth.oidc.audience",
                key="token.audience",
            )
        if isinstance(error, jwt.InvalidIssuerError) or missing == "iss":
            return Unauthorized(
                f"the token is from the issuer {_quoted(token, 'iss')}, but this server accepts only {self._rules.issuer}: get a "
                "token there, or have the operator correct auth.oidc.issuer",
                key="token.issuer",
            )
        if isinstance(error, jwt.InvalidSignatureError):
            return Unauthorized(
                "the token's signature is invalid: get a new token from the issuer", key="token.signature"
            )
        if missing or isinstance(error, InvalidSubjectError):
            claim = missing or "sub"
            return Unauthorized(
                f"the token's claim {claim} is missing or invalid: configure the issuer to add it",
                key="token.claim",
                claim=claim,
            )
        return _malformed()


def _quoted(token: str, claim: str) -> str:
    """A claim of a token whose signature is valid, for a message to its bearer."""
    try:
        found = jwt.decode(token, options={"verify_signature": False}).get(claim)
    except jwt.PyJWTError:
        return "unknown"
    return "none" if found is None else repr(found)[:MAX_QUOTED]


def _malformed() -> Unauthorized:
    return Unauthorized(
        "the token is not a JSON Web Token: check that it is complete, and that it is the access token",
        key="token.malformed",
    )


# Claims

KEYCLOAK_ROLES = "realm_access.roles"
LOCALE = "locale"
GROUPS = "groups"


def bearer_of(claims: Mapping[str, Any], names: Session) -> Principal:
    """The bearer of a verified token, without permissions. `a.b` names the claim `a.b`, or else `b` inside the claim `a`."""
    subject, locale = claims.get("sub"), claims.get(LOCALE)
    if not isinstance(subject, str) or not subject.strip():
        raise _invalid_claim("sub", "not the name of a caller")
    return Principal(
        subject,
        _account(_claim(claims, names.account_claim), names.account_claim),
        _roles(claims, names.role_claim),
        frozenset(),
        locale=locale if isinstance(locale, str) else "",
        expires_at=moment_of(claims, "exp"),
        groups=_groups(claims.get(GROUPS)),
        claims={name: value for name, value in claims.items() if _is_readable(value)},
    )


def _groups(found: Any) -> frozenset[str]:
    """The groups of a caller, which are text or a list of text; others are ignored, because they grant nothing."""
    given = found if isinstance(found, list) else [found]
    return frozenset(each for each in given if isinstance(each, str))


def _is_readable(value: Any) -> bool:
    """Whether policies can read the value of a claim: text, a number, a truth value, or a list of text."""
    return isinstance(value, str | int | float) or (
        isinstance(value, list) and all(isinstance(each, str) for each in value)
    )


def moment_of(claims: Mapping[str, Any], name: str) -> datetime | None:
    """The value of a claim that is a time, in seconds since 1970."""
    seconds = claims.get(name)
    if seconds is None:
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise _invalid_claim(name, "not a time in seconds since 1970")
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, ValueError, OSError):
        raise _invalid_claim(name, "a time out of range") from None


def _account(found: Any, name: str) -> str:
    """An account id given as text, a number, or the first element of a list; empty if there is none."""
    first = found[0] if isinstance(found, list) and found else found
    match first:
        case None | []:
            return ""
        case str():
            return first.strip()
        case int() if not isinstance(first, bool):
            return str(first)
        case _:
            raise _invalid_claim(name, "neither text nor an integer")


def _roles(claims: Mapping[str, Any], name: str) -> frozenset[str]:
    """Role names given as text, a list, or a JSON list in text. If the claim is missing, Keycloak's claim is used."""
    found = _claim(claims, name)
    if found is None:
        found = _claim(claims, KEYCLOAK_ROLES)
    if isinstance(found, str) and found.lstrip().startswith("["):
        found = _from_json(found, name)
    if isinstance(found, str):
        found = [found]
    if found is None:
        return frozenset()
    if not isinstance(found, list) or not all(isinstance(role, str) for role in found):
        raise _invalid_claim(name, "neither text nor a list of text")
    return frozenset(found)


def _from_json(text: str, name: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise _invalid_claim(name, "malformed JSON") from None


def _claim(claims: Mapping[str, Any], path: str) -> Any:
    if path in claims:
        return claims[path]
    found: Any = claims
    for step in path.split("."):
        found = found.get(step) if isinstance(found, dict) else None
    return found


def _invalid_claim(claim: str, found: str) -> Unauthorized:
    return Unauthorized(
        f"the token's claim {claim} is {found}: correct it at the issuer, or configure another claim",
        key="token.claim",
        claim=claim,
    )


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
        self._metadata = Cache[str, Mapping[str, Any]](1, lasting_s=METADATA_S)

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
        return self._metadata.get(
            self._issuer, lambda: metadata_of(self._issuer, timeout_s=self._timeout_s, problem=LOGIN)
        )
