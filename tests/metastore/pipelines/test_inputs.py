"""What queries of pipelines can read besides managed tables of their catalog: mirrored tables, views, other catalogs."""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest

from metastore.pipelines.pipeline_lake import ORDERS, PipelineLake
from metastore.resource_factory import ResourceFactory
from metastore.upstreams import connector, iceberg, iceberg_connector, parquet, run
from skiway.formats import TableName
from skiway.metastore import Realm, managed
from skiway.metastore.pipelines import api
from skiway.metastore.pipelines.inputs import PipelineArea, owner_realm
from skiway.metastore.reconcile.reconciler import Reconciler
from skiway.metastore.resources import grants, policies, views
from skiway.model import v1
from skiway.security import MemorySecrets

COPY = {"copy": "SELECT id, n FROM upstream.people"}


@pytest.fixture
def factory_of(lake: PipelineLake) -> ResourceFactory:
    lake.lake.factory.first_namespace()
    return lake.lake.factory


def to_namespace(factory: ResourceFactory, *path: str) -> v1.ConnectorDestination:
    return v1.ConnectorDestination(
        catalog_id=factory.first_catalog().resource_id, namespace=v1.NamespacePath(segments=path)
    )


def view(lake: PipelineLake, name: str, sql: str, *, dialect: str = "spark", **spec: object) -> v1.View:
    return lake.lake.factory.view(name, sql_definitions=[v1.ViewSql(sql=sql, dialect=dialect)], **spec)


# --- mirrored tables --------------------------------------------------------------------------------------------------


def test_a_mirrored_table_is_read_at_its_last_sync(
    lake: PipelineLake, factory_of: ResourceFactory, tmp_path: Path
) -> None:
    catalog = iceberg(tmp_path / "up")
    upstream = catalog.create_table("sales.people", pa.schema({"id": pa.int64(), "n": pa.int64()}))
    upstream.append(pa.table({"id": [1], "n": [10]}))
    source = iceberg_connector(factory_of, tmp_path / "up", destination=to_namespace(factory_of, "upstream"))
    run(factory_of, source)
    lake.queries = COPY
    assert lake.run().failures == {}
    upstream.append(pa.table({"id": [2], "n": [20]}))
    assert lake.actions() == {"copy": "keep"}
    run(factory_of, source)
    assert lake.actions() == {"copy": "append"}
    lake.engine.rows_read = 0
    assert lake.run().failures == {}
    assert (lake.engine.rows_read, lake.rows("copy")) == (1, [(1, 10), (2, 20)])
    upstream.delete("id = 1")
    run(factory_of, source)
    assert lake.actions() == {"copy": "replace"}
    lake.run()
    assert lake.rows("copy") == [(2, 20)]
    assert lake.actions() == {"copy": "keep"}


def test_a_mirrored_delta_table_is_read_again_as_a_whole(
    lake: PipelineLake, factory_of: ResourceFactory, tmp_path: Path
) -> None:
    folder = tmp_path / "delta" / "people"
    deltalake.write_deltalake(folder, pa.table({"id": [0], "n": [0]}))
    deltalake.write_deltalake(folder, pa.table({"id": [1], "n": [10]}), mode="overwrite")
    source = connector(
        factory_of,
        str(tmp_path / "delta"),
        v1.CK_DELTA,
        properties={"delta.source": "filesystem"},
        destination=to_namespace(factory_of, "upstream"),
    )
    assert run(factory_of, source).failures == {}
    lake.queries = COPY
    assert lake.run().failures == {}
    deltalake.write_deltalake(folder, pa.table({"id": [2], "n": [20]}), mode="append")
    run(factory_of, source)
    assert lake.actions() == {"copy": "replace"}
    assert lake.run().failures == {}
    assert lake.rows("copy") == [(1, 10), (2, 20)]
    assert lake.actions() == {"copy": "keep"}
    with ExitStack() as opened:
        name = TableName(("upstream",), "people")
        read = lake.pipeline().tables.input(name, reader=name, opened=opened)
        assert read.changed_since(replace(read.state, snapshot=1)) is None
    shutil.rmtree(folder)
    for number in range(3):
        deltalake.write_deltalake(folder, pa.table({"id": [number], "n": [0]}), mode="append")
    run(factory_of, source)
    assert lake.run().failures == {}
    assert lake.rows("copy") == [(0, 0), (1, 0), (2, 0)]


def test_a_mirrored_table_without_a_snapshot_is_named(lake: PipelineLake, factory_of: ResourceFactory) -> None:
    factory_of.table("people", namespace=factory_of.namespace("upstream"))
    lake.queries = COPY
    (message,) = lake.run().failures.values()
    assert (
        "table upstream.people, which sales.copy reads, is a mirrored table without a snapshot: synchronise" in message
    )


def test_files_that_are_gone_since_the_last_sync_fail_only_their_table(
    lake: PipelineLake, factory_of: ResourceFactory, tmp_path: Path
) -> None:
    file = parquet(tmp_path / "up" / "people", "a", id=[1], n=[10]) / "a.parquet"
    run(factory_of, connector(factory_of, str(tmp_path / "up"), destination=to_namespace(factory_of, "upstream")))
    file.unlink()
    parquet(tmp_path / "up" / "people", "b", id=[2], n=[20])
    lake.queries = COPY | {"one": "SELECT 1 AS x"}
    outcome = lake.run()
    assert outcome.changed == 1
    assert "synchronise its connector" in outcome.failures["sales.copy"]


# --- other catalogs ---------------------------------------------------------------------------------------------------


def test_tables_of_other_catalogs_of_the_account_are_read(lake: PipelineLake, factory_of: ResourceFactory) -> None:
    other = factory_of.namespace("deep", catalog=factory_of.catalog("other"))
    inner = factory_of.namespace("deep", "er", catalog=factory_of.catalog("third"))
    lake.append(lake.create(), (1, "eu", 3))
    theirs = lake.lake.create("orders", ORDERS, namespace_id=other.resource_id)
    lake.append(theirs, (2, "us", 4))
    lake.append(lake.lake.create("orders", ORDERS, namespace_id=inner.resource_id), (3, "xx", 5))
    lake.queries = {
        "all_ids": (
            "SELECT id FROM orders UNION ALL SELECT other.deep.orders.id FROM other.deep.orders "
            "UNION ALL SELECT id FROM third.deep.er.orders"
        ),
        "theirs": "SELECT * FROM other.DEEP.orders",
    }
    assert lake.run().failures == {}
    assert lake.rows("all_ids") == [(1,), (2,), (3,)]
    lake.append(theirs, (4, "us", 4))
    assert lake.actions() == {"all_ids": "replace", "theirs": "append"}
    lake.run()
    assert lake.rows("theirs") == [(2, "us", 4), (4, "us", 4)]


def test_the_catalog_of_the_pipeline_comes_first(lake: PipelineLake, factory_of: ResourceFactory) -> None:
    other = factory_of.namespace("deep", catalog=factory_of.catalog("other"))
    own = factory_of.namespace("other", "deep")
    for namespace, number in ((other, 1), (own, 2)):
        lake.append(lake.lake.create("t", ORDERS, namespace_id=namespace.resource_id), (number, "eu", 3))
    lake.queries = {"copy": "SELECT id FROM other.deep.t"}
    lake.run()
    assert lake.rows("copy") == [(2,)]


def test_an_owner_needs_rights_in_the_other_catalog(lake: PipelineLake, factory_of: ResourceFactory) -> None:
    other = factory_of.namespace("deep", catalog=factory_of.catalog("other"))
    lake.append(lake.lake.create("t", ORDERS, namespace_id=other.resource_id), (1, "eu", 3))
    lake.queries = {"copy": "SELECT id FROM other.deep.t"}
    for privilege in (v1.PV_READ, v1.PV_WRITE):
        request = v1.AddGrantRequest(
            object_id=factory_of.first_namespace().resource_id, grantee="user:ann", privilege=privilege
        )
        grants.add(lake.lake.home, request)
    lake.realm = owner_realm(lake.lake.home, v1.PipelineOwner(subject="ann", roles=["member"]))
    assert "the owner of the pipeline, ann, may not see it" in lake.run().failures["sales.copy"]
    grants.add(
        lake.lake.home, v1.AddGrantRequest(object_id=other.resource_id, grantee="user:ann", privilege=v1.PV_READ)
    )
    lake.realm = owner_realm(lake.lake.home, v1.PipelineOwner(subject="ann", roles=["member"]))
    assert lake.run().failures == {}


# --- views ------------------------------------------------------------------------------------------------------------


def test_a_view_is_read_and_its_tables_are_the_inputs(lake: PipelineLake) -> None:
    orders = lake.create()
    lake.append(orders, (1, "eu", 3), (2, "us", 1))
    view(
        lake,
        "cheap",
        "WITH o AS (SELECT * FROM orders) SELECT sales.orders.id, o.price FROM sales.orders JOIN o ON orders.id = o.id",
    )
    view(lake, "cheapest", "SELECT c.id FROM cheap AS c WHERE price < 2")
    lake.queries = {"ids": "SELECT v.id, orders.region FROM cheapest AS v JOIN orders ON v.id = orders.id"}
    assert lake.run().failures == {}
    assert lake.rows("ids") == [(2, "us")]
    assert lake.actions() == {"ids": "keep"}
    lake.append(orders, (3, "xx", 0))
    assert lake.actions() == {"ids": "replace"}
    lake.run()
    assert lake.rows("ids") == [(2, "us"), (3, "xx")]


def test_a_changed_view_changes_the_definition(lake: PipelineLake) -> None:
    lake.append(lake.create(), (1, "eu", 3), (2, "us", 1))
    made = view(lake, "some", "SELECT id FROM orders WHERE price > 2")
    lake.queries = {"ids": "SELECT * FROM some"}
    lake.run()
    digest = lake.pipeline().source_digest()
    spec = v1.ViewSpec(sql_definitions=[v1.ViewSql(sql="SELECT id FROM orders WHERE price < 2", dialect="spark")])
    request = v1.UpdateViewRequest(view_id=made.resource_id, spec=spec)
    request.update_mask.paths.append("sql_definitions")
    views.update(lake.lake.home, request)
    assert lake.pipeline().source_digest() != digest
    assert lake.actions() == {"ids": "replace"}
    lake.run()
    assert lake.rows("ids") == [(2,)]


def test_a_view_for_duckdb_is_translated_and_keeps_its_column_names(lake: PipelineLake) -> None:
    lake.append(lake.create(), (1, "eu", 3), (2, "us", 2))
    columns = [v1.SchemaColumn(name=name, logical_type="BIGINT") for name in ("region", "how_many")]
    sql = "SELECT region, count(*) FROM sales.orders GROUP BY ALL"
    view(lake, "counted", sql, dialect="duckdb", output_columns=columns)
    lake.queries = {"counts": "SELECT region, how_many AS n FROM counted"}
    assert lake.run().failures == {}
    assert lake.rows("counts") == [("eu", 1), ("us", 1)]


def test_a_view_in_another_catalog_reads_tables_of_that_catalog(
    lake: PipelineLake, factory_of: ResourceFactory
) -> None:
    other = factory_of.namespace("deep", catalog=factory_of.catalog("other"))
    lake.append(lake.lake.create("t", ORDERS, namespace_id=other.resource_id), (7, "eu", 3))
    view(lake, "v", "SELECT id FROM t", namespace=other)
    lake.queries = {"ids": "SELECT * FROM other.deep.v"}
    assert lake.run().failures == {}
    assert lake.rows("ids") == [(7,)]


@pytest.mark.parametrize(
    ("sql", "spec", "message"),
    [
        ("SELECT * FROM v", {}, "view v, which sales.ids reads, reads itself"),
        ("SELECT * FROM other", {}, "view v, which sales.ids reads, reads sales.other of the same pipeline"),
        (
            "SELECT reflect('a', 'b') AS x",
            {},
            "the query in view v cannot be used: the function reflect is not allowed",
        ),
        ("SELECT * FROM text.`/etc/passwd`", {}, "table text./etc/passwd, which sales.ids reads, does not exist"),
        ("SELECT 1 AS x", {"dialect": "oracle"}, "view v has no SQL for Spark or DuckDB, only for oracle"),
    ],
)
def test_views_that_cannot_be_read_are_named(lake: PipelineLake, sql: str, spec: dict[str, str], message: str) -> None:
    view(lake, "v", sql, **spec)
    lake.queries = {"ids": "SELECT * FROM v", "other": "SELECT 1 AS x"}
    outcome = lake.run()
    assert message in outcome.failures["sales.ids"]
    assert outcome.changed == 1
    assert message in lake.actions()["ids"]


def test_a_view_with_the_rights_of_its_definer_is_refused(lake: PipelineLake) -> None:
    ann = owner_realm(lake.lake.home, v1.PipelineOwner(subject="ann", roles=["administrator"]))
    space = lake.lake.factory.first_namespace()
    spec = v1.ViewSpec(
        display_name="v", catalog_id=space.catalog_id, namespace_id=space.resource_id, rights=v1.VR_DEFINER
    )
    spec.sql_definitions.add(sql="SELECT 1 AS x", dialect="spark")
    views.create(ann, v1.CreateViewRequest(spec=spec))
    lake.queries = {"ids": "SELECT * FROM v"}
    assert "has the rights of its definer" in lake.run().failures["sales.ids"]


def test_a_view_that_another_caller_changes_is_refused(lake: PipelineLake) -> None:
    """Otherwise that caller would choose what is read with the rights of the owner."""
    orders = lake.create()
    lake.append(orders, (1, "eu", 3))
    lake.append(lake.create("hidden"), (666, "eu", 3))
    view(lake, "below", "SELECT id FROM orders")
    some = view(lake, "some", "SELECT id FROM below")
    ann, bob = (
        owner_realm(lake.lake.home, v1.PipelineOwner(subject=name, roles=["administrator"])) for name in ("ann", "bob")
    )
    files = {
        "pipeline.yml": f"name: p\ncatalog: {lake.lake.factory.first_catalog().display_name}\nnamespace: sales\n",
        "ids.sql": "SELECT * FROM some",
        "others.sql": "SELECT id FROM orders",
    }
    made = api.CALLS.create(ann, v1.CreatePipelineRequest(spec=v1.PipelineSpec(files=files))).pipeline
    assert not made.owner.views, "they are ids of objects that other callers may not see"
    area = PipelineArea(Reconciler(MemorySecrets(), warehouse=lake.lake.warehouse))

    def planned() -> dict[str, str]:
        found = api.plan(ann, v1.PlanPipelineRequest(pipeline_id=made.resource_id), area=area).tables
        return {each.table: each.reason if each.action == "fail" else each.action for each in found}

    def change(realm: Realm, view_id: v1.ResourceId, sql: str) -> None:
        spec = v1.ViewSpec(sql_definitions=[v1.ViewSql(sql=sql, dialect="spark")])
        request = v1.UpdateViewRequest(view_id=view_id, spec=spec)
        request.update_mask.paths.append("sql_definitions")
        views.update(realm, request)

    assert planned() == {"sales.ids": "replace", "sales.others": "replace"}
    change(bob, some.resource_id, "SELECT id FROM hidden")
    assert "was changed by 'bob', since 'ann' applied the pipeline" in planned()["sales.ids"]
    change(ann, some.resource_id, "SELECT id FROM below WHERE id > 0")
    assert planned()["sales.ids"] == "replace"
    managed.drop(lake.lake.home, lake.lake.warehouse, orders.table.resource_id)
    space = lake.lake.factory.first_namespace()
    spec = v1.ViewSpec(display_name="orders", catalog_id=space.catalog_id, namespace_id=space.resource_id)
    spec.sql_definitions.add(sql="SELECT id FROM hidden", dialect="spark")
    views.create(bob, v1.CreateViewRequest(spec=spec))
    assert all("was changed by 'bob'" in reason for reason in planned().values())
    again = v1.UpdatePipelineRequest(pipeline_id=made.resource_id, spec=v1.PipelineSpec(files=files))
    again.update_mask.paths.append("files")
    api.CALLS.update(ann, again)
    assert planned() == {"sales.ids": "replace", "sales.others": "replace"}


@pytest.mark.parametrize("restricted", ["view", "table"])
def test_an_owner_under_policies_on_a_view_or_below_it_is_refused(lake: PipelineLake, restricted: str) -> None:
    orders = lake.create()
    lake.append(orders, (1, "eu", 3))
    made = view(lake, "v", "SELECT * FROM orders")
    on = made.resource_id if restricted == "view" else orders.table.resource_id
    spec = v1.PolicySpec(display_name="eu only", subjects=["user:ann"], objects=[on])
    spec.row_filter.predicate = "region = 'eu'"
    policies.calls(lambda *_: []).create(lake.lake.home, v1.CreatePolicyRequest(spec=spec))
    lake.realm = owner_realm(lake.lake.home, v1.PipelineOwner(subject="ann", roles=["administrator"]))
    lake.queries = {"ids": "SELECT * FROM v"}
    assert "eu only" in lake.run().failures["sales.ids"]
