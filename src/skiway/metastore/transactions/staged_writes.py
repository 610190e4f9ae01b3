"""Staged writes: files that are written for the tables of a transaction, and published by its commit.

A transaction is a record that lists the files, and those that they replace. Nothing else refers to them until the commit.

`endings` commits, aborts and expires transactions.

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
from skiway.formats.iceberg.staged_files import write_staged
from skiway.formats.iceberg.warehouse import TableFiles, Warehouse
from skiway.metastore.managed.commits import PAUSES
from skiway.metastore.managed.places import files_of_table
from skiway.metastore.managed.states import ManagedTable, is_certainly_undone
from skiway.metastore.records import keys
from skiway.metastore.records.errors import failure
from skiway.metastore.records.kinds import TRANSACTION
from skiway.metastore.records.realm import Realm, timestamp
from skiway.metastore.records.repository import Stored
from skiway.metastore.records.updates import copied, retrying
from skiway.metastore.transactions.combined_writes import TransactionState, manifest_of, unused_files
from skiway.model import v1

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile

    from skiway.formats import Location

__all__ = [
    "ATTEMPTS",
    "RULES",
    "StagedChange",
    "TransactionRules",
    "amended",
    "files_of_write",
    "find",
    "mark_ended",
    "opened",
    "remove_uncommitted",
    "replace_record",
    "require_open",
    "stage",
    "staged_locations",
    "uncommitted_paths",
]

ATTEMPTS: Final = 40
"""Many writers may add to a transaction at once: the tasks of a Spark job finish together."""
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


def amended(realm: Realm, transaction_id: str, edit: Callable[[v1.Transaction], None]) -> v1.Transaction:
    """Apply `edit` to a copy of the transaction, and return the stored result."""

    def attempt() -> v1.Transaction:
        current = find(realm, transaction_id)
        desired = copied(current.value)
        edit(desired)
        if desired != current.value:
            replace_record(realm, current, desired)
        return desired

    return retrying(attempt, attempts=ATTEMPTS, pauses=PAUSES)


def replace_record(realm: Realm, current: Stored[v1.Transaction], desired: v1.Transaction) -> None:
    desired.updated_at.CopyFrom(realm.now())
    try:
        realm.all(TRANSACTION).update(current, desired)
    except PreconditionFailed:  # another call has changed it
        what = f"transaction {desired.transaction_id}"
        raise failure(Contention, "store.contended", what=what) from None


def mark_ended(
    realm: Realm, transaction: v1.Transaction, state: v1.TransactionState.ValueType, rules: TransactionRules
) -> None:
    transaction.state = state
    transaction.expires_at.CopyFrom(timestamp(realm.clock() + timedelta(seconds=rules.kept_s)))


# --- writing ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StagedChange:
    """What an UPDATE or DELETE removes from a table in the state that it has read.

    `policies` is the digest of those that restricted the caller; empty if there were none.
    """

    state: TransactionState
    removed: Sequence[str] = ()
    deletes: Sequence[DataFile] = ()
    policies: str = ""

    @property
    def message(self) -> v1.StagedChange:
        """The change as it is stored."""
        return v1.StagedChange(
            base_snapshot_id=self.state.base_id or 0,
            removed_files=self.removed,
            deletes=map(_staged_delete, self.deletes),
            policies=self.policies,
        )

    def check_last(self, transaction: v1.Transaction, table_id: str) -> None:
        """Raise `Conflict` if another statement of the transaction has changed rows of the table since then."""
        now = TransactionState.of(transaction, table_id, read=self.state.base_id)
        if now.changes != self.state.changes:
            raise failure(Conflict, "transaction.statements", transaction_id=transaction.transaction_id)


def _staged_delete(file: DataFile) -> v1.StagedDelete:
    from skiway.formats.iceberg.manifest_files import referenced_file, vector_place

    offset, length = vector_place(file) or (None, None)
    return v1.StagedDelete(
        path=file.file_path,
        data_file=referenced_file(file) or "",
        row_count=file.record_count,
        size_bytes=file.file_size_in_bytes,
        vector_offset=offset,
        vector_length=length,
    )


def stage(
    realm: Realm,
    transaction_id: str,
    base: ManagedTable,
    added: Sequence[DataFile],
    *,
    row_count: int,
    change: StagedChange | None = None,
    expected_snapshot_id: int | None = None,
    rules: TransactionRules = RULES,
) -> str:
    """Add data files that were written for a table to an open transaction, and the `change` of an UPDATE or DELETE.

    The caller deletes the files if this fails. Return the id of the write. With `expected_snapshot_id`, the commit fails unless
    this is still the table's current snapshot.
    """
    realm.require("table.write", base.table)
    manifest = write_staged(base.files, base.metadata, added) if added else None
    write = v1.StagedWrite(
        table_id=base.table.resource_id,
        row_count=row_count,
        data_files=[file.file_path for file in added],
        expected_snapshot_id=expected_snapshot_id,
        write_id=realm.ids(),
    )
    if change is not None:
        write.change.CopyFrom(change.message)
    if manifest is not None:
        (write if change is None else write.change).manifest = manifest.location
        write.manifest_length, write.partition_spec_id = manifest.length, manifest.spec_id

    def edit(transaction: v1.Transaction) -> None:
        require_open(realm, transaction)
        if change is not None:
            change.check_last(transaction, base.id)
        if len(transaction.writes) >= rules.max_writes:
            raise failure(LimitExceeded, "transaction.too_large", limit=str(rules.max_writes))
        transaction.writes.append(write)

    try:
        amended(realm, transaction_id, edit)
    except SkiwayError as error:
        if is_certainly_undone(error) and manifest is not None:
            base.files.remove([manifest.location])
        raise
    return write.write_id


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
    """The files that were written for a write."""
    yield from filter(None, [manifest_of(write)])
    yield from write.data_files
    yield from dict.fromkeys(each.path for each in write.change.deletes)


def files_of_write(realm: Realm, warehouse: Warehouse, write: v1.StagedWrite) -> TableFiles:
    """The files of the table, which may have been dropped. The write must have files."""
    table = v1.Table(resource_id=write.table_id, metadata_location=next(_paths(write)))
    return files_of_table(realm, warehouse, table)


def uncommitted_paths(realm: Realm, warehouse: Warehouse, transaction: v1.Transaction) -> list[str]:
    """The existing files that nothing but the transaction refers to."""
    found = ((files_of_write(realm, warehouse, write), paths) for write, paths in _uncommitted(transaction))
    return [path for files, paths in found for path in paths if files.find(path) is not None]


def _uncommitted(transaction: v1.Transaction) -> Iterator[tuple[v1.StagedWrite, list[str]]]:
    """The writes with files that did not become part of their tables, and these files."""
    is_committed = transaction.state == v1.TX_COMMITTED
    unused = frozenset(unused_files([each for each in transaction.writes if not each.dropped]) if is_committed else ())
    for write in transaction.writes:
        is_used = is_committed and not write.dropped
        if paths := [path for path in _paths(write) if not is_used or path in unused]:
            yield write, paths


def remove_uncommitted(realm: Realm, warehouse: Warehouse, transaction: v1.Transaction) -> None:
    for write, paths in _uncommitted(transaction):
        files_of_write(realm, warehouse, write).remove(paths)
