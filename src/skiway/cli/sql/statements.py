"""Statements, one after the other: DuckDB runs those that read, the server those that change something."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import duckdb
import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from skiway.cli.sql import changes, definitions
from skiway.cli.sql.scans import spoken
from skiway.cli.sql.session import Answer, Session, first_paragraph
from skiway.client.metastore.names import segments
from skiway.errors import InvalidArgument, Unsupported

__all__ = ["create_table", "execute", "statements"]


READS: Final = (exp.Query, exp.Describe, exp.Summarize, exp.Copy, exp.Pivot)


def statements(text: str) -> list[str]:
    """The single statements of a text, as they were written."""
    try:
        found: list[Any] = duckdb.extract_statements(text)
    except duckdb.Error as error:
        raise InvalidArgument(first_paragraph(error)) from error
    return [each.query.strip().rstrip(";").strip() for each in found]


def _parsed(text: str) -> exp.Expr:
    try:
        found = sqlglot.parse(text, dialect="duckdb")
    except SqlglotError as error:
        raise InvalidArgument(f"this cannot be read as SQL: {first_paragraph(error)}") from error
    return next(each for each in found if each is not None)  # what follows is a comment: DuckDB counted one statement


def _refusal(statement: exp.Expr) -> str:
    word = str(statement.this) if isinstance(statement, exp.Command) else statement.sql("duckdb").split(" ", 1)[0]
    match statement:
        case exp.Transaction() | exp.Commit() | exp.Rollback():
            return f"{word} is not supported: every statement that changes tables commits by itself"
        case exp.Merge():
            return "MERGE is not supported: use UPDATE and INSERT"
        case exp.Show():
            return "SHOW is not supported: skiway tables list shows tables, DESCRIBE catalog.schema.table columns"
    return f"{word} is not supported: use SELECT, INSERT, UPDATE, DELETE, TRUNCATE, CREATE, ALTER, DROP, DESCRIBE or COPY … TO"


def execute(session: Session, text: str) -> Answer:
    """Run one statement. Rows are read as the caller iterates over them, before the next statement."""
    statement = _parsed(text)
    match statement:
        case exp.Insert():
            return changes.insert(session, statement)
        case exp.Update():
            return changes.update(session, statement)
        case exp.Delete():
            return changes.delete(session, statement)
        case exp.TruncateTable():
            return changes.truncate(session, statement)
        case exp.Create() | exp.Drop() | exp.Alter():
            return definitions.define(session, statement)
        case exp.Copy() if statement.args.get("kind"):
            raise Unsupported("COPY … FROM is not supported: INSERT INTO table SELECT * FROM 'file' does the same")
        case _ if isinstance(statement, READS):
            return Answer("select", session.read(statement, text))
    raise Unsupported(_refusal(statement))


def create_table(session: Session, name: str, columns: Sequence[str]) -> None:
    """Create a table with columns written as in SQL."""
    execute(session, f"CREATE TABLE {spoken(segments(name, resource='table'))} ({', '.join(columns)})")
