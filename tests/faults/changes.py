"""The changes that fault tests interrupt: each function creates its prerequisites and returns the call to make."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from metastore.resource_factory import ResourceFactory, key, mask
from skiway.metastore import connectors, statistics
from skiway.model import v1
from skiway.security import MemorySecrets, SecretsStore


@dataclass
class FactoryWithSecrets(ResourceFactory):
    """A resource factory that also holds the secrets of connectors."""

    secrets: SecretsStore = field(default_factory=MemorySecrets)


@dataclass(frozen=True, slots=True)
class Change:
    """A call that changes something, and that may be repeated. It is not `atomic` if it empties a parent step by step."""

    operation: str
    request: Any
    atomic: bool = True


Prepare = Callable[[FactoryWithSecrets], Change]


def create_catalog(factory: ResourceFactory) -> Change:
    spec = v1.CatalogSpec(display_name="new")
    return Change("CatalogService/CreateCatalog", v1.CreateCatalogRequest(spec=spec, idempotency=key("k")))


def rename_catalog(factory: ResourceFactory) -> Change:
    request = v1.UpdateCatalogRequest(
        catalog_id=factory.catalog().resource_id,
        spec=v1.CatalogSpec(display_name="new"),
        update_mask=mask("display_name"),
    )
    return Change("CatalogService/UpdateCatalog", request)


def delete_catalog(factory: ResourceFactory) -> Change:
    request = v1.DeleteCatalogRequest(catalog_id=factory.catalog().resource_id)
    return Change("CatalogService/DeleteCatalog", request)


def delete_full_catalog(factory: ResourceFactory) -> Change:
    full_table(factory)
    factory.view()
    request = v1.DeleteCatalogRequest(catalog_id=factory.first_catalog().resource_id, require_empty=False)
    return Change("CatalogService/DeleteCatalog", request, atomic=False)


def create_namespace_with_its_parents(factory: ResourceFactory) -> Change:
    spec = v1.NamespaceSpec(display_name="z", path=["x", "y"], catalog_id=factory.catalog().resource_id)
    request = v1.CreateNamespaceRequest(spec=spec, idempotency=key("k"))
    return Change("NamespaceService/CreateNamespace", request)


def move_namespace(factory: ResourceFactory) -> Change:
    factory.namespace("b")
    request = v1.UpdateNamespaceRequest(
        namespace_id=factory.namespace("a").resource_id,
        spec=v1.NamespaceSpec(path=["b", "c"]),
        update_mask=mask("path"),
    )
    return Change("NamespaceService/UpdateNamespace", request)


def delete_namespace(factory: ResourceFactory) -> Change:
    request = v1.DeleteNamespaceRequest(namespace_id=factory.namespace("a").resource_id)
    return Change("NamespaceService/DeleteNamespace", request)


def delete_full_namespace(factory: ResourceFactory) -> Change:
    table = full_table(factory)
    request = v1.DeleteNamespaceRequest(namespace_id=table.namespace_id, require_empty=False)
    return Change("NamespaceService/DeleteNamespace", request, atomic=False)


def create_table(factory: ResourceFactory) -> Change:
    namespace = factory.namespace("sales")
    spec = v1.TableSpec(
        display_name="T", schema_json="{}", catalog_id=namespace.catalog_id, namespace_id=namespace.resource_id
    )
    return Change("TableService/CreateTable", v1.CreateTableRequest(spec=spec, idempotency=key("k")))


def move_table(factory: ResourceFactory) -> Change:
    request = v1.UpdateTableRequest(
        table_id=full_table(factory).resource_id,
        spec=v1.TableSpec(display_name="New", namespace_id=factory.namespace("zzz").resource_id, description="moved"),
        update_mask=mask("display_name", "namespace_id", "description"),
    )
    return Change("TableService/UpdateTable", request)


def delete_table(factory: ResourceFactory) -> Change:
    request = v1.DeleteTableRequest(table_id=full_table(factory).resource_id)
    return Change("TableService/DeleteTable", request)


def create_snapshot(factory: ResourceFactory) -> Change:
    spec = v1.SnapshotSpec(table_id=full_table(factory).resource_id, snapshot_id=3)
    spec.upstream_created_at.seconds = 3
    return Change("SnapshotService/CreateSnapshot", v1.CreateSnapshotRequest(spec=spec, idempotency=key("k")))


def roll_back(factory: ResourceFactory) -> Change:
    request = v1.SetCurrentSnapshotRequest(table_id=full_table(factory).resource_id, snapshot_id=1)
    return Change("SnapshotService/SetCurrentSnapshot", request)


def delete_snapshot(factory: ResourceFactory) -> Change:
    request = v1.DeleteSnapshotRequest(table_id=full_table(factory).resource_id, snapshot_id=1)
    return Change("SnapshotService/DeleteSnapshot", request)


def put_table_statistics(factory: ResourceFactory) -> Change:
    request = v1.PutTableStatsRequest(
        table_id=full_table(factory).resource_id,
        snapshot_id=2,
        stats=v1.TableStats(row_count=7),
        idempotency=key("k"),
    )
    return Change("TableStatisticsService/PutTableStats", request)


def put_column_statistics(factory: ResourceFactory) -> Change:
    table = full_table(factory)
    return Change("TableStatisticsService/PutColumnStats", [columns_of(table, number) for number in (2, 3)])


def put_file_statistics(factory: ResourceFactory) -> Change:
    table = full_table(factory)
    return Change("TableStatisticsService/PutFileColumnStats", [files_of(table, path) for path in "bc"])


def create_connector(factory: FactoryWithSecrets) -> Change:
    factory.catalog()
    request = v1.CreateConnectorRequest(spec=connector_spec("new"), idempotency=key("k"))
    return Change("ConnectorService/CreateConnector", request)


def replace_credentials(factory: FactoryWithSecrets) -> Change:
    spec = v1.ConnectorSpec(description="with new ones", auth=connector_spec("another").auth)
    request = v1.UpdateConnectorRequest(
        connector_id=connector(factory).resource_id, spec=spec, update_mask=mask("description", "auth.credentials")
    )
    return Change("ConnectorService/UpdateConnector", request)


def delete_connector(factory: FactoryWithSecrets) -> Change:
    request = v1.DeleteConnectorRequest(connector_id=connector(factory).resource_id)
    return Change("ConnectorService/DeleteConnector", request)


def connector(factory: FactoryWithSecrets) -> v1.Connector:
    """A connector with credentials."""
    factory.catalog()
    request = v1.CreateConnectorRequest(spec=connector_spec("first"))
    return connectors.create(factory.home, request, secrets=factory.secrets).connector


def connector_spec(name: str) -> v1.ConnectorSpec:
    bearer = v1.BearerToken(token=f"the token of {name}")
    return v1.ConnectorSpec(
        display_name=name,
        kind=v1.CK_PARQUET,
        uri="file:///nowhere",
        destination=v1.ConnectorDestination(catalog_display_name="lake"),
        auth=v1.ConnectorAuthSpec(scheme="oauth2", credentials=v1.ConnectorCredentials(bearer=bearer)),
    )


def full_table(factory: ResourceFactory) -> v1.Table:
    """A table with two snapshots, the newer one with all kinds of statistics."""
    table = factory.table()
    for number in (1, 2):
        factory.snapshot(table, number, at=number)
    stats = v1.TableStats(row_count=1)
    statistics.put_table(
        factory.home,
        v1.PutTableStatsRequest(table_id=table.resource_id, snapshot_id=2, stats=stats, idempotency=key("p")),
    )
    statistics.put_columns(factory.home, [columns_of(table, 1)])
    statistics.put_files(factory.home, [files_of(table, "a")])
    return table


def columns_of(table: v1.Table, number: int) -> v1.PutColumnStatsRequest:
    columns = [v1.ColumnStats(column_id=number, column_name=f"c{number}", value_count=1)]
    return v1.PutColumnStatsRequest(
        table_id=table.resource_id, snapshot_id=2, columns=columns, idempotency=key("columns")
    )


def files_of(table: v1.Table, path: str) -> v1.PutFileColumnStatsRequest:
    files = [v1.FileColumnStats(file_path=path, row_count=1)]
    return v1.PutFileColumnStatsRequest(
        table_id=table.resource_id, snapshot_id=2, files=files, idempotency=key("files")
    )


CHANGES: tuple[Prepare, ...] = (
    create_catalog,
    rename_catalog,
    delete_catalog,
    delete_full_catalog,
    create_namespace_with_its_parents,
    move_namespace,
    delete_namespace,
    delete_full_namespace,
    create_table,
    move_table,
    delete_table,
    create_snapshot,
    roll_back,
    delete_snapshot,
    put_table_statistics,
    put_column_statistics,
    put_file_statistics,
    create_connector,
    replace_credentials,
    delete_connector,
)
