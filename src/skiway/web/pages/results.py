"""Rows as pages show them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

__all__ = ["shown_rows"]


def shown_rows(rows: pa.Table) -> dict[str, Any]:
    """The columns and rows of a small table. Names may occur twice, so that rows are lists."""
    values = [column.to_pylist() for column in rows.columns]
    return {
        "columns": [{"name": field.name, "type": str(field.type)} for field in rows.schema],
        "rows": [list(row) for row in zip(*values, strict=True)],
    }
