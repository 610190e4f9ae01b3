"""Profiling managed tables: on request, by a job, and automatically after writes."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

from skiway.errors import Conflict, InvalidArgument, SkiwayError, Unsupported
from skiway.formats import Snapshot, TableHandle
from skiway.formats.iceberg.changes.commits import Change, Producer
from skiway.formats.iceberg.warehouse import TableFiles, Warehouse
from skiway.foundation.clock import Clock
from skiway.metastore import jobs, quality, statistics
from skiway.metastore.connectors.specs import ColumnChoice, chosen_columns
from skiway.metastore.jobs.api import MAX_CLOCK_SKEW
from skiway.metastore.jobs.attempts import Amounts
from skiway.metastore.managed import commits, states
from skiway.metastore.managed.states import load
from skiway.metastore.platform import visit_accounts
from skiway.metastore.reconcile.outcomes import LEFT_OUT, Control, Outcome, Profile, Stages, unread
from skiway.metastore.records import keys
from skiway.metastore.records.kinds import TABLE
from skiway.metastore.records.realm import Realm
from skiway.metastore.records.repository import Stored
from skiway.metastore.resources.snapshots import current_id
from skiway.metastore.resources.tables import MAINTENANCE, InheritedProperties, inherited
from skiway.model import v1
from skiway.storage import ABSENT, Pointer, Put, Stores

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot as IcebergSnapshot

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
        maintaining = replace(realm, past_protection=True)
        commits.change(maintaining, warehouse, table_id, with_sketches(snapshot_id, sketches))
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
    if snapshot is None or not (again or lacks_statistics(realm, table.id, snapshot, table.handle, chosen)):
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


def lacks_statistics(
    realm: Realm,
    table_id: str,
    snapshot: Snapshot,
    handle: TableHandle,
    columns: ColumnChoice,
    *,
    lacks_files: Callable[[v1.TableStats], bool] = lambda stats: statistics.lacks_profiles(stats, default=-1),
) -> bool:
    """Whether a snapshot has to be profiled: it has no statistics, or they lack files or requested columns."""
    stats = statistics.table_statistics(realm, table_id, snapshot.id)
    if stats is None or lacks_files(stats):
        return True
    left_out = {int(number) for number in stats.properties.get(LEFT_OUT, "").split(",") if number}
    return bool(left_out and left_out - columns.left_out(handle.schema_at(snapshot)))


MOST_COMMITS: Final = 200
"""A table is profiled after this number of commits, however few rows they changed."""

PATIENCE: Final = 10
"""A table that changes all the time is profiled after this number of delays."""

REMEMBERED: Final = timedelta(days=7)
"""For how long a table is not tried again whose profile failed."""

_ROW_COUNTS: Final = ("added-records", "deleted-records", "added-position-deletes", "added-equality-deletes")


@dataclass(frozen=True, slots=True)
class ProfileRules:
    """When a table is profiled: whether at all, the share of rows that must have changed, and for how long it must have been quiet."""

    automatic: bool = False
    changed_rows: float = 0.1
    delay: timedelta = timedelta(minutes=1)

    def of(self, properties: InheritedProperties) -> ProfileRules:
        """The rules of a table with these properties."""
        return ProfileRules(
            properties.is_auto("profile", default=self.automatic),
            properties.share("profile.changed-rows", self.changed_rows),
            properties.duration("profile.delay") or self.delay,
        )


@dataclass(frozen=True, slots=True)
class Started:
    """How many tables a step looked at, the jobs that it started, and where to continue; None at the end."""

    looked_at: int
    jobs: list[v1.Job]
    next_token: str | None = None


def start_profiles(
    stores: Stores,
    warehouse: Warehouse,
    *,
    realm_of: Callable[[str], Realm],
    rules: ProfileRules,
    size: int = 50,
    token: str | None = None,
) -> Started:
    """Look at the next tables of all accounts, and enqueue the profiles that are due. A table that cannot be examined is logged."""
    started = list[v1.Job]()

    def visit(account_id: str, pointer: Pointer) -> None:
        realm = realm_of(account_id)
        table = realm.all(TABLE).follow(pointer)
        if table is not None and table.value.metadata_location:
            job = _started(realm, warehouse, table, rules)
            started.extend([] if job is None else [job])

    looked_at, next_token = visit_accounts(stores, keys.table, visit, size=size, token=token)
    return Started(looked_at, started, next_token)


def _started(realm: Realm, warehouse: Warehouse, table: Stored[v1.Table], rules: ProfileRules) -> v1.Job | None:
    try:
        properties = InheritedProperties(MAINTENANCE, inherited(realm, table.value, MAINTENANCE))
        return _started_by(realm, warehouse, table, rules.of(properties))
    except Conflict:
        return None  # the table has just been changed, or another server was faster
    except SkiwayError as error:
        # One broken table must not stop the others.
        log.warning("table %s of account %s is not profiled: %s", table.value.display_name, realm.account_id, error)
        return None


def _started_by(realm: Realm, warehouse: Warehouse, table: Stored[v1.Table], rules: ProfileRules) -> v1.Job | None:
    """Enqueue the profile of a table if it is due by these rules."""
    table_id = table.value.resource_id.id
    snapshot_id = current_id(realm, table_id) if rules.automatic else None
    if snapshot_id is None or _is_profiled(realm, table_id, snapshot_id):
        return None
    key = keys.automatic_profile(realm.account_id, table_id)
    tried, wanted = realm.stores.pointers.get(key), f"{snapshot_id}@{statistics.CURRENT_VERSION}"
    if tried is not None and tried.blob_uri == wanted:
        return None
    if not _is_due(realm, table_id, load(realm, warehouse, table.value.resource_id).metadata, rules):
        return None
    now = Put(
        key,
        wanted,
        expect=ABSENT if tried is None else tried.version,
        expires_at=realm.clock() + REMEMBERED,
    )
    return jobs.enqueue_unless_active(realm, table, also=[now])


def _is_profiled(realm: Realm, table_id: str, snapshot_id: int) -> bool:
    found = statistics.table_statistics(realm, table_id, snapshot_id)
    return (
        found is not None
        and "files.profiled" in found.properties
        and statistics.profile_version(found) >= statistics.CURRENT_VERSION
    )


def _is_due(realm: Realm, table_id: str, metadata: TableMetadata, rules: ProfileRules) -> bool:
    """Whether enough rows have changed since the last profile, and nothing changes at the moment."""
    recent, has_profile = _since_profile(realm, table_id, metadata)
    if not recent:
        return False
    newest, oldest = recent[0], recent[-1]
    enough = rules.changed_rows * _count(newest, "total-records")
    if has_profile and sum(map(_changed, recent)) < enough:
        return False
    quiet, waited = (realm.clock() - _time(each) for each in (newest, oldest))
    is_quiet = quiet >= rules.delay or quiet < -MAX_CLOCK_SKEW  # or the writer has a wrong clock
    return is_quiet or waited >= PATIENCE * rules.delay


def _since_profile(realm: Realm, table_id: str, metadata: TableMetadata) -> tuple[list[IcebergSnapshot], bool]:
    """The snapshots since the last profile, the newest first and not too many, and whether there is such a profile."""
    found: list[IcebergSnapshot] = []
    current = metadata.current_snapshot()
    while current is not None and len(found) < MOST_COMMITS:
        if _is_profiled(realm, table_id, current.snapshot_id):
            return found, True
        found.append(current)
        parent = current.parent_snapshot_id
        current = None if parent is None else metadata.snapshot_by_id(parent)
    return found, False


def _changed(snapshot: IcebergSnapshot) -> int:
    """How many rows a commit added, deleted or rewrote, according to its summary."""
    return sum(_count(snapshot, name) for name in _ROW_COUNTS)


def _count(snapshot: IcebergSnapshot, name: str) -> int:
    """A number of a snapshot's summary; 0 if the writer left it out."""
    found = (snapshot.summary.get(name) if snapshot.summary else None) or "0"
    return int(found) if found.isdecimal() else 0


def _time(snapshot: IcebergSnapshot) -> datetime:
    return datetime.fromtimestamp(snapshot.timestamp_ms / 1000, UTC)
