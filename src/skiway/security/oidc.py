"""What the claims of a verified token say of its bearer. Providers write the same thing in many ways."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import jwt
from jwt.exceptions import InvalidSubjectError

from skiway.clock import Clock, utc_now
from skiway.errors import InvalidArgument, Unauthorized
from skiway.security.authentication import Admission, Identity, TokenHeaders
from skiway.security.principals import Accounts, Principal, Roles
from skiway.security.signing_keys import (
    PublishedKeys,
    SigningKey,
    SigningKeys,
    StaticKey,
    keys_by_discovery,
    keys_by_url,
)

__all__ = ["ALGORITHMS", "ClaimNames", "OidcAuthenticator", "OidcRules", "identity_of", "moment_of", "open_keys"]

KEYCLOAK_ROLES = "realm_access.roles"


@dataclass(frozen=True, slots=True)
class ClaimNames:
    """Which claim holds what. `a.b` is the claim of that name, or else `b` inside of `a`."""

    account: str = "account_id"
    roles: str = "roles"
    locale: str = "locale"


def identity_of(claims: Mapping[str, Any], names: ClaimNames) -> Identity:
    """The bearer."""
    subject, locale = claims.get("sub"), claims.get(names.locale)
    if not isinstance(subject, str) or not subject.strip():
        raise _wrong("sub", "no name of the caller")
    return Identity(
        subject,
        _account(_claim(claims, names.account), names.account),
        _roles(claims, names.roles),
        locale=locale if isinstance(locale, str) else "",
        expires_at=moment_of(claims, "exp"),
    )


def moment_of(claims: Mapping[str, Any], name: str) -> datetime | None:
    """A claim that is a time, in seconds since 1970."""
    seconds = claims.get(name)
    if seconds is None:
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise _wrong(name, "no time in seconds since 1970")
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, ValueError, OSError):
        raise _wrong(name, "a time out of range") from None


def _account(found: Any, name: str) -> str:
    """An id as text, as a number, or as the first of a list; empty when there is none."""
    first = found[0] if isinstance(found, list) and found else found
    match first:
        case None | []:
            return ""
        case str():
            return first.strip()
        case int() if not isinstance(first, bool):
            return str(first)
        case _:
            raise _wrong(name, "neither text nor a whole number")


def _roles(claims: Mapping[str, Any], name: str) -> frozenset[str]:
    """Names as one text, as a list, or as a list in JSON in a text; where the claim is absent, Keycloak's."""
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
        raise _wrong(name, "neither text nor a list of texts")
    return frozenset(found)


def _from_json(text: str, name: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise _wrong(name, "a list in JSON that is broken") from None


def _claim(claims: Mapping[str, Any], path: str) -> Any:
    if path in claims:
        return claims[path]
    found: Any = claims
    for step in path.split("."):
        found = found.get(step) if isinstance(found, dict) else None
    return found


def _wrong(claim: str, found: str) -> Unauthorized:
    return Unauthorized(
        f"the token's claim {claim} is {found}: have the issuer put it right, or name another claim in the settings",
        key="token.claim",
        claim=claim,
    )


# --------------------
# Mode `oidc`: tokens that an identity provider signed (JSON Web Tokens).


# Signed with a private key and checked with a public one. With HMAC whoever can check could also sign, and a public key
# taken for a shared secret would let everybody sign; `none` is no signature.
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")


@dataclass(frozen=True, slots=True)
class OidcRules:
    """Which tokens are good: who issued them, for whom, and how far clocks may disagree.

    The issuer may be left empty where one public key is given: then whoever holds the private key is the issuer.
    """

    issuer: str
    audiences: Sequence[str]
    algorithms: Sequence[str] = ALGORITHMS
    leeway_s: float = 30.0
    claims: ClaimNames = field(default_factory=ClaimNames)
    headers: TokenHeaders = field(default_factory=TokenHeaders)

    def __post_init__(self) -> None:
        if not self.audiences or isinstance(self.audiences, str) or not all(self.audiences):
            raise InvalidArgument(
                f"the audiences of tokens are {self.audiences!r}, so tokens for other services would be taken: "
                "list at least one"
            )
        unsafe = sorted(set(self.algorithms) - set(ALGORITHMS))
        if unsafe or not self.algorithms:
            raise InvalidArgument(
                f"tokens cannot be checked with {', '.join(unsafe) or 'no algorithm'}: choose from {', '.join(ALGORITHMS)}"
            )


def open_keys(issuer: str, *, public_key: str = "", jwks_url: str = "", allow_http: bool = False) -> SigningKeys:
    """The keys for tokens: a public key in PEM, else the key set at a URL, else what the issuer's discovery names."""
    if public_key and jwks_url:
        raise InvalidArgument("both a public key and the address of a key set are given for tokens: keep one of them")
    if public_key:
        return StaticKey(public_key)
    if jwks_url:
        return PublishedKeys(keys_by_url(jwks_url, allow_http=allow_http))
    return PublishedKeys(keys_by_discovery(issuer, allow_http=allow_http))


class OidcAuthenticator:
    """Believes what the issuer signed. With `accounts`, the account a token is for must exist."""

    def __init__(
        self,
        rules: OidcRules,
        keys: SigningKeys,
        *,
        accounts: Accounts | None,
        roles: Roles | None = None,
        clock: Clock = utc_now,
    ) -> None:
        if not rules.issuer and not isinstance(keys, StaticKey):
            raise InvalidArgument("published keys may be those of several issuers: name the issuer of tokens")
        self._rules = rules
        self._keys = keys
        self._admission = Admission(roles or Roles(), accounts)
        self._clock = clock

    def authenticate(self, headers: Mapping[str, str]) -> Principal:
        """The bearer of the token that was sent."""
        claims = self._verified(self._rules.headers.token(headers))
        self._check_time(claims)
        return self._admission.admit(identity_of(claims, self._rules.claims))

    def _verified(self, token: str) -> Mapping[str, Any]:
        """The claims of a token that our issuer signed for us."""
        kid, algorithm = self._header(token)
        key = self._keys.find(kid, algorithm)
        try:
            return self._decoded(token, key, algorithm)
        except jwt.PyJWTError as error:
            raise self._refusal(error) from None

    def _header(self, token: str) -> tuple[str, str]:
        """Which key, which algorithm: what must be known before anything of the token can be believed."""
        try:
            header = jwt.get_unverified_header(token)
        except jwt.PyJWTError:
            raise _malformed() from None
        kid, algorithm = header.get("kid", ""), header.get("alg", "")
        if not isinstance(kid, str) or not isinstance(algorithm, str):
            raise _malformed()
        if algorithm not in self._rules.algorithms:
            raise Unauthorized(
                f"the token is not signed with an algorithm that is accepted here: use {', '.join(self._rules.algorithms)}",
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
            # Times are held against our own clock below.
            options={"require": ["exp", "sub"], "verify_exp": False, "verify_nbf": False, "verify_iat": False},
        )

    def _check_time(self, claims: Mapping[str, Any]) -> None:
        now, leeway = self._clock(), timedelta(seconds=self._rules.leeway_s)
        begins, ends = moment_of(claims, "nbf"), moment_of(claims, "exp")
        if ends is not None and now - leeway >= ends:
            raise Unauthorized(
                f"the token was valid until {ends.isoformat()}, and it is {now.isoformat()}: get a new one from its issuer",
                key="token.expired",
            )
        if begins is not None and now + leeway < begins:
            raise Unauthorized(
                f"the token is valid from {begins.isoformat()}, and it is {now.isoformat()}: try again then; if this "
                "is a surprise, compare the clocks of issuer and server",
                key="token.not_yet_valid",
            )

    def _refusal(self, error: jwt.PyJWTError) -> Unauthorized:
        """PyJWT's finding in our words: its own may quote from the token."""
        missing = error.claim if isinstance(error, jwt.MissingRequiredClaimError) else ""
        if isinstance(error, jwt.InvalidAudienceError) or missing == "aud":
            wanted = " or ".join(self._rules.audiences)
            return Unauthorized(
                f"the token is for another audience than {wanted}: ask its issuer for one for {wanted}",
                key="token.audience",
            )
        if isinstance(error, jwt.InvalidIssuerError) or missing == "iss":
            return Unauthorized(
                f"the token is from another issuer than {self._rules.issuer}: get one there", key="token.issuer"
            )
        if isinstance(error, jwt.InvalidSignatureError):
            return Unauthorized(
                "the token's signature is wrong, it was changed or signed by somebody else: get a new one from its issuer",
                key="token.signature",
            )
        if missing or isinstance(error, InvalidSubjectError):
            claim = missing or "sub"
            return Unauthorized(
                f"the token's claim {claim} is missing or wrong: have the issuer add it", key="token.claim", claim=claim
            )
        return _malformed()


def _malformed() -> Unauthorized:
    return Unauthorized(
        "the token is no JSON Web Token: check that it was copied whole, and that it is the access token",
        key="token.malformed",
    )
