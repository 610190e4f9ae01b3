"""The catalog in memory against DuckDB itself: the same statements, over the socket there and as SQL here.

After every step both have the same schemas, tables, columns, defaults and rows; each statement succeeds on both sides or
fails on both with an error of the same kind, and tells the same count and the same returned rows.

DuckDB's own keys and checks are left out of the model: its indexes forbid alterations that mean no harm, and look at
keys too early within a statement. What they are for is asked by queries after each statement instead.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, event, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from skiway import errors
from skiway.airport import Server
from skiway.airport.memory import MemoryCatalog
from skiway.airport.wire.duckdb_types import duckdb_type
from skiway.client import AirportClient, Predicate, Written, col

SCHEMAS, TABLES, COLUMNS = ("s1", "s2"), ("t", "u", "T"), ("a", "b", "c", "d")
STRUCT = "STRUCT(x INTEGER, y VARCHAR)"
TYPES: dict[str, pa.DataType] = {
    "BIGINT": pa.int64(),
    "INTEGER": pa.int32(),
    "VARCHAR": pa.string(),
    "DOUBLE": pa.float64(),
    "BOOLEAN": pa.bool_(),
    "DATE": pa.date32(),
    STRUCT: pa.struct([("x", pa.int32()), ("y", pa.string())]),
}
numbers, words = st.sampled_from([0, 1, 2, 3, 7, 13]), st.sampled_from(["", "a", "B", "7", "x'y"])
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "BIGINT": numbers,
    "INTEGER": numbers,
    "VARCHAR": words,
    "DOUBLE": st.sampled_from([0.0, 1.0, 2.5, 13.0]),
    "BOOLEAN": st.booleans(),
    "DATE": st.dates(),
}
schema_names, table_names, column_names = map(st.sampled_from, (SCHEMAS, TABLES, COLUMNS))


@dataclass
class Rules:
    """What the rows of one table have to keep, beside NOT NULL."""

    primary: tuple[str, ...] = ()
    unique: tuple[str, ...] = ()
    not_thirteen: tuple[str, ...] = ()  # CHECK of one column
    ordered: tuple[str, ...] = ()  # CHECK of two

    def names(self, column: str) -> bool:
        return column in (*self.primary, *self.unique, *self.not_thirteen, *self.ordered)

    def checks(self) -> list[str]:
        single = [f"{name} <> 13" for name in self.not_thirteen]
        return [*single, f"{self.ordered[0]} <= {self.ordered[1]}"] if self.ordered else single

    def renamed(self, old: str, new: str) -> Rules:
        return Rules(*(tuple(new if n == old else n for n in names) for names in self._all()))

    def without(self, column: str) -> Rules:
        return Rules(*(() if column in names else names for names in self._all()))

    def _all(self) -> tuple[tuple[str, ...], ...]:
        return self.primary, self.unique, self.not_thirteen, self.ordered


class Failed(Exception):
    """A statement that the model refuses, with the class of error that the catalog has to answer with."""

    def __init__(self, kind: type[errors.SkiwayError]) -> None:
        self.kind = kind


@dataclass
class Model:
    """DuckDB, and the rules of its tables."""

    db: duckdb.DuckDBPyConnection = field(default_factory=duckdb.connect)
    rules: dict[tuple[str, str], Rules] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.db.execute("ATTACH ':memory:' AS m; USE m")

    def schemas(self) -> set[str]:
        found = self.db.execute("SELECT schema_name FROM duckdb_schemas() WHERE database_name = 'm' AND NOT internal")
        return {name for (name,) in found.fetchall()}

    def columns(self) -> dict[tuple[str, str], dict[str, tuple[str, bool, Any]]]:
        """Type, whether NULL is allowed, and the default's value, of all columns of all tables."""
        tables = self.db.execute("SELECT schema_name, table_name FROM duckdb_tables() WHERE database_name = 'm'")
        found: dict[tuple[str, str], dict[str, tuple[str, bool, Any]]] = {name: {} for name in tables.fetchall()}
        sql = "SELECT schema_name, table_name, column_name, data_type, is_nullable, column_default FROM duckdb_columns()"
        for schema, table, name, kind, nullable, default in self.db.execute(
            f"{sql} WHERE database_name = 'm' ORDER BY column_index"
        ).fetchall():
            found[schema, table][name] = (kind, nullable, self.value(default))
        return found

    def value(self, expression: str | None) -> Any:
        return None if expression is None else self.db.execute(f"SELECT ({expression})::VARCHAR").fetchone()

    def rows(self, name: tuple[str, str]) -> list[str]:
        return sorted(map(str, self.db.execute(f"FROM {quoted(name)}").fetchall()))

    def run(self, sql: str, *, touching: tuple[str, str] | None = None, **tables: pa.Table) -> list[tuple[Any, ...]]:
        """The statement's result; undone and `Failed` if DuckDB or a rule of the table refuses."""
        cursor = self.db
        cursor.execute("BEGIN")
        try:
            for name, table in tables.items():
                cursor.register(name, table)
            result = cursor.execute(sql).fetchall()
            if touching is not None:
                self._keep(touching)
        except duckdb.Error as error:
            cursor.execute("ROLLBACK")
            raise Failed(kind_of(error)) from error
        except Failed:
            cursor.execute("ROLLBACK")
            raise
        cursor.execute("COMMIT")
        return result

    def _keep(self, name: tuple[str, str]) -> None:
        rules = self.rules[name]
        for keys in (rules.primary, rules.unique):
            if keys:
                listed = ", ".join(keys)
                present = " AND ".join(f"{key} IS NOT NULL" for key in keys)
                self._none(f"FROM {quoted(name)} SELECT 1 WHERE {present} GROUP BY {listed} HAVING count(*) > 1")
        for check in rules.checks():
            self._none(f"FROM {quoted(name)} SELECT 1 WHERE NOT ({check})")

    def _none(self, sql: str) -> None:
        if self.db.execute(sql).fetchall():
            raise Failed(errors.ConstraintViolation)


def quoted(name: tuple[str, str]) -> str:
    return f'm."{name[0]}"."{name[1]}"'


def kind_of(error: duckdb.Error) -> type[errors.SkiwayError]:
    text = str(error)
    if isinstance(error, duckdb.ConstraintException):
        return errors.ConstraintViolation
    if isinstance(error, duckdb.ConversionException):
        return errors.InvalidArgument
    if isinstance(error, duckdb.DependencyException):
        return errors.SchemaNotEmpty
    if "already exists" in text:
        return errors.AlreadyExists
    if "does not exist" in text or "does not have a column" in text or "not found" in text:
        return errors.NotFound
    if "only has one column" in text or "only one column" in text:
        return errors.PreconditionFailed
    raise AssertionError(f"an error of DuckDB that no class stands for: {error!r}") from error


@dataclass(frozen=True)
class Where:
    """A predicate in both languages."""

    predicate: Predicate
    sql: str


DONE: Counter[tuple[str, str]] = Counter()


class MemoryMachine(RuleBasedStateMachine):
    """Both sides, and the same done to both."""

    @initialize()
    def start(self) -> None:
        self.server = Server(MemoryCatalog("m"), port=0).start()
        self.client = AirportClient(self.server.location, "m", timeout_s=30)
        self.other = AirportClient(self.server.location, "m", timeout_s=30)
        self.model = Model()

    def teardown(self) -> None:
        if hasattr(self, "server"):
            self.client.close()
            self.other.close()
            self.server.stop(0)
            self.model.db.close()

    # -- one statement on both sides ----------------------------------------------------------------------------------

    def both(self, what: str, here: Callable[[], Any], there: Callable[[], Any]) -> Any:
        """Do it to the model and to the catalog; what the catalog gave, or None where both refused."""
        try:
            expected, kind = here(), None
        except Failed as failed:
            expected, kind = None, failed.kind
        try:
            found = there()
        except errors.SkiwayError as error:
            assert kind is not None, f"{what}: only the catalog refused, with {error!r}"
            assert type(error) is kind, f"{what}: the model says {kind.__name__}, the catalog {error!r}"
            self.noted(what, "refused")
            return None
        assert kind is None, f"{what}: only the model refused, with {kind.__name__ if kind else ''}"
        if isinstance(found, Written):
            assert found.count == expected[0], what
            if found.rows is not None:
                assert sorted(str(tuple(row.values())) for row in found.rows.to_pylist()) == expected[1], what
        self.noted(what, "done")
        return found

    def noted(self, what: str, outcome: str) -> None:
        DONE[what, outcome] += 1
        event(f"{what}: {outcome}")

    def tables(self) -> list[tuple[str, str]]:
        return sorted(self.model.columns())

    def table(self, data: st.DataObject) -> tuple[str, str]:
        return data.draw(st.sampled_from(self.tables()), "table")

    def kinds(self, name: tuple[str, str]) -> dict[str, str]:
        return {column: kind for column, (kind, _, _) in self.model.columns()[name].items()}

    # -- schemas and tables ---------------------------------------------------------------------------------------------

    @rule(name=schema_names, forgiving=st.booleans())
    def create_schema(self, name: str, forgiving: bool) -> None:
        sql = f"CREATE SCHEMA {'IF NOT EXISTS ' if forgiving else ''}m.{name}"
        self.both(
            "create schema",
            lambda: self.model.run(sql),
            lambda: self.client.create_schema(name, if_not_exists=forgiving),
        )

    @rule(name=schema_names, forgiving=st.booleans())
    def drop_schema(self, name: str, forgiving: bool) -> None:
        def here() -> None:
            self.model.run(f"DROP SCHEMA {'IF EXISTS ' if forgiving else ''}m.{name}")

        self.both("drop schema", here, lambda: self.client.drop_schema(name, if_exists=forgiving))

    @precondition(lambda self: self.model.schemas())
    @rule(data=st.data(), conflict=st.sampled_from(["error", "error", "ignore", "replace"]))
    def create_table(self, data: st.DataObject, conflict: Any) -> None:
        name = data.draw(st.sampled_from(sorted(self.model.schemas()))), data.draw(table_names)
        columns = data.draw(st.dictionaries(column_names, st.sampled_from(list(TYPES)), min_size=1), "columns")
        rules = data.draw(rules_over(columns), "rules")
        strict = data.draw(st.sets(st.sampled_from(sorted(columns)), max_size=1), "not null")
        there = next((known for known in self.tables() if (known[0], known[1].lower()) == (name[0], name[1].lower())), None)
        words = {"error": "TABLE", "ignore": "TABLE IF NOT EXISTS", "replace": "OR REPLACE TABLE"}[conflict]
        declared = [
            f"{column} {kind}{' NOT NULL' if column in (*strict, *rules.primary) else ''}" for column, kind in columns.items()
        ]

        def here() -> None:
            self.model.run(f"CREATE {words} {quoted(name)} ({', '.join(declared)})")
            if there is None or conflict == "replace":
                self.model.rules.pop(there or name, None)
                self.model.rules[name] = rules

        self.both(
            f"create table ({conflict})",
            here,
            lambda: self.client.create_table(
                name,
                pa.schema({column: TYPES[kind] for column, kind in columns.items()}),
                not_null=sorted(strict),
                primary_key=rules.primary,
                unique=[rules.unique] if rules.unique else [],
                checks=rules.checks(),
                on_conflict=conflict,
            ),
        )

    @precondition(lambda self: self.model.schemas())
    @rule(data=st.data(), table=table_names, forgiving=st.booleans())
    def drop_table(self, data: st.DataObject, table: str, forgiving: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.model.schemas()))), table

        def here() -> None:
            self.model.run(f"DROP TABLE {'IF EXISTS ' if forgiving else ''}{quoted(name)}")
            self.forget(name)

        self.both("drop table", here, lambda: self.client.drop_table(name, if_exists=forgiving))

    def forget(self, name: tuple[str, str]) -> Rules | None:
        """The rules of a table, whatever the case of its name."""
        known = next((k for k in self.model.rules if (k[0], k[1].lower()) == (name[0], name[1].lower())), None)
        return None if known is None else self.model.rules.pop(known)

    @precondition(lambda self: self.tables())
    @rule(data=st.data(), new=table_names)
    def rename_table(self, data: st.DataObject, new: str) -> None:
        name = self.table(data)
        if new != name[1] and new.lower() == name[1].lower():
            return  # DuckDB refuses to change the case of a name

        def here() -> None:
            self.model.run(f'ALTER TABLE {quoted(name)} RENAME TO "{new}"')
            rules = self.forget(name)
            assert rules is not None
            self.model.rules[name[0], new] = rules

        self.both("rename table", here, lambda: self.client.rename_table(name, new))
