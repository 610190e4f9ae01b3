"""Spark's filters as predicates of the client.

Only filters with the same meaning in both are converted. Spark applies every filter itself, so the others only read more rows.
"""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any, Final

from pyspark.sql import datasource as spark
from pyspark.sql.types import StructType

from skiway.client import Predicate, col

__all__ = ["predicate_of"]

_VALUES: Final = (bool, int, float, str, Decimal, datetime.date)


def predicate_of(given: spark.Filter, schema: StructType) -> Predicate | None:
    """The predicate; None if there is none with the same meaning."""
    if isinstance(given, spark.Not):
        inner = predicate_of(given.child, schema)
        return None if inner is None else ~inner
    path: tuple[str, ...] = getattr(given, "attribute", ())
    if len(path) != 1 or path[0] not in schema.names:
        return None  # a field of a struct
    column, value = col(path[0]), getattr(given, "value", None)
    match given:
        case spark.IsNull():
            return column.is_null()
        case spark.IsNotNull():
            return ~column.is_null()
        case spark.In():
            values = tuple(given.value)
            return column.isin(values) if values and all(map(_is_plain, values)) else None
    if not _is_plain(value):
        return None
    match given:
        case spark.EqualTo():
            return column == value
        case spark.GreaterThan():
            return column > value
        case spark.GreaterThanOrEqual():
            return column >= value
        case spark.LessThan():
            return column < value
        case spark.LessThanOrEqual():
            return column <= value
        case _:
            return None


def _is_plain(value: Any) -> bool:
    """Whether a value means the same in Spark and in the client. Timestamps depend on the time zone of the session."""
    is_nan = isinstance(value, float) and value != value
    return isinstance(value, _VALUES) and not isinstance(value, datetime.datetime) and not is_nan
