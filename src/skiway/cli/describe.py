"""`skiway tables describe`: a table, and a line for what is known of each of its columns."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import typer
from rich.text import Text

from skiway.cli import rendering
from skiway.cli.column_profiles import ColumnProfile
from skiway.cli.jobs import connector_names
from skiway.cli.table_records import TableRecord
from skiway.errors import NotFound

if TYPE_CHECKING:
    from skiway.cli.command import Call
    from skiway.client.metastore import Metastore, TableStats
    from skiway.model import v1

__all__ = ["described", "profiles"]

MARKS: Final = {"exact": "", "estimate": "≈", "bound": "≤"}
LEGEND: Final = "≈ estimate, ± its bound with 95 % confidence; ≤ at most; ⊂ within these bounds; the rest is exact"
WIDEST_VALUE: Final = 12
MANY_FILES: Final = 1000
DATA_FILE: Final = 1
TITLES: Final = ("column", "type", "nulls", "distinct", "min", "max", "values")
NUMBERS: Final = ("nulls", "distinct")
LEAST: Final = {"column": 10, "type": 8, "min": 10, "max": 10, "values": 16}
"""How far a column shrinks on a narrow terminal, if at all."""


@dataclass(frozen=True, slots=True)
class Description:
    """A table with the profiles of its columns, as it is written."""

    name: str
    format: str
    origin: str
    snapshot_id: int | None
    rows: int | None
    rows_quality: str | None
    rows_profiled: int | None
    data_files: int | None
    size_bytes: int | None
    columns: tuple[ColumnProfile, ...]


def described(call: Call, name: str, at: int | None) -> None:
    """Write what is known of a table and its columns."""
    table = call.lake.tables.get(name, at=at)
    if at is not None:
        call.lake.snapshots.get(table, at)  # one that is misspelled is no snapshot without statistics
    record = TableRecord.of(table, connector_names(call.lake))
    stats = call.lake.statistics.find(table, at)
    found = Description(
        record.name,
        record.format,
        record.origin,
        stats.snapshot_id if stats else at,
        stats.row_count if stats else None,
        stats.properties.get("quality.row_count") if stats else None,
        _number(stats, "rows.profiled"),
        stats.data_file_count if stats else None,
        stats.total_size_bytes if stats else None,
        tuple(profiles(call.lake, record, at)),
    )
    if call.as_json:
        rendering.write_json(found)
        return
    rendering.write_facts(dataclasses.replace(found, rows_quality=None, rows_profiled=None))
    typer.echo()
    _write_columns(found)


def profiles(lake: Metastore, table: TableRecord, at: int | None) -> Iterator[ColumnProfile]:
    """What is known of a table's columns, in the order of its schema; those within structs come after them.

    Where nothing was profiled, files tell bounds.
    """
    types = {column.name: column.type for column in table.columns}
    order = {name: number for number, name in enumerate(types)}
    try:
        stored = list(lake.statistics.columns(table.name, at))
        parts = {} if stored else _of_files(lake, table, at)
    except NotFound as error:
        if error.key != "snapshot.none":
            raise
        return
    for each in sorted(stored, key=lambda one: order.get(one.column_name, len(order))):
        yield ColumnProfile.of(each, types.get(each.column_name, each.logical_type.lower()))
    for name in sorted(parts, key=lambda one: order.get(one, len(order))):
        yield ColumnProfile.of_files(name, types.get(name, parts[name][0].logical_type.lower()), parts[name])


def _of_files(lake: Metastore, table: TableRecord, at: int | None) -> dict[str, list[v1.ColumnStats]]:
    """The statistics of files by column; of few files only, as all of them travel."""
    if (table.data_files or 0) > MANY_FILES:
        return {}
    parts: dict[str, list[v1.ColumnStats]] = {}
    for file in lake.statistics.files(table.name, at):
        for column in file.columns if file.file_content <= DATA_FILE else ():
            parts.setdefault(column.column_name, []).append(column)
    return parts


def _number(stats: TableStats | None, key: str) -> int | None:
    return int(stats.properties[key]) if stats and key in stats.properties else None


def _write_columns(table: Description) -> None:
    if not table.columns:
        typer.echo(f"its columns are not profiled yet: {_profiling(table)} does that", err=True)
        return
    rows = [_cells(column) for column in table.columns]
    rendering.write_grid(
        [
            rendering.Cells(title, texts, right=title in NUMBERS, least=LEAST.get(title))
            for title, texts in zip(TITLES, zip(*rows, strict=True), strict=True)
        ]
    )
    typer.echo()
    screen = rendering.console()
    for line in (_coverage(table), LEGEND):
        screen.print(Text(line, style="dim"))


def _cells(column: ColumnProfile) -> Sequence[str]:
    return (
        column.name,
        column.type,
        _nulls(column),
        _distinct(column),
        _bound(column, "min"),
        _bound(column, "max"),
        column.errors or column.picture() or _top(column),
    )


def _nulls(column: ColumnProfile) -> str:
    share = column.null_share
    if share is None:
        return rendering.UNKNOWN
    text = "0 %" if share == 0 else f"{share:.1%}".replace("%", " %") if share >= 0.001 else "<0.1 %"
    return MARKS.get(column.quality.get("null_count", ""), "") + text


def _distinct(column: ColumnProfile) -> str:
    found = column.distinct
    if found is None:
        return rendering.UNKNOWN
    mark = MARKS.get(column.quality.get("ndv", ""), "")
    if found.lower is None or found.upper is None or not found.value:
        return f"{mark}{found.value:,}"
    off = max(found.value - found.lower, found.upper - found.value) / found.value
    return f"{mark}{found.value:,} ±{off:.0%}".replace("%", " %")


def _bound(column: ColumnProfile, which: str) -> str:
    value = column.min if which == "min" else column.max
    if value is None:
        return rendering.UNKNOWN
    mark = "⊂" if column.quality.get(which) == "bound" else ""
    return mark + _short(value)


def _short(value: str) -> str:
    """A value in few characters: long fractions are rounded, long texts cut; programs get them whole."""
    one_line = " ".join(value.split())
    if len(one_line) <= WIDEST_VALUE:
        return one_line
    try:
        return f"{float(one_line):.6g}"
    except ValueError:
        return f"{one_line[: WIDEST_VALUE - 1]}…"


def _top(column: ColumnProfile) -> str:
    """The most frequent values with their share of all."""
    mark = MARKS.get(column.quality.get("top_values", ""), "")
    told = [
        f"{_short('NULL' if each.value is None else each.value)} {mark}{each.count / max(column.values, 1):.0%}"
        for each in column.top_values[:4]
    ]
    return ", ".join(told).replace("%", " %")


def _profiling(table: Description) -> str:
    if table.origin == "managed":
        return f"skiway stats profile {table.name} --watch"
    return f"skiway connectors sync {table.origin} --watch"


def _coverage(table: Description) -> str:
    if table.rows is None or table.rows_profiled is None:
        return f"it was not profiled, these are the bounds that its files tell: {_profiling(table)} finds out more"
    if table.rows_profiled >= table.rows:
        return f"all {table.rows:,} rows were profiled"
    return f"{table.rows_profiled:,} of {table.rows:,} rows were profiled"
