"""A lake served on a socket: stores in memory, files in a folder, mirrored tables of other writers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa
from pyiceberg.catalog.rest import RestCatalog

from formats.foreign_tables import iceberg_options, iceberg_uri
from rest.rest_server import listening
from skiway.airport import AirportService
from skiway.client import AirportClient
from skiway.formats import Snapshot, TableHandle, open_source
from skiway.formats.iceberg.warehouse import Warehouse
from skiway.lake import Handles, Sources, airport_service
from skiway.metastore import PLATFORM, Realm, connectors, managed
from skiway.metastore.platform import signing_key
from skiway.metastore.records.kinds import FILE_STATS
from skiway.metastore.records.realm import timestamp
from skiway.metastore.resources import accounts, catalogs, namespaces, snapshots, tables
from skiway.metastore.statistics import file_table
from skiway.metastore.statistics.file_table import DIGEST, stored_files
from skiway.model import v1
from skiway.request_path import Access
from skiway.rest import RestApp
from skiway.security import Authenticator, Authorizer, MemorySecrets, PermissionAuthorizer, Principal, Roles
from skiway.storage import Stores, open_stores
from skiway.storage.blobs.cache import with_blob_cache

KINDS = {"iceberg": v1.CK_ICEBERG, "delta": v1.CK_DELTA, "parquet": v1.CK_PARQUET}
FORMATS = {"iceberg": v1.TF_ICEBERG, "delta": v1.TF_DELTA, "parquet": v1.TF_PARQUET}


class ByToken:
    """The token names the caller, in account `a1`: `reader`, `writer`, or `nothing` and `stranger`, who may only list catalogs.
    `platform` has no account.

    `analyst` reads, and `editor` writes; both are in the group `emea`, and their tokens have the claim `region`.
    """

    def authenticate(self, headers: Mapping[str, str]) -> Principal:
        token = headers.get("authorization", "Bearer writer").removeprefix("Bearer ")
        roles = {"reader": "default", "writer": "developer", "analyst": "default", "editor": "developer"}
        if token == "platform":
            return Principal(token, "", frozenset({"platform-admin"}), Roles().permissions(["platform-admin"]))
        if token in ("nothing", "stranger"):
            return Principal(token, "a1", frozenset({"system-objects"}), frozenset({"catalog.read"}))
        more: dict[str, Any] = {}
        if token in ("analyst", "editor"):
            more = {"groups": frozenset({"emea"}), "claims": {"region": "EU", "teams": ["x", "it's"]}}
        return Principal(token, "a1", frozenset({roles[token]}), Roles().permissions([roles[token]]), **more)


@dataclass
class Lake:
    """The lake of account `a1`; `managed` is its managed catalog."""

    folder: Path
    stores: Stores
    secrets: MemorySecrets = field(default_factory=MemorySecrets)
    location: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    authenticator: Authenticator = field(default_factory=ByToken)
    authorizer: Authorizer = field(default_factory=PermissionAuthorizer)

    def __post_init__(self) -> None:
        platform = Realm(self.stores, PLATFORM)
        request = v1.CreateAccountRequest(
            spec=v1.AccountSpec(display_name="account a1"), account_id=v1.ResourceId(id="a1")
        )
        accounts.create(platform, request)
        self.catalog("managed")

    @property
    def realm(self) -> Realm:
        return Realm(self.stores, "a1")

    @property
    def warehouse(self) -> Warehouse:
        return Warehouse.at(str(self.folder / "warehouse"))

    def catalog(self, name: str, **more: Any) -> v1.Catalog:
        spec = v1.CatalogSpec(display_name=name, **more)
        return catalogs.create(self.realm, v1.CreateCatalogRequest(spec=spec)).catalog

    def namespace(
        self, catalog: v1.Catalog, path: Sequence[str], properties: Mapping[str, str] | None = None
    ) -> v1.Namespace:
        *above, name = path
        spec = v1.NamespaceSpec(
            display_name=name, path=above, catalog_id=catalog.resource_id, properties=properties or {}
        )
        return namespaces.create(self.realm, v1.CreateNamespaceRequest(spec=spec)).namespace

    def managed_table(self, schema: pa.Schema, *, partition_by: Sequence[str] = (), **properties: str) -> v1.ResourceId:
        """A new table `t` in the only namespace of the catalog `managed`."""
        catalog = next(each for each in catalogs.scan(self.realm) if each.display_name == "managed")
        (namespace,) = namespaces.scan(self.realm, catalog.resource_id.id)
        made = managed.create(
            self.realm,
            self.warehouse,
            namespace_id=namespace.resource_id,
            name="t",
            schema=schema,
            partition_by=partition_by,
            properties=properties,
        )
        return made.table.resource_id

    def connector(self, catalog: v1.Catalog, kind: str, uri: str, options: Mapping[str, str]) -> v1.Connector:
        spec = v1.ConnectorSpec(
            display_name=f"{kind} files for {catalog.display_name}",
            kind=KINDS[kind],
            uri=uri,
            properties=options,
            source=v1.ConnectorSource(namespace=v1.NamespacePath(segments=["sales"])),
            destination=v1.ConnectorDestination(catalog_id=catalog.resource_id),
        )
        return connectors.create(self.realm, v1.CreateConnectorRequest(spec=spec), secrets=self.secrets).connector

    def mirror(self, kind: str, uri: str, *, catalog: str = "", options: Mapping[str, str] | None = None) -> v1.Catalog:
        """Create a catalog that shows all tables of a source with all their snapshots."""
        made = self.catalog(catalog or kind, connector_ref=f"{kind} files")
        connector = self.connector(made, kind, uri, options or {})
        with open_source(kind, uri, options=options) as source:
            for path in source.namespaces():
                namespace = self.namespace(made, path or ("root",))
                for name in source.tables(path):
                    self.mirror_table(namespace, connector, source.load(path, name))
        return made

    def mirror_table(self, namespace: v1.Namespace, connector: v1.Connector, handle: TableHandle) -> v1.Table:
        spec = v1.TableSpec(
            display_name=handle.name.name,
            catalog_id=namespace.catalog_id,
            namespace_id=namespace.resource_id,
            schema_json=handle.schema.json,
            upstream=v1.UpstreamRef(
                connector_id=connector.resource_id,
                uri=connector.uri,
                namespace_path=handle.name.namespace,
                table_display_name=handle.name.name,
                format=FORMATS[handle.format],
            ),
        )
        table = tables.create(self.realm, v1.CreateTableRequest(spec=spec)).table
        self.sync_snapshots(table, handle)
        return table

    def _put_files(self, table: v1.Table, handle: TableHandle, snapshot: Snapshot) -> None:
        files = stored_files(handle, snapshot, handle.files(snapshot))
        statistics = v1.FileStatsSet(
            table_id=table.resource_id, snapshot_id=snapshot.id, arrow_file=file_table.written(files)
        )
        self.realm.all(FILE_STATS).create(statistics)

    def sync_snapshots(self, table: v1.Table, handle: TableHandle, known: Sequence[Snapshot] = ()) -> list[Snapshot]:
        """Record all unknown snapshots and the current one in the metastore; return all snapshots."""
        new = handle.snapshots(known)
        for snapshot in new:
            schema = handle.schema_at(snapshot)
            spec = v1.SnapshotSpec(
                table_id=table.resource_id,
                snapshot_id=snapshot.id,
                parent_snapshot_id=snapshot.parent_id,
                upstream_created_at=timestamp(snapshot.created_at),
                schema_json=schema.json,
                sequence_number=snapshot.sequence_number,
                summary=dict(snapshot.summary),
                format_metadata={DIGEST: snapshot.digest.encode()} if snapshot.digest else {},
            )
            snapshots.create(self.realm, v1.CreateSnapshotRequest(spec=spec))
            self._put_files(table, handle, snapshot)
        now = handle.current(known)
        if now is not None:
            request = v1.SetCurrentSnapshotRequest(table_id=table.resource_id, snapshot_id=now.id)
            snapshots.set_current(self.realm, request)
        return [*known, *new]

    def service(self) -> AirportService:
        return airport_service(
            Access(lambda principal: Realm(self.stores, principal.account_id), self.authenticator, self.authorizer),
            handles=Handles(Sources(self.secrets), self.warehouse),
            key=signing_key(self.realm.stores, self.secrets),
            **self.options,
        )

    @contextmanager
    def served(self) -> Iterator[str]:
        """Start another server of the same lake and yield its location."""
        service = self.service()
        server = grpc.server(ThreadPoolExecutor(4))
        service.add_to(server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield f"grpc://127.0.0.1:{port}"
        finally:
            server.stop(0).wait()
            service.close()

    @contextmanager
    def rest_served(self, authenticator: Authenticator | None = None) -> Iterator[str]:
        """Serve the lake over the Iceberg REST protocol and yield the address."""
        callers = authenticator or ByToken()
        handles = Handles(Sources(self.secrets), self.warehouse)
        app = RestApp(
            Access(lambda principal: Realm(self.stores, principal.account_id), callers, PermissionAuthorizer()),
            warehouse=self.warehouse,
            mirrors=lambda realm, table: handles.open(realm, table, relist=True),
        )
        try:
            with listening(app) as uri:
                yield uri
        finally:
            app.close()

    @contextmanager
    def rest(self, catalog: str = "managed") -> Iterator[RestCatalog]:
        """PyIceberg's catalog of the tables in a catalog."""
        with self.rest_served() as uri:
            yield RestCatalog("lake", uri=uri, warehouse=catalog, token="writer")

    def client(self, catalog: str = "managed", *, token: str | None = None, engine: str = "") -> AirportClient:
        return AirportClient(self.location, catalog, token=token, engine=engine)


def call_function(db: AirportClient, function: str, *arguments: Any, **named: Any) -> dict[str, Any]:
    """Call a function of the schema `skiway`, and return its only row."""
    (row,) = db.call(f"skiway.{function}", *arguments, named=named).read_all().to_pylist()
    return dict(row)


@contextmanager
def opened_lake(folder: Path, **options: Any) -> Iterator[Lake]:
    """Serve a new lake for the duration of the block."""
    with open_stores("memory://") as stores:
        lake = Lake(folder, with_blob_cache(stores), options=options)
        with lake.served() as location:
            lake.location = location
            yield lake


@contextmanager
def mirrored_lake(foreign_tables: Path, folder: Path) -> Iterator[Lake]:
    """Serve a lake in `folder` whose catalogs `iceberg`, `delta` and `parquet` mirror the tables in `foreign_tables`."""
    with opened_lake(folder) as lake:
        lake.mirror("iceberg", iceberg_uri(foreign_tables), options=iceberg_options(foreign_tables))
        lake.mirror("delta", str(foreign_tables / "delta"), options={"delta.source": "filesystem"})
        lake.mirror("parquet", str(foreign_tables / "parquet"))
        yield lake
