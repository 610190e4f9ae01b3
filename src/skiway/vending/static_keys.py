"""Keys that the operator configured for clients, for stores without STS.

They are not limited to a table: whoever has them can read, or write, everything that the store permits them to. So only
callers who may do the same with all tables of their account, and whom no policy restricts, receive them, and only in the
accounts that the operator names.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from skiway.vending.access import TableAccess
from skiway.vending.credentials import S3Keys

__all__ = ["StaticKeys"]


class StaticKeys:
    """Hands out one pair of keys to readers, and another one to writers. A writer without a pair gets that of readers."""

    lifetime_s: Final = None

    def __init__(self, *, accounts: Iterable[str], read: S3Keys | None, write: S3Keys | None) -> None:
        self._accounts, self._read, self._write = frozenset(accounts), read, write

    def issue(self, access: TableAccess) -> S3Keys | None:
        """See `CredentialsProvider`."""
        if access.account_id not in self._accounts or not access.everywhere:
            return None
        return (self._write or self._read) if access.writes else self._read
