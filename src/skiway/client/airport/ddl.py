"""CREATE, DROP and ALTER. Like DuckDB, the client updates its own listing from each response."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec
import pyarrow as pa

from skiway.airport.wire.duckdb_sql import duckdb_type
from skiway.airport.wire.protocol import CreateSchemaRequest, CreateTableRequest, decode, encode, packed
from skiway.client.airport.calls import ContentsMessage, Table, TableName
from skiway.client.airport.session import Session
from skiway.client.connection import parse_message
from skiway.client.errors import blame_server
from skiway.errors import AlreadyExists, InvalidArgument, NotFound
from skiway.model.flight_pb2 import FlightInfo

OnConflict = Literal["error", "ignore", "replace"]


def create_schema(session: Session, name: str, *, comment: str, tags: Mapping[str, str], if_not_exists: bool) -> None:
    """Create a schema and add it to the listing."""
    catalog = session.calls.catalog
    request = CreateSchemaRequest(catalog, name, comment or None, dict(tags))
    session.poll_version()
    session.begin()
    try:
        response = session.calls.define("create_schema", encode(request), session.explicit_context())
    except AlreadyExists:
        if not if_not_exists:  # the protocol has no such flag
            raise
        return
    with blame_server(session.location, "create_schema"):
        contents = decode(response, ContentsMessage, "create_schema")
    if session.cached_listing is not None:
        session.cached_listing.add_schema(name, contents, comment=comment, tags=dict(tags))


def drop_schema(session: Session, name: str, *, if_exists: bool) -> None:
    """Drop a schema and remove it from the listing."""
    session.poll_version()
    session.begin()
    listing = session.listing()
    _drop(session, "schema", "", name, if_exists=if_exists)
    listing.remove_schema(name)


def create_table(
    session: Session,
    name: TableName,
    schema: pa.Schema,
    *,
    not_null: Sequence[str],
    primary_key: Sequence[str],
    unique: Iterable[str | Sequence[str]],
    checks: Sequence[str],
    on_conflict: OnConflict,
) -> Table:
    """Create a table and add it to the listing."""
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
    return _define_table(session, "create_table", body, schema_name)


def create_table_for_rows(session: Session, name: TableName, schema: pa.Schema, on_conflict: OnConflict) -> Table:
    """Create a table for CREATE TABLE AS; return where to insert its rows, without adding it to the listing."""
    schema_name, own_name = session.listing().split(name)
    body = _create_table_body(session, (schema_name, own_name), schema, on_conflict)
    session.poll_version()
    response = session.calls.create_for_rows(body, session.explicit_context())
    info = parse_message(FlightInfo, response, session.location)
    with blame_server(session.location, "create_table"):
        return session.listing().parse_table(info, schema_name)


def drop_table(session: Session, name: TableName, *, if_exists: bool) -> None:
    """Drop a table and remove it from the listing."""
    session.poll_version()
    session.begin()
    listing = session.listing()
    try:
        table = listing.table(name)
    except NotFound:
        if if_exists:
            return
        raise
    session.poll_version()
    _drop(session, "table", table.schema_name, table.name, if_exists=if_exists)
    listing.remove_table(table)


def rename_table(session: Session, name: TableName, new_name: str, *, if_exists: bool) -> None:
    """Rename a table, in the listing too."""
    table = alter_table(session, "rename_table", name, if_exists, [("new_table_name", new_name)])
    if table is not None:
        session.listing().remove_table(table, unless=new_name)


def alter_table(
    session: Session, action: str, name: TableName, if_exists: bool, members: Sequence[tuple[str, Any]]
) -> Table | None:
    """Run an action that alters a table; return the table as it was, or None if `if_exists` and there is none.

    `members` are the action's own members of the request, in DuckDB's order; a key may occur twice.
    """
    session.begin()
    try:
        table = session.listing().table(name)
    except NotFound:
        if if_exists:
            return None
        raise
    session.poll_version()
    target = [("catalog", session.calls.catalog), ("schema", table.schema_name), ("name", table.name)]
    body = _packed_map([*target, ("ignore_not_found", if_exists), *members])
    _define_table(session, action, body, table.schema_name)
    return table


def _define_table(session: Session, action: str, body: bytes, schema_name: str) -> Table:
    response = session.calls.define(action, body, session.explicit_context())
    info = parse_message(FlightInfo, response, session.location)
    with blame_server(session.location, action):
        return session.listing().put_table(info, schema_name)


def _drop(session: Session, kind: str, schema_name: str, name: str, *, if_exists: bool) -> None:
    target = [("type", kind), ("catalog_name", session.calls.catalog), ("schema_name", schema_name), ("name", name)]
    body = _packed_map([*target, ("ignore_not_found", if_exists)])
    session.calls.drop(f"drop_{kind}", body, session.explicit_context())


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


def packed_field(field: pa.Field) -> Any:
    """One column as the member of a request."""
    return packed(_all_nullable(pa.schema([field])).serialize().to_pybytes())


def cast_expression(field: pa.Field) -> str:
    """The SQL that DuckDB sends for ALTER COLUMN … TYPE without USING."""
    return f"CAST({_quoted(field.name)} AS {duckdb_type(field)})"


def _quoted(name: str) -> str:
    return name if name.isidentifier() and name.islower() else '"' + name.replace('"', '""') + '"'


def _packed_map(members: Sequence[tuple[str, Any]]) -> bytes:
    """A small MessagePack map with the members in this order; a key may occur twice."""
    return bytes([0x80 | len(members)]) + b"".join(encode(part) for member in members for part in member)
