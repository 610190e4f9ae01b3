"""`skiway tables describe` with the statistics that Spark computed, and the sync that computes them."""

from __future__ import annotations

import re

import pytest

from cli.conftest import ROWS, Run
from runtime.servers import Server, add_swapped_columns
from skiway.client import AirportClient, Metastore
from skiway.model import v1
from skiway.presentation.tables import ColumnProfile, DistinctCount, histogram_bars, numeric_position


@pytest.mark.timeout(600)
def test_sync_shows_the_progress_of_both_passes(profiled: str) -> None:
    messages = [line.partition(": ")[2] for line in profiled.splitlines() if ": " in line]
    assert any(re.fullmatch(r"statistics, \d of 2 tables.*", line) for line in messages), profiled
    assert re.search(r"^job \S+ succeeded: 2 tables, \d changed, 0 failed$", profiled, re.MULTILINE)


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("profiled")
def test_columns_are_described_with_numbers_and_histograms(run: Run) -> None:
    shown = run("tables", "describe", "lake.raw.orders")
    assert shown.code == 0
    lines = {line[0]: line for line in shown.lines if line}
    assert lines["rows"] == ["rows", f"{ROWS:,}"]
    header = ["column", "type", "nulls", "distinct", "min", "max", "values"]
    assert lines["column"] == header
    assert lines["id"][1:4] == ["BIGINT", "0", "%"]
    assert re.fullmatch(r"≈[56],\d{3}", lines["id"][4])
    assert re.fullmatch(r"±[1-5]", lines["id"][5])
    assert lines["id"][7:9] == ["0", f"{ROWS - 1}"]
    assert set("".join(lines["id"][9:])) <= set("▁▂▃▄▅▆▇█")
    assert len(lines["id"][9]) == 16
    assert lines["customer"][1:5] == ["VARCHAR", "10.0", "%", "2"]
    assert lines["customer"][5:] == ["Ada", "Grace", "Ada", "50", "%,", "Grace", "40", "%"]
    assert lines["day"][4:7] == ["168", "2025-01-01", "2025-07-02"]
    assert f"all {ROWS:,} rows were profiled" in shown.out
    assert "≈ estimate" in shown.out


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("profiled")
def test_history_has_quantiles_and_frequent_values(run: Run) -> None:
    found = run("stats", "history", "lake.raw.orders", "-c", "customer", "-c", "amount", "-o", "json").json
    by_name = {each["column"]: each for each in found}
    assert by_name.keys() == {"customer", "amount"}
    assert float(by_name["amount"]["median"]) == pytest.approx(49.5, abs=4)
    assert by_name["customer"]["top_values"][0] == {"value": "Ada", "count": ROWS // 2}
    shown = run("stats", "history", "lake.raw.orders", "--column", "customer")
    assert f"Ada ({ROWS // 2:,})" in shown.out
    assert run("stats", "history", "lake.raw.orders", "-c", "none").lines == []


def test_partitions_are_listed(run: Run) -> None:
    run("sql", "CREATE SCHEMA lake.parts; CREATE TABLE lake.parts.t AS SELECT 10 AS n, 'b' AS s")
    run("sql", "INSERT INTO lake.parts.t VALUES (9, 'a'), (NULL, 'c')")
    [found] = run("stats", "partitions", "lake.parts.t", "-o", "json").json
    assert (found["rows"], found["data_files"], found["delete_files"]) == (3, 2, 0)
    assert [(each["name"], each["min"], each["max"], each["nulls"]) for each in found["columns"]] == [
        ("n", "9", "10", 1),
        ("s", "a", "c", 0),
    ]
    assert run("stats", "partitions", "lake.parts.t").lines[1][:2] == ["{}", "3"]


def test_number_of_rows_says_at_most_if_it_is_a_bound(run: Run, lake: Server) -> None:
    run("sql", "CREATE SCHEMA lake.upserts; CREATE TABLE lake.upserts.t AS SELECT range AS n FROM range(1500)")
    assert ["rows", "1,500"] in run("tables", "describe", "lake.upserts.t").lines
    with Metastore(lake.address) as metastore:
        snapshot = metastore.snapshots.get("lake.upserts.t")
        properties = {"quality.row_count": "bound"}
        metastore.statistics.put("lake.upserts.t", snapshot, row_count=1500, properties=properties)
    for arguments in (("tables", "describe"), ("tables", "get"), ("stats", "get")):
        assert ["rows", "at", "most", "1,500"] in run(*arguments, "lake.upserts.t").lines, arguments
    assert "at most 1,500" in run("tables", "list", "lake.upserts").out
    assert "at most 1,500" in run("search", "lake.upserts.t").out
    (found,) = run("tables", "list", "lake.upserts", "-o", "json").json
    assert (found["rows"], found["rows_are_bound"]) == (1500, True)


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("profiled")
def test_json_has_every_number_with_its_quality(run: Run) -> None:
    found = run("tables", "describe", "lake.raw.orders", "-o", "json").json
    assert (found["rows"], found["rows_quality"], found["rows_profiled"]) == (ROWS, "exact", ROWS)
    columns = {each["name"]: each for each in found["columns"]}
    assert list(columns) == ["id", "customer", "amount", "day", "paid"]
    assert columns["customer"]["distinct"] == {"value": 2, "lower": None, "upper": None, "confidence": None}
    assert columns["customer"]["top_values"][0] == {"value": "Ada", "count": ROWS // 2}
    ids = columns["id"]
    assert ids["distinct"]["lower"] <= ROWS <= ids["distinct"]["upper"]
    assert (ids["quality"]["ndv"], ids["quality"]["min"]) == ("estimate", "exact")
    assert sum(ids["counts"]) == ROWS
    assert len(ids["bounds"]) == len(ids["counts"]) + 1


def test_unprofiled_managed_table_shows_the_statistics_of_its_files(run: Run) -> None:
    run("sql", "CREATE SCHEMA lake.desc_; CREATE TABLE lake.desc_.t AS SELECT 10 AS n, 'b' AS s")
    run("sql", "INSERT INTO lake.desc_.t VALUES (9, 'a'), (NULL, 'ß')")
    shown = run("tables", "describe", "lake.desc_.t")
    lines = {line[0]: line for line in shown.lines if line}
    assert lines["n"] == ["n", "INTEGER", "≤33.3", "%", "-", "⊂9", "⊂10"]
    assert lines["s"][-2:] == ["⊂a", "⊂ß"]
    assert "the table was not profiled" in shown.out
    columns = run("tables", "describe", "lake.desc_.t", "-o", "json").json["columns"]
    assert (columns[0]["min"], columns[0]["max"], columns[0]["nulls"]) == ("9", "10", 1)
    assert columns[0]["quality"]["min"] == "bound"


def test_statistics_have_the_present_names_of_columns(run: Run, lake: Server) -> None:
    with AirportClient(lake.addresses["airport"], "lake") as client, Metastore(lake.address) as metastore:
        add_swapped_columns(client, metastore, "renames.t")
        over_rpc = {each.column_name: (each.min, each.max) for each in metastore.statistics.columns("lake.renames.t")}
    columns = run("tables", "describe", "lake.renames.t", "-o", "json").json["columns"]
    shown = {each["name"]: (each["min"], each["max"]) for each in columns}
    assert shown == over_rpc == {"a": ("100", "200"), "b": ("1", "2")}


def test_sample_is_described_as_such(run: Run, lake: Server) -> None:
    run("sql", "CREATE SCHEMA lake.desc4; CREATE TABLE lake.desc4.t AS SELECT 1 AS n")
    with Metastore(lake.address) as metastore:
        snapshot = metastore.snapshots.get("lake.desc4.t")
        properties = {"files.sample": "2", "rows.profiled": "40", "files.profiled": "2"}
        metastore.statistics.put("lake.desc4.t", snapshot, row_count=900, data_file_count=30, properties=properties)
        column = v1.ColumnStats(column_id=1, column_name="n", logical_type="INT", value_count=900, null_count=90)
        column.ndv.approx.estimate = 7
        column.properties.update({"quality.ndv": "sample", "quality.null_count": "sample"})
        metastore.statistics.put_columns("lake.desc4.t", snapshot, [column])
    shown = run("tables", "describe", "lake.desc4.t")
    lines = {line[0]: line for line in shown.lines if line}
    assert lines["n"][2:5] == ["~10.0", "%", "~7"]
    assert "a sample of 2 of 30 files was profiled, with 40 of 900 rows" in shown.out
    assert "~ from the sample" in shown.out
    assert run("tables", "describe", "lake.desc4.t", "-o", "json").json["sample_files"] == 2


def test_older_snapshot_can_be_described(run: Run) -> None:
    run("sql", "CREATE SCHEMA lake.desc2; CREATE TABLE lake.desc2.t AS SELECT 1 AS n")
    first = run("snapshots", "list", "lake.desc2.t", "-o", "json").json[0]["id"]
    run("sql", "INSERT INTO lake.desc2.t VALUES (5)")
    then = run("tables", "describe", "lake.desc2.t", "--at", str(first), "-o", "json").json
    now = run("tables", "describe", "lake.desc2.t", "-o", "json").json
    assert (then["rows"], then["columns"][0]["max"]) == (1, "1")
    assert (now["rows"], now["columns"][0]["max"]) == (2, "5")
    assert run("tables", "describe", "lake.desc2.t", "--at", "7").code == 1


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("profiled")
def test_managed_table_is_profiled_on_request(run: Run) -> None:
    run("sql", "CREATE SCHEMA lake.desc3; CREATE TABLE lake.desc3.t AS SELECT i % 3 AS n FROM range(30) r(i)")
    done = run("stats", "profile", "lake.desc3.t", "--watch")
    assert (done.code, "succeeded" in done.out) == (0, True), done.err
    column = run("tables", "describe", "lake.desc3.t", "-o", "json").json["columns"][0]
    assert (column["distinct"]["value"], column["quality"]["ndv"]) == (3, "exact")
    refused = run("stats", "profile", "lake.raw.orders")
    assert refused.code == 1
    listed = run("jobs", "list", "--state", "succeeded", "-o", "json").json[0]
    assert (listed["connector"], bool(listed["table_id"]), listed["phase"]) == (None, True, "statistics")


@pytest.mark.parametrize(
    ("positions", "counts", "shown"),
    [
        ([0.0, 1.0, 2.0], [10, 30], "▃▃██"),
        ([0.0, 4.0], [8], "████"),
        ([0.0, 1.0, 3.0, 4.0], [4, 0, 4], "█  █"),
        ([5.0, 5.0], [9], "█"),
        ([0.0, 0.0, 4.0], [12, 4], "█▁▁▁"),
        ([0.0, 4.0, 4.0], [4, 12], "▁▁▁█"),
    ],
)
def test_histogram_is_drawn_in_bins_of_equal_width(positions: list[float], counts: list[int], shown: str) -> None:
    assert histogram_bars(positions, counts, 4) == shown


def test_bounds_have_numeric_positions() -> None:
    assert numeric_position("2.5") == 2.5
    assert numeric_position("x") is None
    day, next_day = numeric_position("2025-01-01"), numeric_position("2025-01-02")
    assert day is not None
    assert next_day is not None
    assert next_day - day == 86400
    assert numeric_position("2025-01-01T00:00:00.5") == day + 0.5
    assert numeric_position("2025-01-01T01:00:00+01:00") == day
    assert numeric_position("00:01:00") == 60


def test_missing_statistics_are_unknown() -> None:
    nothing = ColumnProfile.of(v1.ColumnStats(column_name="a", value_count=3), "int")
    assert (nothing.nulls, nothing.distinct, nothing.min, nothing.null_share, nothing.histogram()) == (
        None,
        None,
        None,
        None,
        "",
    )
    approx = v1.Ndv(approx=v1.NdvApprox(estimate=10.4))
    assert DistinctCount.of(approx) == DistinctCount(10)
    assert DistinctCount.of(v1.Ndv()) is None


def test_bounds_of_files_are_merged_by_value_not_as_strings() -> None:
    parts = [
        v1.ColumnStats(value_count=2, null_count=0, min=low, max=high) for low, high in (("9", "9"), ("-3", "100"))
    ]
    merged = ColumnProfile.of_files("n", "long", parts)
    assert (merged.min, merged.max, merged.nulls, merged.values) == ("-3", "100", 0, 4)
    unknown = ColumnProfile.of_files("n", "long", [*parts, v1.ColumnStats(value_count=1)])
    assert (unknown.min, unknown.max, unknown.nulls) == (None, None, None)
    empty = ColumnProfile.of_files("n", "long", [*parts, v1.ColumnStats(value_count=1, null_count=1)])
    assert (empty.min, empty.max, empty.nulls) == ("-3", "100", 1)
