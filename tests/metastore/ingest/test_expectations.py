"""Expectations of copies: rows are judged before they are published, in the words of models and with their code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from metastore.ingest.copies import FolderCopy
from metastore.ingest.test_steps import sync
from metastore.resource_factory import expect_error
from metastore.upstreams import connector, iceberg
from skiway.errors import AlreadyExists, Cancelled, ConstraintViolation, InvalidArgument
from skiway.metastore import quality
from skiway.metastore.connectors.specs import CopyMode
from skiway.metastore.ingest.keys import NewFileKeys
from skiway.model import v1

DROP = "[{not_null: v, on_failure: drop}, {name: small, condition: id < 100, on_failure: warn}]"


def write(orders: FolderCopy, name: str, *rows: tuple[Any, ...], columns: tuple[str, ...] = ("id", "v")) -> None:
    types = {"id": pa.int64()}
    arrays = [
        pa.array(each, types.get(of, pa.string())) for each, of in zip(zip(*rows, strict=True), columns, strict=True)
    ]
    pq.write_table(pa.table(arrays, names=list(columns)), orders.folder / f"{name}.parquet")


class Empty:
    """A table of a source without rows."""

    def changes(self, *_: object) -> None:
        return None


def results(orders: FolderCopy) -> dict[str, tuple[str, str]]:
    return {
        found.rule.display_name: (v1.RuleStatus.Name(found.result.status)[4:], found.result.observed)
        for found in quality.scan(orders.lake.home, orders.table().id)
    }


def data_files(orders: FolderCopy) -> list[Path]:
    return sorted(Path(orders.table().metadata.location.removeprefix("file://"), "data").rglob("*.parquet"))


def test_bad_rows_go_to_quarantine_and_clean_files_are_not_written_again(orders: FolderCopy) -> None:
    orders.in_mode(CopyMode.APPEND, expect=DROP)
    write(orders, "1", (1, "a"), (2, None), (200, "b"))
    assert orders.load()
    assert orders.rows() == [(1, "a"), (200, "b")]
    assert orders.quarantine() == [(2, None, "not_null_v")]
    assert sum(pq.read_metadata(file).num_rows for file in data_files(orders)) == 2, "the file with all rows is gone"
    assert results(orders) == {
        "shop.orders.not_null_v": ("FAILED", "1 of 3 rows break it"),
        "shop.orders.small": ("FAILED", "1 of 3 rows break it"),
    }
    before = len(orders.engine.queries)
    write(orders, "2", (3, "c"))
    assert orders.load()
    assert len(orders.engine.queries) == before + 1, "one query counts, and none splits"
    assert orders.rows() == [(1, "a"), (200, "b"), (3, "c")]
    assert orders.quarantine() == [(2, None, "not_null_v")]
    assert results(orders)["shop.orders.not_null_v"] == ("FAILED", "1 of 4 rows break it"), "as of all rows"
    assert not orders.load()


@pytest.mark.parametrize("mode", [CopyMode.APPEND, CopyMode.REPLACE])
def test_a_load_that_breaks_a_blocking_rule_is_not_published_in_part(orders: FolderCopy, mode: CopyMode) -> None:
    orders.more = {"step_bytes": 1}
    orders.in_mode(mode, expect="[{not_null: v}]")
    write(orders, "1", (1, "a"))
    orders.load()
    files = data_files(orders)
    write(orders, "2", (2, "b"))
    write(orders, "3", (3, None))
    rows = 3 if mode == CopyMode.REPLACE else 2
    with expect_error(ConstraintViolation, "pipeline.expectation") as raised:
        orders.load()
    assert (
        f"line 1: 1 of {rows} rows break not_null_v (v is not NULL); so the new rows of orders" in raised.value.message
    )
    assert (orders.rows(), data_files(orders)) == ([(1, "a")], files)
    assert results(orders) == {"shop.orders.not_null_v": ("FAILED", f"1 of {rows} rows break it")}
    (orders.folder / "3.parquet").unlink()
    assert orders.load()
    assert orders.rows() == [(1, "a"), (2, "b")]
    assert results(orders)["shop.orders.not_null_v"][0] == "PASSED"


def test_rules_that_only_warn_leave_the_steps_of_a_load(orders: FolderCopy, monkeypatch: pytest.MonkeyPatch) -> None:
    orders.more = {"step_bytes": 1}
    orders.in_mode(CopyMode.UPSERT, "id", expect="[{not_null: v, on_failure: warn}]")
    for number in range(3):
        write(orders, str(number), (number, None))
    copy = orders.copy
    assert copy.load(orders.source())
    assert len(orders.table().metadata.snapshots) == 3
    assert results(orders) == {"shop.orders.not_null_v": ("FAILED", "3 of 3 rows break it")}, "all steps count"
    assert copy.expectations is not None
    assert list(copy.expectations.notes("orders")) == [
        "orders: 3 of 3 rows break not_null_v (v is not NULL) and were published"
    ]
    orders.in_mode(CopyMode.UPSERT, "id")
    write(orders, "9", (9, "z"))
    orders.load()
    assert results(orders) == {}, "the rules are gone"


def test_dropped_row_takes_the_place_of_its_earlier_version_and_leaves_when_it_is_corrected(orders: FolderCopy) -> None:
    """The copy equals a full load at any time."""
    orders.in_mode(CopyMode.UPSERT, "id", expect=DROP)
    write(orders, "1", (1, "a"), (2, "b"))
    orders.load()
    write(orders, "2", (2, None), (3, None))
    orders.load()
    assert (orders.rows(), [row[0] for row in orders.quarantine()]) == ([(1, "a")], [2, 3])
    write(orders, "3", (2, "corrected"))
    orders.load()
    assert (orders.rows(), [row[0] for row in orders.quarantine()]) == ([(1, "a"), (2, "corrected")], [3])
    orders.load(again=True)
    assert (orders.rows(), [row[0] for row in orders.quarantine()]) == ([(1, "a"), (2, "corrected")], [3])


def test_unique_values_may_move_between_rows(orders: FolderCopy, tmp_path: Path) -> None:
    """A row that is replaced or deleted does not keep its values from others."""
    source = iceberg(tmp_path / "ice")
    made = source.create_table("sales.orders", schema=pa.schema({"id": pa.int64(), "v": pa.string()}))
    made.append(pa.table({"id": [1, 2, 3], "v": ["a", "b", "c"]}))
    orders.kind = "iceberg"
    orders.options = {"uri": f"sqlite:///{tmp_path}/ice/catalog.db", "namespace": "sales"}
    orders.options["warehouse"] = f"file://{tmp_path}/ice/warehouse"
    orders.in_mode(CopyMode.UPSERT, "id", expect="[{unique: v}]")
    orders.load()
    made.delete("id = 1 or id = 2")
    made.append(pa.table({"id": [2, 9], "v": ["x", "a"]}))
    assert orders.load()
    assert orders.rows() == [(2, "x"), (3, "c"), (9, "a")]
    made.append(pa.table({"id": [10], "v": ["c"]}))
    with expect_error(ConstraintViolation, "pipeline.expectation"):
        orders.load()


def test_full_load_replaces_the_quarantine(orders: FolderCopy) -> None:
    orders.in_mode(CopyMode.REPLACE, expect=DROP)
    write(orders, "1", (1, None))
    orders.load()
    assert (orders.rows(), orders.quarantine()) == ([], [(1, None, "not_null_v")])
    write(orders, "1", (2, "b"))
    orders.load()
    assert (orders.rows(), orders.quarantine()) == ([(2, "b")], [])
    write(orders, "1", (1, None), (2, "c"))
    orders.load()
    assert orders.quarantine() == [(1, None, "not_null_v")]
    orders.copy.load(Empty(), again=True)
    assert (orders.rows(), orders.quarantine()) == ([], [])


def test_quarantine_follows_new_columns(orders: FolderCopy) -> None:
    orders.in_mode(CopyMode.APPEND, expect=DROP)
    write(orders, "1", (1, None))
    orders.load()
    write(orders, "2", (2, None, "new"), columns=("id", "v", "w"))
    orders.load()
    assert orders.quarantine() == [(1, None, "not_null_v", None), (2, None, "not_null_v", "new")]


def test_load_that_is_stopped_after_rows_were_split_leaves_no_file(
    orders: FolderCopy, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders.in_mode(CopyMode.UPSERT, "id", expect=DROP)
    write(orders, "1", (1, "a"))
    orders.load()
    files = data_files(orders)
    write(orders, "2", (1, "b"), (2, None))

    def stop(_: NewFileKeys) -> Any:
        raise Cancelled("stopped", key="job.cancelled")

    monkeypatch.setattr(NewFileKeys, "batches", stop)  # the commit reads keys, after rows were split
    with expect_error(Cancelled, "job.cancelled"):
        orders.load()
    assert data_files(orders) == files


def test_wrong_rules_are_refused_with_their_place(orders: FolderCopy) -> None:
    orders.in_mode(CopyMode.APPEND, expect="\n- not_null: nothing\n")
    write(orders, "1", (1, "a"))
    with expect_error(InvalidArgument, "pipeline.file") as raised:
        orders.load()
    assert raised.value.message.startswith("the expectations of shop.orders, line 2: not_null_nothing is about column")
    orders.in_mode(CopyMode.APPEND, expect=DROP)
    orders.lake.create("orders_quarantine", pa.schema({"id": pa.int64()}))
    with expect_error(AlreadyExists, "ingest.target.exists"):
        orders.load()


def test_settings_of_a_connector_are_checked_and_its_job_says_what_rules_found(lake, tmp_path):
    lake.factory.catalog()
    (tmp_path / "source" / "a").mkdir(parents=True)
    pq.write_table(pa.table({"id": [1, 2]}), tmp_path / "source" / "a" / "0.parquet")

    def made(expect: str) -> None:
        copy = v1.CopySettings(mode=v1.COM_APPEND, expect=expect)
        connector(lake.factory, str(tmp_path / "source"), v1.CK_PARQUET, copy=copy)

    for wrong, message in [
        ("[{relationships: {column: id, to: x, field: y}}]", "reads another table, which only models can"),
        ("[{unique: id}, {unique: id}]", "two expectations are named 'unique_id'"),
        ("[{nothing: id}]", "there is no field 'nothing'"),
    ]:
        with expect_error(InvalidArgument, "pipeline.file") as raised:
            made(wrong)
        assert raised.value.message.startswith("copy.expect")
        assert message in raised.value.message
    made("[{name: low, condition: id < 2, on_failure: warn}]")
    outcome = sync(lake)
    assert (outcome.failures, outcome.changed) == ({}, 1)
    assert outcome.message == "a: 1 of 2 rows break low (id < 2) and were published"
