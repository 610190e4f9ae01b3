"""Grants add privileges on objects, inherited by everything in them, to what roles allow."""

from __future__ import annotations

from base64 import urlsafe_b64decode
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from metastore.resource_factory import ResourceFactory, expect_error
from skiway.errors import AlreadyExists, InvalidArgument, NotFound, PermissionDenied
from skiway.metastore import Realm
from skiway.metastore.records import keys
from skiway.metastore.records.access import AccessDecision, grantees_of
from skiway.metastore.records.kinds import TABLE, VIEW
from skiway.metastore.records.realm import ProtectionGuard
from skiway.metastore.resources import catalogs, directory, grants, namespaces, snapshots, tables, views
from skiway.model import v1
from skiway.storage import ABSENT, CallCounter, Put

READ, WRITE, MANAGE = v1.PV_READ, v1.PV_WRITE, v1.PV_MANAGE


class Lake:
    """`lake.sales.eu.orders`, `lake.sales.people`, the view `lake.sales.totals`, `lake.hr.salaries` and the catalog `other`."""

    def __init__(self, factory: ResourceFactory) -> None:
        self.factory = factory
        self.catalog = factory.catalog("lake")
        self.other = factory.catalog("other")
        self.sales = factory.namespace("sales", catalog=self.catalog)
        self.eu = factory.namespace("sales", "eu", catalog=self.catalog)
        self.hr = factory.namespace("hr", catalog=self.catalog)
        self.orders = factory.table("orders", namespace=self.eu)
        self.people = factory.table("people", namespace=self.sales)
        self.salaries = factory.table("salaries", namespace=self.hr)
        self.totals = factory.view("totals", namespace=self.sales)

    def grant(self, on: Any, privilege: v1.Privilege.ValueType, grantee: str = "user:ada") -> v1.Grant:
        request = v1.AddGrantRequest(object_id=on.resource_id, grantee=grantee, privilege=privilege)
        return grants.add(self.factory.home, request).grant

    def as_(self, subject: str = "ada", *permissions: str, roles: tuple[str, ...] = ()) -> Realm:
        """The realm of a caller with these permissions in the whole account."""
        decision = AccessDecision(
            lambda: self.factory.stores,
            "a1",
            allows=permissions.__contains__,
            grantees=grantees_of(subject, roles),
        )
        return replace(self.factory.home, access=decision, caller=subject)

    def visible(self, realm: Realm) -> set[str]:
        """The names of everything that the realm lists."""
        found = {catalog.display_name for catalog in catalogs.scan(realm)}
        for catalog in (self.catalog, self.other):
            for namespace in namespaces.scan(realm, catalog.resource_id.id):
                found.add(".".join((*namespace.parents, namespace.display_name)))
                found |= {table.display_name for table in tables.scan(realm, namespace.resource_id.id)}
                request = v1.ListViewsRequest(namespace_id=namespace.resource_id)
                found |= {view.display_name for view in views.list_(realm, request).views}
        return found


@pytest.fixture
def lake(factory: ResourceFactory) -> Lake:
    return Lake(factory)


EVERYTHING = {"lake", "other", "sales", "sales.eu", "hr", "orders", "people", "salaries", "totals"}
VISIBLE: dict[str, set[str]] = {
    "catalog": EVERYTHING - {"other"},
    "other": {"other"},
    "sales": {"lake", "sales", "sales.eu", "orders", "people", "totals"},
    "eu": {"lake", "sales", "sales.eu", "orders"},
    "orders": {"lake", "sales", "sales.eu", "orders"},
    "people": {"lake", "sales", "people"},
    "totals": {"lake", "sales", "totals"},
}


@pytest.mark.parametrize("on", VISIBLE)
@pytest.mark.parametrize("privilege", [READ, WRITE, MANAGE])
def test_grant_shows_an_object_with_its_content_and_the_way_to_it(lake: Lake, on: str, privilege: Any) -> None:
    assert lake.visible(lake.as_()) == set()
    lake.grant(getattr(lake, on), privilege)
    assert lake.visible(lake.as_()) == VISIBLE[on]
    assert lake.visible(lake.as_("grace")) == set()
    assert lake.visible(lake.as_("ada", "catalog.read", "namespace.read", "table.read", "view.read")) == EVERYTHING


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_pages_do_not_tell_of_hidden_objects(lake: Lake, size: int) -> None:
    names = [f"{'secret' if number % 3 else 'shown'}-{number:03}" for number in range(20)]
    made = {name: lake.factory.table(name, namespace=lake.hr) for name in names}
    visible = [name for name in names if name.startswith("shown")]
    for name in visible:
        lake.grant(made[name], READ)

    def pages(list_: Callable[[v1.PageRequest], tuple[list[str], v1.PageResponse]]) -> list[list[str]]:
        found, token = [], ""
        while True:
            items, page = list_(v1.PageRequest(page_size=size, page_token=token))
            found.append(items)
            token = page.next_page_token
            assert b"secret" not in urlsafe_b64decode(token + "==")
            assert page.total_size == len(visible)
            if not token:
                return found

    def listed_tables(page: v1.PageRequest) -> tuple[list[str], v1.PageResponse]:
        answer = tables.list_(lake.as_(), v1.ListTablesRequest(namespace_id=lake.hr.resource_id, page=page))
        return [each.display_name for each in answer.tables], answer.page

    def resolved(page: v1.PageRequest) -> tuple[list[str], v1.PageResponse]:
        ref = v1.NameRef(catalog="lake", path=["hr"])
        answer = directory.resolve_fq_tables(lake.as_(), v1.ResolveFQTablesRequest(prefix=ref, page=page))
        return [each.name.name for each in answer.tables], answer.page

    expected = [visible[first : first + size] for first in range(0, len(visible), size)]
    assert pages(listed_tables) == pages(resolved) == expected


def test_grant_to_a_role_is_for_all_callers_with_it(lake: Lake) -> None:
    lake.grant(lake.people, READ, "role:Analyst")
    assert lake.visible(lake.as_("grace", roles=("analyst",))) == VISIBLE["people"]
    assert lake.visible(lake.as_("analyst", roles=("other",))) == set()


def test_privileges_of_several_grants_add_up(lake: Lake) -> None:
    lake.grant(lake.hr, READ)
    lake.grant(lake.salaries, WRITE, "role:payroll")
    lake.grant(lake.orders, READ)
    realm = lake.as_("ada", roles=("payroll",))
    assert lake.visible(realm) == VISIBLE["orders"] | {"hr", "salaries"}
    assert realm.access is not None
    assert realm.access.may("table.write", lake.salaries)
    assert not realm.access.may("table.write", lake.orders)


def attempts(lake: Lake, realm: Realm) -> dict[str, Callable[[], object]]:
    """Changes of, and in, `lake.sales`, which is what the grants of the next test are about."""

    def mask(*paths: str) -> Any:
        return {"paths": list(paths)}

    place = {"catalog_id": lake.catalog.resource_id, "namespace_id": lake.sales.resource_id}
    return {
        "create table": lambda: tables.create(
            realm, v1.CreateTableRequest(spec=v1.TableSpec(display_name="new", schema_json="{}", **place))
        ),
        "change table": lambda: tables.update(
            realm,
            v1.UpdateTableRequest(
                table_id=lake.people.resource_id, spec=v1.TableSpec(description="x"), update_mask=mask("description")
            ),
        ),
        "create snapshot": lambda: snapshots.create(
            realm,
            v1.CreateSnapshotRequest(spec=v1.SnapshotSpec(table_id=lake.people.resource_id, snapshot_id=2)),
        ),
        "set current": lambda: snapshots.set_current(
            realm, v1.SetCurrentSnapshotRequest(table_id=lake.people.resource_id, snapshot_id=1)
        ),
        "delete table": lambda: tables.delete(realm, v1.DeleteTableRequest(table_id=lake.people.resource_id)),
        "delete view": lambda: views.delete(realm, v1.DeleteViewRequest(view_id=lake.totals.resource_id)),
        "create namespace": lambda: namespaces.create(
            realm,
            v1.CreateNamespaceRequest(
                spec=v1.NamespaceSpec(display_name="y", path=["sales", "x"], catalog_id=lake.catalog.resource_id)
            ),
        ),
        "create beside": lambda: namespaces.create(
            realm,
            v1.CreateNamespaceRequest(spec=v1.NamespaceSpec(display_name="z", catalog_id=lake.catalog.resource_id)),
        ),
        "change catalog": lambda: catalogs.update(
            realm,
            v1.UpdateCatalogRequest(
                catalog_id=lake.catalog.resource_id,
                spec=v1.CatalogSpec(description="x"),
                update_mask=mask("description"),
            ),
        ),
        "grant on table": lambda: grants.add(
            realm, v1.AddGrantRequest(object_id=lake.people.resource_id, grantee="user:grace", privilege=READ)
        ),
        "delete namespace": lambda: namespaces.delete(
            realm, v1.DeleteNamespaceRequest(namespace_id=lake.sales.resource_id, require_empty=False)
        ),
        "create catalog": lambda: catalogs.create(
            realm, v1.CreateCatalogRequest(spec=v1.CatalogSpec(display_name="mine"))
        ),
    }


IN_NAMESPACE = {"create table", "create namespace", "delete view", "delete namespace"}
OF_TABLE = {"change table", "create snapshot", "set current", "delete table"}
MAY: dict[tuple[str, int], set[str]] = {
    ("catalog", READ): set(),
    ("catalog", WRITE): IN_NAMESPACE | OF_TABLE | {"create beside"},
    ("catalog", MANAGE): IN_NAMESPACE | OF_TABLE | {"create beside", "change catalog", "grant on table"},
    ("sales", WRITE): IN_NAMESPACE | OF_TABLE,
    ("sales", MANAGE): IN_NAMESPACE | OF_TABLE | {"grant on table"},
    ("people", READ): set(),
    ("people", WRITE): OF_TABLE,
    ("people", MANAGE): OF_TABLE | {"grant on table"},
    ("eu", MANAGE): set(),
    ("other", MANAGE): set(),
}
ATTEMPTS = sorted(IN_NAMESPACE | OF_TABLE | {"create beside", "change catalog", "grant on table", "create catalog"})


@pytest.mark.parametrize("attempt", ATTEMPTS)
@pytest.mark.parametrize(("on", "privilege"), MAY)
def test_grant_allows_exactly_the_changes_of_its_privilege(lake: Lake, on: str, privilege: Any, attempt: str) -> None:
    lake.factory.snapshot(lake.people, 1)
    lake.grant(getattr(lake, on), privilege)
    before = list(lake.factory.stores.pointers.scan(""))
    change = attempts(lake, lake.as_())[attempt]
    if attempt in MAY[on, privilege]:
        change()
        return
    try:
        change()
    except (PermissionDenied, NotFound):
        pass
    else:
        # Deleting what does not exist succeeds, and so does deleting what the caller does not see.
        assert attempt.startswith("delete")
    assert list(lake.factory.stores.pointers.scan("")) == before


def test_all_attempts_are_covered(lake: Lake) -> None:
    assert sorted(attempts(lake, lake.factory.home)) == ATTEMPTS


def test_table_cannot_be_moved_to_where_the_caller_may_not_write(lake: Lake) -> None:
    lake.grant(lake.people, MANAGE)
    lake.grant(lake.hr, READ)
    move = v1.UpdateTableRequest(
        table_id=lake.people.resource_id,
        spec=v1.TableSpec(catalog_id=lake.catalog.resource_id, namespace_id=lake.hr.resource_id),
        update_mask={"paths": ["catalog_id", "namespace_id"]},
    )
    # The privilege on the table itself moves with it, so it must not be enough.
    with pytest.raises(PermissionDenied, match="namespace hr"):
        tables.update(lake.as_(), move)
    lake.grant(lake.hr, WRITE)
    tables.update(lake.as_(), move)


def test_denial_says_what_to_ask_for(lake: Lake) -> None:
    lake.grant(lake.people, READ)
    with pytest.raises(PermissionDenied) as refused:
        tables.delete(lake.as_(), v1.DeleteTableRequest(table_id=lake.people.resource_id))
    assert refused.value.message == (
        "this requires the permission table.write on table people: ask its administrator for the privilege write, or for a "
        "role that has the permission"
    )


def test_hidden_objects_do_not_exist(lake: Lake) -> None:
    lake.grant(lake.people, READ)
    realm = lake.as_()
    with pytest.raises(NotFound):
        tables.get(realm, v1.GetTableRequest(table_id=lake.salaries.resource_id))
    with pytest.raises(NotFound):
        namespaces.get(realm, v1.GetNamespaceRequest(namespace_id=lake.hr.resource_id))
    ref = v1.NameRef(catalog="lake", path=["hr"], name="salaries")
    with pytest.raises(NotFound):
        directory.resolve_table(realm, v1.ResolveTableRequest(ref=ref))
    page = namespaces.list_(realm, v1.ListNamespacesRequest(catalog_id=lake.catalog.resource_id)).page
    assert page.total_size == 1
    dotted = v1.ListNamespacesRequest(catalog_id=lake.catalog.resource_id, recursive=True, name_prefix="sales.e")
    assert namespaces.list_(realm, dotted).page.total_size == 0


def test_new_privilege_replaces_the_old_one_and_revoked_grants_are_gone(lake: Lake) -> None:
    lake.grant(lake.people, MANAGE)
    assert lake.grant(lake.people, READ).privilege == READ
    listed = grants.list_(lake.factory.home, v1.ListGrantsRequest()).grants
    assert [(each.grantee, each.privilege) for each in listed] == [("user:ada", READ)]
    revoke = v1.RevokeGrantRequest(object_id=lake.people.resource_id, grantee="user:ada")
    grants.revoke(lake.factory.home, revoke)
    grants.revoke(lake.factory.home, revoke)
    assert lake.visible(lake.as_()) == set()


def test_grants_are_listed_by_object_and_by_grantee(lake: Lake) -> None:
    for on, grantee in ((lake.people, "user:ada"), (lake.people, "role:analyst"), (lake.hr, "user:ada")):
        lake.grant(on, READ, grantee)

    def listed(**request: Any) -> set[tuple[str, str]]:
        found = grants.list_(lake.factory.home, v1.ListGrantsRequest(**request))
        assert found.page.total_size == len(found.grants)
        return {(each.object_id.id, each.grantee) for each in found.grants}

    people, hr = lake.people.resource_id.id, lake.hr.resource_id.id
    assert listed() == {(people, "user:ada"), (people, "role:analyst"), (hr, "user:ada")}
    assert listed(grantee="user:ada") == {(people, "user:ada"), (hr, "user:ada")}
    assert listed(object_id=lake.people.resource_id) == {(people, "user:ada"), (people, "role:analyst")}
    assert listed(object_id=lake.people.resource_id, grantee="role:ANALYST") == {(people, "role:analyst")}
    assert listed(object_id=lake.hr.resource_id, grantee="user:nobody") == set()


def test_manager_of_an_object_sees_only_its_grants(lake: Lake) -> None:
    lake.grant(lake.sales, MANAGE)
    lake.grant(lake.salaries, READ, "user:grace")
    lake.grant(lake.orders, READ, "user:grace")
    listed = grants.list_(lake.as_(), v1.ListGrantsRequest())
    assert {each.object_id.id for each in listed.grants} == {lake.sales.resource_id.id, lake.orders.resource_id.id}
    request = v1.AddGrantRequest(object_id=lake.salaries.resource_id, grantee="user:ada", privilege=READ)
    with pytest.raises((PermissionDenied, NotFound)):
        grants.add(lake.as_(), request)
    revoke = v1.RevokeGrantRequest(object_id=lake.salaries.resource_id, grantee="user:grace")
    grants.revoke(lake.as_(), revoke)  # does not exist for this caller
    assert len(grants.list_(lake.factory.home, v1.ListGrantsRequest()).grants) == 3


@pytest.mark.parametrize("grantee", ["", "ada", "group:x", "user:", "user:a\nb", "user:" + "x" * 300])
def test_invalid_grantee_is_rejected(lake: Lake, grantee: str) -> None:
    with pytest.raises(InvalidArgument, match="user:<subject>"):
        lake.grant(lake.people, READ, grantee)


def test_invalid_privilege_or_object_is_rejected(lake: Lake) -> None:
    with pytest.raises(InvalidArgument, match="PV_READ"):
        lake.grant(lake.people, v1.PV_UNSPECIFIED)
    connector = v1.ResourceId(account_id="a1", id="k1", kind=v1.RK_CONNECTOR)
    with pytest.raises(InvalidArgument, match="catalog, namespace, table or view"):
        grants.add(lake.factory.home, v1.AddGrantRequest(object_id=connector, grantee="user:ada", privilege=READ))


def test_grants_are_deleted_with_their_object(lake: Lake) -> None:
    for on in (lake.catalog, lake.sales, lake.eu, lake.orders, lake.people, lake.totals, lake.hr):
        lake.grant(on, READ)
        lake.grant(on, WRITE, "role:analyst")

    def left() -> set[str]:
        return {each.object_id.id for each in grants.list_(lake.factory.home, v1.ListGrantsRequest()).grants}

    tables.delete(lake.factory.home, v1.DeleteTableRequest(table_id=lake.people.resource_id))
    assert lake.people.resource_id.id not in left()
    clear = v1.DeleteNamespaceRequest(namespace_id=lake.sales.resource_id, require_empty=False)
    namespaces.delete(lake.factory.home, clear)
    assert left() == {lake.catalog.resource_id.id, lake.hr.resource_id.id}
    catalogs.delete(
        lake.factory.home, v1.DeleteCatalogRequest(catalog_id=lake.catalog.resource_id, require_empty=False)
    )
    assert left() == set()


def test_object_that_was_created_again_has_no_grants(lake: Lake) -> None:
    lake.grant(lake.people, READ)
    tables.delete(lake.factory.home, v1.DeleteTableRequest(table_id=lake.people.resource_id))
    assert lake.visible(lake.as_()) == set()
    again = lake.factory.table("people", namespace=lake.sales)
    assert lake.visible(lake.as_()) == set()
    assert again.resource_id.id != lake.people.resource_id.id


def test_idempotency_key_of_another_caller_is_not_answered(lake: Lake) -> None:
    lake.grant(lake.sales, WRITE)
    lake.grant(lake.sales, WRITE, "user:grace")
    place = {"catalog_id": lake.catalog.resource_id, "namespace_id": lake.sales.resource_id}
    request = v1.CreateTableRequest(
        spec=v1.TableSpec(display_name="new", schema_json="{}", **place), idempotency=v1.IdempotencyKey(key="k")
    )
    made = tables.create(lake.as_(), request).table
    assert tables.create(lake.as_(), request).table == made
    with pytest.raises(AlreadyExists):
        tables.create(lake.as_("grace"), request)
    by_role = replace(lake.factory.home, caller="alan")  # roles admit this caller, so it has no access decision
    with pytest.raises(AlreadyExists):
        tables.create(by_role, request)


def test_idempotency_key_is_not_answered_after_the_rights_have_changed(lake: Lake) -> None:
    lake.grant(lake.sales, WRITE)
    lake.grant(lake.hr, WRITE)
    place = {"catalog_id": lake.catalog.resource_id, "namespace_id": lake.sales.resource_id}
    request = v1.CreateTableRequest(
        spec=v1.TableSpec(display_name="new", schema_json="{}", **place), idempotency=v1.IdempotencyKey(key="k")
    )
    made = tables.create(lake.as_(), request).table
    grants.revoke(lake.factory.home, v1.RevokeGrantRequest(object_id=lake.sales.resource_id, grantee="user:ada"))
    with expect_error(PermissionDenied, "idempotency.rights", idempotency_key="k"):
        tables.create(lake.as_(), request)
    lake.grant(lake.sales, WRITE)
    assert tables.create(lake.as_(), request).table == made


def test_roles_that_suffice_cost_no_lookup_of_grants(lake: Lake, calls: CallCounter) -> None:
    lake.grant(lake.people, READ)
    realm, before = lake.as_("ada", "table.read", "table.write"), calls.total
    assert [type(each) for each in realm.all(TABLE).guards] == [ProtectionGuard]
    assert calls.total == before
    assert len(realm.all(VIEW).guards) == 2


def test_writer_cannot_point_a_table_at_what_a_connector_may_read(lake: Lake) -> None:
    """Whoever reads the table reads with the credentials of its connector, so this would show any table behind it."""
    lake.grant(lake.sales, MANAGE)
    connector = v1.ResourceId(account_id="a1", id="k1", kind=v1.RK_CONNECTOR)
    lake.factory.stores.pointers.apply([Put(keys.connector("a1", "k1"), "blob", expect=ABSENT)])
    upstream = v1.UpstreamRef(connector_id=connector, uri="s3://payroll", table_display_name="salaries")
    place = {"catalog_id": lake.catalog.resource_id, "namespace_id": lake.sales.resource_id}
    create = v1.CreateTableRequest(spec=v1.TableSpec(display_name="mine", schema_json="{}", upstream=upstream, **place))
    update = v1.UpdateTableRequest(
        table_id=lake.people.resource_id, spec=v1.TableSpec(upstream=upstream), update_mask={"paths": ["upstream"]}
    )
    with pytest.raises(PermissionDenied, match=r"connector\.manage"):
        tables.create(lake.as_(), create)
    with pytest.raises(PermissionDenied, match=r"connector\.manage"):
        tables.update(lake.as_(), update)
    manager = lake.as_("ada", "connector.manage")
    assert tables.create(manager, create).table.upstream.uri == "s3://payroll"
    assert tables.update(manager, update).table.upstream.uri == "s3://payroll"
