"""Every method of every service is served to callers with permission."""

from __future__ import annotations

import functools
import pkgutil
import typing
from collections.abc import Iterable, Iterator
from importlib import import_module

import grpc
import pytest
from google.protobuf.descriptor import ServiceDescriptor
from google.rpc import error_details_pb2

import skiway.model.v1
from rpc.requests import REQUESTS, lake
from rpc.rpc_server import EVERYTHING, METHODS, SERVICES, RpcServer, behavior, principal
from skiway.metastore.resources.named import Calls
from skiway.model import v1
from skiway.security import NOBODY

OPERATIONS = sorted(METHODS)
CODE = grpc.StatusCode
CHANGING = (
    *("Create", "Update", "Delete", "Put", "Set", "Trigger", "Cancel", "Sync", "Begin", "Renew", "End", "Fetch"),
    *("Add", "Revoke", "Append", "Commit", "Abort", "Start", "Check", "Redeliver", "Merge"),
)
ENGINE = {"x_engine_kind": "duckdb", "x_engine_version": "1.5.5"}


def described() -> Iterator[ServiceDescriptor]:
    for module in pkgutil.iter_modules(skiway.model.v1.__path__):
        yield from import_module(f"skiway.model.v1.{module.name}").DESCRIPTOR.services_by_name.values()


def test_table_has_exactly_the_methods_of_the_protos():
    in_protos = {f"{service.name}/{method.name}" for service in described() for method in service.methods}
    assert in_protos == METHODS.keys()


def test_every_method_has_a_sample_request():
    assert REQUESTS.keys() == METHODS.keys()


@pytest.mark.parametrize("operation", OPERATIONS)
def test_function_of_a_method_has_its_request_and_response_types(operation):
    method = METHODS[operation]
    described = method.service.descriptor.methods_by_name[method.name]
    bound = method.rule.act
    if isinstance(getattr(bound, "__self__", None), Calls):
        assert f"{method.name}Request" == described.input_type.name
        assert f"{method.name}Response" == described.output_type.name
        return
    hints = typing.get_type_hints(bound.func if isinstance(bound, functools.partial) else bound)
    taken = hints["requests"] if method.streamed else hints["request"]
    if method.streamed:
        assert typing.get_origin(taken) is Iterable
        (taken,) = typing.get_args(taken)
    given = hints["return"]
    if method.answers_many:
        assert typing.get_origin(given) is Iterator
        (given,) = typing.get_args(given)
    assert (described.input_type, described.output_type) == (taken.DESCRIPTOR, given.DESCRIPTOR)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_verb_of_a_method_matches_whether_it_changes_anything(operation):
    verb = METHODS[operation].name
    assert METHODS[operation].rule.changes == verb.startswith(CHANGING)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_method_answers_over_the_network(operation, rpc_server: RpcServer):
    rpc_server.factory.account("empty")
    sample = lake(rpc_server.factory)
    for first in ("PutTableStats", "PutColumnStats", "PutFileColumnStats"):
        stored = rpc_server.client(
            f"TableStatisticsService/{first}", REQUESTS[f"TableStatisticsService/{first}"](sample)
        )
        assert stored.code is CODE.OK, stored.text
    client = rpc_server.client.as_("platform") if operation.startswith("AccountService") else rpc_server.client
    answer = client(operation, REQUESTS[operation](sample), **ENGINE)
    assert answer.code is CODE.OK, answer.text
    assert answer.message.ByteSize() > 0


@behavior(79)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_any_permission_of_a_method_is_sufficient_and_all_others_are_not(operation, rpc_server: RpcServer):
    permissions = METHODS[operation].rule.permissions
    account = "" if operation.startswith("AccountService") else "a1"
    rpc_server.callers.add(principal("all others", *(EVERYTHING - set(permissions)), account_id=account))
    for permission in permissions:
        rpc_server.callers.add(principal(permission, permission, account_id=account))
    assert permissions
    request = REQUESTS[operation](lake(rpc_server.factory))
    for permission in permissions:
        assert rpc_server.client.as_(permission)(operation, request).code not in (
            CODE.PERMISSION_DENIED,
            CODE.UNAUTHENTICATED,
        )
    denied = rpc_server.client.as_("all others")(operation, request)
    assert (denied.code, denied.error.message_key) == (CODE.PERMISSION_DENIED, "permission.missing")


@behavior(79)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_unauthenticated_caller_is_rejected(operation, rpc_server: RpcServer):
    request = REQUESTS[operation](lake(rpc_server.factory))
    unknown = rpc_server.client.as_("")(operation, request)
    assert (unknown.code, unknown.error.message_key) == (CODE.UNAUTHENTICATED, "token.missing")
    rpc_server.callers.add(NOBODY, name="ghost")
    empty = rpc_server.client.as_("ghost")(operation, request)
    assert (empty.code, empty.error.message_key) == (CODE.UNAUTHENTICATED, "principal.missing")


@behavior(34)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_platform_may_only_use_the_account_service(operation, rpc_server: RpcServer):
    rpc_server.factory.account("empty")
    answer = rpc_server.client.as_("platform")(operation, REQUESTS[operation](lake(rpc_server.factory)))
    if operation.startswith("AccountService/"):
        assert answer.code is CODE.OK
    else:
        assert (answer.code, answer.error.message_key) == (CODE.PERMISSION_DENIED, "account.required")
        assert answer.error.params == {"operation": operation, "subject": "platform"}
        assert answer.text.endswith("call it with credentials of an account")


@behavior(34)
def test_account_member_sees_only_that_account(rpc_server: RpcServer):
    rpc_server.factory.account("a2")
    seen = rpc_server.client.as_("member")("AccountService/ListAccounts").message.accounts
    assert [account.resource_id.id for account in seen] == ["a1"]


@behavior(34)
def test_caller_with_the_platforms_permission_manages_all_accounts(rpc_server: RpcServer):
    created = rpc_server.client(
        "AccountService/CreateAccount", REQUESTS["AccountService/CreateAccount"](lake(rpc_server.factory))
    )
    assert created.code is CODE.OK, created.text
    assert (
        rpc_server.client(
            "AccountService/GetAccount", v1.GetAccountRequest(account_id=created.message.account.resource_id)
        ).code
        is CODE.OK
    )
    seen = rpc_server.client("AccountService/ListAccounts").message.accounts
    assert {account.resource_id.id for account in seen} == {"a1", created.message.account.resource_id.id}
    assert rpc_server.client("CatalogService/ListCatalogs").message.catalogs[0].resource_id.account_id == "a1"


@pytest.mark.parametrize(
    "path", ["TableService/Nope", "skiway.v1.NopeService/GetTable", "skiway.v2.TableService/GetTable"]
)
def test_unknown_method_is_unimplemented(path, rpc_server: RpcServer):
    assert rpc_server.client(path, b"").code is CODE.UNIMPLEMENTED


def test_door_lists_its_services(rpc_server: RpcServer):
    assert rpc_server.door.service_names == tuple(service.full_name for service in SERVICES)
    assert "skiway.v1.TableService" in rpc_server.door.service_names


@behavior(82)
def test_engine_kind_and_version_are_required_headers(rpc_server: RpcServer):
    get = "SystemObjectsService/GetSystemObjects"
    request = v1.GetSystemObjectsRequest(engine_kind="duckdb", engine_version="1.5.5")
    for headers, key, header in (
        ({}, "builtin.engine.kind.required", "x-engine-kind"),
        ({"x_engine_kind": "duckdb"}, "builtin.engine.version.required", "x-engine-version"),
    ):
        refused = rpc_server.client(get, request, **headers)
        assert (refused.code, refused.error.message_key) == (CODE.INVALID_ARGUMENT, key)
        (violation,) = refused.detail(error_details_pb2.BadRequest).field_violations
        assert violation.field == header
    found = rpc_server.client(get, v1.GetSystemObjectsRequest(), **ENGINE).message.registry
    assert "list_transform" in {function.name for function in found.functions}
