from __future__ import annotations

from datetime import timedelta

import pytest

from metastore.integrity import damage
from metastore.resource_factory import behavior, expect_error, key, mask, names
from skiway.errors import AlreadyExists, Conflict, Contention, InvalidArgument, NotFound, PreconditionFailed
from skiway.metastore import Realm
from skiway.metastore.records import keys
from skiway.metastore.records.realm import timestamp
from skiway.metastore.resources import catalogs
from skiway.model import v1

Create, Update, Delete, Get = (
    v1.CreateCatalogRequest,
    v1.UpdateCatalogRequest,
    v1.DeleteCatalogRequest,
    v1.GetCatalogRequest,
)
Spec = v1.CatalogSpec


def test_catalog_is_stored_as_requested_with_a_new_id(factory):
    spec = Spec(display_name="my lake", description="all", connector_ref="c", policy_ref="p", properties={"k": "v"})
    created = catalogs.create(factory.home, Create(spec=spec))
    assert created.catalog == v1.Catalog(
        resource_id=v1.ResourceId(account_id="a1", id="id-0001", kind=v1.RK_CATALOG),
        display_name="my lake",
        description="all",
        connector_ref="c",
        policy_ref="p",
        properties={"k": "v"},
        created_at=timestamp(factory.clock()),
        updated_at=timestamp(factory.clock()),
    )
    assert created.meta.pointer_key == "/accounts/a1/catalogs/by-id/id-0001"
    assert (created.meta.pointer_version, created.meta.updated_at) == (1, timestamp(factory.clock()))
    found = catalogs.get(factory.home, Get(catalog_id=created.catalog.resource_id))
    assert (found.catalog, found.meta) == (created.catalog, created.meta)


@behavior(9, 19)
def test_names_are_unique_and_case_is_preserved(factory):
    factory.catalog("my lake")
    with expect_error(AlreadyExists, "catalog.already.exists", name="my lake"):
        factory.catalog("my lake")
    assert factory.catalog("My lake").display_name == "My lake"


def test_creation_in_a_missing_account_is_rejected(factory):
    with expect_error(NotFound, "account", id="nobody"):
        catalogs.create(factory.realm("nobody"), Create(spec=Spec(display_name="x")))


@pytest.mark.parametrize(
    ("request_", "error_key"),
    [
        (Create(), "spec.required"),
        (Create(spec=Spec()), "display.name.required"),
        (Create(spec=Spec(display_name=" ")), "display.name.required"),
    ],
)
def test_catalog_needs_a_name(factory, request_, error_key):
    with expect_error(InvalidArgument, error_key):
        catalogs.create(factory.home, request_)


@behavior(35)
@pytest.mark.parametrize("secret", ["password", "clientSecret", "secret-access-key", "API_KEY", "token", "access.key"])
def test_properties_that_look_like_secrets_are_rejected(factory, secret):
    with expect_error(InvalidArgument, "property.secret", field="properties", property=secret):
        factory.catalog(properties={secret: "x"})
    catalog = factory.catalog()
    with expect_error(InvalidArgument, "property.secret"):
        catalogs.update(
            factory.home,
            Update(catalog_id=catalog.resource_id, spec=Spec(properties={secret: "x"}), update_mask=mask("properties")),
        )


@behavior(35)
def test_harmless_properties_are_accepted(factory):
    assert factory.catalog(properties={"token_type": "x", "partition_key": "y"}).properties["token_type"] == "x"


@behavior(12)
def test_rename_frees_the_old_name_and_keeps_the_id(factory):
    catalog = factory.catalog("old")
    factory.clock.advance(60)
    request = Update(
        catalog_id=catalog.resource_id, spec=Spec(display_name="new name"), update_mask=mask("display_name")
    )
    updated = catalogs.update(factory.home, request)
    assert updated.catalog.display_name == "new name"
    assert updated.catalog.resource_id == catalog.resource_id
    assert (updated.meta.pointer_version, updated.meta.updated_at) == (2, timestamp(factory.clock()))
    assert updated.catalog.created_at == catalog.created_at
    factory.catalog("old")
    assert names(catalogs.list_(factory.home, v1.ListCatalogsRequest()).catalogs) == ["new name", "old"]
    assert damage(factory.stores) == []


@behavior(25)
@pytest.mark.parametrize(
    ("paths", "error_key"),
    [
        ([], "update.mask.required"),
        ([" "], "update.mask.path.invalid"),
        (["resource_id"], "update.mask.path.invalid"),
        (["display_name", "color"], "update.mask.path.invalid"),
    ],
)
def test_update_mask_must_name_mutable_fields(factory, paths, error_key):
    catalog = factory.catalog()
    with expect_error(InvalidArgument, error_key):
        catalogs.update(factory.home, Update(catalog_id=catalog.resource_id, update_mask=mask(*paths)))


@behavior(26)
def test_masked_fields_that_are_absent_are_cleared_and_others_are_unchanged(factory):
    catalog = factory.catalog("lake", description="d", policy_ref="p", properties={"a": "1"})
    request = Update(catalog_id=catalog.resource_id, spec=Spec(), update_mask=mask(" Description ", "properties"))
    cleared = catalogs.update(factory.home, request).catalog
    assert not cleared.HasField("description")
    assert (dict(cleared.properties), cleared.policy_ref, cleared.display_name) == ({}, "p", "lake")


@behavior(26)
def test_empty_description_differs_from_an_absent_one(factory):
    catalog = factory.catalog("lake", description="d")
    request = Update(catalog_id=catalog.resource_id, spec=Spec(description=""), update_mask=mask("description"))
    assert catalogs.update(factory.home, request).catalog.HasField("description")


@behavior(26)
def test_name_cannot_be_cleared(factory):
    catalog = factory.catalog()
    with expect_error(InvalidArgument, "display.name.cannot.clear", field="display_name"):
        catalogs.update(factory.home, Update(catalog_id=catalog.resource_id, update_mask=mask("display_name")))


@behavior(13, 27)
def test_update_without_a_change_keeps_version_and_etag(factory):
    created = catalogs.create(factory.home, Create(spec=Spec(display_name="lake")))
    factory.clock.advance(60)
    for precondition in (
        v1.Precondition(),
        v1.Precondition(expected_version=1, expected_etag=created.meta.etag),
    ):
        request = Update(
            catalog_id=created.catalog.resource_id,
            spec=Spec(display_name="lake"),
            update_mask=mask("display_name"),
            precondition=precondition,
        )
        updated = catalogs.update(factory.home, request)
        assert (updated.catalog, updated.meta) == (created.catalog, created.meta)


@behavior(27)
@pytest.mark.parametrize("spec", [Spec(description="x"), Spec()], ids=["a change", "no change"])
@pytest.mark.parametrize(
    ("precondition", "error_key"),
    [
        (v1.Precondition(expected_version=2), "version.mismatch"),
        (v1.Precondition(expected_version=0), "version.mismatch"),
        (v1.Precondition(expected_etag="stale"), "etag.mismatch"),
        (v1.Precondition(expected_version=1, expected_etag="stale"), "etag.mismatch"),
    ],
)
def test_update_and_delete_with_a_failed_precondition_are_rejected(factory, spec, precondition, error_key):
    catalog_id = factory.catalog().resource_id
    with expect_error(PreconditionFailed, error_key):
        catalogs.update(
            factory.home,
            Update(catalog_id=catalog_id, spec=spec, update_mask=mask("description"), precondition=precondition),
        )
    with expect_error(PreconditionFailed, error_key):
        catalogs.delete(factory.home, Delete(catalog_id=catalog_id, precondition=precondition))
    assert catalogs.get(factory.home, Get(catalog_id=catalog_id)).meta.pointer_version == 1


def test_delete_returns_the_last_metadata_and_can_be_repeated(factory):
    created = catalogs.create(factory.home, Create(spec=Spec(display_name="lake")))
    request = Delete(catalog_id=created.catalog.resource_id)
    assert catalogs.delete(factory.home, request).meta == created.meta
    again = catalogs.delete(factory.home, request).meta
    assert (again.pointer_version, again.etag) == (0, "")
    with expect_error(NotFound, "catalog", id=created.catalog.resource_id.id):
        catalogs.get(factory.home, Get(catalog_id=created.catalog.resource_id))
    request.precondition.expected_version = 1
    with expect_error(NotFound, "catalog"):
        catalogs.delete(factory.home, request)
    assert [each.key for each in factory.stores.pointers.scan(keys.of_account("a1"))] == []


@behavior(14)
def test_catalog_with_a_missing_blob_can_be_deleted_and_its_name_reused(factory):
    created = catalogs.create(factory.home, Create(spec=Spec(display_name="lake")))
    factory.stores.blobs.delete(created.meta.blob_uri)
    meta = catalogs.delete(factory.home, Delete(catalog_id=created.catalog.resource_id)).meta
    assert (meta.pointer_version, meta.HasField("updated_at")) == (1, False)
    factory.catalog("lake")


@behavior(25)
def test_blank_ids_and_ids_of_another_kind_are_rejected(factory):
    with expect_error(InvalidArgument, "kind", field="catalog_id", found="table", wanted="catalog"):
        catalogs.get(factory.home, Get(catalog_id=v1.ResourceId(id="x", kind=v1.RK_TABLE)))
    with expect_error(InvalidArgument, "field", field="catalog_id"):
        catalogs.get(factory.home, Get(catalog_id=v1.ResourceId(id=" ")))
    with expect_error(InvalidArgument, "field", field="catalog_id"):
        catalogs.delete(factory.home, Delete())


@behavior(5, 23)
def test_pages_list_each_catalog_once_while_others_are_created_and_deleted(factory):
    made = {name: factory.catalog(name) for name in "abcdefg"}
    page = v1.PageRequest(page_size=3)
    first = catalogs.list_(factory.home, v1.ListCatalogsRequest(page=page))
    assert (names(first.catalogs), first.page.total_size) == (["a", "b", "c"], 7)
    catalogs.delete(factory.home, Delete(catalog_id=made["c"].resource_id))
    factory.catalog("aa")
    factory.catalog("ee")
    page.page_token = first.page.next_page_token
    second = catalogs.list_(factory.home, v1.ListCatalogsRequest(page=page))
    assert names(second.catalogs) == ["d", "e", "ee"]
    page.page_token = second.page.next_page_token
    last = catalogs.list_(factory.home, v1.ListCatalogsRequest(page=page))
    assert (names(last.catalogs), last.page.next_page_token, last.page.total_size) == (["f", "g"], "", 8)


@behavior(23)
@pytest.mark.parametrize("token", ["nonsense", "AAAA", "ä"])
def test_page_token_of_another_listing_is_rejected(factory, token):
    with expect_error(InvalidArgument, "page.token.invalid"):
        catalogs.list_(factory.home, v1.ListCatalogsRequest(page=v1.PageRequest(page_token=token)))


def test_page_size_is_limited(factory):
    for number in range(55):
        factory.catalog(f"{number:02d}")
    for size, shown in ((0, 50), (-1, 50), (1, 1), (5000, 55)):
        page = v1.PageRequest(page_size=size)
        assert len(catalogs.list_(factory.home, v1.ListCatalogsRequest(page=page)).catalogs) == shown


def test_number_of_store_calls_does_not_grow_with_the_account(factory, calls):
    def cost() -> list[int]:
        counts = []
        name = f"new {factory.ids()}"
        calls.reset()
        created = factory.catalog(name)
        counts.append(calls.total)
        calls.reset()
        catalogs.get(factory.home, Get(catalog_id=created.resource_id))
        counts.append(calls.total)
        calls.reset()
        catalogs.list_(factory.home, v1.ListCatalogsRequest(page=v1.PageRequest(page_size=2)))
        counts.append(calls.total)
        return counts

    factory.catalog("first")
    few = cost()
    for number in range(100):
        factory.catalog(f"{number}")
    assert cost() == few == [4, 2, 4]


@behavior(36)
def test_creation_with_the_same_idempotency_key_is_done_once(factory):
    request = Create(spec=Spec(display_name="lake"), idempotency=key("k1"))
    first = catalogs.create(factory.home, request)
    factory.clock.advance(60)
    assert catalogs.create(factory.home, request) == first
    assert damage(factory.stores) == []


@behavior(19)
def test_name_that_is_not_normal_neither_uses_nor_replays_an_idempotency_key(factory):
    normal = Create(spec=Spec(display_name="my lake"), idempotency=key("k1"))
    other = Create(spec=Spec(display_name=" my\t lake"), idempotency=key("k1"))
    with expect_error(InvalidArgument, "name.not.normal", wanted="'my lake'"):
        catalogs.create(factory.home, other)
    first = catalogs.create(factory.home, normal)
    with expect_error(InvalidArgument, "name.not.normal", wanted="'my lake'"):
        catalogs.create(factory.home, other)
    assert catalogs.create(factory.home, normal) == first


@behavior(37)
@pytest.mark.parametrize(
    "other",
    [Spec(display_name="pond"), Spec(display_name="lake", description=""), Spec(display_name="lake", policy_ref="p")],
)
def test_idempotency_key_of_another_request_is_rejected(factory, other):
    catalogs.create(factory.home, Create(spec=Spec(display_name="lake"), idempotency=key("k1")))
    with expect_error(Conflict, "idempotency.mismatch", op="CreateCatalog", idempotency_key="k1"):
        catalogs.create(factory.home, Create(spec=other, idempotency=key("k1")))


@behavior(39)
def test_stored_response_is_returned_after_the_catalog_is_changed_or_deleted(factory):
    request = Create(spec=Spec(display_name="lake"), idempotency=key("k1"))
    first = catalogs.create(factory.home, request)
    catalogs.update(
        factory.home,
        Update(catalog_id=first.catalog.resource_id, spec=Spec(display_name="pond"), update_mask=mask("display_name")),
    )
    assert catalogs.create(factory.home, request) == first
    catalogs.delete(factory.home, Delete(catalog_id=first.catalog.resource_id))
    assert catalogs.create(factory.home, request) == first
    assert catalogs.list_(factory.home, v1.ListCatalogsRequest()).page.total_size == 0


@behavior(40)
def test_failed_creation_leaves_its_idempotency_key_free(factory):
    taken = factory.catalog("lake")
    request = Create(spec=Spec(display_name="lake"), idempotency=key("k1"))
    with expect_error(AlreadyExists, "catalog.already.exists"):
        catalogs.create(factory.home, request)
    catalogs.delete(factory.home, Delete(catalog_id=taken.resource_id))
    assert catalogs.create(factory.home, request).catalog.resource_id != taken.resource_id


@behavior(41, 42)
def test_expired_idempotency_key_can_be_reused(factory):
    request = Create(spec=Spec(display_name="lake"), idempotency=key("k1"))
    first = catalogs.create(factory.home, request)
    factory.clock.advance(899)
    assert catalogs.create(factory.home, request) == first
    factory.clock.advance(1)
    other = Create(spec=Spec(display_name="pond"), idempotency=key("k1"))
    second = catalogs.create(factory.home, other)
    assert second.catalog.display_name == "pond"
    factory.clock.advance(1)
    factory.stores.pointers.purge_expired()
    assert catalogs.create(factory.home, other) == second


def test_idempotency_keys_belong_to_their_account_and_call(factory):
    factory.account("a2")
    first = catalogs.create(factory.home, Create(spec=Spec(display_name="lake"), idempotency=key("k1")))
    other_account = catalogs.create(factory.realm("a2"), Create(spec=Spec(display_name="other"), idempotency=key("k1")))
    assert first.catalog.resource_id != other_account.catalog.resource_id


@behavior(24)
def test_closing_catalog_accepts_no_children_until_the_marker_expires(factory):
    """The process that was deleting it crashed after closing it."""
    from skiway.metastore.records.updates import close_parent

    account = factory.stores.pointers.get(keys.account("a1"))
    close_parent(factory.platform, account, resource="account")
    with pytest.raises(Contention):
        factory.catalog()
    factory.clock.advance(30)
    factory.catalog()


@behavior(24)
def test_delete_whose_closing_marker_expired_fails(factory):
    """It was so slow that a child was created and another process closed the parent again."""
    from skiway.metastore.records.kinds import ACCOUNT
    from skiway.metastore.records.updates import close_parent, reopening

    repository = factory.platform.all(ACCOUNT)
    found = repository.find(keys.account("a1"))
    slow = close_parent(factory.platform, found.pointer, resource="account")
    factory.clock.advance(31)
    factory.catalog()
    with pytest.raises(Contention):
        repository.delete(slow, found.value, also=reopening(slow))
    close_parent(factory.platform, slow, resource="account")
    with expect_error(PreconditionFailed, "version.mismatch"):
        repository.delete(slow, found.value, also=reopening(slow))
    assert repository.find(keys.account("a1")) is not None


def test_realm_uses_utc_by_default(stores):
    assert Realm(stores, "a1").clock().utcoffset() == timedelta(0)
