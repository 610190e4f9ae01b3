"""The history of queries: what callers ran, how long it took, and what it read.

A query that has ended is one pointer, which holds the record and expires. Keys are in the order of time, the newest first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, Final

import msgspec

from skiway.errors import Conflict, NotFound
from skiway.foundation.clock import from_micros, to_micros
from skiway.metastore.records import keys
from skiway.metastore.records.realm import Realm
from skiway.storage import ABSENT, Delete, Put

MAX_TEXT: Final = 8000
MAX_READS: Final = 30
MAX_FACT: Final = 500
MAX_BYTES: Final = 48_000
"""Of a record. A longer one is stored without its operators."""

_BATCH: Final = 50
_LAST: Final = 10**16


POLICIES: Final = "policies"
"""The reader of a table that policies restricted for the caller: of its files, nothing is recorded."""


class TableRead(msgspec.Struct, array_like=True, frozen=True):
    """A table that a query planned to read, and how many files were left by its filter; `name` has its catalog and schema."""

    table_id: str
    name: str
    filter: str = ""
    columns: Sequence[str] | None = None
    snapshot_id: int | None = None
    files_considered: int = 0
    files_read: int = 0
    bytes_considered: int = 0
    bytes_read: int = 0
    reader: str = "server"


class FinishedQuery(msgspec.Struct, array_like=True, kw_only=True):
    """A query that has ended. `kind` is `query` if the server knows its SQL, else what was done to a table, such as `scan`.

    Times are milliseconds: waiting for a place, planning, in DuckDB, and sending rows, which includes waiting for the client.
    """

    started_at: float
    query_id: str
    caller: str
    door: str
    kind: str
    text: str
    outcome: str = "OK"
    error: str = ""
    duration_ms: float = 0.0
    queue_ms: float = 0.0
    plan_ms: float = 0.0
    run_ms: float = 0.0
    rows: int = 0
    bytes: int = 0
    reads: list[TableRead] = []
    operators: list[dict[str, Any]] = []


def add_finished(realm: Realm, found: Sequence[FinishedQuery], *, kept: timedelta) -> None:
    """Store queries."""
    expires_at = realm.clock() + kept
    for first in range(0, len(found), _BATCH):
        puts = [
            Put(
                keys.finished_query(realm.account_id, _position(each)),
                _stored(each),
                expect=ABSENT,
                expires_at=expires_at,
            )
            for each in found[first : first + _BATCH]
        ]
        realm.stores.pointers.apply(puts)


def finished(realm: Realm, *, after: datetime | None = None) -> Iterator[FinishedQuery]:
    """The queries of the account, the newest first; with `after`, only those that began later."""
    earliest = 0.0 if after is None else after.timestamp()
    for pointer in realm.stores.pointers.scan(keys.finished_query(realm.account_id)):
        each = msgspec.json.decode(pointer.blob_uri, type=FinishedQuery)
        if each.started_at < earliest:
            return
        yield each


def trim_finished(realm: Realm, most: int) -> None:
    """Delete the oldest queries of the account, if there are more than `most`."""
    found = realm.stores.pointers.scan(keys.finished_query(realm.account_id))
    for each in islice(found, most, None):
        with suppress(Conflict, NotFound):  # another server was first
            realm.stores.pointers.apply([Delete(each.key, expect=each.version)])


def started_at(query: FinishedQuery) -> datetime:
    """When a query began."""
    return from_micros(round(query.started_at * 1e6))


def _position(query: FinishedQuery) -> str:
    return f"{_LAST - to_micros(started_at(query)):016d}-{query.query_id}"


def _stored(query: FinishedQuery) -> str:
    reads = [
        msgspec.structs.replace(
            each, filter=_cut(each.filter, MAX_FACT), columns=each.columns and each.columns[:MAX_READS]
        )
        for each in query.reads[:MAX_READS]
    ]
    bounded = msgspec.structs.replace(
        query, text=_cut(query.text, MAX_TEXT), error=_cut(query.error, MAX_FACT), reads=reads
    )
    text = msgspec.json.encode(bounded).decode()
    if len(text.encode()) > MAX_BYTES:
        few = [msgspec.structs.replace(each, filter="", columns=None) for each in reads]
        text = msgspec.json.encode(msgspec.structs.replace(bounded, operators=[], reads=few)).decode()
    return text


def _cut(text: str, most: int) -> str:
    text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= most else f"{text[: most - 1]}…"
