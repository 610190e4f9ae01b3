"""Branches of the lake over Airport: `lake@dev` is a catalog like any other, and main sees nothing of it until it is merged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf.field_mask_pb2 import FieldMask
from pyiceberg.types import LongType

from lake.lakes import Lake
from skiway.client import AirportClient, col
from skiway.errors import Conflict, NotFound, PermissionDenied, PreconditionFailed, SkiwayError
from skiway.metastore import catalogs, grants, namespaces, policies, tables
from skiway.model import v1

ROWS = pa.table({"id": [1, 2, 3], "text": ["a", "b", "c"]})


@pytest.fixture
def main(lake: Lake) -> Iterator[AirportClient]:
    with lake.client() as client:
        client.create_schema("s")
        client.create_table("s.t", ROWS.schema)
        client.insert("s.t", ROWS)
        yield client


@pytest.fixture
def dev(lake: Lake, main: AirportClient) -> Iterator[AirportClient]:
    call(main, "create_branch", "dev")
    with lake.client("managed@dev") as client:
        yield client


def call(db: AirportClient, function: str, *given: Any, **named: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = db.call(f"skiway.{function}", *given, named=named).read_all().to_pylist()
    return rows


def table_of(lake: Lake, name: str) -> v1.Table:
    (catalog,) = catalogs.scan(lake.realm)
    found = (
        tables.find(lake.realm, each.resource_id.id, name)
        for each in namespaces.scan(lake.realm, catalog.resource_id.id)
    )
    return next(table for table in found if table is not None)


def ids(db: AirportClient, table: str = "s.t") -> list[int]:
    db.reload()
    return sorted(db.scan(table).read_all()["id"].to_pylist())


def test_a_branch_is_written_and_main_does_not_see_it_before_the_merge(main: AirportClient, dev: AirportClient) -> None:
    dev.insert("s.t", pa.table({"id": [4], "text": ["d"]}))
    dev.delete("s.t", where=col("id") == 1)
    dev.create_table("s.new", ROWS.schema)
    dev.insert("s.new", ROWS)
    main.insert("s.t", pa.table({"id": [9], "text": ["z"]}))
    assert ids(dev) == [2, 3, 4]
    assert ids(main) == [1, 2, 3, 9]
    with pytest.raises(NotFound):
        ids(main, "s.new")
    assert {each["name"]: each["action"] for each in call(main, "diff_branch", "dev")} == {
        "s.t": "changed",
        "s.new": "created",
    }
    with pytest.raises(SkiwayError, match="changed or deleted rows"):
        call(main, "merge_branch", "dev")
    assert ids(main) == [1, 2, 3, 9]
    (done,) = call(main, "merge_branch", "dev", theirs=["s.t"])
    assert done["state"] == "merged"
    assert ids(main) == [2, 3, 4]
    assert ids(main, "s.new") == [1, 2, 3]
    with pytest.raises(PreconditionFailed, match="branch dev is merged"):
        dev.insert("s.t", ROWS)


def test_a_branch_changes_columns_and_names_and_travels_in_time(main: AirportClient, dev: AirportClient) -> None:
    before = main.scan("skiway.snapshots").read_all()["snapshot_id"].to_pylist()[0]
    dev.add_column("s.t", pa.field("more", pa.int64()))
    dev.update("s.t", {"more": 7}, where=col("id") == 2)
    dev.rename_table("s.t", "renamed")
    assert dev.scan("s.renamed").read_all().column_names == ["id", "text", "more"]
    assert ids(dev, "s.renamed") == [1, 2, 3]
    assert len(dev.scan("s.renamed", at_version=before).read_all()) == 3
    assert main.scan("s.t").read_all().column_names == ["id", "text"]
    with pytest.raises(NotFound):
        ids(dev)
    call(main, "merge_branch", "dev")
    main.reload()
    assert [each["more"] for each in main.scan("s.renamed").read_all().sort_by("id").to_pylist()] == [None, 7, None]


def test_statements_on_main_of_a_protected_catalog_fail_and_leave_no_files(lake: Lake, main: AirportClient) -> None:
    (catalog,) = catalogs.scan(lake.realm)
    request = v1.UpdateCatalogRequest(
        catalog_id=catalog.resource_id, spec=v1.CatalogSpec(protected=True), update_mask=FieldMask(paths=["protected"])
    )
    catalogs.update(lake.realm, request)
    call(main, "create_branch", "dev")
    before = files_of(lake)
    statements: list[Callable[[AirportClient], object]] = [
        lambda db: db.insert("s.t", pa.table({"id": [4], "text": ["d"]})),
        lambda db: db.update("s.t", {"text": "x"}, where=col("id") == 1),
        lambda db: db.delete("s.t", where=col("id") == 1),
        lambda db: db.create_table("s.new", ROWS.schema),
        lambda db: db.add_column("s.t", pa.field("more", pa.int64())),
        lambda db: db.rename_table("s.t", "other"),
        lambda db: call(db, "tag", "s.other", "now"),
        lambda db: call(db, "create_view", "s.v", "SELECT 1 AS one"),
        lambda db: db.create_schema("more"),
        lambda db: db.drop_table("s.other"),
    ]
    for number, statement in enumerate(statements):
        name = "s.t" if number < 6 else "s.other"
        with pytest.raises((PermissionDenied, NotFound), match="is protected" if name == "s.t" else None) as raised:
            statement(main)
        assert name == "s.other" or isinstance(raised.value, PermissionDenied), number
    assert ids(main) == [1, 2, 3]
    assert files_of(lake) == before
    with lake.client("managed@dev") as dev:
        for statement in statements:
            dev.reload()
            statement(dev)
    call(main, "merge_branch", "dev")
    main.reload()
    assert main.scan("s.v").read_all().to_pylist() == [{"one": 1}]


def files_of(lake: Lake) -> set[str]:
    return {str(each) for each in (lake.folder / "warehouse").rglob("*") if each.is_file()}


def test_queries_compare_main_with_a_branch_and_views_read_the_branch(main: AirportClient, dev: AirportClient) -> None:
    call(main, "create_view", "s.v", "SELECT count(*) AS n FROM managed.s.t")
    call(main, "delete_branch", "dev")
    call(main, "create_branch", "dev")
    dev.insert("s.t", ROWS)
    sql = 'SELECT (SELECT count(*) FROM managed.s.t) AS a, (SELECT count(*) FROM "managed@dev".s.t) AS b'
    assert call(main, "query", sql) == call(dev, "query", sql) == [{"a": 3, "b": 6}]
    assert dev.scan("s.v").read_all().to_pylist() == [{"n": 6}]
    main.reload()
    assert main.scan("s.v").read_all().to_pylist() == [{"n": 3}]
    assert [each["view_name"] for each in dev.scan("skiway.views").read_all().to_pylist()] == ["v"]


def test_rights_on_a_branch_are_those_of_main_at_the_time_of_the_call(
    lake: Lake, main: AirportClient, dev: AirportClient
) -> None:
    with lake.client("managed@dev", token="stranger") as stranger:
        with pytest.raises((PermissionDenied, NotFound)):
            ids(stranger)
        table_id = table_of(lake, "t").resource_id
        granted = {"object_id": table_id, "grantee": "user:stranger"}
        grants.add(lake.realm, v1.AddGrantRequest(privilege=v1.PV_READ, **granted))
        assert ids(stranger) == [1, 2, 3]
        # The table is in another namespace of the branch, and has the rights that it has on main.
        dev.create_schema("public")
        dev.create_table("public.own", ROWS.schema)
        assert ids(stranger) == [1, 2, 3]
        with pytest.raises((PermissionDenied, NotFound)):
            ids(stranger, "public.own")
        with pytest.raises(PermissionDenied):
            stranger.insert("s.t", ROWS)
        with pytest.raises(PermissionDenied):
            call(stranger, "merge_branch", "dev")
        grants.revoke(lake.realm, v1.RevokeGrantRequest(**granted))
        with pytest.raises((PermissionDenied, NotFound)):
            ids(stranger)


def test_names_and_states_of_branches_are_checked(lake: Lake, main: AirportClient, dev: AirportClient) -> None:
    with pytest.raises(Conflict, match="already exists"):
        call(main, "create_branch", "dev")
    for name in ("", "main", "a b", "x" * 101):
        with pytest.raises(SkiwayError, match="is not the name of a branch"):
            call(main, "create_branch", name)
    with pytest.raises(NotFound, match="no branch none"):
        call(main, "merge_branch", "none")
    with pytest.raises(SkiwayError, match="@ separates"):
        catalogs.create(lake.realm, v1.CreateCatalogRequest(spec=v1.CatalogSpec(display_name="a@b")))
    call(main, "create_branch", "v1", tag=True)
    with lake.client("managed@v1") as tag:
        assert ids(tag) == [1, 2, 3]
        with pytest.raises(PreconditionFailed, match="is a tag"):
            tag.insert("s.t", ROWS)
    assert {each["branch"]: each["is_tag"] for each in main.scan("skiway.branches").read_all().to_pylist()} == {
        "managed@dev": False,
        "managed@v1": True,
    }
    call(main, "delete_branch", "dev")
    with pytest.raises(NotFound):
        ids(dev)


def test_iceberg_clients_use_a_branch_as_a_warehouse_and_cannot_harm_main(
    lake: Lake, main: AirportClient, dev: AirportClient
) -> None:
    with lake.rest("managed@dev") as catalog:
        table = catalog.load_table("s.t")
        # Clients refuse to delete files of such a table, and write to a folder of its own.
        assert table.properties["gc.enabled"] == "false"
        assert "/branches/" in table.location()
        table.append(pa.table({"id": [4], "text": ["d"]}))
        with table.update_schema() as update:
            update.add_column("more", LongType())
        with table.transaction() as changes:
            changes.set_properties({"gc.enabled": "true"})
        again = catalog.load_table("s.t")
        assert again.properties["gc.enabled"] == "false"
        assert sorted(again.scan().to_arrow()["id"].to_pylist()) == ids(dev) == [1, 2, 3, 4]
        with pytest.raises(Exception, match="cannot be removed on branch"):
            again.maintenance.expire_snapshots().by_id(again.metadata.snapshots[0].snapshot_id).commit()
        with pytest.raises(Exception, match="cannot be purged on branch"):
            catalog.purge_table("s.t")
        created = catalog.create_table("s.new", ROWS.schema)
        created.append(ROWS)
        catalog.rename_table("s.new", "s.newer")
    with lake.rest() as catalog:
        table = catalog.load_table("s.t")
        assert "gc.enabled" not in table.properties
        assert "/branches/" not in table.location()
        assert catalog.list_tables("s") == [("s", "t")]
        before = table.metadata_location
        call(main, "merge_branch", "dev")
        table = catalog.load_table("s.t")
        assert "gc.enabled" not in table.properties
        assert "/branches/" not in table.location()
        assert table.metadata.metadata_log[-1].metadata_file == before
        assert all("/branches/" not in each.metadata_file for each in table.metadata.metadata_log)
        assert sorted(table.scan().to_arrow()["id"].to_pylist()) == [1, 2, 3, 4]
        assert sorted(catalog.load_table("s.newer").scan().to_arrow()["id"].to_pylist()) == [1, 2, 3]
        table.append(pa.table({"id": [5], "text": ["e"], "more": [1]}))
    assert ids(main) == [1, 2, 3, 4, 5]


def test_moved_tables_and_renamed_columns_keep_the_rights_of_main(
    lake: Lake, main: AirportClient, dev: AirportClient
) -> None:
    main.create_schema("public")
    call(main, "delete_branch", "dev")
    call(main, "create_branch", "dev")
    (catalog,) = catalogs.scan(lake.realm)
    public = next(each for each in namespaces.scan(lake.realm, catalog.resource_id.id) if each.display_name == "public")
    grants.add(
        lake.realm, v1.AddGrantRequest(object_id=public.resource_id, grantee="user:stranger", privilege=v1.PV_READ)
    )
    mask = v1.PolicyMask(columns=["text"], kind=v1.MK_NULL)
    spec = v1.PolicySpec(display_name="no text", subjects=["user:analyst"], mask=mask)
    policies.calls(lambda *_: []).create(lake.realm, v1.CreatePolicyRequest(spec=spec))
    # Somebody who may moves the table to a namespace that strangers read, and renames the column.
    with lake.rest("managed@dev") as rest:
        rest.rename_table("s.t", "public.t")
    dev.reload()
    dev.rename_column("public.t", "text", "label")
    dev.create_table("public.own", ROWS.schema)
    dev.insert("public.own", ROWS)
    assert ids(dev, "public.t") == [1, 2, 3]
    with lake.client("managed@dev", token="stranger") as stranger:
        assert ids(stranger, "public.own") == [1, 2, 3]
        with pytest.raises((NotFound, PermissionDenied)):
            ids(stranger, "public.t")
        with pytest.raises(SkiwayError):
            call(stranger, "query", "SELECT * FROM public.t")
        assert [each["name"] for each in call(stranger, "diff_branch", "dev")] == ["public.own"]
    with lake.client("managed@dev", token="analyst") as analyst:
        rows = analyst.scan("public.t").read_all().to_pylist()
        assert [each["label"] for each in rows] == [None] * 3
        found = call(analyst, "query", "SELECT count(label) AS n FROM public.t")
        assert found == [{"n": 0}]


def test_the_rows_of_both_sides_are_compared_by_key(main: AirportClient, dev: AirportClient) -> None:
    assert call(main, "diff_rows", "dev", "s.t") == []
    dev.update("s.t", {"text": "x"}, where=col("id") == 2)
    dev.delete("s.t", where=col("id") == 1)
    dev.insert("s.t", pa.table({"id": [4, 4, None], "text": ["d", "d", None]}))
    dev.add_column("s.t", pa.field("more", pa.int64()))
    wanted = [
        ("removed", 1, "a"),
        ("before", 2, "b"),
        ("after", 2, "x"),
        ("added", 4, "d"),
        ("added", 4, "d"),
        ("added", None, None),
    ]
    for db in (main, dev):
        found = call(db, "diff_rows", "dev", "s.t", key=["id"])
        assert [tuple(each.values()) for each in found] == wanted
    plain = call(main, "diff_rows", "managed@dev", "s.t")
    assert sorted(each["change"] for each in plain) == ["added"] * 4 + ["removed"] * 2
    dev.create_table("s.new", pa.schema({"change": pa.string()}))
    dev.insert("s.new", pa.table({"change": ["a"]}))
    assert call(main, "diff_rows", "dev", "s.new") == [{"change_": "added", "change": "a"}]
    for table, key, message in (
        ("s.none", None, "does not exist"),
        ("s.t", ["more"], "more"),
        ("t", None, "schema.name"),
    ):
        with pytest.raises(SkiwayError, match=message):
            call(main, "diff_rows", "dev", table, **({"key": key} if key else {}))


def test_callers_under_policies_compare_only_what_they_see(lake: Lake, main: AirportClient, dev: AirportClient) -> None:
    table = table_of(lake, "t")
    dev.update("s.t", {"text": "secret"}, where=col("id") == 2)
    dev.insert("s.t", pa.table({"id": [10, 11], "text": ["hidden", "seen"]}))
    filtered = {"row_filter": v1.PolicyFilter(predicate="id <> 10")}
    masked = {"mask": v1.PolicyMask(columns=["text"], kind=v1.MK_NULL)}
    for name, rule in (("rows", filtered), ("texts", masked)):
        spec = v1.PolicySpec(display_name=name, subjects=["user:analyst"], objects=[table.resource_id], **rule)
        policies.calls(lambda *_: []).create(lake.realm, v1.CreatePolicyRequest(spec=spec))
    with lake.client(token="analyst") as reader:
        found = call(reader, "diff_rows", "dev", "s.t", key=["id"])
        assert [tuple(each.values()) for each in found] == [("added", 11, None)]
        assert call(reader, "diff_statistics", "dev") == []
    columns = {each["column"]: each for each in call(main, "diff_statistics", "dev")}
    assert (columns["id"]["max_on_main"], columns["id"]["max_on_branch"]) == ("3", "11")
    assert (columns["text"]["nulls_on_main"], columns["text"]["nulls_on_branch"]) == (0, 0)
    assert columns["id"]["distinct_on_main"] is None  # there is no profile
