"""Statements: DuckDB runs queries; INSERT, UPDATE, DELETE and TRUNCATE find their rows in DuckDB and change them on the server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import duckdb
import pyarrow as pa
import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from skiway.cli.sql.definitions import define
from skiway.cli.sql.scans import sql_name
from skiway.cli.sql.session import Result, Session, count_rows, first_paragraph
from skiway.client import Written
from skiway.client.metastore.names import segments
from skiway.errors import InvalidArgument, Unsupported

if TYPE_CHECKING:
    from skiway.client.airport.catalog import Table

__all__ = ["create_table", "execute", "split_statements"]

ROWID: Final = "rowid"
READS: Final = (exp.Query, exp.Describe, exp.Summarize, exp.Copy, exp.Pivot)


def split_statements(text: str) -> list[str]:
    """Split text into statements, as they were written."""
    try:
        found: list[Any] = duckdb.extract_statements(text)
    except duckdb.Error as error:
        raise InvalidArgument(first_paragraph(error)) from error
    return [each.query.strip().rstrip(";").strip() for each in found]


def _parse(text: str) -> exp.Expr:
    try:
        found = sqlglot.parse(text, dialect="duckdb")
    except SqlglotError as error:
        raise InvalidArgument(f"cannot parse the SQL: {first_paragraph(error)}") from error
    return next(each for each in found if each is not None)  # anything else is a comment: DuckDB found one statement


def _unsupported_message(statement: exp.Expr) -> str:
    word = str(statement.this) if isinstance(statement, exp.Command) else statement.sql("duckdb").split(" ", 1)[0]
    match statement:
        case exp.Transaction() | exp.Commit() | exp.Rollback():
            return f"{word} is not supported: every statement commits on its own"
        case exp.Merge():
            return "MERGE is not supported: use UPDATE and INSERT"
        case exp.Show():
            return "SHOW is not supported: use skiway tables list, or DESCRIBE catalog.schema.table"
    return f"{word} is not supported: use SELECT, INSERT, UPDATE, DELETE, TRUNCATE, CREATE, ALTER, DROP, DESCRIBE or COPY … TO"


def execute(session: Session, text: str) -> Result:
    """Run one statement. Its rows are read while the caller iterates over them, which must end before the next statement."""
    statement = _parse(text)
    match statement:
        case exp.Insert():
            return _insert(session, statement)
        case exp.Update():
            return _update(session, statement)
        case exp.Delete():
            return _delete(session, statement)
        case exp.TruncateTable():
            return _truncate(session, statement)
        case exp.Create() | exp.Drop() | exp.Alter():
            return define(session, statement)
        case exp.Copy() if statement.args.get("kind"):
            raise Unsupported("COPY … FROM is not supported: use INSERT INTO table SELECT * FROM 'file'")
        case _ if isinstance(statement, READS):
            return Result("select", session.read(statement, text))
    raise Unsupported(_unsupported_message(statement))


def create_table(session: Session, name: str, columns: Sequence[str]) -> None:
    """Create a table; the columns are written in SQL."""
    execute(session, f"CREATE TABLE {sql_name(segments(name, resource='table'))} ({', '.join(columns)})")


# -- INSERT, UPDATE, DELETE, TRUNCATE ----------------------------------------------------------------------------------


def _insert(session: Session, statement: exp.Insert) -> Result:
    """INSERT INTO … [BY NAME] VALUES or SELECT."""
    for clause in ("alternative", "conflict", "overwrite", "default"):
        if statement.args.get(clause):
            raise Unsupported(
                "INSERT OR …, ON CONFLICT and DEFAULT VALUES are not supported: tables of the lake have no keys"
            )
    into, rows = statement.this, statement.expression
    named = [each.name for each in into.expressions] if isinstance(into, exp.Schema) else []
    node = into.this if isinstance(into, exp.Schema) else into
    if rows is None:
        raise Unsupported("INSERT needs VALUES or a SELECT")
    client, name = session.target(node)
    session.refresh(client)
    if statement.args.get("with_"):
        rows.set("with_", statement.args["with_"])
    table = session.table(client, name)
    given = [each["column_name"] for each in session.describe(rows)]
    wanted = given if statement.args.get("by_name") else named or table.columns
    if len(wanted) != len(given):
        raise InvalidArgument(
            f"INSERT INTO {table} expects {len(wanted)} columns ({', '.join(wanted)}), but the rows have {len(given)}: "
            "name the columns, as in INSERT INTO table (a, b) …"
        )
    reader = session.cast_rows(rows, _fields(table, wanted))
    written = client.insert((name.schema, name.table), reader, returning=bool(statement.args.get("returning")))
    return _result(session, "insert", written, statement, node)


def _update(session: Session, statement: exp.Update) -> Result:
    """UPDATE … SET … WHERE; DuckDB computes the new values."""
    _reject_clause(statement, "from_", "UPDATE … FROM is not supported: use a subquery, SET x = (SELECT …)")
    node, returning = statement.this, bool(statement.args.get("returning"))
    client, name = session.target(node)
    session.refresh(client)
    table = session.table(client, name)
    values = {_assigned_column(each): each.expression for each in statement.expressions}
    if returning:  # the server returns only the columns that were sent
        known = {column.lower() for column in values}
        values |= {column: exp.column(column, quoted=True) for column in table.columns if column.lower() not in known}
    query = _rows_query(statement, list(values.values()))
    wanted = [*_fields(table, list(values)), pa.field(ROWID, pa.int64())]
    with client.transaction():
        rows = session.cast_rows(query, wanted, row_ids_of=name)
        written = client.update((name.schema, name.table), rows, returning=returning)
    if written.rows is not None:  # they have the columns that were sent, and the row id
        written = Written(written.count, written.rows.select(list(table.columns)))
    return _result(session, "update", written, statement, node)


def _delete(session: Session, statement: exp.Delete) -> Result:
    """DELETE FROM … WHERE."""
    _reject_clause(statement, "using", "DELETE … USING is not supported: use a subquery, WHERE id IN (SELECT …)")
    _reject_clause(statement, "tables", "DELETE needs exactly one table: DELETE FROM catalog.schema.table")
    node, returning = statement.this, bool(statement.args.get("returning"))
    client, name = session.target(node)
    with client.transaction():
        ids = session.read(_rows_query(statement, []), row_ids_of=name).read_all()[ROWID]
        written = client.delete((name.schema, name.table), ids, returning=returning)
    return _result(session, "delete", written, statement, node)


def _truncate(session: Session, statement: exp.TruncateTable) -> Result:
    """TRUNCATE: delete all rows."""
    (node,) = statement.expressions
    client, name = session.target(node)
    session.refresh(client)
    session.table(client, name)
    count = client.truncate((name.schema, name.table)).count
    return Result("truncate", count=count, message=count_rows("deleted", count))


def _fields(table: Table, columns: Sequence[str]) -> list[pa.Field]:
    """Return the fields of a table with these names, in this order."""
    return [table.schema.field(table.position(column)) for column in columns]


def _rows_query(statement: exp.Update | exp.Delete, values: Sequence[exp.Expr]) -> exp.Select:
    """Return the query for the rows that a statement changes: their new values and their ids."""
    query = exp.select(*values, exp.column(ROWID)).from_(statement.this.copy())
    if statement.args.get("where"):
        query = query.where(statement.args["where"].this.copy())
    if statement.args.get("with_"):
        query.set("with_", statement.args["with_"])
    return query


def _assigned_column(each: exp.Expr) -> str:
    if not isinstance(each, exp.EQ) or not isinstance(each.this, exp.Column):
        raise Unsupported(f"SET {each.sql('duckdb')} is not supported: write column = value")
    return str(each.this.name)


def _reject_clause(statement: exp.Expr, clause: str, message: str) -> None:
    if statement.args.get(clause):
        raise Unsupported(message)


def _result(session: Session, word: str, written: Written, statement: exp.Expr, node: exp.Table) -> Result:
    returning: Any = statement.args.get("returning")
    participle = {"insert": "inserted", "update": "updated", "delete": "deleted"}[word]
    message = count_rows(participle, written.count)
    if returning is None or written.rows is None:
        return Result(word, count=written.count, message=message)
    session.duckdb.register("returned", written.rows)
    alias = exp.to_identifier(node.alias_or_name, quoted=True)
    query = exp.select(*returning.expressions).from_(exp.Table(this=exp.to_identifier("returned"), alias=alias))
    return Result(word, session.query(query.sql("duckdb")), written.count, message)
