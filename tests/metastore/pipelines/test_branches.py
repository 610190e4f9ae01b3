"""Runs on branches of the lake: on one that exists, and on one of their own, whose tables are published together or not at all."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest

from metastore.pipelines.pipeline_lake import DuckQueries, PipelineLake
from metastore.resource_factory import mask
from skiway.errors import NotFound, SkiwayError
from skiway.formats import TableName
from skiway.formats.iceberg.changes.commits import append, delete_all
from skiway.formats.iceberg.types import iceberg_schema
from skiway.formats.iceberg.writing.data_files import DataFileWriter
from skiway.metastore import branches, catalogs, managed, quality
from skiway.metastore.pipelines import api
from skiway.metastore.pipelines.branching import tables_on
from skiway.metastore.pipelines.inputs import LakeTables, PipelineArea, owner_realm
from skiway.metastore.reconcile.outcomes import Control, Outcome
from skiway.metastore.reconcile.reconciler import Reconciler
from skiway.metastore.records.kinds import PIPELINE
from skiway.model import v1
from skiway.security import MemorySecrets

QUERIES = {
    "big": "SELECT id, region, price * 2 AS double FROM orders WHERE price > 2",
    "totals": "SELECT region, CAST(sum(double) AS BIGINT) AS total FROM big GROUP BY region",
}


@dataclass
class Sales:
    """A stored pipeline with the tables `big` and `totals`, which belongs to Ann."""

    lake: PipelineLake
    head: str = ""
    name: str = "sales"
    queries: dict[str, str] = field(default_factory=lambda: dict(QUERIES))
    roles: tuple[str, ...] = ("administrator",)
    engine: Any = field(default_factory=DuckQueries)
    pipeline: v1.Pipeline = field(init=False)

    def __post_init__(self) -> None:
        self.ann = owner_realm(self.lake.lake.home, v1.PipelineOwner(subject="ann", roles=self.roles))
        files = {"pipeline.yml": f"name: {self.name}\ncatalog: lake\nnamespace: sales\n{self.head}"}
        files |= {name if "." in name else f"{name}.sql": text for name, text in self.queries.items()}
        spec = v1.PipelineSpec(files=files)
        self.pipeline = api.CALLS.create(self.ann, v1.CreatePipelineRequest(spec=spec)).pipeline
        self.area = PipelineArea(Reconciler(MemorySecrets(), warehouse=self.lake.lake.warehouse))

    def run(self, *, engine: Any = None, run_id: str = "job-1", **task: Any) -> Outcome:
        given = v1.PipelineTask(pipeline_id=self.pipeline.resource_id, **task)
        home, used = self.lake.lake.home, engine or self.engine
        return api.run_job(home, self.area, given, used, Control(), run_id=run_id)

    def tables(self, branch: str = "") -> LakeTables:
        home = self.lake.lake.home
        found = self.area.tables(home, home.by_id(PIPELINE, self.pipeline.resource_id.id).value, "lake")
        return tables_on(found, branch) if branch else found

    def rows(self, name: str, branch: str = "") -> list[tuple[Any, ...]] | None:
        found = self.tables(branch).output(TableName(("sales",), name))
        if found is None:
            return None
        current = found.handle.current()
        rows = [] if current is None else found.handle.read(current).read_all().to_pylist()
        return sorted(tuple(each.values()) for each in rows)

    def write(self, *rows: tuple[int, str, int], branch: str = "", replaces: bool = False) -> None:
        tables = self.tables(branch)
        orders = tables.output(TableName(("sales",), "orders"))
        assert orders is not None
        columns = orders.handle.schema.arrow
        arrays = [pa.array(values, each.type) for values, each in zip(zip(*rows, strict=True), columns, strict=True)]
        with DataFileWriter(orders.files, orders.metadata) as writer:
            writer.write(pa.record_batch(arrays, names=columns.names))
            files = writer.close()
        made = delete_all(files) if replaces else append(files)
        managed.change(tables.realm, tables.warehouse, orders.table.resource_id, made)

    def branches(self) -> list[str]:
        request = v1.ListBranchesRequest(catalog="lake")
        return [each.display_name for each in branches.list_(self.lake.lake.home, request).branches]

    def protect(self, **spec: Any) -> None:
        home, given = self.lake.lake.home, {"protected": True, **spec}
        request = v1.UpdateCatalogRequest(
            catalog_id=self.lake.lake.factory.first_catalog().resource_id,
            spec=v1.CatalogSpec(**given),
            update_mask=mask(*given),
        )
        catalogs.update(home, request)

    def rule(self, name: str, table: str, **check: Any) -> None:
        found = self.tables().output(TableName(("sales",), table))
        assert found is not None
        spec = v1.QualityRuleSpec(
            display_name=name, table_id=found.table.resource_id, check=v1.RuleCheck(**check), severity=v1.RSV_ERROR
        )
        quality.CALLS.create(self.lake.lake.home, v1.CreateRuleRequest(spec=spec))


@pytest.fixture
def sales(lake: PipelineLake) -> Sales:
    orders = lake.create()
    lake.append(orders, (1, "eu", 3), (2, "us", 1), (3, "eu", 5))
    return Sales(lake)


def branch(sales: Sales, name: str) -> None:
    branches.create(sales.ann, v1.CreateBranchRequest(name=f"lake@{name}"))


BIG, TOTALS = [(1, "eu", 6), (3, "eu", 10)], [("eu", 16)]


def test_a_run_on_a_branch_reads_and_writes_there(sales: Sales) -> None:
    sales.run()
    branch(sales, "dev")
    sales.write((4, "us", 9), branch="dev")
    done = sales.run(branch="dev")
    assert (done.failures, done.changed) == ({}, 2)
    assert sales.rows("big", "dev") == [*BIG, (4, "us", 18)]
    assert sales.rows("totals", "dev") == [("eu", 16), ("us", 18)]
    assert (sales.rows("big"), sales.rows("totals")) == (BIG, TOTALS)
    assert sales.run(branch="lake@dev").changed == 0
    assert sales.run().changed == 0
    branches.merge(sales.lake.lake.home, v1.MergeBranchRequest(name="lake@dev"), warehouse=sales.lake.lake.warehouse)
    assert sales.rows("totals") == [("eu", 16), ("us", 18)]
    planned = api.plan(sales.ann, v1.PlanPipelineRequest(pipeline_id=sales.pipeline.resource_id), area=sales.area)
    assert [each.action for each in planned.tables] == ["keep", "keep"]
    sales.write((5, "us", 4))
    assert sales.run().failures == {}
    assert sales.rows("totals") == [("eu", 16), ("us", 26)]


def test_a_run_on_an_unknown_branch_says_so(sales: Sales) -> None:
    for name in ("dev", "other@dev"):
        with pytest.raises(NotFound, match="has no branch"):
            sales.run(branch=name)
    request = v1.StartPipelineRequest(pipeline_id=sales.pipeline.resource_id, branch="dev", on_branch=True)
    with pytest.raises(SkiwayError, match="on_branch"):
        api.start(sales.ann, request)


@dataclass
class Watching:
    """An engine that looks at main before each query."""

    sales: Sales
    seen: list[Any] = field(default_factory=list)
    inner: DuckQueries = field(default_factory=DuckQueries)

    def result(self, *given: Any) -> Any:
        self.seen.append((self.sales.rows("big"), self.sales.rows("totals")))
        return self.inner.result(*given)


@pytest.mark.parametrize("declared", [False, True])
def test_a_run_on_a_branch_of_its_own_publishes_all_tables_at_once(lake: PipelineLake, declared: bool) -> None:
    orders = lake.create()
    lake.append(orders, (1, "eu", 3), (3, "eu", 5))
    sales = Sales(lake, head="on_branch: true\n" if declared else "")
    watching = Watching(sales)
    done = sales.run(engine=watching, on_branch=not declared)
    assert (done.failures, done.changed) == ({}, 2)
    assert "merged branch lake@sales-job-1" in done.note
    assert watching.seen == [(None, None), (None, None)]
    assert (sales.rows("big"), sales.rows("totals")) == (BIG, TOTALS)
    assert sales.branches() == []
    watching.seen.clear()
    sales.write((4, "us", 9))
    again = sales.run(engine=watching, on_branch=not declared, run_id="job-2")
    assert (again.failures, again.changed) == ({}, 2)
    assert watching.seen == [(BIG, TOTALS)] * 2
    assert sales.rows("totals") == [("eu", 16), ("us", 18)]
    assert sales.run(run_id="job-3").changed == 0


def test_nothing_is_merged_if_a_table_fails(sales: Sales) -> None:

    class Failing(DuckQueries):
        def result(self, query: Any, inputs: Any) -> Any:
            if any(name.name == "big" for name in inputs):
                raise NotFound("the engine is gone", key="test")
            return super().result(query, inputs)

    done = sales.run(engine=Failing(), on_branch=True)
    assert list(done.failures) == ["sales.totals"]
    assert "nothing was merged; branch lake@sales-job-1 has what was refreshed" in done.note
    assert (sales.rows("big"), sales.rows("totals")) == (None, None)
    assert sales.rows("big", "sales-job-1") == BIG
    # The next attempt of the same run continues, and other runs delete what is left.
    assert sales.branches() == ["sales-job-1"]
    assert sales.run(on_branch=True).changed == 1
    assert (sales.rows("totals"), sales.branches()) == (TOTALS, [])
    sales.write((4, "us", 9))
    sales.run(engine=Failing(), on_branch=True, run_id="job-2")
    assert sales.run(on_branch=True, run_id="job-3").failures == {}
    assert (sales.rows("totals"), sales.branches()) == ([("eu", 16), ("us", 18)], [])


def test_nothing_is_merged_if_a_rule_about_a_table_fails(sales: Sales) -> None:
    sales.run()
    sales.rule("few", "big", row_count=v1.RowCountCheck(max=2))
    sales.rule("unrelated", "orders", row_count=v1.RowCountCheck(max=1))
    sales.write((4, "us", 9))
    done = sales.run(on_branch=True)
    assert "few (sales.big, 3 rows" in done.failures["lake@sales-job-1"]
    assert "unrelated" not in done.failures["lake@sales-job-1"]
    assert (sales.rows("big"), sales.rows("totals")) == (BIG, TOTALS)
    sales.write((1, "eu", 3), replaces=True)
    assert sales.run(on_branch=True, run_id="job-2").failures == {}
    assert sales.rows("big") == [(1, "eu", 6)]


def test_a_run_that_was_killed_after_the_merge_ends(sales: Sales, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("skiway.metastore.branches.delete", die)
        with pytest.raises(KeyboardInterrupt):
            sales.run(on_branch=True)
    assert (sales.rows("totals"), sales.branches()) == (TOTALS, ["sales-job-1"])
    assert sales.run(on_branch=True).failures == {}
    assert sales.branches() == []


def test_others_change_main_during_a_run(sales: Sales) -> None:
    """What the run has read has changed, which the next run notices; what it writes is in conflict."""

    class Disturbed(DuckQueries):
        def result(self, query: Any, inputs: Any) -> Any:
            if not self.queries:
                sales.write((7, "us", 50))
                sales.run(run_id="other")
            return super().result(query, inputs)

    sales.run()
    sales.write((4, "us", 9))
    done = sales.run(engine=Disturbed(), on_branch=True)
    assert "cannot be merged" in done.failures["lake@sales-job-1"]
    assert sales.rows("totals") == [("eu", 16), ("us", 118)]


def test_pipelines_publish_into_a_protected_catalog_by_merges(sales: Sales) -> None:
    sales.protect(mergers=["user:bob"])
    done = sales.run()
    assert "catalog lake is protected" in done.failures["sales.big"]
    refused = sales.run(on_branch=True)
    assert "ask one of user:bob" in refused.failures["lake@sales-job-1"]
    assert sales.rows("big") is None
    sales.protect(mergers=["user:ann"])
    assert sales.run(on_branch=True, run_id="job-2").failures == {}
    assert sales.rows("totals") == TOTALS


def test_expectations_hold_on_branches_and_are_shown_on_main(lake: PipelineLake) -> None:
    orders = lake.create()
    lake.append(orders, (1, "eu", 3), (3, "eu", 5))
    rule = "{condition: double < 8, name: cheap, on_failure: drop}"
    notes = f"models:\n  - name: big\n    expect: [{rule}]\n"
    sales = Sales(lake, queries={**QUERIES, "notes.yml": notes})
    done = sales.run(on_branch=True)
    assert done.failures == {}
    assert sales.rows("big") == [(1, "eu", 6)]
    found = quality.list_(lake.lake.home, v1.ListRulesRequest()).rules
    assert [(each.rule.display_name, each.result.status) for each in found] == [("sales.big.cheap", v1.RST_FAILED)]
    aside = sales.rows("big_quarantine")
    assert aside is not None
    assert [each[0] for each in aside] == [3]


def test_other_catalogs_are_read_as_they_are(sales: Sales) -> None:
    factory = sales.lake.lake.factory
    other = factory.catalog("other")
    space = factory.namespace("far", catalog=other)
    made = managed.create(
        factory.home,
        sales.lake.lake.warehouse,
        namespace_id=space.resource_id,
        name="rates",
        schema=iceberg_schema(pa.schema({"rate": pa.int64()})),
    )
    with DataFileWriter(made.files, made.metadata) as writer:
        writer.write(pa.record_batch({"rate": pa.array([10], pa.int64())}))
        files = writer.close()
    managed.change(factory.home, sales.lake.lake.warehouse, made.table.resource_id, append(files))
    more = Sales(
        sales.lake, name="prices", queries={"priced": "SELECT id, price * rate AS p FROM orders, other.far.rates"}
    )
    branch(sales, "dev")
    sales.write((4, "us", 9), branch="dev")
    assert more.run(branch="dev").failures == {}
    assert more.rows("priced", "dev") == [(1, 30), (2, 10), (3, 50), (4, 90)]
    assert more.rows("priced") is None
