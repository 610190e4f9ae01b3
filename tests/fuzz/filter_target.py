"""Filters: recorded ones with changed parts are parsed, translated to SQL and Arrow, and used to prune files."""

from __future__ import annotations

import json
from random import Random
from typing import Literal

import pyarrow as pa

from airport.filters.recorded import COLUMNS
from fuzz.mutation import changed_text, changed_value
from fuzz.target import Case, Target, fault_of
from skiway.airport import filters
from skiway.errors import Internal, SkiwayError
from skiway.testing import recordings

DIALECTS: tuple[Literal["duckdb", "postgres", "sqlite", "generic"], ...] = ("duckdb", "postgres", "sqlite", "generic")


class FilterTarget(Target):
    """The filter language that DuckDB pushes down."""

    name = "filters"

    def open(self) -> None:
        self.schema = pa.schema([(name, kind) for name, (kind, _, _) in COLUMNS.items()])
        self.rows = pa.table({name: pa.array(values[:3], kind) for name, (kind, values, _) in COLUMNS.items()})
        self.seeds = [each.json_filters for each in recordings().filters if each.filter]
        self.names = [*COLUMNS, "BOUND_FUNCTION", "BOUND_CONSTANT", "VARCHAR", "INTEGER", "DECIMAL", "LIST", "STRUCT"]

    def case(self, chance: Random) -> Case:
        text = chance.choice(self.seeds)
        if chance.random() < 0.1:
            return {"filter": changed_text(text, chance)}
        value = json.loads(text)
        for _ in range(chance.choice((1, 1, 2, 5))):
            value = changed_value(value, chance, self.names)
        return {"filter": json.dumps(value)}

    def run(self, case: Case) -> str:
        try:
            parsed = filters.parse(case["filter"])
            for dialect in DIALECTS:
                filters.to_sql(parsed, dialect=dialect)
            expression = filters.to_arrow(parsed, self.schema)
            if expression is not None:
                self.rows.filter(expression)
        except SkiwayError as error:
            if not isinstance(error, Internal):
                return type(error).__name__
            raise fault_of(error) or error from error
        except Exception as error:
            raise fault_of(error) or error from error
        return "OK" if parsed else "nothing"
