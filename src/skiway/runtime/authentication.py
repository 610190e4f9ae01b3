"""Authentication and authorization as configured: the authenticator of `auth.mode`, its headers, roles and authorizer, and
operators.

Operators may see what concerns the whole server rather than one account: its metrics, and the list of its services.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from pathlib import Path
from typing import Final, cast
from urllib.parse import unquote

from skiway.config import Settings
from skiway.errors import InvalidArgument
from skiway.foundation.plugins import named_plugin
from skiway.request_path import Access
from skiway.security import (
    AccessTokens,
    Accounts,
    Authenticator,
    Authorizer,
    DevAuthenticator,
    IssuedTokenAuthenticator,
    JobTokens,
    Roles,
    TokenAuthenticator,
    TokenFile,
    TokenHeaders,
    roles_of_user,
)

AUTHORIZERS: Final = "skiway.authorizers"
BUILT_IN: Final = {"roles": "skiway.security.authentication:PermissionAuthorizer"}


def roles(settings: Settings) -> Roles:
    """The table of roles, with the configured name of the platform administrator role."""
    return Roles(settings.auth.platform_admin.role)


def authorizer(settings: Settings) -> Authorizer:
    """The authorizer that `auth.authorizer` names, made from the table of roles."""
    name = settings.auth.authorizer
    made = named_plugin(AUTHORIZERS, name, BUILT_IN)(roles(settings))
    if not callable(getattr(made, "require", None)):
        raise InvalidArgument(
            f"the authorizer {name!r} has no method require(principal, *any_of): see skiway.security.Authorizer",
            key="authorizer.invalid",
        )
    return cast(Authorizer, made)


def authenticator(
    settings: Settings,
    accounts: Accounts,
    *,
    note_use: Callable[[str], None] = lambda _: None,
    key: Callable[[], bytes] | None = None,
) -> Authenticator:
    """The authenticator of `auth.mode`. `note_use` is called with the hash of each static token that is used.

    `key` returns the key that signs access tokens; without it there are none.
    """
    match settings.auth.mode:
        case "dev":
            header = settings.interceptor.dev_account.header
            return DevAuthenticator(accounts, account_header=header, roles=roles(settings))
        case "token":
            return _by_token(settings, accounts, note_use, key)
        case "oidc":
            return _by_oidc(settings, accounts)


def current_roles(settings: Settings) -> Callable[[str, str], frozenset[str] | None] | None:
    """The function that tells the roles of a user in an account; None in modes in which only callers tell them.

    It returns None for a user without a valid token. Workers use it, too, so they need the tokens file of the servers.
    """
    file = settings.auth.tokens.file
    if settings.auth.mode != "token" or file is None:
        return None
    tokens = cache(TokenFile)

    def found(account_id: str, user: str) -> frozenset[str] | None:
        return roles_of_user(tokens(file).entries(), account_id, user)

    return found


def credential_headers(settings: Settings) -> tuple[str, ...]:
    """The headers that contain credentials."""
    headers = token_headers(settings)
    return tuple(filter(None, (headers.session, headers.authorization)))


def issuer(settings: Settings, made: Authenticator) -> TokenAuthenticator | None:
    """What issues access tokens: the authenticator of static tokens, unless this is turned off."""
    inner = made.inner if isinstance(made, IssuedTokenAuthenticator) else made
    return inner if settings.auth.oauth.enabled and isinstance(inner, TokenAuthenticator) else None


def with_jobs(settings: Settings, made: Authenticator, tokens: JobTokens) -> Authenticator:
    """An authenticator that also admits jobs with their tokens."""
    return IssuedTokenAuthenticator(made, tokens, token_headers(settings))


def _by_token(
    settings: Settings, accounts: Accounts, note_use: Callable[[str], None], key: Callable[[], bytes] | None
) -> Authenticator:
    file, oauth = settings.auth.tokens.file, settings.auth.oauth
    if file is None:
        raise InvalidArgument("auth.mode token requires auth.tokens.file: set the path of the tokens file")
    if not file.exists():
        raise InvalidArgument(
            f"auth.mode is token, but the tokens file {file} does not exist: create a first token with "
            "skiway tokens create NAME --account default --role administrator",
            key="tokens.file",
        )
    return TokenAuthenticator(
        TokenFile(file).entries,
        accounts=accounts,
        roles=roles(settings),
        headers=token_headers(settings),
        on_use=lambda entry: note_use(entry.sha256),
        access_tokens=AccessTokens(key(), lifetime_s=oauth.lifetime_seconds, session_s=oauth.session_seconds)
        if key is not None and oauth.enabled
        else None,
    )


def _by_oidc(settings: Settings, accounts: Accounts) -> Authenticator:
    # Imported here, because only this mode needs the cryptography libraries.
    from skiway.security.oidc import ALGORITHMS, OidcAuthenticator, OidcRules, open_keys

    oidc = settings.auth.oidc
    issuer = oidc.issuer or ""
    rules = OidcRules(
        issuer,
        audiences=[oidc.audience] if oidc.audience else [],
        leeway_s=oidc.leeway_seconds,
        algorithms=re.findall(r"\w+", oidc.algorithms or "") or ALGORITHMS,
        claims=settings.interceptor.session,
        headers=token_headers(settings),
    )
    keys = open_keys(
        issuer, public_key=_text(oidc.public_key), jwks_url=oidc.jwks_url or "", allow_http=oidc.allow_http
    )
    return OidcAuthenticator(
        rules, keys, accounts=accounts, roles=roles(settings), platform_subjects=settings.auth.platform_admin.subjects
    )


def _text(public_key: Path | None) -> str:
    try:
        return public_key.read_text() if public_key else ""
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise InvalidArgument(f"auth.oidc.public_key {public_key} cannot be read: {reason}") from None


def token_headers(settings: Settings) -> TokenHeaders:
    """The headers that may contain a token."""
    interceptor = settings.interceptor
    return TokenHeaders(
        session=interceptor.session.header or "", authorization=interceptor.authorization.header, login=_login(settings)
    )


def _login(settings: Settings) -> dict[str, str]:
    """Where `skiway login` gets a token, and as which client: a public one, since the command line can keep no secret."""
    oidc = settings.auth.oidc
    if settings.auth.mode != "oidc" or not oidc.issuer:
        return {}
    client_id = oidc.device_client_id or (oidc.client_id if not oidc.client_secret else None)
    return {"login_issuer": oidc.issuer, "login_client_id": client_id or "", "login_scopes": oidc.scopes}


FORWARDED: Final = ("forwarded", "x-forwarded-for", "x-real-ip", "via")
"""Headers of proxies. A request with one of them comes from somebody else than the address that is connected."""

GRPC_PEER: Final = re.compile(r"ipv[46]:\[?(?P<host>[^\]]*?)\]?:\d+")


@dataclass(frozen=True, slots=True)
class Operators:
    """Admits callers from the operator's own networks, and callers with credentials."""

    access: Access
    networks: tuple[IPv4Network | IPv6Network, ...] = ()

    @classmethod
    def of(cls, access: Access, networks: Iterable[str]) -> Operators:
        """`networks` are IP addresses and networks such as `10.0.0.0/8`."""
        return cls(access, tuple(ip_network(each) for each in networks))

    def admit(self, headers: Mapping[str, str], peer: str, *any_of: str) -> None:
        """Return if the caller is in one of the networks, or authenticates and has one of the permissions, if any are given.

        `peer` is the IP address of the connection. Raises `Unauthorized` or `PermissionDenied`.
        """
        if self._is_operator(headers, peer):
            return
        principal = self.access.authenticator.authenticate(headers)
        if any_of:
            self.access.authorizer.require(principal, *any_of)

    def admit_grpc(self, headers: Mapping[str, str], peer: str, *any_of: str) -> None:
        """The same for the peer of a gRPC call, such as `ipv4:127.0.0.1:5000`."""
        found = GRPC_PEER.fullmatch(unquote(peer))
        self.admit(headers, found["host"] if found else "", *any_of)

    def _is_operator(self, headers: Mapping[str, str], peer: str) -> bool:
        if not self.networks or any(name in headers for name in FORWARDED):
            return False
        try:
            address = ip_address(peer.partition("%")[0])
        except ValueError:
            return False
        mapped = getattr(address, "ipv4_mapped", None)
        return any((mapped or address) in network for network in self.networks)
