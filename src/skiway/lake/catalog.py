"""A catalog of the metastore as DuckDB attaches it."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from skiway.airport import Catalog, CatalogVersion, DynamicCatalog, Schema, SharedListing, Transactional, Versioned
from skiway.errors import Conflict, InvalidArgument, NotFound, SchemaNotEmpty
from skiway.lake.commits import check_managed
from skiway.lake.context import Context
from skiway.lake.schema import SYSTEM_SCHEMA, LakeSchema, namespace_path
from skiway.lake.system.schema import SystemSchema
from skiway.lake.transactions import LakeTransactions
from skiway.metastore import managed, namespaces
from skiway.model import v1

__all__ = ["LakeCatalog"]


class LakeCatalog(Catalog, Versioned, SharedListing, Transactional, DynamicCatalog):
    """One catalog. The object is cached while its record is unchanged; permissions are checked with every call."""

    def __init__(self, context: Context, record: v1.Catalog) -> None:
        self.name = record.display_name
        self.record = record
        self._context = context

    @property
    def transactions(self) -> LakeTransactions:
        """Transaction ids, which pin snapshots."""
        return self._context.transactions

    def version(self) -> CatalogVersion:
        """A number that changes whenever the account's catalogs, namespaces, tables or views change."""
        return CatalogVersion(self._context.versions.of(self._context.callers.realm()))

    def visibility_key(self) -> Hashable:
        """The permissions that decide what a caller can see."""
        return self._context.callers.may("table.read")

    def schemas(self) -> Sequence[Schema]:
        """All namespaces of the catalog, and the system schema."""
        realm = self._context.callers.realm()
        found = namespaces.scan(realm, self.record.resource_id.id)
        schemas = [LakeSchema(self._context, self.record, namespace) for namespace in found]
        return [*schemas, SystemSchema(self._context, self.record)]

    def schema(self, name: str) -> Schema | None:
        """The schema with this name, or None."""
        if name == SYSTEM_SCHEMA:
            return SystemSchema(self._context, self.record)
        namespace = self._namespace(name)
        return None if namespace is None else LakeSchema(self._context, self.record, namespace)

    def create_schema(self, name: str, *, comment: str = "", tags: Mapping[str, str] | None = None) -> Schema:
        """Create a namespace, and its missing parents."""
        self._context.callers.require("namespace.write")
        check_managed(self.record)
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
        return LakeSchema(self._context, self.record, made)

    def drop_schema(self, name: str, *, if_exists: bool = False) -> None:
        """Delete an empty namespace."""
        self._context.callers.require("namespace.write")
        check_managed(self.record)
        found = self._namespace(name)
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

    def _namespace(self, name: str) -> v1.Namespace | None:
        try:
            path = namespace_path(name)
        except InvalidArgument:
            return None
        return namespaces.find(self._context.callers.realm(), self.record.resource_id.id, path)
