"""Who a caller is, and what they may do: authentication from the headers of a call, principals, roles and permissions.

Of authentication, this module has the parts that all modes share, and the mode `dev`, which requires no token. Header names
are in lower case, so that the same code serves gRPC, HTTP and Flight. No error contains a token or a part of one.

Account roles act inside one account. Platform roles act on all accounts, and only for callers without an account, to whom
the operator has assigned them. Role names are case-insensitive. A role that is not in a table grants nothing; identity
providers add roles of their own to every token.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Protocol

from skiway.errors import InvalidArgument, PermissionDenied, Unauthorized
from skiway.foundation.resources import RESOURCES

Claim = str | float | bool | Sequence[str] | None
"""The value of a claim that policies can read."""

PLATFORM = ""
"""The account id of callers with a platform role, who belong to no account."""

MANAGES_ACCOUNTS = "platform.accounts"
"""The permission to act on all accounts. Account roles never have it."""

OBSERVES_PLATFORM = "platform.observe"
"""The permission to read the metrics of the whole server."""


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated caller. Only `permissions` decide. `roles` are in lower case and include unknown ones.

    Policies can name `groups`, and read `claims`, which are those of the caller's token. A job that maintains a table has its
    `table_id`: it may read and write this table, whatever grants and policies say. A function of a pipeline `reads` tables in the
    same way.
    """

    subject: str
    account_id: str
    roles: frozenset[str]
    permissions: frozenset[str]
    locale: str = ""
    expires_at: datetime | None = None
    groups: frozenset[str] = frozenset()
    claims: Mapping[str, Claim] = field(default_factory=dict, hash=False)
    table_id: str = ""
    reads: frozenset[str] = frozenset()
    read_only: bool = False
    """Whether it can only read, also what was granted to it for writing."""

    @property
    def is_nobody(self) -> bool:
        """Whether this is the empty principal, that is, the call was not authenticated."""
        return not (self.subject or self.account_id or self.roles or self.permissions)

    @property
    def is_platform(self) -> bool:
        """Whether this is a caller with a platform role, who belongs to no account."""
        return self.account_id == PLATFORM and not self.is_nobody


NOBODY = Principal("", PLATFORM, frozenset(), frozenset())
"""The empty principal. Authorizers reject it."""


class Accounts(Protocol):
    """Lookup of accounts."""

    def find(self, id_or_name: str) -> str | None:
        """The id of the account with this id, or else with this name."""

    def first(self) -> str | None:
        """The id of the first account in some stable order, or None if there is none."""


DEFAULT_ROLE = "default"
DEVELOPER_ROLE = "developer"
MEMBER_ROLE = "member"
"""The role of callers who may only do what was granted to them."""

PLATFORM_ADMIN_ROLE = "platform-admin"
PLATFORM_MONITOR_ROLE = "platform-monitor"

READ = frozenset({"account.read", "catalog.read", "namespace.read", "table.read", "view.read"})
WRITE = frozenset({"catalog.write", "namespace.write", "table.write", "view.write"})
WORK = READ | WRITE | {"connector.manage", "system-objects.read"}
ADMINISTER = WORK | {"account.delete", "grant.manage", *(resource.permission for resource in RESOURCES)}
PLATFORM_ADMINISTER = frozenset(
    {"account.read", "account.write", "account.delete", MANAGES_ACCOUNTS, OBSERVES_PLATFORM}
)
START_ACCOUNT = frozenset(
    {"account.read", "account.write", "catalog.read", "catalog.write", "connector.create"}
    | {"namespace.read", "namespace.write"}
)
INTERNAL = frozenset({"storage-authority.resolve-internal", "reconcile-executor-control.internal"})

ROLES: Mapping[str, frozenset[str]] = {
    DEFAULT_ROLE: READ,
    "administrator": ADMINISTER,
    DEVELOPER_ROLE: ADMINISTER,
    MEMBER_ROLE: frozenset({"account.read"}),
    "init-account": START_ACCOUNT,
    "delete-account": frozenset({"account.delete"}),
    "system-objects": frozenset({"system-objects.read"}),
    "reconcile-worker": WORK | INTERNAL,
}
"""Permissions by account role."""


@dataclass(frozen=True, slots=True)
class Roles:
    """The tables of account roles and platform roles, with the configured name of the platform administrator role."""

    platform_admin: str = PLATFORM_ADMIN_ROLE

    def __post_init__(self) -> None:
        name = self.platform_admin.strip().lower()
        if not name or name in ROLES or name == PLATFORM_MONITOR_ROLE:
            raise InvalidArgument(
                f"the name of the platform administrator role is {self.platform_admin!r}, which is "
                f"{'the name of another role' if name else 'blank'}: choose another, such as {PLATFORM_ADMIN_ROLE}"
            )
        object.__setattr__(self, "platform_admin", name)

    def permissions(self, roles: Iterable[str]) -> frozenset[str]:
        """The permissions of all these roles in an account; those of `default` if none is an account role."""
        known = normal_roles(roles) & ROLES.keys()
        return frozenset[str]().union(*(ROLES[role] for role in known or {DEFAULT_ROLE}))

    def platform_permissions(self, roles: Iterable[str]) -> frozenset[str]:
        """The permissions of all these roles on the platform; none if none is a platform role."""
        table = self.platform_table()
        return frozenset[str]().union(*(table[role] for role in normal_roles(roles) & table.keys()))

    def developer(self) -> frozenset[str]:
        """All permissions, for callers in mode `dev`."""
        return self.permissions([DEVELOPER_ROLE]) | PLATFORM_ADMINISTER | INTERNAL

    def granting(self, *permissions: str, platform: bool = False) -> list[str]:
        """The names of the roles that grant one of these permissions in an account, or on the platform, sorted."""
        table = self.platform_table() if platform else ROLES
        return sorted(role for role, allowed in table.items() if not allowed.isdisjoint(permissions))

    def platform_table(self) -> Mapping[str, frozenset[str]]:
        """Permissions by platform role."""
        return {self.platform_admin: PLATFORM_ADMINISTER, PLATFORM_MONITOR_ROLE: frozenset({OBSERVES_PLATFORM})}

    def table(self) -> Mapping[str, frozenset[str]]:
        """Permissions by role: account roles, then platform roles."""
        return {**ROLES, **self.platform_table()}


def normal_roles(roles: Iterable[str]) -> frozenset[str]:
    """The names in lower case, without blank ones."""
    return frozenset(name for role in roles if (name := role.strip().lower()))


class Authorizer(Protocol):
    """Decides whether a caller may do something. A server accepts any implementation."""

    def require(self, principal: Principal, *any_of: str) -> None:
        """Return if the caller has one of the permissions.

        Raises `PermissionDenied` if it has none, and `Unauthorized` if the call was not authenticated.
        """


class PermissionAuthorizer:
    """Decides by the permissions of the principal only."""

    def __init__(self, roles: Roles | None = None) -> None:
        self._roles = roles or Roles()

    def require(self, principal: Principal, *any_of: str) -> None:
        """See `Authorizer`. Without any permission to choose from, every caller is rejected."""
        if principal.is_nobody:
            raise Unauthorized(
                f"this requires {_either(any_of)}, but the call is not authenticated: authenticate first",
                key="principal.missing",
            )
        if principal.permissions.isdisjoint(any_of):
            raise self._denied(principal, any_of)

    def _denied(self, principal: Principal, any_of: tuple[str, ...]) -> PermissionDenied:
        roles = ", ".join(sorted(principal.roles)) or "no role"
        where = f"in account {principal.account_id}" if principal.account_id else "on the platform"
        granting = self._roles.granting(*any_of, platform=principal.is_platform)
        remedy = f"ask for one of the roles {', '.join(granting)}" if granting else "no role grants it"
        return PermissionDenied(
            f"this requires {_either(any_of)}, but {principal.subject} {where} has {roles}: {remedy}",
            key="permission.missing",
            permission="|".join(any_of),
            subject=principal.subject,
            roles=", ".join(sorted(principal.roles)),
        )


def _either(permissions: tuple[str, ...]) -> str:
    return f"the permission {' or '.join(permissions)}" if permissions else "a permission that is not specified"


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
class Admission:
    """Gives the bearers of valid tokens their permissions. With `accounts`, the account must exist; without, any is accepted.

    `platform_subjects` are the callers to whom the operator has assigned platform roles. Where it is None, the operator
    issues the tokens, and the bearer of one with a platform role may use it.
    """

    roles: Roles
    accounts: Accounts | None
    platform_subjects: frozenset[str] | None = None

    def admit(self, bearer: Principal) -> Principal:
        """The bearer of a token with the permissions of its roles: account roles in an account, platform roles without one."""
        roles = normal_roles(bearer.roles)
        platform = frozenset(roles & self.roles.platform_table().keys())
        if bearer.account_id:
            self._require_account(bearer.account_id)
            roles = roles - platform
            return replace(bearer, roles=roles, permissions=self.roles.permissions(roles))
        self._require_assigned(bearer.subject, platform)
        return replace(bearer, roles=platform, permissions=self.roles.platform_permissions(platform))

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
