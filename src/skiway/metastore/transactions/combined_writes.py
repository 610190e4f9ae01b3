# mypy: disable-error-code=call-arg
# PyIceberg's models accept the names of fields, but are typed with their JSON aliases.
"""What all writes of a transaction to one table amount to, and the table as the transaction sees it before its commit.

A later UPDATE or DELETE may replace files that earlier writes of the same transaction have added. Such files never become part of
the table. So the commit adds, removes and deletes only what is left in the end, in one snapshot.

Until then, the transaction reads the table as if there was a snapshot with these files. Its manifests exist in memory only. Its
id follows from the writes, so that all servers give the same rows the same ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from skiway.formats.iceberg.commits import Change, Operation, Producer, append, delete_all, overwrite
from skiway.formats.iceberg.delete_files import delete_entry
from skiway.formats.iceberg.metadata import commit_failed, updated
from skiway.formats.iceberg.snapshots import MAIN, NewSnapshot
from skiway.formats.iceberg.staged_files import StagedManifest, read_staged
from skiway.formats.iceberg.table import IcebergTable
from skiway.formats.iceberg.warehouse import TableFiles, Warehouse
from skiway.metastore.managed.places import files_of_table
from skiway.metastore.managed.states import handle_of
from skiway.metastore.records.realm import Realm
from skiway.model import v1

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table.metadata import TableMetadata

    from skiway.clock import Clock

__all__ = ["Effect", "TransactionState", "manifest_of", "open_state", "producer_of", "unused_files"]


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
    for table_id in dict.fromkeys(each.table_id.id for each in writes):
        own = [each for each in writes if each.table_id.id == table_id]
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
            deletes=[_entry(each) for each in effect.deletes],
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
    return [file for each in manifests for file in read_staged(files, each) if file.file_path in wanted]


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
        writes = [each for each in transaction.writes if each.table_id.id == table_id]
        bases = [each.change.base_snapshot_id or None for each in writes if each.HasField("change")]
        return cls(transaction.transaction_id, bases[0] if bases else read, writes)

    @property
    def snapshot_id(self) -> int | None:
        """The id of the snapshot that the transaction reads: one of its own if it has written to the table."""
        if not self.writes:
            return self.base_id
        parts = (self.transaction_id, str(self.base_id), *(each.write_id for each in self.writes))
        return int.from_bytes(blake2b("/".join(parts).encode(), digest_size=8).digest()) >> 1

    @property
    def changes(self) -> list[str]:
        """The ids of the writes that update or delete rows."""
        return [each.write_id for each in self.writes if each.HasField("change")]

    @property
    def own_files(self) -> frozenset[str]:
        """The data files that the transaction has written."""
        return frozenset(path for each in self.writes for path in each.data_files)

    def earlier(self, snapshot_id: int) -> TransactionState | None:
        """This state or an earlier one of the same transaction, by the id of its snapshot."""
        for count in range(len(self.writes), 0, -1):
            found = TransactionState(self.transaction_id, self.base_id, self.writes[:count])
            if found.snapshot_id == snapshot_id:
                return found
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
    found = files_of_table(realm, warehouse, table)
    files = _UnpublishedFiles(found.properties, found.reach, found.cache)
    effect, based = Effect.of(state.writes), _headed(metadata, state.base_id)
    snapshot = NewSnapshot(
        based,
        files,
        clock=realm.clock,
        snapshot_id=state.snapshot_id,
        ids=lambda: f"transaction-{state.snapshot_id}",
    )
    snapshot.remove(effect.removed, deletes=[_entry(each) for each in effect.deletes])
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
