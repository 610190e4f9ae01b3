"""The catalogs of the metastore as DuckDB attaches them, and their namespaces as schemas."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from skiway.airport import (
    Catalog,
    CatalogVersion,
    Commands,
    CreateTable,
    DynamicCatalog,
    DynamicSchema,
    LazyListing,
    ScanOptions,
    Schema,
    SharedListing,
    Table,
    Transactional,
    Versioned,
    current_request,
)
from skiway.airport.request import call_of
from skiway.errors import Conflict, InvalidArgument, NotFound, PreconditionFailed, SchemaNotEmpty, Unsupported
from skiway.formats.iceberg.changes.commits import Replacement, replacing
from skiway.formats.iceberg.types import iceberg_schema, schema_json
from skiway.foundation.cache import Cache
from skiway.foundation.resources import namespace_path, schema_name
from skiway.lake.callers import BranchCallers
from skiway.lake.context import Context
from skiway.lake.information_schema import INFORMATION_SCHEMA, information_table
from skiway.lake.reading.columns import ROWID, Columns, columns_in, columns_of
from skiway.lake.reading.state import PendingCreate, TableInCall
from skiway.lake.reading.table import scan_mode
from skiway.lake.system.functions import QueryFunction, QueryTable
from skiway.lake.system.schema import SYSTEM_SCHEMA, SystemSchema
from skiway.lake.transactions import LakeTransactions
from skiway.lake.views import ViewTable, view_table
from skiway.lake.writing.inserting import Changes, PendingTable, Target, check_auto_commit, check_managed
from skiway.lake.writing.writable import WritableTable
from skiway.metastore import Realm, branches, catalogs, managed, namespaces, tables, views
from skiway.metastore.records.branches import branch_of
from skiway.metastore.records.damage import damaged_error
from skiway.metastore.records.names import BRANCH_MARK, STATISTICS_OFFER, exact_name
from skiway.metastore.resources.hierarchy import full_path, relation_count
from skiway.model import v1
from skiway.sql import Find

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile


class LakeSchema(Schema, DynamicSchema, LazyListing):
    """The tables of one namespace. A lazy schema lists them when a client first uses it."""

    def __init__(
        self, context: Context, catalog: v1.Catalog, namespace: v1.Namespace, find: Find, *, lazy: bool = False
    ) -> None:
        self.name = schema_name(full_path(namespace))
        self.comment = f"damaged: {namespace.damage}" if namespace.damage else namespace.description
        self._context = context
        self._catalog = catalog
        self._namespace = namespace
        self._find = find
        self._is_lazy = lazy

    @property
    def is_lazy(self) -> bool:
        """Whether the listing of the catalog leaves out the tables."""
        return self._is_lazy

    def tables(self) -> Sequence[Table]:
        """All tables and views. What cannot be read is marked with the reason."""
        return [*self._tables(), *self._views()]

    def _tables(self) -> Iterator[Table]:
        if self._context.callers.may("table.read"):
            for record in tables.scan(self._context.callers.realm(), self._namespace.resource_id.id):
                if record.damage:
                    yield UnreadableTable(record, damaged_error("table", record.display_name, record.damage))
                elif (error := self._schema_error(record)) is not None:
                    yield UnreadableTable(record, error)
                else:
                    yield self._table(record, listing=True)

    def _views(self) -> Iterator[Table]:
        if self._context.callers.may("view.read"):
            for record in views.scan(self._context.callers.realm(), self._namespace.resource_id.id):
                yield self._view_table(record, listing=True)

    def _view_table(self, record: v1.View, *, bind: bool = True, listing: bool = False) -> ViewTable:
        place = (self._catalog.display_name, self.name)
        return view_table(
            self._context, record, place, self._find, bind=bind, listing=listing, inherited_offer=self._inherited_offer
        )

    def _inherited_offer(self) -> str:
        realm = self._context.callers.realm()
        return namespaces.nearest_property(realm, self._catalog, self._namespace, STATISTICS_OFFER)

    def _view(self, name: str) -> v1.View | None:
        """The view with this name, if the caller may read views."""
        if not self._context.callers.may("view.read"):
            return None
        realm = self._context.callers.realm()
        return views.find_any_case(realm, self._catalog, self._namespace.resource_id.id, name)

    def table(
        self, name: str, *, bind: bool = True, admits: Callable[[v1.Table | v1.View], bool] = lambda _: True
    ) -> WritableTable | ViewTable | None:
        """The table or view with this name, or None. Queries, which bind views themselves, do not `bind` it.

        One that `admits` does not admit is treated as missing.
        """
        record = self._readable(name)
        if record is None:
            view = self._view(name)
            if view is not None:
                return self._view_table(view, bind=bind) if admits(view) else None
            self._context.callers.require("table.read")
            return None
        if not admits(record):
            return None
        if (error := self._schema_error(record)) is not None:
            raise error
        return self._table(record)

    # -- CREATE, DROP, ALTER … RENAME ---------------------------------------------------------------------------------

    def create_table(self, create: CreateTable) -> WritableTable | PendingTable | ViewTable:
        """Create a managed table without rows, or return the table or view of this name, so that its client learns about it."""
        self._context.callers.require("table.write", self._namespace)
        check_managed(self._catalog)
        check_auto_commit()
        exact_name(create.name, resource="table")
        wanted = _iceberg_columns(create)
        if not create.rows_follow:
            self._context.failed_creations.check(self._namespace.resource_id.id, create.name)
        found = self._record(create.name)
        if found is not None and create.on_conflict == "ignore":
            return self._table(found)
        if create.on_conflict == "ignore" and not create.rows_follow and (view := self._view(create.name)) is not None:
            return self._view_table(view)
        if create.rows_follow and (found is None or create.on_conflict == "replace"):
            pending = PendingCreate(wanted.serialize().to_pybytes(), create.on_conflict == "replace", create.comment)
            return self._pending_table(create.name, pending)
        properties = {"comment": create.comment} if create.comment else {}
        if found is not None and create.on_conflict == "replace":
            changes = Changes(self._context, found)
            changes.check_allowed()
            schema = iceberg_schema(wanted, format_version=changes.load().metadata.format_version)
            replaced = changes.commit(replacing(schema, properties=properties)).table
            return self._table(replaced).created_as(create.schema)
        made = self._made(create.name, wanted, properties)
        self._changed()
        table = self._table(made.table, listing=True, columns=columns_in(made.metadata.schema()))
        return table.created_as(create.schema)

    def pending_table(self, name: str, binding: str) -> PendingTable | None:
        """The table that a binding defines and that is created with its first rows; None for an existing table."""
        pending = PendingCreate.of(binding)
        return None if pending is None else self._pending_table(name, pending)

    def _pending_table(self, name: str, pending: PendingCreate) -> PendingTable:
        managed.require_addressable(name)
        return PendingTable(name, pending, lambda: self._target(name, pending))

    def _target(self, name: str, pending: PendingCreate) -> Target:
        """A new table, or the one with this name to be replaced. Nothing changes until the target commits."""
        self._context.callers.require("table.write", self._namespace)
        check_managed(self._catalog)
        check_auto_commit()
        _check_names(pending.schema)
        found = self._record(name) if pending.replace else None
        if found is None:
            return self._new(name, pending)
        changes = Changes(self._context, found)
        changes.check_allowed()
        base = changes.load()
        schema = iceberg_schema(pending.schema, format_version=base.metadata.format_version)
        made = Replacement.of(base.metadata, schema, properties=pending.properties)
        return Target(
            name,
            base.files,
            made.metadata,
            commit=lambda files, _: changes.commit(made.commit(files)),
            also_without_rows=True,
        )

    def _made(
        self, name: str, schema: pa.Schema, properties: Mapping[str, str], *, stage: bool = False
    ) -> managed.ManagedTable:
        realm, warehouse, place = self._context.callers.realm(), self._context.handles.warehouse, self._namespace
        return managed.create(
            realm,
            warehouse,
            namespace_id=place.resource_id,
            name=name,
            schema=schema,
            properties=properties,
            stage=stage,
        )

    def _new(self, name: str, pending: PendingCreate) -> Target:
        realm, warehouse = self._context.callers.realm(), self._context.handles.warehouse
        staged = self._made(name, pending.schema, pending.properties, stage=True)

        def create(files: Sequence[DataFile], _rows: int) -> None:
            managed.create_filled(realm, warehouse, staged, files)
            self._changed()

        described = v1.Table()
        described.CopyFrom(staged.table)
        described.schema_json = schema_json(staged.metadata.schema())
        return Target(
            name,
            staged.files,
            staged.metadata,
            commit=create,
            also_without_rows=True,
            restriction=self._context.callers.restriction(described),
        )

    def drop_table(self, name: str, *, if_exists: bool = False) -> None:
        """Drop a table. Garbage collection deletes its files later, because queries may still read them."""
        self._context.callers.require("table.write")
        if self._context.failed_creations.dropped(self._namespace.resource_id.id, name):
            return
        record = self._required(name, if_exists=if_exists, damaged=True)
        if record is not None:
            realm, warehouse = self._context.callers.realm(), self._context.handles.warehouse
            Changes(self._context, record).run(lambda: managed.drop(realm, warehouse, record.resource_id))

    def rename_table(self, name: str, new_name: str, *, if_exists: bool = False) -> None:
        """Rename a table. From a new name that is the old one, its client learns the present columns of a table or view."""
        is_same = name == new_name and self.table(name) is not None
        record = None if is_same else self._required(name, if_exists=if_exists)
        if record is not None:
            realm = self._context.callers.realm()
            Changes(self._context, record).run(lambda: managed.rename(realm, record.resource_id, name=new_name))

    def _required(self, name: str, *, if_exists: bool, damaged: bool = False) -> v1.Table | None:
        record = self._record(name, damaged=damaged)
        self._context.callers.require("table.write", record)
        if record is None and self._view(name) is not None:
            raise Unsupported(
                f"{self.name}.{name} is a view: use skiway.create_view with replace => true, or skiway.drop_view",
                key="table.is_view",
            )
        if record is None and not if_exists:
            raise NotFound(f"schema {self.name!r} has no table {name!r}", key="table", table=name)
        return record

    def _changed(self) -> None:
        self._context.versions.changed(self._context.callers.realm())

    def _readable(self, name: str) -> v1.Table | None:
        """The table with this name, if the caller may read tables."""

        def read() -> v1.Table | None:
            return self._record(name) if self._context.callers.may("table.read") else None

        return self._context.lookups.get(("table", self._namespace.resource_id.id, name), read)

    def _record(self, name: str, *, damaged: bool = False) -> v1.Table | None:
        """The table with this name, or else the one whose name differs in case only, as in SELECT.

        If `damaged`, also one with a damaged record.
        """
        realm = self._context.callers.realm()
        table = tables.find_any_case(realm, self._catalog, self._namespace.resource_id.id, name)
        if table is not None and table.damage and not damaged:
            raise damaged_error("table", f"{self.name}.{name}", table.damage)
        return table

    def _table(self, record: v1.Table, *, listing: bool = False, columns: Columns | None = None) -> WritableTable:
        problem = record.upstream.problem and tables.problem_of(self._context.callers.realm(), record)
        known = TableInCall(
            self._context,
            record,
            catalog=self._catalog.display_name,
            schema_name=self.name,
            comment=f"cannot be synchronised: {problem}" if problem else record.description,
            is_listing=listing,
            scan_mode=scan_mode(self._catalog),
            bound_columns=columns,
            inherited_offer=self._inherited_offer,
        )
        return WritableTable(known)

    def _schema_error(self, record: v1.Table) -> PreconditionFailed | None:
        """The reason why the columns of a table are unknown; None if they are known."""
        try:
            columns_of(record.schema_json)
        except ValueError as error:
            problem = tables.problem_of(self._context.callers.realm(), record)
            reason = problem or f"its schema is invalid: {_first_line(error)}; synchronise its connector"
            message = f"table {record.display_name!r} cannot be read: {reason}"
            return PreconditionFailed(message, key="table.unreadable", table=record.display_name)
        return None


class UnreadableTable(Table):
    """The place of a table in a listing whose columns are unknown. Reading it fails."""

    schema = pa.schema({"damage": pa.string()})

    def __init__(self, record: v1.Table, error: PreconditionFailed) -> None:
        self.name = record.display_name
        self.comment = f"damaged: {record.damage}" if record.damage else error.message
        self._error = error

    def scan(self, options: ScanOptions) -> pa.Table:  # noqa: ARG002
        """Raise the reason why the table cannot be read."""
        raise self._error


def _iceberg_columns(create: CreateTable) -> pa.Schema:
    """The columns as Iceberg stores them. Raise `Unsupported` for constraints that it does not have."""
    constraints = {"PRIMARY KEY": create.primary_key, "UNIQUE": create.unique, "CHECK": create.checks}
    for constraint, given in constraints.items():
        if given:
            raise Unsupported(
                f"table {create.name!r} cannot have {constraint}: managed tables are Iceberg tables, which do not support "
                "it; leave it out",
                key="table.feature",
            )
    _check_names(create.schema)
    for field in create.schema:
        if (field.metadata or {}).get(b"default"):
            raise Unsupported(
                f"column {field.name!r} cannot have a default: managed tables do not support it; leave it out",
                key="table.feature",
            )
    not_null = frozenset(create.not_null)
    return pa.schema([field.with_nullable(field.nullable and field.name not in not_null) for field in create.schema])


def _check_names(schema: pa.Schema) -> None:
    for name in schema.names:
        if name.casefold() == ROWID:
            raise InvalidArgument(f"a column cannot be named {name!r}: that is the row id", key="column.reserved")


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


class LakeCatalog(Catalog, Versioned, Commands, SharedListing, Transactional, DynamicCatalog):
    """One catalog. The object is cached while its record is unchanged; permissions are checked with every call."""

    def __init__(self, context: Context, record: v1.Catalog) -> None:
        self.name = record.display_name
        self.record = record
        self._context = context
        self._system = SystemSchema(context, record, self.find_table)

    @property
    def transactions(self) -> LakeTransactions:
        """Transaction ids, which pin snapshots."""
        return self._context.transactions

    def version(self) -> CatalogVersion:
        """A number that changes whenever the account's catalogs, namespaces, tables or views change."""
        operation = call_of(current_request()).operation
        if operation == "catalog_version":
            self.transactions.bind()
        attaching = operation in ("list_schemas", "list_flights")
        return CatalogVersion(self._context.versions.of(self._context.callers.realm(), fresh=attaching))

    def visibility_key(self) -> Hashable:
        """What decides which objects a caller can see."""
        return self._context.callers.visibility

    def schemas(self) -> Sequence[Schema]:
        """All namespaces of the catalog, and the system schema. Schemas of large accounts are lazy."""
        realm = self._context.callers.realm()
        found = namespaces.scan(realm, self.record.resource_id.id)
        lazy = self._is_large(realm)
        schemas = [LakeSchema(self._context, self.record, each, self.find_in_view, lazy=lazy) for each in found]
        return [*schemas, self._system]

    def _is_large(self, realm: Realm) -> bool:
        """Whether listing all tables and views of the account takes too long for ATTACH.

        If the store cannot tell that nothing has changed, the listing of each schema would take as long as the version of
        the account, so all schemas are listed at once.
        """
        return realm.stored_state() is not None and relation_count(realm) > self._context.max_listed_at_once

    def schema(self, name: str) -> Schema | None:
        """The schema with this name, or None."""
        if name.casefold() == SYSTEM_SCHEMA:
            return self._system
        return self._context.lookups.get(("schema", self.record.resource_id.id, name), lambda: self._schema(name))

    def _schema(self, name: str) -> LakeSchema | None:
        namespace = self._namespace(name)
        return None if namespace is None else LakeSchema(self._context, self.record, namespace, self.find_in_view)

    def command(self, text: str) -> Table:
        """The rows of a query, which is the text of the command."""
        return QueryTable(QueryFunction(self._context, self.name, self.find_table), text)

    def create_schema(self, name: str, *, comment: str = "", tags: Mapping[str, str] | None = None) -> Schema:
        """Create a namespace, and its missing parents."""
        self._context.callers.require("namespace.write")
        check_managed(self.record)
        check_auto_commit()
        if name.casefold() == "main":
            raise InvalidArgument(
                "a schema cannot be named 'main', because DuckDB cannot look up tables in it: choose another name",
                key="schema.name",
            )
        *parents, last = namespace_path(name)
        managed.require_addressable(*parents, last)
        spec = v1.NamespaceSpec(
            display_name=last,
            path=parents,
            catalog_id=self.record.resource_id,
            description=comment or None,
            properties=tags or {},
        )
        made = namespaces.create(self._context.callers.realm(), v1.CreateNamespaceRequest(spec=spec)).namespace
        self._context.versions.changed(self._context.callers.realm())
        return LakeSchema(self._context, self.record, made, self.find_in_view)

    def drop_schema(self, name: str, *, if_exists: bool = False) -> None:
        """Delete an empty namespace."""
        found = self._namespace(name)
        self._context.callers.require("namespace.write", found)
        check_managed(self.record)
        check_auto_commit()
        if found is None:
            if not if_exists:
                raise NotFound(f"schema {name!r} not found", key="schema", schema=name)
            return
        request = v1.DeleteNamespaceRequest(namespace_id=found.resource_id, require_empty=True)
        try:
            namespaces.delete(self._context.callers.realm(), request)
        except Conflict as error:
            if error.key != "namespace.not_empty":
                raise
            raise SchemaNotEmpty(
                f"schema {name!r} is not empty: drop its tables, views and schemas first", key=error.key, schema=name
            ) from error
        self._context.versions.changed(self._context.callers.realm())

    def find_table(self, catalog: str, schema: str, name: str) -> Table | None:
        """A table or view of this catalog, or of another one of the account."""
        if schema.casefold() == INFORMATION_SCHEMA:
            return None if self._context.callers.bound else information_table(name, self._all)
        owner: LakeCatalog | None = self
        if catalog.casefold() != self.name.casefold():
            owner = LakeCatalogs(self._context.main or self._context).other(catalog)
        if owner is None:
            return None
        found, bound = owner.schema(schema), self._context.callers.bound

        def admits(record: v1.Table | v1.View | v1.Catalog) -> bool:
            return bound is None or bound.admits((catalog, schema, name), record)

        if isinstance(found, LakeSchema):
            return found.table(name, bind=False, admits=admits)
        return found.table(name) if isinstance(found, SystemSchema) and admits(owner.record) else None

    def find_in_view(self, catalog: str, schema: str, name: str) -> Table | None:
        """A table or view by the name that a view has for it: on a branch, its catalog is the branch."""
        is_own = self._context.main is not None and catalog.casefold() == self._own_name.casefold()
        return self.find_table(self.name if is_own else catalog, schema, name)

    @property
    def _own_name(self) -> str:
        """The name of the catalog on main."""
        return self.name.rpartition(BRANCH_MARK)[0] or self.name

    def _all(self) -> list[LakeCatalog]:
        """The catalogs of the account and, on a branch, the branch."""
        main = self._context.main
        return LakeCatalogs(self._context).all() if main is None else [*LakeCatalogs(main).all(), self]

    def _namespace(self, name: str) -> v1.Namespace | None:
        try:
            path = namespace_path(name)
        except InvalidArgument:
            return None
        return namespaces.find_any_case(self._context.callers.realm(), self.record, path)


class LakeCatalogs:
    """Finds the catalogs of the caller's account by name. Without a name, the only catalog of the account is used."""

    def __init__(self, context: Context, *, keep: int = 1000) -> None:
        self.context = context
        self._cache = Cache[tuple[str, str], LakeCatalog](keep)

    def find(self, name: str) -> LakeCatalog | None:
        """The catalog with this name, or None. Raise an error if the transaction of the call has ended."""
        self.context.transactions.check()
        catalog = self.context.lookups.get(("catalog", name), lambda: self._read(name))
        if catalog is not None and call_of(current_request()).operation == "list_schemas":
            self.context.failed_creations.attached()
        return catalog

    def _read(self, name: str) -> LakeCatalog | None:
        callers = self.context.callers
        callers.require("catalog.read")
        realm = callers.realm()
        found = catalogs.find(realm, name) if name.strip() else catalogs.only(realm)
        if found is None:
            return self._branch(realm, name)
        if found.value.damage:
            raise damaged_error("catalog", name, found.value.damage)
        # The same object for the same record, because listings are cached with the object.
        return self._cache.get((realm.account_id, found.etag), lambda: LakeCatalog(self.context, found.value))

    def _branch(self, realm: Realm, name: str) -> LakeCatalog | None:
        """The branch of the lake with a name such as `lake@dev`."""
        warehouse = self.context.handles.warehouse if BRANCH_MARK in name else None
        found = None if warehouse is None else branches.on_branch(realm, warehouse, name)
        if found is None or warehouse is None:
            return None
        opened, record = found
        branch = branch_of(opened.stores)
        assert branch is not None, "its stores are those of the branch"

        def make() -> LakeCatalog:
            callers = BranchCallers(
                self.context.callers, branch.id, lambda main: branches.opened_again(main, warehouse, branch.id)
            )
            return LakeCatalog(self.context.on_branch(callers), record)

        state = record.SerializeToString(deterministic=True)
        return self._cache.get((realm.account_id, f"{branch.id} {name} {state.hex()}"), make)

    def other(self, name: str) -> LakeCatalog | None:
        """The catalog, or the branch of one, with this name."""
        realm = self.context.callers.realm()
        found = catalogs.find(realm, name)
        return self._branch(realm, name) if found is None else LakeCatalog(self.context, found.value)

    def all(self) -> list[LakeCatalog]:
        """The catalogs of the account that can be read."""
        realm = self.context.callers.realm()
        return [LakeCatalog(self.context, each) for each in catalogs.scan(realm) if not each.damage]

    def state(self) -> Hashable | None:
        """See `Callers.state`."""
        return self.context.callers.state()

    def names(self) -> Sequence[str]:
        """The names of the account's catalogs."""
        callers = self.context.callers
        callers.require("catalog.read")
        return [catalog.display_name for catalog in catalogs.scan(callers.realm())]
