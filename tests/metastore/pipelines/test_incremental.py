"""Incremental models: after every change of the inputs they equal a full refresh."""

from __future__ import annotations

import random
from datetime import date, timedelta
from itertools import count
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from metastore.pipelines.pipeline_lake import PipelineLake
from metastore.pipelines.test_crashes import killed
from skiway.errors import InvalidArgument
from skiway.formats import data_files
from skiway.formats.iceberg.changes.commits import overwrite
from skiway.formats.iceberg.metadata import summary_properties
from skiway.formats.iceberg.writing.data_files import DataFileWriter
from skiway.formats.iceberg.writing.delete_files import DeleteFileWriter
from skiway.metastore.managed import ManagedTable
from skiway.metastore.managed.commits import change
from skiway.metastore.pipelines.projects import read_project
from skiway.metastore.quality.verdicts import VERDICTS

EVENTS = pa.schema({"id": pa.int64(), "customer": pa.string(), "day": pa.date32(), "amount": pa.int64()})
CUSTOMERS = pa.schema({"name": pa.string(), "region": pa.string()})

MODELS = {
    "rowwise": ("key(id)", "SELECT id, upper(customer) AS customer, amount * 2 AS amount FROM events WHERE amount > 2"),
    "joined": (
        "key(id)",
        "SELECT e.id, e.amount, c.region FROM events AS e LEFT JOIN customers AS c ON c.name = e.customer",
    ),
    "newest": (
        "key(customer)",
        "SELECT customer, id, amount FROM events WHERE NOT customer IS NULL "
        "QUALIFY row_number() OVER (PARTITION BY customer ORDER BY day DESC, id) = 1",
    ),
    "averages": (
        "key(customer)",
        "SELECT customer, avg(amount) AS average FROM events WHERE NOT customer IS NULL GROUP BY 1",
    ),
    "totals": (
        "group",
        "SELECT customer, sum(amount) AS total, count(*) AS number, min(day) AS first, max(id) AS newest FROM events GROUP BY customer",
    ),
    "distinct": (
        "group",
        "SELECT day, count(DISTINCT customer) AS customers FROM events GROUP BY day HAVING count(*) > 1",
    ),
    "daily": ("range(day)", "SELECT day, sum(amount) AS total FROM events GROUP BY day"),
    "rolling": (
        "range(day, 3 days)",
        "SELECT day, id, sum(amount) OVER (ORDER BY day RANGE BETWEEN INTERVAL 3 DAYS PRECEDING AND CURRENT ROW) AS total FROM events",
    ),
}


class Source:
    """A table with rows by their ids, which changes in all ways in which Iceberg tables change."""

    def __init__(self, lake: PipelineLake, rng: random.Random) -> None:
        self.lake, self.rng, self.number = lake, rng, 0
        self.table = lake.create("events", EVENTS)

    def rows(self, count: int) -> list[tuple[Any, ...]]:
        found = []
        for _ in range(count):
            self.number += 1
            day = None if self.rng.random() < 0.1 else date(2026, 1, 1) + timedelta(self.rng.randint(0, 20))
            found.append((self.number, self.rng.choice(["ann", "bob", "cy", None]), day, self.rng.randint(0, 9)))
        return found

    def insert(self, count: int = 3) -> None:
        self.lake.append(self.table, *self.rows(count))

    def step(self) -> None:
        kind = self.rng.choice(["insert", "delete", "update", "rewrite", "insert"])
        now = self.lake.lake.load(self.table)
        current = now.handle.current()
        if kind == "insert" or current is None:
            self.insert(self.rng.randint(1, 4))
            return
        files = data_files(now.handle.files(current))
        file = files.slice(self.rng.randrange(files.num_rows), 1)
        if kind == "delete":
            change_rows(self.lake, self.table, file, share=0.5, rng=self.rng)
        else:
            rewrite(self.lake, self.table, file, more=1 if kind == "update" else 0)


def change_rows(lake: PipelineLake, table: ManagedTable, file: pa.Table, *, share: float, rng: random.Random) -> None:
    """Delete some rows of a data file by position."""
    now = lake.lake.load(table)
    current = now.handle.current()
    assert current is not None
    before = now.handle.deleted_positions(current, file)
    left = [each for each in range(file["row_count"][0].as_py()) if each not in set(before.tolist())]
    gone = np.array([each for each in left if rng.random() < share], dtype=np.int64)
    with DeleteFileWriter(now.files, now.metadata) as deletes:
        if len(gone):
            deletes.add(file["path"][0].as_py(), gone, before=before)
        made = deletes.close()
    producer = overwrite([], [], deletes=made, based_on=current.id)
    change(lake.lake.home, lake.lake.warehouse, now.table.resource_id, producer)


def rewrite(lake: PipelineLake, table: ManagedTable, file: pa.Table, *, more: int) -> None:
    """Write the rows of a data file again, with other amounts."""
    now = lake.lake.load(table)
    current = now.handle.current()
    assert current is not None
    rows = now.handle.read(current, files=file, schema=now.handle.schema.arrow).read_all()
    amounts = pa.array([each + more for each in rows["amount"].to_pylist()], pa.int64())
    rows = rows.set_column(rows.schema.get_field_index("amount"), "amount", amounts)
    with DataFileWriter(now.files, now.metadata) as writer:
        for batch in rows.to_batches():
            writer.write(pa.RecordBatch.from_arrays(batch.columns, names=rows.schema.names))
        files = writer.close()
    producer = overwrite([file["path"][0].as_py()], files, based_on=current.id)
    change(lake.lake.home, lake.lake.warehouse, now.table.resource_id, producer)


def with_models(lake: PipelineLake, *names: str) -> None:
    """Each model twice: incremental, and refreshed in full."""
    for name in names or MODELS:
        declared, query = MODELS[name]
        lake.queries[name] = f"-- @incremental: {declared}\n{query}"
        lake.queries[f"{name}_full"] = f"-- @refresh: full\n{query}"
    customers = lake.create("customers", CUSTOMERS)
    lake.append(customers, ("ann", "eu"), ("bob", "us"))


def assert_equal(lake: PipelineLake) -> None:
    for name in [each for each in lake.queries if not each.endswith("_full")]:
        assert lake.rows(name) == lake.rows(f"{name}_full"), name


def follow(lake: PipelineLake, seed: int, steps: int, *names: str) -> None:
    """Change the source in random ways, and compare the models with full refreshes after each."""
    rng = random.Random(seed)
    source = Source(lake, rng)
    with_models(lake, *names)
    source.insert(6)
    assert lake.run().failures == {}
    for _ in range(steps):
        source.step()
        actions = lake.actions()
        assert lake.run().failures == {}
        assert {actions[name] for name in names or MODELS} <= {"merge", "keep"}, actions
        assert_equal(lake)


@pytest.mark.parametrize("seed", range(6))
def test_incremental_models_equal_full_refreshes(lake: PipelineLake, seed: int) -> None:
    follow(lake, seed, 4)


def test_a_model_of_each_kind_follows_its_source(lake: PipelineLake) -> None:
    follow(lake, 1, 2, "rowwise", "totals", "rolling")


CLEAN = """
models:
  - name: clean
    expect:
      - {name: small, condition: amount < 8, on_failure: drop}
"""


def test_a_crash_at_any_write_leaves_the_table_its_quarantine_and_the_position_together(lake: PipelineLake) -> None:
    source = Source(lake, random.Random(3))
    lake.queries = {"clean": "-- @incremental: key(id)\nSELECT id, amount FROM events", "notes.yml": CLEAN}
    source.insert(6)
    lake.append(source.table, (900, "ann", None, 9))
    assert lake.run().failures == {}

    def state() -> tuple[object, ...]:
        current = lake.table("clean").metadata.current_snapshot()
        assert current is not None
        return lake.rows("clean"), lake.rows("clean_quarantine"), summary_properties(current)[VERDICTS]

    for at in count(1):
        before = state()
        lake.append(source.table, (1000 + at, "bob", None, 9))
        source.step()
        was_killed = killed(lake, at)
        found = state()
        assert lake.run().failures == {}
        after = state()
        assert found in (before, after), f"after a crash at write {at}"
        assert {row[0] for row in lake.rows("clean")} | {row[0] for row in lake.rows("clean_quarantine")} == {
            row[0] for row in lake.rows("events")
        }
        if not was_killed:
            break
    assert at > 5


def test_a_duplicate_key_is_refused_with_the_line_of_the_declaration(lake: PipelineLake) -> None:
    source = Source(lake, random.Random(1))
    lake.queries = {"copy": "-- @description: x\n-- @incremental: key(id)\nSELECT id, amount FROM events"}
    lake.append(source.table, (1, "ann", None, 1), (2, "bob", None, 2))
    assert lake.run().failures == {}
    lake.append(source.table, (2, "cy", None, 3))
    assert lake.actions() == {"copy": "merge"}
    failure = lake.run().failures["sales.copy"]
    assert failure.startswith("copy.sql, line 2: 1 of 1 rows break key ((id) is unique and not NULL)")
    assert lake.rows("copy") == [(1, 1), (2, 2)]
    assert "2 of 3 rows break key" in lake.run(again=True).failures["sales.copy"], "as in a full refresh"
    assert lake.rows("copy") == [(1, 1), (2, 2)]


def test_the_plan_says_why_a_table_is_refreshed_in_full(lake: PipelineLake) -> None:
    source = Source(lake, random.Random(1))
    with_models(lake, "joined", "rolling")
    lake.queries["plain"] = "SELECT id FROM events"
    source.insert(4)
    assert lake.run().failures == {}
    source.insert(1)
    assert lake.reasons()["joined"] == "sales.events has new rows"
    assert lake.run().failures == {}
    lake.append(lake.table("customers"), ("cy", "eu"))
    assert lake.reasons()["joined"] == "sales.customers changed, and only changes of sales.events can be applied by key"
    assert lake.run().failures == {}
    assert_equal_without(lake, "plain")
    files = lake.table("events").handle
    current = files.current()
    assert current is not None
    rewrite(lake, source.table, data_files(files.files(current)).slice(0, 1), more=1)
    assert lake.reasons()["plain"].startswith(
        "sales.events changed, and not only by new rows: with @incremental: key(…)"
    )


def assert_equal_without(lake: PipelineLake, name: str) -> None:
    query = lake.queries.pop(name)
    assert_equal(lake)
    lake.queries[name] = query


def test_compaction_of_an_input_changes_nothing(lake: PipelineLake) -> None:
    """Rows that are only written to other files are no changes, so only the position moves."""
    source = Source(lake, random.Random(1))
    lake.queries = {"totals": f"-- @incremental: group\n{MODELS['totals'][1]}"}
    source.insert(4)
    assert lake.run().failures == {}
    handle = lake.table("events").handle
    current = handle.current()
    assert current is not None
    before = lake.rows("totals")
    rewrite(lake, source.table, data_files(handle.files(current)), more=0)
    lake.engine.queries.clear()
    assert lake.run().failures == {}
    assert lake.rows("totals") == before
    assert lake.actions() == {"totals": "keep"}
    summary = lake.table("totals").metadata.current_snapshot()
    assert summary is not None
    assert summary.summary is not None
    assert "removed-files" not in str(summary.summary.additional_properties)
    assert summary.summary.additional_properties.get("deleted-data-files") is None


@pytest.mark.parametrize(
    ("declared", "query", "reason"),
    [
        ("key", "SELECT id FROM events", "key needs the name of a column"),
        ("id", "SELECT id FROM events", "write key(column, …)"),
        ("range(day, soon)", "SELECT day FROM events", "'soon' is not a time to look back"),
        ("key(x)", "SELECT id FROM events", "its query has no column 'x'; it has id"),
        ("key(id)", "SELECT id FROM events LIMIT 3", "LIMIT, which is about all rows"),
        ("key(id)", "SELECT id FROM events UNION SELECT id FROM more", "its query is a UNION"),
        ("key(id)", "SELECT max(id) AS id FROM events", "which does not depend on one row of events only"),
        ("key(id)", "SELECT id, rank() OVER (ORDER BY day) AS r FROM events", "is not partitioned by id"),
        ("key(id)", "SELECT id, day FROM events GROUP BY day, upper(id)", "does not group by id"),
        ("key(id)", "SELECT e.id FROM events AS e FULL JOIN more AS m ON e.id = m.id", "has a FULL JOIN"),
        ("key(id)", "SELECT m.id FROM events AS e JOIN more AS m ON e.id = m.id", "must come from events"),
        ("key(id)", "SELECT a.id FROM events AS a JOIN events AS b ON a.id = b.id", "reads events more than once"),
        ("key(id)", "SELECT id FROM (SELECT * FROM events)", "must read a table in FROM"),
        ("key(id)", "SELECT id, count(*) AS n FROM events GROUP BY id WITH ROLLUP", "ROLLUP"),
        ("group", "SELECT id FROM events", "has no GROUP BY"),
        ("group", "SELECT count(*) AS n FROM events GROUP BY day", "the table has no column with 'day'"),
        ("range(day)", "SELECT day, sum(id) OVER (ORDER BY day) AS s FROM events", "is not partitioned by day"),
    ],
)
def test_what_is_not_incremental_is_refused_with_file_and_line(declared: str, query: str, reason: str) -> None:
    files = {
        "pipeline.yml": "name: p\ncatalog: lake\nnamespace: n",
        "t.sql": f"-- a comment\n-- @incremental: {declared}\n{query}",
    }
    with pytest.raises(InvalidArgument) as error:
        read_project(files)
    assert error.value.message.startswith("t.sql, line 2: ")
    assert reason in error.value.message
