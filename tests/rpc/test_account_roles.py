"""Account roles act only inside their own account; platform roles are separate, and only callers without an account have them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import grpc
import pytest

from rpc.rpc_server import RpcServer, behavior, opened
from skiway.model import v1
from skiway.security import DevAuthenticator, Roles, TokenAuthenticator, new_token

CODE = grpc.StatusCode
OTHER = v1.ResourceId(id="a2")
ATTACKS = {
    "AccountService/GetAccount": v1.GetAccountRequest(account_id=OTHER),
    "AccountService/CreateAccount": v1.CreateAccountRequest(spec=v1.AccountSpec(display_name="mine")),
    "AccountService/UpdateAccount": v1.UpdateAccountRequest(
        account_id=OTHER, spec=v1.AccountSpec(display_name="ours"), update_mask={"paths": ["display_name"]}
    ),
    "AccountService/DeleteAccount": v1.DeleteAccountRequest(account_id=OTHER),
}


class Accounts:
    """Two accounts."""

    def find(self, id_or_name: str) -> str | None:
        return id_or_name if id_or_name in ("a1", "a2") else None

    def first(self) -> str | None:
        return "a1"


@contextmanager
def serving(stores, *, account: str, roles: list[str]) -> Iterator[RpcServer]:
    """A server whose client has a token with these roles."""
    token = new_token("ada", account, roles=roles)
    with opened(stores, authenticator=TokenAuthenticator(lambda: [token.entry], accounts=Accounts())) as rpc_server:
        rpc_server.factory.account("a2")
        rpc_server.client = rpc_server.client.as_(token.text.reveal())
        yield rpc_server


@behavior(34)
@pytest.mark.parametrize("role", sorted({*Roles().table(), "unknown"}))
def test_no_role_of_an_account_acts_on_another_account(stores, role):
    with serving(stores, account="a1", roles=[role]) as rpc_server:
        before = list(stores.pointers.scan(""))
        for operation, request in ATTACKS.items():
            answer = rpc_server.client(operation, request)
            assert answer.code in (CODE.NOT_FOUND, CODE.PERMISSION_DENIED), (operation, answer.text)
        listed = rpc_server.client("AccountService/ListAccounts")
        assert [each.resource_id.id for each in (listed.message.accounts if listed.message else ())] in ([], ["a1"])
        assert list(stores.pointers.scan("")) == before


def test_init_account_changes_its_own_account(stores):
    with serving(stores, account="a1", roles=["init-account"]) as rpc_server:
        update = v1.UpdateAccountRequest(
            account_id=v1.ResourceId(id="a1"),
            spec=v1.AccountSpec(description="sales"),
            update_mask={"paths": ["description"]},
        )
        assert rpc_server.client("AccountService/UpdateAccount", update).message.account.description == "sales"


@pytest.mark.parametrize("role", sorted(Roles().platform_table()))
def test_platform_role_grants_nothing_inside_an_account(stores, role):
    with serving(stores, account="a1", roles=[role]) as rpc_server:
        create = v1.CreateCatalogRequest(spec=v1.CatalogSpec(display_name="mine"))
        assert rpc_server.client("CatalogService/ListCatalogs").code is CODE.OK  # as without a role
        assert rpc_server.client("CatalogService/CreateCatalog", create).code is CODE.PERMISSION_DENIED


def test_platform_administrator_manages_all_accounts(stores):
    with serving(stores, account="", roles=["platform-admin"]) as rpc_server:
        for operation, request in ATTACKS.items():
            assert rpc_server.client(operation, request).code is CODE.OK, operation
        listed = rpc_server.client("AccountService/ListAccounts").message.accounts
        assert {each.display_name for each in listed} == {"account a1", "mine"}


def test_platform_monitor_does_not_manage_accounts(stores):
    with serving(stores, account="", roles=["platform-monitor"]) as rpc_server:
        for operation, request in {**ATTACKS, "AccountService/ListAccounts": v1.ListAccountsRequest()}.items():
            assert rpc_server.client(operation, request).code is CODE.PERMISSION_DENIED, operation


def test_developer_on_this_machine_manages_all_accounts(stores):
    with opened(stores, authenticator=DevAuthenticator(Accounts())) as rpc_server:
        rpc_server.factory.account("a2")
        listed = rpc_server.client.as_("")("AccountService/ListAccounts").message.accounts
        assert [each.resource_id.id for each in listed] == ["a1", "a2"]
