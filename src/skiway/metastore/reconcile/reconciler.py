"""Reconciling: what a connector's upstream has, brought into the metastore.

Two passes. The first mirrors tables, snapshots and lists of files; the second profiles what is not profiled yet, and
touches neither tables nor snapshots. A table that fails is told of, and the others go on.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from skiway.errors import PreconditionFailed, Unsupported
from skiway.formats import open_source
from skiway.formats.iceberg.warehouse import Warehouse
from skiway.metastore import connectors
from skiway.metastore.connectors.specs import chosen_columns
from skiway.metastore.reconcile import profiling
from skiway.metastore.reconcile.outcomes import Control, Outcome, Profile
from skiway.metastore.reconcile.run import Run
from skiway.metastore.reconcile.sources import Opener, stored_upstream
from skiway.metastore.records import keys
from skiway.metastore.records.errors import failure
from skiway.metastore.records.kinds import CONNECTOR
from skiway.metastore.records.realm import Realm, local_id
from skiway.model import v1
from skiway.security import SecretsStore

__all__ = ["Reconciler", "capture"]


@dataclass(frozen=True, slots=True)
class Reconciler:
    """Runs connectors. Without a `profile` there is no second pass; with a `warehouse`, its tables are profiled too."""

    secrets: SecretsStore
    profile: Profile | None = None
    opener: Opener = open_source
    warehouse: Warehouse | None = None

    def run(
        self,
        realm: Realm,
        connector_id: v1.ResourceId,
        *,
        mode: v1.CaptureMode.ValueType,
        scope: v1.JobScope | None = None,
        full_rescan: bool = False,
        control: Control | None = None,
        before: Outcome | None = None,
    ) -> Outcome:
        """One pass over the tables of a connector, as far as the scope goes; with what came of the one `before`."""
        connector = _active(realm, connector_id)
        if mode == v1.CAP_STATS_ONLY_ASYNC and self.profile is None:
            raise Unsupported("this server does not profile tables: ask one that does", key="profile.none")
        scope = scope or v1.JobScope()
        run = Run(
            realm,
            connector,
            asked=stored_upstream(realm, connector, self.secrets),
            opener=self.opener,
            scope=scope,
            columns=chosen_columns(connector.source, scope.columns),
            profile=self.profile,
            control=control or Control(),
            again=full_rescan or connector.policy.mode == v1.RM_FULL,
            before=before or Outcome(),
        )
        return run.make(mode)

    def job(self, realm: Realm, job: v1.Job, control: Control) -> Outcome:
        """All passes of a job, one after the other; the next only if some table came through the one before."""
        if job.HasField("table_id"):
            columns = job.scope.columns
            return self.managed(realm, job.table_id, columns=columns, full_rescan=job.full_rescan, control=control)
        outcome = Outcome()
        for mode in job.modes:
            outcome = self.run(
                realm,
                job.connector_id,
                mode=mode,
                scope=job.scope,
                full_rescan=job.full_rescan,
                control=control,
                before=outcome,
            )
            if outcome.failures and len(outcome.failures) >= outcome.scanned:
                break
        return outcome

    def managed(
        self,
        realm: Realm,
        table_id: v1.ResourceId,
        *,
        columns: Iterable[str] = (),
        full_rescan: bool = False,
        control: Control | None = None,
    ) -> Outcome:
        """The statistics of a managed table."""
        return profiling.profile_table(
            realm,
            table_id,
            warehouse=self.warehouse,
            profile=self.profile,
            columns=columns,
            again=full_rescan,
            control=control,
        )


def capture(realm: Realm, request: v1.SyncCaptureRequest, *, reconciler: Reconciler) -> v1.SyncCaptureResponse:
    """One pass at once, and what came of it."""
    scope = connectors.scope(request)
    if request.HasField("table_id"):
        profiling.require_statistics(realm, request)
        outcome = reconciler.managed(realm, request.table_id, columns=scope.columns)
    else:
        mode = connectors.capture_mode(request)
        outcome = reconciler.run(realm, request.connector_id, mode=mode, scope=scope)
    told = v1.Job()
    outcome.progress.write_to(told)
    return v1.SyncCaptureResponse(
        tables_scanned=told.tables_scanned,
        tables_changed=told.tables_changed,
        errors=told.errors,
        table_errors=told.table_errors,
    )


def _active(realm: Realm, given: v1.ResourceId) -> v1.Connector:
    connector_id = local_id(realm, given, v1.RK_CONNECTOR, field="connector_id")
    found = realm.all(CONNECTOR).require(keys.connector(realm.account_id, connector_id), name=connector_id).value
    if found.state != v1.CS_ACTIVE:
        state = v1.ConnectorState.Name(found.state).removeprefix("CS_").lower()
        raise failure(PreconditionFailed, "connector.not.active", name=found.display_name, state=state)
    return found
