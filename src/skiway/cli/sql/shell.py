"""The SQL shell: read statements from the command line, a file, stdin or a prompt, and print their results."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import typer
from rich.table import Column, Table
from rich.text import Text

from skiway.airport.wire.duckdb_sql import extension_of
from skiway.cli import rendering
from skiway.cli.sql.session import Result, Session
from skiway.cli.sql.statements import execute, split_statements
from skiway.client import Rows
from skiway.errors import InvalidArgument, SkiwayError

if TYPE_CHECKING:
    from skiway.cli.command import Call

__all__ = ["run"]

PROMPT = "skiway> "
MORE = "   ...> "
GEOMETRY = "geoarrow.wkb"
QUITS = ("exit", "quit", "\\q", ".exit", ".quit")


@dataclass(frozen=True, slots=True)
class Change:
    """The result of a statement that changes something, in the output."""

    statement: str
    count: int | None
    message: str


def run(call: Call, text: str | None, file: Path | None, *, catalog: str, max_rows: int) -> None:
    """Run the given statements; without any on a terminal, open a prompt."""
    if text is None and file is None and sys.stdin.isatty():
        with Session(call, catalog=catalog) as session:
            _prompt(call, session, max_rows)
        return
    given = split_statements(_read_input(text, file))
    if not given:
        raise InvalidArgument("there is no statement to run: give one, such as skiway sql 'SELECT 1'")
    with Session(call, catalog=catalog) as session:
        if call.as_json:
            _write_json((execute(session, each) for each in given), alone=len(given) == 1)
            return
        for each in given:
            _write(execute(session, each), max_rows)


def _read_input(text: str | None, file: Path | None) -> str:
    if text is not None and file is not None:
        raise typer.BadParameter("give statements or a file, not both", param_hint="--file")
    if file is None:
        return sys.stdin.read() if text is None else text
    try:
        return file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise InvalidArgument(f"cannot read the file {file}: {reason}") from error


# -- the prompt --------------------------------------------------------------------------------------------------------


def _prompt(call: Call, session: Session, max_rows: int) -> None:
    with suppress(ImportError):  # enables line editing and history
        import readline  # noqa: F401
    typer.echo(f"DuckDB on the lake at {call.address}. End statements with ; and type exit to quit.")
    for text in _read_statements():
        try:
            for each in split_statements(text):
                result = execute(session, each)
                _write_json([result], alone=True) if call.as_json else _write(result, max_rows)
        except SkiwayError as error:
            typer.echo(f"error: {error.message}", err=True)
        except KeyboardInterrupt:
            typer.echo("interrupted", err=True)


def _read_statements() -> Iterator[str]:
    """Yield what the user types up to each semicolon; Ctrl-C discards the current lines, Ctrl-D or `exit` ends."""
    lines: list[str] = []
    while True:
        try:
            line = input(MORE if lines else PROMPT)
        except EOFError:
            typer.echo()
            return
        except KeyboardInterrupt:
            typer.echo()
            lines.clear()
            continue
        if not lines and line.strip().rstrip(";").lower() in QUITS:
            return
        if line.strip() or lines:
            lines.append(line)
        if line.rstrip().endswith(";"):
            yield "\n".join(lines)
            lines.clear()


# -- results -----------------------------------------------------------------------------------------------------------


def _write(result: Result, max_rows: int) -> None:
    if result.rows is not None and len(result.rows.schema):
        _write_rows(result.rows, max_rows)
    if result.message:
        typer.echo(result.message)


def _write_rows(reader: Rows, max_rows: int) -> None:
    rows, truncated = _first_rows(reader, max_rows)
    table = Table(
        *(
            Column(Text(field.name), justify="right" if _is_number(field.type) else "left", overflow="fold")
            for field in reader.schema
        ),
        box=None,
        pad_edge=False,
        padding=(0, 1),
        header_style="bold",
    )
    for row in rows:
        table.add_row(*(Text(_cell(value)) for value in row.values()))
    rendering.write_table(rendering.console(), table)
    if truncated:
        typer.echo(f"only the first {max_rows:,} rows are shown; --max-rows 0 shows all", err=True)


def _first_rows(reader: Rows, limit: int) -> tuple[list[dict[str, Any]], bool]:
    """Return the rows to show, and whether there are more; further batches are not read."""
    rows: list[dict[str, Any]] = []
    for batch in reader:
        rows.extend(_readable(batch).to_pylist())
        if limit and len(rows) > limit:
            return rows[:limit], True
    return rows, False


def _write_json(results: Iterable[Result], *, alone: bool) -> None:
    """Print one JSON document: the result, or a list of results."""
    if alone:
        for result in results:
            _write_one(result)
        return
    rendering.write_json([_document(result) for result in results])


def _write_one(result: Result) -> None:
    if result.rows is None:
        rendering.write_json(_document(result))
        return
    before = "["
    for batch in result.rows:
        for row in _readable(batch).to_pylist():
            typer.echo(f"{before}\n{rendering.json_text(row)}", nl=False)
            before = ","
    typer.echo("[]" if before == "[" else "\n]")


def _document(result: Result) -> object:
    if result.rows is None:
        return Change(result.statement, result.count, result.message)
    return [row for batch in result.rows for row in _readable(batch).to_pylist()]


def _readable(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch with unique column names, which SQL does not guarantee, and with geometries as text."""
    names: list[str] = []
    for name in batch.schema.names:
        number, unique = 1, name
        while unique in names:
            number += 1
            unique = f"{name}_{number}"
        names.append(unique)
    columns = [
        _geometry_text(column) if extension_of(field)[0] == GEOMETRY else column
        for field, column in zip(batch.schema, batch.columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, names)


def _geometry_text(geometries: pa.Array) -> pa.Array:
    """Geometries as WKT, such as `POINT (1 2)`."""
    import shapely

    stored = geometries.storage if isinstance(geometries, pa.ExtensionArray) else geometries
    return pa.array(shapely.to_wkt(shapely.from_wkb(stored.to_pylist())), pa.string())


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _cell(value: object) -> str:
    """Format a value as SQL shells do, without thousands separators."""
    match value:
        case None:
            return "NULL"
        case bool():
            return "true" if value else "false"
        case bytes():
            return value.hex()
    return str(value)
