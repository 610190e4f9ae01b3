"""Pins: the tables and snapshots that a query reads, and the pointers that make garbage collection keep their blobs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial

import pyarrow as pa

from skiway.errors import Conflict, InvalidArgument, NotFound, PreconditionFailed
from skiway.metastore.records import keys
from skiway.metastore.records.errors import failure
from skiway.metastore.records.kinds import SNAPSHOT, VIEW
from skiway.metastore.records.names import dotted
from skiway.metastore.records.realm import Realm, local_id
from skiway.metastore.records.repository import Stored
from skiway.metastore.records.updates import apply_batch, retrying
from skiway.metastore.resources import directory, hierarchy
from skiway.metastore.resources.hierarchy import full_path
from skiway.metastore.resources.snapshots import STATISTICS, current, current_id, resolve
from skiway.metastore.statistics import file_table
from skiway.metastore.statistics.api import field_names
from skiway.model import v1
from skiway.storage import ABSENT, Delete, Operation, Pointer, Put, Stores


@dataclass(frozen=True, slots=True)
class Read:
    """A table that is read, and in which state; an empty reference leaves the state open."""

    table_id: v1.ResourceId
    snapshot: v1.SnapshotRef
    by_view: bool


@dataclass(frozen=True, slots=True)
class Inputs:
    """Resolves inputs. `expansions` has the views that were found, each after those it reads."""

    realm: Realm
    default_catalog: v1.Catalog
    expansions: dict[str, v1.ViewExpansion] = field(default_factory=dict, init=False)
    _visited: set[str] = field(default_factory=set, init=False)

    def reads(self, inputs: Iterable[v1.QueryInput]) -> Iterator[Read]:
        """Every table that the inputs read, as often as they do."""
        for number, each in enumerate(inputs):
            target = self._target(each, field=f"inputs[{number}]")
            if target.kind == v1.RK_TABLE:
                yield Read(target, each.snapshot, by_view=False)
                continue
            if each.snapshot.WhichOneof("which") == "snapshot_id":
                raise failure(InvalidArgument, "query.input.view.cannot.use.snapshot.id", view_id=target.id)
            for table_id in self._tables_of(target):
                yield Read(table_id, each.snapshot, by_view=True)

    def _target(self, given: v1.QueryInput, *, field: str) -> v1.ResourceId:
        match given.WhichOneof("target"):
            case "name":
                name = v1.NameRef()
                name.CopyFrom(given.name)
                name.catalog = name.catalog or self.default_catalog.display_name
                found = self._found(name)
                if found is None:
                    raise _unresolved(name)
                return found
            case "table_id":
                return hierarchy.table(self.realm, given.table_id, field=f"{field}.table_id").value.resource_id
            case "view_id":
                return self._view(given.view_id, field=f"{field}.view_id").resource_id
            case _:
                raise failure(InvalidArgument, "query.input.invalid", field=field)

    def _found(self, name: v1.NameRef) -> v1.ResourceId | None:
        """The table or view with this name.

        An id in the reference takes precedence, and its kind decides which of the two it is.
        """
        kind = name.resource_id.kind if name.HasField("resource_id") else v1.RK_UNSPECIFIED
        if kind != v1.RK_VIEW:
            with suppress(NotFound):
                return directory.resolve_table(self.realm, v1.ResolveTableRequest(ref=name)).resource_id
        if kind != v1.RK_TABLE:
            with suppress(NotFound):
                return directory.resolve_view(self.realm, v1.ResolveViewRequest(ref=name)).resource_id
        return None

    def _view(self, given: v1.ResourceId, *, field: str) -> v1.View:
        view_id = local_id(self.realm, given, v1.RK_VIEW, field=field)
        return self.realm.all(VIEW).require(keys.view(self.realm.account_id, view_id), name=view_id).value

    def _tables_of(self, view_id: v1.ResourceId) -> Iterable[v1.ResourceId]:
        """The tables that a view reads in the end, each once."""
        if view_id.id in self._visited:
            known = self.expansions.get(view_id.id)
            return known.base_table_ids if known else ()  # not resolved yet: the view reads itself
        self._visited.add(view_id.id)
        view = self._view(view_id, field="view_id")
        tables: dict[str, v1.ResourceId] = {}
        for relation in view.base_relations:
            target = self._base(view, relation)
            found = [target] if target.kind == v1.RK_TABLE else self._tables_of(target)
            tables.update((each.id, each) for each in found)
        self.expansions[view_id.id] = v1.ViewExpansion(
            view_id=view_id, canonical_sql=_canonical_sql(view), base_table_ids=tables.values()
        )
        return tables.values()

    def _base(self, view: v1.View, relation: v1.NameRef) -> v1.ResourceId:
        """The table or view that a view means by a name: in its own catalog, along its search path, and then in its own
        namespace.
        """
        own = hierarchy.namespace(self.realm, view.namespace_id).value
        catalog = relation.catalog or hierarchy.catalog(self.realm, own.catalog_id).value.display_name
        searched = [tuple(each.split(".")) for each in view.creation_search_path]
        for path in [tuple(relation.path)] if relation.path else [*searched, full_path(own)]:
            found = self._found(v1.NameRef(catalog=catalog, path=path, name=relation.name))
            if found is not None:
                return found
        raise _unresolved(v1.NameRef(catalog=catalog, path=relation.path, name=relation.name))


def _unresolved(name: v1.NameRef) -> NotFound:
    text = name.resource_id.id if name.HasField("resource_id") else dotted((name.catalog, *name.path, name.name))
    return failure(NotFound, "query.input.unresolved", name=text)


def _canonical_sql(view: v1.View) -> str:
    """The SQL for DuckDB, or the first one."""
    texts = {definition.dialect: definition.sql for definition in reversed(view.sql_definitions)}
    return texts.get("duckdb", view.sql_definitions[0].sql if view.sql_definitions else "")


def pinned_uris(tables: Iterable[v1.PinnedTable]) -> list[str]:
    """The blobs that these tables are read from, each once."""
    return sorted({uri for table in tables for uri in _uris(table) if uri})


def hold(realm: Realm, query_id: str, uris: Sequence[str], *, until: datetime) -> None:
    """Pin these blobs for a query until a time. Existing pins are extended."""
    # Pins need not be set in one batch, only before anything relies on them.
    for some in _batches(realm, uris):
        retrying(partial(_hold, realm, query_id, some, until))


def release(realm: Realm, query_id: str, uris: Sequence[str]) -> None:
    """Release these blobs. A pin that cannot be released now expires."""
    for some in _batches(realm, uris):
        found = filter(None, (realm.stores.pointers.get(keys.pin(uri, query_id)) for uri in some))
        deletes: list[Operation] = [Delete(pin.key, expect=pin.version) for pin in found]
        try:
            realm.stores.pointers.apply(deletes)
        except Conflict:
            continue


def are_unchanged(realm: Realm, pointers: Iterable[Pointer]) -> bool:
    """Whether all these pointers are as they were read."""
    return all(realm.stores.pointers.get(pointer.key) == pointer for pointer in pointers)


def is_pinned(stores: Stores, uri: str) -> bool:
    """Whether a query has pinned this blob."""
    return bool(stores.pointers.page(keys.pin(uri), size=1).items)


def _uris(table: v1.PinnedTable) -> Iterator[str]:
    yield table.table_uri
    yield table.snapshot_uri
    yield table.table_stats_uri
    yield table.column_stats_uri
    yield table.file_stats_uri


def _batches(realm: Realm, uris: Sequence[str]) -> Iterator[Sequence[str]]:
    size = realm.stores.pointers.max_batch
    return (uris[start : start + size] for start in range(0, len(uris), size))


def _hold(realm: Realm, query_id: str, uris: Sequence[str], until: datetime) -> None:
    apply_batch(realm, [_put(realm, keys.pin(uri, query_id), uri, until) for uri in uris], what=f"query {query_id}")


def _put(realm: Realm, key: str, uri: str, until: datetime) -> Put:
    pin = realm.stores.pointers.get(key)
    expect = ABSENT if pin is None else pin.version
    lasting = until if pin is None or pin.expires_at is None else max(until, pin.expires_at)
    return Put(key, uri, expect=expect, expires_at=lasting)


# --- pinned snapshots -------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Pin:
    """A table in one state: what is returned to the client, what is stored, and the pointers that were read."""

    reported: v1.SnapshotPin
    stored: v1.PinnedTable
    pointers: tuple[Pointer, ...]


@dataclass(frozen=True, slots=True)
class PinnedSnapshot:
    """A table as a query reads it, whatever happened to it since."""

    realm: Realm
    of: v1.PinnedTable

    def table(self) -> v1.Table:
        """The table as it was when the query began."""
        return v1.Table.FromString(self._blob(self.of.table_uri))

    def snapshot(self) -> v1.Snapshot:
        """The snapshot."""
        return v1.Snapshot.FromString(self._blob(self.of.snapshot_uri))

    def schema_json(self) -> str:
        """The columns that the query reads: those of the table if the snapshot was the current one, else those of the snapshot.

        Columns are renamed and dropped without a new snapshot.
        """
        of_table, of_snapshot = self.table().schema_json, self.snapshot().schema_json
        return of_table or of_snapshot if self.of.is_current else of_snapshot or of_table

    def column_names(self) -> dict[int, str | None]:
        """The names, by id, of the columns that the query reads; None for those that were dropped after the snapshot."""
        names = field_names(self.schema_json())
        return {**dict.fromkeys(field_names(self.snapshot().schema_json)), **names}

    def table_stats(self) -> v1.TableStats | None:
        """The statistics of the table, if there were any."""
        return v1.TableStats.FromString(self._blob(self.of.table_stats_uri)) if self.of.table_stats_uri else None

    def columns(self) -> list[v1.ColumnStats]:
        """The statistics of the columns."""
        uri = self.of.column_stats_uri
        return list(v1.ColumnStatsSet.FromString(self._blob(uri)).columns) if uri else []

    def files(self) -> pa.Table:
        """All files with their statistics, in `file_table.SCHEMA`; empty if none were stored."""
        uri = self.of.file_stats_uri
        return file_table.opened(v1.FileStatsSet.FromString(self._blob(uri)).arrow_file if uri else b"")

    def _blob(self, uri: str) -> bytes:
        return self.realm.stores.blobs.get(uri)


def pins(realm: Realm, reads: Iterable[Read], *, default: v1.SnapshotRef) -> list[Pin]:
    """One pin per table, in the order of the tables' first occurrence. `default` applies where no state is given."""
    by_table: dict[str, list[Read]] = {}
    for read in reads:
        by_table.setdefault(read.table_id.id, []).append(read)
    return [_pin(realm, each, default) for each in by_table.values()]


def _pin(realm: Realm, reads: list[Read], default: v1.SnapshotRef) -> Pin:
    table = hierarchy.table(realm, reads[0].table_id)
    explicit = [read.snapshot for read in reads if read.snapshot.WhichOneof("which")]
    first, *others = explicit or [default]
    snapshot = _snapshot(realm, table.value.resource_id.id, first)
    for other in others:
        _require_same(snapshot.value, _snapshot(realm, table.value.resource_id.id, other).value)
    pin = stored(realm, table, snapshot, first)
    pin.stored.is_current = current_id(realm, table.value.resource_id.id) == snapshot.value.snapshot_id
    return pin


def _snapshot(realm: Realm, table_id: str, ref: v1.SnapshotRef) -> Stored[v1.Snapshot]:
    match ref.WhichOneof("which"):
        case "snapshot_id":
            snapshot = realm.all(SNAPSHOT).find(keys.snapshot(realm.account_id, table_id, ref.snapshot_id))
            if snapshot is None:
                snapshot_id = str(ref.snapshot_id)
                raise failure(NotFound, "query.snapshot.not.in.table", table_id=table_id, snapshot_id=snapshot_id)
            return snapshot
        case "as_of":
            try:
                return resolve(realm, table_id, ref)
            except NotFound:
                as_of = ref.as_of.ToJsonString()
                raise failure(NotFound, "query.snapshot.not.found.at.time", table_id=table_id, as_of=as_of) from None
        case "special" if ref.special != v1.SS_CURRENT:
            raise failure(InvalidArgument, "snapshot.special.unsupported", field="snapshot", found=str(ref.special))
        case _:
            snapshot = current(realm, table_id)
            if snapshot is None:
                raise failure(NotFound, "query.table.no.queryable.snapshot", table_id=table_id)
            return snapshot


def _require_same(pinned: v1.Snapshot, requested: v1.Snapshot) -> None:
    if pinned.snapshot_id != requested.snapshot_id:
        raise failure(
            PreconditionFailed,
            "query.table.pin.conflict",
            table_id=pinned.table_id.id,
            pinned_snapshot=str(pinned.snapshot_id),
            requested_snapshot=str(requested.snapshot_id),
        )


def stored(realm: Realm, table: Stored[v1.Table], snapshot: Stored[v1.Snapshot], ref: v1.SnapshotRef) -> Pin:
    """A table in a snapshot, with the blobs that hold it now."""
    table_id, snapshot_id = table.value.resource_id, snapshot.value.snapshot_id
    statistics = {
        of: realm.stores.pointers.get(keys.statistics(realm.account_id, table_id.id, snapshot_id, of=of))
        for of in STATISTICS
    }
    uris = {of: pointer.blob_uri if pointer else "" for of, pointer in statistics.items()}
    as_of = ref.as_of if ref.WhichOneof("which") == "as_of" else None
    return Pin(
        v1.SnapshotPin(table_id=table_id, snapshot_id=snapshot_id, as_of=as_of),
        v1.PinnedTable(
            table_id=table_id,
            snapshot_id=snapshot_id,
            table_uri=table.pointer.blob_uri,
            snapshot_uri=snapshot.pointer.blob_uri,
            table_stats_uri=uris["table"],
            column_stats_uri=uris["columns"],
            file_stats_uri=uris["files"],
        ),
        (table.pointer, snapshot.pointer, *filter(None, statistics.values())),
    )
