"""Commits to managed tables: whether a statement may change a table, and how the change reaches the metastore."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from skiway.airport import current_request
from skiway.errors import PreconditionFailed, Unsupported
from skiway.formats.iceberg.commits import Producer
from skiway.lake.context import Context
from skiway.lake.transactions import is_explicit
from skiway.lake.usage import unit_of_work
from skiway.metastore import Realm, connectors, managed, snapshots
from skiway.metastore.managed import ManagedTable, TableChange
from skiway.metastore.records.policies import NOT_CHANGED
from skiway.metastore.transactions.staged_writes import StagedChange
from skiway.model import v1

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile

__all__ = ["Changes", "check_auto_commit", "check_managed"]


def check_managed(catalog: v1.Catalog) -> None:
    """Raise unless tables and schemas can be created in the catalog."""
    if catalog.connector_ref:
        raise PreconditionFailed(
            f"catalog {catalog.display_name!r} is read-only: connector {catalog.connector_ref!r} mirrors an external "
            "catalog in it; change the tables there, or use a managed catalog",
            key="catalog.not_managed",
        )


def check_auto_commit() -> None:
    """Raise if the statement is part of an explicit transaction."""
    if is_explicit():
        raise Unsupported(
            "this statement commits by itself and cannot be rolled back: of all statements that write to a lake, only INSERT, "
            "UPDATE, DELETE and MERGE can be part of an explicit transaction; run this one outside of it",
            key="transaction.explicit",
        )


@dataclass(frozen=True)
class Changes:
    """Changes of one managed table, each of which is one commit."""

    context: Context
    record: v1.Table
    within_policies: bool = False
    """Whether callers whom policies restrict may make the changes, because these reveal nothing."""

    @property
    def realm(self) -> Realm:
        """The metastore of the caller's account."""
        realm = self.context.callers.realm()
        return realm.without_policies() if self.within_policies else realm

    def check_allowed(self, *, may_stage: bool = False) -> None:
        """Raise unless the caller may change this table with this statement; `may_stage` in an explicit transaction, too."""
        self.context.callers.require("table.write", self.record)
        if not self.record.damage:
            self.realm.require_unrestricted(self.record, why=NOT_CHANGED)
        if not (self.record.metadata_location or self.record.damage):
            raise PreconditionFailed(
                f"table {self.record.display_name!r} is read-only: connector {self._connector()!r} mirrors it from "
                f"{self.record.upstream.uri!r}; change it there, or copy it into a managed catalog",
                key="table.not_managed",
                table=self.record.display_name,
            )
        if not may_stage:
            check_auto_commit()

    def load(self) -> ManagedTable:
        """The table in its current state."""
        return managed.load(self.realm, self.context.handles.warehouse, self.record.resource_id)

    def commit(self, producer: Producer) -> ManagedTable:
        """Commit a change. It is visible to this transaction and to all others from then on."""
        transaction, realm = current_request().transaction_id, self.realm
        until = self.context.transactions.expiry(transaction)

        def also(published: Sequence[ManagedTable]) -> Iterator[Any]:
            for each in published:
                snapshot_id = each.metadata.current_snapshot_id
                if until is not None and snapshot_id is not None:
                    yield snapshots.writing(realm, transaction, each.id, snapshot_id, until=until)

        (changed,) = managed.change_all(
            realm, self.context.handles.warehouse, [TableChange(self.record.resource_id, producer)], also=also
        )
        self.context.transactions.repin(transaction, changed.id, changed.metadata.current_snapshot_id)
        caller = self.context.callers.principal.subject
        self.context.usage.written(realm, changed.id, caller=caller, unit=unit_of_work(current_request()))
        self.context.versions.changed(self.realm)
        return changed

    def stage(
        self,
        base: ManagedTable,
        files: Sequence[DataFile],
        *,
        rows: int,
        change: StagedChange | None = None,
        expected_snapshot_id: int | None = None,
    ) -> None:
        """Add data files, and the change of an UPDATE or DELETE, to the explicit transaction of the statement.

        Its commit makes them visible. With `expected_snapshot_id`, it fails unless this is still the current snapshot; 0 is none.
        """
        policies = self.context.callers.realm().policies
        if change is not None and policies is not None and (found := policies.of(base.table)) is not None:
            change = replace(change, policies=found.digest)
        self.context.transactions.stage(
            current_request().transaction_id,
            base,
            files,
            rows=rows,
            change=change,
            expected_snapshot_id=expected_snapshot_id,
        )

    def run(self, change: Callable[[], object]) -> None:
        """Make a change of more than the table's content, such as its name."""
        self.check_allowed()
        change()
        self.context.versions.changed(self.realm)

    def undo_create(self, session_id: str) -> None:
        """Drop the table if it is as it was created, which its session does not know. Garbage collection deletes its files."""
        warehouse = self.context.handles.warehouse
        if managed.drop_unused(self.realm, warehouse, self.record.resource_id):
            self.context.versions.changed(self.realm)
            self.context.failed_creations.add(session_id, self.record.namespace_id.id, self.record.display_name)

    def _connector(self) -> str:
        found = connectors.find(self.realm, self.record.upstream.connector_id.id)
        return found.value.display_name if found else "none"
