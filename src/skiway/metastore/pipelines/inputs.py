"""The tables that a pipeline reads and writes, with the rights of its owner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256

import pyarrow as pa

from skiway.errors import NotFound, PermissionDenied, Unsupported
from skiway.formats import Snapshot, TableName, data_files
from skiway.formats.iceberg.table import IcebergTable
from skiway.formats.iceberg.warehouse import Warehouse
from skiway.metastore.managed.states import ManagedTable, handle_of, load
from skiway.metastore.pipelines.owners import CurrentRoles, owner_of, owner_realm
from skiway.metastore.pipelines.positions import InputState
from skiway.metastore.reconcile.reconciler import Reconciler
from skiway.metastore.records.realm import Realm
from skiway.metastore.resources import catalogs, namespaces, tables
from skiway.model import v1

__all__ = ["Input", "LakeTables", "PipelineArea"]


@dataclass(frozen=True, slots=True)
class Input:
    """A table that a query reads: its state, and the data files that are read."""

    handle: IcebergTable
    snapshot: Snapshot | None
    files: pa.Table | None
    state: InputState

    @property
    def columns(self) -> pa.Schema:
        """The columns of the table."""
        return self.handle.schema.arrow

    def appended_since(self, before: InputState) -> Input | None:
        """The input with only the files that were added since an earlier state; None if it did not only grow since then."""
        if before.table != self.state.table or before.columns != self.state.columns:
            return None
        if not before.snapshot:
            return self
        earlier = next((each for each in self.handle.snapshots() if each.id == before.snapshot), None)
        if earlier is None or self.snapshot is None:
            return None
        now, then = self.handle.files(self.snapshot), self.handle.files(earlier)
        known = set(then["path"].to_pylist())
        if not known <= set(now["path"].to_pylist()):
            return None
        new = now.filter(pa.array([path not in known for path in now["path"].to_pylist()], pa.bool_()))
        return replace(self, files=new) if data_files(new).num_rows == new.num_rows else None


@dataclass(frozen=True, slots=True)
class LakeTables:
    """The tables of a catalog, as the owner of a pipeline sees them."""

    realm: Realm
    warehouse: Warehouse
    catalog: str

    def input(self, name: TableName, *, reader: TableName) -> Input:
        """The current state of a table that `reader` reads. Raise if the owner may not read it completely."""
        table = self._find(name)
        if table is None:
            raise NotFound(
                f"table {name}, which {reader} reads, does not exist in catalog {self.catalog}, or {self._owner} may not see it",
                key="pipeline.input.missing",
                table=str(name),
            )
        self.realm.require("table.read", table)
        self.realm.require_unrestricted(table, why="a pipeline reads whole tables, and its results would show the rest")
        if not table.metadata_location:
            raise Unsupported(
                f"table {name}, which {reader} reads, is a mirrored table: pipelines read managed tables, so copy it first",
                key="pipeline.input.mirrored",
                table=str(name),
            )
        found = load(self.realm, self.warehouse, table.resource_id)
        handle = handle_of(found.table, found.metadata, self.warehouse.files(found.metadata.location))
        snapshot = handle.current()
        files = None if snapshot is None else data_files(handle.files(snapshot))
        columns = [(each.name, str(each.type), each.metadata) for each in handle.schema.arrow]
        digest = sha256(repr(columns).encode()).hexdigest()[:16]
        return Input(handle, snapshot, files, InputState(found.id, 0 if snapshot is None else snapshot.id, digest))

    def output(self, name: TableName) -> ManagedTable | None:
        """The derived table with this name; None if it does not exist yet. Raise if the owner may not write it."""
        table = self._find(name)
        if table is None:
            return None
        self.realm.require("table.write", table)
        return load(self.realm, self.warehouse, table.resource_id)

    def namespace(self, path: Sequence[str], *, of: TableName) -> v1.Namespace:
        """The namespace that a new table is created in."""
        catalog = self._catalog()
        found = None if catalog is None else namespaces.find_any_case(self.realm, catalog, path)
        if found is None:
            raise NotFound(
                f"table {of} cannot be created: catalog {self.catalog} has no namespace {'.'.join(path)} that {self._owner} may "
                "see; create it first",
                key="pipeline.namespace.missing",
            )
        return found

    @property
    def _owner(self) -> str:
        return f"the owner of the pipeline, {self.realm.caller or 'the server'},"

    def _catalog(self) -> v1.Catalog | None:
        found = catalogs.find(self.realm, self.catalog)
        return None if found is None else found.value

    def _find(self, name: TableName) -> v1.Table | None:
        catalog = self._catalog()
        space = None if catalog is None else namespaces.find_any_case(self.realm, catalog, name.namespace)
        if catalog is None or space is None:
            return None
        try:
            return tables.find_any_case(self.realm, catalog, space.resource_id.id, name.name)
        except PermissionDenied:
            return None


@dataclass(frozen=True, slots=True)
class PipelineArea:
    """What pipelines need besides the metastore: what opens tables, and the current roles of users, if the server knows them."""

    reconciler: Reconciler
    current_roles: CurrentRoles | None = None

    def tables(self, realm: Realm, pipeline: v1.Pipeline, catalog: str) -> LakeTables:
        """The tables of a catalog, as the owner of a pipeline sees them now."""
        if self.reconciler.warehouse is None:
            raise Unsupported("this server has no warehouse, so it has no tables to derive", key="warehouse.missing")
        owner = owner_of(realm, pipeline, self.current_roles)
        return LakeTables(owner_realm(realm, owner), self.reconciler.warehouse, catalog)
