"""Rows of tables and queries: the first ones of a result, and their values as JSON has them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import date, datetime
from typing import Any, Final

import msgspec
import pyarrow as pa

from skiway.client import AirportClient

__all__ = ["first_rows", "json_values", "shown_rows", "with_whole_numbers"]

MAX_INT64: Final = 2**63 - 1


def first_rows(lake: AirportClient, sql: str, limit: int) -> pa.Table:
    """The first rows of a query. The server stops as soon as they are here."""
    with lake.call(("skiway", "query"), sql) as rows:
        batches, count = [], 0
        for batch in rows:
            batches.append(batch[: limit - count])
            count += batches[-1].num_rows
            if count >= limit:
                break
        return with_whole_numbers(pa.Table.from_batches(batches, rows.schema))


def with_whole_numbers(rows: pa.Table) -> pa.Table:
    """The rows with columns of DuckDB's 128-bit integers, such as sums of BIGINT, as numbers: Arrow has them as bytes."""
    for place, field in enumerate(rows.schema):
        name = field.type.type_name if isinstance(field.type, pa.OpaqueType) else ""
        if name in ("hugeint", "uhugeint"):
            stored = rows.column(place).cast(field.type.storage_type).to_pylist()
            values = [
                None if each is None else int.from_bytes(each, "little", signed=name == "hugeint") for each in stored
            ]
            is_small = all(each is None or abs(each) <= MAX_INT64 for each in values)
            column = pa.array(values, pa.int64() if is_small else pa.decimal256(39))
            rows = rows.set_column(place, pa.field(field.name, column.type), column)
    return rows


def json_values(value: Any) -> Any:
    """A value with nothing in it that JSON does not have: times, bytes and other objects are text."""
    return _finite(msgspec.to_builtins(value, enc_hook=_plain))


def _plain(value: Any) -> Any:
    if isinstance(value, (datetime, date)):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, int):  # a subclass
        return int(value)
    if isinstance(value, Sequence):
        return list(value)
    return str(value)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, list):
        return [_finite(each) for each in value]
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    return value


def shown_rows(rows: pa.Table) -> dict[str, Any]:
    """The columns and rows of a small table. Names may occur twice, so that rows are lists."""
    values = [column.to_pylist() for column in rows.columns]
    return {
        "columns": [{"name": field.name, "type": str(field.type)} for field in rows.schema],
        "rows": [list(row) for row in zip(*values, strict=True)],
    }
