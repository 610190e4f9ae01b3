"""Mode `dev`: everybody is the developer. For one's own machine."""

from __future__ import annotations

from collections.abc import Mapping

from skiway.errors import Unauthorized
from skiway.security.principals import Accounts, Principal
from skiway.security.roles import DEVELOPER_ROLE, Roles

__all__ = ["DEFAULT_ACCOUNT", "DEV_ACCOUNT_HEADER", "DevAuthenticator"]

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
