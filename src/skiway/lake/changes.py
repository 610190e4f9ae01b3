"""May this table be changed, and how its changes reach the metastore."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from skiway.airport import current_request
from skiway.airport.wire import headers
from skiway.errors import PreconditionFailed, Unsupported
from skiway.formats.iceberg.commits import Producer
from skiway.lake.context import Context
from skiway.metastore import Realm, managed
from skiway.metastore.managed import ManagedTable
from skiway.metastore.records import keys
from skiway.metastore.records.kinds import CONNECTOR
from skiway.model import v1

__all__ = ["Changes", "check_alone", "check_managed"]


def check_managed(catalog: v1.Catalog) -> None:
    """Raise unless tables and schemas can be made in the catalog."""
    if catalog.connector_ref:
        raise PreconditionFailed(
            f"catalog {catalog.display_name!r} is read-only: it shows what connector {catalog.connector_ref!r} brings in; "
            "change it there, or use a managed catalog",
            key="catalog.not_managed",
        )


def check_alone() -> None:
    """Raise if the statement is to be committed together with others."""
    if current_request().header(headers.AUTO_COMMIT) == "0":
        raise Unsupported(
            "statements of a lake commit by themselves, each one alone, and could not be taken back: write without an "
            "explicit transaction",
            key="transaction.explicit",
        )


@dataclass(frozen=True)
class Changes:
    """Changes of one managed table, each a commit of its own."""

    context: Context
    record: v1.Table

    @property
    def realm(self) -> Realm:
        """The caller's account."""
        return self.context.callers.realm()

    def check_allowed(self) -> None:
        """Raise unless this caller may change this table, in this way."""
        self.context.callers.require("table.write")
        if not self.record.metadata_location:
            raise PreconditionFailed(
                f"table {self.record.display_name!r} is read-only: connector {self._connector()!r} brings it in from "
                f"{self.record.upstream.uri!r}; change it there, or copy it into a managed catalog",
                key="table.not_managed",
                table=self.record.display_name,
            )
        check_alone()

    def load(self) -> ManagedTable:
        """The table as it is now, to be changed."""
        return managed.load(self.realm, self.context.handles.warehouse, self.record.resource_id)

    def commit(self, producer: Producer) -> ManagedTable:
        """Make the change; this transaction sees it from now on, and so do all others."""
        changed = managed.change(self.realm, self.context.handles.warehouse, self.record.resource_id, producer)
        snapshot = changed.metadata.current_snapshot()
        transaction = current_request().transaction_id
        self.context.transactions.repin(transaction, changed.id, None if snapshot is None else snapshot.snapshot_id)
        self.context.versions.changed(self.realm)
        return changed

    def run(self, change: Callable[[], object]) -> None:
        """Do something that changes more than the table's content, such as its name."""
        self.check_allowed()
        change()
        self.context.versions.changed(self.realm)

    def _connector(self) -> str:
        key = keys.connector(self.realm.account_id, self.record.upstream.connector_id.id)
        found = self.realm.all(CONNECTOR).named(key) if self.record.upstream.HasField("connector_id") else None
        return found.display_name if found else "none"
