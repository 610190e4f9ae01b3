"""PyIceberg's own client performs all its catalog operations."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import (
    BadRequestError,
    CommitFailedException,
    ForbiddenError,
    NamespaceAlreadyExistsError,
    NamespaceNotEmptyError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.expressions import EqualTo
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType

from metastore.resource_factory import behavior
from rest.rest_server import RestServer

PEOPLE = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "name": ["Ada", "Grace", "Edsger"]})


@pytest.fixture
def catalog(rest_server: RestServer) -> RestCatalog:
    found = rest_server.pyiceberg()
    found.create_namespace("sales")
    return found


def rows(catalog: RestCatalog, name: str) -> list[dict[str, object]]:
    return sorted(catalog.load_table(name).scan().to_arrow().to_pylist(), key=lambda row: row["id"])


@behavior(86)
def test_appended_rows_are_read_back(catalog: RestCatalog) -> None:
    table = catalog.create_table("sales.people", PEOPLE.schema)
    table.append(PEOPLE)
    table.append(PEOPLE.slice(0, 1))
    assert rows(catalog, "sales.people") == sorted(
        [*PEOPLE.to_pylist(), *PEOPLE.slice(0, 1).to_pylist()], key=lambda row: row["id"]
    )


def test_rows_can_be_overwritten_and_deleted(catalog: RestCatalog) -> None:
    table = catalog.create_table("sales.people", PEOPLE.schema)
    table.append(PEOPLE)
    table.overwrite(pa.table({"id": [2], "name": ["Hopper"]}), EqualTo("id", 2))
    table.delete(EqualTo("id", 1))
    assert rows(catalog, "sales.people") == [{"id": 2, "name": "Hopper"}, {"id": 3, "name": "Edsger"}]


def test_columns_can_be_added_renamed_and_dropped(catalog: RestCatalog) -> None:
    table = catalog.create_table("sales.people", PEOPLE.schema)
    table.append(PEOPLE)
    with table.update_schema() as update:
        update.add_column("age", LongType(), doc="in years")
        update.rename_column("name", "who")
    with table.update_schema() as update:
        update.delete_column("age")
        update.move_first("who")
    again = catalog.load_table("sales.people")
    assert [field.name for field in again.schema().fields] == ["who", "id"]
    assert rows(catalog, "sales.people")[0] == {"who": "Ada", "id": 1}


def test_partitions_sort_order_and_properties_are_preserved(catalog: RestCatalog) -> None:
    schema = Schema(NestedField(1, "id", LongType(), required=True), NestedField(2, "name", StringType()))
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "name"))
    order = SortOrder(SortField(1, IdentityTransform()))
    catalog.create_table("sales.people", schema, partition_spec=spec, sort_order=order, properties={"owner": "ada"})
    table = catalog.load_table("sales.people")
    with table.update_spec() as update:
        update.add_field("id", BucketTransform(4))
    with table.transaction() as change:
        change.set_properties(team="blue")
        change.remove_properties("owner")
    again = catalog.load_table("sales.people")
    assert [field.name for field in again.spec().fields] == ["name", "id_bucket_4"]
    assert [field.source_id for field in again.sort_order().fields] == [1]
    assert (again.properties.get("team"), "owner" in again.properties) == ("blue", False)


def test_staged_table_is_created_together_with_its_rows(catalog: RestCatalog) -> None:
    with catalog.create_table_transaction("sales.people", PEOPLE.schema) as staged:
        assert not catalog.table_exists("sales.people")
        with staged.update_snapshot().fast_append():
            pass
    assert catalog.table_exists("sales.people")
    assert len(catalog.load_table("sales.people").metadata.snapshots) == 1


def test_staged_table_loses_against_a_concurrently_created_one(catalog: RestCatalog) -> None:
    staged = catalog.create_table_transaction("sales.people", PEOPLE.schema)
    catalog.create_table("sales.people", PEOPLE.schema)
    with pytest.raises(CommitFailedException):
        staged.commit_transaction()


def test_tables_can_be_renamed_within_and_across_namespaces(catalog: RestCatalog) -> None:
    catalog.create_namespace("archive")
    catalog.create_table("sales.people", PEOPLE.schema).append(PEOPLE)
    catalog.create_table("sales.taken", PEOPLE.schema)
    catalog.rename_table("sales.people", "archive.people")
    assert catalog.list_tables("sales") == [("sales", "taken")]
    assert rows(catalog, "archive.people") == PEOPLE.to_pylist()
    with pytest.raises(TableAlreadyExistsError):
        catalog.rename_table("sales.taken", "archive.people")


def test_dropped_tables_are_gone_and_purged_ones_leave_no_files(catalog: RestCatalog, rest_server: RestServer) -> None:
    for name in ("sales.kept", "sales.purged"):
        catalog.create_table(name, PEOPLE.schema).append(PEOPLE)
    folder = catalog.load_table("sales.purged").location()
    catalog.drop_table("sales.kept")
    catalog.purge_table("sales.purged")
    assert catalog.list_tables("sales") == []
    assert not rest_server.warehouse.everything().walk(rest_server.warehouse.files(folder).reach.roots[0])
    with pytest.raises(NoSuchTableError):
        catalog.load_table("sales.kept")
    with pytest.raises(NoSuchTableError):
        catalog.drop_table("sales.kept")


def test_namespaces_have_levels_and_properties(catalog: RestCatalog) -> None:
    catalog.create_namespace(("sales", "eu", "north"), {"owner": "ada", "comment": "cold"})
    assert catalog.list_namespaces() == [("sales",)]
    assert catalog.list_namespaces("sales") == [("sales", "eu")]
    assert catalog.namespace_exists(("sales", "eu", "north"))
    properties = dict(catalog.load_namespace_properties(("sales", "eu", "north")))
    assert properties.pop("location").startswith("file://")
    assert properties == {"owner": "ada", "comment": "cold"}
    done = catalog.update_namespace_properties(("sales", "eu", "north"), {"owner", "nothing"}, {"comment": "warm"})
    assert (done.removed, done.updated, done.missing) == (["owner"], ["comment"], ["nothing"])
    assert catalog.load_namespace_properties(("sales", "eu", "north")).keys() == {"location", "comment"}
    with pytest.raises(NamespaceNotEmptyError):
        catalog.drop_namespace("sales")
    catalog.drop_namespace(("sales", "eu", "north"))
    assert not catalog.namespace_exists(("sales", "eu", "north"))


def test_listings_are_paged(catalog: RestCatalog, rest_server: RestServer) -> None:
    paged = rest_server.pyiceberg(**{"rest-page-size": "2"})
    for number in range(5):
        catalog.create_table(f"sales.t{number}", PEOPLE.schema)
        catalog.create_namespace(("sales", f"n{number}"))
    assert paged.list_tables("sales") == [("sales", f"t{number}") for number in range(5)]
    assert paged.list_namespaces("sales") == [("sales", f"n{number}") for number in range(5)]
    first = rest_server.call("GET", "/v1/lake/namespaces/sales/tables?pageSize=2").json()
    assert len(first["identifiers"]) == 2
    assert first["next-page-token"]
    unpaged = rest_server.call("GET", "/v1/lake/namespaces/sales/tables").json()
    assert len(unpaged["identifiers"]) == 5
    assert unpaged["next-page-token"] is None


@pytest.mark.parametrize("name", ["a b", "a+b", "a/b", "ä%20", "x.y", "..x", "a?b#c"])
def test_names_may_contain_any_character(catalog: RestCatalog, name: str) -> None:
    catalog.create_namespace((name, "inner"))
    catalog.create_table((name, "inner", name), PEOPLE.schema).append(PEOPLE)
    assert catalog.list_namespaces((name,)) == [(name, "inner")]
    assert catalog.list_tables((name, "inner")) == [(name, "inner", name)]
    assert catalog.load_table((name, "inner", name)).scan().to_arrow().num_rows == 3


def test_only_snapshots_with_refs_are_loaded_on_request(catalog: RestCatalog, rest_server: RestServer) -> None:
    table = catalog.create_table("sales.people", PEOPLE.schema)
    for _ in range(3):
        table.append(PEOPLE)
    few = rest_server.pyiceberg(**{"snapshot-loading-mode": "refs"}).load_table("sales.people")
    assert [each.snapshot_id for each in few.metadata.snapshots] == [table.metadata.current_snapshot_id]
    assert len(catalog.load_table("sales.people").metadata.snapshots) == 3


def test_errors_map_to_the_exceptions_of_the_client(catalog: RestCatalog, rest_server: RestServer) -> None:
    catalog.create_table("sales.people", PEOPLE.schema)
    with pytest.raises(NamespaceAlreadyExistsError):
        catalog.create_namespace("sales")
    with pytest.raises(TableAlreadyExistsError):
        catalog.create_table("sales.people", PEOPLE.schema)
    with pytest.raises(TableAlreadyExistsError):  # names are case-insensitive
        catalog.create_table("sales.People", PEOPLE.schema)
    with pytest.raises(NoSuchNamespaceError):
        catalog.create_table("nowhere.people", PEOPLE.schema)
    with pytest.raises(NoSuchNamespaceError):
        catalog.list_tables("nowhere")
    with pytest.raises(NoSuchTableError):
        catalog.load_table("sales.nothing")
    with pytest.raises(BadRequestError, match="server chooses"):
        catalog.create_table("sales.other", PEOPLE.schema, location="file:///tmp/elsewhere")
    rest_server.callers.known["anybody"] = rest_server.callers.known["reader"]
    with pytest.raises(ForbiddenError):
        catalog.drop_table("sales.people")


@behavior(86)
def test_stale_commit_fails(catalog: RestCatalog) -> None:
    catalog.create_table("sales.people", PEOPLE.schema)
    early, late = catalog.load_table("sales.people"), catalog.load_table("sales.people")
    early.update_schema().add_column("one", LongType()).commit()
    with pytest.raises(CommitFailedException, match="load it again"):
        late.update_schema().add_column("two", LongType()).commit()
    assert [field.name for field in catalog.load_table("sales.people").schema().fields] == ["id", "name", "one"]


def test_eight_concurrent_appenders_lose_and_duplicate_no_row_and_none_gives_up(
    catalog: RestCatalog, rest_server: RestServer
) -> None:
    catalog.create_table("sales.numbers", pa.schema({"id": pa.int64()}))
    start, each = threading.Barrier(8), 4

    def append(worker: int) -> None:
        mine = rest_server.pyiceberg()
        start.wait()
        for number in range(each):
            mine.load_table("sales.numbers").append(pa.table({"id": [worker * each + number]}))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(append, range(8)))
    assert [row["id"] for row in rows(catalog, "sales.numbers")] == list(range(8 * each))
