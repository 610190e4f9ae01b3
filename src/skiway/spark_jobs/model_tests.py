"""Unit tests of models: the query of a table over given rows, compared with the rows that it should make.

They need no server: a query and its rows are in the files of the pipeline, and Spark runs on this machine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

from skiway.errors import SkiwayError
from skiway.formats import TableName
from skiway.metastore.pipelines.inputs import Input
from skiway.metastore.pipelines.models.declarations import UnitTest, invalid
from skiway.metastore.pipelines.models.statements import QueryEngine
from skiway.metastore.pipelines.projects import Project, full_name, key_of
from skiway.metastore.pipelines.spark_sql import Query

_SHOWN: Final = 3


@dataclass(frozen=True, slots=True)
class UnitTestResult:
    """The result of a unit test: what is wrong; empty if nothing is."""

    name: str
    model: str
    problem: str

    @property
    def state(self) -> str:
        """Whether the test has passed."""
        return "failed" if self.problem else "passed"


def run_unit_tests(project: Project, engine: QueryEngine) -> Iterator[UnitTestResult]:
    """Run the unit tests in the files of a project. A test that cannot run has failed."""
    for test in project.unit_tests:
        try:
            problem = _problem(project, test, engine)
        except SkiwayError as error:
            problem = error.message
        yield UnitTestResult(test.name, test.model, problem)


def _problem(project: Project, test: UnitTest, engine: QueryEngine) -> str:
    table = project.tables.get(key_of(full_name(project, test.model)))
    if table is None or not isinstance(table.query, Query):
        known = ", ".join(str(each.name) for each in project.tables.values() if isinstance(each.query, Query))
        invalid(test.place, f"the pipeline has no query for {test.model}; there are queries for {known}")
    given = {key_of(full_name(project, name)): (name, rows) for name, rows in test.given.items()}
    inputs = dict[TableName, Input]()
    for written in table.query.reads:
        key = key_of(table.reads[written])
        if key not in given:
            invalid(test.place, f"{test.model} reads {written}: give its rows")
        inputs[written] = Input.of_rows(_table(test, *given[key]))
    with engine.result(table.query.reading, inputs) as result:
        return _difference(test, result.values())


def _table(test: UnitTest, name: str, rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    if not rows:
        invalid(
            test.place, f"the rows of {name} are empty, so its columns are not known: give one that does not matter"
        )
    columns = list(dict.fromkeys(column for row in rows for column in row))
    try:
        return pa.table({column: pa.array([row.get(column) for row in rows]) for column in columns})
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        invalid(test.place, f"the rows of {name} have values of different types: {error}")


def _difference(test: UnitTest, found: pa.Table) -> str:
    """How rows differ from the expected ones, in the columns that the test mentions; empty if they do not."""
    columns = list(dict.fromkeys(column for row in test.expect for column in row)) or found.schema.names
    own = {name.casefold(): name for name in found.schema.names}
    missing = next((column for column in columns if column.casefold() not in own), None)
    if missing is not None:
        return f"{test.place}: the query has no column {missing!r}; it has {', '.join(found.schema.names)}"
    chosen = found.select([own[column.casefold()] for column in columns])
    try:
        expected = [
            pa.array([_value(row.get(column), each.type) for row in test.expect], each.type).to_pylist()
            for column, each in zip(columns, chosen.schema, strict=True)
        ]
    except (pa.ArrowInvalid, pa.ArrowTypeError, ArithmeticError) as error:
        return f"{test.place}: the expected rows do not have the types of the query: {error}"
    wanted = Counter(map(repr, zip(*expected, strict=True)))
    made = Counter(map(repr, zip(*(column.to_pylist() for column in chosen.columns), strict=True)))
    parts = [("missing", wanted - made), ("unexpected", made - wanted)]
    texts = [f"{what} {', '.join(list(rows.elements())[:_SHOWN])}" for what, rows in parts if rows]
    return f"{test.place}: ({', '.join(columns)}): {'; '.join(texts)}" if texts else ""


def _value(value: Any, of: pa.DataType) -> Any:
    if pa.types.is_decimal(of) and isinstance(value, int | float):
        return Decimal(str(value)).quantize(Decimal(1).scaleb(-of.scale))
    return value
