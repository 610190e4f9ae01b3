"""Catalogs and namespaces, and search."""

from __future__ import annotations

from typing import Final

from skiway.errors import NotFound
from skiway.presentation.sizes import row_count
from skiway.web.visits import WAIT_S, Page, Visit, incomplete_data

__all__ = ["catalog", "search"]

PAGE: Final = 100
MAX_HITS: Final = 50


def search(visit: Visit) -> Page:
    """What matches the text in the search box, the best first."""
    text = visit.query.get("q", "").strip()[:200]
    found = visit.lake.search(text, limit=MAX_HITS, wait_s=WAIT_S)
    results = [
        {
            "kind": each.object.kind,
            "path": list(each.object.path),
            "where": each.found_in,
            "comment": each.object.comment[:200],
            "rows": row_count(each.object.rows, is_bound=each.object.rows_are_bound),
            "rows_are_bound": each.object.rows_are_bound,
            "format": each.object.format,
        }
        for each in found
    ]
    data = {"q": text, "results": results, "incomplete": incomplete_data(found.incomplete)}
    return Page("search.html", f"Search: {text}" if text else "Search", data)


def catalog(visit: Visit) -> Page:
    """A catalog or a namespace: its namespaces, and a page of its tables and views."""
    path = visit.names
    if not path:
        raise NotFound("the address names no catalog: choose one on the home page", key="catalog.unknown")
    try:
        here = visit.lake.search.summary(path, wait_s=WAIT_S)
    except NotFound:
        raise NotFound(
            f"there is no catalog or namespace {'.'.join(path)[:200]}, or you may not see it: search for its name",
            key="namespace.not_found",
        ) from None
    number = visit.number("page", 1, most=1_000_000)
    members = visit.lake.search.below(path, offset=(number - 1) * PAGE, limit=PAGE, wait_s=0)
    data = {
        "path": list(path),
        "kind": here.object.kind if here.object else "",
        "comment": here.object.comment if here.object else "",
        "namespaces": [{"path": list(below), "tables": tables} for below, _, tables in here.containers],
        "members": [
            {
                "kind": each.kind,
                "path": list(each.path),
                "format": each.format,
                "rows": row_count(each.rows, is_bound=each.rows_are_bound),
                "rows_are_bound": each.rows_are_bound,
                "size_bytes": each.size_bytes,
                "problem": each.problem,
                "comment": each.comment[:200],
            }
            for each in members.objects
        ],
        "total": members.total,
        "page": number,
        "pages": max(1, -(-members.total // PAGE)),
        "incomplete": incomplete_data(members.incomplete),
    }
    return Page("catalog.html", ".".join(path), data)
