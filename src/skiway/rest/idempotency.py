"""Idempotency keys: a request with the header `idempotency-key` is executed once.

Its response is stored under the key, client errors included, and returned when the same request is sent again. While the
first request is running, a second one fails with 503. Server errors are not stored, so the request can be repeated; if
the process died, it can be repeated after a minute.
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
    """Return the stored response of the call, or run `act` and store its response. Without a key, only run `act`.

    A response of `act` is stored, also if it reports an error; an exception is not.
    """
    key = short_header(call.headers, KEY)
    if not key or not call.route.changes:
        return act()
    slot = Slot(realm, OPERATION, key, _fingerprint(call))
    found = slot.find()
    return _first(slot, act) if found is None else _replayed(slot, found)


def _first(slot: Slot, act: Callable[[], RestResponse]) -> RestResponse:
    try:
        version = slot.reserve(for_s=UNDER_WAY_S)
    except Conflict:
        raise _under_way(slot.key) from None
    try:
        response = act()
    except BaseException:
        slot.free(version)
        raise
    _store(slot, version, response)
    return response


def _store(slot: Slot, version: int, response: RestResponse) -> None:
    """Store the response. The change is done, so a failure to store the response is not reported to the client."""
    body = response.body if response.stored is None else response.stored
    stored = json.dumps({"status": response.status, "headers": dict(response.headers), "body": body.decode()})
    try:
        slot.complete(version, stored.encode())
    except SkiwayError:
        log.warning("the response to a request with an idempotency key could not be stored", exc_info=True)


def _replayed(slot: Slot, record: v1.IdempotencyRecord) -> RestResponse:
    if not slot.matches(record):
        raise failure(Conflict, "idempotency.mismatch", op="call", idempotency_key=slot.key)
    if not record.answer:
        raise _under_way(slot.key)
    stored = json.loads(record.answer)
    if stored["body"]:  # otherwise there is nothing to see, and a dropped table has no grants any more
        slot.require_rights(record)
    return RestResponse(stored["status"], stored["body"].encode(), stored["headers"])


def _under_way(key: str) -> Unavailable:
    return Unavailable(
        f"a request with the idempotency key {key} is still running: send it again in a moment",
        key="idempotency.under_way",
    )


def _fingerprint(call: RestCall) -> str:
    request = f"{call.route.method} {call.target}\n".encode() + call.body
    return b64encode(sha256(request).digest()).decode()
