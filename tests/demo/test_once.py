"""`skiway demo --once` runs three queries, whose results match those of other readers of the sources."""

from __future__ import annotations

import re
import resource
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table as IcebergTable

from demo.demos import Serving, answers, demo
from formats.oracles import extended
from skiway.client import AirportClient, col
from skiway.demo.output import QUERIES

pytestmark = [pytest.mark.timeout(1200), pytest.mark.needs("java", "spark")]

SECOND_START_S = 5
SLOWER = 4  # allowance for slow or busy machines


@pytest.fixture
def rides(home: Path) -> Iterator[IcebergTable]:
    with SqlCatalog("operations", uri=f"sqlite:///{home}/sources/lift-operations/catalog.db") as catalog:
        yield catalog.load_table("lifts.rides")


@pytest.mark.needs("duckdb extensions")
def test_join_matches_duckdb_on_the_sources(made: tuple[Path, str], rides: IcebergTable, tmp_path: Path) -> None:
    home, printed = made
    sources = {
        "lake.weather.readings": (
            f"read_parquet('{home}/sources/mountain-data/weather/readings/*/*/*.parquet', hive_partitioning = true)"
        ),
        "lake.lifts.rides": f"iceberg_scan('{rides.metadata_location}')",
        "lake.sales.tickets": f"delta_scan('{home}/sources/ticket-desk/sales/tickets')",
    }
    sql = QUERIES[0].sql
    for name, source in sources.items():
        assert name in sql
        sql = sql.replace(name, source)
    with extended(tmp_path) as duck:
        expected = duck.execute(sql).fetchall()
    assert len(expected) == 4
    assert answers(printed)[0] == [
        [weather, *(f"{number:,.10g}" for number in numbers)] for weather, *numbers in expected
    ]


def test_old_and_new_prices_match_delta(made: tuple[Path, str]) -> None:
    home, printed = made
    path = f"{home}/sources/ticket-desk/sales/prices"
    before_change, after_change = (prices(path, version) for version in (0, 1))
    found = {product: (before, after) for product, before, after, _ in answers(printed)[1]}
    assert found == {product: (str(before_change[product]), str(after_change[product])) for product in before_change}
    percents = [float(row[3]) for row in answers(printed)[1]]
    assert percents == sorted(
        (round(float(100 * after_change[each] / before_change[each] - 100), 1) for each in before_change), reverse=True
    )


def test_statistics_match_the_rows(made: tuple[Path, str], rides: IcebergTable) -> None:
    rows = rides.scan().to_arrow()
    found = {name: cells for name, *cells in answers(made[1])[2]}
    assert list(found) == rows.column_names
    for name, (nulls, distinct, low, high) in found.items():
        assert number(nulls) == rows[name].null_count
        exact = pc.count_distinct(rows[name]).as_py()
        assert number(distinct) == pytest.approx(exact, rel=0.05)
        assert [low, high] == [text(bound) for bound in pc.min_max(rows[name]).values()]


def test_tables_of_three_formats_have_all_their_snapshots(made: tuple[Path, str]) -> None:
    listing = dict(re.findall(r"^   (\w+\.\w+) +(\w+ +[\d,]+ +\d+ +\d+ +\S+)", made[1], re.MULTILINE))
    tables = {name: tuple(cells.split()) for name, cells in listing.items()}
    assert {name: (cells[0], cells[3], cells[4]) for name, cells in tables.items()} == {
        "lifts.lifts": ("iceberg", "1", "lift-operations"),
        "lifts.rides": ("iceberg", "5", "lift-operations"),
        "maps.trails": ("parquet", "1", "mountain-data"),
        "planning.crews": ("iceberg", "1", "(managed)"),
        "reports.best_days": ("iceberg", "1", "(managed)"),
        "reports.daily_sales": ("iceberg", "1", "(managed)"),
        "sales.prices": ("delta", "2", "ticket-desk"),
        "sales.tickets": ("delta", "6", "ticket-desk"),
        "weather.readings": ("parquet", "1", "mountain-data"),
    }


def test_derived_tables_match_the_tickets(served: Serving, home: Path) -> None:
    tickets = DeltaTable(str(home / "sources" / "ticket-desk" / "sales" / "tickets")).to_pyarrow_table()
    with duckdb.connect() as duck, AirportClient(served.location(), "lake") as db:
        duck.register("tickets", tickets)
        daily = "SELECT resort, sold_on AS day, count(*) AS tickets, sum(amount) AS sold FROM tickets WHERE NOT refunded GROUP BY ALL"
        best = f"SELECT resort, day, sold FROM ({daily}) QUALIFY row_number() OVER (PARTITION BY resort ORDER BY sold DESC, day) < 4"
        for name, sql in (("daily_sales", daily), ("best_days", best)):
            wanted = duck.execute(f"FROM ({sql}) ORDER BY ALL").fetchall()
            found = db.scan(("reports", name)).read_all()
            assert wanted
            assert sorted(tuple(row.values()) for row in found.to_pylist()) == wanted
        lineage = db.scan(("skiway", "lineage"), where=col("table_name") == "best_days").read_all().to_pylist()
    assert dict(lineage[0]["columns"])["sold"] == ["sold"]
    assert sorted(each.name for each in (home / "pipelines" / "reports").iterdir()) == [
        *("best_days.sql", "daily_sales.sql", "pipeline.yml")
    ]


def test_the_crews_are_planned_on_a_branch(served: Serving) -> None:
    with AirportClient(served.location(), "lake") as db:
        found = db.call("skiway.diff_rows", "next_winter", "planning.crews", named={"key": ["night_of", "resort"]})
        rows = found.read_all().to_pylist()
    assert {each["change"] for each in rows} == {"before", "after"}
    notes = {change: {each["note"] for each in rows if each["change"] == change} for change in ("before", "after")}
    assert None not in notes["after"]
    assert not notes["before"] & notes["after"], "other tests may change main, but not the branch"


@pytest.mark.full
def test_uninterrupted_first_start_has_the_same_results(made: tuple[Path, str], tmp_path: Path) -> None:
    run = demo(tmp_path / "home", "--once")
    assert run.returncode == 0, run.stderr
    assert answers(run.stdout) == answers(made[1])


def test_second_start_is_fast_and_does_not_start_spark(made: tuple[Path, str], tmp_path: Path) -> None:
    home, printed = made
    touched, java = tmp_path / "touched", tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\n: > '{touched}'\nexit 1\n")
    java.chmod(0o755)
    log = (home / "spark.log").read_bytes()
    before = cpu_time_s()
    run = demo(home, "--once", JAVA_HOME=str(tmp_path), PATH=str(java.parent))
    took = cpu_time_s() - before
    assert run.returncode == 0, run.stderr
    assert answers(run.stdout) == answers(printed)
    assert took < SECOND_START_S * SLOWER
    assert not touched.exists()
    assert (home / "spark.log").read_bytes() == log
    for step in ("sources", "metadata", "statistics", "managed", "derived"):
        assert not re.search(rf"^{step} ", run.stdout, re.MULTILINE)
    assert run.stderr == ""


def cpu_time_s() -> float:
    """CPU time of the ended child processes, which other load on the machine does not affect."""
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


def prices(path: str, version: int) -> dict[str, Decimal]:
    rows = DeltaTable(path, version=version).to_pyarrow_table().to_pylist()
    return {row["product"]: row["price"] for row in rows}


def number(text: str) -> int:
    return int(text.replace(",", ""))


def text(bound: pa.Scalar) -> str:
    value = bound.as_py()
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def test_queries_are_valid_duckdb_statements() -> None:
    with duckdb.connect() as duck:
        for query in QUERIES:
            assert len(duck.extract_statements(query.sql)) == 1
