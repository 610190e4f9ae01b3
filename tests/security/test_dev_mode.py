"""Mode dev: everybody is the developer, in the account of choice."""

from __future__ import annotations

import pytest

from security.accounts import KnownAccounts
from skiway.errors import Unauthorized
from skiway.security import DevAuthenticator

ACCOUNTS = KnownAccounts({"a1": "acme", "d1": "default"})


@pytest.mark.parametrize("named", ["a1", "acme", " acme "])
def test_the_header_names_an_account_by_id_or_name(named):
    assert DevAuthenticator(ACCOUNTS).authenticate({"x-skiway-account": named}).account_id == "a1"


@pytest.mark.parametrize("headers", [{}, {"x-skiway-account": " "}, {"authorization": "Bearer whatever"}])
def test_without_a_header_it_is_the_account_default(headers):
    assert DevAuthenticator(ACCOUNTS).authenticate(headers).account_id == "d1"


def test_without_an_account_default_it_is_the_first():
    assert DevAuthenticator(KnownAccounts({"z": "zoo", "a": "ape"})).authenticate({}).account_id == "z"


def test_the_header_can_have_another_name():
    authenticator = DevAuthenticator(ACCOUNTS, account_header="X-Account")
    assert authenticator.authenticate({"x-account": "acme"}).account_id == "a1"
    assert authenticator.authenticate({"x-skiway-account": "acme"}).account_id == "d1"


def test_an_unknown_account_is_refused():
    with pytest.raises(Unauthorized, match="header x-skiway-account names account moon") as refused:
        DevAuthenticator(ACCOUNTS).authenticate({"x-skiway-account": "moon"})
    assert refused.value.key == "account.unknown"


def test_without_any_account_nobody_gets_in():
    with pytest.raises(Unauthorized, match="create one") as refused:
        DevAuthenticator(KnownAccounts({})).authenticate({})
    assert refused.value.key == "account.none"


@pytest.mark.behavior(79)
def test_the_developer_may_do_everything():
    found = DevAuthenticator(ACCOUNTS).authenticate({})
    assert (found.subject, found.roles) == ("dev-user", {"developer"})
    assert found.permissions == {
        *(
            f"{kind}.{way}"
            for kind in ("account", "catalog", "namespace", "table", "view")
            for way in ("read", "write")
        ),
        *("account.delete", "connector.manage", "system-objects.read"),
        *("storage-authority.resolve-internal", "reconcile-executor-control.internal"),
    }
