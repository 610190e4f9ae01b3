"""Rows of tables and queries: the first ones of a result, and their values as JSON has them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import date, datetime
from typing import Any

import msgspec
import pyarrow as pa

from skiway.client import AirportClient

__all__ = ["first_rows", "json_values", "shown_rows"]


def first_rows(lake: AirportClient, sql: str, limit: int) -> pa.Table:
    """The first rows of a query. The server stops as soon as they are here."""
    with lake.call(("skiway", "query"), sql) as rows:
        batches, count = [], 0
        for batch in rows:
            batches.append(batch[: limit - count])
            count += batches[-1].num_rows
            if count >= limit:
                break
        return pa.Table.from_batches(batches, rows.schema)


def json_values(value: Any) -> Any:
    """A value with nothing in it that JSON does not have: times, bytes and other objects are text."""
    return _finite(msgspec.to_builtins(value, enc_hook=_plain))


def _plain(value: Any) -> Any:
    if isinstance(value, (datetime, date)):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.hex()
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
