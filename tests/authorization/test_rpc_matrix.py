"""Every method of every gRPC service × every caller: who may call it, and what others learn and change (nothing)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, Final

import grpc
import pytest

from authorization.callers import (
    CALLERS,
    RESTRICTED,
    ROLES_ONLY,
    SOME,
    ByName,
    Caller,
    Least,
    add_grants,
    add_policies,
)
from authorization.worlds import copied
from metastore.resource_factory import Ids, ResourceFactory
from rpc.requests import REQUESTS, Lake, begin_transaction, lake
from rpc.rpc_server import METHODS, RpcServer, opened
from skiway.metastore import gc
from skiway.metastore.resources import accounts
from skiway.model import v1
from skiway.security.authentication import MANAGES_ACCOUNTS
from skiway.storage import Stores, open_stores

CODE = grpc.StatusCode
REFUSED = (CODE.PERMISSION_DENIED, CODE.UNAUTHENTICATED, CODE.NOT_FOUND)
ENGINE: dict[str, Any] = {"x_engine_kind": "duckdb", "x_engine_version": "1.5.5"}

ANYWHERE = Least("read")
READ_TABLE, READ_NAMESPACE = Least("read", "table"), Least("read", "namespace")
WRITE_TABLE, WRITE_NAMESPACE, WRITE_CATALOG = (
    Least("write", "table"),
    Least("write", "namespace"),
    Least("write", "catalog"),
)
MANAGE_TABLE, MANAGE_CATALOG = Least("manage", "table"), Least("manage", "catalog")

LEAST: Final[dict[str, dict[str, Least | None]]] = {
    "AccountService": dict.fromkeys(
        ("ListAccounts", "GetAccount", "CreateAccount", "UpdateAccount", "DeleteAccount"), ROLES_ONLY
    ),
    "CatalogService": {
        "ListCatalogs": ANYWHERE,
        "GetCatalog": READ_TABLE,  # whoever sees something in a catalog sees the catalog
        "CreateCatalog": ROLES_ONLY,
        "UpdateCatalog": MANAGE_CATALOG,
        "DeleteCatalog": MANAGE_CATALOG,
    },
    "NamespaceService": {
        "ListNamespaces": READ_TABLE,
        "GetNamespace": READ_TABLE,
        "CreateNamespace": WRITE_CATALOG,
        "UpdateNamespace": WRITE_NAMESPACE,
        "DeleteNamespace": WRITE_NAMESPACE,
    },
    "TableService": {
        "ListTables": READ_TABLE,
        "GetTable": READ_TABLE,
        "CreateTable": WRITE_NAMESPACE,
        "UpdateTable": WRITE_TABLE,
        "DeleteTable": WRITE_TABLE,
    },
    "ViewService": {
        "ListViews": READ_TABLE,  # of the namespace, which is visible
        "GetView": READ_NAMESPACE,
        "CreateView": WRITE_NAMESPACE,
        "UpdateView": WRITE_NAMESPACE,
        "DeleteView": WRITE_NAMESPACE,
    },
    "SnapshotService": {
        "ListSnapshots": READ_TABLE,
        "GetSnapshot": READ_TABLE,
        "CreateSnapshot": WRITE_TABLE,
        "UpdateSnapshot": WRITE_TABLE,
        "DeleteSnapshot": WRITE_TABLE,
        "SetCurrentSnapshot": WRITE_TABLE,
    },
    "TableStatisticsService": {
        "GetTableStats": READ_TABLE,
        "ListColumnStats": READ_TABLE,
        "ListFileColumnStats": READ_TABLE,
        "ListStatisticsHistory": READ_TABLE,
        "ListPartitionStats": READ_TABLE,
        "PutTableStats": WRITE_TABLE,
        "PutColumnStats": WRITE_TABLE,
        "PutFileColumnStats": WRITE_TABLE,
    },
    "DirectoryService": {
        "ResolveCatalog": READ_TABLE,
        "ResolveNamespace": READ_TABLE,
        "ResolveTable": READ_TABLE,
        "ResolveView": READ_NAMESPACE,
        "LookupCatalog": READ_TABLE,
        "LookupNamespace": READ_TABLE,
        "LookupTable": READ_TABLE,
        "LookupView": READ_NAMESPACE,
        "LookupTableByRef": READ_TABLE,
        "ResolveFQTables": READ_TABLE,
        "ResolveFQViews": READ_TABLE,
    },
    "GrantService": {"ListGrants": MANAGE_TABLE, "AddGrant": MANAGE_TABLE, "RevokeGrant": MANAGE_TABLE},
    "PolicyService": dict.fromkeys(
        (
            *("ListPolicies", "GetPolicy", "CreatePolicy", "UpdatePolicy", "DeletePolicy"),
            *("ListColumnTags", "GetColumnTags", "SetColumnTags"),
        ),
        ROLES_ONLY,
    ),
    "ConnectorService": dict.fromkeys(
        (
            *("ListConnectors", "GetConnector", "CreateConnector", "UpdateConnector", "DeleteConnector"),
            *("ValidateConnector", "SyncCapture", "TriggerReconcile"),
            *("GetReconcileJob", "GetReconcileJobLog", "ListReconcileJobs", "CancelReconcileJob"),
        ),
        ROLES_ONLY,
    ),
    "QueryService": dict.fromkeys(
        ("BeginQuery", "RenewQuery", "EndQuery", "GetQuery", "ListQueries", "FetchScanBundle"), READ_TABLE
    ),
    "TransactionService": {
        **dict.fromkeys(
            ("BeginTransaction", "ListTransactions", "GetTransaction", "CommitTransaction", "AbortTransaction"),
            Least("write"),
        ),
        "AppendRows": WRITE_NAMESPACE,
    },
    "MaintenanceService": {
        "GetTableHealth": READ_NAMESPACE,
        "PlanMaintenance": WRITE_NAMESPACE,
        "StartMaintenance": WRITE_NAMESPACE,
        "GetMaintenance": READ_NAMESPACE,
    },
    "QualityService": {
        **dict.fromkeys(("ListRules", "GetRule", "GetCheck", "ListRuleResults"), READ_TABLE),
        **dict.fromkeys(("CreateRule", "UpdateRule", "DeleteRule", "CheckRules"), WRITE_TABLE),
    },
    "WebhookService": dict.fromkeys(
        (
            *("ListWebhooks", "GetWebhook", "CreateWebhook", "UpdateWebhook", "DeleteWebhook"),
            *("ListDeadLetters", "RedeliverEvents"),
        ),
        ROLES_ONLY,
    ),
    "PipelineService": dict.fromkeys(
        (
            *("ListPipelines", "GetPipeline", "CreatePipeline", "UpdatePipeline", "DeletePipeline"),
            *("PlanPipeline", "StartPipeline"),
        ),
        ROLES_ONLY,
    ),
    "BranchService": {
        **dict.fromkeys(("ListBranches", "GetBranch", "DiffBranch"), READ_TABLE),
        **dict.fromkeys(("CreateBranch", "MergeBranch"), WRITE_CATALOG),
        "DeleteBranch": MANAGE_CATALOG,
    },
    "EventService": {"ListEvents": ANYWHERE, "WatchEvents": ANYWHERE},
    "SearchService": dict.fromkeys(("Search", "ListObjects", "GetSummary"), ANYWHERE),
    "SystemObjectsService": {"GetSystemObjects": ROLES_ONLY},
}
READING: Final = ("List", "Get", "Diff", "Resolve", "Lookup", "Watch", "Search")
PERMISSIONS: Final[dict[str, tuple[str, str]]] = {
    "AccountService": ("account.read", "account.write"),
    "CatalogService": ("catalog.read", "catalog.write"),
    "NamespaceService": ("namespace.read", "namespace.write"),
    "TableService": ("table.read", "table.write"),
    "ViewService": ("view.read", "view.write"),
    "SnapshotService": ("table.read", "table.write"),
    "TableStatisticsService": ("catalog.read", "table.write"),
    "DirectoryService": ("catalog.read", ""),
    "GrantService": ("grant.manage", "grant.manage"),
    "PolicyService": ("policy.manage", "policy.manage"),
    "ConnectorService": ("connector.manage", "connector.manage"),
    "QueryService": ("catalog.read", "catalog.read"),
    "TransactionService": ("table.write", "table.write"),
    "MaintenanceService": ("table.read", "table.write"),
    "QualityService": ("table.read", "table.write"),
    "WebhookService": ("webhook.manage", "webhook.manage"),
    "PipelineService": ("connector.manage", "connector.manage"),
    "BranchService": ("catalog.read", "namespace.write"),
    "EventService": ("catalog.read", ""),
    "SearchService": ("catalog.read", ""),
    "SystemObjectsService": ("system-objects.read", ""),
}
"""The permissions of roles for methods that read, and for methods that change something."""

ALSO: Final = {
    **dict.fromkeys(("AccountService/UpdateAccount", "AccountService/DeleteAccount"), "account.delete"),
    **dict.fromkeys(
        (f"DirectoryService/{name}" for name in ("ResolveTable", "LookupTable", "LookupTableByRef", "ResolveFQTables")),
        "table.read",
    ),
    **dict.fromkeys(
        (f"DirectoryService/{name}" for name in ("ResolveView", "LookupView", "ResolveFQViews")), "view.read"
    ),
    "ConnectorService/CreateConnector": "connector.create",
}
"""Permissions that suffice for single methods, too."""


def permissions_for(operation: str) -> set[str]:
    """The permissions of which a role needs one, whatever the service itself says."""
    service, _, name = operation.partition("/")
    reading, changing = PERMISSIONS[service]
    found = {reading if name.startswith(READING) else changing, ALSO.get(operation, "")} - {""}
    assert found, f"add what {operation} requires to PERMISSIONS"
    return found


PLATFORM_ONLY = {"AccountService/CreateAccount", "AccountService/DeleteAccount"}
"""They act on other accounts, for which no permission of an account suffices."""

ABOUT_NOTHING = {
    "EventService/ListEvents",
    "EventService/WatchEvents",
    "SearchService/Search",
    "SearchService/ListObjects",
    "SearchService/GetSummary",
    "TransactionService/BeginTransaction",
    "TransactionService/ListTransactions",
    "CatalogService/CreateCatalog",
    "WebhookService/CreateWebhook",
    "ConnectorService/ValidateConnector",
    "PipelineService/CreatePipeline",
    "SystemObjectsService/GetSystemObjects",
}
"""They name no object, so a caller of another account may call them there."""

LARGE = {"SystemObjectsService/GetSystemObjects"}
"""Its response takes long to decode."""


@dataclass
class World:
    """A lake in memory, the grants of all callers, and which of its ids are in a response."""

    stores: Stores
    factory: ResourceFactory
    sample: Lake

    @classmethod
    def made(cls, stores: Stores) -> World:
        factory = ResourceFactory(stores)
        factory.account("empty")
        factory.account("a2")
        sample = lake(factory, transaction_of=None)
        elsewhere = factory.table("secret", namespace=factory.namespace("hr", catalog=factory.catalog("other")))
        objects = {
            "catalog": sample.catalog.resource_id,
            "namespace": sample.namespace.resource_id,
            "table": sample.table.resource_id,
            "elsewhere": elsewhere.resource_id,
        }
        add_grants(factory.home, objects)
        add_policies(factory.home, sample.table.resource_id)
        return cls(stores, factory, sample)

    def state(self) -> list[Any]:
        return list(self.stores.pointers.scan(""))

    def hidden_from(self, caller: Caller) -> list[bytes]:
        """The ids that no response to the caller may contain."""
        ids: dict[str, Any] = {
            "catalog": self.sample.catalog,
            "namespace": self.sample.namespace,
            "table": self.sample.table,
            "view": self.sample.view,
        }
        shown = {"elsewhere": set[str](), "table": {"catalog", "namespace", "table"}}
        visible = shown.get(caller.on, set(ids))
        return [ids[each].resource_id.id.encode() for each in ids if each not in visible]


class Server:
    """One server for all rows. Its store is replaced by a new one after a change."""

    def __init__(self, rpc_server: RpcServer, worlds: list[World]) -> None:
        self.client, self._worlds = rpc_server.client, worlds

    @property
    def world(self) -> World:
        return self._worlds[-1]

    def renew(self) -> None:
        first = self._worlds[0]
        stores = copied(first.stores)
        self._worlds[1:] = [World(stores, ResourceFactory(stores, ids=Ids("later")), first.sample)]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    worlds: list[World] = []
    with (
        open_stores("memory://") as stores,
        opened(
            stores, authenticator=ByName(), realm_of=lambda _, caller: worlds[-1].factory.realm(caller.account_id)
        ) as rpc_server,
    ):
        worlds.append(World.made(stores))
        yield Server(rpc_server, worlds)


def is_allowed(operation: str, caller: Caller) -> bool:
    service, name = operation.split("/")
    permissions = permissions_for(operation)
    if operation in PLATFORM_ONLY:
        return MANAGES_ACCOUNTS in caller.permissions
    if service == "AccountService":
        return caller.has_role_for(permissions) and caller.account_id in ("a1", "")
    if caller.account_id != "a1" and (not caller.account_id or operation not in ABOUT_NOTHING):
        return False
    return caller.has_role_for(permissions) or caller.has_grant_for(LEAST[service][name])


def declared_methods() -> set[str]:
    """The methods of all services in the files of the model."""
    modules = [import_module(f"{v1.__name__}.{each.name}") for each in iter_modules(v1.__path__)]
    services = [each for module in modules for each in module.DESCRIPTOR.services_by_name.values()]
    return {f"{service.name}/{method.name}" for service in services for method in service.methods}


def test_every_method_has_a_rule() -> None:
    ruled = {f"{service}/{name}" for service, rules in LEAST.items() for name in rules}
    assert ruled == METHODS.keys() == declared_methods(), "add what the new method requires to LEAST"
    for operation, method in METHODS.items():
        assert set(method.rule.permissions) == permissions_for(operation), operation


@pytest.mark.parametrize("operation", sorted(METHODS))
def test_row(operation: str, server: Server) -> None:
    server.renew()
    prepare(server, operation)
    before = server.world.state()
    for caller in SOME if operation in LARGE else CALLERS:
        if operation.startswith("TransactionService/"):
            server.renew()
            begin_transaction(server.world.factory, server.world.sample, caller=caller.name)
            before = server.world.state()
        request = REQUESTS[operation](server.world.sample)
        answer = server.client.as_(caller.name)(operation, request, **ENGINE)
        where = f"{operation} by {caller}: {answer.code} {answer.text}"
        shown, asked = answered(answer.message), answered(request)
        hidden = server.world.hidden_from(caller)
        assert not [each for each in hidden if each in shown and each not in asked], where
        if is_allowed(operation, caller):
            assert answer.code is CODE.OK, where
            if METHODS[operation].rule.changes:
                server.renew()
                prepare(server, operation)
                before = server.world.state()
            continue
        # What a caller does not see, it may delete and look up without an error, and without any effect.
        assert answer.code in REFUSED or is_harmless(operation, shown), where
        assert server.world.state() == before, where


REFUSED_BY_POLICIES: Final = {
    *("TableService/UpdateTable", "TableService/DeleteTable"),
    *("CatalogService/DeleteCatalog", "NamespaceService/DeleteNamespace"),  # with all that they contain
    *(f"SnapshotService/{name}Snapshot" for name in ("Create", "Update", "Delete", "SetCurrent")),
    *(f"TableStatisticsService/{name}" for name in ("GetTableStats", "ListColumnStats", "ListFileColumnStats")),
    *(f"TableStatisticsService/{name}" for name in ("ListStatisticsHistory", "ListPartitionStats")),
    *(f"TableStatisticsService/Put{name}Stats" for name in ("Table", "Column", "FileColumn")),
    *(f"QualityService/{name}" for name in ("CreateRule", "DeleteRule", "CheckRules", "GetCheck")),
    "QueryService/FetchScanBundle",
}
"""What a caller may not do whom policies restrict on the table."""

HIDDEN_BY_POLICIES: Final = {f"QualityService/{name}" for name in ("GetRule", "UpdateRule", "ListRuleResults")}
"""What does not exist for such a caller: the rule counts rows."""


@pytest.mark.parametrize("operation", sorted(name for name in METHODS if not name.startswith("AccountService")))
def test_restricted_caller(operation: str, server: Server) -> None:
    server.renew()
    prepare(server, operation)
    if operation.startswith("TransactionService/"):
        begin_transaction(server.world.factory, server.world.sample, caller=RESTRICTED.name)
    before = server.world.state()
    answer = server.client.as_(RESTRICTED.name)(operation, REQUESTS[operation](server.world.sample), **ENGINE)
    where = f"{operation}: {answer.code} {answer.text}"
    if operation in REFUSED_BY_POLICIES:
        assert answer.code is CODE.PERMISSION_DENIED, where
        assert "policies no names, some rows restrict what you see of table people" in answer.text, where
        assert server.world.state() == before
    elif operation in HIDDEN_BY_POLICIES:
        assert answer.code is CODE.NOT_FOUND, where
        assert server.world.state() == before
    else:
        assert answer.code is CODE.OK, where


def prepare(server: Server, operation: str) -> None:
    if operation.startswith(("EventService/", "SearchService/")):
        gc.sweep_events(server.world.stores)  # otherwise the first reader numbers the events
    if operation == "TableStatisticsService/GetTableStats":
        put = REQUESTS["TableStatisticsService/PutTableStats"](server.world.sample)
        assert server.client.as_("administrator")("TableStatisticsService/PutTableStats", put).code is CODE.OK


def answered(message: Any) -> bytes:
    messages = message if isinstance(message, list) else [message] if message is not None else []
    return b"".join(each.SerializeToString() for each in messages)


def is_harmless(operation: str, shown: bytes) -> bool:
    """Whether an answer without an error says nothing: of a list, a lookup, or the deletion of what does not exist."""
    name = operation.partition("/")[2]
    if name.startswith(("Delete", "Revoke")):
        return b"blob" not in shown
    return name.startswith(("List", "Lookup", "ResolveFQ")) and len(shown) <= 2


@pytest.mark.parametrize("operation", sorted(name for name in METHODS if name.startswith("TransactionService/")))
def test_transaction_of_another_caller_is_unknown(operation: str, server: Server) -> None:
    server.renew()
    begin_transaction(server.world.factory, server.world.sample, caller="somebody else")
    before = server.world.state()
    for caller in CALLERS:
        answer = server.client.as_(caller.name)(operation, REQUESTS[operation](server.world.sample))
        assert server.world.sample.transaction_id.encode() not in answered(answer.message)
        if not operation.endswith(("/BeginTransaction", "/ListTransactions")):
            assert answer.code in REFUSED, f"{operation} by {caller}: {answer.code} {answer.text}"
            assert server.world.state() == before


def test_account_that_was_not_touched_is_still_there(server: Server) -> None:
    listed = accounts.list_(server.world.factory.platform, v1.ListAccountsRequest()).accounts
    assert {each.resource_id.id for each in listed} >= {"a1", "a2"}
