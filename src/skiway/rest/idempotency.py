"""Calls that may be sent twice, by the header `idempotency-key`.

The answer of a call that changed something is kept under its key, errors of the caller's too: whoever sends the same
call again gets it again. While the first is under way, the second is asked to come back later. What the server failed
to do is not kept, so it can be tried again; likewise where the process died, after a minute.
"""

from __future__ import annotations

import json
import logging
from base64 import b64encode
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from skiway.errors import Conflict, SkiwayError, Unavailable
from skiway.metastore import Realm
from skiway.metastore.records import keys
from skiway.metastore.records.errors import failure
from skiway.metastore.records.idempotency import publishing
from skiway.metastore.records.kinds import IDEMPOTENCY
from skiway.model import v1
from skiway.rest.calls import Answer, RestCall, short_header

__all__ = ["KEY", "once"]

KEY: Final = "idempotency-key"
OPERATION: Final = "IcebergRest"
UNDER_WAY_S: Final = 60.0
_NEW: Final = 0  # the version of what does not exist yet

log = logging.getLogger("skiway.rest")


def once(realm: Realm, call: RestCall, act: Callable[[], Answer]) -> Answer:
    """What `act` answers, or what it answered when this call was first made. Without a key, `act` is just called.

    What `act` answers is final, errors of the caller's too; what it raises is not.
    """
    key = short_header(call.headers, KEY)
    if not key or not call.route.changes:
        return act()
    slot = _Slot(realm, key, _fingerprint(call))
    found = realm.all(IDEMPOTENCY).find(keys.idempotency(realm.account_id, OPERATION, key))
    return _first(slot, act) if found is None else _replayed(found.value, slot.fingerprint)


def _first(slot: _Slot, act: Callable[[], Answer]) -> Answer:
    claim = slot.claim()
    try:
        answer = act()
    except BaseException:
        slot.free(claim)
        raise
    slot.keep(claim, answer)
    return answer


@dataclass(frozen=True, slots=True)
class _Slot:
    """Where the answer to the calls with one key is kept."""

    realm: Realm
    key: str
    fingerprint: str

    def claim(self) -> int:
        """The version in which the slot is ours, until `keep` or `free`."""
        try:
            return self._put(b"", expect=_NEW, for_s=UNDER_WAY_S)
        except Conflict:
            raise _under_way(self.key) from None

    def keep(self, claim: int, answer: Answer) -> None:
        """Keep the answer. What was done is done: that it cannot be kept is no reason to tell the caller otherwise."""
        kept = json.dumps({"status": answer.status, "headers": dict(answer.headers), "body": answer.body.decode()})
        try:
            self._put(kept.encode(), expect=claim, for_s=self.realm.idempotency_ttl_s)
        except SkiwayError:
            log.warning("the answer to a call with an idempotency key could not be kept", exc_info=True)

    def free(self, claim: int) -> None:
        """Let the call be made again."""
        where = keys.idempotency(self.realm.account_id, OPERATION, self.key)
        with suppress(SkiwayError):  # then it is free in a minute
            self.realm.stores.pointers.compare_and_delete(where, expect=claim)

    def _put(self, answer: bytes, *, expect: int, for_s: float) -> int:
        record = v1.IdempotencyRecord(operation=OPERATION, key=self.key, fingerprint=self.fingerprint, answer=answer)
        put = publishing(self.realm, record, expect=expect, for_s=for_s)
        pointers = self.realm.stores.pointers
        return pointers.compare_and_set(put.key, put.blob_uri, expect=expect, expires_at=put.expires_at).version


def _replayed(record: v1.IdempotencyRecord, fingerprint: str) -> Answer:
    if record.fingerprint != fingerprint:
        raise failure(Conflict, "idempotency.mismatch", op="call", idempotency_key=record.key)
    if not record.answer:
        raise _under_way(record.key)
    kept = json.loads(record.answer)
    return Answer(kept["status"], kept["body"].encode(), kept["headers"])


def _under_way(key: str) -> Unavailable:
    return Unavailable(
        f"a call with the key {key} is under way: send it again in a moment", key="idempotency.under_way"
    )


def _fingerprint(call: RestCall) -> str:
    asked = f"{call.route.method} {call.target}\n".encode() + call.body
    return b64encode(sha256(asked).digest()).decode()
