"""Runs a test file of sqllogictest with the duckdb package."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import duckdb

from duckdb_iceberg_kit.comparison import is_message, mismatch, shown
from duckdb_iceberg_kit.records import Directive, Loop, Query, Record, Statement, parse

__all__ = ["Outcome", "Settings", "run_file"]

_COUNTED: Final = re.compile(r"\s*(insert|update|delete|copy|merge)\b(?!.*\breturning\b)", re.IGNORECASE | re.DOTALL)
_SELECTED: Final = re.compile(r"(\s|--[^\n]*\n)*(select|with|from|values|table|\()", re.IGNORECASE)


@dataclass(frozen=True)
class Settings:
    """The database of each file: extensions, first statements, environment, and texts of the suite that are replaced."""

    extensions: Sequence[str] = ()
    first_sql: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    replaced: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """How a file ended: `passed`, `failed` or `not run`, with the reason."""

    file: str
    result: str
    reason: str = ""


class _Failed(Exception):
    """A record did not behave as the file says."""


class _NotRun(Exception):
    """The file asks for something that is missing."""


class _NextRound(Exception):
    """The rest of a loop's body is left out."""


def run_file(file: str, settings: Settings) -> Outcome:
    """Run a file against a new database in memory; relative paths of the file are those of the working directory."""
    with TemporaryDirectory() as folder:
        try:
            with _database(settings, folder) as connection:
                _Runner(settings, connection, Path(folder), dict(settings.environment)).run(
                    parse(Path(file).read_text())
                )
        except _NotRun as reason:
            return Outcome(file, "not run", str(reason))
        except (_Failed, ValueError, duckdb.Error) as error:
            return Outcome(file, "failed", str(error))
    return Outcome(file, "passed")


def _database(settings: Settings, folder: str) -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect(config={"allow_unsigned_extensions": "true", "python_enable_replacements": "false"})
    connection.execute(f"SET home_directory = '{folder}'; SET TimeZone = 'UTC'")
    for name in settings.extensions:
        _load(connection, name)
    for statement in connection.extract_statements(settings.first_sql):
        connection.execute(statement)
    return connection


def _load(connection: duckdb.DuckDBPyConnection, name: str) -> None:
    """Load an extension that is built in, or that a package `duckdb_extension_NAME` contains."""
    is_loaded = "SELECT loaded FROM duckdb_extensions() WHERE extension_name = ?"
    if connection.execute(is_loaded, [name]).fetchone() == (True,):
        return
    package = find_spec(f"duckdb_extension_{name}")
    if package is None or not package.submodule_search_locations:
        raise _NotRun(f"the extension {name} is missing")
    folder = Path(package.submodule_search_locations[0], "extensions", f"v{duckdb.__version__}")
    connection.execute(f"LOAD '{folder / name}.duckdb_extension'")


@dataclass
class _Runner:
    """Runs the records of a file."""

    settings: Settings
    database: duckdb.DuckDBPyConnection
    folder: Path
    variables: dict[str, str]
    connections: dict[str, duckdb.DuckDBPyConnection] = field(default_factory=dict)
    labels: dict[str, list[list[str]]] = field(default_factory=dict)

    def run(self, records: Sequence[Record]) -> None:
        is_skipping = leaves_out_next = False
        for record in records:
            words = record.words if isinstance(record, Directive) else []
            if words[:1] == ["mode"]:
                is_skipping = words[1:] == ["skip"]
            elif words[:1] in (["onlyif"], ["skipif"]):
                leaves_out_next = self._holds(words[1]) is (words[0] == "skipif")
            elif is_skipping or leaves_out_next:
                leaves_out_next = False
            else:
                self._run_record(record)

    def _holds(self, condition: str) -> bool:
        name, separator, value = condition.partition("=")
        return self.variables.get(name) == value if separator else name == "duckdb"

    def _run_record(self, record: Record) -> None:
        match record:
            case Statement():
                self._statement(record)
            case Query():
                self._query(record)
            case Loop(is_concurrent=True):
                with ThreadPoolExecutor(len(record.values)) as threads:
                    for _ in threads.map(lambda value: self._beside_others().round(record, value), record.values):
                        pass
            case Loop():
                for value in record.values:
                    self.round(record, value)
            case Directive(line, words):
                self._directive(line, words)

    def round(self, loop: Loop, value: str) -> None:
        """Run the body of a loop once."""
        self.variables[loop.variable] = value
        with suppress(_NextRound):
            self.run(loop.body)

    def _beside_others(self) -> _Runner:
        return _Runner(self.settings, self.database.cursor(), self.folder, dict(self.variables))

    def _directive(self, line: int, words: Sequence[str]) -> None:
        match words:
            case ["require", "skip_reload" | "no_extension_autoloading" | "vector_size" | "notwindows", *_]:
                pass
            case ["require", name, *_]:
                _load(self.database, name)
            case ["require-env", name, *values]:
                value = self.settings.environment.get(name)
                if value is None or values not in ([], [value]):
                    raise _NotRun(f"it needs {' '.join(words[1:])} in the environment")
            case ["test-env", name, *values]:
                self.variables.setdefault(name, " ".join(values))
            case ["continue"]:
                raise _NextRound
            case ["tags" | "hash-threshold" | "set", *_]:
                pass
            case _:
                raise _NotRun(f"line {line}: {' '.join(words)} is not understood")

    def _statement(self, record: Statement) -> None:
        try:
            self._execute(self._connection(record.connection), self._filled(record.sql))
        except duckdb.Error as error:
            message = _message(error)
            if record.outcome == "ok":
                raise _Failed(f"line {record.line}: {message}") from error
            if not is_message(message, self._filled(record.message)):
                raise _Failed(
                    f"line {record.line}: the file expects {record.message!r}, the error is {message}"
                ) from error
        else:
            if record.outcome == "error":
                raise _Failed(f"line {record.line}: the statement succeeded, the file expects an error")

    def _query(self, record: Query) -> None:
        connection, sql = self._connection(record.connection), self._filled(record.sql)
        try:
            types, values = self._execute(connection, sql)
        except duckdb.Error as error:
            raise _Failed(f"line {record.line}: {_message(error)}") from error
        rows = [[shown(value, type_) for value, type_ in zip(row, types, strict=True)] for row in values]
        if record.label and sorted(self.labels.setdefault(record.label, rows)) != sorted(rows):
            raise _Failed(f"line {record.line}: the result differs from the earlier one with the label {record.label}")
        if record.lines or not record.label:
            expected = self._expected([self._filled(line) for line in record.lines])
            if difference := mismatch(rows, types, expected, record.sort):
                raise _Failed(f"line {record.line}: {difference}")

    @staticmethod
    def _expected(lines: list[str]) -> list[str]:
        """The lines of the result, or those of the file that the only line names."""
        if len(lines) != 1 or not lines[0].startswith("<FILE>:"):
            return lines
        content = Path(lines[0].removeprefix("<FILE>:")).read_text().splitlines()[1:]
        return ["\t".join(value or "NULL" for value in line.split("|")) for line in content]

    def _execute(self, connection: duckdb.DuckDBPyConnection, sql: str) -> tuple[list[str], list[Any]]:
        """Run SQL, and return the types of the last result and its rows, each value as DuckDB casts it to VARCHAR."""
        relation: Any  # None after a statement without a result, which the types of duckdb do not say
        *others, last = connection.extract_statements(sql)
        for statement in others:
            connection.execute(statement)
        if _COUNTED.match(last.query):
            return ["BIGINT"], [[str(value) for value in row] for row in connection.execute(last).fetchall()]
        if last.type == duckdb.StatementType.SELECT:
            # A table keeps values of every type, and the query runs only once. Python's values have fewer types.
            query = last.query.strip().rstrip(";")
            selected = query if _SELECTED.match(query) else f"SELECT * FROM ({query})"
            connection.execute(f"CREATE OR REPLACE TEMP TABLE result_of_query AS {selected}")
            relation = connection.table("temp.main.result_of_query")
        else:
            relation = connection.sql(last)
        if relation is None:
            return [], []
        types = [str(type_) for type_ in relation.types]
        casts = ", ".join(f"CAST(#{number} AS VARCHAR)" for number in range(1, len(types) + 1))
        return types, relation.project(casts).fetchall()

    def _connection(self, name: str) -> duckdb.DuckDBPyConnection:
        if not name:
            return self.database
        if name not in self.connections:
            self.connections[name] = self.database.cursor()
        return self.connections[name]

    def _filled(self, text: str) -> str:
        replaced = {
            "__TEST_DIR__": str(self.folder),
            "__WORKING_DIRECTORY__": str(Path.cwd()),
            **self.settings.replaced,
        }
        for name, value in self.variables.items():
            replaced |= {f"${{{name}}}": value, f"{{{name}}}": value}
        for old, new in replaced.items():
            text = text.replace(old, new)
        return text


def _message(error: duckdb.Error) -> str:
    """The message as DuckDB's own runner compares it, with a line break. In Python, messages of HTTP errors contain JSON."""
    text = f"{str(error).rstrip()}\n"
    if found := re.search(r'\{"exception_type":.*\}\s*$', text, re.DOTALL):
        with suppress(ValueError):
            document = json.loads(found[0])
            return f"{document['exception_type']} Error: {document['exception_message']}\n{text}"
    return text
