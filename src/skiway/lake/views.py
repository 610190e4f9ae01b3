"""Views of the lake. DuckDB sees them as tables; the server runs their SQL when they are read.

A caller sees a view as it is, as policies show it, or with the reason why it cannot be read.

The names and types that Spark or another engine declared for a view can differ from those of the query: `CREATE VIEW v (a, b)
AS SELECT id, name …` has other names, and
a function can return another type in DuckDB.

A view has its SQL in one or more dialects. If that of DuckDB is missing, it is translated from another one. The views here are
read with the rights of their reader, who needs those on their tables, too.

Definer rights are those that the definer has when the view is read: its grants, the policies that restrict it, and the permissions of
the roles that it had when it defined the view. The objects are those that the view read when its definer saved it.

Conditions of the reader are applied to the rows of the view, never below its query, so that they cannot probe rows that the view
hides. Errors of the query may quote values, so only the definer sees them.
"""

from __future__ import annotations

import json
import logging
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property, lru_cache
from hashlib import blake2b
from typing import Final, TypeVar

import pyarrow as pa
from sqlglot import exp, parse_one
from sqlglot.errors import SqlglotError

from skiway.airport import ColumnStatistics, HasStatistics, ScanOptions, Table, filters
from skiway.airport.wire.duckdb_sql import castable_type, identifier
from skiway.errors import InvalidArgument, NotFound, PermissionDenied, PreconditionFailed, SkiwayError, Unavailable
from skiway.lake.context import Context
from skiway.lake.policies import RestrictedRows, masked_columns, may_be_shown, with_optional
from skiway.metastore import tables
from skiway.metastore.records.damage import damaged_error
from skiway.metastore.records.policies import Restriction
from skiway.metastore.resources.view_dialects import QUERY_NAMES, is_translated, view_sql
from skiway.metastore.resources.views import BoundNames
from skiway.model import v1
from skiway.security import Principal, Roles
from skiway.sql import Find, Query, SqlView, including, simple_view

_REMEMBERED: Final = 2000


@dataclass(frozen=True, slots=True)
class DeclaredColumns:
    """Names and types in DuckDB's spelling, and for each the column of the query that it shows.

    Columns correspond to each other `by_place`, unless the query selects `*`: then by name, because the tables can get
    further columns anywhere.
    """

    names: Sequence[str]
    types: Sequence[str]
    sources: Sequence[str]
    by_place: bool

    def of(self, query: str) -> str:
        """The query, with the declared columns."""
        inner = [f"c{place}" for place in range(len(self.names))] if self.by_place else self.sources
        shown = ", ".join(
            f"CAST({identifier(source)} AS {kind}) AS {identifier(name)}"
            for source, kind, name in zip(inner, self.types, self.names, strict=True)
        )
        aliases = f" AS q({', '.join(inner)})" if self.by_place else ""
        return f"SELECT {shown} FROM (\n{query}\n){aliases}"  # noqa: S608 - quoted

    def source_of(self, name: str) -> str:
        """The column of the query that a declared column shows."""
        return self.sources[list(self.names).index(name)]


def declared_columns(view: v1.View, sql: str) -> DeclaredColumns | None:
    """The declared columns of a view, and `sql` is its query for DuckDB. None if DuckDB's own columns are valid."""
    columns = view.output_columns
    if not columns or not is_translated(view.sql_definitions):
        return None
    names, types = [column.name for column in columns], [column.logical_type for column in columns]
    selected = _selected(sql)
    if selected is not None:
        return DeclaredColumns(names, types, selected, by_place=True) if len(selected) == len(names) else None
    known = list(filter(None, view.properties.get(QUERY_NAMES, "").split(",")))
    is_unique = len({each.casefold() for each in known}) == len(names) == len(known)
    return DeclaredColumns(names, types, known if is_unique else names, by_place=False)


@lru_cache(maxsize=_REMEMBERED)
def _selected(sql: str) -> tuple[str, ...] | None:
    """The names of the columns that a query selects, empty for expressions without one; None if it selects `*`."""
    try:
        query = parse_one(sql, dialect="duckdb")
    except (SqlglotError, RecursionError):
        return None
    if not isinstance(query, exp.Query) or query.is_star:
        return None
    return tuple(select.output_name for select in query.selects)


class _StoredView(Table):
    """A view in a catalog and schema, for the duration of one call. `find` looks up what it reads."""

    def __init__(self, context: Context, record: v1.View, place: tuple[str, str], find: Find) -> None:
        self.name, self.comment = record.display_name, record.description
        self.record = record
        self._context, self._place, self._find = context, place, find


class LakeView(_StoredView, SqlView):
    """A view that queries read by its query, with the rights of their caller."""

    @property
    def sql(self) -> str:
        """The query, in DuckDB's dialect."""
        return view_sql(self.record, self._place[0])

    def with_columns(self, query: str) -> str:
        """The query with the columns that the engine which created the view declared for it."""
        declared = declared_columns(self.record, self.sql)
        return query if declared is None else declared.of(query)

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns that were stored with the view or, if none were, those of its query now."""
        key = [blake2b(self.record.SerializeToString(deterministic=True), digest_size=16).hexdigest()]
        if not self.record.output_columns:  # then they depend on the tables, and on what the caller may read
            callers = self._context.callers
            key += [str(self._context.versions.of(callers.realm())), callers.principal.subject]
        return self._context.view_columns.get(tuple(key), self._columns)

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


T = TypeVar("T")

log = logging.getLogger("skiway.lake")

_MAX_DEPTH: Final = 8
"""How deeply views with definer rights may be nested: each takes a worker of its own."""

_reading: ContextVar[tuple[str, ...]] = ContextVar("skiway_definer_views", default=())
"""The ids of the views that the current thread reads, from outer to inner."""


class DefinerView(_StoredView):
    """A view that reads its tables with the rights of its definer. Queries read it like a table."""

    @cached_property
    def _view(self) -> LakeView:
        return LakeView(self._context, self.record, self._place, self._find)

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns of the view."""
        (found,) = self._as_definer(lambda: iter([self._view.schema]))
        return found

    @property
    def sql(self) -> str:
        """The query, in DuckDB's dialect."""
        return self._view.sql

    def scan(self, options: ScanOptions) -> Iterator[pa.RecordBatch]:
        """Run the query with the rights of the definer, and then apply the conditions of the reader."""
        self._context.callers.require("view.read", self.record)
        wanted = self.schema.names if options.columns is None else list(options.columns)
        needed = {*wanted, *(options.filter.columns if options.filter else ())}
        read = [name for name in self.schema.names if name in needed]
        shown = pa.schema([self.schema.field(name) for name in read])
        condition = filters.to_arrow(options.filter, shown) if options.filter else None
        for batch in self._as_definer(lambda: self._view.scan(ScanOptions(columns=read))):
            rows = batch if condition is None else batch.filter(condition)
            yield rows.select(wanted)

    def statistics_of(self, column: str, duckdb_type: str) -> ColumnStatistics:
        """The statistics of a simple view, as far as its definer may know them."""
        self._context.callers.require("view.read", self.record)
        (statistics,) = self._as_definer(lambda: iter([self._view.statistics_of(column, duckdb_type)]))
        return statistics

    def _as_definer(self, rows: Callable[[], Iterator[T]]) -> Iterator[T]:
        path = _reading.get()
        if self.record.resource_id.id in path:
            raise InvalidArgument(f"view {self.name!r} reads itself", key="view.cycle")
        if len(path) >= _MAX_DEPTH:
            raise InvalidArgument(
                f"views are nested more than {_MAX_DEPTH} deep: {self.name} is the last", key="view.depth"
            )

        def inside() -> Iterator[T]:
            _reading.set((*path, self.record.resource_id.id))  # in the context of the definer
            return rows()

        try:
            bound = BoundNames(self.record, self._place)
            yield from self._context.callers.acting_as(self._definer, bound, inside)
        except (PermissionDenied, NotFound) as error:
            raise PermissionDenied(
                f"view {self.name!r} has the rights of its definer, {self.record.definer.subject!r}, who may not read "
                "everything that it reads: ask for the rights, or replace the view",
                key="view.definer",
            ) from error
        except SkiwayError as error:
            if may_be_shown(error) or self._context.callers.authenticated.subject == self.record.definer.subject:
                raise
            log.warning("view %s of %s cannot be read: %s", self.name, self.record.definer.subject, error)
            raise type(error)(
                f"view {self.name!r} cannot be read, for a reason that may tell about more than it shows: ask its definer, "
                f"{self.record.definer.subject!r}",
                key="view.definer",
            ) from None

    @property
    def _definer(self) -> Principal:
        definer = self.record.definer
        roles = frozenset(definer.roles)
        return Principal(
            definer.subject,
            self._context.callers.authenticated.account_id,
            roles,
            Roles().permissions(roles),
            groups=frozenset(definer.groups),
            claims=json.loads(definer.claims_json or "{}"),
        )


class _Statistics(HasStatistics):
    """A simple view, which has the statistics of its table."""

    record: v1.View
    is_listed = False
    inherited_offer: Callable[[], str] = str

    @property
    def offers_statistics(self) -> bool:
        """Whether clients are told to ask for the statistics of the columns."""
        return tables.offers_statistics(self.record, self.inherited_offer)

    @abstractmethod
    def statistics_of(self, column: str, duckdb_type: str) -> ColumnStatistics:
        """The statistics of a column."""

    def column_statistics(self, column: str, duckdb_type: str) -> ColumnStatistics:
        """The statistics of a column; in a listing, only that there are some."""
        return ColumnStatistics(has_not_null=False) if self.is_listed else self.statistics_of(column, duckdb_type)


class SimpleLakeView(LakeView, _Statistics):
    """A view with statistics and the rights of its reader."""


class SimpleDefinerView(DefinerView, _Statistics):
    """A view with statistics and the rights of its definer."""


def readable_view(
    context: Context,
    record: v1.View,
    place: tuple[str, str],
    find: Find,
    *,
    listing: bool = False,
    inherited_offer: Callable[[], str] = str,
) -> LakeView | DefinerView:
    """The view with the rights that were declared for it."""
    is_definers = record.rights == v1.VR_DEFINER
    if simple_view(view_sql(record, place[0])) is None:
        return (DefinerView if is_definers else LakeView)(context, record, place, find)
    view = (SimpleDefinerView if is_definers else SimpleLakeView)(context, record, place, find)
    view.is_listed, view.inherited_offer = listing, inherited_offer
    return view


class RestrictedView(_StoredView):
    """A view of which policies hide rows or values. Queries read it like a table, so that they meet only what is left."""

    def __init__(
        self, context: Context, record: v1.View, place: tuple[str, str], find: Find, restriction: Restriction
    ) -> None:
        super().__init__(context, record, place, find)
        self._restriction = restriction
        self._view = readable_view(context, record, place, find)

    @property
    def schema(self) -> pa.Schema:
        """The columns of the view."""
        return with_optional(self._view.schema, masked_columns(self._restriction, self._view.schema))

    def scan(self, options: ScanOptions) -> Iterator[pa.RecordBatch]:
        """Run the query, and then what policies leave of its rows."""
        self._context.callers.require("view.read", self.record)
        name, columns = (*self._place, self.name), self._view.schema
        return RestrictedRows(self._context, self._restriction, self._view, name, columns, self._find).rows(options)


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


ViewTable = LakeView | DefinerView | RestrictedView | BrokenView


def view_table(
    context: Context,
    record: v1.View,
    place: tuple[str, str],
    find: Find,
    *,
    bind: bool,
    listing: bool = False,
    inherited_offer: Callable[[], str] = str,
) -> ViewTable:
    """A view as a table; if it cannot be read, one that tells why. Only with `bind`, its columns are determined."""
    if record.damage:
        return BrokenView(
            record.display_name, damaged_error("view", f"{place[1]}.{record.display_name}", record.damage)
        )
    view: LakeView | DefinerView | RestrictedView
    try:
        restriction = context.callers.restriction(record)
        if restriction is not None:
            view = RestrictedView(context, record, place, find, restriction)
        else:
            view = readable_view(context, record, place, find, listing=listing, inherited_offer=inherited_offer)
        if bind or isinstance(view, RestrictedView):
            view.schema  # noqa: B018 - raises the reason
        else:
            view.sql  # noqa: B018 - raises the reason
    except SkiwayError as error:
        if error.key == "sql.busy" or isinstance(error, Unavailable):
            raise  # listings are cached, and a view must not look broken because the server is busy
        return BrokenView(record.display_name, error)
    return view
