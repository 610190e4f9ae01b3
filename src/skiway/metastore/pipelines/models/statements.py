"""What engines run for a refresh: the query of a table over all of its inputs or over what has changed, with its rules.

changed rows -> keys -> the query over these keys -> rules -> new rows
                     -> the rows that the table keeps in files that lose rows
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Final, Literal, Protocol, TypeVar

import pyarrow as pa

from skiway.formats import TableName
from skiway.metastore.ingest.rows import Target, Written
from skiway.metastore.managed.states import ManagedTable
from skiway.metastore.pipelines.inputs import Input
from skiway.metastore.pipelines.lineage import Position, StoredPosition
from skiway.metastore.pipelines.models.expectations import CARRIED, REASON, flag, judged_rows, parents, quoted
from skiway.metastore.pipelines.models.incremental import ADDED, ASIDE, FILE, KEPT, REMOVED, REWRITTEN, Increment, since
from skiway.metastore.pipelines.narrowing import narrowed
from skiway.metastore.pipelines.projects import DerivedTable
from skiway.metastore.pipelines.python_files import PythonFunction
from skiway.metastore.pipelines.spark_sql import Query, sql_text
from skiway.metastore.reconcile.outcomes import Control

R = TypeVar("R")

Action = Literal["keep", "append", "merge", "replace"]


class QueryResult(Protocol):
    """The rows of a query or function, which are not computed yet."""

    def columns(self) -> pa.Schema:
        """The columns of the rows."""

    def write(self, target: Target) -> Written:
        """Compute the rows, and write them into new data files of the target."""


class EngineResult(QueryResult, Protocol):
    """The rows of a query."""

    def written_by(self, write: Callable[[Iterable[pa.RecordBatch]], R]) -> list[R]:
        """Compute the rows in several processes, each of which calls `write` with its rows; return the results."""

    def values(self) -> pa.Table:
        """All rows, which must be few."""


class QueryEngine(Protocol):
    """Runs queries over tables of the lake."""

    def result(
        self, query: Callable[[Mapping[TableName, str]], str], inputs: Mapping[TableName, Input]
    ) -> AbstractContextManager[EngineResult]:
        """The result of a query. `query` returns its text, given the names under which the engine knows the inputs."""


class FunctionEngine(Protocol):
    """Runs Python functions over tables of the lake, for one job."""

    def result(
        self, function: PythonFunction, inputs: Mapping[TableName, Input], control: Control
    ) -> AbstractContextManager[QueryResult]:
        """The result of a function. It ends early if `control` says so."""


@dataclass(frozen=True, slots=True)
class Changed:
    """The rows that an input got and lost since the last refresh, in data files that also have other rows."""

    increment: Increment
    added: Input
    removed: Input

    @property
    def compares(self) -> bool:
        """Whether rows of both have to be compared. Maps and variants cannot be."""
        return not self.removed.is_empty and not any(_has_map(each.type) for each in self.added.columns)


@dataclass(frozen=True, slots=True)
class Decision:
    """What happens to a table in a run, and why. `inputs` are by the names in the query, with the files that are read.

    `table` has the queries of views in the places of their names. If the action is `merge`, `changed` says what is new.
    """

    table: DerivedTable
    action: Action
    reason: str
    inputs: Mapping[TableName, Input] = field(default_factory=dict)
    position: Position | None = None
    stored: StoredPosition = field(default_factory=StoredPosition)
    output: ManagedTable | None = None
    changed: Changed | None = None


_UNITS: Final = {"year": "YEAR", "month": "MONTH", "hour": "HOUR"}


@dataclass(frozen=True, slots=True)
class Statement:
    """The query that makes the new rows of a table, with what it reads besides the tables of the query.

    `kept` are all rows of the table before, `rewritten` those of files that lose rows, and `aside` those in quarantine. `bound` is the
    time from which on rows are replaced.
    """

    decision: Decision
    kept: Input | None = None
    rewritten: Input | None = None
    aside: Input | None = None
    bound: date | None = None

    @property
    def inputs(self) -> dict[TableName, Input]:
        """What the engine has to know."""
        changed, query = self.decision.changed, self.decision.table.query
        assert isinstance(query, Query)
        own = narrowed(query, {name: read for name, read in self.decision.inputs.items() if name in query.reads})
        more = {KEPT: self.kept, REWRITTEN: self.rewritten, ASIDE: self.aside}
        if changed is not None:
            needed = own[changed.increment.driving].selected
            more[ADDED], more[REMOVED] = (replace(each, selected=needed) for each in (changed.added, changed.removed))
        return {**self.decision.inputs, **own, **{name: read for name, read in more.items() if read is not None}}

    @property
    def columns(self) -> pa.Schema:
        """The columns of the table before this refresh."""
        assert self.decision.output is not None
        return self.decision.output.handle.schema.arrow

    def __call__(self, views: Mapping[TableName, str]) -> str:
        """The text of the query: the columns of the table, and what rows break if it has rules."""
        table, changed = self.decision.table, self.decision.changed
        query = table.query
        assert isinstance(query, Query)
        if not table.rules and changed is None:
            return query.reading(views)
        rows = query.reading(views) if changed is None else self._new_rows(query, changed.increment, views)
        clauses = [] if changed is None else [changed.increment.changes(views, compares=changed.compares)]
        clauses.append(f"`$n` AS ({rows})")
        kept = ""
        if self.kept is not None and any(rule.kind == "unique" for rule in table.rules):
            kept = "`$s`"
            staying = "" if changed is None else f" WHERE NOT {self._is_replaced('e')}"
            clauses.append(f"`$s` AS (SELECT * FROM {quoted(views[KEPT])} AS e{staying})")
        parts = [judged_rows(table.rules, "`$n`", _by_name(table, views), kept)]
        if changed is not None:
            parts[0] = f"SELECT *, CAST(NULL AS STRING) AS `{CARRIED}` FROM ({parts[0]})"
            parts += [self._staying(views, name) for name in (REWRITTEN, ASIDE) if name in views]
        return f"WITH {', '.join(clauses)} {' UNION ALL '.join(parts)}"

    def _staying(self, views: Mapping[TableName, str], name: TableName) -> str:
        """Rows that are only written again: of the table, or of its quarantine."""
        columns = ", ".join(f"e.{quoted(each)}" for each in self.columns.names)
        flags = "".join(f", CAST(NULL AS BOOLEAN) AS `{flag(n)}`" for n in range(len(self.decision.table.rules)))
        reason = f"e.{quoted(REASON)}" if name == ASIDE else "CAST(NULL AS STRING)"
        where = f"NOT {self._is_replaced('e')}"
        return f"SELECT {columns}{flags}, {reason} AS `{CARRIED}` FROM {quoted(views[name])} AS e WHERE {where}"

    def _new_rows(self, query: Query, increment: Increment, views: Mapping[TableName, str]) -> str:
        own = {name: views[name] for name in self.decision.inputs if name in query.reads}
        if increment.kind == "range":
            return increment.rows_from(query, own, self.bound)
        if self._combines:
            return increment.combined_rows(query, {**own, KEPT: views[KEPT]}, self.columns)
        return increment.new_rows(query, own)

    @property
    def _combines(self) -> bool:
        changed = self.decision.changed
        return (
            changed is not None
            and self.kept is not None
            and changed.removed.is_empty
            and not self.decision.table.expect
            and changed.increment.can_combine(self.columns)
        )

    def _is_replaced(self, rows: str) -> str:
        """A condition: a row of the table is replaced."""
        changed = self.decision.changed
        assert changed is not None
        increment = changed.increment
        if increment.kind == "range":
            (name,) = increment.keys
            value = f"{rows}.{quoted(name)}"
            return f"({value} IS NULL)" if self.bound is None else since(value, self.bound)
        return increment.has_key(rows, increment.replaced)

    # --- what has to be known before ------------------------------------------------------------------------------------

    def first_change(self, views: Mapping[TableName, str]) -> str:
        """A query for the time of the first changed row, at the beginning of a day, or of the partition that it is in."""
        changed = self.decision.changed
        assert changed is not None
        ((name, value),) = changed.increment.keys.items()
        unit = next((unit for key, unit in _UNITS.items() if self.decision.table.partition_by.startswith(key)), "DAY")
        rows = " UNION ALL ".join(
            f"SELECT {sql_text(value)} AS t FROM {each} AS {quoted(changed.increment.alias)}"
            for each in ("`$a`", "`$d`")
        )
        kind = _time_type(self.columns.field(self.columns.get_field_index(name)).type)
        least = "min(t)" if kind == "DATE" else f"date_trunc('{unit}', min(t))"
        return f"WITH {changed.increment.changes(views, compares=changed.compares)} SELECT CAST({least} AS {kind}) AS t FROM ({rows})"

    def files_that_lose_rows(self, views: Mapping[TableName, str]) -> str:
        """A query for the numbers of the data files of the table with rows that are replaced."""
        changed = self.decision.changed
        assert changed is not None
        clauses = changed.increment.changes(views, compares=changed.compares)
        where = self._is_replaced("e")
        return f"WITH {clauses} SELECT DISTINCT e.{quoted(FILE)} AS file FROM {quoted(views[KEPT])} AS e WHERE {where}"


def moment(value: object) -> date | None:
    """The time that a query has returned, as a bound."""
    return value if isinstance(value, date) else None


def _time_type(of: pa.DataType) -> str:
    if pa.types.is_date(of):
        return "DATE"
    return "TIMESTAMP" if pa.types.is_timestamp(of) and of.tz else "TIMESTAMP_NTZ"


def _by_name(table: DerivedTable, views: Mapping[TableName, str]) -> Mapping[TableName, str]:
    return {name: views[name] for name in parents(table.rules).values()}


def _has_map(of: pa.DataType) -> bool:
    if pa.types.is_map(of) or isinstance(of, pa.BaseExtensionType):
        return True
    return any(_has_map(of.field(number).type) for number in range(of.num_fields))
