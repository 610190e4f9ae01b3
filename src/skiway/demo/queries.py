"""Three example queries, as a user would type them into DuckDB, and a way to run them without its airport extension.

The Airport client scans the tables in a statement over the network, and an embedded DuckDB runs the statement on the Arrow
data. The result is the same as in a DuckDB that has attached the lake.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from skiway.client import AirportClient

if TYPE_CHECKING:
    import duckdb

__all__ = ["QUERIES", "Query", "answer", "contents"]

LAKE: Final = "lake"

_TABLE: Final = re.compile(
    rf"\b{LAKE}\.(?P<schema>\w+)\.(?P<table>\w+)(?P<alias>(?:\s+AS\s+\w+)?)(?:\s+AT\s+\(VERSION\s+=>\s+(?P<version>[^)]+)\))?"
)


@dataclass(frozen=True, slots=True)
class Query:
    """An example query, with a title and what it demonstrates."""

    title: str
    shows: str
    sql: str


@dataclass(frozen=True, slots=True)
class _Scan:
    schema: str
    table: str
    version: int | str | None

    @property
    def local_name(self) -> str:
        """The name of the local copy of the table."""
        name = self.table if self.version is None else f"{self.table}@{self.version}"
        return f'{LAKE}.{self.schema}."{name}"'


def contents(db: AirportClient) -> pa.Table:
    """One row per table of the lake."""
    return answer(db, _CONTENTS)


def answer(db: AirportClient, sql: str) -> pa.Table:
    """The result of a statement."""
    import duckdb

    scans: dict[str, _Scan] = {}

    def local_name(match: re.Match[str]) -> str:
        scan = _Scan(match["schema"], match["table"], _version(match["version"]))
        scans[scan.local_name] = scan
        return scan.local_name + match["alias"]

    statement = _TABLE.sub(local_name, sql)
    with duckdb.connect() as duck:
        duck.execute(f"ATTACH ':memory:' AS {LAKE}")
        for scan in scans.values():
            _copy(db, scan, duck)
        return duck.execute(statement).to_arrow_table()


def _copy(db: AirportClient, scan: _Scan, duck: duckdb.DuckDBPyConnection) -> None:
    """Copy a table of the lake into the embedded DuckDB."""
    with db.scan((scan.schema, scan.table), at_version=scan.version) as rows:
        duck.register("incoming", rows.to_reader())
        duck.execute(f"CREATE SCHEMA IF NOT EXISTS {LAKE}.{scan.schema}")
        duck.execute(f"CREATE TABLE {scan.local_name} AS FROM incoming")
        duck.unregister("incoming")


def _version(text: str | None) -> int | str | None:
    if text is None:
        return None
    return text.strip("' ") if "'" in text else int(text)


_CONTENTS: Final = """\
SELECT schema_name || '.' || table_name AS "table", format, row_count AS "rows", file_count AS files,
       (SELECT count(*) FROM lake.skiway.snapshots AS s
        WHERE s.schema_name = t.schema_name AND s.table_name = t.table_name) AS snapshots,
       coalesce(connector, '(' || kind || ')') AS source
FROM lake.skiway.tables AS t ORDER BY schema_name, table_name"""

QUERIES: Final = (
    Query(
        "Does fresh snow sell?",
        "joins Parquet weather, Iceberg rides and Delta tickets",
        """\
WITH snow AS (
  SELECT resort, measured_at::DATE AS day, max(wind_kmh) AS wind,
         sum(snowfall_mm) / count(DISTINCT station) / 10 AS cm
  FROM lake.weather.readings GROUP BY ALL),
rides AS (
  SELECT resort, scanned_at::DATE AS day, count(*) AS rides
  FROM lake.lifts.rides GROUP BY ALL),
sales AS (
  SELECT resort, sold_on AS day, sum(amount) AS sold
  FROM lake.sales.tickets WHERE NOT refunded GROUP BY ALL)
SELECT CASE WHEN wind > 70 THEN 'storm' WHEN cm >= 12 THEN 'powder'
            WHEN cm >= 2 THEN 'some snow' ELSE 'dry' END AS weather,
       count(*) AS days, round(avg(rides)) AS rides_a_day,
       round(avg(sold)) AS sold_a_day
FROM snow JOIN rides USING (resort, day) JOIN sales USING (resort, day)
GROUP BY weather ORDER BY sold_a_day DESC;""",
    ),
    Query(
        "What did a pass cost before the price increase?",
        "time travel: a Delta table compared with its version 0",
        """\
SELECT product, was.price AS in_december, now.price AS now,
       round(100 * now.price / was.price - 100, 1) AS percent
FROM lake.sales.prices AS now
JOIN lake.sales.prices AS was AT (VERSION => 0) USING (product)
ORDER BY percent DESC, product;""",
    ),
    Query(
        "What do the rides contain, without reading them?",
        "column statistics from profiles, in the schema skiway",
        """\
SELECT column_name, null_count AS nulls,
       round(distinct_count)::BIGINT AS "distinct", min, max
FROM lake.skiway.column_stats
WHERE schema_name = 'lifts' AND table_name = 'rides'
ORDER BY column_id;""",
    ),
)
