"""Tokens for staged tables: they exist only for the client that stages them, so no record names their folder.

A client writes the first files of a staged table before it commits it. To have its requests signed, it sends a token that
names the folder. Only the caller that staged the table can use it, for a limited time.
"""

from __future__ import annotations

import binascii
import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from datetime import timedelta
from hashlib import sha256
from typing import Final

import msgspec

from skiway.clock import Clock, utc_now
from skiway.errors import PermissionDenied
from skiway.metastore import Realm

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
        self._key, self._clock = hmac.new(key, b"staged tables", sha256).digest(), clock

    def token(self, staged: StagedTable) -> str:
        """The token of a staged table."""
        dated = msgspec.structs.replace(staged, valid_until=(self._clock() + VALID).timestamp())
        return _text(content := msgspec.json.encode(dated)) + "." + _text(self._mac(content))

    def read(self, token: str, realm: Realm) -> StagedTable:
        """The table that a token names; raises `PermissionDenied` if it is not a token of this caller, or has expired."""
        content, _, mac = token.partition(".")
        try:
            found, given = _bytes(content), _bytes(mac)
        except (ValueError, binascii.Error):
            raise _refused() from None
        if not hmac.compare_digest(self._mac(found), given):
            raise _refused()
        staged = msgspec.json.decode(found, type=StagedTable)
        is_own = (staged.account_id, staged.caller) == (realm.account_id, realm.caller)
        if not is_own or self._clock().timestamp() >= staged.valid_until:
            raise _refused()
        return staged

    def _mac(self, content: bytes) -> bytes:
        return hmac.new(self._key, content, sha256).digest()


def _text(data: bytes) -> str:
    return urlsafe_b64encode(data).decode().rstrip("=")


def _bytes(text: str) -> bytes:
    return urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4))


def _refused() -> PermissionDenied:
    return PermissionDenied(
        "the token of the staged table is not valid for this caller, or has expired: stage the table again",
        key="signing.staged",
    )
