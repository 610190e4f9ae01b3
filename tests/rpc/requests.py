"""For every method a request that succeeds on a small lake, and the ids that requests contain."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message

from metastore.resource_factory import ResourceFactory, mask
from skiway.formats.iceberg.warehouse import Warehouse
from skiway.metastore import branches, connectors, jobs, managed, policies, quality, queries, webhooks
from skiway.metastore.pipelines import api as pipelines
from skiway.metastore.pipelines.inputs import owner_realm
from skiway.metastore.resources import namespaces
from skiway.metastore.transactions import staged_writes
from skiway.metastore.webhooks import WebhookPlace
from skiway.model import v1
from skiway.security import MemorySecrets

COLUMNS = '{"type": "struct", "fields": [{"id": 1, "name": "name", "type": "string", "required": false}]}'
URL = "https://127.0.0.1/hook"
SIGNING = "a secret of many bytes"
ROWS = v1.RuleCheck(row_count=v1.RowCountCheck(min=1))
FILES = {
    "pipeline.yml": "name: derived\ncatalog: lake\nnamespace: sales\n",
    "copy.sql": "SELECT * FROM people",
}
CLEAN = v1.MaintenanceTask(clean=v1.CleanTask())
SQL = [v1.ViewSql(sql="SELECT 2", dialect="duckdb")]


@dataclass(frozen=True)
class Lake:
    """One resource of each kind, in account `a1`; the table has the snapshots 1 and 2, and statistics of snapshot 2.

    A query reads the table, and a job is queued to mirror others. One caller has begun a transaction.
    """

    catalog: v1.Catalog
    namespace: v1.Namespace
    table: v1.Table
    view: v1.View
    connector: v1.Connector
    job_id: str
    query_id: str
    policy: v1.Policy
    managed: v1.Table
    maintenance_id: str
    rule: v1.QualityRule
    check_id: str
    webhook: v1.Webhook
    pipeline: v1.Pipeline
    transaction_id: str = "unit-1"

    @property
    def table_ref(self) -> v1.NameRef:
        return v1.NameRef(catalog="lake", path=["sales"], name="people")

    @property
    def view_ref(self) -> v1.NameRef:
        return v1.NameRef(catalog="lake", path=["sales"], name="adults")


def lake(factory: ResourceFactory, *, transaction_of: str | None = "everybody") -> Lake:
    catalog, namespace, table, view = (
        factory.catalog(),
        factory.namespace("sales"),
        factory.table(schema_json=COLUMNS),
        factory.view(),
    )
    factory.snapshot(table, 1, at=1)
    factory.snapshot(table, 2, at=2)
    request = v1.CreateConnectorRequest(spec=connector_spec(display_name="files"))
    connector = connectors.create(factory.home, request, secrets=MemorySecrets()).connector
    job = connectors.trigger(factory.home, v1.TriggerReconcileRequest(connector_id=connector.resource_id))
    begun = queries.begin(
        factory.home,
        v1.BeginQueryRequest(
            default_catalog_id=catalog.resource_id, inputs=[v1.QueryInput(table_id=table.resource_id)]
        ),
    )
    owned = managed.create(
        factory.home,
        warehouse(),
        namespace_id=namespace.resource_id,
        name="written",
        schema=pa.schema({"x": pa.int64()}),
    )
    wanted = v1.CreatePolicyRequest(spec=policy_spec(display_name="secrets", subjects=["user:nobody"]))
    policy = policies.calls(lambda *_: []).create(factory.home, wanted).policy
    maintenance = jobs.enqueue(factory.home, v1.Job(table_id=owned.table.resource_id, maintenance=CLEAN))
    spec = v1.QualityRuleSpec(display_name="rows", table_id=table.resource_id, check=ROWS)
    rule = quality.CALLS.create(factory.home, v1.CreateRuleRequest(spec=spec)).rule
    quality.check(factory.home, v1.CheckRulesRequest(table_id=table.resource_id))
    checking = jobs.enqueue(
        factory.home,
        v1.Job(table_id=table.resource_id, quality=v1.QualityTask(rule_ids=[rule.resource_id.id])),
    )
    hook = v1.WebhookSpec(display_name="hook", url=URL, events=["*"], secret=SIGNING)
    webhook = webhooks.calls(MemorySecrets(), None).create(factory.home, v1.CreateWebhookRequest(spec=hook)).webhook
    letter = WebhookPlace(factory.home, webhook.resource_id.id).give_up(
        v1.Event(sequence=1), "refused", expires_at=factory.clock() + timedelta(hours=1)
    )
    factory.stores.pointers.apply([letter])
    ann = owner_realm(factory.home, v1.PipelineOwner(subject="ann", roles=["administrator"]))
    declared = v1.CreatePipelineRequest(spec=v1.PipelineSpec(files=FILES))
    pipeline = pipelines.CALLS.create(ann, declared).pipeline
    branches.create(factory.home, v1.CreateBranchRequest(name="lake@dev"))
    opened = branches.on_branch(factory.home, warehouse(), "lake@dev")
    assert opened is not None
    on_branch, shown = opened
    added = v1.NamespaceSpec(catalog_id=shown.resource_id, display_name="on_branch")
    namespaces.create(on_branch, v1.CreateNamespaceRequest(spec=added))
    made = Lake(
        *(catalog, namespace, table, view, connector),
        job_id=job.job_id,
        query_id=begun.query.query_id,
        policy=policy,
        managed=owned.table,
        maintenance_id=maintenance.job_id,
        rule=rule,
        check_id=checking.job_id,
        webhook=webhook,
        pipeline=pipeline,
    )
    if transaction_of is not None:
        begin_transaction(factory, made, caller=transaction_of)
    return made


def begin_transaction(factory: ResourceFactory, lake: Lake, *, caller: str) -> None:
    """Begin the transaction of the sample requests for a caller."""
    realm = replace(factory.home, caller=caller)
    staged_writes.opened(realm, lake.transaction_id, until=factory.clock() + timedelta(hours=1))


@cache
def warehouse() -> Warehouse:
    """The warehouse of the managed tables of all tests."""
    folder = tempfile.mkdtemp(prefix="skiway-warehouse-")
    atexit.register(shutil.rmtree, folder)
    return Warehouse.at(folder)


def rows(*values: int) -> bytes:
    """Rows as a transaction takes them."""
    batch = pa.record_batch({"x": pa.array(values, pa.int64())})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def snapshot(number: int) -> v1.SnapshotRef:
    return v1.SnapshotRef(snapshot_id=number)


Make = Callable[[Lake], Any]

REQUESTS: Mapping[str, Make] = {
    "AccountService/ListAccounts": lambda _: v1.ListAccountsRequest(),
    "AccountService/GetAccount": lambda _: v1.GetAccountRequest(account_id=v1.ResourceId(id="a1")),
    "AccountService/CreateAccount": lambda _: v1.CreateAccountRequest(spec=v1.AccountSpec(display_name="new")),
    "AccountService/UpdateAccount": lambda _: v1.UpdateAccountRequest(
        account_id=v1.ResourceId(id="a1"), spec=v1.AccountSpec(description="x"), update_mask=mask("description")
    ),
    "AccountService/DeleteAccount": lambda _: v1.DeleteAccountRequest(account_id=v1.ResourceId(id="empty")),
    "CatalogService/ListCatalogs": lambda _: v1.ListCatalogsRequest(),
    "CatalogService/GetCatalog": lambda lake: v1.GetCatalogRequest(catalog_id=lake.catalog.resource_id),
    "CatalogService/CreateCatalog": lambda _: v1.CreateCatalogRequest(spec=v1.CatalogSpec(display_name="new")),
    "CatalogService/UpdateCatalog": lambda lake: v1.UpdateCatalogRequest(
        catalog_id=lake.catalog.resource_id, spec=v1.CatalogSpec(description="x"), update_mask=mask("description")
    ),
    "CatalogService/DeleteCatalog": lambda lake: v1.DeleteCatalogRequest(
        catalog_id=lake.catalog.resource_id, require_empty=False
    ),
    "NamespaceService/ListNamespaces": lambda lake: v1.ListNamespacesRequest(catalog_id=lake.catalog.resource_id),
    "NamespaceService/GetNamespace": lambda lake: v1.GetNamespaceRequest(namespace_id=lake.namespace.resource_id),
    "NamespaceService/CreateNamespace": lambda lake: v1.CreateNamespaceRequest(
        spec=v1.NamespaceSpec(display_name="new", catalog_id=lake.catalog.resource_id)
    ),
    "NamespaceService/UpdateNamespace": lambda lake: v1.UpdateNamespaceRequest(
        namespace_id=lake.namespace.resource_id,
        spec=v1.NamespaceSpec(catalog_id=lake.catalog.resource_id, display_name="moved"),
        update_mask=mask("display_name", "catalog_id"),
    ),
    "NamespaceService/DeleteNamespace": lambda lake: v1.DeleteNamespaceRequest(
        namespace_id=lake.namespace.resource_id, require_empty=False
    ),
    "GrantService/ListGrants": lambda lake: v1.ListGrantsRequest(object_id=lake.table.resource_id),
    "GrantService/AddGrant": lambda lake: v1.AddGrantRequest(
        object_id=lake.table.resource_id, grantee="user:grace", privilege=v1.PV_READ
    ),
    "GrantService/RevokeGrant": lambda lake: v1.RevokeGrantRequest(
        object_id=lake.table.resource_id, grantee="user:grace"
    ),
    "PolicyService/ListPolicies": lambda _: v1.ListPoliciesRequest(),
    "PolicyService/GetPolicy": lambda lake: v1.GetPolicyRequest(policy_id=lake.policy.resource_id),
    "PolicyService/CreatePolicy": lambda lake: v1.CreatePolicyRequest(
        spec=policy_spec(display_name="new", subjects=["role:x"], objects=[lake.namespace.resource_id])
    ),
    "PolicyService/UpdatePolicy": lambda lake: v1.UpdatePolicyRequest(
        policy_id=lake.policy.resource_id,
        spec=v1.PolicySpec(objects=[lake.namespace.resource_id]),
        update_mask=mask("objects"),
    ),
    "PolicyService/DeletePolicy": lambda lake: v1.DeletePolicyRequest(policy_id=lake.policy.resource_id),
    "PolicyService/ListColumnTags": lambda _: v1.ListColumnTagsRequest(),
    "PolicyService/GetColumnTags": lambda lake: v1.GetColumnTagsRequest(table_id=lake.table.resource_id),
    "PolicyService/SetColumnTags": lambda lake: v1.SetColumnTagsRequest(
        table_id=lake.table.resource_id, column="name", tags=["pii"]
    ),
    "TableService/ListTables": lambda lake: v1.ListTablesRequest(namespace_id=lake.namespace.resource_id),
    "TableService/GetTable": lambda lake: v1.GetTableRequest(table_id=lake.table.resource_id, snapshot=snapshot(1)),
    "TableService/CreateTable": lambda lake: v1.CreateTableRequest(spec=table_spec(lake, display_name="new")),
    "TableService/UpdateTable": lambda lake: v1.UpdateTableRequest(
        table_id=lake.table.resource_id,
        spec=table_spec(lake, display_name="renamed"),
        update_mask=mask("display_name", "catalog_id", "namespace_id"),
    ),
    "TableService/DeleteTable": lambda lake: v1.DeleteTableRequest(table_id=lake.table.resource_id),
    "ViewService/ListViews": lambda lake: v1.ListViewsRequest(namespace_id=lake.namespace.resource_id),
    "ViewService/GetView": lambda lake: v1.GetViewRequest(view_id=lake.view.resource_id),
    "ViewService/CreateView": lambda lake: v1.CreateViewRequest(spec=view_spec(lake, display_name="new")),
    "ViewService/UpdateView": lambda lake: v1.UpdateViewRequest(
        view_id=lake.view.resource_id,
        spec=view_spec(lake, display_name="renamed"),
        update_mask=mask("display_name", "catalog_id", "namespace_id"),
    ),
    "ViewService/DeleteView": lambda lake: v1.DeleteViewRequest(view_id=lake.view.resource_id),
    "SnapshotService/ListSnapshots": lambda lake: v1.ListSnapshotsRequest(table_id=lake.table.resource_id),
    "SnapshotService/GetSnapshot": lambda lake: v1.GetSnapshotRequest(
        table_id=lake.table.resource_id, snapshot=snapshot(1)
    ),
    "SnapshotService/CreateSnapshot": lambda lake: v1.CreateSnapshotRequest(
        spec=v1.SnapshotSpec(table_id=lake.table.resource_id, snapshot_id=3)
    ),
    "SnapshotService/UpdateSnapshot": lambda lake: v1.UpdateSnapshotRequest(
        spec=v1.SnapshotSpec(table_id=lake.table.resource_id, snapshot_id=1, manifest_list="m"),
        update_mask=mask("manifest_list"),
    ),
    "SnapshotService/DeleteSnapshot": lambda lake: v1.DeleteSnapshotRequest(
        table_id=lake.table.resource_id, snapshot_id=1
    ),
    "SnapshotService/SetCurrentSnapshot": lambda lake: v1.SetCurrentSnapshotRequest(
        table_id=lake.table.resource_id, snapshot_id=1
    ),
    "TableStatisticsService/GetTableStats": lambda lake: v1.GetTableStatsRequest(
        table_id=lake.table.resource_id, snapshot=snapshot(2)
    ),
    "TableStatisticsService/ListColumnStats": lambda lake: v1.ListColumnStatsRequest(
        table_id=lake.table.resource_id, snapshot=snapshot(2)
    ),
    "TableStatisticsService/ListFileColumnStats": lambda lake: v1.ListFileColumnStatsRequest(
        table_id=lake.table.resource_id, snapshot=snapshot(2)
    ),
    "TableStatisticsService/ListStatisticsHistory": lambda lake: v1.ListStatisticsHistoryRequest(
        table_id=lake.table.resource_id
    ),
    "TableStatisticsService/ListPartitionStats": lambda lake: v1.ListPartitionStatsRequest(
        table_id=lake.table.resource_id, snapshot=snapshot(2)
    ),
    "TableStatisticsService/PutTableStats": lambda lake: v1.PutTableStatsRequest(
        table_id=lake.table.resource_id, snapshot_id=2, stats=v1.TableStats(row_count=5)
    ),
    "TableStatisticsService/PutColumnStats": lambda lake: [column_stats(lake, 1), column_stats(lake, 2)],
    "TableStatisticsService/PutFileColumnStats": lambda lake: [file_stats(lake, "a.parquet")],
    "ConnectorService/ListConnectors": lambda _: v1.ListConnectorsRequest(),
    "ConnectorService/GetConnector": lambda lake: v1.GetConnectorRequest(connector_id=lake.connector.resource_id),
    "ConnectorService/CreateConnector": lambda _: v1.CreateConnectorRequest(spec=connector_spec(display_name="new")),
    "ConnectorService/UpdateConnector": lambda lake: v1.UpdateConnectorRequest(
        connector_id=lake.connector.resource_id,
        spec=v1.ConnectorSpec(
            description="x", destination=v1.ConnectorDestination(catalog_id=lake.catalog.resource_id)
        ),
        update_mask=mask("description", "destination"),
    ),
    "ConnectorService/DeleteConnector": lambda lake: v1.DeleteConnectorRequest(connector_id=lake.connector.resource_id),
    "ConnectorService/TriggerReconcile": lambda lake: v1.TriggerReconcileRequest(
        connector_id=lake.connector.resource_id, full_rescan=True
    ),
    "ConnectorService/GetReconcileJob": lambda lake: v1.GetReconcileJobRequest(job_id=lake.job_id),
    "ConnectorService/GetReconcileJobLog": lambda lake: v1.GetReconcileJobLogRequest(job_id=lake.job_id),
    "ConnectorService/ListReconcileJobs": lambda lake: v1.ListReconcileJobsRequest(
        connector_id=lake.connector.resource_id
    ),
    "ConnectorService/CancelReconcileJob": lambda lake: v1.CancelReconcileJobRequest(job_id=lake.job_id),
    "QueryService/BeginQuery": lambda lake: v1.BeginQueryRequest(
        default_catalog_id=lake.catalog.resource_id, inputs=[v1.QueryInput(table_id=lake.table.resource_id)]
    ),
    "QueryService/RenewQuery": lambda lake: v1.RenewQueryRequest(query_id=lake.query_id, ttl_seconds=90),
    "QueryService/EndQuery": lambda lake: v1.EndQueryRequest(query_id=lake.query_id, commit=True),
    "QueryService/GetQuery": lambda lake: v1.GetQueryRequest(query_id=lake.query_id),
    "QueryService/ListQueries": lambda lake: v1.ListQueriesRequest(),
    "QueryService/FetchScanBundle": lambda lake: v1.FetchScanBundleRequest(
        query_id=lake.query_id, table_id=lake.table.resource_id
    ),
    "TransactionService/BeginTransaction": lambda _: v1.BeginTransactionRequest(),
    "TransactionService/AppendRows": lambda lake: [
        v1.AppendRowsRequest(transaction_id=lake.transaction_id, table_id=lake.managed.resource_id, rows=rows(1, 2))
    ],
    "TransactionService/CommitTransaction": lambda lake: v1.CommitTransactionRequest(
        transaction_id=lake.transaction_id
    ),
    "TransactionService/AbortTransaction": lambda lake: v1.AbortTransactionRequest(transaction_id=lake.transaction_id),
    "TransactionService/GetTransaction": lambda lake: v1.GetTransactionRequest(transaction_id=lake.transaction_id),
    "TransactionService/ListTransactions": lambda _: v1.ListTransactionsRequest(),
    "MaintenanceService/GetTableHealth": lambda lake: v1.GetTableHealthRequest(table_id=lake.managed.resource_id),
    "MaintenanceService/PlanMaintenance": lambda lake: v1.PlanMaintenanceRequest(
        table_id=lake.managed.resource_id, task=v1.MaintenanceTask(optimize=v1.OptimizeTask())
    ),
    "MaintenanceService/StartMaintenance": lambda lake: v1.StartMaintenanceRequest(
        table_id=lake.managed.resource_id, task=v1.MaintenanceTask(expire=v1.ExpireTask(keep_last=2))
    ),
    "MaintenanceService/GetMaintenance": lambda lake: v1.GetMaintenanceRequest(
        table_id=lake.managed.resource_id, job_id=lake.maintenance_id
    ),
    "QualityService/ListRules": lambda lake: v1.ListRulesRequest(table_id=lake.table.resource_id),
    "QualityService/GetRule": lambda lake: v1.GetRuleRequest(rule_id=lake.rule.resource_id),
    "QualityService/CreateRule": lambda lake: v1.CreateRuleRequest(
        spec=v1.QualityRuleSpec(display_name="new", table_id=lake.table.resource_id, check=ROWS)
    ),
    "QualityService/UpdateRule": lambda lake: v1.UpdateRuleRequest(
        rule_id=lake.rule.resource_id,
        spec=v1.QualityRuleSpec(description="x", table_id=lake.table.resource_id),
        update_mask=mask("description"),
    ),
    "QualityService/DeleteRule": lambda lake: v1.DeleteRuleRequest(rule_id=lake.rule.resource_id),
    "QualityService/CheckRules": lambda lake: v1.CheckRulesRequest(
        table_id=lake.table.resource_id, rule_ids=[lake.rule.resource_id]
    ),
    "QualityService/GetCheck": lambda lake: v1.GetCheckRequest(table_id=lake.table.resource_id, job_id=lake.check_id),
    "QualityService/ListRuleResults": lambda lake: v1.ListRuleResultsRequest(rule_id=lake.rule.resource_id),
    "WebhookService/ListWebhooks": lambda _: v1.ListWebhooksRequest(),
    "WebhookService/GetWebhook": lambda lake: v1.GetWebhookRequest(webhook_id=lake.webhook.resource_id),
    "WebhookService/CreateWebhook": lambda _: v1.CreateWebhookRequest(
        spec=v1.WebhookSpec(display_name="new", url=URL, events=["*"], secret=SIGNING)
    ),
    "WebhookService/UpdateWebhook": lambda lake: v1.UpdateWebhookRequest(
        webhook_id=lake.webhook.resource_id, spec=v1.WebhookSpec(description="x"), update_mask=mask("description")
    ),
    "WebhookService/DeleteWebhook": lambda lake: v1.DeleteWebhookRequest(webhook_id=lake.webhook.resource_id),
    "WebhookService/ListDeadLetters": lambda lake: v1.ListDeadLettersRequest(webhook_id=lake.webhook.resource_id),
    "WebhookService/RedeliverEvents": lambda lake: v1.RedeliverEventsRequest(webhook_id=lake.webhook.resource_id),
    "PipelineService/ListPipelines": lambda _: v1.ListPipelinesRequest(),
    "PipelineService/GetPipeline": lambda lake: v1.GetPipelineRequest(pipeline_id=lake.pipeline.resource_id),
    "PipelineService/CreatePipeline": lambda _: v1.CreatePipelineRequest(
        spec=v1.PipelineSpec(files={**FILES, "pipeline.yml": "name: new\ncatalog: lake\nnamespace: sales\n"})
    ),
    "PipelineService/UpdatePipeline": lambda lake: v1.UpdatePipelineRequest(
        pipeline_id=lake.pipeline.resource_id,
        spec=v1.PipelineSpec(files={**FILES, "copy.sql": "SELECT 1 AS x"}),
        update_mask=mask("files"),
    ),
    "PipelineService/DeletePipeline": lambda lake: v1.DeletePipelineRequest(pipeline_id=lake.pipeline.resource_id),
    "PipelineService/PlanPipeline": lambda lake: v1.PlanPipelineRequest(pipeline_id=lake.pipeline.resource_id),
    "PipelineService/StartPipeline": lambda lake: v1.StartPipelineRequest(pipeline_id=lake.pipeline.resource_id),
    "EventService/ListEvents": lambda _: v1.ListEventsRequest(),
    "EventService/WatchEvents": lambda _: v1.WatchEventsRequest(wait_seconds=1),
    "BranchService/ListBranches": lambda _: v1.ListBranchesRequest(catalog="lake"),
    "BranchService/GetBranch": lambda _: v1.GetBranchRequest(name="lake@dev"),
    "BranchService/CreateBranch": lambda _: v1.CreateBranchRequest(name="lake@new"),
    "BranchService/DeleteBranch": lambda _: v1.DeleteBranchRequest(name="lake@dev"),
    "BranchService/DiffBranch": lambda _: v1.DiffBranchRequest(name="lake@dev"),
    "BranchService/MergeBranch": lambda _: v1.MergeBranchRequest(name="lake@dev"),
    "SearchService/Search": lambda _: v1.SearchRequest(text="people", wait_ms=20_000),
    "SearchService/ListObjects": lambda _: v1.ListObjectsRequest(wait_ms=20_000),
    "SearchService/GetSummary": lambda _: v1.GetSummaryRequest(largest=10, wait_ms=20_000),
    "ConnectorService/ValidateConnector": lambda _: v1.ValidateConnectorRequest(
        spec=connector_spec(display_name="new")
    ),
    "ConnectorService/SyncCapture": lambda lake: v1.SyncCaptureRequest(connector_id=lake.connector.resource_id),
    "SystemObjectsService/GetSystemObjects": lambda _: v1.GetSystemObjectsRequest(),
    "DirectoryService/ResolveCatalog": lambda _: v1.ResolveCatalogRequest(ref=v1.NameRef(catalog="lake")),
    "DirectoryService/ResolveNamespace": lambda _: v1.ResolveNamespaceRequest(
        ref=v1.NameRef(catalog="lake", path=["sales"])
    ),
    "DirectoryService/ResolveTable": lambda lake: v1.ResolveTableRequest(ref=lake.table_ref),
    "DirectoryService/ResolveView": lambda lake: v1.ResolveViewRequest(ref=lake.view_ref),
    "DirectoryService/LookupCatalog": lambda lake: v1.LookupCatalogRequest(resource_id=lake.catalog.resource_id),
    "DirectoryService/LookupNamespace": lambda lake: v1.LookupNamespaceRequest(resource_id=lake.namespace.resource_id),
    "DirectoryService/LookupTable": lambda lake: v1.LookupTableRequest(resource_id=lake.table.resource_id),
    "DirectoryService/LookupView": lambda lake: v1.LookupViewRequest(resource_id=lake.view.resource_id),
    "DirectoryService/LookupTableByRef": lambda lake: v1.LookupTableByRefRequest(ref=lake.table_ref),
    "DirectoryService/ResolveFQTables": lambda lake: v1.ResolveFQTablesRequest(
        names=v1.NameRefs(names=[lake.table_ref])
    ),
    "DirectoryService/ResolveFQViews": lambda _: v1.ResolveFQViewsRequest(
        prefix=v1.NameRef(catalog="lake", path=["sales"])
    ),
}


def policy_spec(**spec: Any) -> v1.PolicySpec:
    return v1.PolicySpec(mask=v1.PolicyMask(kind=v1.MK_NULL, columns=["secret*"]), **spec)


def table_spec(lake: Lake, **spec: Any) -> v1.TableSpec:
    place = {"catalog_id": lake.catalog.resource_id, "namespace_id": lake.namespace.resource_id}
    return v1.TableSpec(**place, schema_json="{}", **spec)


def connector_spec(**spec: Any) -> v1.ConnectorSpec:
    destination = v1.ConnectorDestination(catalog_display_name="lake")
    return v1.ConnectorSpec(kind=v1.CK_PARQUET, uri=upstream(), destination=destination, **spec)


@cache
def upstream() -> str:
    """A folder with one table in it."""
    folder = tempfile.mkdtemp(prefix="skiway-upstream-")
    atexit.register(shutil.rmtree, folder)
    pq.write_table(pa.table({"id": [1, 2]}), f"{folder}/numbers.parquet")
    return folder


def view_spec(lake: Lake, **spec: Any) -> v1.ViewSpec:
    place = {"catalog_id": lake.catalog.resource_id, "namespace_id": lake.namespace.resource_id}
    return v1.ViewSpec(**place, sql_definitions=SQL, **spec)


def column_stats(
    lake: Lake, *numbers: int, snapshot_id: int = 2, key: str = "", **stats: Any
) -> v1.PutColumnStatsRequest:
    """A message with one item per column number."""
    columns = [
        v1.ColumnStats(column_id=number, column_name=f"c{number}", logical_type="INT", **{"value_count": 1, **stats})
        for number in numbers
    ]
    return v1.PutColumnStatsRequest(
        table_id=lake.table.resource_id,
        snapshot_id=snapshot_id,
        columns=columns,
        idempotency=v1.IdempotencyKey(key=key) if key else None,
    )


def file_stats(
    lake: Lake, *paths: str, snapshot_id: int = 2, key: str = "", **stats: Any
) -> v1.PutFileColumnStatsRequest:
    """A message with one item per path."""
    files = [
        v1.FileColumnStats(file_path=path, file_format="PARQUET", file_content=v1.FC_DATA, **stats) for path in paths
    ]
    return v1.PutFileColumnStatsRequest(
        table_id=lake.table.resource_id,
        snapshot_id=snapshot_id,
        files=files,
        idempotency=v1.IdempotencyKey(key=key) if key else None,
    )


def id_paths(descriptor: Descriptor, inside: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The paths to all resource ids that a request can contain, found by walking the descriptors."""
    for field in descriptor.fields:
        if field.message_type is None or field.message_type.name in inside:
            continue
        path = (*inside, field.name)
        if field.message_type.full_name == "skiway.v1.ResourceId":
            yield path
        elif field.message_type.full_name.startswith("skiway.v1.") and not field.message_type.GetOptions().map_entry:
            yield from id_paths(field.message_type, path)


def put(message: Message, path: tuple[str, ...], value: v1.ResourceId) -> None:
    """Set the field at `path`; lists on the way get an element."""
    *outer, last = path
    for name in outer:
        part = getattr(message, name)
        repeated = message.DESCRIPTOR.fields_by_name[name].is_repeated
        message = (part[0] if part else part.add()) if repeated else part
    found = getattr(message, last)
    is_list = message.DESCRIPTOR.fields_by_name[last].is_repeated
    ((found[0] if found else found.add()) if is_list else found).CopyFrom(value)
