"""What is left of a table that was deleted: its snapshots and statistics, which nobody can reach any more."""

from __future__ import annotations

from itertools import islice

from skiway.errors import Conflict
from skiway.metastore import keys
from skiway.metastore.realm import Realm
from skiway.storage import ABSENT, Check, Delete, Pointer

__all__ = ["purge_table"]


def purge_table(realm: Realm, table_id: str) -> int:
    """Delete the pointers of a table that is gone, in batches; how many. Gc does it for those who died on the way."""
    purged = 0
    remains = realm.stores.pointers.scan(keys.of_table(realm.account_id, table_id))
    gone = Check(keys.table(realm.account_id, table_id), expect=ABSENT)
    # The check takes one place; DynamoDB has the smallest batches.
    size = realm.stores.pointers.max_batch - 1
    while batch := list(islice(remains, size)):
        purged += _delete_all(realm, batch, gone)
    return purged


def _delete_all(realm: Realm, batch: list[Pointer], gone: Check) -> int:
    try:
        realm.stores.pointers.apply([gone, *(Delete(each.key, expect=each.version) for each in batch)])
    except Conflict:
        # Another is purging the same table.
        return 0
    return len(batch)
