"""What the lake contains, for SHOW, DESCRIBE, `.tables` and `.schema`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from sqlglot import exp

from skiway.airport.wire.duckdb_sql import duckdb_type
from skiway.cli.sql.engine import Answer, Result, quoted
from skiway.client.metastore.names import segments
from skiway.errors import InvalidArgument

if TYPE_CHECKING:
    from skiway.cli.sql.session import Session
    from skiway.client.airport.catalog import Table

__all__ = ["describe", "dot_command", "show"]

TABLES: Final = re.compile(r"TABLES(?:\s+(?:FROM|IN)\s+(.+))?", re.IGNORECASE | re.DOTALL)
LOCAL: Final = "SELECT table_name FROM duckdb_tables() WHERE database_name = 'temp' ORDER BY ALL"
PLAIN: Final = re.compile(r"[a-z_][a-z0-9_]*")


def show(session: Session, what: str) -> Answer | None:
    """Return what SHOW lists; None if `what` is the name of a table."""
    words = " ".join(what.split()).rstrip(";").upper()
    if found := TABLES.fullmatch(what.strip()):
        return _answer(session, {"name": _table_names(session, found[1])})
    match words:
        case "DATABASES":
            names = sorted(str(each) for each in session.catalog_names())
            return _answer(session, {"database_name": names})
        case "SCHEMAS":
            schemas = session.listed(session.catalog)
            return _answer(
                session,
                {
                    "database_name": [session.catalog] * len(schemas),
                    "schema_name": [each.name for each in schemas],
                    "current": [each.name == session.schema for each in schemas],
                },
            )
        case "ALL TABLES" | "":
            return _all_tables(session)
    return None


def describe(session: Session, statement: exp.Expr) -> Answer:
    """Return the columns of a table of the lake as DuckDB's DESCRIBE does, with NOT NULL, which a view does not have."""
    text = session.bind(statement)
    name = session.name(statement.this)
    table = session.table(session.client(name.catalog), name)
    required = [field.name for field in table.schema if not field.nullable]
    names = ", ".join("'" + each.replace("'", "''") + "'" for each in required) or "NULL"
    return session.engine.query(
        f"""SELECT column_name, column_type, CASE WHEN column_name IN ({names}) THEN 'NO' ELSE "null" END AS "null",
        key, "default", extra FROM ({text})"""  # noqa: S608 - quoted
    )


def dot_command(session: Session, text: str) -> Result:
    """Run `.tables` or `.schema`."""
    word, *arguments = text.split(None, 1)
    argument = arguments[0].strip() if arguments else None
    match word:
        case ".tables":
            names = [name for name in _table_names(session, None) if argument is None or fnmatchcase(name, argument)]
            return Result("tables", _answer(session, {"name": names}))
        case ".schema":
            return Result("schema", message="\n".join(_definitions(session, argument)))
    raise InvalidArgument(f"there is no command {word}: type .help for the commands")


def _table_names(session: Session, place: str | None) -> list[str]:
    """Return the names of tables as FROM accepts them here: plain in the schema of USE, else with their schema."""
    local = [name for (name,) in session.duckdb.execute(LOCAL).fetchall()]
    path = [] if place is None else segments(place, resource="catalog or namespace")
    catalog, schema = session.catalog, session.schema
    if path:
        is_catalog = len(path) == 1 and path[0].lower() in session.engine.catalogs
        catalog, schema = (path[0], None) if is_catalog else (path[0] if len(path) > 1 else catalog, path[-1])
        local = []
    found = []
    for each in session.listed(catalog):
        if schema is None:
            found += [f"{_name(each.name)}.{_name(table.name)}" for table in each.tables]
        elif each.name.lower() == schema.lower():
            found += [table.name for table in each.tables]
    return sorted([*local, *found])


def _all_tables(session: Session) -> Answer:
    rows = [(schema, table) for schema in session.listed(session.catalog) for table in schema.tables]
    fields = [_columns(table) for _, table in rows]
    return _answer(
        session,
        {
            "database": [session.catalog] * len(rows),
            "schema": [schema.name for schema, _ in rows],
            "name": [table.name for _, table in rows],
            "column_names": pa.array([[f.name for f in each] for each in fields], pa.list_(pa.string())),
            "column_types": pa.array([[duckdb_type(f) for f in each] for each in fields], pa.list_(pa.string())),
            "temporary": [False] * len(rows),
        },
    )


def _definitions(session: Session, name: str | None) -> Iterator[str]:
    """Yield a CREATE TABLE statement for each table, or for the named one."""
    if name is not None:
        node = exp.to_table(name, dialect="duckdb")
        full = session.name(node)
        client = session.client(full.catalog)
        session.refresh(client)
        yield _definition(full.catalog, session.table(client, full))
        return
    for schema in session.listed(session.catalog):
        if session.schema is None or schema.name.lower() == session.schema.lower():
            for table in schema.tables:
                yield _definition(session.catalog, table)


def _definition(catalog: str, table: Table) -> str:
    columns = ", ".join(
        f"{_name(field.name)} {duckdb_type(field)}{'' if field.nullable else ' NOT NULL'}" for field in _columns(table)
    )
    return f"CREATE TABLE {_name(catalog)}.{_name(table.schema_name)}.{_name(table.name)} ({columns});"


def _columns(table: Table) -> Sequence[pa.Field]:
    return [field for position, field in enumerate(table.schema) if position != table.rowid]


def _name(name: str) -> str:
    return name if PLAIN.fullmatch(name) else quoted(name)


def _answer(session: Session, columns: dict[str, Any]) -> Answer:
    """Return rows as an answer of DuckDB, so that they are rendered like all others."""
    arrays = {
        name: values
        if isinstance(values, pa.Array)
        else pa.array(values, pa.bool_() if name in ("current", "temporary") else pa.string())
        for name, values in columns.items()
    }
    session.duckdb.register("listing", pa.table(arrays))
    return session.engine.query("SELECT * FROM listing")
