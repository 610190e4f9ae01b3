"""One pass over the tables of a connector: several at a time where its policy says so, and each by itself.

A table that fails is told of, and the others go on. The lanes of a pass share nothing but the list of what is still to be
done, and each asks the upstream through a connection of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from threading import Lock, Thread
from typing import Final

from skiway.errors import Cancelled, PreconditionFailed, SkiwayError
from skiway.formats import Snapshot, Source, TableHandle
from skiway.metastore.connectors.specs import ColumnChoice
from skiway.metastore.reconcile.destinations import Aim, Destinations, settled
from skiway.metastore.reconcile.mirroring import Mirror, ensured_namespace, mirrored_tables
from skiway.metastore.reconcile.outcomes import LEFT_OUT, TRANSIENT, Control, Outcome, Profile, Stages
from skiway.metastore.reconcile.sources import Opener, Upstream
from skiway.metastore.records import keys
from skiway.metastore.records.kinds import TABLE_STATS
from skiway.metastore.records.realm import Realm
from skiway.model import v1

__all__ = ["MOST_LANES", "Run", "unread"]

MOST_LANES: Final = 16
"""More tables at once are not worked on, whatever a policy says."""

TOLD_FILES: Final = 3

Work = Callable[[Source, Aim], bool]

log = logging.getLogger("skiway.reconcile")


@dataclass(slots=True)
class Run:
    """What is to be done, and what was done so far: in the pass before, if any, and in this one.

    `again` looks at known snapshots too.
    """

    realm: Realm
    connector: v1.Connector
    asked: Upstream
    opener: Opener
    scope: v1.JobScope
    columns: ColumnChoice
    profile: Profile | None
    control: Control
    again: bool
    before: Outcome = field(default_factory=Outcome)
    outcome: Outcome = field(default_factory=Outcome)
    _lock: Lock = field(default_factory=Lock)

    def make(self, mode: v1.CaptureMode.ValueType) -> Outcome:
        """Do it for all tables in the scope, and write down which destinations there are now."""
        work = self._mirror if mode == v1.CAP_METADATA_ONLY_CORE else self._profiled
        destinations = Destinations(self.realm, self.connector, self.scope)
        with ExitStack() as opened:
            source = opened.enter_context(self.asked.open(self.opener))
            aims = destinations.aims(source)
            self.outcome.stages = Stages(mode, len(aims))
            self._tell()
            lanes = min(self.connector.policy.max_parallel or 1, len(aims), MOST_LANES)
            more = [opened.enter_context(self.asked.open(self.opener)) for _ in range(lanes - 1)]
            self._side_by_side([source, *more], iter(aims), work)
        self.control.check()
        settled(self.realm, self.connector, destinations)
        return self.before.and_then(self.outcome)

    def _side_by_side(self, sources: list[Source], aims: Iterator[Aim], work: Work) -> None:
        """A lane per source. One is on this thread, the others on threads that nobody waits for when the process ends."""
        own, *others = sources
        failures: list[BaseException] = []

        def lane(source: Source) -> None:
            try:
                for aim in aims:
                    self._table(source, aim, work)
            except BaseException as error:  # noqa: BLE001 - it is raised where the lanes are waited for
                failures.append(error)

        beside = [Thread(target=lane, args=(source,), name="tables", daemon=True) for source in others]
        for thread in beside:
            thread.start()
        lane(own)
        for thread in beside:
            thread.join()
        for failure in failures:
            raise failure

    def _table(self, source: Source, aim: Aim, work: Work) -> None:
        self.control.check()
        name = str(aim.source)
        with self._lock:
            self.outcome.scanned += 1
            self.outcome.stages.begun(name)
        self._tell()
        error, changed = None, False
        try:
            changed = work(source, aim)
        except Cancelled:
            raise
        except Exception as caught:  # noqa: BLE001 - one table must not stop the others
            error = caught
        with self._lock:
            self.outcome.changed += changed
            self.outcome.stages.ended(name)
            if error is not None:
                self._failed(name, error)
        self._tell()

    def _failed(self, table: str, error: Exception) -> None:
        if not isinstance(error, SkiwayError):
            log.error("table %s could not be mirrored", table, exc_info=error)
        self.outcome.failures[table] = self.asked.told(error)
        self.outcome.transient |= isinstance(error, TRANSIENT)

    def _tell(self) -> None:
        with self._lock:
            done = self.before.and_then(self.outcome).progress
        self.control.report(done)

    # --- the first pass -----------------------------------------------------------------------------------------------

    def _mirror(self, source: Source, aim: Aim) -> bool:
        """The first pass over one table; whether it changed anything."""
        handle = source.load(aim.source.namespace, aim.source.name)
        self.control.check()
        namespace_id = ensured_namespace(self.realm, self.connector.destination.catalog_id, aim.namespace)
        mirror = Mirror(self.realm, self.connector.resource_id, handle, self.control.check)
        known = self._mirrored(namespace_id, aim)
        table_id, changed = mirror.ensured(namespace_id, aim.name, known)
        return mirror.record(table_id, self.connector.policy, again=self.again) or changed

    def _mirrored(self, namespace_id: v1.ResourceId, aim: Aim) -> v1.Table | None:
        found = mirrored_tables(self.realm, namespace_id.id, self.connector.resource_id.id)
        return found.get((*aim.source.namespace, aim.source.name))

    # --- the second pass ----------------------------------------------------------------------------------------------

    def _profiled(self, source: Source, aim: Aim) -> bool:
        """The second pass over one table; a table that is not mirrored is passed over."""
        namespace_id = aim.existing(self.realm, self.connector.destination.catalog_id)
        known = self._mirrored(namespace_id, aim) if namespace_id else None
        if known is None:
            return False
        handle = source.load(aim.source.namespace, aim.source.name)
        mirror = Mirror(self.realm, self.connector.resource_id, handle, self.control.check)
        recorded = mirror.known(known.resource_id)
        current = handle.current(recorded)
        ids = {each.id for each in recorded}
        reachable = [each for each in mirror.reachable(recorded, self.connector.policy) if each.id in ids]
        todo = [each for each in reachable if self._lacks(known.resource_id, each, handle, is_current=each == current)]
        failed: dict[str, str] = {}
        for snapshot in todo:
            failed |= self._profile(known.resource_id, snapshot, handle)
        if failed:
            raise unread(failed)
        return bool(todo)

    def _lacks(self, table_id: v1.ResourceId, snapshot: Snapshot, handle: TableHandle, *, is_current: bool) -> bool:
        """Whether statistics are to be made: there are none, or some wanted columns, or files that may be back, miss."""
        key = keys.statistics(self.realm.account_id, table_id.id, snapshot.id, of="table")
        found = self.realm.all(TABLE_STATS).find(key)
        if found is None or self.again:
            return True
        told = found.value.properties
        if is_current and int(told.get("files.profiled") or found.value.data_file_count) < found.value.data_file_count:
            return True
        left_out = {int(number) for number in told.get(LEFT_OUT, "").split(",") if number}
        return bool(left_out - self.columns.left_out(handle.schema_at(snapshot))) if left_out else False

    def _profile(self, table_id: v1.ResourceId, snapshot: Snapshot, handle: TableHandle) -> dict[str, str]:
        """Make statistics; which files could not be read, and why."""
        self.control.check()
        assert self.profile is not None
        name = str(handle.name)

        def on_progress(done: int, total: int) -> None:
            with self._lock:
                self.outcome.stages.files(f"{name}@{snapshot.id}", done, total)
            self._tell()

        report = self.profile(
            self.realm,
            table_id,
            snapshot,
            handle=handle,
            cancelled=self.control.must_stop,
            columns=self.columns,
            on_progress=on_progress,
        )
        return dict(report.failed) if report is not None else {}


def unread(failed: dict[str, str]) -> PreconditionFailed:
    """Some files could not be read: what was made of the others stands."""
    told = "; ".join(f"{path}: {reason}" for path, reason in list(failed.items())[:TOLD_FILES])
    more = f" and {len(failed) - TOLD_FILES} more" if len(failed) > TOLD_FILES else ""
    return PreconditionFailed(
        f"{len(failed)} files could not be profiled, statistics tell of the others only: {told}{more}; restore them, or"
        " remove them from the table, and synchronise again",
        key="profile.files.failed",
        files=str(len(failed)),
    )
