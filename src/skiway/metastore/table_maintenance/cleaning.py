"""Remove orphan files of a managed table: files in its folder that none of its states references.

It is the sweep of the warehouse (`gc.warehouse`) for a single table, at once, with an age that the caller chooses.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from skiway.errors import InvalidArgument, PreconditionFailed
from skiway.formats.iceberg.warehouse import Warehouse
from skiway.metastore.gc.references import TRANSACTION_LIFETIME
from skiway.metastore.gc.warehouse import THREE_DAYS_S, sweep_table
from skiway.metastore.managed.states import managed_record
from skiway.metastore.records.realm import Realm
from skiway.metastore.table_maintenance.expiring import FoundFile
from skiway.model import v1

__all__ = ["OrphanReport", "remove_orphans"]


@dataclass(frozen=True, slots=True)
class OrphanReport:
    """The orphan files that were removed, or would be."""

    files: tuple[FoundFile, ...]

    @property
    def size_bytes(self) -> int:
        """The size of the files."""
        return sum(each.size_bytes for each in self.files)


def remove_orphans(
    realm: Realm,
    warehouse: Warehouse,
    table_id: v1.ResourceId,
    *,
    older_than: timedelta | None = None,
    dry_run: bool = True,
) -> OrphanReport:
    """Delete the orphan files that are older than an age; in a dry run, only report them.

    The age must be longer than any statement on the table takes. The realm must be that of the server.
    """
    age = timedelta(seconds=THREE_DAYS_S) if older_than is None else older_than
    if age < TRANSACTION_LIFETIME:
        raise InvalidArgument(
            f"orphan files must be older than an hour, not {age}, because statements write files before they commit them: "
            "choose an age that is longer than any statement takes",
            key="maintenance.age",
            field="older_than",
        )
    table = managed_record(realm, table_id).value
    done = sweep_table(realm, warehouse, table.resource_id.id, min_age_s=age.total_seconds(), dry_run=dry_run)
    if done.damaged:
        raise PreconditionFailed(
            f"the files of table {table.display_name} that are in use cannot be determined, so none was deleted: run "
            "skiway check --files to see what is damaged",
            key="table.damaged",
            id=table.resource_id.id,
        )
    return OrphanReport(tuple(map(FoundFile, done.removed, done.sizes)))
