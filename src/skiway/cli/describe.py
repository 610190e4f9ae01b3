"""`skiway tables describe`: a table, and a line with the statistics of each column."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import typer

from skiway.cli import rendering
from skiway.cli.jobs import connector_names
from skiway.cli.output import Cells, write_columns
from skiway.presentation.sizes import AtMost, row_count
from skiway.presentation.table_records import ColumnProfile, TableRecord, column_profiles

if TYPE_CHECKING:
    from skiway.cli.command import Call
    from skiway.client.metastore import TableStats

__all__ = ["print_description"]

MARKS: Final = {"exact": "", "estimate": "≈", "bound": "≤", "sample": "~"}
LEGEND: Final = "≈ estimate, ± its error with 95 % confidence; ≤ upper bound; ⊂ within these bounds; others are exact"
SAMPLE_LEGEND: Final = (
    "~ from the sample; bounds, and ± of distinct values, hold for the whole table with 95 % confidence"
)
MAX_VALUE_WIDTH: Final = 12
TITLES: Final = ("column", "type", "nulls", "distinct", "min", "max", "values")
NUMBERS: Final = ("nulls", "distinct")
MIN_WIDTHS: Final = {"column": 10, "type": 8, "min": 10, "max": 10, "values": 16}
"""The minimum width of columns that shrink on a narrow terminal."""


@dataclass(frozen=True, slots=True)
class Description:
    """A table and the statistics of its columns, in the output."""

    name: str
    format: str
    origin: str
    snapshot_id: int | None
    rows: int | None
    rows_quality: str | None
    rows_profiled: int | None
    sample_files: int | None
    data_files: int | None
    size_bytes: int | None
    columns: tuple[ColumnProfile, ...]
    problem: str | None = None
    files_not_profiled: int | None = None


def print_description(call: Call, name: str, at: int | None) -> None:
    """Print a table and the statistics of its columns."""
    table = call.lake.tables.get(name, at=at)
    if at is not None:
        call.lake.snapshots.get(
            table, at
        )  # raises NotFound, so that a wrong id is not mistaken for a snapshot without statistics
    record = TableRecord.of(table, connector_names(call.lake))
    stats = call.lake.statistics.find(table, at)
    description = Description(
        record.name,
        record.format,
        record.origin,
        stats.snapshot_id if stats else at,
        row_count(stats.row_count, is_bound=stats.row_count_is_bound) if stats else None,
        stats.properties.get("quality.row_count") if stats else None,
        _number(stats, "rows.profiled"),
        _number(stats, "files.sample"),
        stats.data_file_count if stats else None,
        stats.total_size_bytes if stats else None,
        tuple(column_profiles(call.lake, record, at)),
        record.problem,
        _number(stats, "files.other_formats"),
    )
    if not call.is_for_people:
        call.print_record(description)
        return
    hidden: dict[str, Any] = dict.fromkeys(("rows_quality", "rows_profiled", "sample_files", "files_not_profiled"))
    rendering.write_fields(dataclasses.replace(description, **hidden))
    typer.echo()
    _write_columns(description)


def _number(stats: TableStats | None, key: str) -> int | None:
    return int(stats.properties[key]) if stats and key in stats.properties else None


def _write_columns(table: Description) -> None:
    if not table.columns and table.problem:
        typer.echo(f"the table cannot be read: {table.problem}", err=True)
        return
    if not table.columns and table.files_not_profiled:
        typer.echo(_other_formats(table), err=True)
        return
    if not table.columns:
        typer.echo(f"the columns are not profiled yet; profile them with: {_profile_command(table)}", err=True)
        return
    rows = [_cells(column) for column in table.columns]
    write_columns(
        [
            Cells(title, texts, right=title in NUMBERS, min_width=MIN_WIDTHS.get(title))
            for title, texts in zip(TITLES, zip(*rows, strict=True), strict=True)
        ]
    )
    typer.echo()
    more = [_other_formats(table)] if table.files_not_profiled else []
    for line in (_coverage(table), *more, LEGEND, *([SAMPLE_LEGEND] if table.sample_files else [])):
        rendering.write_note(line)


def _cells(column: ColumnProfile) -> Sequence[str]:
    return (
        column.name,
        column.type,
        _nulls(column),
        _distinct(column),
        _bound(column, "min"),
        _bound(column, "max"),
        column.errors or column.histogram() or _top_values(column),
    )


def _nulls(column: ColumnProfile) -> str:
    share = column.null_share
    if share is None:
        return rendering.UNKNOWN
    text = "0 %" if share == 0 else f"{share:.1%}".replace("%", " %") if share >= 0.001 else "<0.1 %"
    return MARKS.get(column.quality.get("null_count", ""), "") + text


def _distinct(column: ColumnProfile) -> str:
    distinct = column.distinct
    if distinct is None:
        return rendering.UNKNOWN
    mark = MARKS.get(column.quality.get("ndv", ""), "")
    if distinct.lower is None or distinct.upper is None or not distinct.value:
        return f"{mark}{distinct.value:,}"
    error = max(distinct.value - distinct.lower, distinct.upper - distinct.value) / distinct.value
    return f"{mark}{distinct.value:,} ±{error:.0%}".replace("%", " %")


def _bound(column: ColumnProfile, which: str) -> str:
    value = column.min if which == "min" else column.max
    if value is None:
        return rendering.UNKNOWN
    mark = "⊂" if column.quality.get(which) == "bound" else ""
    return mark + _short(value)


def _short(value: str) -> str:
    """Shorten a value: round long fractions and truncate long text."""
    one_line = " ".join(value.split())
    if len(one_line) <= MAX_VALUE_WIDTH:
        return one_line
    try:
        return f"{float(one_line):.6g}"
    except ValueError:
        return f"{one_line[: MAX_VALUE_WIDTH - 1]}…"


def _top_values(column: ColumnProfile) -> str:
    """The most frequent values with their shares."""
    mark = MARKS.get(column.quality.get("top_values", ""), "")
    shares = [
        f"{_short('NULL' if each.value is None else each.value)} {mark}{each.count / max(column.values, 1):.0%}"
        for each in column.top_values[:4]
    ]
    return ", ".join(shares).replace("%", " %")


def _profile_command(table: Description) -> str:
    if table.origin == "managed":
        return f"skiway stats profile {table.name} --watch"
    return f"skiway connectors sync {table.origin} --watch"


def _other_formats(table: Description) -> str:
    return (
        f"{table.files_not_profiled:,} of {table.data_files:,} data files are Avro or ORC, which are read, but not profiled: rewrite "
        "them as Parquet for statistics of all rows"
    )


def _coverage(table: Description) -> str:
    if table.rows is None or table.rows_profiled is None:
        return f"the table was not profiled; the bounds are from its files. Profile it with: {_profile_command(table)}"
    if table.sample_files and table.data_files:
        sample = f"a sample of {table.sample_files:,} of {table.data_files:,} files"
        return f"{sample} was profiled, with {table.rows_profiled:,} of {table.rows:,} rows"
    if table.rows_profiled >= table.rows:
        return "all rows were profiled" if isinstance(table.rows, AtMost) else f"all {table.rows:,} rows were profiled"
    return f"{table.rows_profiled:,} of {table.rows:,} rows were profiled"
