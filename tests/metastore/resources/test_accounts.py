from __future__ import annotations

import pytest

from metastore.resource_factory import behavior, expect_error, key, mask, names
from skiway.errors import AlreadyExists, Conflict, InvalidArgument, NotFound, PermissionDenied
from skiway.metastore.platform import account_quotas
from skiway.metastore.records import keys
from skiway.metastore.records.kinds import CONNECTOR
from skiway.metastore.resources import accounts, catalogs
from skiway.model import v1

Create, Spec = v1.CreateAccountRequest, v1.AccountSpec


def only(account_id: str) -> v1.ResourceId:
    return v1.ResourceId(account_id=account_id, id=account_id, kind=v1.RK_ACCOUNT)


@behavior(34)
def test_account_gets_the_requested_id_or_a_new_one(factory):
    chosen = accounts.create(factory.platform, Create(spec=Spec(display_name="x"), account_id=v1.ResourceId(id="t-1")))
    assert chosen.account.resource_id == only("t-1")
    given = accounts.create(factory.platform, Create(spec=Spec(display_name="y", tags={"tier": "gold"})))
    assert given.account.resource_id == only("id-0001")
    assert given.account.tags["tier"] == "gold"


@behavior(34)
@pytest.mark.parametrize(
    ("account_id", "error_key"),
    [
        (v1.ResourceId(id=" "), "account.id.id.required"),
        (v1.ResourceId(id="x", kind=v1.RK_TABLE), "account.id.kind.invalid"),
        (v1.ResourceId(id="a/b"), "field.invalid"),
        (v1.ResourceId(id=".."), "field.invalid"),
        (v1.ResourceId(id="by-id"), "field.invalid"),
        (v1.ResourceId(id="x" * 65), "field.invalid"),
    ],
)
def test_invalid_ids_are_rejected(factory, account_id, error_key):
    with expect_error(InvalidArgument, error_key):
        accounts.create(factory.platform, Create(spec=Spec(display_name="x"), account_id=account_id))


@behavior(34)
def test_account_names_are_unique(factory):
    with expect_error(AlreadyExists, "account.already.exists", name="account a1"):
        accounts.create(factory.platform, Create(spec=Spec(display_name="account a1")))


@behavior(34)
def test_only_the_platform_creates_accounts(factory):
    with expect_error(PermissionDenied, "account.platform", account_id="a1"):
        accounts.create(factory.home, Create(spec=Spec(display_name="x")))


@behavior(36, 37)
def test_creation_with_the_same_idempotency_key_is_done_once(factory):
    request = Create(spec=Spec(display_name="x"), idempotency=key("k"))
    assert accounts.create(factory.platform, request) == accounts.create(factory.platform, request)
    request.spec.display_name = "y"
    with expect_error(Conflict, "idempotency.mismatch"):
        accounts.create(factory.platform, request)


def test_platform_sees_all_accounts_and_an_account_only_itself(factory):
    factory.account("a2")
    everyone = accounts.list_(factory.platform, v1.ListAccountsRequest())
    assert (names(everyone.accounts), everyone.page.total_size) == (["account a1", "account a2"], 2)
    own = accounts.list_(factory.home, v1.ListAccountsRequest())
    assert (names(own.accounts), own.page.total_size) == (["account a1"], 1)
    assert accounts.get(factory.home, v1.GetAccountRequest(account_id=only("a1"))).account.display_name == "account a1"
    with expect_error(NotFound, "account", id="a2"):
        accounts.get(factory.home, v1.GetAccountRequest(account_id=only("a2")))
    with expect_error(NotFound, "account", id="a2"):
        accounts.delete(factory.home, v1.DeleteAccountRequest(account_id=only("a2")))


@behavior(25)
def test_ids_of_another_kind_are_rejected(factory):
    with expect_error(InvalidArgument, "kind", wanted="account"):
        accounts.get(factory.platform, v1.GetAccountRequest(account_id=v1.ResourceId(id="a1", kind=v1.RK_VIEW)))
    with expect_error(InvalidArgument, "field", field="account_id"):
        accounts.get(factory.platform, v1.GetAccountRequest())


@behavior(12)
def test_rename_moves_the_name(factory):
    request = v1.UpdateAccountRequest(
        account_id=only("a1"), spec=Spec(display_name="new name"), update_mask=mask("display_name")
    )
    assert accounts.update(factory.platform, request).account.display_name == "new name"
    assert factory.platform.stores.pointers.get(keys.account_name("new name")) is not None
    assert factory.platform.stores.pointers.get(keys.account_name("account a1")) is None


@behavior(26)
def test_description_can_be_cleared_but_not_the_name(factory):
    request = v1.UpdateAccountRequest(account_id=only("a1"), spec=Spec(description="d"))
    request.update_mask.CopyFrom(mask("description"))
    assert accounts.update(factory.home, request).account.description == "d"
    request.spec.ClearField("description")
    assert not accounts.update(factory.home, request).account.HasField("description")
    request.update_mask.CopyFrom(mask("display_name"))
    with expect_error(InvalidArgument, "display.name.cannot.clear"):
        accounts.update(factory.home, request)


@behavior(35)
def test_secrets_are_rejected_in_tags(factory):
    request = v1.UpdateAccountRequest(
        account_id=only("a1"), spec=Spec(tags={"password": "x"}), update_mask=mask("tags")
    )
    with expect_error(InvalidArgument, "property.secret", field="tags"):
        accounts.update(factory.home, request)


@behavior(34)
def test_account_that_is_not_empty_is_not_deleted(factory):
    catalog = factory.catalog()
    factory.home.all(CONNECTOR).create(
        v1.Connector(resource_id=v1.ResourceId(account_id="a1", id="c"), display_name="c")
    )
    request = v1.DeleteAccountRequest(account_id=only("a1"))
    with expect_error(Conflict, "account.not_empty", found="1 catalog and 1 connector"):
        accounts.delete(factory.platform, request)
    catalogs.delete(factory.home, v1.DeleteCatalogRequest(catalog_id=catalog.resource_id))
    with expect_error(Conflict, "account.not_empty", found="1 connector"):
        accounts.delete(factory.platform, request)


@behavior(34)
def test_empty_account_is_deleted_and_its_name_is_free(factory):
    assert accounts.delete(factory.platform, v1.DeleteAccountRequest(account_id=only("a1"))).meta.pointer_version == 1
    left = [pointer.key for pointer in factory.stores.pointers.scan()]
    assert [key for key in left if not key.startswith("/events/")] == [], "only its events stay, until they expire"
    factory.account("a1")


def test_quotas_are_stored_replaced_and_cleared(factory):
    made = accounts.create(factory.platform, Create(spec=Spec(display_name="q", quotas={"caller.scans": 4})))
    account_id = made.account.resource_id
    assert account_quotas(factory.home.stores, account_id.id) == {"caller.scans": 4}
    request = v1.UpdateAccountRequest(account_id=account_id, update_mask=mask("quotas"))
    request.spec.quotas["account.per_second"] = 1.5
    assert dict(accounts.update(factory.platform, request).account.quotas) == {"account.per_second": 1.5}
    request.spec.ClearField("quotas")
    assert not accounts.update(factory.platform, request).account.quotas
    assert account_quotas(factory.home.stores, "unknown") == {}


@pytest.mark.parametrize(
    ("name", "value"),
    [("scans", 1), ("caller.scans", 0), ("caller.scans", 1.5), ("account.per_second", float("inf")), ("x.calls", 2)],
)
def test_invalid_quotas_are_rejected(factory, name, value):
    with expect_error(InvalidArgument, "field.invalid"):
        accounts.create(factory.platform, Create(spec=Spec(display_name="q", quotas={name: value})))
