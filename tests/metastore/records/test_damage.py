"""A lost or corrupt blob affects one row of a listing, which is marked; everything else stays readable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from metastore.mirrors import connector
from metastore.resource_factory import ResourceFactory, expect_error
from skiway.errors import Internal, NotFound, PreconditionFailed
from skiway.metastore import (
    Realm,
    accounts,
    catalogs,
    connectors,
    directory,
    grants,
    jobs,
    namespaces,
    policies,
    snapshots,
    statistics,
    tables,
    views,
)
from skiway.metastore.records import keys
from skiway.metastore.records.access import AccessDecision
from skiway.metastore.records.damage import partial_record
from skiway.metastore.records.kinds import KINDS
from skiway.model import v1

LOST = "its record is missing in the blob store"
CORRUPT = "its record in the blob store is corrupt"
LISTED = ("account", "catalog", "namespace", "table", "view", "snapshot", "grant", "policy", "connector", "job")


def lose(factory: ResourceFactory, key: str) -> None:
    """Delete the blob of a resource."""
    pointer = factory.stores.pointers.get(key)
    assert pointer is not None
    factory.stores.blobs.delete(pointer.blob_uri)


def corrupt(factory: ResourceFactory, key: str) -> None:
    """Replace the content of the blob of a resource."""
    pointer = factory.stores.pointers.get(key)
    assert pointer is not None
    factory.stores.blobs._overwrite(pointer.blob_uri, b"what is this")


@pytest.fixture
def populated(factory: ResourceFactory) -> ResourceFactory:
    """Two resources of each kind."""
    factory.account("a2")
    for name in ("first", "second"):
        factory.catalog(name)
    lake = factory.first_catalog()
    for path in (("sales",), ("sales", "eu /1")):
        factory.namespace(*path, catalog=lake)
    for name in ("people", "Ü/x y"):
        factory.table(name)
        factory.view(f"view of {name}")
    people = tables.find(factory.home, factory.first_namespace().resource_id.id, "people")
    assert people is not None
    for number in (1, 2):
        factory.snapshot(people, number, at=number)
    for name in ("files", "more"):
        made = connector(factory, name)
        connectors.trigger(factory.home, v1.TriggerReconcileRequest(connector_id=made.resource_id))
        factory.clock.advance(1)
    for grantee in ("user:ada", "role:analyst"):
        grants.add(
            factory.home, v1.AddGrantRequest(object_id=people.resource_id, grantee=grantee, privilege=v1.PV_READ)
        )
    for name in ("filters", "no e-mail"):
        mask = v1.PolicyMask(kind=v1.MK_NULL, columns=["*mail"])
        spec = v1.PolicySpec(display_name=name, subjects=["everyone"], mask=mask)
        policies.calls(lambda *_: []).create(factory.home, v1.CreatePolicyRequest(spec=spec))
    return factory


def listing(factory: ResourceFactory, noun: str) -> list[Any]:
    """The rows of a kind, as a client lists them."""
    realm = factory.home
    match noun:
        case "account":
            return list(accounts.list_(factory.platform, v1.ListAccountsRequest()).accounts)
        case "catalog":
            return list(catalogs.list_(realm, v1.ListCatalogsRequest()).catalogs)
        case "namespace":
            first = factory.first_catalog().resource_id
            return list(namespaces.list_(realm, v1.ListNamespacesRequest(catalog_id=first, recursive=True)).namespaces)
        case "table":
            namespace_id = factory.first_namespace().resource_id
            return list(tables.list_(realm, v1.ListTablesRequest(namespace_id=namespace_id)).tables)
        case "view":
            namespace_id = factory.first_namespace().resource_id
            return list(views.list_(realm, v1.ListViewsRequest(namespace_id=namespace_id)).views)
        case "snapshot":
            table_id = next(each for each in listing(factory, "table") if each.display_name == "people").resource_id
            return list(snapshots.list_(realm, v1.ListSnapshotsRequest(table_id=table_id)).snapshots)
        case "grant":
            return list(grants.list_(realm, v1.ListGrantsRequest()).grants)
        case "policy":
            return list(policies.calls(lambda *_: []).list_(realm, v1.ListPoliciesRequest()).policies)
        case "connector":
            return list(connectors.list_(realm, v1.ListConnectorsRequest()).connectors)
        case "job":
            return list(jobs.list_(realm, v1.ListReconcileJobsRequest()).jobs)
    raise AssertionError(noun)


def kind_of(noun: str) -> Any:
    return next(kind for kind in KINDS if kind.noun == noun)


@pytest.mark.parametrize(("damage", "told"), [(lose, LOST), (corrupt, CORRUPT)])
@pytest.mark.parametrize("noun", LISTED)
def test_damaged_record_is_one_marked_row(
    populated: ResourceFactory, noun: str, damage: Callable[[ResourceFactory, str], None], told: str
):
    kind, before = kind_of(noun), listing(populated, noun)
    assert len(before) == 2
    damage(populated, kind.key(before[1]))
    after = listing(populated, noun)
    assert after[0] == before[0]
    assert after[1].damage == told
    assert kind.key(after[1]) == kind.key(before[1])
    assert kind.title(after[1]) == kind.title(before[1])


@pytest.mark.parametrize("noun", LISTED)
def test_keys_tell_the_ids_and_names_of_a_record(populated: ResourceFactory, noun: str):
    """`partial_record` is the inverse of `Kind.key` and `Kind.names`."""
    kind = kind_of(noun)
    for value in listing(populated, noun):
        found = partial_record(kind.message, noun, (kind.key(value), *kind.names(value)), "lost")
        assert found is not None
        known = [field.name for field, _ in found.ListFields() if field.name not in ("damage", "account_id")]
        stored = {name: getattr(value, name) for name in known}
        if noun == "grant":
            stored["object_id"] = v1.ResourceId(account_id="a1", id=value.object_id.id)
        assert {name: getattr(found, name) for name in known} == stored
        assert kind.key(found) == kind.key(value)


def test_pages_and_totals_include_damaged_records(populated: ResourceFactory):
    first, second = listing(populated, "catalog")
    lose(populated, keys.catalog("a1", first.resource_id.id))
    page = catalogs.list_(populated.home, v1.ListCatalogsRequest(page=v1.PageRequest(page_size=1)))
    assert [bool(each.damage) for each in page.catalogs] == [True]
    assert page.page.total_size == 2
    token = v1.PageRequest(page_size=1, page_token=page.page.next_page_token)
    assert list(catalogs.list_(populated.home, v1.ListCatalogsRequest(page=token)).catalogs) == [second]


def test_contents_of_a_damaged_container_are_listed_and_resolved(populated: ResourceFactory):
    namespace, catalog = populated.first_namespace(), populated.first_catalog()
    inside = listing(populated, "table")
    lose(populated, keys.namespace("a1", namespace.resource_id.id))
    lose(populated, keys.catalog("a1", catalog.resource_id.id))
    request = v1.ListTablesRequest(namespace_id=namespace.resource_id)
    assert list(tables.list_(populated.home, request).tables) == inside
    ref = v1.NameRef(catalog="first", path=["sales"], name="people")
    found = directory.resolve_table(populated.home, v1.ResolveTableRequest(ref=ref)).resource_id
    looked_up = directory.lookup_table(populated.home, v1.LookupTableRequest(resource_id=found)).ref
    assert (looked_up.catalog, list(looked_up.path), looked_up.name) == ("first", ["sales"], "people")


def test_damaged_record_cannot_be_read_or_written_but_deleted(populated: ResourceFactory):
    table = next(each for each in listing(populated, "table") if each.display_name == "people")
    lose(populated, keys.table("a1", table.resource_id.id))
    with expect_error(PreconditionFailed, "resource.damaged", damage=LOST):
        tables.get(populated.home, v1.GetTableRequest(table_id=table.resource_id))
    with expect_error(NotFound, "table"):
        tables.get(granted_only(populated, "eve"), v1.GetTableRequest(table_id=table.resource_id))
    ref = v1.NameRef(catalog="first", path=["sales"], name="people")
    found = directory.resolve_table(populated.home, v1.ResolveTableRequest(ref=ref)).resource_id
    tables.delete(populated.home, v1.DeleteTableRequest(table_id=found))
    assert [each.display_name for each in listing(populated, "table")] == ["Ü/x y"]


def test_unavailable_store_is_not_damage(populated: ResourceFactory, monkeypatch: pytest.MonkeyPatch):
    def fail(uri: str) -> bytes:
        raise Internal("a bug", key="bug")

    monkeypatch.setattr(populated.stores.blobs, "get", fail)
    with expect_error(Internal, "bug"):
        catalogs.list_(populated.home, v1.ListCatalogsRequest())


def granted_only(factory: ResourceFactory, subject: str) -> Realm:
    """The realm of a caller without roles."""
    access = AccessDecision(
        lambda: factory.stores, "a1", allows=lambda _: False, grantees=(f"user:{subject}", "role:none")
    )
    return Realm(factory.stores, "a1", access=access)


def seen_by(factory: ResourceFactory, subject: str) -> list[str]:
    """The names of the tables that a caller without roles sees in the first namespace."""
    realm = granted_only(factory, subject)
    return [each.display_name for each in tables.scan(realm, factory.first_namespace().resource_id.id)]


def test_damage_shows_nobody_more_than_their_grants(populated: ResourceFactory):
    granted, other = (
        next(each for each in listing(populated, "table") if each.display_name == name) for name in ("people", "Ü/x y")
    )
    assert seen_by(populated, "ada") == ["people"]
    lose(populated, keys.table("a1", other.resource_id.id))
    assert seen_by(populated, "ada") == ["people"]
    lose(populated, keys.table("a1", granted.resource_id.id))
    assert seen_by(populated, "ada") == ["people"]
    assert seen_by(populated, "eve") == []


def test_total_of_a_caller_with_grants_counts_damaged_records(populated: ResourceFactory):
    granted = next(each for each in listing(populated, "table") if each.display_name == "people")
    lose(populated, keys.table("a1", granted.resource_id.id))
    request = v1.ListTablesRequest(namespace_id=granted.namespace_id)
    found = tables.list_(granted_only(populated, "ada"), request)
    assert ([each.damage for each in found.tables], found.page.total_size) == ([LOST], 1)


def test_damaged_grant_gives_nothing(populated: ResourceFactory):
    granted = next(each for each in listing(populated, "table") if each.display_name == "people")
    corrupt(populated, keys.grant("a1", granted.resource_id.id, "user:ada"))
    assert seen_by(populated, "ada") == []


def test_damaged_statistics_are_explained(populated: ResourceFactory):
    table = next(each for each in listing(populated, "table") if each.display_name == "people")
    stats = v1.TableStats(row_count=3)
    request = v1.PutTableStatsRequest(table_id=table.resource_id, snapshot_id=2, stats=stats)
    statistics.put_table(populated.home, request)
    lose(populated, keys.statistics("a1", table.resource_id.id, 2, of="table"))
    wanted = v1.GetTableStatsRequest(table_id=table.resource_id, snapshot=v1.SnapshotRef(snapshot_id=2))
    with expect_error(PreconditionFailed, "resource.damaged", damage=LOST) as error:
        statistics.get_table(populated.home, wanted)
    listed = v1.ListTablesRequest(namespace_id=table.namespace_id, with_sizes=True)
    (size,) = statistics.list_tables(populated.home, listed).sizes
    assert (size.table_id, size.row_count, size.damage) == (table.resource_id, 0, error.value.message)
