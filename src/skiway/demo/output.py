"""The text that the demo prints: progress, the tables of the lake, how to attach it, and example queries with their results.

The server runs the queries, so the demo needs no DuckDB with the airport extension. The result is the same as in a DuckDB that has
attached the lake.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from skiway import __version__
from skiway.airport.wire.duckdb_sql import attach_statement
from skiway.client import AirportClient
from skiway.demo.build import CATALOG, Step, Watcher
from skiway.presentation.results import first_rows

_MOST_ROWS: Final = 1000


@dataclass(frozen=True, slots=True)
class Query:
    """An example query, with a title and what it demonstrates."""

    title: str
    shows: str
    sql: str


def contents(db: AirportClient) -> pa.Table:
    """One row per table of the lake."""
    return answer(db, _CONTENTS)


def answer(db: AirportClient, sql: str) -> pa.Table:
    """The result of a statement."""
    return first_rows(db, sql, _MOST_ROWS)


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


PLAIN_WIDTH: Final = 200
"""The width without a terminal: wide enough to wrap nothing."""

INDENT: Final = 3


class Poster:
    """Prints to a terminal, or as plain text to anything else."""

    def __init__(self, console: Console | None = None) -> None:
        default = console or Console(highlight=False, emoji=False)
        self._console = (
            default if default.is_terminal or console else Console(width=PLAIN_WIDTH, highlight=False, emoji=False)
        )

    def greet(self) -> None:
        """Print the headline."""
        self._console.print(
            Text.assemble(("skiway", "bold cyan"), f" {__version__} demo", (" · one winter of four ski resorts", "dim"))
        )

    @contextmanager
    def making(self) -> Iterator[Watcher]:
        """Show the progress of the build during the block: bars on a terminal, lines otherwise."""
        if not self._console.is_terminal:
            yield _Lines(self._console)
            return
        columns = (
            SpinnerColumn(finished_text="[green]✓[/]"),
            TextColumn("{task.fields[step]:<10}"),
            BarColumn(bar_width=18),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("[dim]{task.description}"),
        )
        with Progress(*columns, console=self._console) as progress:
            yield _Bars(progress)

    def lake(self, tables: pa.Table) -> None:
        """Print the tables of the lake."""
        self._console.print(_table(tables))

    def invitation(self, addresses: Mapping[str, str], home: Path) -> None:
        """Print example queries, and at the end the addresses for a browser and for DuckDB, and three things to try."""
        for number, query in enumerate(QUERIES, start=1):
            self._question(number, query)
        self._heading("More")
        facts = {
            "Iceberg REST": f"{addresses['http']}/iceberg  (warehouse '{CATALOG}')",
            "metastore": addresses["rpc"],
            "directory": str(home),
        }
        self._facts(facts)
        self._heading("Open the explorer in a browser, or attach the lake from DuckDB; stop with Ctrl-C")
        self._statement(addresses["http"])
        self._statement(
            "INSTALL airport FROM community; LOAD airport;\n" + attach_statement(CATALOG, addresses["airport"])
        )
        self._heading("Then try three things")
        self._facts(
            {
                "search": f"{addresses['http']}/search?q=snow",
                "geometry": "SELECT trail, ST_AsText(route) FROM lake.maps.trails;",
                "write": "UPDATE lake.planning.crews SET note = 'icy' WHERE groomers > 6;",
            }
        )

    def _facts(self, facts: Mapping[str, str]) -> None:
        for name, fact in facts.items():
            self._console.print(Text.assemble(" " * INDENT, (f"{name:<14}", "dim"), fact), soft_wrap=True)

    def answered(self, number: int, query: Query, rows: pa.Table) -> None:
        """Print a query and its result."""
        self._question(number, query)
        self._console.print(_table(rows))

    def goodbye(self, home: Path) -> None:
        """Print what to do next."""
        self._console.print()
        self._console.print(
            Text(f"Run the same command without --once to serve the lake. Its files are in {home}.", style="dim"),
            soft_wrap=True,
        )

    def _question(self, number: int, query: Query) -> None:
        self._heading(f"{number}  {query.title}", query.shows)
        self._statement(query.sql)

    def _heading(self, title: str, more: str = "") -> None:
        self._console.print()
        self._console.print(Text(title, style="bold"))
        if more:
            self._console.print(Text(" " * INDENT + more, style="dim"), soft_wrap=True)

    def _statement(self, sql: str) -> None:
        """Print a statement so that it can be copied: unwrapped, without decoration."""
        for line in sql.splitlines():
            self._console.print(Text(" " * INDENT + line, style="cyan"), soft_wrap=True)


class _Bars:
    """Shows a progress bar for each step."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._tasks: dict[str, TaskID] = {}

    def begins(self, step: Step, part: str) -> None:
        if step.name not in self._tasks:
            self._tasks[step.name] = self._progress.add_task("", total=step.parts, step=step.name)
        self._progress.update(self._tasks[step.name], description=part)

    def ends(self, step: Step, part: str, found: str) -> None:  # noqa: ARG002
        task = self._tasks[step.name]
        self._progress.advance(task)
        if self._progress.tasks[task].finished:
            self._progress.update(task, description=step.about)


class _Lines:
    """Prints a line for each finished part."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def begins(self, step: Step, part: str) -> None:
        """Print nothing yet."""

    def ends(self, step: Step, part: str, found: str) -> None:
        self._console.print(Text(f"{step.name:<12}{part:<20}{found}"), soft_wrap=True)


def _table(rows: pa.Table) -> Padding:
    """The rows as a table with a header; nulls are blank."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    for field in rows.schema:
        table.add_column(field.name, justify="right" if _is_number(field.type) else "left", overflow="fold")
    for row in rows.to_pylist():
        table.add_row(*(Text(_text(value)) for value in row.values()))
    return Padding(table, (1, 0, 0, INDENT), expand=False)


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return f"{value:,.10g}" if isinstance(value, float) else str(value)


def _is_number(of: pa.DataType) -> bool:
    return bool(pa.types.is_integer(of) or pa.types.is_floating(of) or pa.types.is_decimal(of))
