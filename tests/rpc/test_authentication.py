"""Callers as identified by the real authenticators."""

from __future__ import annotations

import grpc

from rpc.requests import REQUESTS, lake
from rpc.rpc_server import behavior, opened
from skiway.security import DevAuthenticator, TokenAuthenticator, new_token

CODE = grpc.StatusCode
LIST = "CatalogService/ListCatalogs"
CREATE = "CatalogService/CreateCatalog"


class Accounts:
    """The accounts of the tests."""

    def find(self, id_or_name: str) -> str | None:
        return id_or_name if id_or_name in ("a1", "a2") else None

    def first(self) -> str | None:
        return "a1"


@behavior(79)
def test_tokens_grant_the_permissions_of_their_roles(stores):
    ada, reader, gone = (
        new_token(name, "a1", roles=roles)
        for name, roles in (("ada", ["administrator"]), ("reader", ["default"]), ("gone", ["administrator"]))
    )
    platform = new_token("boss", "", roles=["platform-admin"])
    entries = [ada.entry, reader.entry, platform.entry]
    with opened(stores, authenticator=TokenAuthenticator(lambda: entries, accounts=Accounts())) as rpc_server:
        request = REQUESTS[CREATE](lake(rpc_server.factory))
        codes = {
            token.entry.name: [
                rpc_server.client.as_(token.text.reveal())(operation, request).code for operation in (CREATE, LIST)
            ]
            for token in (ada, reader, platform, gone)
        }
        accounts = rpc_server.client.as_(platform.text.reveal())("AccountService/ListAccounts")
        malformed = rpc_server.client(LIST, authorization="Bearer")
    assert codes == {
        "ada": [CODE.OK, CODE.OK],
        "reader": [CODE.PERMISSION_DENIED, CODE.OK],
        "boss": [CODE.PERMISSION_DENIED, CODE.PERMISSION_DENIED],
        "gone": [CODE.UNAUTHENTICATED, CODE.UNAUTHENTICATED],
    }
    assert len(accounts.message.accounts) == 1
    assert malformed.code is CODE.UNAUTHENTICATED


def test_header_selects_the_account_in_development_mode(stores):
    with opened(stores, authenticator=DevAuthenticator(Accounts())) as rpc_server:
        rpc_server.factory.account("a2")
        lake(rpc_server.factory)
        client = rpc_server.client.as_("")
        assert len(client(LIST).message.catalogs) == 1
        assert len(client(LIST, x_skiway_account="a2").message.catalogs) == 0
        assert client(LIST, x_skiway_account="a3").code is CODE.UNAUTHENTICATED
