"""Authentication and authorization as configured: the authenticator of `auth.mode`, its headers, roles and authorizer."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Final, cast

from skiway.config import Settings
from skiway.errors import InvalidArgument
from skiway.plugins import named_plugin
from skiway.security import (
    Accounts,
    Authenticator,
    Authorizer,
    DevAuthenticator,
    Roles,
    TokenAuthenticator,
    TokenFile,
    TokenHeaders,
)

__all__ = ["AUTHORIZERS", "authenticator", "authorizer", "credential_headers", "roles"]

AUTHORIZERS: Final = "skiway.authorizers"
BUILT_IN: Final = {"roles": "skiway.security.principals:PermissionAuthorizer"}


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
    settings: Settings, accounts: Accounts, *, note_use: Callable[[str], None] = lambda _: None
) -> Authenticator:
    """The authenticator of `auth.mode`. `note_use` is called with the hash of each static token that is used."""
    match settings.auth.mode:
        case "dev":
            header = settings.interceptor.dev_account.header
            return DevAuthenticator(accounts, account_header=header, roles=roles(settings))
        case "token":
            return _by_token(settings, accounts, note_use)
        case "oidc":
            return _by_oidc(settings, accounts)


def credential_headers(settings: Settings) -> tuple[str, ...]:
    """The headers that contain credentials."""
    headers = _headers(settings)
    return tuple(filter(None, (headers.session, headers.authorization)))


def _by_token(settings: Settings, accounts: Accounts, note_use: Callable[[str], None]) -> Authenticator:
    file = settings.auth.tokens.file
    if file is None:
        raise InvalidArgument("auth.mode token requires auth.tokens.file: set the path of the tokens file")
    if not file.exists():
        raise InvalidArgument(
            f"auth.mode is token, but the tokens file {file} does not exist: create a first token with "
            "skiway tokens new NAME --account default --role administrator",
            key="tokens.file",
        )
    return TokenAuthenticator(
        TokenFile(file).entries,
        accounts=accounts,
        roles=roles(settings),
        headers=_headers(settings),
        on_use=lambda entry: note_use(entry.sha256),
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
        headers=_headers(settings),
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


def _headers(settings: Settings) -> TokenHeaders:
    interceptor = settings.interceptor
    return TokenHeaders(session=interceptor.session.header or "", authorization=interceptor.authorization.header)
