"""The catalogs of the metastore as DuckDB attaches them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from skiway.airport import (
    Catalog,
    CatalogVersion,
    Commands,
    DynamicCatalog,
    Schema,
    SharedListing,
    Table,
    Transactional,
    Versioned,
    current_request,
)
from skiway.airport.request import call_of
from skiway.errors import Conflict, InvalidArgument, NotFound, SchemaNotEmpty
from skiway.foundation.cache import Cache
from skiway.foundation.resources import namespace_path
from skiway.lake.context import Context
from skiway.lake.schema import SYSTEM_SCHEMA, LakeSchema
from skiway.lake.system.functions import QueryFunction, QueryTable
from skiway.lake.system.schema import SystemSchema
from skiway.lake.transactions import LakeTransactions
from skiway.lake.writing.commits import check_auto_commit, check_managed
from skiway.metastore import Realm, catalogs, managed, namespaces
from skiway.metastore.records.damage import damaged_error
from skiway.metastore.resources.hierarchy import relation_count
from skiway.model import v1


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
        schemas = [LakeSchema(self._context, self.record, each, self.find_table, lazy=lazy) for each in found]
        return [*schemas, self._system]

    def _is_large(self, realm: Realm) -> bool:
        """Whether the account has so many tables and views that listing all of them takes too long for ATTACH.

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
        return None if namespace is None else LakeSchema(self._context, self.record, namespace, self.find_table)

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
        return LakeSchema(self._context, self.record, made, self.find_table)

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
        owner = self
        if catalog.casefold() != self.name.casefold():
            other = catalogs.find(self._context.callers.realm(), catalog)
            if other is None:
                return None
            owner = LakeCatalog(self._context, other.value)
        found, bound = owner.schema(schema), self._context.callers.bound

        def admits(record: v1.Table | v1.View | v1.Catalog) -> bool:
            return bound is None or bound.admits((catalog, schema, name), record)

        if isinstance(found, LakeSchema):
            return found.table(name, bind=False, admits=admits)
        return found.table(name) if isinstance(found, SystemSchema) and admits(owner.record) else None

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
        found = self.context.lookups.get(("catalog", name), lambda: self._read(name))
        if found is not None and call_of(current_request()).operation == "list_schemas":
            self.context.failed_creations.attached()
        return found

    def _read(self, name: str) -> LakeCatalog | None:
        callers = self.context.callers
        callers.require("catalog.read")
        realm = callers.realm()
        found = catalogs.find(realm, name) if name.strip() else catalogs.only(realm)
        if found is None:
            return None
        if found.value.damage:
            raise damaged_error("catalog", name, found.value.damage)
        # The same object for the same record, because listings are cached with the object.
        return self._cache.get((realm.account_id, found.etag), lambda: LakeCatalog(self.context, found.value))

    def state(self) -> Hashable | None:
        """See `Callers.state`."""
        return self.context.callers.state()

    def names(self) -> Sequence[str]:
        """The names of the account's catalogs."""
        callers = self.context.callers
        callers.require("catalog.read")
        return [catalog.display_name for catalog in catalogs.scan(callers.realm())]
