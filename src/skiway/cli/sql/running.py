"""Where statements come from, and where their answers go."""

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
from skiway.cli.sql.session import Answer, Session
from skiway.cli.sql.statements import execute, statements
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
    """What came of a statement that changes something, as it is written."""

    statement: str
    count: int | None
    message: str


def run(call: Call, text: str | None, file: Path | None, *, catalog: str, max_rows: int) -> None:
    """Run what is given; on a terminal where nothing is, ask for it."""
    if text is None and file is None and sys.stdin.isatty():
        with Session(call, catalog=catalog) as session:
            _ask(call, session, max_rows)
        return
    asked = statements(_given(text, file))
    if not asked:
        raise InvalidArgument("there is no statement to run: give one, such as skiway sql 'SELECT 1'")
    with Session(call, catalog=catalog) as session:
        if call.as_json:
            _write_json((execute(session, each) for each in asked), alone=len(asked) == 1)
            return
        for each in asked:
            _write(execute(session, each), max_rows)


def _given(text: str | None, file: Path | None) -> str:
    if text is not None and file is not None:
        raise typer.BadParameter("give statements, or a file of them, not both", param_hint="--file")
    if file is None:
        return sys.stdin.read() if text is None else text
    try:
        return file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise InvalidArgument(f"the file {file} cannot be read: {reason}") from error


# -- the prompt --------------------------------------------------------------------------------------------------------


def _ask(call: Call, session: Session, max_rows: int) -> None:
    with suppress(ImportError):  # where there is one, lines can be edited and come back
        import readline  # noqa: F401
    typer.echo(f"DuckDB over the lake at {call.address}; end statements with ; and the session with exit")
    for text in _typed():
        try:
            for each in statements(text):
                answer = execute(session, each)
                _write_json([answer], alone=True) if call.as_json else _write(answer, max_rows)
        except SkiwayError as error:
            typer.echo(f"error: {error.message}", err=True)
        except KeyboardInterrupt:
            typer.echo("interrupted", err=True)


def _typed() -> Iterator[str]:
    """What is typed, statement by statement; Ctrl-C forgets the present one, Ctrl-D or `exit` ends."""
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


# -- answers -----------------------------------------------------------------------------------------------------------


def _write(answer: Answer, max_rows: int) -> None:
    if answer.rows is not None and len(answer.rows.schema):
        _write_rows(answer.rows, max_rows)
    if answer.said:
        typer.echo(answer.said)


def _write_rows(reader: Rows, max_rows: int) -> None:
    rows, cut = _first_rows(reader, max_rows)
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
    if cut:
        typer.echo(f"only the first {max_rows:,} rows are shown: --max-rows 0 shows all", err=True)


def _first_rows(reader: Rows, limit: int) -> tuple[list[dict[str, Any]], bool]:
    """As many rows as are shown, and whether there are more; the others are not read."""
    rows: list[dict[str, Any]] = []
    for batch in reader:
        rows.extend(_readable(batch).to_pylist())
        if limit and len(rows) > limit:
            return rows[:limit], True
    return rows, False


def _write_json(answers: Iterable[Answer], *, alone: bool) -> None:
    """One document: the answer, or a list of them."""
    if alone:
        for answer in answers:
            _write_one(answer)
        return
    rendering.write_json([_document(answer) for answer in answers])


def _write_one(answer: Answer) -> None:
    if answer.rows is None:
        rendering.write_json(_document(answer))
        return
    before = "["
    for batch in answer.rows:
        for row in _readable(batch).to_pylist():
            typer.echo(f"{before}\n{rendering.json_text(row)}", nl=False)
            before = ","
    typer.echo("[]" if before == "[" else "\n]")


def _document(answer: Answer) -> object:
    if answer.rows is None:
        return Change(answer.statement, answer.count, answer.said)
    return [row for batch in answer.rows for row in _readable(batch).to_pylist()]


def _readable(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with a name for each column, as in SQL several may have the same; geometries as texts."""
    names: list[str] = []
    for name in batch.schema.names:
        number, unique = 1, name
        while unique in names:
            number += 1
            unique = f"{name}_{number}"
        names.append(unique)
    columns = [
        _texts(column) if extension_of(field)[0] == GEOMETRY else column
        for field, column in zip(batch.schema, batch.columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, names)


def _texts(geometries: pa.Array) -> pa.Array:
    """Geometries as WKT, such as `POINT (1 2)`."""
    import shapely

    stored = geometries.storage if isinstance(geometries, pa.ExtensionArray) else geometries
    return pa.array(shapely.to_wkt(shapely.from_wkb(stored.to_pylist())), pa.string())


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _cell(value: object) -> str:
    """A value as SQL would print it: digits as they are, no grouping."""
    match value:
        case None:
            return "NULL"
        case bool():
            return "true" if value else "false"
        case bytes():
            return value.hex()
    return str(value)
