"""The functions `create_view` and `drop_view` of the schema `skiway`.

DuckDB's client never sends CREATE VIEW to a server. `CALL lake.skiway.create_view('s.v', 'SELECT …')` does it instead. Functions
act when they are executed, not when a statement that names them is planned.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
from sqlglot import exp
from sqlglot.errors import SqlglotError

from skiway.airport import Parameter, ScanOptions, Table, TableFunction
from skiway.airport.wire.duckdb_sql import duckdb_type, identifier
from skiway.errors import AlreadyExists, InvalidArgument, NotFound, Unsupported
from skiway.lake.commits import check_auto_commit, check_managed
from skiway.lake.context import Context
from skiway.lake.schema import namespace_path
from skiway.lake.views import DUCKDB, duckdb_sql
from skiway.metastore import namespaces, tables, views
from skiway.metastore.resources.hierarchy import full_path
from skiway.model import v1
from skiway.sql import Find, Query, SqlView

__all__ = ["CreateViewFunction", "DropViewFunction"]

_REPLACED: Final = ("description", "sql_definitions", "base_relations", "creation_search_path", "output_columns")


class _ViewFunction(TableFunction):
    """A function that changes a view, whose name is the first argument."""

    result: pa.Schema

    def __init__(self, context: Context, catalog: v1.Catalog, find: Find) -> None:
        self._context, self._catalog, self._find = context, catalog, find

    def schema_for(self, arguments: Mapping[str, pa.Scalar]) -> pa.Schema:  # noqa: ARG002
        """The columns of the result. Nothing changes yet."""
        return self.result

    def execute(self, arguments: Mapping[str, pa.Scalar], options: ScanOptions) -> Iterator[pa.RecordBatch]:
        """Make the change, and return one row about it."""
        given = {name: value.as_py() for name, value in arguments.items()}
        namespace, schema, name = self._place(given["name"] or "")
        self._context.callers.require("view.write", namespace)
        check_managed(self._catalog)
        check_auto_commit()
        values = self.change(namespace, schema, name, given)
        self._context.versions.changed(self._context.callers.realm())
        rows = pa.RecordBatch.from_pydict({key: [value] for key, value in values.items()}, self.result)
        yield rows.select(self.result.names if options.columns is None else options.columns)

    @abstractmethod
    def change(self, namespace: v1.Namespace, schema: str, name: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """Make the change; return the values of the result."""

    def _place(self, name: str) -> tuple[v1.Namespace, str, str]:
        """The namespace, its schema name, and the name of the view in it."""
        try:
            table = exp.to_table(name, dialect=DUCKDB)
        except (SqlglotError, ValueError) as error:
            raise _bad_name(name) from error
        if not (table.name and table.db):
            raise _bad_name(name)
        if table.catalog and table.catalog.casefold() != self._catalog.display_name.casefold():
            raise InvalidArgument(
                f"{name} is not in catalog {self._catalog.display_name}: call {table.catalog}.skiway.{self.name}",
                key="view.name",
            )
        found = namespaces.find_any_case(self._context.callers.realm(), self._catalog, namespace_path(table.db))
        if found is None:
            raise NotFound(f"schema {table.db!r} does not exist: create it first", key="schema", schema=table.db)
        return found, table.db, table.name

    def _existing(self, namespace: v1.Namespace, name: str) -> v1.View | None:
        return views.find_any_case(self._context.callers.realm(), self._catalog, namespace.resource_id.id, name)


class CreateViewFunction(_ViewFunction):
    """`create_view(name, sql)`: stores a query under a name, by which all clients can read it like a table."""

    name = "create_view"
    comment = "Creates a view: create_view('s.v', 'SELECT …', replace => true, dialect => 'spark', comment => '…')."
    parameters = (
        Parameter("name", pa.string()),
        Parameter("sql", pa.string()),
        Parameter("replace", pa.bool_(), named=True),
        Parameter("dialect", pa.string(), named=True),
        Parameter("comment", pa.string(), named=True),
    )
    result = pa.schema({"view": pa.string(), "action": pa.string(), "columns": pa.list_(pa.string())})

    def change(self, namespace: v1.Namespace, schema: str, name: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """Bind the query, which finds all mistakes in it, and store it."""
        existing = self._existing(namespace, name)
        if existing is not None and not given["replace"]:
            raise AlreadyExists(
                f"view {schema}.{existing.display_name} already exists: add replace => true to replace it", key="view"
            )
        realm = self._context.callers.realm()
        if tables.find_any_case(realm, self._catalog, namespace.resource_id.id, name) is not None:
            raise AlreadyExists(f"{schema}.{name} is a table: choose another name for the view", key="view.is_table")
        definition = v1.ViewSql(sql=given["sql"] or "", dialect=(given["dialect"] or DUCKDB).strip().lower())
        if not definition.sql.strip():
            raise InvalidArgument("create_view needs SQL: write create_view('s.v', 'SELECT …')", key="view.sql")
        spec = self._spec(namespace, schema, name, definition)
        spec.description = given["comment"] or ""
        if existing is None:
            views.create(realm, v1.CreateViewRequest(spec=spec))
        else:
            request = v1.UpdateViewRequest(view_id=existing.resource_id, spec=spec)
            request.update_mask.paths.extend(_REPLACED)
            views.update(realm, request)
        return {
            "view": f"{self._catalog.display_name}.{schema}.{name}",
            "action": "created" if existing is None else "replaced",
            "columns": [f"{each.name} {each.logical_type}" for each in spec.output_columns],
        }

    def _spec(self, namespace: v1.Namespace, schema: str, name: str, definition: v1.ViewSql) -> v1.ViewSpec:
        """The view, with the columns of its query and the tables that it reads."""
        engine, catalog = self._context.queries, self._catalog.display_name
        account = self._context.callers.principal.account_id
        sql = duckdb_sql([definition])
        full_name = ".".join(map(identifier, (catalog, schema, name)))
        find = _finding(_Candidate(sql), (catalog, schema, name), self._find)
        columns = engine.columns(Query(f"FROM {full_name}", find, catalog=catalog, owner=account))
        read = engine.tables(Query(sql, self._find, catalog=catalog, schema=schema, owner=account))
        return v1.ViewSpec(
            display_name=name,
            catalog_id=self._catalog.resource_id,
            namespace_id=namespace.resource_id,
            sql_definitions=[definition],
            base_relations=[v1.NameRef(catalog=c, path=namespace_path(s), name=t) for c, s, t in read],
            creation_search_path=full_path(namespace),
            output_columns=[
                v1.SchemaColumn(name=field.name, logical_type=duckdb_type(field), nullable=True, ordinal=number)
                for number, field in enumerate(columns, 1)
            ],
        )


class DropViewFunction(_ViewFunction):
    """`drop_view(name)`: deletes a view."""

    name = "drop_view"
    comment = "Drops a view: drop_view('s.v', if_exists => true)."
    parameters = (Parameter("name", pa.string()), Parameter("if_exists", pa.bool_(), named=True))
    result = pa.schema({"view": pa.string(), "action": pa.string()})

    def change(self, namespace: v1.Namespace, schema: str, name: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """Delete the view."""
        realm, found = self._context.callers.realm(), self._existing(namespace, name)
        full_name = f"{self._catalog.display_name}.{schema}.{name}"
        if found is not None:
            views.delete(realm, v1.DeleteViewRequest(view_id=found.resource_id))
        elif tables.find_any_case(realm, self._catalog, namespace.resource_id.id, name) is not None:
            raise Unsupported(f"{schema}.{name} is a table: use DROP TABLE", key="view.is_table")
        elif not given["if_exists"]:
            raise NotFound(f"view {full_name} does not exist", key="view", view=full_name)
        return {"view": full_name, "action": "dropped" if found is not None else "none"}


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


def _finding(view: Table, name: tuple[str, str, str], find: Find) -> Callable[[str, str, str], Table | None]:
    """A lookup in which the name is that of the view."""
    own = tuple(map(str.casefold, name))
    return lambda *wanted: view if tuple(map(str.casefold, wanted)) == own else find(*wanted)


def _bad_name(name: str) -> InvalidArgument:
    return InvalidArgument(
        f"{name!r} is not the name of a view: write schema.view, such as 'sales.top'", key="view.name"
    )
