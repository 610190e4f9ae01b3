"""The tables and views that a query names: which rows and columns of them are read, and how.

Some queries over one table are answered by its metadata. Every value of a view that selects columns of one table, with or without
a condition, is a value of the table, so bounds of the table are bounds of the view. The rows of a table are counted without
reading them.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

import pyarrow as pa
from sqlglot import exp, parse_one
from sqlglot.errors import SqlglotError

from skiway.airport import ScanOptions, Table, TimePoint
from skiway.airport.server.host import table_at
from skiway.airport.tables import find_rowid_column, record_batches
from skiway.errors import InvalidArgument, NotFound
from skiway.foundation.doors import require_at_most
from skiway.sandbox.relations import FileGroup, NamedTable, Parsed, Relation, StoredQuery, TableName

_PARTS: Final = {"expressions", "from_", "from", "where"}
"""The parts of a SELECT that a simple view may have."""

_MAX_PARSED: Final = 20_000
"""The characters of a query that is parsed here, which takes time in this process, and kept in memory."""


@dataclass(frozen=True, slots=True)
class SimpleView:
    """The table that a simple view reads, and its columns. With `all`, the view has all columns of the table."""

    catalog: str
    schema: str
    table: str
    columns: Mapping[str, str]
    all: bool = False

    def source_of(self, column: str, of_table: Sequence[str]) -> str | None:
        """The column of the table that a column of the view shows; None if it shows none, or several differ in case only."""
        wanted = column if self.all else self.columns.get(column.casefold())
        found = [name for name in of_table if wanted is not None and name.casefold() == wanted.casefold()]
        return found[0] if len(found) == 1 else None


@dataclass(frozen=True, slots=True)
class RowCount:
    """The table of `SELECT count(*) FROM …`, and the name of the only column."""

    catalog: str
    schema: str
    table: str
    name: str


def row_count(sql: str) -> RowCount | None:
    """What a query counts, if it counts all rows of one table."""
    return _row_count(sql) if len(sql) <= _MAX_PARSED and "count" in sql.lower() else None


@lru_cache(maxsize=2000)
def _row_count(sql: str) -> RowCount | None:
    select = _selected(sql)
    table = None if select is None or select.args.get("where") else _only_table(select)
    if select is None or table is None or len(select.expressions) != 1:
        return None
    (counted,) = select.expressions
    count = counted.this if isinstance(counted, exp.Alias) else counted
    if not isinstance(count, exp.Count) or not isinstance(count.this, exp.Star):
        return None
    if any(value for name, value in count.args.items() if name not in ("this", "big_int")) or any(
        count.this.args.values()
    ):
        return None
    name = counted.alias if isinstance(counted, exp.Alias) else "count_star()"
    return RowCount(table.catalog, table.db, table.name, name)


def _selected(sql: str) -> exp.Select | None:
    """A SELECT with nothing but a table and a condition."""
    try:
        select = parse_one(sql, dialect="duckdb")
    except (SqlglotError, RecursionError):
        return None
    if not isinstance(select, exp.Select) or {name for name, value in select.args.items() if value} - _PARTS:
        return None
    return select


def _only_table(select: exp.Select) -> exp.Table | None:
    clause = select.args.get("from_") or select.args.get("from")
    table = clause.this if isinstance(clause, exp.From) else None
    if not isinstance(table, exp.Table) or not isinstance(table.this, exp.Identifier):
        return None  # a table function, a subquery or values
    if {name for name, value in table.args.items() if value} - {"this", "db", "catalog", "alias"}:
        return None  # such as a sample, a pivot, a join or a point in time
    if isinstance(alias := table.args.get("alias"), exp.TableAlias) and alias.columns:
        return None
    return table


def simple_view(sql: str) -> SimpleView | None:
    """What a view reads, if it is a simple one."""
    return _simple_view(sql) if len(sql) <= _MAX_PARSED else None


@lru_cache(maxsize=2000)
def _simple_view(sql: str) -> SimpleView | None:
    select = _selected(sql)
    table = None if select is None else _only_table(select)
    if select is None or table is None:
        return None
    place = (table.catalog, table.db, table.name)
    if len(select.expressions) == 1 and isinstance(star := select.expressions[0], exp.Star):
        return None if any(star.args.values()) else SimpleView(*place, {}, all=True)
    names = [expression.alias_or_name.casefold() for expression in select.expressions]
    if len(set(names)) < len(names) or any(expression.find(exp.Star) for expression in select.expressions):
        return None  # DuckDB renames columns whose names occur twice
    columns: dict[str, str] = {}
    for name, each in zip(names, select.expressions, strict=True):
        column = each.this if isinstance(each, exp.Alias) else each
        if isinstance(column, exp.Column) and _is_of(column, table.alias_or_name):
            columns[name] = column.name
    return SimpleView(*place, columns)


def _is_of(column: exp.Column, table: str) -> bool:
    """Whether a name is that of a column of the table, and not of a field in one."""
    return not (column.args.get("db") or column.args.get("catalog")) and column.table.casefold() in (
        "",
        table.casefold(),
    )


_MAX_DEPTH: Final = 32
"""How deeply views may be nested."""


MAX_NAMED: Final = 1000
"""How often a query, or one of its views, may name tables: each time, DuckDB opens their files again."""


class DirectFiles(ABC):
    """A table of which DuckDB may read the files itself."""

    @abstractmethod
    def direct_files(self, options: ScanOptions) -> Sequence[FileGroup] | None:
        """Files with exactly the rows of the table, except those that the filter excludes; None if it has to be scanned."""


class CountsRows(ABC):
    """A table that may know the number of its rows without reading them."""

    @abstractmethod
    def counted_rows(self) -> int | None:
        """The exact number of rows that the caller sees; None if they have to be read."""


class SqlView(ABC):
    """A table that is the result of a query. Names without a schema in the query are those of the view's own schema."""

    @property
    @abstractmethod
    def sql(self) -> str:
        """The query, in DuckDB's dialect."""

    def with_columns(self, query: str) -> str:
        """The query with the names and types of the view's columns, if these are not its own. `query` is `sql`, rewritten."""
        return query


Find = Callable[[str, str, str], Table | None]
"""Looks up a table or view by catalog, schema and name, with the caller's rights."""


Parse = Callable[[str, str], Parsed]
"""Parses a query. Its tables with a point in time get names that begin with the second text."""


def resolved(
    parse: Parse, parsed: Parsed, find: Find, default: tuple[str, str], *, plan: bool
) -> tuple[list[Relation], list[StoredQuery]]:
    """The tables and views of a query, and of its views; each view after those that it reads.

    Names without a catalog or a schema are completed with those of `default`. Only with `plan`, files are chosen.
    """
    resolver = _Resolver(parse, find, plan=plan)
    resolver.collect(parsed, default)
    return [table.relation(plan=plan) for table in resolver.tables.values()], list(resolver.views.values())


def including(find: Find, name: TableName, table: Table) -> Find:
    """A lookup in which a name, in any case, is that of `table`."""
    own = tuple(map(str.casefold, name))
    return lambda *wanted: table if tuple(map(str.casefold, wanted)) == own else find(*wanted)


def unknown_column(table: str, name: str, names: Iterable[str]) -> InvalidArgument:
    """The error that a table has no column of this name."""
    message = f"{table} has no column {name!r}; it has {', '.join(names)}"
    return InvalidArgument(message, key="column.unknown", column=name)


def names_in(parsed: Parsed, find: Find, default: tuple[str, str]) -> list[TableName]:
    """The full names of the tables and views that a query names, each once."""
    full = (_completed(named, default) for named in parsed.tables)
    return list(dict.fromkeys(name for name in full if name is not None and find(*name) is not None))


def _completed(named: NamedTable, default: tuple[str, str]) -> TableName | None:
    """The full name of a table; None if the query gives no schema: then it is a common table expression."""
    catalog, schema, name = named.name
    return (catalog or default[0], schema or default[1], name) if schema or default[1] else None


@dataclass
class _Used:
    """A table, and where the query and its views name it."""

    name: TableName
    table: Table
    places: list[tuple[_Filters | None, NamedTable]] = field(default_factory=list)

    def relation(self, *, plan: bool) -> Relation:
        filters, named = self.places[0]
        is_alone = len(self.places) == 1
        conditions = filters.of(named, _visible(self.table)) if is_alone and filters is not None else ""
        return _relation(self.name, self.table, conditions, plan=plan)


class _Resolver:
    """Looks up the tables and views of a query."""

    def __init__(self, parse: Parse, find: Find, *, plan: bool) -> None:
        self._parse, self._find, self._plan = parse, find, plan
        self._parsed = 0
        self.tables: dict[tuple[str, ...], _Used] = {}
        self.views: dict[tuple[str, ...], StoredQuery] = {}

    def collect(self, parsed: Parsed, default: tuple[str, str], within: tuple[str, ...] = ()) -> None:
        """Look up all names in a query, which is that of the innermost view of `within`."""
        what = f"{f'view {within[-1]}' if within else 'the query'} names tables {{}} times"
        remedy = "read fewer tables at a time"
        require_at_most(MAX_NAMED, len(parsed.tables), what, remedy=remedy, key="sql.too_large")
        filters = _Filters(parsed) if self._plan else None
        for named in parsed.tables:
            full = _completed(named, default)
            if full is None:
                _check_name(named, named.name[2])
                continue
            key = (named.alias,) if named.alias else tuple(part.casefold() for part in full)
            if key in self.tables:
                self.tables[key].places.append((filters, named))
            elif key not in self.views:
                self._add(key, full, named, filters, within)

    def _add(
        self,
        key: tuple[str, ...],
        full: TableName,
        named: NamedTable,
        filters: _Filters | None,
        within: tuple[str, ...],
    ) -> None:
        table, dotted = self._find(*full), ".".join(full)
        if table is None:
            if named.name[1]:  # otherwise it is a common table expression
                raise _no_table(dotted)
            _check_name(named, dotted)
        elif isinstance(table, SqlView):
            self._add_view(key, full, table, named, within)
        else:
            past = table_at(table, TimePoint.parse(named.unit, named.value))
            assert isinstance(past, Table)  # a table has no references in its past
            name = ("memory", "main", named.alias) if named.alias else full
            self.tables[key] = _Used(name, past, [(filters, named)])

    def _add_view(
        self, key: tuple[str, ...], full: TableName, view: SqlView, named: NamedTable, within: tuple[str, ...]
    ) -> None:
        dotted = ".".join(full)
        path = (*within, dotted.casefold())
        if named.unit:
            raise InvalidArgument(
                f"view {dotted} has no history: write AT after the tables in its query", key="view.at"
            )
        if dotted.casefold() in within:
            raise InvalidArgument(f"view {dotted} reads itself: {' reads '.join(path)}", key="view.cycle")
        if len(path) > _MAX_DEPTH:
            raise InvalidArgument(
                f"views are nested more than {_MAX_DEPTH} deep: {dotted} is the last", key="view.depth"
            )
        self._parsed += 1
        parsed = self._parse(view.sql, f"then {self._parsed}")
        self.collect(parsed, full[:2], path)
        self.views[key] = StoredQuery(full, view.with_columns(parsed.sql))


def _check_name(named: NamedTable, dotted: str) -> None:
    """Raise if the name is a path: DuckDB would read the files of the query's tables under their own names."""
    if "/" in named.name[2] and not named.is_defined:
        raise _no_table(dotted)


def _no_table(dotted: str) -> NotFound:
    return NotFound(f"table {dotted} does not exist", key="table", table=dotted)


def _visible(table: Table) -> pa.Schema:
    rowid = find_rowid_column(table.schema)
    return pa.schema([field for index, field in enumerate(table.schema) if index != rowid])


def _relation(name: tuple[str, str, str], table: Table, json_filters: str, *, plan: bool) -> Relation:
    visible = _visible(table)

    def scan(columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        # A scan without columns still has to count the rows.
        wanted = list(columns) or visible.names[:1]
        options = ScanOptions(columns=wanted, json_filters=json_filters)
        schema = pa.schema([visible.field(column) for column in wanted])
        for batch in record_batches(table.scan(options), schema):
            yield batch.select(list(columns))

    files: Sequence[FileGroup] | None = None
    if plan and isinstance(table, DirectFiles):
        files = table.direct_files(ScanOptions(json_filters=json_filters))
    return Relation(name, visible, scan, files or ())


class _Filters:
    """The conditions of a query that hold for all rows of a table that it reads. They decide which files are read."""

    def __init__(self, parsed: Parsed) -> None:
        self._names = [named.name for named in parsed.tables]
        self._statement: exp.Expr | None = None
        if len(parsed.sql) <= _MAX_PARSED and "where" in parsed.sql.lower():
            with contextlib.suppress(SqlglotError, RecursionError):
                self._statement = parse_one(parsed.sql, dialect="duckdb")

    def of(self, named: NamedTable, columns: pa.Schema) -> str:
        """The conditions for a table with these columns as JSON; empty if there are none."""
        if self._statement is None or named.alias or self._names.count(named.name) != 1:
            return ""
        # Imported here because they need the client, which a server needs for nothing else before it is ready.
        from skiway.client.airport.filters import filter_json
        from skiway.sql.pushdown import pushdown_filter

        nodes = [
            each for each in self._statement.find_all(exp.Table) if (each.catalog, each.db, each.name) == named.name
        ]
        predicate = pushdown_filter(self._statement, nodes[0], columns) if len(nodes) == 1 else None
        if predicate is None:
            return ""
        names = list(dict.fromkeys(predicate.columns()))
        return filter_json(predicate, names, {name: columns.field(name) for name in names})
