"""Profiling managed tables: statistics of the current snapshot on request, by a job or at once.

Commits publish the statistics of their files. Statistics that need all values, such as distinct counts, are computed
here as for the tables of connectors. Files that were profiled before are read again only on request.

The sketches are attached to the table's metadata, where engines look for distinct counts: Iceberg stores them in a
Puffin file per snapshot. The metastore's own statistics do not depend on that, so a table that changes too fast, or is
deleted meanwhile, is left as it is.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from skiway.clock import Clock
from skiway.errors import InvalidArgument, SkiwayError, Unsupported
from skiway.formats import Snapshot, TableHandle
from skiway.formats.iceberg.commits import Change, Producer
from skiway.formats.iceberg.warehouse import TableFiles, Warehouse
from skiway.metastore import quality, statistics
from skiway.metastore.connectors.specs import ColumnChoice, chosen_columns
from skiway.metastore.jobs.attempts import Amounts
from skiway.metastore.managed import commits, states
from skiway.metastore.reconcile.outcomes import LEFT_OUT, Control, Outcome, Profile, Stages, unread
from skiway.metastore.records.realm import Realm
from skiway.model import v1

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata

__all__ = ["SketchFile", "Sketched", "attach", "profile_table", "require_statistics", "sketches_of", "with_sketches"]

log = logging.getLogger("skiway.profile")


class SketchFile(Protocol):
    """A Puffin file: its content, the size of its footer, and the metadata of its blobs."""

    @property
    def data(self) -> bytes: ...
    @property
    def footer_size(self) -> int: ...
    @property
    def blobs(self) -> Sequence[Mapping[str, Any]]: ...


@runtime_checkable
class Sketched(Protocol):
    """The outcome of a profile that has sketches."""

    def puffin(self) -> SketchFile: ...


def sketches_of(profiled: object) -> SketchFile | None:
    """The sketches of a profile, if it has any."""
    return profiled.puffin() if isinstance(profiled, Sketched) else None


def attach(
    realm: Realm, warehouse: Warehouse, table_id: v1.ResourceId, *, snapshot_id: int, sketches: SketchFile | None
) -> None:
    """Attach the sketches of a snapshot to the table's metadata, replacing earlier ones, without a new snapshot."""
    if sketches is None or not sketches.blobs:
        return
    try:
        commits.change(realm, warehouse, table_id, with_sketches(snapshot_id, sketches))
    except SkiwayError as error:
        log.warning("the sketches of table %s could not be attached to its metadata: %s", table_id.id, error)


def with_sketches(snapshot_id: int, sketches: SketchFile) -> Producer:
    """A change that applies to every state that has the snapshot, and leaves others unchanged."""

    def produce(metadata: TableMetadata, files: TableFiles, clock: Clock) -> Change:  # noqa: ARG001
        from pyiceberg.table.update import SetStatisticsUpdate

        if metadata.snapshot_by_id(snapshot_id) is None:
            return Change((), ())
        path = f"{metadata.location}/metadata/{snapshot_id}-{uuid.uuid4()}.stats"
        statistics_file = {
            "snapshot-id": snapshot_id,
            "statistics-path": path,
            "file-size-in-bytes": len(sketches.data),
            "file-footer-size-in-bytes": sketches.footer_size,
            "blob-metadata": [_without_place(blob) for blob in sketches.blobs],
        }
        update = SetStatisticsUpdate.model_validate({"statistics": statistics_file})
        files.write(path, sketches.data)
        return Change((), (update,), (path,))

    return produce


def _without_place(blob: Mapping[str, Any]) -> dict[str, Any]:
    """The metadata of a blob without its position in the file."""
    return {name: value for name, value in blob.items() if name not in ("offset", "length")}


# --- profiles ---------------------------------------------------------------------------------------------------------
def require_statistics(realm: Realm, request: v1.SyncCaptureRequest) -> None:
    """Raise if the managed table does not exist, or if the request is for anything but statistics."""
    states.managed_record(realm, request.table_id)
    if not request.include_statistics:
        raise InvalidArgument(
            "a managed table has no upstream metadata to capture: set include_statistics, or use a connector",
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
    again: str = "",
    control: Control | None = None,
) -> Outcome:
    """Profile the table's current snapshot if it has no statistics, and return the outcome.

    With the id of a run in `again`, all files are read again.
    """
    if profile is None or warehouse is None:
        raise Unsupported("this server does not profile tables: use one that does", key="profile.none")
    control = control or Control()
    control.check()
    table = states.load(realm, warehouse, table_id)
    snapshot, chosen = table.handle.current(), chosen_columns(v1.ConnectorSource(), columns)
    outcome = Outcome(scanned=1, stages=Stages(v1.CAP_STATS_ONLY_ASYNC, total=1))
    if snapshot is None or not (again or _lacks(realm, table.id, snapshot, handle=table.handle, columns=chosen)):
        return outcome
    name = table.table.display_name
    outcome.stages.begun(name)

    def on_progress(done: Amounts, total: Amounts) -> None:
        outcome.stages.files(name, done, total)
        control.report(outcome.progress)

    report = profile(
        realm,
        table.table.resource_id,
        snapshot,
        handle=table.handle,
        cancelled=control.must_stop,
        columns=chosen,
        again=again,
        on_progress=on_progress,
    )
    outcome.stages.ended(name)
    outcome.changed = 1
    quality.after_profile(realm, table.table.resource_id)
    attach(realm, warehouse, table.table.resource_id, snapshot_id=snapshot.id, sketches=sketches_of(report))
    if report is not None and report.other_formats:
        outcome.other_formats[name] = report.other_formats
    if report is not None and report.failed:
        outcome.failures[name] = unread(report.failed).message
    return outcome


def _lacks(realm: Realm, table_id: str, snapshot: Snapshot, *, handle: TableHandle, columns: ColumnChoice) -> bool:
    """Whether a file was never profiled, or a requested column was left out."""
    found = statistics.table_statistics(realm, table_id, snapshot.id)
    properties = found.properties if found else {}
    if found is None or statistics.lacks_profiles(found, default=-1):
        return True
    left_out = {int(number) for number in properties.get(LEFT_OUT, "").split(",") if number}
    return bool(left_out - columns.left_out(handle.schema_at(snapshot)))
