"""Views of the lake. DuckDB sees them as tables; the server runs their SQL when they are read.

A view has its SQL in one or more dialects. If that of DuckDB is missing, it is translated from another one. The views here are
read with the rights of their reader, who needs those on their tables, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b

import pyarrow as pa

from skiway.airport import ColumnStatistics, HasStatistics, ScanOptions, Table, filters
from skiway.airport.wire.duckdb_sql import castable_type, identifier
from skiway.errors import PreconditionFailed
from skiway.lake.context import Context
from skiway.lake.declared_columns import declared_columns
from skiway.metastore.resources.view_dialects import view_sql
from skiway.model import v1
from skiway.sql import Find, Query, SqlView, including, simple_view

__all__ = ["LakeView"]


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
        return view_sql(self.record, self._place[0])

    def with_columns(self, query: str) -> str:
        """The query with the columns that the engine which created the view declared for it."""
        declared = declared_columns(self.record, self.sql)
        return query if declared is None else declared.of(query)

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
            f"CAST({identifier(field.name)} AS {castable_type(field)}) AS {identifier(field.name)}"
            for field in self.schema
        )
        condition = filters.to_sql(options.filter) if options.filter else None
        text = f"SELECT {', '.join(map(identifier, read))} FROM (SELECT {casts} FROM {self._full_name})"  # noqa: S608 - quoted
        if condition is not None:
            text += f" WHERE {condition}"
        schema = pa.schema([self.schema.field(name) for name in read])
        for batch in self._context.queries.rows(self._query(text)):
            if batch.schema.types != schema.types:
                raise PreconditionFailed(
                    f"the columns of view {self.name!r} have changed: attach the catalog again", key="table.changed"
                )
            yield pa.RecordBatch.from_arrays(batch.columns, schema=schema).select(wanted)

    def statistics_of(self, column: str, duckdb_type: str) -> ColumnStatistics:
        """Those of the column of the table that a simple view reads. Conditions leave fewer rows, so bounds stay valid."""
        simple = simple_view(self.sql)
        assert simple is not None, "other views have no statistics"
        self._context.callers.require("view.read", self.record)
        base = self._find(simple.catalog or self._place[0], simple.schema or self._place[1], simple.table)
        declared = declared_columns(self.record, self.sql)
        selected = column if declared is None else declared.source_of(column)
        source = None if base is None else simple.source_of(selected, base.schema.names)
        if base is None or source is None or base.schema.field(source).type != self.schema.field(column).type:
            return ColumnStatistics()  # an expression, or a column that was replaced by one of another type
        return base.column_statistics(source, duckdb_type) if isinstance(base, HasStatistics) else ColumnStatistics()

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
