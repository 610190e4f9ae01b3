"""Runs of pipelines. DuckDB runs the queries here; `tests/spark_jobs/test_derive.py` runs them on Spark."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import date, timedelta
from typing import Any

import pytest

from metastore.pipelines.pipeline_lake import DuckQueries, PipelineLake
from skiway.errors import Cancelled, InvalidArgument
from skiway.formats.iceberg.changes.commits import delete_all
from skiway.metastore.managed.commits import change
from skiway.metastore.pipelines.inputs import owner_realm
from skiway.metastore.pipelines.lineage import POSITION, read_position
from skiway.metastore.reconcile.outcomes import Control
from skiway.metastore.resources import grants, policies
from skiway.model import v1

BIG = "SELECT id, upper(region) AS region, price * 2 AS double FROM orders WHERE price > 2"
TOTALS = "SELECT region, CAST(sum(double) AS BIGINT) AS total FROM big GROUP BY region"


@pytest.fixture
def sales(lake: PipelineLake) -> PipelineLake:
    """`big` reads `orders`, and `totals` reads `big`."""
    lake.queries = {"big": BIG, "totals": TOTALS}
    orders = lake.create()
    lake.append(orders, (1, "eu", 3), (2, "us", 1), (3, "eu", 5))
    return lake


def test_tables_are_refreshed_in_order(sales: PipelineLake) -> None:
    outcome = sales.run()
    assert (outcome.scanned, outcome.changed, outcome.failures) == (2, 2, {})
    assert sales.rows("big") == [(1, "EU", 6), (3, "EU", 10)]
    assert sales.rows("totals") == [("EU", 16)]
    assert ["upper" in query.lower() for query in sales.engine.queries] == [True, False]


def test_an_unchanged_table_is_kept(sales: PipelineLake) -> None:
    sales.run()
    before = [sales.table(name).metadata_location for name in sales.queries]
    outcome = sales.run()
    assert (outcome.scanned, outcome.changed) == (2, 0)
    assert len(sales.engine.queries) == 2
    assert [sales.table(name).metadata_location for name in sales.queries] == before
    assert sales.actions() == {"big": "keep", "totals": "keep"}


def test_new_rows_are_added_to_row_wise_tables_and_others_are_replaced(sales: PipelineLake) -> None:
    sales.run()
    sales.append(sales.table("orders"), (4, "us", 7))
    assert sales.actions() == {"big": "append", "totals": "replace"}
    sales.engine.rows_read = 0
    assert sales.run().changed == 2
    assert sales.engine.rows_read == 1 + 3  # the new row, and all rows of big
    assert sales.rows("big") == [(1, "EU", 6), (3, "EU", 10), (4, "US", 14)]
    assert sales.rows("totals") == [("EU", 16), ("US", 14)]
    current = sales.table("big").metadata.current_snapshot()
    assert current is not None
    assert current.summary is not None
    assert current.summary.operation.value == "append"


def test_a_changed_definition_rebuilds_the_table_and_its_dependents(sales: PipelineLake) -> None:
    sales.run()
    first = sales.table("big").table.resource_id
    sales.queries["big"] = "SELECT id, region, price AS double, true AS is_new FROM orders"
    assert sales.actions() == {"big": "replace", "totals": "replace"}
    assert sales.run().changed == 2
    assert sales.rows("big") == [(1, "eu", 3, True), (2, "us", 1, True), (3, "eu", 5, True)]
    assert sales.rows("totals") == [("eu", 8), ("us", 1)]
    assert sales.table("big").table.resource_id == first
    sales.queries["big"] = "-- @partition_by: region\n" + sales.queries["big"]
    assert sales.actions() == {"big": "replace", "totals": "replace"}
    sales.run()
    assert len(sales.table("big").metadata.spec().fields) == 1
    assert sales.run().changed == 0


def test_deletes_in_an_input_cause_a_full_refresh(sales: PipelineLake) -> None:
    sales.run()
    orders = sales.table("orders")
    change(sales.lake.home, sales.lake.warehouse, orders.table.resource_id, delete_all())
    sales.append(orders, (9, "us", 9))
    assert sales.actions()["big"] == "replace"
    sales.run()
    assert sales.rows("big") == [(9, "US", 18)]
    assert sales.rows("totals") == [("US", 18)]


def test_rows_that_others_change_are_replaced(sales: PipelineLake) -> None:
    sales.run()
    sales.append(sales.table("big"), (99, "XX", 99))
    assert sales.actions() == {"big": "replace", "totals": "replace"}
    sales.run()
    assert sales.rows("big") == [(1, "EU", 6), (3, "EU", 10)]
    assert sales.rows("totals") == [("EU", 16)]


def test_a_query_with_time_is_refreshed_by_every_run(sales: PipelineLake) -> None:
    sales.queries = {"today": "SELECT id, current_date() AS day FROM orders"}
    sales.run()
    assert sales.actions() == {"today": "replace"}


def test_a_table_can_say_that_it_is_always_refreshed_in_full(sales: PipelineLake) -> None:
    sales.queries = {"big": "-- @refresh: full\n" + BIG}
    sales.run()
    sales.append(sales.table("orders"), (4, "us", 7))
    assert sales.actions() == {"big": "replace"}


@pytest.mark.parametrize("seed", range(4))
def test_incremental_results_equal_full_ones(lake: PipelineLake, seed: int) -> None:
    rng = random.Random(seed)
    lake.queries = {"big": BIG, "totals": TOTALS, "again": "SELECT * FROM big WHERE double % 3 = 0"}
    orders = lake.create()
    for step in range(5):
        for _ in range(rng.randint(0, 2)):
            rows = [(rng.randint(1, 99), rng.choice(["eu", "us", None]), rng.randint(0, 9)) for _ in range(3)]
            lake.append(orders, *rows)
        lake.run()
        if rng.random() < 0.5:
            assert lake.run().changed == 0
        if step:
            assert "replace" not in (lake.actions()["big"], lake.actions()["again"])
    found = {name: lake.rows(name) for name in lake.queries}
    assert lake.run(again=True).changed == 3
    assert found == {name: lake.rows(name) for name in lake.queries}
    assert found["again"] or seed  # not all of them are empty


def test_one_failed_table_does_not_stop_the_others(sales: PipelineLake) -> None:
    sales.queries |= {
        "big": "SELECT nonsense FROM orders",
        "deeper": "SELECT * FROM totals",
        "regions": "SELECT DISTINCT region FROM orders",
    }
    outcome = sales.run()
    assert (outcome.scanned, outcome.changed) == (4, 1)
    assert outcome.progress.is_partial
    assert "nonsense" in outcome.failures["sales.big"]
    assert outcome.failures["sales.totals"] == "skipped, because sales.big failed"
    assert outcome.failures["sales.deeper"] == "skipped, because sales.totals failed"
    assert sales.rows("regions") == [("eu",), ("us",)]
    sales.queries["big"] = BIG
    assert sales.run().failures == {}


def test_a_missing_input_is_named(sales: PipelineLake) -> None:
    sales.queries = {"big": "SELECT * FROM nothing", "regions": "SELECT region FROM orders"}
    outcome = sales.run()
    assert outcome.changed == 1
    assert "table sales.nothing, which sales.big reads, does not exist in catalog lake" in outcome.failures["sales.big"]
    assert "sales.nothing" in sales.actions()["big"]


def test_a_dry_run_finds_a_missing_namespace(sales: PipelineLake) -> None:
    sales.queries = {
        "elsewhere": "-- @table: nowhere.big\nSELECT id FROM orders",
        "after": "-- @table: nowhere.after\nSELECT id FROM nowhere.big",
    }
    planned = sales.actions()
    assert planned["big"].startswith("table nowhere.big cannot be created: catalog lake has no namespace nowhere")
    assert planned["after"] == "skipped, because nowhere.big failed"
    queries = DuckQueries()
    assert set(sales.run(engine=queries).failures) == {"nowhere.big", "nowhere.after"}
    assert queries.queries == []


def test_a_rejected_query_is_named_by_file_and_position(sales: PipelineLake) -> None:
    class Rejecting(DuckQueries):
        def result(self, query: Any, inputs: Any) -> Any:
            raise InvalidArgument("no", key="pipeline.query.rejected", fragment="CAST(`region` AS INT)")

    sales.queries = {
        "big": "SELECT id,\n  cast(region  AS int) AS r\nFROM orders",
        "many": "SELECT id::int FROM orders",
    }
    outcome = sales.run(engine=Rejecting())
    assert outcome.failures == {
        "sales.big": "big.sql, line 2, column 3: no (at CAST(`region` AS INT))",
        "sales.many": "many.sql: no (at CAST(`region` AS INT))",
    }
    assert not outcome.transient


def test_a_table_of_others_is_not_replaced(sales: PipelineLake) -> None:
    sales.queries = {"orders": "SELECT 1 AS x"}
    (message,) = sales.run().failures.values()
    assert "table sales.orders exists, and pipeline sales did not make it" in message
    assert len(sales.rows("orders")) == 3


def test_two_columns_with_one_name_are_refused(sales: PipelineLake) -> None:
    sales.queries = {"twice": "SELECT id, price AS ID FROM orders"}
    (message,) = sales.run().failures.values()
    assert "columns 'id' and 'ID' have the same name" in message


class Killed(BaseException):
    """The end of a process."""


class KilledBetweenTables(Control):
    """Ends the run before its check with this number."""

    def __init__(self, at: int) -> None:
        self.left = at

    def check(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Killed


@pytest.mark.parametrize("at", range(7))
def test_a_killed_run_continues_where_it_ended(sales: PipelineLake, at: int) -> None:
    sales.run()
    sales.append(sales.table("orders"), (4, "us", 7))
    killed = False
    try:
        sales.run(control=KilledBetweenTables(at))
    except Killed:
        killed = True
    assert killed == (at < 6)
    done = 0 if at < 3 else 1 if at < 6 else 2
    assert list(sales.actions().values()) == ["keep"] * done + ["append", "replace"][done:]
    assert sales.run().changed == 2 - done
    assert sales.rows("big") == [(1, "EU", 6), (3, "EU", 10), (4, "US", 14)]
    assert sales.rows("totals") == [("EU", 16), ("US", 14)]


def test_a_killed_first_run_leaves_no_tables(sales: PipelineLake) -> None:
    with pytest.raises(Killed):
        sales.run(control=KilledBetweenTables(2))
    assert sales.actions() == {"big": "replace", "totals": "replace"}
    assert sales.run().changed == 2


class Overtaken(DuckQueries):
    """Another run is faster, while this one computes its rows."""

    def __init__(self, sales: PipelineLake) -> None:
        super().__init__()
        self.sales = sales

    @contextmanager
    def result(self, *args: Any) -> Iterator[Any]:
        with super().result(*args) as found:
            self.sales.run()
            yield found


def test_of_two_runs_at_once_the_second_commits_nothing(sales: PipelineLake) -> None:
    sales.queries = {"big": BIG}
    sales.run()
    sales.append(sales.table("orders"), (4, "us", 7))
    outcome = sales.run(engine=Overtaken(sales))
    assert "another run of the pipeline was faster" in outcome.failures["sales.big"]
    assert sales.rows("big") == [(1, "EU", 6), (3, "EU", 10), (4, "US", 14)]


def test_a_cancelled_run_stops(sales: PipelineLake) -> None:
    class Stopped(Control):
        def check(self) -> None:
            raise Cancelled("stop", key="job.cancelled")

    with pytest.raises(Cancelled):
        sales.run(control=Stopped())


def test_the_position_is_in_the_snapshot_with_the_rows(sales: PipelineLake) -> None:
    sales.run()
    metadata = sales.table("big").metadata
    current = metadata.current_snapshot()
    assert current is not None
    assert current.summary is not None
    assert POSITION in current.summary.additional_properties
    stored = read_position(metadata)
    assert stored.value is not None
    orders = sales.table("orders")
    snapshot = orders.handle.current()
    assert snapshot is not None
    assert stored.value.inputs["sales.orders"].table == orders.id
    assert stored.value.inputs["sales.orders"].snapshot == snapshot.id


# --- the rights of the owner ------------------------------------------------------------------------------------------


def as_owner(lake: PipelineLake, *roles: str) -> None:
    lake.realm = owner_realm(lake.lake.home, v1.PipelineOwner(subject="ann", roles=roles))


def grant(lake: PipelineLake, on: Any, privilege: v1.Privilege.ValueType) -> None:
    request = v1.AddGrantRequest(object_id=on.resource_id, grantee="user:ann", privilege=privilege)
    grants.add(lake.lake.home, request)


def test_an_owner_reads_only_what_is_granted(sales: PipelineLake) -> None:
    as_owner(sales, "member")
    outcome = sales.run()
    assert outcome.changed == 0
    assert (
        "does not exist in catalog lake, or the owner of the pipeline, ann, may not see it"
        in outcome.failures["sales.big"]
    )


def test_an_owner_writes_only_what_is_granted(sales: PipelineLake) -> None:
    grant(sales, sales.lake.factory.first_namespace(), v1.PV_READ)
    as_owner(sales, "member")
    outcome = sales.run()
    assert outcome.changed == 0
    assert "write" in outcome.failures["sales.big"]
    grant(sales, sales.lake.factory.first_namespace(), v1.PV_WRITE)
    as_owner(sales, "member")
    assert sales.run().failures == {}
    assert sales.rows("totals") == [("EU", 16)]


def test_rights_are_checked_by_every_run(sales: PipelineLake) -> None:
    as_owner(sales, "administrator")
    assert sales.run().failures == {}
    sales.append(sales.lake.load(sales.table("orders")), (4, "us", 7))
    as_owner(sales, "default")  # it reads everything, and writes nothing
    assert "table.write" in sales.actions()["big"]
    assert "sales.big" in sales.run().failures
    sales.realm = None
    assert sales.actions() == {"big": "append", "totals": "replace"}


def test_an_owner_under_policies_on_an_input_is_refused(sales: PipelineLake) -> None:
    orders = sales.table("orders").table
    spec = v1.PolicySpec(display_name="eu only", subjects=["user:ann"], objects=[orders.resource_id])
    spec.row_filter.predicate = "region = 'eu'"
    policies.calls(lambda *_: []).create(sales.lake.home, v1.CreatePolicyRequest(spec=spec))
    as_owner(sales, "administrator")
    sales.queries["other"] = "SELECT 1 AS x"
    outcome = sales.run()
    assert "eu only" in outcome.failures["sales.big"]
    assert outcome.failures["sales.totals"] == "skipped, because sales.big failed"
    assert outcome.changed == 1


def test_only_selected_tables_are_refreshed(sales: PipelineLake) -> None:
    outcome = sales.run(select=["big"])
    assert (outcome.scanned, outcome.changed) == (1, 1)
    assert sales.run(select=["state:changed"]).changed == 1
    assert sales.rows("totals") == [("EU", 16)]
    sales.queries["big"] = BIG.replace("2 AS", "3 AS")
    assert sales.run(select=["state:changed+"]).changed == 2
    assert sales.rows("totals") == [("EU", 24)]


def test_a_csv_file_becomes_a_table(sales: PipelineLake) -> None:
    sales.queries = {
        "codes.csv": "code,name,since,rate\neu,Europe,2020-01-31,1.5\nus,,2021-12-01,2\n",
        "named": "SELECT o.id, c.name FROM orders AS o JOIN codes AS c ON c.code = o.region",
        "notes.yml": "models:\n  - name: codes\n    expect:\n      - unique: code",
    }
    assert sales.run().failures == {}
    assert sales.rows("codes") == [("eu", "Europe", date(2020, 1, 31), 1.5), ("us", None, date(2021, 12, 1), 2.0)]
    assert sales.rows("named") == [(1, "Europe"), (2, None), (3, "Europe")]
    assert sales.actions() == {"codes": "keep", "named": "keep"}
    sales.queries["codes.csv"] += "eu,Again,2022-01-01,1\n"
    assert sales.actions() == {"codes": "replace", "named": "replace"}
    assert "2 of 3 rows break unique_code" in sales.run().failures["sales.codes"]


def test_a_source_that_is_not_fresh_stops_the_tables_that_read_it(sales: PipelineLake) -> None:
    sales.queries |= {"regions": "SELECT region FROM orders", "fresh": "SELECT 1 AS x"}
    sales.queries["sources.yml"] = "sources:\n  - name: orders\n    freshness: {warn_after: 2h, error_after: 2d}"
    assert "old" not in sales.run().note
    clock = sales.lake.home.clock
    later = replace(sales.lake.home, clock=lambda: clock() + timedelta(hours=5))
    sales.realm = later
    assert "the newest snapshot of sales.orders is 5 h old; it should be at most 2 h old" in sales.run().note
    sales.realm = replace(later, clock=lambda: clock() + timedelta(days=3))
    assert "the limit is 2 d" in sales.actions()["regions"]
    outcome = sales.run(again=True)
    assert set(outcome.failures) == {"sales.big", "sales.totals", "sales.regions"}
    assert "the newest snapshot of sales.orders is 3 d old, and the limit is 2 d" in outcome.failures["sales.regions"]
