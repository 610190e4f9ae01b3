"""CREATE, DROP and ALTER. The client rebuilds its own entry from each answer, as DuckDB does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec
import pyarrow as pa

from skiway.airport.wire.duckdb_sql import duckdb_type
from skiway.airport.wire.payloads import CreateSchemaRequest, CreateTableRequest, decode, encode, packed
from skiway.client.airport.catalog import ContentsAnswer, Table, TableName
from skiway.client.airport.connection import parsed
from skiway.client.airport.errors import nonsense
from skiway.client.airport.session import Attached
from skiway.errors import AlreadyExists, InvalidArgument, NotFound
from skiway.model.flight_pb2 import FlightInfo

__all__ = ["Defining", "OnConflict"]

OnConflict = Literal["error", "ignore", "replace"]


class Defining(Attached):
    """The statements that change what there is.

    `if_exists` is ALTER TABLE IF EXISTS: nothing happens where this client knows no such table.
    """

    # -- schemas --------------------------------------------------------------------------------------------------

    def create_schema(
        self, name: str, *, comment: str = "", tags: Mapping[str, str] | None = None, if_not_exists: bool = False
    ) -> None:
        """A new schema."""
        asked = CreateSchemaRequest(self.catalog, name, comment or None, dict(tags or {}))
        try:
            answer = self._catalog_change("create_schema", encode(asked))
        except AlreadyExists:
            if not if_not_exists:  # the wire has no such flag
                raise
            return
        with nonsense(self.location, "create_schema"):
            contents = decode(answer, ContentsAnswer, "create_schema")
        if self._loaded is not None:
            self._loaded.add_schema(name, contents, comment=comment, tags=dict(tags or {}))

    def drop_schema(self, name: str, *, if_exists: bool = False) -> None:
        """Remove an empty schema."""
        self._ask_version()
        self._begin()
        listing = self._listing()
        self._drop("schema", "", name, if_exists)
        listing.remove_schema(name)

    # -- tables ---------------------------------------------------------------------------------------------------

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
        """A new table. `not_null` adds to the fields that are not nullable; `unique` has a column or several each.

        `checks` are SQL. Defaults and comments of columns go into their fields' metadata, as `default` and `comment`.
        """
        self._begin()
        schema_name, own_name = self._listing().split(name)
        request = self._create_request(schema_name, own_name, schema, on_conflict)
        asked = _create_table(
            msgspec.structs.replace(request, check_constraints=[f"({check})" for check in checks]),
            schema,
            not_null=not_null,
            primary_key=primary_key,
            unique=[(columns,) if isinstance(columns, str) else tuple(columns) for columns in unique],
        )
        self._ask_version()
        return self._kept("create_table", asked, schema_name)

    def _create_request(
        self, schema_name: str, name: str, schema: pa.Schema, on_conflict: OnConflict
    ) -> CreateTableRequest:
        columns = packed(_announced(schema).serialize().to_pybytes())
        return CreateTableRequest(self.catalog, schema_name, name, columns, on_conflict)

    def _created_for_rows(self, name: TableName, schema: pa.Schema, on_conflict: OnConflict) -> Table:
        """Where the first rows of a new table are to be inserted; this client does not know the table yet."""
        schema_name, own_name = self._listing().split(name)
        request = self._create_request(schema_name, own_name, schema, on_conflict)
        asked = _create_table(request, schema, not_null=(), primary_key=(), unique=())
        self._ask_version()
        info: FlightInfo = parsed(FlightInfo, self._calls.create_for_rows(asked, self._explicit()), self.location)
        with nonsense(self.location, "create_table"):
            return self._listing().described(info, schema_name)

    def drop_table(self, name: TableName, *, if_exists: bool = False) -> None:
        """Remove a table."""
        self._ask_version()
        self._begin()
        listing = self._listing()
        try:
            table = listing.table(name)
        except NotFound:
            if if_exists:
                return
            raise
        self._ask_version()
        self._drop("table", table.schema_name, table.name, if_exists)
        listing.remove_table(table)

    def rename_table(self, name: TableName, new_name: str, *, if_exists: bool = False) -> None:
        """Give a table another name in the same schema."""
        table = self._alter("rename_table", name, if_exists, [("new_table_name", new_name)])
        if table is not None:
            self._listing().remove_table(table, unless=new_name)

    # -- columns --------------------------------------------------------------------------------------------------

    def add_column(
        self, table: TableName, field: pa.Field, *, if_not_exists: bool = False, if_exists: bool = False
    ) -> None:
        """A new last column; a `default` in the field's metadata fills it."""
        column = [("if_column_not_exists", if_not_exists), ("column_schema", _one(field))]
        self._alter("add_column", table, if_exists, column)

    def remove_column(
        self,
        table: TableName,
        column: str,
        *,
        if_column_exists: bool = False,
        cascade: bool = False,
        if_exists: bool = False,
    ) -> None:
        """Remove a column; `cascade` takes the constraints along that name it."""
        flags = [("if_column_exists", if_column_exists), ("cascade", cascade)]
        self._alter("remove_column", table, if_exists, [("removed_column", column), *flags])

    def rename_column(self, table: TableName, column: str, new_name: str, *, if_exists: bool = False) -> None:
        """Give a column another name."""
        self._alter("rename_column", table, if_exists, [("new_name", new_name), ("old_name", column)])

    def change_column_type(
        self,
        table: TableName,
        column: str,
        data_type: pa.DataType,
        *,
        expression: str | None = None,
        if_exists: bool = False,
    ) -> None:
        """Give a column another type; the SQL expression makes the new values, a cast if there is none."""
        field = pa.field(column, data_type)
        using = f"CAST({_quoted(column)} AS {duckdb_type(field)})" if expression is None else expression
        self._alter("change_column_type", table, if_exists, [("column_schema", _one(field)), ("expression", using)])

    def set_not_null(self, table: TableName, column: str, *, if_exists: bool = False) -> None:
        """Refuse NULLs from now on."""
        again = ("ignore_not_found", if_exists)  # DuckDB packs this key twice, and servers have to bear it
        self._alter("set_not_null", table, if_exists, [("column_name", column), again])

    def drop_not_null(self, table: TableName, column: str, *, if_exists: bool = False) -> None:
        """Allow NULLs."""
        self._alter("drop_not_null", table, if_exists, [("column_name", column)])

    def set_default(self, table: TableName, column: str, expression: str, *, if_exists: bool = False) -> None:
        """The SQL expression for values that SQL's INSERT leaves out."""
        self._alter("set_default", table, if_exists, [("column_name", column), ("expression", expression)])

    def add_constraint(self, table: TableName, constraint: str, *, if_exists: bool = False) -> None:
        """One more rule, as SQL: `CHECK (a < b)` or `UNIQUE (a, b)`."""
        self._alter("add_constraint", table, if_exists, [("constraint", constraint)])

    # -- members of structs ---------------------------------------------------------------------------------------

    def add_field(
        self,
        table: TableName,
        path: Sequence[str],
        field: pa.Field,
        *,
        if_not_exists: bool = False,
        if_exists: bool = False,
    ) -> None:
        """A new last member of the struct at `path`. Its name travels in a key of ours: DuckDB forgets to send it."""
        place = [
            ("if_field_not_exists", if_not_exists),
            ("column_schema", _one(field.with_name(path[-1]))),
            ("column_path", list(path)),
        ]
        self._alter("add_field", table, if_exists, [*place, ("field_name", field.name)])

    def rename_field(self, table: TableName, path: Sequence[str], new_name: str, *, if_exists: bool = False) -> None:
        """Give the struct member at `path` another name."""
        self._alter("rename_field", table, if_exists, [("column_path", list(path)), ("new_name", new_name)])

    def remove_field(
        self,
        table: TableName,
        path: Sequence[str],
        *,
        if_field_exists: bool = False,
        cascade: bool = False,
        if_exists: bool = False,
    ) -> None:
        """Remove the struct member at `path`."""
        flags = [("if_column_exists", if_field_exists), ("cascade", cascade)]
        self._alter("remove_field", table, if_exists, [("column_path", list(path)), *flags])

    # -- inside ---------------------------------------------------------------------------------------------------

    def _alter(self, action: str, name: TableName, if_exists: bool, members: list[tuple[str, Any]]) -> Table | None:
        """Alter a table and keep what is answered; gives the table as it was, None if there is none to alter."""
        self._begin()
        try:
            table = self._listing().table(name)
        except NotFound:
            if if_exists:
                return None
            raise
        self._ask_version()
        named = [("catalog", self.catalog), ("schema", table.schema_name), ("name", table.name)]
        self._kept(action, _packed_map([*named, ("ignore_not_found", if_exists), *members]), table.schema_name)
        return table

    def _kept(self, action: str, body: bytes, schema_name: str) -> Table:
        answer = self._calls.define(action, body, self._explicit())
        info: FlightInfo = parsed(FlightInfo, answer, self.location)
        with nonsense(self.location, action):
            return self._listing().put_table(info, schema_name)

    def _catalog_change(self, action: str, body: bytes) -> bytes:
        self._ask_version()
        self._begin()
        return self._calls.define(action, body, self._explicit())

    def _drop(self, kind: str, schema_name: str, name: str, if_exists: bool) -> None:
        members = [("type", kind), ("catalog_name", self.catalog), ("schema_name", schema_name), ("name", name)]
        self._calls.drop(f"drop_{kind}", _packed_map([*members, ("ignore_not_found", if_exists)]), self._explicit())


def _create_table(
    asked: CreateTableRequest,
    schema: pa.Schema,
    *,
    not_null: Sequence[str],
    primary_key: Sequence[str],
    unique: Sequence[tuple[str, ...]],
) -> bytes:
    """The body: constraints spelled as DuckDB spells them, one column here, several there."""
    for column in (*not_null, *primary_key, *(name for columns in unique for name in columns)):
        if column not in schema.names:
            raise InvalidArgument(f"a constraint names column {column!r}; the table has {', '.join(schema.names)}")
    strict = [*(field.name for field in schema if not field.nullable or field.name in not_null), *primary_key]
    more: dict[str, Any] = {
        "not_null_constraints": [schema.names.index(name) for name in dict.fromkeys(strict)],
        "primary_key_columns": list(primary_key) if len(primary_key) == 1 else [],
        "unique_columns": [columns[0] for columns in unique if len(columns) == 1],
        "multi_key_primary_keys": list(primary_key) if len(primary_key) > 1 else [],
        "extra_constraints": [f"UNIQUE({', '.join(map(_quoted, columns))})" for columns in unique if len(columns) > 1],
    }
    return encode(msgspec.structs.replace(asked, **more))


def _announced(schema: pa.Schema) -> pa.Schema:
    """All columns nullable: NOT NULL goes apart."""
    return pa.schema([field.with_nullable(True) for field in schema])


def _one(field: pa.Field) -> Any:
    return packed(_announced(pa.schema([field])).serialize().to_pybytes())


def _quoted(name: str) -> str:
    return name if name.isidentifier() and name.islower() else '"' + name.replace('"', '""') + '"'


def _packed_map(members: Sequence[tuple[str, Any]]) -> bytes:
    """A MessagePack map of few members in this order, in which a key may occur twice."""
    return bytes([0x80 | len(members)]) + b"".join(encode(part) for member in members for part in member)
