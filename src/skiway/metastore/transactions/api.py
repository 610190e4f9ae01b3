"""The calls of `TransactionService`, and how transactions end: the commit publishes the staged writes, aborting and expiring
delete their files.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta

import pyarrow as pa
from tenacity import Retrying, retry_if_exception, stop_after_attempt

from skiway.errors import Conflict, InvalidArgument, NotFound, PreconditionFailed, SkiwayError, Unsupported
from skiway.formats.iceberg.warehouse import Warehouse
from skiway.formats.iceberg.writing.data_files import DataFileWriter
from skiway.metastore.managed.commits import PAUSES, TableChange, change_all
from skiway.metastore.managed.states import ManagedTable, load, managed_record, undoing
from skiway.metastore.records import keys
from skiway.metastore.records.errors import failure
from skiway.metastore.records.kinds import TRANSACTION
from skiway.metastore.records.policies import CHANGED_SINCE, NOT_CHANGED, CallerPolicies
from skiway.metastore.records.realm import Realm
from skiway.metastore.records.repository import Stored, listed
from skiway.metastore.records.updates import copied
from skiway.metastore.resources.hierarchy import writable_id
from skiway.metastore.transactions import staged_writes
from skiway.metastore.transactions.staged_writes import RULES, TransactionRules
from skiway.model import v1
from skiway.storage import Operation


def commit_transaction(
    realm: Realm,
    warehouse: Warehouse,
    transaction_id: str,
    *,
    only: Collection[str] | None = None,
    replaced: Sequence[v1.ResourceId] = (),
    rules: TransactionRules = RULES,
) -> v1.Transaction:
    """Publish all writes to their tables with one compare-and-set. A committed transaction is returned as it is.

    With `only`, the writes with other ids are dropped. The files of `replaced` tables replace all rows that they have then.
    Raise `Conflict` if one of the tables does not allow it: then nothing is changed, and the transaction stays open.
    Callers who are restricted by policies commit what these let them write, but cannot replace rows that they may not see.
    """
    for table_id in replaced:
        realm.require("table.write", managed_record(realm, table_id).value)
    policies, realm = realm.policies, realm.without_policies()

    def attempt() -> v1.Transaction:
        transaction = staged_writes.find(realm, transaction_id)
        if transaction.value.state == v1.TX_COMMITTED:
            return transaction.value
        staged_writes.require_open(realm, transaction.value)
        if policies is not None:
            _check_policies(policies, transaction.value)
        try:
            return _committed(realm, warehouse, _selected(transaction, only), replaced, rules)
        except (Conflict, PreconditionFailed):
            # Another call may have ended the transaction and deleted its manifests.
            again = staged_writes.find(realm, transaction_id).value
            if again.state == v1.TX_COMMITTED:
                return again
            staged_writes.require_open(realm, again)
            raise

    if only is None:
        return attempt()
    # Writes that arrive during the commit are not selected, so they are no reason to fail.
    return Retrying(
        retry=retry_if_exception(lambda error: isinstance(error, Conflict) and error.key == "transaction.changed"),
        stop=stop_after_attempt(staged_writes.ATTEMPTS),
        wait=PAUSES,
        reraise=True,
    )(attempt)


def _check_policies(policies: CallerPolicies, transaction: v1.Transaction) -> None:
    """Raise `PermissionDenied` if policies that are newer than a change of rows restrict the caller on the table.

    A change under a row filter is always newer: the statement would have been refused. A mask may be older, if the statement
    does not change what it hides.
    """
    for write in transaction.writes:
        if write.HasField("change") and (found := policies.of_table(write.table_id.id)) is not None:
            if found.filters or found.missing:
                raise found.refused(NOT_CHANGED)
            if found.digest != write.change.policies:
                raise found.refused(CHANGED_SINCE)


def _selected(found: Stored[v1.Transaction], only: Collection[str] | None) -> Stored[v1.Transaction]:
    """The transaction in which all writes but those with the ids in `only` are marked as dropped."""
    if only is None:
        return found
    marked = copied(found.value)
    missing = set(only) - {each.write_id for each in marked.writes}
    if missing:
        raise failure(
            NotFound, "transaction.write", write_id=min(missing), transaction_id=marked.transaction_id, field="only"
        )
    incomplete: set[str] = set()
    for write in marked.writes:
        write.dropped = write.write_id not in only
        if write.dropped:
            incomplete.add(write.table_id.id)
        elif write.HasField("change") and write.table_id.id in incomplete:
            raise failure(InvalidArgument, "transaction.write.incomplete", write_id=write.write_id, field="only")
    return replace(found, value=marked)


def _committed(
    realm: Realm,
    warehouse: Warehouse,
    found: Stored[v1.Transaction],
    replaced: Sequence[v1.ResourceId],
    rules: TransactionRules,
) -> v1.Transaction:
    tables = {each.id: each for each in replaced}
    by_table: dict[str, list[v1.StagedWrite]] = {table_id: [] for table_id in tables}
    for write in found.value.writes:
        if not write.dropped:
            by_table.setdefault(write.table_id.id, []).append(write)
    for table_id in tables:
        if any(write.HasField("change") for write in by_table[table_id]):
            raise failure(InvalidArgument, "transaction.replaced", id=table_id, field="replaced_table_ids")
    outcome = copied(found.value)
    staged_writes.mark_ended(realm, outcome, v1.TX_COMMITTED, rules)
    is_marked = False

    def also(published: Sequence[ManagedTable]) -> Sequence[Operation]:
        nonlocal is_marked
        is_marked = True
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
        changes = [
            TableChange(
                tables.get(table_id) or writes[0].table_id,
                staged_writes.producer_of(writes, replaces=table_id in tables),
            )
            for table_id, writes in by_table.items()
        ]
        change_all(realm, warehouse, changes, also=also)
    if not is_marked:  # no table changes
        staged_writes.replace_record(realm, found, outcome)
    with suppress(SkiwayError):  # the commit is done, and garbage collection deletes what is left
        staged_writes.remove_uncommitted(realm, warehouse, outcome)
        for write in outcome.writes:
            if manifest := staged_writes.manifest_of(write):
                staged_writes.files_of_write(realm, warehouse, write).remove([manifest])
    return outcome


def abort_transaction(
    realm: Realm, warehouse: Warehouse, transaction_id: str, *, rules: TransactionRules = RULES
) -> v1.Transaction:
    """Discard all staged files. Raise `PreconditionFailed` if the transaction is committed."""

    def edit(transaction: v1.Transaction) -> None:
        if transaction.state == v1.TX_COMMITTED:
            staged_writes.require_open(realm, transaction)
        if transaction.state == v1.TX_OPEN:
            staged_writes.mark_ended(realm, transaction, v1.TX_ABORTED, rules)

    aborted = staged_writes.amended(realm, transaction_id, edit)
    staged_writes.remove_uncommitted(realm, warehouse, aborted)
    return aborted


def expire(
    realm: Realm, warehouse: Warehouse, found: Stored[v1.Transaction], *, rules: TransactionRules = RULES
) -> None:
    """End a transaction that is due: one that is open expires, and the record of another one is deleted.

    Files that were not committed are deleted both times, in case that a process died in between.
    """
    if found.value.state == v1.TX_OPEN:
        desired = copied(found.value)
        staged_writes.mark_ended(realm, desired, v1.TX_EXPIRED, rules)
        staged_writes.replace_record(realm, found, desired)
    staged_writes.remove_uncommitted(realm, warehouse, found.value)
    if found.value.state != v1.TX_OPEN:
        realm.all(TRANSACTION).delete(found.pointer, found.value)


BUFFER_BYTES = 32 << 20
"""The size of the buffer of a write; many may run at once."""


@contextmanager
def malformed_rows() -> Iterator[None]:
    """Raise `InvalidArgument` if Arrow cannot decode the rows of a caller inside of the block."""
    try:
        yield
    except (pa.ArrowException, OSError, ValueError, EOFError) as error:
        reason = str(error).partition("\n")[0]
        raise failure(InvalidArgument, "rows.malformed", reason=reason, field="rows") from None


def decode_rows(rows: bytes) -> Iterator[pa.RecordBatch]:
    """The batches of an Arrow IPC stream."""
    with malformed_rows():
        reader = pa.ipc.open_stream(pa.py_buffer(rows))
    while True:
        with malformed_rows():
            batch = next(reader, None)
        if batch is None:
            return
        yield batch


@dataclass(frozen=True, slots=True)
class StagingArea:
    """Where transactions write, how rows are decoded, and the limits. Without a warehouse, there are no tables to write to."""

    warehouse: Warehouse | None = None
    decode: Callable[[bytes], Iterator[pa.RecordBatch]] = decode_rows
    rules: TransactionRules = RULES

    def files(self) -> Warehouse:
        """The warehouse. Raise `Unsupported` if there is none."""
        if self.warehouse is None:
            raise Unsupported("this server has no warehouse, so it has no tables to write to", key="warehouse.missing")
        return self.warehouse


def begin(realm: Realm, request: v1.BeginTransactionRequest, *, area: StagingArea) -> v1.BeginTransactionResponse:
    """Begin a transaction of the caller."""
    until = realm.clock() + timedelta(seconds=area.rules.ttl_s(request.ttl_seconds))
    begun = staged_writes.opened(realm, realm.ids(), until=until, rules=area.rules)
    return v1.BeginTransactionResponse(transaction=begun.value)


def append(realm: Realm, requests: Iterable[v1.AppendRowsRequest], *, area: StagingArea) -> v1.AppendRowsResponse:
    """Write rows for a table. They become visible when the transaction is committed."""
    messages = iter(requests)
    first = next(messages, v1.AppendRowsRequest())
    transaction_id = _checked_id(first.transaction_id)
    staged_writes.require_open(realm, staged_writes.find(realm, transaction_id).value)
    writable_id(realm, first.table_id, v1.RK_TABLE, field="table_id")
    policies, realm = realm.policies, realm.without_policies()  # which hide rows, but let callers insert some
    base = load(realm, area.files(), first.table_id)
    realm.require("table.write", base.table)
    restriction = None if policies is None else policies.of(base.table)

    def decoded(rows: bytes) -> Iterator[pa.RecordBatch]:
        for batch in area.decode(rows):
            if restriction is not None:
                for name, column in zip(batch.schema.names, batch.columns, strict=True):
                    has_values = column.null_count < len(column)
                    restriction.check_inserted(name, restriction.columns.get(name), has_values=has_values)
            yield batch

    with DataFileWriter(base.files, base.metadata, buffer_bytes=BUFFER_BYTES) as writer:
        for batch in decoded(first.rows) if first.rows else ():
            writer.write(batch)
        for message in messages:
            _check_same(first, message)
            for batch in decoded(message.rows):
                writer.write(batch)
        added = writer.close()
    write_id = ""
    if added:
        expected = first.expected_snapshot_id if first.HasField("expected_snapshot_id") else None
        write = staged_writes.NewWrite(base, added, writer.row_count, expected_snapshot_id=expected)
        with undoing(writer.abort):
            write_id = staged_writes.stage(realm, transaction_id, write, rules=area.rules)
    return v1.AppendRowsResponse(row_count=writer.row_count, write_id=write_id)


def commit(realm: Realm, request: v1.CommitTransactionRequest, *, area: StagingArea) -> v1.CommitTransactionResponse:
    """Make the rows of all writes, or of those that are named, visible at once."""
    for table_id in request.replaced_table_ids:
        writable_id(realm, table_id, v1.RK_TABLE, field="replaced_table_ids")
    done = commit_transaction(
        realm,
        area.files(),
        _checked_id(request.transaction_id),
        only=set(request.only.write_ids) if request.HasField("only") else None,
        replaced=request.replaced_table_ids,
        rules=area.rules,
    )
    return v1.CommitTransactionResponse(transaction=_shown(realm, done))


def abort(realm: Realm, request: v1.AbortTransactionRequest, *, area: StagingArea) -> v1.AbortTransactionResponse:
    """Discard the rows of all writes."""
    done = abort_transaction(realm, area.files(), _checked_id(request.transaction_id), rules=area.rules)
    return v1.AbortTransactionResponse(transaction=_shown(realm, done))


def get(realm: Realm, request: v1.GetTransactionRequest) -> v1.GetTransactionResponse:
    """Return a transaction of the caller, in any state."""
    found = staged_writes.find(realm, _checked_id(request.transaction_id)).value
    return v1.GetTransactionResponse(transaction=_shown(realm, found))


def list_(realm: Realm, request: v1.ListTransactionsRequest) -> v1.ListTransactionsResponse:
    """List the open transactions of the caller."""
    prefix = keys.transaction_open(realm.account_id, realm.caller)
    found, page = listed(realm.all(TRANSACTION), prefix, request.page)
    return v1.ListTransactionsResponse(transactions=[_shown(realm, each) for each in found], page=page)


def _shown(realm: Realm, transaction: v1.Transaction) -> v1.Transaction:
    """The transaction without the files of tables on which policies restrict the caller."""
    policies = realm.policies
    if policies is None or not any(policies.of_table(each.table_id.id) for each in transaction.writes):
        return transaction
    shown = copied(transaction)
    for write in shown.writes:
        if policies.of_table(write.table_id.id) is not None:
            for each in ("data_files", "manifest", "manifest_length", "partition_spec_id", "change"):
                write.ClearField(each)
    return shown


def _checked_id(transaction_id: str) -> str:
    if not transaction_id.strip():
        raise failure(InvalidArgument, "field", field="transaction_id")
    return transaction_id


def _check_same(first: v1.AppendRowsRequest, other: v1.AppendRowsRequest) -> None:
    if other.transaction_id not in ("", first.transaction_id):
        raise failure(InvalidArgument, "rows.table.changed", field="transaction_id")
    if other.table_id.id not in ("", first.table_id.id):
        raise failure(InvalidArgument, "rows.table.changed", field="table_id")
