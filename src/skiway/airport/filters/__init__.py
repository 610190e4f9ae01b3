"""Filters that DuckDB pushes down to scans: parse them, and translate them to SQL or to a pyarrow expression.

    from skiway.airport import filters

    filter = filters.parse(text)
    where = filters.to_sql(filter)                    # for DuckDB
    where = filters.to_sql(filter, dialect="sqlite")  # for other databases
    expression = filters.to_arrow(filter, schema)     # for a pyarrow table or dataset

Translations leave out what they cannot express and never lose a row, because the client applies the filter again.
"""

from skiway.airport.filters.arrow import to_arrow
from skiway.airport.filters.nodes import (
    Between,
    Case,
    Cast,
    ColumnRef,
    Compare,
    Comparison,
    Conjunction,
    Constant,
    Filter,
    Function,
    Interval,
    LogicalType,
    Node,
    Operator,
    Unknown,
)
from skiway.airport.filters.parsing import parse
from skiway.airport.filters.sql import to_sql

__all__ = [
    "Between",
    "Case",
    "Cast",
    "ColumnRef",
    "Compare",
    "Comparison",
    "Conjunction",
    "Constant",
    "Filter",
    "Function",
    "Interval",
    "LogicalType",
    "Node",
    "Operator",
    "Unknown",
    "parse",
    "to_arrow",
    "to_sql",
]
