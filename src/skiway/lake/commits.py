"""Commits to managed tables: whether a statement may change a table, and how the change reaches the metastore."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from skiway.airport import current_request
from skiway.airport.wire import headers
from skiway.errors import PreconditionFailed, Unsupported
from skiway.formats.iceberg.commits import Producer
from skiway.lake.context import Context
from skiway.lake.usage import unit_of_work
from skiway.metastore import Realm, connectors, managed
from skiway.metastore.managed import ManagedTable
from skiway.metastore.records.policies import ONLY_INSERT
from skiway.model import v1

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
    if current_request().header(headers.AUTO_COMMIT) == "0":
        raise Unsupported(
            "each statement that writes to a lake commits by itself and cannot be rolled back: write outside of an "
            "explicit transaction",
            key="transaction.explicit",
        )


@dataclass(frozen=True)
class Changes:
    """Changes of one managed table, each of which is one commit."""

    context: Context
    record: v1.Table
    inserts: bool = False
    """Whether the only change is that rows are added, which policies allow."""

    @property
    def realm(self) -> Realm:
        """The metastore of the caller's account."""
        realm = self.context.callers.realm()
        return realm.without_policies() if self.inserts else realm

    def check_allowed(self) -> None:
        """Raise unless the caller may change this table with this statement."""
        self.context.callers.require("table.write", self.record)
        if not self.record.damage:
            self.realm.require_unrestricted(self.record, why=ONLY_INSERT)
        if not (self.record.metadata_location or self.record.damage):
            raise PreconditionFailed(
                f"table {self.record.display_name!r} is read-only: connector {self._connector()!r} mirrors it from "
                f"{self.record.upstream.uri!r}; change it there, or copy it into a managed catalog",
                key="table.not_managed",
                table=self.record.display_name,
            )
        check_auto_commit()

    def load(self) -> ManagedTable:
        """The table in its current state."""
        return managed.load(self.realm, self.context.handles.warehouse, self.record.resource_id)

    def commit(self, producer: Producer) -> ManagedTable:
        """Commit a change. It is visible to this transaction and to all others from then on."""
        changed = managed.change(self.realm, self.context.handles.warehouse, self.record.resource_id, producer)
        snapshot = changed.metadata.current_snapshot()
        transaction = current_request().transaction_id
        self.context.transactions.repin(transaction, changed.id, None if snapshot is None else snapshot.snapshot_id)
        caller = self.context.callers.principal.subject
        self.context.usage.written(self.realm, changed.id, caller=caller, unit=unit_of_work(current_request()))
        self.context.versions.changed(self.realm)
        return changed

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
