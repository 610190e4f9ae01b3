from __future__ import annotations

from typing import Any

import pytest

from metastore.wholeness import damage
from metastore.world import behaviour, key, mask, names, refused
from skiway.errors import AlreadyExists, Conflict, InvalidArgument, NotFound
from skiway.metastore.resources import tables, views
from skiway.model import v1

Create, Update, Delete, Get, Spec = (
    v1.CreateViewRequest,
    v1.UpdateViewRequest,
    v1.DeleteViewRequest,
    v1.GetViewRequest,
    v1.ViewSpec,
)
SQL = [v1.ViewSql(sql="SELECT 1", dialect="duckdb")]


def update(world: Any, view: v1.View, *paths: str, **spec: Any) -> v1.UpdateViewResponse:
    return views.update(world.home, Update(view_id=view.resource_id, spec=Spec(**spec), update_mask=mask(*paths)))


def test_a_view_keeps_its_sql_in_every_dialect_and_the_names_it_reads(world):
    created = world.view(
        " adults ",
        sql_definitions=[v1.ViewSql(sql="SELECT 1", dialect=" DuckDB "), v1.ViewSql(sql="select 1", dialect="spark")],
        base_relations=[
            v1.NameRef(catalog="lake", path=[" sales"], name="people ", resource_id=v1.ResourceId(id="gone"))
        ],
        creation_search_path=["sales"],
        output_columns=[v1.SchemaColumn(name="n", logical_type="INT")],
    )
    assert [each.dialect for each in created.sql_definitions] == ["duckdb", "spark"]
    assert list(created.base_relations) == [v1.NameRef(catalog="lake", path=["sales"], name="people")]
    assert created.output_columns[0].name == "n"
    found = views.get(world.home, Get(view_id=created.resource_id))
    assert (found.view, found.meta.pointer_version) == (created, 1)
    assert damage(world.stores) == []


@pytest.mark.parametrize(
    ("missing", "error_key"),
    [
        ("catalog_id", "view.missing.catalog.id"),
        ("namespace_id", "view.missing.namespace.id"),
        ("sql_definitions", "view.sql.required"),
        ("display_name", "display.name.required"),
    ],
)
def test_a_view_needs_a_place_a_name_and_sql(world, missing, error_key):
    place = world.namespace("sales")
    spec = Spec(display_name="v", catalog_id=place.catalog_id, namespace_id=place.resource_id, sql_definitions=SQL)
    spec.ClearField(missing)
    with refused(InvalidArgument, error_key):
        views.create(world.home, Create(spec=spec))
    with refused(InvalidArgument, "view.missing.spec"):
        views.create(world.home, Create())


@pytest.mark.parametrize(
    ("changed", "error_key"),
    [
        ({"sql_definitions": [v1.ViewSql(sql=" ", dialect="duckdb")]}, "view.sql.required"),
        ({"sql_definitions": [v1.ViewSql(sql="SELECT 1")]}, "view.sql.required"),
        ({"sql_definitions": [*SQL, v1.ViewSql(sql="x", dialect="DUCKDB")]}, "view.sql.duplicate"),
        ({"base_relations": [v1.NameRef(name=" ")]}, "field"),
        ({"base_relations": [v1.NameRef(name="x", path=[""])]}, "path.segment.blank"),
        ({"properties": {"apiKey": "x"}}, "property.secret"),
    ],
)
def test_bad_views_are_refused_on_create_and_update(world, changed, error_key):
    with refused(InvalidArgument, error_key):
        world.view("other", **changed)
    with refused(InvalidArgument, error_key):
        update(world, world.view(), *changed, **changed)


@behaviour(26)
def test_lists_are_replaced_as_a_whole_and_sql_cannot_be_cleared(world):
    view = world.view(base_relations=[v1.NameRef(name="a"), v1.NameRef(name="b")], description="d")
    changed = update(world, view, "base_relations", "description", base_relations=[v1.NameRef(name="c")]).view
    assert [each.name for each in changed.base_relations] == ["c"]
    assert not changed.HasField("description")
    with refused(InvalidArgument, "sql.definitions.cannot.clear", field="sql_definitions"):
        update(world, view, "sql_definitions")


@behaviour(30)
def test_a_view_cannot_be_renamed_or_moved_onto_a_table(world):
    table, view = world.table("t"), world.view("v")
    with refused(AlreadyExists, "relation.name.already.claimed", resource="view", name="t"):
        update(world, view, "display_name", display_name="t")
    other = world.namespace("zzz")
    world.table("v", namespace=other)
    with refused(AlreadyExists, "relation.name.already.claimed", name="v"):
        update(world, view, "namespace_id", namespace_id=other.resource_id)
    tables.delete(world.home, v1.DeleteTableRequest(table_id=table.resource_id))
    assert update(world, view, "display_name", display_name="t").view.display_name == "t"


def test_dropping_and_making_a_base_table_again_leaves_the_view_alone(world):
    table = world.table("people")
    view = world.view(base_relations=[v1.NameRef(catalog="lake", path=["sales"], name="people")])
    tables.delete(world.home, v1.DeleteTableRequest(table_id=table.resource_id))
    world.table("people")
    assert views.get(world.home, Get(view_id=view.resource_id)).view == view


@behaviour(36, 37)
def test_a_key_makes_a_repeated_creation_one(world):
    place = world.namespace("sales")
    spec = Spec(display_name="v", catalog_id=place.catalog_id, namespace_id=place.resource_id, sql_definitions=SQL)
    first = views.create(world.home, Create(spec=spec, idempotency=key("k")))
    assert views.create(world.home, Create(spec=spec, idempotency=key("k"))) == first
    spec.sql_definitions[0].sql = "SELECT 2"
    with refused(Conflict, "idempotency.mismatch", op="CreateView"):
        views.create(world.home, Create(spec=spec, idempotency=key("k")))


def test_views_are_listed_by_name_without_tables_and_deleted(world):
    place = world.namespace("sales")
    world.table("t")
    made = [world.view(name) for name in ("b", "a")]
    request = v1.ListViewsRequest(namespace_id=place.resource_id)
    assert names(views.list_(world.home, request).views) == ["a", "b"]
    assert views.list_(world.home, request).page.total_size == 2
    views.delete(world.home, Delete(view_id=made[0].resource_id))
    views.delete(world.home, Delete(view_id=made[0].resource_id))
    assert names(views.list_(world.home, request).views) == ["a"]


def test_another_account_cannot_reach_a_view(world):
    view = world.view()
    world.account("a2")
    for view_id in (view.resource_id, v1.ResourceId(id=view.resource_id.id)):
        with refused(NotFound, "view"):
            views.get(world.realm("a2"), Get(view_id=view_id))
    with refused(NotFound, "view"):
        views.delete(world.realm("a2"), Delete(view_id=view.resource_id))
    assert views.get(world.home, Get(view_id=view.resource_id)).view == view
