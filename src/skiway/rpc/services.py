"""The table of services: the function behind each method, and the permission to call it.

The descriptors of `proto/skiway/v1` define requests and responses. A test checks that every method is served.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, TypeAlias

from skiway.errors import NotFound
from skiway.foundation import resources
from skiway.foundation.resources import PLAIN
from skiway.metastore import (
    Realm,
    branches,
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
from skiway.metastore.records.errors import failure
from skiway.metastore.records.names import BRANCH_MARK
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
from skiway.rpc.methods import Service, by_object, changes, on_branches, reads, service, service_of
from skiway.security import MemorySecrets, SecretsStore
from skiway.telemetry.context import current_call

CreateTable: TypeAlias = Callable[[Realm, v1.CreateTableRequest], v1.CreateTableResponse]


STATISTICS: Final = service(
    "TableStatisticsService",
    "statistics",
    GetTableStats=reads(statistics.get_table, "catalog.read"),
    ListColumnStats=reads(statistics.list_columns, "catalog.read"),
    ListFileColumnStats=reads(statistics.list_files, "catalog.read"),
    ListStatisticsHistory=reads(statistics.list_history, "catalog.read"),
    ListPartitionStats=reads(statistics.list_partitions, "catalog.read"),
    PutTableStats=changes(statistics.put_table, "table.write"),
    PutColumnStats=changes(statistics.put_columns, "table.write"),
    PutFileColumnStats=changes(statistics.put_files, "table.write"),
)
DIRECTORY: Final = service(
    "DirectoryService",
    "directory",
    ResolveCatalog=reads(directory.resolve_catalog, "catalog.read"),
    ResolveNamespace=reads(directory.resolve_namespace, "catalog.read"),
    ResolveTable=reads(directory.resolve_table, "catalog.read", "table.read"),
    ResolveView=reads(directory.resolve_view, "catalog.read", "view.read"),
    LookupCatalog=reads(directory.lookup_catalog, "catalog.read"),
    LookupNamespace=reads(directory.lookup_namespace, "catalog.read"),
    LookupTable=reads(directory.lookup_table, "catalog.read", "table.read"),
    LookupView=reads(directory.lookup_view, "catalog.read", "view.read"),
    LookupTableByRef=reads(directory.lookup_table_by_ref, "catalog.read", "table.read"),
    ResolveFQTables=reads(directory.resolve_fq_tables, "catalog.read", "table.read"),
    ResolveFQViews=reads(directory.resolve_fq_views, "catalog.read", "view.read"),
)


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
    `search_indexes` are those of all accounts; the caller closes them.
    Add new services of the model here.
    """
    secrets = reconciler.secrets if reconciler is not None else secrets or MemorySecrets()
    access = None if reconciler is None else reconciler.access
    reconciler = reconciler or Reconciler(secrets)
    connector_calls = connectors.calls(secrets, reconciler.access)
    planner, query_rules = planner or Planner(), query_rules or QueryRules()
    staging, maintenance = staging or StagingArea(), maintenance or MaintenanceArea()
    indexes, engines = search_indexes or SearchIndexes(), engines or EngineCatalogs()
    pipeline_area = PipelineArea(reconciler, current_roles, allows_python=allows_python)

    # A server without a warehouse refuses these calls, and serves the others.
    def list_branches(realm: Realm, request: v1.ListBranchesRequest) -> v1.ListBranchesResponse:
        return branches.list_(realm, request, warehouse=staging.files() if request.details else None)

    def get_branch(realm: Realm, request: v1.GetBranchRequest) -> v1.GetBranchResponse:
        return branches.get(realm, request, warehouse=staging.files())

    def diff_branch(realm: Realm, request: v1.DiffBranchRequest) -> v1.DiffBranchResponse:
        return branches.diff(realm, request, warehouse=staging.files())

    def merge_branch(realm: Realm, request: v1.MergeBranchRequest) -> v1.MergeBranchResponse:
        return branches.merge(realm, request, warehouse=staging.files())

    def branch(realm: Realm, name: str) -> Realm:
        opened = branches.on_branch(realm, staging.files(), name)
        if opened is None:
            catalog, _, own = name.rpartition(BRANCH_MARK)
            raise failure(NotFound, "branch.by.name.missing", catalog=catalog, name=own)
        return opened[0]

    return (
        service_of(
            accounts,
            resources.ACCOUNT,
            for_platform=True,
            UpdateAccount=changes(accounts.update, "account.write", "account.delete"),
            DeleteAccount=changes(accounts.delete, "account.write", "account.delete"),
        ),
        *(
            on_branches(each, branch)
            for each in (
                service_of(catalogs, resources.CATALOG),
                service_of(namespaces, resources.NAMESPACE),
                service_of(
                    tables,
                    resources.TABLE,
                    ListTables=reads(statistics.list_tables, "table.read"),
                    CreateTable=changes(create_table, "table.write"),
                ),
                service_of(views, resources.VIEW),
                service_of(
                    snapshots, resources.SNAPSHOT, SetCurrentSnapshot=changes(snapshots.set_current, "table.write")
                ),
                STATISTICS,
                DIRECTORY,
            )
        ),
        service(
            "GrantService",
            "grant",
            ListGrants=reads(grants.list_, "grant.manage"),
            AddGrant=changes(grants.add, "grant.manage"),
            RevokeGrant=changes(grants.revoke, "grant.manage"),
        ),
        service_of(
            policies.calls(policy_expressions or SandboxedExpressions()),
            resources.POLICY,
            ListColumnTags=reads(policies.list_tags, "policy.manage"),
            GetColumnTags=reads(policies.get_tags, "policy.manage"),
            SetColumnTags=changes(policies.set_tags, "policy.manage"),
        ),
        service_of(
            connector_calls,
            resources.CONNECTOR,
            ListConnectors=reads(connectors.list_, "connector.manage"),
            CreateConnector=changes(connector_calls.create, "connector.manage", "connector.create"),
            ValidateConnector=reads(partial(validate, secrets=secrets, opener=reconciler.opener), "connector.manage"),
            SyncCapture=changes(partial(capture, reconciler=reconciler), "connector.manage"),
            TriggerReconcile=changes(connectors.trigger, "connector.manage"),
            GetReconcileJob=reads(jobs.get, "connector.manage"),
            GetReconcileJobLog=reads(jobs.get_log, "connector.manage"),
            ListReconcileJobs=reads(jobs.list_, "connector.manage"),
            CancelReconcileJob=changes(jobs.cancel, "connector.manage"),
        ),
        service(
            "QueryService",
            "query",
            BeginQuery=changes(partial(queries.begin, rules=query_rules), "catalog.read"),
            RenewQuery=changes(partial(queries.renew, rules=query_rules), "catalog.read"),
            EndQuery=changes(partial(queries.end, rules=query_rules), "catalog.read"),
            GetQuery=reads(partial(queries.get, rules=query_rules), "catalog.read"),
            ListQueries=reads(queries.list_, "catalog.read"),
            FetchScanBundle=changes(partial(scans.fetch, planner=planner, rules=query_rules), "catalog.read"),
        ),
        service(
            "TransactionService",
            "table",
            BeginTransaction=changes(partial(transactions.begin, area=staging), "table.write"),
            AppendRows=changes(partial(transactions.append, area=staging), "table.write"),
            CommitTransaction=changes(partial(transactions.commit, area=staging), "table.write"),
            AbortTransaction=changes(partial(transactions.abort, area=staging), "table.write"),
            GetTransaction=reads(transactions.get, "table.write"),
            ListTransactions=reads(transactions.list_, "table.write"),
        ),
        service(
            "MaintenanceService",
            "table",
            GetTableHealth=reads(partial(table_maintenance.health, area=maintenance), "table.read"),
            PlanMaintenance=reads(partial(table_maintenance.plan, area=maintenance), "table.write"),
            StartMaintenance=changes(partial(table_maintenance.start, area=maintenance), "table.write"),
            GetMaintenance=reads(table_maintenance.get, "table.read"),
        ),
        service_of(
            quality.CALLS,
            resources.RULE,
            category="table",
            ListRules=reads(quality.list_, "table.read"),
            CheckRules=changes(quality.check, "table.write"),
            GetCheck=reads(quality.get_check, "table.read"),
            ListRuleResults=reads(quality.list_results, "table.read"),
        ),
        service_of(
            webhooks.calls(secrets, access),
            resources.WEBHOOK,
            ListDeadLetters=reads(webhooks.list_dead_letters, "webhook.manage"),
            RedeliverEvents=changes(webhooks.redeliver, "webhook.manage"),
        ),
        service_of(
            pipelines.CALLS,
            resources.PIPELINE,
            PlanPipeline=reads(partial(pipelines.plan, area=pipeline_area), "connector.manage"),
            StartPipeline=changes(pipelines.start, "connector.manage"),
        ),
        *(service_of(plain_calls(resource), resource) for resource in PLAIN),
        service(
            "BranchService",
            "catalog",
            ListBranches=reads(list_branches, "catalog.read", by_object=True),
            GetBranch=reads(get_branch, "catalog.read", by_object=True),
            CreateBranch=by_object(changes(branches.create, "namespace.write")),
            DeleteBranch=by_object(changes(branches.delete, "namespace.write")),
            DiffBranch=reads(diff_branch, "catalog.read", by_object=True),
            MergeBranch=by_object(changes(merge_branch, "namespace.write")),
        ),
        service(
            "EventService",
            "catalog",
            ListEvents=reads(events.list_, "catalog.read", by_object=True),
            WatchEvents=reads(events.watch, "catalog.read", by_object=True),
        ),
        service(
            "SearchService",
            "catalog",
            Search=reads(partial(search.search, indexes=indexes), "catalog.read", by_object=True),
            ListObjects=reads(partial(search.list_objects, indexes=indexes), "catalog.read", by_object=True),
            GetSummary=reads(partial(search.get_summary, indexes=indexes), "catalog.read", by_object=True),
        ),
        service(
            "SystemObjectsService",
            "system",
            GetSystemObjects=reads(partial(_system_objects, engines), "system-objects.read"),
        ),
    )


def _system_objects(
    engines: EngineCatalogs,
    realm: Realm,  # noqa: ARG001
    request: v1.GetSystemObjectsRequest,  # noqa: ARG001
) -> v1.GetSystemObjectsResponse:
    """The objects of a query engine. Engines tell their kind and version in headers; the request's fields are not read."""
    call = current_call()
    assert call is not None
    return objects.get(engines, call.engine_kind, call.engine_version)
