"""INSERT, UPDATE and DELETE: DuckDB finds the rows, the server changes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from sqlglot import exp

from skiway.cli.sql.session import Answer, Session
from skiway.client import Written
from skiway.errors import InvalidArgument, Unsupported

if TYPE_CHECKING:
    from skiway.client.airport.catalog import Table

__all__ = ["counted", "delete", "fields", "insert", "truncate", "update"]

ROWID = "rowid"


def insert(session: Session, statement: exp.Insert) -> Answer:
    """INSERT INTO … [BY NAME] VALUES or SELECT."""
    for clause in ("alternative", "conflict", "overwrite", "default"):
        if statement.args.get(clause):
            raise Unsupported("INSERT OR …, ON CONFLICT and DEFAULT VALUES are not supported: tables here have no keys")
    into, rows = statement.this, statement.expression
    named = [each.name for each in into.expressions] if isinstance(into, exp.Schema) else []
    node = into.this if isinstance(into, exp.Schema) else into
    if rows is None:
        raise Unsupported("INSERT takes VALUES or a SELECT")
    client, name = session.target(node)
    session.refresh(client)
    if statement.args.get("with_"):
        rows.set("with_", statement.args["with_"])
    table = session.table(client, name)
    given = [each["column_name"] for each in session.described(rows)]
    wanted = given if statement.args.get("by_name") else named or table.columns
    if len(wanted) != len(given):
        raise InvalidArgument(
            f"{table} is to get {len(wanted)} columns ({', '.join(wanted)}), but the rows have {len(given)}: "
            "name the columns, INSERT INTO table (a, b) …, or give as many"
        )
    reader = session.sendable(rows, fields(table, wanted))
    written = client.insert((name.schema, name.table), reader, returning=bool(statement.args.get("returning")))
    return _answered(session, "insert", written, statement, node)


def update(session: Session, statement: exp.Update) -> Answer:
    """UPDATE … SET … WHERE; the new values are whatever DuckDB computes."""
    _refuse(statement, "from_", "UPDATE … FROM is not supported: write a subquery, SET x = (SELECT …)")
    node, returning = statement.this, bool(statement.args.get("returning"))
    client, name = session.target(node)
    session.refresh(client)
    table = session.table(client, name)
    values = {_assigned(each): each.expression for each in statement.expressions}
    if returning:  # what is not sent does not come back
        known = {column.lower() for column in values}
        values |= {column: exp.column(column, quoted=True) for column in table.columns if column.lower() not in known}
    found = _found(statement, list(values.values()))
    wanted = [*fields(table, list(values)), pa.field(ROWID, pa.int64())]
    with client.transaction():
        rows = session.sendable(found, wanted, row_ids_of=name)
        written = client.update((name.schema, name.table), rows, returning=returning)
    if written.rows is not None:  # these come as they were sent, with the row id
        written = Written(written.count, written.rows.select(list(table.columns)))
    return _answered(session, "update", written, statement, node)


def delete(session: Session, statement: exp.Delete) -> Answer:
    """DELETE FROM … WHERE."""
    _refuse(statement, "using", "DELETE … USING is not supported: write a subquery, WHERE id IN (SELECT …)")
    _refuse(statement, "tables", "DELETE takes one table: DELETE FROM catalog.schema.table")
    node, returning = statement.this, bool(statement.args.get("returning"))
    client, name = session.target(node)
    with client.transaction():
        ids = session.read(_found(statement, []), row_ids_of=name).read_all()[ROWID]
        written = client.delete((name.schema, name.table), ids, returning=returning)
    return _answered(session, "delete", written, statement, node)


def truncate(session: Session, statement: exp.TruncateTable) -> Answer:
    """TRUNCATE: all rows go."""
    (node,) = statement.expressions
    client, name = session.target(node)
    session.refresh(client)
    session.table(client, name)
    count = client.truncate((name.schema, name.table)).count
    return Answer("truncate", count=count, said=counted("deleted", count))


def fields(table: Table, columns: Sequence[str]) -> list[pa.Field]:
    """Columns of a table by their names, in the order given."""
    return [table.schema.field(table.position(column)) for column in columns]


def counted(done: str, count: int) -> str:
    """Such as `inserted 1 row`."""
    return f"{done} {count:,} row{'' if count == 1 else 's'}"


def _found(statement: exp.Update | exp.Delete, values: Sequence[exp.Expr]) -> exp.Select:
    """The query for the rows that a statement is about, with their ids."""
    found = exp.select(*values, exp.column(ROWID)).from_(statement.this.copy())
    if statement.args.get("where"):
        found = found.where(statement.args["where"].this.copy())
    if statement.args.get("with_"):
        found.set("with_", statement.args["with_"])
    return found


def _assigned(each: exp.Expr) -> str:
    if not isinstance(each, exp.EQ) or not isinstance(each.this, exp.Column):
        raise Unsupported(f"SET {each.sql('duckdb')} is not supported: write column = value")
    return str(each.this.name)


def _refuse(statement: exp.Expr, clause: str, message: str) -> None:
    if statement.args.get(clause):
        raise Unsupported(message)


def _answered(session: Session, word: str, written: Written, statement: exp.Expr, node: exp.Table) -> Answer:
    returning: Any = statement.args.get("returning")
    past = {"insert": "inserted", "update": "updated", "delete": "deleted"}[word]
    said = counted(past, written.count)
    if returning is None or written.rows is None:
        return Answer(word, count=written.count, said=said)
    session.duckdb.register("returned", written.rows)
    alias = exp.to_identifier(node.alias_or_name, quoted=True)
    shown = exp.select(*returning.expressions).from_(exp.Table(this=exp.to_identifier("returned"), alias=alias))
    return Answer(word, session.answers(shown.sql("duckdb")), written.count, said)
