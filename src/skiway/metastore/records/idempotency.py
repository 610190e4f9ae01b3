"""Calls that may be sent twice: a key of the client's choice, and the answer kept for those who ask again.

The answer is written in the same batch as the change it tells of. So there is either both or nothing, whenever a
process dies, and two calls with one key at the same time make one change: the batch of the second is refused, and it
finds the answer of the first.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256
from typing import Generic, TypeVar

from google.protobuf.message import Message

from skiway.errors import Conflict
from skiway.metastore.records import keys
from skiway.metastore.records.errors import failure
from skiway.metastore.records.kinds import IDEMPOTENCY
from skiway.metastore.records.realm import Realm, timestamp
from skiway.model import v1
from skiway.storage import ABSENT, Operation, Put

__all__ = ["Claim", "fingerprint", "once", "publishing"]

R = TypeVar("R", bound=Message)


@dataclass(frozen=True, slots=True)
class Claim(Generic[R]):
    """One call with its key. `asked` is what it asks for, names normalised; a blank key claims nothing."""

    realm: Realm
    operation: str
    key: str
    asked: Message
    answer: type[R]

    def answered(self) -> R | None:
        """The answer this call got before, or None."""
        if not self.key.strip():
            return None
        where = keys.idempotency(self.realm.account_id, self.operation, self.key)
        record = self.realm.all(IDEMPOTENCY).named(where)
        if record is None:
            return None
        if record.fingerprint != fingerprint(self.asked):
            raise failure(Conflict, "idempotency.mismatch", op=self.operation, idempotency_key=self.key)
        return self.answer.FromString(record.answer)

    def remembering(self, answer: R) -> tuple[Operation, ...]:
        """What to do in the batch of the change, so that the answer is found again until it expires."""
        if not self.key.strip():
            return ()
        record = v1.IdempotencyRecord(
            operation=self.operation,
            key=self.key,
            fingerprint=fingerprint(self.asked),
            answer=answer.SerializeToString(deterministic=True),
        )
        return (publishing(self.realm, record, expect=ABSENT, for_s=self.realm.idempotency_ttl_s),)


def publishing(realm: Realm, record: v1.IdempotencyRecord, *, expect: int, for_s: float) -> Put:
    """What makes the record one that is found under its key for that long, in the realm's account; its blob is there."""
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


def once(claim: Claim[R], act: Callable[[], R]) -> R:
    """The answer of an earlier call with this key, or that of `act`, which remembers it."""
    earlier = claim.answered()
    if earlier is not None:
        return earlier
    try:
        return act()
    except Conflict:
        # A call with the same key may have been faster.
        earlier = claim.answered()
        if earlier is None:
            raise
        return earlier


def fingerprint(asked: Message) -> str:
    """Tells requests apart: equal for messages that say the same."""
    return base64.b64encode(sha256(asked.SerializeToString(deterministic=True)).digest()).decode()
