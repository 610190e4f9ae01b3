"""The calls of `TransactionService`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import pyarrow as pa

from skiway.errors import InvalidArgument, SkiwayError, Unsupported
from skiway.formats.iceberg.data_files import DataFileWriter
from skiway.formats.iceberg.warehouse import Warehouse
from skiway.metastore.managed.states import is_certainly_undone, load
from skiway.metastore.records import keys
from skiway.metastore.records.errors import failure
from skiway.metastore.records.kinds import TRANSACTION
from skiway.metastore.records.realm import Realm
from skiway.metastore.records.repository import listed
from skiway.metastore.records.updates import copied
from skiway.metastore.resources.ownership import writable_id
from skiway.metastore.transactions import endings, staged_writes
from skiway.metastore.transactions.staged_writes import RULES, TransactionRules
from skiway.model import v1

__all__ = ["StagingArea", "abort", "append", "begin", "commit", "decode_rows", "get", "list_", "malformed_rows"]

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
        try:
            write_id = staged_writes.stage(
                realm,
                transaction_id,
                base,
                added,
                row_count=writer.row_count,
                expected_snapshot_id=first.expected_snapshot_id if first.HasField("expected_snapshot_id") else None,
                rules=area.rules,
            )
        except SkiwayError as error:
            if is_certainly_undone(error):
                writer.abort()
            raise
    return v1.AppendRowsResponse(row_count=writer.row_count, write_id=write_id)


def commit(realm: Realm, request: v1.CommitTransactionRequest, *, area: StagingArea) -> v1.CommitTransactionResponse:
    """Make the rows of all writes, or of those that are named, visible at once."""
    for table_id in request.replaced_table_ids:
        writable_id(realm, table_id, v1.RK_TABLE, field="replaced_table_ids")
    done = endings.commit(
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
    done = endings.abort(realm, area.files(), _checked_id(request.transaction_id), rules=area.rules)
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
