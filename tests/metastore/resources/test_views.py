from __future__ import annotations

from typing import Any

import pytest

from metastore.integrity import damage
from metastore.resource_factory import behavior, expect_error, mask, names
from skiway.errors import AlreadyExists, InvalidArgument
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


def update(factory: Any, view: v1.View, *paths: str, **spec: Any) -> v1.UpdateViewResponse:
    return views.update(factory.home, Update(view_id=view.resource_id, spec=Spec(**spec), update_mask=mask(*paths)))


def test_view_stores_its_sql_dialects_and_the_names_it_reads(factory):
    created = factory.view(
        "adults",
        sql_definitions=[v1.ViewSql(sql="SELECT 1", dialect=" DuckDB "), v1.ViewSql(sql="select 1", dialect="spark")],
        base_relations=[
            v1.NameRef(catalog="lake", path=[" sales"], name="people ", resource_id=v1.ResourceId(id="gone"))
        ],
        creation_search_path=["sales"],
        output_columns=[v1.SchemaColumn(name="n", logical_type="INT")],
    )
    assert created.display_name == "adults"
    assert [each.dialect for each in created.sql_definitions] == ["duckdb", "spark"]
    assert list(created.base_relations) == [v1.NameRef(catalog="lake", path=["sales"], name="people")]
    assert created.output_columns[0].name == "n"
    found = views.get(factory.home, Get(view_id=created.resource_id))
    assert (found.view, found.meta.pointer_version) == (created, 1)
    assert damage(factory.stores) == []


@pytest.mark.parametrize(
    ("missing", "error_key"),
    [
        ("catalog_id", "view.missing.catalog.id"),
        ("namespace_id", "view.missing.namespace.id"),
        ("sql_definitions", "view.sql.required"),
        ("display_name", "display.name.required"),
    ],
)
def test_view_needs_a_namespace_a_name_and_sql(factory, missing, error_key):
    namespace = factory.namespace("sales")
    spec = Spec(
        display_name="v", catalog_id=namespace.catalog_id, namespace_id=namespace.resource_id, sql_definitions=SQL
    )
    spec.ClearField(missing)
    with expect_error(InvalidArgument, error_key):
        views.create(factory.home, Create(spec=spec))
    with expect_error(InvalidArgument, "view.missing.spec"):
        views.create(factory.home, Create())


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
def test_invalid_views_are_rejected_on_create_and_update(factory, changed, error_key):
    with expect_error(InvalidArgument, error_key):
        factory.view("other", **changed)
    with expect_error(InvalidArgument, error_key):
        update(factory, factory.view(), *changed, **changed)


@behavior(26)
def test_lists_are_replaced_completely_and_sql_cannot_be_cleared(factory):
    view = factory.view(base_relations=[v1.NameRef(name="a"), v1.NameRef(name="b")], description="d")
    changed = update(factory, view, "base_relations", "description", base_relations=[v1.NameRef(name="c")]).view
    assert [each.name for each in changed.base_relations] == ["c"]
    assert not changed.HasField("description")
    with expect_error(InvalidArgument, "sql.definitions.cannot.clear", field="sql_definitions"):
        update(factory, view, "sql_definitions")


@behavior(30)
def test_view_cannot_be_renamed_or_moved_to_the_name_of_a_table(factory):
    table, view = factory.table("t"), factory.view("v")
    with expect_error(AlreadyExists, "relation.name.already.claimed", resource="view", name="t"):
        update(factory, view, "display_name", display_name="t")
    other = factory.namespace("zzz")
    factory.table("v", namespace=other)
    with expect_error(AlreadyExists, "relation.name.already.claimed", name="v"):
        update(factory, view, "namespace_id", namespace_id=other.resource_id)
    tables.delete(factory.home, v1.DeleteTableRequest(table_id=table.resource_id))
    assert update(factory, view, "display_name", display_name="t").view.display_name == "t"


def test_recreating_a_base_table_does_not_change_the_view(factory):
    table = factory.table("people")
    view = factory.view(base_relations=[v1.NameRef(catalog="lake", path=["sales"], name="people")])
    tables.delete(factory.home, v1.DeleteTableRequest(table_id=table.resource_id))
    factory.table("people")
    assert views.get(factory.home, Get(view_id=view.resource_id)).view == view


def test_views_are_listed_by_name_without_tables_and_can_be_deleted(factory):
    namespace = factory.namespace("sales")
    factory.table("t")
    made = [factory.view(name) for name in ("b", "a")]
    request = v1.ListViewsRequest(namespace_id=namespace.resource_id)
    assert names(views.list_(factory.home, request).views) == ["a", "b"]
    assert views.list_(factory.home, request).page.total_size == 2
    views.delete(factory.home, Delete(view_id=made[0].resource_id))
    views.delete(factory.home, Delete(view_id=made[0].resource_id))
    assert names(views.list_(factory.home, request).views) == ["a"]
