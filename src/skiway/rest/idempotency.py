"""Calls that may be sent twice, by the header `idempotency-key`.

The answer of a call that changed something is kept under its key, errors of the caller's too: whoever sends the same
call again gets it again. While the first is under way, the second is request to come back later. What the server failed
to do is not kept, so it can be tried again; likewise where the process died, after a minute.
"""

from __future__ import annotations

import json
import logging
from base64 import b64encode
from collections.abc import Callable
from hashlib import sha256
from typing import Final

from skiway.errors import Conflict, SkiwayError, Unavailable
from skiway.metastore import Realm
from skiway.metastore.records.errors import failure
from skiway.metastore.records.idempotency import Slot
from skiway.model import v1
from skiway.rest.calls import RestCall, RestResponse, short_header

__all__ = ["KEY", "once"]

KEY: Final = "idempotency-key"
OPERATION: Final = "IcebergRest"
UNDER_WAY_S: Final = 60.0

log = logging.getLogger("skiway.rest")


def once(realm: Realm, call: RestCall, act: Callable[[], RestResponse]) -> RestResponse:
    """What `act` answers, or what it answered when this call was first made. Without a key, `act` is just called.

    What `act` answers is final, errors of the caller's too; what it raises is not.
    """
    key = short_header(call.headers, KEY)
    if not key or not call.route.changes:
        return act()
    slot = Slot(realm, OPERATION, key, _fingerprint(call))
    found = slot.find()
    return _first(slot, act) if found is None else _replayed(found, slot.fingerprint)


def _first(slot: Slot, act: Callable[[], RestResponse]) -> RestResponse:
    try:
        version = slot.reserve(for_s=UNDER_WAY_S)
    except Conflict:
        raise _under_way(slot.key) from None
    try:
        answer = act()
    except BaseException:
        slot.free(version)
        raise
    _store(slot, version, answer)
    return answer


def _store(slot: Slot, version: int, answer: RestResponse) -> None:
    """Store the response. The change is done, so a failure to store the response is not reported to the client."""
    stored = json.dumps({"status": answer.status, "headers": dict(answer.headers), "body": answer.body.decode()})
    try:
        slot.complete(version, stored.encode())
    except SkiwayError:
        log.warning("the response to a request with an idempotency key could not be stored", exc_info=True)


def _replayed(record: v1.IdempotencyRecord, fingerprint: str) -> RestResponse:
    if record.fingerprint != fingerprint:
        raise failure(Conflict, "idempotency.mismatch", op="call", idempotency_key=record.key)
    if not record.answer:
        raise _under_way(record.key)
    kept = json.loads(record.answer)
    return RestResponse(kept["status"], kept["body"].encode(), kept["headers"])


def _under_way(key: str) -> Unavailable:
    return Unavailable(
        f"a call with the key {key} is under way: send it again in a moment", key="idempotency.under_way"
    )


def _fingerprint(call: RestCall) -> str:
    request = f"{call.route.method} {call.target}\n".encode() + call.body
    return b64encode(sha256(request).digest()).decode()
