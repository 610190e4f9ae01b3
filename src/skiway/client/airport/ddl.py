"""CREATE, DROP and ALTER. Like DuckDB, the client updates its own listing from each response."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec
import pyarrow as pa

from skiway.airport.wire import protocol
from skiway.airport.wire.duckdb_sql import duckdb_type
from skiway.airport.wire.protocol import CreateSchemaRequest, CreateTableRequest, decode, encode, packed
from skiway.client.airport.calls import ContentsMessage, Table, TableName
from skiway.client.airport.session import Session
from skiway.client.connection import parse_message
from skiway.client.errors import blame_server
from skiway.errors import AlreadyExists, InvalidArgument, NotFound
from skiway.model.flight_pb2 import FlightInfo

OnConflict = Literal["error", "ignore", "replace"]


class Definitions:
    """The methods of a client that change schemas and tables."""

    _session: Session

    def create_schema(
        self, name: str, *, comment: str = "", tags: Mapping[str, str] | None = None, if_not_exists: bool = False
    ) -> None:
        """Create a schema."""
        session, tags = self._session, dict(tags or {})
        session.poll_version()
        session.begin()
        request = CreateSchemaRequest(session.calls.catalog, name, comment or None, tags)
        try:
            response = session.calls.catalog_action("create_schema", encode(request), session.explicit_context())
        except AlreadyExists:
            if not if_not_exists:  # the protocol has no such flag
                raise
            return
        with blame_server(session.location, "create_schema"):
            contents = decode(response, ContentsMessage, "create_schema")
        if session.cached_listing is not None:
            session.cached_listing.add_schema(name, contents, comment=comment, tags=tags)

    def drop_schema(self, name: str, *, if_exists: bool = False) -> None:
        """Drop an empty schema."""
        self._session.poll_version()
        self._session.begin()
        listing = self._session.listing()
        self._drop("schema", "", name, if_exists=if_exists)
        listing.remove_schema(name)

    def create_table(
        self,
        name: TableName,
        schema: pa.Schema,
        *,
        not_null: Sequence[str] = (),
        primary_key: Sequence[str] = (),
        unique: Iterable[str | Sequence[str]] = (),
        checks: Sequence[str] = (),
        on_conflict: OnConflict = "error",
    ) -> Table:
        """Create a table.

        `not_null` names columns in addition to the fields that are not nullable. Each item of `unique` is a column or
        several, each of `checks` an SQL expression. Field metadata sets the defaults and comments of columns, as
        `default` and `comment`.
        """
        session = self._session
        session.begin()
        schema_name, own_name = session.listing().split(name)
        body = _create_table_body(
            session,
            (schema_name, own_name),
            schema,
            on_conflict,
            not_null=not_null,
            primary_key=primary_key,
            unique=[(columns,) if isinstance(columns, str) else tuple(columns) for columns in unique],
            checks=checks,
        )
        session.poll_version()
        return self._define_table("create_table", body, schema_name)

    def drop_table(self, name: TableName, *, if_exists: bool = False) -> None:
        """Drop a table."""
        self._session.poll_version()
        self._session.begin()
        table = self._existing(name, if_exists)
        if table is not None:
            self._session.poll_version()
            self._drop("table", table.schema_name, table.name, if_exists=if_exists)
            self._session.listing().remove_table(table)

    def rename_table(self, name: TableName, new_name: str, *, if_exists: bool = False) -> None:
        """Rename a table within its schema."""
        table = self._alter("rename_table", name, if_exists, new_table_name=new_name)
        if table is not None:
            self._session.listing().remove_table(table, unless=new_name)

    # -- columns, constraints and struct fields; if_exists is ALTER TABLE IF EXISTS ------------------------------------

    def add_column(
        self, table: TableName, field: pa.Field, *, if_not_exists: bool = False, if_exists: bool = False
    ) -> None:
        """Add a column at the end. A `default` in the field's metadata fills existing rows."""
        column = _packed_field(field)
        self._alter("add_column", table, if_exists, if_column_not_exists=if_not_exists, column_schema=column)

    def remove_column(
        self,
        table: TableName,
        column: str,
        *,
        if_column_exists: bool = False,
        cascade: bool = False,
        if_exists: bool = False,
    ) -> None:
        """Remove a column; `cascade` also removes the constraints that refer to it."""
        flags = {"if_column_exists": if_column_exists, "cascade": cascade}
        self._alter("remove_column", table, if_exists, removed_column=column, **flags)

    def rename_column(self, table: TableName, column: str, new_name: str, *, if_exists: bool = False) -> None:
        """Rename a column."""
        self._alter("rename_column", table, if_exists, new_name=new_name, old_name=column)

    def change_column_type(
        self,
        table: TableName,
        column: str,
        data_type: pa.DataType,
        *,
        expression: str | None = None,
        if_exists: bool = False,
    ) -> None:
        """Change the type of a column. The SQL `expression` computes the new values; by default they are cast."""
        field = pa.field(column, data_type)
        if expression is None:  # the SQL that DuckDB sends for ALTER COLUMN … TYPE without USING
            expression = f"CAST({_quoted(column)} AS {duckdb_type(field)})"
        self._alter("change_column_type", table, if_exists, column_schema=_packed_field(field), expression=expression)

    def set_not_null(self, table: TableName, column: str, *, if_exists: bool = False) -> None:
        """Make a column NOT NULL."""
        repeated = ("ignore_not_found", if_exists)  # DuckDB sends this key twice, so servers must accept that
        self._alter("set_not_null", table, if_exists, repeated, column_name=column)

    def drop_not_null(self, table: TableName, column: str, *, if_exists: bool = False) -> None:
        """Make a column nullable."""
        self._alter("drop_not_null", table, if_exists, column_name=column)

    def set_default(self, table: TableName, column: str, expression: str, *, if_exists: bool = False) -> None:
        """Set the default of a column to an SQL expression; it applies to INSERT from SQL only."""
        self._alter("set_default", table, if_exists, column_name=column, expression=expression)

    def add_constraint(self, table: TableName, constraint: str, *, if_exists: bool = False) -> None:
        """Add a constraint, written in SQL: `CHECK (a < b)` or `UNIQUE (a, b)`."""
        self._alter("add_constraint", table, if_exists, constraint=constraint)

    def add_field(
        self,
        table: TableName,
        path: Sequence[str],
        field: pa.Field,
        *,
        if_not_exists: bool = False,
        if_exists: bool = False,
    ) -> None:
        """Add a field at the end of the struct at `path`."""
        self._alter(
            "add_field",
            table,
            if_exists,
            if_field_not_exists=if_not_exists,
            column_schema=_packed_field(field.with_name(path[-1] if path else "")),
            column_path=list(path),
            field_name=field.name,  # an extension of ours: DuckDB does not send the field's name
        )

    def rename_field(self, table: TableName, path: Sequence[str], new_name: str, *, if_exists: bool = False) -> None:
        """Rename the struct field at `path`."""
        self._alter("rename_field", table, if_exists, column_path=list(path), new_name=new_name)

    def remove_field(
        self,
        table: TableName,
        path: Sequence[str],
        *,
        if_field_exists: bool = False,
        cascade: bool = False,
        if_exists: bool = False,
    ) -> None:
        """Remove the struct field at `path`."""
        flags = {"if_column_exists": if_field_exists, "cascade": cascade}
        self._alter("remove_field", table, if_exists, column_path=list(path), **flags)

    # -- the calls -----------------------------------------------------------------------------------------------------

    def _alter(
        self, action: str, name: TableName, if_exists: bool, *repeated: tuple[str, Any], **members: Any
    ) -> Table | None:
        """Run an action that alters a table; return the table as it was, or None if `if_exists` and there is none.

        `members` are the action's own members of the request, in DuckDB's order; `repeated` has keys that occur twice.
        """
        self._session.begin()
        table = self._existing(name, if_exists)
        if table is not None:
            self._session.poll_version()
            target = {"catalog": self._session.calls.catalog, "schema": table.schema_name, "name": table.name}
            body = _packed_map(*{**target, "ignore_not_found": if_exists, **members}.items(), *repeated)
            self._define_table(action, body, table.schema_name)
        return table

    def _existing(self, name: TableName, if_exists: bool) -> Table | None:
        """The table called `name`; None if there is none, and `if_exists`."""
        try:
            return self._session.listing().table(name)
        except NotFound:
            if if_exists:
                return None
            raise

    def _define_table(self, action: str, body: bytes, schema_name: str) -> Table:
        session = self._session
        response = session.calls.catalog_action(action, body, session.explicit_context())
        info = parse_message(FlightInfo, response, session.location)
        with blame_server(session.location, action):
            return session.listing().put_table(info, schema_name)

    def _drop(self, kind: str, schema_name: str, name: str, *, if_exists: bool) -> None:
        calls = self._session.calls
        target = {"type": kind, "catalog_name": calls.catalog, "schema_name": schema_name, "name": name}
        body = _packed_map(*target.items(), ("ignore_not_found", if_exists))
        calls.drop(f"drop_{kind}", body, self._session.explicit_context())


def create_table_for_rows(session: Session, name: TableName, schema: pa.Schema, on_conflict: OnConflict) -> Table:
    """Create a table for CREATE TABLE AS; return where to insert its rows, without adding it to the listing."""
    schema_name, own_name = session.listing().split(name)
    body = _create_table_body(session, (schema_name, own_name), schema, on_conflict)
    session.poll_version()
    rows_follow = (protocol.ROWS_FOLLOW, "1")
    response = session.calls.catalog_action("create_table", body, session.explicit_context(), rows_follow)
    info = parse_message(FlightInfo, response, session.location)
    with blame_server(session.location, "create_table"):
        return session.listing().parse_table(info, schema_name)


def _create_table_body(
    session: Session,
    name: tuple[str, str],
    schema: pa.Schema,
    on_conflict: OnConflict,
    *,
    not_null: Sequence[str] = (),
    primary_key: Sequence[str] = (),
    unique: Sequence[tuple[str, ...]] = (),
    checks: Sequence[str] = (),
) -> bytes:
    """The body of `create_table`, in which DuckDB separates constraints on one column from those on several."""
    for column in (*not_null, *primary_key, *(name for columns in unique for name in columns)):
        if column not in schema.names:
            raise InvalidArgument(f"a constraint names column {column!r}; the table has {', '.join(schema.names)}")
    required = [*(field.name for field in schema if not field.nullable or field.name in not_null), *primary_key]
    columns = packed(_all_nullable(schema).serialize().to_pybytes())
    constraints: dict[str, Any] = {
        "check_constraints": [f"({check})" for check in checks],
        "not_null_constraints": [schema.names.index(name) for name in dict.fromkeys(required)],
        "primary_key_columns": list(primary_key) if len(primary_key) == 1 else [],
        "unique_columns": [columns[0] for columns in unique if len(columns) == 1],
        "multi_key_primary_keys": list(primary_key) if len(primary_key) > 1 else [],
        "extra_constraints": [f"UNIQUE({', '.join(map(_quoted, columns))})" for columns in unique if len(columns) > 1],
    }
    request = CreateTableRequest(session.calls.catalog, *name, columns, on_conflict)
    return encode(msgspec.structs.replace(request, **constraints))


def _all_nullable(schema: pa.Schema) -> pa.Schema:
    """NOT NULL is sent separately."""
    return pa.schema([field.with_nullable(True) for field in schema])


def _packed_field(field: pa.Field) -> Any:
    """One column as the member of a request."""
    return packed(_all_nullable(pa.schema([field])).serialize().to_pybytes())


def _quoted(name: str) -> str:
    return name if name.isidentifier() and name.islower() else '"' + name.replace('"', '""') + '"'


def _packed_map(*members: tuple[str, Any]) -> bytes:
    """A small MessagePack map with the members in this order; a key may occur twice."""
    return bytes([0x80 | len(members)]) + b"".join(encode(part) for member in members for part in member)
