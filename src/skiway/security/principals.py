"""Who calls."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

__all__ = ["NOBODY", "PLATFORM", "Accounts", "Principal"]

PLATFORM = ""
"""The account of those who look after all accounts, and own nothing themselves."""


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated caller. `permissions` decide; `roles` are where they came from, in lower case, also unknown ones."""

    subject: str
    account_id: str
    roles: frozenset[str]
    permissions: frozenset[str]
    locale: str = ""
    expires_at: datetime | None = None

    @property
    def is_nobody(self) -> bool:
        """Nothing is known of the caller: its identity was lost on the way, or it was never asked."""
        return not (self.subject or self.account_id or self.roles or self.permissions)

    @property
    def is_platform(self) -> bool:
        """The caller looks after accounts and is in none."""
        return self.account_id == PLATFORM and not self.is_nobody


NOBODY = Principal("", PLATFORM, frozenset(), frozenset())
"""The empty principal: no authorizer lets it pass."""


class Accounts(Protocol):
    """The accounts there are, as far as security must know them."""

    def find(self, id_or_name: str) -> str | None:
        """The id of the account with this id, or else with this name."""

    def first(self) -> str | None:
        """The id of some account, always the same one while there is no new one; None when there is none."""
