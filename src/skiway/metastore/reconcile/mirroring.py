"""Mirroring the tables of an upstream: where each belongs, its record, its snapshots and their files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from skiway.errors import AlreadyExists, Conflict, Contention, InvalidArgument, NotFound, PreconditionFailed
from skiway.formats import Format, Snapshot, Source, TableHandle, TableName
from skiway.metastore.connectors.api import selects
from skiway.metastore.records import keys, updates
from skiway.metastore.records.errors import failure
from skiway.metastore.records.kinds import CONNECTOR, FILE_STATS, SNAPSHOT, TABLE
from skiway.metastore.records.names import dotted, normal_text, refuse_secrets
from skiway.metastore.records.realm import Realm
from skiway.metastore.records.repository import Stored
from skiway.metastore.records.updates import apply_batch, copy_field, retrying
from skiway.metastore.resources import hierarchy, namespaces, snapshots, tables
from skiway.metastore.resources.hierarchy import full_path
from skiway.metastore.resources.snapshots import current_put, stored_id
from skiway.metastore.statistics import file_table
from skiway.metastore.statistics.file_table import DIGEST, partition_spec, snapshot_record, stored_files
from skiway.model import v1
from skiway.storage import Check, Operation, Pointer

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NO_COLUMNS: Final = '{"type": "struct", "fields": []}'
FORMATS = {Format.ICEBERG: v1.TF_ICEBERG, Format.DELTA: v1.TF_DELTA, Format.PARQUET: v1.TF_PARQUET}


def table_spec(handle: TableHandle, connector_id: v1.ResourceId) -> v1.TableSpec:
    """The table as it is upstream now. Properties with the names of secrets are left out."""
    ids = v1.CID_FIELD_ID if handle.format == Format.ICEBERG else v1.CID_PATH_ORDINAL
    spec = partition_spec(handle)
    return v1.TableSpec(
        schema_json=handle.schema.json,
        properties={name: value for name, value in handle.properties.items() if _is_public(name)},
        upstream=v1.UpstreamRef(
            connector_id=connector_id,
            uri=handle.location,
            namespace_path=handle.name.namespace,
            table_display_name=handle.name.name,
            format=FORMATS[handle.format],
            partition_keys=[field.name for field in spec.fields],
            column_id_algorithm=ids,
        ),
    )


def list_with_problem(
    realm: Realm, namespace_id: v1.ResourceId, name: str, known: v1.Table | None, upstream: v1.UpstreamRef
) -> None:
    """Store why a table cannot be mirrored. A table that is not mirrored yet gets a record without columns, so that it is listed."""
    if known is None:
        place = hierarchy.namespace(realm, namespace_id).value
        spec = v1.TableSpec(
            display_name=name,
            catalog_id=place.catalog_id,
            namespace_id=namespace_id,
            schema_json=NO_COLUMNS,
            upstream=upstream,
        )
        tables.create(realm, v1.CreateTableRequest(spec=spec))
    elif known.upstream.problem != upstream.problem:
        store_problem(realm, known, upstream.problem)


def store_problem(realm: Realm, table: v1.Table, problem: str) -> None:
    """Store why a mirrored table cannot be read; "" if it can."""
    spec = v1.TableSpec(upstream=v1.UpstreamRef(problem=problem))
    request = v1.UpdateTableRequest(table_id=table.resource_id, spec=spec)
    request.update_mask.paths.append("upstream.problem")
    tables.update(realm, request)


def _is_public(name: str) -> bool:
    try:
        refuse_secrets([name], field="properties")
    except InvalidArgument:
        return False
    return True


def ensured_namespace(realm: Realm, catalog_id: v1.ResourceId, path: tuple[str, ...]) -> v1.ResourceId:
    """The id of the namespace at a path, which is created if it is missing."""
    found = namespaces.lookup(realm, catalog_id, path)
    if found is None:
        spec = v1.NamespaceSpec(catalog_id=catalog_id, path=path[:-1], display_name=path[-1])
        try:
            return namespaces.create(realm, v1.CreateNamespaceRequest(spec=spec)).namespace.resource_id
        except AlreadyExists:
            found = namespaces.lookup(realm, catalog_id, path)
            if found is None:
                raise
    return found.resource_id


def mirrored_tables(realm: Realm, namespace_id: str, connector_id: str) -> dict[tuple[str, ...], v1.Table]:
    """The tables of a namespace that a connector mirrors, by their paths upstream, whatever their names are here."""
    return {
        (*each.upstream.namespace_path, each.upstream.table_display_name): each
        for each in tables.scan(realm, namespace_id)
        if each.upstream.connector_id.id == connector_id
    }


@dataclass(frozen=True, slots=True)
class Mirror:
    """An upstream table and its mirror. `check` is called before every write."""

    realm: Realm
    connector_id: v1.ResourceId
    handle: TableHandle
    check: Callable[[], None] = lambda: None

    def ensured(self, namespace_id: v1.ResourceId, name: str, known: v1.Table | None) -> tuple[v1.ResourceId, bool]:
        """Create or update the table's record, and return its id and whether anything changed.

        `known` is the record that mirrors this table already.
        """
        spec = table_spec(self.handle, self.connector_id)
        self.check()
        if known is None:
            return self._created(spec, namespace_id, name), True
        spec.upstream.problem = known.upstream.problem  # until the snapshots are stored, too
        request = v1.UpdateTableRequest(table_id=known.resource_id, spec=spec)
        request.update_mask.paths.extend(("schema_json", "upstream", "properties"))
        before = hierarchy.table(self.realm, known.resource_id).pointer
        after = tables.update(self.realm, request).meta
        return known.resource_id, after.pointer_version != before.version

    def record(self, table_id: v1.ResourceId, policy: v1.ConnectorPolicy, *, again: bool) -> bool:
        """Store the new snapshots, or all of them `again`, and set the current one. Return whether anything changed.

        If another table has taken the place of the mirrored one, its snapshots replace the stored ones.
        """
        known = self.known(table_id)
        current = self.handle.current(known)
        ids = {each.id for each in known}
        is_other = self._is_other_table(table_id, ids, current)
        chosen = [each for each in self.reachable(known, policy) if again or is_other or each.id not in ids]
        changed = [
            self._stored(table_id, snapshot, is_known=snapshot.id in ids, is_other=is_other) for snapshot in chosen
        ]
        moved = current is not None and self._made_current(table_id, current.id)
        if is_other:
            self._forget(table_id, ids - {each.id for each in chosen})
        return any(changed) or moved or is_other

    def _is_other_table(self, table_id: v1.ResourceId, ids: Set[int], current: Snapshot | None) -> bool:
        """Whether the upstream table is another one than the one that was mirrored last.

        Delta numbers the versions of every table from 0, so the newest version that both have is compared.
        """
        if self.handle.format != Format.DELTA or not ids or current is None:
            return False
        if max(ids) > current.id:
            return True
        record = self.realm.all(SNAPSHOT).find(keys.snapshot(self.realm.account_id, table_id.id, max(ids)))
        stored = "" if record is None else record.value.format_metadata[DIGEST].decode()
        if not stored:
            return False
        older = [Snapshot(number, EPOCH) for number in range(current.id + 1) if number != max(ids)]
        found = next(iter(self.handle.snapshots(older)), None)
        return found is not None and bool(found.digest) and found.digest != stored

    def _forget(self, table_id: v1.ResourceId, ids: Set[int]) -> None:
        for number in ids:
            self.check()
            with suppress(NotFound):
                snapshots.delete(self.realm, v1.DeleteSnapshotRequest(table_id=table_id, snapshot_id=number))

    def reachable(self, known: Sequence[Snapshot], policy: v1.ConnectorPolicy) -> list[Snapshot]:
        """The snapshots whose files can be listed upstream now, as far as the policy includes them, from old to new."""
        current = self.handle.current(known)
        if current is None:
            return []
        # Only the current state of a folder can be listed; its number depends on the stored snapshots.
        listed = [current] if self.handle.format == Format.PARQUET else self.handle.snapshots()
        return wanted(listed, current, policy)

    def known(self, table_id: v1.ResourceId) -> list[Snapshot]:
        """The stored snapshots, with as much as is needed to tell them from others."""
        if self.handle.format == Format.PARQUET:
            return [_upstream(each) for each in snapshots.scan(self.realm, table_id.id)]
        pointers = self.realm.stores.pointers.scan(keys.snapshot(self.realm.account_id, table_id.id))
        return [Snapshot(int(keys.last_segment(pointer.key)), EPOCH) for pointer in pointers]

    # --- writing ------------------------------------------------------------------------------------------------------

    def _created(self, spec: v1.TableSpec, namespace_id: v1.ResourceId, name: str) -> v1.ResourceId:
        place = hierarchy.namespace(self.realm, namespace_id).value
        spec.display_name = name
        spec.catalog_id.CopyFrom(place.catalog_id)
        spec.namespace_id.CopyFrom(namespace_id)
        try:
            return tables.create(self.realm, v1.CreateTableRequest(spec=spec)).table.resource_id
        except AlreadyExists:
            raise Conflict(
                f"{self.handle.name} cannot be mirrored as {name}: another table or view has this name; rename that one, or"
                " choose another destination",
                key="mirror.name.taken",
                table=str(self.handle.name),
                name=name,
            ) from None

    def _stored(self, table_id: v1.ResourceId, snapshot: Snapshot, *, is_known: bool, is_other: bool) -> bool:
        files = self.handle.files(snapshot)
        self.check()
        record = snapshot_record(self.realm, table_id, self.handle, snapshot, files=files)
        stored = file_table.written(stored_files(self.handle, snapshot, files))
        facts = v1.FileStatsSet(
            table_id=record.table_id, snapshot_id=record.snapshot_id, arrow_file=stored, updated_at=record.updated_at
        )
        if is_known:
            return retrying(lambda: self._updated(record, facts, is_other=is_other))
        return retrying(lambda: self._published(record, facts))

    def _published(self, record: v1.Snapshot, facts: v1.FileStatsSet) -> bool:
        table = hierarchy.table(self.realm, record.table_id)
        if self.realm.stores.pointers.get(SNAPSHOT.key(record)) is not None:
            return False  # another worker was faster and stored the same
        batch: list[Operation] = [Check(table.pointer.key, expect=table.pointer.version)]
        batch += self.realm.all(SNAPSHOT).reservation(record)[1]
        batch += self.realm.all(FILE_STATS).reservation(facts)[1]
        if self._current_pointer(record.table_id) is None:
            # A table with snapshots has a current one; the final one is set last.
            batch.append(current_put(self.realm, record.table_id.id, record.snapshot_id, before=None))
        apply_batch(self.realm, batch, what=f"snapshot {record.snapshot_id} of table {record.table_id.id}")
        return True

    def _updated(self, record: v1.Snapshot, facts: v1.FileStatsSet, *, is_other: bool) -> bool:
        records, files = self.realm.all(SNAPSHOT), self.realm.all(FILE_STATS)
        stored = records.require(SNAPSHOT.key(record), name=str(record.snapshot_id))
        if is_other and stored.value.format_metadata[DIGEST] != record.format_metadata[DIGEST]:
            found = files.find(FILE_STATS.key(facts))
            batch = files.reservation(facts)[1] if found is None else files.replacement(found, facts).operations
            of = record.table_id.id, record.snapshot_id
            profiles = snapshots.without_statistics(self.realm, *of, kinds=("table", "columns"))
            records.update(stored, record, also=lambda _: [*batch, *profiles])
            return True
        merged = _merged(stored.value, record)
        if merged != stored.value:
            merged.updated_at.CopyFrom(record.updated_at)
            records.update(stored, merged)
        return _replaced(self.realm, files.find(FILE_STATS.key(facts)), facts) or merged != stored.value

    def _made_current(self, table_id: v1.ResourceId, snapshot_id: int) -> bool:
        def attempt() -> bool:
            pointer = self._current_pointer(table_id)
            if pointer is not None and stored_id(pointer) == snapshot_id:
                return False
            key = keys.snapshot(self.realm.account_id, table_id.id, snapshot_id)
            snapshot = self.realm.all(SNAPSHOT).require(key, name=str(snapshot_id))
            table = hierarchy.table(self.realm, table_id)
            batch: list[Operation] = [Check(key, expect=snapshot.pointer.version)]
            batch.append(Check(table.pointer.key, expect=table.pointer.version))  # orders its events
            batch.append(current_put(self.realm, table_id.id, snapshot_id, before=pointer))
            apply_batch(self.realm, batch, what=f"the current snapshot of table {table_id.id}")
            return True

        self.check()
        return retrying(attempt)

    def _current_pointer(self, table_id: v1.ResourceId) -> Pointer | None:
        return self.realm.stores.pointers.get(keys.current_snapshot(self.realm.account_id, table_id.id))


def wanted(listed: Sequence[Snapshot], current: Snapshot, policy: v1.ConnectorPolicy) -> list[Snapshot]:
    """The snapshots that a policy includes, from old to new: all, the latest ones, or only the current one."""
    match policy.scope:
        case v1.SNS_CURRENT:
            return [current]
        case v1.SNS_LATEST_N:
            latest = list(listed[-policy.latest_n :])
            return latest if current.id in {each.id for each in latest} else [current, *latest]
        case _:
            return list(listed)


def _upstream(record: v1.Snapshot) -> Snapshot:
    created_at = record.upstream_created_at.ToDatetime(UTC)
    return Snapshot(record.snapshot_id, created_at, digest=record.format_metadata[DIGEST].decode())


def _merged(stored: v1.Snapshot, upstream: v1.Snapshot) -> v1.Snapshot:
    """The stored record with the values from upstream.

    Values that upstream no longer has stay, and so does the ingestion time.
    """
    merged = updates.copied(stored)
    for descriptor, value in upstream.ListFields():
        if descriptor.name in ("ingested_at", "updated_at"):
            continue
        if descriptor.name in ("summary", "format_metadata"):
            getattr(merged, descriptor.name).update(value)
        else:
            copy_field(upstream, merged, descriptor.name)
    return merged


def _replaced(realm: Realm, stored: Stored[v1.FileStatsSet] | None, facts: v1.FileStatsSet) -> bool:
    """Store the files of a snapshot if they changed, and return whether they did."""
    if stored is None:
        realm.all(FILE_STATS).create(facts)
        return True
    if stored.value.arrow_file == facts.arrow_file:
        return False
    realm.all(FILE_STATS).update(stored, facts)
    return True


@dataclass(frozen=True, slots=True)
class MirrorTarget:
    """A table upstream, and the namespace and name it gets here."""

    source: TableName
    namespace: tuple[str, ...]
    name: str

    def existing(self, realm: Realm, catalog_id: v1.ResourceId) -> v1.ResourceId | None:
        """The id of the destination namespace, if it exists."""
        namespace = namespaces.lookup(realm, catalog_id, self.namespace)
        return None if namespace is None else namespace.resource_id


@dataclass(slots=True)
class Destinations:
    """The destinations of a connector's tables in the scope of a job."""

    realm: Realm
    connector: v1.Connector
    scope: v1.JobScope
    resolved: list[MirrorTarget] = field(default_factory=list, init=False)

    def targets(self, source: Source) -> list[MirrorTarget]:
        """All destinations.

        Raise `NotFound` if there are none, because a filter that matches nothing is most likely misspelled.
        """
        chosen = list(self._chosen(source))
        if not chosen:
            raise self._nothing("the connector selects no table of its upstream", "connector.tables.none")
        if len(chosen) > 1 and self._own_name():
            raise InvalidArgument(
                f"connector {self.connector.display_name} has one destination table but selects {len(chosen)} tables:"
                " remove destination.table, or set source.table",
                key="connector.destination.table.many",
                field="destination.table_display_name",
            )
        self.resolved = [target for target in map(self._aim, chosen) if self._in_scope(target)]
        if not self.resolved:
            raise self._nothing("no table of the connector is in the requested scope", "scope.unmatched")
        return self.resolved

    @property
    def is_single(self) -> bool:
        """Whether the connector mirrors a single table."""
        return self.connector.source.HasField("table")

    def base(self) -> tuple[str, ...]:
        """The namespace below which all tables are mirrored; empty if they keep their upstream namespaces."""
        to = self.connector.destination
        if to.HasField("namespace_id"):
            return full_path(hierarchy.namespace(self.realm, to.namespace_id, field="destination.namespace_id").value)
        return tuple(to.namespace.segments) or self._source_path

    def _chosen(self, source: Source) -> Iterator[TableName]:
        wanted = self.connector.source
        for namespace in [self._source_path] if self._source_path else source.namespaces():
            for name in source.tables(namespace):
                if selects(wanted, namespace, name):
                    yield TableName(namespace, name)

    def _aim(self, table: TableName) -> MirrorTarget:
        below = table.namespace[len(self._source_path) :]
        path = tuple(map(normal_text, (*self.base(), *below))) or (self.connector.display_name,)
        own = self._by_table(table)
        name = own.table_display_name or self._own_name() or normal_text(table.name)
        return MirrorTarget(table, tuple(own.namespace.segments) or path, name)

    def _by_table(self, table: TableName) -> v1.TableDestination:
        """The destination of this table in `destination.tables`; the full name takes precedence over the plain one."""
        by_source = {each.source: each for each in self.connector.destination.tables}
        return by_source.get(str(table)) or by_source.get(table.name) or v1.TableDestination()

    def _own_name(self) -> str:
        to = self.connector.destination
        if to.HasField("table_id"):
            key = keys.table(self.realm.account_id, to.table_id.id)
            table = self.realm.all(TABLE).find(key)
            return table.value.display_name if table else ""
        return to.table_display_name

    def _in_scope(self, target: MirrorTarget) -> bool:
        paths = [tuple(namespace.segments) for namespace in self.scope.namespaces]
        return (not paths or target.namespace in paths) and self.scope.table in ("", target.name)

    @property
    def _source_path(self) -> tuple[str, ...]:
        return tuple(self.connector.source.namespace.segments)

    def _nothing(self, what: str, key: str) -> NotFound:
        name = self.connector.display_name
        names = [dotted(namespace.segments) for namespace in self.scope.namespaces] + [self.scope.table]
        requested = ", ".join(filter(None, names))
        return NotFound(
            f"{what} (connector {name}{f', requested: {requested}' if requested else ''}): check names and filters",
            key=key,
            name=name,
        )


def store_destination_ids(realm: Realm, connector: v1.Connector, destinations: Destinations) -> None:
    """Store the ids of the destinations that exist now, so that they may be renamed."""
    catalog_id = connector.destination.catalog_id
    base = destinations.base()
    if not base or not destinations.resolved:
        return
    namespace = namespaces.lookup(realm, catalog_id, base)
    if namespace is None:
        return
    table_id = _table_id(realm, connector, destinations, namespace) if destinations.is_single else None

    def edit(record: v1.Connector) -> None:
        if record.destination != connector.destination:
            return  # changed in the meantime: the ids belong to the old destination
        record.destination.namespace_id.CopyFrom(namespace.resource_id)
        record.destination.ClearField("namespace")
        if table_id is not None:
            record.destination.table_id.CopyFrom(table_id)
            record.destination.ClearField("table_display_name")

    def attempt() -> None:
        try:
            updates.update(realm, CONNECTOR, connector.resource_id.id, v1.Precondition(), edit)
        except PreconditionFailed:
            raise failure(Contention, "store.contended", what=f"connector {connector.display_name}") from None

    retrying(attempt)


def _table_id(
    realm: Realm, connector: v1.Connector, destinations: Destinations, namespace: v1.Namespace
) -> v1.ResourceId | None:
    (target, *_) = destinations.resolved
    found = mirrored_tables(realm, namespace.resource_id.id, connector.resource_id.id)
    table = found.get((*target.source.namespace, target.source.name))
    return None if table is None else table.resource_id
