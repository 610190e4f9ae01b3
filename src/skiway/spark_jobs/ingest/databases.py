"""Tables of databases, as copies read them over JDBC. Spark fetches the driver by its Maven coordinates."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from skiway.errors import ConstraintViolation, InvalidArgument, PreconditionFailed, SkiwayError
from skiway.formats import TableName
from skiway.metastore.connectors.specs import CopyMode, CopyRules
from skiway.metastore.ingest.copying import Changes, CopiedTable, DatabaseSource, NewRows
from skiway.metastore.ingest.keys import count_repeated
from skiway.metastore.ingest.merging import ReplacedKeys
from skiway.metastore.ingest.positions import (
    PART,
    CursorFacts,
    CursorRange,
    Position,
    Transactions,
    cursor_range,
    overlap_starts,
)
from skiway.metastore.ingest.rows import Target, Written, key_fields_of
from skiway.metastore.jobs.attempts import ONE_FILE, Amounts
from skiway.security.source_access.databases import JdbcDatabase, checked_jdbc
from skiway.spark_jobs.ingest.jdbc import (
    COLUMNS,
    DRIVERS,
    LISTING,
    NOW,
    OLDEST_TRANSACTION,
    ROW_TRANSACTION,
    Queries,
    ReadColumn,
    as_text,
    literal,
    quoted,
    read_column,
)
from skiway.spark_jobs.java import add_jar
from skiway.spark_jobs.key_joins import SparkJoins
from skiway.spark_jobs.profile.values import quoted as quoted_in_spark
from skiway.spark_jobs.tasks import written_by_tasks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from skiway.security.source_access import SourceAccess

_INTEGER: Final = re.compile(r"-?[0-9]{1,18}")
_ROW_BYTES: Final = 256
"""How large a row is for the size of steps. A database does not say it."""

_RECENT_ROWS: Final = 10_000
"""How many of the last rows the second load reads again, if the database does not show transactions."""


def open_database(
    spark: Callable[[], SparkSession],
    distribute: SparkJoins,
    uri: str,
    *,
    options: Mapping[str, str],
    credentials: Mapping[str, str],
    access: SourceAccess,
    fetch_driver: bool = True,
) -> DatabaseSource:
    """Open the database at `uri`, if `access` permits it. Of the credentials, the property `password` is used.

    If its driver cannot be fetched, or is not to be, it may be among Spark's own jars.
    """
    unknown = sorted(options.keys() - {"allowed-locations"})
    if unknown:
        raise InvalidArgument(
            f"a database has no property {unknown[0]!r}: remove it, and write parameters of the connection into the address",
            key="source.option",
        )
    at = checked_jdbc(uri, access)
    if fetch_driver:
        add_jar(spark(), DRIVERS[at.dialect][0])
    return Database(spark, distribute, at, credentials.get("password", ""))


class Database(DatabaseSource):
    """A database that Spark reads. Its schemas are namespaces."""

    def __init__(
        self, spark: Callable[[], SparkSession], distribute: SparkJoins, at: JdbcDatabase, password: str
    ) -> None:
        self._at = at
        self.queries, self.distribute = Queries(spark, at, password), distribute
        self._columns: dict[TableName, list[ReadColumn]] = {}
        self._kinds: dict[TableName, str] = {}

    def copied(self, name: TableName) -> CopiedTable:
        return DatabaseTable(self, name)

    def quoted(self, *names: str) -> str:
        """An identifier in SQL."""
        return quoted(self._at.dialect, *names)

    def literal(self, value: str, *, is_number: bool) -> str:
        """A value of a column in SQL, given as text."""
        return literal(self._at.dialect, value, is_number=is_number)

    def as_text(self, expression: str) -> str:
        """An expression as text in SQL."""
        return as_text(self._at.dialect, expression)

    def columns(self, table: TableName) -> list[ReadColumn]:
        """The columns of a table; none if all are read as they are. A run uses those that the table had at first."""
        if self._at.dialect not in COLUMNS:
            return []
        if table not in self._columns:
            schema, name = (self.literal(each, is_number=False) for each in (*table.namespace, table.name))
            found = self.queries.asked(COLUMNS[self._at.dialect].format(schema=schema, table=name))
            self._kinds[table] = next((each.get("kind") or "" for each in found), "")
            self._columns[table] = [
                read_column(self._at.dialect, each["name"], each["type"], each["digits"]) for each in found
            ]
        return self._columns[table]

    def shows_transactions(self, table: TableName) -> bool:
        """Whether each row shows the transaction that has written it: in tables of PostgreSQL, not in views and foreign tables."""
        self.columns(table)
        return self._kinds.get(table) in ("r", "p")

    @property
    def now(self) -> str:
        """The time of the database in SQL, in seconds."""
        return NOW[self._at.dialect]

    def names(self) -> list[TableName]:
        return [TableName((row["s"],), row["t"]) for row in self.queries.asked(LISTING[self._at.dialect])]


@dataclass(frozen=True, slots=True)
class DatabaseTable:
    """A table of a database."""

    database: Database
    name: TableName

    def changes(self, rules: CopyRules, position: Position | None) -> Changes | None:
        """The rows above the position, by the cursor column; all rows in the mode replace."""
        schema = self.rows("")
        if rules.mode == CopyMode.REPLACE:
            return DatabaseChanges(self, schema, None, rules)
        column = self._cursor(schema, rules.cursor)
        is_number = _is_number(schema, column)
        if position is not None and position.get("kind") == PART:
            rest = CursorRange.rest_of(str(self.name), column, position)
            count = self._count(self._between(rest, is_number=is_number))
            return DatabaseChanges(self, schema, rest, rules, Amounts(rows=count))
        facts = self._facts(column, position, is_number=is_number)
        if position is None and facts.transactions is None and facts.recent is not None:
            start: Position = {"kind": "cursor", "column": column, "value": facts.recent}
            counted = self._facts(column, start, is_number=is_number)
            facts = replace(self._with_content(column, start, counted, is_number=is_number), recent=facts.recent)
        elif position is not None and position.get("kind") == "cursor" and facts.transactions is None:
            facts = self._with_content(column, position, facts, is_number=is_number)
        chosen = cursor_range(str(self.name), column, position, facts)
        if chosen is None:
            return None
        count = facts.rows - (0 if position is None else facts.known)
        return DatabaseChanges(self, schema, chosen, rules, Amounts(rows=count))

    def count_below(self, column: str, value: str, *, is_number: bool) -> int:
        """How many rows are below a value of a column."""
        below = f"{self.database.quoted(column)} < {self.database.literal(value, is_number=is_number)}"
        return self._count(below)

    def value_after(self, chosen: CursorRange, rows: int, *, is_number: bool) -> str | None:
        """The value of the cursor column of the row that is so many rows after the beginning of a range; None beyond its end."""
        column = self.database.quoted(chosen.column)
        table = self.database.quoted(*self.name.namespace, self.name.name)
        where = f"{self._between(chosen, is_number=is_number)} ORDER BY {column} LIMIT 1 OFFSET {rows - 1}"
        sql = f"SELECT {column} AS v FROM {table} WHERE {where}"  # noqa: S608 - names and values are quoted
        found = self.database.queries.asked(f"SELECT {self.database.as_text('v')} AS v FROM ({sql}) AS x")  # noqa: S608
        return found[0]["v"] if found else None

    def _between(self, chosen: CursorRange, *, is_number: bool) -> str:
        column = self.database.quoted(chosen.column)
        found = f"{column} <= {self.database.literal(chosen.upto, is_number=is_number)}"
        if chosen.after is not None:
            found += f" AND {column} > {self.database.literal(chosen.after, is_number=is_number)}"
        return found

    def _count(self, where: str) -> int:
        table = self.database.quoted(*self.name.namespace, self.name.name)
        (found,) = self.database.queries.asked(f"SELECT COUNT(*) AS counted FROM {table} WHERE {where}")  # noqa: S608
        return int(found["counted"])

    def rows(self, where: str, conditions: Iterable[str] = ()) -> DataFrame:
        """The rows that match a condition, if there is one."""
        table = self.database.quoted(*self.name.namespace, self.name.name)
        columns = self.database.columns(self.name)
        selected = ", ".join(each.sql for each in columns) or "*"
        sql = f"SELECT {selected} FROM {table}{f' WHERE {where}' if where else ''}"  # noqa: S608 - names are quoted
        found = self.database.queries.frame(sql, conditions)
        casts = {
            each.name: found[quoted_in_spark(each.name)].cast("timestamp_ntz") for each in columns if each.is_datetime
        }
        return found.withColumns(casts) if casts else found  # Spark Connect rejects an empty list

    def _cursor(self, frame: DataFrame, name: str) -> str:
        found = [each for each in frame.columns if each == name] or [
            each for each in frame.columns if each.casefold() == name.casefold()
        ]
        if not found:
            raise InvalidArgument(
                f"table {self.name} has no cursor column {name!r}; it has {', '.join(frame.columns)}: correct cursor_column",
                key="ingest.cursor.missing",
                column=name,
            )
        return found[0]

    def _facts(self, column: str, position: Position | None, *, is_number: bool) -> CursorFacts:
        """What one query says about the cursor column."""
        database, quoted = self.database, self.database.quoted(column)
        table = database.quoted(*self.name.namespace, self.name.name)
        shows_transactions = database.shows_transactions(self.name)

        def count(condition: str) -> str:
            return f"COUNT(CASE WHEN {condition} THEN 1 END)"

        figures = {
            "highest": database.as_text(f"MAX({quoted})"),
            "missing": count(f"{quoted} IS NULL"),
            "counted": f"COUNT({quoted})",
            "moment": database.now,
        }
        since = 0
        if position is not None and position.get("kind") == "cursor":
            value = database.literal(position["value"], is_number=is_number)
            start, following = overlap_starts(position)
            since = int(position.get("transaction", 0))
            figures |= {
                "known": count(f"{quoted} <= {value}"),
                "lower_max": f"CASE WHEN MAX({quoted}) < {value} THEN 1 ELSE 0 END",
            }
            if shows_transactions:
                figures["late"] = count(f"{quoted} <= {value} AND {ROW_TRANSACTION} >= {_since(since)}")
            else:
                figures |= {
                    name: count(f"{quoted} < {database.literal(each, is_number=is_number)}")
                    for name, each in {"below": start, "below_next": following}.items()
                    if each is not None
                }
        elif not shows_transactions:
            recent = f"SELECT {quoted} FROM {table} ORDER BY {quoted} DESC LIMIT {_RECENT_ROWS}"  # noqa: S608
            figures["recent"] = f"(SELECT {database.as_text(f'MIN({quoted})')} FROM ({recent}) AS recent)"  # noqa: S608
        if shows_transactions:
            figures |= {
                "oldest": OLDEST_TRANSACTION,
                "since": _since(since),
                "pending": _identified(OLDEST_TRANSACTION),
                "written": _identified(_since(since)),
            }
        selected = ", ".join(f"{sql} AS {name}" for name, sql in figures.items())
        (found,) = database.queries.asked(f"SELECT {selected} FROM {table}")  # noqa: S608 - names are quoted
        return CursorFacts(
            found["highest"],
            int(found.get("known", 0)),
            bool(found.get("lower_max")),
            int(found["missing"]),
            rows=int(found["counted"]),
            below=int(found.get("below", 0)),
            below_next=int(found.get("below_next", 0)),
            recent=found.get("recent"),
            at=int(found["moment"]),
            transactions=Transactions(
                int(found["oldest"]), int(found["since"]), int(found.get("late", 0)), found["pending"], found["written"]
            )
            if shows_transactions
            else None,
        )

    def _with_content(self, column: str, position: Position, facts: CursorFacts, *, is_number: bool) -> CursorFacts:
        """The facts with checksums of the rows in the overlap."""
        if facts.highest is None:
            return facts
        start, following = overlap_starts(position)
        # A row that appears in between is missing in the first one, so that the next load finds a change.
        after = self._content(column, following, facts.highest, is_number=is_number)
        if (start, position["value"]) == (following, facts.highest):
            return replace(facts, content=after, content_next=after)
        before = self._content(column, start, position["value"], is_number=is_number)
        return replace(facts, content=before, content_next=after)

    def _content(self, column: str, start: str | None, upto: str, *, is_number: bool) -> str:
        """A text that identifies the rows with values of a column in a range, whatever their order."""
        quoted = self.database.quoted(column)
        where = f"{quoted} <= {self.database.literal(upto, is_number=is_number)}"
        if start is not None:
            where += f" AND {quoted} >= {self.database.literal(start, is_number=is_number)}"
        rows = self.rows(where)
        names = [f"c{place}" for place in range(len(rows.columns))]
        # A NULL does not change a hash: without the second part, (1, NULL) and (NULL, 1) would have the same one.
        hashed = f"xxhash64({', '.join([*names, *(f'{name} IS NULL' for name in names)])})"
        found = rows.toDF(*names).selectExpr("COUNT(*) AS counted", f"SUM(CAST({hashed} AS DECIMAL(38, 0))) AS hashed")
        (row,) = self.database.queries.fetched(found)
        return f"{row['counted']}:{row['hashed']}"


@dataclass(slots=True)
class _Count:
    """The rows that the steps of a load have read."""

    rows: int = 0


@dataclass(frozen=True, slots=True)
class DatabaseChanges:
    """Rows of a table: those in a range of its cursor column, or all."""

    table: DatabaseTable
    frame: DataFrame
    chosen: CursorRange | None
    rules: CopyRules
    amounts: Amounts = ONE_FILE
    position: Position = field(default_factory=dict)
    whole: CursorRange | None = None
    """The range that this one is a part of, unless it is the last part."""
    read: _Count = field(default_factory=lambda: _Count())

    @property
    def replaces(self) -> bool:
        """Whether these are all rows, instead of those that the copy has."""
        return self.rules.mode == CopyMode.REPLACE

    def steps(self, step_bytes: int, *, growing: bool) -> list[DatabaseChanges]:
        """Ranges of the cursor column. The first one also has the rows that are read again."""
        left, least = self.chosen, max(1, step_bytes // _ROW_BYTES)
        if left is None or self.amounts.rows <= least:
            return [self]
        is_number = _is_number(self.frame, left.column)
        found: list[DatabaseChanges] = []
        rows = 0
        while self.amounts.rows - rows > (size := max(least, rows // 4 if growing else 0)):
            value = self.table.value_after(left, size, is_number=is_number)
            if value is None or value == left.upto:
                break
            part = replace(left, upto=value)
            found.append(replace(self, chosen=part, amounts=Amounts(rows=size), whole=self.chosen))
            left, rows = left.rest_after(value, 0), rows + size
        return [*found, replace(self, chosen=left, amounts=Amounts(rows=self.amounts.rows - rows))]

    def columns(self) -> pa.Schema:
        """The columns in the types in which Spark reads them."""
        from pyspark.sql.pandas.types import to_arrow_schema

        return to_arrow_schema(self.frame.schema, timestamp_utc=True)

    def write(self, target: Target, keys: pa.Schema) -> NewRows:
        """Read and write the rows, with as many connections as the settings say. Keys must be unique."""
        rows_of = self._rows()
        names = rows_of.columns
        numbered = rows_of.toDF(*(f"c{place}" for place in range(len(names))))  # any name can be that of a column
        made = self.table.database.queries.collected(written_by_tasks(numbered, target, names))
        written = Written.all(made, {})
        # Without keys, rows that are read again replace those with the same value of the cursor column.
        replaced = keys
        if not len(keys) and self.chosen is not None and self.chosen.reads_again:
            replaced = key_fields_of(target.columns, (self.chosen.column,))
        try:
            written = replace(written, position=self._position(written.rows))
            if not len(replaced):
                return NewRows(written)
            found = ReplacedKeys.of(target, written.files, replaced)
            if len(keys):
                self._check_unique(found, written.rows)
        except SkiwayError:
            target.files.remove(written.paths)
            raise
        return NewRows(written, found)

    def _position(self, rows: int) -> Position:
        """The position after `rows` rows were read."""
        if self.chosen is None:
            return {"kind": "all"}
        self.read.rows += rows
        if self.whole is not None:
            return self.whole.rest_after(self.chosen.upto, self.read.rows).part
        rows = self.read.rows
        column, value = self.chosen.column, self.chosen.next_overlap
        if value is None:
            return self.chosen.position(rows)
        below = self.table.count_below(column, value, is_number=_is_number(self.frame, column))
        return self.chosen.position(rows, below)

    def _rows(self) -> DataFrame:
        if self.chosen is None:
            return self.table.rows("")
        database, column = self.table.database, self.table.database.quoted(self.chosen.column)
        is_number = _is_number(self.frame, self.chosen.column)
        upto = f"{column} <= {database.literal(self.chosen.upto, is_number=is_number)}"
        if self.chosen.after is None:
            return self.table.rows(upto, self._conditions(column))
        after = database.literal(self.chosen.after, is_number=is_number)
        wanted = f"{column} > {after}"
        if self.chosen.repeats:
            if self.chosen.overlap is None:
                return self.table.rows(upto, self._conditions(column))
            wanted = f"{column} >= {database.literal(self.chosen.overlap, is_number=is_number)}"
        elif self.chosen.since is not None:
            late = f"{ROW_TRANSACTION} >= {self.chosen.since}"
            if self.rules.mode == CopyMode.APPEND:
                table = database.quoted(*self.table.name.namespace, self.table.name.name)
                late = f"{column} IN (SELECT {column} FROM {table} WHERE {column} <= {after} AND {late})"  # noqa: S608
            wanted = f"({wanted} OR {late})"
        return self.table.rows(f"{wanted} AND {upto}", self._conditions(column))

    def _conditions(self, column: str) -> list[str]:
        """Ranges of the cursor column, one for each connection; none if a single one reads everything."""
        assert self.chosen is not None
        bounds = [self.chosen.after or "0", self.chosen.upto]
        count = self.rules.read_partitions
        if count <= 1 or not all(map(_INTEGER.fullmatch, bounds)) or not _is_number(self.frame, self.chosen.column):
            return []
        low, high = map(int, bounds)
        cuts = sorted({low + (high - low) * number // count for number in range(1, count)} - {low, high})
        if not cuts:
            return []
        between = [f"{column} > {a} AND {column} <= {b}" for a, b in pairwise(cuts)]
        return [f"{column} <= {cuts[0]}", *between, f"{column} > {cuts[-1]}"]

    def _check_unique(self, keys: ReplacedKeys, rows: int) -> None:
        repeated = count_repeated(self.table.database.distribute, keys.rows, keys.columns)
        if repeated:
            raise ConstraintViolation(
                f"the key columns {', '.join(keys.columns.names)} of {self.table.name} do not identify rows: {rows} rows "
                f"have {rows - repeated} different keys; choose other key_columns",
                key="ingest.key.duplicate",
            )


def _since(transaction: int) -> str:
    """The transaction in SQL; 0, which is before all others, if the database has not got that far: it was restored."""
    return f"(CASE WHEN {OLDEST_TRANSACTION} < {transaction} THEN 0 ELSE {transaction} END)"


def _identified(transaction: str) -> str:
    """The SQL for a text that identifies the rows that were written by a transaction or later ones."""
    written = f"CASE WHEN {ROW_TRANSACTION} >= {transaction} THEN {ROW_TRANSACTION} END"
    return f"CONCAT(COUNT({written}), ':', COALESCE(SUM({written}), 0))"


def _is_number(frame: DataFrame, column: str) -> bool:
    """Whether a column is a number. Others that cannot be compared reliably raise `PreconditionFailed`."""
    from pyspark.sql.types import BooleanType, DoubleType, FloatType, NumericType

    of = frame.schema[column].dataType
    if isinstance(of, DoubleType | FloatType | BooleanType):
        raise PreconditionFailed(
            f"the cursor column {column!r} has the type {of.simpleString()}, whose values cannot be compared exactly: choose a "
            "whole number, a decimal, a date, a timestamp or a text",
            key="ingest.cursor.type",
            column=column,
        )
    return isinstance(of, NumericType)
