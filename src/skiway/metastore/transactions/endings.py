"""How transactions end: the commit publishes the staged writes, aborting and expiring delete their files.

A commit makes one snapshot of all writes to a table (`combined_writes`). It publishes the snapshots of all tables and marks the
transaction as committed in one batch. So it happens completely or not at all, and repeating it changes nothing. Aborting marks
the transaction first, too, and deletes the files then: of a commit and an abort at the same time, one wins.

A commit may name the writes to include. The others are dropped: they are marked in the same batch, and their files are deleted.
So a program that writes the same rows twice, because a part of it failed or was slow, commits each row once. A commit may also
replace all rows of a table.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import replace

from tenacity import Retrying, retry_if_exception, stop_after_attempt

from skiway.errors import Conflict, InvalidArgument, NotFound, PreconditionFailed, SkiwayError
from skiway.formats.iceberg.warehouse import Warehouse
from skiway.metastore.managed.commits import PAUSES, TableChange, change_all
from skiway.metastore.managed.states import ManagedTable, managed_record
from skiway.metastore.records.errors import failure
from skiway.metastore.records.kinds import TRANSACTION
from skiway.metastore.records.policies import CHANGED_SINCE, NOT_CHANGED, CallerPolicies
from skiway.metastore.records.realm import Realm
from skiway.metastore.records.repository import Stored
from skiway.metastore.records.updates import copied
from skiway.metastore.transactions.combined_writes import manifest_of, producer_of
from skiway.metastore.transactions.staged_writes import (
    ATTEMPTS,
    RULES,
    TransactionRules,
    amended,
    files_of_write,
    find,
    mark_ended,
    remove_uncommitted,
    replace_record,
    require_open,
)
from skiway.model import v1
from skiway.storage import Operation

__all__ = ["abort", "commit", "expire"]


def commit(
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
    Callers whom policies restrict commit what the policies let them write, but cannot replace rows that they may not see.
    """
    for table_id in replaced:
        realm.require("table.write", managed_record(realm, table_id).value)
    policies, realm = realm.policies, realm.without_policies()

    def attempt() -> v1.Transaction:
        found = find(realm, transaction_id)
        if found.value.state == v1.TX_COMMITTED:
            return found.value
        require_open(realm, found.value)
        if policies is not None:
            _check_policies(policies, found.value)
        try:
            return _committed(realm, warehouse, _selected(found, only), replaced, rules)
        except (Conflict, PreconditionFailed):
            # Another call may have ended the transaction meanwhile, and deleted its manifests.
            again = find(realm, transaction_id).value
            if again.state == v1.TX_COMMITTED:
                return again
            require_open(realm, again)
            raise

    if only is None:
        return attempt()
    # Writes that arrive meanwhile are not selected, so they are no reason to fail.
    return Retrying(
        retry=retry_if_exception(_is_changed), stop=stop_after_attempt(ATTEMPTS), wait=PAUSES, reraise=True
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


def _is_changed(error: BaseException) -> bool:
    return isinstance(error, Conflict) and error.key == "transaction.changed"


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
    mark_ended(realm, outcome, v1.TX_COMMITTED, rules)
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
            TableChange(tables.get(table_id) or writes[0].table_id, producer_of(writes, replaces=table_id in tables))
            for table_id, writes in by_table.items()
        ]
        change_all(realm, warehouse, changes, also=also)
    if not is_marked:  # no table changes
        replace_record(realm, found, outcome)
    with suppress(SkiwayError):  # the commit is done, and garbage collection deletes what is left
        remove_uncommitted(realm, warehouse, outcome)
        for write in outcome.writes:
            if manifest := manifest_of(write):
                files_of_write(realm, warehouse, write).remove([manifest])
    return outcome


def abort(
    realm: Realm, warehouse: Warehouse, transaction_id: str, *, rules: TransactionRules = RULES
) -> v1.Transaction:
    """Discard all staged files. Raise `PreconditionFailed` if the transaction is committed."""

    def edit(transaction: v1.Transaction) -> None:
        if transaction.state == v1.TX_COMMITTED:
            require_open(realm, transaction)
        if transaction.state == v1.TX_OPEN:
            mark_ended(realm, transaction, v1.TX_ABORTED, rules)

    aborted = amended(realm, transaction_id, edit)
    remove_uncommitted(realm, warehouse, aborted)
    return aborted


def expire(
    realm: Realm, warehouse: Warehouse, found: Stored[v1.Transaction], *, rules: TransactionRules = RULES
) -> None:
    """End a transaction that is due: one that is open expires, and the record of another one is deleted.

    Files that were not committed are deleted both times, in case that a process died in between.
    """
    if found.value.state == v1.TX_OPEN:
        desired = copied(found.value)
        mark_ended(realm, desired, v1.TX_EXPIRED, rules)
        replace_record(realm, found, desired)
    remove_uncommitted(realm, warehouse, found.value)
    if found.value.state != v1.TX_OPEN:
        realm.all(TRANSACTION).delete(found.pointer, found.value)
