"""The catalogs of the metastore as DuckDB attaches them, and the Airport service that offers them by name."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from skiway.airport import (
    AirportService,
    Catalog,
    CatalogVersion,
    Commands,
    DynamicCatalog,
    Limits,
    Schema,
    SharedListing,
    Table,
    Transactional,
    Versioned,
    current_request,
)
from skiway.airport.request import call_of
from skiway.airport.server.status import Disclosure
from skiway.airport.server.tickets import TicketOffice
from skiway.cache import Cache
from skiway.config import Settings
from skiway.errors import Conflict, InvalidArgument, NotFound, SchemaNotEmpty
from skiway.lake.commits import check_auto_commit, check_managed
from skiway.lake.context import Callers, Context, Versions
from skiway.lake.leases import TransactionLeases
from skiway.lake.opened_tables import Handles
from skiway.lake.scans import MAX_PARTS, PART_BYTES
from skiway.lake.schema import SYSTEM_SCHEMA, LakeSchema
from skiway.lake.staging import StagedInserts
from skiway.lake.system.functions import QueryFunction, QueryTable
from skiway.lake.system.schema import SystemSchema
from skiway.lake.transactions import LakeTransactions
from skiway.lake.usage import UsageLog
from skiway.metastore import Realm, catalogs, managed, namespaces, platform
from skiway.metastore.records.damage import damaged_error
from skiway.metastore.records.schema_names import namespace_path
from skiway.model import v1
from skiway.requests import Access, Observers
from skiway.sandbox.queries import Queries
from skiway.security import SecretsStore
from skiway.sql import QueryEngine

__all__ = ["LakeCatalog", "LakeCatalogs", "airport_service", "signing_key"]


class LakeCatalog(Catalog, Versioned, Commands, SharedListing, Transactional, DynamicCatalog):
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
        operation = call_of(current_request()).operation
        if operation == "catalog_version":
            self.transactions.bind()
        attaching = operation in ("list_schemas", "list_flights")
        return CatalogVersion(self._context.versions.of(self._context.callers.realm(), fresh=attaching))

    def visibility_key(self) -> Hashable:
        """What decides which objects a caller can see."""
        return self._context.callers.visibility

    def schemas(self) -> Sequence[Schema]:
        """All namespaces of the catalog, and the system schema."""
        realm = self._context.callers.realm()
        found = namespaces.scan(realm, self.record.resource_id.id)
        schemas = [LakeSchema(self._context, self.record, namespace, self._find_table) for namespace in found]
        return [*schemas, SystemSchema(self._context, self.record, self._find_table)]

    def schema(self, name: str) -> Schema | None:
        """The schema with this name, or None."""
        if name.casefold() == SYSTEM_SCHEMA:
            return SystemSchema(self._context, self.record, self._find_table)
        namespace = self._namespace(name)
        return None if namespace is None else LakeSchema(self._context, self.record, namespace, self._find_table)

    def command(self, text: str) -> Table:
        """The rows of a query, which is the text of the command."""
        return QueryTable(QueryFunction(self._context, self.name, self._find_table), text)

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
        return LakeSchema(self._context, self.record, made, self._find_table)

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

    def _find_table(self, catalog: str, schema: str, name: str) -> Table | None:
        """A table of this catalog, or of another one of the account."""
        owner = self
        if catalog.casefold() != self.name.casefold():
            other = catalogs.find(self._context.callers.realm(), catalog)
            if other is None:
                return None
            owner = LakeCatalog(self._context, other.value)
        found = owner.schema(schema)
        if isinstance(found, LakeSchema):
            return found.table(name, bind=False)
        return None if found is None else found.table(name)

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
        """The catalog with this name, or None."""
        callers = self.context.callers
        callers.require("catalog.read")
        realm = callers.realm()
        found = catalogs.find(realm, name) if name.strip() else catalogs.only(realm)
        if found is None:
            return None
        if found.value.damage:
            raise damaged_error("catalog", name, found.value.damage)
        if call_of(current_request()).operation == "list_schemas":
            self.context.failed_creations.attached()
        # The same object for the same record, because listings are cached with the object.
        return self._cache.get((realm.account_id, found.etag), lambda: LakeCatalog(self.context, found.value))

    def state(self) -> Hashable | None:
        """A value that changes when anything in the store does, or the rights of the caller; None if the store cannot tell."""
        callers = self.context.callers
        stored = callers.realm().stored_state()
        return None if stored is None else (stored, callers.rights)

    def names(self) -> Sequence[str]:
        """The names of the account's catalogs."""
        callers = self.context.callers
        callers.require("catalog.read")
        return [catalog.display_name for catalog in catalogs.scan(callers.realm())]


def airport_service(
    access: Access,
    observers: Observers | None = None,
    *,
    handles: Handles,
    key: bytes,
    transaction_ttl: timedelta = timedelta(hours=1),
    part_bytes: int = PART_BYTES,
    max_parts: int = MAX_PARTS,
    limits: Limits | None = None,
    queries: QueryEngine | None = None,
    settings: Settings | None = None,
) -> AirportService:
    """The catalogs of the metastore as a service that can be added to a gRPC server.

    `handles` opens tables and may be shared. `key` signs tickets and transaction ids; all servers of a store need the
    same key (see `signing_key`). Large scans are split into up to `max_parts` parts of about `part_bytes`.
    `queries` runs the SQL of `skiway.query`, and `settings` are shown in `skiway.settings`.
    """
    callers, versions, usage = Callers(access, observers), Versions(), UsageLog()
    context = Context(
        callers,
        handles,
        LakeTransactions(
            key,
            caller=lambda: (callers.authenticated.account_id, callers.authenticated.subject),
            ttl=transaction_ttl,
            staged=StagedInserts(callers, handles.warehouse, versions, usage),
            leases=TransactionLeases(callers.own_realm),
        ),
        queries=queries or QueryEngine(Queries()),
        versions=versions,
        usage=usage,
        part_bytes=part_bytes,
        max_parts=max_parts,
        key=key,
        settings=settings or Settings(),
    )
    return _LakeService(
        LakeCatalogs(context),
        on_close=context.usage.close,
        auth=callers,
        tickets=TicketOffice(key),
        limits=limits,
        observers=[callers.observe],
        lane_of=access.lanes.of,
        disclosure=Disclosure(internal=False),
        log_failures=False,  # the pipeline logs them, with the caller
    )


class _LakeService(AirportService):
    """A service that stores what it knows when it closes."""

    def __init__(self, *arguments: Any, on_close: Callable[[], None], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._on_close = on_close

    def close(self) -> None:
        """End the threads, once no calls run."""
        super().close()
        self._on_close()


def signing_key(realm: Realm, secrets: SecretsStore) -> bytes:
    """The key that signs tickets and transaction ids, shared by all servers of the realm's stores and these secrets."""
    return platform.signing_key(realm.stores, secrets)
