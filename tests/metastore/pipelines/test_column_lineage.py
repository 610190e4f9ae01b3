"""From which columns each column of a derived table is computed."""

from __future__ import annotations

import pytest

from metastore.pipelines.pipeline_lake import PipelineLake
from skiway.formats.iceberg.changes.commits import append
from skiway.metastore.managed.commits import change
from skiway.metastore.pipelines import api
from skiway.metastore.pipelines.inputs import PipelineArea, owner_realm
from skiway.metastore.pipelines.lineage import (
    COLUMNS,
    MAX_BYTES,
    column_lineage,
    columns_by_source,
    read_lineage,
    stored_lineage,
)
from skiway.metastore.pipelines.spark_sql import parse_query
from skiway.metastore.reconcile.outcomes import Control
from skiway.metastore.reconcile.reconciler import Reconciler
from skiway.metastore.usage import usage_of
from skiway.model import v1
from skiway.security import MemorySecrets

COLUMNS_OF = {"orders": ["id", "Region", "price"], "users": ["id", "name", "s"]}


@pytest.mark.parametrize(
    ("sql", "wanted"),
    [
        (
            "SELECT id, upper(region) AS r, price * 2 AS d FROM orders WHERE price > 2",
            {"id": ["orders.id"], "r": ["orders.Region"], "d": ["orders.price"]},
        ),
        ("SELECT * FROM orders", {"id": ["orders.id"], "Region": ["orders.Region"], "price": ["orders.price"]}),
        (
            "WITH a AS (SELECT id, price + 1 AS p FROM orders) SELECT a.p AS p, u.s.x AS x FROM a JOIN users u ON a.id = u.id",
            {"p": ["orders.price"], "x": ["users.s"]},
        ),
        ("SELECT region AS r, count(*) AS n FROM orders GROUP BY region", {"r": ["orders.Region"], "n": []}),
        ("SELECT id FROM orders UNION ALL SELECT id FROM users", {"id": ["orders.id", "users.id"]}),
        ("SELECT (SELECT max(price) FROM orders) AS m FROM users", {"m": ["orders.price"]}),
        ("SELECT transform(s, y -> y + id) AS z FROM users", {"z": ["users.id", "users.s"]}),
        ("SELECT k FROM users LATERAL VIEW explode(s) e AS k", {"k": ["users.s"]}),
        ("SELECT nonsense AS n FROM orders", {"n": []}),
    ],
)
def test_columns_are_followed_through_the_query(sql: str, wanted: dict[str, list[str]]) -> None:
    query = parse_query(sql, file="a.sql")
    found = column_lineage(query, {name: COLUMNS_OF[name.name] for name in query.reads}, list(wanted))
    shown = {
        column: [f"{name}.{each}" for name, columns in sources.items() for each in columns]
        for column, sources in found.items()
    }
    assert shown == {column: sources for column, sources in wanted.items() if sources}


def test_other_columns_than_the_engine_has_are_not_guessed() -> None:
    query = parse_query("SELECT * FROM orders", file="a.sql")
    assert column_lineage(query, dict.fromkeys(query.reads, COLUMNS_OF["orders"]), ["id"]) == {}


def test_a_lineage_that_is_too_long_is_not_stored() -> None:
    (name,) = parse_query("SELECT * FROM orders", file="a.sql").reads
    assert read_lineage(stored_lineage({"a": {name: ["b"]}}, {name: "t1"})) == {"a": {"t1": ["b"]}}
    assert stored_lineage({"a": {name: ["b" * MAX_BYTES]}}, {name: "t1"}) == {}
    assert read_lineage({COLUMNS: "[1]"}) == {}
    assert read_lineage({COLUMNS: "nonsense"}) == {}


def test_runs_store_the_lineage_with_the_rows(lake: PipelineLake) -> None:
    lake.queries = {"big": "SELECT id, price * 2 AS double FROM orders"}
    orders = lake.create()
    lake.append(orders, (1, "eu", 3))
    wanted = {orders.id: [("double", ["price"]), ("id", ["id"])]}
    for action in ("replace", "append"):
        assert lake.actions() == {"big": action}
        lake.run()
        found = columns_by_source(lake.lake.home, lake.table("big").table)
        assert {source: sorted(columns) for source, columns in found.items()} == wanted
        lake.append(orders, (2, "us", 4))
    change(lake.lake.home, lake.lake.warehouse, lake.table("big").table.resource_id, append([]))
    assert columns_by_source(lake.lake.home, lake.table("big").table).keys() == wanted.keys()
    assert columns_by_source(lake.lake.home, orders.table) == {}
    ((_, used),) = usage_of(lake.lake.home, lake.table("big").id)
    assert (used.writes, dict(used.sources)) == (2, {orders.id: 2})


def test_a_plan_tells_about_the_last_refresh(lake: PipelineLake) -> None:
    orders = lake.create()
    lake.append(orders, (1, "eu", 3))
    lake.queries = {"big": "SELECT price * 2 AS double FROM orders"}
    ann = owner_realm(lake.lake.home, v1.PipelineOwner(subject="ann", roles=["administrator"]))
    files = {"pipeline.yml": "name: p\ncatalog: lake\nnamespace: sales\n", "big.sql": lake.queries["big"]}
    made = api.CALLS.create(ann, v1.CreatePipelineRequest(spec=v1.PipelineSpec(files=files))).pipeline
    area = PipelineArea(Reconciler(MemorySecrets(), warehouse=lake.lake.warehouse))
    request = v1.PlanPipelineRequest(pipeline_id=made.resource_id)
    (before,) = api.plan(ann, request, area=area).tables
    assert (before.last_action, before.HasField("refreshed_at"), list(before.columns)) == ("", False, [])
    api.run_job(lake.lake.home, area, v1.PipelineTask(pipeline_id=made.resource_id), lake.engine, Control())
    (after,) = api.plan(ann, request, area=area).tables
    assert (after.action, after.last_action, after.refreshed_at.seconds > 0) == ("keep", "replace", True)
    assert [(each.column, each.source_table, each.source_column) for each in after.columns] == [
        ("double", "sales.orders", "price")
    ]
