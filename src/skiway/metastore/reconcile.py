"""Reconciling: what a connector's upstream has, brought into the metastore.

Two passes. The first mirrors tables, snapshots and lists of files; the second profiles what is not profiled yet, and
touches neither tables nor snapshots. A table that fails is told of, and the others go on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from skiway.errors import Cancelled, Contention, PreconditionFailed, SkiwayError, TimedOut, Unavailable, Unsupported
from skiway.formats import Snapshot, Source, TableHandle, open_source
from skiway.metastore import connectors, keys
from skiway.metastore.failures import failure
from skiway.metastore.ids import local_id
from skiway.metastore.job_rules import Progress
from skiway.metastore.kinds import CONNECTOR
from skiway.metastore.mirroring import Mirror, ensured_namespace, mirrored_tables
from skiway.metastore.realm import Realm
from skiway.metastore.reconcile_destinations import Aim, Destinations, settled
from skiway.metastore.reconcile_sources import Opener, Upstream, stored_upstream
from skiway.model import v1
from skiway.security import SecretsStore

__all__ = ["Control", "Outcome", "Profile", "Reconciler", "capture"]

TRANSIENT = (Unavailable, TimedOut, Contention)

log = logging.getLogger("skiway.reconcile")


class Profile(Protocol):
    """Profiles the files of a snapshot and stores statistics of the table and its columns."""

    def __call__(
        self,
        realm: Realm,
        table_id: v1.ResourceId,
        snapshot: Snapshot,
        *,
        handle: TableHandle,
        cancelled: Callable[[], bool],
    ) -> object: ...


class Control:
    """How a run hears that it must stop, and tells how far it is. This one never stops and tells nobody."""

    def check(self) -> None:
        """Raise `Cancelled` if the run must stop. Called before everything that is written."""

    def report(self, done: Progress) -> None:
        """Take down what was done so far."""

    def must_stop(self) -> bool:
        """Whether `check` would raise."""
        try:
            self.check()
        except Cancelled:
            return True
        return False


@dataclass(slots=True)
class Outcome:
    """What a run has done so far. `transient` says whether a failure may be gone when the run is made again."""

    scanned: int = 0
    changed: int = 0
    failures: dict[str, str] = field(default_factory=dict)
    transient: bool = False

    @property
    def progress(self) -> Progress:
        """The same, as jobs tell it."""
        return Progress(self.scanned, self.changed, dict(self.failures), self.message)

    @property
    def message(self) -> str:
        """What there is to say of failures."""
        if not self.failures:
            return ""
        told = "; ".join(f"{table}: {reason}" for table, reason in self.failures.items())
        return f"partial failure, {len(self.failures)} of {self.scanned} tables: {told}"

    def and_then(self, later: Outcome) -> Outcome:
        """This pass and the one after it, over the same tables."""
        return Outcome(
            max(self.scanned, later.scanned),
            max(self.changed, later.changed),
            {**self.failures, **later.failures},
            self.transient or later.transient,
        )


@dataclass(frozen=True, slots=True)
class Reconciler:
    """Runs connectors. Without a `profile` there is no second pass."""

    secrets: SecretsStore
    profile: Profile | None = None
    opener: Opener = open_source

    def run(
        self,
        realm: Realm,
        connector_id: v1.ResourceId,
        *,
        mode: v1.CaptureMode.ValueType,
        scope: v1.JobScope | None = None,
        full_rescan: bool = False,
        control: Control | None = None,
    ) -> Outcome:
        """One pass over the tables of a connector, as far as the scope goes."""
        connector = _active(realm, connector_id)
        if mode == v1.CAP_STATS_ONLY_ASYNC and self.profile is None:
            raise Unsupported("this server does not profile tables: ask one that does", key="profile.none")
        asked = stored_upstream(realm, connector, self.secrets)
        every = full_rescan or connector.policy.mode == v1.RM_FULL
        run = _Run(realm, connector, asked, scope or v1.JobScope(), every, control or Control(), self.profile)
        with asked.open(self.opener) as source:
            run.over(source, run.mirror if mode == v1.CAP_METADATA_ONLY_CORE else run.profiled)
        return run.outcome

    def job(self, realm: Realm, job: v1.Job, control: Control) -> Outcome:
        """All passes of a job, one after the other; the next only if some table came through the one before."""
        outcome: Outcome | None = None
        for mode in job.modes:
            passed = self.run(
                realm, job.connector_id, mode=mode, scope=job.scope, full_rescan=job.full_rescan, control=control
            )
            outcome = passed if outcome is None else outcome.and_then(passed)
            if outcome.failures and len(outcome.failures) >= outcome.scanned:
                break
        return outcome or Outcome()


def capture(realm: Realm, request: v1.SyncCaptureRequest, *, reconciler: Reconciler) -> v1.SyncCaptureResponse:
    """One pass at once, and what came of it."""
    outcome = reconciler.run(
        realm, request.connector_id, mode=connectors.capture_mode(request), scope=connectors.scope(request)
    )
    told = v1.Job()
    outcome.progress.write_to(told)
    return v1.SyncCaptureResponse(
        tables_scanned=told.tables_scanned,
        tables_changed=told.tables_changed,
        errors=told.errors,
        table_errors=told.table_errors,
    )


@dataclass(slots=True)
class _Run:
    realm: Realm
    connector: v1.Connector
    asked: Upstream
    scope: v1.JobScope
    again: bool
    control: Control
    profile: Profile | None
    outcome: Outcome = field(default_factory=Outcome)

    def over(self, source: Source, work: Callable[[Source, Aim], bool]) -> None:
        """Do `work` for all tables in the scope, and write down which destinations there are now."""
        destinations = Destinations(self.realm, self.connector, self.scope)
        for aim in destinations.aims(source):
            self.control.check()
            self.outcome.scanned += 1
            try:
                self.outcome.changed += work(source, aim)
            except Cancelled:
                raise
            except Exception as error:  # noqa: BLE001 - one table must not stop the others
                self._failed(aim, error)
            self.control.report(self.outcome.progress)
        self.control.check()
        settled(self.realm, self.connector, destinations)

    def mirror(self, source: Source, aim: Aim) -> bool:
        """The first pass over one table; whether it changed anything."""
        handle = source.load(aim.source.namespace, aim.source.name)
        self.control.check()
        namespace_id = ensured_namespace(self.realm, self.connector.destination.catalog_id, aim.namespace)
        mirror = Mirror(self.realm, self.connector.resource_id, handle, self.control.check)
        known = self._mirrored(namespace_id, aim)
        table_id, changed = mirror.ensured(namespace_id, aim.name, known)
        return mirror.record(table_id, self.connector.policy, again=self.again) or changed

    def profiled(self, source: Source, aim: Aim) -> bool:
        """The second pass over one table; a table that is not mirrored is passed over."""
        namespace_id = aim.existing(self.realm, self.connector.destination.catalog_id)
        known = self._mirrored(namespace_id, aim) if namespace_id else None
        if known is None:
            return False
        handle = source.load(aim.source.namespace, aim.source.name)
        mirror = Mirror(self.realm, self.connector.resource_id, handle, self.control.check)
        recorded = mirror.known(known.resource_id)
        ids = {each.id for each in recorded}
        todo = [each for each in mirror.reachable(recorded, self.connector.policy) if each.id in ids]
        done = [self._profile(known.resource_id, each, handle) for each in todo]
        return any(done)

    def _profile(self, table_id: v1.ResourceId, snapshot: Snapshot, handle: TableHandle) -> bool:
        captured = keys.statistics(self.realm.account_id, table_id.id, snapshot.id, of="table")
        if self.realm.stores.pointers.get(captured) is not None and not self.again:
            return False
        self.control.check()
        assert self.profile is not None
        self.profile(self.realm, table_id, snapshot, handle=handle, cancelled=self.control.must_stop)
        return True

    def _mirrored(self, namespace_id: v1.ResourceId, aim: Aim) -> v1.Table | None:
        found = mirrored_tables(self.realm, namespace_id.id, self.connector.resource_id.id)
        return found.get((*aim.source.namespace, aim.source.name))

    def _failed(self, aim: Aim, error: Exception) -> None:
        if not isinstance(error, SkiwayError):
            log.error("table %s could not be mirrored", aim.source, exc_info=error)
        self.outcome.failures[str(aim.source)] = self.asked.told(error)
        self.outcome.transient |= isinstance(error, TRANSIENT)


def _active(realm: Realm, given: v1.ResourceId) -> v1.Connector:
    connector_id = local_id(realm, given, v1.RK_CONNECTOR, field="connector_id")
    found = realm.all(CONNECTOR).require(keys.connector(realm.account_id, connector_id), name=connector_id).value
    if found.state != v1.CS_ACTIVE:
        state = v1.ConnectorState.Name(found.state).removeprefix("CS_").lower()
        raise failure(PreconditionFailed, "connector.not.active", name=found.display_name, state=state)
    return found
