"""Authentication and authorization as configured: the authenticator of `auth.mode`, its headers, roles and authorizer."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Final, cast

from skiway.config import Settings
from skiway.errors import InvalidArgument
from skiway.foundation.extras import named_plugin
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
