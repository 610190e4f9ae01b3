"""Functions of the schema `skiway` that change something, and those that change views.

They express what DuckDB's client has no statement for, such as `CALL lake.skiway.create_view('s.v', 'SELECT …')`: the client never
sends CREATE VIEW to a server. A function acts when it is executed, not when a statement that names it is planned.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import pyarrow as pa
from sqlglot import exp
from sqlglot.errors import SqlglotError

from skiway.airport import Parameter, ScanOptions, Table, TableFunction
from skiway.airport.wire.duckdb_sql import castable_type, identifier
from skiway.errors import AlreadyExists, InvalidArgument, NotFound, Unsupported
from skiway.foundation.resources import namespace_path
from skiway.lake.context import Context
from skiway.lake.writing.commits import Changes, check_auto_commit, check_managed
from skiway.metastore import namespaces, tables, views
from skiway.metastore.records.damage import damaged_error
from skiway.metastore.resources.hierarchy import full_path
from skiway.metastore.resources.view_dialects import DUCKDB, duckdb_sql
from skiway.model import v1
from skiway.sql import Find, Query, SqlView, including


class Place(NamedTuple):
    """Where a table or view is, or will be."""

    namespace: v1.Namespace
    schema: str
    name: str

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"


class ActingFunction(TableFunction):
    """A function that acts when it is executed, and returns one row about it."""

    result: pa.Schema

    def schema_for(self, arguments: Mapping[str, pa.Scalar]) -> pa.Schema:  # noqa: ARG002
        """The columns of the result. Nothing changes yet."""
        return self.result

    def execute(self, arguments: Mapping[str, pa.Scalar], options: ScanOptions) -> Iterator[pa.RecordBatch]:
        """Act, and return one row about it."""
        values = self.act({name: value.as_py() for name, value in arguments.items()})
        row = pa.RecordBatch.from_pydict({key: [value] for key, value in values.items()}, self.result)
        yield row.select(self.result.names if options.columns is None else options.columns)

    @abstractmethod
    def act(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Act on the arguments; return the values of the result."""


class EffectFunction(ActingFunction):
    """A function that changes a table or view, which its first argument names."""

    permission: str
    can_be_staged = False
    """Whether the change can wait for the commit of an explicit transaction."""

    def __init__(self, context: Context, catalog: v1.Catalog, find: Find) -> None:
        self._context, self._catalog, self._find = context, catalog, find

    def act(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Make the change, if the caller may."""
        place = self._place(given["name"] or "")
        self.check(place)
        if not self.can_be_staged:
            check_auto_commit()
        values = self.change(place, given)
        self._context.versions.changed(self._context.callers.realm())
        return values

    def check(self, place: Place) -> None:
        """Raise unless the caller may make the change."""
        self._context.callers.require(self.permission, place.namespace)
        check_managed(self._catalog)

    @abstractmethod
    def change(self, place: Place, given: Mapping[str, Any]) -> dict[str, Any]:
        """Make the change; return the values of the result."""

    def full_name(self, place: Place) -> str:
        """The name for messages and results."""
        return f"{self._catalog.display_name}.{place}"

    def _place(self, name: str) -> Place:
        table = table_name(name, self._catalog.display_name, self.name)
        found = namespaces.find_any_case(self._context.callers.realm(), self._catalog, namespace_path(table.db))
        if found is None:
            raise NotFound(f"schema {table.db!r} does not exist: create it first", key="schema", schema=table.db)
        return Place(found, table.db, table.name)


class ChangeTable(EffectFunction):
    """A function that changes an existing table."""

    permission = "table.write"

    def check(self, place: Place) -> None:
        """Nothing here: whether the caller may change the table is decided when it is found."""

    def found(self, place: Place) -> v1.Table:
        """The table, which the caller may change."""
        callers, name = self._context.callers, self.full_name(place)
        record = tables.find_any_case(callers.realm(), self._catalog, place.namespace.resource_id.id, place.name)
        callers.require(self.permission, place.namespace if record is None else record)
        if record is None:
            raise NotFound(f"table {name} does not exist", key="table", table=name)
        if record.damage:
            raise damaged_error("table", name, record.damage)
        return record

    def changes(self, place: Place) -> Changes:
        """The changes of a managed table."""
        found = Changes(self._context, self.found(place))
        found.check_allowed()
        return found


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


_REPLACED: Final = (
    "description",
    "sql_definitions",
    "base_relations",
    "creation_search_path",
    "output_columns",
    "rights",
)


class _ViewFunction(EffectFunction):
    """A function that changes a view."""

    permission = "view.write"

    def _existing(self, place: Place) -> v1.View | None:
        realm = self._context.callers.realm()
        return views.find_any_case(realm, self._catalog, place.namespace.resource_id.id, place.name)

    def _is_table(self, place: Place) -> bool:
        realm = self._context.callers.realm()
        return tables.find_any_case(realm, self._catalog, place.namespace.resource_id.id, place.name) is not None


class CreateViewFunction(_ViewFunction):
    """`create_view(name, sql)`: stores a query under a name, by which all clients can read it like a table."""

    name = "create_view"
    comment = "Creates a view: create_view('s.v', 'SELECT …', replace => true, rights => 'definer', dialect => 'spark', comment => '…')."
    parameters = (
        Parameter("name", pa.string()),
        Parameter("sql", pa.string()),
        Parameter("replace", pa.bool_(), named=True),
        Parameter("dialect", pa.string(), named=True),
        Parameter("comment", pa.string(), named=True),
        Parameter("rights", pa.string(), named=True),
    )
    result = pa.schema({"view": pa.string(), "action": pa.string(), "columns": pa.list_(pa.string())})

    def change(self, place: Place, given: Mapping[str, Any]) -> dict[str, Any]:
        """Bind the query, which finds all mistakes in it, and store it."""
        existing = self._existing(place)
        if existing is not None and not given["replace"]:
            raise AlreadyExists(f"view {place} already exists: add replace => true to replace it", key="view")
        if self._is_table(place):
            raise AlreadyExists(f"{place} is a table: choose another name for the view", key="view.is_table")
        definition = v1.ViewSql(sql=given["sql"] or "", dialect=(given["dialect"] or DUCKDB).strip().lower())
        if not definition.sql.strip():
            raise InvalidArgument("create_view needs SQL: write create_view('s.v', 'SELECT …')", key="view.sql")
        rights = _rights(given["rights"])
        realm, spec = self._context.callers.realm(), self._spec(place, definition)
        spec.description = given["comment"] or ""
        spec.rights = rights
        if existing is None:
            views.create(realm, v1.CreateViewRequest(spec=spec))
        else:
            request = v1.UpdateViewRequest(view_id=existing.resource_id, spec=spec)
            request.update_mask.paths.extend(_REPLACED)
            views.update(realm, request)
        return {
            "view": self.full_name(place),
            "action": "created" if existing is None else "replaced",
            "columns": [f"{each.name} {each.logical_type}" for each in spec.output_columns],
        }

    def _spec(self, place: Place, definition: v1.ViewSql) -> v1.ViewSpec:
        """The view, with the columns of its query and the tables that it reads."""
        engine, catalog = self._context.queries, self._catalog.display_name
        account = self._context.callers.principal.account_id
        sql = duckdb_sql([definition], namespace=full_path(place.namespace), catalogs={catalog})
        full_name = (catalog, place.schema, place.name)
        find = including(self._find, full_name, _Candidate(sql))
        columns = engine.columns(
            Query(f"FROM {'.'.join(map(identifier, full_name))}", find, catalog=catalog, owner=account)
        )
        read = engine.tables(Query(sql, self._find, catalog=catalog, schema=place.schema, owner=account))
        return v1.ViewSpec(
            display_name=place.name,
            catalog_id=self._catalog.resource_id,
            namespace_id=place.namespace.resource_id,
            sql_definitions=[definition],
            base_relations=[v1.NameRef(catalog=c, path=namespace_path(s), name=t) for c, s, t in read],
            creation_search_path=full_path(place.namespace),
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


class DropViewFunction(_ViewFunction):
    """`drop_view(name)`: deletes a view."""

    name = "drop_view"
    comment = "Drops a view: drop_view('s.v', if_exists => true)."
    parameters = (Parameter("name", pa.string()), Parameter("if_exists", pa.bool_(), named=True))
    result = pa.schema({"view": pa.string(), "action": pa.string()})

    def change(self, place: Place, given: Mapping[str, Any]) -> dict[str, Any]:
        """Delete the view."""
        found = self._existing(place)
        if found is not None:
            views.delete(self._context.callers.realm(), v1.DeleteViewRequest(view_id=found.resource_id))
        elif self._is_table(place):
            raise Unsupported(f"{place} is a table: use DROP TABLE", key="view.is_table")
        elif not given["if_exists"]:
            raise NotFound(f"view {self.full_name(place)} does not exist", key="view", view=self.full_name(place))
        return {"view": self.full_name(place), "action": "dropped" if found is not None else "none"}


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
