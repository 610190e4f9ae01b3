# mypy: disable-error-code="call-arg"
"""Staged writes: files that are written for the tables of a transaction, and published by its commit.

`Effect` is what all writes to one table amount to, and `TransactionState` the table as the transaction sees it before its commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from skiway.errors import AlreadyExists, Conflict, Contention, LimitExceeded, NotFound, PreconditionFailed
from skiway.formats import location
from skiway.formats.iceberg.changes.commits import Change, Operation, Producer, append, delete_all, overwrite
from skiway.formats.iceberg.metadata import MAIN, commit_failed, updated
from skiway.formats.iceberg.table import IcebergTable
from skiway.formats.iceberg.warehouse import TableFiles, Warehouse
from skiway.formats.iceberg.writing.data_files import StagedManifest, read_staged, write_staged
from skiway.formats.iceberg.writing.delete_files import delete_entry
from skiway.metastore.managed.commits import PAUSES
from skiway.metastore.managed.locations import files_of_table
from skiway.metastore.managed.states import ManagedTable, handle_of, undoing
from skiway.metastore.records import keys
from skiway.metastore.records.branches import branch_of
from skiway.metastore.records.errors import failure
from skiway.metastore.records.kinds import TRANSACTION
from skiway.metastore.records.realm import Realm, timestamp
from skiway.metastore.records.repository import Stored
from skiway.metastore.records.updates import copied, retrying
from skiway.model import v1

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table.metadata import TableMetadata

    from skiway.formats import Location
    from skiway.foundation.clock import Clock

# PyIceberg's models accept the names of fields, but are typed with their JSON aliases.


@dataclass(frozen=True, slots=True)
class Effect:
    """Files that a table gains and loses, and the delete files for rows of its other files."""

    added: Sequence[str]
    removed: Sequence[str]
    deletes: Sequence[v1.StagedDelete]

    @classmethod
    def of(cls, writes: Sequence[v1.StagedWrite]) -> Effect:
        """The effect of writes to one table, one after another."""
        added: dict[str, None] = {}
        removed: list[str] = []
        deletes: dict[str, list[v1.StagedDelete]] = {}
        for write in writes:
            for path in write.change.removed_files:
                deletes.pop(path, None)
                if path in added:
                    del added[path]
                else:
                    removed.append(path)
            for delete in write.change.deletes:
                of_file = deletes.setdefault(delete.data_file, [])
                if delete.HasField("vector_offset"):  # it includes all earlier deletes of the file
                    of_file.clear()
                of_file.append(delete)
            added |= dict.fromkeys(write.data_files)
        return cls(list(added), removed, [each for found in deletes.values() for each in found])

    @property
    def operation(self) -> Operation:
        """What the snapshot does."""
        if not (self.removed or self.deletes):
            return "append"
        return "overwrite" if self.added else "delete"

    @property
    def is_empty(self) -> bool:
        """Whether nothing changes."""
        return not (self.added or self.removed or self.deletes)


def manifest_of(write: v1.StagedWrite) -> str:
    """The file that describes the data files of a write; empty if it has none."""
    return write.change.manifest if write.HasField("change") else write.manifest


def unused_files(writes: Sequence[v1.StagedWrite]) -> list[str]:
    """The files of committed writes that did not become part of their tables, because later writes replaced them."""
    unused: list[str] = []
    for table_id in dict.fromkeys(write.table_id.id for write in writes):
        own = [write for write in writes if write.table_id.id == table_id]
        effect = Effect.of(own)
        used = {*effect.added, *(each.path for each in effect.deletes)}
        written = (
            path for each in own for path in (*each.data_files, *(delete.path for delete in each.change.deletes))
        )
        unused += (path for path in dict.fromkeys(written) if path not in used)
    return unused


def producer_of(writes: Sequence[v1.StagedWrite], *, replaces: bool) -> Producer:
    """One snapshot with all writes to a table, or one that replaces its rows, if the table is as they expect it."""

    def produce(metadata: TableMetadata, files: TableFiles, clock: Clock) -> Change:
        for write in writes:
            current = metadata.current_snapshot_id or 0
            if write.HasField("expected_snapshot_id") and write.expected_snapshot_id != current:
                raise commit_failed(f"snapshot {write.expected_snapshot_id} is no longer the current one")
        effect = Effect.of(writes)
        added = _added(effect, files, writes)
        changes = [each.change for each in writes if each.HasField("change")]
        if replaces:
            return delete_all(added)(metadata, files, clock)
        if not changes:
            return append(added)(metadata, files, clock)
        if effect.is_empty:
            return Change((), ())
        return overwrite(
            effect.removed,
            added,
            deletes=[_entry(delete) for delete in effect.deletes],
            based_on=changes[0].base_snapshot_id or None,
            operation=effect.operation,
        )(metadata, files, clock)

    return produce


def _added(effect: Effect, files: TableFiles, writes: Sequence[v1.StagedWrite]) -> list[DataFile]:
    wanted = frozenset(effect.added)
    manifests = (
        StagedManifest(manifest_of(write), write.manifest_length, write.partition_spec_id)
        for write in writes
        if not wanted.isdisjoint(write.data_files)
    )
    return [file for manifest in manifests for file in read_staged(files, manifest) if file.file_path in wanted]


def _entry(delete: v1.StagedDelete) -> DataFile:
    vector = (delete.vector_offset, delete.vector_length) if delete.HasField("vector_offset") else None
    return delete_entry(delete.path, delete.data_file, rows=delete.row_count, size=delete.size_bytes, vector=vector)


# --- the table as the transaction sees it -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TransactionState:
    """A table as a transaction sees it: the snapshot that it reads, or none, and its writes to the table since then."""

    transaction_id: str
    base_id: int | None
    writes: Sequence[v1.StagedWrite]

    @classmethod
    def of(cls, transaction: v1.Transaction, table_id: str, *, read: int | None) -> TransactionState:
        """The state of a table in a transaction that reads the snapshot `read`, unless its first change was based on another."""
        writes = [write for write in transaction.writes if write.table_id.id == table_id]
        bases = [write.change.base_snapshot_id or None for write in writes if write.HasField("change")]
        return cls(transaction.transaction_id, bases[0] if bases else read, writes)

    @property
    def snapshot_id(self) -> int | None:
        """The id of the snapshot that the transaction reads: one of its own if it has written to the table."""
        if not self.writes:
            return self.base_id
        parts = (self.transaction_id, str(self.base_id), *(write.write_id for write in self.writes))
        return int.from_bytes(blake2b("/".join(parts).encode(), digest_size=8).digest()) >> 1

    @property
    def changes(self) -> list[str]:
        """The ids of the writes that update or delete rows."""
        return [write.write_id for write in self.writes if write.HasField("change")]

    @property
    def own_files(self) -> frozenset[str]:
        """The data files that the transaction has written."""
        return frozenset(path for write in self.writes for path in write.data_files)

    def earlier(self, snapshot_id: int) -> TransactionState | None:
        """This state or an earlier one of the same transaction, by the id of its snapshot."""
        for count in range(len(self.writes), 0, -1):
            state = TransactionState(self.transaction_id, self.base_id, self.writes[:count])
            if state.snapshot_id == snapshot_id:
                return state
        return None


@dataclass(frozen=True)
class _UnpublishedFiles(TableFiles):
    """The files of a table, and small ones that exist in memory only."""

    kept: dict[str, bytes] = field(default_factory=dict, repr=False, compare=False)

    def open(self, uri: str) -> pa.NativeFile:
        data = self.kept.get(uri)
        return super().open(uri) if data is None else pa.BufferReader(data)

    def write(self, uri: str, data: bytes, *, sealed: bool = True) -> None:  # noqa: ARG002
        self.kept[uri] = data


def open_state(
    realm: Realm, warehouse: Warehouse, table: v1.Table, metadata: TableMetadata, state: TransactionState
) -> IcebergTable:
    """A handle to read a table as a transaction sees it, given the table's metadata, which has the base of the state."""
    from skiway.formats.iceberg.changes.snapshots import NewSnapshot

    found = files_of_table(realm, warehouse, table)
    files = _UnpublishedFiles(found.properties, found.reach, found.cache)
    effect, based = Effect.of(state.writes), _headed(metadata, state.base_id)
    snapshot = NewSnapshot(
        based, files, clock=realm.clock, snapshot_id=state.snapshot_id, ids=lambda: f"transaction-{state.snapshot_id}"
    )
    snapshot.remove(effect.removed, deletes=[_entry(delete) for delete in effect.deletes])
    snapshot.add(_added(effect, files, state.writes))
    updates = snapshot.finish(effect.operation, {})
    return handle_of(table, updated(based, snapshot.requirements, updates), files)


def _headed(metadata: TableMetadata, snapshot_id: int | None) -> TableMetadata:
    """The metadata with another current snapshot, or none."""
    from pyiceberg.table.refs import SnapshotRef, SnapshotRefType

    if metadata.current_snapshot_id == snapshot_id:
        return metadata
    refs: dict[str, Any] = {name: ref for name, ref in metadata.refs.items() if name != MAIN}
    if snapshot_id is not None:
        refs[MAIN] = SnapshotRef(snapshot_id=snapshot_id, snapshot_ref_type=SnapshotRefType.BRANCH)
    return metadata.model_copy(update={"current_snapshot_id": snapshot_id, "refs": refs})


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
    """The transaction, which the caller must have begun, on the same branch or on main. Raise `NotFound` otherwise."""
    transaction = realm.all(TRANSACTION).find(keys.transaction(realm.account_id, transaction_id))
    if (
        transaction is None
        or transaction.value.owner != realm.caller
        or transaction.value.branch_id != _branch_id(realm)
    ):
        raise failure(NotFound, "transaction", resource="transaction", id=transaction_id)
    return transaction


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
        branch_id=_branch_id(realm),
    )
    try:
        return realm.all(TRANSACTION).create(begun)
    except AlreadyExists:  # another call of the same transaction was faster
        return find(realm, transaction_id)


def _branch_id(realm: Realm) -> str:
    branch = branch_of(realm.stores)
    return "" if branch is None else branch.id


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


@dataclass(frozen=True, slots=True)
class NewWrite:
    """Data files that were written for the table `base`, and the `change` of an UPDATE or DELETE.

    With `expected_snapshot_id`, the commit fails unless this is still the table's current snapshot; 0 is none.
    """

    base: ManagedTable
    files: Sequence[DataFile]
    row_count: int
    change: StagedChange | None = None
    expected_snapshot_id: int | None = None


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


def stage(realm: Realm, transaction_id: str, new: NewWrite, *, rules: TransactionRules = RULES) -> str:
    """Add a write to an open transaction, and return its id. The caller deletes the files if this fails."""
    base, change = new.base, new.change
    realm.require("table.write", base.table)
    manifest = write_staged(base.files, base.metadata, new.files) if new.files else None
    write = v1.StagedWrite(
        table_id=base.table.resource_id,
        row_count=new.row_count,
        data_files=[file.file_path for file in new.files],
        expected_snapshot_id=new.expected_snapshot_id,
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

    with undoing(lambda: base.files.remove([manifest.location] if manifest else [])):
        amended(realm, transaction_id, edit)
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
    yield from dict.fromkeys(delete.path for delete in write.change.deletes)


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
