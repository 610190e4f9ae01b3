"""Rules about the rows of derived tables, which are evaluated before the rows are published."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from metastore.pipelines.pipeline_lake import PipelineLake
from skiway.errors import Cancelled, InvalidArgument, Unavailable
from skiway.metastore import quality
from skiway.metastore.pipelines.models.expectations import SplitRows
from skiway.metastore.pipelines.projects import read_project
from skiway.metastore.reconcile.outcomes import Control
from skiway.model import v1

NOTES = """
models:
  - name: clean
    description: Orders without mistakes
    columns:
      - name: id
        description: The number of the order
    expect:
      - not_null: region
        on_failure: drop
      - accepted_values: {column: region, values: [eu, us]}
        on_failure: drop
      - name: cheap
        condition: price < 10
        on_failure: warn
      - relationships: {column: region, to: regions, field: code}
        on_failure: drop
      - unique: id
"""


@pytest.fixture
def sales(lake: PipelineLake) -> PipelineLake:
    lake.queries = {"clean": "SELECT id, region, price FROM orders", "notes.yml": NOTES}
    regions = lake.create("regions", pa.schema({"code": pa.string()}))
    lake.append(regions, ("eu",), ("xx",))
    orders = lake.create()
    lake.append(orders, (1, "eu", 3), (2, None, 1), (3, "xx", 50), (4, "us", 5), (5, "eu", 50))
    return lake


def results(lake: PipelineLake) -> dict[str, tuple[str, str]]:
    """The newest results of the rules of the derived table, by their names."""
    table_id = lake.table("clean").id
    return {
        found.rule.display_name: (v1.RuleStatus.Name(found.result.status)[4:], found.result.observed)
        for found in quality.scan(lake.lake.home, table_id)
    }


def test_bad_rows_go_to_quarantine_with_the_reason(sales: PipelineLake) -> None:
    outcome = sales.run()
    assert outcome.failures == {}
    assert sales.rows("clean") == [(1, "eu", 3), (5, "eu", 50)]
    assert sales.rows("clean_quarantine") == [
        (2, None, 1, "not_null_region"),
        (3, "xx", 50, "accepted_values_region"),
        (4, "us", 5, "relationships_region"),
    ]
    assert "1 of 5 rows break cheap (price < 10) and were published" in outcome.note, "dropped rows do not count"
    assert "1 of 5 rows break not_null_region (region is not NULL) and are in quarantine" in outcome.note
    assert results(sales) == {
        "sales.clean.accepted_values_region": ("FAILED", "1 of 5 rows break it"),
        "sales.clean.cheap": ("FAILED", "1 of 5 rows break it"),
        "sales.clean.not_null_region": ("FAILED", "1 of 5 rows break it"),
        "sales.clean.relationships_region": ("FAILED", "1 of 5 rows break it"),
        "sales.clean.unique_id": ("PASSED", "0 of 5 rows break it"),
    }


def test_rows_that_break_a_blocking_rule_are_not_published(sales: PipelineLake) -> None:
    sales.run()
    before = sales.table("clean").metadata_location
    folder = Path(sales.table("clean").metadata.location.removeprefix("file://"))
    files = {*folder.rglob("*.parquet")}
    assert files
    sales.append(sales.table("orders"), (1, "eu", 1), (9, None, 1))
    for _ in range(2):
        failure = sales.run().failures["sales.clean"]
        assert failure.startswith("notes.yml, line 18: 2 of 7 rows break unique_id ((id) is unique and not NULL)")
        assert "were not published" in failure
        assert sales.table("clean").metadata_location == before
        assert len(sales.rows("clean_quarantine")) == 3
        assert results(sales)["sales.clean.unique_id"] == ("FAILED", "2 of 7 rows break it")
    assert {*folder.rglob("*.parquet")} == files, "the files of rows that were not published are deleted"


def test_new_rows_are_compared_with_those_that_are_there(lake: PipelineLake) -> None:
    lake.queries = {
        "clean": "SELECT id, region FROM orders",
        "notes.yml": "models:\n  - name: clean\n    expect:\n      - unique: id\n      - not_null: region\n        on_failure: drop",
    }
    orders = lake.create()
    lake.append(orders, (1, "eu", 3), (2, None, 1))
    assert lake.run().failures == {}
    lake.append(orders, (3, "eu", 3), (4, None, 1))
    assert lake.actions() == {"clean": "append"}
    assert lake.run().failures == {}
    assert lake.rows("clean") == [(1, "eu"), (3, "eu")]
    assert [row[0] for row in lake.rows("clean_quarantine")] == [2, 4]
    assert results(lake)["sales.clean.not_null_region"] == ("FAILED", "2 of 4 rows break it")
    lake.append(orders, (1, "us", 3))
    assert "1 of 1 rows break unique_id" in lake.run().failures["sales.clean"]
    assert lake.rows("clean") == [(1, "eu"), (3, "eu")]


def test_a_full_refresh_empties_the_quarantine(sales: PipelineLake) -> None:
    sales.run()
    sales.queries["notes.yml"] = NOTES.replace("drop", "warn")
    assert sales.run().failures == {}
    assert len(sales.rows("clean")) == 5
    assert sales.rows("clean_quarantine") == []


@pytest.mark.parametrize("is_new", [True, False], ids=["new", "existing"])
def test_rows_quarantine_and_verdict_are_one_commit(
    sales: PipelineLake, monkeypatch: pytest.MonkeyPatch, is_new: bool
) -> None:
    """A store that fails at the commit leaves neither the rows nor the quarantine, and the next run does both."""
    if not is_new:
        sales.run()
    sales.append(sales.table("orders"), (6, "eu", 1), (7, None, 1))
    with monkeypatch.context() as broken:
        broken.setattr("skiway.metastore.managed.commits.publish", _failing)
        outcome = sales.run()
    assert outcome.transient
    if not is_new:
        assert len(sales.rows("clean")) == 2
        assert len(sales.rows("clean_quarantine")) == 3
    else:
        with pytest.raises(AssertionError):
            sales.table("clean")
        with pytest.raises(AssertionError):
            sales.table("clean_quarantine")
    assert sales.run().failures == {}
    assert (len(sales.rows("clean")), len(sales.rows("clean_quarantine"))) == (3, 4)


def _failing(*_: object, **__: object) -> None:
    raise Unavailable("the store is away", key="store.unavailable")


def test_descriptions_become_comments(sales: PipelineLake) -> None:
    sales.run()
    table = sales.table("clean")
    assert table.metadata.properties["comment"] == "Orders without mistakes"
    assert table.metadata.schema().find_field("id").doc == "The number of the order"
    sales.queries["notes.yml"] = NOTES.replace("The number of", "The key of")
    assert sales.actions() == {"clean": "keep"}
    sales.run()
    assert sales.table("clean").metadata.schema().find_field("id").doc == "The key of the order"


def test_a_rule_about_a_column_that_disappears_is_reported_with_its_line(sales: PipelineLake) -> None:
    sales.queries["clean"] = "SELECT id, region FROM orders"
    failure = sales.run().failures["sales.clean"]
    assert failure.startswith("notes.yml, line 13: cheap is about column 'price', which the table does not have")


def test_a_cancelled_run_publishes_nothing(sales: PipelineLake) -> None:
    class Stopping(Control):
        calls = 0

        def check(self) -> None:
            self.calls += 1
            if self.calls == 3:  # after the rows were written
                raise Cancelled("stop", key="job.cancelled")

    with pytest.raises(Cancelled):
        sales.run(control=Stopping())
    with pytest.raises(AssertionError):
        sales.table("clean")


@pytest.mark.parametrize(
    ("notes", "message"),
    [
        ("models:\n  - name: x\n", "notes.yml, line 2: the pipeline has no table x"),
        ("models:\n  - nam: clean\n", "notes.yml, line 2: there is no field 'nam'"),
        (
            "models:\n  - name: clean\n    expect:\n      - unique: id\n        on_failure: stop",
            "line 4: on_failure is 'stop'",
        ),
        ("models:\n  - name: clean\n    expect:\n      - condition: price > 0", "line 4: a condition needs a name"),
        (
            "models:\n  - name: clean\n    expect:\n      - {name: x, condition: sum(price) > 0}",
            "line 4: the condition 'sum(price) > 0' must be about the values of one row",
        ),
        (
            "models:\n  - name: clean\n    expect:\n      - {name: x, condition: 'id IN (SELECT id FROM other)'}",
            "must be about the values of one row",
        ),
        (
            "models:\n  - name: clean\n    expect:\n      - {name: x, condition: '1=1) UNION SELECT * FROM a WHERE (1=1'}",
            "must be about the values of one row",
        ),
        (
            "models:\n  - name: clean\n    expect:\n      - {name: x, condition: reflect('a')}",
            "function reflect is not allowed",
        ),
        (
            "models:\n  - name: clean\n    name: clean",
            "notes.yml, line 3: it is not valid YAML: the key 'name' is given twice",
        ),
        ("models: [", "notes.yml, line 1: it is not valid YAML"),
        ("sources:\n  - name: orders\n    freshness: {warn_after: soon}", "notes.yml, line 3: warn_after is 'soon'"),
    ],
)
def test_mistakes_are_reported_with_file_and_line(notes: str, message: str) -> None:
    files = {
        "pipeline.yml": "name: p\ncatalog: lake\nnamespace: shop",
        "clean.sql": "SELECT id, price FROM orders",
        "notes.yml": notes,
    }
    with pytest.raises(InvalidArgument) as error:
        read_project(files)
    assert message in error.value.message


def test_result_that_no_task_has_judged_breaks_no_rule() -> None:
    """Spark runs no task for an empty result."""
    found = SplitRows.all([], 2)
    assert (found.rows, found.broken) == (0, (0, 0))
    parts = [SplitRows(rows=3, broken=(1, 0)), SplitRows(rows=4, broken=(2, 1))]
    assert SplitRows.all(parts, 2).broken == (3, 1)
