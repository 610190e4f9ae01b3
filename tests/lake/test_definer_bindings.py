"""Views with definer rights read the objects that they were saved with: what takes the place of one is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lake.lakes import Lake
from lake.test_view_rights import create_view, grant, namespace_of, view_of
from lake.test_view_rights import ids as ids_of
from skiway.client import AirportClient
from skiway.errors import InvalidArgument, NotFound, PermissionDenied, PreconditionFailed, SkiwayError
from skiway.formats import open_source
from skiway.lake.policies import PolicyChecks
from skiway.metastore import Realm, catalogs, namespaces, policies, tables, views
from skiway.metastore.records import keys
from skiway.metastore.records.kinds import VIEW
from skiway.metastore.records.policies import CallerPolicies, Subject
from skiway.model import v1
from skiway.sql import QueryEngine

PUBLIC, SECRET = pa.table({"id": [1, 2]}), pa.table({"id": [666]})


@pytest.fixture
def db(lake: Lake) -> Iterator[AirportClient]:
    """The definer `writer`, whose view `shared.v` reads `open.t` and may read `hidden.t`."""
    with lake.client() as client:
        for schema, rows in (("open", PUBLIC), ("hidden", SECRET)):
            client.create_schema(schema)
            client.create_table(f"{schema}.t", rows.schema)
            client.insert(f"{schema}.t", rows)
        client.create_schema("shared")
        grant(lake, "stranger", namespace_of(lake, "shared").resource_id)
        yield client


@pytest.fixture
def attacker(lake: Lake, db: AirportClient) -> Iterator[AirportClient]:
    """A caller who may change everything in `open`, and read the view, but nothing in `hidden`."""
    grant(lake, "nothing", namespace_of(lake, "open").resource_id, v1.PV_MANAGE)
    grant(lake, "nothing", namespace_of(lake, "shared").resource_id)
    with lake.client(token="nothing") as client:
        with pytest.raises((NotFound, PermissionDenied)):
            ids(client, "hidden.t")
        yield client


def ids(client: AirportClient, name: str) -> list[int]:
    client.reload()
    return ids_of(client, name)


def realm_of(lake: Lake, name: str, *roles: str) -> Realm:
    return Realm(
        lake.stores,
        "a1",
        caller=name,
        policies=CallerPolicies(lambda: lake.stores, "a1", Subject(name, frozenset(roles))),
    )


def moved_schema(lake: Lake, old: str, new: str) -> None:
    request = v1.UpdateNamespaceRequest(
        namespace_id=namespace_of(lake, old).resource_id, spec=v1.NamespaceSpec(display_name=new)
    )
    request.update_mask.paths.append("display_name")
    namespaces.update(lake.realm, request)


def refused(client: AirportClient, view: str = "shared.v") -> PreconditionFailed:
    """The error of a scan and of a query."""
    client.reload()
    with pytest.raises(PreconditionFailed) as scanned:
        ids_of(client, view)
    with pytest.raises(PreconditionFailed) as queried:
        client.call("skiway.query", f"SELECT count(*) FROM {view}").read_all()
    assert scanned.value.key == queried.value.key == "view.replaced"
    assert scanned.value.message == queried.value.message
    assert "'writer', must save the view again" in scanned.value.message
    return scanned.value


def test_table_that_is_dropped_and_created_again_is_refused(
    lake: Lake, db: AirportClient, attacker: AirportClient
) -> None:
    create_view(db, "shared.v", "SELECT id FROM open.t", rights="definer")
    assert ids(attacker, "shared.v") == [1, 2]
    attacker.drop_table("open.t")
    with pytest.raises(PermissionDenied, match="rights of its definer"):
        ids(attacker, "shared.v")
    attacker.create_table("open.t", PUBLIC.schema)
    assert "open.t" in refused(attacker).message
    create_view(db, "shared.v", "SELECT id FROM open.t", rights="definer", replace=True)
    assert ids(attacker, "shared.v") == []


def test_view_in_the_place_of_a_table_is_refused(lake: Lake, db: AirportClient, attacker: AirportClient) -> None:
    """The view of the attacker would run with the rights of the definer."""
    create_view(db, "shared.v", "SELECT id FROM Open.T", rights="definer")
    assert ids(attacker, "shared.v") == [1, 2]
    attacker.drop_table("open.t")
    spec = v1.ViewSpec(
        display_name="t",
        catalog_id=namespace_of(lake, "open").catalog_id,
        namespace_id=namespace_of(lake, "open").resource_id,
        sql_definitions=[v1.ViewSql(sql="SELECT id FROM hidden.t", dialect="duckdb")],
    )
    views.create(realm_of(lake, "nothing", "system-objects"), v1.CreateViewRequest(spec=spec))
    assert "Open.T was replaced" in refused(attacker).message


def edited(lake: Lake, name: str, sql: str) -> None:
    request = v1.UpdateViewRequest(
        view_id=view_of(lake, name, "open").resource_id,
        spec=v1.ViewSpec(sql_definitions=[v1.ViewSql(sql=sql, dialect="duckdb")]),
    )
    request.update_mask.paths.append("sql_definitions")
    views.update(realm_of(lake, "nothing", "system-objects"), request)


def test_nested_view_that_another_caller_edits_is_refused(
    lake: Lake, db: AirportClient, attacker: AirportClient
) -> None:
    create_view(db, "open.n", "SELECT id FROM t WHERE id < 10")
    create_view(db, "open.m", "SELECT id FROM n")
    create_view(db, "shared.v", "SELECT id FROM open.m", rights="definer")
    assert ids(attacker, "shared.v") == [1, 2]
    request = v1.UpdateViewRequest(
        view_id=view_of(lake, "n", "open").resource_id, spec=v1.ViewSpec(description="a comment changes nothing")
    )
    request.update_mask.paths.append("description")
    views.update(realm_of(lake, "nothing", "system-objects"), request)
    assert ids(attacker, "shared.v") == [1, 2]
    edited(lake, "n", "SELECT id FROM hidden.t")
    assert "open.n" in refused(attacker).message
    create_view(db, "shared.v", "SELECT id FROM open.m", rights="definer", replace=True)
    assert ids(attacker, "shared.v") == [666], "the definer has bound the new query"


def test_nested_view_that_is_replaced_is_refused(lake: Lake, db: AirportClient, attacker: AirportClient) -> None:
    create_view(db, "open.n", "SELECT id FROM t")
    create_view(db, "shared.v", "SELECT id FROM open.n", rights="definer")
    attacker.call("skiway.drop_view", "open.n").read_all()
    create_view(attacker, "open.n", "SELECT id FROM t")
    refused(attacker)


def test_nested_view_with_definer_rights_has_those_of_its_last_editor(
    lake: Lake, db: AirportClient, attacker: AirportClient
) -> None:
    create_view(db, "open.n", "SELECT id FROM hidden.t", rights="definer")
    create_view(db, "shared.v", "SELECT id FROM open.n", rights="definer")
    assert ids(attacker, "shared.v") == [666]
    edited(lake, "n", "SELECT id FROM t")
    assert ids(attacker, "shared.v") == [1, 2]
    edited(lake, "n", "SELECT id FROM hidden.t")
    for client in (attacker, db):
        with pytest.raises(PermissionDenied):
            ids(client, "shared.v")


def test_view_that_loses_its_definer_rights_is_refused(lake: Lake, db: AirportClient, attacker: AirportClient) -> None:
    create_view(db, "open.n", "SELECT id FROM t", rights="definer")
    create_view(db, "shared.v", "SELECT id FROM open.n", rights="definer")
    create_view(attacker, "open.n", "SELECT id FROM t", rights="invoker", replace=True)
    edited(lake, "n", "SELECT id FROM hidden.t")
    refused(attacker)


@pytest.mark.parametrize("taken", ["table", "schema", "new schema"])
def test_another_object_with_the_name_is_refused(
    lake: Lake, db: AirportClient, attacker: AirportClient, taken: str
) -> None:
    create_view(db, "shared.v", "SELECT id FROM open.t", rights="definer")
    if taken == "table":
        db.rename_table("open.t", "before")
        db.create_table("open.other", SECRET.schema)
        db.rename_table("open.other", "t")
    elif taken == "schema":
        moved_schema(lake, "open", "before")
        moved_schema(lake, "hidden", "open")
    else:
        db.drop_table("open.t")
        db.drop_schema("open")
        db.create_schema("open")
        db.create_table("open.t", PUBLIC.schema)
    refused(db)


def test_names_that_change_places_are_refused(lake: Lake, db: AirportClient) -> None:
    """Both tables were bound, but not by these names."""
    create_view(db, "shared.v", "SELECT id FROM open.t WHERE id NOT IN (SELECT id FROM hidden.t)", rights="definer")
    moved_schema(lake, "open", "third")
    moved_schema(lake, "hidden", "open")
    moved_schema(lake, "third", "hidden")
    refused(db)


def test_renamed_object_is_read_while_its_name_still_means_it(lake: Lake, db: AirportClient) -> None:
    create_view(db, "shared.v", "SELECT id FROM open.t", rights="definer")
    create_view(db, "open.w", "SELECT id FROM t", rights="definer")
    db.rename_table("open.t", "T")
    moved_schema(lake, "open", "OPEN")
    assert ids(db, "shared.v") == ids(db, "OPEN.w") == [1, 2]
    moved_schema(lake, "OPEN", "elsewhere")  # the view `w` finds its table there, without a schema
    assert ids(db, "elsewhere.w") == [1, 2]
    with pytest.raises(PermissionDenied, match="rights of its definer"):
        ids(db, "shared.v")
    db.rename_table("elsewhere.T", "u")
    with pytest.raises(SkiwayError, match="t does not exist"):
        ids(db, "elsewhere.w")
    db.create_table("elsewhere.t", PUBLIC.schema)
    refused(db, "elsewhere.w")


def test_renamed_catalog_keeps_its_views(lake: Lake, db: AirportClient) -> None:
    create_view(db, "shared.v", "SELECT id FROM open.t", rights="definer")
    create_view(db, "shared.w", "SELECT id FROM managed.open.t", rights="definer")
    catalog = catalogs.find(lake.realm, "managed")
    assert catalog is not None
    request = v1.UpdateCatalogRequest(catalog_id=catalog.value.resource_id, spec=v1.CatalogSpec(display_name="renamed"))
    request.update_mask.paths.append("display_name")
    catalogs.update(lake.realm, request)
    with lake.client(catalog="renamed") as client:
        assert ids(client, "shared.v") == [1, 2]
        with pytest.raises(PermissionDenied, match="rights of its definer"):
            ids(client, "shared.w")


def test_points_in_time_are_those_of_the_bound_table(lake: Lake, db: AirportClient, attacker: AirportClient) -> None:
    (before,) = [
        row["snapshot_id"] for row in db.scan("skiway.snapshots").read_all().to_pylist() if row["schema_name"] == "open"
    ]
    create_view(db, "shared.v", f"SELECT id FROM open.t AT (VERSION => {before})", rights="definer")
    db.truncate("open.t")
    assert ids(attacker, "shared.v") == [1, 2]
    attacker.drop_table("open.t")
    attacker.create_table("open.t", PUBLIC.schema)
    refused(attacker)


def test_statistics_are_those_of_the_bound_table(lake: Lake, db: AirportClient) -> None:
    create_view(db, "shared.v", "SELECT id FROM open.t", rights="definer")
    db.reload()
    assert db.statistics("shared.v", "id").max == 2
    moved_schema(lake, "open", "before")
    moved_schema(lake, "hidden", "open")
    assert db.statistics("shared.v", "id").max != 666


def test_policies_on_a_nested_view_do_not_hide_a_swap(
    lake: Lake, db: AirportClient, attacker: AirportClient, queries: QueryEngine
) -> None:
    create_view(db, "open.n", "SELECT id FROM t")
    spec = v1.PolicySpec(
        display_name="p",
        subjects=["user:writer"],
        objects=[view_of(lake, "n", "open").resource_id],
        row_filter=v1.PolicyFilter(predicate="id > 1"),
    )
    policies.calls(PolicyChecks(queries)).create(lake.realm, v1.CreatePolicyRequest(spec=spec))
    create_view(db, "shared.v", "SELECT id FROM open.n", rights="definer")
    assert ids(attacker, "shared.v") == [2]
    attacker.drop_table("open.t")
    create_view(attacker, "open.t", "SELECT 7 AS id")
    edited(lake, "t", "SELECT id FROM hidden.t")
    refused(attacker)


def test_name_of_a_common_table_expression_stays_one(lake: Lake, db: AirportClient) -> None:
    create_view(db, "shared.v", "WITH x AS (SELECT id FROM open.t) SELECT id FROM x", rights="definer")
    db.create_table("shared.x", SECRET.schema)
    assert ids(db, "shared.v") == [1, 2]
    sql = "SELECT id FROM (WITH y AS (SELECT id FROM open.t) SELECT id FROM y) UNION ALL SELECT id FROM y"
    saved(lake, sql, name="w")
    db.create_table("shared.y", SECRET.schema)  # the second y was missing, and is not in the scope of the first one
    with pytest.raises(SkiwayError, match="y does not exist"):
        ids(db, "shared.w")


def test_object_that_did_not_exist_is_refused(lake: Lake, db: AirportClient, attacker: AirportClient) -> None:
    saved(lake, "SELECT id FROM open.later")
    attacker.create_table("open.later", PUBLIC.schema)
    assert "open.later did not exist" in refused(attacker).message


def test_system_tables_are_read_without_an_id(lake: Lake, db: AirportClient, attacker: AirportClient) -> None:
    create_view(db, "shared.v", "SELECT count(*) AS id FROM skiway.tables", rights="definer")
    assert ids(attacker, "shared.v") == [2]


def saved(lake: Lake, sql: str, **more: Any) -> v1.View:
    space = namespace_of(lake, "shared")
    spec = v1.ViewSpec(
        display_name=more.pop("name", "v"),
        catalog_id=space.catalog_id,
        namespace_id=space.resource_id,
        rights=v1.VR_DEFINER,
        sql_definitions=[v1.ViewSql(sql=sql, dialect=more.pop("dialect", "duckdb"))],
        **more,
    )
    return views.create(realm_of(lake, "writer", "developer"), v1.CreateViewRequest(spec=spec)).view


@pytest.mark.parametrize(
    ("sql", "dialect"),
    [
        ("FROM open.t SELECT id", "duckdb"),
        ("WITH t AS (SELECT id FROM open.t) SELECT id FROM t WHERE id IN (SELECT id FROM managed.open.t)", "duckdb"),
        ("SELECT `id` FROM `open`.`t`", "spark"),
    ],
)
def test_views_of_the_other_doors_are_bound_by_their_text(
    lake: Lake, db: AirportClient, attacker: AirportClient, sql: str, dialect: str
) -> None:
    """They come without a list of what they read."""
    made = saved(lake, sql, dialect=dialect)
    assert not made.definer.bindings, "they name objects that readers of the view may not see"
    assert ids(attacker, "shared.v") == [1, 2]
    attacker.drop_table("open.t")
    attacker.create_table("open.t", PUBLIC.schema)
    refused(attacker)


def test_text_that_cannot_be_bound_is_refused_when_it_is_saved(lake: Lake, db: AirportClient) -> None:
    with pytest.raises(InvalidArgument, match="cannot be determined"):
        saved(lake, "SELECT (((")


def test_views_from_before_bindings_are_refused(lake: Lake, db: AirportClient, attacker: AirportClient) -> None:
    """It is unknown whether what they read was replaced."""
    create_view(db, "shared.v", "SELECT id FROM open.t", rights="definer")
    repository = lake.realm.all(VIEW)
    current = repository.require(keys.view("a1", view_of(lake, "v").resource_id.id), name="v")
    old = v1.View()
    old.CopyFrom(current.value)
    for field in ("bindings", "catalog", "schema"):
        old.definer.ClearField(field)
    repository.update(current, old)
    assert "before views were bound" in refused(attacker).message
    request = v1.UpdateViewRequest(view_id=old.resource_id, spec=v1.ViewSpec(rights=v1.VR_DEFINER))
    request.update_mask.paths.append("rights")
    views.update(realm_of(lake, "writer", "developer"), request)
    assert ids(attacker, "shared.v") == [1, 2]


def test_property_that_chooses_columns_changes_the_definer(lake: Lake, db: AirportClient) -> None:
    """Spark's names of columns decide which column of the query a column of the view shows."""
    columns = [v1.SchemaColumn(name="id", logical_type="BIGINT")]
    made = saved(lake, "SELECT * FROM open.t", dialect="spark", output_columns=columns)
    for properties, definer in (({"a": "b"}, "writer"), ({"spark.query-column-names": "salary"}, "nothing")):
        request = v1.UpdateViewRequest(view_id=made.resource_id, spec=v1.ViewSpec(properties=properties))
        request.update_mask.paths.append("properties")
        changed = views.update(realm_of(lake, "nothing", "system-objects"), request).view
        assert changed.definer.subject == definer


def test_mirrored_tables_are_bound_to_their_source(lake: Lake, db: AirportClient, tmp_path: Path) -> None:
    """What the source shows under the name is its own affair, as long as the record mirrors this name."""
    files = tmp_path / "files"
    for name, rows in (("t", PUBLIC), ("u", SECRET)):
        (files / name).mkdir(parents=True)
        pq.write_table(rows, files / name / "a.parquet")
    lake.mirror("parquet", str(files))
    create_view(db, "shared.v", "SELECT id FROM parquet.root.T", rights="definer")
    assert ids(db, "shared.v") == [1, 2]
    with open_source("parquet", str(files)) as source:
        known = source.load((), "t").snapshots()
    (files / "t" / "a.parquet").unlink()
    pq.write_table(pa.table({"id": [3]}), files / "t" / "b.parquet")
    mirrored = catalogs.find(lake.realm, "parquet")
    assert mirrored is not None
    space = namespaces.lookup(lake.realm, mirrored.value.resource_id, ["root"])
    table = tables.find(lake.realm, space.resource_id.id, "t") if space else None
    assert table is not None
    with open_source("parquet", str(files)) as source:
        lake.sync_snapshots(table, source.load((), "t"), known)
    assert ids(db, "shared.v") == [3]
    pointed = v1.UpdateTableRequest(table_id=table.resource_id, spec=v1.TableSpec(upstream=table.upstream))
    pointed.spec.upstream.table_display_name = "u"
    pointed.update_mask.paths.append("upstream")
    tables.update(lake.realm, pointed)
    assert "the source of root.T was changed" in refused(db).message
    tables.delete(lake.realm, v1.DeleteTableRequest(table_id=table.resource_id))
    spec = v1.TableSpec(display_name="t", catalog_id=table.catalog_id, namespace_id=table.namespace_id)
    spec.upstream.CopyFrom(table.upstream)
    spec.schema_json = table.schema_json
    tables.create(lake.realm, v1.CreateTableRequest(spec=spec))
    assert "root.T was replaced" in refused(db).message
