"""The embedded DuckDB: it runs SQL and returns rows as DuckDB renders them.

This module imports nothing but DuckDB, so that a query without tables starts fast.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import duckdb

from skiway.errors import InvalidArgument, SkiwayError

if TYPE_CHECKING:
    import pyarrow as pa

IS_STRICT: Final = not hasattr(duckdb.DuckDBPyConnection, "fetch_record_batch")
"""Whether DuckDB is 2.0 or newer: it returns Arrow data from relations only."""
SOURCE_EXCERPT: Final = re.compile(r"\n+LINE \d+:.*", re.DOTALL)
PENDING: Final = re.compile(
    r"Invalid Input Error: Attempting to execute an unsuccessful or closed pending query result\s+Error: "
)
"""What DuckDB puts before the error of a query that failed after its first rows."""
NAME_HINT: Final = "write tables as catalog.schema.table; list them with skiway tables list"
UNKNOWN_TABLE: Final = re.compile(r'(Table with name "?(.+?)"? does not exist)!(?: Did you mean .*)?', re.DOTALL)
"""DuckDB's message about a table that it does not know, with a suggestion from its own catalog."""
STREAMING_BUFFER: Final = "16KB"
"""How much DuckDB buffers before it returns the first rows; its default is 1 MB."""
FETCH_ROWS: Final = 2048
NUMBERS: Final = re.compile(r"(U?(TINY|SMALL|BIG|HUGE)?INT(EGER)?|FLOAT|DOUBLE|DECIMAL\(.*\)|BIGNUM)$")
NOT_FINITE: Final = re.compile(r'"(?:[^"\\]|\\.)*"|-?Infinity|-?NaN')
AS_TEXT: Final = {"NaN": '"nan"', "-NaN": '"nan"', "Infinity": '"inf"', "-Infinity": '"-inf"'}
FLOAT: Final = re.compile(r""""(?:[^"]|"")*"|'(?:[^']|'')*'|\bFLOAT(?=[,)\[]|$)""")
"""The type in the name of a type, and what could be mistaken for it: names of fields, and values of an ENUM."""
READS_TABLES: Final = re.compile(
    r"\b(from|join|table|tables|describe|desc|show|summarize|pivot|unpivot)\b", re.IGNORECASE
)
INTERRUPTED: Final = "INTERRUPT Error"


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement as it was written, and its kind, such as SELECT."""

    text: str
    kind: str

    @property
    def reads_no_table(self) -> bool:
        """Whether it is a query that cannot read any table: it has no FROM, nor anything like it."""
        return self.kind == "SELECT" and self.word != "PRAGMA" and not READS_TABLES.search(self.text)

    @property
    def word(self) -> str:
        """The first word in upper case."""
        return self.text.split(None, 1)[0].upper()


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a statement: rows, or a count and a message."""

    statement: str
    answer: Answer | None = None
    count: int | None = None
    message: str = ""


def split_statements(text: str) -> list[Statement]:
    """Split text into statements at semicolons, which DuckDB tells from those in strings and comments."""
    statements = []
    for part in _parts(text):
        try:
            found: list[Any] = duckdb.extract_statements(part)
        except duckdb.Error as error:
            raise InvalidArgument(first_paragraph(error)) from error
        kind = found[-1].type.name  # PIVOT is two, the last of them the query; from DuckDB 2.0 on, it is one
        statements.append(Statement(part.strip(), "SELECT" if kind == "MULTI" else kind))
    return statements


def is_complete(text: str) -> bool:
    """Whether text ends with a complete statement: a semicolon in a string or a comment does not end it."""
    text = text.strip()
    if not text or not text.endswith(";"):
        return not text
    try:
        split_statements(text)
    except InvalidArgument as error:
        return "unterminated" not in error.message
    return True


def _parts(text: str) -> Iterator[str]:
    """Yield the text between semicolons, without comments at its beginning."""
    data = text.encode()
    start = None
    tokens = [token for token in duckdb.tokenize(text) if token[1] != duckdb.token_type.comment]
    for at, kind in [*tokens, (len(data), None)]:
        is_end = kind is None or (kind == duckdb.token_type.operator and data[at : at + 1] == b";")
        if is_end and start is not None:
            yield data[start:at].decode()
        start = None if is_end else at if start is None else start


class Answer:
    """The rows of a query. Read them once: as cells of text, or as JSON objects."""

    def __init__(
        self, engine: Engine, query: str, relation: duckdb.DuckDBPyRelation, names: Sequence[str], types: Sequence[str]
    ) -> None:
        self._engine, self._query, self._types = engine, query, types
        self._relation = relation
        self._scope = engine.scope
        self._columns = [f"c{number}" for number in range(len(names))]
        self.names = _unique(names)
        self.are_numbers = [bool(NUMBERS.match(each)) for each in types]

    @property
    def relation(self) -> duckdb.DuckDBPyRelation:
        """The rows as a relation of DuckDB."""
        return self._relation

    def texts(self) -> Iterator[list[Any]]:
        """Yield pages of rows. Each value is cast to text by DuckDB."""
        return self._pages([f"CAST({column} AS VARCHAR)" for column in self._columns])

    def documents(self) -> Iterator[str]:
        """Yield each row as a JSON object, made by DuckDB. Numbers that JSON lacks are text: nan, inf and -inf."""
        values = map(_json_value, self._columns, self._types)
        members = ", ".join(f"{_literal(name)}, {value}" for name, value in zip(self.names, values, strict=True))
        for page in self._pages([f"json_object({members})"]):
            for (text,) in page:
                yield NOT_FINITE.sub(_finite, text) if "NaN" in text or "Infinity" in text else text

    def read_all(self) -> list[tuple[Any, ...]]:
        """Return all rows as Python values."""
        return [row for page in self._pages(self._columns) for row in page]

    def _pages(self, selected: Sequence[str]) -> Iterator[list[Any]]:
        columns = ", ".join(self._columns)
        query = f"SELECT {', '.join(selected)} FROM ({self._query}\n) AS q({columns})"  # noqa: S608
        return self._engine.pages(query, self._scope)


class Fetched(Answer):
    """The rows of a statement that cannot be part of a query, such as EXPLAIN, or INSERT with RETURNING."""

    def __init__(self, engine: Engine, relation: duckdb.DuckDBPyRelation, names: Sequence[str]) -> None:
        super().__init__(engine, "", relation, names, list(map(str, relation.types)))
        self._columns = [quoted(name) for name in relation.columns]

    @property
    def relation(self) -> duckdb.DuckDBPyRelation:
        """The rows as a relation of DuckDB, with their names."""
        renamed = zip(self._columns, self.names, strict=True)
        return self._relation.project(", ".join(f"{column} AS {quoted(name)}" for column, name in renamed))

    def _pages(self, selected: Sequence[str]) -> Iterator[list[Any]]:
        with self._engine.errors():
            yield self._relation.project(", ".join(selected)).fetchall()


class Engine:
    """A DuckDB connection, a new one or the caller's. In it, each catalog of the lake is a database whose views scan the lake's tables."""

    def __init__(self, catalog: str = "lake", connection: duckdb.DuckDBPyConnection | None = None) -> None:
        self.duckdb = connection or duckdb.connect()
        self.failures: list[SkiwayError] = []
        """The errors of scans, which DuckDB replaces by errors of its own."""
        self.suggested: Callable[[str], str] = lambda _: ""
        """What to say about an unknown table; "" if nothing is like it."""
        self.catalogs: set[str] = set()
        self.scope: dict[str, Any] = {}
        """Objects that the statement reads by their names, as DuckDB reads variables of Python."""
        self.attach(catalog)
        if connection is None:
            self.duckdb.execute(f"SET streaming_buffer_size = '{STREAMING_BUFFER}'")
            self.duckdb.execute(f"USE {quoted(catalog)}")

    def attach(self, catalog: str) -> None:
        """Create the database of a catalog."""
        if catalog.lower() in self.catalogs:
            return
        try:
            self.duckdb.execute(f"ATTACH ':memory:' AS {quoted(catalog)}").fetchall()
        except duckdb.Error as error:
            raise InvalidArgument(f"{catalog} cannot be attached: {first_paragraph(error)}") from error
        self.catalogs.add(catalog.lower())

    def sql(self, text: str) -> Any:
        """Return a relation for a query."""
        return _in_scope(self.duckdb.sql, text, self.scope)

    def execute(self, text: str, scope: dict[str, Any] | None = None) -> Any:
        """Run a statement and return the connection."""
        return _in_scope(self.duckdb.execute, text, self.scope if scope is None else scope)

    def query(self, text: str) -> Answer:
        """Prepare a query. Its rows are read while the caller iterates over them."""
        with self.errors():
            relation = self.sql(text)
            names, types = list(relation.columns), list(map(str, relation.types))
        return Answer(self, text, relation, names, types)

    def run(self, text: str) -> Answer | None:
        """Run a statement that reads no table of the lake, such as SET or PRAGMA, and return its rows, if it has any."""
        with self.errors():
            relation: duckdb.DuckDBPyRelation | None = self.duckdb.sql(text)
            if relation is not None and relation.columns == ["Success"]:  # DuckDB 2.0 runs it now
                relation.fetchall()
                return None
        return None if relation is None else Fetched(self, relation, relation.columns)

    def fetch(self, text: str) -> Answer:
        """Run a statement that has rows and is no query, such as EXPLAIN ANALYZE, or INSERT with RETURNING.

        It may read tables of the lake. `sql()` holds the interpreter's lock while it runs such a statement, and a thread of DuckDB
        that frees rows of the lake would wait for the lock for ever.
        """
        with self.errors():
            with self.lossless_arrow():
                rows = self.arrow_table(text)
            unique = rows.rename_columns([f"c{number}" for number in range(rows.num_columns)])
            return Fetched(self, self.duckdb.from_arrow(unique), rows.schema.names)

    def arrow_table(self, text: str) -> pa.Table:
        """Run a statement and return its rows as Arrow data."""
        if IS_STRICT:
            return self.sql(text).to_arrow_table()
        rows = self.execute(text)
        return rows.to_arrow_table() if hasattr(rows, "to_arrow_table") else rows.fetch_arrow_table()

    @contextmanager
    def lossless_arrow(self) -> Iterator[None]:
        """Let DuckDB use extension types in Arrow data for types that Arrow lacks."""
        [(before,)] = self.duckdb.execute("SELECT current_setting('arrow_lossless_conversion')").fetchall()
        self.duckdb.execute("SET arrow_lossless_conversion = true")
        try:
            yield
        finally:
            self.duckdb.execute(f"SET arrow_lossless_conversion = {before}")

    def change(self, text: str) -> int:
        """Run a statement that changes something, and return the number of rows that it affected."""
        with self.errors():
            rows = self.execute(text).fetchall()
        return int(rows[0][0]) if rows else 0

    def pages(self, query: str, scope: dict[str, Any]) -> Iterator[list[Any]]:
        """Run a query and yield its rows in pages."""
        with self.errors():
            self.execute(query, scope)
            while page := self._next_page(query, scope):
                yield page

    def _next_page(self, query: str, scope: dict[str, Any]) -> list[Any]:
        try:
            return self.duckdb.fetchmany(FETCH_ROWS)
        except duckdb.Error as error:
            if INTERRUPTED not in str(error) or self.failures or self.is_cancelled:
                raise
            # A thread failed and interrupted the others, and one of these reported first: run again to get the cause.
            self.execute(query, scope).fetchall()
            raise

    is_cancelled = False

    def cancel(self) -> None:
        """Stop the running query; can be called from any thread."""
        self.is_cancelled = True
        self.duckdb.interrupt()

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Convert errors of DuckDB; an error of a scan is raised as it was."""
        self.failures.clear()
        try:
            yield
        except Exception as error:
            if self.failures and not isinstance(error, SkiwayError):
                raise self.failures[0] from error
            if isinstance(error, SkiwayError) or not _is_duckdb_error(error):
                raise
            message, hint = first_paragraph(error), ""
            if isinstance(error, duckdb.CatalogException):
                found = UNKNOWN_TABLE.search(message)
                message = UNKNOWN_TABLE.sub(r"\1", message)
                hint = f"; {(found and self.suggested(found[2])) or NAME_HINT}"
            raise InvalidArgument(f"{message}{hint}") from error

    def close(self) -> None:
        """Close DuckDB."""
        self.duckdb.close()


def _in_scope(method: Callable[[str], Any], text: str, scope: dict[str, Any]) -> Any:
    """Call a method of DuckDB, which finds what `scope` names as if it were variables of its caller."""
    return eval("__method__(__text__)", {"__method__": method, "__text__": text, **scope})  # noqa: S307 - constant


def _unique(names: Sequence[str]) -> list[str]:
    """Return the names of columns with a number after those that occur before, which SQL allows."""
    found: list[str] = []
    for name in names:
        number, unique = 1, name
        while unique in found:
            number += 1
            unique = f"{name}_{number}"
        found.append(unique)
    return found


def _is_duckdb_error(error: Exception) -> bool:
    """Whether DuckDB raised it: a stream of DuckDB raises OSError or an error of pyarrow."""
    return isinstance(error, duckdb.Error | OSError) or type(error).__module__.startswith("pyarrow")


def _finite(found: re.Match[str]) -> str:
    return AS_TEXT.get(found[0], found[0])


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _json_value(column: str, kind: str) -> str:
    """Return a column for JSON. A FLOAT is shown with the digits of its text: as DOUBLE, 0.1 is 0.10000000149011612."""
    text, number = _without_float(kind, "VARCHAR"), _without_float(kind, "DOUBLE")
    return column if text == kind else f"CAST(CAST({column} AS {text}) AS {number})"


def _without_float(kind: str, into: str) -> str:
    return FLOAT.sub(lambda found: into if found[0] == "FLOAT" else found[0], kind)


def quoted(name: str) -> str:
    """Return a quoted identifier."""
    return '"' + name.replace('"', '""') + '"'


def first_paragraph(error: Exception) -> str:
    """Return the message in one line, without the excerpt of the SQL, which may be generated."""
    message = str(error).replace("\x1b[4m", "").replace("\x1b[0m", "")
    return " ".join(PENDING.sub("", SOURCE_EXCERPT.sub("", message)).split())


def count_rows(participle: str, count: int) -> str:
    """Return text such as `inserted 1 row`."""
    return f"{participle} {count:,} row{'' if count == 1 else 's'}"
