"""Rows of the schema `skiway`, as the visitor may see them."""

from __future__ import annotations

from typing import Any

from skiway.web.visits import Visit

__all__ = ["system_rows"]


def system_rows(visit: Visit, table: str) -> list[dict[str, Any]]:
    """The rows of a system table that is the same in all catalogs; none if the visitor sees no catalog."""
    catalog = next(iter(visit.lake.catalogs(page_size=1)), None)
    if catalog is None:
        return []
    rows: list[dict[str, Any]] = visit.airport(catalog.name).scan(("skiway", table)).read_all().to_pylist()
    return rows
