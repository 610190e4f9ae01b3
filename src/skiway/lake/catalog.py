"""A catalog of the metastore as DuckDB attaches it."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence

from skiway.airport import Catalog, CatalogVersion, DynamicCatalog, Schema, SharedListing, Transactional, Versioned
from skiway.errors import Conflict, InvalidArgument, NotFound, SchemaNotEmpty
from skiway.lake.changes import check_managed
from skiway.lake.context import Context
from skiway.lake.names import SYSTEM_SCHEMA, namespace_path
from skiway.lake.schema import LakeSchema
from skiway.lake.system.schema import SystemSchema
from skiway.lake.transactions import LakeTransactions
from skiway.metastore import Realm, managed
from skiway.metastore.records import keys
from skiway.metastore.records.kinds import NAMESPACE
from skiway.metastore.records.names import normal_text
from skiway.metastore.resources import namespaces
from skiway.model import v1

__all__ = ["LakeCatalog", "namespaces_of"]


class LakeCatalog(Catalog, Versioned, SharedListing, Transactional, DynamicCatalog):
    """One catalog. It is kept as long as its record is the same; who calls is asked anew with every call."""

    def __init__(self, context: Context, record: v1.Catalog) -> None:
        self.name = record.display_name
        self.record = record
        self._context = context

    @property
    def transactions(self) -> LakeTransactions:
        """Ids that pin snapshots."""
        return self._context.transactions

    def version(self) -> CatalogVersion:
        """Another number whenever something in the account has changed."""
        return CatalogVersion(self._context.versions.of(self._context.callers.realm()))

    def visibility_key(self) -> Hashable:
        """What a caller may see depends on these permissions alone."""
        return self._context.callers.may("table.read")

    def schemas(self) -> Sequence[Schema]:
        """All namespaces that can be shown, and the system's own schema."""
        realm = self._context.callers.realm()
        found = [LakeSchema(self._context, self.record, namespace) for namespace in namespaces_of(realm, self.record)]
        return [*found, SystemSchema(self._context, self.record)]

    def schema(self, name: str) -> Schema | None:
        """The schema of that name."""
        if name == SYSTEM_SCHEMA:
            return SystemSchema(self._context, self.record)
        namespace = self._namespace(name)
        return None if namespace is None else LakeSchema(self._context, self.record, namespace)

    def create_schema(self, name: str, *, comment: str = "", tags: Mapping[str, str] | None = None) -> Schema:
        """A new namespace, and with it those above it that do not exist yet."""
        self._context.callers.require("namespace.write")
        check_managed(self.record)
        if name.casefold() == "main":
            raise InvalidArgument(
                "a schema cannot be called 'main', which DuckDB's client cannot look into: choose another name",
                key="schema.name",
            )
        *above, last = namespace_path(name)
        managed.require_addressable(*above, last)
        spec = v1.NamespaceSpec(
            display_name=last,
            path=above,
            catalog_id=self.record.resource_id,
            description=comment or None,
            properties=tags or {},
        )
        made = namespaces.create(self._context.callers.realm(), v1.CreateNamespaceRequest(spec=spec)).namespace
        self._context.versions.changed(self._context.callers.realm())
        return LakeSchema(self._context, self.record, made)

    def drop_schema(self, name: str, *, if_exists: bool = False) -> None:
        """Remove a namespace that holds nothing."""
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
                f"schema {name!r} is not empty: drop what is in it first", key=error.key, schema=name
            ) from error
        self._context.versions.changed(self._context.callers.realm())

    def _namespace(self, name: str) -> v1.Namespace | None:
        try:
            path = tuple(normal_text(segment) for segment in namespace_path(name))
        except InvalidArgument:
            return None
        realm = self._context.callers.realm()
        key = keys.namespace_path(realm.account_id, self.record.resource_id.id, path)
        return realm.all(NAMESPACE).named(key) if all(path) else None


def namespaces_of(realm: Realm, catalog: v1.Catalog) -> Iterator[v1.Namespace]:
    """The namespaces of a catalog, at all depths, by path."""
    prefix = keys.namespace_path(realm.account_id, catalog.resource_id.id, ()) + "/"
    for pointer in realm.stores.pointers.scan(prefix):
        found = realm.all(NAMESPACE).follow(pointer)
        if found is not None:
            yield found.value
