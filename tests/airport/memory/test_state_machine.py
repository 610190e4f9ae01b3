"""The in-memory catalog compared with DuckDB itself: the same statements, over a socket and as SQL.

After every step both have the same schemas, tables, columns, defaults and rows; each statement succeeds on both sides or
fails on both with the same kind of error, and returns the same count and the same rows.

The model does not use DuckDB's own keys and checks: its indexes forbid harmless alterations, and check keys too early
within a statement. Queries after each statement check these constraints instead.
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
from hypothesis import HealthCheck, event, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import scope
from skiway import errors
from skiway.airport import Server
from skiway.airport.memory import MemoryCatalog
from skiway.airport.wire.duckdb_sql import duckdb_type
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
    """The constraints of one table, other than NOT NULL."""

    primary: tuple[str, ...] = ()
    unique: tuple[str, ...] = ()
    not_thirteen: tuple[str, ...] = ()  # CHECK on one column
    ordered: tuple[str, ...] = ()  # CHECK on two columns

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
    """A statement that the model rejects, with the error class that the catalog must return."""

    def __init__(self, kind: type[errors.SkiwayError]) -> None:
        self.kind = kind


Described = dict[tuple[str, str], dict[str, tuple[str, bool, Any]]]


@dataclass
class Model:
    """DuckDB, and the constraints of its tables."""

    db: duckdb.DuckDBPyConnection = field(default_factory=duckdb.connect)
    rules: dict[tuple[str, str], Rules] = field(default_factory=dict)
    _columns: Described | None = None

    def __post_init__(self) -> None:
        self.db.execute("ATTACH ':memory:' AS m; USE m")

    def schemas(self) -> set[str]:
        found = self.db.execute("SELECT schema_name FROM duckdb_schemas() WHERE database_name = 'm' AND NOT internal")
        return {name for (name,) in found.fetchall()}

    def columns(self) -> Described:
        """The type, nullability and default value of all columns of all tables."""
        if self._columns is None:
            self._columns = self._described()
        return self._columns

    def _described(self) -> Described:
        tables = self.db.execute("SELECT schema_name, table_name FROM duckdb_tables() WHERE database_name = 'm'")
        found: Described = {name: {} for name in tables.fetchall()}
        sql = (
            "SELECT schema_name, table_name, column_name, data_type, is_nullable, column_default FROM duckdb_columns()"
        )
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
        """The statement's result; rolled back with `Failed` if DuckDB or a constraint of the table rejects it."""
        cursor, self._columns = self.db, None
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

    def rejected_for_deleted_rows(self, sql: str, *, truth: str) -> bool:
        """Whether DuckDB rejects an ALTER TABLE because of deleted rows only: the query `truth` finds no violation."""
        try:
            if self.db.execute(truth).fetchone() is not None:
                return False
            self.db.execute("BEGIN")
        except duckdb.Error:
            return False
        try:
            self.db.execute(sql)
        except (duckdb.ConversionException, duckdb.ConstraintException):
            return True
        except duckdb.Error:
            return False
        finally:
            self.db.execute("ROLLBACK")
        return False

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


def outcome(do: Callable[[], Any]) -> tuple[Any, Exception | None]:
    try:
        return do(), None
    except (Failed, errors.SkiwayError) as error:
        return None, error


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
    if "only has one column" in text or "last field" in text:
        return errors.PreconditionFailed
    raise AssertionError(f"an error of DuckDB that no class stands for: {error!r}") from error


@dataclass(frozen=True)
class Where:
    """A predicate as SQL and as a client expression."""

    predicate: Predicate
    sql: str


def rules_over(columns: dict[str, str]) -> st.SearchStrategy[Rules]:
    """Some constraints that columns of these types can have."""
    keys = [name for name, kind in columns.items() if kind not in (STRUCT, "DOUBLE", "BOOLEAN")]
    integers = [name for name, kind in columns.items() if kind in ("BIGINT", "INTEGER")]

    def some(names: list[str], size: int) -> st.SearchStrategy[tuple[str, ...]]:
        if len(names) < size:
            return st.just(())
        chosen = st.lists(st.sampled_from(names), min_size=size, max_size=size, unique=True).map(tuple)
        return st.just(()) | chosen

    return st.builds(
        Rules,
        primary=some(keys, 1) | some(keys, 2),
        unique=some(keys, 1) | some(keys, 2),
        not_thirteen=some(integers, 1),
        ordered=some(integers, 2),
    )


def value_of(kind: str) -> st.SearchStrategy[Any]:
    """A value for a column, possibly NULL; for a struct, with all its members."""
    if kind.startswith("STRUCT("):
        members = {name: value_of(of) for name, of in members_of(kind).items()}
        return st.none() | st.fixed_dictionaries(members)
    return st.none() | VALUES[kind] | VALUES[kind]


def members_of(kind: str) -> dict[str, str]:
    """Names and types in `STRUCT(x INTEGER, y VARCHAR)`."""
    inside = kind.removeprefix("STRUCT(").removesuffix(")")
    return {name.strip('"'): of for name, of in (part.split(" ", 1) for part in inside.split(", "))}


def arrow_type(kind: str) -> pa.DataType:
    if kind in TYPES:
        return TYPES[kind]
    return pa.struct([(name, arrow_type(of)) for name, of in members_of(kind).items()])


def literal(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, dict):
        return "{" + ", ".join(f"'{name}': {literal(member)}" for name, member in value.items()) + "}"
    if isinstance(value, bool | int | float):
        return str(value)
    return "'" + str(value).replace("'", "''") + "'"


def predicates(kinds: dict[str, str]) -> st.SearchStrategy[Where | None]:
    """Predicates over columns other than structs; None selects all rows."""
    plain = [(name, kind) for name, kind in kinds.items() if not kind.startswith("STRUCT(")]
    if not plain:
        return st.none()

    def about(column: tuple[str, str]) -> st.SearchStrategy[Where]:
        name, kind = column
        value = VALUES[kind]
        same = value.map(lambda v: Where(col(name) == v, f"{name} = {typed(v, kind)}"))
        less = value.map(lambda v: Where(col(name) < v, f"{name} < {typed(v, kind)}"))
        among = st.lists(value, min_size=1, max_size=3).map(
            lambda vs: Where(col(name).isin(vs), f"{name} IN ({', '.join(typed(v, kind) for v in vs)})")
        )
        return same | less | among | st.just(Where(col(name).is_null(), f"{name} IS NULL"))

    single = st.sampled_from(plain).flatmap(about)
    both = st.tuples(single, single).map(
        lambda p: Where(p[0].predicate & p[1].predicate, f"({p[0].sql}) AND ({p[1].sql})")
    )
    either = st.tuples(single, single).map(
        lambda p: Where(p[0].predicate | p[1].predicate, f"({p[0].sql}) OR ({p[1].sql})")
    )
    denied = single.map(lambda p: Where(~p.predicate, f"NOT ({p.sql})"))
    return st.none() | single | single | both | either | denied


def typed(value: Any, kind: str) -> str:
    return f"{literal(value)}::{kind}"


def copy_of(column: str) -> Callable[[pa.Array], pa.Array]:
    """A function whose parameter has the name of the column."""

    def same(values: pa.Array) -> pa.Array:
        return values

    parameter = inspect.Parameter(column, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    same.__signature__ = inspect.Signature([parameter])  # type: ignore[attr-defined]
    return same


DONE: Counter[tuple[str, str]] = Counter()


class MemoryMachine(RuleBasedStateMachine):
    """Runs the same operations on both sides."""

    @initialize()
    def start(self) -> None:
        self.server = Server(MemoryCatalog("m"), port=0).start()
        self.client = AirportClient(self.server.location, "m", timeout_s=120)
        self.other = AirportClient(self.server.location, "m", timeout_s=120)
        self.model = Model()
        for schema in SCHEMAS:
            self.create_schema(schema, forgiving=False)
        self.model.run(f"CREATE TABLE m.s1.t (a BIGINT, b VARCHAR, c {STRUCT})")
        rules = self.model.rules["s1", "t"] = Rules(unique=("a",), not_thirteen=("a",))
        columns = {"a": pa.int64(), "b": pa.string(), "c": TYPES[STRUCT]}
        self.client.create_table("s1.t", pa.schema(columns), unique=["a"], checks=rules.checks())

    def teardown(self) -> None:
        if hasattr(self, "server"):
            self.client.close()
            self.other.close()
            self.server.stop(0)
            self.model.db.close()

    # -- one statement on both sides ------------------------------------------------------------------------------------

    def both(self, what: str, on_model: Callable[[], Any], on_catalog: Callable[[], Any]) -> Any:
        """Run it on the model and on the catalog; returns the catalog's result, or None if both rejected it."""
        expected, right = outcome(on_model)
        found, error = outcome(on_catalog)
        kind = right.kind if isinstance(right, Failed) else None
        assert (type(error) if error else None) is kind, f"{what}: the model returned {kind}, the catalog {error!r}"
        if error is not None:
            self.noted(what, "refused")
            return None
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
        def on_model() -> None:
            if any(schema == name for schema, _ in self.tables()):  # DuckDB itself loses track of altered tables
                raise Failed(errors.SchemaNotEmpty)
            self.model.run(f"DROP SCHEMA {'IF EXISTS ' if forgiving else ''}m.{name}")

        self.both("drop schema", on_model, lambda: self.client.drop_schema(name, if_exists=forgiving))

    @precondition(lambda self: self.model.schemas())
    @rule(data=st.data(), conflict=st.sampled_from(["error", "error", "ignore", "replace"]))
    def create_table(self, data: st.DataObject, conflict: Any) -> None:
        name = data.draw(st.sampled_from(sorted(self.model.schemas()))), data.draw(table_names)
        columns = data.draw(st.dictionaries(column_names, st.sampled_from(list(TYPES)), min_size=1), "columns")
        rules = data.draw(rules_over(columns), "rules")
        strict = data.draw(st.sets(st.sampled_from(sorted(columns)), max_size=1), "not null")
        existing = next(
            (known for known in self.tables() if (known[0], known[1].lower()) == (name[0], name[1].lower())), None
        )
        clause = {"error": "TABLE", "ignore": "TABLE IF NOT EXISTS", "replace": "OR REPLACE TABLE"}[conflict]
        declared = [
            f"{column} {kind}{' NOT NULL' if column in (*strict, *rules.primary) else ''}"
            for column, kind in columns.items()
        ]

        def on_model() -> None:
            self.model.run(f"CREATE {clause} {quoted(name)} ({', '.join(declared)})")
            if existing is None or conflict == "replace":
                self.model.rules.pop(existing or name, None)
                self.model.rules[name] = rules

        self.both(
            f"create table ({conflict})",
            on_model,
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

        def on_model() -> None:
            self.model.run(f"DROP TABLE {'IF EXISTS ' if forgiving else ''}{quoted(name)}")
            self.forget(name)

        self.both("drop table", on_model, lambda: self.client.drop_table(name, if_exists=forgiving))

    def forget(self, name: tuple[str, str]) -> Rules | None:
        """Forget the constraints of a table, ignoring the case of its name."""
        known = next((k for k in self.model.rules if (k[0], k[1].lower()) == (name[0], name[1].lower())), None)
        return None if known is None else self.model.rules.pop(known)

    @precondition(lambda self: self.tables())
    @rule(data=st.data(), new=table_names)
    def rename_table(self, data: st.DataObject, new: str) -> None:
        name = self.table(data)
        if new.lower() == name[1].lower():
            return  # DuckDB does not rename a table to its own name, or to one that differs only in case

        def on_model() -> None:
            self.model.run(f'ALTER TABLE {quoted(name)} RENAME TO "{new}"')
            rules = self.forget(name)
            assert rules is not None
            self.model.rules[name[0], new] = rules

        self.both("rename table", on_model, lambda: self.client.rename_table(name, new))

    # -- rows -----------------------------------------------------------------------------------------------------------

    def drawn_rows(self, data: st.DataObject, name: tuple[str, str]) -> pa.Table:
        kinds = self.kinds(name)
        drawn = data.draw(
            st.lists(st.fixed_dictionaries({n: value_of(k) for n, k in kinds.items()}), max_size=4), "rows"
        )
        return pa.Table.from_pylist(drawn, pa.schema({n: arrow_type(k) for n, k in kinds.items()}))

    def wrote(self, name: tuple[str, str], sql: str, **tables: pa.Table) -> tuple[int, list[str]]:
        """Run a statement of the model that returns its rows."""
        rows = self.model.run(f"{sql} RETURNING *", touching=name, **tables)
        return len(rows), sorted(map(str, rows))

    @precondition(lambda self: self.tables())
    @rule(data=st.data(), returning=st.booleans(), contract=st.sampled_from(["airport", "airport", "json"]))
    def insert(self, data: st.DataObject, returning: bool, contract: str) -> None:
        name = self.table(data)
        rows = self.drawn_rows(data, name)
        writer = self.client.json if contract == "json" else self.client
        self.both(
            f"insert ({contract})",
            lambda: self.wrote(name, f"INSERT INTO {quoted(name)} BY NAME FROM given", given=rows),
            lambda: writer.insert(name, rows, returning=returning),
        )

    @precondition(lambda self: self.tables())
    @rule(data=st.data(), returning=st.booleans(), by_id=st.booleans())
    def update(self, data: st.DataObject, returning: bool, by_id: bool) -> None:
        name = self.table(data)
        kinds = self.kinds(name)
        column = data.draw(st.sampled_from(sorted(kinds)), "column")
        where = data.draw(predicates(kinds), "where")
        alike = [other for other, kind in kinds.items() if kind == kinds[column]]
        if by_id or data.draw(st.booleans(), "constant"):
            value = data.draw(value_of(kinds[column]), "value")
            sql, new = f"{literal(value)}::{kinds[column]}", value
        else:
            sql = data.draw(st.sampled_from(alike), "copied")
            new = copy_of(sql)
        statement = f"UPDATE {quoted(name)} SET {column} = {sql}{f' WHERE {where.sql}' if where else ''}"
        if by_id:
            self.both(
                "update by id",
                lambda: (self.wrote(name, statement)[0], None),
                lambda: Written(self.update_by_id(name, pa.field(column, arrow_type(kinds[column])), new, where)),
            )
        else:
            self.both(
                "update",
                lambda: self.wrote(name, statement),
                lambda: self.client.update(name, {column: new}, where=where and where.predicate, returning=returning),
            )

    def update_by_id(self, name: tuple[str, str], column: pa.Field, value: Any, where: Where | None) -> int:
        ids = self.row_ids(name, where)
        rows = pa.table({column.name: pa.array([value] * len(ids), column.type)})
        written = self.client.update(name, rows, row_ids=ids, returning=True)
        assert written.rows is not None
        assert written.rows["rowid"].to_pylist() == ids.to_pylist()
        return written.count

    def row_ids(self, name: tuple[str, str], where: Where | None) -> pa.ChunkedArray:
        return self.client.scan(name, columns=["rowid"], where=where and where.predicate).read_all()["rowid"]

    @precondition(lambda self: self.tables())
    @rule(data=st.data(), returning=st.booleans(), by_id=st.booleans())
    def delete(self, data: st.DataObject, returning: bool, by_id: bool) -> None:
        name = self.table(data)
        where = data.draw(predicates(self.kinds(name)).filter(lambda found: found is not None), "where")
        assert where is not None
        self.both(
            "delete by id" if by_id else "delete",
            lambda: self.wrote(name, f"DELETE FROM {quoted(name)} WHERE {where.sql}"),
            lambda: (
                self.client.delete(name, self.row_ids(name, where), returning=returning)
                if by_id
                else self.client.delete(name, where=where.predicate, returning=returning)
            ),
        )

    @precondition(lambda self: self.tables())
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        name = self.table(data)
        self.both(
            "truncate", lambda: self.wrote(name, f"DELETE FROM {quoted(name)}"), lambda: self.client.truncate(name)
        )

    @precondition(lambda self: self.tables())
    @rule(data=st.data())
    def rolled_back_transaction(self, data: st.DataObject) -> None:
        """A transaction of several statements that is rolled back changes nothing."""
        name = self.table(data)
        rows = self.drawn_rows(data, name)
        try:
            with self.client.transaction(explicit=True):
                self.client.truncate(name)
                self.client.insert(name, rows)
                self.client.drop_table(name)
                raise KeyboardInterrupt
        except (KeyboardInterrupt, errors.ConstraintViolation):
            self.noted("take back", "done")

    @precondition(lambda self: self.tables())
    @rule(data=st.data())
    def replace_in_a_transaction(self, data: st.DataObject) -> None:
        """Replace all rows in one explicit transaction: all or nothing."""
        name = self.table(data)
        rows = self.drawn_rows(data, name)
        sql = f"DELETE FROM {quoted(name)}; INSERT INTO {quoted(name)} BY NAME FROM given"

        def on_catalog() -> None:
            with self.client.transaction(explicit=True):
                self.client.truncate(name)
                self.client.insert(name, rows)

        self.both("transaction", lambda: self.model.run(sql, touching=name, given=rows), on_catalog)

    # -- columns --------------------------------------------------------------------------------------------------------

    def altered(
        self, what: str, name: tuple[str, str], sql: str, on_catalog: Callable[[], Any], *, bound: str = ""
    ) -> Any:
        """An ALTER TABLE on both sides; a column `bound` by a constraint must not be changed."""

        def on_model() -> None:
            known = {column.lower() for column in self.kinds(name)}
            if bound in known and self.model.rules[name].names(bound):
                raise Failed(errors.PreconditionFailed)
            self.model.run(f"ALTER TABLE {quoted(name)} {sql}")  # it can only violate NOT NULL

        return self.both(what, on_model, on_catalog)

    @precondition(lambda self: self.tables())
    @rule(data=st.data(), column=column_names, kind=st.sampled_from(list(TYPES)), forgiving=st.booleans())
    def add_column(self, data: st.DataObject, column: str, kind: str, forgiving: bool) -> None:
        name = self.table(data)
        default = data.draw(st.none() if kind == STRUCT else st.none() | VALUES[kind], "default")
        metadata = None if default is None else {"default": literal(default)}
        clause = f"{'IF NOT EXISTS ' if forgiving else ''}{column} {kind}"
        self.altered(
            "add column",
            name,
            f"ADD COLUMN {clause}{'' if default is None else f' DEFAULT {literal(default)}'}",
            lambda: self.client.add_column(
                name, pa.field(column, TYPES[kind], metadata=metadata), if_not_exists=forgiving
            ),
        )

    @precondition(lambda self: self.tables())
    @rule(data=st.data(), column=column_names, forgiving=st.booleans(), cascade=st.booleans())
    def remove_column(self, data: st.DataObject, column: str, forgiving: bool, cascade: bool) -> None:
        name = self.table(data)
        done = self.altered(
            "remove column",
            name,
            f"DROP COLUMN {'IF EXISTS ' if forgiving else ''}{column}{' CASCADE' if cascade else ''}",
            lambda: self.client.remove_column(name, column, if_column_exists=forgiving, cascade=cascade) or "done",
            bound="" if cascade else column,
        )
        if done and column not in self.kinds(name):
            self.model.rules[name] = self.model.rules[name].without(column)

    @precondition(lambda self: self.tables())
    @rule(data=st.data(), column=column_names, new=column_names)
    def rename_column(self, data: st.DataObject, column: str, new: str) -> None:
        name = self.table(data)
        if column == new:
            return  # DuckDB does not rename a column to its own name
        done = self.altered(
            "rename column",
            name,
            f"RENAME COLUMN {column} TO {new}",
            lambda: self.client.rename_column(name, column, new) or "done",
        )
        if done:
            self.model.rules[name] = self.model.rules[name].renamed(column, new)

    @precondition(lambda self: self.tables())
    @rule(data=st.data(), column=column_names, kind=st.sampled_from(["BIGINT", "INTEGER", "VARCHAR", "DOUBLE"]))
    def change_column_type(self, data: st.DataObject, column: str, kind: str) -> None:
        name = self.table(data)
        if self.kinds(name).get(column, "")[:4] in ("STRU", "DATE", "BOOL"):
            return  # casts that DuckDB does not support
        cast = f"SELECT 1 FROM (FROM {quoted(name)} SELECT count({column}::{kind}) AS made) WHERE made < 0"
        if self.model.rejected_for_deleted_rows(
            f"ALTER TABLE {quoted(name)} ALTER COLUMN {column} TYPE {kind}", truth=cast
        ):
            return
        self.altered(
            "change type",
            name,
            f"ALTER COLUMN {column} TYPE {kind}",
            lambda: self.client.change_column_type(name, column, TYPES[kind]),
            bound=column,
        )

    @precondition(lambda self: self.tables())
    @rule(data=st.data(), column=column_names)
    def set_not_null(self, data: st.DataObject, column: str) -> None:
        name = self.table(data)
        nulls = f"FROM {quoted(name)} SELECT 1 WHERE {column} IS NULL"
        if self.model.rejected_for_deleted_rows(
            f"ALTER TABLE {quoted(name)} ALTER COLUMN {column} SET NOT NULL", truth=nulls
        ):
            return
        self.altered(
            "set not null",
            name,
            f"ALTER COLUMN {column} SET NOT NULL",
            lambda: self.client.set_not_null(name, column),
        )

    @precondition(lambda self: self.tables())
    @rule(data=st.data(), column=column_names)
    def drop_not_null(self, data: st.DataObject, column: str) -> None:
        name = self.table(data)
        primary = column in self.model.rules[name].primary
        self.altered(
            "drop not null",
            name,
            f"ALTER COLUMN {column} DROP NOT NULL",
            lambda: self.client.drop_not_null(name, column),
            bound=column if primary else "",
        )

    @precondition(lambda self: self.tables())
    @rule(data=st.data(), column=column_names)
    def set_default(self, data: st.DataObject, column: str) -> None:
        name = self.table(data)
        kind = self.kinds(name).get(column, "BIGINT")
        value = literal(None if kind.startswith("STRUCT") else data.draw(VALUES[kind], "default"))
        self.altered(
            "set default",
            name,
            f"ALTER COLUMN {column} SET DEFAULT {value}",
            lambda: self.client.set_default(name, column, value),
        )

    # -- members of structs ---------------------------------------------------------------------------------------------

    def struct(self, data: st.DataObject) -> tuple[tuple[str, str], str, dict[str, str]] | None:
        """A table with a struct, its column and the members."""
        found = [
            (name, column, members_of(kind))
            for name in self.tables()
            for column, kind in self.kinds(name).items()
            if kind.startswith("STRUCT(")
        ]
        return data.draw(st.sampled_from(found), "struct") if found else None

    def has_structs(self) -> bool:
        return any(kind.startswith("STRUCT(") for name in self.tables() for kind in self.kinds(name).values())

    @precondition(lambda self: self.has_structs())
    @rule(data=st.data(), member=st.sampled_from("xyz"), kind=st.sampled_from(["INTEGER", "VARCHAR", "DOUBLE"]))
    def add_field(self, data: st.DataObject, member: str, kind: str) -> None:
        if (found := self.struct(data)) is not None:
            name, column, _ = found
            self.altered(
                "add field",
                name,
                f"ADD COLUMN {column}.{member} {kind}",
                lambda: self.client.add_field(name, [column], pa.field(member, TYPES[kind])),
            )

    @precondition(lambda self: self.has_structs())
    @rule(data=st.data(), member=st.sampled_from("xyz"), new=st.sampled_from("xyz"))
    def rename_field(self, data: st.DataObject, member: str, new: str) -> None:
        found = self.struct(data)
        if found is not None and member != new:
            name, column, _ = found
            self.altered(
                "rename field",
                name,
                f"RENAME COLUMN {column}.{member} TO {new}",
                lambda: self.client.rename_field(name, [column, member], new),
            )

    @precondition(lambda self: self.has_structs())
    @rule(data=st.data(), member=st.sampled_from("xyz"))
    def remove_field(self, data: st.DataObject, member: str) -> None:
        if (found := self.struct(data)) is not None:
            name, column, _ = found
            self.altered(
                "remove field",
                name,
                f"DROP COLUMN {column}.{member}",
                lambda: self.client.remove_field(name, [column, member]),
            )

    # -- invariants -----------------------------------------------------------------------------------------------------

    @invariant()
    def agree(self) -> None:
        if not hasattr(self, "server"):
            return
        self.other.reload()
        expected = self.model.columns()
        for client in (self.client, self.other):  # the client's own state, and the server's listing
            schemas = client.schemas()
            assert {schema.name for schema in schemas} == self.model.schemas()
            assert {
                (schema.name, table.name): {
                    column: self.described(table.schema.field(column)) for column in table.columns
                }
                for schema in schemas
                for table in schema.tables
            } == expected
        for name in expected:
            rows = self.client.scan(name).read_all()
            assert sorted(str(tuple(row.values())) for row in rows.to_pylist()) == self.model.rows(name)

    def described(self, column: pa.Field) -> tuple[str, bool, Any]:
        default = (column.metadata or {}).get(b"default")
        return duckdb_type(column), column.nullable, self.model.value(default.decode() if default else None)

    @precondition(lambda self: self.tables())
    @rule(data=st.data())
    def scan(self, data: st.DataObject) -> None:
        name = self.table(data)
        where = data.draw(predicates(self.kinds(name)), "where")
        found = self.client.scan(name, where=where and where.predicate).read_all().to_pylist()
        rows = self.model.db.execute(f"FROM {quoted(name)}{f' WHERE {where.sql}' if where else ''}").fetchall()
        assert sorted(str(tuple(row.values())) for row in found) == sorted(map(str, rows))
        assert self.client.count(name, where=where and where.predicate) == len(rows)
        self.noted("scan", "done")


EVERY_KIND = {
    "create schema", "drop schema", "create table (error)", "create table (ignore)", "create table (replace)", "drop table", "rename table",
    "insert (airport)", "insert (json)", "update", "update by id", "delete", "delete by id", "truncate", "take back", "transaction",
    "add column", "remove column", "rename column", "change type", "set not null", "drop not null", "set default",
    "add field", "rename field", "remove field", "scan",
}  # fmt: skip
REFUSABLE = {
    "create schema", "drop schema", "create table (error)", "drop table", "insert (airport)", "add column", "remove column",
    "rename column", "change type", "set not null",
}  # fmt: skip


@pytest.mark.timeout(0)
def test_in_memory_catalog_behaves_like_duckdb() -> None:
    """In the full scope, every kind of statement occurs and succeeds, and those that can fail for many reasons also fail."""
    DONE.clear()
    long = settings.default.max_examples > 100
    effort = settings(
        max_examples=settings.default.max_examples // 10 if long else 3,
        stateful_step_count=settings.default.stateful_step_count if long else 50,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    required = {(kind, "done") for kind in EVERY_KIND} | {(kind, "refused") for kind in REFUSABLE}
    for number in range(12):  # a random run may skip a rule; then it gets another round
        machine = type("MemoryMachine", (MemoryMachine,), {})
        if settings.default.derandomize:  # reproducible, but different in each round
            machine = seed(number)(machine)
        run_state_machine_as_test(machine, settings=effort)
        if required <= DONE.keys() or not (long or scope.ALL):
            return
    raise AssertionError(f"never occurred: {sorted(required - DONE.keys())}")
