from __future__ import annotations

import pytest

from metastore.world import behaviour, key, mask, names, refused
from skiway.errors import AlreadyExists, Conflict, InvalidArgument, NotFound, PermissionDenied
from skiway.metastore.records import keys
from skiway.metastore.records.kinds import CONNECTOR
from skiway.metastore.resources import accounts, catalogs
from skiway.model import v1

Create, Spec = v1.CreateAccountRequest, v1.AccountSpec


def only(account_id: str) -> v1.ResourceId:
    return v1.ResourceId(account_id=account_id, id=account_id, kind=v1.RK_ACCOUNT)


@behaviour(34)
def test_an_account_gets_the_id_asked_for_or_a_new_one(world):
    chosen = accounts.create(world.platform, Create(spec=Spec(display_name="x"), account_id=v1.ResourceId(id="t-1")))
    assert chosen.account.resource_id == only("t-1")
    given = accounts.create(world.platform, Create(spec=Spec(display_name="y", tags={"tier": "gold"})))
    assert given.account.resource_id == only("id-0001")
    assert given.account.tags["tier"] == "gold"


@behaviour(34)
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
def test_ids_that_cannot_be_are_refused(world, account_id, error_key):
    with refused(InvalidArgument, error_key):
        accounts.create(world.platform, Create(spec=Spec(display_name="x"), account_id=account_id))


@behaviour(34)
def test_names_are_unique_over_all_accounts(world):
    with refused(AlreadyExists, "account.already.exists", name="account a1"):
        accounts.create(world.platform, Create(spec=Spec(display_name=" account  a1")))


@behaviour(34)
def test_only_the_platform_creates_accounts(world):
    with refused(PermissionDenied, "account.platform", account_id="a1"):
        accounts.create(world.home, Create(spec=Spec(display_name="x")))


@behaviour(36, 37)
def test_a_key_makes_a_repeated_creation_one(world):
    request = Create(spec=Spec(display_name="x"), idempotency=key("k"))
    assert accounts.create(world.platform, request) == accounts.create(world.platform, request)
    request.spec.display_name = "y"
    with refused(Conflict, "idempotency.mismatch"):
        accounts.create(world.platform, request)


def test_the_platform_sees_all_accounts_and_an_account_only_itself(world):
    world.account("a2")
    everyone = accounts.list_(world.platform, v1.ListAccountsRequest())
    assert (names(everyone.accounts), everyone.page.total_size) == (["account a1", "account a2"], 2)
    own = accounts.list_(world.home, v1.ListAccountsRequest())
    assert (names(own.accounts), own.page.total_size) == (["account a1"], 1)
    assert accounts.get(world.home, v1.GetAccountRequest(account_id=only("a1"))).account.display_name == "account a1"
    with refused(NotFound, "account", id="a2"):
        accounts.get(world.home, v1.GetAccountRequest(account_id=only("a2")))
    with refused(NotFound, "account", id="a2"):
        accounts.delete(world.home, v1.DeleteAccountRequest(account_id=only("a2")))


@behaviour(25)
def test_ids_of_another_kind_are_refused(world):
    with refused(InvalidArgument, "kind", wanted="account"):
        accounts.get(world.platform, v1.GetAccountRequest(account_id=v1.ResourceId(id="a1", kind=v1.RK_VIEW)))
    with refused(InvalidArgument, "field", field="account_id"):
        accounts.get(world.platform, v1.GetAccountRequest())


@behaviour(12)
def test_a_rename_is_normalised_and_moves_the_name(world):
    request = v1.UpdateAccountRequest(
        account_id=only("a1"), spec=Spec(display_name=" new\u3000name "), update_mask=mask("display_name")
    )
    assert accounts.update(world.platform, request).account.display_name == "new name"
    assert world.platform.stores.pointers.get(keys.account_name("account a1")) is None


@behaviour(26)
def test_a_name_cannot_be_cleared_a_description_can(world):
    request = v1.UpdateAccountRequest(account_id=only("a1"), spec=Spec(description="d"))
    request.update_mask.CopyFrom(mask("description"))
    assert accounts.update(world.home, request).account.description == "d"
    request.spec.ClearField("description")
    assert not accounts.update(world.home, request).account.HasField("description")
    request.update_mask.CopyFrom(mask("display_name"))
    with refused(InvalidArgument, "display.name.cannot.clear"):
        accounts.update(world.home, request)


@behaviour(35)
def test_tags_hold_no_secrets(world):
    request = v1.UpdateAccountRequest(
        account_id=only("a1"), spec=Spec(tags={"password": "x"}), update_mask=mask("tags")
    )
    with refused(InvalidArgument, "property.secret", field="tags"):
        accounts.update(world.home, request)


@behaviour(34)
def test_an_account_that_holds_something_is_not_deleted(world):
    catalog = world.catalog()
    world.home.all(CONNECTOR).create(v1.Connector(resource_id=v1.ResourceId(account_id="a1", id="c"), display_name="c"))
    request = v1.DeleteAccountRequest(account_id=only("a1"))
    with refused(Conflict, "account.not_empty", found="1 catalog and 1 connector"):
        accounts.delete(world.platform, request)
    catalogs.delete(world.home, v1.DeleteCatalogRequest(catalog_id=catalog.resource_id))
    with refused(Conflict, "account.not_empty", found="1 connector"):
        accounts.delete(world.platform, request)


@behaviour(34)
def test_an_empty_account_is_deleted_and_its_name_free(world):
    assert accounts.delete(world.platform, v1.DeleteAccountRequest(account_id=only("a1"))).meta.pointer_version == 1
    assert list(world.stores.pointers.scan()) == []
    world.account("a1")
