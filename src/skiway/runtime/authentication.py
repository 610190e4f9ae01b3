"""Who may enter, by the settings: the ways to authenticate, and which headers carry credentials."""

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
    """The table of roles, with the platform's administrator under the name that the settings have."""
    return Roles(settings.auth.platform_admin.role)


def authenticator(settings: Settings, accounts: Accounts) -> Authenticator:
    """The way callers authenticate, as `auth.mode` says."""
    match settings.auth.mode:
        case "dev":
            header = settings.interceptor.dev_account.header
            return DevAuthenticator(accounts, account_header=header, roles=roles(settings))
        case "token":
            return _by_token(settings, accounts)
        case "oidc":
            return _by_oidc(settings, accounts)


def credential_headers(settings: Settings) -> tuple[str, ...]:
    """The headers that callers authenticate with."""
    headers = _headers(settings)
    return tuple(filter(None, (headers.session, headers.authorization)))


def _by_token(settings: Settings, accounts: Accounts) -> Authenticator:
    file = settings.auth.tokens.file
    if file is None:
        raise InvalidArgument("auth.mode token needs auth.tokens.file: name the file of the known tokens")
    if not file.exists():
        raise InvalidArgument(
            f"auth.mode is token, but the tokens file {file} does not exist: make a first token with "
            "skiway tokens new NAME --account default --role administrator",
            key="tokens.file",
        )
    return TokenAuthenticator(
        TokenFile(file).entries,
        accounts=_checked(settings, accounts),
        roles=roles(settings),
        headers=_headers(settings),
    )


def _by_oidc(settings: Settings, accounts: Accounts) -> Authenticator:
    # Here, because only this mode needs the libraries of cryptography.
    from skiway.security.oidc import ALGORITHMS, ClaimNames, OidcAuthenticator, OidcRules, open_keys

    oidc, session = settings.auth.oidc, settings.interceptor.session
    issuer = oidc.issuer or ""
    rules = OidcRules(
        issuer,
        audiences=[oidc.audience] if oidc.audience else [],
        leeway_s=oidc.leeway_seconds,
        algorithms=re.findall(r"\w+", oidc.algorithms or "") or ALGORITHMS,
        claims=ClaimNames(account=session.account_claim, roles=session.role_claim),
        headers=_headers(settings),
    )
    keys = open_keys(
        issuer, public_key=_text(oidc.public_key), jwks_url=oidc.jwks_url or "", allow_http=oidc.allow_http
    )
    return OidcAuthenticator(rules, keys, accounts=_checked(settings, accounts), roles=roles(settings))


def _text(public_key: Path | None) -> str:
    try:
        return public_key.read_text() if public_key else ""
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise InvalidArgument(f"auth.oidc.public_key {public_key} cannot be read: {reason}") from None


def _checked(settings: Settings, accounts: Accounts) -> Accounts | None:
    return accounts if settings.interceptor.validate.account else None


def _headers(settings: Settings) -> TokenHeaders:
    interceptor = settings.interceptor
    return TokenHeaders(session=interceptor.session.header or "", authorization=interceptor.authorization.header)
