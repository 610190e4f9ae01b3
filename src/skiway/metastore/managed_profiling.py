"""Statistics of managed tables: made when somebody asks for them, of the current snapshot, by a job or at once.

Commits publish what files tell of themselves. What takes a look at all values, such as the number of distinct ones, is
profiled here as it is for the tables of connectors, and files that were profiled before are not read again.
"""

from __future__ import annotations

from collections.abc import Iterable

from skiway.errors import InvalidArgument, Unsupported
from skiway.formats import Snapshot, TableHandle
from skiway.formats.iceberg_warehouse import Warehouse
from skiway.metastore import keys, managed_commits
from skiway.metastore.connector_columns import ColumnChoice, chosen_columns
from skiway.metastore.kinds import TABLE_STATS
from skiway.metastore.managed_puffin import attach, sketches_of
from skiway.metastore.realm import Realm
from skiway.metastore.reconcile_outcomes import LEFT_OUT, Control, Outcome, Profile, Stages
from skiway.metastore.reconcile_run import unread
from skiway.model import v1

__all__ = ["profile_table", "require_statistics"]


def require_statistics(realm: Realm, request: v1.SyncCaptureRequest) -> None:
    """Raise if there is no such managed table, or something else is asked for than can be captured of one."""
    managed_commits.managed_record(realm, request.table_id)
    if not request.include_statistics:
        raise InvalidArgument(
            "a managed table has no other metadata than its own, so there is nothing to capture: set include_statistics, or"
            " name a connector",
            key="table.managed",
            field="include_statistics",
        )


def profile_table(
    realm: Realm,
    table_id: v1.ResourceId,
    *,
    warehouse: Warehouse | None,
    profile: Profile | None,
    columns: Iterable[str] = (),
    again: bool = False,
    control: Control | None = None,
) -> Outcome:
    """Make statistics of the table's current snapshot where there are none, or `again`; what came of it."""
    if profile is None or warehouse is None:
        raise Unsupported("this server does not profile tables: ask one that does", key="profile.none")
    control = control or Control()
    control.check()
    table = managed_commits.load(realm, warehouse, table_id)
    snapshot, chosen = table.handle.current(), chosen_columns(v1.ConnectorSource(), columns)
    outcome = Outcome(scanned=1, stages=Stages(v1.CAP_STATS_ONLY_ASYNC, total=1))
    if snapshot is None or not (again or _lacks(realm, table.id, snapshot, handle=table.handle, columns=chosen)):
        return outcome
    name = table.table.display_name
    outcome.stages.begun(name)

    def on_progress(done: int, total: int) -> None:
        outcome.stages.files(name, done, total)
        control.report(outcome.progress)

    report = profile(
        realm,
        table.table.resource_id,
        snapshot,
        handle=table.handle,
        cancelled=control.must_stop,
        columns=chosen,
        on_progress=on_progress,
    )
    outcome.stages.ended(name)
    outcome.changed = 1
    attach(realm, warehouse, table.table.resource_id, snapshot_id=snapshot.id, sketches=sketches_of(report))
    if report is not None and report.failed:
        outcome.failures[name] = unread(dict(report.failed)).message
    return outcome


def _lacks(realm: Realm, table_id: str, snapshot: Snapshot, *, handle: TableHandle, columns: ColumnChoice) -> bool:
    """Whether some file was never profiled, or a column that is asked for was left out."""
    found = realm.all(TABLE_STATS).find(keys.statistics(realm.account_id, table_id, snapshot.id, of="table"))
    told = found.value.properties if found else {}
    if found is None or "files.profiled" not in told or int(told["files.profiled"]) < found.value.data_file_count:
        return True
    left_out = {int(number) for number in told.get(LEFT_OUT, "").split(",") if number}
    return bool(left_out - columns.left_out(handle.schema_at(snapshot)))
