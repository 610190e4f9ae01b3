"""Views of the lake. DuckDB sees them as tables; the server runs their SQL when they are read.

A view has its SQL in one or more dialects. If that of DuckDB is missing, it is translated from another one. A view is read
with the rights of its reader, who needs those on its tables, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b

import pyarrow as pa

from skiway.airport import ScanOptions, Table, filters
from skiway.airport.wire.duckdb_sql import duckdb_type, identifier
from skiway.errors import PreconditionFailed, SkiwayError, Unavailable
from skiway.lake.context import Context
from skiway.lake.policies import RestrictedRows, masked_columns, with_optional
from skiway.metastore import managed
from skiway.metastore.records.damage import damaged_error
from skiway.metastore.records.policies import Restriction
from skiway.model import v1
from skiway.sql import Find, Query, SqlView, including

__all__ = ["BrokenView", "LakeView", "RestrictedView", "view_table"]


class LakeView(Table, SqlView):
    """A view, for the duration of one call."""

    def __init__(self, context: Context, record: v1.View, place: tuple[str, str], find: Find) -> None:
        self.name, self.comment = record.display_name, record.description
        self.record = record
        self._context, self._place, self._find = context, place, find
        self._schema: pa.Schema | None = None

    @property
    def sql(self) -> str:
        """The query, in DuckDB's dialect."""
        catalogs = {self._place[0], managed.default_catalog(self.record) or ""}
        path = self.record.creation_search_path
        return managed.duckdb_sql(self.record.sql_definitions, namespace=path, catalogs=catalogs)

    @property
    def schema(self) -> pa.Schema:
        """The columns that were stored with the view or, if none were, those of its query now."""
        if self._schema is None:
            key = [blake2b(self.record.SerializeToString(deterministic=True), digest_size=16).hexdigest()]
            if not self.record.output_columns:  # then they depend on the tables, and on what the caller may read
                callers = self._context.callers
                key += [str(self._context.versions.of(callers.realm())), callers.principal.subject]
            self._schema = self._context.view_columns.get(tuple(key), self._columns)
        return self._schema

    def scan(self, options: ScanOptions) -> Iterator[pa.RecordBatch]:
        """Run the query. Its columns have the types that clients know, even if those of its tables have changed."""
        self._context.callers.require("view.read", self.record)
        wanted = self.schema.names if options.columns is None else list(options.columns)
        read = wanted or self.schema.names[:1]  # rows without columns are counted
        casts = ", ".join(
            f"CAST({identifier(field.name)} AS {duckdb_type(field)}) AS {identifier(field.name)}"
            for field in self.schema
        )
        condition = filters.to_sql(options.filter) if options.filter else None
        text = f"SELECT {', '.join(map(identifier, read))} FROM (SELECT {casts} FROM {self._full_name})"  # noqa: S608 - quoted
        if condition is not None:
            text += f" WHERE {condition}"
        elif options.limit is not None and not options.filter:  # the client filters again, and counts afterwards
            text += f" LIMIT {int(options.limit)}"
        schema = pa.schema([self.schema.field(name) for name in read])
        for batch in self._context.queries.rows(self._query(text)):
            if batch.schema.types != schema.types:
                raise PreconditionFailed(f"the columns of view {self.name!r} have changed: attach the catalog again")
            yield pa.RecordBatch.from_arrays(batch.columns, schema=schema).select(wanted)

    def _columns(self) -> pa.Schema:
        stored = self.record.output_columns
        if not stored:
            return self._context.queries.columns(self._query(f"FROM {self._full_name}"))
        nulls = ", ".join(f"CAST(NULL AS {each.logical_type}) AS {identifier(each.name)}" for each in stored)
        return self._context.queries.columns(self._query(f"SELECT {nulls}"))

    @property
    def _full_name(self) -> str:
        return ".".join(map(identifier, (*self._place, self.name)))

    def _query(self, text: str) -> Query:
        account = self._context.callers.principal.account_id
        find = including(self._find, (*self._place, self.name), self)
        return Query(text, find, catalog=self._place[0], owner=account)


class RestrictedView(Table):
    """A view of which policies hide rows or values. Queries read it like a table, so that they meet only what is left."""

    def __init__(
        self, context: Context, record: v1.View, place: tuple[str, str], find: Find, restriction: Restriction
    ) -> None:
        self.name, self.comment = record.display_name, record.description
        self._context, self._place, self._restriction = context, place, restriction
        self._find = find
        self._view = LakeView(context, record, place, find)

    @property
    def schema(self) -> pa.Schema:
        """The columns of the view."""
        return with_optional(self._view.schema, masked_columns(self._restriction, self._view.schema))

    def scan(self, options: ScanOptions) -> Iterator[pa.RecordBatch]:
        """Run the query, and then what policies leave of its rows."""
        self._context.callers.require("view.read", self._view.record)
        found = RestrictedRows(
            self._context,
            self._restriction,
            self._view,
            (*self._place, self.name),
            self._view.schema,
            self._find,
        )
        return found.rows(options)


class BrokenView(Table, SqlView):
    """The place of a view in a listing that cannot be read, with the reason."""

    schema = pa.schema({"error": pa.string()})

    def __init__(self, name: str, reason: SkiwayError) -> None:
        self.name, self.comment = name, f"cannot be read: {reason.message}"
        self._reason = reason

    @property
    def sql(self) -> str:
        """Raise the reason."""
        raise self._reason

    def scan(self, options: ScanOptions) -> pa.Table:  # noqa: ARG002
        """Raise the reason."""
        raise self._reason


def view_table(
    context: Context, record: v1.View, place: tuple[str, str], find: Find, *, bind: bool
) -> LakeView | RestrictedView | BrokenView:
    """A view as a table; if it cannot be read, one that tells why. Only with `bind`, its columns are determined."""
    if record.damage:
        return BrokenView(
            record.display_name, damaged_error("view", f"{place[1]}.{record.display_name}", record.damage)
        )
    view: LakeView | RestrictedView
    try:
        restriction = context.callers.restriction(record)
        if restriction is not None:
            view = RestrictedView(context, record, place, find, restriction)
        else:
            view = LakeView(context, record, place, find)
        if bind or isinstance(view, RestrictedView):
            view.schema  # noqa: B018 - raises the reason
        else:
            view.sql  # noqa: B018 - raises the reason
    except SkiwayError as error:
        if error.key == "sql.busy" or isinstance(error, Unavailable):
            raise  # listings are cached, and a view must not look broken because the server is busy
        return BrokenView(record.display_name, error)
    return view
