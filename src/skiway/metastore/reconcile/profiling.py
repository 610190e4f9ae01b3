"""Sketches of a managed table, attached to its metadata, where engines look for the numbers of distinct values.

Iceberg keeps them in a file per snapshot, in the format Puffin, which the metadata names. What the metastore itself tells
does not depend on it: a table that changes too fast for it, or is gone meanwhile, is left as it is.
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
from skiway.metastore import statistics
from skiway.metastore.connectors.specs import ColumnChoice, chosen_columns
from skiway.metastore.managed import commits
from skiway.metastore.reconcile.outcomes import LEFT_OUT, Control, Outcome, Profile, Stages, unread
from skiway.metastore.records.realm import Realm
from skiway.model import v1

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata

__all__ = ["SketchFile", "Sketched", "attach", "profile_table", "require_statistics", "sketches_of", "with_sketches"]

log = logging.getLogger("skiway.profile")


class SketchFile(Protocol):
    """A Puffin file: its content, the size of its footer, and what is said of each blob there."""

    @property
    def data(self) -> bytes: ...
    @property
    def footer_size(self) -> int: ...
    @property
    def blobs(self) -> Sequence[Mapping[str, Any]]: ...


@runtime_checkable
class Sketched(Protocol):
    """What came of a profile that has made sketches."""

    def puffin(self) -> SketchFile: ...


def sketches_of(profiled: object) -> SketchFile | None:
    """The sketches that a profile has made, if it has."""
    return profiled.puffin() if isinstance(profiled, Sketched) else None


def attach(
    realm: Realm, warehouse: Warehouse, table_id: v1.ResourceId, *, snapshot_id: int, sketches: SketchFile | None
) -> None:
    """Let the table's metadata name the sketches of a snapshot, in the place of those it had; no snapshot is made."""
    if sketches is None or not sketches.blobs:
        return
    try:
        commits.change(realm, warehouse, table_id, with_sketches(snapshot_id, sketches))
    except SkiwayError as error:
        log.warning("the sketches of table %s are not in its metadata: %s", table_id.id, error)


def with_sketches(snapshot_id: int, sketches: SketchFile) -> Producer:
    """A change that fits every state in which there is the snapshot, and leaves others as they are."""

    def produce(metadata: TableMetadata, files: TableFiles, clock: Clock) -> Change:  # noqa: ARG001
        from pyiceberg.table.update import SetStatisticsUpdate

        if metadata.snapshot_by_id(snapshot_id) is None:
            return Change((), ())
        path = f"{metadata.location}/metadata/{snapshot_id}-{uuid.uuid4()}.stats"
        said = {
            "snapshot-id": snapshot_id,
            "statistics-path": path,
            "file-size-in-bytes": len(sketches.data),
            "file-footer-size-in-bytes": sketches.footer_size,
            "blob-metadata": [_without_place(blob) for blob in sketches.blobs],
        }
        update = SetStatisticsUpdate.model_validate({"statistics": said})
        files.write(path, sketches.data)
        return Change((), (update,), (path,))

    return produce


def _without_place(blob: Mapping[str, Any]) -> dict[str, Any]:
    """What metadata says of a blob: not where in the file it is."""
    return {name: value for name, value in blob.items() if name not in ("offset", "length")}


# --------------------
# Statistics of managed tables: made when somebody asks for them, of the current snapshot, by a job or at once.
#
# Commits publish what files tell of themselves. What takes a look at all values, such as the number of distinct ones, is
# profiled here as it is for the tables of connectors, and files that were profiled before are not read again.


def require_statistics(realm: Realm, request: v1.SyncCaptureRequest) -> None:
    """Raise if there is no such managed table, or something else is asked for than can be captured of one."""
    commits.managed_record(realm, request.table_id)
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
    table = commits.load(realm, warehouse, table_id)
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
        outcome.failures[name] = unread(report.failed).message
    return outcome


def _lacks(realm: Realm, table_id: str, snapshot: Snapshot, *, handle: TableHandle, columns: ColumnChoice) -> bool:
    """Whether some file was never profiled, or a column that is asked for was left out."""
    found = statistics.table_statistics(realm, table_id, snapshot.id)
    told = found.properties if found else {}
    if found is None or "files.profiled" not in told or int(told["files.profiled"]) < found.data_file_count:
        return True
    left_out = {int(number) for number in told.get(LEFT_OUT, "").split(",") if number}
    return bool(left_out - columns.left_out(handle.schema_at(snapshot)))
