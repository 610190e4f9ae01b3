"""Pins: a query names the blobs it reads, and gc keeps them as long as it does.

What a query reads may be replaced or deleted meanwhile; its blobs stay. A pin is a pointer of its own for each blob and
query, and expires with the query's lease, so a process that dies leaves nothing to clean up.

Pinning is safe against a gc at the same time because of the order on both sides. Here: first the pins, then a look
whether what they name still is what the pointers name. There: first whether a blob is unused, then whether it is
pinned. If the pointers still stood after the pins were set, whoever finds the blobs unused later finds the pins too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from functools import partial

from skiway.errors import Conflict
from skiway.metastore import keys
from skiway.metastore.parents import applied, retrying
from skiway.metastore.realm import Realm
from skiway.model import v1
from skiway.storage import ABSENT, Delete, Operation, Pointer, Put, Stores

__all__ = ["hold", "is_pinned", "pinned_uris", "release", "still_there"]


def pinned_uris(tables: Iterable[v1.PinnedTable]) -> list[str]:
    """The blobs that these tables are read from, each once."""
    return sorted({uri for table in tables for uri in _uris(table) if uri})


def hold(realm: Realm, query_id: str, uris: Sequence[str], *, until: datetime) -> None:
    """Let gc keep these blobs until then, for this query; what it has pinned already is pinned for longer."""
    # Pins need not come all at once, only before they are relied on.
    for some in _batches(realm, uris):
        retrying(partial(_hold, realm, query_id, some, until))


def release(realm: Realm, query_id: str, uris: Sequence[str]) -> None:
    """Let gc have them. What cannot be released now expires by itself."""
    for some in _batches(realm, uris):
        found = filter(None, (realm.stores.pointers.get(keys.pin(uri, query_id)) for uri in some))
        deletes: list[Operation] = [Delete(pin.key, expect=pin.version) for pin in found]
        try:
            realm.stores.pointers.apply(deletes)
        except Conflict:
            continue


def still_there(realm: Realm, pointers: Iterable[Pointer]) -> bool:
    """Whether all these pointers stand as they were read."""
    return all(realm.stores.pointers.get(each.key) == each for each in pointers)


def is_pinned(stores: Stores, uri: str) -> bool:
    """Whether some query still reads this blob."""
    return bool(stores.pointers.page(keys.pin(uri), size=1).items)


def _uris(table: v1.PinnedTable) -> Iterator[str]:
    yield table.table_uri
    yield table.snapshot_uri
    yield table.table_stats_uri
    yield table.column_stats_uri
    yield table.file_stats_uri


def _batches(realm: Realm, uris: Sequence[str]) -> Iterator[Sequence[str]]:
    size = realm.stores.pointers.max_batch
    return (uris[start : start + size] for start in range(0, len(uris), size))


def _hold(realm: Realm, query_id: str, uris: Sequence[str], until: datetime) -> None:
    applied(realm, [_put(realm, keys.pin(uri, query_id), uri, until) for uri in uris], what=f"query {query_id}")


def _put(realm: Realm, key: str, uri: str, until: datetime) -> Put:
    pin = realm.stores.pointers.get(key)
    expect = ABSENT if pin is None else pin.version
    lasting = until if pin is None or pin.expires_at is None else max(until, pin.expires_at)
    return Put(key, uri, expect=expect, expires_at=lasting)
