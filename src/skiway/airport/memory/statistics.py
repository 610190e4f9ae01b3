"""What is known about a column: DuckDB's own answers over the rows there are."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from skiway.airport.conversion import to_column
from skiway.airport.memory.sandbox import Sandbox
from skiway.airport.memory.snapshots import TableState
from skiway.airport.statistics import ColumnStatistics
from skiway.airport.wire.duckdb_sql import identifier

__all__ = ["column_statistics"]

_COUNTED: Final = (
    1_000_000  # rows up to which distinct values are counted: the count takes longer than the rest together
)


def column_statistics(table: TableState, field: pa.Field, sandbox: Sandbox) -> ColumnStatistics:
    """Exact statistics of a column, computed once for each state of the table; None where there is no answer."""
    known = table.statistics.get(field.name)
    if known is None:
        known = table.statistics[field.name] = _computed(table, field, sandbox)
    return known


def _computed(table: TableState, field: pa.Field, sandbox: Sandbox) -> ColumnStatistics:
    name = identifier(field.name)
    is_text = _is_text(field.type)
    asked = {
        "low": f"min({name})" if _has_order(field.type) else "NULL",
        "high": f"max({name})" if _has_order(field.type) else "NULL",
        "present": f"count({name})",
        "distinct_count": f"count(DISTINCT {name})" if len(table.rows) <= _COUNTED else "NULL",
        "length": f"max(strlen({name}))" if is_text else "NULL",
        # bytes and letters are as many only where all letters are ASCII
        "wide": f"bool_or(strlen({name}) <> length({name}))" if is_text else "NULL",
    }
    sql = f"SELECT {', '.join(f'{what} AS {alias}' for alias, what in asked.items())} FROM kept"  # noqa: S608  (quoted)
    answer = sandbox.query(sql, kept=table.rows.table([field.name]))
    present = answer["present"][0].as_py()
    return ColumnStatistics(
        min=_sendable(answer["low"], field),
        max=_sendable(answer["high"], field),
        has_null=present < len(table.rows),
        has_not_null=present > 0,
        distinct_count=answer["distinct_count"][0].as_py(),
        max_string_length=answer["length"][0].as_py(),
        contains_unicode=answer["wide"][0].as_py(),
    )


def _is_text(data_type: pa.DataType) -> bool:
    storage = data_type.storage_type if isinstance(data_type, pa.BaseExtensionType) else data_type
    return bool(pa.types.is_string(storage) or pa.types.is_large_string(storage))


def _has_order(data_type: pa.DataType) -> bool:
    """Whether bounds mean something to DuckDB's optimizer."""
    return not (pa.types.is_nested(data_type) or pa.types.is_null(data_type) or pa.types.is_dictionary(data_type))


def _sendable(bound: pa.ChunkedArray, field: pa.Field) -> pa.Scalar | None:
    """The bound, if it comes through Python unharmed on its way to the client; infinite dates, for one, do not."""
    if bound.null_count:
        return None
    value = to_column(bound.combine_chunks(), field)[0]
    try:
        again = pa.array([value.as_py()], field.type)[0]
    except (OverflowError, ValueError, TypeError, pa.ArrowException):
        return None
    return value if again.equals(value) else None
