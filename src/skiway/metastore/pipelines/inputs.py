"""The tables that a pipeline reads and writes, with the rights of its owner.

managed table   the current snapshot in the warehouse
mirrored table  the snapshot of the last sync of its connector, read from the source
view            its query takes its place; see `views`
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from hashlib import sha256

import pyarrow as pa

from skiway.errors import NotFound, PermissionDenied, PreconditionFailed, Unsupported
from skiway.formats import Snapshot, TableHandle, TableName, data_files
from skiway.formats.iceberg.table import IcebergTable
from skiway.formats.iceberg.warehouse import Warehouse
from skiway.metastore.managed.states import ManagedTable, handle_of, load
from skiway.metastore.pipelines.owners import CurrentRoles, owner_of, owner_realm
from skiway.metastore.pipelines.positions import InputState
from skiway.metastore.reconcile.reconciler import Reconciler
from skiway.metastore.records.realm import Realm
from skiway.metastore.resources import catalogs, hierarchy, namespaces, snapshots, tables, views
from skiway.metastore.statistics.file_table import DIGEST
from skiway.model import v1

__all__ = ["WHOLE_TABLES", "Input", "LakeNames", "LakeTables", "PipelineArea"]

WHOLE_TABLES = "a pipeline reads whole tables, and its results would show the rest"


@dataclass(frozen=True, slots=True)
class Input:
    """A table that a query or function reads: its state, the data files that are read, and its full name with its catalog."""

    handle: TableHandle
    snapshot: Snapshot | None
    files: pa.Table | None
    state: InputState
    path: tuple[str, ...] = ()

    @property
    def columns(self) -> pa.Schema:
        """The columns of the table."""
        return self.handle.schema.arrow if self.snapshot is None else self.handle.schema_at(self.snapshot).arrow

    def appended_since(self, before: InputState) -> Input | None:
        """The input with only the files that were added since an earlier state; None if it did not only grow since then.

        Files of Iceberg tables never change. In other formats they can, so those tables are read again as a whole.
        """
        if before.table != self.state.table or before.columns != self.state.columns:
            return None
        if not isinstance(self.handle, IcebergTable):
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
class LakeNames:
    """What names mean in a pipeline in `catalog`. `realm` has the rights of its owner.

    `bound` has the digests of the views that the owner has seen, by id; None if any view may be read.
    """

    realm: Realm
    catalog: str
    bound: Mapping[str, str] | None = field(default=None, kw_only=True)

    def view(self, name: TableName) -> v1.View | None:
        """The view with this name, which the owner may read completely; None if there is none."""
        for catalog, space in self._places(name):
            found = views.find_any_case(self.realm, catalog, space.resource_id.id, name.name)
            if found is not None and tables.find_any_case(self.realm, catalog, space.resource_id.id, name.name) is None:
                self.realm.require("view.read", found)
                self.realm.require_unrestricted(found, why=WHOLE_TABLES)
                return found
        return None

    def exists(self, name: TableName) -> bool:
        """Whether the owner sees a table or view with this name."""
        return self._find(name) is not None or self.view(name) is not None

    def _catalog(self, name: str) -> v1.Catalog | None:
        found = catalogs.find(self.realm, name)
        return None if found is None else found.value

    def _places(self, name: TableName) -> Iterator[tuple[v1.Catalog, v1.Namespace]]:
        """Where a name can mean a table: in the catalog of the pipeline, and then in the catalog that it begins with."""
        for catalog_name, path in ((self.catalog, name.namespace), (name.namespace[0], name.namespace[1:])):
            catalog = self._catalog(catalog_name) if path else None
            space = None if catalog is None else namespaces.find_any_case(self.realm, catalog, path)
            if catalog is not None and space is not None:
                yield catalog, space

    def _find(self, name: TableName) -> v1.Table | None:
        found = (self._table(catalog, space, name.name) for catalog, space in self._places(name))
        return next((each for each in found if each is not None), None)

    def _table(self, catalog: v1.Catalog, space: v1.Namespace, name: str) -> v1.Table | None:
        try:
            return tables.find_any_case(self.realm, catalog, space.resource_id.id, name)
        except PermissionDenied:
            return None


@dataclass(frozen=True, slots=True)
class LakeTables(LakeNames):
    """The tables of an account, as the owner of a pipeline sees them.

    `opening` is a realm that may open the sources of connectors. `allows_python` says whether the operator allows Python functions.
    """

    reconciler: Reconciler
    opening: Realm
    allows_python: bool = False

    @property
    def warehouse(self) -> Warehouse:
        """The warehouse of managed tables."""
        if self.reconciler.warehouse is None:
            raise Unsupported("this server has no warehouse, so it has no tables to derive", key="warehouse.missing")
        return self.reconciler.warehouse

    def input(self, name: TableName, *, reader: TableName, opened: ExitStack) -> Input:
        """The current state of a table that `reader` reads. Raise if the owner may not read it completely.

        The table can be read until `opened` is closed.
        """
        table = self._readable(name, reader)
        if table.metadata_location:
            return replace(self._managed(table), path=self._path(table))
        state = self._mirrored_state(table, name, reader)
        handle, snapshot = opened.enter_context(self.reconciler.opened(self.opening, table, state.snapshot))
        return Input(handle, snapshot, data_files(handle.files(snapshot)), state, self._path(table))

    def state(self, name: TableName, *, reader: TableName) -> InputState:
        """The current state of a table that `reader` reads, without opening its source."""
        table = self._readable(name, reader)
        return self._managed(table).state if table.metadata_location else self._mirrored_state(table, name, reader)

    def output(self, name: TableName) -> ManagedTable | None:
        """The derived table with this name; None if it does not exist yet. Raise if the owner may not write it."""
        catalog = self._catalog(self.catalog)
        space = None if catalog is None else namespaces.find_any_case(self.realm, catalog, name.namespace)
        table = None if catalog is None or space is None else self._table(catalog, space, name.name)
        if table is None:
            return None
        self.realm.require("table.write", table)
        return load(self.realm, self.warehouse, table.resource_id)

    def namespace(self, path: Sequence[str], *, of: TableName) -> v1.Namespace:
        """The namespace that a new table is created in."""
        catalog = self._catalog(self.catalog)
        found = None if catalog is None else namespaces.find_any_case(self.realm, catalog, path)
        if found is None:
            raise NotFound(
                f"table {of} cannot be created: catalog {self.catalog} has no namespace {'.'.join(path)} that {self._owner} may "
                "see; create it first",
                key="pipeline.namespace.missing",
            )
        return found

    def require_python(self, table: TableName) -> None:
        """Raise if the code of a Python function, which makes `table`, may not run."""
        if not self.allows_python:
            raise Unsupported(
                f"table {table} is made by a Python function, and this server runs none: its operator can allow them with the "
                "setting pipelines.python.enabled=true",
                key="pipeline.python.disabled",
            )
        if self.realm.policies is not None and self.realm.policies.restrict_anything:
            raise PermissionDenied(
                f"a policy restricts what {self._owner} sees, and Python functions of such owners do not run: write the query "
                f"of table {table} in a .sql file, or let another user apply the pipeline",
                key="pipeline.python.policies",
            )

    def _path(self, table: v1.Table) -> tuple[str, ...]:
        """The names of the catalog, the namespaces and the table."""
        space = hierarchy.namespace(self.realm, table.namespace_id).value
        catalog = hierarchy.catalog(self.realm, table.catalog_id).value
        return catalog.display_name, *hierarchy.full_path(space), table.display_name

    @property
    def _owner(self) -> str:
        return f"the owner of the pipeline, {self.realm.caller or 'the server'},"

    def _readable(self, name: TableName, reader: TableName) -> v1.Table:
        table = self._find(name)
        if table is None:
            raise NotFound(
                f"table {name}, which {reader} reads, does not exist in catalog {self.catalog}, or {self._owner} may not see it",
                key="pipeline.input.missing",
                table=str(name),
            )
        self.realm.require("table.read", table)
        self.realm.require_unrestricted(table, why=WHOLE_TABLES)
        return table

    def _managed(self, table: v1.Table) -> Input:
        found = load(self.realm, self.warehouse, table.resource_id)
        handle = handle_of(found.table, found.metadata, self.warehouse.files(found.metadata.location))
        snapshot = handle.current()
        files = None if snapshot is None else data_files(handle.files(snapshot))
        columns = [(each.name, str(each.type), each.metadata) for each in handle.schema.arrow]
        digest = sha256(repr(columns).encode()).hexdigest()[:16]
        return Input(handle, snapshot, files, InputState(found.id, 0 if snapshot is None else snapshot.id, digest))

    def _mirrored_state(self, table: v1.Table, name: TableName, reader: TableName) -> InputState:
        found = snapshots.current(self.realm, table.resource_id.id)
        if found is None:
            raise PreconditionFailed(
                f"table {name}, which {reader} reads, is a mirrored table without a snapshot: synchronise its connector first",
                key="pipeline.input.unsynchronised",
                table=str(name),
            )
        snapshot, shape = found.value, table.schema_json.encode()
        if table.upstream.format != v1.TF_ICEBERG:
            # A folder that is written anew counts its versions from the beginning.
            shape += snapshot.format_metadata.get(DIGEST, b"")
        return InputState(table.resource_id.id, snapshot.snapshot_id, sha256(shape).hexdigest()[:16])


@dataclass(frozen=True, slots=True)
class PipelineArea:
    """What pipelines need besides the metastore: what opens tables, the current roles of users, if the server knows them, and
    whether the operator allows Python functions.
    """

    reconciler: Reconciler
    current_roles: CurrentRoles | None = None
    allows_python: bool = False

    def tables(self, realm: Realm, pipeline: v1.Pipeline, catalog: str) -> LakeTables:
        """The tables of the account, as the owner of a pipeline sees them now."""
        owner = owner_of(realm, pipeline, self.current_roles)
        return LakeTables(
            owner_realm(realm, owner),
            catalog,
            self.reconciler,
            realm,
            self.allows_python,
            bound=pipeline.owner.views,
        )
