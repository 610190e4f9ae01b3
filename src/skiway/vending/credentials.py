"""Which access a caller has to the files of a table, and the credentials that clients receive for it.

`CredentialsProvider` is the interface of what issues them. `StaticKeys` is the simplest one: keys that the operator
configured, for stores without STS. They are not limited to a table: a client with them can read, or write, everything that the
store permits. So only callers who may do the same with all tables of their account, and whom no policy restricts,
receive them, and only in the accounts that the operator names.

A client writes the first files of a staged table before it commits it, when no record names its folder. To have its requests
signed, it sends a token that names the folder. Only the caller that staged the table can use it, for a limited time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from threading import Lock
from typing import ClassVar, Final, Generic, Protocol, TypeVar

import msgspec
from cachetools import LRUCache

from skiway.errors import PermissionDenied, Unavailable
from skiway.formats import Location, location
from skiway.foundation.clock import Clock, utc_now
from skiway.metastore import Realm
from skiway.metastore.managed.locations import folder_on_main
from skiway.metastore.records.access import AccessDecision
from skiway.model import v1
from skiway.security.signed_tokens import SignedText


@dataclass(frozen=True, slots=True)
class TableAccess:
    """Access of one caller to the folder of one table: to read its files and, if `writes`, to add and delete files.

    `everywhere` tells whether the caller has the same access to all tables of the account. On a branch of the lake, files are added
    and deleted only in the part of the folder that is `written`.
    """

    account_id: str
    caller: str
    folder: Location
    writes: bool
    everywhere: bool = False
    written: Location | None = None

    @property
    def writes_everything(self) -> bool:
        """Whether files can be added and deleted in the whole folder."""
        return self.writes and self.written is None

    @property
    def prefix(self) -> str:
        """The start of the locations of all files in the folder."""
        return f"{self.folder}/"

    @property
    def word(self) -> str:
        """The access in one word, for the audit trail."""
        return "write" if self.writes else "read"


def table_access(realm: Realm, decision: AccessDecision | None, table: v1.Table, folder: str) -> TableAccess | None:
    """The access of the caller to the files in `folder`, which are those of `table`; None if they are on a disk.

    On a branch of the lake, it is the folder of the branch, and the caller may read that of the table on main.

    Raises `PermissionDenied` if the caller may not read the table, or if a policy restricts what it sees of it.
    Without a decision the caller is the server itself, which may do everything.
    """
    realm.require_unrestricted(table)
    if decision is not None:
        decision.require("table.read", table)
    place = location(folder)
    if place.scheme == "file":
        return None
    writes = decision is None or decision.may("table.write", table)
    permission = "table.write" if writes else "table.read"
    unrestricted = realm.policies is None or not realm.policies.restrict_anything
    everywhere = unrestricted and (decision is None or decision.everywhere(permission))
    whole = location(folder_on_main(realm, folder))
    written = None if whole == place else place
    return TableAccess(realm.account_id, realm.caller, whole, writes, everywhere, written)


MAX_SESSIONS: Final = 1000


class Credentials(Protocol):
    """Credentials of any object store."""

    @property
    def properties(self) -> Mapping[str, str]:
        """The credentials, in the properties of Iceberg clients."""

    @property
    def expires_at(self) -> datetime | None:
        """When they expire; None if they do not."""

    @property
    def renewal_property(self) -> str:
        """The property that tells Iceberg clients where to renew them."""


@dataclass(frozen=True, slots=True)
class S3Keys:
    """Keys of S3. Temporary ones have a session token and expire."""

    renewal_property: ClassVar[str] = "client.refresh-credentials-endpoint"

    access_key_id: str
    secret_access_key: str = field(repr=False)
    session_token: str = field(default="", repr=False)
    expires_at: datetime | None = None

    @property
    def properties(self) -> Mapping[str, str]:
        """The credentials, in the properties of Iceberg clients."""
        found = {"s3.access-key-id": self.access_key_id, "s3.secret-access-key": self.secret_access_key}
        if self.session_token:
            found["s3.session-token"] = self.session_token
        if self.expires_at is not None:
            found["s3.session-token-expires-at-ms"] = str(int(self.expires_at.timestamp() * 1000))
        return found


@dataclass(frozen=True, slots=True)
class TemporaryCredentials:
    """Credentials of another store: the properties that clients expect."""

    properties: Mapping[str, str] = field(repr=False)
    expires_at: datetime
    renewal_property: str


class CredentialsProvider(Protocol):
    """Issues credentials for tables in one object store."""

    @property
    def lifetime_s(self) -> float | None:
        """How long new credentials are valid at least; None if they do not expire."""

    def issue(self, access: TableAccess) -> Credentials | None:
        """Credentials with this access and no more than the provider documents; None if there are none for it."""


C = TypeVar("C", bound=Credentials)


class Sessions(ABC, Generic[C]):
    """Issues credentials that expire. The same caller gets the same for the same access, until half of their life is over."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._issued: LRUCache[TableAccess, tuple[C, datetime]] = LRUCache(MAX_SESSIONS)
        self._lock = Lock()

    @abstractmethod
    def new(self, access: TableAccess) -> C:
        """New credentials for this access."""

    def issue(self, access: TableAccess) -> C:
        """See `CredentialsProvider`."""
        now = self._clock()
        with self._lock:
            found = self._issued.get(access)
        if found is not None and now <= found[1]:
            return found[0]
        issued = self.new(access)
        if issued.expires_at is not None:
            with self._lock:
                self._issued[access] = issued, now + (issued.expires_at - now) / 2
        return issued


def not_issued(service: str, error: Exception) -> Unavailable:
    """The error for a failure of the service that issues credentials. Only the log names the reason."""
    return Unavailable(
        "credentials for the table cannot be issued now: try again later, or ask the operator, who finds the reason "
        "in the log of the server",
        key="vending.unavailable",
        detail=f"{service}: {error}",
    )


class StaticKeys:
    """Hands out one pair of keys to readers, and another one to writers. A writer without a pair gets that of readers."""

    lifetime_s: Final = None

    def __init__(self, *, accounts: Iterable[str], read: S3Keys | None, write: S3Keys | None) -> None:
        self._accounts, self._read, self._write = frozenset(accounts), read, write

    def issue(self, access: TableAccess) -> S3Keys | None:
        """See `CredentialsProvider`."""
        if access.account_id not in self._accounts or not access.everywhere:
            return None
        return (self._write or self._read) if access.writes_everything else self._read


STAGED_VALID: Final = timedelta(hours=12)


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
        dated = msgspec.structs.replace(staged, valid_until=(self._clock() + STAGED_VALID).timestamp())
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
