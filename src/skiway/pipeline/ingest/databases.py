"""Tables of databases, as copies read them over JDBC. Spark fetches the driver by its Maven coordinates."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from skiway.errors import ConstraintViolation, InvalidArgument, PreconditionFailed, SkiwayError, Unsupported
from skiway.formats import Namespace, TableHandle, TableName
from skiway.metastore.ingest.changes import Changes, CopiedTable, DatabaseSource
from skiway.metastore.ingest.cursors import CursorFacts, CursorRange, cursor_range
from skiway.metastore.ingest.positions import Position
from skiway.metastore.ingest.rows import Target, Written, keys_of_files, looked_up, write_rows
from skiway.metastore.ingest.settings import CopyMode, CopyRules
from skiway.pipeline.ingest.dialects import COLUMNS, DRIVERS, LISTING, ReadColumn, as_text, literal, quoted, read_column
from skiway.pipeline.ingest.distribution import RESULT, SparkDistribution, outcome_of
from skiway.pipeline.ingest.jdbc import Queries
from skiway.pipeline.jars import add_jar
from skiway.pipeline.profile.values import quoted as quoted_in_spark
from skiway.security.source_access.jdbc import JdbcDatabase, checked_jdbc

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from skiway.security.source_access import SourceAccess

__all__ = ["open_database"]

_INTEGER: Final = re.compile(r"-?[0-9]{1,18}")


def open_database(
    spark: Callable[[], SparkSession],
    distribute: SparkDistribution,
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
        self, spark: Callable[[], SparkSession], distribute: SparkDistribution, at: JdbcDatabase, password: str
    ) -> None:
        self._at = at
        self.queries, self.distribute = Queries(spark, at, password), distribute
        self._columns: dict[TableName, list[ReadColumn]] = {}

    def namespaces(self) -> list[Namespace]:
        return sorted({name.namespace for name in self._all()})

    def tables(self, namespace: Namespace) -> list[str]:
        return sorted(name.name for name in self._all() if name.namespace == namespace)

    def load(self, namespace: Namespace, table: str) -> TableHandle:  # noqa: ARG002
        raise Unsupported("tables of a database cannot be mirrored: copy them", key="source.kind")

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
            self._columns[table] = [
                read_column(self._at.dialect, each["name"], each["type"], each["digits"]) for each in found
            ]
        return self._columns[table]

    def _all(self) -> list[TableName]:
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
        chosen = cursor_range(str(self.name), column, position, self._facts(column, position, is_number=is_number))
        return None if chosen is None else DatabaseChanges(self, schema, chosen, rules)

    def rows(self, where: str, conditions: Iterable[str] = ()) -> DataFrame:
        """The rows that match a condition, if there is one."""
        table = self.database.quoted(*self.name.namespace, self.name.name)
        columns = self.database.columns(self.name)
        selected = ", ".join(each.sql for each in columns) or "*"
        sql = f"SELECT {selected} FROM {table}{f' WHERE {where}' if where else ''}"  # noqa: S608 - names are quoted
        found = self.database.queries.frame(sql, conditions)
        return found.withColumns(
            {each.name: found[quoted_in_spark(each.name)].cast("timestamp_ntz") for each in columns if each.is_datetime}
        )

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
        quoted = self.database.quoted(column)
        highest = self.database.as_text(f"MAX({quoted})")
        known = lower = "0"
        if position is not None and position.get("kind") == "cursor":
            value = self.database.literal(position["value"], is_number=is_number)
            known = f"COUNT(CASE WHEN {quoted} <= {value} THEN 1 END)"
            lower = f"CASE WHEN MAX({quoted}) < {value} THEN 1 ELSE 0 END"
        table = self.database.quoted(*self.name.namespace, self.name.name)
        (found,) = self.database.queries.asked(
            f"SELECT {highest} AS highest, {known} AS known, {lower} AS lower_max, "  # noqa: S608 - names are quoted
            f"COUNT(CASE WHEN {quoted} IS NULL THEN 1 END) AS missing FROM {table}"
        )
        return CursorFacts(found["highest"], int(found["known"]), bool(found["lower_max"]), int(found["missing"]))


@dataclass(frozen=True, slots=True)
class DatabaseChanges:
    """Rows of a table: those in a range of its cursor column, or all."""

    table: DatabaseTable
    frame: DataFrame
    chosen: CursorRange | None
    rules: CopyRules
    file_count: int = 1

    @property
    def replaces(self) -> bool:
        """Whether these are all rows, instead of those that the copy has."""
        return self.rules.mode == CopyMode.REPLACE

    def columns(self) -> pa.Schema:
        """The columns in the types in which Spark reads them."""
        from pyspark.sql.pandas.types import to_arrow_schema

        return to_arrow_schema(self.frame.schema, timestamp_utc=True)

    def write(self, target: Target, keys: pa.Schema) -> Written:
        """Read and write the rows, with as many connections as the settings say. Keys must be unique."""
        rows_of = self._rows()
        names = rows_of.columns
        numbered = rows_of.toDF(*(f"c{place}" for place in range(len(names))))  # any name can be that of a column

        def run(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
            outcome = outcome_of(lambda: write_rows(target, (each.rename_columns(names) for each in batches)))
            yield pa.record_batch({"place": pa.array([0], pa.int64()), "outcome": pa.array([outcome], pa.binary())})

        made = self.table.database.queries.collected(numbered.mapInArrow(run, RESULT))
        rows = sum(each.rows for each in made)
        position: Position = {"kind": "all"} if self.chosen is None else self.chosen.position(rows)
        written = Written.all(made, position)
        if not len(keys):
            return written
        try:
            found = self.table.database.distribute(
                lambda file: keys_of_files(target, [file], keys), list(written.files)
            )
            self._check_unique(found, keys)
        except SkiwayError:
            target.files.remove(written.paths)
            raise
        return Written(written.files, rows, position, tuple(found))

    def _rows(self) -> DataFrame:
        if self.chosen is None:
            return self.table.rows("")
        database, column = self.table.database, self.table.database.quoted(self.chosen.column)
        is_number = _is_number(self.frame, self.chosen.column)
        upto = f"{column} <= {database.literal(self.chosen.upto, is_number=is_number)}"
        after = self.chosen.after
        above = [] if after is None else [f"{column} > {database.literal(after, is_number=is_number)}"]
        return self.table.rows(" AND ".join([*above, upto]), self._conditions(column))

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

    def _check_unique(self, keys: list[pa.Table], names: pa.Schema) -> None:
        if not keys:
            return
        everything = looked_up(pa.concat_tables(keys), names.names)
        distinct = everything.group_by(names.names, use_threads=False).aggregate([]).num_rows
        if distinct < everything.num_rows:
            raise ConstraintViolation(
                f"the key columns {', '.join(names.names)} of {self.table.name} do not identify rows: {everything.num_rows} rows "
                f"have {distinct} different keys; choose other key_columns",
                key="ingest.key.duplicate",
            )


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
