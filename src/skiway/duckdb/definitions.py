"""CREATE, DROP and ALTER: DuckDB interprets the definition of columns, the server creates them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
from sqlglot import exp

from skiway.airport.conversion import cast_array
from skiway.duckdb.called import create_view, drop_view
from skiway.duckdb.engine import Result, count_rows, quoted
from skiway.duckdb.session import Session
from skiway.errors import InvalidArgument, Unsupported

if TYPE_CHECKING:
    from skiway.client import AirportClient
    from skiway.duckdb.scans import LakeName


DRAFT = "draft"
SELECT_DRAFT = "SELECT * FROM draft"
DEFAULTS = """
    SELECT column_name, column_default FROM duckdb_columns()
    WHERE database_name = 'temp' AND table_name = 'draft'
"""
CONSTRAINTS = """
    SELECT constraint_type, constraint_column_names, expression FROM duckdb_constraints()
    WHERE database_name = 'temp' AND table_name = 'draft'
"""


@dataclass(frozen=True, slots=True)
class Draft:
    """A definition of a table, as DuckDB interprets it."""

    schema: pa.Schema
    not_null: Sequence[str]
    primary_key: Sequence[str]
    unique: Sequence[Sequence[str]]
    checks: Sequence[str]


def define(session: Session, statement: exp.Expr, text: str) -> Result:
    """Run a statement that creates, alters or drops a schema, a table or a view; `text` is the statement as it was written."""
    match statement, str(statement.args.get("kind")).upper():
        case exp.Create(), "SCHEMA":
            return _create_schema(session, statement)
        case exp.Create(), "TABLE":
            return _create_table(session, statement)
        case exp.Drop(), "SCHEMA" | "TABLE":
            return _drop(session, statement)
        case exp.Alter(), "TABLE":
            return _alter(session, statement)
        case exp.Create(), "VIEW":
            return create_view(session, statement, text)
        case exp.Drop(), "VIEW":
            return drop_view(session, statement)
    kind = str(statement.args.get("kind") or "this")
    raise Unsupported(
        f"{statement.key.upper()} {kind} is not supported: only schemas, tables and views can be created and dropped, and tables altered"
    )


def _done(statement: exp.Expr, message: str) -> Result:
    return Result(statement.key, message=message)


# -- CREATE ------------------------------------------------------------------------------------------------------------


def _create_schema(session: Session, statement: exp.Expr) -> Result:
    client, name = _schema(session, statement.this)
    client.create_schema(name, if_not_exists=bool(statement.args.get("exists")))
    return _done(statement, f"created schema {client.catalog}.{name}")


def _create_table(session: Session, statement: exp.Expr) -> Result:
    node = statement.this.this if isinstance(statement.this, exp.Schema) else statement.this
    client, name = session.target(node)
    session.refresh(client)
    if statement.args.get("exists") and session.exists(name):
        return _done(statement, f"table {name.shown} already exists")
    if statement.expression is not None:
        return _create_as(session, statement, client, name)
    draft = _draft(session, [each.sql("duckdb") for each in statement.this.expressions])
    client.create_table(
        (name.schema, name.table),
        draft.schema,
        not_null=draft.not_null,
        primary_key=draft.primary_key,
        unique=draft.unique,
        checks=draft.checks,
        on_conflict="replace" if statement.args.get("replace") else "error",
    )
    return _done(statement, f"created table {name.shown}")


def _create_as(session: Session, statement: exp.Expr, client: AirportClient, name: LakeName) -> Result:
    if isinstance(statement.this, exp.Schema):
        raise Unsupported("CREATE TABLE … AS takes its columns from the query: name them there, as in SELECT x AS a")
    query = statement.expression
    if statement.args.get("with_"):
        query.set("with_", statement.args["with_"])
    columns = [f"{quoted(column)} {kind}" for column, kind in session.describe(query)]
    schema = _draft(session, columns).schema
    rows = _with_schema(session.cast_rows(query, list(schema)), schema)
    on_conflict: Literal["replace", "error"] = "replace" if statement.args.get("replace") else "error"
    count = client.create_table_as((name.schema, name.table), rows, on_conflict=on_conflict).count
    return Result("create", count=count, message=f"created table {name.shown}, {count_rows('inserted', count)}")


def _with_schema(rows: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Cast rows to the types of the table: UUIDs, for example, arrive as bytes.

    The first batch has no rows, so that the server can reject a column before its values are cast.
    """
    yield pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)
    for batch in rows:
        columns = [_cast(column, field) for column, field in zip(batch.columns, schema, strict=True)]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _cast(column: pa.Array, field: pa.Field) -> pa.Array:
    try:
        return cast_array(column, field.type)
    except pa.ArrowException as error:
        raise InvalidArgument(f"column {field.name!r} cannot be sent as {field.type}: {error}") from error


def _draft(session: Session, columns: Sequence[str]) -> Draft:
    """Return the columns and constraints of a definition, as DuckDB interprets them."""
    with session.errors():
        session.duckdb.execute(f"CREATE OR REPLACE TEMP TABLE {DRAFT} ({', '.join(columns)})")
        schema = _schema_of_draft(session)
        defaults = dict(session.duckdb.execute(DEFAULTS).fetchall())
        constraints = session.duckdb.execute(CONSTRAINTS).fetchall()
        session.duckdb.execute(f"DROP TABLE {DRAFT}")
    found: dict[str, list[Any]] = {"NOT NULL": [], "PRIMARY KEY": [], "UNIQUE": [], "CHECK": []}
    for kind, names, expression in constraints:
        found.setdefault(kind, []).append(expression if kind == "CHECK" else list(names))
    return Draft(
        pa.schema([_with_default(field, defaults.get(field.name)) for field in schema]),
        [name for names in found["NOT NULL"] for name in names],
        [name for names in found["PRIMARY KEY"] for name in names],
        found["UNIQUE"],
        found["CHECK"],
    )


def _schema_of_draft(session: Session) -> pa.Schema:
    """Return the Arrow schema of the draft, with extension types for UUID, JSON and types that Arrow lacks.

    DuckDB converts schemas in two ways: the default loses these types; the lossless one keeps them, but uses extension
    types for BOOLEAN and HUGEINT too, which this client does not use.
    """
    plain = session.engine.arrow_table(SELECT_DRAFT).schema
    with session.engine.lossless_arrow():
        exact = session.engine.arrow_table(SELECT_DRAFT).schema
    return pa.schema(
        [
            loose if "bool8" in str(strict.type) or "hugeint" in str(strict.type) else strict
            for loose, strict in zip(plain, exact, strict=True)
        ]
    )


def _with_default(field: pa.Field, default: str | None) -> pa.Field:
    return field if default is None else field.with_metadata({**(field.metadata or {}), "default": default})


# -- DROP --------------------------------------------------------------------------------------------------------------


def _drop(session: Session, statement: exp.Expr) -> Result:
    if statement.args.get("cascade"):
        raise Unsupported("DROP … CASCADE is not supported: use skiway namespaces delete --cascade")
    if_exists = bool(statement.args.get("exists"))
    nodes = statement.args.get("tables") or [statement.this]
    for node in nodes:
        if str(statement.args["kind"]).upper() == "SCHEMA":
            client, schema = _schema(session, node)
            client.drop_schema(schema, if_exists=if_exists)
        else:
            client, name = session.target(node)
            session.refresh(client)
            if not if_exists:
                session.table(client, name)
            client.drop_table((name.schema, name.table), if_exists=if_exists)
    dropped = ", ".join(node.sql("duckdb") for node in nodes)
    return _done(statement, f"dropped {str(statement.args['kind']).lower()} {dropped}")


# -- ALTER -------------------------------------------------------------------------------------------------------------


def _alter(session: Session, statement: exp.Expr) -> Result:
    client, name = session.target(statement.this)
    session.refresh(client)
    table, if_exists = (name.schema, name.table), bool(statement.args.get("exists"))
    if not if_exists:
        session.table(client, name)
    for action in _actions(statement):
        _act(session, client, table, action, if_exists=if_exists)
    return _done(statement, f"altered table {name.shown}")


def _actions(statement: exp.Expr) -> list[exp.Expr]:
    actions: list[exp.Expr] = statement.args["actions"]
    match actions, statement.args.get("options"):
        case _, None | []:
            return actions
        case [exp.AlterRename(this=old)], [exp.ToTableProperty(this=new)]:  # RENAME old TO new, without COLUMN
            return [exp.RenameColumn(this=exp.column(old.this, table=old.args.get("db")), to=exp.column(new.this))]
    raise Unsupported(f"{statement.sql('duckdb')} is not supported")


def _act(session: Session, client: AirportClient, table: tuple[str, str], action: exp.Expr, *, if_exists: bool) -> None:
    match action:
        case exp.RenameColumn() | exp.Drop() if _names_field(action):
            raise Unsupported(f"{action.sql('duckdb')} is not supported: fields of structs cannot be changed")
        case exp.AlterRename():
            client.rename_table(table, action.this.name, if_exists=if_exists)
        case exp.RenameColumn():
            client.rename_column(table, action.this.name, action.args["to"].name, if_exists=if_exists)
        case exp.ColumnDef():
            definition = action.copy()
            definition.set("exists", False)
            draft = _draft(session, [definition.sql("duckdb")])
            field = draft.schema.field(0).with_nullable(not draft.not_null)
            client.add_column(table, field, if_not_exists=bool(action.args.get("exists")), if_exists=if_exists)
        case exp.Drop() if str(action.args.get("kind")).upper() == "COLUMN":
            if_column = bool(action.args.get("exists"))
            for column in action.args.get("tables") or [action.this]:
                client.remove_column(table, column.name, if_column_exists=if_column, if_exists=if_exists)
        case exp.AlterColumn():
            _alter_column(session, client, table, action, if_exists=if_exists)
        case _:
            raise Unsupported(f"ALTER TABLE … {action.sql('duckdb')} is not supported")


def _names_field(action: exp.Expr) -> bool:
    """Whether it names a field of a struct, such as `s.a`, and no column."""
    return any(column.args.get("table") for column in action.find_all(exp.Column)) or action.find(exp.Dot) is not None


def _alter_column(
    session: Session, client: AirportClient, table: tuple[str, str], action: exp.AlterColumn, *, if_exists: bool
) -> None:
    column, arguments = action.this.name, action.args
    if arguments.get("dtype"):
        kind = _draft(session, [f"x {arguments['dtype'].sql('duckdb')}"]).schema.field(0).type
        using = arguments["using"].sql("duckdb") if arguments.get("using") else None
        client.change_column_type(table, column, kind, expression=using, if_exists=if_exists)
    elif arguments.get("allow_null") is True:
        client.drop_not_null(table, column, if_exists=if_exists)
    elif arguments.get("allow_null") is False:
        client.set_not_null(table, column, if_exists=if_exists)
    elif arguments.get("default") is not None:
        client.set_default(table, column, arguments["default"].sql("duckdb"), if_exists=if_exists)
    else:
        raise Unsupported(f"ALTER TABLE … {action.sql('duckdb')} is not supported")


# -- names -------------------------------------------------------------------------------------------------------------


def _schema(session: Session, node: exp.Table) -> tuple[AirportClient, str]:
    if not node.db:
        raise InvalidArgument(f"{node.sql('duckdb')} names no schema: write catalog.schema")
    return session.client(node.catalog or session.catalog), node.db
