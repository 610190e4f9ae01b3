"""The table of services: the function behind each method, and the permission to call it.

The descriptors of `proto/skiway/v1` define requests and responses. A test checks that every method is served.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from skiway.foundation.resources import PLAIN
from skiway.metastore import (
    Realm,
    connectors,
    events,
    jobs,
    quality,
    queries,
    search,
    statistics,
    table_maintenance,
    transactions,
    webhooks,
)
from skiway.metastore.pipelines import api as pipelines
from skiway.metastore.pipelines.inputs import CurrentRoles, PipelineArea
from skiway.metastore.planning import scans
from skiway.metastore.planning.planner import Planner
from skiway.metastore.queries.leases import QueryRules
from skiway.metastore.reconcile.reconciler import Reconciler, capture
from skiway.metastore.reconcile.upstream import validate
from skiway.metastore.resources import (
    accounts,
    catalogs,
    directory,
    grants,
    namespaces,
    policies,
    snapshots,
    tables,
    views,
)
from skiway.metastore.resources.named import plain_calls
from skiway.metastore.resources.policies import SandboxedExpressions
from skiway.metastore.search import SearchIndexes
from skiway.metastore.system import objects
from skiway.metastore.system.objects import EngineCatalogs
from skiway.metastore.table_maintenance import MaintenanceArea
from skiway.metastore.transactions import StagingArea
from skiway.model import v1
from skiway.rpc.methods import Service, basic_rules, changes, reads, service, service_of
from skiway.security import MemorySecrets, SecretsStore
from skiway.telemetry.context import current_call

CreateTable: TypeAlias = Callable[[Realm, v1.CreateTableRequest], v1.CreateTableResponse]


def all_services(
    engines: EngineCatalogs | None = None,
    *,
    secrets: SecretsStore | None = None,
    query_rules: QueryRules | None = None,
    reconciler: Reconciler | None = None,
    planner: Planner | None = None,
    create_table: CreateTable = tables.create,
    policy_expressions: policies.Compile | None = None,
    staging: StagingArea | None = None,
    maintenance: MaintenanceArea | None = None,
    current_roles: CurrentRoles | None = None,
    allows_python: bool = False,
    search_indexes: SearchIndexes | None = None,
) -> tuple[Service, ...]:
    """All services.

    `engines` are the system objects of query engines, by default those that come with Skiway. `secrets` stores the
    credentials of connectors, by default in memory. `query_rules` limit queries. `reconciler` mirrors and profiles
    tables on request, by default without profiles. `planner` plans scans. `create_table` creates tables, by default only
    their records. `policy_expressions` checks the expressions of policies. `staging` is where transactions write rows,
    `maintenance` where tables are maintained. `current_roles` are those of the owners of pipelines, if known.
    `allows_python` says whether pipelines may have Python functions.
    `search_indexes` are those of all accounts; whoever gives them closes them.
    Add new services of the model here.
    """
    secrets_of_webhooks = reconciler.secrets if reconciler is not None else secrets or MemorySecrets()
    reconciles = reconciler or Reconciler(MemorySecrets() if secrets is None else secrets)
    area = PipelineArea(reconciles, current_roles, allows_python=allows_python)
    return (
        ACCOUNTS,
        CATALOGS,
        NAMESPACES,
        tables_of(create_table),
        VIEWS,
        SNAPSHOTS,
        STATISTICS,
        DIRECTORY,
        GRANTS,
        service_of(
            policies.calls(policy_expressions or SandboxedExpressions()),
            ListColumnTags=reads(policies.list_tags, "policy.manage"),
            GetColumnTags=reads(policies.get_tags, "policy.manage"),
            SetColumnTags=changes(policies.set_tags, "policy.manage"),
        ),
        connectors_of(reconciles),
        queries_of(query_rules or QueryRules(), planner or Planner()),
        transactions_of(staging or StagingArea()),
        maintenance_of(maintenance or MaintenanceArea()),
        QUALITY,
        service_of(
            webhooks.calls(secrets_of_webhooks, None if reconciler is None else reconciler.access),
            ListDeadLetters=reads(webhooks.list_dead_letters, "webhook.manage"),
            RedeliverEvents=changes(webhooks.redeliver, "webhook.manage"),
        ),
        service_of(
            pipelines.CALLS,
            PlanPipeline=reads(partial(pipelines.plan, area=area), "connector.manage"),
            StartPipeline=changes(pipelines.start, "connector.manage"),
        ),
        EVENTS,
        *(service_of(plain_calls(resource)) for resource in PLAIN),
        search_of(search_indexes or SearchIndexes()),
        system_objects_of(engines or EngineCatalogs()),
    )


def tables_of(create: CreateTable) -> Service:
    """The service for tables."""
    rules = {
        **basic_rules(tables, "Table", "table.read", "table.write"),
        "ListTables": reads(statistics.list_tables, "table.read"),
        "CreateTable": changes(create, "table.write"),
    }
    return service("TableService", "table", rules)


def search_of(indexes: SearchIndexes) -> Service:
    """The service for search."""
    return service(
        "SearchService",
        "catalog",
        {
            "Search": reads(partial(search.search, indexes=indexes), "catalog.read", by_object=True),
            "ListObjects": reads(partial(search.list_objects, indexes=indexes), "catalog.read", by_object=True),
            "GetSummary": reads(partial(search.get_summary, indexes=indexes), "catalog.read", by_object=True),
        },
    )


def connectors_of(reconciler: Reconciler) -> Service:
    """The service for connectors and their jobs."""
    calls = connectors.calls(reconciler.secrets, reconciler.access)
    return service(
        "ConnectorService",
        "connector",
        {
            "ListConnectors": reads(connectors.list_, "connector.manage"),
            "GetConnector": reads(calls.get, "connector.manage"),
            "CreateConnector": changes(calls.create, "connector.manage", "connector.create"),
            "UpdateConnector": changes(calls.update, "connector.manage"),
            "DeleteConnector": changes(calls.delete, "connector.manage"),
            "ValidateConnector": reads(
                partial(validate, secrets=reconciler.secrets, opener=reconciler.opener), "connector.manage"
            ),
            "SyncCapture": changes(partial(capture, reconciler=reconciler), "connector.manage"),
            "TriggerReconcile": changes(connectors.trigger, "connector.manage"),
            "GetReconcileJob": reads(jobs.get, "connector.manage"),
            "GetReconcileJobLog": reads(jobs.get_log, "connector.manage"),
            "ListReconcileJobs": reads(jobs.list_, "connector.manage"),
            "CancelReconcileJob": changes(jobs.cancel, "connector.manage"),
        },
    )


def queries_of(rules: QueryRules, planner: Planner) -> Service:
    """The service for queries, and for what they have to read."""
    return service(
        "QueryService",
        "query",
        {
            "BeginQuery": changes(partial(queries.begin, rules=rules), "catalog.read"),
            "RenewQuery": changes(partial(queries.renew, rules=rules), "catalog.read"),
            "EndQuery": changes(partial(queries.end, rules=rules), "catalog.read"),
            "GetQuery": reads(partial(queries.get, rules=rules), "catalog.read"),
            "ListQueries": reads(queries.list_, "catalog.read"),
            "FetchScanBundle": changes(partial(scans.fetch, planner=planner, rules=rules), "catalog.read"),
        },
    )


def transactions_of(area: StagingArea) -> Service:
    """The service for transactions."""
    return service(
        "TransactionService",
        "table",
        {
            "BeginTransaction": changes(partial(transactions.begin, area=area), "table.write"),
            "AppendRows": changes(partial(transactions.append, area=area), "table.write"),
            "CommitTransaction": changes(partial(transactions.commit, area=area), "table.write"),
            "AbortTransaction": changes(partial(transactions.abort, area=area), "table.write"),
            "GetTransaction": reads(transactions.get, "table.write"),
            "ListTransactions": reads(transactions.list_, "table.write"),
        },
    )


def maintenance_of(area: MaintenanceArea) -> Service:
    """The service for the maintenance of tables."""
    return service(
        "MaintenanceService",
        "table",
        {
            "GetTableHealth": reads(partial(table_maintenance.health, area=area), "table.read"),
            "PlanMaintenance": reads(partial(table_maintenance.plan, area=area), "table.write"),
            "StartMaintenance": changes(partial(table_maintenance.start, area=area), "table.write"),
            "GetMaintenance": reads(table_maintenance.get, "table.read"),
        },
    )


def system_objects_of(engines: EngineCatalogs) -> Service:
    """The service for query engines. They tell their kind and version in headers; the request's fields are not read."""

    def get(_: Realm, request: v1.GetSystemObjectsRequest) -> v1.GetSystemObjectsResponse:  # noqa: ARG001
        call = current_call()
        assert call is not None
        return objects.get(engines, call.engine_kind, call.engine_version)

    return service(
        "SystemObjectsService",
        "system",
        {"GetSystemObjects": reads(get, "system-objects.read")},
    )


ACCOUNTS = service(
    "AccountService",
    "account",
    {
        **basic_rules(accounts, "Account", "account.read", "account.write", "account.delete"),
        "CreateAccount": changes(accounts.create, "account.write"),
    },
    for_platform=True,
)
CATALOGS = service("CatalogService", "catalog", basic_rules(catalogs, "Catalog", "catalog.read", "catalog.write"))
NAMESPACES = service(
    "NamespaceService", "namespace", basic_rules(namespaces, "Namespace", "namespace.read", "namespace.write")
)
VIEWS = service("ViewService", "view", basic_rules(views, "View", "view.read", "view.write"))
SNAPSHOTS = service(
    "SnapshotService",
    "snapshot",
    {
        **basic_rules(snapshots, "Snapshot", "table.read", "table.write"),
        "SetCurrentSnapshot": changes(snapshots.set_current, "table.write"),
    },
)
STATISTICS = service(
    "TableStatisticsService",
    "statistics",
    {
        "GetTableStats": reads(statistics.get_table, "catalog.read"),
        "ListColumnStats": reads(statistics.list_columns, "catalog.read"),
        "ListFileColumnStats": reads(statistics.list_files, "catalog.read"),
        "ListStatisticsHistory": reads(statistics.list_history, "catalog.read"),
        "ListPartitionStats": reads(statistics.list_partitions, "catalog.read"),
        "PutTableStats": changes(statistics.put_table, "table.write"),
        "PutColumnStats": changes(statistics.put_columns, "table.write"),
        "PutFileColumnStats": changes(statistics.put_files, "table.write"),
    },
)
DIRECTORY = service(
    "DirectoryService",
    "directory",
    {
        "ResolveCatalog": reads(directory.resolve_catalog, "catalog.read"),
        "ResolveNamespace": reads(directory.resolve_namespace, "catalog.read"),
        "ResolveTable": reads(directory.resolve_table, "catalog.read", "table.read"),
        "ResolveView": reads(directory.resolve_view, "catalog.read", "view.read"),
        "LookupCatalog": reads(directory.lookup_catalog, "catalog.read"),
        "LookupNamespace": reads(directory.lookup_namespace, "catalog.read"),
        "LookupTable": reads(directory.lookup_table, "catalog.read", "table.read"),
        "LookupView": reads(directory.lookup_view, "catalog.read", "view.read"),
        "LookupTableByRef": reads(directory.lookup_table_by_ref, "catalog.read", "table.read"),
        "ResolveFQTables": reads(directory.resolve_fq_tables, "catalog.read", "table.read"),
        "ResolveFQViews": reads(directory.resolve_fq_views, "catalog.read", "view.read"),
    },
)
GRANTS = service(
    "GrantService",
    "grant",
    {
        "ListGrants": reads(grants.list_, "grant.manage"),
        "AddGrant": changes(grants.add, "grant.manage"),
        "RevokeGrant": changes(grants.revoke, "grant.manage"),
    },
)
QUALITY = service_of(
    quality.CALLS,
    category="table",
    ListRules=reads(quality.list_, "table.read"),
    CheckRules=changes(quality.check, "table.write"),
    GetCheck=reads(quality.get_check, "table.read"),
    ListRuleResults=reads(quality.list_results, "table.read"),
)
EVENTS = service(
    "EventService",
    "catalog",
    {
        "ListEvents": reads(events.list_, "catalog.read", by_object=True),
        "WatchEvents": reads(events.watch, "catalog.read", by_object=True),
    },
)
