"""After each statement a managed table holds the same rows as a plain DuckDB table after the same statement."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from itertools import pairwise
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from formats.oracles import assert_same_rows
from lake.lakes import Lake
from skiway.client import AirportClient, col
from skiway.errors import ConstraintViolation, InvalidArgument
from skiway.lake.writing.inserting import InsertRows

PEOPLE = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("name", pa.string()),
        pa.field("score", pa.float32()),
        pa.field("born", pa.date32()),
        pa.field("seen", pa.timestamp("us")),
        pa.field("paid", pa.decimal128(10, 2)),
        pa.field("tags", pa.list_(pa.string())),
        pa.field("at", pa.struct({"x": pa.int32(), "y": pa.string()})),
    ]
)


def people(start: int, count: int) -> pa.Table:
    return pa.Table.from_pylist([_person(number) for number in range(start, start + count)], schema=PEOPLE)


def _person(number: int) -> dict[str, Any]:
    person = {
        "id": number,
        "name": f"name {number}",
        "score": number / 4,
        "born": date(2000, 1, 1 + number % 28),
        "seen": datetime(2026, 1, 1, 0, 0, number % 60),
        "paid": Decimal(number) / 4,
        "tags": [f"t{number}", None],
        "at": {"x": number, "y": None if number % 2 else "y"},
    }
    return {
        name: None if place and (number + place) % 7 == 0 else value
        for place, (name, value) in enumerate(person.items())
    }


@dataclass
class Both:
    """The lake's table `s.t` and a plain DuckDB table that get the same statements."""

    db: AirportClient
    duck: duckdb.DuckDBPyConnection

    def insert(self, rows: pa.Table) -> None:
        assert self.db.insert("s.t", rows).count == rows.num_rows
        self.duck.register("rows", rows)
        self.duck.execute("INSERT INTO t BY NAME FROM rows")

    def run(self, statement: Callable[[AirportClient], Any], sql: str) -> None:
        done = statement(self.db)
        counted = self.duck.execute(sql).fetchall()
        if getattr(done, "count", None) is not None and not sql.startswith("ALTER"):
            assert done.count == counted[0][0]
        self.check()

    def check(self) -> None:
        assert_same_rows(self.db.scan("s.t").read_all(), self.duck.execute("FROM t").to_arrow_table())
        assert self.db.count("s.t") == self.duck.execute("SELECT count(*) FROM t").fetchall()[0][0]


@pytest.fixture
def both(lake: Lake) -> Iterator[Both]:
    with lake.client() as db, duckdb.connect() as duck:
        db.create_schema("s")
        db.create_table("s.t", PEOPLE)
        duck.register("empty", PEOPLE.empty_table())
        duck.execute("CREATE TABLE t AS FROM empty")
        duck.execute("ALTER TABLE t ALTER COLUMN id SET NOT NULL")
        yield Both(db, duck)


def test_inserts_updates_and_deletes_match_duckdb(both: Both) -> None:
    both.check()
    for start in (0, 50, 100):
        both.insert(people(start, 50))
        both.check()
    both.run(
        lambda db: db.update("s.t", {"name": "new", "score": 1.5}, where=col("id") >= 90),
        "UPDATE t SET name = 'new', score = 1.5 WHERE id >= 90",
    )
    both.run(lambda db: db.update("s.t", {"name": None}, where=col("id") == 3), "UPDATE t SET name = NULL WHERE id = 3")
    both.run(lambda db: db.update("s.t", {"paid": Decimal("9.25")}), "UPDATE t SET paid = 9.25")
    both.run(lambda db: db.delete("s.t", where=col("id") < 10), "DELETE FROM t WHERE id < 10")
    both.run(lambda db: db.delete("s.t", where=col("name") == "new"), "DELETE FROM t WHERE name = 'new'")
    both.run(lambda db: db.delete("s.t", where=col("id") == 12345), "DELETE FROM t WHERE id = 12345")
    both.run(lambda db: db.truncate("s.t"), "DELETE FROM t")
    both.insert(people(0, 5))
    both.check()


def test_nested_values_can_be_updated(both: Both) -> None:
    both.insert(people(0, 20))
    both.run(
        lambda db: db.update("s.t", {"tags": ["a", None, "b"], "at": {"x": 7, "y": "z"}}, where=col("id") < 9),
        "UPDATE t SET tags = ['a', NULL, 'b'], \"at\" = {'x': 7, 'y': 'z'} WHERE id < 9",
    )


def test_schema_changes_match_duckdb(both: Both) -> None:
    both.insert(people(0, 10))
    both.run(lambda db: db.add_column("s.t", pa.field("extra", pa.int32())), "ALTER TABLE t ADD COLUMN extra INTEGER")
    both.run(lambda db: db.update("s.t", {"extra": 5}, where=col("id") < 5), "UPDATE t SET extra = 5 WHERE id < 5")
    both.run(
        lambda db: db.change_column_type("s.t", "extra", pa.int64()), "ALTER TABLE t ALTER COLUMN extra TYPE BIGINT"
    )
    both.run(
        lambda db: db.change_column_type("s.t", "score", pa.float64()), "ALTER TABLE t ALTER COLUMN score TYPE DOUBLE"
    )
    both.run(
        lambda db: db.change_column_type("s.t", "paid", pa.decimal128(18, 2)),
        "ALTER TABLE t ALTER COLUMN paid TYPE DECIMAL(18, 2)",
    )
    both.run(lambda db: db.rename_column("s.t", "name", "full name"), 'ALTER TABLE t RENAME COLUMN name TO "full name"')
    both.run(lambda db: db.remove_column("s.t", "born"), "ALTER TABLE t DROP COLUMN born")
    both.run(lambda db: db.drop_not_null("s.t", "id"), "ALTER TABLE t ALTER COLUMN id DROP NOT NULL")
    both.run(lambda db: db.update("s.t", {"id": None}, where=col("id") == 2), "UPDATE t SET id = NULL WHERE id = 2")
    both.run(
        lambda db: db.update("s.t", {"extra": 2**40}, where=col("id") == 1),
        f"UPDATE t SET extra = {2**40} WHERE id = 1",
    )
    both.run(
        lambda db: db.add_column("s.t", pa.field("extra", pa.int32()), if_not_exists=True),
        "ALTER TABLE t ADD COLUMN IF NOT EXISTS extra INTEGER",
    )
    both.run(
        lambda db: db.remove_column("s.t", "nowhere", if_column_exists=True),
        "ALTER TABLE t DROP COLUMN IF EXISTS nowhere",
    )


def test_returning_matches_duckdb(both: Both) -> None:
    rows = people(0, 5000)  # more than one batch of the client
    both.duck.register("rows", rows)
    expected = both.duck.execute("INSERT INTO t BY NAME FROM rows RETURNING *").to_arrow_table()
    assert_same_rows(both.db.insert("s.t", rows, returning=True).rows, expected)
    expected = both.duck.execute("UPDATE t SET name = 'x' WHERE id > 2500 RETURNING *").to_arrow_table()
    assert_same_rows(both.db.update("s.t", {"name": "x"}, where=col("id") > 2500, returning=True).rows, expected)
    expected = both.duck.execute("DELETE FROM t WHERE id > 100 RETURNING *").to_arrow_table()
    assert_same_rows(both.db.delete("s.t", where=col("id") > 100, returning=True).rows, expected)
    both.check()


def test_update_is_one_snapshot_and_rewrites_only_affected_files(lake: Lake, both: Both) -> None:
    for start in (0, 10, 20):
        both.insert(people(start, 10))
    before = {row["path"] for row in files(both.db)}
    both.db.update("s.t", {"name": "x"}, where=col("id") == 15)
    after = {row["path"] for row in files(both.db)}
    assert len(before & after) == 2
    assert len(after - before) == 1
    reported = both.db.scan("skiway.snapshots").read_all().sort_by("sequence_number").to_pylist()
    assert [row["operation"] for row in reported] == ["append"] * 3 + ["overwrite"]
    assert [row["is_current"] for row in reported] == [False] * 3 + [True]
    assert lake.realm.account_id == "a1"


def test_old_snapshots_remain_readable(both: Both) -> None:
    both.insert(people(0, 10))
    both.insert(people(10, 10))
    both.db.delete("s.t", where=col("id") < 15)
    both.db.remove_column("s.t", "name")
    reported = both.db.scan("skiway.snapshots").read_all().sort_by("sequence_number")
    first, second, _ = reported["snapshot_id"].to_pylist()
    assert_same_rows(both.db.scan("s.t", at_version=first).read_all(), people(0, 10))
    assert_same_rows(both.db.scan("s.t", at_version=second).read_all(), people(0, 20))
    moment = reported["created_at"].to_pylist()[1]
    assert both.db.scan("s.t", at_timestamp=moment).read_all().num_rows == 20


def test_not_null_is_enforced(both: Both) -> None:
    both.insert(people(0, 3))
    rows = people(3, 2).set_column(0, "id", pa.array([None, 4], pa.int64()))
    with pytest.raises(ConstraintViolation, match=r"NOT NULL constraint failed: t\.id"):
        both.db.insert("s.t", rows)
    with pytest.raises(ConstraintViolation, match=r"NOT NULL constraint failed: t\.id"):
        both.db.update("s.t", {"id": None})
    both.check()


def test_out_of_range_value_is_rejected(both: Both) -> None:
    both.insert(people(0, 3))
    wrong = people(3, 1).set_column(5, "paid", pa.array([Decimal("1.001")], pa.decimal128(10, 3)))
    with pytest.raises(InvalidArgument, match="paid"):
        both.db.insert("s.t", wrong)
    both.check()


def test_empty_insert_creates_no_snapshot(both: Both) -> None:
    assert both.db.insert("s.t", people(0, 0)).count == 0
    assert both.db.scan("skiway.snapshots").read_all().num_rows == 0


def test_pyiceberg_and_duckdb_read_what_was_written(lake: Lake, both: Both) -> None:
    """The files and the metadata are those of any Iceberg table."""
    from pyiceberg.table import StaticTable

    both.insert(people(0, 30))
    both.db.update("s.t", {"name": "x"}, where=col("id") < 3)
    both.db.rename_column("s.t", "name", "title")
    both.db.delete("s.t", where=col("id") > 25)
    from skiway.metastore.records import keys
    from skiway.metastore.records.kinds import TABLE
    from skiway.metastore.resources import directory
    from skiway.model import v1

    ref = v1.NameRef(catalog="managed", path=["s"], name="t")
    found = directory.resolve_table(lake.realm, v1.ResolveTableRequest(ref=ref)).resource_id
    record = lake.realm.all(TABLE).require(keys.table("a1", found.id), name="t").value
    assert_same_rows(
        both.db.scan("s.t").read_all(), StaticTable.from_metadata(record.metadata_location).scan().to_arrow()
    )


def files(db: AirportClient) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = db.scan("skiway.files").read_all().to_pylist()
    return found


class Statements(RuleBasedStateMachine):
    """Random statements, run on both."""

    both: Both

    def __init__(self) -> None:
        super().__init__()
        self.both.db.create_table("s.t", PEOPLE, on_conflict="replace")
        self.both.duck.execute("DELETE FROM t")

    @rule(start=st.integers(0, 50), count=st.integers(0, 30))
    def insert(self, start: int, count: int) -> None:
        self.both.insert(people(start, count))

    @rule(low=st.integers(0, 80), width=st.integers(0, 20), value=st.one_of(st.none(), st.text(max_size=3)))
    def update(self, low: int, width: int, value: str | None) -> None:
        where = (col("id") >= low) & (col("id") < low + width)
        done = self.both.db.update("s.t", {"name": value}, where=where)
        reported = self.both.duck.execute("UPDATE t SET name = ? WHERE id >= ? AND id < ?", [value, low, low + width])
        assert done.count == reported.fetchall()[0][0]

    @rule(low=st.integers(0, 80), width=st.integers(0, 20))
    def delete(self, low: int, width: int) -> None:
        where = (col("id") >= low) & (col("id") < low + width)
        done = self.both.db.delete("s.t", where=where)
        reported = self.both.duck.execute("DELETE FROM t WHERE id >= ? AND id < ?", [low, low + width])
        assert done.count == reported.fetchall()[0][0]

    @precondition(lambda self: self.both is not None)
    @invariant()
    def same(self) -> None:
        self.both.check()


def test_random_statements_match_duckdb(both: Both) -> None:
    machine = type("OfThisTest", (Statements,), {"both": both})
    few = settings(
        max_examples=max(5, settings.default.max_examples // 20),
        stateful_step_count=8,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    run_state_machine_as_test(machine, settings=few)


@pytest.mark.parametrize("together", [1, 2000, 4 << 20])
def test_rows_of_an_insert_are_the_same_however_many_batches_are_converted_together(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, together: int
) -> None:
    """Converting each batch on its own is the simple way, and all sizes must have its result."""
    monkeypatch.setattr("skiway.lake.writing.inserting._TOGETHER_BYTES", together)
    rows = people(0, 100)
    cuts = [0, 1, 1, 8, 9, 60, 100]
    batches = [rows.slice(start, end - start).combine_chunks() for start, end in pairwise(cuts)]
    sent = pa.RecordBatchReader.from_batches(PEOPLE, (batch for some in batches for batch in some.to_batches()))
    with lake.client() as db:
        db.create_schema("s")
        db.create_table("s.t", PEOPLE)
        assert db.insert("s.t", sent).count == 100
        assert db.scan("s.t").read_all().sort_by("id").to_pylist() == rows.to_pylist()
        missing = pa.table({"id": pa.array([*range(200, 300), None], pa.int64())})
        with pytest.raises(ConstraintViolation, match=r"NOT NULL constraint failed: t\.id"):
            db.insert("s.t", pa.RecordBatchReader.from_batches(missing.schema, missing.to_batches(10)))
        assert db.count("s.t") == 100


@pytest.mark.parametrize(
    ("size", "batches", "written"), [(250, 64, [30, 30, 30, 10]), (1 << 20, 4, [40, 40, 20]), (79, 64, [10] * 10)]
)
def test_few_rows_of_an_insert_wait_to_be_converted(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, size: int, batches: int, written: list[int]
) -> None:
    """Ten batches of 80 bytes: so many rows are converted together."""
    monkeypatch.setattr("skiway.lake.writing.inserting._TOGETHER_BYTES", size)
    monkeypatch.setattr("skiway.lake.writing.inserting._TOGETHER_BATCHES", batches)
    seen, write = list[int](), InsertRows._write
    monkeypatch.setattr(InsertRows, "_write", lambda self, rows: seen.append(rows.num_rows) or write(self, rows))
    rows = pa.table({"id": pa.array(range(100), pa.int64())})
    sent = pa.RecordBatchReader.from_batches(rows.schema, rows.to_batches(10))
    with lake.client() as db:
        db.create_schema("s")
        db.create_table("s.t", rows.schema)
        assert db.insert("s.t", sent).count == 100
    assert seen == written
