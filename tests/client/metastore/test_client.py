"""Using a metastore: list, read, create, update and delete resources."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import pytest

from airport.certificates import Authority
from client.metastore_server import Server, serving_metastore
from skiway.client import Metastore, TlsOptions
from skiway.client.metastore import Id, Retries, Table
from skiway.errors import (
    AlreadyExists,
    Conflict,
    InvalidArgument,
    NotFound,
    PreconditionFailed,
    Unavailable,
)
from skiway.model import v1

SCHEMA = {"type": "struct", "fields": []}
NOON = datetime(2025, 6, 1, 12, tzinfo=UTC)


@pytest.fixture(scope="module")
def running() -> Iterator[Server]:
    with serving_metastore() as server:
        yield server


@pytest.fixture
def lake(running: Server) -> Iterator[Metastore]:
    with Metastore(running.address) as lake:
        yield lake
        lake.namespaces.delete("lake.sales", cascade=True)
        lake.namespaces.create("lake.sales")


@pytest.fixture
def server(lake: Metastore, running: Server) -> Server:
    running.seen.clear()
    return running


@pytest.fixture
def people(lake: Metastore) -> Table:
    return lake.tables.create("lake.sales.people", schema=SCHEMA, description="who", properties={"owner": "ops"})


def test_client_connects_on_the_first_call() -> None:
    Metastore("127.0.0.1:1").close()


def test_using_a_closed_client_is_a_clear_error(server: Server) -> None:
    with Metastore(server.address) as lake:
        assert [catalog.name for catalog in lake.catalogs()] == ["lake"]
    with pytest.raises(InvalidArgument, match="is closed; create a new one"):
        lake.catalogs.get("lake")


@pytest.mark.parametrize("target", ["", "localhost", "localhost:", "localhost:x", "http://localhost:1", ":50051"])
def test_invalid_address_is_rejected_immediately(target: str) -> None:
    with pytest.raises(InvalidArgument, match=r"write host:port, such as 127\.0\.0\.1:50051"):
        Metastore(target)


def test_unreachable_server_is_named_with_what_to_check() -> None:
    with Metastore("127.0.0.1:1", retries=Retries(limit=0)) as lake, pytest.raises(Unavailable) as failed:
        lake.catalogs.get("lake")
    assert failed.value.message.startswith("cannot reach the metastore at 127.0.0.1:1: ")
    assert "check the address, that the server is running, and whether it requires TLS" in failed.value.message


def test_tls_to_a_plaintext_server_is_unavailable(server: Server) -> None:
    lake = Metastore(server.address, tls=TlsOptions(), retries=Retries(limit=0))
    with lake, pytest.raises(Unavailable, match="whether it requires TLS"):
        lake.catalogs.get("lake")


def test_tls_is_used_if_requested(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("server")
    credentials = grpc.ssl_server_credentials([(pair.key.read_bytes(), pair.certificate.read_bytes())])
    trusted = TlsOptions(root_certificates=authority.certificate)
    never = Retries(limit=0)
    with serving_metastore(tls=credentials) as server:
        for target in (server.tls_address, f"grpc+tls://{server.tls_address}"):
            with Metastore(target, tls=trusted) as lake:
                assert lake.catalogs.get("lake").name == "lake"
        for target, tls in ((server.tls_address, None), (server.tls_address, TlsOptions())):
            with Metastore(target, tls=tls, retries=never) as lake, pytest.raises(Unavailable):
                lake.catalogs.get("lake")


# reading


def test_created_table_has_all_its_attributes(lake: Metastore, people: Table) -> None:
    assert (people.name, people.path, str(people)) == ("people", ("lake", "sales", "people"), "lake.sales.people")
    assert people.description == "who"
    assert people.properties == {"owner": "ops"}
    assert json.loads(people.schema_json) == SCHEMA
    assert people.upstream is None
    assert people.meta.version == 1
    assert people.created_at == people.updated_at == people.meta.updated_at
    assert isinstance(people.message, v1.Table)
    assert repr(people) == f"Table(name='people', id='{people.id}')"


def test_table_is_found_by_name_segments_id_and_resource(lake: Metastore, people: Table) -> None:
    for ref in (
        "lake.sales.people",
        ("lake", "sales", "people"),
        people.id,
        Id(str(people.id)),
        people,
        people.message,
        people.message.resource_id,
    ):
        assert lake.tables.get(ref) == people


def test_tables_are_hashable(lake: Metastore, people: Table) -> None:
    again = lake.tables.get(people)
    changed = lake.tables.update(people, description="changed")
    assert {people, again} == {people}
    assert people != changed
    assert people != people.message
    snapshot = lake.snapshots.create(people, 1, created_at=NOON)
    assert {snapshot, lake.snapshots.get(people)} == {snapshot}


def test_repr_shows_the_address_of_the_server(server: Server) -> None:
    with Metastore(f"grpc://{server.address}", token="s3cret") as lake:
        assert repr(lake) == f"Metastore('grpc://{server.address}')"
        assert repr(lake.tables) == f"Tables of grpc://{server.address}"
        assert lake.catalogs.get("lake").name == "lake"


def test_known_id_avoids_the_name_lookup(server: Server, lake: Metastore, people: Table) -> None:
    server.seen.clear()
    lake.tables.get(people.id)
    assert server.methods() == ["GetTable"]
    lake.tables.get("lake.sales.people")
    assert server.methods() == ["GetTable", "ResolveTable", "GetTable"]


def test_names_with_dots_are_quoted_and_parsed_back(lake: Metastore) -> None:
    lake.namespaces.create(("lake", "sales", "eu.west"))
    created = lake.tables.create('lake.sales."eu.west"."people.csv"', schema=SCHEMA)
    assert created.path == ("lake", "sales", "eu.west", "people.csv")
    assert str(created) == 'lake.sales."eu.west"."people.csv"'
    assert lake.tables.get(str(created)) == created


@pytest.mark.parametrize("name", ["people", "sales.people", ("sales", "people")])
def test_incomplete_table_name_is_rejected_before_any_call(server: Server, lake: Metastore, name) -> None:
    with pytest.raises(
        InvalidArgument, match=r"write catalog\.namespace\.table, such as lake\.sales\.people"
    ) as refused:
        lake.tables.get(name)
    assert refused.value.key == "table.name.missing"
    assert server.methods() == []


def test_missing_resource_is_not_found_by_get_and_none_by_find(lake: Metastore) -> None:
    with pytest.raises(NotFound, match="there is no table nobody in namespace sales of catalog lake") as missing:
        lake.tables.get("lake.sales.nobody")
    assert missing.value.key == "table.by.name.missing"
    assert lake.tables.find("lake.sales.nobody") is None
    assert lake.tables.find("lake.nowhere.nobody") is None
    assert lake.views.find("lake.sales.nobody") is None
    assert lake.namespaces.find("lake.nowhere") is None
    assert lake.catalogs.find("pond") is None
    assert lake.tables.find(Id("no such id")) is None


def test_resource_of_another_kind_is_rejected_by_the_server(lake: Metastore, people: Table) -> None:
    with pytest.raises(
        InvalidArgument, match="namespace_id holds the id of a table: give that of a namespace"
    ) as wrong:
        list(lake.tables(people))
    assert wrong.value.key == "kind"


def test_paths_of_a_listing_take_one_lookup(server: Server, lake: Metastore) -> None:
    for name in "abc":
        lake.tables.create(f"lake.sales.{name}", schema=SCHEMA)
    server.seen.clear()
    assert [str(table) for table in lake.tables("lake.sales")] == ["lake.sales.a", "lake.sales.b", "lake.sales.c"]
    assert server.methods() == ["ResolveNamespace", "ListTables", "LookupNamespace"]


def test_paths_of_namespaces_take_one_lookup(server: Server, lake: Metastore) -> None:
    for name in ("a", "b"):
        lake.namespaces.create(("lake", "sales", name))
    server.seen.clear()
    assert [str(namespace) for namespace in lake.namespaces("lake.sales")] == ["lake.sales.a", "lake.sales.b"]
    assert server.methods() == ["ResolveCatalog", "ListNamespaces", "LookupCatalog"]


def test_path_of_a_concurrently_deleted_resource_is_not_found(lake: Metastore) -> None:
    lake.namespaces.create("lake.sales.old")
    table = lake.tables.create("lake.sales.old.t", schema=SCHEMA)
    lake.namespaces.delete("lake.sales.old", cascade=True)
    with pytest.raises(NotFound, match=r"namespace \S+ no longer exists"):
        print(table.path)


# versions


def test_listed_table_requests_its_version_once(server: Server, lake: Metastore, people: Table) -> None:
    [listed] = lake.tables("lake.sales")
    server.seen.clear()
    assert listed.meta == listed.meta == people.meta
    assert server.methods() == ["GetTable"]


def test_concurrently_changed_listed_table_does_not_adopt_the_new_version(lake: Metastore, people: Table) -> None:
    [listed] = lake.tables("lake.sales")
    lake.tables.update(people, description="others")
    with pytest.raises(Conflict, match="has changed since it was listed: get it again"):
        print(listed.meta)


def test_update_changes_only_the_given_fields(lake: Metastore, people: Table) -> None:
    changed = lake.tables.update("lake.sales.people", description="all of us")
    assert (changed.description, changed.properties, changed.meta.version) == ("all of us", {"owner": "ops"}, 2)
    assert lake.tables.get(people) == changed


def test_none_clears_a_field(lake: Metastore, people: Table) -> None:
    cleared = lake.tables.update(people, description=None, properties=None)
    assert cleared.description is None
    assert cleared.properties == {}


def test_clearing_a_required_field_is_rejected(lake: Metastore, people: Table) -> None:
    with pytest.raises(InvalidArgument) as refused:
        lake.tables.update(people, schema=None)  # type: ignore[arg-type]
    assert refused.value.key == "schema.json.cannot.clear"


def test_empty_update_is_rejected_before_any_call(server: Server, lake: Metastore) -> None:
    with pytest.raises(InvalidArgument, match="changes nothing") as refused:
        lake.tables.update("lake.sales.people")
    assert refused.value.key == "update.mask.required"
    assert server.methods() == []


def test_stale_version_or_etag_is_rejected(lake: Metastore, people: Table) -> None:
    lake.tables.update(people, description="new", if_version=people.meta.version, if_etag=people.meta.etag)
    with pytest.raises(PreconditionFailed) as by_version:
        lake.tables.update(people, description="newer", if_version=people.meta.version)
    assert by_version.value.key == "version.mismatch"
    assert by_version.value.params["actual"] == "2"
    with pytest.raises(PreconditionFailed) as by_etag:
        lake.tables.delete(people, if_etag=people.meta.etag)
    assert by_etag.value.key == "etag.mismatch"
    assert lake.tables.get(people).description == "new"


def test_version_zero_is_checked_as_well(lake: Metastore, people: Table) -> None:
    with pytest.raises(PreconditionFailed):
        lake.tables.delete(people, if_version=0)


def test_a_table_is_renamed_and_moved(lake: Metastore, people: Table) -> None:
    lake.namespaces.create("lake.sales.archive")
    moved = lake.tables.update(people, name="folk", namespace="lake.sales.archive")
    assert str(moved) == "lake.sales.archive.folk"
    assert moved.id == people.id


def test_values_of_the_wrong_type_are_rejected_with_their_field(lake: Metastore, people: Table) -> None:
    with pytest.raises(InvalidArgument, match="cannot create a TableSpec from the given properties"):
        lake.tables.update(people, properties=7)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="cannot be converted to JSON"):
        lake.tables.update(people, schema={"a": object()})


# other kinds of resources


def test_accounts_are_addressed_by_id(lake: Metastore) -> None:
    [own] = lake.accounts()
    assert (own.id, own.name, own.tags) == ("default", "default", {})
    assert lake.accounts.get("default") == lake.accounts.get(own) == own
    changed = lake.accounts.update("default", tags={"tier": "gold"}, if_version=own.meta.version)
    assert changed.tags == {"tier": "gold"}
    assert lake.accounts.update("default", tags=None).tags == {}
    assert lake.accounts.find("nobody") is None
    created = lake.accounts.create("Example Inc.", id="example")
    assert [account.id for account in lake.accounts()] == ["example", "default"]
    lake.accounts.delete(created)
    with pytest.raises(Conflict) as full:
        lake.accounts.delete(own)
    assert full.value.key == "account.not_empty"
    with pytest.raises(InvalidArgument, match="is not an account: give its id"):
        lake.accounts.get(7)  # type: ignore[arg-type]


def test_catalogs_have_all_verbs(lake: Metastore) -> None:
    pond = lake.catalogs.create("pond", description="small", properties={"a": "b"}, policy_ref="p")
    assert (pond.path, str(pond), pond.properties) == (("pond",), "pond", {"a": "b"})
    assert [catalog.name for catalog in lake.catalogs()] == ["lake", "pond"]
    assert lake.catalogs.get(pond.id) == pond
    pool = lake.catalogs.update("pond", name="pool", policy_ref=None)
    assert (pool.name, pool.message.HasField("policy_ref")) == ("pool", False)
    lake.namespaces.create("pool.deep.end")
    with pytest.raises(Conflict) as full:
        lake.catalogs.delete("pool")
    assert full.value.key == "catalog.not_empty"
    assert lake.catalogs.delete("pool", cascade=True).version == 2
    assert lake.catalogs.find(pool) is None


def test_namespaces_are_listed_below_a_catalog_or_a_namespace(lake: Metastore) -> None:
    lake.namespaces.create("lake.sales.eu.north", description="cold")
    lake.namespaces.create("lake.sales.us")
    sales = lake.namespaces.get("lake.sales")
    catalog = lake.catalogs.get("lake")

    def names(*args, **options) -> list[str]:
        return [str(namespace) for namespace in lake.namespaces(*args, **options)]

    for parent in ("lake", catalog, catalog.id, catalog.message, catalog.message.resource_id):
        assert names(parent) == ["lake.sales"]
    for parent in ("lake.sales", ("lake", "sales"), sales, sales.message, sales.message.resource_id):
        assert names(parent) == ["lake.sales.eu", "lake.sales.us"]
    assert names(sales, recursive=True) == ["lake.sales.eu", "lake.sales.eu.north", "lake.sales.us"]
    assert names("lake", recursive=True, prefix="sales.u") == ["lake.sales.us"]
    assert lake.namespaces("lake", recursive=True).total == 4


def test_namespaces_have_all_verbs(lake: Metastore) -> None:
    created = lake.namespaces.create("lake.sales.eu", properties={"zone": "1"}, policy_ref="p")
    assert (created.name, created.path, created.properties) == ("eu", ("lake", "sales", "eu"), {"zone": "1"})
    renamed = lake.namespaces.update(created, name="europe", properties=None, if_version=1)
    assert (str(renamed), renamed.properties) == ("lake.sales.europe", {})
    lake.namespaces.create("lake.sales.archive")
    moved = lake.namespaces.update(renamed, path='lake.sales.archive."eu.2025"')
    assert moved.path == ("lake", "sales", "archive", "eu.2025")
    assert moved.id == created.id
    lake.tables.create("t", namespace=moved, schema=SCHEMA)
    with pytest.raises(Conflict) as full:
        lake.namespaces.delete(moved)
    assert full.value.key == "namespace.not_empty"
    lake.namespaces.delete(moved, cascade=True)
    assert lake.namespaces.find(moved) is None


def test_plain_name_in_a_namespace_is_used_unchanged(lake: Metastore) -> None:
    sales = lake.namespaces.get("lake.sales")
    created = lake.tables.create("a.b", namespace=sales, schema=SCHEMA)
    assert created.path == ("lake", "sales", "a.b")
    assert lake.views.create("c.d", namespace="lake.sales", sql="SELECT 1").path == ("lake", "sales", "c.d")


def test_views_have_sql_by_dialect_and_dependencies(lake: Metastore, people: Table) -> None:
    created = lake.views.create(
        "lake.sales.names",
        sql={"duckdb": "SELECT 1", "spark": "SELECT 2"},
        base_relations=["lake.sales.people"],
        search_path=["sales"],
        output_columns=[v1.SchemaColumn(name="n", logical_type="INT")],
    )
    assert created.sql == {"duckdb": "SELECT 1", "spark": "SELECT 2"}
    assert [relation.name for relation in created.message.base_relations] == ["people"]
    assert [str(view) for view in lake.views("lake.sales")] == ["lake.sales.names"]
    changed = lake.views.update("lake.sales.names", sql="SELECT 3", base_relations=[], description="d")
    assert (changed.sql, len(changed.message.base_relations)) == ({"duckdb": "SELECT 3"}, 0)
    assert changed.message.output_columns == created.message.output_columns
    assert changed.meta.version == 2
    with pytest.raises(AlreadyExists):
        lake.views.create("lake.sales.people", sql="SELECT 1")
    lake.views.delete(changed, if_version=2)
    assert lake.views.find(created) is None


def test_snapshots_are_found_by_id_by_time_and_as_current(lake: Metastore, people: Table) -> None:
    first = lake.snapshots.create(people, 0, created_at=NOON, summary={"by": "test"})
    second = lake.snapshots.create(people, 7, created_at=NOON + timedelta(hours=1), parent=first, schema={"then": 1})
    assert [snapshot.id for snapshot in lake.snapshots(people)] == [7, 0]
    assert (second.parent_id, first.parent_id, first.created_at) == (0, None, NOON)
    assert first.summary == {"by": "test"}
    assert lake.snapshots.get("lake.sales.people") == second
    assert lake.snapshots.get(people, 0) == lake.snapshots.get(people, first) == first
    assert lake.snapshots.get(people, NOON + timedelta(minutes=59)) == first
    assert json.loads(lake.tables.get(people, at=7).schema_json) == {"then": 1}
    assert json.loads(lake.tables.get(people, at=NOON).schema_json) == SCHEMA
    assert lake.snapshots.find(people, 99) is None
    assert lake.snapshots.find(people, NOON - timedelta(days=1)) is None


def test_snapshots_are_updated_rolled_back_and_deleted(lake: Metastore, people: Table) -> None:
    lake.snapshots.create(people, 1, created_at=NOON)
    lake.snapshots.create(people, 2, created_at=NOON, parent=1, sequence_number=5)
    changed = lake.snapshots.update(people, 2, summary={"a": "b"}, parent=None)
    assert (changed.summary, changed.parent_id, changed.message.sequence_number) == ({"a": "b"}, None, 5)
    [newest, _] = lake.snapshots(people)
    assert newest.meta == changed.meta
    with pytest.raises(PreconditionFailed):
        lake.snapshots.delete(people, 2)
    assert lake.snapshots.set_current(people, 1).id == 1
    assert lake.snapshots.get(people).id == 1
    lake.snapshots.delete(people, changed, if_version=changed.meta.version)
    assert [snapshot.id for snapshot in lake.snapshots(people)] == [1]


def test_time_without_a_zone_is_rejected(lake: Metastore, people: Table) -> None:
    with pytest.raises(InvalidArgument, match="2025-06-01T12:00:00 has no time zone"):
        lake.snapshots.get(people, datetime(2025, 6, 1, 12))


# statistics


def test_table_statistics_are_read_lazily_and_once(server: Server, lake: Metastore, people: Table) -> None:
    lake.snapshots.create(people, 1, created_at=NOON)
    lake.statistics.put(people, 1, row_count=3, data_file_count=2, total_size_bytes=99, properties={"by": "hand"})
    [listed] = lake.tables("lake.sales")
    server.seen.clear()
    assert (listed.stats.row_count, listed.stats.data_file_count, listed.stats.total_size_bytes) == (3, 2, 99)
    assert listed.stats.snapshot_id == 1
    assert listed.stats.properties == {"by": "hand"}
    assert server.methods() == ["GetTableStats"]


def test_unknown_table_statistics_are_none(lake: Metastore, people: Table) -> None:
    assert not people.stats
    assert people.stats.row_count is people.stats.snapshot_id is None
    lake.snapshots.create(people, 1, created_at=NOON)
    assert lake.tables.get(people).stats.row_count is None
    assert lake.statistics.find(people) is None
    with pytest.raises(NotFound) as unknown:
        lake.statistics.get(people)
    assert unknown.value.key == "table.stats"


def test_statistics_of_a_deleted_table_are_not_found(lake: Metastore, people: Table) -> None:
    lake.tables.delete(people)
    with pytest.raises(NotFound) as gone:
        print(people.stats)
    assert gone.value.key == "table"


def test_statistics_are_read_at_a_snapshot(lake: Metastore, people: Table) -> None:
    for number in (1, 2):
        lake.snapshots.create(people, number, created_at=NOON + timedelta(hours=number))
        lake.statistics.put(people, number, row_count=number * 10)
    assert lake.statistics.get(people).row_count == 20
    assert lake.statistics.get(people, 1).row_count == 10
    assert lake.statistics.get(people, NOON + timedelta(hours=1)).row_count == 10


# the directory


def test_directory_maps_names_to_ids_and_back(lake: Metastore, people: Table) -> None:
    view = lake.views.create("lake.sales.names", sql="SELECT 1")
    directory = lake.directory
    assert directory.catalog_path(directory.resolve_catalog("lake")) == ("lake",)
    assert directory.namespace_path(directory.resolve_namespace("lake.sales")) == ("lake", "sales")
    assert directory.resolve_table("lake.sales.people") == directory.find_table("lake.sales.people") == people.id
    assert directory.table_path(people.id) == people.path
    assert directory.resolve_view("lake.sales.names") == view.id
    assert directory.view_path(view) == view.path
    assert directory.find_table("lake.sales.nobody") is None
    gone = Id("00000000-0000-0000-0000-000000000000")
    assert directory.catalog_path(gone) is directory.namespace_path(gone) is None
    assert directory.table_path(gone) is directory.view_path(gone) is None


def test_many_names_take_one_call_and_missing_ones_are_omitted(server: Server, lake: Metastore, people: Table) -> None:
    view = lake.views.create("lake.sales.names", sql="SELECT 1")
    server.seen.clear()
    [entry] = lake.directory.tables(["lake.sales.nobody", " lake.sales.people"])
    assert (entry.id, entry.path, str(entry)) == (people.id, ("lake", "sales", "people"), "lake.sales.people")
    assert [found.id for found in lake.directory.views(["lake.sales.names"])] == [view.id]
    assert [found.id for found in lake.directory.tables_in("lake.sales")] == [people.id]
    assert [found.id for found in lake.directory.views_in("lake.sales", page_size=1)] == [view.id]
    assert server.methods() == ["ResolveFQTables", "ResolveFQViews", "ResolveFQTables", "ResolveFQViews"]


# system objects of engines


def test_system_objects_belong_to_an_engine_and_version(server: Server, lake: Metastore) -> None:
    objects = lake.system_objects("duckdb", "1.5.5")
    assert "upper" in {function.name for function in objects.functions}
    assert lake.with_engine("duckdb", "1.5.5").system_objects() == objects
    first, second = server.seen
    assert first.headers["x-engine-kind"] == second.headers["x-engine-kind"] == "duckdb"
    assert first.headers["x-engine-version"] == second.headers["x-engine-version"] == "1.5.5"


def test_system_objects_without_an_engine_are_rejected(lake: Metastore) -> None:
    with pytest.raises(InvalidArgument) as refused:
        lake.system_objects()
    assert refused.value.key == "builtin.engine.kind.required"
