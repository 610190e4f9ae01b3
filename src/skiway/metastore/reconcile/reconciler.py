"""Reconciliation: mirrors the tables of a connector's upstream in the metastore, or copies their rows into managed tables.

A copy is a single pass (see `metastore.ingest`). A mirrored connector is reconciled in two passes. The first mirrors tables,
snapshots and file lists. The second profiles what has not been profiled yet, and changes neither tables nor snapshots. The
error of one table is reported and does not stop the others.

A pass works on several tables at a time if the connector's policy says so. Each of these lanes reads the upstream
through its own connection, and the lanes share only the list of tables that are left.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from threading import Lock, Thread
from typing import Final

from skiway.errors import Cancelled, InvalidArgument, NotFound, PreconditionFailed, SkiwayError, Unsupported
from skiway.formats import Snapshot, Source, TableHandle, TableName, open_source
from skiway.formats.iceberg.warehouse import Warehouse
from skiway.metastore import connectors, quality, statistics
from skiway.metastore.connectors.specs import ROWS_ONLY, ColumnChoice, chosen_columns, rules_for
from skiway.metastore.ingest.copying import Copy, CopyEngine, CopyPlace, DatabaseSource, find_target
from skiway.metastore.ingest.file_tables import FileTable
from skiway.metastore.ingest.lineage import describe_copy
from skiway.metastore.jobs.attempts import Amounts, clipped
from skiway.metastore.managed import states
from skiway.metastore.reconcile import profiling
from skiway.metastore.reconcile.mirroring import (
    Destinations,
    Mirror,
    MirrorTarget,
    ensured_namespace,
    list_with_problem,
    mirrored_tables,
    store_destination_ids,
    store_problem,
)
from skiway.metastore.reconcile.outcomes import (
    TRANSIENT,
    Control,
    Outcome,
    Profile,
    Stages,
    unread,
)
from skiway.metastore.reconcile.upstream import Opener, Upstream, stored_upstream
from skiway.metastore.records.errors import failure
from skiway.metastore.records.kinds import CONNECTOR
from skiway.metastore.records.realm import Realm, local_id
from skiway.metastore.resources import hierarchy, namespaces, tables
from skiway.model import v1
from skiway.security import SecretsStore
from skiway.security.redaction import without_secrets
from skiway.security.source_access import SourceAccess
from skiway.telemetry.lineage import Lineage

MOST_LANES: Final = 16
"""The most tables that a pass works on at a time, whatever the policy says."""

TABLE_FORMATS: Final = {v1.CK_ICEBERG: v1.TF_ICEBERG, v1.CK_DELTA: v1.TF_DELTA, v1.CK_PARQUET: v1.TF_PARQUET}
"""The formats of tables that cannot be opened, by the kind of the connector. Other kinds have tables of several formats."""

Work = Callable[[Source, MirrorTarget], bool]

log = logging.getLogger("skiway.reconcile")


@dataclass(frozen=True, slots=True)
class Reconciler:
    """Runs connectors. Without a `profile` there is no second pass; with a `warehouse`, its tables are profiled too.

    `opener` opens sources, as far as `access` permits; new connectors are checked against it. Without `copies`, connectors
    that copy rows fail. A pass that is not part of a job runs in the block `capturing`.
    """

    secrets: SecretsStore
    profile: Profile | None = None
    opener: Opener = open_source
    warehouse: Warehouse | None = None
    access: SourceAccess | None = None
    copies: CopyEngine | None = None
    capturing: Callable[[], AbstractContextManager[None]] = nullcontext
    lineage: Lineage = field(default_factory=Lineage)
    """Sends the lineage of copies, and of pipelines."""

    def run(
        self,
        realm: Realm,
        connector_id: v1.ResourceId,
        *,
        mode: v1.CaptureMode.ValueType,
        scope: v1.JobScope | None = None,
        full_rescan: bool = False,
        run_id: str = "",
        control: Control | None = None,
        before: Outcome | None = None,
        dry_run: bool = False,
    ) -> Outcome:
        """Run one pass over the tables of a connector in the scope. The result includes that of the pass `before`.

        With `full_rescan`, known snapshots are included, and files are profiled again. A run with the same id continues. A `dry_run`
        only notes what a copy would load.
        """
        connector = _active(realm, connector_id)
        if dry_run and not connector.HasField("copy"):
            raise InvalidArgument(
                f"connector {connector.display_name} mirrors tables, and a dry run is only for connectors that copy rows",
                key="ingest.dry_run",
            )
        if connector.HasField("copy") and mode == v1.CAP_STATS_ONLY_ASYNC:
            return before or Outcome()  # the tables are managed, and are profiled as such
        if mode == v1.CAP_STATS_ONLY_ASYNC and self.profile is None:
            raise Unsupported("this server does not profile tables: use one that does", key="profile.none")
        made = _Pass(
            self,
            realm,
            connector,
            upstream=stored_upstream(realm, connector, self.secrets),
            scope=scope or v1.JobScope(),
            control=control or Control(),
            again=full_rescan or connector.policy.mode == v1.RM_FULL,
            rereads=(run_id or realm.ids()) if full_rescan else "",
            before=before or Outcome(),
            dry_run=dry_run,
        )
        return made.run(mode)

    def job(self, realm: Realm, job: v1.Job, control: Control) -> Outcome:
        """Run all passes of a job. A pass runs only if at least one table succeeded in the pass before."""
        if job.HasField("table_id"):
            columns = job.scope.columns
            return self.managed(
                realm,
                job.table_id,
                columns=columns,
                full_rescan=job.full_rescan,
                run_id=job.job_id,
                control=control,
            )
        outcome = Outcome()
        for mode in job.modes:
            outcome = self.run(
                realm,
                job.connector_id,
                mode=mode,
                scope=job.scope,
                full_rescan=job.full_rescan,
                run_id=job.job_id,
                control=control,
                before=outcome,
                dry_run=job.dry_run,
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
        run_id: str = "",
        control: Control | None = None,
    ) -> Outcome:
        """Profile a managed table; with `full_rescan`, read all of its files again."""
        return profiling.profile_table(
            realm,
            table_id,
            warehouse=self.warehouse,
            profile=self.profile,
            columns=columns,
            again=(run_id or realm.ids()) if full_rescan else "",
            control=control,
        )

    @contextmanager
    def opened(self, realm: Realm, table: v1.Table, snapshot_id: int) -> Iterator[tuple[TableHandle, Snapshot]]:
        """Open a table, of a connector or of the warehouse, for the duration of the block, to read one of its snapshots."""
        if table.metadata_location:
            if self.warehouse is None:
                raise Unsupported(
                    "this worker has no warehouse, so it reads no managed tables", key="warehouse.missing"
                )
            handle: TableHandle = states.load(realm, self.warehouse, table.resource_id).handle
            yield handle, _snapshot(handle.snapshots(), table, snapshot_id)
            return
        with self.mirrored(realm, table) as handle:
            mirror = Mirror(realm, table.upstream.connector_id, handle, lambda: None)
            reachable = mirror.reachable(mirror.known(table.resource_id), v1.ConnectorPolicy())
            yield handle, _snapshot(reachable, table, snapshot_id)

    @contextmanager
    def mirrored(self, realm: Realm, table: v1.Table) -> Iterator[TableHandle]:
        """Open a mirrored table in its source, for the duration of the block."""
        connector = _active(realm, table.upstream.connector_id)
        with stored_upstream(realm, connector, self.secrets).open(self.opener) as source:
            name = table.upstream.table_display_name or table.display_name
            yield source.load(tuple(table.upstream.namespace_path), name)


def _snapshot(found: Iterable[Snapshot], table: v1.Table, snapshot_id: int) -> Snapshot:
    for each in found:
        if each.id == snapshot_id:
            return each
    raise PreconditionFailed(
        f"snapshot {snapshot_id} of table {table.display_name} no longer exists: synchronise its connector, or try again",
        key="snapshot.gone",
    )


def capture(realm: Realm, request: v1.SyncCaptureRequest, *, reconciler: Reconciler) -> v1.SyncCaptureResponse:
    """Run one pass now, and return its result."""
    scope = connectors.scope(request)
    with reconciler.capturing():
        if request.HasField("table_id"):
            profiling.require_statistics(realm, request)
            outcome = reconciler.managed(realm, request.table_id, columns=scope.columns)
        else:
            mode = connectors.capture_mode(request)
            outcome = reconciler.run(realm, request.connector_id, mode=mode, scope=scope)
    job = v1.Job()
    outcome.progress.write_to(job)
    return v1.SyncCaptureResponse(
        tables_scanned=job.tables_scanned,
        tables_changed=job.tables_changed,
        errors=job.errors,
        table_errors=job.table_errors,
    )


def _active(realm: Realm, given: v1.ResourceId) -> v1.Connector:
    connector_id = local_id(realm, given, v1.RK_CONNECTOR, field="connector_id")
    connector = realm.by_id(CONNECTOR, connector_id).value
    if connector.state != v1.CS_ACTIVE:
        state = v1.ConnectorState.Name(connector.state).removeprefix("CS_").lower()
        raise failure(PreconditionFailed, "connector.not.active", name=connector.display_name, state=state)
    return connector


@dataclass(slots=True)
class _Pass:
    """One pass over the tables of a connector. `again` includes snapshots that are stored already.

    `rereads` is the id of the run if it profiles files again, or empty.
    """

    reconciler: Reconciler
    realm: Realm
    connector: v1.Connector
    upstream: Upstream
    scope: v1.JobScope
    control: Control
    again: bool
    rereads: str
    before: Outcome
    dry_run: bool = False
    outcome: Outcome = field(default_factory=Outcome)
    _lock: Lock = field(default_factory=Lock)
    _listed: dict[str, Mapping[tuple[str, ...], v1.Table]] = field(default_factory=dict)

    def run(self, mode: v1.CaptureMode.ValueType) -> Outcome:
        """Process all tables in the scope, and store the ids of the destinations that exist now."""
        work = self._mirror if mode == v1.CAP_METADATA_ONLY_CORE else self._profile
        if self.connector.HasField("copy"):
            work = self._copy
        else:  # mirrored tables follow their sources, also in protected catalogs
            self.realm = replace(self.realm, past_protection=True)
        destinations = Destinations(self.realm, self.connector, self.scope)
        with ExitStack() as opened:
            source = opened.enter_context(self._open())
            targets = destinations.targets(source)
            self.outcome.stages = Stages(mode, len(targets))
            self._report()
            lanes = min(self.connector.policy.max_parallel or 1, len(targets), MOST_LANES)
            more = [opened.enter_context(self._open()) for _ in range(lanes - 1)]
            self._run_lanes([source, *more], iter(targets), work)
        self.control.check()
        if not self.connector.HasField("copy"):  # copies know their tables by properties
            store_destination_ids(self.realm, self.connector, destinations)
        return self.before.and_then(self.outcome)

    def _open(self) -> Source:
        if self.connector.kind not in ROWS_ONLY:
            return self.upstream.open(self.reconciler.opener)
        access = (self.reconciler.access or SourceAccess()).of_account(self.realm.account_id)
        given = self.upstream
        return self._engine.database(
            given.uri,
            options=given.options,
            credentials=given.credentials,
            access=access,
            follower=self.connector.resource_id.id if self.connector.copy.changes else "",
        )

    def _run_lanes(self, sources: list[Source], targets: Iterator[MirrorTarget], work: Work) -> None:
        """Run one lane per source: one on this thread, the others on daemon threads."""
        own, *others = sources
        failures: list[BaseException] = []

        def lane(source: Source) -> None:
            try:
                for target in targets:
                    self._process(source, target, work)
            except BaseException as error:  # noqa: BLE001 - raised again after all lanes have ended
                failures.append(error)

        threads = [
            # In the context of this thread, which says what the job does on Spark.
            Thread(target=copy_context().run, args=(lane, source), name="tables", daemon=True)
            for source in others
        ]
        for thread in threads:
            thread.start()
        lane(own)
        for thread in threads:
            thread.join()
        for error in failures:
            raise error

    def _process(self, source: Source, target: MirrorTarget, work: Work) -> None:
        self.control.check()
        name = str(target.source)
        with self._lock:
            self.outcome.scanned += 1
            self.outcome.stages.begun(name)
        self._report()
        error, changed = None, False
        try:
            changed = work(source, target)
        except Cancelled:
            raise
        except Exception as caught:  # noqa: BLE001 - one table must not stop the others
            error = caught
        with self._lock:
            self.outcome.changed += changed
            self.outcome.stages.ended(name)
            if error is not None:
                self._failed(name, error)
        self._report()

    def _failed(self, table: str, error: Exception) -> None:
        reason = self.upstream.describe(error)
        if isinstance(error, SkiwayError):
            log.warning("table %s of connector %s failed: %s", table, self.connector.display_name, reason)
        else:
            log.error("table %s of connector %s failed", table, self.connector.display_name, exc_info=error)
        self.outcome.failures[table] = reason
        self.outcome.transient |= isinstance(error, TRANSIENT)

    def _report(self) -> None:
        with self._lock:
            done = self.before.and_then(self.outcome).progress
        self.control.report(done)

    # --- the first pass -----------------------------------------------------------------------------------------------

    def _mirror(self, source: Source, target: MirrorTarget) -> bool:
        """Mirror one table, and return whether anything changed. A table that cannot be mirrored is listed with the reason."""
        try:
            return self._mirror_readable(source, target)
        except Cancelled:
            raise
        except Exception as error:
            self._list_with_problem(source, target, error)
            raise

    def _list_with_problem(self, source: Source, target: MirrorTarget, error: Exception) -> None:
        """List a table that cannot be mirrored. One that was mirrored before stays as it is if a retry may help."""
        try:
            namespace_id = ensured_namespace(self.realm, self.connector.destination.catalog_id, target.namespace)
            stored = self._mirrored(namespace_id, target) or self._just_created(namespace_id, target)
            if stored is not None and isinstance(error, TRANSIENT):
                return
            namespace, name = target.source.namespace, target.source.name
            upstream = v1.UpstreamRef(
                connector_id=self.connector.resource_id,
                uri=source.location_of(namespace, name) or without_secrets(self.connector.uri),
                namespace_path=namespace,
                table_display_name=name,
                format=TABLE_FORMATS.get(self.connector.kind, v1.TF_UNSPECIFIED),
                column_id_algorithm=v1.CID_PATH_ORDINAL,
                problem=clipped(self.upstream.describe(error)),
            )
            self.control.check()
            list_with_problem(self.realm, namespace_id, target.name, stored, upstream)
        except Cancelled:
            raise
        except Exception as second:  # noqa: BLE001 - the first error is reported
            connector = self.connector.display_name
            log.warning("table %s of connector %s is not listed with its problem: %s", target.source, connector, second)

    def _just_created(self, namespace_id: v1.ResourceId, target: MirrorTarget) -> v1.Table | None:
        """The record of a table that this pass has created, after it listed the namespace."""
        table = tables.find(self.realm, namespace_id.id, target.name)
        if table is None or table.upstream.connector_id.id != self.connector.resource_id.id:
            return None
        name = TableName(tuple(table.upstream.namespace_path), table.upstream.table_display_name)
        return table if name == target.source else None

    def _mirror_readable(self, source: Source, target: MirrorTarget) -> bool:
        handle = source.load(target.source.namespace, target.source.name)
        self.control.check()
        namespace_id = ensured_namespace(self.realm, self.connector.destination.catalog_id, target.namespace)
        mirror = Mirror(self.realm, self.connector.resource_id, handle, self.control.check)
        stored = self._mirrored(namespace_id, target)
        table_id, changed = mirror.ensured(namespace_id, target.name, stored)
        changed = mirror.record(table_id, self.connector.policy, again=self.again) or changed
        if stored is not None and stored.upstream.problem:
            store_problem(self.realm, stored, "")
            return True
        return changed

    # --- copies -------------------------------------------------------------------------------------------------------

    def _copy(self, source: Source, target: MirrorTarget) -> bool:
        """Load what is new in one table, and return whether anything was."""
        name, engine = target.source, self._engine
        copied = source.copied(name) if isinstance(source, DatabaseSource) else None
        table = copied or FileTable(source.load(name.namespace, name.name), engine.distribute)
        self.control.check()
        catalog_id = self.connector.destination.catalog_id
        if self.dry_run:
            found = namespaces.lookup(self.realm, catalog_id, target.namespace)
            namespace_id = v1.ResourceId() if found is None else found.resource_id
        else:
            namespace_id = ensured_namespace(self.realm, catalog_id, target.namespace)
        place = CopyPlace(self.connector.resource_id.id, str(name), namespace_id, target.name)
        rules = rules_for(self.connector.copy, str(name), name.name)
        assert self.reconciler.warehouse is not None
        if isinstance(source, DatabaseSource):
            rules = source.rules_of(name, rules)
        job = f"{self.connector.display_name}.{name}"
        expectations = engine.expectations(self.realm, self.reconciler.warehouse, job, rules.expect)
        copy = Copy(
            self.realm,
            self.reconciler.warehouse,
            place,
            rules,
            engine.distribute,
            self.control.check,
            expectations,
            engine.step_bytes,
        )

        if self.dry_run:
            plan = copy.plan(table, again=self.again)
            with self._lock:
                self.outcome.note = "; ".join(filter(None, (self.outcome.note, f"{name}: {plan}")))
            return False

        def on_progress(done: Amounts, total: Amounts) -> None:
            with self._lock:
                self.outcome.stages.files(str(name), done, total)
            self._report()

        with self.reconciler.lineage.run(job, "COPY", later=True) as run:
            before = find_target(self.realm, self.reconciler.warehouse, place)
            is_changed = copy.load(table, again=self.again, on_progress=on_progress)
            made = find_target(self.realm, self.reconciler.warehouse, place) if is_changed else None
            describe_copy(self.realm, run, self.connector, place, made, before)
            run.assertions = expectations.assertions()
            with self._lock:
                self.outcome.note = "; ".join(filter(None, (self.outcome.note, *expectations.notes(str(name)))))
            return is_changed

    @property
    def _engine(self) -> CopyEngine:
        if self.reconciler.copies is None or self.reconciler.warehouse is None:
            raise Unsupported("this server does not copy rows: use one with Spark and a warehouse", key="ingest.none")
        return self.reconciler.copies

    def _mirrored(self, namespace_id: v1.ResourceId, target: MirrorTarget) -> v1.Table | None:
        """The record of a table; None if it is not mirrored yet.

        A namespace is listed once per pass. Listing it for each table took 60 of the 70 s of a sync of 1,000 tables.
        """
        with self._lock:
            if namespace_id.id not in self._listed:
                listed = mirrored_tables(self.realm, namespace_id.id, self.connector.resource_id.id)
                self._listed[namespace_id.id] = listed
            found = self._listed[namespace_id.id].get((*target.source.namespace, target.source.name))
        try:
            return None if found is None else hierarchy.table(self.realm, found.resource_id).value
        except NotFound:
            return None  # it was dropped in the meantime

    # --- the second pass ----------------------------------------------------------------------------------------------

    def _profile(self, source: Source, target: MirrorTarget) -> bool:
        """Profile one table, and return whether anything changed. A table that is not mirrored is skipped."""
        namespace_id = target.existing(self.realm, self.connector.destination.catalog_id)
        stored = self._mirrored(namespace_id, target) if namespace_id else None
        if stored is None:
            return False
        handle = source.load(target.source.namespace, target.source.name)
        mirror = Mirror(self.realm, self.connector.resource_id, handle, self.control.check)
        recorded = mirror.known(stored.resource_id)
        current = handle.current(recorded)
        ids = {each.id for each in recorded}
        reachable = [each for each in mirror.reachable(recorded, self.connector.policy) if each.id in ids]
        todo = [each for each in reachable if self._lacks(stored.resource_id, each, handle, is_current=each == current)]
        failed: dict[str, str] = {}
        for snapshot in todo:
            failed |= self._profile_snapshot(stored.resource_id, snapshot, handle)
        if current in todo:
            quality.after_profile(self.realm, stored.resource_id)
        if failed:
            raise unread(failed)
        return bool(todo)

    @property
    def _columns(self) -> ColumnChoice:
        return chosen_columns(self.connector.source, self.scope.columns)

    def _lacks(self, table_id: v1.ResourceId, snapshot: Snapshot, handle: TableHandle, *, is_current: bool) -> bool:
        """Whether the snapshot has to be profiled. Statistics of older ones may lack files, which may be gone."""

        def lacks_files(stats: v1.TableStats) -> bool:
            return is_current and statistics.lacks_profiles(stats, default=stats.data_file_count)

        return self.again or profiling.lacks_statistics(
            self.realm, table_id.id, snapshot, handle, self._columns, lacks_files=lacks_files
        )

    def _profile_snapshot(self, table_id: v1.ResourceId, snapshot: Snapshot, handle: TableHandle) -> dict[str, str]:
        """Profile a snapshot, and return the files that could not be read, with the reasons."""
        self.control.check()
        profile = self.reconciler.profile
        assert profile is not None
        name = str(handle.name)

        def on_progress(done: Amounts, total: Amounts) -> None:
            with self._lock:
                self.outcome.stages.files(f"{name}@{snapshot.id}", done, total)
            self._report()

        report = profile(
            self.realm,
            table_id,
            snapshot,
            handle=handle,
            cancelled=self.control.must_stop,
            columns=self._columns,
            again=self.rereads,
            on_progress=on_progress,
        )
        if report is not None and report.other_formats:
            with self._lock:
                self.outcome.other_formats[name] = report.other_formats
        return dict(report.failed) if report is not None else {}
