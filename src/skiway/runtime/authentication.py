"""Authentication as configured: the authenticator of `auth.mode`, its headers and roles."""

from __future__ import annotations

import re
from pathlib import Path

from skiway.config import Settings
from skiway.errors import InvalidArgument
from skiway.security import (
    Accounts,
    Authenticator,
    DevAuthenticator,
    Roles,
    TokenAuthenticator,
    TokenFile,
    TokenHeaders,
)

__all__ = ["authenticator", "credential_headers", "roles"]


def roles(settings: Settings) -> Roles:
    """The table of roles, with the configured name of the platform administrator role."""
    return Roles(settings.auth.platform_admin.role)


def authenticator(settings: Settings, accounts: Accounts) -> Authenticator:
    """The authenticator of `auth.mode`."""
    match settings.auth.mode:
        case "dev":
            header = settings.interceptor.dev_account.header
            return DevAuthenticator(accounts, account_header=header, roles=roles(settings))
        case "token":
            return _by_token(settings, accounts)
        case "oidc":
            return _by_oidc(settings, accounts)


def credential_headers(settings: Settings) -> tuple[str, ...]:
    """The headers that contain credentials."""
    headers = _headers(settings)
    return tuple(filter(None, (headers.session, headers.authorization)))


def _by_token(settings: Settings, accounts: Accounts) -> Authenticator:
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
        accounts=_validated(settings, accounts),
        roles=roles(settings),
        headers=_headers(settings),
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
    return OidcAuthenticator(rules, keys, accounts=_validated(settings, accounts), roles=roles(settings))


def _text(public_key: Path | None) -> str:
    try:
        return public_key.read_text() if public_key else ""
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise InvalidArgument(f"auth.oidc.public_key {public_key} cannot be read: {reason}") from None


def _validated(settings: Settings, accounts: Accounts) -> Accounts | None:
    """The accounts that tokens are checked against; None if they are not checked."""
    return accounts if settings.interceptor.validate.account else None


def _headers(settings: Settings) -> TokenHeaders:
    interceptor = settings.interceptor
    return TokenHeaders(session=interceptor.session.header or "", authorization=interceptor.authorization.header)
