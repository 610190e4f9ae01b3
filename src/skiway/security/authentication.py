"""Authentication: from the headers of a call to a principal, or `Unauthorized`.

This module has the parts that all modes share, and the mode `dev`, which requires no token. Header names are in lower case,
so that the same code serves gRPC, HTTP and Flight. No error contains a token or a part of one.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from skiway.errors import Unauthorized
from skiway.security.principals import DEVELOPER_ROLE, PLATFORM, Accounts, Claim, Principal, Roles, normal_roles

__all__ = [
    "DEFAULT_ACCOUNT",
    "DEV_ACCOUNT_HEADER",
    "MAX_TOKEN_CHARACTERS",
    "Admission",
    "Authenticator",
    "DevAuthenticator",
    "Identity",
    "IssuedTokenAuthenticator",
    "IssuedTokens",
    "TokenHeaders",
]

MAX_TOKEN_CHARACTERS = 16_384


class Authenticator(Protocol):
    """Authenticates calls."""

    def authenticate(self, headers: Mapping[str, str]) -> Principal:
        """The principal of a call with these headers, whose names are in lower case. Raises `Unauthorized`."""


@dataclass(frozen=True, slots=True)
class TokenHeaders:
    """The headers that may contain a token. The session header, if configured and sent, takes precedence.

    `login` says how to get one. These parameters of the error for a call without a token let `skiway login` begin.
    """

    session: str = ""
    authorization: str = "authorization"
    login: Mapping[str, str] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "session", self.session.strip().lower())
        object.__setattr__(self, "authorization", self.authorization.strip().lower() or "authorization")

    def is_sent(self, headers: Mapping[str, str]) -> bool:
        """Whether a call has something in these headers."""
        return any(name and headers.get(name, "").strip() for name in (self.session, self.authorization))

    def token(self, headers: Mapping[str, str]) -> str:
        """The token of a call, without its scheme."""
        name, value = self._find(headers)
        scheme, _, rest = value.partition(" ")
        token = rest.strip() if scheme.lower() == "bearer" else value
        if token.split() != [token] or not token.isascii():
            raise Unauthorized(f"header {name} contains no token: send `{name}: Bearer <token>`", key="token.malformed")
        if len(token) > MAX_TOKEN_CHARACTERS:
            raise Unauthorized(
                f"the token in header {name} has {len(token)} characters, the maximum is {MAX_TOKEN_CHARACTERS}: "
                "get a token with fewer claims",
                key="token.malformed",
            )
        return token

    def _find(self, headers: Mapping[str, str]) -> tuple[str, str]:
        for name in (self.session, self.authorization):
            if name and (value := headers.get(name, "").strip()):
                return name, value
        either = f"{self.authorization} or {self.session}" if self.session else self.authorization
        raise Unauthorized(
            f"the call has no token: send it in header {either}, as `{self.authorization}: Bearer <token>`",
            key="token.missing",
            **self.login,
        )


class IssuedTokens(Protocol):
    """Tokens of one kind that the servers issue themselves, and that begin with `prefix`."""

    @property
    def prefix(self) -> str:
        """How they begin."""

    def principal(self, token: str) -> Principal:
        """The principal of a token; raises `Unauthorized` if it was not issued here, or is no longer valid."""


class IssuedTokenAuthenticator:
    """Authenticates calls with issued tokens of one kind, and all others with `inner`."""

    def __init__(self, inner: Authenticator, tokens: IssuedTokens, headers: TokenHeaders | None = None) -> None:
        self.inner = inner
        self._tokens, self._headers = tokens, headers or TokenHeaders()

    def authenticate(self, headers: Mapping[str, str]) -> Principal:
        """See `Authenticator`."""
        token = ""
        if self._headers.is_sent(headers):
            with suppress(Unauthorized):  # `inner` says what is wrong with it
                token = self._headers.token(headers)
        is_ours = token.startswith(self._tokens.prefix)
        return self._tokens.principal(token) if is_ours else self.inner.authenticate(headers)


@dataclass(frozen=True, slots=True)
class Identity:
    """The content of a valid token. `account` is an account id, or empty."""

    subject: str
    account: str
    roles: frozenset[str]
    locale: str = ""
    expires_at: datetime | None = None
    groups: frozenset[str] = frozenset()
    claims: Mapping[str, Claim] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class Admission:
    """Turns identities into principals. With `accounts`, the account must exist; without, any account is accepted.

    `platform_subjects` are the callers to whom the operator has assigned platform roles. Where it is None, the operator
    issues the tokens, and whoever has one with a platform role may use it.
    """

    roles: Roles
    accounts: Accounts | None
    platform_subjects: frozenset[str] | None = None

    def admit(self, identity: Identity) -> Principal:
        """The principal with the permissions of its roles: account roles in an account, platform roles without one."""
        roles = normal_roles(identity.roles)
        platform = frozenset(roles & self.roles.platform_table().keys())
        if identity.account:
            self._require_account(identity.account)
            roles, permissions = roles - platform, self.roles.permissions(roles - platform)
        else:
            self._require_assigned(identity.subject, platform)
            roles, permissions = platform, self.roles.platform_permissions(platform)
        return Principal(
            identity.subject,
            identity.account or PLATFORM,
            roles,
            permissions,
            locale=identity.locale,
            expires_at=identity.expires_at,
            groups=identity.groups,
            claims=identity.claims,
        )

    def _require_assigned(self, subject: str, platform: frozenset[str]) -> None:
        """Require a platform role that the operator has assigned: roles of an account grant nothing on the platform."""
        if not platform:
            names = " or ".join(self.roles.platform_table())
            raise Unauthorized(
                f"the token of {subject} has no account, which is allowed only with the role {names}: get a token for an account",
                key="token.account",
            )
        if self.platform_subjects is not None and subject not in self.platform_subjects:
            raise Unauthorized(
                f"the token of {subject} has the role {', '.join(sorted(platform))}, which the operator has not assigned to this "
                "subject: get a token for an account, or ask the operator to add the subject to auth.platform_admin.subjects",
                key="token.platform",
            )

    def _require_account(self, account: str) -> None:
        """Require an existing account id. A name is not enough: members can change it, and would attract foreign callers."""
        found = account if self.accounts is None else self.accounts.find(account)
        if found != account:
            problem = "does not exist" if found is None else "is the name of an account, not its id"
            raise Unauthorized(
                f"the token is for account {account}, which {problem}: get a token for the id of an existing account",
                key="token.account",
                account_id=account,
            )


DEV_USER = "dev-user"
DEV_ACCOUNT_HEADER = "x-skiway-account"
DEFAULT_ACCOUNT = "default"


class DevAuthenticator:
    """Mode `dev`: every caller is the developer. The account is the one in a header, else `default`, else the first."""

    def __init__(
        self, accounts: Accounts, *, account_header: str = DEV_ACCOUNT_HEADER, roles: Roles | None = None
    ) -> None:
        self._accounts = accounts
        self._header = account_header.strip().lower()
        self._permissions = (roles or Roles()).developer()

    def authenticate(self, headers: Mapping[str, str]) -> Principal:
        """The developer, in the selected account."""
        return Principal(DEV_USER, self._account(headers), frozenset({DEVELOPER_ROLE}), self._permissions)

    def _account(self, headers: Mapping[str, str]) -> str:
        if named := headers.get(self._header, "").strip():
            if found := self._accounts.find(named):
                return found
            raise Unauthorized(
                f"header {self._header} names account {named}, which does not exist: send the id or name of an existing account, "
                "or omit the header",
                key="account.unknown",
                account_id=named,
            )
        account = self._accounts.find(DEFAULT_ACCOUNT) or self._accounts.first()
        if account is None:
            raise Unauthorized("there is no account yet: create one, then retry", key="account.none")
        return account
