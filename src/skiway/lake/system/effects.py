"""Functions of the schema `skiway` that change something: how they are declared and called, and those that change views.

They express what DuckDB's client has no statement for, such as `CALL lake.skiway.create_view('s.v', 'SELECT …')`: the client never
sends CREATE VIEW to a server. A function acts when it is executed, not when a statement that names it is planned.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from sqlglot import exp
from sqlglot.errors import SqlglotError

from skiway.airport import Parameter, ScanOptions, Table, TableFunction
from skiway.airport.wire.duckdb_sql import castable_type, identifier
from skiway.errors import AlreadyExists, InvalidArgument, NotFound, Unsupported
from skiway.foundation.resources import namespace_path
from skiway.lake.context import Context
from skiway.lake.system.tables import Row, schema_of
from skiway.lake.writing.inserting import Changes, check_auto_commit, check_managed
from skiway.metastore import Realm, namespaces, tables, views
from skiway.metastore.records.damage import damaged_error
from skiway.metastore.resources.hierarchy import full_path
from skiway.metastore.resources.view_dialects import DUCKDB, duckdb_sql
from skiway.model import v1
from skiway.sql import Find, Query, SqlView, including


class ActingFunction(TableFunction):
    """A function that acts when it is executed, and returns one row about it."""

    result: pa.Schema

    def schema_for(self, arguments: Mapping[str, pa.Scalar]) -> pa.Schema:  # noqa: ARG002
        """The columns of the result. Nothing changes yet."""
        return self.result

    def execute(self, arguments: Mapping[str, pa.Scalar], options: ScanOptions) -> Iterator[pa.RecordBatch]:
        """Act, and return one row about it."""
        values = self.act({name: value.as_py() for name, value in arguments.items()})
        row = pa.RecordBatch.from_pylist([dict(zip(self.result.names, values, strict=True))], self.result)
        yield row.select(self.result.names if options.columns is None else options.columns)

    @abstractmethod
    def act(self, given: Mapping[str, Any]) -> Row:
        """Act on the arguments; return the values of the result."""


def parameters_of(text: str) -> tuple[Parameter, ...]:
    """The parameters that a text declares, such as `name text, wait_s? double`. Those with `?` are named and optional."""
    return tuple(Parameter(field.name.rstrip("?"), field.type, field.name.endswith("?")) for field in schema_of(text))


@dataclass(frozen=True, slots=True)
class Effect:
    """A call of a function that changes the table or view with a name in a namespace."""

    context: Context
    catalog: v1.Catalog
    find: Find
    namespace: v1.Namespace
    schema: str
    name: str
    given: Mapping[str, Any]
    """The arguments; None for those that the caller left out."""

    @property
    def place(self) -> str:
        """The name with its schema."""
        return f"{self.schema}.{self.name}"

    @property
    def full_name(self) -> str:
        """The name for messages and results."""
        return f"{self.catalog.display_name}.{self.place}"

    @property
    def realm(self) -> Realm:
        """The metastore as the caller sees it."""
        return self.context.callers.realm()

    def query(self, sql: str, find: Find | None = None) -> Query:
        """A query of the caller, in which names without a schema are in this one."""
        owner = self.context.callers.principal.account_id
        return Query(sql, find or self.find, catalog=self.catalog.display_name, schema=self.schema, owner=owner)

    def table(self, permission: str = "table.write") -> v1.Table:
        """The table, on which the caller has the permission."""
        record = tables.find_any_case(self.realm, self.catalog, self.namespace.resource_id.id, self.name)
        self.context.callers.require(permission, self.namespace if record is None else record)
        if record is None:
            raise NotFound(f"table {self.full_name} does not exist", key="table", table=self.full_name)
        if record.damage:
            raise damaged_error("table", self.full_name, record.damage)
        return record

    def changes(self) -> Changes:
        """The changes of a managed table."""
        changes = Changes(self.context, self.table())
        changes.check_allowed()
        return changes


@dataclass(frozen=True, slots=True)
class Declaration:
    """A function that changes a table or view, which its first argument names."""

    name: str
    comment: str
    parameters: tuple[Parameter, ...]
    result: pa.Schema
    act: Callable[[Effect], Row]
    permission: str
    can_be_staged: bool


def effect(
    comment: str, parameters: str, result: str, *, permission: str = "", can_be_staged: bool = False
) -> Callable[[Callable[[Effect], Row]], Declaration]:
    """Declare a function with the name of the decorated one, which makes the change and returns the row about it.

    Callers need the `permission` on the namespace, in a managed catalog. Without one, the function asks for the rights on the
    table that it finds. If the change `can_be_staged`, it can wait for the commit of an explicit transaction.
    """
    columns = schema_of(result)
    return lambda act: Declaration(
        act.__name__, comment, parameters_of(parameters), columns, act, permission, can_be_staged
    )


class EffectFunction(ActingFunction):
    """A declared function, in a catalog."""

    def __init__(self, declared: Declaration, context: Context, catalog: v1.Catalog, find: Find) -> None:
        self.name, self.comment = declared.name, declared.comment
        self.parameters, self.result = declared.parameters, declared.result
        self._declared, self._context, self._catalog, self._find = declared, context, catalog, find

    def act(self, given: Mapping[str, Any]) -> Row:
        """Make the change, if the caller may."""
        callers, permission = self._context.callers, self._declared.permission
        table = table_name(given["name"] or "", self._catalog.display_name, self.name)
        namespace = namespaces.find_any_case(callers.realm(), self._catalog, namespace_path(table.db))
        if namespace is None:
            raise NotFound(f"schema {table.db!r} does not exist: create it first", key="schema", schema=table.db)
        if permission:
            callers.require(permission, namespace)
            check_managed(self._catalog)
        if not self._declared.can_be_staged:
            check_auto_commit()
        call = Effect(self._context, self._catalog, self._find, namespace, table.db, table.name, given)
        row = self._declared.act(call)
        self._context.versions.changed(callers.realm())
        return row


def table_name(name: str, catalog: str, function: str) -> exp.Table:
    """The schema and name of a table, which an argument of a function in this catalog names."""
    try:
        table = exp.to_table(name, dialect="duckdb")
    except (SqlglotError, ValueError) as error:
        raise _bad_name(name) from error
    if not (table.name and table.db):
        raise _bad_name(name)
    if table.catalog and table.catalog.casefold() != catalog.casefold():
        raise InvalidArgument(
            f"{name} is not in catalog {catalog}: call {table.catalog}.skiway.{function}", key="name.catalog"
        )
    return table


def _bad_name(name: str) -> InvalidArgument:
    return InvalidArgument(f"{name!r} is not the name of a table or view: write schema.name, such as 'sales.people'")


# --- views ------------------------------------------------------------------------------------------------------------

_REPLACED: Final = (
    "description",
    "sql_definitions",
    "base_relations",
    "creation_search_path",
    "output_columns",
    "rights",
)


@effect(
    "Creates a view: create_view('s.v', 'SELECT …', replace => true, rights => 'definer', dialect => 'spark', comment => '…').",
    "name text, sql text, replace? boolean, dialect? text, comment? text, rights? text",
    "view text, action text, columns text[]",
    permission="view.write",
)
def create_view(call: Effect) -> Row:
    """Store a query under a name, by which all clients can read it like a table. Binding it finds all mistakes in it."""
    existing, given = _existing(call), call.given
    if existing is not None and not given["replace"]:
        raise AlreadyExists(f"view {call.place} already exists: add replace => true to replace it", key="view")
    if _is_table(call):
        raise AlreadyExists(f"{call.place} is a table: choose another name for the view", key="view.is_table")
    definition = v1.ViewSql(sql=given["sql"] or "", dialect=(given["dialect"] or DUCKDB).strip().lower())
    if not definition.sql.strip():
        raise InvalidArgument("create_view needs SQL: write create_view('s.v', 'SELECT …')", key="view.sql")
    rights = _rights(given["rights"])
    spec = _spec(call, definition)
    spec.description = given["comment"] or ""
    spec.rights = rights
    if existing is None:
        views.create(call.realm, v1.CreateViewRequest(spec=spec))
    else:
        request = v1.UpdateViewRequest(view_id=existing.resource_id, spec=spec)
        request.update_mask.paths.extend(_REPLACED)
        views.update(call.realm, request)
    columns = [f"{column.name} {column.logical_type}" for column in spec.output_columns]
    return call.full_name, "created" if existing is None else "replaced", columns


def _existing(call: Effect) -> v1.View | None:
    return views.find_any_case(call.realm, call.catalog, call.namespace.resource_id.id, call.name)


def _is_table(call: Effect) -> bool:
    return tables.find_any_case(call.realm, call.catalog, call.namespace.resource_id.id, call.name) is not None


def _spec(call: Effect, definition: v1.ViewSql) -> v1.ViewSpec:
    """The view, with the columns of its query and the tables that it reads."""
    engine, catalog, path = call.context.queries, call.catalog.display_name, full_path(call.namespace)
    sql = duckdb_sql([definition], namespace=path, catalogs={catalog})
    full_name = (catalog, call.schema, call.name)
    find = including(call.find, full_name, _Candidate(sql))
    columns = engine.columns(call.query(f"FROM {'.'.join(map(identifier, full_name))}", find))
    read = engine.tables(call.query(sql))
    return v1.ViewSpec(
        display_name=call.name,
        catalog_id=call.catalog.resource_id,
        namespace_id=call.namespace.resource_id,
        sql_definitions=[definition],
        base_relations=[v1.NameRef(catalog=c, path=namespace_path(s), name=t) for c, s, t in read],
        creation_search_path=path,
        output_columns=[
            v1.SchemaColumn(name=field.name, logical_type=castable_type(field), nullable=True, ordinal=number)
            for number, field in enumerate(columns, 1)
        ],
    )


def _rights(given: str | None) -> v1.ViewRights.ValueType:
    name = (given or "invoker").strip().lower()
    if name not in ("invoker", "definer"):
        raise InvalidArgument(f"rights is {given!r}: use 'invoker' or 'definer'", key="view.rights")
    return v1.ViewRights.Value(f"VR_{name.upper()}")


@effect(
    "Drops a view: drop_view('s.v', if_exists => true).",
    "name text, if_exists? boolean",
    "view text, action text",
    permission="view.write",
)
def drop_view(call: Effect) -> Row:
    """Delete a view."""
    view = _existing(call)
    if view is not None:
        views.delete(call.realm, v1.DeleteViewRequest(view_id=view.resource_id))
    elif _is_table(call):
        raise Unsupported(f"{call.place} is a table: use DROP TABLE", key="view.is_table")
    elif not call.given["if_exists"]:
        raise NotFound(f"view {call.full_name} does not exist", key="view", view=call.full_name)
    return call.full_name, "dropped" if view is not None else "none"


class _Candidate(Table, SqlView):
    """A view before it is stored, so that its query is bound exactly as it will be, and cycles are found."""

    name = "candidate"
    schema = pa.schema([])

    def __init__(self, sql: str) -> None:
        self._sql = sql

    @property
    def sql(self) -> str:
        """The query."""
        return self._sql

    def scan(self, options: ScanOptions) -> pa.Table:
        """Not used: the engine runs the query."""
        raise NotImplementedError
