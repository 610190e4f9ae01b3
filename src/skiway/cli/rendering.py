"""Answers on a screen or in a file: aligned rows and facts for people, JSON for programs."""

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
    "json_text",
    "shown",
    "size",
    "write_facts",
    "write_grid",
    "write_json",
    "write_rows",
    "write_table",
]

UNFOLDED: Final = 100_000
UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
UNKNOWN: Final = "-"
GAP: Final = 2
LEAST_COLUMNS: Final = 3
NARROW: Final = 20
"""How far a column of texts may shrink before others are left out."""
STATES: Final = {
    "succeeded": "green",
    "failed": "red",
    "cancelled": "yellow",
    "running": "cyan",
    "queued": "cyan",
    "paused": "yellow",
}


def console(*, stderr: bool = False) -> Console:
    """Where people read: as wide as the terminal, and not folded at all in a pipe or file."""
    stream = sys.stderr if stderr else sys.stdout
    return Console(file=stream, width=None if stream.isatty() else UNFOLDED, highlight=False)


def write_json(value: object) -> None:
    """One JSON document."""
    typer.echo(json_text(value))


def json_text(value: object) -> str:
    """A value as JSON; records are objects, moments are in UTC with their zone."""
    return json.dumps(_plain(value), indent=2, ensure_ascii=False)


def write_rows(records: Sequence[object], columns: Sequence[str], *, nothing: str) -> None:
    """A line for each record, the chosen columns of it; numbers to the right."""
    if not records:
        typer.echo(nothing, err=True)
        return
    values = [[getattr(record, column) for record in records] for column in columns]
    cells = [[shown(value, column) for value in found] for column, found in zip(columns, values, strict=True)]
    numbers = [
        any(isinstance(value, int | float | timedelta) and value is not True and value is not False for value in found)
        for found in values
    ]
    write_grid(
        [
            Cells(_title(column), texts, right=is_number, least=None if is_number or column.endswith("id") else NARROW)
            for column, texts, is_number in zip(columns, cells, numbers, strict=True)
        ]
    )


@dataclasses.dataclass(frozen=True, slots=True)
class Cells:
    """A column of texts; `least` is how narrow it may become on a terminal, None if it must stay whole."""

    title: str
    texts: Sequence[str]
    right: bool = False
    least: int | None = None

    @property
    def width(self) -> int:
        """How much room it wants."""
        return max(len(self.title), *map(len, self.texts))

    @property
    def narrowest(self) -> int:
        """How much room it needs."""
        return self.width if self.least is None else min(self.width, self.least)


def write_grid(columns: Sequence[Cells]) -> None:
    """Columns side by side. On a terminal the last ones are left out if need be: programs get them all in JSON."""
    screen = console()
    kept = list(columns)
    while len(kept) > LEAST_COLUMNS and _room(each.narrowest for each in kept) > screen.width:
        kept.pop()
    widths = _shrunk(kept, screen.width)
    table = Table(
        *(Column(each.title, justify="right" if each.right else "left", no_wrap=True) for each in kept),
        box=None,
        pad_edge=False,
        padding=(0, GAP // 2),
        header_style="bold",
    )
    for row in zip(*(each.texts for each in kept), strict=True):
        cut = [text if len(text) <= width else f"{text[: width - 1]}…" for text, width in zip(row, widths, strict=True)]
        table.add_row(*(Text(text, style=STATES.get(text, "")) for text in cut))
    write_table(screen, table)


def _shrunk(columns: Sequence[Cells], room: int) -> list[int]:
    """The widths of columns; those with most to spare give first."""
    widths = [each.width for each in columns]
    while (excess := _room(widths) - room) > 0:
        spare = [width - each.narrowest for width, each in zip(widths, columns, strict=True)]
        most = max(range(len(spare)), key=spare.__getitem__)
        if not spare[most]:
            break
        widths[most] -= min(excess, spare[most])
    return widths


def _room(widths: Iterable[int]) -> int:
    found = list(widths)
    return sum(found) + GAP * (len(found) - 1)


def write_table(screen: Console, table: Table) -> None:
    """A table as it fits the terminal; elsewhere every line ends with its last character."""
    if screen.is_terminal:
        screen.print(table)
        return
    with screen.capture() as plain:
        screen.print(table)
    typer.echo("\n".join(line.rstrip() for line in plain.get().splitlines()))


def write_facts(record: object) -> None:
    """A line for each fact that is known of a record."""
    facts = {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}  # type: ignore[arg-type]
    known = {name: value for name, value in facts.items() if value not in (None, "", (), {}) and _is_flat(value)}
    width = max((len(_title(name)) for name in known), default=0) + 2
    screen = console()
    for name, value in known.items():
        line = Text.assemble((f"{_title(name):<{width}}", "dim"), (shown(value, name), STATES.get(str(value), "")))
        screen.print(line, soft_wrap=True)


def shown(value: Any, name: str = "") -> str:
    """A value as people read it; what it is called tells what a number counts."""
    match value:
        case None:
            return UNKNOWN
        case bool():
            return "yes" if value else "no"
        case int() if name.endswith("bytes"):
            return size(value)
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
            return ", ".join(f"{key}={shown(each)}" for key, each in value.items())
        case tuple() | list():
            return ", ".join(shown(each) for each in value)
    return " ".join(str(value).split())


def size(count: int) -> str:
    """Bytes in the unit that keeps the number short."""
    number, unit = float(count), 0
    while number >= 1024 and unit < len(UNITS) - 1:
        number, unit = number / 1024, unit + 1
    return f"{number:.1f} {UNITS[unit]}" if unit else f"{count} B"


def _title(name: str) -> str:
    return name.removesuffix("_bytes").replace("_", " ")


def _is_flat(value: object) -> bool:
    """Whether it fits a line: lists of records are for programs, or written as rows."""
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
            return str(value)  # JSON has no word for it
        case None | bool() | int() | float() | str():
            return value
        case Decimal() | UUID():
            return str(value)
        case bytes():
            return value.hex()
        case Iterable():
            return [_plain(each) for each in value]
    return str(value)
