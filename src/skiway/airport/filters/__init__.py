"""Filters that DuckDB pushes down to a scan: read once, then said again in the language of what is scanned.

    from skiway.airport import filters

    filter = filters.parse(text)
    where = filters.to_sql(filter)                    # for DuckDB
    expression = filters.to_arrow(filter, schema)     # for a pyarrow table or dataset

Whatever cannot be said is left out such that no row is lost: the client filters what it gets once more.
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
    Node,
    Operator,
    Unknown,
)
from skiway.airport.filters.parsing import parse
from skiway.airport.filters.sql import to_sql
from skiway.airport.filters.types import LogicalType

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
