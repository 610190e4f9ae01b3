"""Idempotency keys: a request with a key that the client chose may be sent twice, and is executed once.

A `Claim` stores the response in the same batch as the change. So there is either both or neither, whenever a process
dies, and two requests with one key at the same time make one change: the batch of the second is rejected, and it finds
the response of the first. A `Slot` is for changes that take several batches: it is reserved before, and completed
after.

Keys belong to their caller. A stored response is returned only while the caller has the rights that it had before: nothing else
checks them then.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256
from typing import Final, Generic, TypeVar

from google.protobuf.message import Message

from skiway.errors import Conflict, PermissionDenied, SkiwayError
from skiway.metastore.records import keys
from skiway.metastore.records.errors import failure
from skiway.metastore.records.kinds import IDEMPOTENCY
from skiway.metastore.records.realm import Realm, timestamp
from skiway.model import v1
from skiway.storage import ABSENT, Operation, Put

__all__ = ["Claim", "Slot", "fingerprint", "once"]

CHANGES_RIGHTS: Final = ("CreatePolicy",)
"""Operations after which the caller may have other rights. Their responses contain nothing that these hide."""

R = TypeVar("R", bound=Message)

BETWEEN: Final = "|"
"""Separates the digests of the request and of the caller's rights in a fingerprint."""


@dataclass(frozen=True, slots=True)
class Claim(Generic[R]):
    """A request with its idempotency key. `request` has normalized names; a blank key stores nothing."""

    realm: Realm
    operation: str
    key: str
    request: Message
    response: type[R]

    def stored_response(self) -> R | None:
        """The response to an earlier request with this key, or None."""
        if not self.key.strip():
            return None
        slot = Slot(self.realm, self.operation, self.key, fingerprint(self.request))
        record = slot.find()
        if record is None:
            return None
        if not slot.matches(record):
            raise failure(Conflict, "idempotency.mismatch", op=self.operation, idempotency_key=self.key)
        if self.operation not in CHANGES_RIGHTS:
            slot.require_rights(record)
        return self.response.FromString(record.answer)

    def storing(self, response: R) -> tuple[Operation, ...]:
        """The operations that store the response until it expires; part of the batch that makes the change."""
        if not self.key.strip():
            return ()
        slot = Slot(self.realm, self.operation, self.key, fingerprint(self.request))
        record = slot.record(response.SerializeToString(deterministic=True))
        return (_put(self.realm, record, expect=ABSENT, for_s=self.realm.idempotency_ttl_s),)


def once(claim: Claim[R], act: Callable[[], R]) -> R:
    """The stored response to an earlier request with this key, or that of `act`, which must store it."""
    earlier = claim.stored_response()
    if earlier is not None:
        return earlier
    try:
        return act()
    except Conflict:
        # A request with the same key may have been faster.
        earlier = claim.stored_response()
        if earlier is None:
            raise
        return earlier


@dataclass(frozen=True, slots=True)
class Slot:
    """The record of one idempotency key. While a request runs it is reserved; afterwards it holds the response."""

    realm: Realm
    operation: str
    key: str
    fingerprint: str

    def find(self) -> v1.IdempotencyRecord | None:
        """The record of an earlier request with this key, or None. Without a response, it is still running."""
        return self.realm.all(IDEMPOTENCY).named(self._where)

    def matches(self, record: v1.IdempotencyRecord) -> bool:
        """Whether the record is that of the same request."""
        return record.fingerprint.partition(BETWEEN)[0] == self.fingerprint

    def require_rights(self, record: v1.IdempotencyRecord) -> None:
        """Raise `PermissionDenied` if the caller has other rights than when the response was stored."""
        if record.fingerprint.partition(BETWEEN)[2] != self.realm.rights:
            raise failure(PermissionDenied, "idempotency.rights", idempotency_key=self.key)

    def record(self, response: bytes) -> v1.IdempotencyRecord:
        """The record with a response."""
        return v1.IdempotencyRecord(
            operation=self.operation,
            key=self._own_key,
            fingerprint=f"{self.fingerprint}{BETWEEN}{self.realm.rights}",
            answer=response,
        )

    def reserve(self, *, for_s: float) -> int:
        """Reserve the key, and return the version for `complete` or `free`. Raise `Conflict` if it is in use."""
        return self._write(b"", expect=ABSENT, for_s=for_s)

    def complete(self, version: int, response: bytes) -> None:
        """Store the response until it expires."""
        self._write(response, expect=version, for_s=self.realm.idempotency_ttl_s)

    def free(self, version: int) -> None:
        """Allow the request to be sent again. If that fails, the reservation expires."""
        with suppress(SkiwayError):
            self.realm.stores.pointers.compare_and_delete(self._where, expect=version)

    @property
    def _where(self) -> str:
        return keys.idempotency(self.realm.account_id, self.operation, self._own_key)

    @property
    def _own_key(self) -> str:
        """The key, which callers do not share."""
        return f"{self.realm.caller}\n{self.key}"

    def _write(self, response: bytes, *, expect: int, for_s: float) -> int:
        put = _put(self.realm, self.record(response), expect=expect, for_s=for_s)
        pointers = self.realm.stores.pointers
        return pointers.compare_and_set(put.key, put.blob_uri, expect=expect, expires_at=put.expires_at).version


def _put(realm: Realm, record: v1.IdempotencyRecord, *, expect: int, for_s: float) -> Put:
    """Write the record's blob, and return the operation that stores the record for that long."""
    now = realm.clock()
    expires_at = now + timedelta(seconds=for_s)
    dated = v1.IdempotencyRecord(
        account_id=realm.account_id,
        created_at=timestamp(now),
        updated_at=timestamp(now),
        expires_at=timestamp(expires_at),
    )
    dated.MergeFrom(record)
    where = IDEMPOTENCY.key(dated)
    data = dated.SerializeToString(deterministic=True)
    uri = realm.stores.blobs.put(data, folder=keys.folder(where), suffix=".pb")
    return Put(where, uri, expect=expect, expires_at=expires_at)


def fingerprint(request: Message) -> str:
    """A digest that is equal for equal messages."""
    return base64.b64encode(sha256(request.SerializeToString(deterministic=True)).digest()).decode()
