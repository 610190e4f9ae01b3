"""Tokens for staged tables: they exist only for the client that stages them, so no record names their folder.

A client writes the first files of a staged table before it commits it. To have its requests signed, it sends a token that
names the folder. Only the caller that staged the table can use it, for a limited time.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

import msgspec

from skiway.clock import Clock, utc_now
from skiway.errors import PermissionDenied
from skiway.metastore import Realm
from skiway.security.signed_text import SignedText

__all__ = ["StagedTable", "StagedTables"]

VALID: Final = timedelta(hours=12)


class StagedTable(msgspec.Struct, array_like=True, frozen=True):
    """A staged table: its caller, the ids of its namespace and its own, its folder, and until when its token is valid."""

    account_id: str
    caller: str
    namespace_id: str
    table_id: str
    folder: str
    valid_until: float = 0.0


class StagedTables:
    """Makes and reads tokens, signed with a key that all servers share."""

    def __init__(self, key: bytes, *, clock: Clock = utc_now) -> None:
        self._signed, self._clock = SignedText(key, "staged tables"), clock

    def token(self, staged: StagedTable) -> str:
        """The token of a staged table."""
        dated = msgspec.structs.replace(staged, valid_until=(self._clock() + VALID).timestamp())
        return self._signed.seal(msgspec.json.encode(dated))

    def read(self, token: str, realm: Realm) -> StagedTable:
        """The table that a token names; raises `PermissionDenied` if it is not a token of this caller, or has expired."""
        found = self._signed.open(token)
        if found is None:
            raise _refused()
        staged = msgspec.json.decode(found, type=StagedTable)
        is_own = (staged.account_id, staged.caller) == (realm.account_id, realm.caller)
        if not is_own or self._clock().timestamp() >= staged.valid_until:
            raise _refused()
        return staged


def _refused() -> PermissionDenied:
    return PermissionDenied(
        "the token of the staged table is not valid for this caller, or has expired: stage the table again",
        key="signing.staged",
    )
