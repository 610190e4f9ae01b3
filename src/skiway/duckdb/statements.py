"""Statements: DuckDB runs queries; INSERT, UPDATE, DELETE and TRUNCATE find their rows in DuckDB and change them on the server.

SHOW, DESCRIBE, `.tables` and `.schema` list what the lake contains.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from sqlglot import exp

from skiway.airport.wire.duckdb_sql import duckdb_type, text_literal
from skiway.client import Written
from skiway.client.metastore.calls import segments
from skiway.duckdb.called import merge
from skiway.duckdb.definitions import define
from skiway.duckdb.engine import Answer, Result, Statement, count_rows, quoted, split_statements
from skiway.duckdb.rewriting import called, explained, parse
from skiway.duckdb.scans import ROWID, sql_name
from skiway.duckdb.session import Session
from skiway.errors import InvalidArgument, Unsupported

if TYPE_CHECKING:
    from skiway.client.airport.calls import Table

TABLES: Final = re.compile(r"TABLES(?:\s+(?:FROM|IN)\s+(.+))?", re.IGNORECASE | re.DOTALL)
TEMPORARY_TABLES: Final = "SELECT table_name FROM duckdb_tables() WHERE database_name = 'temp' ORDER BY ALL"
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
    names = ", ".join(map(text_literal, required)) or "NULL"
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
    local = [name for (name,) in session.duckdb.execute(TEMPORARY_TABLES).fetchall()]
    path = [] if place is None else segments(place, resource="catalog or namespace")
    catalog, schema = session.catalog, session.schema
    if path:
        is_catalog = len(path) == 1 and path[0].lower() in session.engine.catalogs
        catalog, schema = (path[0], None) if is_catalog else (path[0] if len(path) > 1 else catalog, path[-1])
        local = []
    found = []
    for each in session.listed(catalog):
        if schema is None:
            found += [f"{shown_name(each.name)}.{shown_name(table.name)}" for table in each.tables]
        elif each.name.lower() == schema.lower():
            found += [table.name for table in each.tables]
    return sorted([*local, *found])


def _all_tables(session: Session) -> Answer:
    rows = [(schema, table) for schema in session.listed(session.catalog) for table in schema.tables]
    fields = [shown_columns(table) for _, table in rows]
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
        f"{shown_name(field.name)} {duckdb_type(field)}{'' if field.nullable else ' NOT NULL'}"
        for field in shown_columns(table)
    )
    return f"CREATE TABLE {shown_name(catalog)}.{shown_name(table.schema_name)}.{shown_name(table.name)} ({columns});"


def shown_columns(table: Table) -> Sequence[pa.Field]:
    """Return the columns of a table without the one for row ids."""
    return [field for position, field in enumerate(table.schema) if position != table.rowid]


def shown_name(name: str) -> str:
    """Return a name as SQL needs it."""
    return name if PLAIN.fullmatch(name) else quoted(name)


def _answer(session: Session, columns: dict[str, Any]) -> Answer:
    """Return rows as an answer of DuckDB, so that they are rendered like all others."""
    arrays = {
        name: values
        if isinstance(values, pa.Array)
        else pa.array(values, pa.bool_() if name in ("current", "temporary") else pa.string())
        for name, values in columns.items()
    }
    session.engine.scope = {"listing": pa.table(arrays)}
    return session.engine.query("SELECT * FROM listing")


PARTICIPLES: Final = {"insert": "inserted", "update": "updated", "delete": "deleted", "truncatetable": "deleted"}
READS: Final = (exp.Query, exp.Values, exp.Describe, exp.Summarize, exp.Copy, exp.Pivot)
LOCAL: Final = ("SET", "VARIABLE_SET", "PRAGMA", "LOAD", "CALL", "ATTACH", "DETACH")
"""Statements about this session, which DuckDB runs on its own."""
SHOW: Final = re.compile(r"(SHOW|DESCRIBE|DESC)\b\s*(.*)", re.IGNORECASE | re.DOTALL)
SEARCH_PATH: Final = re.compile(r"(SET|RESET)\s+((SESSION|GLOBAL|LOCAL)\s+)?(search_path|schema)\b", re.IGNORECASE)


def _unsupported_message(statement: exp.Expr) -> str:
    word = str(statement.this) if isinstance(statement, exp.Command) else statement.sql("duckdb").split(" ", 1)[0]
    match statement:
        case exp.Transaction() | exp.Commit() | exp.Rollback():
            return f"{word} is not supported: every statement commits on its own"
    return (
        f"{word} is not supported: use SELECT, INSERT, UPDATE, DELETE, MERGE, TRUNCATE, CREATE, ALTER, DROP, DESCRIBE, SHOW, USE, "
        "SET, EXPLAIN or COPY … TO"
    )


def execute(session: Session, given: Statement) -> Result:
    """Run one statement. Its rows are read while the caller iterates over them, which must end before the next statement."""
    session.release()
    if given.word == "USE":
        return _use(session, given)
    if SEARCH_PATH.match(given.text):
        raise Unsupported("the search path cannot be set: USE catalog.schema sets the schema of names without one")
    if given.kind == "CALL" and (called := _call(session, given)):
        return called
    if given.kind in LOCAL or given.word == "PRAGMA":
        return Result(given.word.lower(), session.engine.run(given.text))
    if given.kind == "EXPLAIN":
        return _explain(session, given)
    if given.kind == "SELECT" and (shown := SHOW.match(given.text)):
        return _show_or_describe(session, shown)
    return _change_or_read(session, given)


def _call(session: Session, given: Statement) -> Result | None:
    """CALL of a function of the lake, which runs at once; None if it is a function of DuckDB."""
    text = called(given)
    statement = parse(text)
    if not session.lake_functions(statement):
        return None
    return Result("call", session.engine.fetch(session.bind(statement, text)))


def _change_or_read(session: Session, given: Statement) -> Result:
    if given.word == "MERGE":
        return merge(session, given)
    statement = parse(given.text)
    match statement:
        case exp.Insert() | exp.Update() | exp.Delete() | exp.Drop() | exp.Alter() | exp.TruncateTable() | exp.Create():
            if _is_local(session, statement):
                return _run_locally(session, statement, given.text)
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
            return define(session, statement, given.text)
        case exp.Copy() if statement.args.get("kind"):
            raise Unsupported("COPY … FROM is not supported: use INSERT INTO table SELECT * FROM 'file'")
        case exp.Copy():
            count = session.engine.change(session.bind(statement, given.text))
            return Result("copy", count=count, message=count_rows("copied", count))
        case _ if isinstance(statement, READS):
            return Result("select", session.read(statement, given.text))
    raise Unsupported(_unsupported_message(statement))


# -- statements about the session --------------------------------------------------------------------------------------


def _use(session: Session, given: Statement) -> Result:
    """USE catalog, USE catalog.schema or USE schema."""
    node = parse(given.text).this
    first, name = node.db, node.name
    if first:
        session.use(first, name)
    elif name.lower() in session.engine.catalogs or not _has_schema(session, name):
        session.use(name, None)
    else:
        session.use(session.catalog, name)
    place = session.catalog if session.schema is None else f"{session.catalog}.{session.schema}"
    return Result("use", message=f"using {place}")


def _has_schema(session: Session, name: str) -> bool:
    client = session.client(session.catalog)
    session.refresh(client)
    return name.lower() in map(str.lower, client.schema_names())


def _explain(session: Session, given: Statement) -> Result:
    """EXPLAIN of a query; statements that change tables run on the server."""
    prefix, query = explained(given)
    inner = parse(query)
    if not isinstance(inner, exp.Query | exp.Describe | exp.Summarize | exp.Pivot):
        raise Unsupported("EXPLAIN is for queries only: statements that change tables run on the server")
    return Result("explain", session.engine.fetch(prefix + session.bind(inner, query)))


def _show_or_describe(session: Session, shown: re.Match[str]) -> Result:
    """SHOW TABLES and the like, which list the lake; DESCRIBE or SHOW of a table; DESCRIBE of a query."""
    found = show(session, shown[2]) if shown[1].upper() == "SHOW" or not shown[2].strip() else None
    if found is not None:
        return Result("show", found)
    text = f"DESCRIBE {shown[2]}"
    statement = parse(text)
    node = statement.this
    if isinstance(node, exp.Table) and session.lake_tables(statement):
        return Result("describe", describe(session, statement))
    return Result("describe", session.read(statement, text))


# -- local tables ------------------------------------------------------------------------------------------------------


def _is_local(session: Session, statement: exp.Expr) -> bool:
    """Whether a statement changes objects of this session: those of CREATE TEMP, or of an attached database."""
    properties = statement.args.get("properties")
    if isinstance(statement, exp.Create):
        if properties is not None and properties.find(exp.TemporaryProperty):
            return True
        if str(statement.args.get("kind")).upper() in ("FUNCTION", "MACRO", "SECRET"):
            return False
    targets = statement.expressions if isinstance(statement, exp.TruncateTable) else _targets(statement)
    return bool(targets) and all(isinstance(each, exp.Table) and session.is_local(each) for each in targets)


def _targets(statement: exp.Expr) -> list[exp.Expr]:
    if isinstance(statement, exp.Drop):
        return list(statement.args.get("tables") or [statement.this])
    return [statement.this.this if isinstance(statement.this, exp.Schema) else statement.this]


def _run_locally(session: Session, statement: exp.Expr, text: str) -> Result:
    """Run a statement in DuckDB; a view or a macro that outlives it cannot read tables of the lake."""
    word = statement.key
    kind = str(statement.args.get("kind") or "").lower()
    bound = session.bind(statement, text)
    if isinstance(statement, exp.Create) and kind != "table" and session.lake_tables(statement):
        raise Unsupported(f"a temporary {kind} cannot read tables of the lake: use CREATE TEMP TABLE … AS SELECT …")
    if statement.args.get("returning"):
        return Result(word, session.engine.fetch(bound))
    count = session.engine.change(bound)
    if word in ("insert", "update", "delete", "truncatetable"):
        return Result(word, count=count, message=count_rows(PARTICIPLES[word], count))
    done = {"create": "created", "drop": "dropped", "alter": "altered"}[word]
    name = ", ".join(each.sql("duckdb") for each in _targets(statement))
    return Result(word, message=f"{done} temporary {kind} {name}" if word == "create" else f"{done} {kind} {name}")


def create_table(session: Session, name: str, columns: Sequence[str]) -> None:
    """Create a table; the columns are written in SQL."""
    (statement,) = split_statements(f"CREATE TABLE {sql_name(segments(name, resource='table'))} ({', '.join(columns)})")
    execute(session, statement)


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
    by_name = bool(statement.args.get("by_name"))
    if isinstance(rows, exp.Values) and not by_name:
        given = [each.sql("duckdb") for each in rows.expressions[0].expressions]
    else:
        given = [column for column, _ in session.describe(rows)]
    wanted = given if by_name else named or table.columns
    if len(wanted) != len(given):
        raise InvalidArgument(
            f"INSERT INTO {table} expects {len(wanted)} columns ({', '.join(wanted)}), but the rows have {len(given)}: "
            "name the columns, as in INSERT INTO table (a, b) …"
        )
    reader = session.cast_rows(rows, _fields(table, wanted))
    written = client.insert((name.schema, name.table), reader, returning=bool(statement.args.get("returning")))
    return _result(session, "insert", written, statement, node)


def _update(session: Session, statement: exp.Update) -> Result:
    """UPDATE … SET … FROM … WHERE; DuckDB computes the new values."""
    node, returning = statement.this, bool(statement.args.get("returning"))
    client, name = session.target(node)
    session.refresh(client)
    table = session.table(client, name)
    values = {_assigned_column(each): each.expression for each in statement.expressions}
    if returning:  # the server returns only the columns that were sent
        known = {column.lower() for column in values}
        values |= {column: _column(node, column) for column in table.columns if column.lower() not in known}
    query = _rows_query(statement, list(values.values()))
    wanted = [*_fields(table, list(values)), pa.field(ROWID, pa.int64())]
    with client.transaction(release=True), session.row_ids(name):
        rows = session.cast_rows(query, wanted)
        written = client.update((name.schema, name.table), rows, returning=returning)
    if written.rows is not None:  # they have the columns that were sent, and the row id
        written = Written(written.count, written.rows.select(list(table.columns)))
    return _result(session, "update", written, statement, node)


def _delete(session: Session, statement: exp.Delete) -> Result:
    """DELETE FROM … USING … WHERE."""
    if statement.args.get("tables"):
        raise Unsupported("DELETE needs exactly one table: DELETE FROM catalog.schema.table")
    node, returning = statement.this, bool(statement.args.get("returning"))
    client, name = session.target(node)
    with client.transaction(release=True), session.row_ids(name):
        ids = session.stream(session.bind(_rows_query(statement, []))).read_all()[ROWID]
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
    row_id = _column(statement.this, ROWID)
    query = exp.select(*values, row_id).from_(statement.this.copy())
    source = statement.args.get("from_")
    for other in [source.this] if source else statement.args.get("using") or []:
        query = query.join(other.copy(), join_type="cross")
    if query.args.get("joins"):  # a row changes once, however many rows it is joined with
        first = exp.Window(this=exp.RowNumber(), partition_by=[row_id.copy()])
        query.set("qualify", exp.Qualify(this=first.eq(1)))
    if statement.args.get("where"):
        query = query.where(statement.args["where"].this.copy())
    if statement.args.get("with_"):
        query.set("with_", statement.args["with_"])
    return query


def _column(node: exp.Table, name: str) -> exp.Column:
    """Return a column of the table that a statement changes."""
    return exp.column(name, table=exp.to_identifier(node.alias_or_name, quoted=True), quoted=True)


def _assigned_column(each: exp.Expr) -> str:
    if not isinstance(each, exp.EQ) or not isinstance(each.this, exp.Column):
        raise Unsupported(f"SET {each.sql('duckdb')} is not supported: write column = value")
    return str(each.this.name)


def _result(session: Session, word: str, written: Written, statement: exp.Expr, node: exp.Table) -> Result:
    returning: Any = statement.args.get("returning")
    message = count_rows(PARTICIPLES[word], written.count)
    if returning is None or written.rows is None:
        return Result(word, count=written.count, message=message)
    session.engine.scope = {"returned": written.rows}
    alias = exp.to_identifier(node.alias_or_name, quoted=True)
    query = exp.select(*returning.expressions).from_(exp.Table(this=exp.to_identifier("returned"), alias=alias))
    return Result(word, session.engine.query(query.sql("duckdb")), written.count, message)
