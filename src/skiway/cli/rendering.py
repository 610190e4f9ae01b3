"""Output of commands: aligned tables and fields for people, JSON for programs."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import typer
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

__all__ = [
    "UNKNOWN",
    "Cells",
    "console",
    "format_size",
    "format_value",
    "json_text",
    "write_columns",
    "write_fields",
    "write_json",
    "write_rows",
    "write_table",
]

UNFOLDED: Final = 100_000
UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
UNKNOWN: Final = "-"
GAP: Final = 2
MIN_COLUMNS: Final = 3
MIN_TEXT_WIDTH: Final = 20
"""The width to which a column of text may shrink before other columns are left out."""
STATES: Final = {
    "succeeded": "green",
    "failed": "red",
    "cancelled": "yellow",
    "running": "cyan",
    "queued": "cyan",
    "paused": "yellow",
}


def console(*, stderr: bool = False) -> Console:
    """Return a console as wide as the terminal; in a pipe or file, lines are not wrapped."""
    stream = sys.stderr if stderr else sys.stdout
    return Console(file=stream, width=None if stream.isatty() else UNFOLDED, highlight=False)


def write_json(value: object) -> None:
    """Print a value as one JSON document."""
    typer.echo(json_text(value))


def json_text(value: object) -> str:
    """Return a value as JSON; records become objects, times are in UTC."""
    return json.dumps(_plain(value), indent=2, ensure_ascii=False)


def write_rows(records: Sequence[object], columns: Sequence[str], *, empty: str) -> None:
    """Print the given columns of each record as a line; `empty` is the message for no records."""
    if not records:
        typer.echo(empty, err=True)
        return
    values = [[getattr(record, column) for record in records] for column in columns]
    cells = [[format_value(value, column) for value in found] for column, found in zip(columns, values, strict=True)]
    numbers = [
        any(isinstance(value, int | float | timedelta) and value is not True and value is not False for value in found)
        for found in values
    ]
    write_columns(
        [
            Cells(
                _title(column),
                texts,
                right=is_number,
                min_width=None if is_number or column.endswith("id") else MIN_TEXT_WIDTH,
            )
            for column, texts, is_number in zip(columns, cells, numbers, strict=True)
        ]
    )


@dataclasses.dataclass(frozen=True, slots=True)
class Cells:
    """A column of text. `min_width` is the width to which it may shrink on a terminal; None if it must not shrink."""

    title: str
    texts: Sequence[str]
    right: bool = False
    min_width: int | None = None

    @property
    def width(self) -> int:
        """The width without truncation."""
        return max(len(self.title), *map(len, self.texts))

    @property
    def narrowest(self) -> int:
        """The least width."""
        return self.width if self.min_width is None else min(self.width, self.min_width)


def write_columns(columns: Sequence[Cells]) -> None:
    """Print columns side by side. On a narrow terminal, text is truncated and the last columns are left out."""
    screen = console()
    visible = list(columns)
    while len(visible) > MIN_COLUMNS and _total_width(each.narrowest for each in visible) > screen.width:
        visible.pop()
    widths = _fit_widths(visible, screen.width)
    table = Table(
        *(Column(each.title, justify="right" if each.right else "left", no_wrap=True) for each in visible),
        box=None,
        pad_edge=False,
        padding=(0, GAP // 2),
        header_style="bold",
    )
    for row in zip(*(each.texts for each in visible), strict=True):
        cells = [
            text if len(text) <= width else f"{text[: width - 1]}…" for text, width in zip(row, widths, strict=True)
        ]
        table.add_row(*(Text(text, style=STATES.get(text, "")) for text in cells))
    write_table(screen, table)


def _fit_widths(columns: Sequence[Cells], available: int) -> list[int]:
    """Return the widths of columns that fit; those with the most spare width shrink first."""
    widths = [each.width for each in columns]
    while (excess := _total_width(widths) - available) > 0:
        spare = [width - each.narrowest for width, each in zip(widths, columns, strict=True)]
        widest = max(range(len(spare)), key=spare.__getitem__)
        if not spare[widest]:
            break
        widths[widest] -= min(excess, spare[widest])
    return widths


def _total_width(widths: Iterable[int]) -> int:
    found = list(widths)
    return sum(found) + GAP * (len(found) - 1)


def write_table(screen: Console, table: Table) -> None:
    """Print a table; in a pipe or file, without trailing blanks."""
    if screen.is_terminal:
        screen.print(table)
        return
    with screen.capture() as plain:
        screen.print(table)
    typer.echo("\n".join(line.rstrip() for line in plain.get().splitlines()))


def write_fields(record: object) -> None:
    """Print one line for each field of a record that has a value."""
    fields = {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}  # type: ignore[arg-type]
    known = {name: value for name, value in fields.items() if value not in (None, "", (), {}) and _is_flat(value)}
    width = max((len(_title(name)) for name in known), default=0) + 2
    screen = console()
    for name, value in known.items():
        line = Text.assemble(
            (f"{_title(name):<{width}}", "dim"), (format_value(value, name), STATES.get(str(value), ""))
        )
        screen.print(line, soft_wrap=True)


def format_value(value: Any, name: str = "") -> str:
    """Format a value for people; the name of its field tells ids and sizes in bytes from other numbers."""
    match value:
        case None:
            return UNKNOWN
        case bool():
            return "yes" if value else "no"
        case int() if name.endswith("bytes"):
            return format_size(value)
        case int() if name.endswith("id"):
            return str(value)
        case int():
            return f"{value:,}"
        case float():
            return f"{value:g}"
        case datetime():
            return f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S}"
        case timedelta():
            return f"{value.total_seconds():.1f} s"
        case Mapping():
            return ", ".join(f"{key}={format_value(each)}" for key, each in value.items())
        case tuple() | list():
            return ", ".join(format_value(each) for each in value)
    return " ".join(str(value).split())


def format_size(count: int) -> str:
    """Format a number of bytes, such as `1.5 MiB`."""
    number, unit = float(count), 0
    while number >= 1024 and unit < len(UNITS) - 1:
        number, unit = number / 1024, unit + 1
    return f"{number:.1f} {UNITS[unit]}" if unit else f"{count} B"


def _title(name: str) -> str:
    return name.removesuffix("_bytes").replace("_", " ")


def _is_flat(value: object) -> bool:
    """Whether a value fits on a line; a list of records does not."""
    return not (isinstance(value, Sequence) and any(dataclasses.is_dataclass(each) for each in value))


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    match value:
        case datetime() if value.tzinfo is not None:
            return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
        case datetime() | date() | time():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case Mapping():
            return {str(key): _plain(each) for key, each in value.items()}
        case float() if value != value or value in (float("inf"), float("-inf")):
            return str(value)  # JSON has no such numbers
        case None | bool() | int() | float() | str():
            return value
        case Decimal() | UUID():
            return str(value)
        case bytes():
            return value.hex()
        case Iterable():
            return [_plain(each) for each in value]
    return str(value)
