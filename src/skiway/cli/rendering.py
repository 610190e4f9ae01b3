"""Records in the output, which are dataclasses or mappings: for people as tables, and for programs as CSV, JSON, NDJSON or
YAML.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from itertools import chain
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import typer

from skiway.cli.output import (
    Column,
    Output,
    has_colors,
    shown_symbols,
    write_documents,
    write_texts,
    yaml_lines,
)
from skiway.presentation.tables import format_size

if TYPE_CHECKING:
    from rich.console import Console


UNFOLDED: Final = 100_000
UNKNOWN: Final = "-"
MIN_TEXT_WIDTH: Final = 20
"""The width to which a column of text may shrink before other columns are left out."""
STATES: Final = {
    "succeeded": "green",
    "partial": "yellow",
    "failed": "red",
    "cancelled": "yellow",
    "running": "cyan",
    "queued": "cyan",
    "paused": "yellow",
}
DIM: Final = "\x1b[2m"
RESET: Final = "\x1b[0m"
COLORS: Final = {"red": "\x1b[31m", "green": "\x1b[32m", "yellow": "\x1b[33m", "cyan": "\x1b[36m"}
STYLES: Final = {state: COLORS[color] for state, color in STATES.items()}


def console(*, stderr: bool = False) -> Console:
    """Return a console as wide as the terminal; in a pipe or file, lines are not wrapped."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(file=stream, width=None if stream.isatty() else UNFOLDED, highlight=False)


def write_records(output: Output, records: Iterable[object], columns: Sequence[str], *, empty: str) -> None:
    """Write records: the given columns for people, or all fields for programs. `empty` is the message for no records."""
    match output:
        case Output.table:
            write_rows(list(records), columns, empty=empty)
        case Output.markdown:
            cells = ([format_value(fields_of(record)[name], name) for name in columns] for record in records)
            write_texts(output, [Column(_title(name)) for name in columns], ([row] for row in cells))
        case Output.csv:
            _write_csv(records)
        case _:
            write_documents(output, map(json_text, records))


def write_record(output: Output, record: object) -> None:
    """Write one record: a line or a row for each field for people, or one document for programs."""
    match output:
        case Output.table:
            write_fields(record)
        case Output.markdown:
            rows = [[_title(name), text] for name, text in _shown_fields(record)]
            write_texts(output, [Column("field"), Column("value")], [rows])
        case Output.csv:
            _write_csv([record])
        case Output.yaml:
            typer.echo("\n".join(yaml_lines(_plain(record))))
        case Output.ndjson:
            typer.echo(json.dumps(_plain(record), ensure_ascii=False))
        case Output.json:
            typer.echo(json_text(record))


def _write_csv(records: Iterable[object]) -> None:
    """Write all fields. Lists, mappings and records are in JSON."""

    def cell(value: Any) -> str | None:
        match value:
            case None | str():
                return value
            case Mapping() | list():
                return json.dumps(value, ensure_ascii=False)
        return json.dumps(value)

    plain = map(_plain, records)
    first = next(plain, None)
    if first is not None:
        rows = ([cell(value) for value in record.values()] for record in chain([first], plain))
        write_texts(Output.csv, [Column(name) for name in first], ([row] for row in rows))


def json_text(value: object) -> str:
    """Return a value as JSON; records become objects, times are in UTC."""
    return json.dumps(_plain(value), indent=2, ensure_ascii=False)


def write_rows(records: Sequence[object], columns: Sequence[str], *, empty: str) -> None:
    """Print the given columns of each record as a line; `empty` is the message for no records."""
    if not records:
        typer.echo(empty, err=True)
        return
    fields = list(map(fields_of, records))
    shown = [_column(name, [record[name] for record in fields]) for name in columns]
    rows = [[format_value(record[name], name) for name in columns] for record in fields]
    write_texts(Output.table, shown, [rows], styles=STYLES)


def _column(name: str, values: Sequence[Any]) -> Column:
    is_number = any(isinstance(value, int | float | timedelta) and not isinstance(value, bool) for value in values)
    return Column(_title(name), is_number, None if is_number or name.endswith("id") else MIN_TEXT_WIDTH)


def write_fields(record: object) -> None:
    """Print one line for each field of a record that has a value."""
    shown = list(_shown_fields(record))
    room = max((len(_title(name)) for name, _ in shown), default=0) + 2
    colored = sys.stdout.isatty() and has_colors()
    for name, text in shown:
        title = f"{_title(name):<{room}}"
        style = STYLES.get(text, "")
        line = shown_symbols(text)
        typer.echo(f"{DIM}{title}{RESET}{style}{line}{RESET}" if colored else f"{title}{line}")


def write_note(text: str) -> None:
    """Print a remark below a result."""
    shown = shown_symbols(text)
    typer.echo(f"{DIM}{shown}{RESET}" if sys.stdout.isatty() and has_colors() else shown)


def _shown_fields(record: object) -> Iterator[tuple[str, str]]:
    """Yield the names and texts of fields that have a value and fit on a line."""
    for name, value in fields_of(record).items():
        if value not in (None, "", (), {}) and _is_flat(value):
            yield name, format_value(value, name)


def fields_of(record: Any) -> Mapping[str, Any]:
    """The fields of a record by name."""
    if isinstance(record, Mapping):
        return record
    return {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}


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


def _title(name: str) -> str:
    return name.removesuffix("_bytes").replace("_", " ")


def _is_flat(value: object) -> bool:
    """Whether a value fits on a line; a list of records does not."""
    if isinstance(value, str) or not isinstance(value, Sequence):
        return True
    return not any(isinstance(item, Mapping) or dataclasses.is_dataclass(item) for item in value)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _plain(fields_of(value))
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
