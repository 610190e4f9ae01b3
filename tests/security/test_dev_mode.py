"""Mode dev: every caller is the developer, in the account of their choice."""

from __future__ import annotations

import pytest

from security.accounts import KnownAccounts
from skiway.errors import Unauthorized
from skiway.security import DevAuthenticator

ACCOUNTS = KnownAccounts({"a1": "acme", "d1": "default"})


@pytest.mark.parametrize("named", ["a1", "acme", " acme "])
def test_header_selects_an_account_by_id_or_name(named):
    assert DevAuthenticator(ACCOUNTS).authenticate({"x-skiway-account": named}).account_id == "a1"


@pytest.mark.parametrize("headers", [{}, {"x-skiway-account": " "}, {"authorization": "Bearer whatever"}])
def test_account_named_default_is_used_without_a_header(headers):
    assert DevAuthenticator(ACCOUNTS).authenticate(headers).account_id == "d1"


def test_first_account_is_used_if_there_is_no_default():
    assert DevAuthenticator(KnownAccounts({"z": "zoo", "a": "ape"})).authenticate({}).account_id == "z"


def test_header_name_is_configurable():
    authenticator = DevAuthenticator(ACCOUNTS, account_header="X-Account")
    assert authenticator.authenticate({"x-account": "acme"}).account_id == "a1"
    assert authenticator.authenticate({"x-skiway-account": "acme"}).account_id == "d1"


def test_unknown_account_is_rejected():
    with pytest.raises(Unauthorized, match="header x-skiway-account names account moon") as refused:
        DevAuthenticator(ACCOUNTS).authenticate({"x-skiway-account": "moon"})
    assert refused.value.key == "account.unknown"


def test_callers_are_rejected_if_there_are_no_accounts():
    with pytest.raises(Unauthorized, match="create one") as refused:
        DevAuthenticator(KnownAccounts({})).authenticate({})
    assert refused.value.key == "account.none"


@pytest.mark.behavior(79)
def test_developer_has_all_permissions():
    found = DevAuthenticator(ACCOUNTS).authenticate({})
    assert (found.subject, found.roles) == ("dev-user", {"developer"})
    assert found.permissions == {
        *(
            f"{kind}.{action}"
            for kind in ("account", "catalog", "namespace", "table", "view")
            for action in ("read", "write")
        ),
        *(
            "account.delete",
            "connector.manage",
            "system-objects.read",
            "grant.manage",
            "policy.manage",
            "webhook.manage",
        ),
        *("storage-authority.resolve-internal", "reconcile-executor-control.internal"),
        *("platform.accounts", "platform.observe"),
    }
