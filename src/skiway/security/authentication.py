"""What all ways to authenticate share: headers in, a principal out, `Unauthorized` for strangers.

Headers are a mapping with names in lower case, so that gRPC, HTTP and Flight are served by the same code. No error
holds a token, or a part of one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from skiway.errors import Unauthorized
from skiway.security.principals import DEVELOPER_ROLE, PLATFORM, Accounts, Principal, Roles, normal_roles

__all__ = [
    "DEFAULT_ACCOUNT",
    "DEV_ACCOUNT_HEADER",
    "MAX_TOKEN_CHARACTERS",
    "Admission",
    "Authenticator",
    "DevAuthenticator",
    "Identity",
    "TokenHeaders",
]

MAX_TOKEN_CHARACTERS = 16_384


class Authenticator(Protocol):
    """Finds out who calls."""

    def authenticate(self, headers: Mapping[str, str]) -> Principal:
        """The caller; raises `Unauthorized`. Names of headers are in lower case."""


@dataclass(frozen=True, slots=True)
class TokenHeaders:
    """Where a call carries its token. The session header, where one is named and sent, wins."""

    session: str = ""
    authorization: str = "authorization"

    def __post_init__(self) -> None:
        object.__setattr__(self, "session", self.session.strip().lower())
        object.__setattr__(self, "authorization", self.authorization.strip().lower() or "authorization")

    def token(self, headers: Mapping[str, str]) -> str:
        """The token of the call, without its scheme."""
        name, value = self._found(headers)
        scheme, _, rest = value.partition(" ")
        token = rest.strip() if scheme.lower() == "bearer" else value
        if token.split() != [token] or not token.isascii():
            raise Unauthorized(f"header {name} holds no token: write `{name}: Bearer <token>`", key="token.malformed")
        if len(token) > MAX_TOKEN_CHARACTERS:
            raise Unauthorized(
                f"the token in header {name} has {len(token)} characters, and {MAX_TOKEN_CHARACTERS} are the most: "
                "have one issued with fewer claims",
                key="token.malformed",
            )
        return token

    def _found(self, headers: Mapping[str, str]) -> tuple[str, str]:
        for name in (self.session, self.authorization):
            if name and (value := headers.get(name, "").strip()):
                return name, value
        either = f"{self.authorization} or {self.session}" if self.session else self.authorization
        raise Unauthorized(
            f"this call has no token: send it in header {either}, as `{self.authorization}: Bearer <token>`",
            key="token.missing",
        )


@dataclass(frozen=True, slots=True)
class Identity:
    """What a valid token says of its bearer, before anything is made of it. `account` is an id, or empty."""

    subject: str
    account: str
    roles: frozenset[str]
    locale: str = ""
    expires_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Admission:
    """Makes principals of identities. With `accounts`, an account must exist; without, what a token says is believed."""

    roles: Roles
    accounts: Accounts | None

    def admit(self, identity: Identity) -> Principal:
        """The principal, with what its roles allow; without an account, only the platform's administrator."""
        roles = normal_roles(identity.roles)
        if not identity.account:
            roles = self._platform_roles(identity.subject, roles)
        else:
            self._require_account(identity.account)
        return Principal(
            identity.subject,
            identity.account or PLATFORM,
            roles,
            self.roles.permissions(roles),
            locale=identity.locale,
            expires_at=identity.expires_at,
        )

    def _platform_roles(self, subject: str, roles: frozenset[str]) -> frozenset[str]:
        """A role granted inside an account says nothing about the platform, so only its own role is left."""
        if self.roles.platform_admin not in roles:
            raise Unauthorized(
                f"the token of {subject} names no account, which only the role {self.roles.platform_admin} may do "
                "without: have a token issued that says for which account it is",
                key="token.account",
            )
        return frozenset({self.roles.platform_admin})

    def _require_account(self, account: str) -> None:
        """By id only: a name can be changed by those inside, who would so receive the callers of somebody else."""
        found = account if self.accounts is None else self.accounts.find(account)
        if found != account:
            seen = "that of no account here" if found is None else "the name of an account, not its id"
            raise Unauthorized(
                f"the token is for account {account}, which is {seen}: have one issued for the id of an account here",
                key="token.account",
                account_id=account,
            )


# --------------------
# Mode `dev`: everybody is the developer. For one's own machine.


DEV_USER = "dev-user"
DEV_ACCOUNT_HEADER = "x-skiway-account"
DEFAULT_ACCOUNT = "default"


class DevAuthenticator:
    """Asks for no token. The account is the one that a header names, else `default`, else the first there is."""

    def __init__(
        self, accounts: Accounts, *, account_header: str = DEV_ACCOUNT_HEADER, roles: Roles | None = None
    ) -> None:
        self._accounts = accounts
        self._header = account_header.strip().lower()
        self._permissions = (roles or Roles()).developer()

    def authenticate(self, headers: Mapping[str, str]) -> Principal:
        """The developer, in the account of choice."""
        return Principal(DEV_USER, self._account(headers), frozenset({DEVELOPER_ROLE}), self._permissions)

    def _account(self, headers: Mapping[str, str]) -> str:
        if named := headers.get(self._header, "").strip():
            if found := self._accounts.find(named):
                return found
            raise Unauthorized(
                f"header {self._header} names account {named}, which does not exist: give the id or name of one that "
                "does, or leave the header out",
                key="account.unknown",
                account_id=named,
            )
        account = self._accounts.find(DEFAULT_ACCOUNT) or self._accounts.first()
        if account is None:
            raise Unauthorized("there is no account yet: create one, then call again", key="account.none")
        return account
