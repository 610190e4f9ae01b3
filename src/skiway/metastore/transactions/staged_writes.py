"""Staged writes: data files that are written for the tables of a transaction, and published by its commit.

A transaction is a record that lists the data files. Nothing refers to the files until the commit, which appends them to all
tables and marks the transaction as committed in one batch. So a commit happens completely or not at all, and repeating it
changes nothing. Aborting marks the transaction first, too, and deletes the files then: of a commit and an abort at the same
time, one wins.

A transaction belongs to the caller who began it. For all others it does not exist.

A transaction that is neither committed nor aborted in time expires: garbage collection deletes its files. Until then, they are
protected from garbage collection. The record is kept for a day, so that a caller who got no response learns the outcome.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from skiway.errors import (
    AlreadyExists,
    Conflict,
    Contention,
    LimitExceeded,
    NotFound,
    PreconditionFailed,
    SkiwayError,
)
from skiway.formats import location
from skiway.formats.iceberg.commits import Change, Producer
from skiway.formats.iceberg.commits import append as appending
from skiway.formats.iceberg.metadata import commit_failed
from skiway.formats.iceberg.staged_files import StagedManifest, read_staged, write_staged
from skiway.formats.iceberg.warehouse import TableFiles, Warehouse
from skiway.metastore.managed.commits import TableChange, change_all
from skiway.metastore.managed.places import files_of_table
from skiway.metastore.managed.states import ManagedTable, is_certainly_undone
from skiway.metastore.records import keys
from skiway.metastore.records.errors import failure
from skiway.metastore.records.kinds import TRANSACTION
from skiway.metastore.records.realm import Realm, timestamp
from skiway.metastore.records.repository import Stored
from skiway.metastore.records.updates import copied, retrying
from skiway.model import v1
from skiway.storage import Operation

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table.metadata import TableMetadata

    from skiway.clock import Clock
    from skiway.formats import Location

__all__ = [
    "RULES",
    "TransactionRules",
    "abort",
    "commit",
    "expire",
    "find",
    "opened",
    "require_open",
    "stage",
    "staged_locations",
    "uncommitted_paths",
]

_ENDED: Final = {v1.TX_COMMITTED: "committed", v1.TX_ABORTED: "aborted", v1.TX_EXPIRED: "expired"}


@dataclass(frozen=True, slots=True)
class TransactionRules:
    """How long transactions stay open and are remembered, and how many and how large a caller's may be."""

    default_ttl_s: float = 3600.0
    max_ttl_s: float = 24 * 3600.0
    kept_s: float = 24 * 3600.0
    max_open: int = 1000
    max_writes: int = 1000

    def ttl_s(self, requested_s: int) -> float:
        """How long a transaction stays open, for the requested time."""
        return min(float(requested_s), self.max_ttl_s) if requested_s > 0 else self.default_ttl_s


RULES = TransactionRules()


# --- the record -------------------------------------------------------------------------------------------------------


def find(realm: Realm, transaction_id: str) -> Stored[v1.Transaction]:
    """The transaction, which the caller must have begun. Raise `NotFound` otherwise."""
    found = realm.all(TRANSACTION).find(keys.transaction(realm.account_id, transaction_id))
    if found is None or found.value.owner != realm.caller:
        raise failure(NotFound, "transaction", resource="transaction", id=transaction_id)
    return found


def opened(
    realm: Realm, transaction_id: str, *, until: datetime, rules: TransactionRules = RULES
) -> Stored[v1.Transaction]:
    """The transaction with this id. If there is none, it is begun, and stays open until the given time."""
    with suppress(NotFound):
        return find(realm, transaction_id)
    count = realm.stores.pointers.count(keys.transaction_open(realm.account_id, realm.caller))
    if count >= rules.max_open:
        raise failure(LimitExceeded, "transaction.too_many", found=str(count), limit=str(rules.max_open))
    now = realm.now()
    begun = v1.Transaction(
        transaction_id=transaction_id,
        account_id=realm.account_id,
        owner=realm.caller,
        state=v1.TX_OPEN,
        created_at=now,
        updated_at=now,
        expires_at=timestamp(until),
    )
    try:
        return realm.all(TRANSACTION).create(begun)
    except AlreadyExists:  # another call of the same transaction was faster
        return find(realm, transaction_id)


def require_open(realm: Realm, transaction: v1.Transaction) -> None:
    """Raise `PreconditionFailed` if the transaction has ended, or its time is over."""
    state = _ENDED.get(transaction.state, "")
    if not state and transaction.expires_at.ToDatetime(UTC) <= realm.clock():
        state = _ENDED[v1.TX_EXPIRED]
    if state:
        raise failure(PreconditionFailed, "transaction.ended", transaction_id=transaction.transaction_id, state=state)


def _amended(realm: Realm, transaction_id: str, edit: Callable[[v1.Transaction], None]) -> v1.Transaction:
    """Apply `edit` to a copy of the transaction, and return the stored result."""

    def attempt() -> v1.Transaction:
        current = find(realm, transaction_id)
        desired = copied(current.value)
        edit(desired)
        if desired != current.value:
            _replace(realm, current, desired)
        return desired

    return retrying(attempt)


def _replace(realm: Realm, current: Stored[v1.Transaction], desired: v1.Transaction) -> None:
    desired.updated_at.CopyFrom(realm.now())
    try:
        realm.all(TRANSACTION).update(current, desired)
    except PreconditionFailed as error:
        if error.key != "version.mismatch":
            raise
        what = f"transaction {desired.transaction_id}"
        raise failure(Contention, "store.contended", what=what) from None


def _end(
    realm: Realm, transaction: v1.Transaction, state: v1.TransactionState.ValueType, rules: TransactionRules
) -> None:
    transaction.state = state
    transaction.expires_at.CopyFrom(timestamp(realm.clock() + timedelta(seconds=rules.kept_s)))


# --- writing ----------------------------------------------------------------------------------------------------------


def stage(
    realm: Realm,
    transaction_id: str,
    base: ManagedTable,
    added: Sequence[DataFile],
    *,
    row_count: int,
    expected_snapshot_id: int | None = None,
    rules: TransactionRules = RULES,
) -> None:
    """Add data files that were written for a table to an open transaction. The caller deletes them if this fails.

    With `expected_snapshot_id`, the commit fails unless this is still the table's current snapshot.
    """
    realm.require("table.write", base.table)
    manifest = write_staged(base.files, base.metadata, added)
    write = v1.StagedWrite(
        table_id=base.table.resource_id,
        row_count=row_count,
        data_files=[file.file_path for file in added],
        manifest=manifest.location,
        manifest_length=manifest.length,
        partition_spec_id=manifest.spec_id,
        expected_snapshot_id=expected_snapshot_id,
    )

    def edit(transaction: v1.Transaction) -> None:
        require_open(realm, transaction)
        if len(transaction.writes) >= rules.max_writes:
            raise failure(LimitExceeded, "transaction.too_large", limit=str(rules.max_writes))
        transaction.writes.append(write)

    try:
        _amended(realm, transaction_id, edit)
    except SkiwayError as error:
        if is_certainly_undone(error):
            base.files.remove([manifest.location])
        raise


def staged_locations(realm: Realm, table_id: str) -> set[Location]:
    """The files of a table that open transactions have written, which nothing else refers to."""
    pointers = realm.stores.pointers.scan(keys.transaction_open(realm.account_id))
    found = filter(None, map(realm.all(TRANSACTION).follow, pointers))
    return {
        location(path)
        for transaction in found
        for write in transaction.value.writes
        if write.table_id.id == table_id
        for path in _paths(write)
    }


def _paths(write: v1.StagedWrite) -> Iterator[str]:
    yield write.manifest
    yield from write.data_files


def _files(realm: Realm, warehouse: Warehouse, write: v1.StagedWrite) -> TableFiles:
    """The files of the table, which may have been dropped."""
    table = v1.Table(resource_id=write.table_id, metadata_location=write.manifest)
    return files_of_table(realm, warehouse, table)


def uncommitted_paths(transaction: v1.Transaction) -> list[str]:
    """The files that nothing but the transaction refers to."""
    return (
        [] if transaction.state == v1.TX_COMMITTED else [path for each in transaction.writes for path in _paths(each)]
    )


def _remove(realm: Realm, warehouse: Warehouse, transaction: v1.Transaction) -> None:
    for write in transaction.writes:
        _files(realm, warehouse, write).remove(_paths(write))


# --- ending -----------------------------------------------------------------------------------------------------------


def commit(
    realm: Realm, warehouse: Warehouse, transaction_id: str, *, rules: TransactionRules = RULES
) -> v1.Transaction:
    """Append all staged files to their tables with one compare-and-set. A committed transaction is returned as it is.

    Raise `Conflict` if one of the tables does not allow it: then nothing is changed, and the transaction stays open.
    """
    found = find(realm, transaction_id)
    if found.value.state == v1.TX_COMMITTED:
        return found.value
    require_open(realm, found.value)
    try:
        return _committed(realm, warehouse, found, rules)
    except Conflict:
        # The same call may have been made before or twice, and the other one was faster.
        again = find(realm, transaction_id).value
        if again.state == v1.TX_COMMITTED:
            return again
        require_open(realm, again)
        raise


def _committed(
    realm: Realm, warehouse: Warehouse, found: Stored[v1.Transaction], rules: TransactionRules
) -> v1.Transaction:
    by_table: dict[str, list[v1.StagedWrite]] = {}
    for write in found.value.writes:
        by_table.setdefault(write.table_id.id, []).append(write)
    outcome = copied(found.value)
    _end(realm, outcome, v1.TX_COMMITTED, rules)

    def also(published: Sequence[ManagedTable]) -> Sequence[Operation]:
        del outcome.committed[:]
        for each in published:
            rows = sum(write.row_count for write in by_table[each.id])
            snapshot = each.metadata.current_snapshot_id
            outcome.committed.add(table_id=each.table.resource_id, snapshot_id=snapshot, row_count=rows)
        outcome.updated_at.CopyFrom(realm.now())
        if realm.stores.pointers.get(found.pointer.key) != found.pointer:
            raise failure(Conflict, "transaction.changed", transaction_id=outcome.transaction_id)
        return realm.all(TRANSACTION).replacement(found, outcome).operations

    if by_table:
        changes = [TableChange(writes[0].table_id, _producer(writes)) for writes in by_table.values()]
        change_all(realm, warehouse, changes, also=also)
    else:
        _replace(realm, found, outcome)
    with suppress(SkiwayError):  # the commit is done, and garbage collection deletes what is left
        for write in outcome.writes:
            _files(realm, warehouse, write).remove([write.manifest])
    return outcome


def _producer(writes: Sequence[v1.StagedWrite]) -> Producer:
    """One append of the files of all writes to a table, if the table is as they expect it."""

    def produce(metadata: TableMetadata, files: TableFiles, clock: Clock) -> Change:
        for write in writes:
            current = metadata.current_snapshot_id or 0
            if write.HasField("expected_snapshot_id") and write.expected_snapshot_id != current:
                raise commit_failed(f"snapshot {write.expected_snapshot_id} is no longer the current one")
        manifests = (StagedManifest(write.manifest, write.manifest_length, write.partition_spec_id) for write in writes)
        return appending([file for each in manifests for file in read_staged(files, each)])(metadata, files, clock)

    return produce


def abort(
    realm: Realm, warehouse: Warehouse, transaction_id: str, *, rules: TransactionRules = RULES
) -> v1.Transaction:
    """Discard all staged files. Raise `PreconditionFailed` if the transaction is committed."""

    def edit(transaction: v1.Transaction) -> None:
        if transaction.state == v1.TX_COMMITTED:
            require_open(realm, transaction)
        if transaction.state == v1.TX_OPEN:
            _end(realm, transaction, v1.TX_ABORTED, rules)

    aborted = _amended(realm, transaction_id, edit)
    _remove(realm, warehouse, aborted)
    return aborted


def expire(
    realm: Realm, warehouse: Warehouse, found: Stored[v1.Transaction], *, rules: TransactionRules = RULES
) -> None:
    """End a transaction that is due: one that is open expires, and the record of another one is deleted.

    The files of a transaction that was not committed are deleted both times, in case that a process died in between.
    """
    if found.value.state == v1.TX_OPEN:
        desired = copied(found.value)
        _end(realm, desired, v1.TX_EXPIRED, rules)
        _replace(realm, found, desired)
    if found.value.state != v1.TX_COMMITTED:
        _remove(realm, warehouse, found.value)
    if found.value.state != v1.TX_OPEN:
        realm.all(TRANSACTION).delete(found.pointer, found.value)
