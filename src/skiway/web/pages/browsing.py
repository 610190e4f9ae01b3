"""Catalogs and namespaces, and search."""

from __future__ import annotations

from collections import Counter
from typing import Final

from skiway.errors import NotFound
from skiway.web.pages.home import INDEXES
from skiway.web.visits import Page, Visit

__all__ = ["catalog", "search"]

PAGE: Final = 100


def search(visit: Visit) -> Page:
    """What matches the text in the search box, the best first."""
    text = visit.query.get("q", "").strip()[:200]
    found = INDEXES.of(visit.visitor.token, visit.lake).find(text)
    results = [
        {
            "kind": each.entry.kind,
            "path": list(each.entry.path),
            "where": each.where,
            "comment": each.entry.comment[:200],
            "rows": each.entry.rows,
            "format": each.entry.format,
        }
        for each in found
    ]
    return Page("search.html", f"Search: {text}" if text else "Search", {"q": text, "results": results})


def catalog(visit: Visit) -> Page:
    """A catalog or a namespace: its namespaces, and a page of its tables and views."""
    path = visit.names
    if not path:
        raise NotFound("the address names no catalog: choose one on the home page", key="catalog.unknown")
    entries = INDEXES.of(visit.visitor.token, visit.lake).entries
    here = entries.get(("catalog", path)) or entries.get(("namespace", path))
    if here is None:
        raise NotFound(
            f"there is no catalog or namespace {'.'.join(path)[:200]}, or you may not see it: search for its name",
            key="namespace.not_found",
        )
    below = [each for each in entries.values() if each.path[: len(path)] == path and each.path != path]
    members = sorted((each for each in below if each.kind in ("table", "view")), key=lambda each: each.path)
    counts = Counter(each.path[:-1] for each in members)
    number, last = visit.number("page", 1, most=1_000_000), max(1, -(-len(members) // PAGE))
    shown = members[(number - 1) * PAGE : number * PAGE]
    data = {
        "path": list(path),
        "kind": here.kind,
        "comment": here.comment,
        "namespaces": [
            {"path": list(each.path), "tables": counts[each.path]}
            for each in sorted(below, key=lambda one: one.path)
            if each.kind == "namespace"
        ],
        "members": [
            {
                "kind": each.kind,
                "path": list(each.path),
                "format": each.format,
                "rows": each.rows,
                "size_bytes": each.size_bytes,
                "comment": each.comment[:200],
            }
            for each in shown
        ],
        "total": len(members),
        "page": number,
        "pages": last,
    }
    return Page("catalog.html", ".".join(path), data)
